package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// schedule publishes one event with that id and delay.
func (r *rig) schedule(topic, id string, delay time.Duration) eventhub.Receipt {
	r.t.Helper()
	receipts, err := r.bus.Publish(context.Background(), delayed(topic, id, delay))
	if err != nil {
		r.t.Error(err)
		return eventhub.Receipt{}
	}
	return receipts[0]
}

func delayed(topic, id string, delay time.Duration) eventhub.Event {
	return eventhub.Event{Topic: topic, ID: id, Delay: delay, Payload: fmt.Appendf(nil, "%q", id)}
}

// scheduled returns the ids of what is scheduled, in order.
func (r *rig) scheduled() (ids []string) {
	r.t.Helper()
	list, err := r.bus.Scheduled(context.Background(), admin.ScheduleQuery{})
	if err != nil {
		r.t.Error(err)
	}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

// logged returns the ids of a topic's events.
func (r *rig) logged(topic string) (ids []string) {
	r.t.Helper()
	synctest.Wait()
	for _, e := range r.events(topic) {
		ids = append(ids, e.ID)
	}
	return ids
}

// after lets time pass and the bus do what is to be done then.
func (r *rig) after(d time.Duration) {
	time.Sleep(d) // the bubble's clock
	synctest.Wait()
}

// inFaultyBubble is inBubble over a store with faults, and perhaps another layer.
func inFaultyBubble(t *testing.T, layer func(store.Store) store.Store, test func(*rig, *storefault.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		faulty := storefault.Wrap(memory.Open(memory.Options{}))
		s := store.Store(faulty)
		if layer != nil {
			s = layer(s)
		}
		r := &rig{t: t, store: &meter{Store: s}}
		r.start(Options{})
		test(r, faulty)
		r.stop()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestScheduledOrder: events enter the log when they are due, not before, in the
// order of their times and then of their publishing, and are delivered at once.
func TestScheduledOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(eventhub.SubscribeOptions{Topic: "t", Group: "g"})
		began := time.Now()
		want := []struct {
			id string
			ms int64
		}{{"now", 0}, {"a", 1}, {"b", 250}, {"b2", 250}, {"c", 1000}, {"d", 60_000}, {"e", 3_600_000}, {"f", 86_400_000}}
		for _, i := range []int{4, 2, 7, 1, 0, 3, 6, 5} {
			w := want[i]
			got := r.schedule("t", w.id, time.Duration(w.ms)*time.Millisecond)
			if due := began.UnixMilli() + w.ms; w.ms > 0 {
				equal(t, "receipt of "+w.id, got, eventhub.Receipt{ID: w.id, DeliverAt: due})
			} else {
				equal(t, "receipt of "+w.id, got, eventhub.Receipt{ID: w.id, Offset: 1})
			}
		}
		equal(t, "scheduled", r.scheduled(), []string{"a", "b", "b2", "c", "d", "e", "f"})
		for i, w := range want {
			due := began.Add(time.Duration(w.ms) * time.Millisecond)
			if now := time.Now(); due.After(now) {
				r.after(due.Sub(now) - time.Nanosecond)
				if early := in.take(); len(early) > 0 {
					t.Errorf("%s is early by a nanosecond or more", early[0].payload)
				}
				r.after(time.Nanosecond)
			}
			if w.id == "b2" {
				continue // came with b
			}
			for j, got := range in.take() {
				id, offset := want[i+j].id, uint64(i+j+1)
				equal(t, "event", []any{got.payload, got.Offset, got.at}, []any{`"` + id + `"`, offset, due})
				e, err := got.Event()
				if err != nil || e.TS != due.UnixMilli() || e.CommittedTS != 0 || e.ID != id {
					t.Errorf("%s at %v: %+v, %v", id, due, e, err)
				}
				in.ack(byLease(got))
			}
		}
		equal(t, "log", r.logged("t"), []string{"now", "a", "b", "b2", "c", "d", "e", "f"})
		equal(t, "scheduled at the end", len(r.scheduled()), 0)
		equal(t, "cursor", r.cursor("t", "g").Offset, uint64(8))
		m, err := r.bus.Measure(context.Background())
		equal(t, "counts", []any{m.Scheduled, m.Moved, m.Cancelled, m.Topics[0].Events, err}, []any{7, 7, 0, 8, nil})
	})
}

