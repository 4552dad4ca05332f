package bus

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
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

// TestGoneGroupsAreForgotten: a group that was deleted, alone or with its topic, leaves nothing in memory, although its members had an hour for its events, and others wait for
// another attempt.
func TestGoneGroupsAreForgotten(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 100)
		for _, tt := range []struct {
			name   string
			remove func() error
		}{
			{"group", func() error { return r.bus.DeleteGroup(context.Background(), "t", "g") }},
			{"topic", func() error { return r.bus.DeleteTopic(context.Background(), "t") }},
		} {
			o := opts("t", "g")
			o.MaxInFlight, o.AckTimeout, o.Backoff = 50, eventhub.MaxAckTimeout, eventhub.Backoff{Min: time.Hour, Max: time.Hour}
			left, err := r.bus.Subscribe(context.Background(), o, new(deafInbox))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			left.Drop(0)
			if _, err := r.bus.Subscribe(context.Background(), o, new(deafInbox)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			r.bus.mu.Lock()
			held := weak.Make(r.bus.groups[groupKey{topic: "t", group: "g"}])
			r.bus.mu.Unlock()
			if held.Value() == nil || r.bus.sched.Appointments() == 0 {
				t.Fatal("no lease and no attempt waits; the test shows nothing")
			}
			if err := tt.remove(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Minute) // by then the committer has looked at what had changed
			synctest.Wait()
			for range 2 { // what is pooled outlives one
				runtime.GC()
			}
			if held.Value() != nil {
				t.Errorf("what was deleted with its %s is still in memory, with %d appointments", tt.name, r.bus.sched.Appointments())
			}
		}
	})
}
