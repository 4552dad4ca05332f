package ws

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/testsize"
)

var (
	peerHistories = testsize.Int("peers.histories", 150, 40, "how many histories TestRandomPeers tries")
	peerOnly      = flag.Int("peers.only", -1, "which one it tries all the time, where not -1")
	peerSeed      = flag.Uint64("seed", rand.Uint64(), "of TestRandomPeers")
)

var (
	peerTopics = []string{"t.a", "t.b"}
	peerGroups = []string{"g", "h"}
)

// peers is a hub with members that read as they like: nothing, some bytes, a frame and a
// half, all there is; that are lost in the middle of a frame, or say goodbye and read on;
// and that ack by ids which are in two topics. Their sockets have buffers of any size. A
// connection may be a member of two groups.
//
// The model is of what the sockets took, byte by byte. A delivery was sent when a socket
// had all of it, by writes that began before the session was sealed. An attempt is made
// by being sent; a dead letter is of an event that was sent as often as it may be; a
// lease does not end before its time, counted from the sending, while its session goes on.
// An event is done when somebody said so of it, in its own topic and group, or when it
// was sent with manual_ack false.
type peers struct {
	*engine
	t    *testing.T
	rng  *rand.Rand
	most int // attempts

	all     []*peer
	n       int               // events in each topic
	letters map[string]uint64 // by topic: how many were looked at

	mu    sync.Mutex
	sent  map[eventRef]sending
	dead  map[eventRef]bool
	wrong string // the first thing that was
}

// sending is what the sockets know of an event.
type sending struct {
	times int
	last  *peer
	at    time.Time
	acked bool // somebody has said that it is done
	done  bool // … and it is; or it was sent to who acks by that
}

type peer struct {
	socket *socket
	conn   net.Conn
	lease  time.Duration
	auto   map[string]bool // by group: it acks by being sent to

	begun  []byte // of a frame, that the socket took
	took   int    // bytes in all, of whole frames
	sent   []inStream
	read   int        // bytes that the peer has read
	held   []eventRef // that it has read and not acked
	closed bool       // nothing can be said any more
}

// inStream is a delivery whose frame ends at a byte of what the hub has sent.
type inStream struct {
	eventRef
	end int
}

// eventRef names an event of a group.
type eventRef struct{ group, topic, id string }

func (r eventRef) String() string { return r.group + "/" + r.topic + "/" + r.id }

func TestRandomPeers(t *testing.T) {
	for i := range *peerHistories {
		if *peerOnly >= 0 {
			i = *peerOnly
		}
		withEngine(t, func(t *testing.T, e *engine) {
			w := newPeers(t, e, rand.New(rand.NewPCG(*peerSeed, uint64(i))))
			if wrong := w.run(); wrong != "" {
				t.Errorf("-seed=%d, history %d: %s", *peerSeed, i, wrong)
			}
			for len(w.all) > 0 {
				w.drop(0)
			}
			synctest.Wait()
		})
		if t.Failed() {
			return
		}
	}
}

