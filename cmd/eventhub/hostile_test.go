package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

var (
	hostileConns = flag.Int("hostile.conns", 300, "hostile connections at a time in TestHostileConnections")
	hostileFor   = flag.Duration("hostile.for", 2*time.Second, "for so long they come again")
	hostileOnly  = flag.String("hostile.only", "", "the kinds of them whose names have this")
	hostileRate  = flag.Int("hostile.rate", 500, "events a second of the good clients beside them")
	hostileLate  = flag.Duration("hostile.within", 0, "within which each of those that show no right has to be closed; 0: no matter")
	hostileRatio = flag.Float64("hostile.ratio", 0, "what the 99th percentile of the good clients beside them may be, of that without; 0: no matter")
	stalledCount = flag.Int("stalled.count", 30, "consumers that stop reading in TestStalledConsumers")
	passingCount = flag.Int("passing.count", 1000, "connections that come and go in TestComingAndGoing")
	passingRate  = flag.Int("passing.rate", 0, "of them a second; 0: as fast as they can")
)

const hostileToken = "the-token-that-good-clients-have"

// startGuarded starts a hub that wants a token.
func startGuarded(t *testing.T, args ...string) *hubProcess {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(hostileToken), 0o600); err != nil {
		t.Fatal(err)
	}
	return startHub(t, append([]string{"--auth-token-file", token, "--store", t.TempDir()}, args...)...)
}

// scrape returns the metrics of a guarded hub by their names and labels.
func (p *hubProcess) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, "http://"+p.ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+hostileToken)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	found := make(map[string]float64)
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			found[name] = n
		}
	}
	return found
}

// live is what the last garbage collection found to be in use, and the stacks, in KiB.
func live(m map[string]float64) float64 { return m["eventhub_memory_used_bytes"] / 1024 }

// inUse is that with the garbage since then.
func inUse(m map[string]float64) float64 {
	return (m["go_memstats_heap_inuse_bytes"] + m["go_memstats_stack_inuse_bytes"]) / 1024
}

// settles waits until a hub that is left alone is as it was, in goroutines and open files, and
// returns its metrics then.
func (p *hubProcess) settles(t *testing.T, before map[string]float64) map[string]float64 {
	t.Helper()
	alarm := time.Now().Add(watchdog)
	for {
		m := p.scrape(t)
		if m["go_goroutines"] <= before["go_goroutines"]+3 && m["process_open_fds"] <= before["process_open_fds"]+3 &&
			m["eventhub_connections"] <= before["eventhub_connections"] && m["eventhub_connections_unauthenticated"] == 0 {
			return m
		}
		if time.Now().After(alarm) {
			t.Errorf("%g goroutines, %g files and %g connections before, %g, %g and %g now; %g strangers", before["go_goroutines"], before["process_open_fds"], before["eventhub_connections"],
				m["go_goroutines"], m["process_open_fds"], m["eventhub_connections"], m["eventhub_connections_unauthenticated"])
			return m
		}
		time.Sleep(20 * time.Millisecond) // nobody says when a goroutine has ended
	}
}

// forgets waits until a hub that is left alone has no more memory in use than before, besides what it caches of
// so many events and some buffers, however many connections there were, and returns how much that is, in KiB. The scrapes make the garbage that
// has the collector run.
func (p *hubProcess) forgets(t *testing.T, before map[string]float64, events int) float64 {
	t.Helper()
	// Buffers that are kept, what counts topics, groups and refusals, and what caches have for each event besides it.
	more := float64(16<<10 + events/2)
	held := func(m map[string]float64) float64 { return live(m) - m["eventhub_cached_bytes"]/1024 }
	for alarm := time.Now().Add(watchdog); ; {
		now := held(p.scrape(t))
		if now <= held(before)+more {
			return now
		}
		if time.Now().After(alarm) {
			t.Errorf("%.0f KiB were in use before, %.0f are now", held(before), now)
			return now
		}
	}
}