// behindPage runs something once, between the mover's read of what is due and its move.
type behindPage struct {
	store.Store
	run atomic.Pointer[func()]
}

func (s *behindPage) Planned(ctx context.Context, at int64, seq uint64, until int64, limit, maxBytes int) ([]store.Planned, error) {
	page, err := s.Store.Planned(ctx, at, seq, until, limit, maxBytes)
	if until != never && len(page) > 0 {
		if run := s.run.Swap(nil); run != nil {
			(*run)()
		}
	}
	return page, err
}

// TestCancelAndScheduleAnew: an event that was taken back while the mover had it in its
// hand, and was scheduled anew under its id, comes once, as the new one, at the new time.
func TestCancelAndScheduleAnew(t *testing.T) {
	anew := delayed("t", "x", time.Hour)
	anew.Payload = []byte(`"anew"`)
	for name, between := range map[string]func(*rig) error{
		"cancel":           func(r *rig) error { return r.bus.Cancel(context.Background(), "t", "x") },
		"delete the topic": func(r *rig) error { return r.bus.DeleteTopic(context.Background(), "t") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.stop()
				page := &behindPage{Store: r.store.Store}
				r.store.Store = page
				r.start(Options{})
				r.schedule("t", "x", time.Minute)
				run := func() {
					if err := between(r); err != nil {
						t.Error(err)
					}
					if _, err := r.bus.Publish(context.Background(), anew); err != nil {
						t.Error(err)
					}
				}
				page.run.Store(&run)
				r.after(time.Minute)
				equal(t, "log when the old one would have been due", r.logged("t"), nil)
				equal(t, "scheduled", r.scheduled(), []string{"x"})
				r.after(time.Hour)
				events := r.events("t")
				if len(events) != 1 || string(events[0].Payload) != `"anew"` {
					t.Errorf("the log has %+v", events)
				}
			})
		})
	}
}

