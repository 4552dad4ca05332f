package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
)

// binary is the real program, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	if os.Getenv(faultEnv) != "" {
		os.Exit(runFaultyHub())
	}
	if os.Getenv(projectorEnv) != "" {
		os.Exit(runProjector())
	}
	if os.Getenv(hostileEnv) != "" {
		os.Exit(runHostiles())
	}
	dir, err := os.MkdirTemp("", "eventhub-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "eventhub")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the binary: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// watchdog ends waits that would otherwise hang a broken build for ever. It is
// far above anything that a loaded machine needs.
const watchdog = 60 * time.Second

// hubProcess is a running eventhub.
type hubProcess struct {
	t       *testing.T
	cmd     *exec.Cmd
	serving chan struct{} // closed when it does
	ended   chan struct{}
	// The addresses that it listens on.
	ws, http, ops string

	more chan struct{} // has a token when the log has got more lines

	mu  sync.Mutex
	log strings.Builder
}

// up is the log line that says that the hub serves, and where.
var up = regexp.MustCompile(`msg="hub is up" ws=(\S+) http=(\S+) ops=(\S+)`)

// startHub runs `eventhub serve` on free ports and waits until it serves.
func startHub(t *testing.T, args ...string) *hubProcess {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"serve", "--ws", "127.0.0.1:0", "--http", "localhost:0", "--ops", "127.0.0.2:0"}, args...)...)
	cmd.Env = cleanEnv()
	p := launch(t, cmd)
	if !p.serves() {
		t.Fatalf("the hub ended at once:\n%s", p.logged())
	}
	return p
}

// startPatientHub is startHub for tests whose publishers do not come again: the hub refuses no publish because the machine is slow.
func startPatientHub(t *testing.T, args ...string) *hubProcess {
	t.Helper()
	return startHub(t, append(args, "--max-publish-wait", "1m")...)
}

// launch starts a hub, which ends with the test at the latest.
func launch(t *testing.T, cmd *exec.Cmd) *hubProcess {
	t.Helper()
	p := &hubProcess{t: t, cmd: cmd, serving: make(chan struct{}), ended: make(chan struct{}), more: make(chan struct{}, 1)}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.follow(stderr, p.serving)
	t.Cleanup(p.kill)
	return p
}

// serves waits until the hub serves, or has ended.
func (p *hubProcess) serves() bool {
	p.t.Helper()
	select {
	case <-p.serving:
		return true
	case <-p.ended:
		return false
	case <-time.After(watchdog):
		p.t.Fatalf("the hub did not come up:\n%s", p.logged())
		return false
	}
}

// follow collects the log until the process has ended.
func (p *hubProcess) follow(stderr io.Reader, serving chan<- struct{}) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		p.mu.Lock()
		fmt.Fprintln(&p.log, lines.Text())
		m := up.FindStringSubmatch(lines.Text())
		if m != nil {
			p.ws, p.http, p.ops = m[1], m[2], m[3]
		}
		p.mu.Unlock()
		select {
		case p.more <- struct{}{}:
		default:
		}
		if m != nil {
			close(serving)
		}
	}
	_ = p.cmd.Wait() // the exit code is in ProcessState
	close(p.ended)
}

func (p *hubProcess) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// kill ends the process as a power button would, as far as a process can.
func (p *hubProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.ended
}

// stop sends SIGTERM and returns the exit code.
func (p *hubProcess) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.exitCode()
}

func (p *hubProcess) exitCode() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(watchdog):
		p.t.Fatalf("the hub does not end:\n%s", p.logged())
	}
	return p.cmd.ProcessState.ExitCode()
}

// cleanEnv is the environment without what would configure a hub.
func cleanEnv(extra ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case strings.HasPrefix(name, "EVENTHUB_"), strings.HasSuffix(name, "_PORT"),
			strings.HasSuffix(name, "_TOKEN"), name == "MONGO_URL":
		default:
			env = append(env, v)
		}
	}
	return append(env, extra...)
}

// runBinary runs a command that ends by itself.
func runBinary(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(env...), &out, &errs
	cmd.Dir = t.TempDir()
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%v did not end:\n%s", args, errs.String())
	}
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// runUntil runs the program until it has said a text, stops it, and returns all that it said.
func runUntil(t *testing.T, env []string, text string, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Dir = cleanEnv(env...), t.TempDir()
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(watchdog, func() { _ = cmd.Process.Kill() }) // it may have ended
	defer timer.Stop()
	var all strings.Builder
	found := false
	for lines := bufio.NewScanner(said); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if !found && strings.Contains(lines.Text(), text) {
			found = true
			_ = cmd.Process.Signal(syscall.SIGTERM) // likewise
		}
	}
	err = cmd.Wait()
	if !found {
		t.Fatalf("%v did not say %q: %v\n%s", args, text, err, &all)
	}
	return all.String()
}

// frame is any frame of the hub.
type frame struct {
	Op        string
	Corr      string
	Code      string
	Msg       string
	ID        string
	Offset    uint64
	Duplicate bool
	Stale     bool
	Topic     string
	Group     string
	Event     struct {
		ID      string
		Offset  uint64
		Topic   string
		Key     string
		TS      int64
		Payload json.RawMessage
	}
	Ctx struct {
		Attempt int
		Lease   string
		Gap     *eventhub.Gap
	}
	Gaps []eventhub.Gap // of the OK of a tail
}

// conn is a WebSocket connection, as a client in another language would have
// it: text frames in, text frames out.
type conn struct {
	t *testing.T
	net.Conn
}

// dial connects and says AUTH.
func dial(t *testing.T, addr, token string) *conn {
	t.Helper()
	c := dialOnly(t, addr)
	c.say(map[string]any{"op": "AUTH", "token": token, "corr": "auth"})
	if f := c.hear(); f.Op != "OK" || f.Corr != "auth" {
		t.Fatalf("AUTH was answered by %+v", f)
	}
	return c
}

func dialOnly(t *testing.T, addr string) *conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	nc, br, _, err := ws.Dial(ctx, "ws://"+addr+"/")
	if err != nil {
		t.Fatal(err)
	}
	if br != nil && br.Buffered() > 0 {
		t.Fatal("the hub spoke before it was spoken to")
	}
	c := &conn{t, nc}
	t.Cleanup(func() { nc.Close() })
	return c
}

func (c *conn) say(v any) {
	c.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	c.sayText(b)
}

func (c *conn) sayText(b []byte) {
	c.t.Helper()
	if err := wsutil.WriteClientText(c.Conn, b); err != nil {
		c.t.Fatal(err)
	}
}

// hear waits for the next frame.
func (c *conn) hear() frame {
	c.t.Helper()
	f, err := c.next()
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *conn) next() (frame, error) {
	var f frame
	if err := c.SetReadDeadline(time.Now().Add(watchdog)); err != nil {
		return f, err
	}
	b, err := wsutil.ReadServerText(c.Conn)
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(b, &f)
}
