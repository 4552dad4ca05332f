package cluster

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var histories = flag.Int("cluster.histories", 60, "how many random histories of the engine TestHistoriesOfBus runs")

// TestHistoriesOfBus: the engine does what its model says over a store that leads a journal on a NATS server, also
// where the power fails and another hub leads. The histories and the model are in a test of package
// bus, which knows its inside; so it is built and run as a program of its own.
func TestHistoriesOfBus(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "bus.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-vet=off", "-o", program, "./bus")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of bus: %v\n%s", err, out)
	}
	s := alone(t, 0)
	const name = "TestRandomHistoriesOnJetStream"
	cmd = exec.CommandContext(t.Context(), program, "-test.run=^"+name+"$", "-test.v", "-test.timeout=0",
		"-bus.journal="+s.url(), "-rapid.checks="+strconv.Itoa(*histories))
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
