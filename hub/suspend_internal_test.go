package hub

import (
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// TestLapsed: a hub serves nobody when a lease has passed since it sent what the journal has, whether anybody has
// looked meanwhile or not, as in a hub that was frozen and wakes: another one may lead. It serves again with the next entry.
func TestLapsed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const lease = time.Second
		leader, err := journal.New(memory.New(memory.Options{}).Open()).Lead(t.Context(), journal.Position{}, "a", 1)
		if err != nil {
			t.Fatal(err)
		}
		defer leader.Close()
		h := &Hub{cfg: Config{Lease: lease}, cluster: &cluster{}}
		if err := h.awayFor(); err != nil {
			t.Errorf("before it leads: %v", err)
		}
		h.cluster.leading.Store(leader)
		for range 3 {
			time.Sleep(lease - 1)
			if err := h.awayFor(); err != nil || h.away() != "" {
				t.Errorf("within the lease: %v, %q", err, h.away())
			}
			time.Sleep(time.Nanosecond)
			if err := h.awayFor(); err == nil || err.Code != eventhub.CodeNotActive || h.away() == "" {
				t.Errorf("after the lease: %v, %q; want not_active", err, h.away())
			}
			time.Sleep(time.Hour)
			if _, err := leader.Beat()(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
