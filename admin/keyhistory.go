package admin

import "eventhub"

// KeyHistoryQuery says which changes of a key are read, the newest first.
type KeyHistoryQuery struct {
	Topic, Key string
	// Before, if not 0, leaves out the changes at this offset and above it: the Next of the page
	// before.
	Before uint64
	// Limit is how many changes the page has at most, from 1 to MaxPage.
	Limit int
}

// KeyHistoryPage is a part of the history of a key.
type KeyHistoryPage struct {
	// Life is the life of the topic.
	Life uint64
	// Changes may be fewer than the limit although more follow.
	Changes []KeyChange
	// Next is the Before of the next page, 0 on the last one.
	Next uint64
	// Changes may be missing: those below Horizon, of those up to Compacted the ones that a newer
	// one has replaced, and of those up to Tombstones removals too. Horizon is 1, and the others
	// are 0, where nothing was removed. Erased events are missing without a word.
	Horizon, Compacted, Tombstones uint64
}

// KeyChange is one event of a key, with what there was before it.
type KeyChange struct {
	Event eventhub.Item
	// Before is the key's event before it. It has no record where there is none; BeforeGone says
	// that there may have been one, which was removed.
	Before     eventhub.Item
	BeforeGone bool
	// Causes are those that the event names in CausedBy, in this order.
	Causes []Cause
}

// StateSet is the kind of a KeyChange that gave its key a value where nobody knows any more
// whether it had one.
const StateSet = "set"

// Kind says what happened to the key: a kind of a StateChange, or StateSet.
func (c *KeyChange) Kind() string {
	switch {
	case c.Event.Record.IsTombstone():
		return StateRemoved
	case c.BeforeGone:
		return StateSet
	case c.Before.Record == nil || c.Before.Record.IsTombstone():
		return StateAdded
	}
	return StateChanged
}

// Cause is an event that another one names as its cause.
type Cause struct {
	ID string `json:"id"`
	// Topic and Offset say where the event is; of several topics that have the id, the first
	// in byte order.
	Topic  string `json:"topic,omitempty"`
	Offset uint64 `json:"offset,omitempty"`
	// Hidden: only topics that the caller may not read have it. Missing: no topic has it,
	// because it was removed, or never was here.
	Hidden  bool `json:"hidden,omitempty"`
	Missing bool `json:"missing,omitempty"`
}
