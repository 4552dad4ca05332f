package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/bus/internal/space"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// enqueued is a call of Enqueue.
type enqueued struct {
	pubs []eventhub.Publication
	done chan struct{}
	at   time.Time
}

// enqueue publishes and returns at once.
func (r *rig) enqueue(ctx context.Context, pubs ...eventhub.Publication) *enqueued {
	w := &enqueued{pubs: pubs, done: make(chan struct{})}
	r.bus.Enqueue(ctx, w.pubs, func([]eventhub.Publication) { w.at = time.Now(); close(w.done) })
	synctest.Wait()
	return w
}

func (w *enqueued) over() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func inTopic(topic string, n int) (events []eventhub.Event) {
	for i := range n {
		events = append(events, eventhub.Event{Topic: topic, ID: fmt.Sprintf("e%d", i+1), Payload: []byte(`1`)})
	}
	return events
}

func earliest(topic, group string) eventhub.GroupOptions {
	return eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.Earliest}
}

// A publication is done when the last group has acked the last event.
func TestWaitForGroups(t *testing.T) {
	inBubble(t, func(r *rig) {
		g, h := r.subscribe(earliest("t", "g")), r.subscribe(earliest("t", "h"))
		w := r.enqueue(context.Background(),
			eventhub.Publication{Events: inTopic("t", 2), WaitFor: []string{"g", "h"}},
			eventhub.Publication{Events: []eventhub.Event{{Topic: "u", Payload: []byte(`1`)}}})
		a, b := g.Take(), h.Take()
		g.Ack(byLease(a[0]), byLease(a[1]))
		h.Ack(byLease(b[1]))
		if w.over() {
			t.Fatal("done before h has acked e1")
		}
		h.Ack(byLease(b[0]))
		if !w.over() {
			t.Fatal("not done when all have acked")
		}
		p := w.pubs[0]
		if p.Err != nil || len(p.Receipts) != 2 || p.Receipts[1].Offset != 2 || w.pubs[1].Err != nil || len(w.pubs[1].Receipts) != 1 {
			t.Errorf("outcome %+v", w.pubs)
		}
		// What was published and acked before is waited for by the first one's offset.
		again := r.enqueue(context.Background(), eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}})
		if !again.over() || again.pubs[0].Err != nil || !again.pubs[0].Receipts[0].Duplicate {
			t.Errorf("again: %+v", again.pubs)
		}
		rt := r.bus.running("t", "g")
		rt.mu.Lock()
		defer rt.mu.Unlock()
		equal(t, "awaited", rt.waits.Len(), 0)
	})
}

// What is wrong with a wait is said, and nothing is published.
func TestWaitForRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.subscribe(earliest("t", "g"))
		r.subscribe(earliest("u", "only"))
		var many []string
		for i := range eventhub.MaxWaitFor + 1 {
			many = append(many, fmt.Sprintf("g%d", i))
		}
		delayed := inTopic("t", 1)
		delayed[0].Delay = time.Second
		for _, c := range []struct {
			p    eventhub.Publication
			code eventhub.Code
			says string
		}{
			{eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g", "nobody"}}, eventhub.CodeNotSubscribed, `"nobody"`},
			{eventhub.Publication{Events: append(inTopic("t", 1), inTopic("u", 1)...), WaitFor: []string{"g"}}, eventhub.CodeNotSubscribed, `"u"`},
			{eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g", "g"}}, eventhub.CodeBadRequest, "twice"},
			{eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g", "no group"}}, eventhub.CodeBadRequest, "no group"},
			{eventhub.Publication{Events: inTopic("t", 1), WaitFor: many}, eventhub.CodeBadRequest, "17"},
			{eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}, WaitUpTo: -1}, eventhub.CodeBadRequest, "wait_ms"},
			{eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}, WaitUpTo: eventhub.MaxWait + time.Millisecond}, eventhub.CodeBadRequest, "300001"},
			{eventhub.Publication{Events: delayed, WaitFor: []string{"g"}}, eventhub.CodeBadRequest, "scheduled"},
			{eventhub.Publication{Events: inTopic("a..b", 1), WaitFor: []string{"g"}}, eventhub.CodeBadTopic, "a..b"},
		} {
			w := r.enqueue(context.Background(), c.p)
			if !w.over() {
				t.Fatalf("%+v is not over", c.p)
			}
			err := w.pubs[0].Err
			if eventhub.ErrorCode(err) != c.code || !strings.Contains(err.Error(), c.says) || w.pubs[0].Receipts != nil {
				t.Errorf("%v: %v, receipts %v; want %s with %q", c.p.WaitFor, err, w.pubs[0].Receipts, c.code, c.says)
			}
		}
		equal(t, "events", len(r.events("t")), 0)
	})
}

