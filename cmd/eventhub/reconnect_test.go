package main

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestConnectedAgain: a command that has lost its hub says so, and says when it has it
// again.
func TestConnectedAgain(t *testing.T) {
	first := startHub(t, "--store", "memory:", "--ws", freePort(t))
	cmd := exec.Command(binary, "sub", "t", "--from", "earliest", "-c", "1", "--url", "ws://"+first.ws)
	cmd.Env = cleanEnv()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill() })
	defer alarm.Stop()
	lines := bufio.NewScanner(stderr)
	await := func(part string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), part) {
				return
			}
		}
		t.Fatalf("no line with %q", part)
	}
	await("eventhub: live tail of t, at the earliest event")
	first.kill()
	await("eventhub: no connection to the hub")
	second := startHub(t, "--store", "memory:", "--ws", first.ws)
	await("eventhub: connected again, after ")
	if code, _, stderr := runBinary(t, nil, "pub", "t", "1", "--url", "ws://"+second.ws); code != exitDone {
		t.Fatal(stderr)
	}
	for lines.Scan() {
		t.Logf("it says %s", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
