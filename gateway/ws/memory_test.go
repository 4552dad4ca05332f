package ws

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub/internal/budget"
	"eventhub/wire"
)

const largeFrame = 150_000

// tight leaves memory for three messages of largeFrame at a time.
func tight(c *Config) {
	c.MaxFrameBytes = 200_000
	c.Memory = budget.New(3*(largeFrame+gws.MaxHeaderSize) + burstBytes)
	c.PingEvery = 1000 * time.Hour // silence is no matter here
}

// largePublish is one of largeFrame bytes.
func largePublish(corr string) []byte {
	m := `{"op":"PUBLISH","corr":"` + corr + `","topic":"t","payload":1,"pad":"`
	return text(m + strings.Repeat("x", largeFrame-len(m)-2) + `"}`)
}

// TestHalfMessagesHaveABudget: however many connections have begun a large message,
// the hub holds what its budget has and reads no more; those that are begun are
// completed, and the others then go on.
func TestHalfMessagesHaveABudget(t *testing.T) {
	inBubble(t, tight, func(t *testing.T, f *fixture) {
		memory := f.gw.cfg.Memory
		var clients []*client
		written := make([]chan struct{}, 20)
		for i := range written {
			c := f.pipe(t)
			c.auth()
			clients = append(clients, c)
			written[i] = make(chan struct{})
			go func() {
				defer close(written[i])
				c.conn.Write(largePublish("p")[:largeFrame/2])
			}()
			synctest.Wait()
		}
		blocked := 0
		for _, w := range written {
			select {
			case <-w:
			default:
				blocked++
			}
		}
		if used := memory.Used(); blocked != 17 || used < 3*largeFrame || used > memory.Most() {
			t.Errorf("of 20 connections %d are not read, with %d of %d bytes taken; want 17", blocked, used, memory.Most())
		}
		// Who needs no memory of the budget is served.
		small := f.pipe(t)
		small.auth()
		small.send(pub("small", 1))
		small.expect(map[string]any{"op": "OK", "corr": "small"})
		for i, c := range clients {
			go func() {
				<-written[i]
				c.conn.Write(largePublish("p")[largeFrame/2:])
			}()
		}
		for _, c := range append(clients, small) {
			if c != small {
				c.expect(map[string]any{"op": "OK", "corr": "p"})
			}
			c.conn.Close()
			<-f.log.closed
		}
		if used := memory.Used(); used != 0 {
			t.Errorf("%d bytes are taken in the end", used)
		}
	})
}

// TestMessagesThatGrow: connections that hold a burst of memory each, and then find that
// their messages need more, do not block each other until the time of a message is over:
// the last of them are refused at once, and the others are served with what those give back.
func TestMessagesThatGrow(t *testing.T) {
	inBubble(t, func(c *Config) { tight(c); c.Memory = budget.New(claimFor(c.MaxFrameBytes)) }, func(t *testing.T, f *fixture) {
		memory := f.gw.cfg.Memory
		m := `{"op":"PUBLISH","topic":"t","payload":1,"pad":"`
		filling := text(m + strings.Repeat("x", baseBytes-8-len(m)-2) + `"}`) // the buffer, to its last byte
		var clients []*client
		for range memory.Most() / burstBytes {
			c := f.pipe(t)
			c.auth()
			c.write(filling)
			c.expect(map[string]any{"op": "OK"})
			synctest.Wait()
			clients = append(clients, c)
		}
		if free := memory.Most() - memory.Used(); len(filling) != baseBytes || free >= burstBytes {
			t.Fatalf("%d connections do not hold a burst each: %d bytes are free", len(clients), free)
		}
		start := time.Now()
		ends := make(chan gws.OpCode, len(clients))
		for _, c := range clients {
			go c.conn.Write(largePublish("p"))
			synctest.Wait()
		}
		for _, c := range clients {
			go func() {
				op, _, err := c.tryRead()
				if op == gws.OpClose {
					c.conn.Close()
				}
				if err != nil {
					t.Error(err)
				}
				ends <- op
			}()
		}
		refused := 0
		for range clients {
			if <-ends == gws.OpClose {
				refused++
			}
		}
		needed := (largeFrame + burstBytes - 1) / burstBytes // it had one of them
		if waited := time.Since(start); refused == 0 || refused >= needed || waited >= f.gw.cfg.MessageWait {
			t.Errorf("%d of %d messages are refused, after %s; want less than %d, at once", refused, len(clients), waited, needed)
		}
		for _, c := range clients {
			c.conn.Close()
			<-f.log.closed
		}
		if used := memory.Used(); used != 0 {
			t.Errorf("%d bytes are taken in the end", used)
		}
	})
}

