package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

var producerSteps = testsize.Int("producers.steps", 600, 150, "steps of a history of TestNumbersOverCrashes")

// TestNumbersOverCrashes: programs publish with numbers, many at a time. They lose answers, connect
// again and publish again what has none, take each other over, and the hub crashes and goes on
// with what its disk has. In the end each publication that got its receipts is in the log once,
// at the place that they say, none that was refused is, and those of a program are in its order.
func TestNumbersOverCrashes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &numberHistory{t: t, r: rand.New(rand.NewPCG(seed, 0)), mem: vfs.NewCrashableMem()}
	h.open()
	for i := range 4 {
		h.programs = append(h.programs, &numberProgram{h: h, id: fmt.Sprint("program-", i), answers: make(map[uint64]answer)})
	}
	for range *producerSteps {
		switch p := h.programs[h.r.IntN(len(h.programs))]; h.r.IntN(30) {
		case 0:
			h.crash()
		case 1, 2, 3:
			p.connect()
		case 4:
			p.isBehind()
		default:
			p.publish(1 + h.r.IntN(8))
		}
	}
	for _, p := range h.programs {
		p.finish()
	}
	h.check()
	h.close()
	t.Logf("%d crashes, %d connections, %d publications, %d of them again, %d refused", h.crashes, h.connections, h.published, h.again, h.refused)
}

type numberHistory struct {
	t        *testing.T
	r        *rand.Rand
	mem      *vfs.MemFS
	store    store.Store
	bus      *Bus
	programs []*numberProgram

	crashes, connections, published, again, refused int
}

// answer is what a program was told for good.
type answer struct {
	receipts []eventhub.Receipt
	refused  bool
}

// numberProgram is a program with one producer.
type numberProgram struct {
	h        *numberHistory
	id       string
	producer *eventhub.Producer
	old      *eventhub.Producer // of the connection before
	next     uint64             // number
	waiting  []eventhub.Publication
	answers  map[uint64]answer
}

