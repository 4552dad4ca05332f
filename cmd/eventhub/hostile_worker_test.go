package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"
)

// hostileKind is one way to cost a hub more than it should.
type hostileKind struct {
	name  string
	first string                      // at once
	rest  func(rnd *rand.Rand) string // then again and again; nil: nothing
	every time.Duration               // between two of these
	deaf  bool                        // it reads nothing before a write fails, which is when the kernel has forgotten it
	known bool                        // it has shown a right

	closed, latest atomic.Int64
}

const hostileUpgrade = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

func again(text string) func(*rand.Rand) string { return func(*rand.Rand) string { return text } }

func hostileFrame(op ws.OpCode, fin bool, text string) string {
	return string(ws.MustCompileFrame(ws.MaskFrame(ws.NewFrame(op, fin, []byte(text)))))
}

// hostileLength is the header of a text frame that announces so many bytes.
func hostileLength(n uint64) string {
	b := []byte{0x81, 0xff}
	for shift := 56; shift >= 0; shift -= 8 {
		b = append(b, byte(n>>shift))
	}
	return string(b) + "mask"
}

func random(rnd *rand.Rand) string {
	b := make([]byte, 1+rnd.IntN(500))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return string(b)
}

var hostileKinds = [...]hostileKind{
	{name: "says nothing"},
	{name: "a header by bytes", first: "GET / HTTP/1.1\r\nX-A: ", rest: again("a"), every: 100 * time.Millisecond},
	{name: "headers without end", first: "GET / HTTP/1.1\r\n", rest: again("X-A: aaaaaaaaaaaaaaaaaaaa\r\n"), every: 20 * time.Millisecond},
	{name: "a header without end", first: "GET / HTTP/1.1\r\nX-A: ", rest: again(strings.Repeat("a", 1000)), every: 10 * time.Millisecond},
	{name: "a body by bytes", first: "POST /publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", rest: again("1"), every: 100 * time.Millisecond},
	{name: "a body without end", first: "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nAuthorization: Bearer guessed\r\n\r\n", rest: again("5\r\n{\"a\":\r\n"), every: 10 * time.Millisecond},
	{name: "requests, and reads nothing", first: "", rest: again("GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n"), every: 20 * time.Millisecond, deaf: true},
	{name: "escapes in a request", first: "GET /\x1b[2J%0d%0a%1b[31m HTTP/1.1\r\nHost: localhost\r\nUser-Agent: \x1b[31m\r\nAuthorization: Bearer guessed%0a\r\n\r\n"},
	{name: "an upgrade, and nothing", first: hostileUpgrade},
	{name: "frames by bytes", first: hostileUpgrade + "\x81\xfe\x10\x00mask", rest: again("x"), every: 50 * time.Millisecond},
	{name: "fragments of a byte", first: hostileUpgrade + hostileFrame(ws.OpText, false, "x"), rest: again(strings.Repeat(hostileFrame(ws.OpContinuation, false, "x"), 100)), every: 20 * time.Millisecond},
	{name: "a length of 2^63", first: hostileUpgrade + hostileLength(1<<63)},
	{name: "a length of 2^62", first: hostileUpgrade + hostileLength(1<<62)},
	{name: "no mask", first: hostileUpgrade + "\x81\x0e" + `{"op":"AUTH"}x`},
	{name: "pings, and reads nothing", first: hostileUpgrade, rest: again(hostileFrame(ws.OpPing, true, strings.Repeat("p", 125))), every: 20 * time.Millisecond, deaf: true},
	{name: "AUTH with guessed tokens", first: hostileUpgrade, rest: again(hostileFrame(ws.OpText, true, `{"op":"AUTH","token":"guessed"}`)), every: time.Millisecond},
	{name: "AUTH with guessed tokens, slowly", first: hostileUpgrade, rest: again(hostileFrame(ws.OpText, true, `{"op":"AUTH","token":"guessed"}`)), every: 500 * time.Millisecond},
	{name: "escapes in a frame", first: hostileUpgrade + hostileFrame(ws.OpText, true, "{\"op\":\"\x1b[31m\\n\\u001b\",\"corr\":\"\\u0000\\r\\n\"}") + hostileFrame(ws.OpText, true, "{\"op\":\"AUTH\",\"token\":\"guessed\",\"name\":\"\\u001b[2J\\n\"}")},
	{name: "random bytes", rest: random, every: 10 * time.Millisecond},
	{name: "random bytes after the upgrade", first: hostileUpgrade, rest: random, every: 20 * time.Millisecond},
	{name: "AUTH, and a length of 2^62", known: true, first: hostileUpgrade + hostileFrame(ws.OpText, true, `{"op":"AUTH","token":"`+hostileToken+`"}`) + hostileLength(1<<62)},
	{name: "AUTH, and fragments of a byte", known: true, first: hostileUpgrade + hostileFrame(ws.OpText, true, `{"op":"AUTH","token":"`+hostileToken+`"}`) + hostileFrame(ws.OpText, false, "x"),
		rest: again(strings.Repeat(hostileFrame(ws.OpContinuation, false, "x"), 100)), every: 10 * time.Millisecond},
}

