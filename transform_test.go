package eventhub_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
)

// transforming runs a Transform over the group until stop is called, which says
// what it returned.
func transforming(t *testing.T, f *fakeGroup, concurrency int, tr eventhub.Transformer) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- eventhub.Transform(ctx, f, eventhub.GroupOptions{Topic: "t", Group: "g", Concurrency: concurrency}, tr)
	}()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

// oneEach makes one result of each event, to a topic named after its offset.
func oneEach(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
	return []eventhub.Event{{Topic: fmt.Sprint("r", d.Offset), Payload: []byte(`1`)}}, nil
}

// stepper answers ack-and-publishes when it is asked to.
type stepper struct {
	calls [][]string // topics of the results
	times []time.Time
	reply func(h *eventhub.AckPublish)
	hold  bool
	later []func()
}

func (s *stepper) ackAndPublish(_ context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	var topics []string
	for i := range hs {
		topics = append(topics, hs[i].Events[0].Topic)
	}
	s.calls, s.times = append(s.calls, topics), append(s.times, time.Now())
	answer := func() {
		for i := range hs {
			if s.reply != nil {
				s.reply(&hs[i])
			}
		}
		done(hs)
	}
	if s.hold {
		s.later = append(s.later, answer)
		return
	}
	answer()
}

func (s *stepper) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, call := range s.calls {
		got = append(got, strings.Join(call, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("handed over %q; want %q", got, want)
	}
}

// TestTransformStep: results and ack in one step, the results filled in; no
// results are a plain ack, an error is a nack.
func TestTransformStep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var steps []eventhub.AckPublish
		f := &fakeGroup{}
		f.ackAndPublish = func(_ context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
			steps = append(steps, slices.Clone(hs)...)
			done(hs)
		}
		mine := map[string]string{"TraceParent": "mine", "x-a": "b"}
		given := []eventhub.Event{
			{Topic: "a", Payload: []byte(`1`)},
			{Topic: "b", Payload: []byte(`2`), ID: "my-id", CausedBy: []string{"other"}, Headers: mine},
		}
		stop := transforming(t, f, 1, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			switch d.Offset {
			case 7:
				return given, nil
			case 8:
				return nil, nil
			}
			return given, errors.New("can not")
		})
		f.receiver.Deliver([]eventhub.Delivery{
			{Topic: "t", Offset: 7, Lease: eventhub.Lease{Serial: 7},
				Record: eventhub.Record(`{"ts":1723140000000,"id":"seven","topic":"t","headers":{"traceparent":"00-1","x-correlation-id":"c","x-b":"no"},"payload":1}`)},
			{Topic: "t", Offset: 8, Lease: eventhub.Lease{Serial: 8}, Record: eventhub.Record(`{"ts":1723140000000,"id":"eight","topic":"t","payload":1}`)},
			{Topic: "t", Offset: 9, Lease: eventhub.Lease{Serial: 9}, Record: eventhub.Record(`{"ts":1723140000000,"id":"nine","topic":"t","payload":1}`)},
		})
		synctest.Wait()
		want := []eventhub.AckPublish{{
			Refs: []eventhub.Ref{{Lease: eventhub.Lease{Serial: 7}}},
			Events: []eventhub.Event{
				{Topic: "a", Payload: []byte(`1`), ID: eventhub.ResultID("g", "t", 7, 0), CausedBy: []string{"seven"},
					Headers: map[string]string{"traceparent": "00-1", "x-correlation-id": "c"}},
				{Topic: "b", Payload: []byte(`2`), ID: "my-id", CausedBy: []string{"other"},
					Headers: map[string]string{"TraceParent": "mine", "x-a": "b", "x-correlation-id": "c"}},
			},
		}}
		if !reflect.DeepEqual(steps, want) {
			t.Errorf("got  %+v\nwant %+v", steps, want)
		}
		if given[0].ID != "" || len(mine) != 2 {
			t.Errorf("what the Transformer returned was written to: %+v, %v", given[0], mine)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(f.verdicts) != 2 || f.verdicts[0].Verdict != eventhub.Ack || f.verdicts[0].Refs[0].Lease.Serial != 8 ||
			f.verdicts[1].Verdict != eventhub.Nack || f.verdicts[1].Reason != "can not" {
			t.Errorf("verdicts %+v", f.verdicts)
		}
	})
}

// TestTransformGathers: the worker goes on while a step is under way, and what
// it makes goes together, in order.
func TestTransformGathers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &stepper{hold: true}
		f := &fakeGroup{ackAndPublish: s.ackAndPublish}
		stop := transforming(t, f, 1, oneEach)
		f.feed(1, 1)
		synctest.Wait()
		f.feed(2, 4)
		synctest.Wait()
		s.wantCalls(t, "r1")
		s.hold = false
		s.later[0]()
		synctest.Wait()
		s.wantCalls(t, "r1", "r2 r3 r4 r5")
		if err := stop(); err != nil || len(f.verdicts) != 0 || f.left != 1 {
			t.Errorf("%v; verdicts %+v; left %d times", err, f.verdicts, f.left)
		}
	})
}

