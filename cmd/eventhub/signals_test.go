package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"eventhub/internal/bubble"
)

// firstRequests are the arguments of commands with which they ask a hub something at once.
var firstRequests = map[string]string{
	"pub": "t 1", "sub": "t", "get": "t 1", "status": "", "check": "", "health": "", "cluster status": "",
	"topic ls": "", "topic info": "t", "topic set": "t --key-required", "topic settings": "", "topic show": "t", "topic unset": "t",
	"topic erase": "t --offset 1", "topic trim": "t --before 2", "topic rm": "t --yes",
	"group ls": "", "group info": "t g", "group patterns": "", "group pause": "t g", "group resume": "t g", "group rm": "t g --yes", "group seek": "t g --from earliest",
	"dlq ls": "", "dlq redrive": "t", "dlq requeue": "t 1", "dlq show": "t 1", "schedule ls": "", "schedule cancel": "t e1",
	"replay": "t", "state": "t", "connections ls": "", "connections close": "c1", "export": "t", "import": "/dev/null", "backup": "copy",
	"outbox ls": "", "outbox show": "1", "outbox retry": "1", "outbox purge": "--status sent --older-than 1d", "outbox migrate": "", "outbox drain": "",
}

// TestInterruptBeforeAnswer: each command that is interrupted while it waits for the first answer says so, and not that there is no hub.
func TestInterruptBeforeAnswer(t *testing.T) {
	eachCommand(rootCommand(), func(name string, cmd *cobra.Command) {
		asks := cmd.Flags().Lookup("url") != nil || cmd.Flags().Lookup("ops") != nil && cmd.Flags().Lookup("ws") == nil || strings.HasPrefix(name, "outbox ")
		if _, ok := firstRequests[name]; asks != ok && !strings.HasPrefix(name, "bench ") { // which ends only when its topic is deleted
			t.Errorf("%s asks a hub: %t; has arguments: %t", name, asks, ok)
		}
	})
	for name, args := range firstRequests {
		code, stderr := interrupted(t, strings.Fields(name+" "+args)...)
		if code != exitFailed || !strings.HasPrefix(stderr, "eventhub: interrupted") || strings.Contains(stderr, "cancel") {
			t.Errorf("%s: exit code %d, %s", name, code, stderr)
		}
	}
}

// interrupted runs a command with a server of its own that says nothing, for a command may connect more than once, and interrupts it
// when it has connected.
func interrupted(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	at := silent.Addr().String()
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = t.TempDir(), cleanEnv("EVENTHUB_URL=ws://"+at, "EVENTHUB_OPS="+at, "EVENTHUB_OUTBOX=postgres://u@"+at+"/x?sslmode=disable")
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill(); silent.Close() })
	defer alarm.Stop()
	conn, err := silent.Accept()
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	defer conn.Close()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // the exit code says more
	return cmd.ProcessState.ExitCode(), said.String()
}

// TestNamesThatNobodyHas: a name that no topic or group can have is wrong usage of each command, and no hub is asked for it.
func TestNamesThatNobodyHas(t *testing.T) {
	topics, groups := 0, 0
	eachCommand(rootCommand(), func(name string, cmd *cobra.Command) {
		args := strings.Fields(firstRequests[name])
		for at, word := range strings.Fields(cmd.Use)[1:] {
			if at >= len(args) {
				break
			}
			switch word {
			case "TOPIC", "TOPIC|PATTERN", "TOPIC|PATTERN...":
				topics++
			case "GROUP":
				groups++
			default:
				continue
			}
			wrong := slices.Clone(args)
			wrong[at] = "a b"
			run := exec.Command(binary, append(strings.Fields(name), wrong...)...)
			run.Env = cleanEnv("EVENTHUB_URL=ws://127.0.0.1:1")
			var stderr strings.Builder
			run.Stderr = &stderr
			if _ = run.Run(); run.ProcessState.ExitCode() != exitUsage || !strings.Contains(stderr.String(), `"a b" has " "`) {
				t.Errorf("%s %q: exit code %d, %s", name, wrong, run.ProcessState.ExitCode(), stderr.String())
			}
		}
	})
	if topics < 18 || groups < 5 {
		t.Errorf("%d commands with a topic, and %d with a group", topics, groups)
	}
}

// TestNobodyReads: a command whose reader has gone before it prints anything is done, whatever it prints.
func TestNobodyReads(t *testing.T) {
	for _, args := range []string{"--help", "help pub", "topic ls --help", "group", "version", "config print", "config print -o json", "config check", "completion bash"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		cmd := exec.Command(binary, strings.Fields(args)...)
		cmd.Dir, cmd.Env, cmd.Stdout = t.TempDir(), cleanEnv(), w
		var stderr strings.Builder
		cmd.Stderr = &stderr
		err = cmd.Run()
		w.Close()
		if err != nil || stderr.Len() > 0 {
			t.Errorf("%s: %v, %s; want exit code 0 and nothing said", args, err, stderr.String())
		}
	}
}

// TestHubWithoutAReader: a hub whose log nobody reads any more goes on, and ends in order.
func TestHubWithoutAReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", "--store", "memory:", "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0")
	cmd.Dir, cmd.Env, cmd.Stderr = t.TempDir(), cleanEnv(), w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill() })
	defer alarm.Stop()
	lines := bufio.NewScanner(r)
	for lines.Scan() && !up.MatchString(lines.Text()) {
	}
	r.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil { // its stop has lines of the log
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the hub ended with %v", err)
	}
}

// eachCommand calls visit with each command that does something, and its name.
func eachCommand(cmd *cobra.Command, visit func(name string, cmd *cobra.Command)) {
	if !cmd.HasSubCommands() {
		_, name, _ := strings.Cut(cmd.CommandPath(), " ")
		visit(name, cmd)
	}
	for _, c := range cmd.Commands() {
		eachCommand(c, visit)
	}
}

// TestSecondSignal: a signal that is sent to a process and to its group, as
// timeout(1) does, arrives twice and is one. Another signal, or the same one a second
// later, is a second one.
func TestSecondSignal(t *testing.T) {
	const once, late = 3 * time.Millisecond, time.Second
	for _, c := range []struct {
		name string
		next []os.Signal
		wait []time.Duration // before each of next
		want []string
	}{
		{"one", nil, nil, []string{"stop"}},
		{"twice at once", []os.Signal{syscall.SIGTERM}, []time.Duration{0}, []string{"stop"}},
		{"three times within a second", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, []time.Duration{once, late - 2*once}, []string{"stop"}},
		{"again after a second", []os.Signal{syscall.SIGTERM}, []time.Duration{late}, []string{"stop", "give up"}},
		{"twice at once, and after a second", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, []time.Duration{0, late}, []string{"stop", "give up"}},
		{"another one at once", []os.Signal{syscall.SIGINT}, []time.Duration{0}, []string{"stop", "give up"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal, 3) // nobody takes them after giveUp
				var got []string
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					obey(signals, func() { got = append(got, "stop") }, func() { got = append(got, "give up") })
				}()
				signals <- syscall.SIGTERM
				for i, s := range c.next {
					time.Sleep(c.wait[i])
					signals <- s
				}
				synctest.Wait()
				if !slices.Equal(got, c.want) {
					t.Errorf("it did %q; want %q", got, c.want)
				}
				close(signals)
				<-ended
			})
		})
	}
}
