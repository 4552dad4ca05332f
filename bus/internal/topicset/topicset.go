// Package topicset knows the settings of topics: which entries there are, from the hub's
// file and from the store, and which of them counts for a topic.
//
// It owns the entries in memory and their rows in the store (store.SettingChange), and with
// them the versions. What the settings do is the business of those who ask: publishing asks
// for each event whether its topic needs keys, the retention of events asks what a topic
// keeps and is notified of changes, the bus hands the rest to administrators.
//
// # Invariants
//
//   - Of the entries that match a topic one counts, as a whole: that of the topic's own name,
//     else the first pattern in the order of topicconf.Place. No two patterns tie.
//   - An entry of the file is never changed; a stored one of the same name does not count.
//   - A change counts when its commit is over, and not before. Whether it may be made is
//     decided when its commit is built, against all changes before it: of two that name the
//     same version one is refused.
//   - A version is given once in the life of a store, also to entries that are gone.
//
// # Goroutines and locks
//
// It has no goroutine and no lock. A table is never changed once somebody may read it: a
// change makes another one. Only the committer's goroutine makes tables (Build), and only
// that which ends commits shows them (Done), in the order in which they were made. So to
// look up a topic costs one atomic load where there are no entries, and two look-ups in maps
// where there are some.
package topicset

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/internal/topicconf"
	"eventhub/store"
)

// Options make a Set. Store and Logger are required.
type Options struct {
	Store  store.Topics
	Logger *slog.Logger
	// File are the entries of the hub's file, which are valid.
	File []admin.SettingsEntry
	// Changed, where not nil, is called when an entry of that name, a topic's or a pattern,
	// has come to count, was changed, or counts no more. It runs where commit.Job.Done does,
	// and must not block.
	Changed func(name string)
}

// Set is the settings of all topics. Its methods are safe for concurrent use.
type Set struct {
	changed func(name string)
	table   atomic.Pointer[table] // nil: there are no entries
	built   *table                // that of the last commit built: the committer's
}

// table is all entries at one moment.
type table struct {
	entries  map[string]*admin.SettingsEntry
	patterns []eventhub.Pattern // the more exact ones first
	keyed    int                // entries with KeyRequired or a Compaction
	bounded  int                // entries with a Retention
	compact  int                // entries with a Compaction
	expiring int                // entries with a GroupIdleExpiry
	indexed  int                // entries that have topics indexed always or never
	snapshot int                // entries with a Snapshot
	version  uint64             // the last one given
	matches  *matches           // of patterns
}

// matches remembers which pattern counts for a topic.
type matches struct {
	byTopic sync.Map // topic → *admin.SettingsEntry, nil for none
	count   atomic.Int64
}

// mostMatches bounds the topics that are remembered: clients may name as many as they like.
const mostMatches = 2 * admin.MaxSettingsEntries

// New reads the entries. The error has CodeConflict where entries of the file and of the
// store cannot both count.
func New(o Options) (*Set, error) {
	s := &Set{changed: o.Changed}
	t := &table{entries: make(map[string]*admin.SettingsEntry), matches: new(matches)}
	for i := range o.File {
		e := o.File[i]
		e.Source, e.Version = admin.SourceFile, 0
		if err := t.add(&e); err != nil {
			return nil, err
		}
	}
	rows, err := o.Store.ListSettings(context.Background())
	if err != nil {
		return nil, store.Failed(err, "list the settings of the topics")
	}
	for _, row := range rows {
		e, err := decode(row)
		if err != nil {
			return nil, eventhub.Wrap(eventhub.CodeInternal, err, "The stored settings of %q cannot be read.", row.Name)
		}
		t.version = max(t.version, e.Version)
		if row.Name == counter {
			continue
		}
		if t.entries[e.Name] != nil {
			o.Logger.Warn("the stored settings of a topic do not count: the hub's file has some", "topic", e.Name)
			continue
		}
		if err := t.add(e); err != nil {
			return nil, err
		}
	}
	s.built = t
	s.show(t)
	return s, nil
}

// counter is the row that has the last version given, where the entry that had it was
// removed. It is no name of a topic, and no pattern.
const counter = "!"

// row is what the store keeps of an entry.
type row struct {
	Version  uint64          `json:"version"`
	Settings json.RawMessage `json:"settings,omitempty"`
}

