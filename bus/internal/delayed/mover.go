package delayed

import (
	"context"
	"errors"
	"math"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// arm sets the timer. m.mu is held.
func (m *Mover) arm() {
	switch {
	case m.stopped || m.running:
	case m.next == never:
		m.timer.Stop()
	default:
		wait := time.UnixMilli(m.next).Sub(m.opts.Now())
		m.timer.Reset(max(0, min(wait, LookEvery)))
	}
}

// run is called by the timer.
func (m *Mover) run() {
	if !m.begin() {
		return
	}
	defer m.busy.Done()
	for m.step() {
	}
}

// begin reports whether there is something to do now.
func (m *Mover) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || m.running {
		return false
	}
	now := m.opts.Now().UnixMilli()
	isBack := now < m.looked
	m.looked = now
	if isBack && m.retryAt != never {
		m.retryAt = now // whoever sets the clock makes nothing wait longer for another try
	}
	if !isBack && now < m.next {
		m.arm()
		return false
	}
	m.running = true
	m.busy.Add(1)
	return true
}

// end ends the run; there is something to do at next, or when an event is due that was
// committed meanwhile and comes before it.
func (m *Mover) end(next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = false
	m.next = min(next, m.added, m.retryAt)
	m.arm()
}

// step moves a page of what is due, and reports whether the run goes on.
func (m *Mover) step() bool {
	now := m.opts.Now().UnixMilli()
	from := m.look(now)
	due, err := m.read(from, now, moveEvents)
	if err == nil && len(due) > 0 {
		return m.move(due)
	}
	first := []store.Delayed(nil)
	if err == nil {
		first, err = m.read(from, never, 1)
	}
	if err != nil {
		return m.readFailed(now, err)
	}
	m.reached(from, first)
	return false
}

// look returns the place after which to read.
func (m *Mover) look(now int64) place {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.low.before(m.resume) {
		m.resume = beforeAll
	}
	if m.retryAt <= now {
		m.resume = m.low
		m.goBack(m.retry)
		m.retryAt = never
	}
	if m.added != never {
		m.goBack(place{at: m.added})
		m.added = never
	}
	return m.low
}

// goBack makes sure that what is after p is read again. m.mu is held.
func (m *Mover) goBack(p place) {
	if p.before(m.low) {
		m.low = p
	}
}

func (m *Mover) read(from place, until int64, limit int) ([]store.Delayed, error) {
	return m.opts.Store.Delayed(m.ctx, from.at, from.seq, until, limit, moveBytes)
}

// readFailed reports whether the run goes on. The events keep their order and wait, but
// not for ever: a part of the store that cannot be read is passed over in the end, and
// then tried again now and then.
func (m *Mover) readFailed(now int64, err error) bool {
	if m.ctx.Err() != nil {
		m.end(never)
		return false
	}
	m.opts.Logger.Error("cannot read scheduled events; they wait", "error", err)
	m.mu.Lock()
	m.failed++
	goOn := m.low
	switch {
	case m.low.before(m.resume): // it was passed over before
		goOn = m.resume
	case m.failed >= mostFailures:
		goOn = place{at: now, seq: math.MaxUint64}
		m.failed = 0
	}
	passes := m.low != goOn
	if passes {
		m.tryAgain(m.low, now+mostFailures*retryAfter.Milliseconds())
		m.low = goOn
	}
	m.mu.Unlock()
	if !passes {
		m.end(now + retryAfter.Milliseconds())
	}
	return passes
}

// tryAgain has what is after p read once more at the given time, or earlier. m.mu is held.
func (m *Mover) tryAgain(p place, at int64) {
	if m.retryAt == never || p.before(m.retry) {
		m.retry = p
	}
	m.retryAt = min(m.retryAt, at)
}

// reached ends a run after which nothing is due; first is the event that comes next, or
// none.
func (m *Mover) reached(from place, first []store.Delayed) {
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
func (m *Mover) move(due []store.Delayed) bool {
	err := m.opts.Room()
	if err == nil {
		var units []store.Unit
		if units, err = m.commit(m.ctx, due); err == nil {
			m.moved(due, units)
			return true
		}
	}
	if eventhub.ErrorCode(err) == eventhub.CodeOverloaded {
		m.end(m.opts.Now().Add(retryAfter).UnixMilli())
	} else {
		m.end(never) // the store is broken, or the hub stops
	}
	return false
}

// commit makes one unit of each event and waits for their commit. The records are owned
// by nobody else, so that the tail cache may keep them.
func (m *Mover) commit(ctx context.Context, due []store.Delayed) ([]store.Unit, error) {
	p := &page{}
	p.Units, p.Plain = make([]store.Unit, len(due)), true
	appends, cancels := make([]store.Append, len(due)), make([]store.Cancel, len(due))
	for i := range due {
		e := &due[i]
		cancels[i] = store.Cancel{Topic: e.Topic, ID: e.ID, Seq: e.Seq}
		appends[i] = store.Append{Topic: e.Topic, ID: e.ID, Key: e.Key, Record: e.Record}
		m.opts.Link(&appends[i])
		p.Units[i] = store.Unit{Appends: appends[i : i+1 : i+1], Cancels: cancels[i : i+1 : i+1]}
		p.Bytes += len(e.Record)
	}
	err := m.opts.Committer.Do(ctx, p)
	return p.Units, err
}

// page is the job of one page. Its units are independent: each has an error of its own.
type page struct{ commit.Call }

// Done implements commit.Job.
func (p *page) Done(err error) { p.Answer(err) }

// moved goes on after a page that was committed. A unit that was refused because its
// event is no longer delayed was cancelled; any other one is tried again.
func (m *Mover) moved(due []store.Delayed, units []store.Unit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = 0
	for i := range units {
		if err := units[i].Err; err != nil && !errors.Is(err, store.ErrNotDelayed) {
			e := &due[i]
			m.opts.Logger.Error("the store refused a scheduled event; it is tried again", "topic", e.Topic, "id", e.ID, "deliver_at", e.At, "error", err)
			m.tryAgain(place{at: e.At, seq: e.Seq - 1}, m.opts.Now().Add(retryAfter).UnixMilli())
		}
	}
	last := due[len(due)-1]
	m.low = place{at: last.At, seq: last.Seq}
}
