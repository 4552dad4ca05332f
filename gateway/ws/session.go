package ws

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/internal/caller"
	"eventhub/wire"
)

const (
	// maxUnanswered bounds the publishes of one connection that were accepted
	// and are not answered yet.
	maxUnanswered = 4096
	// maxUnauthBytes bounds all that is read before AUTH.
	maxUnauthBytes = 4 * wire.MaxUnauthFrameBytes
	// maxUnauthMessages bounds the messages before the AUTH that succeeds: a token costs more to
	// verify than to send.
	maxUnauthMessages = 16
	// strangerLinger is how long a peer whose time for AUTH is over has for its part of the close handshake.
	strangerLinger = 100 * time.Millisecond
)

// past is a deadline that wakes whoever waits for the network.
var past = time.Unix(1, 0)

// session is one connection, from the upgrade to its last log line.
//
// It ends in one of four ways: the peer closes, the peer breaks a rule, the hub
// wants it to go, or the network fails. All but the last put a close frame
// after everything that was said and the answers to what was published (end,
// beginClose); each seals the session, which wakes the reader. The reader then leaves all groups, waits within CloseWait
// for the peer's part of the handshake and for the flush, and closes.
type session struct {
	gw     *Gateway
	conn   net.Conn
	ctx    context.Context // ends when the session is sealed: no answer could be given
	cancel context.CancelFunc
	remote string
	opened time.Time
	authBy time.Time
	number uint64 // of all connections, from 1

	// The reader's own.
	in         frameReader
	dec        wire.Decoder
	req        wire.Request
	access     Access
	name       string // how the client calls itself
	authed     bool
	early      int           // messages before that
	producer   *numbers      // nil: PUBLISHes have no numbers
	publish    *publishBatch // collected from the read under way, nil when empty
	settle     settleBatch   // likewise
	ackPublish *ackPublishBatch
	place      Place
	meter      Meter // nil: nothing bounds its publishes
	lastRead   time.Time
	hasty      int       // publishes that came before its turn
	paused     int       // for so many of these it was not read for a while
	begun      time.Time // when the message under way was, as far as it was read; zero: none is
	pinged     bool      // and nothing came since
	gone       bool      // the peer said its last
	garbled    bool      // framing is lost
	counts     counts

	mu      sync.Mutex
	changed sync.Cond // on mu: room, answers, flush ended, closing
	out     outbound
	// writeNow sends what the connection takes without waiting; nil: nothing is sent inline.
	writeNow func(b []byte) int
	subs     map[subKey]*subscription
	left     bool   // all groups, for good
	token    func() // stops the watch over the token, nil without one
}

// counts are of what the reader handed on, for the log.
type counts struct{ published, settled int64 }

func newSession(g *Gateway, conn net.Conn, remote string) *session {
	now := time.Now()
	s := &session{
		gw:       g,
		conn:     conn,
		remote:   remote,
		opened:   now,
		authBy:   now.Add(g.cfg.AuthWait),
		lastRead: now,
		in:       newFrameReader(min(wire.MaxUnauthFrameBytes, g.cfg.MaxFrameBytes), g.cfg.Memory),
		subs:     make(map[subKey]*subscription),
		meter:    g.cfg.Meter(),
		place:    noPlace{},
	}
	s.ctx, s.cancel = context.WithCancel(caller.With(context.Background(), s.remote))
	s.changed.L = &s.mu
	s.writeNow = writerOf(conn)
	return s
}

// run is the session's goroutine.
func (s *session) run() {
	defer s.gw.release(s)
	s.armRead(s.authBy)
	for s.handleRead() && s.awaitRoom() && s.awaitTurn() && s.awaitMemory() && s.read() {
	}
	s.leaveAll()
	s.mu.Lock()
	s.left = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.linger()
	s.mu.Lock()
	for s.out.flushing {
		s.changed.Wait()
	}
	s.out.received = s.in.received
	if s.out.patience != nil {
		s.out.patience.Stop() // it would keep the session in memory, and the hub with it
	}
	s.mu.Unlock()
	s.mu.Lock()
	s.watchToken(&Access{}) // which would keep the session in memory
	s.mu.Unlock()
	s.conn.Close()
	s.cancel()
	s.numberBy(nil)
	s.in.close()
	s.log()
}

