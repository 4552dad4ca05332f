package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"eventhub/admin"
	"eventhub/bench"
	"eventhub/client"
)

// TestBench runs the real program against a hub of its own, which is a second
// process and leaves nothing in its files.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := runBinary(t, nil, "bench", "publish", "--serve", "--dir", dir, "--count", "2000", "--warmup", "0", "-o", "json")
	if code != exitDone || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	var res bench.Result
	if err := json.Unmarshal([]byte(stdout), &res); err != nil {
		t.Fatal(err)
	}
	if res.Workload != "publish" || res.Count != 2_000 || res.Published != 2_000 || res.Hub.Durability != "sync" || res.Publish.At(99) <= 0 {
		t.Errorf("%s", stdout)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestBenchTables: every workload that works with any hub prints what it measured.
func TestBenchTables(t *testing.T) {
	hub := startHub(t, "--store", "memory:")
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"publish --count 500 --warmup 0 --rate 5000", []string{"workload     publish\n", "durability none\n", "500 events published, then deleted\n", "events       500 in 0.", "until OK     p50 ", "errors       0\n"}},
		{"subscribe --count 640 --ack ids", []string{"640 events published", "deliveries   ", "errors       0\n"}},
		{"catchup --count 640 --batch", []string{"deliveries   "}},
		{"latency --rate 1000 --duration 100ms --warmup 0", []string{"deliveries   100 in", "until EVENT  p50 "}},
		{"fanout --groups 3 --rate 100 --duration 100ms --warmup 0", []string{"deliveries   30 in"}},
		{"overload --connections 2 --in-flight 64 --duration 100ms --measure 100ms --warmup 0", []string{"best         ", "full         ", "goodput      ", "half rate    until OK p99 "}},
		{"idle --connections 20 --settle 1ms --ops-url http://" + hub.ops, []string{"connections  20 in", "KiB each\n"}},
	} {
		args := append([]string{"bench"}, strings.Fields(tt.args)...)
		code, stdout, stderr := runBinary(t, nil, append(args, "--url", "ws://"+hub.ws)...)
		if code != exitDone || stderr != "" {
			t.Errorf("%s: exit code %d: %s", tt.args, code, stderr)
		}
		for _, want := range tt.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: %q is not in\n%s", tt.args, want, stdout)
			}
		}
	}
}

// TestBenchLeavesNothing: the topic that a run makes is deleted with its groups when the
// run is over, also where Ctrl-C ends it; a topic that the user has named stays.
func TestBenchLeavesNothing(t *testing.T) {
	hub := startHub(t, "--store", "memory:")
	adm, err := client.NewAdmin("ws://" + hub.ws)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	topics := func() (names []string) {
		t.Helper()
		found, err := adm.Topics(t.Context(), "", admin.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			names = append(names, f.Topic)
		}
		// What the hub notes of the deletions stays.
		return slices.DeleteFunc(names, func(name string) bool { return name == admin.AuditTopic })
	}
	for _, args := range []string{
		"publish --count 500 --warmup 0", "subscribe --count 640", "catchup --count 640", "publish --count 10 --warmup 0 --topic mine",
		"latency --rate 1000 --duration 100ms --warmup 0", "fanout --groups 3 --rate 100 --duration 100ms --warmup 0",
	} {
		code, stdout, stderr := runBinary(t, nil, append(append([]string{"bench"}, strings.Fields(args)...), "--url", "ws://"+hub.ws)...)
		if kept := strings.Contains(args, "mine"); code != exitDone || strings.Contains(stdout, "then deleted") == kept {
			t.Errorf("%s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	if got := topics(); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("the runs have left %q; want mine", got)
	}
	cmd := exec.Command(binary, "bench", "publish", "--duration", "10m", "--url", "ws://"+hub.ws)
	cmd.Env = cleanEnv()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	alarm := time.AfterFunc(watchdog, func() { cmd.Process.Kill() })
	defer alarm.Stop()
	for len(topics()) < 2 {
		time.Sleep(time.Millisecond) // nobody says when a topic is there
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "eventhub: deleted topic bench.publish-") {
		t.Errorf("%v: %s", err, stderr.String())
	}
	if got := topics(); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("the interrupted run has left %q; want mine", got)
	}
}

// TestBenchExitCodes: options, hubs that are not there, tokens that are wrong.
func TestBenchExitCodes(t *testing.T) {
	guarded := startHub(t, "--store", "memory:", "--auth-token", "secret")
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"", exitDone, ""},
		{"nothing", exitUsage, "unknown command"},
		{"publish extra", exitUsage, "is too much"},
		{"publish --connections 0", exitUsage, "connections is 0; 1 to 10000 are allowed"},
		{"publish --count 5 --duration 1s", exitUsage, "[count duration]"},
		{"publish --serve --url ws://127.0.0.1:1", exitUsage, "[serve url]"},
		{"publish --dir /tmp", exitUsage, "--dir is given"},
		{"publish --stall 0", exitUsage, "--stall is 0s"},
		{"subscribe --ack maybe", exitUsage, `ack is "maybe"`},
		{"idle --connections 1", exitUsage, "ops-url is empty"},
		{"latency --rate 0", exitUsage, "rate is 0"},
		{"publish --count 5 --url ws://127.0.0.1:1", exitUnreachable, "127.0.0.1:1"},
		{"publish --count 5 --url ws://" + guarded.ws, exitDenied, "no_token"},
		{"publish --count 5 --token wrong --url ws://" + guarded.ws, exitDenied, "bad_token"},
		{"publish --count 5 --warmup 0 --token secret --url ws://" + guarded.ws, exitDone, ""},
	} {
		code, _, stderr := runBinary(t, nil, append([]string{"bench"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) {
			t.Errorf("bench %s: exit code %d, want %d: %s", tt.args, code, tt.code, stderr)
		}
	}
}

// TestBenchProgressLine: one line, overwritten in full and cleared at the end.
func TestBenchProgressLine(t *testing.T) {
	var b bytes.Buffer
	l := &progressLine{w: &b}
	l.clear() // nothing was shown
	l.show(bench.Progress{Phase: "measure", Done: 1_500, Total: 6_000, PerSecond: 1234.5})
	l.show(bench.Progress{Phase: "measure", Done: 7})
	l.clear()
	want := "\rmeasure: 1,500 of 6,000 (25 %), 1,234/s" +
		"\rmeasure: 7, 0/s" + strings.Repeat(" ", 24) +
		"\r" + strings.Repeat(" ", 15) + "\r"
	if b.String() != want {
		t.Errorf("%q; want %q", b.String(), want)
	}
}