// A group whose pattern brings it to topics to come is waited for there; a publish that is
// refused makes neither the group nor the topic.
func TestWaitForRefusedLeavesNothing(t *testing.T) {
	inFaultyBubble(t, func(r *rig, s *storefault.Store) {
		r.subscribe(earliest("a.*", "g"))
		wait := func(groups []string, events ...eventhub.Event) eventhub.Publication {
			return eventhub.Publication{Events: events, WaitFor: groups}
		}
		event, g := inTopic("a.b", 1)[0], []string{"g"}
		large := event
		large.Payload = fmt.Appendf(nil, "%q", strings.Repeat("x", eventhub.MaxPayloadBytes))
		delayed := event
		delayed.Delay = time.Second
		for _, c := range []struct {
			p    eventhub.Publication
			code eventhub.Code
			full bool // the disk
		}{
			{p: wait(g, large), code: eventhub.CodeTooLarge},
			{p: wait(g, event, large), code: eventhub.CodeTooLarge},
			{p: wait([]string{"g", "nobody"}, event), code: eventhub.CodeNotSubscribed},
			{p: wait(g, event, inTopic("other", 1)[0]), code: eventhub.CodeNotSubscribed},
			{p: wait(g, event, inTopic("a..b", 1)[0]), code: eventhub.CodeBadTopic},
			{p: wait(g, event, delayed), code: eventhub.CodeBadRequest},
			{p: wait(g, event), code: eventhub.CodeOverloaded, full: true},
		} {
			if c.full {
				s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil })
				time.Sleep(space.LookEvery)
			}
			w := r.enqueue(bg, c.p)
			if !w.over() || eventhub.ErrorCode(w.pubs[0].Err) != c.code {
				t.Errorf("%d events, groups %q: %v; want %s", len(c.p.Events), c.p.WaitFor, w.pubs[0].Err, c.code)
			}
			if topics, err := r.bus.Topics(bg, "", 10); err != nil || len(topics) > 0 {
				t.Errorf("a publish that was refused with %s leaves %v, %v", c.code, topics, err)
			}
		}
		s.SetSpace(nil)
		time.Sleep(space.LookEvery)
		if w := r.enqueue(bg, wait(g, event)); w.over() || len(r.events("a.b")) != 1 {
			t.Errorf("a good one: %+v, %d events", w.pubs, len(r.events("a.b")))
		}
	})
}

// A group that is not loaded is loaded, with what it has acked.
func TestWaitForIdleGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(earliest("t", "g"))
		r.publish("t", 1, 1)
		r.enqueue(context.Background(), eventhub.Publication{Events: inTopic("t", 2)})
		got := in.Take()
		in.Ack(byLease(got[2])) // above the cursor
		r.restart()
		w := r.enqueue(context.Background(), eventhub.Publication{Events: inTopic("t", 2)[1:], WaitFor: []string{"g"}})
		if !w.over() || w.pubs[0].Err != nil {
			t.Errorf("what was acked before the restart: %+v", w.pubs)
		}
		w = r.enqueue(context.Background(), eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}, WaitUpTo: time.Minute})
		if w.over() {
			t.Fatalf("what was not acked: %+v", w.pubs)
		}
		in = r.subscribe(earliest("t", "g"))
		for _, d := range in.Take() {
			in.Ack(byLease(d))
		}
		if !w.over() || w.pubs[0].Err != nil {
			t.Errorf("acked after the restart: %+v", w.pubs)
		}
	})
}

