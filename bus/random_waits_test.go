package bus

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
)

// waits is a world of publishes that wait for groups, and of the same ones tried again
// under their ids. The model has the truth of each event in each group: whether somebody
// has acked it since the group had it last. Given up, passed by a seek, before the
// group's start or redriven is not acked, whenever the wait began; what the filter keeps
// from a group is done for it.
type waits struct {
	t      *rapid.T
	store  *memory.Store
	bus    *Bus
	groups []*waitGroup
	ins    map[string]*inbox
	ids    []string // by offset
	keys   []string

	mu   sync.Mutex
	open []*waitingPublish
}

type waitGroup struct {
	name  string
	key   string          // its filter: the beginning of keys
	acked map[uint64]bool // by somebody, since it had the event last
	dead  map[uint64]bool
	// Passed by a seek.
	passed map[uint64]bool
	dim    map[uint64]bool // nobody can say: it was acked and given back, or an earlier engine knew
}

// begin is what a group knows that begins after an offset: of an event before that and
// published again nothing is promised.
func (g *waitGroup) begin(at uint64) {
	g.acked, g.dead, g.passed, g.dim = make(map[uint64]bool), make(map[uint64]bool), make(map[uint64]bool), make(map[uint64]bool)
	for offset := uint64(1); offset <= at; offset++ {
		g.dim[offset] = true
	}
}

// waitingPublish is one publish that waits.
type waitingPublish struct {
	pub   eventhub.Publication
	began time.Time
	took  time.Duration
	done  bool
	acked map[string]bool // groups that were seen to have acked it meanwhile
}

func TestRandomWaitTruth(t *testing.T) {
	testsize.Histories(t, testsize.Of(500, 50), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &waits{t: t, store: memory.Open(memory.Options{}), ins: make(map[string]*inbox)}
			w.start()
			t.Cleanup(func() { _ = w.bus.Close() })
			for _, g := range []*waitGroup{{name: "g"}, {name: "f", key: "k"}} {
				w.groups = append(w.groups, g)
				g.begin(0)
				w.join(g)
			}
			for range rapid.IntRange(5, 40).Draw(t, "steps") {
				w.step()
				w.check()
			}
			time.Sleep(5 * time.Second)
			w.check()
			if len(w.open) != 0 {
				t.Fatalf("%d publishes wait for ever", len(w.open))
			}
		})
	})
}

func (w *waits) start() {
	var err error
	if w.bus, err = New(Options{Store: w.store}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *waits) join(g *waitGroup) {
	if w.ins[g.name] != nil {
		return
	}
	in := &inbox{Inbox: bustest.Inbox{Room: -1}}
	o := opts("t", g.name)
	o.MaxAttempts, o.MaxInFlight, o.AckTimeout = 1000, 1000, time.Hour
	if g.key != "" {
		o.Filter = &eventhub.Filter{Key: g.key + "*"}
	}
	if g.name == "late" {
		o.Start = eventhub.Start{}
	}
	var err error
	if in.Sub, err = w.bus.Subscribe(context.Background(), o, in); err != nil {
		w.t.Fatal(err)
	}
	w.ins[g.name] = in
}

func (w *waits) step() {
	g := w.groups[rapid.IntRange(0, len(w.groups)-1).Draw(w.t, "group")]
	switch rapid.SampledFrom(strings.Fields("publish publish publish again again again ack ack ack give give leave seek seek redrive redrive late restart pass pass")).Draw(w.t, "step") {
	case "publish":
		w.publish(fmt.Sprint("e", len(w.ids)+1), rapid.SampledFrom([]string{"", "k"}).Draw(w.t, "key"))
	case "again":
		if len(w.ids) > 0 {
			i := rapid.IntRange(0, len(w.ids)-1).Draw(w.t, "which")
			w.publish(w.ids[i], w.keys[i])
		}
	case "ack":
		w.settle(g, eventhub.Settlement{})
	case "give":
		w.settle(g, eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true})
	case "leave":
		if in := w.ins[g.name]; in != nil {
			_ = in.Sub.Unsubscribe(context.Background())
			w.ins[g.name] = nil
		} else {
			w.join(g)
		}
	case "seek":
		w.seek(g)
	case "redrive":
		w.redrive(g)
	case "late":
		if len(w.groups) == 2 {
			l := &waitGroup{name: "late"}
			l.begin(uint64(len(w.ids)))
			w.groups = append(w.groups, l)
			w.join(l)
		}
	case "restart":
		w.restart()
	case "pass":
		time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 50, 1500}).Draw(w.t, "ms")) * time.Millisecond)
	}
}

func (w *waits) publish(id, key string) {
	p := &waitingPublish{began: time.Now(), acked: make(map[string]bool), pub: eventhub.Publication{Events: []eventhub.Event{{Topic: "t", ID: id, Key: key, Payload: []byte(`1`)}},
		WaitUpTo: time.Duration(rapid.SampledFrom([]int{1, 60, 2000, 4000}).Draw(w.t, "up to")) * time.Millisecond}}
	first := rapid.IntRange(0, len(w.groups)-1).Draw(w.t, "for")
	for i, g := range w.groups {
		if i == first || rapid.Bool().Draw(w.t, "too") {
			p.pub.WaitFor = append(p.pub.WaitFor, g.name)
		}
	}
	w.mu.Lock()
	w.open = append(w.open, p)
	w.mu.Unlock()
	w.bus.Enqueue(context.Background(), []eventhub.Publication{p.pub}, func(pubs []eventhub.Publication) {
		w.mu.Lock()
		defer w.mu.Unlock()
		p.pub, p.done, p.took = pubs[0], true, time.Since(p.began)
	})
	synctest.Wait()
	offset, err := w.store.Find(context.Background(), "t", id)
	if err != nil {
		w.t.Fatal(err)
	}
	if int(offset) > len(w.ids) {
		w.ids, w.keys = append(w.ids, id), append(w.keys, key)
	}
}

