package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/bus/internal/deadletter"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// The sizes of TestManyAtOnce.
const (
	racePublishers = 8
	raceBatches    = 40 // a publisher's
	raceGroups     = 3
	raceMembers    = 3    // of a group, at a time
	raceMischief   = 2000 // verdicts of a member's seat that are drawn; later ones are acks
	raceAttempts   = 4
)

// TestManyAtOnce lets publishers, members that ack, nack, drop and leave, and
// seeks loose on one bus in real time. When the publishers are done and the
// members behave, every event was acked by or has a dead letter of each group.
func TestManyAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := storefault.Wrap(memory.Open(memory.Options{}))
	commits := announced(s)
	b, err := New(Options{Store: s, TailCacheBytes: 20_000, QueueBytes: 2000})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var ledgers []*ledger
	var seats sync.WaitGroup
	for i := range raceGroups {
		l := &ledger{t: t, bus: b, name: fmt.Sprintf("g%d", i), held: make(map[eventhub.Lease]*seat), acked: make(map[uint64]bool)}
		// All groups begin before the first event, so that none misses one.
		sub, err := b.Subscribe(ctx, l.options(), takeNothing{})
		if err != nil {
			t.Fatal(err)
		}
		sub.Drop(0)
		state, err := s.Group(ctx, "t", l.name)
		if err != nil {
			t.Fatal(err)
		}
		l.first = state.Epoch
		ledgers = append(ledgers, l)
		for j := range raceMembers {
			r := rand.New(rand.NewPCG(seed, uint64(i*raceMembers+j)))
			seats.Go(func() { l.occupy(ctx, r) })
		}
	}
	var publishers sync.WaitGroup
	offsets := make(chan []uint64, racePublishers)
	for p := range racePublishers {
		r := rand.New(rand.NewPCG(seed, uint64(1000+p)))
		publishers.Go(func() { offsets <- publishMany(t, b, ledgers, r, p) })
	}
	publishers.Wait()
	head := checkOffsets(t, offsets)
	awaitCursors(ctx, t, s, commits, head, ledgers)
	for _, l := range ledgers {
		l.stop()
	}
	seats.Wait()
	checkNothingLost(t, s, head, ledgers)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// publishMany returns the offsets of its events. Now and then it publishes a
// batch again, or moves a group back.
func publishMany(t *testing.T, b *Bus, ledgers []*ledger, r *rand.Rand, p int) (offsets []uint64) {
	ctx := context.Background()
	for i := range raceBatches {
		var events []eventhub.Event
		for j := range 1 + r.IntN(5) {
			events = append(events, eventhub.Event{Topic: "t", ID: fmt.Sprintf("%d.%d.%d", p, i, j), Payload: []byte(`"payload"`)})
		}
		for again := range 1 + r.IntN(2) {
			receipts, err := b.Publish(ctx, events...)
			if err != nil {
				t.Errorf("Publish: %v", err)
				return offsets
			}
			for _, rc := range receipts {
				if rc.Duplicate != (again == 1) {
					t.Errorf("receipt %+v of publish number %d", rc, again+1)
				}
				if again == 0 {
					offsets = append(offsets, rc.Offset)
				}
			}
		}
		if r.IntN(20) == 0 {
			l := ledgers[r.IntN(len(ledgers))]
			c, err := b.Cursor(ctx, "t", l.name)
			if err == nil {
				err = b.SetCursor(ctx, "t", l.name, r.Uint64N(c.Offset+1))
			}
			if err != nil {
				t.Errorf("move %s back: %v", l.name, err)
			}
		}
	}
	return offsets
}

// takeNothing is a Receiver without room.
type takeNothing struct{}

func (takeNothing) Deliver([]eventhub.Delivery) int { return 0 }
func (takeNothing) Ended(error)                     {}

// checkOffsets: no two events share an offset, and none is left out.
func checkOffsets(t *testing.T, offsets chan []uint64) (head uint64) {
	seen := make(map[uint64]bool)
	for range racePublishers {
		for _, offset := range <-offsets {
			if seen[offset] {
				t.Errorf("offset %d was given twice", offset)
			}
			seen[offset] = true
			head = max(head, offset)
		}
	}
	if len(seen) != int(head) {
		t.Errorf("%d events up to offset %d", len(seen), head)
	}
	return head
}

func checkNothingLost(t *testing.T, s store.Store, head uint64, ledgers []*ledger) {
	var batch store.Batch
	if err := s.Read(context.Background(), "t.dlq", 1, 1_000_000, 1<<30, &batch); err != nil {
		t.Fatal(err)
	}
	dead := make(map[string]bool)
	for _, item := range batch.Items {
		dead[string(item.Record.ID())] = true
	}
	for _, l := range ledgers {
		state, err := s.Group(context.Background(), "t", l.name)
		if err != nil {
			t.Fatal(err)
		}
		letters := 0
		for offset := uint64(1); offset <= head; offset++ {
			if l.acked[offset] {
				continue
			}
			letters++
			found := false
			for epoch := l.first; epoch <= state.Epoch; epoch++ {
				found = found || dead[deadletter.ID("t", offset, l.name, epoch, "")]
			}
			if !found {
				t.Errorf("group %s: %d was neither acked nor dead-lettered", l.name, offset)
			}
		}
		t.Logf("group %s: %d of %d events were given up, %d seeks", l.name, letters, head, state.Epoch-l.first)
	}
}

// announced returns where something is to be received after one commit or more.
func announced(s *storefault.Store) <-chan struct{} {
	commits := make(chan struct{}, 1)
	s.After(storefault.Commit, func(*storefault.Call) {
		select {
		case commits <- struct{}{}:
		default:
		}
	})
	return commits
}