// usage is what a hub and this machine had to do in some time.
type usage struct {
	t     *testing.T
	hub   *hubProcess
	began time.Time
	cpu   float64
}

func (p *hubProcess) measure(t *testing.T) *usage {
	return &usage{t, p, time.Now(), p.scrape(t)["process_cpu_seconds_total"]}
}

// String says how many processors the hub had since then, and how many the machine wants.
func (u *usage) String() string {
	load, _ := os.ReadFile("/proc/loadavg") // "" where there is none
	return fmt.Sprintf("the hub had %.2f processors, load average %.4s", (u.hub.scrape(u.t)["process_cpu_seconds_total"]-u.cpu)/time.Since(u.began).Seconds(), load)
}

// wantSound expects of a hub that was ill-treated that it runs, that it has found nothing wrong with
// itself, that each line of its log begins as it should, and that it ends in order.
func (p *hubProcess) wantSound(t *testing.T) {
	t.Helper()
	if code := p.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	log := p.logged()
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "level=ERROR") || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' }) {
			t.Fatalf("the log has the line %q", line)
		}
	}
	if strings.Contains(log, hostileToken) || strings.Contains(log, "guessed") {
		t.Error("the log has a token")
	}
}

// TestHostileConnections has many connections do what they should not, each until it is closed and
// then again, beside good clients. The hub closes every one of them, has at most 64 KiB of memory for
// each, and is as it was when they are gone; the good clients get what they publish, once and in
// order. The hostile ones are in a process of their own, which has the processors that nobody else wants: what they
// cost the good clients is what they cost the hub, as if they came from another machine.
func TestHostileConnections(t *testing.T) {
	t.Parallel()
	needFiles(t, uint64(2**hostileConns)+500)
	seed := *fixedSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	hub := startGuarded(t)
	order := hostileOrder{WS: hub.ws, HTTP: hub.http, Seed: seed, Conns: *hostileConns, For: *hostileFor, Only: *hostileOnly}
	hub.wantSmall(t, order)
	good := newGoodClients(t, hub.ws)
	use := hub.measure(t)
	alone := good.run(t, *hostileRate, max(time.Second, *hostileFor/4))
	t.Logf("good clients: %s alone; %s", latencies(alone), use)
	before := hub.scrape(t)

	over := startHostiles(t, &order)
	use = hub.measure(t)
	beside := good.run(t, *hostileRate, *hostileFor)
	t.Logf("good clients: %s beside %d hostile connections at a time; %s", latencies(beside), *hostileConns, use)
	h := over()
	after := hub.settles(t, before)
	use = hub.measure(t)
	again := good.run(t, *hostileRate, max(time.Second, *hostileFor/4)) // a machine with others on it changes meanwhile
	t.Logf("good clients: %s alone again; %s", latencies(again), use)
	left := hub.forgets(t, before, good.at)
	t.Logf("%d hostile connections were closed, the last of them after %s; %.0f KiB before, %.0f after; %g goroutines before, %g after",
		h.Closed, h.Latest.Round(time.Millisecond), live(before), left, before["go_goroutines"], after["go_goroutines"])
	for _, k := range h.Kinds {
		t.Log(k)
	}
	for _, fault := range h.Faults {
		t.Error(fault)
	}
	if *hostileLate > 0 && h.Latest > *hostileLate {
		t.Errorf("a connection was closed after %s", h.Latest)
	}
	if ratio := float64(part(beside, 99)) / float64(max(part(alone, 99), part(again, 99))); *hostileRatio > 0 && ratio > *hostileRatio {
		t.Errorf("the 99th percentile of the good clients was %.1f times that without", ratio)
	}
	if after["eventhub_connections_evicted_total"] != 0 && *hostileConns < 3000 {
		t.Errorf("%g connections gave way", after["eventhub_connections_evicted_total"])
	}
	good.leave()
	hub.wantSound(t)
}

