package admin

import (
	"time"

	"eventhub"
)

// MaxStateKeys is how many keys one StateQuery may name, and MaxStateWait how long it may wait.
const (
	MaxStateKeys = MaxPage
	MaxStateWait = 20 * time.Second
)

// IndexWait is how long a question about the state of a topic waits at most for the hub to index the
// keys of the topic. After that the error has CodeOverloaded, and says how far the index is.
const IndexWait = 10 * time.Second

// StateQuery says which part of the state by key of a topic is read: of each key the newest
// event at one offset, unless its payload is null.
type StateQuery struct {
	Topic string
	// Keys, where not nil, are the keys that are asked for, 1 to MaxStateKeys of them, in any
	// order; else those that begin with Prefix are.
	Keys   []string
	Prefix string
	// At is the offset whose state it is, which is not above the head. AtTS, in epoch
	// milliseconds, means the last event that was committed at or before it, and is not in the
	// future. 0 and 0 mean now.
	At   uint64
	AtTS int64
	// Page, if not "", is the Next of the page before, of the same topic, Keys and Prefix: the
	// state is that of the same offset. It excludes At, AtTS and MinOffset.
	Page string
	// MinOffset, if not 0, is an offset that the topic has to have before its state is read:
	// the call waits for it as long as Wait says, at most MaxStateWait.
	MinOffset uint64
	Wait      time.Duration
	// Limit is how many events the page has at most, from 1 to MaxPage.
	Limit int
}

// StatePage is a part of the state of a topic.
type StatePage struct {
	// At is the offset whose state it is, 0 of a time before the first event; Life is the
	// life of the topic.
	At, Life uint64
	// Events are in the order of their keys. There may be fewer than the limit, and none,
	// although more follow.
	Events []eventhub.Item
	// Next is what to ask for next, "" on the last page.
	Next string
}

// Moment is a moment of a topic, as StateQuery has it: an offset, or a time in epoch
// milliseconds; at most one of both. The zero value is no moment.
type Moment struct {
	Offset uint64
	TS     int64
}

// StateDiffQuery says between which two states by key of a topic the difference is read.
type StateDiffQuery struct {
	Topic string
	// Prefix has the difference of those keys alone that begin with it.
	Prefix string
	// From and To are the moments, From not after To. Without From it is before the first
	// event, without To it is now.
	From, To Moment
	// Page, if not "", is the Next of the page before, of the same topic and Prefix: it has
	// both offsets, and excludes From and To.
	Page string
	// Limit is how many changes the page has at most, from 1 to MaxPage.
	Limit int
}

// StateChange says that a key has another newest event in the state at one offset than in
// the state at an earlier one.
type StateChange struct {
	Key string
	// From is its event in the earlier state, and To that in the later one; one of both may
	// have no record, where the key is not in that state.
	From, To eventhub.Item
}

// Kinds of a StateChange.
const (
	StateAdded   = "added"
	StateChanged = "changed"
	StateRemoved = "removed"
)

// Kind says what happened to the key.
func (c *StateChange) Kind() string {
	switch {
	case c.From.Record == nil:
		return StateAdded
	case c.To.Record == nil:
		return StateRemoved
	}
	return StateChanged
}

// StateDiffPage is a part of the difference between two states of a topic.
type StateDiffPage struct {
	// From and To are the offsets whose states they are, 0 of a time before the first event;
	// Life is the life of the topic.
	From, To, Life uint64
	// Changes are in the order of their keys. There may be fewer than the limit, and none,
	// although more follow.
	Changes []StateChange
	// Next is what to ask for next, "" on the last page.
	Next string
}
