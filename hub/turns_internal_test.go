package hub

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
)

// TestTurnsOfStrangers: so many strangers have a turn at a time, and the others begin in the order in which they came, each when
// another one ends, or was a long one, which does not count any more then.
func TestTurnsOfStrangers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newTurns(2)
		first, second := s.take(), s.take()
		var taken [6]atomic.Pointer[turn]
		for i := range taken {
			go func() { taken[i].Store(s.take()) }()
			synctest.Wait()
		}
		want := func(n int, when string) {
			t.Helper()
			synctest.Wait()
			for i := range taken {
				if began := taken[i].Load() != nil; began != (i < n) {
					t.Fatalf("%s: that %d has begun is %t; want the first %d", when, i, began, n)
				}
			}
		}
		want(0, "two have a turn")
		s.give(second)
		want(1, "one has ended")
		s.give(second)
		want(1, "it has ended again")
		time.Sleep(longTurn - time.Nanosecond)
		want(1, "before a turn is long")
		time.Sleep(time.Nanosecond)
		want(3, "two were long") // the first one, and 0
		s.give(first)
		want(3, "one that was long has ended")
		s.give(taken[1].Load())
		want(4, "one of those that began later has ended")
		time.Sleep(longTurn)
		want(6, "others were long")
		s.give(taken[4].Load())
		s.give(taken[5].Load())
		if later := s.take(); s.running.Len() != 1 || s.waiting.Len() != 0 {
			t.Errorf("%d have a turn, and %d wait, after all have ended and one came", s.running.Len(), s.waiting.Len())
		} else {
			s.give(later)
		}
	})
}

// dribble is a connection whose peer sends a byte at a time, and always has the next one ready.
type dribble struct {
	net.Conn
	reads int
	wait  time.Duration // of the peer, before each
}

func (d *dribble) Read(b []byte) (int, error) {
	time.Sleep(d.wait)
	d.reads++
	return copy(b, "x"), nil
}

func (d *dribble) RemoteAddr() net.Addr            { return &net.TCPAddr{} }
func (d *dribble) SetReadDeadline(time.Time) error { return nil }
func (d *dribble) Close() error                    { return nil }

// TestStrangersAreReadSlowly: of a stranger that sends by bytes few pieces are read in its time, and of one that has shown a
// right, as many as come. No rest is longer than the time that the stranger has left.
func TestStrangersAreReadSlowly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		peer := &dribble{wait: time.Millisecond}
		began := time.Now()
		c := &conn{Conn: peer, door: &door{guests: newStrangers(1)}, proofBy: began.Add(strangerWait + 100*time.Millisecond)}
		b := make([]byte, 10)
		for time.Now().Before(c.proofBy) {
			if n, err := c.Read(b); n != 1 || err != nil {
				t.Fatalf("read %d bytes, %v", n, err)
			}
		}
		if most := promptReads + int(strangerWait/strangerRest) + 1; peer.reads > most || peer.reads < promptReads {
			t.Errorf("a stranger was read %d times; want %d at most", peer.reads, most)
		}
		if late := time.Since(c.proofBy); late > peer.wait {
			t.Errorf("the last read of it was %s after its time", late)
		}
		c.rest()
		before := time.Now()
		for range promptReads {
			_, _ = c.Read(b)
		}
		if took := time.Since(before); took != promptReads*peer.wait {
			t.Errorf("the first reads of another request took %s", took)
		}
		before = time.Now()
		for range 1000 {
			_, _ = c.Read(b[:1])
		}
		if took := time.Since(before); took != strangerRest+1000*peer.wait {
			t.Errorf("1,000 reads that fill the buffer took %s", took)
		}
		c.know()
		before = time.Now()
		for range 1000 {
			_, _ = c.Read(b)
		}
		if took := time.Since(before); took != 1000*peer.wait {
			t.Errorf("1,000 reads of one that is known took %s", took)
		}
	})
}

// TestStrangersTakeTurns: what a stranger sent is returned when no other has a turn, and its turn ends when it waits for more, sends
// something, has shown a right, or is closed.
func TestStrangersTakeTurns(t *testing.T) {
	for name, end := range map[string]func(c *conn){
		"reads":  func(c *conn) { c.Conn.(*dribble).wait = time.Second; go func() { _, _ = c.Read(make([]byte, 1)) }() },
		"writes": func(c *conn) { c.deadline = true; c.arm() },
		"known":  func(c *conn) { c.know() },
		"closed": func(c *conn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				guests := newStrangers(2)
				guests.turns.most = 1
				d := &door{guests: guests}
				came := make(chan *conn, 2)
				for range 2 {
					go func() {
						c := &conn{Conn: &dribble{}, door: d, proofBy: time.Now().Add(strangerWait)}
						_, _ = c.Read(make([]byte, 1))
						came <- c
					}()
				}
				synctest.Wait()
				if len(came) != 1 {
					t.Fatalf("%d strangers have a turn", len(came))
				}
				end(<-came)
				synctest.Wait()
				if len(came) != 1 {
					t.Fatalf("%d strangers have a turn after the first one %s", len(came), name)
				}
				(<-came).know()
				time.Sleep(2 * time.Second) // the reader of the first one ends
			})
		})
	}
}
