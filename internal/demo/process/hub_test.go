package process

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"eventhub"
)

// hub is what the projector sees of a hub: one group over a log of heartbeats,
// and a log of states in which an id counts once. Time is that of the bubble
// that the test runs in.
type hub struct {
	eventhub.Publisher
	eventhub.Subscriber

	mu         sync.Mutex
	heartbeats []eventhub.Record // offset i+1
	settled    []bool            // acked, or nacked for the last time
	leases     []eventhub.Lease  // the last of each offset
	delivered  int               // heartbeats[:delivered] were delivered to the member
	serial     uint64
	nacks      map[uint64]string // reason by offset

	options  eventhub.GroupOptions
	member   eventhub.Receiver // nil: nobody
	joined   int
	refusals int // batches that were taken in part

	states     []eventhub.Event // without duplicates
	seen       int              // states[:seen] were returned by newStates
	duplicates int
	batches    []int               // number of events of each publish
	publishing func([]State) error // asked before each publish, without the lock

	unreachable bool // for verdicts
}

func newHub() *hub { return &hub{nacks: make(map[uint64]string)} }

// beat appends one heartbeat of a process, committed now, and delivers it if
// somebody listens. It returns its offset.
func (h *hub) beat(pid int) uint64 {
	return h.append(time.Now(), fmt.Sprintf(`{"pid":%d,"name":"p","host":"h","cpu_pct":1.5,"mem_mb":20}`, pid))
}

func (h *hub) append(at time.Time, payloads ...string) uint64 {
	return h.appendAs(at, 0, payloads...)
}

// appendAs takes heartbeats of a process whose clock is wrong by skew.
func (h *hub) appendAs(at time.Time, skew time.Duration, payloads ...string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, payload := range payloads {
		record := fmt.Sprintf(`{"ts":%13d,"id":"hb-%d","topic":%q,"payload":%s}`, at.UnixMilli(), len(h.heartbeats)+1, HeartbeatTopic, payload)
		if skew != 0 {
			record = fmt.Sprintf(`{"committed_ts":%13d,"id":"hb-%d","ts":%d,"topic":%q,"payload":%s}`,
				at.UnixMilli(), len(h.heartbeats)+1, at.Add(skew).UnixMilli(), HeartbeatTopic, payload)
		}
		h.heartbeats = append(h.heartbeats, eventhub.Record(record))
		h.settled = append(h.settled, false)
		h.leases = append(h.leases, eventhub.Lease{})
	}
	h.deliverFresh()
	return uint64(len(h.heartbeats))
}

// deliverFresh hands over what was not delivered yet. h.mu is held.
func (h *hub) deliverFresh() {
	if h.member == nil {
		return
	}
	var batch []eventhub.Delivery
	for i := h.delivered; i < len(h.heartbeats); i++ {
		if !h.settled[i] {
			batch = append(batch, h.lease(uint64(i+1)))
		}
	}
	if len(batch) == 0 {
		h.delivered = len(h.heartbeats)
		return
	}
	taken := h.deliver(batch)
	h.delivered = len(h.heartbeats)
	if taken < len(batch) {
		h.refusals++
		h.delivered = int(batch[taken].Offset) - 1
	}
}

// unsettle loses the verdict on some heartbeat, and returns its offset.
func (h *hub) unsettle(rng *rand.Rand) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := rng.IntN(len(h.settled))
	h.settled[i] = false
	return uint64(i + 1)
}

// redeliver is what follows an expired lease.
func (h *hub) redeliver(offsets ...uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var batch []eventhub.Delivery
	for _, offset := range offsets {
		batch = append(batch, h.lease(offset))
	}
	h.deliver(batch)
}

// deliver hands over records that are valid only as long as that takes.
func (h *hub) deliver(batch []eventhub.Delivery) int {
	for i := range batch {
		batch[i].Record = slices.Clone(batch[i].Record)
	}
	taken := h.member.Deliver(batch)
	for i := range batch {
		clear(batch[i].Record)
	}
	return taken
}

func (h *hub) lease(offset uint64) eventhub.Delivery {
	h.serial++
	h.leases[offset-1] = eventhub.Lease{Runtime: 1, Offset: offset, Serial: h.serial}
	return eventhub.Delivery{Topic: HeartbeatTopic, Offset: offset, Record: h.heartbeats[offset-1], Lease: h.leases[offset-1]}
}

func (h *hub) Subscribe(_ context.Context, opts eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.options, h.member, h.delivered = opts, r, 0
	h.joined++
	h.deliverFresh()
	return &membership{h: h}, nil
}

