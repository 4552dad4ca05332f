package admin

import (
	"context"

	"eventhub"
)

// Inspector shows what there is: topics, events at their places, and how far
// groups are. It changes nothing. What it shows of a group that has members is
// as of now; a moment later it may be different. Its methods are safe for
// concurrent use.
type Inspector interface {
	// Topics lists topics with names after the given one, in byte order: at most
	// limit, from 1 to MaxPage.
	Topics(ctx context.Context, after string, limit int) ([]TopicInfo, error)

	// Topic describes one topic; CodeUnknownID if there is none.
	Topic(ctx context.Context, topic string) (TopicInfo, error)

	// Event returns the event with that id; CodeUnknownID if the topic or the
	// event does not exist.
	Event(ctx context.Context, topic, id string) (eventhub.Item, error)

	// Groups lists groups ordered by topic, then by name.
	Groups(ctx context.Context, q GroupQuery) ([]GroupInfo, error)

	// Group describes one group; CodeNotSubscribed if there is none.
	Group(ctx context.Context, topic, group string) (GroupInfo, error)

	// EventGroups says what became of an event in each group of its topic,
	// ordered by name. CodeUnknownID as for Event.
	EventGroups(ctx context.Context, topic, id string) ([]EventGroup, error)

	// Patterns lists the patterns of the groups that have some, ordered by group,
	// then by pattern; those of one group if the name is not empty.
	Patterns(ctx context.Context, group string) ([]GroupPattern, error)

	// InFlight lists the events of a group that are leased or wait for another
	// attempt, lowest offset first: at most limit, from 1 to MaxPage.
	// CodeNotSubscribed if there is no such group.
	InFlight(ctx context.Context, topic, group string, limit int) ([]InFlight, error)
}

// GroupQuery says which groups to list. An empty field does not choose.
type GroupQuery struct {
	Topic, Group           string // only those with this name
	AfterTopic, AfterGroup string // only those after this place in the order
	Limit                  int    // 1 to MaxPage; 0 means MaxPage
}

// GroupPattern is a pattern of a group: topics that are created later and match it
// get the group, with these settings.
type GroupPattern struct {
	Group   string `json:"group"`
	Pattern string `json:"pattern"`
	// Topics is how many topics there are that match, and that those may have who subscribed.
	Topics int `json:"topics"`
	// Limited says that the rights of those who subscribed leave out some topics that match.
	Limited      bool             `json:"limited,omitempty"`
	Ordering     string           `json:"ordering"`
	Filter       *eventhub.Filter `json:"filter,omitempty"`
	MaxAttempts  int              `json:"max_attempts"`
	MinBackoffMS int64            `json:"backoff_min_ms"`
	MaxBackoffMS int64            `json:"backoff_max_ms"`
}

// TopicInfo describes one topic.
type TopicInfo struct {
	Topic string `json:"topic"`
	// FirstOffset is that of the oldest event kept, Head that of the newest; 0
	// if there is none.
	FirstOffset uint64 `json:"first_offset"`
	Head        uint64 `json:"head"`
	// Horizon is the first offset that the topic keeps; 1 where nothing was removed.
	Horizon uint64 `json:"horizon"`
	// FirstTS and HeadTS are the commit times of these events in epoch
	// milliseconds, HeadID is the newest one's id.
	FirstTS int64  `json:"first_ts,omitempty"`
	HeadTS  int64  `json:"head_ts,omitempty"`
	HeadID  string `json:"head_id,omitempty"`
	// Groups is the number of groups in the topic.
	Groups int `json:"groups"`
	// Kept is how much the topic keeps, and Removal what its settings have removed, nil
	// without a bound. They are in the description of one topic, and not in lists.
	Kept    *TopicUsage   `json:"kept,omitempty"`
	Removal *TopicRemoval `json:"removal,omitempty"`
	// Compaction is how far the topic is compacted, nil where it never was and its settings do
	// not say so. It is in the description of one topic, and not in lists.
	Compaction *TopicCompaction `json:"compaction,omitempty"`
	// Index is how far its index by key is, from which its state is read. It is in the description of
	// one topic, and not in lists.
	Index *TopicIndex `json:"index,omitempty"`
	// Snapshots are those that the hub makes of the topic, nil where it makes none and there are none. They
	// are in the description of one topic, and not in lists.
	Snapshots *TopicSnapshots `json:"snapshots,omitempty"`
	// Settings are those that count for the topic, and SettingsFrom says where they are
	// from. They are in the description of one topic, and not in lists.
	Settings     *TopicSettings  `json:"settings,omitempty"`
	SettingsFrom *SettingsSource `json:"settings_from,omitempty"`
	// Idle is about groups that nobody uses, where these end, or did. It is in the description of one
	// topic, and not in lists.
	Idle *TopicIdle `json:"idle,omitempty"`
}

