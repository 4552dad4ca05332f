package retention

import (
	"maps"
	"time"
)

// Stats say what was done since the start.
type Stats struct {
	Rounds uint64
	// Held is by how much the clock of ages is behind the wall clock.
	Held time.Duration
	// Topics has what was done to each topic.
	Topics map[string]TopicStats
}

// TopicStats say what was done to one topic since the start, by its policy.
type TopicStats struct {
	Events, Bytes uint64 // removed
	LastPass      int64  // epoch milliseconds; 0: none yet
}

// statsOf returns those of a topic. r.mu is held.
func (r *Runtime) statsOf(topic string) *TopicStats {
	s := r.topics[topic]
	if s == nil {
		s = new(TopicStats)
		r.topics[topic] = s
	}
	return s
}

// Stats returns what was done so far.
func (r *Runtime) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Topics = make(map[string]TopicStats, len(r.topics))
	for topic, t := range maps.All(r.topics) {
		s.Topics[topic] = *t
	}
	return s
}

// Status says how retention is doing with one topic.
type Status struct {
	TopicStats
	// Counting: what the topic keeps is being counted, and no cap counts before that is over.
	Counting bool
}

// Status returns how a topic is doing; ok is false where it has no policy.
func (r *Runtime) Status(topic string) (s Status, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[topic]
	if e == nil {
		return s, false
	}
	if t := r.topics[topic]; t != nil {
		s.TopicStats = *t
	}
	s.Counting = e.isCapped() && !e.measured
	return s, true
}