// Whoever has not acked in time is named; the events stay.
func TestWaitTimeout(t *testing.T) {
	inBubble(t, func(r *rig) {
		g, h := r.subscribe(earliest("t", "g")), r.subscribe(earliest("t", "h"))
		began := time.Now()
		w := r.enqueue(context.Background(),
			eventhub.Publication{Events: inTopic("t", 2), WaitFor: []string{"g", "h"}, WaitUpTo: 1500 * time.Millisecond})
		g.Ack(byLease(g.Take()[0]))
		for _, d := range h.Take() {
			h.Ack(byLease(d))
		}
		<-w.done
		equal(t, "took", w.at.Sub(began), 1500*time.Millisecond)
		p := w.pubs[0]
		wantCode(t, p.Err, eventhub.CodeWaitTimeout)
		msg := eventhub.AsError(p.Err).Message
		if !strings.Contains(msg, `"g" has not acked event "e2" at offset 2 of topic "t"`) || strings.Contains(msg, `"h"`) || len(p.Receipts) != 2 {
			t.Errorf("outcome %q, receipts %v", msg, p.Receipts)
		}
		equal(t, "events", len(r.events("t")), 2)
		began = time.Now()
		w = r.enqueue(context.Background(), eventhub.Publication{Events: inTopic("t", 2), WaitFor: []string{"g"}})
		<-w.done
		equal(t, "the default", w.at.Sub(began), eventhub.DefaultWait)
		rt := r.bus.running("t", "g")
		rt.mu.Lock()
		defer rt.mu.Unlock()
		equal(t, "awaited", rt.waits.Len(), 0)
	})
}

// What else ends a wait, at once and with a reason.
func TestWaitEnds(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(r *rig, in *inbox, first got, stop func()) error
		code eventhub.Code
		says string
	}{
		"dead letter": {func(r *rig, in *inbox, first got, stop func()) error {
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(first))
			return nil
		}, eventhub.CodeWaitTimeout, "dead-lettered"},
		"ack-and-publish": {func(r *rig, in *inbox, first got, stop func()) error {
			_, err := in.ackAndPublish([]eventhub.Ref{byLease(first)}, out(`1`))
			return err
		}, "", ""},
		"seek above": {func(r *rig, in *inbox, first got, stop func()) error {
			return r.bus.SetCursor(context.Background(), "t", "g", 1)
		}, eventhub.CodeWaitTimeout, "was moved past"},
		"deletion": {func(r *rig, in *inbox, first got, stop func()) error {
			return r.bus.DeleteGroup(context.Background(), "t", "g")
		}, eventhub.CodeWaitTimeout, "deleted"},
		"Close": {func(r *rig, in *inbox, first got, stop func()) error {
			r.restart()
			return nil
		}, eventhub.CodeShuttingDown, "are published"},
		"context": {func(r *rig, in *inbox, first got, stop func()) error {
			stop()
			return nil
		}, eventhub.CodeShuttingDown, "are published"},
	} {
		inBubble(t, func(r *rig) {
			in := r.subscribe(earliest("t", "g"))
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			began := time.Now()
			w := r.enqueue(ctx, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}})
			if err := c.do(r, in, in.Take()[0], stop); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if !w.over() || time.Since(began) > time.Second {
				t.Fatalf("%s: not over %s later", what, time.Since(began))
			}
			p := w.pubs[0]
			if eventhub.ErrorCode(p.Err) != c.code || len(p.Receipts) != 1 || p.Err != nil && !strings.Contains(p.Err.Error(), c.says) {
				t.Errorf("%s: %v, receipts %v; want %q with %q", what, p.Err, p.Receipts, c.code, c.says)
			}
		})
	}
}

