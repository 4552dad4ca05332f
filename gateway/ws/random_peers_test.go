package ws

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub"
)

var (
	peerHistories = flag.Int("peers.histories", 10, "how many histories TestRandomPeers tries")
	peerSeed      = flag.Uint64("seed", rand.Uint64(), "of TestRandomPeers")
)

// peers is a hub with members that read as they like: nothing, some bytes, a frame and a
// half, all there is; that are lost in the middle of a frame; and that ack by ids which
// are in two topics. What a member was sent is what it has read in whole: the pipes have
// no buffer.
//
// The model has what was read, and nothing else: an attempt is made by being sent, and
// a dead letter is of an event that was sent as often as it may be. An event is done when
// somebody said so of it in its own topic, or was sent it with manualAck false.
type peers struct {
	*engine
	t    *testing.T
	rng  *rand.Rand
	what string // which history this is

	all     []*peer
	n       int
	sent    map[string]int  // by topic and id: how often it was read in whole
	settled map[string]bool // … what was said to be done, and what needed no saying
}

type peer struct {
	c      *client
	auto   bool
	in     []byte // that it has read
	held   [][2]string
	closed bool
}

func TestRandomPeers(t *testing.T) {
	for i := range *peerHistories {
		withEngine(t, func(t *testing.T, e *engine) {
			w := &peers{engine: e, t: t, rng: rand.New(rand.NewPCG(*peerSeed, uint64(i))), sent: make(map[string]int), settled: make(map[string]bool),
				what: fmt.Sprintf("-seed=%d, history %d", *peerSeed, i)}
			if wrong := w.run(); wrong != "" {
				t.Errorf("%s: %s", w.what, wrong)
			}
			for _, p := range w.all {
				p.c.conn.Close()
			}
			synctest.Wait()
		})
		if t.Failed() {
			return
		}
	}
}

// run returns what was wrong. The bubble is to end in order also then.
func (w *peers) run() (wrong string) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case peersFailure:
			wrong = string(f)
		default:
			panic(f)
		}
	}()
	w.publish(1 + w.rng.IntN(20))
	for range 5 + w.rng.IntN(30) {
		w.step()
		synctest.Wait()
		w.checkLetters()
	}
	w.finish()
	return ""
}

type peersFailure string

func (w *peers) fail(format string, args ...any) { panic(peersFailure(fmt.Sprintf(format, args...))) }

func (w *peers) step() {
	op := w.rng.IntN(20)
	switch {
	case op < 3:
		w.publish(1 + w.rng.IntN(30))
	case op < 5 || len(w.all) == 0:
		if len(w.all) < 4 {
			w.join(w.rng.IntN(3) == 0, []int{1, 7, 100}[w.rng.IntN(3)])
		}
	case op < 12:
		w.read(w.all[w.rng.IntN(len(w.all))], []int{1, 40, 150, 700, 1 << 20}[w.rng.IntN(5)])
	case op < 15:
		w.ack(w.all[w.rng.IntN(len(w.all))])
	case op < 17:
		w.drop(w.rng.IntN(len(w.all)))
	default:
		time.Sleep([]time.Duration{10 * time.Millisecond, time.Second, 3 * time.Second, 12 * time.Second}[w.rng.IntN(4)])
	}
}

// publish adds the same ids to two topics.
func (w *peers) publish(n int) {
	for _, topic := range []string{"t.a", "t.b"} {
		w.engine.publish(topic, w.n+1, n)
	}
	w.n += n
}

func (w *peers) join(auto bool, maxInFlight int) *peer {
	p := &peer{c: w.login(), auto: auto}
	p.c.send(fmt.Sprintf(`{"op":"SUBSCRIBE","topic":"t.*","group":"g","opts":{"from":"earliest","maxAttempts":2,"backoff":{"minMs":1,"maxMs":1},"ackTimeoutMs":%d,"manualAck":%t,"maxInFlight":%d},"corr":"1"}`,
		1000+w.rng.IntN(2000), !auto, maxInFlight))
	w.all = append(w.all, p)
	return p
}

