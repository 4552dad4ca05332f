package bus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/bus/internal/judge"
	"eventhub/internal/filter"
)

// stuck is a filter in front of another that takes for ever, until somebody lets go.
type stuck struct {
	*filter.Program
	gate  *gate
	asked *atomic.Int64
}

// gate holds up who asks a filter.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open
	held int
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

func (s stuck) Judge(r eventhub.Record, offset uint64) filter.Verdict {
	s.asked.Add(1)
	s.gate.mu.Lock()
	shut := s.gate.shut
	if shut != nil {
		s.gate.held++
	}
	s.gate.mu.Unlock()
	if shut != nil {
		<-shut
	}
	return s.Program.Judge(r, offset)
}

// withGate starts the bus again with a gate before all filters, which is open, and returns
// it with a count of what they were asked.
func (r *rig) withGate() (*gate, *atomic.Int64) {
	r.stop()
	g, asked := &gate{}, new(atomic.Int64)
	r.start(Options{judge: func(p *filter.Program) judge.Matcher { return stuck{p, g, asked} }})
	return g, asked
}

// lockLooking is a filter that looks whether its owner's lock is free.
type lockLooking struct {
	judge.Matcher
	lock       *sync.Mutex
	free, held int
}

func (l *lockLooking) Judge(r eventhub.Record, offset uint64) filter.Verdict {
	if l.lock.TryLock() {
		l.lock.Unlock()
		l.free++
	} else {
		l.held++
	}
	return l.Matcher.Judge(r, offset)
}

// TestFilterIsAskedUnderNoLock: a group does not hold its lock while it asks its filter. The
// turn is the test's own and nobody else is at work, so a lock that is taken is the group's.
func TestFilterIsAskedUnderNoLock(t *testing.T) {
	for _, f := range []*eventhub.Filter{{Tags: []string{"red"}}, {CEL: "event.payload > 0"}} {
		inBubble(t, func(r *rig) {
			in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g", Filter: f})
			if err := in.Sub.Pause(context.Background()); err != nil {
				t.Fatal(err)
			}
			g := r.bus.running("t", "g")
			look := &lockLooking{Matcher: g.filter, lock: &g.mu}
			g.filter = look
			for range 3 {
				if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Tags: []string{"red"}, Payload: []byte(`1`)}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			in.Sub.(*subscription).paused = false
			g.Turn()
			equal(t, "events", len(in.Take()), 3)
			if look.held > 0 || look.free < 3 {
				t.Errorf("filter %s: asked %d times under the group's lock, and %d times under none", f, look.held, look.free)
			}
		})
	}
}

// TestSlowFilterHoldsNobodyUp: while the filters of groups and tails, more of them than
// there are workers, do not come to an end on an event, everybody else goes on.
func TestSlowFilterHoldsNobodyUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		gate, _ := r.withGate()
		expression := &eventhub.Filter{CEL: "event.payload > 0"}
		var slow []*inbox
		for i := range 20 {
			if i%2 == 0 {
				slow = append(slow, r.subscribe(eventhub.GroupOptions{Topic: "t", Group: fmt.Sprint("slow-", i), Filter: expression}))
			} else {
				slow = append(slow, r.tail(eventhub.TailOptions{Topic: "t", Filter: expression}))
			}
		}
		group := r.subscribe(opts("t", "plain"))
		tail := r.tail(eventhub.TailOptions{Topic: "t"})
		r.publish("t", 1, 1)
		first := slow[0].Take()
		equal(t, "a delivery of a group with a filter", len(first), 1)
		group.Take()
		tail.Take()

		gate.close()
		r.publish("t", 2, 1) // its OK comes
		synctest.Wait()
		if gate.held == 0 {
			t.Fatal("no filter is asked")
		}
		equal(t, "the group without a filter", group.TakeOffsets(), []uint64{2})
		equal(t, "the tail without a filter", tail.TakeOffsets(), []uint64{2})
		equal(t, "an ack in a group whose filter is at work", slow[0].Ack(byLease(first[0])), []eventhub.Outcome{eventhub.Applied})
		r.publish("other", 1, 1)
		equal(t, "another topic", r.subscribe(opts("other", "plain")).TakeOffsets(), []uint64{1})
		for _, in := range slow {
			if err := in.Sub.Pause(ctx); err != nil {
				t.Error(err)
			}
			if err := in.Sub.Resume(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := r.bus.PauseGroup(ctx, "t", "slow-2"); err != nil { // which is on disk
			t.Error(err)
		}
		if err := r.bus.DeleteGroup(ctx, "t", "slow-4"); err != nil {
			t.Error(err)
		}
		if _, err := r.bus.SeekGroup(ctx, "t", "slow-6", eventhub.Latest, true); err != nil {
			t.Error(err)
		}
		if _, err := r.bus.Measure(ctx); err != nil {
			t.Error(err)
		}
		equal(t, "a slow one", len(slow[0].Take()), 0)

		gate.open()
		synctest.Wait()
		for i, want := range [][]uint64{{2}, {1, 2}, {1}, {1, 2}, {1}, {1, 2}, {1}, {1, 2}, {1, 2}} {
			equal(t, fmt.Sprint("afterwards, number ", i), slow[i].TakeOffsets(), want)
		}
	})
}

