package client_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

// standby answers as a hub that does not lead.
func standby(t *testing.T, requests *atomic.Int64) string {
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // a body that is read is gone
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"this hub is a standby of a","code":"not_active","error":"this hub is a standby of a"}`)
	}))
}

// TestAdminStandby: a hub that does not lead has done nothing, so the next one is asked, whatever is asked for; where none
// leads the error says so.
func TestAdminStandby(t *testing.T) {
	for name, call := range map[string]func(context.Context, *client.Admin) error{
		"topic": func(ctx context.Context, a *client.Admin) error { _, err := a.Topic(ctx, "a.b"); return err },
		"pause": func(ctx context.Context, a *client.Admin) error { return a.PauseGroup(ctx, "a.b", "g:1") },
		"replay": func(ctx context.Context, a *client.Admin) error {
			return a.Replay(ctx, admin.ReplayQuery{Topic: "a.b"}, func(string, eventhub.Item) error { return nil })
		},
		"redrive": func(ctx context.Context, a *client.Admin) error {
			_, err := a.Redrive(ctx, admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "a.b"}, Apply: true})
			return err
		},
		"import": func(ctx context.Context, a *client.Admin) error {
			_, err := a.ImportFrom(ctx, io.MultiReader(bytes.NewReader([]byte(`{"topic":"a.b","payload":1}`))))
			return err
		},
	} {
		var requests, alone atomic.Int64
		live := serve(t, serveAPI(t, filled(), ""))
		want := call(bounded(t), newAdmin(t, live))
		got := call(bounded(t), newAdmin(t, standby(t, &requests), client.WithURLs("http://127.0.0.1:1", live)))
		if eventhub.ErrorCode(got) != eventhub.ErrorCode(want) || (got == nil) != (want == nil) || requests.Load() != 1 {
			t.Errorf("%s: %v, the standby was asked %d times; want once, and then the next one, which says %v", name, got, requests.Load(), want)
		}
		err := call(bounded(t), newAdmin(t, standby(t, &alone), client.WithURLs("http://127.0.0.1:1")))
		if eventhub.ErrorCode(err) != eventhub.CodeNotActive {
			t.Errorf("%s of standbys alone: %v", name, err)
		}
	}
}
