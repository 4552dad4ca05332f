package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"eventhub"
	"eventhub/bus/internal/groupstate"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// ackAndPublish does one ack-and-publish from a member, whose outcome is there when the bus
// has come to rest.
func (in *inbox) ackAndPublish(refs []eventhub.Ref, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	in.T.Helper()
	return eventhub.AckAndPublish(context.Background(), in.Sub, refs, events...)
}

// of returns the number of calls of one method so far.
func (m *meter) of(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[method]
}

func out(payload string) eventhub.Event {
	return eventhub.Event{Topic: "out", Payload: []byte(payload)}
}

func TestAckAndPublish(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 3)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		// By lease and by id, several of each in one step.
		receipts, err := in.ackAndPublish([]eventhub.Ref{byLease(got[0]), byID(got[2])}, out(`"a"`), out(`"b"`))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "offsets", []uint64{receipts[0].Offset, receipts[1].Offset}, []uint64{1, 2})
		equal(t, "events", len(r.events("out")), 2)
		equal(t, "stored cursor", r.stored("in", "g").Cursor, 1) // in the same unit: no time has passed
		equal(t, "outcomes", in.Ack(byLease(got[0]), byLease(got[1]), byLease(got[2])),
			[]eventhub.Outcome{eventhub.Stale, eventhub.Applied, eventhub.Stale})
		equal(t, "cursor", r.cursor("in", "g").Offset, 3)
		g := r.bus.running("in", "g")
		equal(t, "acked", g.counts.Acked, 3)
		if msg := recount(g); msg != "" {
			t.Error(msg)
		}
	})
}

// What is wrong with an ack-and-publish is said, and nothing happens.
func TestAckAndPublishRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 2)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		one := []eventhub.Ref{byLease(got[0])}
		for _, c := range []struct {
			what string
			refs []eventhub.Ref
			e    eventhub.Event
			code eventhub.Code
		}{
			{"no refs", nil, out(`1`), eventhub.CodeBadRequest},
			{"one twice", []eventhub.Ref{byLease(got[0]), byID(got[0])}, out(`1`), eventhub.CodeBadRequest},
			{"no payload", one, out(``), eventhub.CodeBadRequest},
			{"bad JSON", one, out(`{`), eventhub.CodeBadJSON},
			{"bad topic", one, eventhub.Event{Topic: "a..b", Payload: []byte(`1`)}, eventhub.CodeBadTopic},
			{"hub's topic", one, eventhub.Event{Topic: "in.dlq", Payload: []byte(`1`)}, eventhub.CodeForbidden},
			{"forged lease", []eventhub.Ref{byLease(got[1]), {Lease: eventhub.Lease{Runtime: 1, Offset: 1, Serial: 1}}}, out(`1`), eventhub.CodeLeaseLost},
			{"unknown id", []eventhub.Ref{byLease(got[1]), {ID: "nobody"}}, out(`1`), eventhub.CodeLeaseLost},
		} {
			_, err := in.ackAndPublish(c.refs, out(`"good"`), c.e)
			if eventhub.ErrorCode(err) != c.code {
				t.Errorf("%s: %v; want %s", c.what, err, c.code)
			}
		}
		hs := []eventhub.AckPublish{{Refs: []eventhub.Ref{byID(got[0])}, Events: []eventhub.Event{out(`1`)}}}
		r.bus.AckAndPublish(context.Background(), "in", "g", hs, func([]eventhub.AckPublish) {})
		wantCode(t, hs[0].Err, eventhub.CodeBadRequest)
		r.bus.AckAndPublish(context.Background(), "in", "nobody", hs, func([]eventhub.AckPublish) {})
		wantCode(t, hs[0].Err, eventhub.CodeNotSubscribed)
		equal(t, "events", len(r.events("out")), 0)
		equal(t, "outcomes", in.Ack(byLease(got[0]), byLease(got[1])), []eventhub.Outcome{eventhub.Applied, eventhub.Applied})
	})
}

// While an ack-and-publish is under way its event neither expires nor goes to others, and
// a member that leaves does not stop it: after another commit, and in its own.
func TestAckAndPublishUnderWay(t *testing.T) {
	t.Run("queued", func(t *testing.T) { ackPublishUnderWay(t, true) })
	t.Run("in the commit", func(t *testing.T) { ackPublishUnderWay(t, false) })
}

