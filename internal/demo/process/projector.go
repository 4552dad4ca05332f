// Package process is the demo's consumer and producer in one: a projector that
// turns heartbeats ([HeartbeatTopic]) into the state of each process
// ([StateTopic]), and declares stale what is no longer heard of. It owns the
// shapes of both payloads and talks to any [eventhub.Publisher] and
// [eventhub.Subscriber]: `eventhub demo` runs it on the engine in process,
// examples/cmd/projector on a client of a remote hub.
//
// Every heartbeat makes one state event with status alive, caused by it. A
// process that was silent for [StaleAfter] gets one with status stale, which no
// event causes. A heartbeat that is not one (see [ParseHeartbeat]) is nacked and
// ends as a dead letter.
//
// Run one projector at a time. A group deals its events out to its members
// whatever their key is, so a second one would get some heartbeats of every
// process; what it knows would have holes, and each would call processes stale
// that the other hears of. A second projector that is to take over must not join
// before the first has left.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"eventhub"
	"eventhub/internal/demo/inbox"
)

// What the projector is made of.
const (
	// Group is the projector's consumer group.
	Group = "process-projector"
	// StaleAfter is the silence after which a process is stale.
	StaleAfter = 15 * time.Second
	// ScanEvery is how often silent processes are looked for.
	ScanEvery = 5 * time.Second
	// MaxProcesses is how many processes may be alive at once. Beyond it
	// heartbeats wait, and what they report goes stale.
	MaxProcesses = 100_000

	// batchEvents bounds one step, and with it what waits in memory.
	batchEvents = 256
	// stepBytes is how much state, in bytes, makes a step of its own: it has to go
	// into one frame to a remote hub.
	stepBytes = 256 << 10
	// ackTimeout is far longer than a heartbeat is held: StaleAfter + 2 ScanEvery.
	ackTimeout = 2 * time.Minute
	// retryAfter is the pause after a publish failed.
	retryAfter = time.Second
	// settleWait bounds a verdict on its way to a remote hub that is gone, and a
	// step on its way when the projector is asked to stop; and with both how long a
	// stop may take.
	settleWait = 5 * time.Second
	// maxReason bounds the reason of a nack, in bytes.
	maxReason = 1000
)

// errPublish marks a session that ended because a step failed.
var errPublish = errors.New("publish state")

// Projector projects heartbeats to states. The zero value is ready.
//
// # What is acked, and when
//
// The last heartbeat of every living process stays unacked. It is acked in one
// atomic step with the publish of what ended its use: the state of a newer
// heartbeat of that process, or its stale state. So what a projector knows is
// exactly what the group still holds, and that makes all of this right without
// any storage of its own:
//
//   - After a restart or a crash the group delivers the last heartbeat of every
//     process that was alive, so those that died meanwhile become stale too.
//   - When a step fails, also because a heartbeat is not the projector's any
//     more, the projector leaves the group, which takes all leases back without
//     counting the attempts, forgets what it knew and joins again: it gets
//     everything again.
//   - An alive state has an id that derives from its heartbeat's offset, so that
//     publishing it twice adds nothing to the log. A stale state is reported once, because
//     the heartbeat that would make it come again is acked with it.
//
// The price is that the group's cursor trails the head by up to StaleAfter and
// two ScanEvery of heartbeats, and its lag is not 0 while processes live.
//
// # Order
//
// One goroutine takes all heartbeats that wait, at most 256, and publishes their
// states in the order of delivery in one step with the acks: one fsync a batch, and
// per process the states are in the order of the heartbeats. Only a redelivery can
// come out of order; a heartbeat older than the last one of its process is acked
// and not projected. Which that was a projector knows from the states themselves, which it
// reads before it joins (known.go): so a redelivery is told from news also after a restart, and
// when the process is stale.
type Projector struct {
	// Logger gets failures; slog.Default if nil.
	Logger *slog.Logger
}

// Run projects until ctx ends, when it returns nil, or until the subscription
// ends or is refused, with the reason. A failing publish is logged and tried
// again for as long as it takes. When Run returns, the group has its leases
// back.
func (p *Projector) Run(ctx context.Context, pub eventhub.Publisher, sub eventhub.Subscriber) error {
	log := p.Logger
	if log == nil {
		log = slog.Default()
	}
	for {
		err := consume(ctx, pub, sub, log)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errPublish) {
			return fmt.Errorf("process: project %s: %w", HeartbeatTopic, err)
		}
		log.Error("states were not published; trying again", "topic", StateTopic, "after", retryAfter, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryAfter):
		}
	}
}