// TopicIndex says how far the index by key of a topic is.
type TopicIndex struct {
	// State is IndexNone, IndexBuilding or IndexReady.
	State string `json:"state"`
	// Done and Total say through how many offsets of how many the hub has gone while it is being
	// built; 0 where that is not known yet.
	Done  uint64 `json:"done,omitempty"`
	Total uint64 `json:"total,omitempty"`
}

// The states of a TopicIndex.
const (
	IndexNone     = "none"     // nobody has asked for it
	IndexBuilding = "building" // questions about the state of the topic wait for it
	IndexReady    = "ready"
)

// TopicSnapshots says which snapshots there are of a topic.
type TopicSnapshots struct {
	// Topic is where they are.
	Topic string `json:"topic"`
	// State is SnapshotsWaiting, SnapshotsWriting or SnapshotsOff; Failed why the last one was not made,
	// empty where it was.
	State  string `json:"state"`
	Failed string `json:"failed,omitempty"`
	// NextTS is when the next one is due, where nothing else changes, in epoch milliseconds; 0 where none is:
	// nothing has changed since the last one.
	NextTS int64 `json:"next_ts,omitempty"`
	// Snapshots are the newest two, the newest first.
	Snapshots []SnapshotInfo `json:"snapshots"`
}

// SnapshotInfo is one snapshot of a topic.
type SnapshotInfo struct {
	// ID is in each of its events.
	ID string `json:"id"`
	// Offset is that in the topic of which the snapshot is the state, TS when it was read, in epoch
	// milliseconds, and Count its number of keys.
	Offset uint64 `json:"offset"`
	TS     int64  `json:"ts"`
	Count  uint64 `json:"count"`
	// First is the offset in the snapshot topic where it begins.
	First uint64 `json:"first"`
}

// The states of TopicSnapshots.
const (
	SnapshotsOff     = "off"     // the settings have none made, or maintenance is off
	SnapshotsWaiting = "waiting" // until one is due
	SnapshotsWriting = "writing"
)

// TopicIdle says which groups of a topic end, and have ended, because nobody uses them.
type TopicIdle struct {
	// Groups is how many are idle now. Next is the one that ends first, at NextTS at the
	// earliest, in epoch milliseconds; empty where none does.
	Groups int    `json:"groups"`
	Next   string `json:"next,omitempty"`
	NextTS int64  `json:"next_ts,omitempty"`
	// Ended are those that have ended in the last 30 days and are not there again, the last 100
	// of them, the newest first.
	Ended []EndedGroup `json:"ended"`
}

// EndedGroup is a group that has ended.
type EndedGroup struct {
	Group  string `json:"group"`
	TS     int64  `json:"ts"` // epoch milliseconds
	Cursor uint64 `json:"cursor"`
}

// GroupIdle says for how long nobody has used a group, where the settings of its topic end such
// groups.
type GroupIdle struct {
	// Expiry is how long that may be, and IdleMS how long it has been, 0 while somebody uses the
	// group. Only the time counts in which the hub was running.
	Expiry Period `json:"expiry"`
	IdleMS int64  `json:"idle_ms"`
	// EndsTS is when the group ends at the earliest, in epoch milliseconds, if nobody uses it and the hub goes
	// on; 0 while it is used, and where the hub ends nothing.
	EndsTS int64 `json:"ends_ts,omitempty"`
	// Patterns of the group match the topic: it ends with one of them, when its time is over in all topics
	// that this one matches.
	Patterns []string `json:"patterns,omitempty"`
}

