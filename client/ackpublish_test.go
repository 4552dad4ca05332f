package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/client"
	"eventhub/wire"
)

// handingOver answers an ack-and-publish with answer, after it reported what came.
func handingOver(sent chan<- string, answer func(r *wire.Request) ([]string, bool)) scripted {
	return func(r *wire.Request) ([]string, bool) {
		sent <- fmt.Sprint(r.Op, " ", r.Topic, "::", r.Group, " ", r.Settlement.Refs, " ", eventIDs(r.Events))
		return answer(r)
	}
}

func oneAckPublish(offset uint64, events ...eventhub.Event) eventhub.AckPublish {
	return eventhub.AckPublish{Refs: []eventhub.Ref{{Lease: eventhub.Lease{Runtime: 1, Offset: offset, Serial: 1}}}, Events: events}
}

// TestAckAndPublish: each for itself, receipts with the ids that were sent.
func TestAckAndPublish(t *testing.T) {
	sent := make(chan string, 9)
	c := dial(t, startScripted(t, handingOver(sent, func(r *wire.Request) ([]string, bool) {
		switch r.Settlement.Refs[0].Lease.Offset {
		case 1:
			return []string{batchOK(r, 7, true)}, true
		case 4:
			return []string{ok(r)}, true
		}
		return []string{refusal(r, eventhub.CodeLeaseLost)}, true
	})))
	mine := event("v", `2`)
	mine.ID = "mine"
	hs := []eventhub.AckPublish{
		oneAckPublish(1, event("u", `1`), mine),
		oneAckPublish(2, event("no topic", `1`)),
		oneAckPublish(3, mine),
		oneAckPublish(4),
	}
	done := make(chan []eventhub.AckPublish, 1)
	c.AckAndPublish(bounded(t), "t.*", "g", hs, func(hs []eventhub.AckPublish) { done <- hs })
	got := await(t, "the outcome", done)
	want := []eventhub.Receipt{{ID: got[0].Receipts[0].ID, Offset: 7}, {ID: "mine", Offset: 8, Duplicate: true}}
	if got[0].Err != nil || !slices.Equal(got[0].Receipts, want) || want[0].ID == "" {
		t.Errorf("the first: %+v, %v", got[0].Receipts, got[0].Err)
	}
	wantCode(t, got[1].Err, eventhub.CodeBadTopic)
	wantCode(t, got[2].Err, eventhub.CodeLeaseLost)
	if strings.Contains(got[2].Err.Error(), "may have been") {
		t.Errorf("sent once: %v", got[2].Err)
	}
	if got[3].Err != nil || len(got[3].Receipts) != 0 {
		t.Errorf("the last: %+v", got[3])
	}
	if first := await(t, "a frame", sent); first != "ACK t.*::g [{ 1-1-1 }] "+want[0].ID+" mine " {
		t.Errorf("the client sent %s", first)
	}
	if len(sent) != 2 {
		t.Errorf("%d frames more came; want 2", len(sent))
	}
}

// TestAckAndPublishAnswerLost: it is sent again before anything else, by its lease and
// under the same ids; when the lease is lost then, the error says that the first
// may have done it.
func TestAckAndPublishAnswerLost(t *testing.T) {
	sent := make(chan string, 9)
	addr := startScripted(t,
		func(r *wire.Request) ([]string, bool) {
			if r.Op == wire.OpSubscribe {
				return []string{ok(r)}, true
			}
			return handingOver(sent, func(*wire.Request) ([]string, bool) { return nil, false })(r)
		},
		handingOver(sent, func(r *wire.Request) ([]string, bool) {
			if r.Op == wire.OpSubscribe {
				return []string{ok(r)}, true
			}
			return []string{refusal(r, eventhub.CodeLeaseLost)}, true
		}),
	)
	c := dial(t, addr)
	sub, err := c.Subscribe(bounded(t), earliest("t", "g"), newCollector(9))
	if err != nil {
		t.Fatal(err)
	}
	h := oneAckPublish(1, event("u", `1`))
	_, err = eventhub.AckAndPublish(bounded(t), sub, h.Refs, h.Events...)
	wantCode(t, err, eventhub.CodeLeaseLost)
	if !strings.Contains(eventhub.AsError(err).Message, "may have been carried out") {
		t.Errorf("the message does not say what is open: %v", err)
	}
	first := await(t, "a frame", sent)
	if second := await(t, "a frame", sent); !strings.HasPrefix(first, "ACK t::g [{ 1-1-1 }] ") || second != first {
		t.Errorf("the client sent %s, then %s", first, second)
	}
	if third := await(t, "a frame", sent); !strings.HasPrefix(third, "SUBSCRIBE") {
		t.Errorf("then %s; want the SUBSCRIBE", third)
	}
}

