package bus

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// Subscriptions by name, by pattern and to several topics; creations of topics; and
// the end of patterns.

// modelPattern is a durable pattern of a group: topics to come that match it have
// the group from their first event on, with these settings.
type modelPattern struct {
	pattern eventhub.Pattern
	modelSettings
	rights []*eventhub.TopicRules // of those who subscribed by it
}

// brings reports whether a topic that is created gets the group: one of those who
// subscribed has the right to it.
func (p *modelPattern) brings(topic string) bool {
	return p.pattern.Match(topic) && slices.ContainsFunc(p.rights, func(r *eventhub.TopicRules) bool { return r.Allow(topic) })
}

// worldRights are those of who subscribes to several topics.
var worldRights = []*eventhub.TopicRules{
	nil, nil, nil, nil, allowing("a.**"), allowing("b", "*.x"), allowing("a"), {Rules: []eventhub.TopicRule{denying("a.**"), allowing("**").Rules[0]}},
	{Rules: []eventhub.TopicRule{denying("*.dlq", "a"), allowing("**").Rules[0]}},
}

// worldPatterns are those that groups have; some of them cover one another.
var worldPatterns = []string{"*", "**", "a.**", "*.x", "*.dlq", "**.dlq"}

// joining is a SUBSCRIBE that may be waiting for a commit, and what is to become of
// it.
type joining struct {
	m      *modelMember
	answer chan error
	want   eventhub.Code
	starts []modelStart
}

// modelStart is a group that a SUBSCRIBE makes.
type modelStart struct {
	group *modelGroup
	base  uint64
	modelSettings
}

// subscribeSeveral asks for topics by pattern, or for more than one.
func (w *world) subscribeSeveral() {
	name := rapid.SampledFrom(groupNames).Draw(w.t, "name")
	texts := append(slices.Clone(worldPatterns), "a", "b")
	o := w.drawOptions(name, w.topics[0], rapid.SampledFrom(texts).Draw(w.t, "topic"))
	for range rapid.IntRange(0, 2).Draw(w.t, "more") {
		o.Topics = append(o.Topics, rapid.SampledFrom(texts).Draw(w.t, "also"))
	}
	if patterns, err := o.Patterns(); err == nil && severalTopics(patterns) {
		o.Allowed = rapid.SampledFrom(worldRights).Draw(w.t, "rights")
	}
	w.join(o, rapid.IntRange(-1, 5).Draw(w.t, "room"))
}

// drawOptions draws what a SUBSCRIBE asks for besides its topics.
func (w *world) drawOptions(name string, topic *modelTopic, text string) eventhub.GroupOptions {
	o := eventhub.GroupOptions{
		Topic: text, Group: name, Start: w.drawStart(topic),
		BatchSize:   rapid.IntRange(1, 4).Draw(w.t, "batchSize"),
		MaxInFlight: rapid.IntRange(1, 6).Draw(w.t, "maxInFlight"),
		AckTimeout:  time.Duration(rapid.IntRange(1, 4).Draw(w.t, "ackTimeout")) * time.Second,
		AutoAck:     rapid.IntRange(0, 5).Draw(w.t, "autoAck") == 0,
	}
	// Mostly what the group has or would have everywhere, for others do not fit.
	house, ok := w.house[name]
	switch how := rapid.IntRange(0, 7).Draw(w.t, "settings"); {
	case how == 0:
		return o
	case how == 1 || !ok:
		house = w.drawSettings()
	}
	if !ok {
		w.house[name] = house
	}
	o.Ordering, o.MaxAttempts, o.Backoff, o.Filter = eventhub.OrderingNone, house.maxAttempts, house.backoff, house.filter
	if house.ordered {
		o.Ordering = eventhub.OrderingKey
	}
	return o
}

func (w *world) drawSettings() modelSettings {
	return modelSettings{
		ordered:     rapid.IntRange(0, 2).Draw(w.t, "ordering") > 0,
		maxAttempts: rapid.IntRange(1, 4).Draw(w.t, "maxAttempts"),
		backoff: rapid.SampledFrom([]eventhub.Backoff{
			{Min: time.Millisecond, Max: time.Millisecond}, // has no jitter: failures repeat
			{Min: 300 * time.Millisecond, Max: 2 * time.Second},
		}).Draw(w.t, "backoff"),
		filter: rapid.SampledFrom([]*eventhub.Filter{
			nil, nil, nil, {Key: "k*"}, {Tags: []string{"x"}}, {Key: "k", Tags: []string{"x"}},
		}).Draw(w.t, "filter"),
	}
}

