package cluster

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
	"eventhub/store/journal/journaltest"
)

// within is how long anything may take before a test fails.
const within = time.Minute

var (
	streams  atomic.Int64
	turns    = flag.Int("cluster.turns", 3, "how many hubs lead in TestThreeServers")
	seedFlag = flag.Uint64("cluster.seed", 0, "the seed of the faults after the third turn")
)

// newStream returns the options of a stream that is not there yet.
func newStream(urls string, replicas int) jetstream.Options {
	return jetstream.Options{URL: urls, Stream: fmt.Sprintf("journal-%d", streams.Add(1)), Replicas: replicas}
}

func open(t testing.TB, o jetstream.Options) *jetstream.Journal {
	t.Helper()
	j, err := jetstream.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return j
}

// engine is the servers as the suite sees them.
func engine(urls string, replicas, races int) journaltest.Engine {
	var mu sync.Mutex
	cuts := make(map[journal.Journal]*wire)
	return journaltest.Engine{
		New: func(t *testing.T) func(*testing.T) journal.Journal {
			o := newStream(urls, replicas)
			return func(t *testing.T) journal.Journal {
				o, w := o, &wire{}
				o.Connect = []nats.Option{nats.SetCustomDialer(w)}
				j := open(t, o)
				mu.Lock()
				defer mu.Unlock()
				cuts[j] = w
				return j
			}
		},
		Cut: func(_ *testing.T, j journal.Journal) {
			mu.Lock()
			defer mu.Unlock()
			cuts[j].cut()
		},
		Races: races,
	}
}

// wire dials the connections of one client, and can break them.
type wire struct {
	mu    sync.Mutex
	conns []net.Conn
}

// Dial implements nats.CustomDialer.
func (w *wire) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, within)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns = append(w.conns, c)
	}
	return c, err
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func TestOneServer(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	journaltest.Run(t, engine(s.url(), 1, 2))
	t.Run("Leaders", func(t *testing.T) {
		journaltest.RunLeaders(t, engine(s.url(), 1, 0), journaltest.Leaders{Turns: 3, Commits: 20, Disturb: func(t *testing.T, turn int) {
			if turn == 1 {
				s.kill()
				s.start(t)
			}
		}})
	})
}

func TestThreeServers(t *testing.T) {
	t.Parallel()
	servers, urls := three(t)
	journaltest.Run(t, engine(urls, 3, 1))
	t.Run("Leaders", func(t *testing.T) {
		seed := cmp.Or(*seedFlag, rand.Uint64())
		t.Logf("-cluster.seed=%d", seed)
		e, o := engine(urls, 3, 0), newStream(urls, 3)
		e.New = func(*testing.T) func(*testing.T) journal.Journal {
			return func(t *testing.T) journal.Journal { return open(t, o) }
		}
		f := faults{servers: servers, o: o, random: rand.New(rand.NewPCG(seed, 0))}
		journaltest.RunLeaders(t, e, journaltest.Leaders{Turns: *turns, Commits: 20, Disturb: f.disturb})
	})
}

// faults is what happens to the servers of a stream.
type faults struct {
	servers []*server
	o       jetstream.Options
	random  *rand.Rand
}

// disturb has one fault happen while the hub of a turn commits.
func (f *faults) disturb(t *testing.T, turn int) {
	if turn > 2 {
		turn = f.random.IntN(4)
	}
	switch turn {
	case 0:
		s := f.serverOf(t, false)
		s.kill()
		s.start(t)
	case 1:
		s := f.serverOf(t, true)
		s.kill()
		s.start(t)
	case 3:
		s := f.serverOf(t, true)
		s.signal(t, syscall.SIGSTOP)
		for f.serverOf(t, true) == s { // it wakes as one that does not know
		}
		s.signal(t, syscall.SIGCONT)
	}
}

// serverOf returns the server that leads the stream, or one that follows.
func (f *faults) serverOf(t *testing.T, leads bool) *server {
	t.Helper()
	js := client(t, f.o.URL)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for ctx.Err() == nil {
		stream, err := stream(ctx, js, f.o.Stream)
		if err != nil {
			continue
		}
		leader := stream.CachedInfo().Cluster.Leader
		i := slices.IndexFunc(f.servers, func(s *server) bool { return (s.Name == leader) == leads })
		if leader != "" && i >= 0 {
			return f.servers[i]
		}
	}
	t.Fatalf("the stream %s has no leader", f.o.Stream)
	return nil
}

func stream(ctx context.Context, js natsjs.JetStream, name string) (natsjs.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return js.Stream(ctx, name)
}