// A group that gives up a dead letter has no dead letter of it; the wait ends too.
func TestWaitForDeadLetterGivenUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := r.subscribe(earliest("t", "g"))
		r.publish("t", 1, 1)
		first.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(first.Take()[0]))
		in := r.subscribe(earliest("t.dlq", "g"))
		got := in.Take()[0]
		// Clients cannot publish to the topic, so it is as if the event was published just now.
		pubs := []eventhub.Publication{{Events: inTopic("t.dlq", 1), WaitFor: []string{"g"}, WaitUpTo: time.Minute}}
		call := r.bus.waits.Call(context.Background(), pubs)
		if err := call.Check(&pubs[0], time.Now()); err != nil {
			t.Fatal(err)
		}
		pubs[0].Receipts = []eventhub.Receipt{{Offset: got.Offset}}
		over := false
		call.Begin(pubs, func([]eventhub.Publication) { over = true })
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(got))
		synctest.Wait()
		wantCode(t, pubs[0].Err, eventhub.CodeWaitTimeout)
		if !over || pubs[0].Err != nil && !strings.Contains(pubs[0].Err.Error(), "has given up") {
			t.Errorf("over %t, %v", over, pubs[0].Err)
		}
	})
}

// TestRandomWaits has many publications wait while members ack, nack, leave, give
// up and are moved. None hears that all have acked before they have, none waits
// longer than it may, and none for events that are all done.
func TestRandomWaits(t *testing.T) {
	testsize.Histories(t, testsize.Of(350, 35), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) { randomWaits(t) })
	})
}

func randomWaits(t *rapid.T) {
	s := memory.Open(memory.Options{})
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}()
	groups := []string{"g", "h"}
	members := make(map[string][]*dealer)
	var mu sync.Mutex
	join := func(name string) {
		m := &dealer{group: name, mu: &mu, got: new([]eventhub.Lease)}
		o := earliest("t", name)
		o.MaxAttempts, o.AckTimeout, o.MaxInFlight = 2, time.Second, 3
		o.Backoff = eventhub.Backoff{Min: time.Millisecond, Max: time.Second}
		sub, err := b.Subscribe(context.Background(), o, m)
		if err != nil {
			t.Fatal(err)
		}
		m.sub = sub
		members[name] = append(members[name], m)
	}
	for _, name := range groups {
		join(name)
	}
	waiting := 0
	for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
		name := rapid.SampledFrom(groups).Draw(t, "group")
		switch rapid.SampledFrom([]string{"publish", "publish", "settle", "settle", "settle", "leave", "seek", "pass"}).Draw(t, "step") {
		case "publish":
			p := eventhub.Publication{WaitFor: groups[:rapid.IntRange(1, 2).Draw(t, "groups")], WaitUpTo: time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond}
			for j := range rapid.IntRange(1, 3).Draw(t, "events") {
				p.Events = append(p.Events, eventhub.Event{Topic: "t", ID: fmt.Sprintf("%d.%d", rapid.IntRange(max(0, i-3), i).Draw(t, "name"), j), Payload: []byte(`1`)})
			}
			waiting++
			began := time.Now()
			b.Enqueue(context.Background(), []eventhub.Publication{p}, func(pubs []eventhub.Publication) {
				mu.Lock()
				defer mu.Unlock()
				waiting--
				checkWaited(t, b, &pubs[0], time.Since(began))
			})
		case "settle":
			mu.Lock()
			var refs []eventhub.Ref
			var m *dealer
			for _, m = range members[name] {
				for _, l := range *m.got {
					if rapid.Bool().Draw(t, "this one") {
						refs = append(refs, eventhub.Ref{Lease: l})
					}
				}
			}
			mu.Unlock()
			verdict := eventhub.Settlement{Refs: refs, Verdict: rapid.SampledFrom([]eventhub.Verdict{eventhub.Ack, eventhub.Ack, eventhub.Nack}).Draw(t, "verdict")}
			if _, err := b.Settle(context.Background(), "t", name, verdict); err != nil {
				t.Fatal(err)
			}
		case "leave":
			members[name][0].sub.Drop(0)
			members[name] = members[name][1:]
			join(name)
		case "seek":
			if err := b.SetCursor(context.Background(), "t", name, uint64(rapid.IntRange(0, 20).Draw(t, "to"))); err != nil {
				t.Fatal(err)
			}
		case "pass":
			time.Sleep(time.Duration(rapid.IntRange(1, 1500).Draw(t, "pass")) * time.Millisecond)
		}
		synctest.Wait()
		checkAwaited(t, b, groups)
	}
	time.Sleep(5 * time.Second)
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	if waiting != 0 {
		t.Fatalf("%d still wait", waiting)
	}
	for _, name := range groups {
		if rt := b.running("t", name); rt.waits.Len() != 0 {
			t.Fatalf("%s still waits for %d events", name, rt.waits.Len())
		}
	}
}

