package client_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
)

// TestOrderingByKey: however many handlers two members have and whatever fails,
// the events of a key are handled one by one and in order, and a hub is not asked
// for two orderings of one group.
func TestOrderingByKey(t *testing.T) {
	const events, keys = 300, 5
	h := startHub(t, hub.Config{})
	opts := earliest("t", "g")
	opts.Ordering = eventhub.OrderingKey
	opts.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	w := orderWatch{t: t, last: make(map[string]uint64), busy: make(map[string]bool), over: make(chan struct{}), left: events}
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	var consuming sync.WaitGroup
	for range 2 {
		c := dial(t, h.WSAddr())
		consuming.Go(func() {
			if err := c.Consume(ctx, atOnce(4, opts), w.handle); err != nil {
				t.Error(err)
			}
		})
	}
	c := dial(t, h.WSAddr())
	batch := make([]eventhub.Event, events)
	for i := range batch {
		batch[i] = event("t", `1`)
		batch[i].Key = fmt.Sprint("k", i%keys)
	}
	if _, err := c.Publish(bounded(t), batch...); err != nil {
		t.Fatal(err)
	}
	await(t, "the last event", w.over)
	cancel()
	consuming.Wait()

	opts.Ordering = eventhub.OrderingNone
	_, err := c.Subscribe(bounded(t), opts, newCollector(1))
	wantCode(t, err, eventhub.CodeGroupMismatch)
}

// orderWatch is a handler that fails every seventh event at first.
type orderWatch struct {
	t    *testing.T
	mu   sync.Mutex
	last map[string]uint64 // offset that is done, by key
	busy map[string]bool
	left int
	over chan struct{}
}

func (w *orderWatch) handle(_ context.Context, d eventhub.Delivery) error {
	key := string(d.Record.Key())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[key] {
		w.t.Errorf("two events of %s are being handled", key)
	}
	if d.Offset <= w.last[key] {
		w.t.Errorf("offset %d of %s comes after %d", d.Offset, key, w.last[key])
	}
	w.busy[key] = true
	w.mu.Unlock()
	runtime.Gosched() // others may go wrong meanwhile
	w.mu.Lock()
	w.busy[key] = false
	if d.Offset%7 == 0 && d.Attempt == 1 {
		return errors.New("not yet")
	}
	w.last[key] = d.Offset
	if w.left--; w.left == 0 {
		close(w.over)
	}
	return nil
}