// TestScheduledAsPublished: what the publisher said stays; the commit time is that
// of the move.
func TestScheduledAsPublished(t *testing.T) {
	inBubble(t, func(r *rig) {
		now := time.Now()
		e := eventhub.Event{Topic: "t", ID: "x", TS: now.UnixMilli() - 5000, Key: "k", SID: "s", Tags: []string{"#a"},
			CausedBy: []string{"y"}, Headers: map[string]string{"x-a": "b"}, Payload: []byte(`{"n":1.50}`),
			DeliverAt: now.Add(time.Second).UnixMilli()}
		if _, err := r.bus.Publish(context.Background(), e, eventhub.Event{Topic: "t", Delay: time.Second, Payload: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		r.after(time.Minute)
		got := r.events("t")
		if len(got) != 2 || len(got[1].ID) != 36 {
			t.Fatalf("the log has %+v", got)
		}
		want := e
		want.Offset, want.CommittedTS, want.DeliverAt, want.Partition = 1, e.DeliverAt, 0, got[0].Partition
		equal(t, "event", got[0], want)
		item, err := r.store.Latest(context.Background(), "t", "k", 0)
		equal(t, "latest of the key", []any{item.Offset, err}, []any{1, nil})
	})
}

// TestScheduledInBatch: what is due now and what is not are one unit, and their
// receipts stand in the order of the events.
func TestScheduledInBatch(t *testing.T) {
	inBubble(t, func(r *rig) {
		now := time.Now().UnixMilli()
		past := eventhub.Event{Topic: "t", ID: "past", DeliverAt: now - 5, Payload: []byte("1")}
		justNow := eventhub.Event{Topic: "t", ID: "now", DeliverAt: now, Payload: []byte("1")}
		receipts, err := r.bus.Publish(context.Background(),
			delayed("t", "a", time.Second), past, delayed("u", "b", 2*time.Second), delayed("t", "c", time.Microsecond), justNow, delayed("t", "d", 0))
		equal(t, "receipts", []any{receipts, err}, []any{[]eventhub.Receipt{
			{ID: "a", DeliverAt: now + 1000}, {ID: "past", Offset: 1}, {ID: "b", DeliverAt: now + 2000},
			{ID: "c", DeliverAt: now + 1}, {ID: "now", Offset: 2}, {ID: "d", Offset: 3}}, nil})
		equal(t, "log", r.logged("t"), []string{"past", "now", "d"})
		equal(t, "scheduled", r.scheduled(), []string{"c", "a", "b"})

		// Of a publication that is refused nothing is planned; its neighbours are.
		bad := []eventhub.Publication{
			{Events: []eventhub.Event{delayed("t", "e", time.Second), delayed("t", "f", 3*time.Second), delayed("t", "g", 0)}},
			{Events: []eventhub.Event{delayed("t", "x", time.Second), {Topic: "t", Payload: []byte("{")}}},
			{Events: []eventhub.Event{delayed("t", "x", 0), delayed("t", "x", eventhub.MaxDelay+1)}},
			{Events: []eventhub.Event{delayed("t.dlq", "x", time.Second)}},
			{Events: []eventhub.Event{delayed("t", "x", 0), delayed("t", "x", time.Second)}, WaitFor: []string{"g"}},
			{Events: []eventhub.Event{delayed("t", "j", 0), delayed("t", "h", 4*time.Second), delayed("u", "i", eventhub.MaxDelay)}},
		}
		answered := make(chan struct{})
		r.bus.Enqueue(context.Background(), bad, func([]eventhub.Publication) { close(answered) })
		<-answered
		for i, code := range []eventhub.Code{"", eventhub.CodeBadJSON, eventhub.CodeBadEvent, eventhub.CodeForbidden, eventhub.CodeBadRequest, ""} {
			wantCode(t, bad[i].Err, code)
		}
		equal(t, "receipts of the first", bad[0].Receipts, []eventhub.Receipt{
			{ID: "e", DeliverAt: now + 1000}, {ID: "f", DeliverAt: now + 3000}, {ID: "g", Offset: 4}})
		equal(t, "receipts of the last", bad[5].Receipts, []eventhub.Receipt{
			{ID: "j", Offset: 5}, {ID: "h", DeliverAt: now + 4000}, {ID: "i", DeliverAt: now + eventhub.MaxDelay.Milliseconds()}})
		equal(t, "scheduled", r.scheduled(), []string{"c", "a", "e", "b", "f", "h", "i"})
		r.after(time.Hour)
		equal(t, "log in the end", r.logged("t"), []string{"past", "now", "d", "g", "j", "c", "a", "e", "f", "h"})
	})
}

// TestScheduledDuplicates: an id is taken by what is scheduled and by what is in
// the log, and whichever came first is told.
func TestScheduledDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := r.schedule("t", "x", time.Minute)
		again := r.schedule("t", "x", time.Hour)
		equal(t, "scheduled again", again, eventhub.Receipt{ID: "x", DeliverAt: first.DeliverAt, Duplicate: true})
		equal(t, "in another topic", r.schedule("u", "x", time.Minute).Duplicate, false)
		equal(t, "published meanwhile", r.schedule("t", "x", 0), eventhub.Receipt{ID: "x", Offset: 1})
		equal(t, "scheduled once more", r.schedule("t", "x", time.Hour), eventhub.Receipt{ID: "x", Offset: 1, Duplicate: true})
		in := r.subscribe(eventhub.SubscribeOptions{Topic: "t", Group: "g", AutoAck: true, Start: eventhub.Start{Kind: eventhub.StartEarliest}})
		r.after(time.Hour)
		equal(t, "log", r.logged("t"), []string{"x"})
		equal(t, "deliveries", in.takeOffsets(), []uint64{1})
		equal(t, "scheduled in the end", len(r.scheduled()), 0)
		equal(t, "published after all", r.schedule("u", "x", 0), eventhub.Receipt{ID: "x", Offset: 1, Duplicate: true})
	})
}

