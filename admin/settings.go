package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/internal/when"
)

// Settings shows and changes the settings of topics. An entry has a name, which is a topic's
// or a pattern, and settings. Of the entries that match a topic the most exact one counts,
// as a whole: the one of the topic's own name; else the pattern that spells out most
// segments; of those that spell out as many, the one whose topics all match the others too.
// Two patterns that tie over some topic cannot both be there. Its methods are safe for
// concurrent use.
type Settings interface {
	// EffectiveSettings returns what counts for a topic, which need not exist, and where
	// it is from.
	EffectiveSettings(ctx context.Context, topic string) (EffectiveSettings, error)

	// SettingsEntries lists entries with names after the given one, in byte order: at most
	// limit, from 1 to MaxPage.
	SettingsEntries(ctx context.Context, after string, limit int) ([]SettingsEntry, error)

	// SetTopic stores an entry, in place of the stored one of that name. The settings
	// count, and are durable, when it returns. match, where not nil, is the version that the
	// entry has to have, 0 for none: ErrOtherVersion is in the chain of the error where it
	// has another one. CodeBadTopic or CodeBadRequest for what cannot be,
	// CodeUnsupportedOp for what the hub does not do yet, CodeConflict where the hub's file
	// has an entry of that name, and for a pattern that ties with another one: *PatternConflict
	// is in the chain then.
	SetTopic(ctx context.Context, name string, settings TopicSettings, match *uint64) (SettingsEntry, error)

	// UnsetTopic removes a stored entry. Errors are as those of SetTopic; CodeUnknownID if
	// there is none of that name.
	UnsetTopic(ctx context.Context, name string, match *uint64) error
}

// ErrOtherVersion is in the chain of errors with CodeConflict where an entry does not have
// the version that the caller named.
var ErrOtherVersion = errors.New("the entry has another version")

// PatternConflict is in the chain of errors with CodeConflict where a pattern cannot be there next
// to another one: they tie over some topic, or match the same ones.
type PatternConflict struct{ Other string }

func (c *PatternConflict) Error() string { return "next to pattern " + strconv.Quote(c.Other) }

// MaxSettingsPatterns bounds the entries whose names are patterns, and MaxSettingsEntries
// all entries.
const (
	MaxSettingsPatterns = 1_000
	MaxSettingsEntries  = 100_000
)

// TopicSettings say what a topic keeps and takes. The zero value is that of a topic without
// settings: it keeps everything.
type TopicSettings struct {
	Retention Retention `json:"retention,omitzero"`
	// Compaction keeps the latest event of each key, and requires keys.
	Compaction *Compaction `json:"compaction,omitempty"`
	// KeyRequired refuses events without a key.
	KeyRequired bool `json:"key_required,omitempty"`
	// State says when the topic has the index by key, from which its state is read and which every
	// event with a key pays for. "" is StateAuto. A topic with a Compaction has it always.
	State StateMode `json:"state,omitempty"`
	// GroupIdleExpiry ends groups that nobody has used for so long, from MinGroupIdleExpiry to
	// MaxPeriod: that had no member, no open lease and nothing else that was running on them, and
	// whose cursor did not move. Only the time counts in which the hub was running.
	GroupIdleExpiry Period `json:"group_idle_expiry,omitempty"`
	// Snapshot has the state of the topic written to its snapshot topic from time to time. A topic
	// with a Snapshot that names no KeySource has the index by key always.
	Snapshot *Snapshot `json:"snapshot,omitempty"`
}

