package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"time"

	"eventhub"
)

// Defaults of the options.
const (
	DefaultMaxPending = 4096
	DefaultMinBackoff = 100 * time.Millisecond
	DefaultMaxBackoff = 10 * time.Second
	// DefaultMaxBackoffOfSeveral is instead of DefaultMaxBackoff where there are several URLs: one of
	// the other hubs takes over within that.
	DefaultMaxBackoffOfSeveral = time.Second
)

// maxPendingBytes bounds the memory of the publishes that are not answered.
const maxPendingBytes = 64 << 20

// Option changes how a Client or an Admin behaves.
type Option func(*config)

type config struct {
	urls  []string // as given; once validated, those of the WebSockets
	bases []string // once validated: where the HTTP APIs begin
	token func(context.Context) (token string, given bool, err error)
	// tokensChange: another token may come where one was refused.
	tokensChange bool
	name         string // of AUTH; empty: none
	logger       *slog.Logger
	tls          *tls.Config
	netDial      func(ctx context.Context, network, addr string) (net.Conn, error) // nil: that of package net
	maxPending   int
	batches      bool // EVENTS are asked for
	limitErrors  bool // of WithRateLimitErrors
	reconnect    bool
	named        bool // name is given
	minBackoff   time.Duration
	maxBackoff   time.Duration
	paced        bool // the program has said these two
	// webSocketOnly names the options given that say nothing to an Admin.
	webSocketOnly []string

	pingEvery time.Duration // silence after which a ping is sent
	pongWait  time.Duration // further silence after which the connection is lost
}

func defaults(url string) config {
	return config{
		urls:       []string{url},
		token:      func(context.Context) (string, bool, error) { return "", false, nil },
		logger:     slog.New(slog.DiscardHandler),
		maxPending: DefaultMaxPending,
		batches:    true,
		reconnect:  true,
		minBackoff: DefaultMinBackoff,
		maxBackoff: DefaultMaxBackoff,
		pingEvery:  20 * time.Second,
		pongWait:   10 * time.Second,
	}
}

// WithURLs adds hubs that serve the same log. Every attempt to connect tries
// them all, the one that served last first.
func WithURLs(urls ...string) Option {
	return func(c *config) { c.urls = append(c.urls, urls...) }
}

// WithToken says what AUTH presents, and every request of an Admin.
func WithToken(token string) Option {
	return func(c *config) {
		c.token = func(context.Context) (string, bool, error) { return token, true, nil }
		c.tokensChange = false
	}
}

// WithTokenSource is asked for a token before every AUTH and every request of an
// Admin, for tokens that expire. An error counts as a hub that cannot be reached.
// If the token is a JSON Web Token the source is asked again when three quarters of its
// time have passed, and the next one is presented over the same connection: subscriptions,
// leases and publishes go on. A client that was connected goes on asking the source while the hub
// answers CodeJWTInvalid: the next token may be a better one. The source is called from several goroutines, also while a
// call of it has not returned; it returns when its context ends.
func WithTokenSource(source func(context.Context) (string, error)) Option {
	return func(c *config) {
		c.token = func(ctx context.Context) (string, bool, error) {
			token, err := source(ctx)
			return token, true, err
		}
		c.tokensChange = true
	}
}

// WithName says how the client calls itself, for people who look at the members of a group
// or at the hub's connections: 1 to eventhub.MaxClientBytes of A–Z a–z 0–9 . _ : @ / -, such
// as billing@worker-3. Everybody who may look at them sees it, so it holds nothing secret or
// personal. By default the client says none.
func WithName(name string) Option {
	return webSocketOnly("WithName", func(c *config) { c.name, c.named = name, true })
}

// WithLogger logs what happens to the connection. Neither tokens nor payloads
// are logged.
func WithLogger(logger *slog.Logger) Option {
	return func(c *config) { c.logger = logger }
}

// WithTLS configures wss and https connections.
func WithTLS(cfg *tls.Config) Option {
	return func(c *config) { c.tls = cfg }
}

// WithMaxPending bounds the events that are published and not answered, from 1;
// Publish and Enqueue wait at the bound. A call with more events than that goes
// alone. Default DefaultMaxPending; together they are at most 64 MiB whatever
// the number.
func WithMaxPending(events int) Option {
	return webSocketOnly("WithMaxPending", func(c *config) { c.maxPending = events })
}

