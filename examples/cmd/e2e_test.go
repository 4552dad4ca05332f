// Package cmd_test runs the example programs and curl.sh as processes of their
// own against a real hub.
package cmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/hubtest"
	"eventhub/internal/demo/heartbeat"
	"eventhub/internal/demo/process"
)

// programs is where the programs were built, once for all tests.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "eventhub-examples-")
	if err != nil {
		panic(err)
	}
	programs = dir
	build := exec.Command("go", "build", "-o", dir, "./heartbeat", "./projector", "./processtable")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// patience ends waits that would otherwise hang a broken build for ever.
const patience = 30 * time.Second

// curlAgent is the command line of curl.sh, run by the strictest shell there is.
func curlAgent(t *testing.T, args ...string) []string {
	t.Helper()
	for tool, pkg := range map[string]string{"dash": "dash", "curl": "curl", "ps": "procps"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("this test needs %s: install the Debian package %s", tool, pkg)
		}
	}
	return append([]string{"dash", filepath.Join("..", "heartbeat", "curl.sh")}, args...)
}

func goProgram(name string, args ...string) []string {
	return append([]string{filepath.Join(programs, name)}, args...)
}

// running is a process that runs, and what it has said on standard error.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	said bytes.Buffer
	more chan struct{} // closed, and made again, when more was said
}

// start runs a command, with what env adds to an environment that knows no hub.
func start(t *testing.T, env []string, args []string) *running {
	t.Helper()
	p := &running{t: t, ended: make(chan struct{}), more: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "EVENTHUB_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what a shell has started goes with it
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(args[0]), p.words())
		}
	})
	return p
}

// Write takes what the process says.
func (p *running) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.more)
	p.more = make(chan struct{})
	return p.said.Write(b)
}

func (p *running) words() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// hear waits until the process has said it.
func (p *running) hear(words string) {
	p.t.Helper()
	late := time.After(patience)
	for {
		p.mu.Lock()
		said, more := strings.Contains(p.said.String(), words), p.more
		p.mu.Unlock()
		if said {
			return
		}
		select {
		case <-more:
		case <-p.ended:
			if !strings.Contains(p.words(), words) {
				p.t.Fatalf("%q was not said", words)
			}
		case <-late:
			p.t.Fatalf("%q was not said in %s", words, patience)
		}
	}
}

func (p *running) signal(s syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may have ended
}

// exit waits for the end of the process and returns its exit code.
func (p *running) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.cmd.Path)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop sends SIGTERM and wants an end in order.
func (p *running) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		p.t.Errorf("%s ended with %d", p.cmd.Path, code)
	}
}

