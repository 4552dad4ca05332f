package bus

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// schedule publishes one event with that id and delay.
func (r *rig) schedule(topic, id string, delay time.Duration) eventhub.Receipt {
	r.t.Helper()
	receipts, err := r.bus.Publish(context.Background(), later(topic, id, delay))
	if err != nil {
		r.t.Error(err)
		return eventhub.Receipt{}
	}
	return receipts[0]
}

func later(topic, id string, delay time.Duration) eventhub.Event {
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

// inFaultyBubble is inBubble over a store with faults.
func inFaultyBubble(t *testing.T, test func(*rig, *storefault.Store)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		faulty := storefault.Wrap(memory.Open(memory.Options{}))
		r := &rig{t: t, store: &meter{Store: faulty}}
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
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		began := time.Now()
		want := []struct {
			id string
			ms int64
		}{{"now", 0}, {"a", 1}, {"b", 250}, {"b2", 250}, {"c", 1000}, {"d", 60_000}, {"e", 3_600_000}, {"f", 86_400_000}}
		for _, i := range []int{4, 2, 7, 1, 0, 3, 6, 5} {
			w := want[i]
			got := r.schedule("t", w.id, time.Duration(w.ms)*time.Millisecond)
			if due := began.UnixMilli() + w.ms; w.ms > 0 {
				equal(t, "receipt of "+w.id, got, eventhub.Receipt{ID: w.id, DeliverAt: time.UnixMilli(due)})
			} else {
				equal(t, "receipt of "+w.id, got, eventhub.Receipt{ID: w.id, Offset: 1})
			}
		}
		equal(t, "scheduled", r.scheduled(), []string{"a", "b", "b2", "c", "d", "e", "f"})
		for i, w := range want {
			due := began.Add(time.Duration(w.ms) * time.Millisecond)
			if now := time.Now(); due.After(now) {
				r.after(due.Sub(now) - time.Nanosecond)
				if early := in.Take(); len(early) > 0 {
					t.Errorf("%s is early by a nanosecond or more", early[0].Payload)
				}
				r.after(time.Nanosecond)
			}
			if w.id == "b2" {
				continue // came with b
			}
			for j, got := range in.Take() {
				id, offset := want[i+j].id, uint64(i+j+1)
				equal(t, "event", []any{got.Payload, got.Offset, got.At}, []any{`"` + id + `"`, offset, due})
				e, err := got.Event()
				if err != nil || e.TS != due.UnixMilli() || e.CommittedTS != 0 || e.ID != id {
					t.Errorf("%s at %v: %+v, %v", id, due, e, err)
				}
				in.Ack(byLease(got))
			}
		}
		equal(t, "log", r.logged("t"), []string{"now", "a", "b", "b2", "c", "d", "e", "f"})
		equal(t, "scheduled at the end", len(r.scheduled()), 0)
		equal(t, "cursor", r.cursor("t", "g").Offset, uint64(8))
		m, err := r.bus.Measure(context.Background())
		equal(t, "counts", []any{m.Scheduled, m.Moved, m.Cancelled, m.Topics[0].Events, err}, []any{7, 7, 0, 8, nil})
	})
}

