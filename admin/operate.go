package admin

import (
	"context"

	"eventhub"
)

// Operator changes what Inspector shows. Its methods are safe for concurrent use.
type Operator interface {
	// DeleteGroup removes a group from a topic for good: its members are notified by
	// Ended, its leases are void, its cursor is deleted. It is durable when
	// DeleteGroup returns. CodeNotSubscribed if there is no such group, and
	// CodeBadRequest if a pattern of the group would create it again: topic may be
	// that pattern, and then the group is removed from it and from every topic that
	// no other pattern of the group matches.
	DeleteGroup(ctx context.Context, topic, group string) error

	// DeleteTopic removes a topic for good, with its events, groups and delayed
	// events: members that have only this topic are notified by Ended, members by a
	// pattern go on without it, leases are void. Its dead letters are another topic. If
	// somebody publishes to it again it is a new topic, whose offsets go on above the
	// old ones. It is durable when DeleteTopic returns. CodeUnknownID if there is no
	// such topic.
	DeleteTopic(ctx context.Context, topic string) error

	// SeekGroup moves a group to where start says, up or down, and returns what that
	// means; without apply it only returns that. Applied, it raises the epoch: all
	// leases are void, attempts are reset, and what is above the new place is
	// delivered again from attempt 1; members are notified by Delivery.Sought. It is
	// durable when SeekGroup returns. CodeNotSubscribed if there is no such group;
	// CodeUnknownID for a start after an event that does not exist.
	SeekGroup(ctx context.Context, topic, group string, start eventhub.Start, apply bool) (SeekPlan, error)

	// SeekGroupIf is SeekGroup with apply, provided that the group's epoch is the one of the plan that
	// was looked at (SeekPlan.Epoch): CodeConflict, and nothing is changed, where somebody has moved the group
	// since, or has deleted it and it was made again.
	SeekGroupIf(ctx context.Context, topic, group string, start eventhub.Start, epoch uint64) (SeekPlan, error)

	// PauseGroup stops the deliveries of a group, and ResumeGroup restarts them:
	// durably, whatever members join and leave. Leases given before stay, and can be
	// settled. A second call has no effect. CodeNotSubscribed if there is no such
	// group.
	PauseGroup(ctx context.Context, topic, group string) error
	ResumeGroup(ctx context.Context, topic, group string) error
}

// SeekPlan says what a seek does, or would do.
type SeekPlan struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	// From and To are the cursor before and after; Head is the newest offset.
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
	Head uint64 `json:"head"`
	// Again is how many events that are done are delivered again, Skipped how many
	// events that are not done will not be delivered, Voided how many leases end.
	// Between From and To, 100,000 events or 64 MiB are read to count them; after that
	// offsets count, gaps too.
	Again   uint64 `json:"again"`
	Skipped uint64 `json:"skipped"`
	Voided  int    `json:"voided"`
	// Applied says whether it was done; Epoch is the one afterwards.
	Applied bool   `json:"applied"`
	Epoch   uint64 `json:"epoch"`
	// Gap, where not nil, says that events were removed which the seek asks for.
	Gap *SeekGap `json:"gap,omitempty"`
}

// SeekGap is a range of offsets whose events were removed: those above After and below First.
// Compacted and Tombstones are as in eventhub.Gap.
type SeekGap struct {
	After      uint64 `json:"after"`
	First      uint64 `json:"first"`
	Compacted  uint64 `json:"compacted,omitempty"`
	Tombstones uint64 `json:"tombstones,omitempty"`
}
