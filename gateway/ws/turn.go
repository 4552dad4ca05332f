package ws

import (
	"time"

	"eventhub"
)

// A hub that has more to publish than it can refuses publishes with the time at which they may come again. A client that
// goes on before that would have it spend its time on refusals. So what it sends until then is refused here, where that
// costs least. It is not read for hastyPause after each hastyStep of these: refusals would take a third of the hub else. Its
// other frames, such as acks, wait as long if they come after these. What was under way when the client was told is no more
// than maxUnanswered publishes: who has sent more is not read any more until the time has come.

const (
	hastyStep  = 64
	hastyPause = 25 * time.Millisecond
)

// noteTurn notes until when the peer is to publish nothing, where the error says so. s.mu is held.
func (s *session) noteTurn(err *eventhub.Error) {
	if err.Code != eventhub.CodeOverloaded || err.RetryAfter <= 0 || !s.gw.cfg.Busy() {
		return
	}
	if until := time.Now().Add(err.RetryAfter); until.After(s.out.turn) {
		s.out.turn = until
	}
}

// tooEarly reports whether the batch comes before the time that the peer was told, and refuses it then. What has
// numbers goes on, for the engine has to use them up.
func (s *session) tooEarly(b *publishBatch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.out.turn.Sub(s.lastRead)
	if left <= 0 || s.out.closing {
		s.hasty, s.paused = 0, 0
		return false
	}
	s.hasty += len(b.frames)
	if s.producer != nil {
		return false
	}
	err := eventhub.Errorf(eventhub.CodeOverloaded, "the hub has more to publish than it can, and has told this connection to wait")
	err.RetryAfter = left
	for i := range b.frames {
		s.appendError(b.frames[i].to, err)
	}
	return true
}

// awaitTurn waits where a peer did not wait for the time that it was told: a while, or until the time has come. It reports whether
// the session goes on.
func (s *session) awaitTurn() bool {
	if s.hasty <= maxUnanswered && s.hasty-s.paused < hastyStep {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.out.turn
	if pause := time.Now().Add(hastyPause); s.hasty <= maxUnanswered {
		s.paused = s.hasty
		if pause.Before(until) {
			until = pause
		}
	} else {
		s.hasty, s.paused = 0, 0
	}
	alarm := time.AfterFunc(time.Until(until), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer alarm.Stop()
	for !s.out.closing && s.out.ending == nil && time.Now().Before(until) {
		s.changed.Wait()
	}
	return !s.out.closing
}
