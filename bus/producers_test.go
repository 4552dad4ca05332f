package bus

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
)

func (r *rig) openProducer(id string, epoch uint64) (*eventhub.Producer, error) {
	return r.bus.OpenProducer(context.Background(), eventhub.ProducerOptions{Owner: "me", ID: id, Epoch: epoch})
}

func (r *rig) mustOpenProducer(id string, epoch uint64) *eventhub.Producer {
	r.t.Helper()
	p, err := r.openProducer(id, epoch)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// numbered publishes with a number and returns the outcome.
func (r *rig) numbered(p *eventhub.Producer, seq uint64, events ...eventhub.Event) eventhub.Publication {
	return r.enqueueOne(eventhub.Publication{Producer: p, Seq: seq, Events: events})
}

func (r *rig) enqueueOne(pub eventhub.Publication) eventhub.Publication {
	answered := make(chan struct{})
	pubs := []eventhub.Publication{pub}
	r.bus.Enqueue(context.Background(), pubs, func([]eventhub.Publication) { close(answered) })
	<-answered
	return pubs[0]
}

func (r *rig) wantCode(what string, p eventhub.Publication, code eventhub.Code, used bool) {
	r.t.Helper()
	if eventhub.ErrorCode(p.Err) != code || p.SeqUsed != used || code != "" && p.Receipts != nil {
		r.t.Errorf("%s: %v, used %v, %v; want %q, %v", what, p.Err, p.SeqUsed, p.Receipts, code, used)
	}
}

func (r *rig) wantAgain(what string, got, first eventhub.Publication) {
	r.t.Helper()
	if got.Err != nil || !got.SeqUsed || len(got.Receipts) != len(first.Receipts) {
		r.t.Fatalf("%s: %v, %+v; want %+v again", what, got.Err, got.Receipts, first.Receipts)
	}
	for i, is := range got.Receipts {
		was := first.Receipts[i]
		if is.ID != was.ID || is.Offset != was.Offset || !is.Duplicate || !is.DeliverAt.Equal(was.DeliverAt) {
			r.t.Errorf("%s: receipt %d is %+v; the first was %+v", what, i, is, was)
		}
	}
}

func event(topic string) eventhub.Event { return eventhub.Event{Topic: topic, Payload: []byte(`1`)} }

func TestNumbers(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		first := r.numbered(p, 1, event("t"))
		r.wantCode("the first", first, "", true)
		if first.Receipts[0].Duplicate || first.Receipts[0].Offset != 1 {
			t.Errorf("%+v", first.Receipts)
		}
		time.Sleep(time.Second)
		r.wantAgain("again", r.numbered(p, 1, event("t")), first)
		r.wantCode("a hole", r.numbered(p, 3, event("t")), eventhub.CodeBadSequence, false)
		r.wantCode("number 0", r.numbered(p, 0, event("t")), eventhub.CodeBadSequence, false)
		r.wantCode("another", r.numbered(p, 1, event("t"), event("t")), eventhub.CodeBadSequence, false)

		// Refusals use their numbers, and are answered again as they were.
		bad := eventhub.Event{Topic: "no topic", Payload: []byte(`1`)}
		r.wantCode("bad event", r.numbered(p, 2, event("t"), bad), eventhub.CodeBadTopic, true)
		again := r.numbered(p, 2, event("t"), event("t"))
		r.wantCode("bad event again", again, eventhub.CodeBadTopic, true)
		if e := eventhub.AsError(again.Err); e.Index == nil || *e.Index != 1 || !strings.Contains(e.Message, "no topic") {
			t.Errorf("%+v", e)
		}
		expecting := event("t")
		expecting.Expect = eventhub.Expect{Kind: eventhub.ExpectTopicOffset, Offset: 7}
		for range 2 {
			conflict := r.numbered(p, 3, event("t"), expecting)
			r.wantCode("conflict", conflict, eventhub.CodeConflict, true)
			if present, ok := eventhub.PresentOffset(conflict.Err); !ok || present != 1 {
				t.Error(conflict.Err)
			}
		}
		limited := eventhub.Publication{Producer: p, Seq: 4, Events: []eventhub.Event{event("t")}}
		if err := limited.Refuse(&eventhub.Error{Code: eventhub.CodeRateLimited, Message: "slow", RetryAfter: time.Second}); err != nil {
			t.Fatal(err)
		}
		r.wantCode("refused before", r.enqueueOne(limited), eventhub.CodeRateLimited, true)
		got := r.numbered(p, 4, event("t"))
		if e := eventhub.AsError(got.Err); e.Code != eventhub.CodeRateLimited || e.RetryAfter != time.Second {
			t.Errorf("%+v", e)
		}
		// What was published is so, whatever would refuse it now.
		limited.Seq = 1
		r.wantAgain("again, when it would be refused", r.enqueueOne(limited), first)
		r.wantCode("the next", r.numbered(p, 5, event("t")), "", true)
		if head, _ := r.store.Head(context.Background(), "t"); head != 2 {
			t.Errorf("%d events; want 2", head)
		}
	})
}

