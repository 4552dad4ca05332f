package admin

import (
	"context"
	"fmt"

	"eventhub"
)

// AuditTopic is where the hub notes who was let in and who was not, what was denied, what
// administrators did, and which groups it has ended: events whose payload is an AuditMark, an
// EraseMark or a GroupEndMark. The first one creates it. It keeps the newest ones, and nobody can
// remove events of it.
const AuditTopic = "system.audit"

// Remover removes events before their time. What was removed is no longer shown, at once, and
// is removed from the disk afterwards; its offsets are not given again. The topics of system
// are the hub's own: CodeBadTopic. Its methods are safe for concurrent use.
type Remover interface {
	// Trim removes the events of a topic before a place, and returns what that means;
	// without apply it only returns that. It is durable when Trim returns. CodeUnknownID if
	// there is no such topic, or no event of that id; CodeBadRequest for a place above the
	// head, or in time to come.
	Trim(ctx context.Context, topic string, q TrimQuery, apply bool) (TrimPlan, error)

	// Erase removes single events of a topic, with their dead letters and what is scheduled,
	// and returns how many that are; without Apply it only returns that. Each part is
	// durable when Erase returns, and the first one notes in AuditTopic who did it. Where it
	// is interrupted, the same again goes on. CodeUnknownID if there is no such topic, or
	// nothing to erase.
	Erase(ctx context.Context, topic string, q EraseQuery) (EraseResult, error)

	// PlanSettings returns what settings of that name would remove now, as far as topics
	// would have them. Errors are those of SetTopic.
	PlanSettings(ctx context.Context, name string, settings TopicSettings) (SettingsPlan, error)
}

// TrimQuery is a place in a topic: exactly one of its fields is set.
type TrimQuery struct {
	Before   uint64 // the first offset that is kept
	BeforeTS int64  // epoch milliseconds: the first event committed then or later is kept
	BeforeID string // the id of the first event that is kept
	Keep     uint64 // how many of the newest events are kept
}

// Validate checks that exactly one field is set, to what it can be. The error has
// CodeBadRequest.
func (q *TrimQuery) Validate() error {
	given := 0
	for _, is := range []bool{q.Before != 0, q.BeforeTS != 0, q.BeforeID != "", q.Keep != 0} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%d of before, before_ts, before_id and keep are given; one of them is expected", given)
	case q.BeforeTS < 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "before_ts is %d; epoch milliseconds are not negative", q.BeforeTS)
	case q.BeforeID != "":
		return eventhub.ValidateID(q.BeforeID)
	}
	return nil
}

// TrimPlan says what a trim does, or would do.
type TrimPlan struct {
	Topic string `json:"topic"`
	// From and Horizon are the first offset that is kept before and after; Head is the newest.
	From    uint64 `json:"from"`
	Horizon uint64 `json:"horizon"`
	Head    uint64 `json:"head"`
	// Events are removed, whose records have so many Bytes.
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"`
	// Groups are those that are not done with all of these events.
	Groups []OvertakenGroup `json:"groups"`
	// Applied says whether it was done.
	Applied bool `json:"applied"`
}

// OvertakenGroup is a group that loses events which it is not done with.
type OvertakenGroup struct {
	Group string `json:"group"`
	// Events are those above the cursor, also what was acked out of order.
	Events uint64 `json:"events"`
}

// EraseQuery says which events to erase: exactly one of ID, Offset and Key is set.
type EraseQuery struct {
	ID     string
	Offset uint64
	// Key means all events of the key that there are when Erase is called.
	Key string
	// Limit is how many events are looked at, 1 to MaxErase; 0 means MaxErase. There may be more
	// then (EraseResult.More).
	Limit int
	Apply bool
	By    string // who asks, for the mark
}

// MaxErase bounds the events that one call of Erase looks at.
const MaxErase = 10_000

// Validate checks that one of the fields is set, to what it can be.
func (q *EraseQuery) Validate() error {
	given := 0
	for _, is := range []bool{q.Offset != 0, q.ID != "", q.Key != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%d of id, offset and key are given; one of them is expected", given)
	case q.Limit < 0 || q.Limit > MaxErase:
		return eventhub.Errorf(eventhub.CodeBadRequest, "limit is %d; 1 to %d are allowed", q.Limit, MaxErase)
	case len(q.Key) > eventhub.MaxKeyBytes:
		return eventhub.Errorf(eventhub.CodeBadRequest, "the key has %d bytes; at most %d are allowed", len(q.Key), eventhub.MaxKeyBytes)
	case q.ID != "":
		return eventhub.ValidateID(q.ID)
	}
	return nil
}