func ackPublishUnderWay(t *testing.T, queued bool) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 3)
		r.publish("out", 1, 1)
		o := eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest, AckTimeout: time.Second, MaxInFlight: 1}
		in := r.subscribe(o)
		got := in.Take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		if queued {
			go r.publish("other", 1, 1)
			synctest.Wait()
		}
		hs := []eventhub.AckPublish{{Refs: []eventhub.Ref{byLease(got[0])}, Events: []eventhub.Event{out(`"x"`)}}}
		answered := false
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) { answered = true })
		o.AckTimeout = time.Hour
		other := r.subscribe(o)
		equal(t, "the other one's", other.TakeOffsets(), []uint64{2})
		time.Sleep(time.Minute)
		equal(t, "own", len(in.Take()), 0) // its room is taken
		if got := r.bus.running("in", "g").state.Find(1).State() == groupstate.AckPending; got != queued {
			t.Errorf("ackPending is %t; want %t", got, queued)
		}
		list, err := r.bus.InFlight(context.Background(), "in", "g", 10)
		if err != nil || len(list) != 2 || list[0].State != "ack_and_publish" || list[0].Deadline != 0 || list[0].Member == nil {
			t.Errorf("InFlight = %+v, %v", list, err)
		}
		equal(t, "outcomes", in.Ack(byLease(got[0])), []eventhub.Outcome{eventhub.Stale})
		in.Sub.Drop(0)
		synctest.Wait()
		if answered {
			t.Error("answered before the commit")
		}
		close(hold)
		r.store.set(nil, nil)
		for _, offset := range other.TakeOffsets() {
			if offset == 1 {
				t.Error("the event went to another one")
			}
		}
		if !answered || hs[0].Err != nil || len(r.events("out")) != 2 {
			t.Errorf("outcome %+v, answered %t, %d events", hs[0], answered, len(r.events("out")))
		}
		equal(t, "cursor", r.cursor("in", "g").Offset, 1)
	})
}

// A lease that has run out still counts as long as nobody else holds the event;
// one after a newer one does not.
func TestAckAndPublishLate(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest,
			AckTimeout: time.Second, Backoff: eventhub.Backoff{Min: time.Hour, Max: time.Hour}})
		first := in.Take()[0]
		time.Sleep(2 * time.Second)
		if _, err := in.ackAndPublish([]eventhub.Ref{byLease(first)}, out(`1`)); err != nil {
			t.Errorf("late: %v", err)
		}
		r.publish("in", 2, 1)
		old := in.Take()[0]
		time.Sleep(2 * time.Hour)
		in.Take()
		_, err := in.ackAndPublish([]eventhub.Ref{byLease(old)}, out(`2`))
		wantCode(t, err, eventhub.CodeLeaseLost)
		equal(t, "events", len(r.events("out")), 1)
	})
}

// A late one that is refused waits on for its next attempt.
func TestAckAndPublishLateRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.store.Store = &picky{Store: r.store.Store}
		r.publish("in", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest,
			AckTimeout: time.Second, Backoff: eventhub.Backoff{Min: time.Hour, Max: time.Hour}})
		first := in.Take()[0]
		time.Sleep(2 * time.Second)
		bad := out(`1`)
		bad.ID = "poison"
		_, err := in.ackAndPublish([]eventhub.Ref{byLease(first)}, bad)
		wantCode(t, err, eventhub.CodeOverloaded)
		equal(t, "at once", len(in.Take()), 0)
		time.Sleep(2 * time.Hour)
		again := in.Take()
		if len(again) == 0 || again[0].Attempt != 2 {
			t.Errorf("delivered %+v; want attempt 2", again)
		}
	})
}

// What a unit that was refused would have written of the group is written later.
func TestAckAndPublishRefusedLosesNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.store.Store = &picky{Store: r.store.Store}
		r.publish("in", 1, 3)
		r.publish("out", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		time.Sleep(time.Second)
		in.Nack(byLease(got[2])) // its history is not written before the ack-and-publishes are
		bad := out(`1`)
		bad.ID = "poison"
		hs := []eventhub.AckPublish{
			{Refs: []eventhub.Ref{byLease(got[0])}, Events: []eventhub.Event{out(`1`)}},
			{Refs: []eventhub.Ref{byLease(got[1])}, Events: []eventhub.Event{bad}},
		}
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
		time.Sleep(50 * time.Millisecond)
		parts, err := r.store.GroupParts(context.Background(), "in", "g")
		if err != nil || !slices.ContainsFunc(parts, func(p store.GroupPart) bool { return p.Kind == groupstate.PartHistory && p.Offset == 3 }) {
			t.Errorf("parts %v, %v; want the history of 3", parts, err)
		}
	})
}

