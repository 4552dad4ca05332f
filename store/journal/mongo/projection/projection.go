// Package projection keeps what MongoDB's own tools are to find of a hub whose journal is there: its events, the
// cursors of its groups, and the current state of topics, as documents.
//
//	events   {_id: "orders::42", topic, offset, id, ts, key, partition, headers, tags, caused_by, sid, payload, life, epoch}
//	cursors  {_id: "orders::billing", topic, group, offset, lastId, lastTs, life, epoch}
//	state.T  {_id: <key>, and the newest event of the key}    for each topic T that is asked for
//
//	eventhub_projection
//	         {_id: "orders", through, horizon, compacted, tombstones, life, state, epoch}   how far each topic is
//	         {_id: ":head", …}   how far all is, and whether it is to be made anew
//
// # What it is
//
// A copy for queries, of what the log shows: nobody reads it to decide anything, the hub neither. It is
// written after commits, by the hub that leads, beside everything else, and nothing waits for it. So it lags, and says
// how far: Status, and ":head" for who has the database alone.
//
// # Invariants
//
//   - A topic in events is what the log of the topic shows, up to its through: an event that is erased,
//     below the horizon, or that the compaction may remove, is removed here too, and nothing else is missing.
//   - Documents come before the position that counts them, in the order of the log, so a repeat after a crash finds
//     them there. Offsets are not given twice, over lives of a topic either, so a document never changes.
//   - A removal names what it removes by life or by offset, never the topic alone. One that is carried out late
//     removes nothing of a later life.
//   - A hub writes to a topic, and removes, only after it has its epoch in the topic's position. A hub
//     that led before finds the higher epoch when it writes its next position, and takes back the documents it had
//     just inserted. What is left is a hub that dies between these two steps, of which an insert is carried out later than its
//     successor's first removal: `eventhub journal project --rebuild` mends that.
//   - What is to be looked at is noted before it is known to be done (Begin, Note), and kept until it is; what a
//     crash forgets is found at the start of the next lead, by comparing all topics, and by the marks that erasures
//     leave in admin's audit topic.
//
// # Who calls it
//
// The hub: Check at a start, Run while it leads, Begin and Note around each commit of its store. The command
// line: Look and Rebuild.
package projection

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"eventhub"
	"eventhub/store"
)

// The names of the collections. StatePrefix comes before the name of a topic.
const (
	Events      = "events"
	Cursors     = "cursors"
	StatePrefix = "state."
	Positions   = "eventhub_projection"
)

const (
	// gather is how long after a commit a pass begins, so that what comes together is written together.
	gather = 100 * time.Millisecond
	// lookEvery is how often ":head" is looked at where nothing is committed, and whether there is a wish for a rebuild
	// in a long pass.
	lookEvery = 10 * time.Second
	// leastRetry and mostRetry are between two attempts where the database refuses or is away.
	leastRetry = 250 * time.Millisecond
	mostRetry  = 5 * time.Second
	// warnEvery is how often the log has the same trouble.
	warnEvery = time.Minute
)

// errFenced: another hub has a higher epoch.
var errFenced = errors.New("another hub that leads writes the projections")

// Source is what is read of the store that leads.
type Source interface {
	Read(ctx context.Context, topic string, from uint64, limit, maxBytes int, batch *store.Batch) error
	SeekTime(ctx context.Context, topic string, ts int64) (uint64, error)
	Topic(ctx context.Context, name string) (store.TopicInfo, error)
	ListTopics(ctx context.Context, after string, limit int) ([]store.TopicInfo, error)
	Lives(ctx context.Context) (store.Lives, error)
	ListGroups(ctx context.Context, topic string) ([]store.GroupInfo, error)
}

// Options configure a Projection.
type Options struct {
	Database *mongo.Database // with the concerns of the journal
	Ferret   bool            // the server is a FerretDB
	// State are the topics whose current state is kept as a collection each.
	State  []eventhub.Pattern
	Logger *slog.Logger
}

// Status says how the projections are doing.
type Status struct {
	// Entries is how many entries of the journal are not in the projections, and Lag for how long the oldest of
	// them has waited; both 0 where nothing waits.
	Entries uint64
	Lag     time.Duration
	Events  uint64 // written since the start
	Errors  uint64 // attempts that failed since the start
	Err     error  // of the last attempt; nil where it went well
}

// Projection writes the projections of one hub. Begin, Note and Status may be called at any time, and at once.
type Projection struct {
	opts                       Options
	db                         *mongo.Database
	events, cursors, positions *mongo.Collection

	mu     sync.Mutex
	dirty  map[string]*hint
	since  time.Time // of the oldest in dirty
	under  time.Time // of the oldest that a pass has taken
	flying int       // commits that have begun
	noted  uint64    // all entries up to this place are in dirty, or were
	done   uint64    // all entries up to this place are projected
	busy   bool      // a pass is under way
	stats  Status
	wake   chan struct{} // has one where dirty has something

	// Of Run.
	source  Source
	epoch   uint64
	topics  map[string]*topic
	batch   batch
	head    head // as it was last read
	indexed bool
	lost    bool      // positions are gone that this hub has written: all is to be made anew
	looked  time.Time // when it last looked for a wish for a rebuild
	warned  time.Time
	long    map[string]bool // topics whose names are too long for a collection of their state
	failing bool
}

// hint is why a topic is to be looked at.
type hint struct {
	erased []uint64 // these offsets were erased
	verify bool     // any event of it may have been erased
}

func (h *hint) merge(other *hint) {
	h.erased = append(h.erased, other.erased...)
	h.verify = h.verify || other.verify
}

