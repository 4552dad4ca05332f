// Package cluster tests the engines of the journal against servers: child processes of the tests,
// which can be killed.
package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"eventhub/internal/mongotest"
)

// serverEnv has a child process of the tests be a server: its value is a config.
const serverEnv = "CLUSTER_TEST_SERVER"

// startWithin is how long a server may take to start.
const startWithin = time.Minute

// config is what a server is told.
type config struct {
	Name   string
	Dir    string
	Port   int
	Routes int   // the port for the other servers; 0 alone
	Others []int // their ports
	// Rights: only the users of rights are let in.
	Rights bool
	// MaxStore is the room for streams; 0 as the server has it.
	MaxStore int64
}

func TestMain(m *testing.M) {
	if text := os.Getenv(serverEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := mongotest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	_ = os.RemoveAll(programDir)
	os.Exit(code)
}

// serve is the child process.
func serve(text string) error {
	var c config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	o := &natsserver.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Port, JetStream: true, StoreDir: c.Dir, JetStreamMaxStore: c.MaxStore, NoSigs: true,
	}
	if c.Routes != 0 {
		// Clients are not told of the other servers: they stay with the proxies that they were given.
		o.Cluster = natsserver.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: c.Routes, NoAdvertise: true}
		for _, port := range c.Others {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
		}
	}
	if c.Rights {
		o.Users = rights("RIGHTS")
	}
	s, err := natsserver.NewServer(o)
	if err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	s.Start()
	if !s.ReadyForConnections(startWithin) {
		return errors.New("the server is not ready")
	}
	fmt.Println("ready")
	go func() { // the tests may end without a word, by a timeout
		_, _ = io.Copy(io.Discard, os.Stdin)
		end <- os.Interrupt
	}()
	<-end
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// rights are users for the journal in a stream: hub has what docs/ha.md says, reader may only read, and
// none may nothing. The password is the name.
func rights(stream string) []*natsserver.User {
	var read, write []string
	for _, name := range []string{stream, stream + "-members"} {
		read = append(read, "$JS.API.STREAM.INFO."+name, "$JS.API.STREAM.MSG.GET."+name)
		write = append(write, "$JS.API.STREAM.CREATE."+name)
	}
	read = append(read, "$JS.API.CONSUMER.CREATE."+stream+".>", "$JS.API.CONSUMER.MSG.NEXT."+stream+".>", "$JS.API.CONSUMER.DELETE."+stream+".>")
	write = append(write, "$JS.API.STREAM.PURGE."+stream, "eventhub.journal."+stream, "eventhub.members."+stream+".*")
	user := func(name string, publish ...string) *natsserver.User {
		return &natsserver.User{Username: name, Password: name, Permissions: &natsserver.Permissions{
			Publish: &natsserver.SubjectPermission{Allow: publish}, Subscribe: &natsserver.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}}
	}
	return []*natsserver.User{user("hub", append(write, read...)...), user("reader", read...), user("none", "nothing")}
}

// server is one child process.
type server struct {
	config
	cmd *exec.Cmd
}

func (s *server) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.Port) }

// start starts the server, also again after it was killed.
func (s *server) start(t testing.TB) {
	t.Helper()
	text, err := json.Marshal(s.config)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(program)
	s.cmd.Env = append(os.Environ(), serverEnv+"="+string(text))
	var failure strings.Builder
	s.cmd.Stderr = &failure
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.cmd.StdinPipe(); err != nil { // open as long as the tests run
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		s.kill()
		t.Fatalf("server %s does not start: %q, %v\n%s", s.Name, line, err, &failure)
	}
}

// kill is kill -9.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
}

// givenPorts are those that ports has returned: a hub or a server that is started again finds its own free.
var givenPorts struct {
	sync.Mutex
	all map[int]bool
}

// ports returns free ports, each once. They are below those that the system gives to connections, of which one
// could have that of a hub which is away.
func ports(t testing.TB, n int) (ports []int) {
	t.Helper()
	givenPorts.Lock()
	defer givenPorts.Unlock()
	if givenPorts.all == nil {
		givenPorts.all = make(map[int]bool)
	}
	for try := 0; len(ports) < n; try++ {
		const least, most = 10_000, 32_000
		port := least + rand.IntN(most-least)
		if givenPorts.all[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			if try > 10_000 {
				t.Fatal(err)
			}
			continue
		}
		_ = l.Close()
		givenPorts.all[port] = true
		ports = append(ports, port)
	}
	return ports
}

// alone starts one server.
func alone(t testing.TB, maxStore int64) *server {
	t.Helper()
	s := &server{config: config{Name: "alone", Dir: t.TempDir(), Port: ports(t, 1)[0], MaxStore: maxStore}}
	s.start(t)
	t.Cleanup(s.kill)
	return s
}

// three starts a cluster of three servers.
func three(t testing.TB) (all []*server, urls string) {
	t.Helper()
	dir, free := t.TempDir(), ports(t, 6)
	var each []string
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		s := &server{config: config{Name: name, Dir: filepath.Join(dir, name), Port: free[i], Routes: free[3+i], Others: free[3:]}}
		s.start(t)
		t.Cleanup(s.kill)
		all, each = append(all, s), append(each, s.url())
	}
	return all, strings.Join(each, ",")
}