// TestScheduledAsPublished: what the publisher said stays; the commit time is that
// of the move.
func TestScheduledAsPublished(t *testing.T) {
	inBubble(t, func(r *rig) {
		now := time.Now()
		e := eventhub.Event{Topic: "t", ID: "x", TS: now.UnixMilli() - 5000, Key: "k", SID: "s", Tags: []string{"#a"},
			CausedBy: []string{"y"}, Headers: map[string]string{"x-a": "b"}, Payload: []byte(`{"n":1.50}`),
			DeliverAt: time.UnixMilli(now.Add(time.Second).UnixMilli())}
		if _, err := r.bus.Publish(context.Background(), e, eventhub.Event{Topic: "t", Delay: time.Second, Payload: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		r.after(time.Minute)
		got := r.events("t")
		if len(got) != 2 || len(got[1].ID) != 36 {
			t.Fatalf("the log has %+v", got)
		}
		want := e
		want.Offset, want.CommittedTS, want.DeliverAt, want.Partition = 1, e.DeliverAt.UnixMilli(), time.Time{}, got[0].Partition
		equal(t, "event", got[0], want)
		if err := bustest.Index(context.Background(), r.store, "t"); err != nil {
			t.Fatal(err)
		}
		item, err := r.store.Latest(context.Background(), "t", "k", 0)
		equal(t, "latest of the key", []any{item.Offset, err}, []any{1, nil})
	})
}

// TestScheduledInBatch: what is due now and what is not are one unit, and their
// receipts are in the order of the events.
func TestScheduledInBatch(t *testing.T) {
	inBubble(t, func(r *rig) {
		now := time.Now().UnixMilli()
		past := eventhub.Event{Topic: "t", ID: "past", DeliverAt: time.UnixMilli(now - 5), Payload: []byte("1")}
		justNow := eventhub.Event{Topic: "t", ID: "now", DeliverAt: time.UnixMilli(now), Payload: []byte("1")}
		receipts, err := r.bus.Publish(context.Background(),
			later("t", "a", time.Second), past, later("u", "b", 2*time.Second), later("t", "c", time.Microsecond), justNow, later("t", "d", 0))
		equal(t, "receipts", []any{receipts, err}, []any{[]eventhub.Receipt{
			{ID: "a", DeliverAt: time.UnixMilli(now + 1000)}, {ID: "past", Offset: 1}, {ID: "b", DeliverAt: time.UnixMilli(now + 2000)},
			{ID: "c", DeliverAt: time.UnixMilli(now + 1)}, {ID: "now", Offset: 2}, {ID: "d", Offset: 3}}, nil})
		equal(t, "log", r.logged("t"), []string{"past", "now", "d"})
		equal(t, "scheduled", r.scheduled(), []string{"c", "a", "b"})

		// Of a publication that is refused nothing is delayed; its neighbours are.
		bad := []eventhub.Publication{
			{Events: []eventhub.Event{later("t", "e", time.Second), later("t", "f", 3*time.Second), later("t", "g", 0)}},
			{Events: []eventhub.Event{later("t", "x", time.Second), {Topic: "t", Payload: []byte("{")}}},
			{Events: []eventhub.Event{later("t", "x", 0), later("t", "x", eventhub.MaxDelay+1)}},
			{Events: []eventhub.Event{later("t.dlq", "x", time.Second)}},
			{Events: []eventhub.Event{later("t", "x", 0), later("t", "x", time.Second)}, WaitFor: []string{"g"}},
			{Events: []eventhub.Event{later("t", "j", 0), later("t", "h", 4*time.Second), later("u", "i", eventhub.MaxDelay)}},
		}
		answered := make(chan struct{})
		r.bus.Enqueue(context.Background(), bad, func([]eventhub.Publication) { close(answered) })
		<-answered
		for i, code := range []eventhub.Code{"", eventhub.CodeBadJSON, eventhub.CodeBadEvent, eventhub.CodeForbidden, eventhub.CodeBadRequest, ""} {
			wantCode(t, bad[i].Err, code)
		}
		equal(t, "receipts of the first", bad[0].Receipts, []eventhub.Receipt{
			{ID: "e", DeliverAt: time.UnixMilli(now + 1000)}, {ID: "f", DeliverAt: time.UnixMilli(now + 3000)}, {ID: "g", Offset: 4}})
		equal(t, "receipts of the last", bad[5].Receipts, []eventhub.Receipt{
			{ID: "j", Offset: 5}, {ID: "h", DeliverAt: time.UnixMilli(now + 4000)}, {ID: "i", DeliverAt: time.UnixMilli(now + eventhub.MaxDelay.Milliseconds())}})
		equal(t, "scheduled", r.scheduled(), []string{"c", "a", "e", "b", "f", "h", "i"})
		r.after(time.Hour)
		equal(t, "log in the end", r.logged("t"), []string{"past", "now", "d", "g", "j", "c", "a", "e", "f", "h"})
	})
}

// TestScheduledDuplicates: an id is taken by what is scheduled and by what is in
// the log, and whichever came first is reported.
func TestScheduledDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := r.schedule("t", "x", time.Minute)
		again := r.schedule("t", "x", time.Hour)
		equal(t, "scheduled again", again, eventhub.Receipt{ID: "x", DeliverAt: first.DeliverAt, Duplicate: true})
		equal(t, "in another topic", r.schedule("u", "x", time.Minute).Duplicate, false)
		equal(t, "published meanwhile", r.schedule("t", "x", 0), eventhub.Receipt{ID: "x", Offset: 1})
		equal(t, "scheduled once more", r.schedule("t", "x", time.Hour), eventhub.Receipt{ID: "x", Offset: 1, Duplicate: true})
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g", AutoAck: true, Start: eventhub.Earliest})
		r.after(time.Hour)
		equal(t, "log", r.logged("t"), []string{"x"})
		equal(t, "deliveries", in.TakeOffsets(), []uint64{1})
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

// skewed is a clock that can be set.
type skewed struct{ skew atomic.Int64 }

func (c *skewed) now() time.Time { return time.Now().Add(time.Duration(c.skew.Load())) }

// TestNothingMovesOnAFullDisk: while publishes are refused for lack of room nothing is moved,
// and nothing is lost.
func TestNothingMovesOnAFullDisk(t *testing.T) {
	inFaultyBubble(t, func(r *rig, s *storefault.Store) {
		r.schedule("t", "a", time.Minute)
		s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1 << 20, Total: 1 << 40}, nil })
		r.after(time.Hour)
		equal(t, "log while the disk is full", len(r.logged("t")), 0)
		s.SetSpace(nil)
		r.after(time.Second)
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

func TestScheduledPages(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 2*admin.MaxPage + 10
		now := time.Now().UnixMilli()
		var events []eventhub.Event
		for i := range n {
			e := later([]string{"t", "u"}[i%2], fmt.Sprint("id-", i), time.Duration(1+i/4)*time.Second)
			e.Key = "k"
			events = append(events, e)
		}
		if _, err := r.bus.Publish(context.Background(), events...); err != nil {
			t.Fatal(err)
		}
		few := testsize.Of(1, 30)
		for _, tt := range []struct {
			topic string
			limit int
			want  int
		}{{"", 0, n}, {"", few, n}, {"", 7 * few, n}, {"u", 0, n / 2}, {"u", 3 * few, n / 2}, {"none", 5, 0}} {
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