// client returns another client of the servers.
func client(t testing.TB, urls string) natsjs.JetStream {
	t.Helper()
	conn, err := nats.Connect(urls, nats.MaxReconnects(-1), nats.PingInterval(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := natsjs.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// TestOpenedAtOnce: hubs that start at once over servers that know of no stream yet, each over another
// server, all have the same journal.
func TestOpenedAtOnce(t *testing.T) {
	t.Parallel()
	servers, urls := three(t)
	for range 10 {
		o := newStream(urls, 3)
		journals := make([]*jetstream.Journal, len(servers))
		errs := make([]error, len(servers))
		var all sync.WaitGroup
		for i, s := range servers {
			o := o
			o.URL = s.url()
			all.Go(func() { journals[i], errs[i] = jetstream.Open(context.Background(), o) })
		}
		all.Wait()
		for i, j := range journals {
			if errs[i] != nil {
				t.Errorf("by server %d: %v", i, errs[i])
				continue
			}
			defer j.Close()
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			if err := j.Append(ctx, uint64(i), []byte("entry")); err != nil {
				t.Errorf("by server %d: %v", i, err)
			}
		}
	}
}

// TestLostReply: nobody waits for an answer of a connection that is lost.
func TestLostReply(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	p := startProxy(t, strings.TrimPrefix(s.url(), "nats://"))
	o := newStream(s.url(), 1)
	other := open(t, o)
	defer other.Close()
	o.URL = p.url()
	j := open(t, o)
	defer j.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	p.loseReplies()
	failed := make(chan error, 1)
	go func() { failed <- j.Append(ctx, 0, []byte("entry")) }()
	for last := uint64(0); last < 1; {
		var err error
		if last, err = other.Last(ctx); err != nil {
			t.Fatal(err)
		}
	}
	p.cut()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "connection to the NATS server was lost") {
		t.Errorf("the append: %v; want that the connection was lost", err)
	}
	for {
		last, err := j.Last(ctx)
		if last == 1 && err == nil {
			break // over the next connection
		}
		if ctx.Err() != nil {
			t.Fatalf("over the next connection: %d, %v", last, err)
		}
	}
}

// TestStreamsThatAreNoJournal: whatever would lose or hide entries is refused by its name.
func TestStreamsThatAreNoJournal(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	js := client(t, s.url())
	for setting, change := range map[string]func(c *natsjs.StreamConfig){
		"the mark":             func(c *natsjs.StreamConfig) { c.Metadata = nil },
		"the subjects":         func(c *natsjs.StreamConfig) { c.Subjects = append(c.Subjects, "orders."+c.Name) },
		"the retention":        func(c *natsjs.StreamConfig) { c.Retention = natsjs.WorkQueuePolicy },
		"the discard policy":   func(c *natsjs.StreamConfig) { c.Discard = natsjs.DiscardOld },
		"the storage":          func(c *natsjs.StreamConfig) { c.Storage = natsjs.MemoryStorage },
		"max_msgs":             func(c *natsjs.StreamConfig) { c.MaxMsgs = 10 },
		"max_msgs_per_subject": func(c *natsjs.StreamConfig) { c.MaxMsgsPerSubject = 10 },
		"max_msg_size":         func(c *natsjs.StreamConfig) { c.MaxMsgSize = 10 },
		"max_age":              func(c *natsjs.StreamConfig) { c.MaxAge = time.Hour },
		"first_seq":            func(c *natsjs.StreamConfig) { c.FirstSeq = 10 },
		"allow_direct":         func(c *natsjs.StreamConfig) { c.AllowDirect = true },
		"allow_rollup_hdrs":    func(c *natsjs.StreamConfig) { c.AllowRollup = true },
		"allow_msg_ttl":        func(c *natsjs.StreamConfig) { c.AllowMsgTTL = true },
		"deny_delete":          func(c *natsjs.StreamConfig) { c.DenyDelete = false },
		"deny_purge":           func(c *natsjs.StreamConfig) { c.DenyPurge = true },
		"no_ack":               func(c *natsjs.StreamConfig) { c.NoAck = true },
		"the mirror": func(c *natsjs.StreamConfig) {
			c.Mirror, c.Subjects, c.Discard = &natsjs.StreamSource{Name: "other"}, nil, natsjs.DiscardOld
		},
		"nothing": func(*natsjs.StreamConfig) {},
	} {
		t.Run(setting, func(t *testing.T) {
			o := newStream(s.url(), 1)
			config := configOf(t, js, o)
			change(&config)
			if _, err := js.CreateStream(context.Background(), config); err != nil {
				t.Fatal(err)
			}
			j, err := jetstream.Open(context.Background(), o)
			if err == nil {
				_ = j.Close()
			}
			checkRefusal(t, err, o.Stream, setting)
		})
	}
	o := newStream(s.url(), 1)
	_ = open(t, o).Close()
	o.Replicas = 3
	_, err := jetstream.Open(context.Background(), o)
	checkRefusal(t, err, o.Stream, "num_replicas")
	if want := "has num_replicas 1; as the hub's journal it has to have 3"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v; want %q", err, want)
	}
	if _, err := jetstream.Open(context.Background(), newStream(s.url(), 0)); err == nil {
		t.Error("one server has a stream of three replicas")
	}
}

// configOf returns what Open makes of a stream, whose place is free again then.
func configOf(t *testing.T, js natsjs.JetStream, o jetstream.Options) natsjs.StreamConfig {
	t.Helper()
	_ = open(t, o).Close()
	stream, err := js.Stream(context.Background(), o.Stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(context.Background(), o.Stream); err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().Config
}

func checkRefusal(t *testing.T, err error, stream, setting string) {
	t.Helper()
	var refused *jetstream.ConfigError
	switch {
	case setting == "nothing":
		if err != nil {
			t.Errorf("Open of a stream as it has to be: %v", err)
		}
	case !errors.As(err, &refused):
		t.Errorf("Open: %v", err)
	case refused.Stream != stream || refused.Setting != setting && (setting != "the mirror" || refused.Setting != "the subjects"):
		t.Errorf("Open: %+v; want %s", refused, setting)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]jetstream.Options{
		"URL":          {Stream: "s"},
		"name":         {URL: "nats://127.0.0.1:1", Stream: "a.b"},
		"9 replicas":   {URL: "nats://127.0.0.1:1", Stream: "s", Replicas: 9},
		"-1 bytes":     {URL: "nats://127.0.0.1:1", Stream: "s", MostBytes: -1},
		"connect to N": {URL: "nats://127.0.0.1:1", Stream: "s"},
	} {
		if _, err := jetstream.Open(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%+v): %v; want %q", o, err, want)
		}
	}
}

// TestFull: a stream that is full, and a server without room, refuse definitely.
func TestFull(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ stream, server int64 }{
		"the stream": {stream: 10_000}, "the server": {server: 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			o := newStream(alone(t, tt.server).url(), 1)
			o.MostBytes = tt.stream
			j := open(t, o)
			defer j.Close()
			limits, err := j.Limits(context.Background())
			if err != nil || limits.Most != uint64(tt.stream) || limits.Durability != journal.DurabilityReplicated {
				t.Errorf("Limits = %+v, %v", limits, err)
			}
			entry := make([]byte, 3000)
			at := uint64(0)
			for ; at < 10 && err == nil; at++ {
				err = j.Append(context.Background(), at, entry)
			}
			if !errors.Is(err, journal.ErrFull) || at < 2 {
				t.Fatalf("append %d: %v", at, err)
			}
			if last, err := j.Last(context.Background()); err != nil || last != at-1 {
				t.Errorf("the journal ends at %d, %v; %d were answered", last, err, at-1)
			}
			if err := j.Trim(context.Background(), 2); err != nil {
				t.Fatal(err)
			}
			if err := j.Append(context.Background(), at-1, entry); err != nil {
				t.Errorf("an append after the trim: %v", err)
			}
		})
	}
}

