//go:build failover

package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	sdk "eventhub/client"
)

var rounds = flag.Int("cluster.rounds", 6, "how many faults TestFailover makes")

// build returns the path of the program.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "eventhub")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/eventhub")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

// hub is one process of the program that shares the journal.
type hub struct {
	t             *testing.T
	program       string
	name, dir     string
	journal       string
	ws, http, ops int
	cmd           *exec.Cmd
	ended         chan struct{}
}

func (h *hub) url() string { return fmt.Sprintf("ws://127.0.0.1:%d", h.ws) }

// start starts the hub, also again.
func (h *hub) start() {
	h.t.Helper()
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	h.cmd = exec.Command(h.program, "serve", "--journal", h.journal, "--lease", "1s", "--member-id", h.name, "--member-url", h.url(),
		"--store", filepath.Join(h.dir, "store"), "--ws", strconv.Itoa(h.ws), "--http", strconv.Itoa(h.http), "--ops", strconv.Itoa(h.ops))
	h.cmd.Stdout, h.cmd.Stderr = log, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // with the tests, however these end
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	cmd, ended := h.cmd, make(chan struct{})
	h.ended = ended
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
}

func (h *hub) signal(sig syscall.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.t.Error(err)
	}
}

func (h *hub) logged() string {
	text, _ := os.ReadFile(filepath.Join(h.dir, "log"))
	return string(text[max(0, len(text)-6000):])
}

// ready returns what the hub says of its readiness.
func (h *hub) ready() (status int, text string) {
	c := http.Client{Timeout: time.Second}
	defer c.CloseIdleConnections()
	answer, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", h.ops))
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

// group is hubs over the same journal.
type group []*hub

func newGroup(t *testing.T, journal string, n int) (g group) {
	program, free := build(t), ports(t, 3*n)
	for i := range n {
		h := &hub{t: t, program: program, name: fmt.Sprintf("hub%d", i), dir: t.TempDir(), journal: journal, ws: free[3*i], http: free[3*i+1], ops: free[3*i+2]}
		h.start()
		t.Cleanup(func() {
			h.signal(syscall.SIGKILL)
			<-h.ended
			if t.Failed() {
				t.Logf("%s:\n%s", h.name, h.logged())
			}
		})
		g = append(g, h)
	}
	return g
}

// active waits for the hub that leads, other than one.
func (g group) active(t *testing.T, other *hub) *hub {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, h := range g {
			if h == other {
				continue
			}
			if status, _ := h.ready(); status == http.StatusOK {
				return h
			}
		}
	}
	t.Fatal("no hub leads")
	return nil
}

// standby waits until a hub says that it is a standby.
func (h *hub) standby() {
	h.t.Helper()
	text := ""
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, text = h.ready(); strings.Contains(text, "standby of") {
			return
		}
	}
	h.t.Fatalf("%s is no standby: %s", h.name, text)
}

func (g group) urls() (urls []string) {
	for _, h := range g {
		urls = append(urls, h.url())
	}
	return urls
}

// load publishes and consumes while hubs come and go.
type load struct {
	t      *testing.T
	ctx    context.Context
	stop   context.CancelFunc
	ended  sync.WaitGroup
	mu     sync.Mutex
	oked   map[string]eventhub.Receipt // by payload
	seen   map[string]int              // deliveries to the group
	sent   int
	unsure map[string]bool // an error that says that the outcome is not known
}

const failoverTopic = "failover.events"

