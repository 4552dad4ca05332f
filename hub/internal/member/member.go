// Package member has a hub take part in a journal: it follows until it is to lead, and holds the
// lead until another hub has it.
//
// It owns when that is. A hub leads when the journal has not grown for the lease, while it
// answered: so a hub that does not reach the journal never takes over, and no two clocks are
// compared. That two hubs do not lead at once does not depend on it: the entry with which a hub
// begins to lead fences whoever led before.
//
// # Invariants
//
//   - What a replica has applied is what the journal has, in its order (journal.Log checks it).
//   - A hub leads only with a replica that has everything that the journal has.
//   - Who leads shows it: at least each quarter of the lease there is a new entry, as long as the
//     journal takes some.
//   - The journal is trimmed only up to where the copies of two members are on their disks, and of
//     all members that were seen within a day, and an hour later, so that a copy of a member can be
//     brought to another machine. Where it is nearly full, only who was seen within a minute counts, and at
//     once.
//   - When a member was seen is told by the engine's clock alone (journal.Journal.Now):
//     that of this machine may say something else.
//   - Who leads, and has had no answer of the journal for the lease, is suspended until the journal
//     answers: nothing is delivered or acknowledged meanwhile that another hub may decide.
//
// # Who calls it
//
// The hub, in this order: Lead, which follows; then Hold, beside the store that writes through the
// leader, or Watch, where Lead says that the journal does not have what the replica needs. Status and Active may be called at any time.
package member

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"eventhub/store/journal"
)

const (
	// DefaultLease is the lease of a hub that is told none, and LeastLease the shortest: below it
	// the round trip to an engine and its own elections are taken for the end of a hub.
	DefaultLease = 5 * time.Second
	LeastLease   = time.Second
	// askEvery is how often a member asks how much room the journal has, and announceEvery how often it
	// makes its copy durable and says so; where the journal is nearly full, that is each time too.
	askEvery      = time.Second
	announceEvery = 10 * time.Second
	// warnEvery is how often the log has what keeps a member from that and does not pass.
	warnEvery = time.Minute
	// SeenWithin is for how long a member counts that does not say how it is doing, and
	// seenWithinFull where the journal is nearly full.
	SeenWithin     = 24 * time.Hour
	seenWithinFull = time.Minute
	// reserve is how long entries stay that nobody needs.
	reserve = time.Hour
	// NearlyFull is that share of the journal, in percent.
	NearlyFull = 80
	// Looks is how many times in a lease the journal is looked at.
	Looks = 4
)

// ErrTwin: another hub that was there before has the id of this member.
var ErrTwin = errors.New("another hub has this member id")

// Replica is the copy of the store (pebble.Replica).
type Replica interface {
	Position() journal.Position
	Apply(batch []byte, at journal.Position) error
	Sync() (journal.Position, error)
}

// Options configure a Member. All are required but URLs.
type Options struct {
	Journal journal.Journal
	Replica Replica
	ID      string   // of 1 to 64 bytes, and of no other member
	URLs    []string // where clients reach the hub
	Lease   time.Duration
	Layout  uint32 // of the entries that the hub writes and reads
	// Founds: the copy has a store that no entry has, so a journal that has nothing is to begin with
	// it. Other members give it a lease for that.
	Founds bool
	// Suspend is called by Hold with true where the journal has not answered for the lease, and with false
	// when it does again. It may take its time: nothing else waits for it but Hold. Nil: nothing is done.
	Suspend func(silent bool)
	Logger  *slog.Logger
}

// Roles of a member.
const (
	Standby = "standby"
	Active  = "active"
)

// Status says how a member is doing.
type Status struct {
	ID    string
	Role  string
	Epoch uint64
	// Active is the member that leads, or that led last; empty where nobody has yet.
	Active string
	// Position is the last place that the member has, and Last the last one that the journal was
	// seen to have.
	Position, Last uint64
	// Behind is for how long a standby has not had all of Last.
	Behind time.Duration
	// Silent is for how long the journal has not answered, and Full for how long it has answered what this member
	// was to append that it takes nothing: a member that leads cannot do anything then, and no other one can lead.
	// One of them is 0.
	Silent, Full time.Duration
	// CaughtUp: it has had everything once, as far as the journal was asked.
	CaughtUp bool
	Members  []journal.Member
	// Now is what the engine's clock says, by which Members were seen; zero where nobody was yet.
	Now    time.Time
	Limits journal.Limits // as they were asked for last
}