func decode(info store.SettingInfo) (*admin.SettingsEntry, error) {
	var r row
	if err := json.Unmarshal(info.Value, &r); err != nil {
		return nil, err
	}
	e := &admin.SettingsEntry{Name: info.Name, Source: admin.SourceStored, Version: r.Version}
	if info.Name == counter {
		return e, nil
	}
	err := admin.ValidateSettingsName(info.Name)
	if err == nil {
		e.Settings, err = topicconf.Parse(info.Name, r.Settings)
	}
	return e, err
}

// show makes a table the one that counts.
func (s *Set) show(t *table) {
	if len(t.entries) == 0 {
		t = nil
	}
	s.table.Store(t)
}

// Lookup returns the entry that counts for a topic, nil for none. It must not be changed.
func (s *Set) Lookup(topic string) *admin.SettingsEntry {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	return t.lookup(topic)
}

// KeyRequired reports whether events of a topic need a key.
func (s *Set) KeyRequired(topic string) bool {
	t := s.table.Load()
	if t == nil || t.keyed == 0 {
		return false
	}
	e := t.lookup(topic)
	return e != nil && needsKeys(e)
}

// Any reports whether an entry bounds what topics keep.
func (s *Set) Any() bool {
	t := s.table.Load()
	return t != nil && t.bounded > 0
}

// Retention returns what a topic keeps; the zero value for everything.
func (s *Set) Retention(topic string) admin.Retention {
	if e := s.Lookup(topic); e != nil {
		return e.Settings.Retention
	}
	return admin.Retention{}
}

// AnyCompaction reports whether an entry has topics compacted.
func (s *Set) AnyCompaction() bool {
	t := s.table.Load()
	return t != nil && t.compact > 0
}

// Compaction returns how a topic is compacted, with its defaults; nil where it is not.
func (s *Set) Compaction(topic string) *admin.Compaction {
	e := s.Lookup(topic)
	if e == nil || e.Settings.Compaction == nil {
		return nil
	}
	c := e.Settings.Compaction.WithDefaults()
	return &c
}

// AnyGroupExpiry reports whether an entry ends groups that nobody uses.
func (s *Set) AnyGroupExpiry() bool {
	t := s.table.Load()
	return t != nil && t.expiring > 0
}

// GroupExpiry returns for how long nobody may have used a group of a topic, 0 for ever.
func (s *Set) GroupExpiry(topic string) time.Duration {
	if e := s.Lookup(topic); e != nil {
		return time.Duration(e.Settings.GroupIdleExpiry)
	}
	return 0
}

// AnyState reports whether an entry has the keys of topics indexed always or never.
func (s *Set) AnyState() bool {
	t := s.table.Load()
	return t != nil && t.indexed > 0
}

// State returns when the keys of a topic are indexed: always where it is compacted, or snapshots are
// made of it from its keys.
func (s *Set) State(topic string) admin.StateMode {
	t := s.table.Load()
	if t == nil || t.indexed == 0 {
		return admin.StateAuto
	}
	if e := t.lookup(topic); e != nil {
		return stateMode(e)
	}
	return admin.StateAuto
}

// AnySnapshot reports whether an entry has snapshots made of topics.
func (s *Set) AnySnapshot() bool {
	t := s.table.Load()
	return t != nil && t.snapshot > 0
}

// Snapshot returns when snapshots of a topic are made, with the defaults; nil where none are.
func (s *Set) Snapshot(topic string) *admin.Snapshot {
	e := s.Lookup(topic)
	if e == nil || e.Settings.Snapshot == nil || eventhub.HubOnlyTopic(topic) {
		return nil
	}
	snapshot := e.Settings.Snapshot.WithDefaults()
	return &snapshot
}

func stateMode(e *admin.SettingsEntry) admin.StateMode {
	if s := &e.Settings; s.Compaction != nil || s.Snapshot != nil && s.Snapshot.KeySource == "" {
		return admin.StateOn
	}
	return cmp.Or(e.Settings.State, admin.StateAuto)
}

// needsKeys reports whether events need a key. One without would never be superseded.
func needsKeys(e *admin.SettingsEntry) bool {
	return e.Settings.KeyRequired || e.Settings.Compaction != nil
}

func (t *table) lookup(topic string) *admin.SettingsEntry {
	if e := t.entries[topic]; e != nil || len(t.patterns) == 0 {
		return e
	}
	if e, ok := t.matches.byTopic.Load(topic); ok {
		return e.(*admin.SettingsEntry)
	}
	return t.match(topic)
}

