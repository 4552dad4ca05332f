package bus

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

// TestLeasesWhenTheClockIsSet: whoever sets the wall clock, forward or back, changes no
// lease, no retry and no hand-over of a conflated tail. What is shown is in the wall clock's
// time.
func TestLeasesWhenTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		inBubble(t, func(r *rig) {
			var set atomic.Int64
			r.stop()
			r.start(Options{clock: func() time.Time { return time.Now().Add(time.Duration(set.Load())) }})
			o := opts("t", "g")
			o.AckTimeout, o.MaxAttempts = 10*time.Second, 2
			o.Backoff = eventhub.Backoff{Min: 4 * time.Second, Max: 4 * time.Second}
			in := r.subscribe(o)
			tail := r.tail(eventhub.TailOptions{Topic: "t", Conflate: time.Second})
			r.publish("t", 1, 1)
			in.Take()
			began := time.Now()
			tail.Take()
			set.Store(int64(by))
			r.publish("t", 2, 1)

			time.Sleep(2 * time.Second)
			synctest.Wait()
			equal(t, "the tail", len(tail.Take()), 1)
			equal(t, "of the others", in.TakeOffsets(), []uint64{2})
			info := r.info("t", "g")
			equal(t, "leased", info.InFlight, 2)
			flight, err := r.bus.InFlight(t.Context(), "t", "g", 10)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "since", flight[0].SinceTS, began.Add(by).UnixMilli())
			equal(t, "deadline", flight[0].Deadline, began.Add(by+o.AckTimeout).UnixMilli())

			time.Sleep(time.Until(began.Add(9999 * time.Millisecond)))
			synctest.Wait()
			equal(t, "leased, a moment before its end", r.info("t", "g").InFlight, 2)
			time.Sleep(time.Millisecond)
			synctest.Wait()
			equal(t, "leased, at its end", r.info("t", "g").InFlight, 0)
			time.Sleep(4 * time.Second)
			synctest.Wait()
			equal(t, "again", len(in.Take()) > 0, true)
		})
	}
}