// checkWaited looks at the outcome of a wait.
func checkWaited(t *rapid.T, b *Bus, p *eventhub.Publication, took time.Duration) {
	if len(p.Receipts) != len(p.Events) {
		t.Errorf("%+v has no receipts", p)
		return
	}
	timeout := p.Err != nil && strings.Contains(p.Err.Error(), "not acked")
	if p.Err != nil && eventhub.ErrorCode(p.Err) != eventhub.CodeWaitTimeout || took > p.WaitUpTo || timeout && took < p.WaitUpTo {
		t.Errorf("%+v ends with %v after %s", p, p.Err, took)
	}
}

// checkAwaited: nobody waits for what is done.
func checkAwaited(t *rapid.T, b *Bus, groups []string) {
	for _, name := range groups {
		rt := b.running("t", name)
		rt.mu.Lock()
		if err := rt.waits.Check(); err != nil {
			t.Error(err)
		}
		rt.mu.Unlock()
	}
}

// TestWaitTellsTheTruth: an event that a group gave up, was moved past or never began with
// is not acked, and its publisher learns that, whenever it asks; one that was given back is
// waited for.
func TestWaitTellsTheTruth(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		again := func(what, says string) {
			t.Helper()
			w := r.enqueue(ctx, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}})
			switch {
			case says == "…":
				if w.over() {
					t.Errorf("%s: answered with %v", what, w.pubs[0].Err)
				}
				time.Sleep(eventhub.DefaultWait)
				synctest.Wait()
				wantCode(t, w.pubs[0].Err, eventhub.CodeWaitTimeout)
			case !w.over():
				t.Errorf("%s: no answer", what)
			case says == "":
				if w.pubs[0].Err != nil {
					t.Errorf("%s: %v", what, w.pubs[0].Err)
				}
			default:
				if wantCode(t, w.pubs[0].Err, eventhub.CodeWaitTimeout); !strings.Contains(fmt.Sprint(w.pubs[0].Err), says) {
					t.Errorf("%s: %v; want %q", what, w.pubs[0].Err, says)
				}
			}
		}
		in := r.subscribe(earliest("t", "g"))
		w := r.enqueue(ctx, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}})
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.Take()[0]))
		if !w.over() || !strings.Contains(fmt.Sprint(w.pubs[0].Err), "has dead-lettered") {
			t.Errorf("given up meanwhile: %v", w.pubs[0].Err)
		}
		again("given up before", "has dead-lettered")
		equal(t, "redriven", r.redrive(redriveAll("t")).Redriven, 1)
		again("given back", "…")
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.Take()[0]))
		again("given up again", "has dead-lettered")
		r.redrive(redriveAll("t"))
		in.Ack(byLease(in.Take()[0]))
		again("acked when given back", "")

		seek := func(s eventhub.Start) {
			t.Helper()
			if _, err := r.bus.SeekGroup(ctx, "t", "g", s, true); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		seek(eventhub.Earliest)
		in.Take()
		w = r.enqueue(ctx, eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}})
		seek(eventhub.Latest)
		if !w.over() || !strings.Contains(fmt.Sprint(w.pubs[0].Err), "was moved past") {
			t.Errorf("moved past meanwhile: %v", w.pubs[0].Err)
		}
		again("moved past before", "is past, and is not known to have acked")
		seek(eventhub.Earliest)
		in.Ack(byLease(in.Take()[0]))
		again("acked when moved back", "")

		o := eventhub.GroupOptions{Topic: "u", Group: "g", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 10}}
		r.subscribe(o)
		w = r.enqueue(ctx, eventhub.Publication{Events: inTopic("u", 1), WaitFor: []string{"g"}})
		if !w.over() || !strings.Contains(fmt.Sprint(w.pubs[0].Err), "is past") {
			t.Errorf("below the start: %v", w.pubs[0].Err)
		}
	})
}