// handleRead handles every complete frame of what was read. It reports whether
// the session goes on.
func (s *session) handleRead() bool {
	for {
		op, payload, ok, err := s.in.next()
		switch {
		case err != nil:
			s.flushBatches()
			s.violated(err)
			return false
		case !ok:
			s.flushBatches()
			if !s.authed && s.in.received > maxUnauthBytes {
				s.beginClose(wire.ClosePolicy, "Too much was sent before AUTH.")
				return false
			}
			return s.inTime()
		case op == gws.OpPing:
			s.pong(payload)
		case op == gws.OpClose:
			s.flushBatches()
			s.peerClosed(payload)
			return false
		case op == gws.OpText:
			s.begun = time.Time{}
			if why := s.gw.cfg.Away(); why != "" {
				s.flushBatches()
				s.sendAway(why)
				s.awaitGoodbye()
				return false
			}
			s.handle(payload)
			if !s.authed && s.hasSaidEnough() {
				return false
			}
		}
	}
}

// hasSaidEnough counts a message before AUTH, and closes where it was one too many.
func (s *session) hasSaidEnough() bool {
	s.early++
	if s.early <= maxUnauthMessages {
		return false
	}
	s.beginClose(wire.ClosePolicy, "Too much was said before AUTH.")
	return true
}

// inTime reports whether a message that was read in part, if there is one, may go on.
func (s *session) inTime() bool {
	switch {
	case !s.in.halfway():
		s.begun = time.Time{}
	case s.begun.IsZero():
		s.begun = s.lastRead
	case s.lastRead.Sub(s.begun) > s.gw.cfg.MessageWait:
		s.closeWhenAnswered(wire.ClosePolicy, "A message was not complete in time.")
		return false
	}
	return true
}

// awaitMemory takes the memory that the message under way needs from the budget of
// all connections, and waits for it where there is not so much: the peer is not read
// meanwhile. What the session has already, of a burst, it keeps. It reports whether the
// session goes on.
func (s *session) awaitMemory() bool {
	n := s.in.lacks()
	if n == 0 {
		return true
	}
	memory := s.gw.cfg.Memory
	if !memory.Take(n) {
		ctx, cancel := context.WithDeadline(s.ctx, s.begun.Add(s.gw.cfg.MessageWait))
		defer cancel()
		if memory.Grow(ctx, s.in.claimed, n) != nil {
			s.closeWhenAnswered(wire.CloseTryAgain, "The hub has no memory for the message.")
			return false
		}
		s.begun = time.Now() // the wait was not the peer's
	}
	s.in.took(n)
	return true
}

func (s *session) pong(payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.reply(); c != nil {
		c.control(gws.OpPong, payload)
	}
}

// peerClosed answers a close frame with its own code.
func (s *session) peerClosed(payload []byte) {
	code, err := parseClose(payload)
	if err != nil {
		s.violated(err)
		return
	}
	s.gone = true
	s.closeWhenAnswered(code, "")
}

// violated closes the connection with what the peer did wrong.
func (s *session) violated(err error) {
	var v *violation
	if errors.As(err, &v) {
		s.garbled = true
		s.closeWhenAnswered(v.Code, v.Text)
	}
}

// closeWhenAnswered is beginClose after the answers to what was taken to be
// published. It waits for them.
func (s *session) closeWhenAnswered(code gws.StatusCode, why string) {
	s.mu.Lock()
	s.end(ending{code: code, why: why})
	s.mu.Unlock()
	s.awaitGoodbye()
}