// wantSmall expects of a hub that has nothing else to do, so that nothing else grows in it, at most 64 KiB in use for
// each of its hostile connections.
func (p *hubProcess) wantSmall(t *testing.T, order hostileOrder) {
	t.Helper()
	order.For = max(time.Second, order.For/4)
	before := p.scrape(t)
	over := startHostiles(t, &order)
	var used, garbage, resident float64
	watched, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			m := p.scrape(t)
			used, garbage = max(used, live(m)-live(before)), max(garbage, inUse(m)-inUse(before))
			resident = max(resident, m["process_resident_memory_bytes"]-before["process_resident_memory_bytes"])
			select {
			case <-ended:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	h := over()
	close(ended)
	<-watched
	conns := float64(order.Conns)
	t.Logf("%d hostile connections, %d at a time; KiB for each of these: %.1f, with garbage %.1f, resident %.1f", h.Closed, order.Conns, used/conns, garbage/conns, resident/1024/conns)
	if used > 64*conns {
		t.Errorf("%.0f KiB are in use for each of %d connections", used/conns, order.Conns)
	}
	for _, fault := range h.Faults {
		t.Error(fault)
	}
	p.settles(t, before)
}

// goodClients are one that publishes and a group of one member that gets it. Both listen all the time, for who does not
// answer the hub's pings is closed. What is due at once, or has come at once, is written and read at once: else they
// would have as much of the processors as the hub, and what they wait for these would be taken for the hub's doing.
type goodClients struct {
	publisher, member *conn
	at                int // the number of the next event

	mu        sync.Mutex
	answered  int     // events
	delivered int     // events
	micros    []int64 // after how many each of the run under way came
	err       error   // of either of them
	progress  chan struct{}
}

func newGoodClients(t *testing.T, addr string) *goodClients {
	t.Helper()
	g := &goodClients{publisher: dial(t, addr, hostileToken), member: dial(t, addr, hostileToken), progress: make(chan struct{}, 1)}
	g.member.say(map[string]any{"op": "SUBSCRIBE", "topic": "good", "group": "g", "corr": "s", "opts": map[string]any{"max_in_flight": 100_000}})
	if f := g.member.hear(); f.Op != "OK" {
		t.Fatalf("SUBSCRIBE was answered by %+v", f)
	}
	go g.listen(g.publisher, func(f *frame, _ bool) error {
		if f.Op != "OK" {
			return fmt.Errorf("a good PUBLISH was answered by %+v", f)
		}
		g.answered++
		return nil
	})
	var acks []byte
	go g.listen(g.member, func(f *frame, more bool) error {
		var payload struct{ N, At int }
		if f.Op != "EVENT" || json.Unmarshal(f.Event.Payload, &payload) != nil || payload.N != g.delivered {
			return fmt.Errorf("event %d: got %+v", g.delivered, f)
		}
		g.delivered++
		g.micros = append(g.micros, time.Now().UnixMicro()-int64(payload.At))
		acks = append(acks, hostileFrame(ws.OpText, true, fmt.Sprintf(`{"op":"ACK","topic":"good","group":"g","lease":%q}`, f.Ctx.Lease))...)
		if more {
			return nil
		}
		_, err := g.member.Write(acks)
		acks = acks[:0]
		return err
	})
	return g
}

// listen has each frame handled, with g.mu held and whether more have come already, until that or the connection
// fails, and answers pings.
func (g *goodClients) listen(c *conn, handle func(f *frame, more bool) error) {
	in := bufio.NewReaderSize(c.Conn, 64<<10)
	both := struct {
		io.Reader
		io.Writer
	}{in, c.Conn}
	for err := c.SetReadDeadline(time.Time{}); ; {
		var f frame
		if err == nil {
			var text []byte
			if text, err = wsutil.ReadServerText(both); err == nil {
				err = json.Unmarshal(text, &f)
			}
		}
		g.mu.Lock()
		if err == nil {
			err = handle(&f, in.Buffered() > 0)
		}
		g.err = cmp.Or(g.err, err)
		g.mu.Unlock()
		select {
		case g.progress <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// run publishes for a time, and returns after how many microseconds each event came.
func (g *goodClients) run(t *testing.T, rate int, d time.Duration) (micros []int64) {
	t.Helper()
	n := int(d.Seconds() * float64(rate))
	began := time.Now()
	due := func(i int) time.Time { return began.Add(time.Duration(i) * time.Second / time.Duration(rate)) } // the rate is what is asked for
	for i := 0; i < n; {
		time.Sleep(max(time.Millisecond, time.Until(due(i))))
		var frames []byte
		for now := time.Now(); i < n && !due(i).After(now); i++ {
			frames = append(frames, hostileFrame(ws.OpText, true, fmt.Sprintf(`{"op":"PUBLISH","topic":"good","payload":{"N":%d,"At":%d}}`, g.at, now.UnixMicro()))...)
			g.at++
		}
		if _, err := g.publisher.Write(frames); err != nil {
			t.Fatal(err)
		}
	}
	for alarm := time.After(watchdog); ; {
		g.mu.Lock()
		over, err := g.answered == g.at && g.delivered == g.at, g.err
		if over {
			micros, g.micros = g.micros, nil
		}
		g.mu.Unlock()
		switch {
		case err != nil:
			t.Fatal(err)
		case over:
			return micros
		}
		select {
		case <-g.progress:
		case <-alarm:
			t.Fatalf("of %d events not all were answered and delivered within %s", g.at, watchdog)
		}
	}
}

// latencies sorts microseconds, and says how many milliseconds they are.
func latencies(micros []int64) string {
	slices.Sort(micros)
	return fmt.Sprintf("%.1f ms at the median, %.1f ms at the 99th percentile, %.1f ms at most", float64(part(micros, 50))/1000, float64(part(micros, 99))/1000, float64(micros[len(micros)-1])/1000)
}

func (g *goodClients) leave() {
	g.publisher.Close()
	g.member.Close()
}

// TestStalledConsumers: tails that stop reading are closed with 1013, each with no more memory than
// twice what may wait for its connection, and one that reads gets everything meanwhile.
func TestStalledConsumers(t *testing.T) {
	t.Parallel()
	needFiles(t, uint64(2**stalledCount)+500)
	const size, events = 100 << 10, 60 // 6 MiB each: more than the sockets and the hub hold
	hub := startGuarded(t)
	publisher, reader := dial(t, hub.ws, hostileToken), dial(t, hub.ws, hostileToken)
	tail := func(c *conn) {
		c.say(map[string]any{"op": "SUBSCRIBE", "topic": "large", "corr": "s"})
		if f := c.hear(); f.Op != "OK" {
			t.Fatalf("SUBSCRIBE was answered by %+v", f)
		}
	}
	tail(reader)
	before := hub.scrape(t)
	stalled := make([]*conn, *stalledCount)
	for i := range stalled {
		stalled[i] = dial(t, hub.ws, hostileToken)
		_ = stalled[i].Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		tail(stalled[i])
	}
	text := bytes.Repeat([]byte("x"), size)
	for i := range events {
		publisher.sayText(fmt.Appendf(nil, `{"op":"PUBLISH","topic":"large","payload":"%s%d"}`, text, i))
		if f := publisher.hear(); f.Op != "OK" {
			t.Fatalf("PUBLISH was answered by %+v", f)
		}
		if f := reader.hear(); f.Op != "EVENT" || !bytes.HasSuffix(f.Event.Payload, fmt.Appendf(nil, `x%d"`, i)) {
			t.Fatalf("the one who reads got %.200v for event %d", f, i)
		}
	}
	const closed = `eventhub_connections_closed_total{code="1013"}`
	var peak, garbage float64
	for alarm := time.Now().Add(watchdog); ; {
		m := hub.scrape(t)
		peak, garbage = max(peak, live(m)-live(before)), max(garbage, inUse(m)-inUse(before))
		if m[closed] >= float64(*stalledCount) {
			break
		}
		if time.Now().After(alarm) {
			t.Fatalf("%g of %d were closed with 1013", m[closed], *stalledCount)
		}
		time.Sleep(50 * time.Millisecond) // the hub says to nobody else when it closes one
	}
	for _, c := range stalled {
		c.Close()
	}
	after := hub.settles(t, before)
	left := hub.forgets(t, before, events)
	t.Logf("%d stalled: %.0f KiB for each, with garbage %.0f, %.0f KiB before, %.0f after; %g goroutines before, %g after", *stalledCount, peak/float64(*stalledCount), garbage/float64(*stalledCount),
		live(before), left, before["go_goroutines"], after["go_goroutines"])
	// Each has 1 MiB that waits, in two pieces of memory of 1 MiB at most.
	if peak > 2.25*1024*float64(*stalledCount)+8<<10 {
		t.Errorf("%.0f KiB are in use for each of %d consumers that stopped reading", peak/float64(*stalledCount), *stalledCount)
	}
	publisher.Close()
	reader.Close()
	hub.wantSound(t)
}

// TestComingAndGoing: connections that come, do something and go, in order or not, leave nothing.
func TestComingAndGoing(t *testing.T) {
	t.Parallel()
	hub := startGuarded(t)
	pass := func(i int) error {
		c, err := net.Dial("tcp", hub.ws)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(watchdog))
		say := hostileUpgrade + hostileFrame(ws.OpText, true, `{"op":"AUTH","token":"`+hostileToken+`"}`)
		frames := []string{
			fmt.Sprintf(`{"op":"SUBSCRIBE","topic":"passing","group":"g-%d"}`, i%10),
			`{"op":"SUBSCRIBE","topic":"passing"}`,
			fmt.Sprintf(`{"op":"PUBLISH","topic":"passed","payload":%d}`, i), // which no group has to keep in mind
		}
		for _, frame := range frames[:i%4] {
			say += hostileFrame(ws.OpText, true, frame)
		}
		if i%3 == 0 {
			say += hostileFrame(ws.OpClose, true, "\x03\xe8")
		}
		if _, err := io.WriteString(c, say); err != nil {
			return err
		}
		r := bufio.NewReader(c)
		if answer, err := http.ReadResponse(r, nil); err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			return fmt.Errorf("the upgrade was answered by %v, %w", answer, err)
		}
		if i%3 == 0 {
			_, err = io.Copy(io.Discard, r) // to the end of the handshake
			return err
		}
		if _, err := r.ReadByte(); err != nil {
			return err
		}
		if i%3 == 1 {
			_ = c.(*net.TCPConn).SetLinger(0) // a reset
		}
		return nil
	}
	for i := range 12 { // the topic and the groups are there
		if err := pass(i); err != nil {
			t.Fatal(err)
		}
	}
	before := hub.scrape(t)
	before["eventhub_connections"] = 0 // one of those may not have ended yet
	began := time.Now()
	var going sync.WaitGroup
	places := make(chan struct{}, 100)
	for i := range *passingCount {
		if *passingRate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(*passingRate))))
		}
		places <- struct{}{}
		going.Go(func() {
			if err := pass(i); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
			<-places
		})
	}
	going.Wait()
	after := hub.settles(t, before)
	opened, now := after["eventhub_connections_opened_total"]-before["eventhub_connections_opened_total"], after["eventhub_connections"]
	if opened != float64(*passingCount) || now != 0 || after["eventhub_subscriptions"] != 0 {
		t.Errorf("%g connections were opened, %g are there, with %g subscriptions; want %d, none and none", opened, now, after["eventhub_subscriptions"], *passingCount)
	}
	t.Logf("%.0f KiB before, %.0f after %d connections in %s; %g goroutines before, %g after", live(before), hub.forgets(t, before, *passingCount), *passingCount,
		time.Since(began).Round(time.Millisecond), before["go_goroutines"], after["go_goroutines"])
	hub.wantSound(t)
}
