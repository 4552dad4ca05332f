package mongojournal

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"eventhub/store/journal"
)

// clock dials connections over which the server's clock is so far ahead.
type clock time.Duration

// DialContext implements options.ContextDialer.
func (c clock) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &shifted{Conn: conn, by: time.Duration(c)}, nil
}

// shifted shifts the times in the answers of a server.
type shifted struct {
	net.Conn
	by   time.Duration
	rest []byte
}

func (s *shifted) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		var size [4]byte
		if _, err := io.ReadFull(s.Conn, size[:]); err != nil {
			return 0, err
		}
		s.rest = append(size[:], make([]byte, binary.LittleEndian.Uint32(size[:])-4)...)
		if _, err := io.ReadFull(s.Conn, s.rest[4:]); err != nil {
			return 0, err
		}
		for _, name := range []string{"\x09localTime\x00", "\x09seen\x00"} { // dates in BSON
			for at := 0; ; {
				i := bytes.Index(s.rest[at:], []byte(name))
				if i < 0 {
					break
				}
				at += i + len(name)
				ms := binary.LittleEndian.Uint64(s.rest[at:])
				binary.LittleEndian.PutUint64(s.rest[at:], ms+uint64(s.by.Milliseconds()))
			}
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// TestServersClock: the time is that of the server, by which members are seen, and not that of this machine.
func TestServersClock(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, -40 * time.Second, 40 * time.Second, time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			o, _ := newDatabase(t)
			o.Dialer = clock(by)
			j := open(t, o)
			before := time.Now()
			if _, err := j.Announce(limited(t), journal.Member{ID: "a"}); err != nil {
				t.Fatal(err)
			}
			now, err := j.Now(limited(t))
			if off := now.Sub(before) - by; err != nil || off < -time.Second || off > within {
				t.Errorf("Now is off by %s, %v", off, err)
			}
			all, err := j.Announce(limited(t), journal.Member{})
			if err != nil || len(all) != 1 || now.Sub(all[0].Seen) < 0 || now.Sub(all[0].Seen) > within {
				t.Errorf("at %v Announce = %+v, %v", now, all, err)
			}
		})
	}
}
