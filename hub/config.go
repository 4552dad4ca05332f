package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/auth"
	"eventhub/hub/internal/member"
	"eventhub/ops"
	"eventhub/outbox"
	"eventhub/store"
	"eventhub/store/journal"
)

// Default addresses and places.
const (
	DefaultWSAddr   = "127.0.0.1:8090"
	DefaultHTTPAddr = "127.0.0.1:8081"
	DefaultOpsAddr  = "127.0.0.1:8082"
	DefaultStore    = "./eventhub-data"
	DefaultGrace    = 10 * time.Second

	// MemoryStore is the Store of a hub that keeps nothing.
	MemoryStore = "memory:"

	// DurabilityInterval is the Durability of a hub whose OKs do not wait for the
	// disk; SyncEvery is how much of them may be lost.
	DurabilityInterval = "interval"
	SyncEvery          = 10 * time.Millisecond

	// The values of Console.
	ConsoleOn  = "on"
	ConsoleOff = "off"

	// The values of Maintenance.
	MaintenanceOn  = "on"
	MaintenanceOff = "off"

	// DefaultMaxUnauthenticated is far more than come at once and not long after, and some 100 MiB.
	DefaultMaxUnauthenticated = 4000

	// DefaultMaxPublishWait is more than a publish waits in a hub that carries its load. A longer one costs an
	// overloaded hub a part of its rate: what waits lies in memory that is new to the caches.
	DefaultMaxPublishWait = 250 * time.Millisecond

	// LeastMessageMemory is what a batch over HTTP and a message over WebSocket need
	// at the same time, and some more, in MiB.
	LeastMessageMemory = 32
	// mostMessageMemory is what can be counted in bytes.
	mostMessageMemory = math.MaxInt >> 20
)

