package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"go.uber.org/goleak"

	"eventhub/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watchdog bounds runs that would otherwise hang a broken build.
const watchdog = 60 * time.Second

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	t.Cleanup(cancel)
	return ctx
}

// fakeHub is a hub that does what a test says: it takes AUTH, reports a head over
// HTTP, and leaves all else to each.
type fakeHub struct {
	t    *testing.T
	url  string
	head atomic.Int64

	// each handles one text frame after AUTH.
	each func(h *fakeHub, c net.Conn, corr string)
}

func newFakeHub(t *testing.T, each func(h *fakeHub, c net.Conn, corr string)) *fakeHub {
	h := &fakeHub{t: t, each: each}
	mux := http.NewServeMux()
	var sessions sync.WaitGroup
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		c, _, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			t.Error(err)
			return
		}
		sessions.Go(func() { h.session(c) })
	})
	mux.HandleFunc("GET /v1/topics/{topic}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"topic":%q,"first_offset":1,"head":%d,"groups":0}`, r.PathValue("topic"), h.head.Load())
	})
	server := httptest.NewServer(mux)
	h.url = server.URL
	t.Cleanup(func() { server.Close(); sessions.Wait() })
	return h
}

func (h *fakeHub) session(c net.Conn) {
	defer c.Close()
	for {
		b, err := wsutil.ReadClientText(c)
		if err != nil {
			return // the run is over
		}
		var f struct{ Op, Corr string }
		if err := json.Unmarshal(b, &f); err != nil {
			h.t.Errorf("a frame of the load: %v: %s", err, b)
			return
		}
		if f.Op == "AUTH" {
			h.say(c, string(wire.AppendAuthOK(nil, "", false, wire.AuthInfo{Hub: "fake", Version: "f1", Protocol: wire.ProtocolVersion, Durability: "none",
				Limits: wire.Limits{MaxFrameBytes: wire.MaxFrameBytes, MaxPayloadBytes: 1 << 20, MaxSubscriptions: 1}})))
			continue
		}
		h.each(h, c, f.Corr)
	}
}

func (h *fakeHub) say(c net.Conn, text string) {
	if err := wsutil.WriteServerText(c, []byte(text)); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "pipe") {
		h.t.Error(err)
	}
}

// accept answers a PUBLISH as a hub does that took it.
func (h *fakeHub) accept(c net.Conn, corr string) {
	h.say(c, fmt.Sprintf(`{"op":"OK","corr":%q,"id":"x","offset":%d}`, corr, h.head.Add(1)))
}
