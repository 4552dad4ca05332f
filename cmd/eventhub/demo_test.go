package main

import (
	"bufio"
	"os/exec"
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
		cmd := exec.Command(binary, "demo", "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0")
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
		alive := 0
		for alive < 30 && lines.Scan() { // more than one tick's worth
			if strings.Contains(lines.Text(), " alive ") {
				alive++
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
	for want := uint64(1); want <= 60; want++ {
		f := c.hear()
		if f.Event.Offset != want || f.Event.Key == "" || !strings.Contains(string(f.Event.Payload), `"processId":"`+f.Event.Key) {
			t.Fatalf("state %d is %+v", want, f)
		}
	}
}