// join subscribes and checks what Subscribe says, now or, where it waits for a
// commit, then.
func (w *world) join(o eventhub.GroupOptions, room int) {
	if slices.ContainsFunc(w.joins, func(j *joining) bool { return j.m.name == o.Group }) {
		return // what comes of two at once depends on who is first
	}
	patterns, err := o.Patterns()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(patterns) > 1 || eventhub.IsPattern(o.Topic) {
		if w.commits != nil && slices.ContainsFunc(w.groups, func(g *modelGroup) bool { return g.due && g.name == o.Group }) {
			return // would wait for the creation under a lock, which a bubble does not count as rest
		}
	}
	m := &modelMember{w: w, name: o.Group, patterns: patterns, opts: o, room: room, run: w.bus,
		fresh: make(map[*modelGroup]uint64), last: make(map[string][]modelPlace)}
	j := &joining{m: m, answer: make(chan error, 1)}
	j.starts, j.want = w.plan(m)
	go func() {
		var err error
		m.sub, err = m.run.Subscribe(context.Background(), o, m)
		j.answer <- err
	}()
	synctest.Wait()
	w.joins = append(w.joins, j)
	w.joined()
}

// plan says what a SUBSCRIBE is answered, and which groups it makes.
func (w *world) plan(m *modelMember) (starts []modelStart, want eventhub.Code) {
	if k := m.opts.Start.Kind; m.several() && (k == eventhub.StartAfterID || k == eventhub.StartOffset) {
		return nil, eventhub.CodeBadRequest
	}
	for _, p := range m.patterns {
		have := w.patterns[m.name][p.String()]
		if have != nil && have.mismatches(&m.opts) || have == nil && w.conflicts(m, p) {
			return nil, eventhub.CodeGroupMismatch
		}
	}
	for _, g := range w.groups {
		named := m.opts.Allowed.Allow(g.topic.name) && slices.ContainsFunc(m.patterns, func(p eventhub.Pattern) bool { return p.String() == g.topic.name })
		if g.name != m.name || !named && !(g.topic.exists && m.covers(g.topic)) {
			continue
		}
		set := g.modelSettings
		if !g.exists {
			b := modelStart{group: g, modelSettings: settingsOf(&m.opts)}
			if kept := w.inherited(g); kept != nil {
				b.modelSettings = kept.modelSettings // it was created after the pattern
			} else {
				var known bool
				if b.base, known = g.topic.resolve(m.opts.Start); !known {
					return nil, eventhub.CodeUnknownID
				}
			}
			set = b.modelSettings
			starts = append(starts, b)
		}
		if set.mismatches(&m.opts) {
			return nil, eventhub.CodeGroupMismatch
		}
	}
	return starts, ""
}

// conflicts reports whether the group has a pattern with another filter or ordering than is asked for that may match a topic
// to come which this new one matches too.
func (w *world) conflicts(m *modelMember, p eventhub.Pattern) bool {
	if !eventhub.IsPattern(p.String()) {
		return false
	}
	for _, have := range w.patterns[m.name] {
		asked := eventhub.GroupOptions{Ordering: m.opts.Ordering, Filter: m.opts.Filter}
		if have.mismatches(&asked) && slices.ContainsFunc(topicsToCome, func(topic string) bool { return have.pattern.Match(topic) && p.Match(topic) }) {
			return true
		}
	}
	return false
}

// topicsToCome are the topics of up to three segments of those that worldPatterns name, and of another one.
var topicsToCome = func() (topics []string) {
	starts := []string{""}
	for range 3 {
		var longer []string
		for _, start := range starts {
			for _, segment := range []string{"a", "c", "x", "dlq"} {
				longer = append(longer, start+segment)
			}
		}
		topics = append(topics, longer...)
		starts = starts[:0]
		for _, topic := range longer {
			starts = append(starts, topic+".")
		}
	}
	return topics
}()

// inherited returns the pattern whose settings a group has that is created in its
// topic: the first one, in byte order. nil: it has none that brings it there.
func (w *world) inherited(g *modelGroup) *modelPattern {
	for _, text := range slices.Sorted(maps.Keys(w.patterns[g.name])) {
		if p := w.patterns[g.name][text]; p.brings(g.topic.name) {
			return p
		}
	}
	return nil
}

// joined looks at the SUBSCRIBEs that were answered; without a commit held up all
// have to be.
func (w *world) joined() {
	w.joins = slices.DeleteFunc(w.joins, func(j *joining) bool {
		if len(j.answer) == 0 {
			if w.commits == nil {
				w.t.Fatalf("Subscribe to %v in %s does not return", j.m.patterns, j.m.name)
			}
			return false
		}
		if err := <-j.answer; eventhub.ErrorCode(err) != j.want {
			w.t.Fatalf("Subscribe to %v in %s, %+v: %v; want %q", j.m.patterns, j.m.name, j.m.opts, err, j.want)
		}
		if j.want == "" {
			w.adopt(j)
		}
		return true
	})
}

