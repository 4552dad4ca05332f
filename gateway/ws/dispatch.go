package ws

import (
	"context"
	"errors"
	"time"

	"eventhub"
	"eventhub/wire"
)

// corr is what an answer carries back to its question.
type corr struct {
	text string
	has  bool
}

func corrOf(r *wire.Request) corr { return corr{r.Corr, r.HasCorr} }

// toError translates what a Publisher or Subscriber returned. Errors of the
// protocol pass; anything else, except the end of a context, becomes fallback and
// shows nothing of itself.
func toError(err error, fallback eventhub.Code) *eventhub.Error {
	var e *eventhub.Error
	switch {
	case errors.As(err, &e):
		if e.Code.Known() {
			return e
		}
		return &eventhub.Error{Code: fallback, Message: e.Message, Index: e.Index, Present: e.Present, RetryAfter: e.RetryAfter, Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return eventhub.AsError(err)
	}
	return eventhub.Wrap(fallback, err, "It failed on the hub's side; its log has the cause.")
}

// logCause logs what the peer is not shown of an error that is the hub's.
func (s *session) logCause(doing string, err *eventhub.Error) {
	switch err.Code {
	case eventhub.CodeInternal, eventhub.CodePublishFailed, eventhub.CodeAckFailed:
		s.gw.log.Warn("a request failed on the hub's side", "remote", s.remote, "op", doing, "code", err.Code, "error", err)
	}
}

// handle deals with one message.
func (s *session) handle(message []byte) {
	r := &s.req
	err := s.dec.Decode(message, r)
	if !s.authed && r.Op != "" && r.Op != wire.OpAuth {
		err := eventhub.Errorf(eventhub.CodeUnauthorized, "Call AUTH first.")
		s.gw.cfg.Refused(s.remote, err)
		s.refuse(corrOf(r), err)
		return
	}
	if err == nil && r.Seq != 0 && s.producer == nil {
		r.Seq, err = 0, errNoProducer
	}
	if err != nil && (r.Seq == 0 || s.producer == nil) {
		s.refuse(corrOf(r), eventhub.AsError(err))
		return
	}
	switch r.Op {
	case wire.OpPublish:
		s.flushSettles()
		s.flushAckPublishes()
		if err != nil {
			s.addRefused(r, err)
			return
		}
		if len(r.WaitFor) > 0 {
			s.flushPublishes()
			s.publishAndWait(r, len(message))
			return
		}
		s.addPublish(r)
	case wire.OpAck, wire.OpNack, wire.OpModack:
		s.flushPublishes()
		if len(r.Events) > 0 {
			s.flushSettles()
			s.addAckPublish(r)
			return
		}
		s.flushAckPublishes()
		s.addSettle(r)
	default:
		s.flushBatches()
		// These may take their time; what was said is not to wait for it.
		s.sendNow()
		if asksForAPlace(r.Op) && !s.awaitCommitted() {
			return
		}
		s.handleRare(r)
	}
}

// asksForAPlace reports whether what the op does depends on what is in the log, or
// scheduled to be.
func asksForAPlace(op wire.Op) bool { return op == wire.OpSubscribe || op == wire.OpCancel }

// handleRare deals with the ops that come a few times in a connection's life.
func (s *session) handleRare(r *wire.Request) {
	var err *eventhub.Error
	switch r.Op {
	case wire.OpAuth:
		err = s.authenticate(r)
	case wire.OpSubscribe:
		err = s.subscribe(r)
	case wire.OpUnsubscribe:
		err = s.unsubscribe(r)
	case wire.OpPause, wire.OpResume:
		err = s.pauseOrResume(r)
	case wire.OpCancel:
		err = s.cancelScheduled(r)
	}
	if err != nil {
		s.logCause(string(r.Op), err)
		s.refuse(corrOf(r), err)
	}
}

// flushBatches hands on what was collected. At most one of the three holds
// anything.
func (s *session) flushBatches() {
	s.flushPublishes()
	s.flushSettles()
	s.flushAckPublishes()
}

// cancelScheduled takes an event back that is not due yet.
func (s *session) cancelScheduled(r *wire.Request) *eventhub.Error {
	if s.access.Scheduler == nil {
		return eventhub.Errorf(eventhub.CodeUnsupportedOp, "CANCEL is not supported by this hub")
	}
	if err := s.access.Scheduler.Cancel(s.ctx, r.Topic, r.ID); err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendOK(corrOf(r))
	return nil
}

func (s *session) sendNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kick()
}

// refuse answers with an ERR, which leaves with the answers to this read.
func (s *session) refuse(to corr, err *eventhub.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendError(to, err)
}

// appendError and appendOK append an answer. s.mu is held.
func (s *session) appendError(to corr, err *eventhub.Error) {
	c := s.reply()
	if c == nil {
		return
	}
	s.out.countError(err.Code)
	at := c.begin()
	c.b = wire.AppendError(c.b, to.text, to.has, err)
	c.end(at)
}

func (s *session) appendOK(to corr) {
	c := s.reply()
	if c == nil {
		return
	}
	at := c.begin()
	c.b = wire.AppendOK(c.b, to.text, to.has)
	c.end(at)
}

func (s *session) appendSubscribed(to corr, said *wire.Subscribed) {
	c := s.reply()
	if c == nil {
		return
	}
	at := c.begin()
	c.b = wire.AppendSubscribeOK(c.b, to.text, to.has, said)
	c.end(at)
}

// take counts the session as one of the principal that the access is for, and opens the producer that
// the AUTH names. Whoever has no place does not take the producer from another connection.
func (s *session) take(ctx context.Context, access *Access, r *wire.Request) (*numbers, *eventhub.Error) {
	err := s.place.Become(access.Name)
	var opened *numbers
	if err == nil {
		if opened, err = s.openProducer(ctx, access, r); err != nil && s.authed {
			_ = s.place.Become(s.access.Name) // as before, unless others have taken all places meanwhile
		}
	}
	if access.Decided != nil {
		access.Decided(err)
	}
	if err != nil {
		return nil, toError(err, eventhub.CodeRateLimited)
	}
	return opened, nil
}

// authenticate replaces the session's access. A failure leaves what was before.
func (s *session) authenticate(r *wire.Request) *eventhub.Error {
	ctx, first := s.ctx, !s.authed
	if first {
		if err := s.gw.cfg.Welcome(); err != nil {
			return toError(err, eventhub.CodeOverloaded)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, s.authBy)
		defer cancel()
	}
	access, err := s.gw.cfg.Authenticate(ctx, r.Token, r.HasToken)
	r.Token = ""
	if err != nil {
		e := toError(err, eventhub.CodeInternal)
		s.gw.cfg.Refused(s.remote, e)
		return e
	}
	opened, e := s.take(ctx, &access, r)
	if e != nil {
		return e
	}
	s.adopt(access)
	if opened != nil {
		s.numberBy(opened)
	}
	s.mu.Lock() // others look at it
	s.access, s.authed = access, true
	if r.Name != "" {
		s.name = r.Name
	}
	s.mu.Unlock()
	if first {
		s.gw.log.Info("connection opened", "remote", s.remote, "id", s.id())
		s.in.Limit = s.gw.cfg.MaxFrameBytes
		s.armRead(time.Now().Add(s.gw.cfg.PingEvery))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchToken(&access)
	if c := s.reply(); c != nil {
		at := c.begin()
		c.b = wire.AppendAuthOK(c.b, r.Corr, r.HasCorr, opened.tell(s.gw.cfg.Info))
		c.end(at)
	}
	return nil
}
