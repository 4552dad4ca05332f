package cluster

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestWhyNotConnected: where a server that was lost is there again and does not let the hub in, the errors of the calls say why,
// and the hub is connected again when it is let in, however often it was refused before.
func TestWhyNotConnected(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	j := open(t, newStream(s.url(), 1))
	defer j.Close()
	s.kill()
	l, err := net.Listen("tcp", strings.TrimPrefix(s.url(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// That the client goes away is no failure of the test.
			_, _ = io.WriteString(c, `INFO {"server_id":"x","version":"2.15.2","proto":1,"max_payload":1048576,"headers":true,"auth_required":true}`+"\r\n")
			lines := bufio.NewScanner(c)
			for lines.Scan() && lines.Text() != "PING" {
			}
			_, _ = io.WriteString(c, "-ERR 'Authorization Violation'\r\n")
			_ = c.Close()
			refused.Add(1)
		}
	}()
	defer func() { <-ended }()
	defer l.Close()
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err = j.Last(ctx)
		cancel()
		if refused.Load() > 3 && err != nil && strings.Contains(err.Error(), "connecting again fails: ") && strings.Contains(strings.ToLower(err.Error()), "authorization violation") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("Last: %v", err)
		}
	}
	_ = l.Close()
	s.start(t)
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err = j.Last(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Last of a server that is there again: %v", err)
		}
	}
}
