package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
)

// delaysWorld is a world of a few ids in a few topics. Under each one events are
// scheduled, cancelled, scheduled again and published at once; topics are deleted; the
// engine is started again; and each of that may happen while the mover is between its
// read of what is due and its commit. Every event has a payload of its own, by which the
// log says which of those of one id it is.
type delaysWorld struct {
	t      *rapid.T
	store  *interposed
	bus    *Bus
	serial int
	delays map[delayKey]*scheduled // those that are there
	events map[delayKey]int        // serials in the log
	never  map[int]string          // serials that may not be in the log, and why
	wrong  []string
}

type delayKey struct{ topic, id string }

type scheduled struct {
	serial int
	at     int64
}

var delaysMet = make(map[string]int)

// TestRandomDelayed: a cancelled event is never in the log, whatever comes under its id
// afterwards; every other one is, once, and not before its time.
func TestRandomDelayed(t *testing.T) {
	testsize.Histories(t, testsize.Of(700, 70), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &delaysWorld{t: t, store: &interposed{Store: memory.Open(memory.Options{})}, delays: make(map[delayKey]*scheduled),
				events: make(map[delayKey]int), never: make(map[int]string)}
			w.open()
			t.Cleanup(func() {
				w.store.off()
				_ = w.bus.Close()
			})
			for range rapid.IntRange(5, 40).Draw(t, "steps") {
				w.step()
				w.check()
			}
			time.Sleep(3 * time.Second)
			w.check()
			if len(w.delays) != 0 {
				t.Fatalf("delayed events are left: %v", w.delays)
			}
			for point, n := range w.store.met {
				delaysMet[point] += n
			}
		})
	})
	t.Logf("something else happened at: %v", delaysMet)
}

func (w *delaysWorld) open() {
	var err error
	if w.bus, err = New(Options{Store: w.store}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *delaysWorld) step() {
	switch step := rapid.SampledFrom(strings.Fields("delay delay delay delay publish cancel cancel pass pass pass delete restart meanwhile meanwhile meanwhile")).Draw(w.t, "step"); step {
	case "pass":
		w.pass()
	case "restart":
		if err := w.bus.Close(); err != nil {
			w.t.Fatal(err)
		}
		w.open()
	case "meanwhile":
		first, then := w.draw(), w.draw()
		if rapid.Bool().Draw(w.t, "the same") {
			then.key = first.key
		}
		w.store.when(rapid.SampledFrom([]string{atDelayed, atCommit, afterCommit}).Draw(w.t, "point"), rapid.IntRange(0, 2).Draw(w.t, "free"), func() {
			w.do(first)
			w.do(then)
		})
		w.pass()
		w.store.off()
	default:
		w.do(w.drawOf(step))
	}
}

func (w *delaysWorld) pass() {
	time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 40, 300, 1200}).Draw(w.t, "ms")) * time.Millisecond)
}

// delayStep is something that is asked of the bus.
type delayStep struct {
	what  string
	key   delayKey
	delay time.Duration
}

func (w *delaysWorld) draw() delayStep {
	return w.drawOf(rapid.SampledFrom(strings.Fields("cancel cancel delay delay publish delete")).Draw(w.t, "what"))
}

func (w *delaysWorld) drawOf(what string) delayStep {
	return delayStep{what, delayKey{rapid.SampledFrom([]string{"a", "b"}).Draw(w.t, "topic"), rapid.SampledFrom([]string{"x", "y"}).Draw(w.t, "id")},
		time.Duration(rapid.SampledFrom([]int{1, 40, 300, 1200}).Draw(w.t, "delay")) * time.Millisecond}
}

func (w *delaysWorld) fail(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// do asks and compares the answer. It may run in the middle of the mover's: what is due
// may then be in the log or not, and the answer says which.
func (w *delaysWorld) do(s delayStep) {
	ctx := context.Background()
	p := w.delays[s.key]
	due := p != nil && p.at <= now()
	switch s.what {
	case "cancel":
		switch err := w.bus.Cancel(ctx, s.key.topic, s.key.id); {
		case err == nil && p == nil:
			w.fail("Cancel of %v, which is not scheduled, is answered OK", s.key)
		case err == nil:
			w.never[p.serial] = "cancelled"
			delete(w.delays, s.key)
		case eventhub.ErrorCode(err) != eventhub.CodeUnknownID || p != nil && !due:
			w.fail("Cancel of %v, %+v: %v", s.key, p, err)
		}
	case "delete":
		if err := w.bus.DeleteTopic(ctx, s.key.topic); err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			w.fail("DeleteTopic: %v", err)
		}
		for key, p := range w.delays {
			if key.topic == s.key.topic {
				w.never[p.serial] = "of a topic that was deleted"
				delete(w.delays, key)
			}
		}
		for key, serial := range w.events {
			if key.topic == s.key.topic {
				w.never[serial] = "of a topic that was deleted"
				delete(w.events, key)
			}
		}
	default:
		w.publish(s, p, due)
	}
}

