package tail

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

func conflated(topic string, every time.Duration) eventhub.TailOptions {
	return eventhub.TailOptions{Topic: topic, Conflate: every}
}

// commitKeys is publishKeys, and waits for what follows from it.
func (r *rig) commitKeys(topic string, keys ...string) {
	r.t.Helper()
	r.publishKeys(topic, keys...)
	synctest.Wait()
}

// TestConflate: the first event after a silence comes at once, then the newest of
// each key once an interval, in order; what is newer replaces what is not out.
func TestConflate(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(conflated("t", time.Second))
		r.commitKeys("t", "a")
		equal(t, "at once", in.TakeOffsets(), []uint64{1})
		r.commitKeys("t", "b", "a", "b", "", "a")
		r.commitKeys("t", "c", "")
		time.Sleep(999 * time.Millisecond)
		equal(t, "within the interval", len(in.Take()), 0)
		time.Sleep(time.Millisecond)
		equal(t, "after it", in.TakeOffsets(), []uint64{4, 6, 7, 8})
		time.Sleep(time.Hour)
		equal(t, "in a silence", len(in.Take()), 0)
		r.commitKeys("t", "a")
		equal(t, "after the silence", in.TakeOffsets(), []uint64{9})
		equal(t, "appointments", r.sched.Appointments(), 0)
		counted := r.measured("t")
		equal(t, "events counted", counted.Delivered, 6)
	})
}

// TestConflateRefused: what was refused stays; what replaces it meanwhile comes with
// the next hand-over, in order, and no key comes twice in an interval.
func TestConflateRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(conflated("t", time.Second))
		in.Room = 1
		r.commitKeys("t", "a", "b", "c")
		equal(t, "with room for one", in.TakeOffsets(), []uint64{1})
		r.commitKeys("t", "a", "c")
		time.Sleep(time.Minute)
		equal(t, "without room", len(in.Take()), 0)
		in.Room = -1
		in.Sub.Ready()
		equal(t, "what is left of the hand-over", in.TakeOffsets(), []uint64{2})
		time.Sleep(time.Second)
		equal(t, "the next one", in.TakeOffsets(), []uint64{4, 5})
	})
}

// TestConflateIsBounded: a tail whose receiver takes nothing keeps no more than it
// may, reads no further, and goes on when there is room.
func TestConflateIsBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(conflated("t", time.Second))
		in.Room = 0
		big := []byte(`"` + strings.Repeat("x", 1<<20-100) + `"`)
		for i := range 12 {
			e := eventhub.Event{Topic: "t", Key: fmt.Sprint(i), Payload: big}
			if _, err := r.commit(context.Background(), e); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		c := in.Sub.(*Tail).merged
		if n := len(c.pending); n < 4 || n > 5 || c.bytes > maxPending+2<<20 {
			t.Errorf("%d events of %d bytes are pending", n, c.bytes)
		}
		reads := r.store.count1("Read")
		time.Sleep(time.Hour)
		equal(t, "reads while nothing is taken", r.store.count1("Read")-reads, 0)
		in.Room = -1
		in.Sub.Ready()
		time.Sleep(time.Minute)
		equal(t, "all there were", in.TakeOffsets(), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
		equal(t, "bytes left", c.bytes, 0)
	})
}

// TestConflateLeft: a tail that has left is not kept until its interval is over.
func TestConflateLeft(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(conflated("t", time.Hour))
		r.commitKeys("t", "a")
		r.commitKeys("t", "a")
		equal(t, "appointments", r.sched.Appointments(), 1)
		in.Sub.Drop(0)
		equal(t, "appointments after it left", r.sched.Appointments(), 0)
		time.Sleep(2 * time.Hour)
		equal(t, "deliveries", len(in.Take()), 1)
	})
}

// conflateModel says what a conflating tail does, one operation after the other.
type conflateModel struct {
	every   time.Duration
	batch   int
	heads   map[string]uint64
	pending []modelPending
	due     time.Time
	under   bool // a hand-over is under way
	full    bool
	paused  bool
	room    int
	calls   [][]string // by call of Deliver: what it took, as topic@offset
}

type modelPending struct {
	topic, key string
	offset     uint64
	inRound    bool
}

