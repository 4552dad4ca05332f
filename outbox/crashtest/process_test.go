package crashtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"eventhub/internal/freeport"
	"eventhub/internal/pgtest"
)

// watchdog ends waits that would otherwise hang a broken build for ever.
const watchdog = 2 * time.Minute

// binary is the real program, built once.
var binary string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "crashtest-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "eventhub")
	build := exec.Command("go", "build", "-o", binary, "eventhub/cmd/eventhub")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the binary: %v\n%s", err, out)
		return 1
	}
	return pgtest.Main(m)
}

// process is a program that is killed and started again, with the same arguments.
type process struct {
	t    *testing.T
	name string
	make func() *exec.Cmd
	// ready is a part of the line with which the program says that it works; empty where
	// nobody waits for that.
	ready string

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
	lines []string
	seen  func(line string)
}

func start(t *testing.T, name, ready string, seen func(string), make func() *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, make: make, ready: ready, seen: seen}
	p.run()
	t.Cleanup(p.kill)
	return p
}

// run starts the program, and waits until it is ready.
func (p *process) run() {
	p.t.Helper()
	cmd := p.make()
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended, ready := make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.cmd, p.ended = cmd, ended
	p.mu.Unlock()
	go func() {
		once := sync.OnceFunc(func() { close(ready) })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			p.mu.Lock()
			p.lines = append(p.lines, line)
			if len(p.lines) > 200 {
				p.lines = p.lines[100:]
			}
			p.mu.Unlock()
			if p.ready == "" || strings.Contains(line, p.ready) {
				once()
			}
			if p.seen != nil {
				p.seen(line)
			}
		}
		_ = cmd.Wait()
		close(ended)
	}()
	if p.ready == "" {
		return
	}
	select {
	case <-ready:
	case <-ended:
		p.t.Fatalf("%s ended at once:\n%s", p.name, p.log())
	case <-time.After(watchdog):
		p.t.Fatalf("%s does not come up:\n%s", p.name, p.log())
	}
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// kill kills the program and waits for its end.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// stop ends the program in order.
func (p *process) stop() { p.end(syscall.SIGTERM) }

func (p *process) end(signal syscall.Signal) {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.mu.Unlock()
	_ = cmd.Process.Signal(signal)
	select {
	case <-ended:
	case <-time.After(watchdog):
		_ = cmd.Process.Kill()
		p.t.Errorf("%s does not end:\n%s", p.name, p.log())
	}
}

// environment is that of this process without what configures a hub.
func environment(extra ...string) (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "EVENTHUB_") && !strings.Contains(v, "_PORT=") && !strings.Contains(v, "_TOKEN=") {
			env = append(env, v)
		}
	}
	return append(env, extra...)
}

// freePorts returns addresses that nobody listens at.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for len(addrs) < n {
		addr, err := freeport.On("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
