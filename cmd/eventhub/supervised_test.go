package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestLogReaderGone: the hub outlives whoever reads its log, and still stops in order.
func TestLogReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", "--store", "memory:", "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0")
	cmd.Env, cmd.Stderr = cleanEnv(), w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	w.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() && !up.MatchString(lines.Text()) {
	}
	if err := errors.Join(lines.Err(), r.Close(), cmd.Process.Signal(syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("a hub whose log nobody reads ended with %v, want exit code 0", err)
	}
}

// TestUnitRestartsAfterACrash holds the systemd unit against what Go does: a panic and
// a failed allocation end with 2.
func TestUnitRestartsAfterACrash(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/systemd/eventhub.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"Restart=on-failure", "StartLimitIntervalSec=0"} {
		if !strings.Contains(string(unit), "\n"+setting+"\n") {
			t.Errorf("the unit lacks %s", setting)
		}
	}
	if prevented := regexp.MustCompile(`(?m)^RestartPreventExitStatus=.*`).FindString(string(unit)); prevented != "" {
		t.Errorf("the unit has %s; a hub that crashed could stay down", prevented)
	}
}

// tracedError formats itself as the errors of the store do.
type tracedError struct{}

func (tracedError) Error() string { return "no space left" }

func (tracedError) Format(s fmt.State, _ rune) {
	fmt.Fprint(s, "no space left")
	if s.Flag('+') {
		fmt.Fprint(s, "\n(1) attached stack trace")
	}
}

// TestErrorsAreLoggedPlainly: errors of the store can have a stack trace, and the log is
// no place for one a second.
func TestErrorsAreLoggedPlainly(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, logOptions(new(slog.LevelVar))))
	logger.Error("flush failed", "err", tracedError{})
	if !strings.Contains(log.String(), `err="no space left"`) || strings.Contains(log.String(), "stack trace") {
		t.Errorf("logged %s", log.String())
	}
}
