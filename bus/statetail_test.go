package bus

import (
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
	"eventhub/store/storefault"
)

// TestStateWithoutRoom: a tail with the state of a topic whose index cannot be begun, because the disk is
// nearly full, ends with the reason and does not ask again without a pause.
func TestStateWithoutRoom(t *testing.T) {
	inFaultyBubble(t, func(r *rig, s *storefault.Store) {
		r.keyed("t", "k", 3)
		s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil })
		time.Sleep(time.Second) // the hub looks at the disk again
		before := s.Calls(storefault.Topic)
		in := r.tail(eventhub.TailOptions{Topic: "t", Start: eventhub.Snapshot})
		synctest.Wait()
		if in.Take(); len(in.Ends) != 1 {
			t.Fatalf("the tail has ended with %v; want one reason", in.Ends)
		}
		wantCode(t, in.Ends[0], eventhub.CodeOverloaded)
		if n := s.Calls(storefault.Topic) - before; n > 10 {
			t.Errorf("the topic was looked up %d times", n)
		}
	})
}
