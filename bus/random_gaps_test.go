package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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
	"eventhub/store"
	"eventhub/store/memory"
)

// gaps is a world of one topic whose offsets have holes, of one and of 2^51, as imports
// that keep offsets make them. The model has a list of events and no offsets between
// them: everything that is counted or done takes events alone, and costs no more than
// they do.
type gaps struct {
	t     *rapid.T
	store *interposed
	bus   *Bus
	in    *inbox // of the one member, nil where there is none

	opts   Options
	fewer  bool // no topic can be made any more: redrives and some ack-and-publishes are refused
	events []gapEvent
	base   uint64 // the cursor of the start or the last seek
	held   map[uint64]got
	serial int
}

type gapEvent struct {
	offset uint64
	done   bool
	dead   bool // with a dead letter
}

// gapSizes are holes. What a fault costs grows with them, so the largest is last.
var gapSizes = []uint64{0, 0, 1, 2, 4094, 4096, 10_000, 1 << 24, 1 << 33, 1 << 33, 1 << 51}

// mostGapBytes is what a step may allocate at most.
const mostGapBytes = 32 << 20

func TestRandomGaps(t *testing.T) {
	testsize.Histories(t, testsize.Of(200, 20), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &gaps{t: t, held: make(map[uint64]got), fewer: rapid.Bool().Draw(t, "fewer topics")}
			most := 100
			if w.fewer {
				most = 4 // t, out, more, t.dlq
			}
			w.store = &interposed{Store: memory.Open(memory.Options{MaxTopics: most})}
			w.opts = Options{Store: w.store, AckWindow: rapid.SampledFrom([]uint64{1_000_000, 8}).Draw(t, "window")}
			w.open()
			t.Cleanup(func() {
				w.store.off()
				w.store.fail(nil)
				_ = w.bus.Close()
			})
			w.begin()
			w.check()
			for range rapid.IntRange(5, 40).Draw(t, "steps") {
				w.step()
				w.check()
			}
		})
	})
}

func (w *gaps) open() {
	var err error
	if w.bus, err = New(w.opts); err != nil {
		w.t.Fatal(err)
	}
}

func (w *gaps) begin() {
	w.publish(1)
	for _, topic := range []string{"out", "more"} {
		if _, err := w.bus.Publish(context.Background(), eventhub.Event{Topic: topic, Payload: []byte(`1`)}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.join()
	w.check()
	// So that there are dead letters.
	w.say([]got{w.held[1]}, eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true})
	synctest.Wait()
}

func (w *gaps) step() {
	step := rapid.SampledFrom(strings.Fields("import import import publish ack ack ack ack give ack-and-publish refused refused seek seek seek redrive leave restart pass pass")).Draw(w.t, "step")
	w.bounded(step, func() {
		switch step {
		case "import":
			w.imports()
		case "publish":
			w.publish(rapid.SampledFrom([]int{1, 1, 3, 3, 5, 20, 300}).Draw(w.t, "events"))
		case "ack":
			w.settle(eventhub.Settlement{})
		case "give":
			w.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true})
		case "ack-and-publish":
			w.ackAndPublish("out")
		case "refused":
			w.ackAndPublish(fmt.Sprintf("never.%d", rapid.IntRange(1, 3).Draw(w.t, "topic")))
		case "seek":
			w.seek()
		case "redrive":
			w.redrive()
		case "leave":
			w.leave()
		case "restart":
			w.restart()
		case "pass":
			time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 60}).Draw(w.t, "ms")) * time.Millisecond)
		}
		synctest.Wait()
	})
}

// bounded fails where a step took memory by the width of a hole.
func (w *gaps) bounded(what string, do func()) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > mostGapBytes {
		w.t.Fatalf("%s with %d events has allocated %d bytes", what, len(w.events), n)
	}
}

func (w *gaps) head() uint64 {
	if len(w.events) == 0 {
		return 0
	}
	return w.events[len(w.events)-1].offset
}

func (w *gaps) imports() {
	var events []eventhub.Event
	at := w.head()
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 3, 20, 300}).Draw(w.t, "events") {
		w.serial++
		if at++; len(events) < 3 {
			at += rapid.SampledFrom(gapSizes).Draw(w.t, "hole")
		}
		events = append(events, eventhub.Event{Topic: "t", ID: fmt.Sprint("i", w.serial), Offset: at, TS: now(), Payload: []byte(`1`)})
	}
	receipts, err := w.bus.Import(context.Background(), events...)
	if at > store.MaxKeepOffset && err != nil {
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.note(receipts)
}