// TopicUsage is how much a topic keeps.
type TopicUsage struct {
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"` // of the records
	// AtLeast: there is more, which was not counted.
	AtLeast bool `json:"at_least,omitempty"`
	// IDsKeptMS is for how many milliseconds the id of a removed event is remembered.
	IDsKeptMS int64 `json:"ids_kept_ms"`
}

// TopicRemoval is what the hub has removed of a topic by its settings, since the hub started.
type TopicRemoval struct {
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"`
	// LastTS is when the hub looked last, in epoch milliseconds; 0: not yet.
	LastTS int64 `json:"last_ts,omitempty"`
	// State is "waiting" for something to remove, "counting" what the topic keeps, before
	// its bounds count, or "off" where the hub removes nothing.
	State string `json:"state"`
}

// TopicCompaction is how far a topic is compacted, and what the hub has removed of it by
// compaction since the hub started.
type TopicCompaction struct {
	// Compacted is the mark: the state by key is exact at every offset from there on. Before it
	// values that were replaced are missing; before Tombstones ends of keys, too.
	Compacted  uint64 `json:"compacted"`
	Tombstones uint64 `json:"tombstones"`
	Events     uint64 `json:"events"`
	Bytes      uint64 `json:"bytes"`
	// LastTS is when the hub removed something last or looked whether it can, in epoch
	// milliseconds; 0: not yet.
	LastTS int64 `json:"last_ts,omitempty"`
	// State is "running" while a pass is under way, "waiting" for something to do, or "off" where
	// the hub removes nothing or the settings do not have the topic compacted any more.
	State string `json:"state"`
	// HeldBy is why the mark is not the head: "min_age", or "group" for one that is not done with
	// the event HeldFrom, named by HeldGroup. At HeldUntilTS, in epoch milliseconds, that ends by itself: the event
	// is older than min_age, or than hold. Empty where nothing is held.
	HeldBy      string `json:"held_by,omitempty"`
	HeldGroup   string `json:"held_group,omitempty"`
	HeldFrom    uint64 `json:"held_from,omitempty"`
	HeldUntilTS int64  `json:"held_until_ts,omitempty"`
}

// GroupInfo describes one group in one topic.
type GroupInfo struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	// Cursor is the ack floor: everything at or below it is done. Epoch is
	// raised by every seek.
	Cursor uint64 `json:"cursor"`
	Epoch  uint64 `json:"epoch"`
	// LastID and LastTS (commit time, epoch milliseconds) are those of the event
	// at the cursor; empty when there is none.
	LastID string `json:"last_id,omitempty"`
	LastTS int64  `json:"last_ts,omitempty"`
	// Head, HeadID and HeadTS are those of the newest event of the topic.
	Head   uint64 `json:"head"`
	HeadID string `json:"head_id,omitempty"`
	HeadTS int64  `json:"head_ts,omitempty"`
	// Lag is how many events are not done: those above the cursor, less those
	// that are acked out of order. Offsets that hold no event count until the
	// group has passed them.
	Lag uint64 `json:"lag"`
	// OldestTS is the commit time, in epoch milliseconds, of the oldest event
	// that is not done; 0 if there is none.
	OldestTS int64 `json:"oldest_ts,omitempty"`
	// InFlight events are leased to members; Waiting ones are to be delivered
	// again; Held ones wait for an earlier event of their key.
	InFlight int `json:"in_flight"`
	Waiting  int `json:"waiting"`
	Held     int `json:"held,omitempty"`
	// Redriven events were dead letters, were given back to the group, and are not done.
	// They are among those in flight, waiting and held, and no part of Lag.
	Redriven int `json:"redriven,omitempty"`
	// Paused says that the group gets no deliveries.
	Paused bool `json:"paused,omitempty"`
	// BlockedBy says why events that are not done are not delivered now, if there
	// is a reason other than that all of them are in flight.
	BlockedBy *Blocked `json:"blocked_by,omitempty"`
	// Idle is nil where groups of the topic do not end by themselves.
	Idle *GroupIdle `json:"idle,omitempty"`
	// Settings of the group, fixed at its creation.
	Ordering     string           `json:"ordering"`
	Filter       *eventhub.Filter `json:"filter,omitempty"`
	MaxAttempts  int              `json:"max_attempts"`
	MinBackoffMS int64            `json:"backoff_min_ms"`
	MaxBackoffMS int64            `json:"backoff_max_ms"`

	Members []MemberInfo `json:"members"`
}