// read waits for the peer to send something and keeps the connection alive. It
// reports whether the session goes on.
//
// There is no timer: the deadline of the read is where the silence would be too
// long. It is not moved for every read; when it comes, and something was read
// since it was set, it is only then set again.
func (s *session) read() bool {
	for {
		err := s.in.fill(s.conn)
		if err == nil {
			s.lastRead, s.pinged = time.Now(), false
			return true
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			s.abandon("read: " + err.Error())
			return false
		}
		if s.awaitGoodbye() {
			return false
		}
		if !s.authed {
			s.beginClose(wire.ClosePolicy, "AUTH did not come in time.")
			return false
		}
		if !s.keepAlive() {
			s.abandon("the peer is silent")
			return false
		}
	}
}

// keepAlive acts on a read deadline that has come: it sets the next one, and
// sends a ping where the silence is PingEvery long. It reports whether the peer
// may still be there.
func (s *session) keepAlive() bool {
	now := time.Now()
	quietSince := s.lastRead.Add(s.gw.cfg.PingEvery)
	switch {
	case now.Before(quietSince):
		s.armRead(quietSince)
	case s.pinged:
		return false
	default:
		s.pinged = true
		s.mu.Lock()
		if c := s.reply(); c != nil {
			c.control(gws.OpPing, nil)
			s.kick()
		}
		s.mu.Unlock()
		s.armRead(now.Add(s.gw.cfg.PongWait))
	}
	return true
}

// armRead sets the reader's deadline, unless the session is sealed: then the
// reader is not to wait.
func (s *session) armRead(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.out.closing && s.out.ending == nil {
		_ = s.conn.SetReadDeadline(at) // a dead connection shows in the read
	}
}

// awaitGoodbye reports whether the session is closing. Where it is to end and
// publishes are not answered yet it waits for that first: nothing more is read.
func (s *session) awaitGoodbye() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.out.ending != nil && !s.out.closing {
		s.changed.Wait()
	}
	return s.out.closing
}

// beginClose makes a close frame the last thing that is said, with why as its
// reason; code 0 sends an empty one. The first call counts.
func (s *session) beginClose(code gws.StatusCode, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendClose(code, why)
}

// ending is how a session closes when all that was taken to be published is
// answered.
type ending struct {
	code gws.StatusCode
	why  string
	stop bool // the hub stops
}

// cause is why nobody waits for groups any longer, without a message where the peer closes. Its
// code says what to do.
func (e *ending) cause() error { return eventhub.Errorf(eventhub.CodeShuttingDown, "%s", e.why) }

// sayGoodbye notifies the peer that the hub stops.
func (s *session) sayGoodbye() { s.sendAway("The hub is shutting down.") }

// sendAway notifies the peer that the hub serves nobody for now.
func (s *session) sendAway(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(ending{code: wire.CloseGoingAway, why: why, stop: true})
}

// end closes the session when the publishes that were accepted are answered, as far
// as CloseWait allows; finish says the rest then. Nobody waits for groups any longer:
// those publishes are answered with what is known. The first call counts. s.mu is
// held.
func (s *session) end(how ending) {
	if s.out.closing || s.out.ending != nil {
		return
	}
	s.out.ending = &how
	if s.out.idle() {
		s.closeAsEnding()
		return
	}
	if s.out.stopWaits != nil {
		s.out.stopWaits(how.cause())
	}
	_ = s.conn.SetReadDeadline(past)
	s.out.patience = time.AfterFunc(s.gw.cfg.CloseWait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closeAsEnding()
	})
}

// watchToken closes the session when the access ends or is taken back, in place of any access
// before. s.mu is held.
func (s *session) watchToken(access *Access) {
	if s.token != nil {
		s.token()
		s.token = nil
	}
	over := false // another AUTH came; guarded by s.mu, for which a call may have waited
	end := func(why string) func() {
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !over {
				s.end(ending{code: wire.ClosePolicy, why: why})
			}
		}
	}
	var stops []func() bool
	if !access.Expires.IsZero() {
		stops = append(stops, time.AfterFunc(time.Until(access.Expires), end("The token has expired.")).Stop)
	}
	if access.Revoked != nil {
		stops = append(stops, context.AfterFunc(access.Revoked, end("The token was revoked.")))
	}
	if stops == nil {
		return
	}
	s.token = func() {
		over = true
		for _, stop := range stops {
			stop()
		}
	}
}