// TestWaitForALateLetter: a redriven event whose dead letter is on its way while its group is
// sought is given up, and not acked.
func TestWaitForALateLetter(t *testing.T) {
	inBubble(t, func(r *rig) {
		terminal := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}
		in := r.subscribe(earliest("t", "g"))
		wait := eventhub.Publication{Events: inTopic("t", 1), WaitFor: []string{"g"}}
		r.enqueue(bg, wait)
		in.Settle(terminal, byLease(in.Take()[0]))
		equal(t, "redriven", r.redrive(redriveAll("t")).Redriven, 1)
		redriven := in.Take()
		w := r.enqueue(bg, wait)
		equal(t, "over before its verdict", w.over(), false)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		in.Settle(terminal, byLease(redriven[0]))
		sought := make(chan error)
		go func() {
			_, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Latest, true)
			sought <- err
		}()
		synctest.Wait()
		equal(t, "over while the dead letter is on its way", w.over(), false)
		r.store.set(nil, nil)
		close(hold)
		if err := <-sought; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "dead letters", len(r.events("t.dlq")), 2)
		if !w.over() || !strings.Contains(fmt.Sprint(w.pubs[0].Err), "has dead-lettered") {
			t.Errorf("the wait is over %v, %v; want that the group has dead-lettered the event", w.over(), w.pubs[0].Err)
		}
	})
}

// TestWaitKnowsTheTruthLater: what a group did before anybody waited is known from what is
// durable, so a restart changes no answer.
func TestWaitKnowsTheTruthLater(t *testing.T) {
	const past, dead = "is past, and is not known to have acked", "has dead-lettered"
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		ask := func(what string, id string, says string) {
			t.Helper()
			for _, when := range []string{"before", "after"} {
				w := r.enqueue(ctx, eventhub.Publication{Events: []eventhub.Event{{Topic: "t", ID: id, Payload: []byte(`1`)}}, WaitFor: []string{"g"}})
				if !w.over() {
					t.Fatalf("%s, %s a restart: no answer", what, when)
				}
				if says == "" && w.pubs[0].Err != nil || !strings.Contains(fmt.Sprint(w.pubs[0].Err), says) {
					t.Errorf("%s, %s a restart: %v; want %q", what, when, w.pubs[0].Err, says)
				}
				if when == "before" {
					r.restart()
				}
			}
		}
		terminal := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}
		seek := func(s eventhub.Start) {
			t.Helper()
			if _, err := r.bus.SeekGroup(ctx, "t", "g", s, true); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for i := range 5 {
			if _, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", ID: fmt.Sprint("e", i+1), Payload: []byte(`1`)}); err != nil {
				t.Fatal(err)
			}
		}
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}})
		all := in.Take() // 2 to 5
		in.Ack(byLease(all[0]))
		in.Settle(terminal, byLease(all[1]))
		in.Ack(byLease(all[3]))
		synctest.Wait()
		ask("before the group's start", "e1", past)
		ask("acked", "e2", "")
		ask("dead-lettered", "e3", dead)
		ask("acked above the cursor", "e5", "")

		seek(eventhub.Latest)
		ask("passed by a seek", "e4", past)
		ask("dead-lettered in an earlier epoch", "e3", past)
		ask("acked in an earlier epoch", "e5", past)

		seek(eventhub.Start{Kind: eventhub.StartOffset, Offset: 4})
		in = r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		all = in.Take()
		in.Ack(byLease(all[0]))
		in.Settle(terminal, byLease(all[1]))
		synctest.Wait()
		ask("acked when it was moved back", "e4", "")
		ask("dead-lettered when it was moved back", "e5", dead)
		ask("below where it was moved to", "e2", past)
	})
}

