package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/internal/bubble"
)

// TestScheduled: what is published later is answered 202 with the time, and what
// is due already as any other event.
func TestScheduled(t *testing.T) {
	ndjson := []string{"Content-Type", "application/x-ndjson"}
	for _, tt := range []struct {
		name, target, body string
		header             []string
		status             int
		answer             string
		delay              time.Duration
		at                 int64
	}{
		{"delay", "/publish/t?delay_ms=1500&id=x", "1", nil, 202, `{"id":"x","deliver_at":2500}`, 1500 * time.Millisecond, 0},
		{"longest delay", "/publish/t?delay_ms=31536000000", "1", nil, 202, `{"id":"made","deliver_at":31536001000}`, eventhub.MaxDelay, 0},
		{"header", "/publish/t", "1", []string{"X-Eventhub-Deliver-At", "5000"}, 202, `{"id":"made","deliver_at":5000}`, 0, 5000},
		{"there already", "/publish/t?deliver_at=5000&id=again", "1", nil, 202, `{"id":"again","deliver_at":5000,"duplicate":true}`, 0, 5000},
		{"past", "/publish/t?deliver_at=999", "1", nil, 200, `{"id":"made","offset":1}`, 0, 999},
		{"no delay", "/publish/t?delay_ms=0", "1", nil, 200, `{"id":"made","offset":1}`, 0, 0},
		{"batch", "/v1/publish", `{"events":[{"topic":"t","payload":1,"delay_ms":500}]}`, nil, 202,
			`{"count":1,"receipts":[{"id":"made","deliver_at":1500}]}`, 500 * time.Millisecond, 0},
		{"lines", "/v1/publish", `{"topic":"t","payload":1,"deliver_at":2000}` + "\n" + `{"topic":"t","payload":1,"id":"again"}`, ndjson, 200,
			`{"count":2,"receipts":[{"id":"made","deliver_at":2000},{"id":"again","offset":2,"duplicate":true}],"duplicates":[1]}`, 0, 2000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{}
			status, answer, _ := do(newAPI(t, l), tt.target, tt.body, tt.header...)
			if status != tt.status || answer != tt.answer+"\n" {
				t.Errorf("answered %d %swant %d %s", status, answer, tt.status, tt.answer)
			}
			if e := l.events[0]; e.Delay != tt.delay || eventhub.Millis(e.DeliverAt) != tt.at {
				t.Errorf("published with delay %v and time %d", e.Delay, eventhub.Millis(e.DeliverAt))
			}
		})
	}
}

// TestWaiting: the groups and the time are handed on, once for all events.
func TestWaiting(t *testing.T) {
	const batch = `{"events":[{"topic":"t","payload":1},{"topic":"u","payload":1}]}`
	for _, tt := range []struct {
		target, body string
		header       []string
		waits        string
	}{
		{"/publish/t?wait_for=g", "1", nil, "[g] 0s"},
		{"/publish/t?wait_for=g,%20h:1&wait_for=i&wait_ms=300000", "1", nil, "[g h:1 i] 5m0s"},
		{"/publish/t?wait_ms=1", "1", []string{"X-Eventhub-Wait-For", "g"}, "[g] 1ms"},
		{"/v1/publish?wait_for=g,h", batch, nil, "[g h] 0s"},
		{"/v1/publish", batch, []string{"X-Eventhub-Wait-For", "g", "X-Eventhub-Wait-Ms", "20"}, "[g] 20ms"},
	} {
		l := &log{}
		status, answer, _ := do(newAPI(t, l), tt.target, tt.body, tt.header...)
		if status != 200 || !strings.Contains(answer, `"offset":1`) || l.batches != 1 {
			t.Errorf("%s was answered %d %s, in %d publishes", tt.target, status, answer, l.batches)
		}
		if diff := cmp.Diff([]string{tt.waits}, l.waits); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.target, diff)
		}
	}
}

