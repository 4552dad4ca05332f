package bus

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"weak"

	"eventhub"
)

// deafInbox takes everything, and is large, as a connection is.
type deafInbox struct {
	_ [64 << 10]byte
}

func (*deafInbox) Deliver(batch []eventhub.Delivery) int { return len(batch) }
func (*deafInbox) Ended(error)                           {}

// TestGoneReceiversAreForgotten: a member that has gone leaves no more than its name, while the event that it had waits for
// somebody else.
func TestGoneReceiversAreForgotten(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		for name, end := range map[string]func(eventhub.Subscription){
			"dropped": func(s eventhub.Subscription) { s.Drop(0) },
			"left":    func(s eventhub.Subscription) { _ = s.Unsubscribe(context.Background()) },
		} {
			receiver := new(deafInbox)
			held := weak.Make(receiver)
			for _, buffered := range []bool{false, true} {
				o := opts("t", "g-"+name)
				o.Buffered = buffered
				sub, err := r.bus.Subscribe(context.Background(), o, receiver)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				end(sub)
			}
			receiver = nil
			synctest.Wait()
			runtime.GC()
			if held.Value() != nil {
				t.Errorf("the receiver of a member that has %s is still held", name)
			}
		}
	})
}
