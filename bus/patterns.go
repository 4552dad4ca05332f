package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// # Patterns of groups
//
// A group that was subscribed by a pattern is a group in each topic that the
// pattern matches, with state, cursor and settings of its own there, and a member
// that came by the pattern is a member in each of them. What is durable besides
// that is the pattern itself, with the settings for topics to come.
//
// A topic gets the groups whose patterns match it when it is created, by whatever creates
// it, whether anybody is connected or not. The commit that creates it knows nothing of
// patterns; the created topics' goroutine makes the groups after it. A topic that is deleted and
// created again counts as created, and so does one that a subscription names in a list: that
// gets the group from its members, as long as they are there. Where the
// process ends in between, the next start finds the topic without the group: for
// every topic that was there when the pattern came has got its group then, so one
// that matches and has none was created later. For the same reason a group under a
// pattern cannot be deleted from one topic alone.
//
// A SUBSCRIBE by pattern first enters the pattern into the table, so that created topics
// are noticed from then on, then walks over the topics. Starts of a group and its
// SUBSCRIBEs come one after the other (patternedGroup.mu), and whoever comes second
// finds the group in the topic already.

// patternTable knows the patterns of all groups.
type patternTable struct {
	mu     sync.RWMutex
	groups map[string]*patternedGroup
	listed map[string]int // how many subscriptions name a topic in their list

	hint chan struct{} // created has some
	done chan struct{} // closed when the created topics' goroutine has ended
	stop context.CancelFunc

	createdMu sync.Mutex
	created   []store.TopicLife
}

// patternedGroup is one group that has patterns.
type patternedGroup struct {
	name string

	mu sync.Mutex // held over starts and SUBSCRIBEs of the group

	// Guarded by patternTable.mu.
	patterns map[string]groupPattern
	subs     []*subscription
	users    int // SUBSCRIBEs under way, which keep it in the table
}

type groupPattern struct {
	pattern  eventhub.Pattern
	settings settings
	raw      json.RawMessage
	durable  bool
}

// begin reads what the store has.
func (t *patternTable) begin(b *Bus) error {
	t.groups, t.listed = make(map[string]*patternedGroup), make(map[string]int)
	list, err := b.store.ListPatterns(context.Background())
	if err != nil {
		return storeError(err, "list the patterns of the groups")
	}
	for _, row := range list {
		p, err := eventhub.ParsePattern(row.Pattern)
		gp := groupPattern{pattern: p, raw: row.Value, durable: true}
		if err = errors.Join(err, json.Unmarshal(row.Value, &gp.settings)); err != nil {
			return eventhub.Wrap(eventhub.CodeInternal, err, "The stored pattern %q of group %q cannot be read.", row.Pattern, row.Group)
		}
		t.group(row.Group).patterns[row.Pattern] = gp
	}
	return nil
}

// end stops the created topics' goroutine. Those that it has not attended to are found
// again at the next start.
func (t *patternTable) end() {
	t.stop()
	<-t.done
}

// group returns the group's entry, made if need be. t.mu is held, or nobody else
// knows t yet.
func (t *patternTable) group(name string) *patternedGroup {
	g := t.groups[name]
	if g == nil {
		g = &patternedGroup{name: name, patterns: make(map[string]groupPattern)}
		t.groups[name] = g
	}
	return g
}

// prune forgets a group that has nothing left. t.mu is held.
func (t *patternTable) prune(g *patternedGroup) {
	if len(g.patterns) == 0 && len(g.subs) == 0 && g.users == 0 && t.groups[g.name] == g {
		delete(t.groups, g.name)
	}
}

func (t *patternTable) has(name string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.groups[name] != nil
}

// covering returns a pattern of the group that matches the topic, "" for none.
func (t *patternTable) covering(name, topic string) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if g := t.groups[name]; g != nil {
		for text, p := range g.patterns {
			if p.pattern.Match(topic) {
				return text
			}
		}
	}
	return ""
}

// matched reports whether any group has a pattern for the topic, or a member that names
// it in a list.
func (t *patternTable) matched(topic string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.listed[topic] > 0 {
		return true
	}
	for _, g := range t.groups {
		for _, p := range g.patterns {
			if p.pattern.Match(topic) {
				return true
			}
		}
	}
	return false
}

