package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	gws "github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/wire"
)

// scripted is a hub that answers as the test says: one function for each
// connection, which gets every request after AUTH and returns the frames of the
// answer, and false to close after them.
type scripted func(r *wire.Request) (frames []string, goOn bool)

const hello = `{"op":"OK","hub":"scripted","version":"9.9","protocol":1}`

func startScripted(t *testing.T, connections ...scripted) (addr string) {
	t.Helper()
	return startScriptedHello(t, hello, connections...)
}

// startScriptedHello is startScripted with another answer to AUTH.
func startScriptedHello(t *testing.T, hello string, connections ...scripted) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for _, script := range connections {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serveHello(conn, hello, script)
		}
	})
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func serveScript(conn net.Conn, script scripted) { serveHello(conn, hello, script) }

func serveHello(conn net.Conn, hello string, script scripted) {
	defer conn.Close()
	if _, err := gws.Upgrade(conn); err != nil {
		return
	}
	var d wire.Decoder
	for {
		message, err := wsutil.ReadClientText(conn)
		if err != nil {
			return
		}
		var r wire.Request
		frames, goOn := []string{hello}, true
		if err := d.Decode(message, &r); err != nil {
			return
		}
		if r.Op != wire.OpAuth {
			frames, goOn = script(&r)
		}
		var out bytes.Buffer // in one write, so that they are read at once
		for _, f := range frames {
			_ = wsutil.WriteServerText(&out, []byte(f)) // fails as the writer does
		}
		if _, err := conn.Write(out.Bytes()); err != nil || !goOn {
			return
		}
	}
}

func ok(r *wire.Request) string { return fmt.Sprintf(`{"op":"OK","corr":%q}`, r.Corr) }

func refusal(r *wire.Request, code eventhub.Code) string {
	return fmt.Sprintf(`{"op":"ERR","code":%q,"msg":"so it is","corr":%q}`, code, r.Corr)
}

// TestIndexIsOfTheRequest: an error names no event that the request did not have, whatever the
// hub says: a program may look that event up.
func TestIndexIsOfTheRequest(t *testing.T) {
	index := make(chan int, 1)
	c := dial(t, startScripted(t, func(r *wire.Request) ([]string, bool) {
		return []string{fmt.Sprintf(`{"op":"ERR","code":"bad_event","msg":"so it is","index":%d,"corr":%q}`, <-index, r.Corr)}, true
	}))
	for said, want := range map[int]int{0: 0, 1: 1, 2: -1, 99: -1} {
		batch := []eventhub.Event{event("t", `1`), event("t", `2`)}
		index <- said
		_, err := c.Publish(bounded(t), batch...)
		pubs := []eventhub.Publication{{Events: batch[:1]}, {Events: batch}}
		done := make(chan struct{})
		c.Enqueue(bounded(t), pubs, func([]eventhub.Publication) { close(done) })
		index <- 1 // of the one event
		index <- said
		<-done
		for name, tt := range map[string]struct {
			err  error
			want int
		}{"Publish": {err, want}, "Enqueue of one": {pubs[0].Err, -1}, "Enqueue of two": {pubs[1].Err, want}} {
			e := eventhub.AsError(tt.err)
			if e == nil || e.Code != eventhub.CodeBadEvent {
				t.Fatalf("%s: %v; want %s", name, tt.err, eventhub.CodeBadEvent)
			}
			got := -1
			if e.Index != nil {
				got = *e.Index
			}
			if got != tt.want {
				t.Errorf("%s: index %d where the hub says %d; want %d", name, got, said, tt.want)
			}
		}
	}
}

