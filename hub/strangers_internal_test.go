package hub

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"eventhub/internal/bubble"
)

// far is a connection from an address that says whether it was closed.
type far struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (f *far) RemoteAddr() net.Addr { return f.from }
func (f *far) Close() error         { f.closed = true; return nil }

func (f *far) SetReadDeadline(time.Time) error { return nil }

// comeFrom has a connection come, later than the one before.
func comeFrom(s *strangers, addr string) (*conn, *far) {
	time.Sleep(time.Nanosecond)
	f := &far{from: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1))}
	c := &conn{Conn: f, door: &door{guests: s}}
	s.enter(c)
	return c, f
}

// TestStrangersGiveWay: of too many the oldest one of the address that has most is closed, and who
// is known, or gone, counts no longer.
func TestStrangersGiveWay(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStrangers(4)
		_, one := comeFrom(s, "192.0.2.1")
		_, two := comeFrom(s, "2001:db8::1")
		_, three := comeFrom(s, "2001:db8::2") // the same network
		gone, _ := comeFrom(s, "192.0.2.2")
		_ = gone.Close()
		_ = gone.Close()
		known, _ := comeFrom(s, "192.0.2.3")
		known.know()
		_, four := comeFrom(s, "192.0.2.4")
		if now, evicted := s.measure(); now != 4 || evicted != 0 || one.closed || two.closed || three.closed || four.closed {
			t.Fatalf("%d are there, %d gave way", now, evicted)
		}
		for i, want := range []*far{two, one, three} { // the larger crowd first, then by age
			comeFrom(s, fmt.Sprintf("198.51.100.%d", i))
			if now, evicted := s.measure(); !want.closed || now != 4 || evicted != uint64(i+1) {
				t.Errorf("%d: closed is %t; %d are there, %d gave way", i, want.closed, now, evicted)
			}
		}
	})
}

// TestRandomStrangers compares with a list that is looked through.
func TestRandomStrangers(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	bubble.Test(t, func(t *testing.T) {
		const most = 20
		s := newStrangers(most)
		type one struct {
			*conn
			*far
			addr string
		}
		var all []one // the oldest first
		for step := range 5000 {
			if rnd.IntN(3) == 0 && len(all) > 0 {
				i := rnd.IntN(len(all))
				if rnd.IntN(2) == 0 {
					all[i].conn.know()
				} else {
					_ = all[i].conn.Close()
				}
				all = slices.Delete(all, i, i+1)
				continue
			}
			out := -1
			if len(all) == most {
				counts := make(map[string]int)
				for _, o := range all {
					counts[o.addr]++
				}
				for i, o := range all {
					if out < 0 || counts[o.addr] > counts[all[out].addr] {
						out = i
					}
				}
			}
			addr := fmt.Sprintf("192.0.2.%d", rnd.IntN(6))
			c, f := comeFrom(s, addr)
			if out >= 0 {
				if !all[out].closed {
					t.Fatalf("step %d: number %d of %d, from %s, was to give way", step, out, len(all), all[out].addr)
				}
				_ = all[out].conn.Close() // as its server does
				all = slices.Delete(all, out, out+1)
			}
			all = append(all, one{c, f, addr})
			if now, _ := s.measure(); now != len(all) {
				t.Fatalf("step %d: %d are there; want %d", step, now, len(all))
			}
		}
	})
}