func TestNumbersOfDelayed(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		later, at := event("t"), event("t")
		later.Delay, at.DeliverAt = time.Minute, time.Now().Add(time.Hour).Truncate(time.Millisecond)
		first := r.numbered(p, 1, event("t"), later, at)
		r.wantCode("delayed", first, "", true)
		r.wantAgain("at once", r.numbered(p, 1, event("t"), later, at), first)
		time.Sleep(2 * time.Hour) // both are published meanwhile
		synctest.Wait()
		r.wantAgain("after its time", r.numbered(p, 1, event("t"), later, at), first)
		if head, _ := r.store.Head(context.Background(), "t"); head != 3 {
			t.Errorf("%d events; want 3", head)
		}
		// A time that is over: it is delayed, and published at once.
		past := event("t")
		past.DeliverAt = time.Now().Add(-time.Hour)
		r.wantCode("a time that is over", r.numbered(p, 2, past), "", true)
		synctest.Wait()
		if head, _ := r.store.Head(context.Background(), "t"); head != 4 {
			t.Errorf("%d events; want 4", head)
		}
	})
}

func TestNumbersWait(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		waiting := func(seq uint64) eventhub.Publication {
			return eventhub.Publication{Producer: p, Seq: seq, Events: []eventhub.Event{event("t")}, WaitFor: []string{"g"}, WaitUpTo: time.Second}
		}
		r.wantCode("no such group", r.enqueueOne(waiting(1)), eventhub.CodeNotSubscribed, true)
		r.wantCode("the next", r.numbered(p, 2, event("t")), "", true)
		r.wantCode("no such group, again", r.numbered(p, 1, event("t")), eventhub.CodeNotSubscribed, true)
	})
}

func TestProducerIsTakenOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		first := r.numbered(p, 1, event("t"))
		q := r.mustOpenProducer("p", p.Epoch)
		if q.Epoch <= p.Epoch || q.Last != 1 {
			t.Errorf("%+v after %+v", q, p)
		}
		r.wantCode("who had it", r.numbered(p, 2, event("t")), eventhub.CodeFenced, false)
		r.wantAgain("who has it", r.numbered(q, 1, event("t")), first)
		if _, err := r.openProducer("p", p.Epoch); eventhub.ErrorCode(err) != eventhub.CodeFenced {
			t.Error(err)
		}
		if _, err := r.openProducer("none", 3); eventhub.ErrorCode(err) != eventhub.CodeUnknownProducer {
			t.Error(err)
		}
		if _, err := r.openProducer("no id", 0); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Error(err)
		}
		other, err := r.bus.OpenProducer(context.Background(), eventhub.ProducerOptions{Owner: "you", ID: "p"})
		if err != nil || other.Last != 0 {
			t.Fatal(other, err)
		}
		r.wantCode("of another principal", r.numbered(other, 1, event("t")), "", true)
		r.wantCode("who has it", r.numbered(q, 2, event("t")), "", true)
	})
}

