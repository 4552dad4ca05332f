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
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
)

// lives is a world in which topics are created, deleted and created again under groups by
// pattern and by name. The model is the contract in a few words: an event of a
// deleted topic is not delivered afterwards, offsets of a name only rise, and a group
// with a pattern gets every event of every topic that lives, from the first on. What it
// gave up it gets again by a redrive, as long as the event is there.
type lives struct {
	t     *rapid.T
	store *memory.Store
	bus   *Bus
	subs  []*life

	live    map[string]map[string]bool // ids of the events that are there, by topic
	last    map[string]uint64          // the highest offset given under a name
	acked   map[string]int
	serial  int
	pattern bool // the group has "p.**"
	named   map[string]bool
}

// life is one subscription and what it holds.
type life struct {
	w     *lives
	in    *inbox
	topic string
	held  []got
}

var lifeTopics = []string{"p.a", "p.b", "p.c.d"}

func TestRandomTopicLives(t *testing.T) {
	testsize.Histories(t, testsize.Of(500, 50), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &lives{t: t, store: memory.Open(memory.Options{}), live: make(map[string]map[string]bool),
				last: make(map[string]uint64), acked: make(map[string]int), named: make(map[string]bool)}
			w.start()
			for range rapid.IntRange(5, 40).Draw(t, "steps") {
				w.step()
			}
			w.finish()
			if err := w.bus.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

func (w *lives) start() {
	var err error
	if w.bus, err = New(Options{Store: w.store, TailCacheBytes: rapid.SampledFrom([]int{1, 64 << 20}).Draw(w.t, "cache")}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *lives) step() {
	switch step := rapid.SampledFrom(strings.Fields("publish publish publish publish delete delete subscribe subscribe leave settle settle settle redrive redrive pass restart")).Draw(w.t, "step"); step {
	case "publish":
		w.publish(rapid.SampledFrom(lifeTopics).Draw(w.t, "topic"))
	case "delete":
		w.deleteTopic(rapid.SampledFrom(lifeTopics).Draw(w.t, "topic"))
	case "subscribe":
		w.subscribe(rapid.SampledFrom([]string{"p.**", "p.**", "p.*", "*.a", "p.a", "p.b"}).Draw(w.t, "pattern"))
	case "leave":
		if len(w.subs) > 0 {
			i := rapid.IntRange(0, len(w.subs)-1).Draw(w.t, "who")
			s := w.subs[i]
			w.subs = slices.Delete(w.subs, i, i+1)
			if rapid.Bool().Draw(w.t, "in order") {
				_ = s.in.Sub.Unsubscribe(context.Background())
			} else {
				s.in.Sub.Drop(rapid.IntRange(0, 3).Draw(w.t, "unsent"))
			}
		}
	case "settle":
		w.settle()
	case "redrive":
		w.redrive(rapid.SampledFrom(lifeTopics).Draw(w.t, "topic"))
	case "pass":
		time.Sleep(time.Duration(rapid.IntRange(1, 3000).Draw(w.t, "ms")) * time.Millisecond)
	case "restart":
		if err := w.bus.Close(); err != nil {
			w.t.Error(err)
		}
		w.collect()
		w.subs = nil
		w.start()
	}
	w.collect()
}

func (w *lives) publish(topic string) {
	w.serial++
	id := fmt.Sprint("e", w.serial)
	receipts, err := w.bus.Publish(context.Background(), eventhub.Event{Topic: topic, ID: id, Payload: []byte("1")})
	if err != nil || receipts[0].Duplicate || receipts[0].Offset <= w.last[topic] {
		w.t.Fatalf("publish to %s: %+v, %v; the last offset is %d", topic, receipts, err, w.last[topic])
	}
	w.last[topic] = receipts[0].Offset
	if w.live[topic] == nil {
		w.live[topic] = make(map[string]bool)
	}
	w.live[topic][id] = true
}

// deleteTopic also looks that nothing of the topic is held any more.
func (w *lives) deleteTopic(topic string) {
	err := w.bus.DeleteTopic(context.Background(), topic)
	there := w.live[topic] != nil || w.named[topic]
	if (err == nil) != there || err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		w.t.Fatalf("deletion of %s, there %v: %v", topic, there, err)
	}
	delete(w.live, topic)
	delete(w.named, topic)
	for _, s := range w.subs {
		for _, g := range s.held {
			if g.Topic != topic {
				continue
			}
			out, err := s.in.Sub.Settle(context.Background(), eventhub.Settlement{Refs: []eventhub.Ref{byLease(g)}})
			if err == nil && out[0] != eventhub.Stale {
				w.t.Fatalf("a lease of the deleted topic %s is still good: %v", topic, out)
			}
		}
		s.held = slices.DeleteFunc(s.held, func(g got) bool { return g.Topic == topic })
	}
	w.subs = slices.DeleteFunc(w.subs, func(s *life) bool {
		s.in.Mu.Lock()
		defer s.in.Mu.Unlock()
		ended := len(s.in.Ends) > 0
		if ended != (s.topic == topic) {
			w.t.Fatalf("the deletion of %s has ended %s: %v", topic, s.topic, ended)
		}
		return ended
	})
}

func (w *lives) subscribe(pattern string) {
	o := opts(pattern, "g")
	o.MaxAttempts = 1000
	o.MaxInFlight = rapid.SampledFrom([]int{1, 2, 100}).Draw(w.t, "maxInFlight")
	s := &life{w: w, in: &inbox{Inbox: bustest.Inbox{Room: -1}}, topic: pattern}
	sub, err := w.bus.Subscribe(context.Background(), o, s.in)
	if err != nil {
		w.t.Fatalf("subscribe to %s: %v", pattern, err)
	}
	s.in.Sub = sub
	w.subs = append(w.subs, s)
	if !eventhub.IsPattern(pattern) {
		w.named[pattern] = true
	}
	w.pattern = w.pattern || pattern == "p.**"
}

// collect takes what was delivered: none of it may be of a deleted topic.
func (w *lives) collect() {
	synctest.Wait()
	for _, s := range w.subs {
		for _, g := range s.in.Take() {
			if !w.live[g.Topic][g.ID()] {
				w.t.Fatalf("%s/%d (%s) is delivered, and does not exist", g.Topic, g.Offset, g.ID())
			}
			s.held = append(s.held, g)
		}
	}
}

func (w *lives) settle() {
	if len(w.subs) == 0 {
		return
	}
	s := rapid.SampledFrom(w.subs).Draw(w.t, "who")
	if len(s.held) == 0 {
		return
	}
	n := rapid.IntRange(1, len(s.held)).Draw(w.t, "how many")
	verdict := eventhub.Settlement{Verdict: eventhub.Ack}
	if rapid.IntRange(0, 3).Draw(w.t, "nack") == 0 {
		verdict = eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Millisecond, Terminal: rapid.Bool().Draw(w.t, "terminal")}
	}
	s.say(s.held[:n], verdict)
	s.held = s.held[n:]
}

func (s *life) say(held []got, verdict eventhub.Settlement) {
	verdict.Refs = leasesOf(held)
	out, err := s.in.Sub.Settle(context.Background(), verdict)
	if err != nil {
		s.w.t.Fatal(err)
	}
	for i, o := range out {
		if o == eventhub.Applied && verdict.Verdict == eventhub.Ack {
			s.w.acked[held[i].ID()]++
		}
	}
}

// redrive gives back what was given up in a topic: only what is still there.
func (w *lives) redrive(topic string) {
	q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: eventhub.DeadLetterTopic(topic)}, Apply: true, Rate: admin.MaxRedriveRate}
	there, gone := 0, 0
	err := w.bus.DeadLetters(context.Background(), q.DeadLetterQuery, func(d *admin.DeadLetter) error {
		if w.live[topic][d.EventID] {
			there++
		} else {
			gone++
		}
		return nil
	})
	if eventhub.ErrorCode(err) == eventhub.CodeUnknownID {
		return // nothing was given up yet
	}
	r, err := w.bus.Redrive(context.Background(), q)
	back := r.Redriven + r.Skipped[skipWaiting] + r.Skipped[skipOpen]
	if err != nil || back+r.Skipped[skipGone]+r.Skipped[skipNoGroup] != there+gone || back > there || r.Skipped[skipGone] > gone {
		w.t.Fatalf("redrive of %s: %+v, %v; of %d events that were given up %d are not there any more", topic, r, err, there+gone, gone)
	}
}

