package tail

import (
	"testing"
	"testing/synctest"

	"eventhub"
)

// TestFilterIsAskedUnderNoLock: a tail does not hold its lock while it asks its filter, in a
// turn of its own or in one of its shard.
func TestFilterIsAskedUnderNoLock(t *testing.T) {
	for _, f := range []*eventhub.Filter{{Tags: []string{"red"}}, {CEL: "event.payload > 0"}} {
		inBubble(t, func(r *rig) {
			o := tailOpts("t")
			o.Filter = f
			in := r.tail(o)
			tl := in.Sub.(*Tail)
			if err := tl.Pause(bg); err != nil {
				t.Fatal(err)
			}
			held, free := 0, 0
			wants := tl.wants
			tl.wants = func(record eventhub.Record, offset uint64) bool {
				if tl.mu.TryLock() {
					tl.mu.Unlock()
					free++
				} else {
					held++
				}
				return wants(record, offset)
			}
			publish := func() {
				for range 3 {
					if _, err := r.commit(bg, eventhub.Event{Topic: "t", Tags: []string{"red"}, Payload: []byte(`1`)}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
			}
			publish()
			// The turn is the test's own and nobody else is at work, so a lock that is
			// taken is the tail's.
			tl.paused = false
			tl.Turn()
			equal(t, "events", len(in.Take()), 3)
			publish() // its shard asks where it keeps up
			equal(t, "events of its shard's turns", len(in.Take()), 3)
			if held > 0 || free < 6 {
				t.Errorf("filter %s: asked %d times under the tail's lock, and %d times under none", f, held, free)
			}
		})
	}
}