// settle is of one that the group's member holds, or of all.
func (w *waits) settle(g *waitGroup, s eventhub.Settlement) {
	in := w.ins[g.name]
	if in == nil {
		return
	}
	synctest.Wait()
	in.Mu.Lock()
	held := in.All
	in.Mu.Unlock()
	if len(held) == 0 {
		return
	}
	if rapid.Bool().Draw(w.t, "one") {
		i := rapid.IntRange(0, len(held)-1).Draw(w.t, "which")
		held = held[i : i+1]
	}
	s.Refs = leasesOf(held)
	out, err := in.Sub.Settle(context.Background(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, o := range out {
		if o == eventhub.Applied {
			g.acked[held[i].Offset], g.dead[held[i].Offset] = s.Verdict == eventhub.Ack, s.Verdict != eventhub.Ack
			if s.Verdict == eventhub.Ack {
				delete(g.dim, held[i].Offset)
			}
		}
	}
}

func (w *waits) seek(g *waitGroup) {
	to := uint64(rapid.IntRange(0, len(w.ids)).Draw(w.t, "to"))
	if err := w.bus.SetCursor(context.Background(), "t", g.name, to); err != nil {
		w.t.Fatal(err)
	}
	for offset := to + 1; offset <= uint64(len(w.ids)); offset++ {
		delete(g.acked, offset)
		delete(g.dim, offset)
		delete(g.dead, offset)
		delete(g.passed, offset)
	}
	for offset := uint64(1); offset <= to; offset++ {
		if g.acked[offset] || g.dead[offset] {
			g.dim[offset] = true // the group has forgotten how that came
		} else {
			g.passed[offset] = true
		}
	}
}

func (w *waits) redrive(g *waitGroup) {
	q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t.dlq", Group: g.name, All: rapid.Bool().Draw(w.t, "all")},
		Apply: true, Rate: admin.MaxRedriveRate}
	if _, err := w.bus.Redrive(context.Background(), q); err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		w.t.Fatal(err)
	}
	for offset := range g.acked {
		g.dim[offset] = g.dim[offset] || g.acked[offset] // it may have it again
	}
}

func (w *waits) restart() {
	if err := w.bus.Close(); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	w.mu.Lock()
	for _, p := range w.open {
		if !p.done {
			w.t.Fatalf("%+v is not answered by a hub that ends", p.pub)
		}
	}
	w.mu.Unlock()
	w.ins = make(map[string]*inbox)
	for _, g := range w.groups {
		for offset := range g.acked {
			g.dim[offset] = g.dim[offset] || g.acked[offset]
		}
		for offset := range g.passed {
			g.dim[offset] = true // a seek is remembered as long as the hub runs
		}
	}
	w.check()
	w.start()
}

// hasAcked says whether a group has acked an event by what is known, and whether it may be
// notified.
func (g *waitGroup) hasAcked(offset uint64, key string) (must, may bool) {
	switch {
	case !strings.HasPrefix(key, g.key):
		return false, true
	case g.dim[offset]:
		return false, true
	}
	return g.acked[offset], g.acked[offset]
}

// check looks at what was answered, and who should have been.
func (w *waits) check() {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var open []*waitingPublish
	for _, p := range w.open {
		id := p.pub.Events[0].ID
		offset, err := w.store.Find(context.Background(), "t", id)
		if err != nil {
			w.t.Fatal(err)
		}
		all, some := true, true
		for _, name := range p.pub.WaitFor {
			for _, g := range w.groups {
				if g.name == name {
					must, may := g.hasAcked(offset, w.keys[offset-1])
					p.acked[name] = p.acked[name] || may // a seek back comes too late for it
					all, some = all && must, some && p.acked[name]
				}
			}
		}
		upTo := p.pub.WaitUpTo
		code := eventhub.ErrorCode(p.pub.Err)
		switch {
		case !p.done && all:
			w.t.Fatalf("%s waits for %v, which have acked it", id, p.pub.WaitFor)
		case !p.done && time.Since(p.began) > upTo:
			w.t.Fatalf("%s waits for %s; it may for %s", id, time.Since(p.began), upTo)
		case !p.done:
			open = append(open, p)
		case p.pub.Err == nil && !some:
			w.t.Fatalf("%s at %d is answered OK; not all of %v have acked it: %s", id, offset, p.pub.WaitFor, w.describe(offset))
		case p.pub.Err != nil && code != eventhub.CodeWaitTimeout && code != eventhub.CodeShuttingDown:
			w.t.Fatalf("%s: %v", id, p.pub.Err)
		}
	}
	w.open = open
}

func (w *waits) describe(offset uint64) (text string) {
	for _, g := range w.groups {
		text += fmt.Sprintf("%s acked %t, gave up %t; ", g.name, g.acked[offset], g.dead[offset])
	}
	return text
}