func (m *conflateModel) publish(topic string, keys []string) {
	for _, key := range keys {
		m.heads[topic]++
		i := slices.IndexFunc(m.pending, func(p modelPending) bool { return p.topic == topic && p.key == key })
		if i < 0 {
			i = len(m.pending)
			m.pending = append(m.pending, modelPending{topic: topic, key: key})
		}
		m.pending[i].offset, m.pending[i].inRound = m.heads[topic], false
	}
	m.pump()
}

func (m *conflateModel) pump() {
	if m.full || m.paused || len(m.pending) == 0 {
		return
	}
	if !m.under {
		if time.Now().Before(m.due) {
			return
		}
		m.under = true
		for i := range m.pending {
			m.pending[i].inRound = true
		}
	}
	slices.SortFunc(m.pending, func(a, b modelPending) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.offset, b.offset))
	})
	for {
		var call []string
		var rest []modelPending
		offered := 0
		for _, p := range m.pending {
			if !p.inRound || offered == m.batch {
				rest = append(rest, p)
				continue
			}
			if offered++; m.room == 0 {
				m.full = true
				rest = append(rest, p)
				continue
			}
			m.room--
			call = append(call, fmt.Sprintf("%s@%d", p.topic, p.offset))
		}
		if offered == 0 {
			m.under, m.due = false, time.Now().Add(m.every)
			return
		}
		m.calls, m.pending = append(m.calls, call), rest
		if m.full {
			return
		}
	}
}

// TestConflateModel drives a conflating tail over two topics through random
// histories, and compares each with the model, call by call.
func TestConflateModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble.Check(rt, func(rt *rapid.T) {
			s := memory.Open(memory.Options{})
			r := &rig{t: t, store: &meter{Store: s}}
			r.start(rapid.SampledFrom([]int{1, 1000, 1 << 20}).Draw(rt, "cache"))
			rt.Cleanup(func() {
				r.stop()
				_ = s.Close()
			})
			playConflate(rt, r)
		})
	})
}

func playConflate(t *rapid.T, r *rig) {
	next := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }
	m := &conflateModel{
		every: time.Duration(100+next(900)) * time.Millisecond, batch: 1 + next(5),
		heads: make(map[string]uint64), room: 3,
	}
	o := eventhub.TailOptions{Topic: "t.a", Topics: []string{"t.b"}, Conflate: m.every, BatchSize: m.batch}
	if next(2) == 0 {
		o.Topic, o.Topics = "t.*", nil
	}
	in := r.tail(o)
	in.Room = m.room
	for range 1 + next(60) {
		switch op := next(10); {
		case op < 5:
			keys := rapid.SliceOfN(rapid.SampledFrom([]string{"", "k", "l", "m", "n"}), 1, 4).Draw(t, "keys")
			topic := rapid.SampledFrom([]string{"t.a", "t.b"}).Draw(t, "topic")
			r.commitKeys(topic, keys...)
			m.publish(topic, keys)
		case op < 7:
			m.pass(time.Now().Add(time.Duration(next(1500)) * time.Millisecond))
		case op < 9:
			m.room = next(6)
			in.Room = m.room
			in.Sub.Ready()
			synctest.Wait()
			m.full = false
			m.pump()
		default:
			m.paused = next(2) == 0
			if err := in.Sub.(*Tail).setPaused(m.paused); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			m.pump()
		}
		if got, want := fmt.Sprint(callsOf(in)), fmt.Sprint(m.calls); got != want {
			t.Fatalf("the calls were %s; want %s", got, want)
		}
		m.calls = nil
	}
}

// pass lets time go by, and what is due on the way happen.
func (m *conflateModel) pass(until time.Time) {
	if m.due.After(time.Now()) && !m.due.After(until) {
		time.Sleep(time.Until(m.due))
		synctest.Wait()
		m.pump()
	}
	time.Sleep(time.Until(until))
	synctest.Wait()
	m.pump()
}

// callsOf returns what each call of Deliver took, and forgets it.
func callsOf(in *inbox) (calls [][]string) {
	in.Mu.Lock()
	defer in.Mu.Unlock()
	at := 0
	for _, offsets := range in.Calls {
		var call []string
		for range offsets {
			call = append(call, fmt.Sprintf("%s@%d", in.All[at].Topic, in.All[at].Offset))
			at++
		}
		calls = append(calls, call)
	}
	in.Calls, in.All = nil, nil
	return calls
}