func TestProducersAreForgotten(t *testing.T) {
	inBubble(t, func(r *rig) {
		p, kept := r.mustOpenProducer("p", 0), r.mustOpenProducer("kept", 0)
		r.wantCode("p", r.numbered(p, 1, event("t")), "", true)
		q := r.mustOpenProducer("p", p.Epoch) // two users until p leaves
		r.bus.LeaveProducer(p)
		time.Sleep(eventhub.DefaultProducerKept + time.Second)
		r.wantCode("somebody uses it", r.numbered(q, 2, event("t")), "", true)
		r.bus.LeaveProducer(q)
		time.Sleep(eventhub.DefaultProducerKept - time.Second)
		q = r.mustOpenProducer("p", q.Epoch)
		r.bus.LeaveProducer(q)
		time.Sleep(eventhub.DefaultProducerKept + time.Second)
		synctest.Wait()
		r.wantCode("forgotten", r.numbered(q, 3, event("t")), eventhub.CodeUnknownProducer, false)
		if _, err := r.openProducer("p", q.Epoch); eventhub.ErrorCode(err) != eventhub.CodeUnknownProducer {
			t.Error(err)
		}
		if again := r.mustOpenProducer("p", 0); again.Last != 0 || again.Epoch <= q.Epoch {
			t.Errorf("%+v after %+v", again, q)
		}
		r.wantCode("one that is used", r.numbered(kept, 1, event("t")), "", true)
		// A restart counts as the end of all use.
		r.restart()
		time.Sleep(eventhub.DefaultProducerKept / 2)
		kept = r.mustOpenProducer("kept", kept.Epoch)
		time.Sleep(eventhub.DefaultProducerKept)
		synctest.Wait()
		if list, err := r.store.ListProducers(context.Background()); err != nil || len(list) != 1 || list[0].Name != kept.Name {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

func TestTooManyProducers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{MaxProducers: 3})
		a, b, c := r.mustOpenProducer("a", 0), r.mustOpenProducer("b", 0), r.mustOpenProducer("c", 0)
		if _, err := r.openProducer("d", 0); eventhub.ErrorCode(err) != eventhub.CodeOverloaded {
			t.Error(err)
		}
		r.bus.LeaveProducer(b)
		time.Sleep(time.Second)
		r.bus.LeaveProducer(a)
		d := r.mustOpenProducer("d", 0) // in the place of b, which was left first
		if _, err := r.openProducer("b", b.Epoch); eventhub.ErrorCode(err) != eventhub.CodeUnknownProducer {
			t.Error(err)
		}
		a = r.mustOpenProducer("a", a.Epoch)
		for _, p := range []*eventhub.Producer{a, c, d} {
			r.wantCode(p.ID, r.numbered(p, 1, event("t")), "", true)
		}
	})
}

// A producer that could not be opened is not in use.
func TestOpeningFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		r.mustOpenProducer("p", p.Epoch)
		if _, err := r.openProducer("p", p.Epoch); eventhub.ErrorCode(err) != eventhub.CodeFenced {
			t.Fatal(err)
		}
		if m, err := r.bus.Measure(context.Background()); err != nil || m.Producers != 1 || m.ProducersUsed != 1 {
			t.Errorf("%d producers, %d in use, %v", m.Producers, m.ProducersUsed, err)
		}
		r.bus.LeaveProducer(p)
		r.bus.LeaveProducer(p)
		r.stop()
		if _, err := r.openProducer("q", 0); eventhub.ErrorCode(err) != eventhub.CodeShuttingDown {
			t.Fatal(err)
		}
		if _, used := r.bus.producers.Count(); used != 0 {
			t.Errorf("%d in use", used)
		}
		r.start(Options{})
	})
}

