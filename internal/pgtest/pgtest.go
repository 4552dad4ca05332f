// Package pgtest runs a real PostgreSQL server for tests: Debian's program, over a data
// directory of its own, on a free port of this machine. The server of a test process is
// started once; each test gets a database of its own. Nothing is skipped where there is no
// server: the test fails and says what is missing.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"eventhub/internal/freeport"
)

// patience is far above what a loaded machine needs for a start or a stop.
const patience = time.Minute

// Server is a running server.
type Server struct {
	bin, dir string
	port     string
	durable  bool
	as       *syscall.Credential // PostgreSQL refuses to run as root

	mu      sync.Mutex
	cmd     *exec.Cmd
	ended   chan struct{}
	log     *bytes.Buffer
	created int // databases
}

var shared struct {
	sync.Mutex
	server *Server
}

// Main runs the tests of a package that uses [Shared], stops the server after them, and looks for
// goroutines that are left. It is for TestMain, which gives the result to os.Exit.
func Main(m *testing.M) int {
	code := m.Run()
	if err := errors.Join(End(), goleak.Find()); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// End stops the server of [Shared], where there is one. It is for a TestMain that does what [Main] does by itself.
func End() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return nil
	}
	s := shared.server
	shared.server = nil
	return s.Close()
}

// Shared returns the URL of a new database in the server of this test process, which is
// started by the first call and keeps nothing over a crash. The package's TestMain is [Main].
func Shared(t testing.TB) string {
	t.Helper()
	shared.Lock()
	if shared.server == nil {
		s, err := start(false)
		if err != nil {
			shared.Unlock()
			t.Fatal(err)
		}
		shared.server = s
	}
	s := shared.server
	shared.Unlock()
	return s.Database(t)
}

// Start starts a server for one test that keeps what is committed over [Server.Kill].
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := start(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func start(durable bool) (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, durable: durable}
	if os.Getuid() == 0 {
		if s.as, err = account(); err != nil {
			return nil, err
		}
	}
	if s.dir, err = os.MkdirTemp("", "pgtest-"); err != nil {
		return nil, err
	}
	if err := s.initialise(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.Run(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

// programs returns the directory of the newest PostgreSQL of this machine.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		return "", errors.New("pgtest: these tests need PostgreSQL (package postgresql)")
	}
	return filepath.Dir(slices.Max(found)), nil
}

// account is that of Debian's package, or nobody's.
func account() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("pgtest: there is no account postgres, and PostgreSQL does not run as root")
}

// command is a program of PostgreSQL in a process group of its own.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.as}
	return cmd
}

func (s *Server) initialise() error {
	if s.as != nil {
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return err
		}
	}
	out, err := s.command("initdb", "--pgdata", filepath.Join(s.dir, "data"), "--username", "test", "--auth", "trust",
		"--encoding", "UTF8", "--no-locale", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgtest: initdb: %w\n%s", err, out)
	}
	addr, err := freeport.On("127.0.0.1")
	if err != nil {
		return err
	}
	_, s.port, err = net.SplitHostPort(addr)
	return err
}

// Run starts the server again after [Server.Kill], on the same port, and waits until it
// answers.
func (s *Server) Run() error {
	settings := []string{
		"listen_addresses=127.0.0.1", "port=" + s.port, "unix_socket_directories=", "max_connections=100",
		"shared_buffers=64MB", "dynamic_shared_memory_type=mmap", "log_statement=none",
	}
	if !s.durable {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	args := []string{"-D", filepath.Join(s.dir, "data")}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log, s.ended = new(bytes.Buffer), make(chan struct{})
	s.cmd = s.command("postgres", args...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // its log says why
		close(ended)
	}(s.cmd, s.ended)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, s.url("postgres"))
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-s.ended:
			return fmt.Errorf("pgtest: the server ended at once:\n%s", s.log)
		case <-ctx.Done():
			return fmt.Errorf("pgtest: the server does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) url(database string) string {
	return fmt.Sprintf("postgres://test@127.0.0.1:%s/%s?sslmode=disable", s.port, database)
}

// Database makes a database, and returns its URL. It is there until the server is closed.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	s.created++
	name := "test" + strconv.Itoa(s.created)
	s.mu.Unlock()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Exec(ctx, "CREATE DATABASE "+name)
	if err = errors.Join(err, c.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	return s.url(name)
}

// Kill ends the server and all its processes as a power loss does, except that the system
// keeps what was written; and waits for their end. [Server.Run] starts it again.
func (s *Server) Kill() { s.stop(syscall.SIGKILL) }

func (s *Server) stop(signal syscall.Signal) {
	s.mu.Lock()
	cmd, ended := s.cmd, s.ended
	s.mu.Unlock()
	to := cmd.Process.Pid
	if signal == syscall.SIGKILL {
		to = -to // its children too, which would go on for a while
	}
	_ = syscall.Kill(to, signal) // it may have ended
	select {
	case <-ended:
	case <-time.After(patience):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}
}

// Close ends the server and removes its data.
func (s *Server) Close() error {
	s.stop(syscall.SIGINT)
	err := os.RemoveAll(s.dir)
	if err != nil && strings.Contains(err.Error(), "not empty") { // a child wrote its last words
		err = os.RemoveAll(s.dir)
	}
	return err
}