// awaitCursors returns when all groups are stored with their cursor at head. It looks when it
// begins, and after each commit.
func awaitCursors(ctx context.Context, t *testing.T, s store.Store, commits <-chan struct{}, head uint64, ledgers []*ledger) {
	for _, l := range ledgers {
		for {
			state, err := s.Group(ctx, "t", l.name)
			if err != nil {
				t.Fatal(err)
			}
			if state.Cursor == head {
				break
			}
			select {
			case <-commits:
			case <-ctx.Done():
				t.Fatalf("group %s stays at %d; the head is %d", l.name, state.Cursor, head)
			}
		}
	}
}

// ledger is what a test knows of one group.
type ledger struct {
	first uint64 // epoch, of the group at its creation
	t     *testing.T
	bus   *Bus
	name  string

	mu    sync.Mutex
	done  bool
	held  map[eventhub.Lease]*seat // by lease without serial: who has the event
	acked map[uint64]bool
	seats []*seat
}

func (l *ledger) options() eventhub.GroupOptions {
	return eventhub.GroupOptions{Topic: "t", Group: l.name, MaxInFlight: 20, BatchSize: 7, MaxAttempts: raceAttempts,
		Backoff: eventhub.Backoff{Min: time.Millisecond, Max: 3 * time.Millisecond},
		Start:   eventhub.Earliest}
}

func (l *ledger) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	for _, s := range l.seats {
		s.changed.Broadcast()
	}
}

// occupy is one member after the other until the ledger is done.
func (l *ledger) occupy(ctx context.Context, r *rand.Rand) {
	mischief := raceMischief
	for {
		s := &seat{ledger: l, room: 10}
		s.changed.L = &l.mu
		sub, err := l.bus.Subscribe(ctx, l.options(), s)
		if err != nil {
			l.t.Errorf("Subscribe: %v", err)
			return
		}
		l.mu.Lock()
		l.seats = append(l.seats, s)
		l.mu.Unlock()
		for s.work(ctx, sub, r, &mischief) {
		}
		l.mu.Lock()
		done := l.done
		l.mu.Unlock()
		if done {
			return
		}
	}
}

// seat is a member and its Receiver. The ledger's lock guards it.
type seat struct {
	ledger  *ledger
	changed sync.Cond
	queue   []eventhub.Delivery
	room    int // of queue
	full    bool
	left    bool
}

func (s *seat) Deliver(batch []eventhub.Delivery) (taken int) {
	l := s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.left {
		return 0
	}
	for _, d := range batch {
		if len(s.queue) == s.room {
			s.full = true
			break
		}
		if d.Attempt < 1 || d.Attempt > raceAttempts {
			l.t.Errorf("%s: attempt %d of %d", l.name, d.Attempt, d.Offset)
		}
		key := anyLease(d.Lease)
		if l.held[key] != nil {
			l.t.Errorf("%s: %d goes to a second member", l.name, d.Offset)
		}
		l.held[key] = s
		d.Record = nil
		s.queue = append(s.queue, d)
		taken++
	}
	s.changed.Signal()
	return taken
}

// anyLease names the event in the epoch of its lease.
func anyLease(lease eventhub.Lease) eventhub.Lease {
	lease.Serial = 0
	return lease
}

func (s *seat) Ended(err error) { s.ledger.t.Errorf("Ended: %v", err) }

// work settles what came in, or leaves and reports false.
func (s *seat) work(ctx context.Context, sub eventhub.Subscription, r *rand.Rand, mischief *int) bool {
	l := s.ledger
	l.mu.Lock()
	for len(s.queue) == 0 && !l.done {
		s.changed.Wait()
	}
	batch := s.queue
	s.queue = nil
	full := s.full
	s.full = false
	leaves := l.done || *mischief > 0 && r.IntN(10) == 0
	*mischief -= len(batch)
	if leaves {
		s.left = true
		for key, holder := range l.held {
			if holder == s {
				delete(l.held, key)
			}
		}
	}
	l.mu.Unlock()
	if full {
		sub.Ready()
	}
	if !leaves {
		s.settle(ctx, sub, batch, r, *mischief > 0)
		return true
	}
	if r.IntN(2) == 0 {
		sub.Drop(0)
	} else if err := sub.Unsubscribe(ctx); err != nil {
		l.t.Errorf("Unsubscribe: %v", err)
	}
	// Verdicts that come too late: while nobody has the event they count.
	s.settle(ctx, sub, batch, r, true)
	return false
}

func (s *seat) settle(ctx context.Context, sub eventhub.Subscription, batch []eventhub.Delivery, r *rand.Rand, mischief bool) {
	l := s.ledger
	for len(batch) > 0 {
		n := 1 + r.IntN(len(batch))
		v := eventhub.Settlement{}
		if mischief {
			v.Verdict = []eventhub.Verdict{eventhub.Ack, eventhub.Ack, eventhub.Nack, eventhub.Extend}[r.IntN(4)]
			v.Terminal = v.Verdict == eventhub.Nack && r.IntN(20) == 0
		}
		l.mu.Lock()
		for _, d := range batch[:n] {
			v.Refs = append(v.Refs, eventhub.Ref{Lease: d.Lease})
			if key := anyLease(d.Lease); v.Verdict != eventhub.Extend && l.held[key] == s {
				delete(l.held, key) // it may be another's before Settle returns
			}
		}
		l.mu.Unlock()
		out, err := sub.Settle(ctx, v)
		if err != nil {
			l.t.Errorf("Settle: %v", err)
			return
		}
		l.mu.Lock()
		for i, d := range batch[:n] {
			if v.Verdict == eventhub.Ack && out[i] == eventhub.Applied {
				l.acked[d.Offset] = true
			}
		}
		l.mu.Unlock()
		if v.Verdict != eventhub.Extend {
			batch = batch[n:]
		}
	}
}
