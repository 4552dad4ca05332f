package bus

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"eventhub"
)

// member is one subscription in a group. All fields but the first five are
// guarded by group.mu.
type member struct {
	group    *group
	receiver eventhub.Receiver
	opts     eventhub.SubscribeOptions
	timeout  int64 // opts.AckTimeout in ms
	since    int64 // epoch ms

	inFlight int  // entries it has leased
	full     bool // the receiver took less than it was given
	paused   bool // it wants nothing for now
	sought   bool // its group was moved since its last delivery
	suspect  bool // what it was given last is a suspect
	left     bool
	// Of the turn under way: what is to be handed over, and how each entry was
	// before it was leased.
	batch  []eventhub.Delivery
	before []entry
}

// Subscribe implements eventhub.Subscriber.
func (b *Bus) Subscribe(ctx context.Context, opts eventhub.SubscribeOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Group == "" {
		return b.subscribeTail(ctx, &opts, r)
	}
	g, err := b.acquire(groupKey{topic: opts.Topic, group: opts.Group})
	if err != nil {
		return nil, err
	}
	m := &member{group: g, receiver: r, opts: opts, timeout: opts.AckTimeout.Milliseconds(), since: time.Now().UnixMilli()}
	if err := g.join(ctx, m); err != nil {
		b.release(g)
		return nil, err
	}
	return m, nil
}

// join loads the group and adds the member, which releases the group when it
// leaves.
func (g *group) join(ctx context.Context, m *member) error {
	if err := g.load(ctx, &m.opts); err != nil {
		return err
	}
	head, err := g.bus.store.Head(ctx, g.log.name)
	if err != nil {
		return storeError(err, "read the head of topic %q", g.log.name)
	}
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return g.ended
	}
	g.members = append(g.members, m)
	if len(g.members) == 1 {
		g.log.watch(g, head)
	}
	g.mu.Unlock()
	g.bus.workers.schedule(g)
	return nil
}

// Settle implements eventhub.Subscription.
func (m *member) Settle(_ context.Context, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	return m.group.settle(m, s)
}

// Ready implements eventhub.Subscription.
func (m *member) Ready() {
	g := m.group
	g.mu.Lock()
	was := m.full
	m.full = false
	g.mu.Unlock()
	if was {
		g.bus.workers.schedule(g)
	}
}

// Unsubscribe implements eventhub.Subscription.
func (m *member) Unsubscribe(context.Context) error {
	m.leave(math.MaxInt)
	return nil
}

// Drop implements eventhub.Subscription.
func (m *member) Drop(unsent int) { m.leave(unsent) }

// Pause implements eventhub.Subscription.
func (m *member) Pause(context.Context) error { return m.setPaused(true) }

// Resume implements eventhub.Subscription.
func (m *member) Resume(context.Context) error { return m.setPaused(false) }

func (m *member) setPaused(paused bool) error {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return g.ended
	}
	m.paused = paused
	g.bus.workers.schedule(g)
	return nil
}

// leave gives the member's leases to the others at once. The attempts count,
// save those of the latest giveBack leases.
func (m *member) leave(giveBack int) {
	g := m.group
	g.mu.Lock()
	if m.left {
		g.mu.Unlock()
		return
	}
	m.left = true
	for i, other := range g.members {
		if other == m {
			g.members = append(g.members[:i:i], g.members[i+1:]...)
			if len(g.members) == 0 {
				g.log.unwatch(g)
			}
			break
		}
	}
	if g.solo == m {
		g.solo = nil
	}
	now := time.Now().UnixMilli()
	var held []*entry
	for e := range g.window.open() {
		if e.state == leased && e.member == m {
			held = append(held, e)
		}
	}
	// Serials rise with every lease.
	slices.SortFunc(held, func(a, b *entry) int { return cmp.Compare(b.serial, a.serial) })
	for i, e := range held {
		if i < giveBack {
			e.attempts--
			g.retry(e, now)
			continue
		}
		g.note(e, now, "disconnected", "")
		g.failed(e, now, "member disconnected")
	}
	g.compact()
	g.mu.Unlock()
	g.bus.workers.schedule(g)
	g.bus.release(g)
}

// takes reports whether the member wants anything at all now.
func (m *member) takes() bool { return !m.full && !m.left && !m.paused && !m.group.paused }

// room returns how many more leases the member may hold.
func (m *member) room() int {
	if !m.takes() || m == m.group.solo {
		return 0
	}
	return m.opts.MaxInFlight - m.inFlight
}