// Config says what hub to run. The zero value is the default hub.
type Config struct {
	// Store is a directory for the embedded store, or MemoryStore.
	Store string
	// OpenStore, where not nil, opens the store in place of what Store names. The
	// hub closes it. The store calls fatal, from any goroutine, when it can not go
	// on: the hub then fails.
	OpenStore func(fatal func(error)) (store.Store, error)
	// WSAddr, HTTPAddr and OpsAddr are host:port; equal ones share one listener,
	// port 0 picks a free one. WSAddr and HTTPAddr answer the same requests,
	// WebSocket and HTTP API alike, so that a client needs one URL; they are two
	// because the old programs know them as two.
	WSAddr, HTTPAddr, OpsAddr string
	// Listen, where not nil, opens the listeners in place of net.Listen.
	Listen func(network, addr string) (net.Listener, error)
	// AuthToken, where not empty, is what clients must present.
	AuthToken string
	// AuthTokensFile, where not empty, is a file with more tokens, each with a name and its
	// rights, which is read again when it changes.
	AuthTokensFile string
	// JWTSecret, JWKSURL and JWTKeyFile, where not empty, verify JSON Web Tokens: HS256 by
	// the secret, others by the public keys of a JWKS URL or of a file (JWKS or PEM), which is
	// read again when it changes. JWTAudience and JWTIssuer, where not empty, are asked of each.
	JWTSecret, JWKSURL, JWTKeyFile, JWTAudience, JWTIssuer string
	// TLSCertFile and TLSKeyFile, where not empty, are PEM files with the certificate, followed by
	// those of its issuers, and with its key: the listeners then speak TLS (TLSAt says which).
	// They are read again when they change.
	TLSCertFile, TLSKeyFile string
	// Insecure allows addresses other than loopback without authentication.
	Insecure bool
	// Origins are the web origins (scheme://host[:port]) whose pages may
	// connect besides those of the hub's own host.
	Origins []string
	// TrustedProxies are networks (10.0.0.0/8) and addresses of proxies that say by
	// X-Forwarded-For where a request comes from. Nobody else's word counts.
	TrustedProxies []string
	// AuthQueryToken has event streams over HTTP take their token from the query too
	// (access_token), for pages that use EventSource, which can set no header.
	AuthQueryToken bool
	// LimitsFile is the path of a file with limits of publishes, which is read again when it
	// changes. Default: none, and no limits.
	LimitsFile string
	// TopicsFile is the path of a file with settings of topics (docs/retention.md), which
	// stored settings do not replace. It is read at the start. Default: none.
	TopicsFile string
	// Topics is the content of such a file, where TopicsFile is empty.
	Topics []byte
	// MaxTopics bounds how many topics are created. Default 100,000.
	MaxTopics int
	// MaxProducers bounds how many producers of numbered publishes are known, and ProducersKept
	// is how long one is after its last connection. Defaults eventhub.DefaultMaxProducers and
	// eventhub.DefaultProducerKept.
	MaxProducers  int
	ProducersKept time.Duration
	// MaxMessageMemory bounds, in MiB, what messages of clients that are not complete
	// hold together, of all connections and both transports, and answers to HTTP
	// requests that clients have not taken as much again. Default 128, at least
	// LeastMessageMemory.
	MaxMessageMemory int
	// MemoryLimit is how much memory, in MiB, the process is to stay below; 0: no limit. Near it
	// new connections are refused, and then publishes. LimitMemory tells the garbage collector.
	MemoryLimit int
	// MaxPublishWait is how long a publish may wait for its commit, as fast as the store is, before others are refused
	// with CodeOverloaded. Default DefaultMaxPublishWait.
	MaxPublishWait time.Duration
	// MaxUnauthenticated bounds how many connections there are, at all listeners together, that have
	// shown no right yet; the next one takes the place of another. Default
	// DefaultMaxUnauthenticated.
	MaxUnauthenticated int
	// Durability is store.DurabilitySync, the default: an OK comes when the event is
	// on disk; or DurabilityInterval: an OK comes when it is written, and the disk has
	// it within SyncEvery.
	Durability string
	// Console is ConsoleOn, the default, or ConsoleOff: the operations listener has no page for people,
	// and no way to the API for it.
	Console string
	// Maintenance is MaintenanceOn, the default, or MaintenanceOff: nothing is removed by
	// itself, neither what settings do not keep nor, on the disk, what was removed.
	Maintenance string
	// CompactEvery is the least time between two passes of compaction over a topic. It is for
	// tests, which do not want to wait for a pass; no setting of a user has it. Default 10 s.
	CompactEvery time.Duration
	// Outbox is the URL of an outbox (package outbox/outboxurl) whose rows the hub publishes
	// into itself, with no token and no limits. A database that is away is waited for. Default:
	// none.
	Outbox string
	// OutboxOrder is "key", the default, or "topic": what of the outbox is published one after
	// another. OutboxKeep is how long rows that were sent stay in the table; default 24 h.
	OutboxOrder string
	OutboxKeep  time.Duration
	// Journal, where not empty, is the URL of the journal that this hub shares with others (JournalForm),
	// or JournalNone for a store that has shared one and is to be one of its own again.
	Journal string
	// OpenJournal, where not nil, opens the journal in place of what Journal names. The hub closes it.
	OpenJournal func(ctx context.Context) (journal.Journal, error)
	// MemberID is the name of this hub among those that share the journal; default: that of the
	// machine. MemberURLs are where clients reach it. Lease is how long nothing has to come from the
	// hub that leads until another one takes over; default member.DefaultLease.
	MemberID   string
	MemberURLs []string
	Lease      time.Duration
	// MemberToken is what this hub presents to the one that leads, where it has to fetch a copy of its
	// store; default: AuthToken. It needs the right to operate the hub.
	MemberToken string
	// Project is ProjectOn, the default, or ProjectOff: whether a hub that leads, with a journal in MongoDB,
	// keeps its events and cursors there as documents (package projection). ProjectState are the topics, or patterns
	// of them, whose current state it keeps there as a collection each.
	Project      string
	ProjectState []string
	// MemberCAFile, where not empty, is a PEM file with the certificates to trust where this hub fetches a
	// copy, in place of those of the system. It is read each time.
	MemberCAFile string
	// Grace bounds a graceful stop.
	Grace time.Duration
	// Drain is how long a hub that is to stop says that it is not ready, and takes
	// everything all the same: the time that a load balancer needs to see it. It counts
	// before Grace. Default 0.
	Drain time.Duration
	// MetricsLabels is how many topics, and how many groups, have metrics of their
	// own; MetricsHistograms how many groups have histograms of their own. All others
	// are one row. Defaults 200 and 20: fewer than 6,500 series, whatever there is.
	MetricsLabels, MetricsHistograms int
	// Sources says where settings came from, such as "env HTTP_PORT", by the names that the
	// user gives them; those that are missing are defaults. The log and refusals to start
	// have it. Nil where nobody knows.
	Sources []Source
	// Version is reported to clients.
	Version string
	Logger  *slog.Logger
	// LogLevel, where not nil, is Logger's level, which the operations listener
	// shows and changes.
	LogLevel *slog.LevelVar
}

