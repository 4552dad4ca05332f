package bus

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

const (
	// A move takes as many plans as this, or as many bytes of records.
	movePlans = 1000
	moveBytes = 1 << 20
	// moveRetry is how long what could not be moved waits for another try.
	moveRetry = time.Second
	// moveTries is how often a read of what is due may fail before what comes due
	// later goes on without it.
	moveTries = 10
	// lookEvery bounds the sleep of the mover while there are plans: a timer does
	// not see that somebody has set the clock.
	lookEvery = 10 * time.Second

	// never is behind all times that an event can be due at.
	never = math.MaxInt64
)

// plannedEvent says which event of its publication a plan is, and where in the
// encoder's buffer its record stands.
type plannedEvent struct{ index, start, end int }

// planLast makes the event encoded last, that of the given index in its
// publication, a plan. isFresh says that its id is new.
func (s *encoder) planLast(index, start int, at int64, isFresh bool) {
	last := len(s.appends) - 1
	a := &s.appends[last]
	s.plans = append(s.plans, store.Plan{Topic: a.Topic, ID: a.ID, FreshID: isFresh, Key: a.Key, At: at})
	s.planned = append(s.planned, plannedEvent{index, start, len(s.buf)})
	s.appends[last] = store.Append{}
	s.appends = s.appends[:last]
}

// dropPlans takes back what a publication that is refused has planned.
func (s *encoder) dropPlans(first int) {
	clear(s.plans[first:])
	s.plans, s.planned = s.plans[:first], s.planned[:first]
}

// placePlans gives the units their plans, once buf and plans stay where they are.
// Until then a unit has as many as it will have.
func (s *encoder) placePlans(units []store.Unit) {
	if len(s.plans) == 0 {
		return
	}
	for i, p := range s.planned {
		s.plans[i].Record = eventhub.Record(s.buf[p.start:p.end:p.end])
	}
	at := 0
	for i := range units {
		n := len(units[i].Plans)
		units[i].Plans = s.plans[at : at+n : at+n]
		at += n
	}
}

// planReceipts adds the receipts of plans to those of the appends of the same
// publication, in the order of its events. planned is parallel to plans.
func planReceipts(receipts []eventhub.Receipt, plans []store.Plan, planned []plannedEvent) []eventhub.Receipt {
	appended := len(receipts)
	receipts = append(receipts, make([]eventhub.Receipt, len(plans))...)
	// From the end, so that none is overwritten before it has moved.
	for at, p := len(receipts)-1, len(plans)-1; p >= 0; at-- {
		if planned[p].index != at {
			appended--
			receipts[at] = receipts[appended]
			continue
		}
		pl := &plans[p]
		receipts[at] = eventhub.Receipt{ID: pl.ID, DeliverAt: pl.At, Duplicate: pl.Duplicate}
		if pl.Duplicate && pl.Seq == 0 {
			receipts[at].DeliverAt, receipts[at].Offset = 0, pl.Offset
		}
		p--
	}
	return receipts
}

// mover puts scheduled events into the log when they are due. It keeps none of
// them: what is due, and when to look again, it reads from the store. A move is
// an Unplan and an Append in one unit, so that an event is planned or in the log
// and a Cancel that comes at the same time finds one or the other. The Unplan names
// the plan by its Seq: what was scheduled anew under the id meanwhile is another
// event. There is a unit for each event: one that is refused holds up no other.
//
// It runs while something is due, on the goroutine of its timer, one page after
// the other; else only the timer is set. Two rules keep it from missing any:
//
//   - All plans at or before low have been moved or cancelled, or stand behind
//     again, to be tried once more.
//   - The committer tells of plans that it has committed (planned), and low goes
//     back where one of them is before it. What is told while a page is read and
//     moved counts after that.
//
// low also spares the store: what was moved has left tombstones where the plans
// stood, and a read from the beginning would step over all of them.
//
// Nothing is early: a page is read up to now, and the commit, which comes later,
// writes its own time. After an error of the committer nothing is moved any more.
type mover struct {
	bus    *Bus
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	now    func() time.Time

	mu      sync.Mutex
	timer   *time.Timer
	busy    sync.WaitGroup // has the run under way
	running bool
	stopped bool
	next    int64 // when there is something to do, in epoch milliseconds
	looked  int64 // what the clock had when somebody looked whether that has come
	added   int64 // the earliest plan that was told since the last look, or never
	low     place
	again   place // all that has to be tried again is behind it
	againAt int64 // when, or never
	resume  place // where low was before it went back to again
	failed  int   // reads, one after the other
}

// place is one in the order of plans.
type place struct {
	at  int64
	seq uint64
}

