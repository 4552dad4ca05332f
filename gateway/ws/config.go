package ws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/budget"
	"eventhub/wire"
)

// Access is what an authenticated peer may use. The interfaces are already
// limited to the peer's rights.
type Access struct {
	Publisher  eventhub.Publisher
	Producers  eventhub.Producers // nil: AUTH with a producer is not supported
	Subscriber eventhub.Subscriber
	Scheduler  admin.Scheduler // nil: CANCEL is not supported
	// Adopt says whether a subscription that was made before, by another access of the session,
	// may go on, and returns it as this one allows: of these patterns as the group, or as a
	// tail where its name is empty. nil: all go on as they are.
	Adopt func(sub eventhub.Subscription, patterns []eventhub.Pattern, group string) (eventhub.Subscription, error)
	// Name is for logs and for those who look at members, and what Place counts by; it holds no
	// secret.
	Name string
	// Decided is called with nil where a session goes on with this access, and else with why it
	// has no place with that name. nil: nothing happens.
	Decided func(err error)
	// Expires is when the session ends, unless another AUTH comes before; zero: never.
	Expires time.Time
	// Revoked ends when the access is taken back before that; nil: never.
	Revoked context.Context
}

// Meter bounds the publishes of one connection, which calls it from one goroutine.
type Meter interface {
	// Take refuses n events, which are one step, with CodeRateLimited or CodeTooLarge. All that
	// one read brings has the time of the read as now.
	Take(n int, now time.Time) error
}

// Place is one connection among those that are counted. The connection calls it.
type Place interface {
	// Become counts the connection as one of a principal, in place of the one before, or refuses
	// it with CodeRateLimited and changes nothing.
	Become(principal string) error
	// Leave is called once, at the end.
	Leave()
}

// noPlace counts nothing.
type noPlace struct{}

func (noPlace) Become(string) error { return nil }
func (noPlace) Leave()              {}