// TestForeignMessage: a message that somebody else publishes on the subject of the entries stops a follower.
func TestForeignMessage(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	o := newStream(s.url(), 1)
	o.Synced = true
	j := open(t, o)
	defer j.Close()
	if limits, err := j.Limits(context.Background()); err != nil || limits.Durability != journal.DurabilitySync {
		t.Errorf("Limits = %+v, %v", limits, err)
	}
	leader, err := journal.New(j).Lead(context.Background(), journal.Position{}, "hub-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Close()
	at, err := leader.Append([]byte("one"), 1)()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, s.url()).Publish(context.Background(), "eventhub.journal."+o.Stream, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err = journal.New(j).Follow(ctx, at, func(journal.Entry) error { return io.EOF })
	if !errors.Is(err, journal.ErrDiverged) || !errors.Is(err, journal.ErrForeign) {
		t.Errorf("Follow: %v", err)
	}
	if _, err = leader.Append([]byte("two"), 1)(); !errors.Is(err, journal.ErrDiverged) {
		t.Errorf("Append: %v", err)
	}
}

// TestMembersAreLost: the stream of the members, where somebody has removed it, or a hub was killed before it had made
// it, is made again by the hubs that are there, and by one that starts.
func TestMembersAreLost(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	o, js := newStream(s.url(), 1), client(t, s.url())
	j := open(t, o)
	t.Cleanup(func() { _ = j.Close() })
	lose := func() {
		t.Helper()
		if err := js.DeleteStream(t.Context(), o.Stream+"-members"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := j.Announce(t.Context(), journal.Member{ID: "a"}); err != nil {
			t.Fatal(err)
		}
		if all, err := j.Announce(t.Context(), journal.Member{}); err != nil || len(all) != 1 {
			t.Errorf("what a member has said: %+v, %v", all, err)
		}
		lose()
		if all, err := j.Announce(t.Context(), journal.Member{}); err != nil || len(all) != 0 {
			t.Errorf("where it is lost: %+v, %v", all, err)
		}
	}
	if names := streamsOf(t, s); len(names) != 1 {
		t.Errorf("who only asks has made %v", names)
	}
	h := startHub(t, memberOf(journalURL(s, o.Stream), "a", t.TempDir()))
	awaitLead(t, h)
	if names := streamsOf(t, s); len(names) != 2 {
		t.Errorf("with a hub that has started there are the streams %v", names)
	}
}