// beforeAll is before all plans.
var beforeAll = place{at: -1}

func (p place) before(q place) bool { return p.at < q.at || p.at == q.at && p.seq < q.seq }

func newMover(b *Bus) *mover {
	m := &mover{bus: b, now: b.clock.Wall, added: never, low: beforeAll, resume: beforeAll, againAt: never}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.timer = time.AfterFunc(time.Hour, m.run)
	m.timer.Stop()
	return m
}

// start looks for the first time at what the store has.
func (m *mover) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arm()
}

// stop ends the mover and returns when it has ended. The committer still runs.
func (m *mover) stop() {
	m.mu.Lock()
	m.stopped = true
	m.timer.Stop()
	m.mu.Unlock()
	m.cancel()
	m.busy.Wait()
}

// planned tells of plans that are durable. It is called by the committer.
func (m *mover) planned(plans []store.Plan) {
	at := int64(never)
	for i := range plans {
		if !plans[i].Duplicate {
			at = min(at, plans[i].At)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.added = min(m.added, at)
	if m.added < m.next {
		m.next = m.added
		m.arm()
	}
}

// arm sets the timer. m.mu is held.
func (m *mover) arm() {
	switch {
	case m.stopped || m.running:
	case m.next == never:
		m.timer.Stop()
	default:
		wait := time.UnixMilli(m.next).Sub(m.now())
		m.timer.Reset(max(0, min(wait, lookEvery)))
	}
}

// run is called by the timer.
func (m *mover) run() {
	if !m.begin() {
		return
	}
	defer m.busy.Done()
	for m.step() {
	}
}

// begin reports whether there is something to do now.
func (m *mover) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.running {
		return false
	}
	now := m.now().UnixMilli()
	isBack := now < m.looked
	m.looked = now
	if isBack && m.againAt != never {
		m.againAt = now // who sets the clock makes nothing wait longer for another try
	}
	if !isBack && now < m.next {
		m.arm()
		return false
	}
	m.running = true
	m.busy.Add(1)
	return true
}

// end ends the run; there is something to do at next, or when a plan was told
// that comes before it.
func (m *mover) end(next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = false
	m.next = min(next, m.added, m.againAt)
	m.arm()
}

// step moves a page of what is due, and reports whether the run goes on.
func (m *mover) step() bool {
	now := m.now().UnixMilli()
	from := m.look(now)
	due, err := m.read(from, now, movePlans)
	if err == nil && len(due) > 0 {
		return m.move(due)
	}
	first := []store.Planned(nil)
	if err == nil {
		first, err = m.read(from, never, 1)
	}
	if err != nil {
		return m.readFailed(now, err)
	}
	m.reached(from, first)
	return false
}

// look returns the place behind which to read.
func (m *mover) look(now int64) place {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.low.before(m.resume) {
		m.resume = beforeAll
	}
	if m.againAt <= now {
		m.resume = m.low
		m.goBack(m.again)
		m.againAt = never
	}
	if m.added != never {
		m.goBack(place{at: m.added})
		m.added = never
	}
	return m.low
}

// goBack makes sure that what is behind p is read again. m.mu is held.
func (m *mover) goBack(p place) {
	if p.before(m.low) {
		m.low = p
	}
}

func (m *mover) read(from place, until int64, limit int) ([]store.Planned, error) {
	return m.bus.store.Planned(m.ctx, from.at, from.seq, until, limit, moveBytes)
}

// readFailed reports whether the run goes on. The plans keep their order and wait,
// but not for ever: a part of the store that can not be read is left behind in the
// end, and then tried again now and then.
func (m *mover) readFailed(now int64, err error) bool {
	if m.ctx.Err() != nil {
		m.end(never)
		return false
	}
	m.bus.log.Error("cannot read scheduled events; they wait", "error", err)
	m.mu.Lock()
	m.failed++
	behind := m.low
	switch {
	case m.low.before(m.resume): // it was left behind before
		behind = m.resume
	case m.failed >= moveTries:
		behind = place{at: now, seq: math.MaxUint64}
		m.failed = 0
	}
	left := m.low != behind
	if left {
		m.tryAgain(m.low, now+moveTries*moveRetry.Milliseconds())
		m.low = behind
	}
	m.mu.Unlock()
	if !left {
		m.end(now + moveRetry.Milliseconds())
	}
	return left
}

// tryAgain has what is behind p read once more at the given time, or earlier.
// m.mu is held.
func (m *mover) tryAgain(p place, at int64) {
	if m.againAt == never || p.before(m.again) {
		m.again = p
	}
	m.againAt = min(m.againAt, at)
}

// reached ends a run after which nothing is due; first is the plan that comes
// next, or none.
func (m *mover) reached(from place, first []store.Planned) {
	next := int64(never)
	m.mu.Lock()
	m.failed = 0
	if len(first) > 0 {
		next = first[0].At
		m.low = place{at: next, seq: first[0].Seq - 1}
	} else {
		m.low = from
	}
	m.mu.Unlock()
	m.end(next)
}

// move commits a page and waits for it.
func (m *mover) move(due []store.Planned) bool {
	err := m.bus.space.check()
	if err == nil {
		var units []store.Unit
		if units, err = m.bus.commitMoves(m.ctx, due); err == nil {
			m.moved(due, units)
			return true
		}
	}
	if eventhub.ErrorCode(err) == eventhub.CodeOverloaded {
		m.end(m.now().Add(moveRetry).UnixMilli())
	} else {
		m.end(never) // the store is broken, or the hub stops
	}
	return false
}

// commitMoves makes one unit of each plan and waits for their commit. The records
// are owned by nobody else, so that the tail cache may keep them.
func (b *Bus) commitMoves(ctx context.Context, due []store.Planned) ([]store.Unit, error) {
	m := &move{}
	m.Units, m.Plain = make([]store.Unit, len(due)), true
	appends, unplans := make([]store.Append, len(due)), make([]store.Unplan, len(due))
	for i := range due {
		p := &due[i]
		unplans[i] = store.Unplan{Topic: p.Topic, ID: p.ID, Seq: p.Seq}
		appends[i] = store.Append{Topic: p.Topic, ID: p.ID, Key: p.Key, Record: p.Record}
		linkRecord(&appends[i])
		m.Units[i] = store.Unit{Appends: appends[i : i+1 : i+1], Unplans: unplans[i : i+1 : i+1]}
		m.Bytes += len(p.Record)
	}
	err := b.committer.Do(ctx, m)
	return m.Units, err
}

// move is the job of one page. Its units are independent: each has an error of its own.
type move struct{ commit.Call }

// Done implements commit.Job.
func (m *move) Done(err error) { m.Answer(err) }

// moved goes on behind a page that was committed. A unit that was refused because
// its plan is gone was cancelled; any other one is tried again.
func (m *mover) moved(due []store.Planned, units []store.Unit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = 0
	for i := range units {
		if err := units[i].Err; err != nil && !errors.Is(err, store.ErrNoPlan) {
			p := &due[i]
			m.bus.log.Error("the store refused a scheduled event; it is tried again", "topic", p.Topic, "id", p.ID, "deliver_at", p.At, "error", err)
			m.tryAgain(place{at: p.At, seq: p.Seq - 1}, m.now().Add(moveRetry).UnixMilli())
		}
	}
	last := due[len(due)-1]
	m.low = place{at: last.At, seq: last.Seq}
}

// Cancel implements admin.Scheduler.
func (b *Bus) Cancel(ctx context.Context, topic, id string) error {
	if err := eventhub.ValidateTopic(topic); err != nil {
		return err
	}
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	err := b.committer.Do(ctx, commit.NewWrite(store.Unit{Unplans: []store.Unplan{{Topic: topic, ID: id}}}, nil))
	if errors.Is(err, store.ErrNoPlan) {
		return eventhub.Errorf(eventhub.CodeUnknownID, "%q is not scheduled in topic %q: it never was, or it was delivered", id, topic)
	}
	return err
}

// Scheduled implements admin.Scheduler. The plans of one topic have no order
// of their own: those of the others are read too.
func (b *Bus) Scheduled(ctx context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	if q.Limit == 0 {
		q.Limit = admin.MaxPage
	}
	if err := checkLimit(q.Limit); err != nil {
		return nil, err
	}
	if q.Topic != "" {
		if err := eventhub.ValidateTopic(q.Topic); err != nil {
			return nil, err
		}
	}
	if q.AfterAt < 0 {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the place to go on from is %d; epoch milliseconds are not negative", q.AfterAt)
	}
	var list []admin.Scheduled
	for from := (place{q.AfterAt, q.AfterSeq}); ; {
		page, err := b.store.Planned(ctx, from.at, from.seq, never, admin.MaxPage, moveBytes)
		if err != nil {
			return nil, storeError(err, "read the scheduled events")
		}
		for i := range page {
			p := &page[i]
			if from = (place{p.At, p.Seq}); q.Topic != "" && p.Topic != q.Topic {
				continue
			}
			list = append(list, admin.Scheduled{Topic: p.Topic, ID: p.ID, Key: p.Key, DeliverAt: p.At, Seq: p.Seq})
			if len(list) == q.Limit {
				return list, nil
			}
		}
		if len(page) == 0 {
			return list, nil
		}
	}
}