// match finds the pattern that counts for a topic, and remembers it.
func (t *table) match(topic string) *admin.SettingsEntry {
	var e *admin.SettingsEntry
	if at := slices.IndexFunc(t.patterns, func(p eventhub.Pattern) bool { return p.Match(topic) }); at >= 0 {
		e = t.entries[t.patterns[at].String()]
	}
	if t.matches.count.Add(1) > mostMatches {
		t.matches.byTopic.Clear()
		t.matches.count.Store(1)
	}
	t.matches.byTopic.Store(strings.Clone(topic), e)
	return e
}

// Effective says what counts for a topic, and where it is from.
func (s *Set) Effective(topic string) admin.EffectiveSettings {
	e := admin.EffectiveSettings{Topic: topic, SettingsSource: admin.SettingsSource{Source: admin.SourceDefault}}
	t := s.table.Load()
	if t == nil {
		return e
	}
	if own := t.entries[topic]; own != nil {
		e.OwnVersion = own.Version
	}
	if found := t.lookup(topic); found != nil {
		e.Settings = found.Settings
		e.SettingsSource = admin.SettingsSource{Source: found.Source, Entry: found.Name, Version: found.Version}
	}
	return e
}

// Entries returns at most limit entries with names after the given one, in byte order.
func (s *Set) Entries(after string, limit int) (list []admin.SettingsEntry) {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	names := slices.Sorted(maps.Keys(t.entries))
	at, found := slices.BinarySearch(names, after)
	if found {
		at++
	}
	for _, name := range names[at:min(at+limit, len(names))] {
		list = append(list, *t.entries[name])
	}
	return list
}

// add puts an entry into a table that nobody reads yet, in place of that of its name.
func (t *table) add(e *admin.SettingsEntry) error {
	was := t.entries[e.Name]
	if was == nil && len(t.entries) >= admin.MaxSettingsEntries {
		return eventhub.Errorf(eventhub.CodeOverloaded, "there are settings for %d names, as many as there may be", len(t.entries))
	}
	if eventhub.IsPattern(e.Name) && was == nil {
		p, err := eventhub.ParsePattern(e.Name)
		if err != nil {
			return err
		}
		at, err := topicconf.Place(t.patterns, p)
		if err != nil {
			return err
		}
		if len(t.patterns) >= admin.MaxSettingsPatterns {
			return eventhub.Errorf(eventhub.CodeOverloaded, "there are settings for %d patterns, as many as there may be", len(t.patterns))
		}
		t.patterns = slices.Insert(t.patterns, at, p)
	}
	t.count(was, -1)
	t.count(e, 1)
	t.entries[e.Name] = e
	return nil
}

func (t *table) remove(name string) {
	t.count(t.entries[name], -1)
	delete(t.entries, name)
	t.patterns = slices.DeleteFunc(t.patterns, func(p eventhub.Pattern) bool { return p.String() == name })
}

// count counts what makes publishing look further.
func (t *table) count(e *admin.SettingsEntry, by int) {
	if e != nil && needsKeys(e) {
		t.keyed += by
	}
	if e != nil && e.Settings.Compaction != nil {
		t.compact += by
	}
	if e != nil && e.Settings.Retention != (admin.Retention{}) {
		t.bounded += by
	}
	if e != nil && stateMode(e) != admin.StateAuto {
		t.indexed += by
	}
	if e != nil && e.Settings.Snapshot != nil {
		t.snapshot += by
	}
	if e != nil && e.Settings.GroupIdleExpiry != 0 {
		t.expiring += by
	}
}

// change returns another table, which has the next version, for a change of an entry.
func (t *table) change(name string) *table {
	next := &table{entries: maps.Clone(t.entries), patterns: t.patterns, keyed: t.keyed, bounded: t.bounded, compact: t.compact, expiring: t.expiring, indexed: t.indexed, snapshot: t.snapshot, version: t.version + 1, matches: t.matches}
	if eventhub.IsPattern(name) {
		next.patterns, next.matches = slices.Clone(t.patterns), new(matches)
	}
	return next
}

// Change is the job that changes or removes one stored entry. It is made by Write or Remove,
// and submitted once.
type Change struct {
	commit.Call
	set      *Set
	name     string
	settings *admin.TopicSettings // nil: remove it
	match    *uint64
	next     *table
}

