package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDemo runs the real demo twice over one store, as a user would in a pipe:
// processes of this machine come out as plain lines, SIGINT ends it in order,
// and the second run goes on in the same log.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	for run := range 2 {
		cmd := exec.Command(binary, "demo", "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--page", "off")
		cmd.Dir, cmd.Env = dir, cleanEnv()
		var stderr strings.Builder
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill() })
		lines := bufio.NewScanner(stdout)
		alive, seen, again := 0, make(map[string]bool), false
		for (alive < 30 || !again) && lines.Scan() { // the second run begins with the states of the first
			if _, process, ok := strings.Cut(lines.Text(), " alive "); ok {
				process, _, _ = strings.Cut(process, " ")
				alive, again = alive+1, again || seen[process]
				seen[process] = true
			} else if !strings.Contains(lines.Text(), " stale ") {
				t.Errorf("run %d: a line that is no state: %q", run, lines.Text())
			}
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("run %d: %v\n%s", run, err, stderr.String())
		}
		alarm.Stop()
		if alive < 30 {
			t.Fatalf("run %d: %d lines of living processes\n%s", run, alive, stderr.String())
		}
	}
	hub := startHub(t, "--store", dir+"/eventhub-data")
	c := dial(t, hub.ws, "")
	c.sayText([]byte(`{"op":"SUBSCRIBE","topic":"process.state","group":"look","opts":{"from":"earliest","manual_ack":false}}`))
	if f := c.hear(); f.Op != "OK" {
		t.Fatalf("SUBSCRIBE was answered by %+v", f)
	}
	for want := uint64(1); want <= 32; want++ {
		f := c.hear()
		if f.Event.Offset != want || f.Event.Key == "" || !strings.Contains(string(f.Event.Payload), `"processId":"`+f.Event.Key) {
			t.Fatalf("state %d is %+v", want, f)
		}
	}
}

// pageIsUp is the log line with the address of the demo's page.
var pageIsUp = regexp.MustCompile(`msg="the page of processes is up" page=(\S+)`)

// TestDemoPage: the demo says where its page is, the page knows the hub, and both end together.
func TestDemoPage(t *testing.T) {
	cmd := exec.Command(binary, "demo", "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--page", "0", "--store", "memory:")
	cmd.Env = cleanEnv()
	p := launch(t, cmd)
	var page string
	for page == "" {
		select {
		case <-p.more:
			if m := pageIsUp.FindStringSubmatch(p.logged()); m != nil {
				page = m[1]
			}
		case <-p.ended:
			t.Fatalf("the demo ended:\n%s", p.logged())
		case <-time.After(watchdog):
			t.Fatalf("the demo does not say where its page is:\n%s", p.logged())
		}
	}
	for _, path := range []string{"", "app.js", "hub.json"} {
		r, err := http.Get(page + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		policy := r.Header.Get("Content-Security-Policy")
		if err != nil || r.StatusCode != 200 || !strings.Contains(policy, "connect-src 'self' ws://"+p.ws+" http://"+p.ws) {
			t.Errorf("/%s: %d, %q, %v", path, r.StatusCode, policy, err)
		}
		var config struct{ Hub string }
		if path == "hub.json" && (json.Unmarshal(text, &config) != nil || config.Hub != "ws://"+p.ws) {
			t.Errorf("hub.json is %s; the hub is at %s", text, p.ws)
		}
	}

	// Its address is taken, and another demo says so before it opens a store.
	addr := strings.TrimSuffix(strings.TrimPrefix(page, "http://"), "/")
	store := filepath.Join(t.TempDir(), "store")
	code, _, stderr := runBinary(t, nil, "demo", "--ws", "0", "--http", "0", "--ops", "0", "--page", addr, "--store", store)
	if code != 1 || !strings.Contains(stderr, addr) || !strings.Contains(stderr, "--page") || strings.Contains(stderr, "hub is up") {
		t.Errorf("an address that is in use: exit code %d\n%s", code, stderr)
	}
	code, _, stderr = runBinary(t, nil, "demo", "--page", "0.0.0.0:8083")
	if code != 2 || !strings.Contains(stderr, `"0.0.0.0:8083" is no loopback address`) {
		t.Errorf("an address that is not of this machine alone: exit code %d\n%s", code, stderr)
	}

	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.logged())
	}
	if r, err := http.Get(page); err == nil {
		r.Body.Close()
		t.Errorf("the page is there after the end: %d", r.StatusCode)
	}
}
