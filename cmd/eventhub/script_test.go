package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/rogpeppe/go-internal/testscript"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/wire"
)

// TestScripts runs the real binary against real hubs, as testdata/script says.
// Besides testscript's own commands there are those below.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Values[hubsKey{}] = make(map[string]*hubProcess)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": cmdCode, "hub": cmdHub, "stophub": cmdStopHub, "joined": cmdJoined, "lag": cmdLag, "hold": cmdHold, "impostor": cmdImpostor,
			"drain": cmdDrain, "nack": cmdNack, "addresses": cmdAddresses, "held": cmdHeld, "deadletter": cmdDeadLetter,
			"sent": cmdSent, "terminal": cmdTerminal,
		},
	})
}

type hubsKey struct{}

// cmdCode runs a program that must end with the exit code: code N PROGRAM ARG...
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program [arg...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s ended with %d; want %d", strings.Join(args[1:], " "), got, want)
	}
}

// cmdHub runs a hub until the script ends and sets the variable to its URL, and
// VARIABLE_OPS to the address of operations: hub VARIABLE [FLAG...]
func cmdHub(ts *testscript.TestScript, _ bool, args []string) {
	p := &hubProcess{ended: make(chan struct{})}
	p.cmd = exec.Command(binary, append([]string{"serve", "--ws", "127.0.0.1:0", "--http", "localhost:0", "--ops", "127.0.0.2:0", "--store", "memory:"}, args[1:]...)...)
	p.cmd.Env = cleanEnv()
	stderr, err := p.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	ts.Defer(p.kill)
	serving := make(chan struct{})
	go p.follow(stderr, serving)
	select {
	case <-serving:
	case <-p.ended:
		ts.Fatalf("the hub ended at once:\n%s", p.logged())
	case <-time.After(watchdog):
		ts.Fatalf("the hub did not come up:\n%s", p.logged())
	}
	ts.Value(hubsKey{}).(map[string]*hubProcess)[args[0]] = p
	ts.Setenv(args[0], "ws://"+p.ws)
	ts.Setenv(args[0]+"_OPS", p.ops)
}

// cmdDrain stops the hub of a variable, which was started with --drain, and waits until
// it says that it is not ready: drain VARIABLE
func cmdDrain(ts *testscript.TestScript, _ bool, args []string) {
	p := ts.Value(hubsKey{}).(map[string]*hubProcess)[args[0]]
	ts.Check(p.cmd.Process.Signal(syscall.SIGTERM))
	alarm := time.Now().Add(watchdog)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		resp, err := http.Get("http://" + p.ops + "/readyz")
		ts.Check(err)
		resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			return
		}
		if time.Now().After(alarm) {
			ts.Fatalf("the hub is ready, although it is to stop")
		}
		time.Sleep(wait) // nobody is notified of readiness
	}
}

// cmdAddresses sets NAME, NAME_HTTP and NAME_OPS to the addresses, host:port, of the hub of
// a variable: addresses VARIABLE NAME
func cmdAddresses(ts *testscript.TestScript, _ bool, args []string) {
	p := ts.Value(hubsKey{}).(map[string]*hubProcess)[args[0]]
	ts.Setenv(args[1], p.ws)
	ts.Setenv(args[1]+"_HTTP", p.http)
	ts.Setenv(args[1]+"_OPS", p.ops)
}

// cmdStopHub ends the hub of a variable at once: stophub VARIABLE
func cmdStopHub(ts *testscript.TestScript, _ bool, args []string) {
	ts.Value(hubsKey{}).(map[string]*hubProcess)[args[0]].kill()
}

// untilGroup waits until a group of the hub at EVENTHUB_URL is as wanted. No hub
// says when that is so, therefore it is asked.
func untilGroup(ts *testscript.TestScript, topic, group string, wanted func(admin.GroupInfo) bool) {
	adm, err := client.NewAdmin(ts.Getenv("EVENTHUB_URL"))
	ts.Check(err)
	defer adm.Close()
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		g, err := adm.Group(ctx, topic, group)
		if err == nil && wanted(g) {
			return
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("group %s of %s is %+v, %v", group, topic, g, err)
		case <-time.After(wait):
		}
	}
}

// cmdJoined waits until a group has so many members: joined TOPIC GROUP N
func cmdJoined(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	untilGroup(ts, args[0], args[1], func(g admin.GroupInfo) bool { return len(g.Members) == n })
}

// cmdLag waits until a group has so much lag: lag TOPIC GROUP N
func cmdLag(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseUint(args[2], 10, 64)
	ts.Check(err)
	untilGroup(ts, args[0], args[1], func(g admin.GroupInfo) bool { return g.Lag == n })
}

