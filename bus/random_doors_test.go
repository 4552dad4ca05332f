package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storetest"
)

// doorWorld is a world in which topics are made by every door there is (publishes alone and
// in batches, SUBSCRIBEs, pulls, scheduled events, imports, requeues), deleted, and made
// again, under members by name, by pattern and by list, and under tails. Ids are few, so
// that the same one is in several topics and in several lives of a topic. Each step may
// have another one in its middle, at any call of the store.
//
// The model is the contract in a few words. What was published is there until its topic
// is deleted, and then nothing of it is. A topic that was deleted is there again only if
// somebody made it. Every member and every tail that is there has every event of every
// topic that it asks for, once, whichever life it is of. Who settles an event settles
// that one, and no other of its id.
type doorWorld struct {
	t      *rapid.T
	store  *interposed
	bus    *Bus
	serial int

	events  []*doorEvent
	made    map[string]map[string]bool // by topic: groups that somebody has made there by its name
	unsure  map[string]bool            // topics that may be there or not: nobody can say
	members []*doorMember
	tails   []*doorTail
	taken   map[string]bool // topics and ids that this step has given to events
}

// doorState is the state of an event.
type doorState int

const (
	doorDelayed doorState = iota // not in the log yet
	doorThere
	doorGone
	doorUnsure // in the log or gone: something came in between
)

type doorEvent struct {
	serial    int
	topic, id string
	at        int64 // when it is due
	state     doorState
	settled   map[string]bool // by group
	maybe     map[string]bool // groups that gave it up and may have it again, by a redrive
}

// doorMember is a member of a group that takes everything.
type doorMember struct {
	group    string
	patterns []eventhub.Pattern
	exact    bool // one topic, by its name
	in       *inbox
	held     []got
}

type doorTail struct {
	patterns []eventhub.Pattern
	in       *inbox
	since    int // the serial from which on it is to have events; in between it may
	got      map[int]bool
	last     map[string]uint64
}

var (
	doorTopics   = []string{"p.a", "p.b", "p.c.d"}
	doorPatterns = [][]string{{"p.**"}, {"p.**"}, {"p.*"}, {"*.a"}, {"p.a"}, {"p.b"}, {"p.a", "p.b"}, {"p.c.d", "p.*"}, {"p.b", "*.a"}}
	doorsMet     = make(map[string]int)
)

func TestRandomDoors(t *testing.T) {
	tryDoors(t, testsize.Of(350, 50), func(*rapid.T) store.Store { return memory.Open(memory.Options{}) })
}

func tryDoors(t *testing.T, n int, open func(*rapid.T) store.Store) {
	testsize.Histories(t, n, func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &doorWorld{t: t, store: &interposed{Store: open(t)}, made: make(map[string]map[string]bool), unsure: make(map[string]bool)}
			w.start()
			t.Cleanup(func() {
				w.store.off()
				_ = w.bus.Close()
				_ = w.store.Close()
			})
			for range rapid.IntRange(5, 35).Draw(t, "steps") {
				w.step()
				w.check()
			}
			w.finish()
			for point, n := range w.store.met {
				doorsMet[point] += n
			}
		})
	})
	t.Logf("something else happened at: %v", doorsMet)
	clear(doorsMet)
}

func (w *doorWorld) start() {
	var err error
	if w.bus, err = New(Options{Store: w.store}); err != nil {
		w.t.Fatal(err)
	}
}

// deed is something that is asked of the bus. run asks, and may run in the middle of
// another's; then says what became of it, when both are over.
type deed struct {
	name  string
	topic string
	run   func()
	then  func(alone bool)
}

var doorDeeds = strings.Fields("publish publish publish batch delay import import join join tail pull pull delete delete delete settle settle settle requeue redrive leave pass pass restart")

func (w *doorWorld) step() {
	w.taken = make(map[string]bool)
	name := rapid.SampledFrom(doorDeeds).Draw(w.t, "step")
	if name == "restart" {
		w.restart()
		return
	}
	outer := w.draw(name)
	if rapid.IntRange(0, 2).Draw(w.t, "in the middle") > 0 {
		outer.run()
		synctest.Wait()
		outer.then(true)
		return
	}
	inner := w.draw(rapid.SampledFrom(strings.Fields("delete delete delete delete publish delay join import")).Draw(w.t, "meanwhile"))
	point := rapid.SampledFrom([]string{atCommit, afterCommit, atDelayed, atGroup, atParts, atTopics, atTopic, atHead, atRead, beforeDeletion}).Draw(w.t, "point")
	ran := false
	w.store.when(point, rapid.IntRange(0, 2).Draw(w.t, "free"), func() {
		ran = true
		inner.run()
	})
	outer.run()
	synctest.Wait()
	w.store.off()
	synctest.Wait()
	if !ran {
		outer.then(true)
		return
	}
	// What was published first, what was made and said last.
	both := []*deed{outer, inner}
	slices.SortStableFunc(both, func(a, b *deed) int { return a.rank() - b.rank() })
	for _, d := range both {
		d.then(false)
	}
}

