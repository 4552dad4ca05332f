package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"
)

var (
	tailCount  = flag.Int("tails.count", 200, "live tails of one topic in TestManyTails, each on a connection of its own")
	tailEvents = flag.Int("tails.events", 200, "events that each of them gets in one part of it")
)

const (
	tailTopic = "tails.log"
	tailKeys  = 5
	tailParts = 10 // batches in which the events of a conflated part are published
)

// TestManyTails has many live tails follow one topic, each over a WebSocket of its
// own, and then half of them the newest per key every 100 ms. Every tail gets every
// event in order, or of each key the newest in the end. Neither coming, following
// nor leaving writes a byte to the store: the files are as they were, and publishing
// makes them grow as it does without tails.
func TestManyTails(t *testing.T) {
	needFiles(t, uint64(*tailCount)+200)
	dir := t.TempDir()
	hub := startPatientHub(t, "--store", dir)
	p := &tailPublisher{conn: dial(t, hub.ws, "")}
	p.publish(1)
	alone := p.grows(dir, *tailEvents)
	empty, goroutines := hub.resident(t), hub.metric(t, "go_goroutines")
	was := sizes(t, dir)

	tails := make([]*liveTail, *tailCount)
	for i := range tails {
		tails[i] = newLiveTail(dial(t, hub.ws, ""))
	}
	connected := hub.resident(t)
	for _, tail := range tails {
		tail.subscribe(nil)
	}
	subscribed, goroutinesNow := hub.resident(t), hub.metric(t, "go_goroutines")
	sameSizes(t, "that tails subscribed", was, sizes(t, dir))

	var following sync.WaitGroup
	head := p.head + uint64(*tailEvents)
	for _, tail := range tails {
		tail.at = p.head
		following.Go(func() { tail.follow(head) })
	}
	together := p.grows(dir, *tailEvents)
	was = sizes(t, dir)
	following.Wait()
	followed := hub.resident(t)
	sameSizes(t, "that tails got events", was, sizes(t, dir))
	if together > alone+alone/50+4096 { // blocks of the log end where they end
		t.Errorf("%d events made the store grow by %d bytes with tails, and by %d without", *tailEvents, together, alone)
	}

	half := tails[:len(tails)/2]
	for _, tail := range half {
		tail.ask(map[string]any{"op": "UNSUBSCRIBE", "topic": tailTopic, "corr": "u"})
		tail.subscribe(map[string]any{"conflate": map[string]any{"every_ms": 100}})
	}
	sameSizes(t, "that half of the tails subscribed again", was, sizes(t, dir))
	conflated := conflatedPart(t, p, tails, half)
	t.Logf("hub %.1f MiB and %.0f goroutines; with %d connections %.1f, as tails %.1f MiB and %.0f goroutines: %.1f KiB each; after %d events each %.1f: %.1f KiB each; after %d more, half of them conflated, %.1f",
		empty, goroutines, len(tails), connected, subscribed, goroutinesNow, (subscribed-empty)*1024/float64(len(tails)),
		*tailEvents, followed, (followed-empty)*1024/float64(len(tails)), *tailEvents, hub.resident(t))
	t.Logf("%d events made the store grow by %d bytes without tails and by %d with %d; a conflated tail got %.1f of %d events",
		*tailEvents, alone, together, len(tails), float64(conflated)/float64(len(half)), *tailEvents)
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}

// conflatedPart publishes in batches, each of them at once, to all tails; of these
// some get the newest of each key only. It returns how much these got.
func conflatedPart(t *testing.T, p *tailPublisher, tails, conflated []*liveTail) (got int) {
	t.Helper()
	var following sync.WaitGroup
	before, n := p.head, *tailEvents/tailParts*tailParts
	for i, tail := range tails {
		tail.at, tail.got = before, 0
		if i < len(conflated) {
			following.Go(func() { tail.followNewest(before, n) })
		} else {
			following.Go(func() { tail.follow(before + uint64(n)) })
		}
	}
	for range tailParts {
		p.publishAtOnce(n / tailParts)
	}
	following.Wait()
	for _, tail := range conflated {
		if tail.got >= n {
			t.Errorf("a conflated tail got %d of %d events", tail.got, n)
		}
		got += tail.got
	}
	return got
}

func sameSizes(t *testing.T, why string, was, is map[string]int64) {
	t.Helper()
	if !maps.Equal(was, is) {
		t.Errorf("the store's files changed by it %s: %d bytes before, %d after:\n%v\n%v", why, sum(was), sum(is), was, is)
	}
}

