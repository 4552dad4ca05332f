package pebble

import (
	"fmt"
	"math"
	"slices"

	"eventhub/store"
)

// check says whether the unit is refused, and why; err is a failed read. It
// leaves in unitGroups and unitTopics what the unit changes and creates.
func (c *commit) check(u *store.Unit) (refusal, err error) {
	clear(c.unitGroups)
	c.unitTopics = c.unitTopics[:0]
	if u.Producer != nil {
		return c.changeProducer(u.Producer)
	}
	for i := range u.Groups {
		if refusal, err = c.checkGroup(&u.Groups[i]); refusal != nil || err != nil {
			return refusal, err
		}
		if err := c.needTopic(u.Groups[i].Topic); err != nil {
			return nil, err
		}
	}
	if refusal = c.checkCancels(u.Cancels); refusal != nil {
		return refusal, nil
	}
	if refusal, err = c.checkRemovals(u.Topics); refusal != nil || err != nil {
		return refusal, err
	}
	if c.expected.any {
		if refusal, err = c.checkExpected(u); refusal != nil || err != nil {
			return refusal, err
		}
	}
	for i := range u.Appends {
		if err := c.needTopic(u.Appends[i].Topic); err != nil {
			return nil, err
		}
	}
	for i := range u.Delays {
		if err := c.needTopic(u.Delays[i].Topic); err != nil {
			return nil, err
		}
	}
	return c.checkTopics(), nil
}

func (c *commit) checkGroup(ch *store.GroupChange) (refusal, err error) {
	if ch.Life != 0 {
		if t, err := c.topic(ch.Topic); err != nil || t == nil || t.life() != ch.Life {
			return fmt.Errorf("life %d of topic %q: %w", ch.Life, ch.Topic, store.ErrGone), err
		}
	}
	key := groupKey{ch.Topic, ch.Group}
	g, err := c.group(key)
	switch {
	case err != nil:
		return nil, err
	case ch.Create && g.exists:
		return fmt.Errorf("group %q of topic %q: %w", ch.Group, ch.Topic, store.ErrExists), nil
	case !ch.Create && !g.exists:
		return fmt.Errorf("group %q of topic %q does not exist: %w", ch.Group, ch.Topic, store.ErrStaleEpoch), nil
	case ch.State.Epoch < g.state.Epoch:
		return fmt.Errorf("group %q of topic %q: epoch %d, the stored one is %d: %w",
			ch.Group, ch.Topic, ch.State.Epoch, g.state.Epoch, store.ErrStaleEpoch), nil
	}
	c.unitGroups[key] = knownGroup{state: ch.State, exists: true}
	if ch.Delete {
		c.unitGroups[key] = knownGroup{}
	}
	return nil, nil
}

// group returns the group as the parts so far leave it.
func (c *commit) group(key groupKey) (knownGroup, error) {
	for _, changes := range []map[groupKey]knownGroup{c.unitGroups, c.groups, c.replaced} {
		if g, ok := changes[key]; ok {
			return g, nil
		}
	}
	g, err := c.s.storedGroup(key.topic, key.group)
	if err == nil {
		c.replaced[key] = g
	}
	return g, err
}

// needTopic notes a topic that the unit creates.
func (c *commit) needTopic(name string) error {
	t, err := c.topic(name)
	if t == nil && err == nil && !slices.Contains(c.unitTopics, name) {
		c.unitTopics = append(c.unitTopics, name)
	}
	return err
}

// checkTopics refuses a unit that creates more topics than there may be.
func (c *commit) checkTopics() error {
	n := len(c.unitTopics)
	if n == 0 {
		return nil
	}
	limit := c.s.options.MaxTopics
	if limit > 0 && c.s.topics.count()+len(c.created)+n > limit || math.MaxUint32-c.s.nextTopic < uint32(n) {
		return fmt.Errorf("topic %q would be one of more than %d: %w", c.unitTopics[n-1], limit, store.ErrTopicLimit)
	}
	return nil
}
