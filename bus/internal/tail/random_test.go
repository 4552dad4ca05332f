package tail

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// TestTailHistories drives tails through random histories: topics that are created,
// patterns, filters, places to start, receivers that refuse at any place, pauses,
// failing reads and a cache that holds little. Whenever the bus is at rest a tail has
// had a prefix of what it is to get of each topic, and all of it if nothing is in
// the way.
func TestTailHistories(t *testing.T) {
	testsize.Histories(t, testsize.Of(500, 50), func(rt *rapid.T) {
		bubble.Check(rt, func(rt *rapid.T) {
			faults := storefault.Wrap(memory.Open(memory.Options{}))
			r := &rig{t: t, store: &meter{Store: faults}}
			r.start(rapid.SampledFrom([]int{1, 500, 1 << 20}).Draw(rt, "cache"))
			w := &tailWorld{T: rt, rig: r, faults: faults, keys: make(map[string][]string)}
			rt.Cleanup(func() {
				r.stop()
				_ = faults.Close()
			})
			for range w.next(80) {
				w.step()
				w.check()
			}
			w.settle()
		})
	})
}

type tailWorld struct {
	*rapid.T
	rig    *rig
	faults *storefault.Store
	faulty bool                // reads may have failed that are not tried again yet
	keys   map[string][]string // of the events of each topic
	tails  []*tailModel
}

// tailModel is a tail and what it is to get.
type tailModel struct {
	in       *inbox
	patterns []eventhub.Pattern
	start    map[string]int // how many events of a topic it passes by; others: none
	key      string         // "": no filter
	batch    int
	paused   bool
	left     bool
	got      map[string][]uint64
}

var historyTopics = []string{"a", "a.b", "a.c", "b", "b.c", "b.c.d"}

func (w *tailWorld) next(n int) int { return rapid.IntRange(0, n-1).Draw(w.T, "n") }

func (w *tailWorld) step() {
	switch op := w.next(20); {
	case op < 8:
		w.publish()
	case op < 11:
		w.subscribe()
	case op < 15 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.in.Room = w.next(12) - 1
		m.in.Sub.Ready()
	case op < 17 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.paused = w.next(2) == 0
		if err := m.in.Sub.(*Tail).setPaused(m.paused); err != nil {
			w.Fatal(err)
		}
	case op < 18 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.left = true
		m.in.Sub.Drop(0)
	case op == 18:
		w.faulty = true
		w.faults.Inject(storefault.Fault{Op: storefault.Read, Times: 1 + w.next(3), Err: errors.New("no luck")})
	default:
		w.heal()
	}
}

// publish adds events to some topics in one commit.
func (w *tailWorld) publish() {
	var events []eventhub.Event
	for range 1 + w.next(8) {
		e := eventhub.Event{
			Topic: rapid.SampledFrom(historyTopics).Draw(w.T, "topic"), Payload: []byte(`1`),
			Key: rapid.SampledFrom([]string{"", "k", "l"}).Draw(w.T, "key"),
		}
		events = append(events, e)
		w.keys[e.Topic] = append(w.keys[e.Topic], e.Key)
	}
	if _, err := w.rig.commit(context.Background(), events...); err != nil {
		w.Fatal(err)
	}
}

func (w *tailWorld) subscribe() {
	o := eventhub.TailOptions{BatchSize: 1 + w.next(6)}
	o.Topic = rapid.SampledFrom([]string{"a", "b.c", "nobody", "a.*", "**", "b.**", "*"}).Draw(w.T, "topic")
	if w.next(2) == 0 {
		o.Topics = []string{"a.b", "**.c"}
	}
	m := &tailModel{in: &inbox{T: w.rig.t, Room: w.next(12) - 1}, batch: o.BatchSize, start: make(map[string]int), got: make(map[string][]uint64)}
	if w.next(2) == 0 {
		o.Start.Kind = eventhub.StartEarliest
	} else {
		for topic, keys := range w.keys {
			m.start[topic] = len(keys)
		}
	}
	switch w.next(4) {
	case 0:
		m.key, o.Filter = "k", &eventhub.Filter{Key: "k"}
	case 1:
		m.key, o.Filter = "k", &eventhub.Filter{CEL: `event.key == "k"`}
	}
	var err error
	if m.in.Sub, err = w.rig.tails.Open(context.Background(), o, m.in); err != nil {
		w.Fatal(err)
	}
	if m.patterns, err = o.Patterns(); err != nil {
		w.Fatal(err)
	}
	w.tails = append(w.tails, m)
}

// heal ends the faults, and lets what failed be tried again.
func (w *tailWorld) heal() {
	w.faults.Clear()
	time.Sleep(2 * readAgain)
	w.faulty = false
}

// wants is what a tail is to get of a topic.
func (m *tailModel) wants(topic string, keys []string) (offsets []uint64) {
	if !slices.ContainsFunc(m.patterns, func(p eventhub.Pattern) bool { return p.Match(topic) }) {
		return nil
	}
	for i, key := range keys {
		if i >= m.start[topic] && (m.key == "" || m.key == key) {
			offsets = append(offsets, uint64(i+1))
		}
	}
	return offsets
}

