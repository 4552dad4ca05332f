package ws

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"
)

// A delivery is made when its bytes were taken by the socket, all of them. The peers
// here are pipes without a buffer: what they do not read was not taken.

// TestNothingUnsentIsDeadLettered: with one attempt, what a peer was sent is given up
// when it goes, and nothing of what still waited for it.
func TestNothingUnsentIsDeadLettered(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		c := e.login()
		c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"max_attempts":1},"corr":"1"}`)
		e.publish("t", 1, 2)
		synctest.Wait()
		e.publish("t", 3, 60) // after the write of the first two
		synctest.Wait()
		c.readFrames(3)
		c.readBytes(40) // of e4, in the middle of what is being written
		synctest.Wait()
		c.conn.Close()
		<-e.log.closed
		synctest.Wait()
		if dead := e.head("t.dlq"); dead != 3 {
			t.Errorf("there are %d dead letters; want those of the 3 events that were sent", dead)
		}
		again := e.login()
		again.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"1"}`)
		var want []string
		for i := 4; i <= 62; i++ {
			want = append(want, fmt.Sprintf("e%d#1", i))
		}
		got := again.attempts(len(want))
		if slices.SortFunc(got, byNumber); !slices.Equal(got, want) {
			t.Errorf("come\n%v; want\n%v", got, want)
		}
	})
}

// head returns the offset of the last event of a topic, 0 where there is none.
func (e *engine) head(topic string) uint64 {
	info, err := e.bus.Topic(e.t.Context(), topic)
	if err != nil {
		return 0
	}
	return info.Head
}

// readBytes takes n bytes, and none in advance.
func (c *client) readBytes(n int) {
	c.t.Helper()
	if _, err := io.ReadFull(c.conn, make([]byte, n)); err != nil {
		c.t.Fatal(err)
	}
}

// readFrames takes n frames, and nothing in advance.
func (c *client) readFrames(n int) {
	c.t.Helper()
	for range n {
		h, err := gws.ReadHeader(c.conn)
		if err != nil {
			c.t.Fatal(err)
		}
		c.readBytes(int(h.Length))
	}
}

// readSlowly takes the bytes of n frames, one at a time and one in each pause, so that
// the hub does not take the peer for dead.
func (c *client) readSlowly(bytes int, pause time.Duration) {
	c.t.Helper()
	var begun []byte
	for range bytes {
		time.Sleep(pause)
		b := make([]byte, 1)
		if _, err := c.conn.Read(b); err != nil {
			c.t.Fatalf("closed after %d bytes: %v", len(begun), err)
		}
		begun = append(begun, b...)
	}
	c.r.Reset(io.MultiReader(strings.NewReader(string(begun)), c.conn))
}

// TestLeaseRunsFromTheSending: however long a delivery has waited for its peer, its
// lease runs from then on when it was sent.
func TestLeaseRunsFromTheSending(t *testing.T) {
	for _, waited := range []time.Duration{25 * time.Second, 5 * time.Minute} {
		t.Run(waited.String(), func(t *testing.T) {
			withEngine(t, func(t *testing.T, e *engine) {
				c := e.login()
				c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"max_attempts":1,"ack_timeout_ms":30000},"corr":"1"}`)
				e.publish("t", 1, 1)
				synctest.Wait()
				e.publish("t", 2, 3)
				c.readSlowly(50, waited/50)
				c.wantAttempts("e1#1", "e2#1", "e3#1", "e4#1")
				time.Sleep(29 * time.Second)
				for i := range 4 {
					c.send(fmt.Sprintf(`{"op":"MODACK","topic":"t","group":"g","id":"e%d","extend_ms":1000,"corr":"%d"}`, i+1, i))
					c.expect(map[string]any{"op": "OK", "corr": fmt.Sprint(i)})
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if dead := e.head("t.dlq"); dead != 4 {
					t.Errorf("%d of 4 leases have run out", dead)
				}
			})
		})
	}
}

// TestAckedWhenSent: with manual_ack false what was sent is done, and what was not is
// not, whether the member leaves or is lost.
func TestAckedWhenSent(t *testing.T) {
	for _, how := range []string{"lost", "leaves"} {
		t.Run(how, func(t *testing.T) {
			withEngine(t, func(t *testing.T, e *engine) {
				c := e.login()
				c.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"manual_ack":false},"corr":"1"}`)
				e.publish("t", 1, 1)
				synctest.Wait()
				e.publish("t", 2, 500)
				synctest.Wait()
				if at := e.cursor("t", "g"); at != 0 {
					t.Errorf("the cursor is %d; nothing was sent", at)
				}
				c.readFrames(3)
				left := uint64(3)
				if how == "leaves" {
					c.send(`{"op":"UNSUBSCRIBE","topic":"t","group":"g","corr":"u"}`)
					for m := c.message(); m["corr"] != "u"; m = c.message() {
						left++
					}
				}
				c.conn.Close()
				<-e.log.closed
				synctest.Wait()
				if at := e.cursor("t", "g"); at != left {
					t.Errorf("the cursor is %d; %d were sent", at, left)
				}
				again := e.login()
				again.ok(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"manual_ack":false},"corr":"1"}`)
				var want []string
				for i := left + 1; i <= 501; i++ {
					want = append(want, fmt.Sprintf("e%d#1", i))
				}
				came := again.attempts(len(want)) // in any order, as the group has none
				slices.Sort(came)
				slices.Sort(want)
				if !slices.Equal(came, want) {
					t.Errorf("came %v; want %v", came, want)
				}
				synctest.Wait()
				if at := e.cursor("t", "g"); at != 501 {
					t.Errorf("the cursor is %d; all 501 were sent", at)
				}
			})
		})
	}
}