// LagMS is how far the cursor is behind the newest event in commit time, in
// milliseconds. ok is false if one of the two has no event.
func (g *GroupInfo) LagMS() (ms int64, ok bool) {
	if g.HeadTS == 0 || g.LastTS == 0 {
		return 0, false
	}
	return g.HeadTS - g.LastTS, true
}

// Blocked says what keeps events of a group waiting, and which event is in the way.
type Blocked struct {
	// Kind is "paused"; "filter" (the hub does not accept the group's any more, so nobody
	// can subscribe); "no_members"; "members_paused" (all of them);
	// "members_full" (they hold as many events as they may); "window" (the group
	// has read as far ahead of its cursor as it may, or memory is scarce); or "key" (events wait for
	// an earlier one of their key).
	Kind string `json:"kind"`
	// Reason is what is wrong with the filter, of kind "filter".
	Reason string `json:"reason,omitempty"`
	// Key is the one that waits longest, of kind "key".
	Key string `json:"key,omitempty"`
	// The event in the way: of kind "window" the one above the cursor, of kind
	// "key" the one that is not done.
	Offset uint64 `json:"offset,omitempty"`
	ID     string `json:"id,omitempty"`
	// State is that event's, as in InFlight; Member holds it, since SinceTS
	// (epoch milliseconds).
	State   string         `json:"state,omitempty"`
	Member  *eventhub.Peer `json:"member,omitempty"`
	SinceTS int64          `json:"since_ts,omitempty"`
}

// Attempt is one delivery of an event that did not succeed.
type Attempt struct {
	Attempt int            `json:"attempt"`
	Member  *eventhub.Peer `json:"member,omitempty"`
	SinceTS int64          `json:"since_ts"` // epoch milliseconds: when it was delivered
	EndedTS int64          `json:"ended_ts"` // and when it ended
	// Why is "expired", "nacked" or "disconnected".
	Why    string `json:"why"`
	Reason string `json:"reason,omitempty"` // of a NACK
}

// MemberInfo describes one member of a group.
type MemberInfo struct {
	eventhub.Peer
	InFlight    int   `json:"in_flight"`
	MaxInFlight int   `json:"max_in_flight"`
	SinceTS     int64 `json:"since_ts"` // epoch milliseconds
}

// InFlight is one event of a group that was delivered at least once, or is about
// to be, and is not done.
type InFlight struct {
	Offset  uint64 `json:"offset"`
	ID      string `json:"id,omitempty"`
	Attempt int    `json:"attempt"` // attempts so far
	// State is "leased", "waiting" (for another attempt), "held" (waits for an
	// earlier event of its key), "ack_and_publish" (the ack and what is published
	// with it are on their way to the log) or "dead_lettering".
	State string `json:"state"`
	// Of a leased event: who holds it, since when and until when, in epoch
	// milliseconds; one that is being delivered has no deadline. DueTS of a
	// waiting one: when it may be delivered again.
	Member   *eventhub.Peer `json:"member,omitempty"`
	SinceTS  int64          `json:"since_ts,omitempty"`
	Deadline int64          `json:"deadline_ts,omitempty"`
	DueTS    int64          `json:"due_ts,omitempty"`
	// History has the attempts that did not succeed, the last 20 of them.
	History []Attempt `json:"history,omitempty"`
	// Redriven counts how often it was redriven.
	Redriven int `json:"redriven,omitempty"`
}

// EventGroup is what became of an event in one group.
type EventGroup struct {
	Group string `json:"group"`
	// State is that of InFlight, or "done" (acked or dead-lettered), or "ahead"
	// (the group has not read so far since the hub started). The history is kept
	// while the event is not done; a dead letter has it too.
	InFlight
}