// TestAckAndPublishEnds with the context and with the client, its outcome unknown.
func TestAckAndPublishEnds(t *testing.T) {
	sent := make(chan string, 9)
	silent := handingOver(sent, func(*wire.Request) ([]string, bool) { return nil, true })
	c := dial(t, startScripted(t, silent))
	done := make(chan error, 1)
	report := func(hs []eventhub.AckPublish) { done <- hs[0].Err }
	ctx, cancel := context.WithCancel(bounded(t))
	c.AckAndPublish(ctx, "t", "g", []eventhub.AckPublish{oneAckPublish(1, event("u", `1`))}, report)
	await(t, "the frame", sent)
	cancel()
	if err := await(t, "the outcome", done); !errors.Is(err, context.Canceled) {
		t.Errorf("the context has ended: %v", err)
	}
	c.AckAndPublish(bounded(t), "t", "g", []eventhub.AckPublish{oneAckPublish(2, event("u", `1`))}, report)
	c.Close()
	if err := await(t, "the outcome", done); !errors.Is(err, client.ErrClosed) {
		t.Errorf("the client was closed: %v", err)
	}
	c.AckAndPublish(bounded(t), "t", "g", []eventhub.AckPublish{oneAckPublish(3, event("u", `1`))}, report)
	if err := await(t, "the outcome", done); !errors.Is(err, client.ErrClosed) {
		t.Errorf("the client is closed: %v", err)
	}
}

// TestTransformSteps: results and ack in one frame; what fails is nacked; a lease
// that is lost is in the log, and that is all.
func TestTransformSteps(t *testing.T) {
	var steps, verdicts []string
	over := make(chan struct{})
	addr := startScripted(t, func(r *wire.Request) ([]string, bool) {
		var answer string
		switch {
		case r.Op == wire.OpSubscribe:
			return []string{ok(r), eventsFrame("t.*", "g", 1, 4)}, true
		case r.Op == wire.OpUnsubscribe:
			close(over)
			return []string{ok(r)}, true
		case len(r.Events) == 0:
			for _, ref := range r.Settlement.Refs {
				verdicts = append(verdicts, fmt.Sprint(r.Op, " ", ref.Lease.Offset, " ", r.Settlement.Reason))
			}
			return nil, true
		case r.Settlement.Refs[0].Lease.Offset == 2:
			answer = refusal(r, eventhub.CodeLeaseLost)
		case r.Settlement.Refs[0].Lease.Offset == 4:
			answer = refusal(r, eventhub.CodeTooLarge)
		default:
			answer = batchOK(r, 70, false)
		}
		e := r.Events[0]
		steps = append(steps, fmt.Sprint(r.Settlement.Refs[0].Lease.Offset, " ", e.ID, " ", e.CausedBy, " ", string(e.Payload)))
		return []string{answer}, true
	})
	log := new(logBuffer)
	c := dial(t, addr, client.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	ctx, stop := context.WithCancel(bounded(t))
	err := c.Transform(ctx, eventhub.GroupOptions{Topic: "t.*", Group: "g"}, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
		if d.Offset == 4 {
			stop()
		}
		if d.Offset == 3 {
			return nil, errors.New("can not")
		}
		return []eventhub.Event{{Topic: "u", Payload: fmt.Append(nil, d.Offset)}}, nil
	})
	if err != nil {
		t.Error(err)
	}
	await(t, "the end", over)
	var want []string
	for _, offset := range []int{1, 2, 4} {
		want = append(want, fmt.Sprintf("%d %s [e-%d] %d", offset, eventhub.ResultID("g", "t", uint64(offset), 0), offset, offset))
	}
	if !slices.Equal(steps, want) {
		t.Errorf("the steps are %q; want %q", steps, want)
	}
	if len(verdicts) != 2 || verdicts[0] != "NACK 3 can not" || !strings.HasPrefix(verdicts[1], "NACK 4 too_large") {
		t.Errorf("the verdicts are %q", verdicts)
	}
	if text := log.String(); !strings.Contains(text, "offset=2") || strings.Contains(text, "offset=4") || strings.Count(text, "\n") != 1 {
		t.Errorf("the log is %s", text)
	}
}

// TestTransformOverALoss: the step under way is taken again; what was not begun is
// not; what is made meanwhile of a delivery of the lost connection goes by its lease:
// the hub knows whether that counts.
func TestTransformOverALoss(t *testing.T) {
	var frames []string
	proceed, over := make(chan struct{}), make(chan struct{})
	addr := startScripted(t,
		func(r *wire.Request) ([]string, bool) {
			if r.Op == wire.OpSubscribe {
				return []string{ok(r), eventsFrame("t", "g", 1, 3)}, true
			}
			return nil, false
		},
		func(r *wire.Request) ([]string, bool) {
			frames = append(frames, fmt.Sprint(r.Op, len(r.Events)))
			switch r.Op {
			case wire.OpSubscribe:
				close(proceed)
				return []string{ok(r)}, true
			case wire.OpUnsubscribe:
				close(over)
				return []string{ok(r)}, true
			case wire.OpPublish:
				return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":1}`, r.Corr)}, true
			}
			return []string{batchOK(r, 70, true)}, true
		},
	)
	c := dial(t, addr)
	ctx, stop := context.WithCancel(bounded(t))
	var began []uint64
	err := c.Transform(ctx, eventhub.GroupOptions{Topic: "t", Group: "g"}, func(ctx context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
		if began = append(began, d.Offset); d.Offset == 2 {
			await(t, "the next connection", proceed)
			_, err := c.Publish(ctx, event("v", `1`)) // the loss is known
			stop()
			if err != nil {
				t.Error(err)
			}
		}
		return []eventhub.Event{event("u", `1`)}, nil
	})
	if err != nil {
		t.Error(err)
	}
	await(t, "the end", over)
	if !slices.Equal(began, []uint64{1, 2}) || !slices.Equal(frames, []string{"ACK1", "SUBSCRIBE0", "PUBLISH0", "ACK1", "UNSUBSCRIBE0"}) {
		t.Errorf("began %v; then the client said %v", began, frames)
	}
}