// Write returns the job that stores an entry. The name and the settings are checked here,
// everything else when the commit is built. match is as in admin.Settings.
func (s *Set) Write(name string, settings admin.TopicSettings, match *uint64) (*Change, error) {
	err := admin.ValidateSettingsName(name)
	if err == nil {
		err = settings.Validate(name)
	}
	if err != nil {
		return nil, err
	}
	return s.job(name, &settings, match), nil
}

// Plan checks the settings of an entry as Write and its commit do, and returns which topics
// would have them.
func (s *Set) Plan(name string, settings admin.TopicSettings) (applies func(topic string) bool, err error) {
	c, err := s.Write(name, settings, nil)
	if err != nil {
		return nil, err
	}
	now := s.table.Load()
	if now == nil {
		now = &table{matches: new(matches)}
	}
	if err := c.mayChange(now.entries[name]); err != nil {
		return nil, err
	}
	next := now.change(name)
	if next.entries == nil {
		next.entries = make(map[string]*admin.SettingsEntry)
	}
	e := &admin.SettingsEntry{Name: name, Source: admin.SourceStored, Settings: settings}
	if err := next.add(e); err != nil {
		return nil, err
	}
	next.matches = new(matches) // its own: this table never counts
	return func(topic string) bool { return next.lookup(topic) == e }, nil
}

// Remove returns the job that removes a stored entry.
func (s *Set) Remove(name string, match *uint64) (*Change, error) {
	if err := admin.ValidateSettingsName(name); err != nil {
		return nil, err
	}
	return s.job(name, nil, match), nil
}

func (s *Set) job(name string, settings *admin.TopicSettings, match *uint64) *Change {
	c := &Change{set: s, name: strings.Clone(name), settings: settings, match: match}
	c.Units, c.Durable = make([]store.Unit, 1), true
	return c
}

// Build implements commit.Job.
func (c *Change) Build() bool {
	err := c.prepare()
	if err != nil {
		c.Answer(err)
		return false
	}
	c.set.built = c.next
	return true
}

// prepare decides whether the change may be made, and fills in its unit.
func (c *Change) prepare() error {
	was := c.set.built.entries[c.name]
	if err := c.mayChange(was); err != nil {
		return err
	}
	next := c.set.built.change(c.name)
	stored := row{Version: next.version}
	if c.settings == nil {
		next.remove(c.name)
		c.Units[0].Settings = []store.SettingChange{{Name: c.name, Delete: true}, {Name: counter}}
	} else {
		if err := next.add(&admin.SettingsEntry{Name: c.name, Source: admin.SourceStored, Version: next.version, Settings: *c.settings}); err != nil {
			return err
		}
		text, err := json.Marshal(c.settings)
		if err != nil {
			return err
		}
		stored.Settings = text
		c.Units[0].Settings = []store.SettingChange{{Name: c.name}}
	}
	value, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	changes := c.Units[0].Settings
	changes[len(changes)-1].Value = value
	c.next = next
	return nil
}

func (c *Change) mayChange(was *admin.SettingsEntry) error {
	if was != nil && was.Source == admin.SourceFile {
		return eventhub.Errorf(eventhub.CodeConflict, "the settings of %q are in the hub's topics file, and are changed there alone", c.name)
	}
	var version uint64
	if was != nil {
		version = was.Version
	}
	if c.match != nil && *c.match != version {
		if version == 0 {
			return eventhub.Wrap(eventhub.CodeConflict, admin.ErrOtherVersion, "there are no settings of %q; version %d was expected", c.name, *c.match)
		}
		return eventhub.Wrap(eventhub.CodeConflict, admin.ErrOtherVersion, "the settings of %q have version %d; %d was expected", c.name, version, *c.match)
	}
	if c.settings == nil && was == nil {
		return eventhub.Errorf(eventhub.CodeUnknownID, "there are no settings of %q", c.name)
	}
	return nil
}

// Done implements commit.Job.
func (c *Change) Done(err error) {
	if err == nil {
		err = c.Units[0].Err
	}
	if err == nil {
		c.set.show(c.next)
		if c.set.changed != nil {
			c.set.changed(c.name)
		}
	}
	c.Answer(err)
}

// Entry returns what the entry has become, when the change was done.
func (c *Change) Entry() admin.SettingsEntry { return *c.next.entries[c.name] }
