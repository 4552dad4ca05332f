package bus

import (
	"context"
	"fmt"
	"testing"
	"time"

	"eventhub"
	"eventhub/store"
)

// TestMeasureOfPublishes: refused publications count by code, whatever refuses them, and the
// time of the last commit and the room on the disk are shown.
func TestMeasureOfPublishes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		s := r.faulty()
		r.start(Options{})
		check := func(what, want string) {
			t.Helper()
			e, err := r.bus.Measure(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			since := time.Duration(-1)
			if !e.LastCommit.IsZero() {
				since = time.Since(e.LastCommit)
			}
			equal(t, what, fmt.Sprint(since, " ", e.FreeBytes, " ", e.NeededBytes, " ", e.PublishRefused), want)
		}
		publish := func(topic string) {
			_, _ = r.bus.Publish(context.Background(), eventhub.Event{Topic: topic, Payload: []byte(`1`)})
		}
		check("at first", "-1ns 0 0 map[]")
		publish("t")
		time.Sleep(time.Minute)
		check("a minute after a commit", "1m0s 0 0 map[]")
		publish("not a topic")
		s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1 << 20, Total: 100 << 30}, nil })
		time.Sleep(time.Second)
		publish("t")
		if _, err := r.bus.Import(context.Background(), eventhub.Event{Topic: "t", ID: "e", TS: 1, Payload: []byte(`1`)}); err == nil {
			t.Error("an import found room")
		}
		check("on a disk that is full", "1m1s 1048576 5368709120 map[bad_topic:1 overloaded:2]")
	})
}