func TestCancel(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, id := range []string{"a", "b", "c"} {
			r.schedule("t", id, time.Minute)
		}
		cancel := func(topic, id string) error { return r.bus.Cancel(context.Background(), topic, id) }
		if err := cancel("t", "b"); err != nil {
			t.Error(err)
		}
		equal(t, "scheduled", r.scheduled(), []string{"a", "c"})
		wantCode(t, cancel("t", "b"), eventhub.CodeUnknownID)
		wantCode(t, cancel("u", "a"), eventhub.CodeUnknownID)
		wantCode(t, cancel("t..u", "a"), eventhub.CodeBadTopic)
		wantCode(t, cancel("t", "a b"), eventhub.CodeBadEvent)
		r.after(time.Minute)
		equal(t, "log", r.logged("t"), []string{"a", "c"})
		err := cancel("t", "a")
		wantCode(t, err, eventhub.CodeUnknownID)
		if want := `"a" is not scheduled in topic "t": it never was, or it was delivered`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Cancel says %v; want %s", err, want)
		}
		m, err := r.bus.Measure(context.Background())
		equal(t, "counts", []any{m.Scheduled, m.Moved, m.Cancelled, err}, []any{3, 2, 1, nil})
		// What was cancelled may come again.
		equal(t, "the id again", r.schedule("t", "b", time.Second).Duplicate, false)
		r.after(time.Second)
		equal(t, "log", r.logged("t"), []string{"a", "c", "b"})
		if err := r.bus.Close(); err != nil {
			t.Error(err)
		}
		wantCode(t, cancel("t", "a"), eventhub.CodeShuttingDown)
	})
}

// TestCancelRacesMove: of a cancel and a move at the same instant one wins, and
// the caller knows which.
func TestCancelRacesMove(t *testing.T) {
	won := [2]int{}
	for round := 0; round < 200 && (won[0] == 0 || won[1] == 0); round++ {
		inBubble(t, func(r *rig) {
			const events = 20
			id := func(i int) string { return fmt.Sprint("id-", i) }
			for i := range events {
				r.schedule("t", id(i), time.Second)
			}
			var wg sync.WaitGroup
			errs := make([]error, events)
			for i := range events {
				wg.Go(func() {
					time.Sleep(time.Second)
					errs[i] = r.bus.Cancel(context.Background(), "t", id(i))
				})
			}
			wg.Wait()
			there := make(map[string]bool)
			for _, id := range r.logged("t") {
				there[id] = true
			}
			for i, err := range errs {
				if (err == nil) == there[id(i)] {
					t.Errorf("%s: Cancel says %v, and in the log: %v", id(i), err, there[id(i)])
				}
				if err == nil {
					won[0]++
				} else {
					wantCode(t, err, eventhub.CodeUnknownID)
					won[1]++
				}
			}
			equal(t, "scheduled", len(r.scheduled()), 0)
		})
	}
	if won[0] == 0 || won[1] == 0 {
		t.Errorf("cancels won %d times, moves %d times; want both", won[0], won[1])
	}
}

// TestCancelBehindMove: a move that waits for the committer wins over a cancel that
// came later, and the other way round.
func TestCancelBehindMove(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule("t", "first", time.Second)
		r.schedule("t", "second", 2*time.Second)
		held := make(chan struct{})
		r.store.set(held, nil)
		go r.publish("other", 1, 1) // is in the commit that waits
		r.after(time.Second)        // the move of the first is behind it
		errs := make(chan error, 2)
		cancel := func(id string) { errs <- r.bus.Cancel(context.Background(), "t", id) }
		go cancel("first")
		go cancel("second")
		synctest.Wait()
		r.store.set(nil, nil)
		close(held)
		codes := map[eventhub.Code]int{eventhub.ErrorCode(<-errs): 1}
		codes[eventhub.ErrorCode(<-errs)]++
		equal(t, "answers", codes, map[eventhub.Code]int{"": 1, eventhub.CodeUnknownID: 1})
		r.after(time.Hour)
		equal(t, "log", r.logged("t"), []string{"first"})
	})
}

