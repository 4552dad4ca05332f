package console

import (
	"context"
	"sync"
	"time"

	"eventhub/internal/measure"
)

const (
	// fresh is for how long a sample serves other streams too. It is less than Tick, so that a
	// stream has another sample with each message.
	fresh = Tick * 9 / 10
	// comparableAge is how old a sample may be that rates are counted from.
	comparableAge = 5 * time.Second
)

// name is that of a group in a topic.
type name struct{ topic, group string }

// sample is one measurement of the hub. It is not changed once it is made.
type sample struct {
	at      time.Time
	closed  bool
	err     error // the engine could not be measured
	engine  measure.Engine
	gateway measure.Gateway
	cluster *measure.Cluster
	sources []measure.Source
	checks  []Check

	groups map[name]*measure.Group
	topics map[string]*measure.Topic
	before *sample // the one before; nil where there is none that rates can be counted from
}

// sampler shares measurements between streams.
type sampler struct {
	measure func() *sample

	mu   sync.Mutex
	last *sample
}

// take returns a sample that is fresh. Who comes while another one measures waits for it.
func (s *sampler) take() *sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && time.Since(s.last.at) < fresh {
		return s.last
	}
	next := s.measure()
	if before := s.last; before != nil && !before.closed && before.err == nil && next.at.Sub(before.at) <= comparableAge {
		alone := *before
		alone.before = nil // of older ones nothing is kept
		next.before = &alone
	}
	s.last = next
	return next
}

// measure asks the rooms. It is bounded in time, and by nobody's request: others share what it finds.
func (c *Console) measure() *sample {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s := &sample{at: time.Now(), checks: c.cfg.Ready(ctx), closed: c.cfg.Closed()}
	if c.cfg.Cluster != nil {
		s.cluster = c.cfg.Cluster()
	}
	if c.cfg.Sources != nil {
		s.sources = c.cfg.Sources()
	}
	if s.closed {
		return s
	}
	if s.engine, s.err = c.cfg.Engine(ctx); s.err != nil {
		c.cfg.Logger.Warn("the console could not measure the engine", "error", s.err)
		return s
	}
	s.gateway = c.cfg.Gateway()
	s.groups = make(map[name]*measure.Group, len(s.engine.Groups))
	for i := range s.engine.Groups {
		g := &s.engine.Groups[i]
		s.groups[name{g.Topic, g.Group}] = g
	}
	s.topics = make(map[string]*measure.Topic, len(s.engine.Topics))
	for i := range s.engine.Topics {
		s.topics[s.engine.Topics[i].Topic] = &s.engine.Topics[i]
	}
	return s
}

// seconds is the time that rates are counted over; 0 where there are no rates.
func (s *sample) seconds() float64 {
	if s.before == nil {
		return 0
	}
	return s.at.Sub(s.before.at).Seconds()
}

// rate is how much more there is than before, in a second; nil where that is not known. A count
// that went back began again at zero.
func (s *sample) rate(now, before uint64) *float64 {
	seconds := s.seconds()
	if seconds <= 0 {
		return nil
	}
	if now < before {
		before = 0
	}
	r := float64(now-before) / seconds
	return &r
}

// groupBefore returns what a group had counted before, zero where it is new.
func (s *sample) groupBefore(g *measure.Group) *measure.Group {
	if s.before != nil {
		if was := s.before.groups[name{g.Topic, g.Group}]; was != nil {
			return was
		}
	}
	return &measure.Group{}
}

// topicBefore is groupBefore of a topic.
func (s *sample) topicBefore(t *measure.Topic) *measure.Topic {
	if s.before != nil {
		if was := s.before.topics[t.Topic]; was != nil {
			return was
		}
	}
	return &measure.Topic{}
}