// Tail gives the state of the states.
func (h *hub) Tail(_ context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := make(map[string]int)
	for i := range h.states {
		newest[h.states[i].Key] = i
	}
	s := &stateTail{receiver: r}
	for i := range h.states {
		if e := &h.states[i]; newest[e.Key] == i {
			record := fmt.Sprintf(`{"ts":%13d,"id":%q,"topic":%q,"partition":0,"key":%q,"payload":%s}`, time.Now().UnixMilli(), e.ID, StateTopic, e.Key, e.Payload)
			s.left = append(s.left, eventhub.Delivery{Topic: StateTopic, Offset: uint64(i + 1), Record: eventhub.Record(record), State: &eventhub.StatePart{}})
		}
	}
	s.left = append(s.left, eventhub.Delivery{Topic: StateTopic, State: &eventhub.StatePart{Complete: true, Offset: uint64(len(h.states)), Count: len(s.left)}})
	if opts.Topic != StateTopic || opts.Start != eventhub.Snapshot {
		return nil, fmt.Errorf("a tail of %+v", opts)
	}
	s.Ready()
	return s, nil
}

// stateTail is a tail that gives a state and nothing else.
type stateTail struct {
	eventhub.Subscription
	receiver eventhub.Receiver
	left     []eventhub.Delivery
}

func (s *stateTail) Ready() { s.left = s.left[s.receiver.Deliver(s.left):] }

func (s *stateTail) Unsubscribe(context.Context) error { return nil }

func (h *hub) Publish(_ context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if h.publishing != nil {
		states := make([]State, len(events))
		for i := range events {
			if err := json.Unmarshal(events[i].Payload, &states[i]); err != nil {
				return nil, err
			}
		}
		if err := h.publishing(states); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range events {
		if err := events[i].Validate(time.Now()); err != nil {
			return nil, err
		}
	}
	h.batches = append(h.batches, len(events))
	for _, e := range events {
		if e.ID != "" && slices.ContainsFunc(h.states, func(s eventhub.Event) bool { return s.ID == e.ID }) {
			h.duplicates++
			continue
		}
		h.states = append(h.states, e)
	}
	return make([]eventhub.Receipt, len(events)), nil
}

// open returns the offsets that are not settled.
func (h *hub) open() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	open := []uint64{}
	for i, settled := range h.settled {
		if !settled {
			open = append(open, uint64(i+1))
		}
	}
	return open
}

// newStates returns the states since the last call, as "pid status" each.
func (h *hub) newStates(t *testing.T) []string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	list := []string{}
	for _, e := range h.states[h.seen:] {
		s := state(t, e)
		list = append(list, fmt.Sprintf("%d %s", s.PID, s.Status))
	}
	h.seen = len(h.states)
	return list
}

// all returns every state reported so far.
func (h *hub) all() []eventhub.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.states)
}

// publishes returns the number of events of each publish so far.
func (h *hub) publishes() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.batches)
}

// listening returns the member, or nil.
func (h *hub) listening() eventhub.Receiver {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.member
}

func state(t *testing.T, e eventhub.Event) State {
	t.Helper()
	var s State
	if err := json.Unmarshal(e.Payload, &s); err != nil {
		t.Fatalf("payload %s: %v", e.Payload, err)
	}
	return s
}

// membership is the one subscription of a hub.
type membership struct {
	eventhub.Subscription
	h *hub
}

func (m *membership) Settle(ctx context.Context, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if m.h.unreachable {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return m.settle(s)
}

func (m *membership) settle(s eventhub.Settlement) ([]eventhub.Outcome, error) {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	outcomes := make([]eventhub.Outcome, len(s.Refs))
	for i, ref := range s.Refs {
		offset := ref.Lease.Offset
		if m.h.leases[offset-1] != ref.Lease || m.h.settled[offset-1] {
			outcomes[i] = eventhub.Stale
			continue
		}
		m.h.settled[offset-1] = true
		if s.Verdict == eventhub.Nack {
			m.h.nacks[offset] = s.Reason
		}
	}
	return outcomes, nil
}

// AckAndPublish is Publish and Settle in one: nothing, where a lease is not the last of
// its heartbeat.
func (m *membership) AckAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	go func() {
		for i := range hs {
			hs[i].Receipts, hs[i].Err = m.ackAndPublish(ctx, &hs[i])
		}
		done(hs)
	}()
}

func (m *membership) ackAndPublish(ctx context.Context, step *eventhub.AckPublish) ([]eventhub.Receipt, error) {
	if len(step.Refs) == 0 {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "there is nothing to ack")
	}
	for _, ref := range step.Refs {
		if !m.holds(ref.Lease) {
			return nil, eventhub.Errorf(eventhub.CodeLeaseLost, "lease %s is not the last one", ref.Lease)
		}
	}
	receipts, err := m.h.Publish(ctx, step.Events...)
	if err == nil {
		_, err = m.settle(eventhub.Settlement{Refs: step.Refs})
	}
	return receipts, err
}

func (m *membership) holds(lease eventhub.Lease) bool {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	return m.h.leases[lease.Offset-1] == lease && !m.h.settled[lease.Offset-1]
}

func (m *membership) Sent(int) {}

func (m *membership) Ready() {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	m.h.deliverFresh()
}

func (m *membership) Unsubscribe(context.Context) error {
	m.h.mu.Lock()
	defer m.h.mu.Unlock()
	m.h.member = nil
	return nil
}
