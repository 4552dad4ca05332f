package bus

import (
	"bytes"
	"context"
	"sync"
	"time"

	"eventhub"
)

var _ eventhub.Puller = (*Bus)(nil)

// maxPullBytes bounds the records of one pull together; one may be larger.
const maxPullBytes = 8 << 20

// Pull implements eventhub.Puller. What it is given stays leased when it has left:
// the subscription is detached, and nobody takes its leases back.
func (b *Bus) Pull(ctx context.Context, opts eventhub.GroupOptions, wait time.Duration) ([]eventhub.Delivery, error) {
	if wait < 0 || wait > eventhub.MaxPullWait {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "wait_ms is %d; 0 to %d are allowed", wait.Milliseconds(), eventhub.MaxPullWait.Milliseconds())
	}
	opts = opts.WithDefaults()
	opts.BatchSize = opts.MaxInFlight // so that one hand-over has all there is
	p := &pull{room: opts.MaxInFlight, some: make(chan struct{})}
	handle, err := b.Subscribe(ctx, opts, p)
	if err != nil {
		return nil, err
	}
	patience := time.NewTimer(max(wait, eventhub.MinPullWait))
	defer patience.Stop()
	select {
	case <-p.some:
	case <-patience.C:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		// Nobody is there to take them: they go to others at once.
		p.close()
		return nil, handle.Unsubscribe(context.WithoutCancel(ctx))
	}
	handle.(*subscription).detach()
	return p.close()
}

// detach leaves the group and keeps the leases.
func (s *subscription) detach() {
	s.mu.Lock()
	s.detached = true
	s.mu.Unlock()
	s.leave(0)
}

// pull is the receiver of one Pull.
type pull struct {
	mu    sync.Mutex
	room  int
	bytes int // of the records taken
	taken []eventhub.Delivery
	some  chan struct{} // closed with the first delivery, or the end
	ready bool
	ended error
}

// Deliver implements eventhub.Receiver.
func (p *pull) Deliver(batch []eventhub.Delivery) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(batch) && p.room > 0 {
		d := batch[n]
		if p.bytes += len(d.Record); p.bytes > maxPullBytes && len(p.taken) > 0 {
			p.room = 0
			break
		}
		d.Record = bytes.Clone(d.Record)
		p.taken = append(p.taken, d)
		p.room--
		n++
	}
	if n > 0 {
		p.notify()
	}
	return n
}

// Ended implements eventhub.Receiver.
func (p *pull) Ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = err
	p.notify()
}

func (p *pull) notify() {
	if !p.ready {
		p.ready = true
		close(p.some)
	}
}

// close returns what was taken; nothing more is. Where the group has ended and its
// leases are void, it returns why.
func (p *pull) close() ([]eventhub.Delivery, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room = 0
	if p.ended != nil {
		return nil, p.ended
	}
	return p.taken, nil
}