// states follows process.state until the test is over.
func states(t *testing.T, h *hubtest.Hub) <-chan process.State {
	t.Helper()
	c := h.Client()
	ctx, cancel := context.WithCancel(context.Background())
	came, ended := make(chan process.State), make(chan struct{})
	go func() {
		defer close(ended)
		opts := eventhub.GroupOptions{Topic: process.StateTopic, Group: "watch", Start: eventhub.Earliest}
		if err := c.Consume(ctx, opts, func(ctx context.Context, d eventhub.Delivery) error {
			var e struct{ Payload process.State }
			if err := json.Unmarshal(d.Record, &e); err != nil {
				return err
			}
			select {
			case came <- e.Payload:
			case <-ctx.Done():
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return came
}

// seeBoth waits until both agents' heartbeats of now on have become states.
func seeBoth(t *testing.T, states <-chan process.State, since int64) {
	t.Helper()
	late := time.After(patience)
	for curl, sdk := false, false; !curl || !sdk; {
		select {
		case s := <-states:
			if s.Host == "" || s.Name == "" || s.Mem < 0 || s.SID == "" {
				t.Errorf("state %+v", s)
			}
			if s.Status == process.Alive && s.LastSeenTS > since {
				byCurl := strings.HasPrefix(s.SID, "curl-")
				curl, sdk = curl || byCurl, sdk || !byCurl
			}
		case <-late:
			t.Fatalf("states of curl.sh: %v, of the SDK's agent: %v", curl, sdk)
		}
	}
}

// TestAgentsBesideEachOther: an agent on curl and one on the SDK publish to one
// hub, and a projector turns both into states. A restart of the hub does not end
// them; a signal does, in order.
func TestAgentsBesideEachOther(t *testing.T) {
	t.Parallel()
	const token = `a"quoted\token`
	h := hubtest.Start(t, hubtest.WithTempStore(), hubtest.WithToken(token))
	env := []string{"EVENTHUB_TOKEN=" + token, "EVENTHUB_URL=" + h.URL}
	projector := start(t, env, goProgram("projector"))
	sdk := start(t, env, goProgram("heartbeat", "--interval", "200ms"))
	curl := start(t, env, curlAgent(t, h.HTTPURL, "0.2"))
	came := states(t, h)
	seeBoth(t, came, 0)
	h.Restart()
	seeBoth(t, came, time.Now().UnixMilli())
	for _, e := range h.Events(heartbeat.Topic, 200) {
		hb, err := process.ParseHeartbeat(e.Payload)
		if err != nil || hb.Key() != e.Key || hb.SID != e.SID {
			t.Errorf("heartbeat %s, key %q, sid %q: %v", e.Payload, e.Key, e.SID, err)
		}
	}
	sdk.stop()
	curl.signal(syscall.SIGTERM)
	curl.exit()
	projector.stop()
	group, err := h.Admin().Group(t.Context(), process.HeartbeatTopic, process.Group)
	if err != nil || len(group.Members) != 0 || group.InFlight != 0 {
		t.Errorf("the projector has left %+v, %v", group, err)
	}
}

// TestStopWhileTheHubIsGone: the programs end in order without it.
func TestStopWhileTheHubIsGone(t *testing.T) {
	t.Parallel()
	var projector, agent *running
	t.Run("hub", func(hub *testing.T) {
		h := hubtest.Start(hub)
		projector = start(t, nil, goProgram("projector", "--url", h.URL))
		agent = start(t, nil, goProgram("heartbeat", "--url", h.URL, "--interval", "10ms"))
		h.Events(process.StateTopic, 1)
	})
	projector.hear("no connection to the hub")
	agent.hear("no connection to the hub")
	projector.stop()
	agent.stop()
}

func TestProgramsTellWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t, hubtest.WithToken("secret"))
	agent := func(args ...string) []string { return goProgram("heartbeat", args...) }
	for name, tt := range map[string]struct {
		args []string
		env  []string
		code int
		said string
	}{
		"no hub":           {agent("--url", "ws://127.0.0.1:1"), nil, 3, "no hub can be reached"},
		"no token":         {agent("--url", h.URL), nil, 4, "no_token"},
		"wrong token":      {agent("--url", h.URL, "--token", "other"), nil, 4, "bad_token"},
		"no URL":           {agent("--url", "nonsense"), nil, 1, "nonsense"},
		"no interval":      {agent("--interval", "0s"), nil, 2, "0s"},
		"an argument":      {goProgram("projector", "now"), nil, 2, `"now"`},
		"an unknown flag":  {goProgram("projector", "--interval", "1s"), nil, 2, "interval"},
		"help":             {agent("--help"), []string{"EVENTHUB_TOKEN=hushed"}, 0, "EVENTHUB_URL"},
		"curl: no hub":     {curlAgent(t, "http://127.0.0.1:1", "9"), nil, -1, "no answer from http://127.0.0.1:1: curl: (7)"},
		"curl: no token":   {curlAgent(t, h.HTTPURL), nil, 4, "no_token"},
		"curl: a token":    {curlAgent(t), []string{"EVENTHUB_TOKEN=other", "EVENTHUB_URL=" + h.HTTPURL}, 4, "answered 401: {"},
		"curl: a ws URL":   {curlAgent(t, h.URL), nil, 2, "is not http://"},
		"curl: not a time": {curlAgent(t, h.HTTPURL, "soon"), nil, 2, `"soon"`},
		"curl: too much":   {curlAgent(t, "a", "b", "c"), nil, 2, "usage"},
		"curl: no tools":   {curlAgent(t), []string{"PATH=/nonexistent"}, 1, "ps is not to be found"},
		"curl: ps fails":   {curlAgent(t, h.HTTPURL, "9"), []string{"PATH=" + fakePS(t, "exit 3") + ":" + os.Getenv("PATH")}, -1, "ps failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, tt.env, tt.args)
			p.hear(tt.said)
			if tt.code < 0 { // it goes on
				return
			}
			if code := p.exit(); code != tt.code {
				t.Errorf("ended with %d; want %d", code, tt.code)
			}
			if strings.Contains(p.words(), "hushed") {
				t.Error("the token was printed")
			}
		})
	}
}

func TestShellsUnderstandTheScript(t *testing.T) {
	for _, shell := range []string{"sh", "dash", "bash"} {
		args := curlAgent(t)[1:]
		if out, err := exec.Command(shell, append([]string{"-n"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}
}

// fakePS makes a directory with a ps that does what the lines of shell say.
func fakePS(t *testing.T, lines string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ps"), []byte("#!/bin/sh\n"+lines+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCurlAgentTakesAnyName: whatever ps says of processes, the batch is valid
// and in the order of what is busiest.
func TestCurlAgentTakesAnyName(t *testing.T) {
	t.Parallel()
	table := strings.Join([]string{
		"  1  0.5   1024 plain",
		"  2  0.5   2048 two words  and more ",
		"  3  100    512 quote\" back\\slash $(x) `y` %s \\u0041 ${z}",
		"  4  9.0      0 tab\tescape\x1b[2J\x7f",
		"  5  8.0      1 \u00e9t\u00e9 \U0001f986",
		"  6  7.0      1 bad\xff\xc3 overlong\xc0\xaf surrogate\xed\xa0\x80",
		"  7  6.0      1 ",
		"  8  5.0      1 cat <defunct>",
		"  9  4.0      1 " + strings.Repeat("\u00e9", 400),
		"not a line of ps",
		" 10  1,5      1 comma",
	}, "\n")
	dir := fakePS(t, "cat <<'END'\n"+table+"\nEND")
	h := hubtest.Start(t)
	start(t, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, curlAgent(t, h.HTTPURL, "9"))
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var got []process.Heartbeat
	for _, e := range h.Events(heartbeat.Topic, 9) {
		hb, err := process.ParseHeartbeat(e.Payload)
		if err != nil || hb.Key() != e.Key || hb.SID != e.SID || hb.SID == "" || hb.Host != host {
			t.Errorf("heartbeat %s, key %q, sid %q: %v", e.Payload, e.Key, e.SID, err)
		}
		hb.SID, hb.Host = "", ""
		got = append(got, hb)
	}
	want := []process.Heartbeat{
		{PID: 3, CPU: 100, Mem: .5, Name: "quote\" back\\slash $(x) `y` %s \\u0041 ${z}"},
		{PID: 4, CPU: 9, Name: "tab\tescape\x1b[2J?"},
		{PID: 5, CPU: 8, Name: "\u00e9t\u00e9 \U0001f986"},
		{PID: 6, CPU: 7, Name: "bad?? overlong?? surrogate???"},
		{PID: 7, CPU: 6, Name: "unknown"},
		{PID: 8, CPU: 5, Name: "cat"},
		{PID: 9, CPU: 4, Name: strings.Repeat("\u00e9", 127) + "?"},
		{PID: 2, CPU: .5, Mem: 2, Name: "two words  and more "},
		{PID: 1, CPU: .5, Mem: 1, Name: "plain"},
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("heartbeat %d is %+v; want %+v", i, got[i], want[i])
		}
	}
}

// TestCurlAgentTellsTheBusiest: of many processes one batch has the first twenty.
func TestCurlAgentTellsTheBusiest(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for pid := 1; pid <= 60; pid++ {
		fmt.Fprintf(&table, "%d %d.5 1 p\n", pid, pid*7%61)
	}
	dir := fakePS(t, "cat <<'END'\n"+table.String()+"END")
	h := hubtest.Start(t)
	p := start(t, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}, curlAgent(t, h.HTTPURL, "3600"))
	before := 61.
	for _, e := range h.Events(heartbeat.Topic, heartbeat.Top) {
		hb, err := process.ParseHeartbeat(e.Payload)
		if err != nil || hb.CPU != before-.5 {
			t.Errorf("%s, %v; want a CPU of %v", e.Payload, err, before-.5)
		}
		before--
	}
	p.signal(syscall.SIGTERM)
	p.exit()
	if topic, err := h.Admin().Topic(t.Context(), heartbeat.Topic); err != nil || topic.Head != heartbeat.Top {
		t.Errorf("%+v, %v; want one batch", topic, err)
	}
}