// WithSingleEvents makes the hub send every event in a frame of its own, as for
// who reads along on the wire. By default several go in one frame when there are
// several to send.
func WithSingleEvents() Option {
	return webSocketOnly("WithSingleEvents", func(c *config) { c.batches = false })
}

// WithReconnect bounds the wait before a lost connection is tried again: it
// starts at least and doubles up to most, with jitter. Default: from DefaultMinBackoff to
// DefaultMaxBackoff, or DefaultMaxBackoffOfSeveral.
func WithReconnect(least, most time.Duration) Option {
	return webSocketOnly("WithReconnect", func(c *config) { c.reconnect, c.minBackoff, c.maxBackoff, c.paced = true, least, most, true })
}

// WithoutReconnect makes the loss of the connection the end of the client.
func WithoutReconnect() Option {
	return webSocketOnly("WithoutReconnect", func(c *config) { c.reconnect = false })
}

// WithRateLimitErrors makes CodeRateLimited an error of Publish and Enqueue at once, with
// RetryAfter. By default they wait for as long as the hub says, and try again.
func WithRateLimitErrors() Option {
	return webSocketOnly("WithRateLimitErrors", func(c *config) { c.limitErrors = true })
}

// webSocketOnly is an option that NewAdmin refuses.
func webSocketOnly(name string, set Option) Option {
	return func(c *config) {
		c.webSocketOnly = append(c.webSocketOnly, name)
		set(c)
	}
}

// validate names everything that is wrong at once, and finds both doors of every
// hub from the URL of either.
func (c *config) validate() error {
	var errs []error
	for i, text := range c.urls {
		u, err := parseURL(text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.urls[i] = webSocketURL(u)
		c.bases = append(c.bases, apiBase(u))
	}
	if c.logger == nil {
		errs = append(errs, errors.New("client: the logger is nil"))
	}
	if c.named {
		if err := eventhub.ValidateClient(c.name); err != nil {
			errs = append(errs, fmt.Errorf("client: %w", err))
		}
	}
	if c.maxPending < 1 {
		errs = append(errs, fmt.Errorf("client: max pending is %d; at least 1 is needed", c.maxPending))
	}
	if len(c.urls) > 1 && !c.paced {
		c.maxBackoff = DefaultMaxBackoffOfSeveral
	}
	if c.minBackoff <= 0 || c.maxBackoff < c.minBackoff {
		errs = append(errs, fmt.Errorf("client: reconnect from %s to %s is no range", c.minBackoff, c.maxBackoff))
	}
	return errors.Join(errs...)
}

// parseURL reads the URL of a hub: ws and wss URLs name the WebSocket, http and
// https URLs the base of the HTTP API. A path is kept, for hubs behind a proxy.
func parseURL(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		return nil, fmt.Errorf("client: url %q has no scheme: write ws://%s", text, text)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("client: url: %w", bare(err)) // which shows all of it, a password too
	}
	switch u.Scheme {
	case "ws", "wss", "http", "https":
	default:
		return nil, fmt.Errorf("client: url %q is not ws://, wss://, http:// or https://", u.Scheme+"://"+u.Host)
	}
	if u.Hostname() == "" {
		return nil, fmt.Errorf("client: url %q has no host: write %s://host:port", text, u.Scheme)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// What is too much may be a secret.
		return nil, fmt.Errorf("client: the url of %q has more than host, port and path: a token goes into WithToken", u.Host)
	}
	return u, nil
}

const webSocketPath = "/ws" // below the base; the base itself is a WebSocket too

func webSocketURL(u *url.URL) string {
	if plain, ok := strings.CutPrefix(u.Scheme, "http"); ok {
		return "ws" + plain + "://" + u.Host + basePath(u) + webSocketPath
	}
	return u.String()
}

func apiBase(u *url.URL) string {
	scheme := u.Scheme
	if plain, ok := strings.CutPrefix(scheme, "ws"); ok {
		scheme = "http" + plain
	}
	return scheme + "://" + u.Host + basePath(u)
}

func basePath(u *url.URL) string {
	return strings.TrimSuffix(strings.TrimSuffix(u.EscapedPath(), "/"), webSocketPath)
}

// backoff returns the wait before the attempt, counted from 0: a random time
// between one half and the whole of what has doubled so far.
func (c *config) backoff(attempt int) time.Duration {
	d := c.maxBackoff
	if attempt < 32 && c.minBackoff<<attempt > 0 {
		d = min(d, c.minBackoff<<attempt)
	}
	return d/2 + rand.N(d/2+1)
}