// adopt does to the model what a SUBSCRIBE has done.
func (w *world) adopt(j *joining) {
	for _, b := range j.starts {
		if !b.group.exists {
			w.create(b)
		}
	}
	durable := w.patterns[j.m.name]
	if durable == nil {
		durable = make(map[string]*modelPattern)
		w.patterns[j.m.name] = durable
	}
	for _, p := range j.m.patterns {
		text := p.String()
		if !eventhub.IsPattern(text) {
			continue
		}
		if durable[text] == nil {
			durable[text] = &modelPattern{pattern: p, modelSettings: settingsOf(&j.m.opts)}
		}
		durable[text].rights = append(durable[text].rights, j.m.opts.Allowed)
	}
	for _, g := range w.groups {
		// Its topic was created while the SUBSCRIBE was under way.
		g.due = g.due || g.name == j.m.name && g.topic.exists && !g.exists && j.m.covers(g.topic)
	}
	w.members = append(w.members, j.m)
	w.enlist()
}

// create is what becomes of a group that is made.
func (w *world) create(b modelStart) {
	g := b.group
	s, err := w.store.Store.Group(context.Background(), g.topic.name, g.name)
	if err != nil {
		w.t.Fatalf("%s was made and is not stored: %v", g, err)
	}
	g.exists, g.due, g.base, g.offered, g.modelSettings = true, false, b.base, b.base, b.modelSettings
	g.epoch, g.firstEpoch = s.Epoch, s.Epoch // its first one is drawn from the clock
	w.added(g.topic)
}

// added notes that a topic is there: when it is made, groups with a pattern for it are
// to be there.
func (w *world) added(topic *modelTopic) {
	if topic.exists {
		return
	}
	topic.exists = true
	for _, g := range w.groups {
		g.due = g.due || g.topic == topic && !g.exists && w.inherited(g) != nil
	}
}

// startGroups looks for the groups that newborn topics are to have; with a commit held
// up they may be on their way.
func (w *world) startGroups() {
	for _, g := range w.groups {
		if !g.due {
			continue
		}
		_, err := w.store.Store.Group(context.Background(), g.topic.name, g.name)
		switch {
		case err == nil:
			w.create(modelStart{group: g, modelSettings: w.inherited(g).modelSettings})
		case !errors.Is(err, store.ErrNotFound):
			w.t.Fatal(err)
		case w.commits == nil && !w.breaking:
			w.t.Fatalf("%s was not made when its topic was created; its patterns: %v", g, slices.Sorted(maps.Keys(w.patterns[g.name])))
		}
	}
	w.enlist()
}

// recreated: an engine that starts makes up for creations that were missed.
func (w *world) recreated() {
	for _, g := range w.groups {
		g.due = g.due || g.topic.exists && !g.exists && w.inherited(g) != nil
	}
}

// giveUpStarts gives up the creations that were under way when the engine ended: the next one
// finds those topics.
func (w *world) giveUpStarts() {
	for _, g := range w.groups {
		if !g.due {
			continue
		}
		if _, err := w.store.Store.Group(context.Background(), g.topic.name, g.name); err == nil {
			w.create(modelStart{group: g, modelSettings: w.inherited(g).modelSettings})
		}
		g.due = false
	}
}

// enlist makes the subscriptions members of all groups that are theirs.
func (w *world) enlist() {
	for _, m := range w.members {
		if m.run != w.bus || m.left {
			continue
		}
		for _, g := range w.groups {
			if g.exists && g.name == m.name && m.covers(g.topic) && !m.isIn(g) {
				m.groups = append(m.groups, g)
			}
		}
	}
}

// deleteGroup removes a group for good; one of its name may come again. One that a
// pattern would bring back stays.
func (w *world) deleteGroup() {
	g := w.drawGroup()
	if w.commits != nil || rapid.IntRange(0, 1).Draw(w.t, "delete") != 0 {
		return
	}
	w.check()
	err := w.bus.DeleteGroup(context.Background(), g.topic.name, g.name)
	want := eventhub.Code("")
	if w.inherited(g) != nil {
		want = eventhub.CodeBadRequest
	} else if !g.exists {
		want = eventhub.CodeNotSubscribed
	}
	if eventhub.ErrorCode(err) != want {
		w.t.Fatalf("DeleteGroup of %s: %v; want %q", g, err, want)
	}
	if want == "" {
		w.dismiss([]*modelGroup{g}, "")
	}
}

