package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// upWithin and downWithin bound how long a hub takes to start and to stop.
	upWithin   = 30 * time.Second
	downWithin = 60 * time.Second
	// keptLog is how much of a hub's log is shown when it fails, in bytes.
	keptLog = 4 << 10
)

// Server is a hub of the run's own: a second process over a fresh directory, on
// free ports of the loopback, which goes when the run does.
type Server struct {
	URL, Ops string

	cmd   *exec.Cmd
	dir   string
	ended chan struct{}
	exit  error

	mu  sync.Mutex
	log string // the last of it
}

// up is the line of the log that says where the hub listens.
var up = regexp.MustCompile(`msg="hub is up" ws=(\S+) http=\S+ ops=(\S+)`)

// Serve starts `binary serve` with a fresh directory inside dir (empty: that of
// temporary files), and returns when it serves. args come after its own. Nothing
// of the environment that would configure a hub reaches it.
func Serve(ctx context.Context, binary, dir string, args ...string) (*Server, error) {
	fresh, err := os.MkdirTemp(dir, "eventhub-bench-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: fresh, ended: make(chan struct{})}
	s.cmd = exec.Command(binary, append([]string{
		"serve", "--store", s.Store(), "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0",
	}, args...)...)
	s.cmd.Dir, s.cmd.Env = fresh, serverEnv(os.Environ())
	log, err := s.cmd.StderrPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(fresh))
	}
	serving := make(chan struct{})
	go s.follow(log, serving)
	late := time.NewTimer(upWithin)
	defer late.Stop()
	select {
	case <-serving:
		return s, nil
	case <-s.ended:
		err = errors.New("the hub ended at once")
	case <-late.C:
		err = fmt.Errorf("the hub does not serve within %s", upWithin)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = s.cmd.Process.Kill() // it may have ended already
	<-s.ended
	return nil, errors.Join(fmt.Errorf("%w; its log: %s", err, s.logged()), os.RemoveAll(fresh))
}

// serverEnv is the environment without what configures hubs and clients.
func serverEnv(env []string) (kept []string) {
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case strings.HasPrefix(name, "EVENTHUB_"), strings.HasPrefix(name, "AUTH_TOKEN"), strings.HasPrefix(name, "JWT_"),
			strings.HasPrefix(name, "WS_"), strings.HasSuffix(name, "_PORT"), name == "MONGO_URL":
		default:
			kept = append(kept, v)
		}
	}
	return kept
}

// follow reads the log until the process has ended.
func (s *Server) follow(log io.Reader, serving chan<- struct{}) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		s.mu.Lock()
		s.log += lines.Text() + "\n"
		s.log = s.log[max(len(s.log)-keptLog, 0):]
		s.mu.Unlock()
		if m := up.FindStringSubmatch(lines.Text()); m != nil && s.URL == "" {
			s.URL, s.Ops = "ws://"+m[1], "http://"+m[2]
			close(serving)
		}
	}
	_, _ = io.Copy(io.Discard, log) // what the scanner would not take must not block the hub
	s.exit = s.cmd.Wait()
	close(s.ended)
}

func (s *Server) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(s.log)
}

// Store is the directory of its store.
func (s *Server) Store() string { return filepath.Join(s.dir, "store") }

// PID is the hub's process id.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Stop stops the hub in order, as SIGTERM does, and removes its directory. It
// returns what was not in order.
func (s *Server) Stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	late := time.NewTimer(downWithin)
	defer late.Stop()
	var err error
	select {
	case <-s.ended:
	case <-late.C:
		err = fmt.Errorf("the hub does not stop within %s", downWithin)
		_ = s.cmd.Process.Kill() // Wait says why
		<-s.ended
	}
	if s.exit != nil {
		err = errors.Join(err, fmt.Errorf("the hub stopped, not in order: %w; its log: %s", s.exit, s.logged()))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
