package bus

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/judge"
	"eventhub/internal/bubble"
	"eventhub/internal/filter"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
)

// beside is a world of events that are acked as soon as they come, beside some that fail
// again and again, some that take an hour, and filters that do not come to an end. The
// model is a bound: whatever the others do, an event comes within besideBound, every call
// returns, and the engine comes to rest.
type beside struct {
	t       *rapid.T
	bus     *Bus
	gate    *gate
	shut    bool
	easy    bool // nothing fails any more
	members []*besideMember
	tail    *inbox
	serial  int
	bad     int
	fresh   map[string]time.Time // by payload: events that are to be acked, and since when they wait
	heads   map[string]uint64
	judged  int // events that the filters pass
	seen    int // … that the tail had
}

type besideMember struct {
	in   *inbox
	long []got // suspects that it works on for an hour
}

const (
	besideTimeout = time.Second
	// besideBound: a suspect may have a member for the length of a lease, and wait as long
	// for what that has to settle before. Half the time of a member is for others.
	besideBound = 5 * besideTimeout
	mostBad     = 60
)

var besideTopics = []string{"p.a", "p.b", "p.c"}

func TestRandomBeside(t *testing.T) {
	testsize.Histories(t, testsize.Of(150, 15), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &beside{t: t, gate: &gate{}, fresh: make(map[string]time.Time), heads: make(map[string]uint64)}
			w.start()
			for range rapid.IntRange(5, 40).Draw(t, "steps") {
				w.step()
			}
			w.finish()
		})
	})
}

func (w *beside) start() {
	var err error
	judged := func(p *filter.Program) judge.Matcher { return stuck{p, w.gate, new(atomic.Int64)} }
	if w.bus, err = New(Options{Store: memory.Open(memory.Options{}), judge: judged}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		w.open()
		_ = w.bus.Close()
	})
	for range rapid.IntRange(1, 3).Draw(w.t, "members") {
		w.join()
	}
	expression := &eventhub.Filter{CEL: `event.key == "k"`}
	o := opts("p.*", "slow")
	o.Filter, o.AutoAck = expression, true
	w.subscribe(o)
	w.tail = &inbox{Inbox: bustest.Inbox{Room: -1}}
	if w.tail.Sub, err = w.bus.Tail(context.Background(), eventhub.TailOptions{Topic: "p.*", Filter: expression}, w.tail); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *beside) subscribe(o eventhub.GroupOptions) *inbox {
	in := &inbox{Inbox: bustest.Inbox{Room: -1}}
	var err error
	if in.Sub, err = w.bus.Subscribe(context.Background(), o, in); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	return in
}

func (w *beside) join() {
	o := opts("p.*", "g")
	o.MaxInFlight, o.AckTimeout, o.MaxAttempts = 1000, besideTimeout, 20
	o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	w.members = append(w.members, &besideMember{in: w.subscribe(o)})
}

func (w *beside) step() {
	switch rapid.SampledFrom(strings.Fields("good good good lapse lapse nack long long pass pass pass pass shut shut open join leave end")).Draw(w.t, "step") {
	case "good":
		w.publish("good", rapid.IntRange(1, 5).Draw(w.t, "n"))
	case "lapse":
		w.publish("lapse", rapid.IntRange(1, 20).Draw(w.t, "n"))
	case "nack":
		w.publish("nack", rapid.IntRange(1, 5).Draw(w.t, "n"))
	case "long":
		w.publish("long", 1)
	case "pass":
		w.pass(rapid.SampledFrom([]int{1, 10, 30, 60}).Draw(w.t, "ticks"), 50*time.Millisecond)
	case "shut":
		if !w.shut {
			w.shut = true
			w.gate.close()
		}
	case "open":
		w.open()
	case "join":
		if len(w.members) < 3 {
			w.join()
		}
	case "leave":
		if len(w.members) > 1 {
			if err := w.members[0].in.Sub.Unsubscribe(context.Background()); err != nil {
				w.t.Fatal(err)
			}
			w.members = w.members[1:]
		}
	case "end":
		w.end()
	}
	w.pass(1, 0)
}

func (w *beside) open() {
	if w.shut {
		w.shut = false
		w.gate.open()
	}
}

// publish adds n events of one kind to a topic. Its answer comes whatever filters do.
func (w *beside) publish(kind string, n int) {
	if kind != "good" {
		n = min(n, mostBad-w.bad)
		w.bad += n
	}
	topic := rapid.SampledFrom(besideTopics).Draw(w.t, "topic")
	var events []eventhub.Event
	for range n {
		w.serial++
		key := rapid.SampledFrom([]string{"", "k"}).Draw(w.t, "key")
		if key != "" {
			w.judged++
		}
		name := fmt.Sprintf(`"%s %d"`, kind, w.serial)
		if kind == "good" {
			w.fresh[name] = time.Now()
		}
		events = append(events, eventhub.Event{Topic: topic, Key: key, Payload: []byte(name)})
	}
	if n == 0 {
		return
	}
	receipts, err := w.bus.Publish(context.Background(), events...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.heads[topic] = receipts[n-1].Offset
}

// pass lets time pass in ticks. Members do what they do at the end of each.
func (w *beside) pass(ticks int, tick time.Duration) {
	for range ticks {
		time.Sleep(tick)
		for _, m := range w.members {
			for _, g := range m.in.Take() {
				w.handle(m, g)
			}
		}
		w.seen += len(w.tail.Take())
		for name, since := range w.fresh {
			if waited := time.Since(since); waited > besideBound {
				w.t.Fatalf("event %s has not come for %s, beside %d that fail, with %d members; a lease is %s", name, waited, w.bad, len(w.members), besideTimeout)
			}
		}
	}
}

func (w *beside) handle(m *besideMember, g got) {
	kind := strings.Fields(strings.Trim(g.Payload, `"`))[0]
	ref := byLease(g)
	s := eventhub.Settlement{}
	switch {
	case kind == "good" || w.easy:
		delete(w.fresh, g.Payload)
	case kind == "nack":
		s = eventhub.Settlement{Verdict: eventhub.Nack, Reason: "no luck"}
	case kind == "long" && g.Attempt > groupstate.IsolateAfter:
		m.long = append(m.long, g)
		s = eventhub.Settlement{Verdict: eventhub.Extend, By: time.Hour}
	default:
		return // its lease runs out
	}
	s.Refs = []eventhub.Ref{ref}
	if _, err := m.in.Sub.Settle(context.Background(), s); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// end acks what took so long.
func (w *beside) end() {
	for _, m := range w.members {
		for _, g := range m.long {
			if _, err := m.in.Sub.Settle(context.Background(), eventhub.Settlement{Refs: []eventhub.Ref{byLease(g)}}); err != nil {
				w.t.Fatal(err)
			}
		}
		m.long = nil
	}
}

// finish lets everybody do what there is. Then all of it is done.
func (w *beside) finish() {
	w.easy = true
	w.end()
	w.open()
	for range 1000 {
		w.pass(1, 100*time.Millisecond)
	}
	for topic, head := range w.heads {
		for _, group := range []string{"g", "slow"} {
			if c, err := w.bus.Cursor(context.Background(), topic, group); err != nil || c.Offset != head {
				w.t.Fatalf("the cursor of %s in %s is %+v, %v; the head is %d", group, topic, c, err, head)
			}
		}
	}
	if w.seen != w.judged {
		w.t.Fatalf("the tail has had %d events of %d", w.seen, w.judged)
	}
}
