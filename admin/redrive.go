package admin

import (
	"context"

	"eventhub"
)

// RedriveTopic is where the hub notes, for each dead letter, who gave it back to its
// group and when: events whose caused_by is the dead letter's id and whose payload is
// a RedriveMark. The first redrive creates it.
const RedriveTopic = "system.redrive"

// DeadLetter is one event that a group gave up, as <topic>.dlq has it.
type DeadLetter struct {
	// Offset, ID and TS (epoch milliseconds of its commit) are those of the dead
	// letter in the dead-letter topic.
	Offset uint64 `json:"offset"`
	ID     string `json:"id"`
	TS     int64  `json:"ts"`
	// Topic, Group, Event (its offset) and EventID say who gave up what.
	Topic   string `json:"topic"`
	Group   string `json:"group"`
	Event   uint64 `json:"event_offset"`
	EventID string `json:"event_id"`
	Key     string `json:"key,omitempty"`
	// Epoch is that of the group when it gave the event up; 0 if the dead letter does
	// not say. From a remote hub it is 0.
	Epoch uint64 `json:"-"`
	// Attempts it had, and why the last one did not succeed.
	Attempts int    `json:"attempts"`
	Reason   string `json:"reason"`
	// Redriven is how often the event had been redriven before it failed again.
	Redriven int `json:"redriven,omitempty"`
	// State is LetterOpen, LetterRedriven, LetterDone or LetterRequeued.
	State string `json:"state"`
	// Marks say what was done about this dead letter, the earliest first; without
	// marks it is open. The first MaxRedriveMarks, if there are more.
	Marks []RedriveMark `json:"marks,omitempty"`
	// Record is the dead letter itself, with the original event in its payload. It is
	// valid until the visit returns.
	Record eventhub.Record `json:"-"`
}

// The states of a dead letter. They follow from its marks and from the list of redriven
// events of its group; nothing is written into the dead letter.
const (
	// LetterOpen: nothing was done about it.
	LetterOpen = "open"
	// LetterRedriven: its event was given back to the group, and waits there or is with a
	// member.
	LetterRedriven = "redriven"
	// LetterDone: its last redrive is over. The event was acked; or it failed again and has
	// another dead letter; or a seek put the group before it, or the group was deleted.
	LetterDone = "done"
	// LetterRequeued: it was published again as another event, and was never redriven.
	LetterRequeued = "requeued"
)

// DeadLetterCounts says how many dead letters are in which state.
type DeadLetterCounts struct {
	Open     uint64 `json:"open"`
	Redriven uint64 `json:"redriven"`
	Done     uint64 `json:"done"`
	Requeued uint64 `json:"requeued"`
}

// Total is how many there are.
func (c *DeadLetterCounts) Total() uint64 { return c.Open + c.Redriven + c.Done + c.Requeued }

// Add adds other to c.
func (c *DeadLetterCounts) Add(other *DeadLetterCounts) {
	c.Open += other.Open
	c.Redriven += other.Redriven
	c.Done += other.Done
	c.Requeued += other.Requeued
}

// DeadLetterGroup counts the dead letters of one group in one topic.
type DeadLetterGroup struct {
	Group string `json:"group"`
	DeadLetterCounts
}

// DeadLetterTopic is a topic that has dead letters.
type DeadLetterTopic struct {
	// Topic is the one whose events were given up, DLQ the one that has the dead letters.
	Topic string `json:"topic"`
	DLQ   string `json:"dlq"`
	// Count is how many dead letters there are, and the rest says in which states.
	Count uint64 `json:"count"`
	DeadLetterCounts
	// Groups has the same for each group that gave events up, by name; groups that were
	// deleted since are among them.
	Groups []DeadLetterGroup `json:"groups"`
	// Head is the offset of the newest, FirstTS and HeadTS are the commit times, in epoch
	// milliseconds, of the oldest and the newest.
	Head    uint64 `json:"head"`
	FirstTS int64  `json:"first_ts,omitempty"`
	HeadTS  int64  `json:"head_ts,omitempty"`
}

// MaxRedriveMarks bounds DeadLetter.Marks.
const MaxRedriveMarks = 16

// RedriveMark describes one redrive of one dead letter.
type RedriveMark struct {
	// TS is when, in epoch milliseconds, and By who, as the hub knows them.
	TS int64  `json:"ts,omitempty"`
	By string `json:"by"`
	// Topic, Group and Offset are those of the event, DeadLetter is where the dead
	// letter is and DeadLetterID its id.
	Topic        string         `json:"topic"`
	Group        string         `json:"group"`
	Offset       uint64         `json:"offset"`
	DeadLetter   eventhub.Place `json:"dead_letter"`
	DeadLetterID string         `json:"dead_letter_id"`
	// Redriven counts the redrives of the event, this one included; 0 if it was
	// requeued as another event, whose id is RequeuedAs.
	Redriven   int    `json:"redriven,omitempty"`
	RequeuedAs string `json:"requeued_as,omitempty"`
}

