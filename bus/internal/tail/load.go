package tail

import (
	"context"
	"errors"
	"slices"
	"sort"

	"eventhub"
	"eventhub/internal/budget"
	"eventhub/store"
)

// load is one reading of the offsets of a state, on a goroutine of its own, because a state
// takes long to read and may have to wait: for others that load, for memory, for an index.
type load struct {
	tail    *Tail
	topic   string
	loads   int
	place   eventhub.Place // up to where the reader had everything, if it is placed
	placed  bool
	token   snapshotToken
	horizon uint64
	offsets []uint64
	held    int // bytes of the budget
	entered bool
	sent    int // of the state, over connections before
	last    uint64
	follows bool // the reader has the state
	begins  bool
}

// errTooMany stops a walk.
var errTooMany = errors.New("tail: too many keys")

// leastOffsets is for how many offsets there is room at first.
const leastOffsets = 1024

// beginLoad starts a load. t.mu is held; the tail has its part, and has not left.
func (t *Tail) beginLoad() {
	s, p := t.snap, t.parts[0]
	if s.phase == following {
		s.place, s.placed, s.from, s.verify = eventhub.Place{Topic: t.topic(), Offset: p.next - 1}, true, nil, false
	}
	t.release()
	s.phase, s.stale = loading, false
	s.loads++
	if !p.behind {
		t.fallBehind(p)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	l := &load{tail: t, topic: t.topic(), loads: s.loads, place: s.place, placed: s.placed}
	from, verify := s.from, s.verify
	t.tails.loads.Go(func() {
		defer cancel()
		l.run(ctx, from, verify)
	})
}

// suspend lets go of a state that is half sent: it holds memory, and nobody knows for how long the
// tail is paused. t.mu is held.
func (t *Tail) suspend() {
	s := t.snap
	if s.phase == following {
		return
	}
	if s.phase == sending && !s.begins && t.wants == nil {
		token := s.token
		s.from, s.place, s.placed, s.verify = &token, eventhub.Place{Topic: t.topic(), Offset: s.last}, true, false
	}
	s.cancel()
	s.loads++ // what is under way does not count
	s.phase = loading
	t.release()
}

// run loads, and lets the tail go on, or ends it.
func (l *load) run(ctx context.Context, from *snapshotToken, verify bool) {
	t := l.tail
	// Who waits for an index, or for memory, is in nobody's way.
	err := t.tails.opts.Indexed(ctx, l.topic)
	if err == nil || isPassed(err) {
		err = l.enter(ctx)
	}
	if err == nil {
		err = l.load(ctx, from, verify)
	}
	l.leave()
	if err != nil {
		t.tails.states.Give(l.held)
		if ctx.Err() == nil {
			t.shut(err)
		}
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left || t.snap.loads != l.loads {
		t.tails.states.Give(l.held)
		return
	}
	l.adopt()
	t.tails.sched.Schedule(t)
}

// enter waits until few others load.
func (l *load) enter(ctx context.Context) error {
	select {
	case l.tail.tails.loading <- struct{}{}:
		l.entered = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *load) leave() {
	if l.entered {
		<-l.tail.tails.loading
		l.entered = false
	}
}

// adopt gives the tail what was loaded. t.mu is held.
func (l *load) adopt() {
	t := l.tail
	s, p := t.snap, t.parts[0]
	s.token, s.begins, s.sent, s.last = l.token, l.begins, l.sent, l.last
	s.offsets, s.held = l.offsets, l.held
	s.from, s.verify = nil, false
	s.place, s.placed = eventhub.Place{Topic: l.topic, Offset: l.token.at}, true
	s.horizon = max(s.horizon, l.horizon)
	if s.told = 0; l.begins {
		s.told = l.horizon // nothing below it is in the state
	}
	if s.horizon <= 1 {
		s.told = s.horizon
	}
	delete(t.gaps, p.shard.topic)
	p.knows = store.Marks{}
	s.phase = sending
	if p.next = l.token.at + 1; l.follows {
		p.next, s.phase = l.place.Offset+1, following
	}
}

// load finds out how the tail goes on, and reads what it needs.
func (l *load) load(ctx context.Context, from *snapshotToken, verify bool) error {
	ts := l.tail.tails
	revision := ts.revision(l.topic)
	if from != nil && from.run == ts.run && from.revision == revision {
		if goesOn, err := l.goOn(ctx, from); goesOn || err != nil {
			return err
		}
	}
	at, err := l.asOf(ctx, from, verify)
	if err != nil {
		return err
	}
	if l.placed && at == 0 {
		if isEmpty, err := l.fromFirst(ctx); isEmpty || err != nil {
			return err
		}
	}
	for l.place.Offset = at; ; at = 0 {
		revision = ts.revision(l.topic)
		w, err := l.walk(ctx, at)
		if isPassed(err) {
			continue // as of now
		}
		if err != nil {
			return err
		}
		l.begins, l.horizon = true, w.Horizon
		l.token = snapshotToken{run: ts.run, life: w.Life, revision: revision, at: max(w.At, l.place.Offset)}
		return nil
	}
}

// asOf returns the offset as of which the reader gets a new state: up to which it has had
// everything, or the state that it had a part of; 0 for now.
func (l *load) asOf(ctx context.Context, from *snapshotToken, verify bool) (uint64, error) {
	s := l.tail.tails.store
	if verify {
		if _, _, same, err := holdPlace(ctx, s, l.place); err != nil || !same {
			l.placed = false
			return 0, err
		}
	}
	at := l.place.Offset
	if from != nil && !from.complete {
		at = from.at
	}
	head, err := s.Head(ctx, l.topic)
	if err != nil {
		return 0, store.Failed(err, "read the head of topic %q", l.topic)
	}
	if at > head && head > 0 { // a life without events goes on above those of the ones before
		l.placed = false
		return 0, nil
	}
	return at, nil
}

// fromFirst gives a reader that has had nothing because there was nothing the empty state at the
// offset 0, unless something was removed since.
func (l *load) fromFirst(ctx context.Context) (bool, error) {
	ts := l.tail.tails
	revision := ts.revision(l.topic)
	info, err := ts.store.Topic(ctx, l.topic)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, store.Failed(err, "look up topic %q", l.topic)
	}
	if info.Horizon > 1 || info.Compacted > 0 {
		return false, nil
	}
	l.begins = true
	l.token = snapshotToken{run: ts.run, life: info.Life, revision: revision}
	return true, nil
}

// isPassed reports whether a state is not known any more.
func isPassed(err error) bool {
	return eventhub.ErrorCode(err) == eventhub.CodeGone || errors.Is(err, store.ErrGone)
}

// goOn goes on with a state of this run, of whose topic nothing was erased since, where what it
// lacks is still there.
func (l *load) goOn(ctx context.Context, from *snapshotToken) (bool, error) {
	info, err := l.tail.tails.store.Topic(ctx, l.topic)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return false, store.Failed(err, "look up topic %q", l.topic)
	}
	if info.Life != from.life || max(l.place.Offset, from.at) > info.Head {
		return false, nil
	}
	l.horizon, l.token = info.Horizon, *from
	if from.complete {
		// Ends of keys that the reader has not had may be gone above its place.
		l.follows = l.place.Offset >= max(from.at, info.Tombstones)
		return l.follows, nil
	}
	if l.place.Offset == 0 || l.place.Offset > from.at || l.tail.wants != nil {
		return false, nil // of a filter nobody knows how much it let through
	}
	w, err := l.walk(ctx, from.at)
	if isPassed(err) || err == nil && w.Life != from.life {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.horizon, l.last = w.Horizon, l.place.Offset
	l.sent = sort.Search(len(l.offsets), func(i int) bool { return l.offsets[i] > l.last })
	l.offsets = l.offsets[l.sent:]
	return true, nil
}

// walk notes the offsets of the state at an offset, 0 for now.
func (l *load) walk(ctx context.Context, at uint64) (w Walked, err error) {
	ts := l.tail.tails
	l.offsets = l.offsets[:0]
	for stuck := 0; ; {
		w, err = ts.opts.State(ctx, l.topic, at, func(items []store.Item) error {
			for _, item := range items {
				if len(l.offsets) == ts.opts.StateKeys {
					return errTooMany
				}
				if err := l.note(ctx, item.Offset); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, errTooMany):
			return w, eventhub.Errorf(eventhub.CodeTooLarge, "the state of topic %q has more than %d keys; so many a tail may begin with", l.topic, ts.opts.StateKeys)
		case errors.Is(err, budget.ErrStuck):
			// Others need what this one has. It comes again when there is as much as it needs.
			stuck = max(leastOffsets, 2*cap(l.offsets))
			l.giveBack()
			err := l.makeRoom(ctx, stuck)
			if err == nil && !l.entered { // it did not have to wait this time
				err = l.enter(ctx)
			}
			if err != nil {
				return w, err
			}
			continue
		}
		slices.Sort(l.offsets)
		return w, err
	}
}

// note adds an offset.
func (l *load) note(ctx context.Context, offset uint64) error {
	if len(l.offsets) == cap(l.offsets) {
		if err := l.makeRoom(ctx, max(leastOffsets, 2*cap(l.offsets))); err != nil {
			return err
		}
	}
	l.offsets = append(l.offsets, offset)
	return nil
}

// offsetBytes is what an offset takes.
const offsetBytes = 8

// makeRoom makes room for n offsets, which the budget has to allow. The first few it does not ask: small
// states need not wait until the large ones before them have room.
func (l *load) makeRoom(ctx context.Context, n int) error {
	n = min(n, max(leastOffsets, l.tail.tails.opts.StateKeys))
	states := l.tail.tails.states
	switch {
	case l.held == 0 && n <= leastOffsets:
		states.Force(n * offsetBytes)
	case states.Take(n * offsetBytes):
	default:
		l.leave()
		if err := states.Grow(ctx, l.held, n*offsetBytes); err != nil {
			return err
		}
		if err := l.enter(ctx); err != nil {
			states.Give(n * offsetBytes)
			return err
		}
	}
	states.Give(l.held)
	l.held = n * offsetBytes
	l.offsets = append(make([]uint64, 0, n), l.offsets...)
	return nil
}

func (l *load) giveBack() {
	l.tail.tails.states.Give(l.held)
	l.offsets, l.held = nil, 0
}