// A wait for an event that the log has let go of ends where the group reads on.
func TestWaitForWhatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(earliest("t", "g"))
		if err := in.Sub.Unsubscribe(bg); err != nil {
			t.Fatal(err)
		}
		w := r.enqueue(bg, eventhub.Publication{Events: inTopic("t", 2)[1:], WaitFor: []string{"g"}, WaitUpTo: time.Minute})
		r.publish("t", 3, 1)
		equal(t, "over before", w.over(), false)
		synctest.Wait()
		r.faulty().Hide("t", w.pubs[0].Receipts[0].Offset)
		in = r.subscribe(earliest("t", "g"))
		equal(t, "delivered", in.TakeOffsets(), []uint64{2})
		equal(t, "over", w.over(), true)
		wantCode(t, w.pubs[0].Err, eventhub.CodeGone)
	})
}

// TestWaitForWhatWasRemoved: an event that was removed before its group has acked it is not acked,
// whether it was delivered before, passed, or published again.
func TestWaitForWhatWasRemoved(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := earliest("t", "g")
		o.MaxInFlight, o.AckTimeout = 2, time.Hour
		in := r.subscribe(o)
		wait := func(id string) *enqueued {
			return r.enqueue(bg, eventhub.Publication{WaitFor: []string{"g"}, WaitUpTo: eventhub.MaxWait,
				Events: []eventhub.Event{{Topic: "t", ID: id, Payload: []byte(`1`)}}})
		}
		waits := []*enqueued{wait("a"), wait("b"), wait("c"), wait("d")}
		got := in.Take()
		r.trim("t", 4)
		in.Nack(byLease(got[0]))
		in.Ack(byLease(got[1]))
		time.Sleep(time.Minute)
		got = in.Take()
		equal(t, "delivered", told(got), []string{"4/1 gap t 2-4"})
		in.Ack(byLease(got[0]))
		for i, code := range []eventhub.Code{eventhub.CodeGone, "", eventhub.CodeGone, ""} {
			if !waits[i].over() {
				t.Errorf("the wait for event %d is not over", i+1)
				continue
			}
			wantCode(t, waits[i].pubs[0].Err, code)
		}
		again := wait("c")
		if !again.over() || !again.pubs[0].Receipts[0].Duplicate {
			t.Errorf("the third event again: %+v", again.pubs)
		}
		wantCode(t, again.pubs[0].Err, eventhub.CodeGone)
	})
}

// TestWaitForWhatNobodyReads: the group has no member, or its member is paused, when the event is
// removed; so nobody finds that it is gone before the wait is over.
func TestWaitForWhatNobodyReads(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(earliest("t", "g"))
		if err := in.Sub.Unsubscribe(bg); err != nil {
			t.Fatal(err)
		}
		u := r.subscribe(earliest("u", "g"))
		wait := func(id string) *enqueued {
			return r.enqueue(bg, eventhub.Publication{WaitFor: []string{"g"}, WaitUpTo: time.Minute,
				Events: []eventhub.Event{{Topic: "u", ID: id, Payload: []byte(`1`)}, {Topic: "t", ID: id, Payload: []byte(`1`)}}})
		}
		goes, stays := wait("a"), wait("b")
		for _, d := range u.Take() {
			u.Ack(byLease(d))
		}
		r.trim("t", 2)
		time.Sleep(time.Minute)
		equal(t, "over", goes.over() && stays.over(), true)
		wantCode(t, goes.pubs[0].Err, eventhub.CodeGone)
		wantCode(t, stays.pubs[0].Err, eventhub.CodeWaitTimeout)
	})
}