func (w *gaps) publish(n int) {
	var events []eventhub.Event
	for range n {
		events = append(events, eventhub.Event{Topic: "t", Payload: []byte(`1`)})
	}
	receipts, err := w.bus.Publish(context.Background(), events...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.note(receipts)
}

func (w *gaps) note(receipts []eventhub.Receipt) {
	for _, r := range receipts {
		if r.Offset <= w.head() {
			w.t.Fatalf("%+v after offset %d", r, w.head())
		}
		w.events = append(w.events, gapEvent{offset: r.Offset})
	}
}

func (w *gaps) join() {
	if w.in != nil {
		return
	}
	w.in = &inbox{Inbox: bustest.Inbox{Room: -1}}
	o := opts("t", "g")
	o.MaxInFlight, o.BatchSize, o.AckTimeout, o.MaxAttempts = 10_000, rapid.SampledFrom([]int{7, 1000}).Draw(w.t, "batchSize"), time.Hour, 100
	var err error
	if w.in.Sub, err = w.bus.Subscribe(context.Background(), o, w.in); err != nil {
		w.t.Fatal(err)
	}
}

func (w *gaps) leave() {
	if w.in == nil {
		w.join()
		return
	}
	w.collect()
	w.unsubscribe()
}

func (w *gaps) unsubscribe() {
	if w.in == nil {
		return
	}
	if err := w.in.Sub.Unsubscribe(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	clear(w.held)
	w.in = nil
}

func (w *gaps) find(offset uint64) *gapEvent {
	i, ok := slices.BinarySearchFunc(w.events, offset, func(e gapEvent, offset uint64) int { return int(int64(e.offset) - int64(offset)) })
	if !ok {
		return nil
	}
	return &w.events[i]
}

// drawHeld draws some of what the member holds, by place: one, all, or all but the
// first.
func (w *gaps) drawHeld() (held []got) {
	for _, e := range w.events {
		if g, ok := w.held[e.offset]; ok {
			held = append(held, g)
		}
	}
	if len(held) == 0 {
		return nil
	}
	switch rapid.IntRange(0, 3).Draw(w.t, "which") {
	case 0:
		i := rapid.IntRange(0, len(held)-1).Draw(w.t, "one")
		return held[i : i+1]
	case 1:
		return held[:1]
	case 2:
		return held[1:]
	}
	return held
}

func (w *gaps) settle(s eventhub.Settlement) {
	w.say(w.drawHeld(), s)
}

func (w *gaps) say(held []got, s eventhub.Settlement) {
	for len(held) > 0 {
		n := min(len(held), 500)
		s.Refs = leasesOf(held[:n])
		out, err := w.in.Sub.Settle(context.Background(), s)
		if err != nil || slices.ContainsFunc(out, func(o eventhub.Outcome) bool { return o != eventhub.Applied }) {
			w.t.Fatalf("Settle of what is held: %v, %v", out, err)
		}
		for _, g := range held[:n] {
			e := w.find(g.Offset)
			e.done, e.dead = true, e.dead || s.Verdict == eventhub.Nack
			delete(w.held, g.Offset)
		}
		held = held[n:]
	}
}

// ackAndPublish acks with an event for a topic, which may be one too many.
func (w *gaps) ackAndPublish(topic string) {
	held := w.drawHeld()
	held = held[:min(len(held), 3)]
	if len(held) == 0 {
		return
	}
	_, err := eventhub.AckAndPublish(context.Background(), w.in.Sub, leasesOf(held), eventhub.Event{Topic: topic, Payload: []byte(`1`)})
	if refused := w.fewer && topic != "out"; refused != (eventhub.ErrorCode(err) == eventhub.CodeOverloaded) || !refused && err != nil {
		w.t.Fatalf("ack-and-publish to %s: %v; it should be refused: %t", topic, err, refused)
	}
	if err != nil {
		return // they stay leased
	}
	for _, g := range held {
		w.find(g.Offset).done = true
		delete(w.held, g.Offset)
	}
}

// cursor is just below the first event that is not done.
func (w *gaps) cursor() (low, high uint64) {
	low = w.base
	for _, e := range w.events {
		if e.offset <= w.base {
			continue
		}
		if !e.done {
			return low, max(e.offset-1, w.base)
		}
		low = e.offset
	}
	return low, max(w.head(), w.base)
}

// isDone: what a seek has passed is done too.
func (w *gaps) isDone(e *gapEvent) bool { return e.done || e.offset <= w.base }

// seek asks what a seek means and does it.
func (w *gaps) seek() {
	to := uint64(0)
	if i := rapid.IntRange(0, len(w.events)).Draw(w.t, "to"); i > 0 {
		to = w.events[i-1].offset + uint64(rapid.IntRange(0, 2).Draw(w.t, "and")) - 1
	}
	var again, skipped uint64
	for i := range w.events {
		switch e := &w.events[i]; {
		case w.isDone(e) && e.offset > to:
			again++
		case !w.isDone(e) && e.offset <= to:
			skipped++
		}
	}
	start := eventhub.Start{Kind: eventhub.StartOffset, Offset: to + 1}
	plan, err := w.bus.SeekGroup(context.Background(), "t", "g", start, false)
	if err != nil || plan.Again != again || plan.Skipped != skipped || plan.To != to || plan.Voided != len(w.held) {
		w.t.Fatalf("a seek to %d: %+v, %v; want %d again, %d skipped, %d voided", to, plan, err, again, skipped, len(w.held))
	}
	if rapid.Bool().Draw(w.t, "only asked") {
		return
	}
	// Others of its commit may be refused, and take its state with them.
	if w.fewer && rapid.Bool().Draw(w.t, "with a redrive") {
		w.store.when(rapid.SampledFrom([]string{atCommit, afterCommit, atRead, atHead, atTopic}).Draw(w.t, "point"), 0, func() {
			_, err = w.bus.SeekGroup(context.Background(), "t", "g", start, true)
		})
		w.redrive()
		w.store.off()
	}
	if w.fewer && rapid.Bool().Draw(w.t, "after a redrive") {
		// Both wait while an event is committed, so that they share the next commit.
		w.store.when(atCommit, 0, func() {
			var redriving sync.WaitGroup
			redriving.Go(func() { _, _ = w.bus.Redrive(context.Background(), w.redriveQuery()) })
			for range mostYields / 3 {
				runtime.Gosched()
			}
			_, err = w.bus.SeekGroup(context.Background(), "t", "g", start, true)
			redriving.Wait()
		})
		w.publish(1)
		w.store.off()
	} else if err == nil {
		_, err = w.bus.SeekGroup(context.Background(), "t", "g", start, true)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	clear(w.held)
	w.base = to
	for i := range w.events {
		w.events[i].done = false
	}
	if w.in != nil {
		synctest.Wait()
		g := w.bus.running("t", "g")
		for _, d := range w.in.Take() {
			if d.Lease.Runtime == g.state.Runtime() { // else it came before the seek, which voids it
				w.held[d.Offset] = d
			}
		}
	}
	if rapid.IntRange(0, 2).Draw(w.t, "and a crash") == 0 {
		w.crash()
	}
}

// redrive of a hub without room for system.redrive is refused.
func (w *gaps) redrive() {
	if r, err := w.bus.Redrive(context.Background(), w.redriveQuery()); err == nil && r.Redriven > 0 && w.fewer {
		w.t.Fatalf("redrive without room for its marks: %+v", r)
	}
}

func (w *gaps) redriveQuery() admin.RedriveQuery {
	return admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t.dlq"}, Apply: w.fewer, Rate: admin.MaxRedriveRate}
}

// restart takes the engine down in order, or by a crash some time after all was said.
func (w *gaps) restart() {
	if rapid.Bool().Draw(w.t, "crash") {
		w.unsubscribe()
		time.Sleep(60 * time.Millisecond)
		w.crash()
		return
	}
	if err := w.bus.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.again()
}

var errGone = errors.New("the store is gone")

// crash lets nothing be written any more. Who leaves in order gives attempts back: those
// that a crash takes would make suspects of the events.
func (w *gaps) crash() {
	w.unsubscribe()
	w.store.fail(errGone)
	_ = w.bus.Close()
	w.store.fail(nil)
	w.again()
}

func (w *gaps) again() {
	clear(w.held)
	w.in = nil
	w.open()
	w.join()
}

func (w *gaps) collect() {
	for _, g := range w.in.Take() {
		e := w.find(g.Offset)
		_, twice := w.held[g.Offset]
		if e == nil || w.isDone(e) || twice {
			w.t.Fatalf("%d is delivered, attempt %d; it is %+v, held: %t; the cursor began at %d", g.Offset, g.Attempt, e, twice, w.base)
		}
		w.held[g.Offset] = g
	}
}

func (w *gaps) check() {
	synctest.Wait()
	if w.in == nil {
		return // what was not read is counted by its offsets
	}
	w.collect()
	open, readable := uint64(0), w.opts.AckWindow
	ahead := false
	for i := range w.events {
		e := &w.events[i]
		if e.offset <= w.base || !ahead && e.done {
			continue
		}
		ahead = true
		if _, held := w.held[e.offset]; !e.done && !held && readable > 0 {
			w.t.Fatalf("%d is not delivered, and a member has room; %d of %d events are open", e.offset, open, len(w.events))
		}
		if readable > 0 {
			readable--
		}
		if !e.done {
			open++
		}
	}
	low, high := w.cursor()
	info, err := w.bus.Group(context.Background(), "t", "g")
	if err != nil || info.Cursor < low || info.Cursor > high || info.Lag < open || readable > 0 && info.Lag != open || info.InFlight != len(w.held) {
		w.t.Fatalf("the group is reported as %+v, %v; want a cursor of %d to %d, a lag of %d, %d in flight", info, err, low, high, open, len(w.held))
	}
}
