package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"eventhub"
	"eventhub/cmd/eventhub/internal/output"
)

// newExecution returns one whose commands write into the pipe that comes with it.
func newExecution(t *testing.T, command string) (*execution, *bufio.Reader) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	e := &execution{command: command, terminal: exitDataErr, group: "g", stop: func() {}, passed: make(chan struct{}, 1),
		stdout: w, stderr: io.Discard, out: output.NewResults(w), environment: os.Environ()}
	return e, bufio.NewReader(r)
}

func readLine(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line
}

var anEvent = eventhub.Delivery{Topic: "t", Offset: 7, Attempt: 1, MaxAttempts: 5,
	Record: eventhub.Record(`{"ts":1723140000000,"id":"e7","topic":"t","payload":1}`)}

// TestExecutionOutlivesItsContext: what runs when the command is interrupted comes to its
// end, and its verdict counts; what has not begun goes back.
func TestExecutionOutlivesItsContext(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	e, out := newExecution(t, fmt.Sprintf("echo begun; cat '%s'; echo over", gate))
	ctx, cancel := context.WithCancel(t.Context())
	verdict := make(chan error, 1)
	go func() { verdict <- e.handle(ctx, anEvent) }()
	readLine(t, out)
	cancel()
	if err := os.WriteFile(gate, nil, 0o600); err != nil { // waits for cat
		t.Fatal(err)
	}
	if line := readLine(t, out); line != "over\n" {
		t.Errorf("the command wrote %q", line)
	}
	if err := <-verdict; err != nil {
		t.Errorf("the verdict is %v", err)
	}
	if err := e.handle(ctx, anEvent); !errors.Is(err, context.Canceled) {
		t.Errorf("an event that came later has %v", err)
	}
}

// TestCommandsEndTogether: a second signal ends the commands that run, with all of their
// processes, and lets none begin.
func TestCommandsEndTogether(t *testing.T) {
	var r running
	c := exec.Command("/bin/sh", "-c", "echo begun; sleep 1000; echo on")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.run(c) }()
	lines := bufio.NewReader(out)
	readLine(t, lines)
	r.end()
	// The end of the output says that nothing of it runs any more.
	if rest, _ := io.ReadAll(lines); len(rest) > 0 {
		t.Errorf("it went on: %q", rest)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("it ended with %v", err)
	}
	if err := r.run(exec.Command("/bin/true")); err == nil {
		t.Error("another one began")
	}
}

// TestExecutionCount: no more events than wanted are begun, and the last one's end ends it.
func TestExecutionCount(t *testing.T) {
	e, _ := newExecution(t, "true")
	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	defer cancel()
	e.count, e.stop = 2, cancel
	var got []error
	for range 3 {
		got = append(got, e.handle(ctx, anEvent))
	}
	if !slices.Equal(got, []error{nil, nil, context.Canceled}) {
		t.Errorf("the verdicts are %v", got)
	}
}

func TestLastLineOfOutput(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for _, c := range []struct {
		writes []string
		want   string
	}{
		{nil, ""},
		{[]string{"\n\n"}, ""},
		{[]string{"one\ntwo"}, "two"},
		{[]string{"one\nt", "wo\n", "\n  \n"}, "two"},
		{[]string{"\xff\n"}, "\uFFFD"},
		{[]string{long, long + "\n"}, long[:keptLine]},
	} {
		var through strings.Builder
		l := &tailLine{to: &through}
		for _, text := range c.writes {
			if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
		}
		if got := l.text(); got != c.want {
			t.Errorf("of %q the last line is %.40q; want %.40q", c.writes, got, c.want)
		}
		if through.String() != strings.Join(c.writes, "") {
			t.Errorf("%.40q went through as %.40q", c.writes, through.String())
		}
	}
}

// TestEnvironmentOfCommands: no variable can be made to hold the character 0, with which
// no command would begin.
func TestEnvironmentOfCommands(t *testing.T) {
	e, out := newExecution(t, `printf '%s|%s\n' "$EVENTHUB_KEY" "$EVENTHUB_HEADER_X_A_B"`)
	d := anEvent
	d.Record = eventhub.Record(`{"ts":1723140000000,"id":"e7","topic":"t","key":"a\u0000b","headers":{"X-a.b":"v=1\""},"payload":1}`)
	done := make(chan error, 1)
	go func() { done <- e.handle(t.Context(), d) }()
	if line := readLine(t, out); line != "a\uFFFDb|v=1\"\n" {
		t.Errorf("the command wrote %q", line)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