// ledgerHub is a hub with one topic, one group and one log of results. Its
// connections end at random, before or after what they were asked for.
type ledgerHub struct {
	t       *testing.T
	r       *rand.Rand
	total   int
	serial  uint64
	leases  map[int]eventhub.Lease // the last of each event that is not done
	next    int                    // the first event that was never delivered to this connection
	done    int
	results map[string]string // payload by id
	order   []string          // payloads
	again   int               // results that were there
	lost    int               // leases
	cuts    int
	over    chan struct{}
}

const ledgerWindow = 16

// deliver appends deliveries until the window is full.
func (h *ledgerHub) deliver(frames []string, open int) []string {
	var batch []eventhub.Delivery
	for ; h.next <= h.total && open < ledgerWindow; h.next++ {
		if _, ok := h.leases[h.next]; !ok {
			continue
		}
		h.serial++
		d := deliveryFrom("t", h.next)
		d.Lease.Serial = h.serial
		h.leases[h.next] = d.Lease
		batch = append(batch, d)
		open++
	}
	if len(batch) == 0 {
		return frames
	}
	return append(frames, string(wire.NewEventFrame("t", "g").AppendAll(nil, batch)))
}

// open is how many deliveries of this connection are not done.
func (h *ledgerHub) open() (n int) {
	for offset := range h.leases {
		if offset < h.next {
			n++
		}
	}
	return n
}

func (h *ledgerHub) serve(r *wire.Request) ([]string, bool) {
	switch r.Op {
	case wire.OpSubscribe:
		h.next = 1
		return h.deliver([]string{ok(r)}, 0), true
	case wire.OpAck:
		if h.r.IntN(40) == 0 {
			h.cuts++
			return nil, false
		}
		answer := h.take(r)
		if h.r.IntN(40) == 0 {
			h.cuts++
			return nil, false
		}
		return h.deliver([]string{answer}, h.open()), true
	}
	return []string{ok(r)}, true
}

func (h *ledgerHub) take(r *wire.Request) string {
	lease := r.Settlement.Refs[0].Lease
	if h.leases[int(lease.Offset)] != lease {
		h.lost++
		return refusal(r, eventhub.CodeLeaseLost)
	}
	delete(h.leases, int(lease.Offset))
	for _, e := range r.Events {
		if _, ok := h.results[e.ID]; ok {
			h.again++
			continue
		}
		h.results[e.ID] = string(e.Payload)
		h.order = append(h.order, string(e.Payload))
	}
	if h.done++; h.done == h.total {
		close(h.over)
	}
	return batchOK(r, 1, false)
}

// TestTransformOverCutConnections: every event has its two results once, whatever
// was lost between the hub and the client.
func TestTransformOverCutConnections(t *testing.T) {
	const total = 1500
	h := &ledgerHub{t: t, r: rand.New(rand.NewPCG(drawSeed(t), 3)), total: total,
		leases: make(map[int]eventhub.Lease), results: make(map[string]string), over: make(chan struct{})}
	for offset := range total {
		h.leases[offset+1] = eventhub.Lease{}
	}
	c := dial(t, startScripted(t, slices.Repeat([]scripted{h.serve}, 10*total)...))
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- c.Transform(ctx, eventhub.GroupOptions{Topic: "t", Group: "g", Concurrency: 4}, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			return []eventhub.Event{event("u", fmt.Sprintf(`"%d a"`, d.Offset)), event("u", fmt.Sprintf(`"%d b"`, d.Offset))}, nil
		})
	}()
	await(t, "the last result", h.over)
	stop()
	if err := await(t, "the end", ended); err != nil {
		t.Error(err)
	}
	c.Close()
	t.Logf("%d connections were cut, %d leases lost", h.cuts, h.lost)
	count := make(map[string]int)
	for i, payload := range h.order {
		count[payload]++
		if i%2 == 1 && strings.Replace(h.order[i-1], "a", "b", 1) != payload {
			t.Errorf("%s comes after %s: a step was not one", payload, h.order[i-1])
		}
	}
	if len(h.order) != 2*total || len(count) != 2*total || h.again != 0 {
		t.Errorf("there are %d results, %d different ones; %d came again", len(h.order), len(count), h.again)
	}
	if h.cuts < 10 || h.lost == 0 {
		t.Error("too little was lost: the test shows nothing")
	}
}