func (w *tailWorld) check() {
	synctest.Wait()
	for i, m := range w.tails {
		refused := false
		for _, offsets := range m.in.Calls {
			if len(offsets) > m.batch {
				w.Fatalf("tail %d was handed %d events at once; %d are allowed", i, len(offsets), m.batch)
			}
		}
		m.in.Calls = nil
		for _, d := range m.in.Take() {
			m.got[d.Topic] = append(m.got[d.Topic], d.Offset)
		}
		t := m.in.Sub.(*Tail)
		t.mu.Lock()
		refused = t.full
		t.mu.Unlock()
		if refused && m.in.Room != 0 {
			w.Fatalf("tail %d counts as full; its receiver has room for %d", i, m.in.Room)
		}
		for _, topic := range historyTopics {
			want, got := m.wants(topic, w.keys[topic]), m.got[topic]
			if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
				w.Fatalf("tail %d got %v of topic %s; want %v", i, got, topic, want)
			}
			if len(got) < len(want) && !refused && !m.paused && !m.left && !w.faulty {
				w.Fatalf("tail %d got %d events of topic %s; want %v", i, len(got), topic, want)
			}
		}
	}
}

// settle gives everybody room and looks at what is left in the engine.
func (w *tailWorld) settle() {
	for _, m := range w.tails {
		m.in.Room, m.paused = -1, false
		m.in.Sub.Ready()
		if err := m.in.Sub.Resume(context.Background()); err != nil {
			w.Fatal(err)
		}
	}
	w.heal()
	w.check()
	for _, m := range w.tails {
		m.in.Sub.Drop(0)
	}
	synctest.Wait()
	if n := w.rig.left(); n != 0 {
		w.Fatalf("left over: %d tails, topics and patterns", n)
	}
}

// TestPatternTailsMissNothing lets publishers loose on topics that do not exist yet,
// while tails over all of them come, are slow, and leave. Those that were there first
// get everything; those that come later, every event from their first on; and nobody
// gets anything after it has left.
func TestPatternTailsMissNothing(t *testing.T) {
	const topics, each = 40, 200
	seed := drawSeed(t)
	r := open(t, 20_000)
	ctx := context.Background()
	var firm []*orderly
	for i := range 4 {
		in := newOrderly(t, i%2 == 1, topics*each)
		in.all = true
		var err error
		if in.sub, err = r.tails.Open(ctx, eventhub.TailOptions{Topic: "p.**", BatchSize: 1 + 50*i}, in); err != nil {
			t.Fatal(err)
		}
		firm = append(firm, in)
	}
	var publishers, others sync.WaitGroup
	stop := make(chan struct{})
	for n := range uint64(4) {
		publishers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, n))
			for range topics * each / 8 {
				one := func() eventhub.Event {
					return eventhub.Event{Topic: fmt.Sprintf("p.%d", rng.IntN(topics)), Payload: []byte(`1`)}
				}
				if _, err := r.commit(ctx, one(), one()); err != nil {
					t.Error(err)
				}
			}
		})
		others.Go(func() { comeAndGo(t, r, stop, rand.New(rand.NewPCG(seed, 100+n))) })
	}
	for _, in := range firm {
		others.Go(func() { in.follow(rand.New(rand.NewPCG(seed, 7))) })
	}
	publishers.Wait()
	for _, in := range firm {
		<-in.done
	}
	close(stop)
	others.Wait()
	r.close()
}

// comeAndGo opens tails and leaves them again.
func comeAndGo(t *testing.T, r *rig, stop chan struct{}, rng *rand.Rand) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		in := newOrderly(t, rng.IntN(2) == 0, 0)
		sub, err := r.tails.Open(context.Background(), eventhub.TailOptions{Topic: "**", Topics: []string{"p.1"}}, in)
		if err != nil {
			t.Error(err)
			return
		}
		in.room.Store(int64(rng.IntN(500)))
		sub.Ready()
		sub.Drop(0)
		in.gone.Store(true)
	}
}

// TestTailsJoinOthers has tails join the shard of another while that is served: each gets
// the event that comes first above the head, and those after it.
func TestTailsJoinOthers(t *testing.T) {
	const joins = 2000
	ctx := context.Background()
	r := open(t, 1<<20)
	firm, err := r.tails.Open(ctx, tailOpts("t"), counter{new(atomic.Int64), 0, nil})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var publisher sync.WaitGroup
	publisher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := r.commit(ctx, eventhub.Event{Topic: "t", Payload: []byte(`1`)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range joins {
		head, err := r.store.Head(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		in := newOrderly(t, false, 2)
		in.last["t"], in.all = head, true
		sub, err := r.tails.Open(ctx, eventhub.TailOptions{Topic: "t", Start: eventhub.FromOffset(head + 1)}, in)
		if err != nil {
			t.Fatal(err)
		}
		<-in.done
		sub.Drop(0)
	}
	close(stop)
	publisher.Wait()
	firm.Drop(0)
	r.close()
}
