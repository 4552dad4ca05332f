package admin

import (
	"context"

	"eventhub"
)

// ReplayQuery says what of the past is read.
type ReplayQuery struct {
	// Topic may be a pattern: its topics are read one after the other, in byte
	// order.
	Topic string
	// Allowed, where not nil, are the topics that are read of those that a pattern matches. It
	// is the hub's own.
	Allowed *eventhub.TopicRules
	// Start is where to begin: the zero value, unlike that of a subscription, means
	// the first event there is. A start after an event or at an offset goes with one
	// topic only; StartLatest has nothing to replay and is CodeBadRequest, except as the
	// zero value.
	Start eventhub.Start
	// Life, if not 0, is the life that is meant of the one topic, as History.Life
	// returned it: CodeUnknownID if the topic has another one, or does not exist. So a
	// replay that goes on where an earlier one has ended reads the same topic, or nothing.
	Life uint64
	// ToTS, if not 0, ends each topic before the first event committed at or after
	// it, in epoch milliseconds.
	ToTS int64
	// Limit, if not 0, ends the replay after so many events.
	Limit int
	// Filter lets only some events through; the others do not count for Limit.
	Filter *eventhub.Filter
	// OnGap, where not nil, is called for each topic of which compaction may have removed
	// events that are asked for, StartEarliest included: the gap has Compacted, and perhaps
	// Tombstones. It is called before the events that follow are visited, again where the
	// topic is compacted further meanwhile; a remote hub says it after the events, unless the
	// replay ends with an error, and of many topics of a pattern together in one gap that has the
	// pattern for its topic.
	OnGap func(eventhub.Gap)
}

// Found is an event with its topic.
type Found struct {
	Topic string
	eventhub.Item
}

// History reads what was published, however long ago. Its methods are safe for
// concurrent use.
type History interface {
	// Replay calls visit for each event that q asks for, up to the heads that there
	// were when it began. A record is valid until visit returns. It reads no faster
	// than visit takes, holds nothing of the store meanwhile, and ends with the error
	// that visit returns. CodeUnknownID: a start after an event that does not exist, or a
	// topic that was deleted, and perhaps created again, before all its events were seen.
	// Without an error all of them were seen that there are; q.OnGap learns where compaction
	// may have removed some.
	Replay(ctx context.Context, q ReplayQuery, visit func(topic string, item eventhub.Item) error) error

	// Life returns the number of a topic's life, from 1 to MaxOffset, or 0 if there is
	// no such topic. One that is deleted and created again has another.
	Life(ctx context.Context, topic string) (uint64, error)

	// Find returns the events with that id: one for each topic that has it, in byte
	// order of topics; at most limit, from 1 to MaxPage.
	Find(ctx context.Context, id string, limit int) ([]Found, error)

	// Effects returns the events that name the id in CausedBy, in the order of topics
	// and offsets, and only those after the place: at most limit, from 1 to MaxPage, and
	// fewer if their records come to 16 MiB. When there are no more it returns none.
	// Events that were stored before the hub kept such links are not found.
	Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]Found, error)

	// Correlated returns the events with that value in the header
	// eventhub.CorrelationHeader, like Effects.
	Correlated(ctx context.Context, correlation string, after eventhub.Place, limit int) ([]Found, error)

	// State returns a page of the state by key of a topic, in byte order of keys. All pages
	// are of the offset of the first one. CodeUnknownID: there is no such topic, or it was
	// deleted since the page before; CodeGone: retention or compaction has removed what the
	// state at that offset would need; CodeWaitTimeout: MinOffset did not come in time. What
	// retention, a trim or an erasure removes is not in the state, at any offset.
	State(ctx context.Context, q StateQuery) (StatePage, error)

	// StateDiff returns a page of the difference between two states that State would read, in
	// byte order of keys. All pages are of the offsets of the first one. The errors are those
	// of State.
	StateDiff(ctx context.Context, q StateDiffQuery) (StateDiffPage, error)

	// KeyHistory returns a page of the changes of one key, the newest first, each with what
	// caused it. What was removed is missing: the page says up to where. CodeUnknownID: there
	// is no such topic.
	KeyHistory(ctx context.Context, q KeyHistoryQuery) (KeyHistoryPage, error)
}

// Concealer is a History that leaves out what its caller may not see. A trace asks it whether
// there is something, and says no more than that.
type Concealer interface {
	// ConcealsEvent reports whether Find leaves out an event of that id, and ConcealsEffects
	// whether Effects leaves out some.
	ConcealsEvent(ctx context.Context, id string) (bool, error)
	ConcealsEffects(ctx context.Context, id string) (bool, error)
}