// Member is one hub of those that share a journal.
type Member struct {
	opts Options
	log  *journal.Log

	mu       sync.Mutex
	at       journal.Position // of the last entry that came
	kind     journal.Kind     // of it
	active   string           // who wrote it
	role     string
	last     uint64
	grown    time.Time     // when the end of the journal last moved
	came     time.Time     // when an entry last came
	answered time.Time     // when the journal last answered
	caughtUp time.Time     // when the member last had everything
	asked    bool          // the journal has said once where it ends
	caught   bool          // it has had everything since then
	through  chan struct{} // closed then
	members  []journal.Member
	limits   journal.Limits
	leader   *journal.Leader // from Hold on
	filled   filling         // what it had appended when limits was asked for
	released chan struct{}   // who led has given the lead back
	run      string          // of this process
	said     time.Time       // when it last said how it is doing
	engine   time.Time       // what the engine's clock said then
	twins    twins           // of announce, and then of spare
	trimmed  uint64
	kept     []mark // what could be trimmed, and when, the oldest first
}

// New returns a member that does nothing before Lead.
func New(o Options) *Member {
	now := time.Now()
	if o.Suspend == nil {
		o.Suspend = func(bool) {}
	}
	return &Member{
		opts: o, log: journal.New(o.Journal), at: o.Replica.Position(), role: Standby, run: rand.Text(),
		grown: now, came: now, answered: now, caughtUp: now, released: make(chan struct{}, 1), through: make(chan struct{}),
	}
}

// Status returns how the member is doing.
func (m *Member) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	s := Status{
		ID: m.opts.ID, Role: m.role, Epoch: m.at.Epoch, Active: m.active,
		Position: m.at.Seq, Last: max(m.last, m.at.Seq),
		CaughtUp: m.caught || m.role == Active, Members: m.members, Limits: m.limits,
	}
	if !m.said.IsZero() {
		s.Now = m.engine.Add(now.Sub(m.said))
	}
	if m.role == Standby && s.Position < s.Last {
		s.Behind = now.Sub(m.caughtUp)
	}
	s.Silent, s.Full = m.still(now)
	return s
}

// still returns for how long the journal has been silent, or full. m.mu is held.
func (m *Member) still(now time.Time) (silent, full time.Duration) {
	refused, err := m.log.Full()
	since := now.Sub(m.answered)
	if err == nil {
		since = min(since, now.Sub(refused))
	}
	switch {
	case since <= m.opts.Lease/Looks*2:
		return 0, 0
	case err != nil:
		return 0, since
	}
	return since, 0
}

// ActiveURLs returns where the member is reached that leads, as far as this one knows.
func (m *Member) ActiveURLs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.urls(m.active)
}

// URLs returns where a member is reached, as far as this one knows.
func (m *Member) URLs(id string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.urls(id)
}

// urls is URLs; m.mu is held.
func (m *Member) urls(id string) []string {
	for _, other := range m.members {
		if other.ID == id {
			return other.URLs
		}
	}
	return nil
}

// Lead follows the journal, and returns when this hub leads it. An error is final: the context has
// ended, the journal is not the one that was followed, another hub has this member's id, or the replica is
// broken.
func (m *Member) Lead(ctx context.Context) (*journal.Leader, error) {
	ctx, stop := context.WithCancelCause(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		m.announce(ctx, stop, func(context.Context) (journal.Position, error) { return m.opts.Replica.Sync() })
	})
	defer ended.Wait()
	defer stop(nil)
	for {
		at, err := m.follow(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil || isFinal(err):
			return nil, err
		default: // the engine has no leader at present, or the like
			m.opts.Logger.Warn("cannot follow the journal; it is tried again", "error", err)
			m.pause(ctx)
			continue
		}
		if at != m.position() {
			continue // somebody was there after all
		}
		leader, err := m.log.Lead(ctx, at, m.opts.ID, m.opts.Layout)
		switch {
		case err == nil:
			m.mu.Lock()
			m.role, m.active, m.at = Active, m.opts.ID, leader.Position()
			m.mu.Unlock()
			m.opts.Logger.Info("this hub leads the journal", "member", m.opts.ID, "epoch", leader.Position().Epoch, "place", leader.Position().Seq)
			return leader, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case isFinal(err):
			return nil, err
		case errors.Is(err, journal.ErrFenced), errors.Is(err, journal.ErrBehind):
			m.opts.Logger.Info("another hub was faster to lead the journal", "error", err)
		default:
			m.opts.Logger.Warn("cannot lead the journal; this hub follows it on", "error", err)
		}
		m.mu.Lock()
		m.grown = time.Now()
		m.mu.Unlock()
	}
}