func (w *delaysWorld) publish(s delayStep, p *scheduled, due bool) {
	w.serial++
	serial := w.serial
	e := eventhub.Event{Topic: s.key.topic, ID: s.key.id, Payload: fmt.Appendf(nil, "%d", serial)}
	if s.what == "delay" {
		e.Delay = s.delay
	}
	at := now() + s.delay.Milliseconds()
	receipts, err := w.bus.Publish(context.Background(), e)
	if err != nil {
		w.fail("publish of %v: %v", s.key, err)
		return
	}
	r := receipts[0]
	switch {
	case r.Duplicate:
		w.never[serial] = "a duplicate"
		if r.Offset == 0 && (p == nil || eventhub.Millis(r.DeliverAt) != p.at) || r.Offset != 0 && w.events[s.key] == 0 && !due {
			w.fail("%v is a duplicate, %+v; scheduled is %+v, in the log %d", s, r, p, w.events[s.key])
		}
	case w.events[s.key] != 0, s.what == "delay" && p != nil && !due:
		w.fail("%v is no duplicate, %+v; scheduled is %+v, in the log %d", s, r, p, w.events[s.key])
	case s.what == "delay":
		if p != nil { // it is due, and in the log
			w.fail("%v is scheduled again, %+v, and %+v has not been in the log", s, r, p)
		}
		w.delays[s.key] = &scheduled{serial, at}
		if eventhub.Millis(r.DeliverAt) != at {
			w.fail("%v: %+v; want it at %d", s, r, at)
		}
	default:
		w.events[s.key] = serial
	}
}

// check reads the log.
func (w *delaysWorld) check() {
	synctest.Wait()
	for _, wrong := range w.wrong {
		w.t.Fatal(wrong)
	}
	for _, topic := range []string{"a", "b"} {
		var batch store.Batch
		if err := w.store.Store.Read(context.Background(), topic, 1, 1000, 1<<30, &batch); err != nil {
			w.t.Fatal(err)
		}
		for _, item := range batch.Items {
			w.checkItem(topic, item)
		}
	}
	list, err := w.bus.Scheduled(context.Background(), admin.ScheduleQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	there := make(map[delayKey]int64)
	for _, s := range list {
		there[delayKey{s.Topic, s.ID}] = s.DeliverAt
	}
	for key, p := range w.delays {
		switch at, ok := there[key]; {
		case p.at > now() && (!ok || at != p.at):
			w.t.Fatalf("%v was scheduled for %d (it is %d), and is scheduled for %d", key, p.at, now(), at)
		case p.at <= now() && ok:
			w.t.Fatalf("%v was due at %d and is scheduled at %d", key, p.at, now())
		case p.at <= now() && w.events[key] == 0:
			w.t.Fatalf("%v was due at %d and is not in the log at %d", key, p.at, now())
		case p.at <= now():
			delete(w.delays, key)
		}
	}
	if len(list) > len(w.delays) {
		w.t.Fatalf("scheduled are %+v; want %v", list, w.delays)
	}
}

func (w *delaysWorld) checkItem(topic string, item store.Item) {
	e, err := item.Record.Event(item.Offset)
	var serial int
	if err == nil {
		err = json.Unmarshal(e.Payload, &serial)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	key := delayKey{topic, e.ID}
	if why := w.never[serial]; why != "" {
		w.t.Fatalf("event %d is at %d of %v: it is %s", serial, item.Offset, key, why)
	}
	if p := w.delays[key]; p != nil && p.serial == serial {
		if item.Record.CommitTime() < p.at {
			w.t.Fatalf("%v, event %d, was due at %d and is in the log since %d", key, serial, p.at, item.Record.CommitTime())
		}
		w.events[key] = serial
	}
	if w.events[key] != serial {
		w.t.Fatalf("event %d is at %d of %v; want event %d", serial, item.Offset, key, w.events[key])
	}
}