// New returns a projection that does nothing before Run. What the hub before has left is not known until then, so
// its lag counts from here.
func New(o Options) *Projection {
	p := &Projection{opts: o, db: o.Database, dirty: make(map[string]*hint), wake: make(chan struct{}, 1), busy: true, under: time.Now()}
	p.events, p.cursors, p.positions = p.db.Collection(Events), p.db.Collection(Cursors), p.db.Collection(Positions)
	return p
}

// Begin says that a commit begins; place is where the store is in the journal. Its result is for Note.
func (p *Projection) Begin(place uint64) (begun uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flying++
	return place
}

// Note says that a commit has ended, well or not, with what reads show of it; place is where the store
// is then. Commits end in the order in which they began.
func (p *Projection) Note(begun, place uint64, units []*store.Unit, deleted string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flying--; p.flying > 0 {
		place = begun // of what came in between not all is noted
	}
	last := deleted
	if deleted != "" {
		p.add(deleted, nil)
	}
	for _, u := range units {
		for i := range u.Appends {
			if topic := u.Appends[i].Topic; topic != last {
				last = topic
				p.add(topic, nil)
			}
		}
		for i := range u.Groups {
			p.add(u.Groups[i].Topic, nil)
		}
		for i := range u.Topics {
			p.add(u.Topics[i].Topic, u.Topics[i].Erase)
		}
	}
	p.noted = max(p.noted, place)
}

// add has a topic looked at. p.mu is held.
func (p *Projection) add(topic string, erased []uint64) {
	h := p.dirty[topic]
	if h == nil {
		h = new(hint)
		p.dirty[topic] = h
	}
	h.erased = append(h.erased, erased...)
	if p.since.IsZero() {
		p.since = time.Now()
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Status returns how the projections are doing.
func (p *Projection) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	if len(p.dirty) > 0 || p.busy {
		s.Entries = max(p.noted, p.done) - p.done
		oldest := p.under
		if oldest.IsZero() {
			oldest = p.since
		}
		s.Lag = time.Since(oldest)
	}
	return s
}

// Run writes what the store of a hub has that leads in an epoch, and what comes, until ctx ends, or another hub has
// a higher epoch. place returns the last entry of this hub that is in the journal, a beat too. Run is called once.
func (p *Projection) Run(ctx context.Context, source Source, epoch uint64, place func() uint64) {
	p.source, p.epoch = source, epoch
	p.mu.Lock()
	p.noted = max(p.noted, place())
	p.mu.Unlock()
	wait := leastRetry
	for ctx.Err() == nil {
		before := p.Status().Events
		worked, err := p.work(ctx, place)
		if worked || p.Status().Events > before {
			wait = leastRetry
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errAsked) {
			continue
		}
		p.fail(err, wait)
		if errors.Is(err, errFenced) {
			return
		}
		pause(ctx, wait)
		wait = min(2*wait, mostRetry)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// fail notes an error.
func (p *Projection) fail(err error, wait time.Duration) {
	p.mu.Lock()
	p.stats.Errors++
	p.stats.Err = err
	p.mu.Unlock()
	p.failing = true
	if errors.Is(err, errFenced) {
		p.opts.Logger.Info("this hub writes the projections no more", "error", err)
	} else if time.Since(p.warned) >= warnEvery {
		p.warned = time.Now()
		p.opts.Logger.Warn("cannot write the projections; it is tried again", "in", wait, "error", err)
	}
}

// work begins anew and writes what comes, until something fails. worked: it has written all there was at least once.
func (p *Projection) work(ctx context.Context, place func() uint64) (worked bool, err error) {
	if err := p.begin(ctx); err != nil {
		return false, err
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if err := p.round(ctx); err != nil {
			return worked, err
		}
		worked = true
		if p.failing {
			p.failing = false
			p.warned = time.Time{}
			p.opts.Logger.Info("the projections are written again")
		}
		select {
		case <-p.wake:
			pause(ctx, gather)
		case <-ticker.C:
			p.rest(place())
		case <-ctx.Done():
			return worked, ctx.Err()
		}
	}
}

// rest moves the place that is projected over entries without anything to project.
func (p *Projection) rest(place uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.dirty) == 0 && p.flying == 0 {
		p.noted = max(p.noted, place)
	}
}

// round is one pass over what is noted.
func (p *Projection) round(ctx context.Context) error {
	place, dirty := p.take()
	names := make([]string, 0, len(dirty))
	for name := range dirty {
		names = append(names, name)
	}
	slices.Sort(names)
	err := p.pass(ctx, names, dirty)
	if err == nil {
		err = p.finish(ctx, place)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.batch = batch{}
		for name, h := range dirty {
			p.add(name, nil)
			p.dirty[name].merge(h)
		}
		return err
	}
	p.busy, p.under = false, time.Time{}
	p.done = place
	p.stats.Err = nil
	return nil
}

func (p *Projection) pass(ctx context.Context, names []string, dirty map[string]*hint) error {
	for _, name := range names {
		if err := p.project(ctx, name, dirty[name]); err != nil {
			return err
		}
	}
	return p.flush(ctx)
}

// take takes all that is noted.
func (p *Projection) take() (place uint64, dirty map[string]*hint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.wake:
	default:
	}
	dirty = p.dirty
	p.busy = p.busy || len(dirty) > 0
	if p.under.IsZero() {
		p.under = p.since // and else an attempt before has failed
	}
	p.dirty, p.since = make(map[string]*hint), time.Time{}
	return p.noted, dirty
}