// cmdHeld waits until members have events of a group, and it holds so many back: held TOPIC GROUP N
func cmdHeld(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	untilGroup(ts, args[0], args[1], func(g admin.GroupInfo) bool { return g.Held == n && g.InFlight > 0 })
}

// holder is a member that takes everything and never says anything of it.
type holder struct{}

func (holder) Deliver(batch []eventhub.Delivery) int { return len(batch) }
func (holder) Ended(error)                           {}

// cmdHold adds a member to a group that keeps what it gets: hold TOPIC GROUP
// [ORDERING]
func cmdHold(ts *testscript.TestScript, _ bool, args []string) {
	c, err := client.Dial(context.Background(), ts.Getenv("EVENTHUB_URL"))
	ts.Check(err)
	ts.Defer(func() { c.Close() })
	opts := eventhub.GroupOptions{Topic: args[0], Group: args[1]}
	if len(args) > 2 {
		opts.Ordering, opts.Start.Kind = args[2], eventhub.StartEarliest
	}
	_, err = c.Subscribe(context.Background(), opts, holder{})
	ts.Check(err)
}

// cmdNack is a member of a group until it was given an event, which it refuses,
// not to see it again soon: nack TOPIC GROUP REASON
func cmdNack(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	c, err := client.Dial(ctx, ts.Getenv("EVENTHUB_URL"))
	ts.Check(err)
	defer c.Close()
	got := make(taker, 1)
	opts := eventhub.GroupOptions{Topic: args[0], Group: args[1], Start: eventhub.Earliest, MaxInFlight: 1}
	sub, err := c.Subscribe(ctx, opts, got)
	ts.Check(err)
	select {
	case lease := <-got:
		_, err = sub.Settle(ctx, eventhub.Settlement{Verdict: eventhub.Nack, Reason: args[2], Delay: time.Hour, Refs: []eventhub.Ref{{Lease: lease}}})
		ts.Check(err)
		ts.Check(sub.Unsubscribe(ctx))
	case <-ctx.Done():
		ts.Fatalf("group %s of %s was given nothing", args[1], args[0])
	}
}

// taker takes one delivery and hands its lease out.
type taker chan eventhub.Lease

func (t taker) Deliver(batch []eventhub.Delivery) int {
	select {
	case t <- batch[0].Lease:
		return 1
	default:
		return 0
	}
}

func (taker) Ended(error) {}

// cmdImpostor serves something that is no hub of this kind: a hub of another
// protocol version ("future"), one that goes away when it is to answer a publish
// ("mute"), or a web server ("web"): impostor VARIABLE KIND
func cmdImpostor(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if args[1] == "web" {
			http.Error(w, "<html>welcome</html>", http.StatusNotFound)
			return
		}
		c, _, _, err := ws.UpgradeHTTP(r, w)
		if err != nil {
			return
		}
		defer c.Close()
		protocol := wire.ProtocolVersion
		if args[1] == "future" {
			protocol = 99
		}
		if _, err := wsutil.ReadClientText(c); err == nil {
			_ = wsutil.WriteServerText(c, fmt.Appendf(nil, `{"op":"OK","corr":"0","protocol":%d,"hub":"eventhub","version":"v99.1","durability":"sync","limits":{}}`, protocol))
		}
		_, _ = wsutil.ReadClientText(c) // the client goes away, or says PUBLISH
	})
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }() // until Close
	ts.Defer(func() { server.Close() })
	ts.Setenv(args[0], "ws://"+l.Addr().String())
	ts.Setenv(args[0]+"_OPS", l.Addr().String())
}

// TestTailBeginsAtTheEnd: a tail without --from prints what is published once it
// is there, and nothing older. It is the first reader of what it prints, so the
// events go on until it has printed one.
func TestTailBeginsAtTheEnd(t *testing.T) {
	hub := startHub(t, "--store", "memory:")
	c, err := client.Dial(t.Context(), "ws://"+hub.ws)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	publish := func() uint64 {
		r, err := c.Publish(t.Context(), eventhub.Event{Topic: "t", Payload: []byte("1")})
		if err != nil {
			t.Fatal(err)
		}
		return r[0].Offset
	}
	before := publish()
	cmd := exec.Command(binary, "sub", "t", "-c", "1", "-f", `%o\n`, "--url", "ws://"+hub.ws)
	cmd.Env = cleanEnv()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill() })
	defer alarm.Stop()
	line := make(chan string, 1)
	go func() {
		s := bufio.NewScanner(stdout)
		s.Scan()
		line <- s.Text()
	}()
	for {
		select {
		case printed := <-line:
			if offset, err := strconv.ParseUint(printed, 10, 64); err != nil || offset <= before {
				t.Errorf("it printed %q; it began after %d", printed, before)
			}
			return
		default:
			publish()
		}
	}
}