// TestTransformOutcomes: a lease that is lost is left alone, what has no room is
// tried again before what comes after it, what can not be published is nacked.
func TestTransformOutcomes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		refusals := map[string][]error{
			"r1": {eventhub.Errorf(eventhub.CodeLeaseLost, "gone")},
			"r2": {eventhub.Errorf(eventhub.CodeOverloaded, "full"), eventhub.Errorf(eventhub.CodeOverloaded, "still"),
				&eventhub.Error{Code: eventhub.CodeRateLimited, Message: "slowly", RetryAfter: 3 * time.Second}},
			"r3": {eventhub.Errorf(eventhub.CodeBadEvent, "no event")},
			"r4": {eventhub.Errorf(eventhub.CodeShuttingDown, "later")},
		}
		s := &stepper{reply: func(h *eventhub.AckPublish) {
			topic := h.Events[0].Topic
			if left := refusals[topic]; len(left) > 0 {
				h.Err, refusals[topic] = left[0], left[1:]
			}
		}}
		s.hold = true
		f := &fakeGroup{ackAndPublish: s.ackAndPublish}
		stop := transforming(t, f, 1, oneEach)
		f.feed(1, 1)
		synctest.Wait()
		f.feed(2, 3)
		synctest.Wait()
		s.hold = false
		s.later[0]()
		synctest.Wait()
		f.feed(5, 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		s.wantCalls(t, "r1", "r2 r3 r4", "r2 r5", "r2", "r2")
		for i, want := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
			if got := s.times[i+2].Sub(s.times[i+1]); got != want {
				t.Errorf("pause %d lasts %s; want %s", i+1, got, want)
			}
		}
		if len(f.verdicts) != 1 || f.verdicts[0].Verdict != eventhub.Nack || f.verdicts[0].Refs[0].Lease.Offset != 3 ||
			!strings.Contains(f.verdicts[0].Reason, "no event") {
			t.Errorf("verdicts %+v", f.verdicts)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestTransformEnds: what was begun is finished, what has no room then is left
// to others, and a hub that says nothing is not waited for longer than 10 s.
func TestTransformEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &stepper{hold: true}
		f := &fakeGroup{ackAndPublish: s.ackAndPublish}
		stop := transforming(t, f, 1, oneEach)
		f.feed(1, 1)
		synctest.Wait()
		f.feed(2, 1)
		synctest.Wait()
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(ended) != 0 || f.left != 0 {
			t.Fatal("Transform ended while a step was under way")
		}
		s.hold = false
		s.reply = func(h *eventhub.AckPublish) { h.Err = eventhub.Errorf(eventhub.CodeOverloaded, "full") }
		s.later[0]()
		if err := <-ended; err != nil || f.left != 1 || len(f.verdicts) != 0 {
			t.Errorf("%v; left %d times; verdicts %+v", err, f.left, f.verdicts)
		}
		s.wantCalls(t, "r1", "r2")
	})
	bubble.Test(t, func(t *testing.T) { // in the middle of a pause
		s := &stepper{reply: func(h *eventhub.AckPublish) {
			h.Err = &eventhub.Error{Code: eventhub.CodeRateLimited, RetryAfter: time.Hour}
		}}
		f := &fakeGroup{ackAndPublish: s.ackAndPublish}
		stop := transforming(t, f, 1, oneEach)
		f.feed(1, 1)
		synctest.Wait()
		began := time.Now()
		if err := stop(); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		f.ackAndPublish = func(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
			context.AfterFunc(ctx, func() {
				hs[0].Err = ctx.Err()
				done(hs)
			})
		}
		stop := transforming(t, f, 1, oneEach)
		f.feed(1, 1)
		time.Sleep(time.Minute)
		began := time.Now()
		if err := stop(); err != nil || time.Since(began) != 10*time.Second || len(f.verdicts) != 0 {
			t.Errorf("%v after %s; verdicts %+v", err, time.Since(began), f.verdicts)
		}
	})
}

func TestTransformNeedsAcks(t *testing.T) {
	for _, opts := range []eventhub.GroupOptions{{Topic: "t", Group: "g", AutoAck: true}} {
		err := eventhub.Transform(context.Background(), &fakeGroup{}, opts, oneEach)
		if eventhub.ErrorCode(err) != eventhub.CodeBadRequest || !strings.Contains(err.Error(), `"t"`) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// TestResultIDs: they are ids, each stands for one result, and they are the same
// for ever.
func TestResultIDs(t *testing.T) {
	if got, want := eventhub.ResultID("g", "t", 7, 0), "65082ed23996f3e350be9db8-7-0"; got != want {
		t.Errorf("the id is %s; it was %s", got, want)
	}
	seen := make(map[string]string)
	for _, r := range []struct {
		group, topic string
		offset       uint64
		index        int
	}{{"g", "t", 7, 0}, {"g", "t", 7, 1}, {"g", "t", 70, 1}, {"g", "t", 7, 10}, {"gt", "", 7, 0}, {"", "gt", 7, 0},
		{strings.Repeat("g", 128), strings.Repeat("t", 240), eventhub.MaxOffset, 9999}} {
		id := eventhub.ResultID(r.group, r.topic, r.offset, r.index)
		if err := eventhub.ValidateID(id); err != nil {
			t.Error(err)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%+v and %s have the id %s", r, other, id)
		}
		seen[id] = fmt.Sprintf("%+v", r)
	}
}