// Snapshot says when the state of a topic is written to its snapshot topic, and what of it.
type Snapshot struct {
	// Topic names the snapshot topic. It can only be eventhub.SnapshotTopic of the topic's name, which is
	// the default: rights on a snapshot topic follow from its name.
	Topic string `json:"topic,omitempty"`
	// Every is the time from one snapshot to the next, from MinSnapshotEvery to MaxPeriod; 0 stands for
	// DefaultSnapshotEvery. Where fewer events have come than a hundredth of the keys, it is
	// SnapshotSkips times that; where nothing has changed there is none.
	Every Period `json:"every,omitempty"`
	// Changes is after how many events there is a snapshot sooner, though not within a second of
	// the one before; 0: it is not.
	Changes uint64 `json:"changes,omitempty"`
	// BatchKeys are the only keys that a snapshot has, at most MaxStateKeys; nil: it has all.
	BatchKeys []string `json:"batch_keys,omitempty"`
	// KeySource is an expression on an event (package filter) whose value, a text, is its key in the
	// snapshot, "" for none; for topics whose events have no key. "": the event's own key counts.
	KeySource string `json:"key_source,omitempty"`
}

// Of snapshots.
const (
	DefaultSnapshotEvery = Period(30 * time.Second)
	MinSnapshotEvery     = Period(time.Second)
	SnapshotSkips        = 10
)

// WithDefaults returns the settings with their defaults.
func (s Snapshot) WithDefaults() Snapshot {
	s.Every = cmp.Or(s.Every, DefaultSnapshotEvery)
	return s
}