// TestFilterIsAskedOnce: however little room members have, a group's filter judges an
// event once, with and without lines.
func TestFilterIsAskedOnce(t *testing.T) {
	for _, ordering := range []string{eventhub.OrderingNone, eventhub.OrderingKey} {
		inBubble(t, func(r *rig) {
			_, asked := r.withGate()
			var events []eventhub.Event
			const n = 300
			for i := range n {
				events = append(events, eventhub.Event{Topic: "t", Key: fmt.Sprint(i % 7), Payload: fmt.Appendf(nil, "%d", i%3)})
			}
			if _, err := r.bus.Publish(context.Background(), events...); err != nil {
				t.Fatal(err)
			}
			o := opts("t", "g")
			o.MaxInFlight, o.Ordering, o.Filter = 2, ordering, &eventhub.Filter{CEL: "event.payload > 0"}
			in := r.subscribe(o)
			acked := 0
			for batch := in.Take(); len(batch) > 0; batch = in.Take() {
				for _, d := range batch {
					in.Ack(byLease(d))
					acked++
				}
			}
			equal(t, "acked", acked, n*2/3)
			equal(t, "asked", asked.Load(), n)
			equal(t, "cursor", r.cursor("t", "g").Offset, n)
		})
	}
}

// TestFilterThatCannotJudge: what a filter cannot judge is counted, and of the first of it somebody reads.
func TestFilterThatCannotJudge(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.stop()
		var log bytes.Buffer
		r.start(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		f := &eventhub.Filter{CEL: `event.payload.s.matches("^[a-z]{0,400}xy")`}
		o := opts("t", "g")
		o.Filter = f
		in := r.subscribe(o)
		large := fmt.Appendf(nil, `{"s":"%s"}`, strings.Repeat("a", 50_000))
		for _, payload := range []string{`{"s":"xxy"}`, `{}`, string(large), string(large), `{"s":"no"}`, `{"s":1}`} {
			if _, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		equal(t, "delivered", in.TakeOffsets(), []uint64{1})
		e, err := r.bus.Measure(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.FilterFailed != 4 || e.FilterTooCostly != 2 {
			t.Errorf("%d failed, %d too costly; want 4 and 2", e.FilterFailed, e.FilterTooCostly)
		}
		if n := strings.Count(log.String(), "costs too much"); n != 1 || !strings.Contains(log.String(), "offset=3") {
			t.Errorf("the log says: %s", log.String())
		}
		if n := strings.Count(log.String(), "cannot be evaluated"); n != 1 || !strings.Contains(log.String(), "offset=2") {
			t.Errorf("the log says: %s", log.String())
		}
		// The same group is in many topics, where it has a pattern.
		o.Topic = "t2"
		r.subscribe(o)
		if _, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t2", Payload: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := strings.Count(log.String(), "cannot be evaluated"); n != 1 {
			t.Errorf("the log says: %s", log.String())
		}
	})
}