// TestCancelBeforeMove: a move that finds its event cancelled is no fault, and not
// tried again.
func TestCancelBeforeMove(t *testing.T) {
	inFaultyBubble(t, nil, func(r *rig, s *storefault.Store) {
		r.stop()
		var said bytes.Buffer
		r.start(Options{Logger: slog.New(slog.NewTextHandler(&said, nil))})
		r.schedule("t", "x", time.Second)
		held := make(chan struct{})
		r.store.set(held, nil)
		go r.publish("other", 1, 1) // is in the commit that waits
		synctest.Wait()
		canceled := make(chan error, 1)
		go func() { canceled <- r.bus.Cancel(context.Background(), "t", "x") }()
		r.after(time.Second) // the move is behind it
		r.store.set(nil, nil)
		close(held)
		equal(t, "Cancel", <-canceled, nil)
		synctest.Wait()
		calls := s.Calls(storefault.Any)
		r.after(time.Hour)
		equal(t, "calls after that", s.Calls(storefault.Any)-calls, 0)
		equal(t, "log", len(r.logged("t")), 0)
		equal(t, "what was said", said.String(), "")
	})
}

// TestScheduledRestart: what came due while the hub was down comes first when it
// is up, the rest when it is due.
func TestScheduledRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i, d := range []time.Duration{time.Hour, time.Minute, 3 * time.Hour, time.Second} {
			r.schedule("t", fmt.Sprint("id-", i), d)
		}
		r.stop()
		r.after(90 * time.Minute)
		r.start(Options{})
		equal(t, "log", r.logged("t"), []string{"id-3", "id-1", "id-0"})
		r.restart()
		r.after(90*time.Minute - time.Nanosecond)
		equal(t, "log before the last is due", len(r.logged("t")), 3)
		r.after(time.Nanosecond)
		equal(t, "log", r.logged("t"), []string{"id-3", "id-1", "id-0", "id-2"})
	})
}

// TestScheduledEarlier: an event that is due before all others moves the timer,
// also one that is committed while a later one is being moved.
func TestScheduledEarlier(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule("t", "late", time.Hour)
		r.after(time.Minute)
		r.schedule("t", "early", time.Second)
		r.after(time.Second)
		equal(t, "log", r.logged("t"), []string{"early"})

		r.schedule("t", "b", 10*time.Second)
		held := make(chan struct{})
		r.store.set(held, nil)
		go r.publish("other", 1, 1) // is in the commit that waits
		synctest.Wait()
		go r.schedule("t", "a", 9*time.Second) // committed behind it, when b has been read
		r.after(10 * time.Second)
		r.store.set(nil, nil)
		close(held)
		equal(t, "log", r.logged("t"), []string{"early", "b", "a"})
		r.after(2 * time.Hour)
		equal(t, "log in the end", r.logged("t"), []string{"early", "b", "a", "late"})
	})
}

// looking calls a function behind the next read of plans, before its result is
// used.
type looking struct {
	store.Store
	behind atomic.Pointer[func()]
}

func (l *looking) Planned(ctx context.Context, at int64, seq uint64, until int64, limit, maxBytes int) ([]store.Planned, error) {
	plans, err := l.Store.Planned(ctx, at, seq, until, limit, maxBytes)
	if until == never {
		if f := l.behind.Swap(nil); f != nil {
			(*f)()
		}
	}
	return plans, err
}

// TestScheduledWhileLooking: an event that is committed when the mover has just
// looked what comes next is not missed.
func TestScheduledWhileLooking(t *testing.T) {
	var look *looking
	inFaultyBubble(t, func(s store.Store) store.Store { look = &looking{Store: s}; return look }, func(r *rig, _ *storefault.Store) {
		r.schedule("t", "first", time.Minute)
		r.schedule("t", "last", time.Hour)
		f := func() { r.schedule("t", "between", time.Second) }
		synctest.Wait() // for the look at the start
		look.behind.Store(&f)
		r.after(time.Minute)
		equal(t, "log", r.logged("t"), []string{"first"})
		r.after(time.Second)
		equal(t, "log", r.logged("t"), []string{"first", "between"})
	})
}

