package heartbeat

import (
	"context"
	"fmt"

	"github.com/shirou/gopsutil/v4/process"
)

// Reading is one process at one moment.
type Reading struct {
	PID int32
	CPU float64 // percent of one core since the previous Read, 0 on the first
	RSS uint64  // resident memory in bytes
}

// Source reads processes. One goroutine uses it.
type Source interface {
	// Read returns the processes that run now, in any order. One that vanishes
	// while it is read is left out. The slice is the caller's until the next
	// Read.
	Read(ctx context.Context) ([]Reading, error)

	// Name returns the name of a process, or an error when it has ended.
	Name(ctx context.Context, pid int32) (string, error)
}

// Machine is the Source of this machine's processes.
//
// Its cost is one listing of pids and two small reads per process and Read;
// names, which cost more, are read for the few that are published. A handle
// remembers the CPU time of the previous Read, so that no Read has to wait for
// a second sample. Where a pid goes to another process between two Reads, the
// newcomer's CPU shows too low once; its name is right, for names are not
// remembered.
type Machine struct {
	handles  map[int32]*handle
	round    uint64
	readings []Reading
}

// handle is a process as it was read last.
type handle struct {
	proc  *process.Process
	round uint64 // the last Read that found it
}

// NewMachine returns a Source of this machine's processes.
func NewMachine() *Machine {
	// Reading a process's times computes its start from the boot time, which
	// gopsutil otherwise reads again for each.
	process.EnableBootTimeCache(true)
	return &Machine{handles: make(map[int32]*handle)}
}

// Read implements Source.
func (m *Machine) Read(ctx context.Context) ([]Reading, error) {
	pids, err := process.PidsWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("heartbeat: list processes: %w", err)
	}
	m.round++
	m.readings = m.readings[:0]
	for _, pid := range pids {
		if r, ok := m.read(ctx, pid); ok {
			m.readings = append(m.readings, r)
		}
	}
	for pid, h := range m.handles {
		if h.round != m.round {
			delete(m.handles, pid)
		}
	}
	return m.readings, nil
}

// read reads one process; one that vanished meanwhile, or that we may not look
// at, is not ok.
func (m *Machine) read(ctx context.Context, pid int32) (Reading, bool) {
	h := m.handles[pid]
	if h == nil {
		// NewProcess would first ask whether the pid is there: reading shows it.
		h = &handle{proc: &process.Process{Pid: pid}}
	}
	cpu, err := h.proc.PercentWithContext(ctx, 0)
	if err != nil {
		return Reading{}, false
	}
	mem, err := h.proc.MemoryInfoWithContext(ctx)
	if err != nil || mem == nil {
		return Reading{}, false
	}
	h.round = m.round
	m.handles[pid] = h
	return Reading{PID: pid, CPU: cpu, RSS: mem.RSS}, true
}

// Name implements Source.
func (*Machine) Name(ctx context.Context, pid int32) (string, error) {
	// A fresh handle: a kept one would remember the name from before an exec.
	name, err := (&process.Process{Pid: pid}).NameWithContext(ctx)
	if err != nil {
		return "", fmt.Errorf("heartbeat: name of process %d: %w", pid, err)
	}
	return name, nil
}
