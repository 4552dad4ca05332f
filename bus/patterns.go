package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
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
//
// Who subscribes may have the right to some of the matching topics alone. Then the pattern
// brings the group to these alone, and keeps which they are (limits): of all who subscribed by
// it, since a group without a member waits for any of them. What another subscription adds
// begins, in topics that are there, where that one says.

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
	raw      json.RawMessage // the settings alone
	durable  bool
	limits   limits
	// wanted are what limits become with the SUBSCRIBE under way.
	wanted limits
}

// brings reports whether the group comes to a topic by the pattern.
func (p *groupPattern) brings(topic string) bool {
	return p.pattern.Match(topic) && p.limits.allow(topic)
}

// change is what makes the pattern durable, with what is wanted of it.
func (p *groupPattern) change(group string) (store.PatternChange, error) {
	value, err := p.wanted.appendTo(p.raw)
	return store.PatternChange{Group: group, Pattern: p.pattern.String(), Value: value}, err
}

// begin reads what the store has.
func (t *patternTable) begin(b *Bus) error {
	t.groups, t.listed = make(map[string]*patternedGroup), make(map[string]int)
	list, err := b.store.ListPatterns(context.Background())
	if err != nil {
		return storeError(err, "list the patterns of the groups")
	}
	for _, row := range list {
		gp := groupPattern{durable: true}
		var err1, err2 error
		gp.pattern, err1 = eventhub.ParsePattern(row.Pattern)
		gp.settings, gp.raw, gp.limits, err2 = decodePattern(row.Value)
		if err := errors.Join(err1, err2); err != nil {
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

// covering returns a pattern of the group that brings it to the topic, "" for none.
func (t *patternTable) covering(name, topic string) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if g := t.groups[name]; g != nil {
		for text, p := range g.patterns {
			if p.brings(topic) {
				return text
			}
		}
	}
	return ""
}

// coveringAll returns the durable patterns of the group that bring it to the topic.
func (t *patternTable) coveringAll(name, topic string) (list []string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if g := t.groups[name]; g != nil {
		for text, p := range g.patterns {
			if p.durable && p.brings(topic) {
				list = append(list, text)
			}
		}
	}
	slices.Sort(list)
	return list
}

// matched reports whether any group has a pattern that matches the topic, or a member that
// names it in a list. Whether the pattern brings the group is looked at later.
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
// byte order, has for a topic; raw is nil where none brings the group there.
func (t *patternTable) settingsFor(group, topic string) (_ settings, raw json.RawMessage) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.groups[group]
	if g == nil {
		return settings{}, nil
	}
	first := ""
	for text, p := range g.patterns {
		if p.durable && p.brings(topic) && (first == "" || text < first) {
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
// that it names, so that created topics are noticed, and returns what is to be made durable:
// also more topics for a pattern that the group has. It refuses other settings than a pattern
// has, or a pattern of other settings that overlaps.
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
			if err := cmp.Or(have.settings.match(o), s.bus.accepts(g.name, have.settings)); err != nil {
				return nil, err
			}
			more := false
			if have.wanted, more, err = have.limits.with(o.Allowed); err != nil {
				return nil, eventhub.Errorf(eventhub.CodeBadRequest, "pattern %q of group %q %s", text, g.name, err)
			}
			if !more || o.NoCreate {
				continue
			}
			g.patterns[text] = have
		} else {
			if err := g.fits(p, o); err != nil {
				return nil, err
			}
			gp := groupPattern{pattern: p, settings: set, raw: raw, limits: limitsOf(o.Allowed)}
			gp.wanted = gp.limits
			g.patterns[text] = gp
		}
		made := g.patterns[text]
		change, err := made.change(g.name)
		if err != nil {
			return nil, eventhub.Wrap(eventhub.CodeInternal, err, "The pattern %q of group %q cannot be written.", text, g.name)
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// fits refuses a pattern that asks for another filter or another ordering than one of the group's which may match the same
// topics to come: of these topics one of the two would not get what it asked for, and nobody would hear of it.
// patternTable.mu is held.
func (g *patternedGroup) fits(p eventhub.Pattern, o *eventhub.GroupOptions) error {
	if o.NoCreate || o.Filter == nil && o.Ordering == "" {
		return nil // an option that is left out never mismatches
	}
	for _, text := range slices.Sorted(maps.Keys(g.patterns)) {
		other := g.patterns[text]
		filter := o.Filter != nil && !o.Filter.Equal(other.settings.Filter)
		ordering := o.Ordering != "" && o.Ordering != other.settings.Ordering
		if !filter && !ordering || !other.pattern.Overlaps(p) {
			continue
		}
		name, asked, has := "ordering", strconv.Quote(o.Ordering), strconv.Quote(other.settings.Ordering)
		if filter {
			name, asked, has = "filter", o.Filter.String(), other.settings.Filter.String()
		}
		return eventhub.Errorf(eventhub.CodeGroupMismatch, "%s is %s; group %q has %s by its pattern %q, which may match topics of %q too",
			name, asked, g.name, has, text, p)
	}
	return nil
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
		p.durable, p.limits = true, p.wanted
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

// rows returns the durable patterns of one group or of all, these as such, and the topics
// that they are limited to.
func (t *patternTable) rows(group string) ([]admin.GroupPattern, []eventhub.Pattern, []limits) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := []admin.GroupPattern{}
	for name, g := range t.groups {
		for text, p := range g.patterns {
			if (group == "" || group == name) && p.durable {
				list = append(list, admin.GroupPattern{
					Group: name, Pattern: text, Limited: p.limits != nil, Ordering: p.settings.Ordering, Filter: p.settings.Filter,
					MaxAttempts: p.settings.MaxAttempts, MinBackoffMS: p.settings.MinBackoffMS, MaxBackoffMS: p.settings.MaxBackoffMS,
				})
			}
		}
	}
	slices.SortFunc(list, func(a, b admin.GroupPattern) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Pattern, b.Pattern))
	})
	patterns, only := make([]eventhub.Pattern, len(list)), make([]limits, len(list))
	for i, row := range list {
		p := t.groups[row.Group].patterns[row.Pattern]
		patterns[i], only[i] = p.pattern, p.limits
	}
	return list, patterns, only
}

// brings reports whether a durable pattern of a group brings it to a topic.
func (t *patternTable) brings(name, text, topic string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	g := t.groups[name]
	if g == nil {
		return false
	}
	p := g.patterns[text]
	return p.durable && p.brings(topic)
}

func (t *patternTable) hasPattern(g *patternedGroup, text string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return g.patterns[text].durable
}

// forget forgets a pattern and returns it, with the subscriptions that came by it.
func (t *patternTable) forget(g *patternedGroup, text string) (p groupPattern, subs []*subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p = g.patterns[text]
	delete(g.patterns, text)
	for _, s := range g.subs {
		if slices.ContainsFunc(s.patterns, func(p eventhub.Pattern) bool { return p.String() == text }) {
			subs = append(subs, s)
		}
	}
	return p, subs
}
