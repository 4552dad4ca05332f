package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/bus/internal/groupstate"
	"eventhub/bus/internal/publish"
	"eventhub/internal/strictjson"
	"eventhub/store"
)

// A dead letter is an event of <topic>.dlq that holds the original and why the
// group gave it up. It is appended in one unit with the group's state, in which
// the original is done; its id is derived, so that one which comes twice (the
// process died after the commit, before the cursor was there) is the same
// event.

// deadLetterID names the dead letter of one event in one group and epoch, and of one
// redrive where it has a mark.
func deadLetterID(topic string, offset uint64, group string, epoch uint64, mark string) string {
	text := fmt.Appendf(nil, "%s\x00%d\x00%s\x00%d", topic, offset, group, epoch)
	if mark != "" {
		text = append(append(text, 0), mark...)
	}
	sum := sha256.Sum256(text)
	return "dl-" + hex.EncodeToString(sum[:16])
}

// makeLetters prepares the dead letters of what was read. g.mu is held.
func (g *group) makeLetters(pending []groupstate.Letter, items []store.Item) []*groupStep {
	var all []*groupStep
	now := g.bus.clock.Now()
	for i, p := range pending {
		e := g.state.Find(p.Offset)
		if e == nil || e.State() != groupstate.LetterPending {
			continue
		}
		if items[i].Record == nil {
			g.state.Gone(e, now) // the log let go of the event; there is nothing to keep
			continue
		}
		if eventhub.IsDeadLetterTopic(g.log.Topic()) {
			// It stays where it is: a dead letter has no dead letter of its own.
			g.bus.log.Warn("a group gave up a dead letter", "topic", g.log.Topic(), "group", g.name, "offset", p.Offset, "reason", p.Reason)
			g.state.Abandon(e, now)
			continue
		}
		x, err := g.letter(e, p.Reason, items[i].Record)
		if err != nil {
			g.bus.log.Error("cannot make a dead letter; the event stays in its group", "topic", g.log.Topic(), "group", g.name, "offset", p.Offset, "error", err)
			g.retryLater(p.Offset, now)
			continue
		}
		all = append(all, x)
	}
	return all
}

// letter encodes the dead letter of an entry. Its payload carries the original
// event with its tokens untouched.
func (g *group) letter(e *groupstate.Entry, reason string, rec eventhub.Record) (*groupStep, error) {
	offset := e.Offset()
	original, err := rec.Event(offset)
	if err != nil {
		return nil, err
	}
	payload := strictjson.AppendString([]byte(`{"topic":`), g.log.Topic())
	payload = strictjson.AppendString(append(payload, `,"group":`...), g.name)
	payload = fmt.Appendf(payload, `,"offset":%d,"epoch":%d,"attempts":%d,`, offset, g.state.Epoch(), e.Attempts())
	mark := g.state.Mark(offset)
	if mark != "" {
		payload = fmt.Appendf(payload, `"redriven":%d,`, e.Redriven())
	}
	payload = append(payload, `"reason":`...)
	payload = strictjson.AppendString(payload, reason)
	if history, err := json.Marshal(g.state.History(offset)); err == nil && len(g.state.History(offset)) > 0 {
		payload = append(append(payload, `,"history":`...), history...)
	}
	payload = rec.AppendJSON(append(payload, `,"event":`...), offset)
	payload = append(payload, '}')
	var events publish.Events
	err = events.AddMade(&eventhub.Event{
		ID:    deadLetterID(g.log.Topic(), offset, g.name, g.state.Epoch(), mark),
		Topic: eventhub.DeadLetterTopic(g.log.Topic()),
		Key:   original.Key, CausedBy: []string{original.ID}, Payload: payload,
	})
	if err != nil {
		return nil, err
	}
	return &groupStep{
		group: g, Step: g.state.BeginLetter(e),
		Publication: commit.Publication{Unit: events.Unit(), Bytes: events.Bytes()},
	}, nil
}

// submitLetters submits dead letters. g.mu is not held.
func (g *group) submitLetters(letters []*groupStep) {
	if len(letters) == 0 {
		return
	}
	// An error means that the hub stops; the events are delivered again then.
	_ = g.bus.committer.SubmitSteps(context.Background(), asSteps(letters))
}

// letterRefused puts an event back whose dead letter the store refused. g.mu is held.
func (g *group) letterRefused(x *groupStep, refused error, now int64) {
	offset := x.Offsets()[0]
	g.bus.log.Error("the store refused a dead letter; the event stays in its group", "topic", g.log.Topic(), "group", g.name, "offset", offset, "error", refused)
	g.retryLater(offset, now)
}

// retryLater puts an event that could not be dead-lettered back for a last
// attempt, after the longest backoff.
func (g *group) retryLater(offset uint64, now int64) {
	g.bus.sched.ScheduleAt(g, g.state.LetterNotMade(offset, now))
}
