package tail

import (
	"cmp"
	"slices"
	"time"

	"eventhub"
)

// A tail that conflates does not hand events over as they come. It keeps the newest
// of each topic and key, and hands over what it has once in an interval: the first
// event after a silence at once, the next ones when the interval is over. An event
// that a newer one has replaced is never handed over.
//
// What a receiver refuses stays, and comes again as soon as there is room: the
// hand-over is not over until all that was pending when it began is handed over or
// replaced. What was read later, be it of a key that waited, is for the next one, and
// the interval begins when a hand-over is over, so that no key comes twice in an
// interval.
//
// Within a topic the offsets rise, also over hand-overs: they go in the order of
// topic and offset, and what is left over, or was read later, is above. So a tail
// that goes on after the event that came last gets all that was pending.
//
// What was removed must not come out of here later. Where a commit removes an event that is
// pending, the tail forgets what it has of the topic and reads it again from where it was (Removed): so
// it is told of a gap as any tail is that lags, and gets what the removed event had replaced. What
// was read before the commit and is merged after it is read again too (isStale).

const (
	// maxPending bounds the bytes that a tail keeps. At that it reads no further,
	// and goes on from there when a hand-over has made room.
	maxPending = 4 << 20
	// pendingCost is what an event takes besides its key and record.
	pendingCost = 192
)

// conflation is what a tail has pending. tail.mu guards it.
type conflation struct {
	every   int64 // ms
	due     int64 // epoch ms: the next hand-over does not begin before
	round   uint64
	partial bool // the hand-over that began last is not over
	armed   bool // the alarm is set to due
	bytes   int
	pending map[pendingKey]*pendingEvent
	// places are, by topic, from where what is pending is read again: what is below was handed
	// over, or replaced by what was. They are there while something is pending.
	places map[*sharedTopic]uint64
}

type pendingKey struct {
	topic *sharedTopic
	key   string
}

type pendingEvent struct {
	pendingKey
	offset uint64
	round  uint64 // the hand-over that was the last to begin when the event was read
	record eventhub.Record
}

// bytes is what an event counts against maxPending.
func (e *pendingEvent) bytes() int { return pendingCost + len(e.key) + cap(e.record) }

func newConflation(every time.Duration) *conflation {
	return &conflation{every: every.Milliseconds(), pending: make(map[pendingKey]*pendingEvent), places: make(map[*sharedTopic]uint64)}
}

// brimful reports whether nothing more can be kept.
func (c *conflation) brimful() bool { return c.bytes >= maxPending }

// put keeps a copy of an event instead of an earlier one of its key.
func (c *conflation) put(topic *sharedTopic, d *eventhub.Delivery) {
	key := d.Record.Key()
	e := c.pending[pendingKey{topic, string(key)}]
	if e == nil {
		e = &pendingEvent{pendingKey: pendingKey{topic, string(key)}}
		c.pending[e.pendingKey] = e
	} else {
		c.bytes -= e.bytes()
	}
	e.offset, e.round = d.Offset, c.round
	e.record = append(e.record[:0], d.Record...)
	c.bytes += e.bytes()
}

// forget forgets an event that was handed over, or is not to be.
func (c *conflation) forget(e *pendingEvent) {
	delete(c.pending, e.pendingKey)
	c.bytes -= e.bytes()
	if c.places[e.topic] = e.offset + 1; len(c.pending) == 0 {
		clear(c.places)
	}
}

// takeBack forgets what is pending of a topic, if there is something that isGone, and returns
// the place from where it is to be read again, 0 where there is nothing of the kind.
func (c *conflation) takeBack(topic *sharedTopic, isGone func(offset uint64) bool) (place uint64) {
	some := false
	for _, e := range c.pending {
		some = some || e.topic == topic && isGone(e.offset)
	}
	if !some {
		return 0
	}
	place = c.places[topic]
	for _, e := range c.pending {
		if e.topic == topic {
			c.forget(e)
		}
	}
	delete(c.places, topic)
	return place
}

// merge keeps the deliveries of a part that the tail wants, and reports whether there was room for all.
func (t *Tail) merge(p *part, ds []eventhub.Delivery) (all bool) {
	for i := range ds {
		if t.merged.brimful() {
			return false
		}
		if _, has := t.merged.places[p.shard.topic]; !has {
			t.merged.places[p.shard.topic] = p.next
		}
		t.merged.put(p.shard.topic, &ds[i])
		p.next = ds[i].Offset + 1
	}
	return true
}

// handMerged hands over what is pending, if it is time, and otherwise sees to it
// that somebody comes when it is. now is in epoch milliseconds; t.mu is held.
func (t *Tail) handMerged(now int64, f *feed) {
	c := t.merged
	if len(c.pending) == 0 || t.opening || t.paused || t.full {
		return // or else a turn comes with the end of that
	}
	if !c.partial && now >= c.due {
		c.round++
		c.partial = true
	}
	if c.partial && t.handPending(f) {
		c.partial = false
		c.due = now + c.every
	}
	if len(c.pending) > 0 && !t.full && !c.armed {
		c.armed = true
		t.tails.sched.ScheduleAt(t, c.due)
	}
}

// handPending gives the receiver the events of the hand-over that has begun, and
// reports whether it took them all.
func (t *Tail) handPending(f *feed) (all bool) {
	c := t.merged
	clear(f.due)
	f.due = f.due[:0]
	for _, e := range c.pending {
		if e.round < c.round {
			f.due = append(f.due, e)
		}
	}
	slices.SortFunc(f.due, func(a, b *pendingEvent) int {
		return cmp.Or(cmp.Compare(a.topic.name, b.topic.name), cmp.Compare(a.offset, b.offset))
	})
	for due := f.due; len(due) > 0; {
		clear(f.passed)
		f.passed = f.passed[:0]
		var told *sharedTopic // the one before was of this topic
		for _, e := range due[:min(t.batchSize, len(due))] {
			d := eventhub.Delivery{Topic: e.topic.name, Offset: e.offset, Record: e.record, Attempt: 1, MaxAttempts: 1}
			if g := t.gaps[e.topic]; g != nil && told != e.topic && e.offset >= g.First {
				d.Gap, told = g, e.topic
			}
			f.passed = append(f.passed, d)
		}
		taken := t.receiver.Deliver(f.passed)
		for i, e := range due[:taken] {
			if f.passed[i].Gap != nil {
				delete(t.gaps, e.topic)
			}
			c.forget(e)
			e.topic.handed.Add(1)
		}
		if taken < len(f.passed) {
			t.full = true
			return false
		}
		due = due[taken:]
	}
	return true
}

// isStale reports whether something of the topic was removed since it was read, so that what is to be
// merged may be gone. Removed sees what was merged before.
func (t *Tail) isStale(p *part, f *feed) bool {
	return t.merged != nil && f.removals != p.shard.log.Removals()
}

// takeBack has the tails of a topic that conflate forget what is gone; again says that there may
// be something left of what they have to read again.
func (ts *Tails) takeBack(topic string, again bool, isGone func(offset uint64) bool) {
	ts.mu.RLock()
	at := ts.topics[topic]
	ts.mu.RUnlock()
	if at == nil {
		return
	}
	for _, p := range at.conflated() {
		t := p.tail
		t.mu.Lock()
		if !t.left {
			if place := t.merged.takeBack(at, isGone); place != 0 && again {
				if p.next = min(p.next, place); !p.behind {
					t.fallBehind(p)
				}
				t.proceed()
			}
		}
		t.mu.Unlock()
	}
}