// closeAsEnding is the last step of end. s.mu is held.
func (s *session) closeAsEnding() {
	if how := s.out.ending; s.appendClose(how.code, how.why) {
		s.out.stopped = how.stop
	}
}

// appendClose is beginClose with s.mu held. It reports whether it was the first.
func (s *session) appendClose(code gws.StatusCode, why string) (first bool) {
	c := s.reply()
	if c == nil {
		return false
	}
	var body []byte
	if code != 0 {
		body = gws.NewCloseFrameBody(code, why)
	}
	c.control(gws.OpClose, body)
	s.seal(code, why)
	s.kick()
	return true
}

// abandon ends a session whose peer is not there any more.
func (s *session) abandon(why string) {
	s.gone = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seal(0, why)
	s.out.giveUp()
	_ = s.conn.SetWriteDeadline(past)
}

// cut ends the session at once, whatever it is doing.
func (s *session) cut() {
	s.mu.Lock()
	s.seal(0, "cut off")
	s.mu.Unlock()
	s.conn.Close()
}

// seal ends the conversation: nothing is appended any more, calls under way for
// the peer are cut short, and the reader wakes. A write under way is interrupted, so
// that it says how far it has come. What is queued still has CloseWait. The first call
// counts. s.mu is held.
func (s *session) seal(code gws.StatusCode, why string) {
	o := &s.out
	if o.closing {
		return
	}
	o.closing, o.code, o.why = true, code, why
	o.closeBy = time.Now().Add(s.gw.cfg.CloseWait)
	o.asked = o.writing
	s.cancel()
	_ = s.conn.SetReadDeadline(past)
	_ = s.conn.SetWriteDeadline(past)
	s.changed.Broadcast()
}

// linger reads on until the peer has closed too: bytes that nobody reads would
// make the kernel answer with a reset, which may overtake the close frame.
func (s *session) linger() {
	if s.gone {
		return
	}
	s.mu.Lock()
	closeBy := s.out.closeBy
	s.mu.Unlock()
	if brief := time.Now().Add(strangerLinger); !s.authed && closeBy.After(brief) && closeBy.After(s.authBy) {
		closeBy = brief // a stranger has had its time
		if s.authBy.After(brief) {
			closeBy = s.authBy
		}
	}
	_ = s.conn.SetReadDeadline(closeBy)
	for {
		for !s.garbled {
			op, _, ok, err := s.in.next()
			if op == gws.OpClose {
				return
			}
			s.garbled = err != nil
			if !ok {
				break
			}
		}
		if s.garbled = s.garbled || s.in.lacks() > 0; s.garbled {
			s.in.Discard() // it is only its end that is waited for
		}
		if s.in.fill(s.conn) != nil {
			return
		}
	}
}

// log notes the end. Anybody can cause that of a connection without AUTH, as often as they like, so
// it is for those alone who look for one; the metrics count it.
func (s *session) log() {
	level := slog.LevelInfo
	if !s.authed {
		level = slog.LevelDebug
	}
	s.mu.Lock()
	out := s.out
	s.mu.Unlock()
	if out.why == "" {
		out.why = "The peer closed." // whose own words are not for our log
	}
	var errors uint64
	for _, n := range out.errors {
		errors += n
	}
	s.gw.log.LogAttrs(context.Background(), level, "connection closed",
		slog.String("remote", s.remote), slog.String("id", s.id()), slog.String("name", s.access.Name), slog.String("client", s.name),
		slog.Int("code", int(out.code)), slog.String("reason", out.why),
		slog.Duration("lasted", time.Since(s.opened)),
		slog.Int64("published", s.counts.published), slog.Int64("settled", s.counts.settled),
		slog.Int64("delivered", out.delivered), slog.Uint64("errors", errors),
		slog.Int64("bytes_in", out.received), slog.Int64("bytes_out", out.sent))
}
