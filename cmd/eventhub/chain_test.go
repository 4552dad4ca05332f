package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/internal/testsize"
)

var (
	chainEvents = testsize.Int("chain.events", 5_000, 1_000, "events that TestChain sends through its projectors")
	chainKills  = testsize.Int("chain.kills", 6, 3, "how often TestChain kills the hub, and how often a projector")
)

const (
	// projectorEnv makes this test binary a projector. Its arguments are the address
	// of the hub and the number of the link.
	projectorEnv = "EVENTHUB_TEST_PROJECTOR"

	chainMembers = 2  // projectors of one link
	chainBatch   = 20 // events in one publish
)

// chainTopics are the topics between the links: link n reads the n-th and
// publishes to the next.
var chainTopics = []string{"chain.a", "chain.b", "chain.c", "chain.d"}

// link is the payload of a chain: which event it began with, and what the links
// have made of it so far.
type link struct {
	N    int    `json:"n"`
	Made string `json:"made"`
}

// next is the work of a projector.
func (l link) next(topic string) link {
	digest := sha256.Sum256([]byte(topic + l.Made))
	return link{l.N, hex.EncodeToString(digest[:12])}
}

// chained is what the n-th event is in a topic of the chain.
func chained(n, topic int) link {
	l := link{N: n, Made: fmt.Sprint("event ", n)}
	for _, name := range chainTopics[1 : topic+1] {
		l = l.next(name)
	}
	return l
}

// runProjector is the life of one projector: until it is killed, or the test is
// gone.
func runProjector() int {
	addr := os.Args[1]
	at := slices.Index(chainTopics, os.Args[2])
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		cancel()
	}()
	var c *client.Client
	for c == nil {
		var err error
		c, err = client.Dial(ctx, "ws://"+addr, client.WithReconnect(time.Millisecond, 20*time.Millisecond))
		if ctx.Err() == nil && errors.Is(err, client.ErrUnreachable) {
			time.Sleep(10 * time.Millisecond) // the hub is being started again
			continue
		}
		if err != nil {
			return complain(err)
		}
	}
	err := c.Transform(ctx, eventhub.GroupOptions{
		Topic: chainTopics[at], Group: "to-" + chainTopics[at+1], Start: eventhub.Earliest,
		MaxInFlight: 200, MaxAttempts: 1000, Backoff: eventhub.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}, Concurrency: 4,
	}, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
		return project(d, chainTopics[at+1], at < 2)
	})
	if err != nil {
		return complain(err)
	}
	return complain(c.Close())
}

// project makes the one result of an event. With again its id is another one each
// time, so that it can not be the id that keeps a second result out.
func project(d eventhub.Delivery, to string, again bool) ([]eventhub.Event, error) {
	e, err := d.Event()
	if err != nil {
		return nil, err
	}
	var l link
	if err := json.Unmarshal(e.Payload, &l); err != nil {
		return nil, err
	}
	result := eventhub.Event{Topic: to}
	if result.Payload, err = json.Marshal(l.next(to)); err != nil {
		return nil, err
	}
	if again {
		result.ID = rand.Text()
	}
	return []eventhub.Event{result}, nil
}

func complain(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	return exitDone
}

// TestChain sends events through three links of two projector processes each, which
// publish with their acks, and kills the hub and the projectors with -9 as progress
// goes. Every topic after a link then holds the result of each event once, in
// content, and nothing else.
func TestChain(t *testing.T) {
	seed := drawSeed(t)
	rng := mrand.New(mrand.NewPCG(seed, 0))
	dir, addr := t.TempDir(), freePort(t)
	began := time.Now()
	hub := startHub(t, "--store", dir, "--ws", addr)
	var crew []*projector
	for at := range len(chainTopics) - 1 {
		for range chainMembers {
			crew = append(crew, startProjector(t, addr, chainTopics[at]))
		}
	}
	end := &chainEnd{}
	end.moved.L = &end.mu
	c := connect(t, addr)
	if _, err := c.Tail(t.Context(), eventhub.TailOptions{Topic: chainTopics[len(chainTopics)-1],
		Start: eventhub.Earliest}, end); err != nil {
		t.Fatal(err)
	}
	var publishing sync.WaitGroup
	publishing.Go(func() { end.feed(t, c) })
	victims := make([]bool, 2**chainKills) // true: the hub
	for i := range *chainKills {
		victims[i] = true
	}
	rng.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for i, isHub := range victims {
		end.await(t, (i*100+1+rng.IntN(100))**chainEvents/(len(victims)*100))
		if isHub {
			hub.kill()
			hub = startHub(t, "--store", dir, "--ws", addr)
			continue
		}
		who := rng.IntN(len(crew))
		crew[who].kill()
		crew[who] = startProjector(t, addr, crew[who].from)
	}
	publishing.Wait()
	end.await(t, *chainEvents)
	took := time.Since(began)
	for at := range len(chainTopics) - 1 { // what is too much would come until then
		awaitGroup(t, hub, chainTopics[at], "to-"+chainTopics[at+1], uint64(*chainEvents))
	}
	for _, p := range crew {
		p.kill()
	}
	duplicates := 0
	for at := range chainTopics {
		duplicates += checkChained(t, hub, addr, at)
	}
	t.Logf("%d events through %d links in %s, with %d kills of the hub and %d of projectors; %d results too many",
		*chainEvents, len(chainTopics)-1, took.Round(time.Millisecond), *chainKills, *chainKills, duplicates)
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}

