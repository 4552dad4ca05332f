package bus

import (
	"maps"
	"sync"
	"time"

	"eventhub"
	"eventhub/internal/measure"
	"eventhub/store"
)

// counts are what the bus counts besides its groups.
type counts struct {
	mu            sync.Mutex
	topics        map[string]*measure.Topic
	commitSeconds measure.Histogram
	commitEvents  measure.Histogram
	// Events that were scheduled, and of those, what moved into the log and what
	// was cancelled.
	scheduled, moved, cancelled uint64
	refused                     map[string]uint64 // publications, by error code
	lastCommit                  time.Time         // the end of the last one that succeeded
}

func (c *counts) init() {
	c.topics = make(map[string]*measure.Topic)
	c.refused = make(map[string]uint64)
	c.commitSeconds = measure.NewHistogram(measure.Seconds)
	c.commitEvents = measure.NewHistogram(measure.Counts)
}

// commit counts one store.Commit that succeeded.
func (c *counts) commit(took time.Duration, units []*store.Unit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events := uint64(0)
	var topic *measure.Topic // the last one: events of one topic come in runs
	for _, u := range units {
		if u.Err != nil {
			continue
		}
		for i := range u.Appends {
			a := &u.Appends[i]
			if topic == nil || topic.Topic != a.Topic {
				topic = c.topic(a.Topic)
			}
			if a.Duplicate {
				topic.Duplicates++
				continue
			}
			topic.Events++
			topic.Bytes += uint64(len(a.Record))
			events++
		}
		c.commitDelays(u)
	}
	c.lastCommit = time.Now()
	c.commitSeconds.Observe(took.Seconds())
	if events > 0 {
		c.commitEvents.Observe(float64(events))
	}
}

// commitDelays counts what a unit did to scheduled events: a move is a Cancel with
// its Append. c.mu is held.
func (c *counts) commitDelays(u *store.Unit) {
	for i := range u.Delays {
		if !u.Delays[i].Duplicate {
			c.scheduled++
		}
	}
	if len(u.Cancels) > 0 && len(u.Appends) > 0 && u.Appends[0].Topic == u.Cancels[0].Topic {
		c.moved += uint64(len(u.Cancels))
	} else {
		c.cancelled += uint64(len(u.Cancels))
	}
}

// refuse counts a publication that was refused.
func (c *counts) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[string(eventhub.ErrorCode(err))]++
}

// topic returns the counts of a topic. c.mu is held.
func (c *counts) topic(name string) *measure.Topic {
	t := c.topics[name]
	if t == nil {
		t = &measure.Topic{Topic: name}
		c.topics[name] = t
	}
	return t
}

// forgetTopic forgets what was counted of the commits to a topic that is gone.
func (c *counts) forgetTopic(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.topics, name)
}

// commits returns how many commits there were.
func (c *counts) commits() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commitSeconds.Count()
}

// snapshot returns what was counted so far, without groups and the tail cache.
func (c *counts) snapshot() measure.Engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := measure.Engine{
		CommitSeconds: c.commitSeconds, CommitEvents: c.commitEvents,
		Scheduled: c.scheduled, Moved: c.moved, Cancelled: c.cancelled,
		LastCommit: c.lastCommit, PublishRefused: maps.Clone(c.refused),
		Topics: make([]measure.Topic, 0, len(c.topics)),
	}
	for _, t := range c.topics {
		e.Topics = append(e.Topics, *t)
	}
	return e
}

// groupCounts are what one group counts, under its lock. The fields that say how
// the group is now are filled in when it is asked.
type groupCounts struct{ measure.Group }

func newGroupCounts(topic, name string) groupCounts {
	return groupCounts{measure.NewGroup(topic, name)}
}

// delivered counts what a receiver took.
func (c *groupCounts) delivered(batch []eventhub.Delivery) {
	c.Delivered += uint64(len(batch))
	for i := range batch {
		if batch[i].Attempt > 1 {
			c.Redelivered++
		}
	}
}

// acked counts an ack of an event that was delivered held ms ago and is so old.
func (c *groupCounts) acked(held, age int64) {
	c.Acked++
	c.Handler.Observe(float64(max(0, held)))
	c.Latency.Observe(float64(max(0, age)))
}