// TestManyDue: more than a page is due at once; all of it comes, in order, once.
func TestManyDue(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(eventhub.SubscribeOptions{Topic: "t", Group: "g", MaxInFlight: 10_000, AutoAck: true})
		const n = 2*movePlans + 500
		var events []eventhub.Event
		for i := range n {
			events = append(events, eventhub.Event{Topic: "t", Delay: time.Second, Payload: fmt.Appendf(nil, "%d", i)})
		}
		if _, err := r.bus.Publish(context.Background(), events...); err != nil {
			t.Fatal(err)
		}
		r.after(time.Second)
		got := in.take()
		if len(got) != n {
			t.Fatalf("%d of %d events came", len(got), n)
		}
		for i, g := range got {
			if g.payload != fmt.Sprint(i) || g.Offset != uint64(i+1) {
				t.Fatalf("event %d is %s at offset %d", i, g.payload, g.Offset)
			}
		}
	})
}

// skewed is a clock that can be set.
type skewed struct{ skew atomic.Int64 }

func (c *skewed) now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// TestClockJumps: the hub's clock decides, whoever sets it. A jump ahead is seen
// within lookEvery; one backwards makes nothing early.
func TestClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &skewed{}
		r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{Now: clock.now})}}
		r.start(Options{clock: clock.now})

		r.schedule("t", "ahead", time.Hour)
		clock.skew.Store(int64(time.Hour))
		r.after(lookEvery)
		equal(t, "log after a jump ahead", r.logged("t"), []string{"ahead"})

		clock.skew.Store(0)
		due := r.schedule("t", "back", time.Minute).DeliverAt
		clock.skew.Store(-int64(time.Hour))
		r.after(time.Hour + time.Minute - time.Millisecond)
		equal(t, "log after a jump back", r.logged("t"), []string{"ahead"})
		r.after(lookEvery)
		events := r.events("t")
		if len(events) != 2 || events[1].ID != "back" || events[1].CommitTime() < due {
			t.Errorf("the log is %+v; the second was due at %d", events, due)
		}
		r.stop()
	})
}

// TestOverdueWhenTheClockIsSetBack: what is overdue by the clock that was set back too, and
// could not be read before, waits no longer for that.
func TestOverdueWhenTheClockIsSetBack(t *testing.T) {
	for _, failing := range []time.Duration{2 * time.Second, time.Minute} { // tried again; left behind
		synctest.Test(t, func(t *testing.T) {
			clock := &skewed{}
			faulty := storefault.Wrap(memory.Open(memory.Options{Now: clock.now}))
			r := &rig{t: t, store: &meter{Store: faulty}}
			clock.skew.Store(int64(5 * time.Hour))
			r.start(Options{clock: clock.now})
			r.schedule("t", "x", time.Minute)
			faulty.Inject(storefault.Fault{Op: storefault.Planned, Err: errors.New("no disk")})
			clock.skew.Store(int64(10 * time.Hour))
			r.after(lookEvery + failing)
			faulty.Clear()
			clock.skew.Store(int64(6 * time.Hour))
			r.after(lookEvery)
			equal(t, "log after "+failing.String(), r.logged("t"), []string{"x"})
			r.stop()
		})
	}
}

// TestIdleMover: with nothing scheduled the mover asks for nothing, and with
// something that is far away only its own clock.
func TestIdleMover(t *testing.T) {
	inFaultyBubble(t, nil, func(r *rig, s *storefault.Store) {
		r.after(time.Hour)
		equal(t, "reads at the start", s.Calls(storefault.Planned), 2)
		r.schedule("t", "x", 24*time.Hour)
		before := s.Calls(storefault.Any)
		r.after(23 * time.Hour)
		equal(t, "calls while nothing is due", s.Calls(storefault.Any)-before, 0)
		r.after(time.Hour)
		equal(t, "log", r.logged("t"), []string{"x"})
	})
}

// TestMoverReadFails: what could not be read is read again a second later, in its
// order.
func TestMoverReadFails(t *testing.T) {
	inFaultyBubble(t, nil, func(r *rig, s *storefault.Store) {
		r.schedule("t", "a", time.Minute)
		r.schedule("t", "b", time.Minute+2*time.Second)
		synctest.Wait()
		s.Inject(storefault.Fault{Op: storefault.Planned, Times: 4, Err: errors.New("no disk")})
		r.after(time.Minute + 4*moveRetry - time.Nanosecond)
		equal(t, "log while reads fail", len(r.logged("t")), 0)
		r.after(time.Nanosecond)
		equal(t, "log", r.logged("t"), []string{"a", "b"})
	})
}