// chainEnd is at the end of the chain and counts.
type chainEnd struct {
	mu    sync.Mutex
	moved sync.Cond
	came  int
	over  bool
}

func (e *chainEnd) Deliver(batch []eventhub.Delivery) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.came += len(batch)
	e.moved.Broadcast()
	return len(batch)
}

func (e *chainEnd) Ended(error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	e.moved.Broadcast()
}

// await waits until so many results have come.
func (e *chainEnd) await(t *testing.T, n int) {
	t.Helper()
	limit := time.AfterFunc(10*watchdog, func() { e.Ended(nil) })
	defer limit.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.came < n && !e.over {
		e.moved.Wait()
	}
	if e.came < n {
		t.Fatalf("%d results have come; %d must", e.came, n)
	}
}

// feed publishes the events, a part of them ahead of what has come out, so that
// every link is at work when something is killed.
func (e *chainEnd) feed(t *testing.T, c *client.Client) {
	ahead := max(*chainEvents/5, chainBatch)
	var answered sync.WaitGroup
	for n := 0; n < *chainEvents; n += chainBatch {
		var events []eventhub.Event
		for i := n; i < min(n+chainBatch, *chainEvents); i++ {
			payload, err := json.Marshal(chained(i, 0))
			if err != nil {
				t.Error(err)
			}
			events = append(events, eventhub.Event{Topic: chainTopics[0], Payload: payload})
		}
		e.mu.Lock()
		for e.came < n-ahead && !e.over {
			e.moved.Wait()
		}
		e.mu.Unlock()
		answered.Add(1)
		c.Enqueue(t.Context(), []eventhub.Publication{{Events: events}}, func(pubs []eventhub.Publication) {
			if pubs[0].Err != nil {
				t.Errorf("publish: %v", pubs[0].Err)
			}
			answered.Done()
		})
	}
	answered.Wait()
}

// checkChained reads a topic of the chain, and returns how many events it has too
// many.
func checkChained(t *testing.T, hub *hubProcess, addr string, at int) (tooMany int) {
	t.Helper()
	name := chainTopics[at]
	topic, err := hub.admin(t).Topic(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if dead, err := hub.admin(t).Topic(t.Context(), name+".dlq"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("events of %s were given up: %+v, %v", name, dead, err)
	}
	times := make(map[link]int)
	for _, e := range readTopic(t, addr, name, topic.Head) {
		var l link
		if err := json.Unmarshal(e.Payload, &l); err != nil {
			t.Errorf("%s at %d: %v", name, e.Offset, err)
		}
		times[l]++
	}
	missing := 0
	for n := range *chainEvents {
		want := chained(n, at)
		switch {
		case times[want] == 0:
			missing++
		case times[want] > 1:
			tooMany += times[want] - 1
		}
		delete(times, want)
	}
	if missing+tooMany+len(times) != 0 {
		t.Errorf("%s: the results of %d events are missing, %d are there again, %d are of no event", name, missing, tooMany, len(times))
	}
	return tooMany + len(times)
}

// readTopic reads a topic from its first event on, up to an offset.
func readTopic(t *testing.T, addr, topic string, head uint64) (events []eventhub.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*watchdog)
	defer cancel()
	var last uint64
	c := connect(t, addr)
	var err error
	for d, broken := range c.Events(ctx, eventhub.TailOptions{Topic: topic, Start: eventhub.Earliest}) {
		var e eventhub.Event
		if err = broken; err == nil {
			e, err = d.Event()
		}
		if err != nil {
			break
		}
		if events, last = append(events, e), d.Offset; last == head {
			break
		}
	}
	if err = errors.Join(err, c.Close()); err != nil || last != head {
		t.Fatalf("%d events of %s were read, up to %d of %d: %v", len(events), topic, last, head, err)
	}
	return events
}

// projector is a process that runs runProjector.
type projector struct {
	t      *testing.T
	cmd    *exec.Cmd
	from   string
	said   strings.Builder // until ended
	killed bool
	mu     sync.Mutex
	ended  chan struct{}
}

func startProjector(t *testing.T, addr, from string) *projector {
	t.Helper()
	p := &projector{t: t, from: from, ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], addr, from)
	p.cmd.Env = cleanEnv(projectorEnv + "=1")
	p.cmd.Stderr = &p.said
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code is in ProcessState
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.killed {
			t.Errorf("a projector of %s ended by itself: %s\n%s", from, p.cmd.ProcessState, p.said.String())
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9.
func (p *projector) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.ended
}