func newPeers(t *testing.T, e *engine, rng *rand.Rand) *peers {
	e.gw.cfg.OutboundBytes = pick(rng, 600, 4000, 1<<20)
	return &peers{engine: e, t: t, rng: rng, most: pick(rng, 1, 2, 2, 4), letters: make(map[string]uint64), sent: make(map[eventRef]sending), dead: make(map[eventRef]bool)}
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// run returns what was wrong. The bubble is to end in order also then.
func (w *peers) run() (wrong string) {
	w.publish(1 + w.rng.IntN(12))
	for range 5 + w.rng.IntN(30) {
		w.step()
		synctest.Wait()
		w.checkLetters()
		if w.wrong != "" {
			return w.wrong
		}
	}
	w.finish()
	return w.wrong
}

// fail notes what is wrong. w.mu is held.
func (w *peers) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

func (w *peers) step() {
	op := w.rng.IntN(20)
	switch {
	case op < 3:
		w.publish(1 + w.rng.IntN(16))
	case op < 5 || len(w.all) == 0:
		if len(w.all) < 4 {
			w.joinAny()
		}
	case op < 12:
		w.read(pick(w.rng, w.all...), pick(w.rng, 1, 40, 150, 700, 1<<20))
	case op < 15:
		w.ackSome(pick(w.rng, w.all...))
	case op < 16:
		w.say(pick(w.rng, w.all...), closing(1000, ""))
	case op < 17:
		w.drop(w.rng.IntN(len(w.all)))
	default:
		time.Sleep(pick(w.rng, 10*time.Millisecond, time.Second, 3*time.Second, 12*time.Second))
	}
}

// publish adds the same ids to two topics.
func (w *peers) publish(n int) {
	for _, topic := range peerTopics {
		w.engine.publish(topic, w.n+1, n)
	}
	w.n += n
}

func (w *peers) joinAny() {
	p := w.connect(pick(w.rng, 30, 150, 300, 2000, 1<<20))
	p.lease = time.Duration(1000+w.rng.IntN(2000)) * time.Millisecond
	if w.rng.IntN(3) == 0 {
		p.lease = pick(w.rng, time.Second, 1250*time.Millisecond, 2*time.Second) // that ends with the session
	}
	for _, group := range pick(w.rng, peerGroups, peerGroups[:1], peerGroups[1:]) {
		w.join(p, group, w.rng.IntN(3) == 0, pick(w.rng, 1, 7, 100))
	}
}

// connect opens a connection whose socket has so much room.
func (w *peers) connect(room int) *peer {
	p := &peer{lease: time.Second, auto: make(map[string]bool)}
	p.socket, p.conn = w.openSocket(w.t, room, func(b []byte, before bool) { w.took(p, b, before) })
	w.all = append(w.all, p)
	w.say(p, text(`{"op":"AUTH"}`))
	return p
}

func (w *peers) join(p *peer, group string, auto bool, maxInFlight int) {
	w.mu.Lock()
	p.auto[group] = auto
	w.mu.Unlock()
	w.say(p, text(fmt.Sprintf(`{"op":"SUBSCRIBE","topic":"t.*","group":%q,"opts":{"from":"earliest","max_attempts":%d,"backoff":{"min_ms":1,"max_ms":1},"ack_timeout_ms":%d,"manual_ack":%t,"max_in_flight":%d,"batch":%t},"corr":"1"}`,
		group, w.most, p.lease.Milliseconds(), !auto, maxInFlight, w.rng.IntN(3) == 0)))
}

// took notes what a socket took.
func (w *peers) took(p *peer, b []byte, before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.begun = append(p.begun, b...)
	for len(p.begun) > 0 {
		h, err := gws.ReadHeader(bytes.NewReader(p.begun))
		header := gws.HeaderSize(h)
		size := header + int(h.Length)
		if err != nil || size > len(p.begun) {
			return
		}
		p.took += size
		if h.OpCode == gws.OpText {
			w.tookText(p, p.begun[header:size], before)
		}
		p.begun = p.begun[size:]
	}
}

// tookText notes the deliveries of a frame that a socket has taken in whole. w.mu is held.
func (w *peers) tookText(p *peer, payload []byte, before bool) {
	type delivery struct {
		Event struct{ Topic, ID string }
		Ctx   struct{ Attempt int }
	}
	var m struct {
		Op, Group string
		delivery
		Events []delivery
	}
	if err := json.Unmarshal(payload, &m); err != nil {
		w.fail("%q: %v", payload, err)
	}
	switch m.Op {
	case "EVENT":
		m.Events = []delivery{m.delivery}
	case "ERR":
		w.fail("%s", payload) // nothing that is said here is wrong
	}
	for _, d := range m.Events {
		r := eventRef{m.Group, d.Event.Topic, d.Event.ID}
		p.sent = append(p.sent, inStream{r, p.took})
		if before {
			w.made(p, r, d.Ctx.Attempt)
		}
	}
}

// made notes that a delivery was sent. w.mu is held.
func (w *peers) made(p *peer, r eventRef, attempt int) {
	was, now := w.sent[r], time.Now()
	if was.times++; attempt != was.times {
		w.fail("%s comes as attempt %d; it was sent %d times with this one", r, attempt, was.times)
	}
	if was.done {
		w.fail("%s comes again; it was acked, or sent with manual_ack false", r)
	}
	if l := was.last; l != nil && now.Sub(was.at) < l.lease-leaseSlack && (l == p || !l.socket.sealed.Load()) {
		w.fail("%s comes again %s after it was sent; the lease was %s", r, now.Sub(was.at), l.lease)
	}
	was.last, was.at, was.done = p, now, p.auto[r.group]
	w.sent[r] = was
}

// leaseSlack is how much shorter a lease may be than its EVENT says.
const leaseSlack = 100 * time.Millisecond

// read has a peer take up to n bytes, as far as there are so many.
func (w *peers) read(p *peer, n int) {
	p.read += p.socket.drain(n)
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p.sent) > 0 && p.sent[0].end <= p.read {
		if r := p.sent[0].eventRef; !p.auto[r.group] {
			p.held = append(p.held, r)
		}
		p.sent = p.sent[1:]
	}
}

