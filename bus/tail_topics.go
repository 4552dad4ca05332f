package bus

import (
	"slices"

	"eventhub"
	"eventhub/store"
)

// patternTails are the live tails of one pattern.
type patternTails struct {
	pattern eventhub.Pattern
	tails   []*tail // in no order
}

// tailsFollow attaches tails to topics that are created and match their patterns, unless
// they have the topic from an earlier life: its offsets go on. It runs on the committer's goroutine, before the first
// events of the topics are handed on.
func (b *Bus) tailsFollow(created []store.TopicLife) {
	type joining struct {
		tail  *tail
		topic *tailTopic
	}
	var joinings []joining
	b.mu.Lock()
	for _, life := range created {
		for _, p := range b.patternTails {
			if b.closed || !p.pattern.Match(life.Topic) {
				continue
			}
			for _, t := range p.tails {
				joinings = append(joinings, joining{t, b.useTailTopic(life.Topic)})
			}
		}
	}
	b.mu.Unlock()
	for _, j := range joinings {
		// Nothing of the topic is in the log beside what we are about to be told.
		j.tail.attach(j.topic, 0, 1)
	}
}

// registerTail makes a tail known, so that it hears of topics that are created and of
// the bus's end.
func (b *Bus) registerTail(t *tail) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errShuttingDown
	}
	b.tails[t] = struct{}{}
	for _, p := range t.patterns {
		of := b.patternTails[p.String()]
		if of == nil {
			of = &patternTails{pattern: p}
			b.patternTails[p.String()] = of
		}
		of.tails = append(of.tails, t)
	}
	return nil
}

// forgetTail undoes registerTail.
func (b *Bus) forgetTail(t *tail) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tails, t)
	for _, p := range t.patterns {
		of := b.patternTails[p.String()]
		if i := slices.Index(of.tails, t); i >= 0 {
			n := len(of.tails) - 1
			of.tails[i], of.tails[n] = of.tails[n], nil
			of.tails = of.tails[:n]
		}
		if len(of.tails) == 0 {
			delete(b.patternTails, p.String())
		}
	}
}