// hostileOrder says what a process with hostile connections does.
type hostileOrder struct {
	WS, HTTP string // the addresses of the hub
	Seed     uint64
	Conns    int
	For      time.Duration
	Only     string // the kinds whose names have this
}

// hostileReport is what it has seen.
type hostileReport struct {
	Closed int64
	Latest time.Duration // after which a connection was closed that had shown no right
	Kinds  []string
	Faults []string
}

// hostileEnv has the order of such a process.
const hostileEnv = "EVENTHUB_TEST_HOSTILES"

// startHostiles starts one, and returns what waits for its end.
func startHostiles(t *testing.T, o *hostileOrder) (over func() *hostileReport) {
	t.Helper()
	order, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	below := []string{"nice", "-n", "19"}
	if _, err := exec.LookPath("chrt"); err == nil { // of Linux; on it the kernel lets even the least nice have some milliseconds before others
		below = []string{"chrt", "--idle", "0"}
	}
	cmd := exec.Command(below[0], append(below[1:], os.Args[0])...)
	// One processor: of two, the other one is not theirs, and who waits for one of the kernel's queues does not wait there
	// while the other processor has only them.
	cmd.Env = append(os.Environ(), hostileEnv+"="+string(order), "GOMAXPROCS=1")
	var said, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() *hostileReport {
		err, report := <-ended, new(hostileReport)
		if err == nil {
			err = json.Unmarshal(said.Bytes(), report)
		}
		if err != nil {
			t.Fatalf("the hostile connections: %v\n%s", err, log.Bytes())
		}
		return report
	}
}

// runHostiles is such a process.
func runHostiles() int {
	o := new(hostileOrder)
	err := json.Unmarshal([]byte(os.Getenv(hostileEnv)), o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(attackAll(o))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func attackAll(o *hostileOrder) *hostileReport {
	until := time.Now().Add(o.For)
	h := &hostiles{hostileOrder: o}
	var kinds []*hostileKind
	for i := range hostileKinds {
		if strings.Contains(hostileKinds[i].name, o.Only) {
			kinds = append(kinds, &hostileKinds[i])
		}
	}
	var all sync.WaitGroup
	for slot := range o.Conns {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(o.Seed, uint64(slot)))
			time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))   // else all dial at once, each second
			for n := slot; n == slot || time.Now().Before(until); n++ { // each begins with another one
				again := time.Now().Add(time.Second)
				h.attack(kinds[n%len(kinds)], rnd)
				time.Sleep(time.Until(again)) // so that the machine is not busy with them alone
			}
		})
	}
	all.Wait()
	return &hostileReport{Closed: h.closed.Load(), Latest: time.Duration(h.latest.Load()), Kinds: h.kinds(), Faults: h.faults}
}

// hostiles attack a hub and see how long each of them is let.
type hostiles struct {
	*hostileOrder
	closed, latest atomic.Int64

	mu     sync.Mutex
	faults []string
}

func (h *hostiles) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// attack does one thing until the hub has closed the connection.
func (h *hostiles) attack(k *hostileKind, rnd *rand.Rand) {
	addr := h.WS
	if rnd.IntN(2) == 0 && !strings.HasPrefix(k.first, hostileUpgrade) {
		addr = h.HTTP
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		h.fault("%s: %v", k.name, err)
		return
	}
	defer conn.Close()
	if k.deaf {
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // a larger one is only later
	}
	began := time.Now()
	_ = conn.SetDeadline(began.Add(watchdog))
	over := make(chan struct{})
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, err := io.WriteString(conn, k.first)
		for err == nil && k.rest != nil {
			select {
			case <-over:
				return
			case <-time.After(k.every):
				_, err = io.WriteString(conn, k.rest(rnd))
			}
		}
	}()
	if k.deaf {
		<-said // a write fails
	}
	_, err = io.Copy(io.Discard, conn)
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		h.fault("%s: not closed within %s", k.name, watchdog)
	}
	took := int64(time.Since(began) - sinceHeard(conn))
	close(over)
	conn.Close()
	<-said
	h.closed.Add(1)
	k.closed.Add(1)
	for _, latest := range []*atomic.Int64{&h.latest, &k.latest} {
		if (k.deaf || k.known) && latest == &h.latest {
			continue // it sees it late, or has shown a right
		}
		for was := latest.Load(); was < took && !latest.CompareAndSwap(was, took); was = latest.Load() {
		}
	}
}

// kinds says of each kind how many there were, and after how long the last of them was closed.
func (h *hostiles) kinds() (lines []string) {
	for i := range hostileKinds {
		k := &hostileKinds[i]
		lines = append(lines, fmt.Sprintf("%6.2f s at most: %d x %s", time.Duration(k.latest.Load()).Seconds(), k.closed.Load(), k.name))
	}
	slices.Sort(lines)
	return lines
}
