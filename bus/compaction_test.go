package bus

import (
	"context"
	"fmt"
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
		kept := func() (offsets []uint64) {
			err := r.bus.Replay(ctx, admin.ReplayQuery{Topic: "stock"}, func(_ string, item eventhub.Item) error {
				offsets = append(offsets, item.Offset)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			return offsets
		}
		all := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}
		time.Sleep(30 * time.Minute)
		equal(t, "what is young", kept(), all)
		time.Sleep(2 * time.Hour)
		equal(t, "what the group has", kept(), all)
		in = r.subscribe(opts("stock", "g"))
		for _, d := range in.Take() {
			equal(t, "acked", in.Ack(byLease(d)), []eventhub.Outcome{eventhub.Applied})
		}
		time.Sleep(time.Minute)
		equal(t, "the newest", kept(), []uint64{7, 8, 9})
	})
}