// String says what is erased, as in "event of key \"ada\"".
func (q *EraseQuery) String() string {
	switch {
	case q.ID != "":
		return fmt.Sprintf("event %q", q.ID)
	case q.Key != "":
		return fmt.Sprintf("event of key %q", q.Key)
	}
	return fmt.Sprintf("event at offset %d", q.Offset)
}

// EraseResult says what was erased, or would be.
type EraseResult struct {
	Topic string `json:"topic"`
	// Events of the topic, DeadLetters that hold one of them, Scheduled events.
	Events      int `json:"events"`
	DeadLetters int `json:"dead_letters"`
	Scheduled   int `json:"scheduled"`
	// Snapshots of the topic that are removed, all of them, because they may have a copy. The next one is
	// made of what there is then.
	Snapshots int `json:"snapshots"`
	// Applied says whether it was done; More that the limit has left some.
	Applied bool `json:"applied"`
	More    bool `json:"more"`
}

// Add adds what another call has erased.
func (r *EraseResult) Add(more EraseResult) {
	r.Events += more.Events
	r.DeadLetters += more.DeadLetters
	r.Scheduled += more.Scheduled
	r.Snapshots += more.Snapshots
	r.Topic, r.Applied, r.More = more.Topic, more.Applied, more.More
}

// Total is how many there are.
func (r *EraseResult) Total() int { return r.Events + r.DeadLetters + r.Scheduled + r.Snapshots }

// EraseMark is the payload of an event in AuditTopic: who erased what. It has nothing of the
// events but how they were named.
type EraseMark struct {
	Action string `json:"action"` // "erase"
	By     string `json:"by"`
	Topic  string `json:"topic"`
	ID     string `json:"id,omitempty"`
	Offset uint64 `json:"offset,omitempty"`
	Key    string `json:"key,omitempty"`
	// How many were erased in this step.
	Events      int `json:"events"`
	DeadLetters int `json:"dead_letters"`
	Scheduled   int `json:"scheduled"`
	Snapshots   int `json:"snapshots,omitempty"`
}

// AuditMark is the payload of an event in AuditTopic: who did what, from where, and what came of
// it. All of one second that is equal is one event.
type AuditMark struct {
	// Action is "auth", "denied", or an act of an administrator, such as "topic_delete".
	Action string `json:"action"`
	// By is the name of the principal; empty where none was let in.
	By string `json:"by,omitempty"`
	// Transport is "ws", "http" or "ops", and Remote the address, without a port.
	Transport string `json:"transport"`
	Remote    string `json:"remote"`
	// Right is the action of a policy that was denied. Topic, perhaps a pattern, and Group are
	// what it was about; of denials that are counted together those of the first one.
	Right string `json:"right,omitempty"`
	Topic string `json:"topic,omitempty"`
	Group string `json:"group,omitempty"`
	// Outcome is "ok" or the code of the error.
	Outcome string `json:"outcome"`
	Count   int    `json:"count"`
}

// GroupEndMark is the payload of an event in AuditTopic: a group has ended, since nobody had used it.
type GroupEndMark struct {
	Action string `json:"action"` // "group_end"
	By     string `json:"by"`     // "group_idle_expiry"
	Group  string `json:"group"`
	// Pattern is one that the group had, and that has ended with it.
	Pattern string `json:"pattern,omitempty"`
	IdleMS  int64  `json:"idle_ms"` // for how long nobody had used it
	// Topics is in how many topics it has ended, and Ended has the first 100 by name.
	Topics int          `json:"topics"`
	Ended  []GroupEnded `json:"ended"`
}

// GroupEnded is where a group was in a topic when it ended.
type GroupEnded struct {
	Topic  string `json:"topic"`
	Cursor uint64 `json:"cursor"`
}

// SettingsPlan says what settings would remove, and which groups they would end, now.
type SettingsPlan struct {
	Name string `json:"name"`
	// Matched is how many topics there are that would have the settings.
	Matched int    `json:"matched"`
	Events  uint64 `json:"events"`
	Bytes   uint64 `json:"bytes"`
	// Topics are those that would lose events, the first MaxPage by name.
	Topics []TopicLoss `json:"topics"`
	// Ends is how many groups would end now, and Groups the first MaxPage of them.
	Ends   int         `json:"ends"`
	Groups []IdleGroup `json:"groups"`
}

// IdleGroup is a group that would end.
type IdleGroup struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	// Pattern is one of the group that would end with it.
	Pattern string `json:"pattern,omitempty"`
	// IdleMS is for how long nobody has used it, as far as the hub has seen.
	IdleMS int64  `json:"idle_ms"`
	Cursor uint64 `json:"cursor"`
}

// TopicLoss is what one topic would lose.
type TopicLoss struct {
	Topic   string `json:"topic"`
	Horizon uint64 `json:"horizon"`
	Events  uint64 `json:"events"`
	Bytes   uint64 `json:"bytes"`
}
