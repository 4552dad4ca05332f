package bus

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/admin"
	"eventhub/store"
)

func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// horizon returns the first offset that a topic keeps.
func (r *rig) horizon(topic string) uint64 {
	r.t.Helper()
	info, err := r.store.Topic(context.Background(), topic)
	if err != nil {
		r.t.Fatal(err)
	}
	return info.Horizon
}

// TestRetention: what settings do not keep is removed, also of topics that a pattern names
// and that come later, and after a restart; deleted settings keep everything.
func TestRetention(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("orders.a", 0, 100)
		r.set("orders.*", admin.TopicSettings{Retention: admin.Retention{Count: 40}})
		r.pass(time.Minute)
		equal(t, "a", r.horizon("orders.a"), 61)
		r.publish("orders.b", 0, 100)
		r.publish("else", 0, 100)
		r.pass(time.Minute)
		equal(t, "b", r.horizon("orders.b"), 61)
		equal(t, "else", r.horizon("else"), 1)
		r.restart()
		r.set("orders.a", admin.TopicSettings{Retention: admin.Retention{Age: admin.Period(time.Hour)}})
		r.publish("orders.a", 0, 100)
		r.publish("orders.b", 0, 100)
		r.pass(30 * time.Minute)
		equal(t, "a", r.horizon("orders.a"), 61)
		equal(t, "b", r.horizon("orders.b"), 161)
		r.pass(time.Hour)
		equal(t, "a", r.horizon("orders.a"), 201)
		if err := r.bus.UnsetTopic(context.Background(), "orders.*", nil); err != nil {
			t.Fatal(err)
		}
		r.publish("orders.b", 0, 100)
		r.pass(time.Hour)
		equal(t, "b", r.horizon("orders.b"), 161)
	})
}

// TestMarksLiveAsLongAsTheirLetters: a mark in system.redrive is removed when its dead letter
// is, and the marks before it, and no sooner.
func TestMarksLiveAsLongAsTheirLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 6)
		r.deadLetterAll("t", "g")
		equal(t, "redriven", r.redrive(redriveAll("t")).Redriven, 6)
		equal(t, "marks", len(r.events(admin.RedriveTopic)), 6)
		r.set("t.dlq", admin.TopicSettings{Retention: admin.Retention{Count: 4}})
		r.pass(time.Minute)
		equal(t, "the letters", r.horizon("t.dlq"), 3)
		equal(t, "the marks", r.horizon(admin.RedriveTopic), 3)
		r.erase("t.dlq", 3, 5)
		r.pass(time.Minute)
		equal(t, "the marks, after others removed letters", r.horizon(admin.RedriveTopic), 4)
		states := 0
		for _, d := range r.deadLetters(admin.DeadLetterQuery{Topic: "t", All: true}) {
			if len(d.Marks) != 1 {
				t.Errorf("the dead letter at %d has %d marks; want its one", d.Offset, len(d.Marks))
			}
			states++
		}
		equal(t, "letters", states, 2)
	})
}

// sweeps is a store that counts its sweeps.
type sweeps struct {
	store.Store
	n atomic.Int64
}

func (s *sweeps) Sweep(ctx context.Context) (store.Left, error) {
	s.n.Add(1)
	return s.Store.Sweep(ctx)
}

// TestNoMaintenance: nothing is removed, and settings may be changed.
func TestNoMaintenance(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		s := &sweeps{Store: r.store.Store}
		r.store.Store = s
		r.start(Options{NoMaintenance: true})
		r.publish("t", 0, 100)
		r.set("t", admin.TopicSettings{Retention: admin.Retention{Count: 40, Age: admin.Period(time.Minute)}})
		r.pass(1000 * time.Hour)
		r.trim("t", 5)
		r.pass(time.Hour)
		equal(t, "horizon", r.horizon("t"), 5)
		equal(t, "sweeps", s.n.Load(), 0)
	})
}

// TestRetentionIsShown: the description of a topic and the measurements of the bus say what a
// topic keeps and what went. The newest event of a topic may be gone.
func TestRetentionIsShown(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 0, 100)
		published := time.Now().UnixMilli()
		r.set("t", admin.TopicSettings{Retention: admin.Retention{Count: 40}})
		r.pass(time.Minute)
		r.erase("t", 100)
		r.pass(time.Minute) // it is counted again
		info, err := r.bus.Topic(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "horizon, first and head", []uint64{info.Horizon, info.FirstOffset, info.Head}, []uint64{61, 61, 100})
		equal(t, "the time of the head", []any{info.HeadTS, info.HeadID}, []any{published, ""})
		equal(t, "kept", []any{info.Kept.Events, info.Kept.Bytes > 0, info.Kept.IDsKeptMS}, []any{uint64(39), true, int64(600_000)})
		equal(t, "removed", []any{info.Removal.Events, info.Removal.Bytes > 0, info.Removal.State, info.Removal.LastTS > 0}, []any{uint64(60), true, "waiting", true})
		list, err := r.bus.Topics(ctx, "", 10)
		equal(t, "in a list", []any{err, list[0].Horizon, list[0].Kept == nil, list[0].Removal == nil}, []any{nil, uint64(61), true, true})
		r.restart()
		r.trim("t", 63)
		m, err := r.bus.Measure(ctx)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "full", m.FullIn < 0, true)
		r.publish("t", 0, 10)
		r.pass(time.Minute)
		if m, err = r.bus.Measure(ctx); err != nil {
			t.Fatal(err)
		}
		equal(t, "measured", []uint64{m.Topics[0].Removed, m.Topics[0].Horizon}, []uint64{7, 70})
		equal(t, "rounds", m.RetentionRounds > 0 && !m.NoMaintenance, true)
	})
}

// TestMarksOfDeletedLetters: the marks of redrives go with the dead letters, also where these go with
// their topic.
func TestMarksOfDeletedLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"t", "u", "t"} {
			r.publish(topic, 1, 1)
			r.deadLetterAll(topic, "g")
			q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: topic}, Apply: true}
			if _, err := r.bus.Redrive(bg, q); err != nil {
				t.Fatal(err)
			}
			r.pass(time.Minute)
		}
		marks := r.offsets(admin.RedriveTopic)
		for _, tt := range []struct {
			deleted string
			left    int // one of u is before another one of t
		}{{"u.dlq", len(marks)}, {"t.dlq", 0}} {
			r.deleteTopic(tt.deleted)
			r.pass(time.Minute)
			equal(t, "marks after the deletion of "+tt.deleted, len(r.offsets(admin.RedriveTopic)), tt.left)
		}
	})
}