// Where there is no room for events the refusal has its number, and what was published before has
// its answer.
func TestNumbersWithoutRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		first := r.numbered(p, 1, event("t"))
		faults := r.faulty()
		r.stop()
		faults.SetSpace(func() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil })
		r.start(Options{})
		synctest.Wait()
		p = r.mustOpenProducer("p", p.Epoch)
		r.wantAgain("what was published", r.numbered(p, 1, event("t")), first)
		r.wantCode("no room", r.numbered(p, 2, event("t")), eventhub.CodeOverloaded, true)
		r.wantCode("no room, without a number", r.enqueueOne(eventhub.Publication{Events: []eventhub.Event{event("t")}}), eventhub.CodeOverloaded, false)
		if head, _ := r.store.Head(context.Background(), "t"); head != 1 {
			t.Errorf("%d events", head)
		}
	})
}

// Who opens very many producers loses its own, and takes none from others who have fewer.
func TestManyProducersOfOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{MaxProducers: 4})
		mine := r.mustOpenProducer("mine", 0)
		r.bus.LeaveProducer(mine)
		open := func(id string) (*eventhub.Producer, error) {
			return r.bus.OpenProducer(context.Background(), eventhub.ProducerOptions{Owner: "greedy", ID: id})
		}
		var last *eventhub.Producer
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			p, err := open(id)
			if err != nil {
				t.Fatal(err)
			}
			last = p
			if id != "e" {
				r.bus.LeaveProducer(p)
			}
		}
		if again := r.mustOpenProducer("mine", mine.Epoch); again.Born != mine.Born {
			t.Errorf("%+v was %+v", again, mine)
		}
		r.bus.LeaveProducer(mine)
		for _, id := range []string{"d", "c"} { // c is made again, in the place of the last one that nobody uses
			if _, err := open(id); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := open("f"); eventhub.ErrorCode(err) != eventhub.CodeOverloaded {
			t.Errorf("%v; only a producer of another principal might give way", err)
		}
		r.wantCode("one of many", r.numbered(last, 1, event("t")), "", true)
		if again := r.mustOpenProducer("mine", 0); again.Born != mine.Born {
			t.Errorf("%+v was %+v", again, mine)
		}
	})
}

// What would be refused now is answered as it was, also where it cannot be encoded any more, and
// where it waited for groups.
func TestNumbersThatWouldBeRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		p := r.mustOpenProducer("p", 0)
		later := event("t")
		later.Delay = time.Hour
		named := event("t")
		named.ID = "mine"
		first := r.numbered(p, 1, event("t"), later, named)
		r.wantCode("the first", first, "", true)
		bad := event("no topic")
		again := r.numbered(p, 1, bad, later, named)
		r.wantAgain("what cannot be encoded", again, first)
		waiting := eventhub.Publication{Producer: p, Seq: 1, Events: []eventhub.Event{event("t"), later, named}, WaitFor: []string{"none"}}
		got := r.enqueueOne(waiting)
		if eventhub.ErrorCode(got.Err) != eventhub.CodeWaitTimeout || !got.SeqUsed || len(got.Receipts) != 3 || got.Receipts[0].Offset != first.Receipts[0].Offset {
			t.Errorf("%+v", got)
		}
		waiting.Events = []eventhub.Event{event("t")}
		waiting.Seq = 2
		r.wantCode("a second", r.numbered(p, 2, event("t")), "", true)
		if err := waiting.Refuse(eventhub.Errorf(eventhub.CodeRateLimited, "slow")); err != nil {
			t.Fatal(err)
		}
		if got := r.enqueueOne(waiting); eventhub.ErrorCode(got.Err) != eventhub.CodeWaitTimeout || len(got.Receipts) != 1 {
			t.Errorf("%+v", got)
		}
		past := event("t")
		past.DeliverAt = time.Now().Add(-time.Hour)
		r.wantCode("a time that is over, with a wait", r.enqueueOne(eventhub.Publication{Producer: p, Seq: 3, Events: []eventhub.Event{past}, WaitFor: []string{"none"}}), eventhub.CodeNotSubscribed, true)
	})
}