// ackSome acks some of what the peer has seen, by id and topic.
func (w *peers) ackSome(p *peer) {
	for range 1 + w.rng.IntN(4) {
		if len(p.held) > 0 {
			w.ackOne(p, w.rng.IntN(len(p.held)))
		}
	}
}

// ackOne acks what a peer holds. That counts where the lease is valid: the event was sent
// to nobody else, and the lease has not run out when the hub has read the ACK.
func (w *peers) ackOne(p *peer, i int) {
	r := p.held[i]
	p.held = slices.Delete(p.held, i, i+1)
	if !w.say(p, text(fmt.Sprintf(`{"op":"ACK","topic":%q,"group":%q,"id":%q}`, r.topic, r.group, r.id))) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sent[r]
	s.acked = true
	s.done = s.done || !p.closed && s.last == p && !p.socket.sealed.Load() && time.Since(s.at) < p.lease-leaseSlack
	w.sent[r] = s
}

// say has the hub read something, unless it does not any more, or for a second. It
// reports whether some of it was read.
func (w *peers) say(p *peer, frames []byte) bool {
	if p.closed {
		return false
	}
	_ = p.conn.SetWriteDeadline(time.Now().Add(time.Second))
	n, err := p.conn.Write(frames)
	p.closed = err != nil || gws.OpCode(frames[0]&0xf) == gws.OpClose
	return n > 0
}

func (w *peers) drop(i int) {
	w.all[i].socket.reset(w.all[i].conn)
	w.all = slices.Delete(w.all, i, i+1)
}

// checkLetters: nothing is given up that was not sent as often as it may be, or is done.
func (w *peers) checkLetters() {
	for _, topic := range peerTopics {
		letters := eventhub.DeadLetterTopic(topic)
		if head := w.head(letters); head > w.letters[topic] {
			w.letters[topic] = head
			w.checkLettersOf(topic, letters)
		}
	}
}

func (w *peers) checkLettersOf(topic, letters string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.bus.DeadLetters(context.Background(), admin.DeadLetterQuery{Topic: letters}, func(d *admin.DeadLetter) error {
		r := eventRef{d.Group, topic, d.EventID}
		w.dead[r] = true
		if s := w.sent[r]; s.times != w.most || d.Attempts != w.most || s.done {
			w.fail("%s is given up after %d attempts of %d (%s); it was sent %d times, and is done: %t", r, d.Attempts, w.most, d.Reason, s.times, s.done)
		}
		return nil
	})
	if err != nil {
		w.fail("dead letters: %v", err)
	}
}

// finish has one more member take and ack all that is left: every event is done for a
// reason.
func (w *peers) finish() {
	for len(w.all) > 0 {
		w.drop(0)
	}
	synctest.Wait()
	last := w.connect(1 << 20)
	for _, group := range peerGroups {
		w.join(last, group, false, 100)
	}
	for quiet := 0; quiet < 10; quiet++ {
		for w.read(last, 1<<20); len(last.held) > 0; w.read(last, 1<<20) {
			for len(last.held) > 0 {
				w.ackOne(last, 0)
			}
			quiet = 0
			synctest.Wait()
		}
		time.Sleep(time.Second)
	}
	w.checkLetters()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, group := range peerGroups {
		for _, topic := range peerTopics {
			for i := range w.n {
				r := eventRef{group, topic, fmt.Sprintf("e%d", i+1)}
				if s := w.sent[r]; !s.acked && !s.done && !w.dead[r] {
					w.fail("%s was sent %d times, and nobody has said that it is done; it does not come any more", r, s.times)
				}
			}
			if at := w.cursor(topic, group); at != uint64(w.n) {
				w.fail("the cursor of %s::%s is %d; %d events were published", topic, group, at, w.n)
			}
		}
	}
}