func (h *numberHistory) open() {
	h.t.Helper()
	s, err := pebble.Open(pebble.Options{
		Dir: "data", FS: h.mem, Logger: slog.New(slog.DiscardHandler), Fatal: func(cause error) { h.t.Errorf("Fatal(%v)", cause) },
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.store = s
	if h.bus, err = New(Options{Store: s}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *numberHistory) close() {
	if err := errors.Join(h.bus.Close(), h.store.Close()); err != nil {
		h.t.Error(err)
	}
}

// crash goes on with what a power loss leaves, while publications are under way.
func (h *numberHistory) crash() {
	h.crashes++
	var all sync.WaitGroup
	for _, p := range h.programs {
		if pubs := p.draw(h.r.IntN(6)); len(pubs) > 0 {
			all.Add(1)
			h.bus.Enqueue(context.Background(), pubs, func([]eventhub.Publication) { all.Done() })
		}
	}
	image := h.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: h.r.IntN(3) * 50, RNG: h.r})
	all.Wait() // their answers come from a hub that is gone
	h.close()
	h.mem = image
	h.open()
	for _, p := range h.programs {
		p.producer = nil
	}
}

// draw makes n publications, which wait for their answers from now on.
func (p *numberProgram) draw(n int) []eventhub.Publication {
	if p.producer == nil {
		return nil
	}
	r := p.h.r
	begun := len(p.waiting)
	for range n {
		p.next++
		topic := fmt.Sprint("topic.", r.IntN(2))
		var events []eventhub.Event
		for i := range 1 + r.IntN(3) {
			events = append(events, eventhub.Event{Topic: topic, Payload: fmt.Appendf(nil, `"%s %d %d"`, p.id, p.next, i)})
		}
		switch r.IntN(12) {
		case 0:
			events[0].Topic = "no topic"
		case 1:
			events[0].Expect = eventhub.Expect{Kind: eventhub.ExpectTopicOffset, Offset: 1 << 40}
		}
		p.waiting = append(p.waiting, eventhub.Publication{Seq: p.next, Events: events})
	}
	return p.sent(p.waiting[begun:])
}

// sent are publications as they are handed over, with what the engine writes into them.
func (p *numberProgram) sent(waiting []eventhub.Publication) []eventhub.Publication {
	pubs := make([]eventhub.Publication, len(waiting))
	for i, pub := range waiting {
		pubs[i] = eventhub.Publication{Producer: p.producer, Seq: pub.Seq, Events: append([]eventhub.Event(nil), pub.Events...)}
	}
	p.h.published += len(pubs)
	return pubs
}

func (h *numberHistory) enqueue(pubs []eventhub.Publication) []eventhub.Publication {
	answered := make(chan struct{})
	h.bus.Enqueue(context.Background(), pubs, func([]eventhub.Publication) { close(answered) })
	<-answered
	return pubs
}

// publish publishes, and loses some of the answers.
func (p *numberProgram) publish(n int) {
	if p.producer == nil {
		p.connect()
		return
	}
	if len(p.waiting) > eventhub.ProducerWindow/2 {
		p.connect()
	}
	pubs := p.h.enqueue(p.draw(n))
	if p.h.r.IntN(3) == 0 {
		pubs = pubs[:p.h.r.IntN(len(pubs)+1)] // and the connection is lost
	}
	p.learn(pubs)
}

// learn takes answers for known; answers come in the order of numbers.
func (p *numberProgram) learn(pubs []eventhub.Publication) {
	t := p.h.t
	t.Helper()
	for _, pub := range pubs {
		if !pub.SeqUsed {
			t.Fatalf("%s: number %d of %+v: %v", p.id, pub.Seq, p.producer, pub.Err)
		}
		got := answer{pub.Receipts, pub.Err != nil}
		if was, ok := p.answers[pub.Seq]; ok && (was.refused != got.refused || len(was.receipts) > 0 && was.receipts[0].Offset != got.receipts[0].Offset) {
			t.Fatalf("%s: number %d was %+v, and is %+v (%v)", p.id, pub.Seq, was, got, pub.Err)
		}
		p.answers[pub.Seq] = got
		kept := p.waiting[:0]
		for _, w := range p.waiting {
			if w.Seq != pub.Seq {
				kept = append(kept, w)
			}
		}
		p.waiting = kept
	}
}

// connect opens the producer, and publishes again what has no answer.
func (p *numberProgram) connect() {
	t := p.h.t
	t.Helper()
	p.h.connections++
	var epoch uint64
	if p.old != nil && p.h.r.IntN(2) == 0 {
		epoch = p.old.Epoch
	}
	q, err := p.h.bus.OpenProducer(context.Background(), eventhub.ProducerOptions{ID: p.id, Epoch: epoch})
	if code := eventhub.ErrorCode(err); epoch != 0 && (code == eventhub.CodeUnknownProducer || code == eventhub.CodeFenced) {
		p.old = nil // the hub has crashed before it was durable, or was taken over
		p.connect()
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if p.producer != nil {
		p.h.bus.LeaveProducer(p.producer)
	}
	p.old, p.producer = q, q
	if q.Last > p.next || len(p.waiting) > 0 && q.Last+1 < p.waiting[0].Seq || len(p.waiting) == 0 && q.Last != p.next {
		t.Fatalf("%s: %+v; %d was used last, and %d have no answer", p.id, q, p.next, len(p.waiting))
	}
	p.h.again += len(p.waiting)
	p.learn(p.h.enqueue(p.sent(p.waiting)))
}

// isBehind is another program with the producer's name, which takes it over for nothing.
func (p *numberProgram) isBehind() {
	q, err := p.h.bus.OpenProducer(context.Background(), eventhub.ProducerOptions{ID: p.id})
	if err != nil {
		p.h.t.Fatal(err)
	}
	p.h.bus.LeaveProducer(q)
	if p.producer == nil {
		return
	}
	pubs := p.h.enqueue(p.draw(2))
	for _, pub := range pubs {
		if code := eventhub.ErrorCode(pub.Err); code != eventhub.CodeFenced || pub.SeqUsed {
			p.h.t.Fatalf("%s: number %d after another has opened it: %v", p.id, pub.Seq, pub.Err)
		}
	}
	p.old = nil
	p.connect()
}

func (p *numberProgram) finish() {
	p.connect()
	if len(p.waiting) > 0 {
		p.h.t.Fatalf("%s: %d have no answer", p.id, len(p.waiting))
	}
}

// check compares the log with what the programs were told.
func (h *numberHistory) check() {
	type place struct {
		topic  string
		offset uint64
	}
	at := make(map[string]place) // by payload
	newest := make(map[string]uint64)
	for _, topic := range []string{"topic.0", "topic.1"} {
		var b store.Batch
		if err := h.store.Read(context.Background(), topic, 1, 1<<30, 1<<30, &b); err != nil {
			h.t.Fatal(err)
		}
		for _, item := range b.Items {
			e, err := item.Record.Event(item.Offset)
			if err != nil {
				h.t.Fatal(err)
			}
			payload := strings.Trim(string(e.Payload), `"`)
			if first, ok := at[payload]; ok {
				h.t.Errorf("%q is at %v and at %d of %s", payload, first, item.Offset, topic)
			}
			at[payload] = place{topic, item.Offset}
			id, rest, _ := strings.Cut(payload, " ")
			number, _, _ := strings.Cut(rest, " ")
			n, err := strconv.ParseUint(number, 10, 64)
			if err != nil || n < newest[topic+id] {
				h.t.Errorf("%q is after number %d in %s, %v", payload, newest[topic+id], topic, err)
			}
			newest[topic+id] = n
		}
	}
	events := 0
	for _, p := range h.programs {
		for number := range p.next {
			got, ok := p.answers[number+1]
			if !ok {
				h.t.Errorf("%s: number %d has no answer", p.id, number+1)
			}
			for i, r := range got.receipts {
				events++
				if is := at[fmt.Sprintf("%s %d %d", p.id, number+1, i)]; is.offset != r.Offset {
					h.t.Errorf("%s: number %d: event %d is at %+v; the receipt says %d", p.id, number+1, i, is, r.Offset)
				}
			}
			if got.refused {
				h.refused++
			}
		}
	}
	if events != len(at) {
		h.t.Errorf("%d events are in the log, %d in receipts", len(at), events)
	}
}