// holed fails reads of plans at one time.
type holed struct {
	store.Store
	at atomic.Int64
}

func (h *holed) Planned(ctx context.Context, at int64, seq uint64, until int64, limit, maxBytes int) ([]store.Planned, error) {
	if hole := h.at.Load(); hole != 0 && at <= hole && until >= hole {
		return nil, errors.New("damaged")
	}
	return h.Store.Planned(ctx, at, seq, until, limit, maxBytes)
}

// TestMoverLeavesDamageBehind: a part of the store that can not be read holds up
// what comes due later for a while only, and is tried again.
func TestMoverLeavesDamageBehind(t *testing.T) {
	var hole *holed
	inFaultyBubble(t, func(s store.Store) store.Store { hole = &holed{Store: s}; return hole }, func(r *rig, _ *storefault.Store) {
		hole.at.Store(r.schedule("t", "lost", time.Minute).DeliverAt)
		r.schedule("t", "held", time.Minute+time.Second)
		r.schedule("t", "later", time.Hour)
		r.schedule("t", "last", 2*time.Hour)
		r.after(time.Hour)
		equal(t, "log with the hole", r.logged("t"), []string{"later"})
		hole.at.Store(0)
		r.after(moveTries * moveRetry)
		equal(t, "log after the repair", r.logged("t"), []string{"later", "lost", "held"})
		r.after(time.Hour)
		equal(t, "log in the end", r.logged("t"), []string{"later", "lost", "held", "last"})
	})
}

// refusing refuses units that move one id, a number of times.
type refusing struct {
	store.Store
	id    string
	times atomic.Int64
}

func (f *refusing) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	var kept []*store.Unit
	var refused []*store.Unit
	for _, u := range units {
		if len(u.Unplans) > 0 && u.Unplans[0].ID == f.id && f.times.Add(-1) >= 0 {
			refused = append(refused, u)
		} else {
			kept = append(kept, u)
		}
	}
	err := f.Store.Commit(ctx, kept, sync)
	for _, u := range refused {
		u.Err = store.ErrTopicLimit
	}
	return err
}

// TestMoverUnitRefused: a move that is refused holds up no other, and is tried
// again.
func TestMoverUnitRefused(t *testing.T) {
	refuse := &refusing{id: "bad"}
	inFaultyBubble(t, func(s store.Store) store.Store { refuse.Store = s; return refuse }, func(r *rig, _ *storefault.Store) {
		refuse.times.Store(3)
		r.schedule("t", "a", time.Minute)
		r.schedule("t", "bad", time.Minute)
		r.schedule("t", "b", time.Minute)
		r.schedule("t", "c", time.Minute+500*time.Millisecond)
		r.after(time.Minute)
		equal(t, "log", r.logged("t"), []string{"a", "b"})
		r.after(3*moveRetry - time.Nanosecond)
		equal(t, "log while it is refused", r.logged("t"), []string{"a", "b", "c"})
		r.after(time.Nanosecond)
		equal(t, "log", r.logged("t"), []string{"a", "b", "c", "bad"})
		equal(t, "scheduled", len(r.scheduled()), 0)
	})
}

// TestMoverStoreBroken: a store that has failed a commit is left alone, and what
// was scheduled is there when it is opened again.
func TestMoverStoreBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := memory.Open(memory.Options{})
		faulty := storefault.Wrap(backend)
		r := &rig{t: t, store: &meter{Store: faulty}}
		r.start(Options{Logger: slog.New(slog.DiscardHandler)})
		r.schedule("t", "a", time.Minute)
		r.schedule("t", "b", time.Hour)
		faulty.Inject(storefault.Fault{Op: storefault.Commit, Times: 1, Err: errors.New("no disk")})
		r.after(time.Minute)
		calls := faulty.Calls(storefault.Any)
		r.after(2 * time.Hour)
		equal(t, "calls after it broke", faulty.Calls(storefault.Any)-calls, 0)
		if err := r.bus.Close(); !errors.Is(err, store.ErrBroken) {
			t.Errorf("Close: %v; want store.ErrBroken", err)
		}
		r.store = &meter{Store: backend}
		r.start(Options{})
		equal(t, "log", r.logged("t"), []string{"a", "b"})
		r.stop()
	})
}

