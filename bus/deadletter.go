package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
	"eventhub/store"
)

// A dead letter is an event of <topic>.dlq that holds the original and why the
// group gave it up. It is appended in one unit with the group's state, in which
// the original is done; its id is derived, so that one which comes twice (the
// process died behind the commit, before the cursor was there) is the same
// event.

// grave is an entry that waits for its dead letter.
type grave struct {
	offset uint64
	reason string
}

// burial is a dead letter on its way to the log.
type burial struct {
	offset, epoch uint64
	submission    *submission
}

// deadLetterID names the dead letter of one event in one group and epoch.
func deadLetterID(topic string, offset uint64, group string, epoch uint64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s\x00%d", topic, offset, group, epoch))
	return "dl-" + hex.EncodeToString(sum[:16])
}

// burials prepares the dead letters of what was read. g.mu is held.
func (g *group) burials(graves []grave, items []store.Item) []burial {
	var all []burial
	for i, gr := range graves {
		e := g.window.find(gr.offset)
		if e == nil || e.state != burying {
			continue
		}
		if items[i].Record == nil {
			g.finish(e) // the log let go of the event; there is nothing to keep
			continue
		}
		if eventhub.IsDeadLetterTopic(g.log.name) {
			// It stays where it is: a dead letter has no dead letter of its own.
			g.bus.log.Warn("a group gave up a dead letter", "topic", g.log.name, "group", g.name, "offset", gr.offset, "reason", gr.reason)
			g.finish(e)
			continue
		}
		s, err := g.letter(e, gr.reason, items[i].Record)
		if err != nil {
			g.bus.log.Error("cannot make a dead letter; the event stays in its group", "topic", g.log.name, "group", g.name, "offset", gr.offset, "error", err)
			g.retryLater(e)
			continue
		}
		all = append(all, burial{gr.offset, g.epoch, s})
	}
	return all
}

// letter encodes the dead letter of an entry. Its payload carries the original
// event with its tokens untouched.
func (g *group) letter(e *entry, reason string, rec eventhub.Record) (*submission, error) {
	original, err := rec.Event(e.offset)
	if err != nil {
		return nil, err
	}
	payload := strictjson.AppendString([]byte(`{"topic":`), g.log.name)
	payload = strictjson.AppendString(append(payload, `,"group":`...), g.name)
	payload = fmt.Appendf(payload, `,"offset":%d,"attempts":%d,"reason":`, e.offset, e.attempts)
	payload = strictjson.AppendString(payload, reason)
	if history, err := json.Marshal(g.progress.history[e.offset]); err == nil && len(g.progress.history[e.offset]) > 0 {
		payload = append(append(payload, `,"history":`...), history...)
	}
	payload = rec.AppendJSON(append(payload, `,"event":`...), e.offset)
	payload = append(payload, '}')
	s := &submission{}
	err = s.encodeMade(&eventhub.Event{
		ID:    deadLetterID(g.log.name, e.offset, g.name, g.epoch),
		Topic: eventhub.DeadLetterTopic(g.log.name),
		Key:   original.Key, CausedBy: []string{original.ID}, Payload: payload,
	})
	if err != nil {
		return nil, err
	}
	s.appends[0].Record = s.buf
	s.units = []store.Unit{{Appends: s.appends, Groups: make([]store.GroupChange, 1)}}
	s.bytes, s.burial = len(s.buf), true
	return s, nil
}

// inter submits dead letters. g.mu is not held.
func (g *group) inter(burials []burial) {
	for _, b := range burials {
		b.submission.prepare = func(s *submission) bool { return g.prepareBurial(s, b) }
		b.submission.finish = func(s *submission, err error) { g.finishBurial(s, b, err) }
		// An error means that the hub stops; the event is delivered again then.
		_ = g.bus.committer.submit(context.Background(), b.submission)
	}
}

// prepareBurial adds the group's state, with the event done, to the unit.
func (g *group) prepareBurial(s *submission, b burial) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.window.find(b.offset)
	if g.epoch != b.epoch || e == nil || e.state != burying {
		return false // a seek took the event back
	}
	// Other burials of this group in the same commit count as done as well:
	// they name the same topic and epoch, so all of them pass or none.
	g.become(e, interred)
	s.units[0].Groups[0] = g.change(g.window.cursorAfterBurial())
	return true
}

func (g *group) finishBurial(s *submission, b burial, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.window.find(b.offset)
	if err != nil || g.epoch != b.epoch || e == nil || e.state != interred {
		return
	}
	if refused := s.units[0].Err; refused != nil {
		g.progress.rewrite(&g.window)
		g.bus.log.Error("the store refused a dead letter; the event stays in its group", "topic", g.log.name, "group", g.name, "offset", b.offset, "error", refused)
		g.retryLater(e)
		return
	}
	g.counts.DeadLettered++
	g.finish(e)
	g.bus.workers.schedule(g) // the window may have opened
}

// retryLater puts an event that could not be dead-lettered back for a last
// attempt, after the longest backoff.
func (g *group) retryLater(e *entry) {
	e.attempts = max(e.attempts, 1) - 1
	at := time.Now().UnixMilli() + g.settings.MaxBackoffMS
	g.retry(e, at)
	g.bus.alarm.set(g, at)
}
