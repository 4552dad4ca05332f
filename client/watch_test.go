package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/wire"
)

// counted is a context that counts who waits for its end.
type counted struct {
	done chan struct{}

	mu    sync.Mutex
	err   error
	made  int
	funcs map[int]func()
}

func newCounted() *counted { return &counted{done: make(chan struct{}), funcs: make(map[int]func())} }

func (c *counted) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c *counted) Done() <-chan struct{}       { return c.done }
func (c *counted) Value(any) any               { return nil }

func (c *counted) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// AfterFunc is what context.AfterFunc asks for.
func (c *counted) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	n := c.made
	c.funcs[n] = f
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, is := c.funcs[n]
		delete(c.funcs, n)
		return is
	}
}

func (c *counted) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = context.Canceled
	close(c.done)
	for _, f := range c.funcs {
		go f()
	}
	clear(c.funcs)
}

// waiting returns how many wait for its end, and how many ever did.
func (c *counted) waiting() (now, ever int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.funcs), c.made
}

// TestOneWatchForManyPublishes: publishes with the same context wait for its end together, and nobody
// does when they are answered and another context came, or the client has ended.
func TestOneWatchForManyPublishes(t *testing.T) {
	c := dial(t, startHub(t, hub.Config{}).WSAddr())
	a, b := newCounted(), newCounted()
	var answered sync.WaitGroup
	publish := func(ctx context.Context) {
		answered.Add(1)
		c.Enqueue(ctx, []eventhub.Publication{{Events: []eventhub.Event{event("t", "1")}}}, func(pubs []eventhub.Publication) {
			if err := pubs[0].Err; err != nil {
				t.Error(err)
			}
			answered.Done()
		})
	}
	for range 500 {
		publish(a)
	}
	answered.Wait()
	if now, ever := a.waiting(); now != 1 || ever != 1 {
		t.Errorf("after 500 publishes %d wait for the end of their context, %d in all; want 1", now, ever)
	}
	for range 50 {
		publish(b)
		publish(a)
	}
	answered.Wait()
	if now, _ := b.waiting(); now != 0 {
		t.Errorf("%d wait for the end of a context whose publishes are answered", now)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if now, _ := a.waiting(); now != 0 {
		t.Errorf("%d wait for the end of the last context, after the client", now)
	}
}

// TestContextEndsItsPublishes: with a context all its publishes end, once, and no others do; those
// that came one after the other in their order.
func TestContextEndsItsPublishes(t *testing.T) {
	addr := startScripted(t, func(*wire.Request) ([]string, bool) { return nil, true })
	c := dial(t, addr)
	a, b := newCounted(), newCounted()
	var mu sync.Mutex
	ended := make(map[context.Context][]int)
	var of sync.WaitGroup // a's
	for n := range 200 {
		ctx := context.Context(a)
		if n >= 50 && n%3 == 0 || n > 150 {
			ctx = b
		} else {
			of.Add(1)
		}
		pubs := []eventhub.Publication{{Events: []eventhub.Event{event("t", "1")}}, {Events: []eventhub.Event{event("t", "2"), event("t", "3")}}}
		c.Enqueue(ctx, pubs, func(pubs []eventhub.Publication) {
			mu.Lock()
			defer mu.Unlock()
			ended[ctx] = append(ended[ctx], n)
			want := client.ErrClosed
			if ctx == a {
				want = context.Canceled
				of.Done()
			}
			for i := range pubs {
				if !errors.Is(pubs[i].Err, want) {
					t.Errorf("publish %d: %v; want %v", n, pubs[i].Err, want)
				}
			}
		})
	}
	a.cancel()
	of.Wait()
	mu.Lock()
	together := slices.DeleteFunc(slices.Clone(ended[a]), func(n int) bool { return n >= 50 })
	if len(together) != 50 || !slices.IsSorted(together) || len(ended[b]) > 0 {
		t.Errorf("ended with a: %v; with b: %v", ended[a], ended[b])
	}
	mu.Unlock()
	// What comes for a context that has ended is refused, and the client goes on.
	c.Enqueue(a, []eventhub.Publication{{Events: []eventhub.Event{event("t", "1")}}}, func(pubs []eventhub.Publication) {
		if !errors.Is(pubs[0].Err, context.Canceled) {
			t.Errorf("afterwards: %v", pubs[0].Err)
		}
	})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if all := len(ended[a]) + len(ended[b]); all != 200 {
		t.Errorf("%d publishes have ended of 200", all)
	}
	if now, _ := b.waiting(); now != 0 {
		t.Errorf("%d wait for the end of b", now)
	}
}
