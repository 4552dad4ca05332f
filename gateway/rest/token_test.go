package rest

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"eventhub"
)

// TestTokenInTheQuery: the event stream alone takes one, where that is configured, and it shows
// neither in what is answered nor to what comes after.
func TestTokenInTheQuery(t *testing.T) {
	const secret = "s3cret"
	for _, tt := range []struct {
		on             bool
		method, target string
		header         string
		token          string // that is asked for; "-": none
		status         int
	}{
		{true, "HEAD", "/v1/topics/orders/stream?from=offset&access_token=s3cret&offset=5", "", secret, 200},
		{true, "GET", "/v1/topics/orders/stream?access_token=s3cret&nonsense=1", "", secret, 400},
		{true, "GET", "/v1/topics/orders/stream?nonsense=1", "Bearer s3cret", secret, 400},
		{true, "GET", "/v1/topics/orders/stream?access_token=wrong-s3cret", "", "wrong-s3cret", 401},
		{true, "GET", "/v1/topics/orders/stream?access_token=", "", "", 401},
		{true, "GET", "/v1/topics/orders/stream?access_token=s3cret", "Bearer s3cret", "", 401},
		{true, "GET", "/v1/topics/orders/stream?access_token=s3cret&access_token=s3cret", "", "", 401},
		{true, "GET", "/v1/topics/orders/stream?access_token=s3cret%zz", "", "", 400},
		{true, "GET", "/v1/topics/orders/stream?access_token=s3cret", "Basic s3cret", "", 401},
		{true, "GET", "/v1/topics/orders/stream", "", "-", 401},
		{true, "GET", "/v1/topics/orders?access_token=s3cret", "", "-", 401},
		{true, "POST", "/publish/orders?access_token=s3cret", "", "-", 401},
		{false, "GET", "/v1/topics/orders/stream?access_token=s3cret", "", "-", 401},
	} {
		asked := ""
		var said strings.Builder
		logger := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
		api, err := New(Config{QueryToken: tt.on, Logger: logger,
			Refused: func(r *http.Request, err error) { logger.Warn("refused", "remote", r.RemoteAddr, "error", err) },
			Authenticate: func(_ context.Context, token string, given bool) (Access, error) {
				if asked = token; !given {
					asked = "-"
				}
				if token != secret {
					return Access{}, eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")
				}
				return Access{}, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		api.Register(mux)
		r, w := httptest.NewRequest(tt.method, tt.target, nil), httptest.NewRecorder()
		if tt.header != "" {
			r.Header.Set("Authorization", tt.header)
		}
		mux.ServeHTTP(w, r)
		if w.Code != tt.status || asked != tt.token {
			t.Errorf("%t %s %s %s: %d, asked for %q; want %d, %q: %s", tt.on, tt.method, tt.target, tt.header, w.Code, asked, tt.status, tt.token, w.Body)
		}
		if strings.Contains(said.String()+w.Body.String(), secret) {
			t.Errorf("%s %s: the token shows:\n%s%s", tt.method, tt.target, said.String(), w.Body)
		}
	}
}