func (d *deed) rank() int {
	switch d.name {
	case "publish", "batch", "delay", "import", "requeue":
		return 0
	case "delete":
		return 1
	}
	return 2
}

func (w *doorWorld) draw(name string) *deed {
	topic := rapid.SampledFrom(doorTopics).Draw(w.t, "topic")
	switch name {
	case "publish", "batch", "delay", "import":
		return w.publish(name, topic)
	case "join", "tail", "pull":
		texts := rapid.SampledFrom(doorPatterns).Draw(w.t, "patterns")
		switch name {
		case "join":
			return w.join(texts, rapid.SampledFrom([]string{"g", "g", "h"}).Draw(w.t, "group"))
		case "tail":
			return w.tail(texts)
		}
		return w.pull(texts[0], rapid.SampledFrom([]string{"g", "h"}).Draw(w.t, "group"))
	case "delete":
		return w.deleteTopic(topic)
	case "settle":
		return w.settle()
	case "requeue":
		return w.requeue(topic)
	case "redrive":
		return w.redrive(topic)
	case "leave":
		return w.leave()
	}
	d := time.Duration(rapid.SampledFrom([]int{1, 60, 1500}).Draw(w.t, "ms")) * time.Millisecond
	return &deed{name: "pass", run: func() { time.Sleep(d) }, then: func(bool) {}}
}

// drawID prefers ids that others have: those of this topic that are gone, and those of
// other topics.
func (w *doorWorld) drawID(topic string) string {
	id := rapid.SampledFrom([]string{"x", "y", "z", ""}).Draw(w.t, "id")
	if id == "" || w.taken[topic+"/"+id] || slices.ContainsFunc(w.events, func(e *doorEvent) bool { return e.topic == topic && e.id == id && e.state != doorGone }) {
		return storetest.GivenID("e", w.serial)
	}
	w.taken[topic+"/"+id] = true
	return id
}

// publish is of one event or of two, by one of the doors.
func (w *doorWorld) publish(how, topic string) *deed {
	topics := []string{topic}
	if how == "batch" {
		topics = append(topics, rapid.SampledFrom(doorTopics).Draw(w.t, "topic too"))
	}
	var events []eventhub.Event
	var of []*doorEvent
	for _, topic := range topics {
		w.serial++
		e := &doorEvent{serial: w.serial, topic: topic, id: w.drawID(topic), at: now(), settled: make(map[string]bool), maybe: make(map[string]bool)}
		of = append(of, e)
		events = append(events, eventhub.Event{Topic: topic, ID: e.id, Payload: fmt.Appendf(nil, "%d", e.serial)})
	}
	if how == "delay" {
		events[0].Delay = time.Duration(rapid.SampledFrom([]int{1, 50, 1000}).Draw(w.t, "delay")) * time.Millisecond
		of[0].at += events[0].Delay.Milliseconds()
	}
	if how == "import" {
		events[0].TS = now()
		events[0].Offset = uint64(rapid.SampledFrom([]int{0, 1, 7, 5000}).Draw(w.t, "offset"))
	}
	var receipts []eventhub.Receipt
	var err error
	run := func() {
		if how == "import" {
			receipts, err = w.bus.Import(context.Background(), events...)
		} else {
			receipts, err = w.bus.Publish(context.Background(), events...)
		}
	}
	return &deed{name: how, topic: topic, run: run, then: func(alone bool) {
		if err != nil {
			w.t.Fatalf("%s of %+v: %v", how, events, err)
		}
		for i, r := range receipts {
			if r.Duplicate {
				if alone {
					w.t.Fatalf("%s of %+v: %+v; nothing of that id is there", how, events[i], r)
				}
				continue
			}
			e := of[i]
			e.at = eventhub.Millis(r.DeliverAt) // 0: it is in the log
			switch {
			case !alone:
				e.state = doorUnsure
			case r.Offset != 0:
				e.state = doorThere
			}
			w.events = append(w.events, e)
		}
	}}
}

func (w *doorWorld) join(texts []string, group string) *deed {
	in := &inbox{Inbox: bustest.Inbox{Room: -1}}
	o := opts(texts[0], group)
	o.Topics, o.MaxInFlight, o.MaxAttempts, o.AckTimeout = texts[1:], 1000, 1000, time.Hour
	o.BatchSize = rapid.SampledFrom([]int{1, 100}).Draw(w.t, "batchSize")
	m := &doorMember{group: group, in: in, exact: len(texts) == 1 && !eventhub.IsPattern(texts[0])}
	m.patterns, _ = o.Patterns()
	var err error
	run := func() { in.Sub, err = w.bus.Subscribe(context.Background(), o, in) }
	return &deed{name: "join", topic: texts[0], run: run, then: func(alone bool) {
		if err != nil {
			// A topic that it names may have been deleted just then.
			if !alone && !eventhub.IsPattern(texts[0]) && eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
				for _, text := range texts {
					w.unsure[text] = true
				}
				return
			}
			w.t.Fatalf("SUBSCRIBE of %v by %s: %v", texts, group, err)
		}
		w.members = append(w.members, m)
		for _, text := range texts {
			if !eventhub.IsPattern(text) {
				w.make(text, group, alone)
			}
		}
	}}
}

