package bus

import (
	"context"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

func (r *rig) trimBy(topic string, q admin.TrimQuery, apply bool) admin.TrimPlan {
	r.t.Helper()
	p, err := r.bus.Trim(context.Background(), topic, q, apply)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// TestTrim: a trim says what goes and which groups lose what, and removes it where it is to be
// applied.
func TestTrim(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := r.publish("t", 0, 10)
		in := r.subscribe(opts("t", "done"))
		for _, d := range in.Take()[:4] {
			in.Ack(byLease(d))
		}
		in.Sub.Drop(0)
		idle := opts("t", "idle")
		r.subscribe(idle).Sub.Drop(0)
		r.pass(time.Hour)
		at := time.Now().UnixMilli()
		r.publish("t", 10, 10)
		for _, tt := range []struct {
			name    string
			q       admin.TrimQuery
			horizon uint64
		}{
			{"offset", admin.TrimQuery{Before: 7}, 7},
			{"everything", admin.TrimQuery{Before: 21}, 21},
			{"time", admin.TrimQuery{BeforeTS: at}, 11},
			{"id", admin.TrimQuery{BeforeID: first[4].ID}, 5},
			{"all but", admin.TrimQuery{Keep: 3}, 18},
			{"all but more than there are", admin.TrimQuery{Keep: 300}, 1},
		} {
			p := r.trimBy("t", tt.q, false)
			equal(t, tt.name, []uint64{p.From, p.Horizon, p.Head, p.Events}, []uint64{1, tt.horizon, 20, tt.horizon - 1})
			equal(t, "applied", p.Applied, false)
		}
		equal(t, "after dry runs", r.horizon("t"), 1)
		p := r.trimBy("t", admin.TrimQuery{Before: 7}, true)
		equal(t, "groups", p.Groups, []admin.OvertakenGroup{{Group: "done", Events: 2}, {Group: "idle", Events: 6}})
		equal(t, "applied", p.Applied && p.Bytes > 0, true)
		equal(t, "horizon", r.horizon("t"), 7)
		p = r.trimBy("t", admin.TrimQuery{Before: 3}, true)
		equal(t, "below the horizon", []uint64{p.From, p.Horizon, p.Events}, []uint64{7, 7, 0})
		r.restart()
		equal(t, "horizon after a restart", r.horizon("t"), 7)
	})
}

// fullDisk is a store whose disk is nearly full.
type fullDisk struct{ store.Store }

func (fullDisk) Space() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil }

// TestRemovalsOnAFullDisk: where publishes are refused, what makes room works: a trim, an erasure,
// which notes who did it, and settings, which remove events by themselves.
func TestRemovalsOnAFullDisk(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 20)
		r.store.Store = fullDisk{r.store.Store}
		r.restart()
		r.pass(time.Minute)
		_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte(`1`)})
		wantCode(t, err, eventhub.CodeOverloaded)
		equal(t, "trimmed", r.trimBy("t", admin.TrimQuery{Before: 5}, true).Events, 4)
		equal(t, "erased", r.eraseBy("t", admin.EraseQuery{Offset: 12}).Events, 1)
		equal(t, "marks", len(r.events(admin.AuditTopic)), 1)
		r.set("t", admin.TopicSettings{Retention: admin.Retention{Count: 3}})
		r.pass(time.Minute)
		equal(t, "left", r.offsets("t"), []uint64{18, 19, 20})
	})
}

// TestBadTrims: what cannot be trimmed is refused, and nothing is removed.
func TestBadTrims(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 10)
		r.publish("other", 0, 1)
		for _, tt := range []struct {
			topic string
			q     admin.TrimQuery
			code  eventhub.Code
		}{
			{"t", admin.TrimQuery{}, eventhub.CodeBadRequest},
			{"t", admin.TrimQuery{Before: 3, Keep: 3}, eventhub.CodeBadRequest},
			{"t", admin.TrimQuery{Before: 12}, eventhub.CodeBadRequest},
			{"t", admin.TrimQuery{BeforeTS: time.Now().Add(time.Second).UnixMilli()}, eventhub.CodeBadRequest},
			{"t", admin.TrimQuery{BeforeTS: -1}, eventhub.CodeBadRequest},
			{"t", admin.TrimQuery{BeforeID: "nobody"}, eventhub.CodeUnknownID},
			{"none", admin.TrimQuery{Keep: 1}, eventhub.CodeUnknownID},
			{"a b", admin.TrimQuery{Keep: 1}, eventhub.CodeBadTopic},
			{admin.RedriveTopic, admin.TrimQuery{Keep: 1}, eventhub.CodeBadTopic},
			{admin.AuditTopic, admin.TrimQuery{Keep: 1}, eventhub.CodeBadTopic},
		} {
			_, err := r.bus.Trim(context.Background(), tt.topic, tt.q, true)
			wantCode(t, err, tt.code)
		}
		equal(t, "horizon", r.horizon("t"), 1)
	})
}

// TestPlanSettings: what settings would remove is said of each topic that would have them,
// and nothing is removed.
func TestPlanSettings(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		for _, topic := range []string{"orders.a", "orders.b", "orders.c", "else"} {
			r.publish(topic, 0, 10)
		}
		r.set("orders.b", admin.TopicSettings{Retention: admin.Retention{Count: 1000}})
		plan, err := r.bus.PlanSettings(ctx, "orders.*", admin.TopicSettings{Retention: admin.Retention{Count: 4}})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "topics", []uint64{uint64(plan.Matched), uint64(len(plan.Topics)), plan.Events}, []uint64{2, 2, 12})
		equal(t, "the first", []any{plan.Topics[0].Topic, plan.Topics[0].Events, plan.Topics[0].Horizon}, []any{"orders.a", uint64(6), uint64(7)})
		plan, err = r.bus.PlanSettings(ctx, "orders.b", admin.TopicSettings{Retention: admin.Retention{Count: 3}})
		equal(t, "of one topic", []any{err, plan.Matched, plan.Events}, []any{nil, 1, uint64(7)})
		plan, err = r.bus.PlanSettings(ctx, "to.come", admin.TopicSettings{Retention: admin.Retention{Count: 3}})
		equal(t, "of no topic", []any{err, plan.Matched, plan.Events}, []any{nil, 0, uint64(0)})
		_, err = r.bus.PlanSettings(ctx, "system.audit", admin.TopicSettings{})
		wantCode(t, err, eventhub.CodeBadTopic)
		_, err = r.bus.PlanSettings(ctx, "t", admin.TopicSettings{Retention: admin.Retention{Age: 1}})
		wantCode(t, err, eventhub.CodeBadRequest)
		r.pass(time.Hour)
		equal(t, "entries", len(r.bus.topics.Entries("", 10)), 1)
		for _, topic := range []string{"orders.a", "orders.b", "orders.c"} {
			equal(t, topic, r.horizon(topic), 1)
		}
	})
}