// finish lets one subscription have everything: each event that is there is acked
// once, by somebody at some time.
func (w *lives) finish() {
	w.collect()
	for _, s := range w.subs {
		if err := s.in.Sub.Unsubscribe(context.Background()); err != nil {
			w.t.Error(err)
		}
	}
	w.subs = nil
	w.subscribe("p.**")
	for range 100 {
		w.collect()
		s := w.subs[0]
		if len(s.held) > 0 {
			s.say(s.held, eventhub.Settlement{Verdict: eventhub.Ack})
			s.held = nil
			continue
		}
		for _, topic := range lifeTopics {
			w.redrive(topic)
		}
		time.Sleep(eventhub.DefaultAckTimeout)
	}
	for topic, ids := range w.live {
		for id := range ids {
			if w.acked[id] != 1 {
				w.t.Errorf("%s of %s was acked %d times", id, topic, w.acked[id])
			}
		}
		c, err := w.bus.Cursor(context.Background(), topic, "g")
		if err != nil || c.Offset != w.last[topic] {
			w.t.Errorf("the cursor of %s is %d, %v; the head is %d", topic, c.Offset, err, w.last[topic])
		}
	}
	if n := w.held(); n != 0 {
		w.t.Errorf("%d events are in flight", n)
	}
}

func (w *lives) held() (n int) {
	for _, g := range w.bus.loaded() {
		g.mu.Lock()
		n += g.state.Leased() + g.state.Waiting() + g.state.Listed()
		g.mu.Unlock()
	}
	return n
}