// TestNoMemoryInTime: who waits for memory as long as a message may take has to
// come again, with what it had said before answered.
func TestNoMemoryInTime(t *testing.T) {
	inBubble(t, tight, func(t *testing.T, f *fixture) {
		memory := f.gw.cfg.Memory
		memory.Take(memory.Most() - burstBytes)
		c := f.pipe(t)
		c.auth()
		start := time.Now()
		go c.conn.Write(append(text(pub("before", 1)), largePublish("p")...))
		c.expect(map[string]any{"op": "OK", "corr": "before"})
		c.expectClose(wire.CloseTryAgain)
		if waited := time.Since(start); waited < f.gw.cfg.MessageWait {
			t.Errorf("closed after %s; want %s", waited, f.gw.cfg.MessageWait)
		}
		<-f.log.closed
		c.conn.Close()
		if used := memory.Used(); used != memory.Most()-burstBytes {
			t.Errorf("%d bytes are taken in the end", used)
		}
	})
}

// TestMessageHasATime: half a message and a byte now and then, or pieces of one, do
// not keep a connection for ever; one that is slow and comes to its end is taken.
func TestMessageHasATime(t *testing.T) {
	for name, tt := range map[string]struct {
		begin []byte
		piece []byte
		every time.Duration
	}{
		"bytes":     {largePublish("p")[:1000], []byte("x"), 3 * time.Second},
		"small":     {text(pub("p", 1))[:10], []byte("x"), 25 * time.Second},
		"fragments": {frame(gws.OpText, false, "{"), frame(gws.OpContinuation, false, " "), 3 * time.Second},
		"pongs":     {frame(gws.OpText, false, "{"), frame(gws.OpPong, true, ""), 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tight, func(t *testing.T, f *fixture) {
				c := f.pipe(t)
				c.auth()
				start := time.Now()
				c.write(tt.begin)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for {
						time.Sleep(tt.every)
						if _, err := c.conn.Write(tt.piece); err != nil {
							return
						}
					}
				}()
				c.expectClose(wire.ClosePolicy)
				if waited := time.Since(start); waited < time.Minute || waited > time.Minute+tt.every+f.gw.cfg.CloseWait {
					t.Errorf("closed after %s; want a minute and the next piece", waited)
				}
				<-f.log.closed
				c.conn.Close()
				<-ended
				if used := f.gw.cfg.Memory.Used(); used != 0 {
					t.Errorf("%d bytes are taken in the end", used)
				}
			})
		})
	}
	inBubble(t, tight, func(t *testing.T, f *fixture) {
		c := f.pipe(t)
		c.auth()
		for range 3 {
			message := largePublish("slow")
			for len(message) > 0 { // each in 50 s, together longer than one may take
				n := min(len(message), largeFrame/10)
				c.write(message[:n])
				message = message[n:]
				time.Sleep(5 * time.Second)
			}
			c.expect(map[string]any{"op": "OK", "corr": "slow"})
		}
		c.conn.Close()
		<-f.log.closed
	})
}

// TestFragmentsHaveABudget too, from the first one on.
func TestFragmentsHaveABudget(t *testing.T) {
	inBubble(t, func(c *Config) { tight(c); c.Memory = budget.New(2*claimFor(c.MaxFrameBytes) + burstBytes) }, func(t *testing.T, f *fixture) {
		var clients []*client
		for range 2 {
			c := f.pipe(t)
			c.auth()
			c.write(frame(gws.OpText, false, `{"op":"PUBLISH","corr":"p","topic":"t","payload":`))
			clients = append(clients, c)
		}
		synctest.Wait()
		if used := f.gw.cfg.Memory.Used(); used != 2*claimFor(f.gw.cfg.MaxFrameBytes) {
			t.Errorf("%d bytes are taken by two messages in fragments; want %d each", used, claimFor(f.gw.cfg.MaxFrameBytes))
		}
		for _, c := range clients {
			c.write(cat(frame(gws.OpContinuation, false, strings.Repeat(" ", largeFrame)), frame(gws.OpContinuation, true, "1}")))
			c.expect(map[string]any{"op": "OK", "corr": "p"})
			c.conn.Close()
			<-f.log.closed
		}
		if used := f.gw.cfg.Memory.Used(); used != 0 {
			t.Errorf("%d bytes are taken in the end", used)
		}
	})
}