// settingsFor returns the settings that the first of a group's durable patterns, in
// byte order, has for a topic; raw is nil where none matches.
func (t *patternTable) settingsFor(group, topic string) (_ settings, raw json.RawMessage) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.groups[group]
	if g == nil {
		return settings{}, nil
	}
	first := ""
	for text, p := range g.patterns {
		if p.durable && p.pattern.Match(topic) && (first == "" || text < first) {
			first = text
		}
	}
	return g.patterns[first].settings, g.patterns[first].raw
}

// acquire returns the group's entry, which stays until it is released.
func (t *patternTable) acquire(name string) *patternedGroup {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.group(name)
	g.users++
	return g
}

func (t *patternTable) release(g *patternedGroup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g.users--
	t.prune(g)
}

// enter adds the patterns of a subscription that the group does not have, and the topics
// that it names, so that created topics are noticed, and returns what is to be made durable. It
// refuses other settings than a pattern has.
func (t *patternTable) enter(g *patternedGroup, s *subscription) ([]store.PatternChange, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list(s, 1)
	o := &s.opts
	set := settingsFor(o)
	raw, err := encodeSettings(o)
	if err != nil {
		return nil, err
	}
	var changes []store.PatternChange
	for _, p := range s.patterns {
		text := p.String()
		if !eventhub.IsPattern(text) {
			continue // a topic: the group in it is all there is to keep
		}
		if have, ok := g.patterns[text]; ok {
			if err := have.settings.match(o); err != nil {
				return nil, err
			}
			continue
		}
		g.patterns[text] = groupPattern{pattern: p, settings: set, raw: raw}
		changes = append(changes, store.PatternChange{Group: g.name, Pattern: text, Value: raw})
	}
	return changes, nil
}

// confirm notes that the changes are durable and that the subscription has to be
// notified of created topics, unless the bus is closed.
func (t *patternTable) confirm(b *Bus, g *patternedGroup, s *subscription, changes []store.PatternChange) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ch := range changes {
		p := g.patterns[ch.Pattern]
		p.durable = true
		g.patterns[ch.Pattern] = p
	}
	if b.closed {
		return errShuttingDown
	}
	s.patterned = g
	g.subs = append(g.subs, s)
	return nil
}

// list counts the topics that a subscription names. t.mu is held.
func (t *patternTable) list(s *subscription, by int) {
	for _, p := range s.patterns {
		if name := p.String(); !eventhub.IsPattern(name) {
			if t.listed[name] += by; t.listed[name] == 0 {
				delete(t.listed, name)
			}
		}
	}
}

// withdraw forgets the patterns that did not become durable, and what a subscription names
// that was not confirmed.
func (t *patternTable) withdraw(g *patternedGroup, s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.patterned == nil {
		t.list(s, -1)
	}
	for text, p := range g.patterns {
		if !p.durable {
			delete(g.patterns, text)
		}
	}
}

// remove takes a subscription off.
func (t *patternTable) remove(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := s.patterned
	g.subs = slices.DeleteFunc(slices.Clone(g.subs), func(other *subscription) bool { return other == s })
	t.list(s, -1)
	t.prune(g)
}

// all returns the subscriptions by pattern.
func (t *patternTable) all() (subs []*subscription) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, g := range t.groups {
		subs = append(subs, g.subs...)
	}
	return subs
}

// rows returns the durable patterns of one group or of all, and these as such.
func (t *patternTable) rows(group string) ([]admin.GroupPattern, []eventhub.Pattern) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := []admin.GroupPattern{}
	for name, g := range t.groups {
		for text, p := range g.patterns {
			if (group == "" || group == name) && p.durable {
				list = append(list, admin.GroupPattern{
					Group: name, Pattern: text, Ordering: p.settings.Ordering, Filter: p.settings.Filter,
					MaxAttempts: p.settings.MaxAttempts, MinBackoffMS: p.settings.MinBackoffMS, MaxBackoffMS: p.settings.MaxBackoffMS,
				})
			}
		}
	}
	slices.SortFunc(list, func(a, b admin.GroupPattern) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Pattern, b.Pattern))
	})
	patterns := make([]eventhub.Pattern, len(list))
	for i := range list {
		patterns[i], _ = eventhub.ParsePattern(list[i].Pattern) // it was one
	}
	return list, patterns
}

func (t *patternTable) hasPattern(g *patternedGroup, text string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return g.patterns[text].durable
}

// forget forgets a pattern and returns the subscriptions that came by it.
func (t *patternTable) forget(g *patternedGroup, text string) (subs []*subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(g.patterns, text)
	for _, s := range g.subs {
		if slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.String() == text }) {
			subs = append(subs, s)
		}
	}
	return subs
}
