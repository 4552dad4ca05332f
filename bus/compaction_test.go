package bus

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
)

// TestCompaction: of each key the newest event is kept once it is old enough and all groups are
// done; events without a key are refused by whatever way they come, and the group gets all.
func TestCompaction(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		_, err := r.bus.SetTopic(ctx, "stock", admin.TopicSettings{Compaction: &admin.Compaction{MinAge: admin.Period(time.Hour)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.bus.Publish(ctx, eventhub.Event{Topic: "stock", Payload: []byte("1")})
		wantCode(t, err, eventhub.CodeBadEvent)
		_, err = r.bus.Import(ctx, eventhub.Event{Topic: "stock", ID: "i", TS: 1, Payload: []byte("1")})
		wantCode(t, err, eventhub.CodeBadEvent)

		in := r.subscribe(opts("stock", "g"))
		if err := in.Sub.Unsubscribe(ctx); err != nil {
			t.Fatal(err)
		}
		for n := range 9 {
			_, err := r.bus.Publish(ctx, eventhub.Event{Topic: "stock", Key: fmt.Sprint("k", n%3), Payload: fmt.Appendf(nil, "%d", n)})
			if err != nil {
				t.Fatal(err)
			}
		}
		kept := func() []uint64 { return r.keptOf("stock") }
		described := func() admin.TopicCompaction {
			t.Helper()
			info, err := r.bus.Topic(ctx, "stock")
			if err != nil || info.Compaction == nil {
				t.Fatal(info.Compaction, err)
			}
			c := *info.Compaction
			if c.LastTS == 0 || c.Events > 0 && c.Bytes == 0 {
				t.Errorf("%+v", c)
			}
			c.LastTS, c.Bytes = 0, 0
			return c
		}
		all, made := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, time.Now()
		time.Sleep(30 * time.Minute)
		equal(t, "what is young", kept(), all)
		equal(t, "its description", described(), admin.TopicCompaction{State: "waiting", HeldBy: "min_age", HeldFrom: 1, HeldUntilTS: made.Add(time.Hour).UnixMilli()})
		time.Sleep(2 * time.Hour)
		equal(t, "what the group has", kept(), all)
		equal(t, "its description", described(), admin.TopicCompaction{State: "waiting", HeldBy: "group", HeldGroup: "g", HeldFrom: 1, HeldUntilTS: made.Add(7 * 24 * time.Hour).UnixMilli()})
		in = r.subscribe(opts("stock", "g"))
		for _, d := range in.Take() {
			equal(t, "acked", in.Ack(byLease(d)), []eventhub.Outcome{eventhub.Applied})
		}
		time.Sleep(time.Minute)
		equal(t, "the newest", kept(), []uint64{7, 8, 9})
		equal(t, "its description", described(), admin.TopicCompaction{Compacted: 9, Events: 6, State: "waiting"})
		r.set("stock", admin.TopicSettings{})
		equal(t, "without the setting", described(), admin.TopicCompaction{Compacted: 9, Events: 6, State: "off"})
		r.set("other", admin.TopicSettings{})
		if _, err := r.bus.Publish(ctx, eventhub.Event{Topic: "other", Payload: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		if info, err := r.bus.Topic(ctx, "other"); err != nil || info.Compaction != nil {
			t.Errorf("a topic that never was compacted: %+v, %v", info.Compaction, err)
		}
	})
}

// keptOf returns the offsets of the events that a topic has.
func (r *rig) keptOf(topic string) (offsets []uint64) {
	r.t.Helper()
	err := r.bus.Replay(bg, admin.ReplayQuery{Topic: topic}, func(_ string, item eventhub.Item) error {
		offsets = append(offsets, item.Offset)
		return nil
	})
	if err != nil {
		r.t.Error(err)
	}
	return offsets
}

// TestCompactEvery: the option says how often a topic is compacted at most.
func TestCompactEvery(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 0, time.Hour} {
		inBubble(t, func(r *rig) {
			r.stop()
			r.start(Options{CompactEvery: every})
			r.set("stock", admin.TopicSettings{Compaction: &admin.Compaction{MinAge: admin.MinCompactionAge}})
			for range 2 { // the first pass is at once, and finds nothing that is old enough
				if _, err := r.bus.Publish(bg, eventhub.Event{Topic: "stock", Key: "k", Payload: []byte("1")}); err != nil {
					t.Fatal(err)
				}
			}
			due := max(cmp.Or(every, 10*time.Second), time.Duration(admin.MinCompactionAge))
			r.pass(due - time.Millisecond)
			equal(t, words("every", every, "before"), r.keptOf("stock"), []uint64{1, 2})
			r.pass(10 * time.Millisecond)
			equal(t, words("every", every, "after"), r.keptOf("stock"), []uint64{2})
		})
	}
}

// TestCompactionWhenTheClockIsSet: a clock that jumps ahead takes from a topic no more than an hour of its values in a
// minute, and from a group nothing that it is not done with for as long.
func TestCompactionWhenTheClockIsSet(t *testing.T) {
	inBubble(t, func(r *rig) {
		var set atomic.Int64
		r.stop()
		r.start(Options{clock: func() time.Time { return time.Now().Add(time.Duration(set.Load())) }})
		for _, topic := range []string{"alone", "stock"} {
			r.set(topic, admin.TopicSettings{Compaction: &admin.Compaction{MinAge: admin.Period(time.Hour)}})
		}
		r.subscribe(opts("stock", "g"))
		publish := func(topic, payload string) {
			t.Helper()
			if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: topic, Key: "k", Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, topic := range []string{"alone", "stock"} {
			publish(topic, "1")
			publish(topic, "null")
		}
		set.Store(int64(8 * 24 * time.Hour))
		publish("alone", "2")
		publish("stock", "2")
		time.Sleep(30 * time.Second)
		equal(t, "soon after the jump", r.keptOf("alone"), []uint64{1, 2, 3})
		time.Sleep(2 * time.Minute)
		equal(t, "an hour a minute", r.keptOf("alone"), []uint64{3})
		equal(t, "what the group has", r.keptOf("stock"), []uint64{1, 2, 3})
		equal(t, "it is held back", r.bus.retention.Stats().Held > 0, true)
		set.Store(0)
		time.Sleep(2 * time.Minute)
		equal(t, "it is held back, when the clock is right", r.bus.retention.Stats().Held, 0)
	})
}