// make notes that a group was made in a topic by its name, and with it the topic.
func (w *doorWorld) make(topic, group string, alone bool) {
	if !alone {
		w.unsure[topic] = true
		return
	}
	if w.made[topic] == nil {
		w.made[topic] = make(map[string]bool)
	}
	w.made[topic][group] = true
}

func (w *doorWorld) tail(texts []string) *deed {
	m := &doorTail{in: &inbox{Inbox: bustest.Inbox{Room: -1}}, got: make(map[int]bool), last: make(map[string]uint64)}
	o := eventhub.TailOptions{Topic: texts[0], Topics: texts[1:]}
	earliest := rapid.Bool().Draw(w.t, "earliest")
	if earliest {
		o.Start.Kind = eventhub.StartEarliest
	}
	m.patterns, _ = o.Patterns()
	var err error
	run := func() { m.in.Sub, err = w.bus.Tail(context.Background(), o, m.in) }
	return &deed{name: "tail", topic: texts[0], run: run, then: func(bool) {
		if err != nil {
			w.t.Fatalf("tail of %v: %v", texts, err)
		}
		if !earliest {
			m.since = w.serial + 1
			for _, e := range w.events {
				if e.state == doorDelayed {
					m.got[e.serial] = true // it may come as well
				}
			}
		}
		w.tails = append(w.tails, m)
	}}
}

// pull takes what there is and says of it that it is done.
func (w *doorWorld) pull(text, group string) *deed {
	o := opts(text, group)
	o.MaxInFlight = rapid.SampledFrom([]int{1, 3}).Draw(w.t, "max")
	o.MaxAttempts = 1000
	var ds []eventhub.Delivery
	var err error
	return &deed{name: "pull", topic: text, run: func() { ds, err = w.bus.Pull(context.Background(), o, 0) }, then: func(alone bool) {
		if !eventhub.IsPattern(text) {
			w.make(text, group, alone)
		}
		if err != nil {
			if alone || eventhub.IsPattern(text) || eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
				w.t.Fatalf("pull of %s by %s: %v", text, group, err)
			}
			return
		}
		var held []got
		for _, d := range ds {
			e, err := d.Event()
			if err != nil {
				w.t.Fatal(err)
			}
			held = append(held, got{Delivery: d, Payload: string(e.Payload)})
		}
		for _, one := range held {
			out, err := w.bus.Settle(context.Background(), text, group, eventhub.Settlement{Refs: []eventhub.Ref{byLease(one)}})
			w.settled(group, one, eventhub.Ack, alone, out, err)
		}
	}}
}

func (w *doorWorld) deleteTopic(topic string) *deed {
	there := w.isThere(topic)
	var err error
	return &deed{name: "delete", topic: topic, run: func() { err = w.bus.DeleteTopic(context.Background(), topic) }, then: func(alone bool) {
		code := eventhub.ErrorCode(err)
		if code != "" && code != eventhub.CodeUnknownID || alone && !w.unsure[topic] && there != (err == nil) {
			w.t.Fatalf("deletion of %s, there %t: %v", topic, there, err)
		}
		if err != nil {
			return
		}
		if delete(w.made, topic); alone {
			delete(w.unsure, topic)
		}
		for _, e := range w.events {
			// Of a publish that was under way nobody knows whether it came before.
			if e.topic == topic && e.state != doorUnsure {
				e.state = doorGone
			}
		}
	}}
}

// isThere reports whether a topic is there by what is known.
func (w *doorWorld) isThere(topic string) bool { return w.isMade(topic) || len(w.made[topic]) > 0 }

func (w *doorWorld) isMade(topic string) bool {
	return slices.ContainsFunc(w.events, func(e *doorEvent) bool { return e.topic == topic && e.state != doorGone })
}

func (w *doorWorld) leave() *deed {
	if len(w.members) == 0 {
		return &deed{name: "nothing", run: func() {}, then: func(bool) {}}
	}
	i := rapid.IntRange(0, len(w.members)-1).Draw(w.t, "who")
	m := w.members[i]
	return &deed{name: "leave", run: func() { _ = m.in.Sub.Unsubscribe(context.Background()) }, then: func(bool) {
		w.members = slices.DeleteFunc(w.members, func(other *doorMember) bool { return other == m })
	}}
}

func (w *doorWorld) restart() {
	synctest.Wait()
	if err := w.bus.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.members, w.tails = nil, nil
	w.start()
	synctest.Wait()
}