// TestWaitTimeout: the answer is an error and says that the events are there.
func TestWaitTimeout(t *testing.T) {
	late := func(context.Context) error {
		return eventhub.Errorf(eventhub.CodeWaitTimeout, `group "g" of "t" has not acked`)
	}
	const head = `{"type":"about:blank","title":"Gateway Timeout","status":504,"detail":"group \"g\" of \"t\" has not acked","code":"wait_timeout",`
	for _, tt := range [][3]string{
		{"/publish/t?wait_for=g&id=again", `1`, head + `"id":"again","offset":1,"duplicate":true}`},
		{"/v1/publish?wait_for=g", `{"events":[{"topic":"t","payload":1,"id":"a"},{"topic":"t","payload":1,"id":"again"}]}`,
			head + `"count":2,"receipts":[{"id":"a","offset":1},{"id":"again","offset":2,"duplicate":true}],"duplicates":[1]}`},
	} {
		status, answer, headers := do(newAPI(t, &log{wait: late}), tt[0], tt[1])
		if status != 504 || answer != tt[2]+"\n" || headers.Get("Content-Type") != "application/problem+json" || headers.Get("Retry-After") != "" {
			t.Errorf("%s was answered %d %v\n%swant\n%s", tt[0], status, headers, answer, tt[2])
		}
	}
	// A refusal names no events.
	status, answer, _ := do(newAPI(t, &log{err: eventhub.Errorf(eventhub.CodeNotSubscribed, "no group")}), "/publish/t?wait_for=g", "1")
	if status != 404 || strings.Contains(answer, "offset") || strings.Contains(answer, `"id"`) {
		t.Errorf("a refusal was answered %d %s", status, answer)
	}
}

// TestLostLease: the codes of part 2 have statuses of their own.
func TestLostLease(t *testing.T) {
	if status, answer, _ := do(newAPI(t, &log{err: eventhub.Errorf(eventhub.CodeLeaseLost, "late")}), "/publish/t", "1"); status != 409 {
		t.Errorf("lease_lost was answered %d %s", status, answer)
	}
}

// pipes is a listener whose connections are made by dial.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8081} }

// serve runs an API in a server with deadlines as a hub has them, and returns a
// connection to it.
func serve(t *testing.T, l *log) (api *API, conn net.Conn, server *http.Server) {
	api, h := mount(t, Access{Publisher: l})
	door := &pipes{make(chan net.Conn), make(chan struct{})}
	server = &http.Server{Handler: h, ReadTimeout: time.Minute, IdleTimeout: time.Minute}
	go func() { _ = server.Serve(door) }() // until it is closed
	return api, door.dial(), server
}

// publishAndWait sends one publish that waits and returns its answer.
func publishAndWait(conn net.Conn) (status int, answer map[string]any, err error) {
	go func() {
		_, _ = conn.Write([]byte("POST /publish/t?wait_for=g&wait_ms=300000 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"))
	}()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	return r.StatusCode, answer, json.NewDecoder(r.Body).Decode(&answer)
}

// TestWaitOutlastsTheServersDeadline: a wait is not cut short by the deadline for
// reading requests.
func TestWaitOutlastsTheServersDeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		_, conn, server := serve(t, &log{wait: func(ctx context.Context) error {
			select {
			case <-time.After(4 * time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		status, answer, err := publishAndWait(conn)
		if err != nil || status != 200 || answer["offset"] != 1.0 || time.Since(began) != 4*time.Minute {
			t.Errorf("answered %d %v, %v after %v", status, answer, err, time.Since(began))
		}
		conn.Close()
		server.Close()
	})
}

// TestWaitEnds: by the client that goes away, and by a hub that stops, which
// says what it has published.
func TestWaitEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var ended error
		_, conn, server := serve(t, &log{wait: func(ctx context.Context) error {
			<-ctx.Done()
			ended = ctx.Err()
			return ended
		}})
		go publishAndWait(conn)
		synctest.Wait()
		conn.Close()
		synctest.Wait()
		if ended == nil {
			t.Error("the wait goes on for a client that is gone")
		}
		server.Close()
	})
	bubble.Test(t, func(t *testing.T) {
		api, conn, server := serve(t, &log{wait: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		server.RegisterOnShutdown(api.Stop)
		shut := make(chan error, 1)
		time.AfterFunc(time.Second, func() { shut <- server.Shutdown(t.Context()) })
		status, answer, err := publishAndWait(conn)
		if err != nil || status != 503 || answer["code"] != "shutting_down" || answer["offset"] != 1.0 {
			t.Errorf("answered %d %v, %v", status, answer, err)
		}
		if err := <-shut; err != nil {
			t.Error(err)
		}
		conn.Close()
	})
}