// Config says how the gateway behaves. Zero values take the defaults.
type Config struct {
	// Authenticate turns the token of an AUTH into access; hasToken distinguishes an
	// empty token from none. It is called for one frame of a connection at a
	// time, on many connections at once, and must return when its context ends,
	// which before the first success it does after AuthWait. Errors are
	// *eventhub.Error (CodeNoToken, CodeBadToken). Required.
	Authenticate func(ctx context.Context, token string, hasToken bool) (Access, error)
	// Refused is called for each frame that Authenticate, or its lack before other frames, keeps
	// out: the address that it comes from, and why. Default: nothing happens.
	Refused func(remote string, err error)
	// Info is what the OK of an AUTH says. Its protocol is filled in, and its limits
	// from what follows.
	Info   wire.AuthInfo
	Logger *slog.Logger
	// Origins are the web origins (scheme://host[:port]) whose pages may connect
	// besides those that always may; see package origin.
	Origins []string

	MaxConnections   int // default 10,000
	MaxSubscriptions int // of one connection; default 128
	// OutboundBytes is how much may wait to be sent to one connection: beyond it
	// deliveries wait and the connection is not read. Default 1 MiB.
	OutboundBytes int
	// TightBytes is instead of OutboundBytes for deliveries while Tight reports true: what clients do not take is in
	// memory, and there is little left. Defaults 64 KiB, and it never is.
	TightBytes int
	Tight      func() bool
	// MaxFrameBytes bounds a message, whole or in fragments. Default
	// wire.MaxFrameBytes; before AUTH never more than wire.MaxUnauthFrameBytes.
	MaxFrameBytes int

	// Admit counts a connection by its request, whose RemoteAddr is the address as Refused has it,
	// or refuses it with CodeRateLimited or CodeOverloaded. Default: it counts nothing.
	Admit func(r *http.Request) (Place, error)
	// Busy reports whether publishes are refused because there are more than the hub can take: who goes on with
	// them before the time that it was told is not read until then. Default: it is not.
	Busy func() bool
	// Away returns why nobody is served at this moment, as a sentence, empty where all are. It is asked for each
	// message: a connection whose message meets one is sent away as Pause does it, and nothing of the message is done. Default:
	// all are served.
	Away func() string
	// Welcome refuses the first AUTH of a connection, before its token is verified, with CodeOverloaded and when
	// to try again. Default: all are welcome.
	Welcome func() error
	// AuthBy returns until when the first AUTH that succeeds has to come on the connection of a
	// request; zero: AuthWait from now. Default: it is zero.
	AuthBy func(r *http.Request) time.Time
	// Meter returns what bounds the publishes of a connection that begins; a nil one does not.
	// Default: nothing does.
	Meter func() Meter

	// Memory is what messages that are not complete take their bytes from, beyond the
	// 4 KiB that every connection has. Default: one of 128 MiB.
	Memory *budget.Budget

	PingEvery time.Duration // silence after which a ping is sent; default 25 s
	PongWait  time.Duration // further silence after which the peer is gone; default 8 s
	WriteWait time.Duration // the peer takes nothing for so long: closed; default 10 s
	AuthWait  time.Duration // from connecting to the first AUTH that succeeds; default 5 s
	// MessageWait is how long a message may take from its first byte to its last;
	// default 1 min.
	MessageWait time.Duration
	CloseWait   time.Duration // for the peer's part of the close handshake; default 1 s
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *int
		value int
	}{
		{&c.MaxConnections, 10_000},
		{&c.MaxSubscriptions, 128},
		{&c.OutboundBytes, 1 << 20},
		{&c.TightBytes, 64 << 10},
		{&c.MaxFrameBytes, wire.MaxFrameBytes},
		{&c.Info.Limits.MaxPayloadBytes, eventhub.MaxPayloadBytes},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.PingEvery, 25 * time.Second},
		{&c.PongWait, 8 * time.Second},
		{&c.WriteWait, 10 * time.Second},
		{&c.AuthWait, 5 * time.Second},
		{&c.MessageWait, time.Minute},
		{&c.CloseWait, time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Memory == nil {
		c.Memory = budget.New(128 << 20)
	}
	c.Info.Protocol = wire.ProtocolVersion
	c.Info.Limits.MaxFrameBytes = c.MaxFrameBytes
	c.Info.Limits.MaxSubscriptions = c.MaxSubscriptions
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Admit == nil {
		c.Admit = func(*http.Request) (Place, error) { return noPlace{}, nil }
	}
	if c.Away == nil {
		c.Away = func() string { return "" }
	}
	if c.Tight == nil {
		c.Tight = func() bool { return false }
	}
	if c.Busy == nil {
		c.Busy = func() bool { return false }
	}
	if c.Welcome == nil {
		c.Welcome = func() error { return nil }
	}
	if c.AuthBy == nil {
		c.AuthBy = func(*http.Request) time.Time { return time.Time{} }
	}
	if c.Meter == nil {
		c.Meter = func() Meter { return nil }
	}
	if c.Refused == nil {
		c.Refused = func(string, error) {}
	}
	return c
}

// validate names everything that is wrong at once.
func (c *Config) validate() error {
	var errs []error
	if c.Authenticate == nil {
		errs = append(errs, errors.New("no Authenticate is given"))
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"MaxConnections", c.MaxConnections},
		{"MaxSubscriptions", c.MaxSubscriptions},
		{"OutboundBytes", c.OutboundBytes},
		{"TightBytes", c.TightBytes},
		{"MaxFrameBytes", c.MaxFrameBytes},
	} {
		if n.value < 1 {
			errs = append(errs, fmt.Errorf("%s is %d; at least 1 is needed", n.name, n.value))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"PingEvery", c.PingEvery},
		{"PongWait", c.PongWait},
		{"WriteWait", c.WriteWait},
		{"AuthWait", c.AuthWait},
		{"MessageWait", c.MessageWait},
		{"CloseWait", c.CloseWait},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %s; it can not be negative", d.name, d.value))
		}
	}
	if least := claimFor(c.MaxFrameBytes); c.Memory.Most() < least {
		errs = append(errs, fmt.Errorf("field Memory has %d bytes; a message in fragments takes %d", c.Memory.Most(), least))
	}
	return errors.Join(errs...)
}

// deliveryBytes is how much may wait for one connection at this moment for deliveries to be put behind it.
func (c *Config) deliveryBytes() int {
	if c.Tight() {
		return min(c.TightBytes, c.OutboundBytes)
	}
	return c.OutboundBytes
}