// validate checks the settings for an entry of that name.
func (s *Snapshot) validate(name string) error {
	bad := func(format string, args ...any) error {
		return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	switch {
	case eventhub.HubOnlyTopic(name):
		return bad("snapshot has no effect on %q, whose events the hub makes", name)
	case s.Topic != "" && s.Topic != eventhub.SnapshotTopic(name):
		return bad("snapshot.topic is %.240q; the snapshots of a topic are in the topic of its name with .snapshot after it, because rights on them follow from the name; leave it out", s.Topic)
	case s.Every != 0 && (s.Every < MinSnapshotEvery || s.Every > MaxPeriod):
		return bad("snapshot.every is %s; %s to %s are allowed", time.Duration(s.Every), MinSnapshotEvery, MaxPeriod)
	case s.Changes > eventhub.MaxOffset:
		return bad("snapshot.changes is %d; at most %d is allowed", s.Changes, uint64(eventhub.MaxOffset))
	case s.BatchKeys != nil && (len(s.BatchKeys) == 0 || len(s.BatchKeys) > MaxStateKeys):
		return bad("snapshot.batch_keys has %d keys; 1 to %d are allowed", len(s.BatchKeys), MaxStateKeys)
	case len(s.KeySource) > eventhub.MaxFilterBytes:
		return bad("snapshot.key_source has %d bytes; at most %d are allowed", len(s.KeySource), eventhub.MaxFilterBytes)
	}
	for _, key := range s.BatchKeys {
		if key == "" || len(key) > eventhub.MaxKeyBytes {
			return bad("snapshot.batch_keys has a key of %d bytes, %.48q; 1 to %d are allowed", len(key), key, eventhub.MaxKeyBytes)
		}
	}
	return nil
}

// StateMode says when a topic has the index by key.
type StateMode string

// The values of a StateMode.
const (
	StateAuto StateMode = "auto" // from the first question about its state on
	StateOn   StateMode = "on"   // always
	StateOff  StateMode = "off"  // never: questions about its state are refused
)

// Retention bounds what a topic keeps. Each bound that is not 0 counts: what is beyond one
// of them goes, the oldest events first.
type Retention struct {
	// Age is how long events are kept after their commit, from MinRetentionAge to MaxPeriod.
	Age Period `json:"age,omitempty"`
	// Bytes is the size of the records that are kept, from MinRetentionBytes to MaxSize.
	Bytes Size `json:"bytes,omitempty"`
	// Count is how many events are kept, at most eventhub.MaxOffset.
	Count uint64 `json:"count,omitempty"`
}

// Compaction says how the latest event of each key is kept. Each period is from
// MinCompactionAge to MaxPeriod; 0 stands for its default.
type Compaction struct {
	// MinAge is how long after its commit every event is kept. Default DefaultMinAge.
	MinAge Period `json:"min_age,omitempty"`
	// Hold is how long after its commit an event is kept for a group that is not done with
	// it. Default DefaultHold.
	Hold Period `json:"hold,omitempty"`
	// Grace is how long after its commit a tombstone is kept: an event with the payload
	// null, which ends its key. Default DefaultGrace.
	Grace Period `json:"grace,omitempty"`
}

// The periods of a Compaction that names none.
const (
	DefaultMinAge = Period(24 * time.Hour)
	DefaultHold   = Period(7 * 24 * time.Hour)
	DefaultGrace  = Period(24 * time.Hour)
)

// MinCompactionAge is the shortest period of a Compaction.
const MinCompactionAge = Period(time.Second)

// WithDefaults returns the compaction with its defaults.
func (c Compaction) WithDefaults() Compaction {
	c.MinAge, c.Hold, c.Grace = cmp.Or(c.MinAge, DefaultMinAge), cmp.Or(c.Hold, DefaultHold), cmp.Or(c.Grace, DefaultGrace)
	return c
}

func (c *Compaction) validate() error {
	for _, p := range []struct {
		name  string
		value Period
	}{{"min_age", c.MinAge}, {"hold", c.Hold}, {"grace", c.Grace}} {
		if p.value != 0 && (p.value < MinCompactionAge || p.value > MaxPeriod) {
			return eventhub.Errorf(eventhub.CodeBadRequest, "compaction.%s is %s; %s to %s are allowed", p.name, time.Duration(p.value), MinCompactionAge, MaxPeriod)
		}
	}
	return nil
}

// The bounds of settings.
const (
	MinRetentionAge    = Period(time.Second)
	MinGroupIdleExpiry = Period(time.Second)
	MaxPeriod          = Period(36_500 * 24 * time.Hour)
	MinRetentionBytes  = Size(1 << 10)
	MaxSize            = Size(1 << 60)
)

// SettingsEntry is one entry.
type SettingsEntry struct {
	Name string `json:"name"`
	// Source is SourceFile or SourceStored.
	Source string `json:"source"`
	// Version of a stored entry, which no other entry had before; 0 for one of the file.
	Version  uint64        `json:"version,omitempty"`
	Settings TopicSettings `json:"settings"`
}

// EffectiveSettings are those that count for a topic.
type EffectiveSettings struct {
	Topic    string        `json:"topic"`
	Settings TopicSettings `json:"settings"`
	SettingsSource
	// OwnVersion is the version of the stored entry of the topic's own name, which counts
	// unless the file has one too; 0 for none. It is what SetTopic compares.
	OwnVersion uint64 `json:"own_version"`
}

// SettingsSource says where settings are from.
type SettingsSource struct {
	// Source is SourceFile, SourceStored or SourceDefault.
	Source string `json:"source"`
	// Entry is the name of the entry, and Version that of a stored one.
	Entry   string `json:"entry,omitempty"`
	Version uint64 `json:"version,omitempty"`
}

// Where settings are from: an entry of the hub's file, a stored entry, or none.
const (
	SourceFile    = "file"
	SourceStored  = "stored"
	SourceDefault = "default"
)

// Period is a duration in settings. In JSON it is a text such as "3d", "1d12h" or "30s".
type Period time.Duration

func (p Period) String() string { return when.Format(time.Duration(p)) }

// MarshalText implements encoding.TextMarshaler.
func (p Period) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Period) UnmarshalText(text []byte) error {
	parsed, err := ParsePeriod(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// ParsePeriod reads a period that is more than 0. The error has CodeBadRequest.
func ParsePeriod(text string) (Period, error) {
	d, err := when.Span(text)
	if err != nil || d == 0 {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%.48q is not a duration such as 30s, 1h30m or 3d", text)
	}
	return Period(d), nil
}

// Size is a number of bytes in settings. In JSON it is a number; a text such as "1GiB" or
// "500MB" is read too.
type Size uint64

var sizeUnits = []struct {
	name  string
	bytes uint64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
}

// String writes the size in the largest unit, of powers of 1024, of which it is a multiple.
func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if s > 0 && uint64(s)%u.bytes == 0 {
			return strconv.FormatUint(uint64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(s), 10) + "B"
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Size) UnmarshalJSON(value []byte) error {
	text := string(value)
	if len(value) > 0 && value[0] == '"' {
		if err := json.Unmarshal(value, &text); err != nil {
			return err
		}
	}
	parsed, err := ParseSize(text)
	if err == nil {
		*s = parsed
	}
	return err
}

// ParseSize reads a size that is more than 0. The error has CodeBadRequest.
func ParseSize(text string) (Size, error) {
	number, unit := text, uint64(1)
	for _, u := range sizeUnits {
		if cut, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = strings.TrimSuffix(cut, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n == 0 || n > math.MaxUint64/unit {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%.48q is not a number of bytes above 0 such as 1048576, 500MB or 1GiB", text)
	}
	return Size(n * unit), nil
}

// ValidateSettingsName checks that settings may have that name: a topic's, or a pattern, and
// nothing of system, whose topics have settings of their own. The error has CodeBadTopic.
func ValidateSettingsName(name string) error {
	if _, err := eventhub.ParsePattern(name); err != nil {
		return err
	}
	if first, _, _ := strings.Cut(name, "."); first == "system" {
		return eventhub.Errorf(eventhub.CodeBadTopic, "%q cannot have settings: the topics of system are the hub's own", name)
	}
	return nil
}

// Validate checks the settings of an entry of that name: what is out of its range, what
// contradicts something else, and what the hub does not do yet, which has
// CodeUnsupportedOp; all else has CodeBadRequest.
func (s *TopicSettings) Validate(name string) error {
	bad := func(format string, args ...any) error {
		return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	r := &s.Retention
	switch {
	case r.Age != 0 && (r.Age < MinRetentionAge || r.Age > MaxPeriod):
		return bad("retention.age is %s; %s to %s are allowed", time.Duration(r.Age), MinRetentionAge, MaxPeriod)
	case r.Bytes != 0 && (r.Bytes < MinRetentionBytes || r.Bytes > MaxSize):
		return bad("retention.bytes is %d; %d to %d are allowed", r.Bytes, MinRetentionBytes, MaxSize)
	case r.Count > eventhub.MaxOffset:
		return bad("retention.count is %d; at most %d is allowed", r.Count, uint64(eventhub.MaxOffset))
	case s.Compaction != nil && r.Bytes != 0:
		return bad("retention.bytes and compaction contradict each other: the latest event of a key would go when the topic is full")
	case s.Compaction != nil && r.Count != 0:
		return bad("retention.count and compaction contradict each other: the latest event of a key would go when the topic is full")
	case s.KeyRequired && eventhub.HubOnlyTopic(name):
		return bad("key_required has no effect on %q, whose events the hub makes", name)
	case s.Compaction != nil && eventhub.HubOnlyTopic(name):
		return bad("compaction would remove dead letters of %q that nobody has looked at; retention bounds them", name)
	case s.State != "" && s.State != StateAuto && s.State != StateOn && s.State != StateOff:
		return bad("state is %.48q; %s, %s or %s are allowed", s.State, StateAuto, StateOn, StateOff)
	case s.State == StateOff && s.Compaction != nil:
		return bad("state off and compaction contradict each other: compaction reads the state by key")
	case s.GroupIdleExpiry != 0 && (s.GroupIdleExpiry < MinGroupIdleExpiry || s.GroupIdleExpiry > MaxPeriod):
		return bad("group_idle_expiry is %s; %s to %s are allowed", time.Duration(s.GroupIdleExpiry), MinGroupIdleExpiry, MaxPeriod)
	}
	if s.Compaction != nil {
		if err := s.Compaction.validate(); err != nil {
			return err
		}
	}
	if s.Snapshot == nil {
		return nil
	}
	if s.State == StateOff && s.Snapshot.KeySource == "" {
		return bad("state off and snapshot contradict each other: a snapshot is read from the index by key, unless it has a key_source")
	}
	if s.Compaction != nil && s.Snapshot.KeySource != "" {
		return bad("compaction and snapshot.key_source contradict each other: compaction keeps the newest event by its own key")
	}
	return s.Snapshot.validate(name)
}
