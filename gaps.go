package eventhub

import "sync"

// gaps brings the gaps of a subscription to its handlers: each with a delivery, and once to
// OnGap. The zero value is ready.
type gaps struct {
	on func(Gap) // may be nil

	mu      sync.Mutex
	waiting map[string]Gap // by topic: for the next delivery of it
	told    map[Gap]bool
}

// maxTold bounds what is remembered. With more gaps than that some are reported again.
const maxTold = 10_000

// wait keeps a gap that came without a delivery.
func (g *gaps) wait(gap Gap) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == nil {
		g.waiting = make(map[string]Gap)
	}
	g.waiting[gap.Topic] = gap
}

// join gives a delivery the gap that waits for it.
func (g *gaps) join(d *Delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 || d.Gap != nil {
		return
	}
	if gap, ok := g.waiting[d.Topic]; ok {
		d.Gap = &gap
		delete(g.waiting, d.Topic)
	}
}

// tell calls OnGap, unless it has had the gap.
func (g *gaps) tell(gap *Gap) {
	if gap == nil || g.on == nil {
		return
	}
	g.mu.Lock()
	again := g.told[*gap]
	if len(g.told) >= maxTold || g.told == nil {
		g.told = make(map[Gap]bool)
	}
	g.told[*gap] = true
	g.mu.Unlock()
	if !again {
		g.on(*gap)
	}
}