// read has a peer take up to n bytes, as far as there are so many.
func (w *peers) read(p *peer, n int) {
	buf := make([]byte, min(n, 1<<16))
	for n > 0 && !p.closed {
		_ = p.c.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		got, err := p.c.conn.Read(buf[:min(n, len(buf))])
		p.in = append(p.in, buf[:got]...)
		n -= got
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		p.closed = err != nil
	}
	w.take(p)
}

// take looks at the frames that a peer has read in whole.
func (w *peers) take(p *peer) {
	for len(p.in) > 0 {
		h, err := gws.ReadHeader(bytes.NewReader(p.in))
		header := gws.HeaderSize(h)
		size := header + int(h.Length)
		if err != nil || size > len(p.in) {
			return
		}
		op, payload := gws.OpCode(p.in[0]&0xf), p.in[header:size]
		if p.in = p.in[size:]; op != gws.OpText {
			continue
		}
		var m struct {
			Op    string
			Event struct {
				Topic, ID string
			}
			Ctx struct{ Attempt int }
		}
		if err := json.Unmarshal(payload, &m); err != nil {
			w.fail("%q: %v", payload, err)
		}
		if m.Op != "EVENT" {
			continue
		}
		event := m.Event.Topic + "/" + m.Event.ID
		w.sent[event]++
		if m.Ctx.Attempt != w.sent[event] {
			w.fail("%s comes as attempt %d; it was sent %d times with this one", event, m.Ctx.Attempt, w.sent[event])
		}
		if p.auto {
			w.settled[event] = true
			continue
		}
		p.held = append(p.held, [2]string{m.Event.Topic, m.Event.ID})
	}
}

// ack is of some of what the peer has seen, by id and topic.
func (w *peers) ack(p *peer) {
	for range 1 + w.rng.IntN(4) {
		if len(p.held) == 0 || p.closed {
			return
		}
		i := w.rng.IntN(len(p.held))
		w.say(p, p.held[i])
		p.held = slices.Delete(p.held, i, i+1)
	}
}

func (w *peers) say(p *peer, event [2]string) {
	w.settled[event[0]+"/"+event[1]] = true
	_ = p.c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := p.c.conn.Write(text(fmt.Sprintf(`{"op":"ACK","topic":%q,"group":"g","id":%q}`, event[0], event[1])))
	p.closed = p.closed || err != nil
}

func (w *peers) drop(i int) {
	w.all[i].c.conn.Close()
	w.all = slices.Delete(w.all, i, i+1)
}

// checkLetters: nothing is given up that was not sent twice, or was acked by being sent.
func (w *peers) checkLetters() map[string]bool {
	dead := make(map[string]bool)
	for _, topic := range []string{"t.a", "t.b"} {
		q := eventhub.DeadLetterQuery{Topic: eventhub.DeadLetterTopic(topic)}
		err := w.bus.DeadLetters(context.Background(), q, func(d *eventhub.DeadLetter) error {
			event := topic + "/" + d.EventID
			if dead[event] = true; w.sent[event] < 2 {
				w.fail("%s is given up after %d attempts (%s); it was sent %d times", event, d.Attempts, d.Reason, w.sent[event])
			}
			return nil
		})
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			w.fail("dead letters: %v", err)
		}
	}
	return dead
}

// finish has one more member take and ack all that is left: every event is done for a
// reason.
func (w *peers) finish() {
	for len(w.all) > 0 {
		w.read(w.all[0], 1<<20) // what was sent meanwhile
		w.drop(0)
	}
	synctest.Wait()
	last := w.join(false, 100)
	for quiet := 0; quiet < 5; quiet++ {
		for w.read(last, 1<<20); len(last.held) > 0; w.read(last, 1<<20) {
			for _, event := range last.held {
				w.say(last, event)
			}
			last.held, quiet = nil, 0
			synctest.Wait()
		}
		time.Sleep(time.Second)
	}
	dead := w.checkLetters()
	for _, topic := range []string{"t.a", "t.b"} {
		for i := 1; i <= w.n; i++ {
			if event := fmt.Sprintf("%s/e%d", topic, i); !w.settled[event] && !dead[event] {
				w.fail("%s was sent %d times, and nobody has said that it is done; it does not come any more", event, w.sent[event])
			}
		}
		if at := w.cursor(topic, "g"); at != uint64(w.n) {
			w.fail("the cursor of %s is %d; %d events were published", topic, at, w.n)
		}
	}
}
