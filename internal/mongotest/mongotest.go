// Package mongotest gives tests a server with the wire protocol of MongoDB: the one that the
// environment variable MONGODB_URI names, or FerretDB, a program of the module in ferretdb,
// as a child process with its data in a directory of its own, or, where FERRETDB_OVER is postgres, in a PostgreSQL of the
// test's own (package pgtest).
//
// FerretDB has no transactions, no change streams and no TTL indexes, and its updates read,
// change and write documents in steps of their own. A test that needs more asks [Real].
package mongotest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/internal/freeport"
	"eventhub/internal/pgtest"
)

// Env names the environment variable with the address of a real server.
const Env = "MONGODB_URI"

// overEnv names the environment variable that says where FerretDB has its data: "postgres", or SQLite.
const overEnv = "FERRETDB_OVER"

// OverPostgres reports whether FerretDB has its data in PostgreSQL.
func OverPostgres() bool { return !Real() && os.Getenv(overEnv) == "postgres" }

// Real reports whether the tests use a real server.
func Real() bool { return os.Getenv(Env) != "" }

// startWithin is how long a server may take until it listens; it takes a tenth of a second.
const startWithin = time.Minute

// Server is a FerretDB of a test's own. Its methods are not safe for concurrent use.
type Server struct {
	URI string

	program, dir string
	postgres     string // the URL of its database, where it has one
	cmd          *exec.Cmd
	stdin        io.Closer
	stdout       *os.File
}

// Start builds FerretDB where that is needed, and starts it with its data in dir.
func Start(dir string) (*Server, error) { return StartOver(dir, "") }

// StartOver is Start with the data in a database of PostgreSQL, whose URL it is; dir has the log.
func StartOver(dir, postgres string) (*Server, error) {
	program, err := build()
	if err != nil {
		return nil, err
	}
	s := &Server{program: program, dir: dir, postgres: postgres}
	return s, s.Restart()
}

// Own returns a server that only this test uses, and that ends with it: over PostgreSQL where FERRETDB_OVER says so. Where
// there is a real server it is that one, which is shared, and no Kill and no Restart may be called.
func Own(t testing.TB) *Server {
	t.Helper()
	if Real() {
		return &Server{URI: os.Getenv(Env)}
	}
	postgres := ""
	if OverPostgres() {
		postgres = pgtest.Start(t).Database(t)
	}
	s, err := StartOver(t.TempDir(), postgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Kill() })
	return s
}

// Restart starts the server after a Kill, on the address that it had, with its data.
func (s *Server) Restart() (err error) {
	listen := strings.Trim(strings.TrimPrefix(s.URI, "mongodb://"), "/")
	if listen == "" {
		if listen, err = freeport.On("127.0.0.1"); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// Files and no writers, so that package os/exec needs no goroutines.
	var stdout *os.File
	if s.stdout, stdout, err = os.Pipe(); err != nil {
		return err
	}
	defer stdout.Close()
	s.cmd = exec.Command(s.program, "-dir", s.dir, "-listen", listen, "-postgres", s.postgres)
	s.cmd.Stdout, s.cmd.Stderr = stdout, log
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("mongotest: starting FerretDB: %w", err)
	}
	stdout.Close() // so that the end of the server is the end of the pipe
	_ = s.stdout.SetReadDeadline(time.Now().Add(startWithin))
	uri, err := bufio.NewReader(s.stdout).ReadString('\n')
	if err != nil {
		s.Kill()
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("mongotest: FerretDB does not listen: %w: %s", err, said)
	}
	s.URI = strings.TrimSpace(uri)
	return nil
}

// Kill ends the server with SIGKILL, and waits until it is gone.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // "signal: killed"
	s.stdin.Close()
	s.stdout.Close()
}

var shared struct {
	once   sync.Once
	server *Server
	dir    string
	err    error
}

// Run runs the tests of a package, and ends the server that they shared. It is for TestMain.
func Run(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		shared.server.Kill()
	}
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	if err := pgtest.End(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// URI returns the address of the server that all tests of the process share.
func URI(t testing.TB) string {
	t.Helper()
	if Real() {
		return os.Getenv(Env)
	}
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "mongotest"); shared.err == nil {
			postgres := ""
			if OverPostgres() {
				postgres = pgtest.Shared(t)
			}
			shared.server, shared.err = StartOver(shared.dir, postgres)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server.URI
}

// Connect returns a client of a server for the duration of the test.
func Connect(t testing.TB, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client
}

// Database returns an empty database of the shared server for the duration of the test.
func Database(t testing.TB) *mongo.Database {
	t.Helper()
	db := Connect(t, URI(t)).Database("eventhub_test_" + bson.NewObjectID().Hex())
	t.Cleanup(func() {
		if err := db.Drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return db
}

var errNoSource = errors.New("mongotest: the sources of the project are not found above the working directory")

// source returns the directory of the program's module.
func source() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		at := filepath.Join(dir, "internal", "mongotest", "ferretdb")
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errNoSource
		}
		dir = up
	}
}