// A seek and the group's deletion take the deliveries of an ack-and-publish away until it
// is in a commit.
func TestAckAndPublishLost(t *testing.T) {
	for what, take := range map[string]func(*Bus) error{
		"seek":   func(b *Bus) error { return b.SetCursor(context.Background(), "in", "g", 0) },
		"delete": func(b *Bus) error { return b.DeleteGroup(context.Background(), "in", "g") },
	} {
		inBubble(t, func(r *rig) {
			r.publish("in", 1, 1)
			in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
			got := in.Take()
			hold := make(chan struct{})
			r.store.set(hold, nil)
			go r.publish("other", 1, 1) // the commit that is under way
			synctest.Wait()
			taken := make(chan error, 1)
			go func() { taken <- take(r.bus) }()
			synctest.Wait()
			hs := []eventhub.AckPublish{{Refs: []eventhub.Ref{byLease(got[0])}, Events: []eventhub.Event{out(`1`)}}}
			if what == "seek" {
				in.Take() // it came again, and the old lease is void
			}
			in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
			close(hold)
			r.store.set(nil, nil)
			if err := <-taken; err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			wantCode(t, hs[0].Err, eventhub.CodeLeaseLost)
			equal(t, what+": events", len(r.events("out")), 0)
		})
	}
}

// An ack-and-publish that is refused leaves its deliveries as they were, and does not take
// those with it that are in the same commit.
func TestAckAndPublishRefusedByStore(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &picky{Store: r.store.Store}
		r.store.Store = s
		r.publish("in", 1, 3)
		r.publish("out", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest, AckTimeout: 10 * time.Second, MaxAttempts: 1})
		got := in.Take()
		bad := out(`"bad"`)
		bad.ID = "poison"
		hs := []eventhub.AckPublish{
			{Refs: []eventhub.Ref{byLease(got[0])}, Events: []eventhub.Event{out(`"a"`)}},
			{Refs: []eventhub.Ref{byLease(got[1])}, Events: []eventhub.Event{bad}},
			{Refs: []eventhub.Ref{byLease(got[2])}, Events: []eventhub.Event{out(`"c"`)}},
		}
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
		synctest.Wait()
		if hs[0].Err != nil || hs[2].Err != nil {
			t.Errorf("the good ones: %v, %v", hs[0].Err, hs[2].Err)
		}
		wantCode(t, hs[1].Err, eventhub.CodeOverloaded)
		equal(t, "events", len(r.events("out")), 3)
		time.Sleep(5 * time.Second)
		list, _ := r.bus.InFlight(context.Background(), "in", "g", 10)
		if len(list) != 1 || list[0].State != "leased" || list[0].Attempt != 1 {
			t.Errorf("InFlight = %+v; want the second one leased as it was", list)
		}
		// One whose lease runs out meanwhile comes again at once, also when it was
		// its last attempt.
		hold := make(chan struct{})
		s.set(hold, nil)
		in.Sub.AckAndPublish(context.Background(), hs[1:2], func([]eventhub.AckPublish) {})
		time.Sleep(time.Minute)
		close(hold)
		s.set(nil, nil)
		again := in.Take()
		if len(again) != 1 || again[0].Offset != 2 || again[0].Attempt != 1 {
			t.Errorf("delivered %+v; want the second one again as attempt 1", again)
		}
		equal(t, "dead letters", len(r.events("in.dlq")), 0)
	})
}

// A commit that fails leaves the outcome open; nothing is acknowledged.
func TestAckAndPublishCommitFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := storefault.Wrap(memory.Open(memory.Options{}))
		r := &rig{t: t, store: &meter{Store: s}}
		r.start(Options{})
		r.publish("in", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		time.Sleep(time.Second)
		s.Inject(storefault.Fault{Op: storefault.Commit, Err: errors.New("the disk is gone")})
		_, err := in.ackAndPublish([]eventhub.Ref{byLease(got[0])}, out(`1`))
		wantCode(t, err, eventhub.CodeInternal)
		if err := r.bus.Close(); err == nil {
			t.Error("Close said nothing of the failure")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close commits what was accepted; afterwards nothing is.
func TestAckAndPublishClose(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 2)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("other", 1, 1)
		synctest.Wait()
		hs := []eventhub.AckPublish{{Refs: []eventhub.Ref{byLease(got[0])}, Events: []eventhub.Event{out(`1`)}}}
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
		closed := make(chan struct{})
		go func() { r.stop(); close(closed) }()
		synctest.Wait()
		close(hold)
		<-closed
		r.store.set(nil, nil)
		if hs[0].Err != nil || len(r.events("out")) != 1 || r.stored("in", "g").Cursor != 1 {
			t.Errorf("after Close: %v, %d events, cursor %d", hs[0].Err, len(r.events("out")), r.stored("in", "g").Cursor)
		}
		_, err := in.ackAndPublish([]eventhub.Ref{byLease(got[1])}, out(`2`))
		wantCode(t, err, eventhub.CodeShuttingDown)
		r.start(Options{})
	})
}

