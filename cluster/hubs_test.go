package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/cockroachdb/pebble/v2"

	"eventhub/store/journal"
	store "eventhub/store/pebble"
)

// programDir is where the program is, which is built once; TestMain removes it.
var programDir string

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cluster")
	if err != nil {
		return "", err
	}
	programDir = dir
	path := filepath.Join(dir, "eventhub")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/eventhub")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

// hub is one process of the program that shares the journal.
type hub struct {
	t             testing.TB
	program       string
	name, dir     string
	journal       string
	lease         time.Duration
	ws, http, ops int
	flags         []string // besides those
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
	h.cmd = exec.Command(h.program, append([]string{"serve", "--journal", h.journal, "--lease", h.lease.String(), "--member-id", h.name, "--member-url", h.url(),
		"--store", filepath.Join(h.dir, "store"), "--ws", strconv.Itoa(h.ws), "--http", strconv.Itoa(h.http), "--ops", strconv.Itoa(h.ops)}, h.flags...)...)
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

// startHubs starts so many hubs; url is where the journal is for one of them.
func startHubs(t testing.TB, n int, lease time.Duration, url func(i int) string, flags ...string) (hubs []*hub) {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	free := ports(t, 3*n)
	for i := range n {
		h := &hub{
			t: t, program: program, name: fmt.Sprintf("hub%d", i), dir: t.TempDir(), journal: url(i), lease: lease, flags: flags,
			ws: free[3*i], http: free[3*i+1], ops: free[3*i+2],
		}
		h.start()
		t.Cleanup(func() {
			h.signal(syscall.SIGKILL)
			<-h.ended
			if t.Failed() {
				t.Logf("%s:\n%s", h.name, h.logged())
			}
		})
		hubs = append(hubs, h)
	}
	return hubs
}

// active waits for the hub that serves, other than one.
func (r *rig) active(other *hub) *hub {
	r.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, h := range r.hubs {
			if h == other {
				continue
			}
			if status, _ := h.ready(); status == http.StatusOK {
				return h
			}
		}
	}
	r.t.Fatal("no hub leads")
	return nil
}

// await waits until what a hub says of its readiness has a text.
func (h *hub) await(text string) {
	h.t.Helper()
	said := ""
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, said = h.ready(); strings.Contains(said, text) {
			return
		}
	}
	h.t.Fatalf("%s does not say %q: %s", h.name, text, said)
}

const isStandby = "standby of"

// contents follows the journal to its end, as a standby does that comes back, and returns all that
// the hub has then. The hub was killed.
func (h *hub) contents(open func() journal.Journal) (all [][2]string, at journal.Position) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "store")
	at = h.complete(dir, open())
	return keysOf(h.t, dir), at
}

// copied returns all that a hub has that has ended, and where it is.
func (h *hub) copied() (all [][2]string, at journal.Position) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "store")
	replica, err := store.OpenReplica(store.Options{Dir: dir})
	if err != nil {
		h.t.Fatalf("open the copy of %s: %v", h.name, err)
	}
	at = replica.Position()
	if err := replica.Close(); err != nil {
		h.t.Fatal(err)
	}
	return keysOf(h.t, dir), at
}

// keysOf returns all keys and values in a directory.
func keysOf(t testing.TB, dir string) (all [][2]string) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{ReadOnly: true, Logger: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	iter, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer iter.Close()
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, [2]string{string(iter.Key()), string(value)})
	}
	if err := iter.Error(); err != nil {
		t.Fatal(err)
	}
	return all
}

// complete applies what the journal has more than a copy, and closes it.
func (h *hub) complete(dir string, j journal.Journal) journal.Position {
	h.t.Helper()
	defer j.Close()
	replica, err := store.OpenReplica(store.Options{Dir: dir})
	if err != nil {
		h.t.Fatalf("open the copy of %s: %v", h.name, err)
	}
	defer func() {
		if err := replica.Close(); err != nil {
			h.t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	last, err := j.Last(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	whole := errors.New("everything is there")
	err = journal.New(j).Follow(ctx, replica.Position(), func(e journal.Entry) error {
		if err := replica.Apply(e.Data, e.Position); err != nil {
			return err
		}
		if e.Position.Seq >= last {
			return whole
		}
		return nil
	})
	if replica.Position().Seq < last && !errors.Is(err, whole) {
		h.t.Fatalf("complete the copy of %s, at %d of %d: %v", h.name, replica.Position().Seq, last, err)
	}
	return replica.Position()
}

type silent struct{}

func (silent) Infof(string, ...any)              {}
func (silent) Errorf(string, ...any)             {}
func (silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
