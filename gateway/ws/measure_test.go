package ws

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	gws "github.com/gobwas/ws"
	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/internal/measure"
	"eventhub/wire"
)

// metered counts what goes over a client's connection.
type metered struct {
	net.Conn
	sent, received uint64
}

func (m *metered) Write(p []byte) (int, error) {
	n, err := m.Conn.Write(p)
	m.sent += uint64(n)
	return n, err
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	m.received += uint64(n)
	return n, err
}

func (f *fixture) meteredPipe(t *testing.T) (*client, *metered) {
	c := f.pipe(t)
	m := &metered{Conn: c.conn}
	c.conn, c.r = m, bufio.NewReader(m)
	return c, m
}

func wantMeasure(t *testing.T, when string, f *fixture, want measure.Gateway) {
	t.Helper()
	synctest.Wait()
	got := f.gw.Measure()
	total := uint64(got.Connections)
	for _, n := range got.Closed {
		total += n
	}
	if total != got.Opened {
		t.Errorf("%s: %d connections were opened, %d are open or closed", when, got.Opened, total)
	}
	if want.BytesReceived == 0 {
		got.BytesReceived, got.BytesSent = 0, 0
	}
	got.Ended = nil // TestEndedConnections is about those
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// TestMeasure: the same numbers whether sessions are open or have ended.
func TestMeasure(t *testing.T) {
	inBubble(t, func(c *Config) { c.MaxConnections = 2 }, func(t *testing.T, f *fixture) {
		wantMeasure(t, "at first", f, measure.Gateway{Closed: map[int]uint64{}, Errors: map[string]uint64{}})
		var clients []*client
		var sent, received uint64
		for i := range 2 {
			c, m := f.meteredPipe(t)
			c.auth()
			c.send(`{"op":"SUBSCRIBE","topic":"t","corr":"1"}`, `{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"2"}`)
			c.expect(map[string]any{"op": "OK", "corr": "1"})
			c.expect(map[string]any{"op": "OK", "corr": "2"})
			tail := <-f.sub.joined
			<-f.sub.joined
			tail.receiver.Deliver([]eventhub.Delivery{tailDelivery(1, 300)})
			c.expectEvents(1, 1)
			for range i + 1 {
				c.send(`nonsense`, `{"op":"UNSUBSCRIBE","topic":"u"}`, `{"op":"NOPE"}`, pub("p", 1))
				for range 4 {
					c.message()
				}
			}
			c.send(`{"op":"UNSUBSCRIBE","topic":"t","corr":"3"}`)
			c.expect(map[string]any{"op": "OK", "corr": "3"})
			clients = append(clients, c)
			sent, received = sent+m.sent, received+m.received
		}
		for range 3 {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Upgrade", "websocket")
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
			w := httptest.NewRecorder()
			if f.gw.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable {
				t.Errorf("a third connection: %d", w.Code)
			}
		}
		want := measure.Gateway{
			Connections: 2, Opened: 2, Closed: map[int]uint64{}, Refused: 3, Subscriptions: 2,
			BytesReceived: sent, BytesSent: received,
			Errors: map[string]uint64{"bad_json": 3, "not_subscribed": 3, "unsupported_op": 3},
		}
		wantMeasure(t, "with open sessions", f, want)
		for _, c := range clients {
			c.write(closing(1000, "bye"))
			c.expectClose(1000)
		}
		want.Connections, want.Subscriptions = 0, 0
		want.Closed[1000] = 2
		want.BytesReceived += 2 * uint64(len(closing(1000, "bye")))
		want.BytesSent += 2 * uint64(len(gws.MustCompileFrame(gws.NewCloseFrame(gws.NewCloseFrameBody(1000, "")))))
		wantMeasure(t, "when they have ended", f, want)
	})
}

// TestEveryEndIsCounted ends sessions in every way there is, and looks at what is
// counted and logged of each.
func TestEveryEndIsCounted(t *testing.T) {
	const never = 0
	inBubble(t, nil, func(t *testing.T, f *fixture) {
		text := gws.NewTextFrame([]byte(`{}`))
		ends := []struct {
			code    int
			counted int
			reason  string
			end     func(c *client)
		}{
			{1000, 1000, "The peer closed.", func(c *client) { c.write(closing(1000, "payload")); c.expectClose(1000) }},
			{4242, 4000, "The peer closed.", func(c *client) { c.write(closing(4242, "payload")); c.expectClose(4242) }},
			{3999, 3000, "The peer closed.", func(c *client) { c.write(closing(3999, "payload")); c.expectClose(3999) }},
			{never, 0, "read: EOF", func(c *client) { c.conn.Close() }},
			{1002, 1002, "frames from client to server must be masked", func(c *client) { c.write(gws.MustCompileFrame(text)); c.expectClose(1002) }},
			{1003, 1003, "frames are text", func(c *client) { c.write(frame(gws.OpBinary, true, "x")); c.expectClose(1003) }},
			{1007, 1007, "a text message is not valid UTF-8", func(c *client) { c.write(frame(gws.OpText, true, "\xff")); c.expectClose(1007) }},
			{1008, 1008, "AUTH did not come in time.", func(c *client) { c.expectClose(1008) }},
			{1009, 1009, "a message is longer than 16384 bytes", func(c *client) {
				c.write(frame(gws.OpText, true, strings.Repeat("x", 20_000))[:8])
				c.expectClose(1009)
			}},
			{1013, 1013, "The client reads too slowly.", func(c *client) {
				c.auth()
				c.send(`{"op":"NOPE"}`) // whose answer nobody takes
			}},
			{never, 0, "the peer is silent", func(c *client) {
				c.auth()
				c.read() // the ping, which is not answered
			}},
		}
		want := measure.Gateway{Closed: map[int]uint64{}, Errors: map[string]uint64{"unsupported_op": 1}}
		for _, tt := range ends {
			c := f.pipe(t)
			tt.end(c)
			line := <-f.log.closed
			if line["code"] != int64(tt.code) || !strings.Contains(fmt.Sprint(line["reason"]), tt.reason) {
				t.Errorf("the log says code %v, reason %q; want %d and %q", line["code"], line["reason"], tt.code, tt.reason)
			}
			want.Opened++
			want.Closed[tt.counted]++
		}
		wantMeasure(t, "after all these ends", f, want)
		c := f.pipe(t)
		go func() { _ = f.gw.Shutdown(t.Context()) }()
		c.expectClose(1001)
		if why := f.gw.take(); why == "" {
			t.Error("a connection is taken while the gateway stops")
		}
		want.Opened++
		want.Refused++
		want.Closed[1001] = 1
		wantMeasure(t, "when it has stopped", f, want)
		log := f.log.text.String()
		authed := strings.Count(log, `level=INFO msg="connection opened"`) // what strangers do does not fill the log
		if strangers := strings.Count(log, `level=DEBUG msg="connection closed"`); authed == 0 || strangers == 0 || authed+strangers != len(ends)+1 ||
			strings.Count(log, `level=INFO msg="connection closed"`) != authed || strings.Count(log, "\n") != 2*authed+strangers || strings.Contains(log, "payload") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

// TestEndedConnections: the last connections that had signed in are remembered, with why they ended, the newest
// first; what never signed in is not, for anybody can cause that.
func TestEndedConnections(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		for range measure.MaxEnded + 2 {
			e.login().conn.Close()
			synctest.Wait()
		}
		last := e.login()
		open, err := e.gw.Connections(t.Context(), "", 1)
		if err != nil || len(open) != 1 {
			t.Fatalf("%+v, %v", open, err)
		}
		if err := e.gw.CloseConnection(t.Context(), open[0].ID); err != nil {
			t.Fatal(err)
		}
		last.expectClose(wire.CloseGoingAway)
		e.pipe(t).conn.Close()
		synctest.Wait()
		ended := e.gw.Measure().Ended
		if n := len(ended); n != measure.MaxEnded {
			t.Fatalf("%d are remembered", n)
		}
		first, second := ended[0], ended[1]
		if first.ID != open[0].ID || first.Code != 1001 || first.Why != "The connection was closed by an operator." || first.Name != "tester" || first.Remote != open[0].Remote || first.Since.UnixMilli() != open[0].SinceTS {
			t.Errorf("the last one is %+v", first)
		}
		if second.Code != 0 || second.Why != "read: EOF" || second.ID == first.ID {
			t.Errorf("the one before is %+v", second)
		}
	})
}