// consume is one membership in the group, from joining to leaving.
func consume(ctx context.Context, pub eventhub.Publisher, sub eventhub.Subscriber, log *slog.Logger) (err error) {
	known := readKnown(ctx, sub, log)
	in := inbox.New(batchEvents)
	membership, err := sub.Subscribe(ctx, eventhub.GroupOptions{
		Topic: HeartbeatTopic, Group: Group,
		Start:     eventhub.Earliest,
		BatchSize: batchEvents, MaxInFlight: MaxProcesses, AckTimeout: ackTimeout,
	}, in)
	if err != nil {
		return err
	}
	defer func() {
		// Leaving must not fail because ctx has ended: that is why we leave.
		if leaveErr := membership.Unsubscribe(context.WithoutCancel(ctx)); err == nil {
			err = leaveErr
		}
	}()
	s := &session{pub: pub, membership: membership, last: make(map[string]*heard), known: known}
	scan := time.NewTicker(ScanEvery)
	defer scan.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-in.Over():
			return err
		case <-in.Arrived():
			if err := s.project(ctx, in.Take(membership)); err != nil {
				return err
			}
		case <-scan.C:
			if err := s.expire(ctx, s.clock(time.Now())); err != nil {
				return err
			}
		}
	}
}

// session is what a projector knows while it is in the group. One goroutine
// uses it; no error of its methods leaves it usable.
type session struct {
	pub        eventhub.Publisher
	membership eventhub.Subscription

	last  map[string]*heard // by key: the processes that are alive
	known known             // those of whom there is a state

	// Of the stream, for clock.
	newest     uint64 // highest offset delivered
	newestTime int64  // its commit time, epoch ms
	moved      bool   // newest has risen since the last clock
}

// heard is the last heartbeat of a process, not yet acked.
type heard struct {
	state     State
	committed int64 // epoch ms, by the hub's clock: the process's own may be wrong
	offset    uint64
	lease     eventhub.Lease
}

// work is what a batch of heartbeats comes to.
type work struct {
	states []eventhub.Event
	bytes  int                       // of the states
	done   []eventhub.Ref            // with the states
	bad    map[string][]eventhub.Ref // by reason
}

func (w *work) add(state eventhub.Event) {
	w.states = append(w.states, state)
	w.bytes += len(state.Payload)
}

// project publishes the states of a batch with the acks that they allow.
func (s *session) project(ctx context.Context, batch []eventhub.Delivery) error {
	w := work{states: make([]eventhub.Event, 0, len(batch))}
	for i := range batch {
		if err := s.take(&batch[i], &w); err != nil {
			if w.bad == nil {
				w.bad = make(map[string][]eventhub.Ref)
			}
			reason := err.Error()
			reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
			w.bad[reason] = append(w.bad[reason], eventhub.Ref{Lease: batch[i].Lease})
		}
		if w.bytes > stepBytes {
			if err := s.step(ctx, w.states, w.done); err != nil {
				return err
			}
			w.states, w.done, w.bytes = nil, nil, 0
		}
	}
	if err := s.step(ctx, w.states, w.done); err != nil {
		return err
	}
	for reason, refs := range w.bad {
		s.settle(ctx, eventhub.Settlement{Verdict: eventhub.Nack, Refs: refs, Reason: reason})
	}
	return nil
}