// DeadLetterQuery says which dead letters are meant. An empty field does not choose.
type DeadLetterQuery struct {
	// Topic is the one whose events were given up, or its dead-letter topic; no
	// pattern.
	Topic string
	Group string
	// Offsets and IDs are those of dead letters, at most MaxPage of each; if both are
	// given, a dead letter is meant if it is in one of them.
	Offsets []uint64
	IDs     []string
	// FromTS and ToTS bound the commit time of the dead letter, in epoch
	// milliseconds; ToTS itself is excluded.
	FromTS, ToTS int64
	// Filter is evaluated over the dead letter: its key is that of the original event,
	// which is event.payload.event in CEL.
	Filter *eventhub.Filter
	// All includes those that were already redriven or requeued.
	All bool
	// After is the offset of a dead letter: only those after it are meant.
	After uint64
	// Limit, if not 0, ends after so many.
	Limit int
}

// RedriveQuery says what is redriven, and how.
type RedriveQuery struct {
	DeadLetterQuery
	// Apply does it; otherwise nothing is changed and the answer says what would be done.
	Apply bool
	// Rate is how many events a second are given back at most, from 1 to
	// MaxRedriveRate; 0 means DefaultRedriveRate.
	Rate int
	// By says who does it, for the mark.
	By string
	// Progress, if not nil, is called about once a second with what was done so far, on
	// the caller's goroutine.
	Progress func(RedriveResult)
}

// The rates of a redrive, in events a second.
const (
	DefaultRedriveRate = 1_000
	MaxRedriveRate     = 100_000
)

// RedriveResult is what a redrive did, or would do.
type RedriveResult struct {
	Topic   string `json:"topic"`
	Applied bool   `json:"applied"`
	// Matched counts the dead letters that were meant, Redriven those whose events
	// were given back, or would be, and Groups these by group.
	Matched  int            `json:"matched"`
	Redriven int            `json:"redriven"`
	Groups   map[string]int `json:"groups,omitempty"`
	// Skipped counts the others by why: "waiting" (an earlier redrive of the event is
	// not done), "open" (the group was moved back and has the event again), "no_group"
	// (the group is not there any more), "gone" (the topic has no such event any more;
	// it can be requeued), "filter" (the hub does not accept the group's filter any more).
	Skipped map[string]int `json:"skipped,omitempty"`
	// Samples are the first of those that are given back, at most RedriveSamples; only
	// of what would be done.
	Samples []DeadLetter `json:"samples,omitempty"`
	// After is the offset of the last dead letter that was handled: a caller whose redrive
	// ended early continues by putting it into the query.
	After uint64 `json:"after"`
}

// RedriveSamples bounds RedriveResult.Samples.
const RedriveSamples = 5

// Redriver shows dead letters and gives their events back to the groups that gave
// them up, and to nobody else. Its methods are safe for concurrent use.
//
// A redriven event is delivered like any other, with attempts from 1, marked by
// Delivery.Redriven; where the group orders by key it is the only one of its key that
// is under way, but no order among redriven events, or between them and others, is
// promised. It does not hold up the group's cursor and does not count as lag. When it
// fails again it becomes another dead letter. A seek to before it takes it off the
// list, because the group gets it again anyway.
type Redriver interface {
	// DeadLetterTopics lists the topics that have dead letters with the numbers of these by
	// state and group, by the name of the dead-letter topic: at most limit, from 1 to
	// MaxPage, and only those after the given name, which is a dead-letter topic's, or "".
	// The first call since the start reads all dead letters and marks, unless the metrics
	// have done so; later ones read only what came since.
	DeadLetterTopics(ctx context.Context, after string, limit int) ([]DeadLetterTopic, error)

	// DeadLetters calls visit for each dead letter that q means, in order, up to the
	// newest there was when it began, and ends with the error that visit returns. A
	// topic without dead letters has none, and one that was deleted still has those that
	// it had, which are a topic of their own; CodeUnknownID if neither exists, or if an
	// id or an offset of the query is not that of a dead letter.
	DeadLetters(ctx context.Context, q DeadLetterQuery, visit func(*DeadLetter) error) error

	// Redrive gives back what q means. What it has counted is durable, each dead
	// letter with its mark, together or not at all; with an error the result says how
	// far it went. Doing the same again gives nothing back twice, unless q.All asks for
	// it: dead letters with a mark are skipped.
	Redrive(ctx context.Context, q RedriveQuery) (RedriveResult, error)

	// Requeue publishes the event of a dead letter again with another payload, to its
	// topic and so to all groups, and marks the dead letter, in one atomic step. The
	// new event has the key, headers, tags and sid of the original, and its id in
	// caused_by. topic is as in DeadLetterQuery, offset the dead letter's.
	//
	// It is done once: the same payload again is a duplicate, and of several who requeue one
	// dead letter at once, each with another payload, one publishes and the others get
	// CodeConflict. So does who requeues one that has a mark already.
	Requeue(ctx context.Context, topic string, offset uint64, payload []byte, by string) (eventhub.Receipt, error)

	// RequeueIf is Requeue of a dead letter that has so many marks, as its caller has seen
	// them: it is refused with CodeConflict if there are more by now. MaxRedriveMarks
	// means that they do not matter.
	RequeueIf(ctx context.Context, topic string, offset uint64, payload []byte, marks int, by string) (eventhub.Receipt, error)
}