// A duplicate among what is published is no error, and the ack counts.
func TestAckAndPublishDuplicate(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 2)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		e := out(`1`)
		e.ID = "same"
		hs := []eventhub.AckPublish{
			{Refs: []eventhub.Ref{byLease(got[0])}, Events: []eventhub.Event{e}},
			{Refs: []eventhub.Ref{byLease(got[1])}, Events: []eventhub.Event{e}},
		}
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
		synctest.Wait()
		if hs[0].Err != nil || hs[1].Err != nil || hs[0].Receipts[0].Duplicate || !hs[1].Receipts[0].Duplicate || hs[1].Receipts[0].Offset != 1 {
			t.Errorf("outcomes %+v", hs)
		}
		equal(t, "cursor", r.cursor("in", "g").Offset, 2)
	})
}

// Too little room on the disk refuses what is published, and takes no delivery.
func TestAckAndPublishWithoutRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := storefault.Wrap(memory.Open(memory.Options{}))
		r := &rig{t: t, store: &meter{Store: s}}
		r.start(Options{})
		r.publish("in", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		time.Sleep(time.Second)
		s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil })
		_, err := in.ackAndPublish([]eventhub.Ref{byLease(got[0])}, out(`1`))
		wantCode(t, err, eventhub.CodeOverloaded)
		equal(t, "outcomes", in.Ack(byLease(got[0])), []eventhub.Outcome{eventhub.Applied})
		r.stop()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Many ack-and-publishes at once are one unit of one commit, except those that create a
// topic.
func TestAckAndPublishAreJoined(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 8)
		r.publish("out", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		got := in.Take()
		time.Sleep(time.Second)
		before := r.store.of("Commit")
		var hs []eventhub.AckPublish
		for i, d := range got {
			h := eventhub.AckPublish{Refs: []eventhub.Ref{byLease(d)}, Events: []eventhub.Event{out(fmt.Sprint(i))}}
			if i == 5 || i == 6 {
				h.Events[0].Topic = "new" // the second one needs no commit of its own
			}
			hs = append(hs, h)
		}
		in.Sub.AckAndPublish(context.Background(), hs, func([]eventhub.AckPublish) {})
		synctest.Wait()
		for i, h := range hs {
			if h.Err != nil {
				t.Errorf("ack-and-publish %d: %v", i, h.Err)
			}
		}
		equal(t, "commits", r.store.of("Commit")-before, 3)
		equal(t, "stored cursor", r.stored("in", "g").Cursor, 8)
	})
}

// The leases of a pull stay valid when an ack-and-publish of one is refused.
func TestAckAndPublishOfAPullRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 99 {
			r.publish("t"+string(rune('a'+i/10))+string(rune('a'+i%10)), 1, 1)
		}
		r.publish("t", 1, 1)
		got := r.pull(opts("t", "g"), 0)
		hs := []eventhub.AckPublish{{Refs: []eventhub.Ref{{Lease: got[0].Lease}}, Events: inTopic("one-too-many", 1)}}
		answered := make(chan struct{})
		r.bus.AckAndPublish(bg, "t", "g", hs, func([]eventhub.AckPublish) { close(answered) })
		<-answered
		wantCode(t, hs[0].Err, eventhub.CodeOverloaded)
		equal(t, "others get", len(r.pull(opts("t", "g"), 0)), 0)
		equal(t, "its ack", r.ackPulled(got), []eventhub.Outcome{eventhub.Applied})
	})
}

