package heartbeat

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func find(readings []Reading, pid int32) (Reading, bool) {
	for _, r := range readings {
		if r.PID == pid {
			return r, true
		}
	}
	return Reading{}, false
}

// TestMachineReadsThisProcess: CPU counts from the previous reading on, for
// work done in between.
func TestMachineReadsThisProcess(t *testing.T) {
	m, me := NewMachine(), int32(os.Getpid())
	readings, err := m.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, ok := find(readings, me)
	if !ok {
		t.Fatalf("this process, %d, is not among %d read", me, len(readings))
	}
	if r.CPU != 0 {
		t.Errorf("CPU %v on the first reading, want 0", r.CPU)
	}
	if r.RSS < 1<<20 {
		t.Errorf("RSS %d, want at least 1 MiB", r.RSS)
	}
	// Work until the kernel has counted some: its clock ticks every 10 ms.
	for sum := 0; r.CPU == 0; {
		for i := range 50_000_000 {
			sum += i * i
		}
		if readings, err = m.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, ok = find(readings, me); !ok {
			t.Fatalf("this process, %d, is gone; sum %d", me, sum)
		}
	}
	if r.CPU < 1 || r.CPU > 10_000 {
		t.Errorf("CPU %v %% after working without a pause", r.CPU)
	}
}

func TestMachineKnowsNames(t *testing.T) {
	name, err := NewMachine().Name(t.Context(), int32(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	// Some systems cut names to 15 bytes.
	if exe := filepath.Base(os.Args[0]); name == "" || !strings.HasPrefix(exe, name[:min(15, len(name))]) {
		t.Errorf("name %q, want that of %q", name, exe)
	}
}

func TestMachineForgetsProcessesThatEnded(t *testing.T) {
	m := NewMachine()
	me := int32(os.Getpid())
	m.handles[1<<30] = &handle{}
	if _, err := m.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.handles[1<<30] != nil {
		t.Error("the handle of a process that is not there was kept")
	}
	before := m.handles[me]
	if _, err := m.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.handles[me] == nil || m.handles[me] != before {
		t.Error("the handle of a process that goes on was not kept")
	}
	if _, ok := m.read(t.Context(), 1<<30); ok {
		t.Error("a process that is not there was read")
	}
	if _, err := m.Name(t.Context(), 1<<30); err == nil {
		t.Error("a process that is not there has a name")
	}
}

// BenchmarkTick is the agent's own cost: at the default interval its ns/op are
// nanoseconds of CPU per second.
func BenchmarkTick(b *testing.B) {
	r := &run{host: "h", sid: "s", source: NewMachine()}
	pub := newPublisher()
	go func() {
		for range pub.published {
			pub.answer <- nil
		}
	}()
	defer close(pub.published)
	for b.Loop() {
		if err := r.tick(b.Context(), pub); err != nil {
			b.Fatal(err)
		}
	}
}