// TestMoverFullDisk: while publishes are refused for lack of room nothing is moved,
// and nothing is lost.
func TestMoverFullDisk(t *testing.T) {
	inFaultyBubble(t, nil, func(r *rig, s *storefault.Store) {
		r.schedule("t", "a", time.Minute)
		s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1 << 20, Total: 1 << 40}, nil })
		r.after(time.Hour)
		equal(t, "log while the disk is full", len(r.logged("t")), 0)
		s.SetSpace(nil)
		r.after(moveRetry)
		equal(t, "log", r.logged("t"), []string{"a"})
	})
}

// TestCloseWhileMoving: Close waits for the move under way, and what it has not
// moved is there for the next start.
func TestCloseWhileMoving(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule("t", "a", time.Second)
		r.schedule("t", "b", time.Second+time.Millisecond)
		held := make(chan struct{})
		r.store.set(held, nil)
		r.after(time.Second)
		closed := make(chan error, 1)
		go func() { closed <- r.bus.Close() }()
		r.after(time.Minute)
		select {
		case err := <-closed:
			t.Errorf("Close returned while a commit was under way: %v", err)
		default:
		}
		r.store.set(nil, nil)
		close(held)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		equal(t, "log", r.logged("t"), []string{"a"})
		r.start(Options{})
		equal(t, "log after a start", r.logged("t"), []string{"a", "b"})
	})
}

// TestCloseWhileReading: Close waits for the mover's read too, since the store may
// be closed after the bus.
func TestCloseWhileReading(t *testing.T) {
	var look *looking
	inFaultyBubble(t, func(s store.Store) store.Store { look = &looking{Store: s}; return look }, func(r *rig, _ *storefault.Store) {
		held := make(chan struct{})
		f := func() { <-held }
		synctest.Wait() // for the look at the start
		look.behind.Store(&f)
		r.schedule("t", "a", time.Second)
		r.after(time.Second)
		closed := make(chan error, 1)
		go func() { closed <- r.bus.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close returned while the mover read: %v", err)
			closed <- err
		default:
		}
		close(held)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

func TestScheduledPages(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 2*admin.MaxPage + 10
		now := time.Now().UnixMilli()
		var events []eventhub.Event
		for i := range n {
			e := delayed([]string{"t", "u"}[i%2], fmt.Sprint("id-", i), time.Duration(1+i/4)*time.Second)
			e.Key = "k"
			events = append(events, e)
		}
		if _, err := r.bus.Publish(context.Background(), events...); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			topic string
			limit int
			want  int
		}{{"", 0, n}, {"", 1, n}, {"", 7, n}, {"u", 0, n / 2}, {"u", 3, n / 2}, {"none", 5, 0}} {
			q := admin.ScheduleQuery{Topic: tt.topic, Limit: tt.limit}
			seen := 0
			for {
				page, err := r.bus.Scheduled(context.Background(), q)
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				for _, s := range page {
					i := seen
					if tt.topic == "u" {
						i = 2*seen + 1
					}
					want := admin.Scheduled{Topic: events[i].Topic, ID: events[i].ID, Key: "k", DeliverAt: now + int64(1+i/4)*1000, Seq: s.Seq}
					if s != want || q.AfterAt > s.DeliverAt || q.AfterAt == s.DeliverAt && q.AfterSeq >= s.Seq {
						t.Fatalf("entry %d of %+v is %+v; want %+v", seen, q, s, want)
					}
					q.AfterAt, q.AfterSeq = s.DeliverAt, s.Seq
					seen++
				}
			}
			equal(t, fmt.Sprintf("entries of %q in pages of %d", tt.topic, tt.limit), seen, tt.want)
		}
		for _, q := range []admin.ScheduleQuery{{Limit: -1}, {Limit: admin.MaxPage + 1}, {AfterAt: -1}} {
			_, err := r.bus.Scheduled(context.Background(), q)
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		_, err := r.bus.Scheduled(context.Background(), admin.ScheduleQuery{Topic: "a..b"})
		wantCode(t, err, eventhub.CodeBadTopic)
	})
}
