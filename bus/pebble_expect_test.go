package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
)

const (
	raceStores  = 8 // stores of a full run, with an image each and their ends
	raceWriters = 4
	raceChanges = 60 // of each writer
)

// raceKeys are what the writers change: two keys, and a topic as a whole.
var raceKeys = []string{"k", "l", ""}

// TestConditionsUnderLoad: writers change what all of them change, each on the condition that
// nobody was faster; commits are pipelined, and the power fails. In the log of every image, and of the
// store in the end, each change follows from the one before it: no update is lost. Whatever got
// its receipt is there, and a change that is repeated is the same one.
func TestConditionsUnderLoad(t *testing.T) {
	seed := drawSeed(t)
	conflicts := 0
	for n := range testsize.Of(raceStores, 2) {
		r := &race{t: t, mem: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, uint64(n))), known: make(map[string]uint64)}
		r.ops = 1 + r.rng.IntN(200)
		r.run()
		conflicts += r.conflicts
	}
	if conflicts == 0 {
		t.Error("no writer was ever faster than another one")
	}
}

// race is one store with its writers.
type race struct {
	t   *testing.T
	mem *vfs.MemFS

	mu        sync.Mutex
	rng       *rand.Rand
	ops       int // writes until the image is taken
	image     *vfs.MemFS
	promised  map[string]uint64 // what had its receipt by then
	known     map[string]uint64 // offset by id
	conflicts int
}

// MaybeError and String make it an errorfs.Injector, which takes the image.
func (r *race) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ops--; r.ops == 0 {
		r.promised = maps.Clone(r.known)
		r.image = r.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.rng.IntN(101), RNG: r.rng})
	}
	return nil
}

func (r *race) String() string { return "take an image" }

func (r *race) run() {
	s := openLoad(r.t, faultfs.Wrap(r.mem, r))
	b, err := New(Options{Store: s, EarlyBytes: 1})
	if err != nil {
		r.t.Fatal(err)
	}
	var writers sync.WaitGroup
	for w := range raceWriters {
		writers.Go(func() { r.write(b, w) })
	}
	writers.Wait()
	if err := errors.Join(b.Close(), s.Close()); err != nil {
		r.t.Errorf("Close: %v", err)
	}
	if n := r.check(r.mem, r.known); n != raceWriters*raceChanges*len(raceKeys) {
		r.t.Errorf("the logs have %d changes; want those of %d writers", n, raceWriters)
	}
	if r.image != nil {
		r.check(r.image, r.promised)
	}
}

// change is an event that changes something.
type change struct {
	After uint64 `json:"after"` // the offset that it expected
}

func (r *race) event(w, i int, key string, after uint64) eventhub.Event {
	payload, err := json.Marshal(change{after})
	if err != nil {
		r.t.Error(err)
	}
	e := eventhub.Event{Topic: "keys", ID: fmt.Sprintf("%d-%d-%s-%d", w, i, key, after), Key: key, Payload: payload, Expect: eventhub.IfKeyOffset(after)}
	if key == "" {
		e.Topic, e.Expect = "whole", eventhub.IfTopicOffset(after)
	}
	return e
}

// write makes a writer's changes, each again until it is the first one after what it has seen.
func (r *race) write(b *Bus, w int) {
	var last [3]uint64
	for i := range raceChanges {
		for k, key := range raceKeys {
			for {
				e := r.event(w, i, key, last[k])
				receipts, err := b.Publish(context.Background(), e)
				if present, ok := eventhub.PresentOffset(err); ok {
					last[k] = present
					r.mu.Lock()
					r.conflicts++
					r.mu.Unlock()
					continue
				}
				if err != nil {
					r.t.Error(err)
					return
				}
				last[k] = receipts[0].Offset
				r.mu.Lock()
				r.known[e.ID] = last[k]
				r.mu.Unlock()
				if again, err := b.Publish(context.Background(), e); err != nil || !again[0].Duplicate || again[0].Offset != last[k] {
					r.t.Errorf("%s again: %+v, %v; want the duplicate of %d", e.ID, again, err, last[k])
				}
				break
			}
		}
	}
}

// check looks at all changes on a disk, which are known to have been made or more, and returns
// how many there are. An engine on it goes on from the last ones.
func (r *race) check(mem *vfs.MemFS, known map[string]uint64) (n int) {
	s := openLoad(r.t, mem)
	b, err := New(Options{Store: s})
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			r.t.Errorf("Close: %v", err)
		}
	}()
	last, offsets := make(map[string]uint64), make(map[string]uint64)
	for _, topic := range []string{"keys", "whole"} {
		var batch store.Batch
		if err := s.Read(context.Background(), topic, 1, 1<<20, 1<<30, &batch); err != nil {
			r.t.Fatal(err)
		}
		for _, item := range batch.Items {
			e, err := item.Record.Event(item.Offset)
			if err != nil {
				r.t.Fatal(err)
			}
			var c change
			if err := json.Unmarshal(e.Payload, &c); err != nil {
				r.t.Fatal(err)
			}
			if c.After != last[e.Key] {
				r.t.Errorf("%s at %d follows from %d; before it came %d", e.ID, e.Offset, c.After, last[e.Key])
			}
			last[e.Key], offsets[e.ID] = e.Offset, e.Offset
			n++
		}
	}
	for id, offset := range known {
		if offsets[id] != offset {
			r.t.Errorf("%s had the offset %d; it is at %d", id, offset, offsets[id])
		}
	}
	for i, key := range raceKeys {
		_, err := b.Publish(context.Background(), r.event(9, i, key, last[key]+1))
		if present, ok := eventhub.PresentOffset(err); !ok || present != last[key] {
			r.t.Errorf("a condition above the last change of %q: %v; want the present %d", key, err, last[key])
		}
		if _, err := b.Publish(context.Background(), r.event(9, i, key, last[key])); err != nil {
			r.t.Errorf("a change of %q after the last one: %v", key, err)
		}
	}
	return n
}
