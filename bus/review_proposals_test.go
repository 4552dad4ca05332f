package bus

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"eventhub"
	"eventhub/store"
)

// A group that is paused while it stands in the queue for room lets the next one
// have it.
func TestPausedGroupPassesRoomOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		r.publish("p.c", 1, 1)
		synctest.Wait()
		r.publish("p.a", 1, 1)
		synctest.Wait()
		r.publish("p.b", 1, 1)
		held := in.take()
		equal(t, "at first", places(held), []string{"p.c/1"})
		if err := errors.Join(r.bus.PauseGroup(bg, "p.a", "g"), r.bus.PauseGroup(bg, "p.c", "g")); err != nil {
			t.Fatal(err)
		}
		in.ack(leasesOf(held)...)
		equal(t, "then", places(in.take()), []string{"p.b/1"})
	})
}

// Nor does it keep a subscription free for a suspect that does not go out.
func TestPausedGroupKeepsNobodyForItsSuspects(t *testing.T) {
	for _, out := range []bool{true, false} {
		inBubble(t, func(r *rig) {
			in := r.subscribe(opts("p.*", "g"))
			r.publish("p.a", 1, 1)
			held := in.take()
			r.makeSuspect(in, "p.b")
			if out {
				in.ack(leasesOf(held)...)
			}
			time.Sleep(time.Millisecond)
			suspects := in.take()
			equal(t, "suspects out", len(suspects) == 1, out)
			if err := r.bus.PauseGroup(bg, "p.b", "g"); err != nil {
				t.Fatal(err)
			}
			r.publish("p.c", 1, 1)
			if out {
				equal(t, "beside a suspect", len(in.take()), 0)
				in.ack(leasesOf(suspects)...)
			}
			equal(t, "then", places(in.take()), []string{"p.c/1"})
		})
	}
}

// recorder notes where the records of a topic lay that were committed.
type recorder struct {
	store.Store
	topic string
	mu    sync.Mutex
	at    []*byte
}

func (s *recorder) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	s.mu.Lock()
	for _, u := range units {
		for _, a := range u.Appends {
			if a.Topic == s.topic {
				s.at = append(s.at, unsafe.SliceData(a.Record))
			}
		}
	}
	s.mu.Unlock()
	return s.Store.Commit(ctx, units, sync)
}

// What a handover publishes and nobody reads does not stay in memory because
// somebody reads a little beside it.
func TestHandOverCachesOnlyWhatIsRead(t *testing.T) {
	inBubble(t, func(r *rig) {
		s := &recorder{Store: r.store.Store, topic: "small"}
		r.store.Store = s
		r.publish("in", 1, 1)
		r.publish("big", 1, 1)
		r.publish("small", 1, 1)
		in, reader := r.subscribe(opts("in", "g")), r.subscribe(opts("small", "g"))
		big := eventhub.Event{Topic: "big", Payload: append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1<<16)...), '"')}
		if _, err := in.handOver(leasesOf(in.take()), eventhub.Event{Topic: "small", Payload: []byte(`1`)}, big); err != nil {
			t.Fatal(err)
		}
		equal(t, "read", reader.takeOffsets(), []uint64{1, 2})
		items, ok := r.bus.topicLog("small").read(nil, 2, 1)
		if !ok {
			t.Fatal("the event is not cached")
		}
		equal(t, "keeps the buffer", unsafe.SliceData(items[0].Record) == s.at[len(s.at)-1], false)
	})
}