// A late ack-and-publish that is refused leaves the event waiting, with the attempts that it
// had: no lease comes back to life.
func TestLateAckAndPublishRefusedWaitsOn(t *testing.T) {
	for _, due := range []bool{false, true} {
		inBubble(t, func(r *rig) {
			s := &picky{Store: r.store.Store}
			synctest.Wait() // the engine has looked at its store
			r.store.Store = s
			r.publish("in", 1, 1)
			r.publish("out", 1, 1)
			o := opts("in", "g")
			o.AckTimeout, o.Backoff = time.Second, eventhub.Backoff{Min: time.Hour, Max: time.Hour}
			in := r.subscribe(o)
			first := in.Take()
			time.Sleep(2 * time.Second)
			hold := make(chan struct{})
			s.set(hold, nil)
			bad := out(`1`)
			bad.ID = "poison"
			hs := []eventhub.AckPublish{{Refs: leasesOf(first), Events: []eventhub.Event{bad}}}
			in.Sub.AckAndPublish(bg, hs, func([]eventhub.AckPublish) {})
			if due {
				time.Sleep(2 * time.Hour)
			}
			close(hold)
			s.set(nil, nil)
			synctest.Wait()
			wantCode(t, hs[0].Err, eventhub.CodeOverloaded)
			list, err := r.bus.InFlight(bg, "in", "g", 10)
			if err != nil || len(list) != 1 {
				t.Fatalf("InFlight = %+v, %v", list, err)
			}
			again := in.Take()
			if due {
				equal(t, "delivered", len(again), 1)
				equal(t, "attempt", list[0].Attempt, 2)
			} else {
				equal(t, "delivered", len(again), 0)
				equal(t, "state", list[0].State, "waiting")
			}
		})
	}
}

// A late ack-and-publish takes room while it is under way, and gives back no more than that.
func TestLateAckAndPublishKeepsTheCountOfRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("in", 1, 3)
		o := opts("in", "g")
		o.MaxInFlight, o.AckTimeout, o.Backoff = 1, time.Second, eventhub.Backoff{Min: time.Hour, Max: time.Hour}
		in := r.subscribe(o)
		first := in.Take()
		time.Sleep(time.Second)
		second := in.Take()
		equal(t, "in its place", offsets(second), []uint64{2})
		if _, err := in.ackAndPublish(leasesOf(first), out(`1`)); err != nil {
			t.Fatal(err)
		}
		equal(t, "while the second is held", len(in.Take()), 0)
		in.Ack(leasesOf(second)...)
		equal(t, "then", in.TakeOffsets(), []uint64{3})
	})
}

// An ack-and-publish that finds no room in the queue in time takes no delivery.
func TestAckAndPublishGivenUpInTheQueue(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{QueueBytes: 1})
		r.publish("in", 1, 1)
		in := r.subscribe(opts("in", "g"))
		got := in.Take()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		for range 2 { // one in the commit, one in the queue
			go r.publish("other", 1, 1)
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		hs := []eventhub.AckPublish{{Refs: leasesOf(got), Events: []eventhub.Event{out(`1`)}}}
		in.Sub.AckAndPublish(ctx, hs, func([]eventhub.AckPublish) {})
		wantCode(t, hs[0].Err, eventhub.CodeOverloaded)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "its ack", in.Ack(leasesOf(got)...), []eventhub.Outcome{eventhub.Applied})
	})
}

// What an ack-and-publish publishes and nobody reads does not stay in memory because
// somebody reads a little at the same time.
func TestAckAndPublishCachesOnlyWhatIsRead(t *testing.T) {
	inBubble(t, func(r *rig) {
		var last *byte // where the last record of the topic lay that was committed
		r.faulty().Before(storefault.Commit, func(c *storefault.Call) error {
			for _, u := range c.Units {
				for _, a := range u.Appends {
					if a.Topic == "small" {
						last = unsafe.SliceData(a.Record)
					}
				}
			}
			return nil
		})
		r.publish("in", 1, 1)
		r.publish("big", 1, 1)
		r.publish("small", 1, 1)
		in, reader := r.subscribe(opts("in", "g")), r.subscribe(opts("small", "g"))
		big := eventhub.Event{Topic: "big", Payload: append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1<<16)...), '"')}
		if _, err := in.ackAndPublish(leasesOf(in.Take()), eventhub.Event{Topic: "small", Payload: []byte(`1`)}, big); err != nil {
			t.Fatal(err)
		}
		equal(t, "read", reader.TakeOffsets(), []uint64{1, 2})
		items, ok := r.bus.logs.Use("small").Read(nil, 2, 1)
		if !ok {
			t.Fatal("the event is not cached")
		}
		equal(t, "keeps the buffer", unsafe.SliceData(items[0].Record) == last, false)
	})
}