// tailPublisher publishes to the topic. It is alone with that, and knows where the
// next event will be.
type tailPublisher struct {
	*conn
	head uint64
}

// tailKey is the key of the event at an offset.
func tailKey(offset uint64) string { return fmt.Sprint("key-", offset%tailKeys) }

// publish publishes n events one by one.
func (p *tailPublisher) publish(n int) {
	p.t.Helper()
	for range n {
		p.head++
		p.say(map[string]any{"op": "PUBLISH", "topic": tailTopic, "payload": "some text", "corr": "p", "opts": map[string]any{"key": tailKey(p.head)}})
		if f := p.hear(); f.Op != "OK" || f.Offset != p.head {
			p.t.Fatalf("PUBLISH was answered by %+v", f)
		}
	}
}

// publishAtOnce publishes n events in one step.
func (p *tailPublisher) publishAtOnce(n int) {
	p.t.Helper()
	events := make([]map[string]any, n)
	for i := range events {
		p.head++
		events[i] = map[string]any{"topic": tailTopic, "payload": "some text", "opts": map[string]any{"key": tailKey(p.head)}}
	}
	p.say(map[string]any{"op": "PUBLISH", "events": events, "corr": "p"})
	if f := p.hear(); f.Op != "OK" {
		p.t.Fatalf("PUBLISH was answered by %+v", f)
	}
}

// grows publishes n events and returns by how many bytes they made the store grow.
func (p *tailPublisher) grows(dir string, n int) int64 {
	p.t.Helper()
	was := sum(sizes(p.t, dir))
	p.publish(n)
	return sum(sizes(p.t, dir)) - was
}

// liveTail is one connection with one tail.
type liveTail struct {
	*conn
	read *bufio.Reader
	at   uint64 // the last offset
	got  int
}

func newLiveTail(c *conn) *liveTail {
	return &liveTail{conn: c, read: bufio.NewReaderSize(c.Conn, 2048)}
}

func (l *liveTail) subscribe(opts map[string]any) {
	l.t.Helper()
	l.ask(map[string]any{"op": "SUBSCRIBE", "topic": tailTopic, "corr": "s", "opts": opts})
}

// ask waits for the OK.
func (l *liveTail) ask(v map[string]any) {
	l.t.Helper()
	l.say(v)
	b, err := l.message()
	var f frame
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil || f.Op != "OK" {
		l.t.Fatalf("%v was answered by %s, %v", v, b, err)
	}
}

func (l *liveTail) message() ([]byte, error) {
	if err := l.SetReadDeadline(time.Now().Add(watchdog)); err != nil {
		return nil, err
	}
	return wsutil.ReadServerText(struct {
		io.Reader // has the bytes of many frames at once
		io.Writer
	}{l.read, l.Conn})
}

// event waits for the next event. It looks for what it needs in the text alone:
// there are millions of them.
func (l *liveTail) event() (offset uint64, key string, ok bool) {
	b, err := l.message()
	if err == nil {
		_, rest, _ := bytes.Cut(b, []byte(`"event":{"offset":`))
		number, rest, _ := bytes.Cut(rest, []byte(","))
		_, rest, _ = bytes.Cut(rest, []byte(`"key":"`))
		name, _, _ := bytes.Cut(rest, []byte(`"`))
		offset, err = strconv.ParseUint(string(number), 10, 64)
		key = string(name)
	}
	if err != nil || key != tailKey(offset) {
		l.t.Errorf("a tail at %d got %s: %v", l.at, b, err)
		return 0, "", false
	}
	l.got++
	return offset, key, true
}

// follow takes every event, in order, up to an offset.
func (l *liveTail) follow(to uint64) {
	for l.at < to {
		offset, _, ok := l.event()
		if !ok {
			return
		}
		if offset != l.at+1 {
			l.t.Errorf("a tail got %d after %d", offset, l.at)
			return
		}
		l.at = offset
	}
}

// followNewest takes events until it has the newest of each key of the n after
// before.
func (l *liveTail) followNewest(before uint64, n int) {
	last := make(map[string]uint64)
	for newest := 0; newest < min(n, tailKeys); {
		offset, key, ok := l.event()
		if !ok {
			return
		}
		if offset <= before || offset > before+uint64(n) || offset <= last[key] {
			l.t.Errorf("a conflated tail got %d of %s after %d", offset, key, last[key])
			return
		}
		last[key] = offset
		if offset+tailKeys > before+uint64(n) {
			newest++
		}
	}
}
