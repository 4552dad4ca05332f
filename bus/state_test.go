package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
)

// TestStateWaitsForAnOffset: a state with MinOffset comes as soon as the topic has the offset, and
// never without it.
func TestStateWaitsForAnOffset(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 2)
		ask := func(ctx context.Context, offset uint64, wait time.Duration) (admin.StatePage, error) {
			return r.bus.State(ctx, admin.StateQuery{Topic: "t", MinOffset: offset, Wait: wait, Limit: 10})
		}
		if page, err := ask(context.Background(), 2, 0); err != nil || page.At != 2 {
			t.Errorf("an offset that is there: %+v, %v", page, err)
		}
		began := time.Now()
		_, err := ask(context.Background(), 4, 3*time.Second)
		wantCode(t, err, eventhub.CodeWaitTimeout)
		equal(t, "it waited", time.Since(began), 3*time.Second)
		answered := make(chan admin.StatePage, 1)
		go func() {
			page, err := ask(context.Background(), 4, admin.MaxStateWait)
			if err != nil {
				t.Error(err)
			}
			answered <- page
		}()
		synctest.Wait()
		r.publish("t", 2, 1)
		synctest.Wait()
		equal(t, "answers before the offset", len(answered), 0)
		r.publish("t", 3, 1)
		equal(t, "the offset of the answer", (<-answered).At, uint64(4))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = ask(ctx, 9, time.Second)
		wantCode(t, err, eventhub.CodeShuttingDown)
	})
}

func TestStateOfNoTime(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 2)
		now := time.Now().UnixMilli()
		for _, q := range []admin.StateQuery{
			{AtTS: now + 1}, {Wait: -1}, {Wait: admin.MaxStateWait + 1}, {MinOffset: 1 << 60}, {At: 1, MinOffset: 2},
		} {
			q.Topic, q.Limit = "t", 10
			_, err := r.bus.State(context.Background(), q)
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		_, err := r.bus.State(context.Background(), admin.StateQuery{Topic: "not a name", MinOffset: 1, Limit: 1})
		wantCode(t, err, eventhub.CodeBadTopic)
		for _, q := range []admin.StateDiffQuery{{From: admin.Moment{TS: now + 1}}, {From: admin.Moment{TS: 1}, To: admin.Moment{TS: now + 1}}} {
			q.Topic, q.Limit = "t", 10
			_, err := r.bus.StateDiff(context.Background(), q)
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		if _, err := r.bus.State(context.Background(), admin.StateQuery{Topic: "t", AtTS: now, Limit: 1}); err != nil {
			t.Errorf("the state as of now: %v", err)
		}
	})
}