// take adds what one delivery comes to. An error is about that delivery alone.
func (s *session) take(d *eventhub.Delivery, w *work) error {
	e, err := d.Event()
	if err != nil {
		return err
	}
	if d.Offset > s.newest {
		s.newest, s.newestTime, s.moved = d.Offset, e.CommitTime().UnixMilli(), true
	}
	heartbeat, err := ParseHeartbeat(e.Payload)
	if err != nil {
		return err
	}
	h := &heard{state: stateOf(&heartbeat, e.TS, d.Offset), committed: e.CommitTime().UnixMilli(), offset: d.Offset, lease: d.Lease}
	before := s.last[h.state.ProcessID]
	if before != nil && d.Offset <= before.offset {
		if d.Offset == before.offset {
			before.lease = d.Lease // its lease had expired
		} else {
			w.done = append(w.done, eventhub.Ref{Lease: d.Lease})
		}
		return nil
	}
	if k := s.known[h.state.ProcessID]; before == nil && d.Offset <= k.heartbeat {
		if d.Offset == k.heartbeat && !k.isStale {
			s.last[h.state.ProcessID] = h // its state is there
		} else {
			w.done = append(w.done, eventhub.Ref{Lease: d.Lease})
		}
		return nil
	}
	state, err := h.state.event()
	if err != nil {
		return err
	}
	state.ID = fmt.Sprintf("%s.%d.alive", HeartbeatTopic, d.Offset)
	state.CausedBy = []string{e.ID}
	// A state that no hub takes would hold up all others: the heartbeat is to
	// blame, mostly for names that are too long for a key.
	if err := state.Validate(time.Now()); err != nil {
		return fmt.Errorf("no state can be published: %w", err)
	}
	w.add(state)
	if before != nil {
		w.done = append(w.done, eventhub.Ref{Lease: before.lease})
	}
	s.last[h.state.ProcessID] = h
	s.known[h.state.ProcessID] = said{heartbeat: d.Offset}
	return nil
}

// clock returns the time, in epoch milliseconds, by which silence is judged.
// While heartbeats of the past are still coming in, that is the time up to
// which they have been read: a process is not silent because the projector is
// behind.
func (s *session) clock(now time.Time) int64 {
	if !s.moved {
		return now.UnixMilli()
	}
	s.moved = false
	return min(now.UnixMilli(), s.newestTime)
}

// expire declares stale what was silent too long at the given time (epoch ms)
// and forgets it: the next heartbeat makes it alive again.
func (s *session) expire(ctx context.Context, now int64) error {
	var silent []*heard
	for _, h := range s.last {
		if now-h.committed > StaleAfter.Milliseconds() {
			silent = append(silent, h)
		}
	}
	// The longest silent first, and never in the map's order of the day.
	slices.SortFunc(silent, func(a, b *heard) int { return cmp.Compare(a.offset, b.offset) })
	for batch := range slices.Chunk(silent, batchEvents) {
		if err := s.expireBatch(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) expireBatch(ctx context.Context, batch []*heard) error {
	for len(batch) > 0 {
		var w work
		n := 0
		for ; n < len(batch) && w.bytes <= stepBytes; n++ {
			stale := batch[n].state
			stale.Status = Stale
			// No derived id, unlike alive states: if the log has lost that alive state
			// and takes it a second time, stale must be said a second time as well,
			// and not pass for a duplicate.
			e, err := stale.event()
			if err != nil {
				return err
			}
			w.add(e)
			w.done = append(w.done, eventhub.Ref{Lease: batch[n].lease})
		}
		if err := s.step(ctx, w.states, w.done); err != nil {
			return err
		}
		for _, h := range batch[:n] {
			delete(s.last, h.state.ProcessID)
			s.known[h.state.ProcessID] = said{heartbeat: h.offset, isStale: true}
		}
		batch = batch[n:]
	}
	return nil
}

// step publishes the states and acks what is done, both or nothing. A step that was
// begun is ended although ctx ends: the heartbeats of one that is still being taken
// would not go back to the group when the projector leaves it.
func (s *session) step(ctx context.Context, states []eventhub.Event, done []eventhub.Ref) error {
	ctx, stop := outlive(ctx, settleWait)
	defer stop()
	var err error
	switch {
	case len(states) == 0:
		s.settle(ctx, eventhub.Settlement{Verdict: eventhub.Ack, Refs: done})
	case len(done) == 0:
		_, err = s.pub.Publish(ctx, states...)
	default:
		_, err = eventhub.AckAndPublish(ctx, s.membership, done, states...)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errPublish, err)
	}
	return nil
}

// outlive returns a context that ends that long after ctx, or with stop.
func outlive(ctx context.Context, after time.Duration) (longer context.Context, stop func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	late := time.AfterFunc(math.MaxInt64, cancel)
	unhook := context.AfterFunc(ctx, func() { late.Reset(after) })
	return longer, func() {
		unhook()
		late.Stop()
		cancel()
	}
}

func (s *session) settle(ctx context.Context, verdict eventhub.Settlement) {
	if len(verdict.Refs) == 0 {
		return
	}
	// Verdicts are given, whether ctx has ended or not. An
	// error means that the subscription is ending, which Done reports, or that
	// the hub is out of reach; what was not settled comes again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWait)
	defer cancel()
	_, _ = s.membership.Settle(ctx, verdict)
}