func startLoad(t *testing.T, g group, publishers int) *load {
	l := &load{t: t, oked: make(map[string]eventhub.Receipt), seen: make(map[string]int), unsure: make(map[string]bool)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	urls := g.urls()
	dial := func() *sdk.Client {
		for {
			c, err := sdk.Dial(l.ctx, urls[0], sdk.WithURLs(urls[1:]...), sdk.WithLogger(slog.New(slog.DiscardHandler)))
			if err == nil || l.ctx.Err() != nil {
				return c
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	for p := range publishers {
		l.ended.Go(func() {
			c := dial()
			if c == nil {
				return
			}
			defer c.Close()
			for n := 0; l.ctx.Err() == nil; n++ {
				l.publish(c, fmt.Sprintf(`"p%d-%d"`, p, n), fmt.Sprint("key-", n%7))
			}
		})
	}
	l.ended.Go(func() {
		c := dial()
		if c == nil {
			return
		}
		defer c.Close()
		_ = c.Consume(l.ctx, eventhub.GroupOptions{Topic: failoverTopic, Group: "g"}, func(_ context.Context, d eventhub.Delivery) error {
			e, err := d.Event()
			if err != nil {
				t.Error(err)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.seen[string(e.Payload)]++
			return nil
		})
	})
	return l
}

func (l *load) publish(c *sdk.Client, payload, key string) {
	receipts, err := c.Publish(l.ctx, eventhub.Event{Topic: failoverTopic, Key: key, Payload: []byte(payload)})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	switch {
	case err == nil:
		l.oked[payload] = receipts[0]
	case l.ctx.Err() == nil:
		l.unsure[payload] = true
	}
}

// progress waits until so many more publishes were answered.
func (l *load) progress(more int) {
	l.t.Helper()
	l.mu.Lock()
	want := len(l.oked) + more
	l.mu.Unlock()
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		have := len(l.oked)
		l.mu.Unlock()
		switch {
		case have >= want:
			return
		case time.Now().After(end):
			l.t.Fatalf("%d publishes were answered; want %d", have, want)
		}
	}
}

// TestFailover: hubs that are killed, frozen and stopped while they lead, and servers of the
// journal that are killed. Each publish with an OK is in the log once, at its offset; no
// other is there twice; and the group gets all.
func TestFailover(t *testing.T) {
	servers, urls := three(t)
	host := strings.ReplaceAll(strings.TrimPrefix(urls, "nats://"), "nats://", "")
	g := newGroup(t, "nats://"+host+"/FAILOVER", 3)
	lead := g.active(t, nil)
	l := startLoad(t, g, 3)
	defer l.ended.Wait()
	defer l.stop()
	l.progress(20)
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range *rounds {
		fault := round
		if fault >= 4 {
			fault = rng.IntN(4)
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		began := time.Now()
		switch fault {
		case 0:
			lead = l.replace(g, lead, syscall.SIGKILL)
		case 1:
			lead = l.replace(g, lead, syscall.SIGTERM)
		case 2:
			lead = l.freeze(g, lead)
		case 3:
			s := servers[rng.IntN(3)]
			s.kill()
			l.progress(20)
			s.start(t)
		}
		l.progress(20)
		t.Logf("round %d: fault %d, %s leads, after %s", round, fault, lead.name, time.Since(began).Round(time.Millisecond))
	}
	l.stop()
	l.ended.Wait()
	// A hub that lost its server of the journal may have given the lead up after the round.
	l.check(g.active(t, nil))
}

// replace ends the hub that leads, waits for another one, and starts it again.
func (l *load) replace(g group, lead *hub, sig syscall.Signal) *hub {
	l.t.Helper()
	lead.signal(sig)
	<-lead.ended
	next := g.active(l.t, lead)
	lead.start()
	lead.standby()
	return next
}

// freeze stops the hub that leads until another one does, and lets it go on: it steps down.
func (l *load) freeze(g group, lead *hub) *hub {
	l.t.Helper()
	lead.signal(syscall.SIGSTOP)
	next := g.active(l.t, lead)
	lead.signal(syscall.SIGCONT)
	lead.standby()
	return next
}

// check holds the log against what was answered.
func (l *load) check(lead *hub) {
	l.t.Helper()
	a, err := sdk.NewAdmin(fmt.Sprintf("http://127.0.0.1:%d", lead.http))
	if err != nil {
		l.t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	at := make(map[string]uint64)
	if err := a.Replay(ctx, admin.ReplayQuery{Topic: failoverTopic}, func(_ string, item eventhub.Item) error {
		e, err := item.Record.Event(item.Offset)
		if err != nil {
			return err
		}
		payload := string(e.Payload)
		if first, twice := at[payload]; twice {
			l.t.Errorf("%s is at offset %d, and again at %d", payload, first, item.Offset)
		}
		at[payload] = item.Offset
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for payload, r := range l.oked {
		if at[payload] != r.Offset {
			l.t.Errorf("%s has an OK at offset %d, and is at %d (0: nowhere)", payload, r.Offset, at[payload])
		}
	}
	l.t.Logf("%d events in the log, %d with an OK, %d whose publishers were told that the outcome is not known; the group got %d", len(at), len(l.oked), len(l.unsure), len(l.seen))
	if len(l.seen) == 0 {
		l.t.Error("the group got nothing")
	}
}