// Watch asks how the journal is until ctx ends, for a member that does not follow because it needs a copy. So Status says
// whether the journal answers, where it ends, and how full it is.
func (m *Member) Watch(ctx context.Context) {
	every := m.opts.Lease / Looks
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		_, _ = m.look(ctx, every, 0) // it does not lead
		asking, cancel := context.WithTimeout(ctx, every)
		_ = m.askLimits(asking) // the next time, then
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// pause is between two attempts.
func (m *Member) pause(ctx context.Context) {
	select {
	case <-time.After(m.opts.Lease / Looks):
	case <-ctx.Done():
	}
}

// unapplied is why an entry was not applied.
type unapplied struct{ error }

// Unwrap returns the cause.
func (e unapplied) Unwrap() error { return e.error }

// isFinal reports whether following on makes no sense.
func isFinal(err error) bool {
	if _, ok := errors.AsType[unapplied](err); ok {
		return true
	}
	return errors.Is(err, journal.ErrDiverged) || errors.Is(err, journal.ErrForeign) || errors.Is(err, journal.ErrTrimmed) || errors.Is(err, journal.ErrClosed)
}

func (m *Member) position() journal.Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

// follow applies what comes. It returns the position after which this hub is to lead, if nothing
// more has come since.
func (m *Member) follow(ctx context.Context) (journal.Position, error) {
	following, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- m.log.Follow(following, m.position(), m.take) }()
	at, err := m.wait(ctx, done)
	stop()
	if err == nil {
		<-done
		return at, nil
	}
	if ctx.Err() != nil {
		return at, context.Cause(ctx)
	}
	return at, err
}

// wait returns the position after which this hub is to lead, or the error with which following has
// ended.
func (m *Member) wait(ctx context.Context, done chan error) (journal.Position, error) {
	look := m.opts.Lease / Looks
	jitter := time.Duration(mathrand.Int64N(int64(look)))
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() == nil {
				err = fmt.Errorf("follow the journal: %w", err)
			}
			return journal.Position{}, err
		case <-m.released:
			// In what a member catches up with there are old ones, and others have led since.
			m.mu.Lock()
			at, released := m.at, m.kind == journal.KindRelease
			m.mu.Unlock()
			if released {
				return at, nil
			}
			continue
		case <-ticker.C:
		}
		if at, quiet := m.look(ctx, look, jitter); quiet {
			return at, nil
		}
	}
}

// look asks the journal where it ends, and reports whether it is quiet, and at which position the
// member is.
func (m *Member) look(ctx context.Context, within, jitter time.Duration) (at journal.Position, quiet bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	last, err := m.opts.Journal.Last(ctx)
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.grown = now // who cannot ask knows nothing
		return m.at, false
	}
	m.answered, m.asked = now, true
	if last > m.last {
		m.last, m.grown = last, now
	}
	if m.at.Seq >= m.last {
		m.caughtUp = now
		m.catchUp()
	}
	if m.last == 0 && m.at.Seq == 0 && m.opts.Founds {
		return m.at, true
	}
	// Where the last entries are pieces of a commit that was not finished, nothing comes of them.
	through := m.at.Seq >= last || now.Sub(m.came) > m.opts.Lease/2
	return m.at, through && now.Sub(m.grown) >= m.opts.Lease+jitter
}

// catchUp notes that the member has everything. m.mu is held.
func (m *Member) catchUp() {
	if !m.caught {
		m.caught = true
		close(m.through)
	}
}

// take applies an entry.
func (m *Member) take(e journal.Entry) error {
	if e.Layout > m.opts.Layout {
		return fmt.Errorf("%w: the entry at %d has layout %d, and this program reads %d: update it", journal.ErrForeign, e.Position.Seq, e.Layout, m.opts.Layout)
	}
	// What has no data is noted too, so that the journal can be trimmed up to there.
	if err := m.opts.Replica.Apply(e.Data, e.Position); err != nil {
		return unapplied{err}
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Kind == journal.KindLead {
		m.opts.Logger.Info("a hub leads the journal", "member", e.Hub, "epoch", e.Epoch, "place", e.Position.Seq)
	}
	m.at, m.kind, m.active, m.came = e.Position, e.Kind, e.Hub, now
	if e.Position.Seq > m.last {
		m.last, m.grown = e.Position.Seq, now
	}
	if m.at.Seq >= m.last {
		m.caughtUp = now
		if m.asked { // under load it may be a little behind each time it looks
			m.catchUp()
		}
	}
	takeToken(m.released)
	if e.Kind == journal.KindRelease {
		m.released <- struct{}{}
	}
	return nil
}

func takeToken(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}
