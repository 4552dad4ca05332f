package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub/internal/livefile"
)

const (
	// RefetchEvery is the least time between two requests to a JWKS URL.
	RefetchEvery = 30 * time.Second
	// refreshEvery is how long a key that its issuer has withdrawn is believed.
	refreshEvery = 10 * time.Minute
	fetchWait    = 5 * time.Second
)

// remoteKeys are the keys of a JWKS URL. Those that it has had last stay where it can not be
// read any more.
type remoteKeys struct {
	url    string
	client *http.Client
	log    *slog.Logger
	state  *livefile.Status
	keys   atomic.Pointer[keySet]

	mu   sync.Mutex
	last time.Time // when the last request began
}

// KeysError says why a JWKS URL gave no keys at the start.
type KeysError struct {
	URL string
	Err error
}

func (e *KeysError) Error() string {
	return fmt.Sprintf("%s: %s: %v", keyURLSetting, ShownURL(e.URL), e.Err)
}

func (e *KeysError) Unwrap() error { return e.Err }

// ShownURL returns what may be shown of a JWKS URL, also of one that is refused: its query may have
// a key of the issuer's, and what is before an @ a password.
func ShownURL(text string) string {
	path, _, asks := strings.Cut(text, "?")
	if asks {
		path += "?" + redacted
	}
	scheme, rest, ok := strings.Cut(path, "://")
	if at := strings.LastIndex(rest, "@"); ok && at >= 0 {
		return scheme + "://" + redacted + rest[at:]
	}
	return path
}

// checkURL returns what is wrong with a JWKS URL.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("want https://HOST/PATH")
	case u.User != nil:
		return errors.New("a user or password in it is not supported")
	}
	return nil
}

// newRemoteKeys reads the keys for the first time.
func newRemoteKeys(ctx context.Context, url string, log *slog.Logger, state *livefile.Status) (*remoteKeys, error) {
	r := &remoteKeys{url: url, log: log, state: state, client: &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	r.last = time.Now()
	keys, err := r.fetch(ctx)
	if err != nil {
		return nil, &KeysError{URL: url, Err: err}
	}
	r.keys.Store(&keys)
	return r, nil
}

func (r *remoteKeys) fetch(ctx context.Context) (keySet, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	answer, err := r.client.Do(request)
	if e := new(url.Error); errors.As(err, &e) {
		err = e.Err // without the URL
	}
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is status %d", answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, livefile.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(body) > livefile.MaxBytes {
		return nil, fmt.Errorf("the answer has more than %d bytes", livefile.MaxBytes)
	}
	return parseKeys(body, true)
}

// find implements keySource. The first who asks for an unknown kid waits for the request;
// others in the RefetchEvery after it get the keys that there are.
func (r *remoteKeys) find(ctx context.Context, alg, kid string) []key {
	found, known := r.keys.Load().find(alg, kid)
	if known || kid == "" || !r.begin(RefetchEvery) {
		return found
	}
	// Not with the context of one peer, whose end would cost the others the keys.
	r.refresh(context.WithoutCancel(ctx))
	found, _ = r.keys.Load().find(alg, kid)
	return found
}

// begin reports whether the last request is so long ago that there may be another, which
// is then taken to begin.
func (r *remoteKeys) begin(after time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < after {
		return false
	}
	r.last = time.Now()
	return true
}

func (r *remoteKeys) refresh(ctx context.Context) {
	keys, err := r.fetch(ctx)
	if err != nil {
		r.state.Failed()
		r.log.Error("the JWKS could not be read; the old keys stay", "url", ShownURL(r.url), "error", err)
		return
	}
	r.keys.Store(&keys)
	r.state.Taken()
}

// run reads the keys again until the context ends.
func (r *remoteKeys) run(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if r.begin(RefetchEvery) {
				r.refresh(ctx)
			}
		}
	}
}