// TestRefusalsThatPass: a hub that has just lost a member, can not take it back
// now, or is going, is left for the next connection; what is final is passed on.
func TestRefusalsThatPass(t *testing.T) {
	tried := make(chan string, 9)
	addr := startScripted(t,
		func(r *wire.Request) ([]string, bool) { // takes the member, and loses it
			if r.Op != wire.OpSubscribe {
				return nil, true
			}
			return []string{ok(r), `{"op":"ERR","code":"internal","msg":"lost it","topic":"t","group":"g"}`}, true
		},
		func(r *wire.Request) ([]string, bool) { // can not take it back
			if r.Op != wire.OpSubscribe {
				return nil, true
			}
			return []string{refusal(r, eventhub.CodeOverloaded)}, true
		},
		func(r *wire.Request) ([]string, bool) { // takes it, is going
			if r.Op == wire.OpSubscribe {
				return []string{ok(r)}, true
			}
			tried <- r.Event.ID
			return []string{refusal(r, eventhub.CodeShuttingDown)}, true
		},
		func(r *wire.Request) ([]string, bool) { // another one leads
			if r.Op == wire.OpSubscribe {
				return []string{ok(r)}, true
			}
			tried <- r.Event.ID
			return []string{refusal(r, eventhub.CodeNotActive)}, true
		},
		func(r *wire.Request) ([]string, bool) {
			if r.Op == wire.OpSubscribe {
				return []string{ok(r)}, true
			}
			tried <- r.Event.ID
			return []string{
				`{"op":"ERR","code":"ack_failed","msg":"another's","topic":"t","group":"gg"}`,
				fmt.Sprintf(`{"op":"OK","corr":%q,"id":%q,"offset":7}`, r.Corr, r.Event.ID),
				`{"op":"ERR","code":"forbidden","msg":"no more","topic":"t","group":"g"}`,
			}, true
		},
	)
	c := dial(t, addr)
	r := newCollector(9)
	if _, err := c.Subscribe(bounded(t), earliest("t", "g"), r); err != nil {
		t.Fatal(err)
	}
	got, err := c.Publish(bounded(t), event("t", `1`))
	if err != nil || got[0].Offset != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	wantCode(t, await(t, "the end", r.ended), eventhub.CodeForbidden)
	c.Close()
	for range 3 {
		if id := await(t, "a try", tried); id != got[0].ID {
			t.Errorf("the publish was sent under %s; its receipt says %s", id, got[0].ID)
		}
	}
}

// TestProtocolVersions: a hub of another version is a denial; one that speaks
// ours is taken instead where there is one.
func TestProtocolVersions(t *testing.T) {
	none := func(*wire.Request) ([]string, bool) { return nil, false }
	old := strings.Replace(hello, `,"protocol":1`, ``, 1)
	other := strings.Replace(hello, `"protocol":1`, `"protocol":7`, 1)
	for _, tt := range []struct{ hello, spoken string }{{old, "none"}, {other, "7"}} {
		_, err := client.Dial(bounded(t), "ws://"+startScriptedHello(t, tt.hello, none))
		if !errors.Is(err, client.ErrProtocol) || errors.Is(err, client.ErrUnreachable) {
			t.Errorf("a hub that says %s: %v", tt.hello, err)
			continue
		}
		for _, part := range []string{"scripted 9.9", "speaks " + tt.spoken, "client 1"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	}
	h := startHub(t, hub.Config{})
	c := dial(t, startScriptedHello(t, other, none), client.WithURLs("ws://"+h.WSAddr()))
	if p := c.Info().Protocol; p != wire.ProtocolVersion {
		t.Errorf("the hub speaks version %d", p)
	}
	p := startProxy(t, h.WSAddr())
	c = dial(t, p.addr())
	p.aim(startScriptedHello(t, other, none))
	p.cut(1, nil)
	if _, err := c.Publish(bounded(t), event("t", `1`)); !errors.Is(err, client.ErrProtocol) {
		t.Errorf("connected again to another version: %v", err)
	}
}

// TestNonsenseCostsTheConnection and nothing else.
func TestNonsenseCostsTheConnection(t *testing.T) {
	for _, nonsense := range []string{`{`, `[]`, `{"corr":"1"}`, `{"op":"EVENT","topic":"t","group":"g","event":{"id":"x"},"ctx":{}}`} {
		addr := startScripted(t,
			func(*wire.Request) ([]string, bool) { return []string{nonsense}, true },
			func(r *wire.Request) ([]string, bool) {
				return []string{fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":1}`, r.Corr)}, true
			},
		)
		c := dial(t, addr)
		if got, err := c.Publish(bounded(t), event("t", `1`)); err != nil || got[0].Offset != 1 {
			t.Errorf("after %s: %+v, %v", nonsense, got, err)
		}
		c.Close()
	}
}
