package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAnswerAfterTheEnd: a server whose handler ends with the connection leaves an empty 200 behind, which over TLS comes
// before the end of the connection is known here. It is the end of the client, or of the context, and no answer.
func TestAnswerAfterTheEnd(t *testing.T) {
	for _, why := range []error{ErrClosed, context.Canceled} {
		for what, call := range map[string]func(*Admin, context.Context) error{
			"short": func(a *Admin, ctx context.Context) error { _, err := a.Topic(ctx, "t"); return err },
			"long":  func(a *Admin, ctx context.Context) error { _, err := a.BackupTo(ctx, io.Discard); return err },
		} {
			life, closed := context.WithCancel(t.Context())
			ctx, cancel := context.WithCancel(t.Context())
			a := newAdmin(life, defaults("http://127.0.0.1:1"))
			if err := a.cfg.validate(); err != nil {
				t.Fatal(err)
			}
			a.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				if why == ErrClosed {
					closed()
				} else {
					cancel()
				}
				<-r.Context().Done()
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
			})
			if err := call(a, ctx); !errors.Is(err, why) || strings.Contains(err.Error(), "content type") {
				t.Errorf("a %s request that ends with %v: %v", what, why, err)
			}
			closed()
			cancel()
		}
	}
}