// deletePattern removes a pattern of a group, and the group from the topics that
// have it by that pattern alone.
func (w *world) deletePattern() {
	if w.commits != nil || rapid.IntRange(0, 1).Draw(w.t, "delete") != 0 {
		return
	}
	name := rapid.SampledFrom(groupNames).Draw(w.t, "name")
	text := rapid.SampledFrom(worldPatterns).Draw(w.t, "pattern")
	w.check()
	err := w.bus.DeleteGroup(context.Background(), text, name)
	p := w.patterns[name][text]
	if p == nil {
		if eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
			w.t.Fatalf("DeleteGroup of %s in %q, which it does not have: %v; want not_subscribed", name, text, err)
		}
		return
	}
	if err != nil {
		w.t.Fatalf("DeleteGroup of %s in %q: %v", name, text, err)
	}
	delete(w.patterns[name], text)
	var doomed []*modelGroup
	for _, g := range w.groups {
		if g.name == name && g.exists && p.brings(g.topic.name) && w.inherited(g) == nil {
			doomed = append(doomed, g)
		}
	}
	w.dismiss(doomed, name, p.pattern)
}

// dismiss ends the groups, and with them the subscriptions that are members there
// or that came by the pattern.
func (w *world) dismiss(doomed []*modelGroup, name string, by ...eventhub.Pattern) {
	var ending []*modelMember
	for _, m := range w.members {
		if m.run != w.bus {
			continue
		}
		of := slices.ContainsFunc(doomed, m.isIn)
		m.orphan = m.orphan || of
		came := m.name == name && slices.ContainsFunc(by, func(p eventhub.Pattern) bool {
			return slices.ContainsFunc(m.patterns, func(q eventhub.Pattern) bool { return p.String() == q.String() })
		})
		if !m.left && (of || came) {
			m.ending = true
			ending = append(ending, m)
		}
	}
	w.absorb() // what was offered on the way
	for _, m := range ending {
		for _, p := range m.held() {
			p.group.giveBack(p.group.find(p.offset))
		}
		m.left, m.deleted, m.ending = true, true, false
	}
	for _, g := range doomed {
		g.forget(w, 0)
		clear(g.again)
		clear(g.past)
		g.exists, g.due, g.paused, g.stored = false, false, false, store.GroupState{}
		delete(w.written, groupKey{topic: g.topic.name, group: g.name})
	}
}

// end is what the end of an engine does: offers may go to some subscriptions while
// others end already.
func (w *world) end() {
	for _, m := range w.members {
		m.ending = m.ending || m.run == w.bus
	}
	w.arrive(w.absorb())
	w.giveUpStarts()
}

// checkPatterns compares what is reported of patterns with the model.
func (w *world) checkPatterns() {
	if w.commits != nil {
		return
	}
	list, err := w.bus.Patterns(context.Background(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	var want []admin.GroupPattern
	for name, patterns := range w.patterns {
		for text, p := range patterns {
			info := admin.GroupPattern{Group: name, Pattern: text, Limited: !slices.Contains(p.rights, nil), Ordering: eventhub.OrderingNone, Filter: p.filter, MaxAttempts: p.maxAttempts,
				MinBackoffMS: p.backoff.Min.Milliseconds(), MaxBackoffMS: p.backoff.Max.Milliseconds()}
			if p.ordered {
				info.Ordering = eventhub.OrderingKey
			}
			for _, topic := range w.topics {
				if topic.exists && p.brings(topic.name) {
					info.Topics++
				}
			}
			want = append(want, info)
		}
	}
	slices.SortFunc(want, func(a, b admin.GroupPattern) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Pattern, b.Pattern))
	})
	if !slices.EqualFunc(list, want, func(a, b admin.GroupPattern) bool {
		same := a.Filter.Equal(b.Filter)
		a.Filter, b.Filter = nil, nil
		return same && a == b
	}) {
		w.t.Fatalf("patterns %+v; want %+v", list, want)
	}
}

// checkStoredPatterns: a power loss takes no pattern that was durable, and leaves no
// other.
func (w *world) checkStoredPatterns() {
	list, err := w.store.Store.ListPatterns(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, row := range list {
		if w.patterns[row.Group][row.Pattern] == nil {
			w.t.Fatalf("pattern %q of %s is stored; nobody has it", row.Pattern, row.Group)
		}
		n++
	}
	for name, patterns := range w.patterns {
		if n -= len(patterns); n < 0 {
			w.t.Fatalf("of the patterns of %s some are not stored: %+v", name, list)
		}
	}
}