// WithDefaults fills what is empty.
func (c Config) WithDefaults() Config {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&c.Store, DefaultStore)
	def(&c.WSAddr, DefaultWSAddr)
	def(&c.HTTPAddr, DefaultHTTPAddr)
	def(&c.OpsAddr, DefaultOpsAddr)
	def(&c.Version, "devel")
	def(&c.Durability, store.DurabilitySync)
	def(&c.Maintenance, MaintenanceOn)
	def(&c.Console, ConsoleOn)
	def(&c.Project, ProjectOn)
	def(&c.OutboxOrder, string(outbox.ByKey))
	if c.OutboxKeep == 0 {
		c.OutboxKeep = outbox.DefaultKeep
	}
	if c.MaxProducers == 0 {
		c.MaxProducers = eventhub.DefaultMaxProducers
	}
	if c.ProducersKept == 0 {
		c.ProducersKept = eventhub.DefaultProducerKept
	}
	if c.MaxUnauthenticated == 0 {
		c.MaxUnauthenticated = DefaultMaxUnauthenticated
	}
	if c.MaxPublishWait == 0 {
		c.MaxPublishWait = DefaultMaxPublishWait
	}
	if c.MaxTopics == 0 {
		c.MaxTopics = 100_000
	}
	if c.MetricsLabels == 0 {
		c.MetricsLabels = ops.DefaultMaxLabels
	}
	if c.MetricsHistograms == 0 {
		c.MetricsHistograms = ops.DefaultMaxHistograms
	}
	if c.MaxMessageMemory == 0 {
		c.MaxMessageMemory = 128
	}
	if c.MemberID == "" {
		c.MemberID = defaultMemberID()
	}
	if c.Lease == 0 {
		c.Lease = member.DefaultLease
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// auth is the part that says which tokens are accepted.
func (c *Config) auth() auth.Config {
	return auth.Config{Token: c.AuthToken, TokensFile: c.AuthTokensFile, JWTSecret: c.JWTSecret, JWKSURL: c.JWKSURL, KeyFile: c.JWTKeyFile,
		Audience: c.JWTAudience, Issuer: c.JWTIssuer, Logger: c.Logger}
}

// validateSettings returns everything that is wrong with tokens, keys, certificate and limits, with
// where their settings came from.
func (c *Config) validateSettings() (errs []error) {
	a := c.auth()
	err := errors.Join(a.Validate(), c.validateTLS(), c.validateLimits())
	if err == nil {
		return nil
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		settings, _, _ := strings.Cut(line, ": ")
		errs = append(errs, fmt.Errorf("%s%s", line, c.from(strings.Split(settings, ", ")...)))
	}
	return errs
}

// authenticates reports whether clients need a token.
func (c *Config) authenticates() bool {
	a := c.auth()
	return a.Given()
}

// Validate names everything that is wrong at once.
func (c Config) Validate() error {
	var errs []error
	for _, a := range []struct{ name, addr string }{{"ws", c.WSAddr}, {"http", c.HTTPAddr}, {"ops", c.OpsAddr}} {
		host, err := checkAddr(a.addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s address %q: %w%s", a.name, a.addr, err, c.from(a.name)))
			continue
		}
		if !c.authenticates() && !c.Insecure && !isLoopback(host) {
			errs = append(errs, fmt.Errorf("%s address %q is open to the network and no authentication is configured: "+
				"set AUTH_TOKEN, AUTH_TOKENS_FILE or one of JWT_SECRET, JWT_JWKS_URL, JWT_KEY_FILE, listen on 127.0.0.1, or say --insecure%s", a.name, a.addr, c.from(a.name)))
		}
	}
	if scheme, _, ok := strings.Cut(c.Store, "://"); ok {
		errs = append(errs, fmt.Errorf("store %s://… is not supported by this version; give a directory or %q%s", scheme, MemoryStore, c.from("store")))
	}
	if name, _, _ := strings.Cut(c.Store, ":"); c.Store != MemoryStore && strings.EqualFold(name+":", MemoryStore) {
		errs = append(errs, fmt.Errorf("store is %q; give %q for a hub that keeps nothing, or \"./%s\" for a directory of that name%s", c.Store, MemoryStore, c.Store, c.from("store")))
	}
	if c.Durability != store.DurabilitySync && c.Durability != DurabilityInterval {
		errs = append(errs, fmt.Errorf("durability is %q; sync and interval are allowed%s", c.Durability, c.from("durability")))
	}
	errs = append(errs, c.validateSettings()...)
	errs = append(errs, c.validateTopics()...)
	errs = append(errs, c.validateOutbox()...)
	errs = append(errs, c.validateCluster()...)
	if _, err := newProxies(c.TrustedProxies); err != nil {
		errs = append(errs, fmt.Errorf("%w%s", err, c.from("trusted_proxies")))
	}
	if c.Console != ConsoleOn && c.Console != ConsoleOff {
		errs = append(errs, fmt.Errorf("console is %q; on and off are allowed%s", c.Console, c.from("console")))
	}
	if c.Maintenance != MaintenanceOn && c.Maintenance != MaintenanceOff {
		errs = append(errs, fmt.Errorf("maintenance is %q; on and off are allowed%s", c.Maintenance, c.from("maintenance")))
	}
	if c.CompactEvery < 0 {
		errs = append(errs, fmt.Errorf("compact every is %s; it can not be negative", c.CompactEvery))
	}
	if c.MaxProducers < 1 {
		errs = append(errs, fmt.Errorf("max producers is %d; at least 1 is needed%s", c.MaxProducers, c.from("max_producers")))
	}
	if c.ProducersKept < time.Second {
		errs = append(errs, fmt.Errorf("producers kept is %s; at least 1s is needed%s", c.ProducersKept, c.from("producers_kept")))
	}
	if c.MemoryLimit < 0 || c.MemoryLimit > mostMessageMemory {
		errs = append(errs, fmt.Errorf("memory limit is %d MiB; 0 to %d are allowed%s", c.MemoryLimit, mostMessageMemory, c.from("memory_limit")))
	}
	if c.MaxPublishWait < time.Millisecond {
		errs = append(errs, fmt.Errorf("max publish wait is %s; at least 1ms is needed%s", c.MaxPublishWait, c.from("max_publish_wait")))
	}
	if c.MaxUnauthenticated < 1 {
		errs = append(errs, fmt.Errorf("max unauthenticated is %d; at least 1 is needed%s", c.MaxUnauthenticated, c.from("max_unauthenticated")))
	}
	if c.MaxTopics < 1 {
		errs = append(errs, fmt.Errorf("max topics is %d; at least 1 is needed%s", c.MaxTopics, c.from("max_topics")))
	}
	if c.MetricsLabels < 1 || c.MetricsHistograms < 1 {
		errs = append(errs, fmt.Errorf("metrics labels are %d and histograms %d; at least 1 is needed%s", c.MetricsLabels, c.MetricsHistograms,
			c.from("metrics_labels", "metrics_histograms")))
	}
	if c.MaxMessageMemory < LeastMessageMemory || c.MaxMessageMemory > mostMessageMemory {
		errs = append(errs, fmt.Errorf("max message memory is %d MiB; at least %d are needed, and at most %d can be counted in bytes%s",
			c.MaxMessageMemory, LeastMessageMemory, mostMessageMemory, c.from("max_message_memory")))
	}
	if c.Drain < 0 {
		errs = append(errs, fmt.Errorf("drain is %s; it can not be negative%s", c.Drain, c.from("drain")))
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace is %s; it can not be negative%s", c.Grace, c.from("grace")))
	}
	return errors.Join(errs...)
}

// Source says where one setting came from.
type Source struct {
	Setting string // "ws", "store" and so on
	From    string // such as "env WS_PORT"
}

// from says in brackets, for an error, where settings came from; it is empty where nobody
// knows.
func (c *Config) from(settings ...string) string {
	if c.Sources == nil {
		return ""
	}
	var said []string
	for _, name := range settings {
		at := slices.IndexFunc(c.Sources, func(s Source) bool { return s.Setting == name })
		if at < 0 {
			said = append(said, name+" is the default")
		} else {
			said = append(said, name+" from "+c.Sources[at].From)
		}
	}
	return " (" + strings.Join(said, ", ") + ")"
}

// settings says, for the log, what is not a default and where it came from.
func (c *Config) settings() string {
	var said []string
	for _, s := range c.Sources {
		said = append(said, s.Setting+" from "+s.From)
	}
	if said == nil {
		return "defaults"
	}
	return strings.Join(said, ", ") + "; all others are defaults"
}

func checkAddr(addr string) (host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", errors.New("want host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	return host, nil
}

// isLoopback reports whether only this machine reaches the host. An empty host
// means every interface.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
