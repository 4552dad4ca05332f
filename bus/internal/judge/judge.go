// Package judge has the filters of all groups and tails. It owns the programs, each
// compiled once, and counts the events that filters could not judge.
//
// It is below the bus, which asks in the turns of groups and tails, and compiles the
// filters of its other callers by it. It knows events by their records alone.
//
// # Invariants
//
//   - What a filter says of an event never changes.
//   - An event that a filter cannot judge does not pass, and is counted.
//
// # Locks
//
// Bench.mu is a leaf. Programs are asked under no lock, neither of this package nor of the
// caller's: an expression may take some 50 ms for one event.
package judge

import (
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/internal/filter"
)

// mostPrograms bounds the programs that are kept to be shared.
const mostPrograms = 1000

// TurnTime is after how long a turn that evaluates expressions lets others in. It is
// looked at after each event; what was read and not judged is read again.
const TurnTime = 10 * time.Millisecond

// Matcher decides which events a group or a tail wants. Its method is safe for concurrent
// use. A filter.Program is one.
type Matcher interface {
	Judge(r eventhub.Record, offset uint64) filter.Verdict
}

// Bench compiles each filter once: a group by pattern has the same one in each of its
// topics, and an expression takes a tenth of a millisecond and tens of kilobytes.
type Bench struct {
	// Interpose, where not nil, gets between a filter and who asks it. It is set before the
	// Bench is used.
	Interpose func(*filter.Program) Matcher

	told map[string]bool // the groups about which somebody was told; under mu

	// Events that filters could not judge, and of these, those on which one cost too much.
	failed, tooCostly atomic.Uint64

	mu       sync.Mutex
	programs map[string]*filter.Program // by the filter's text
}

// Compile is filter.Compile.
func (b *Bench) Compile(f *eventhub.Filter) (*filter.Program, error) {
	if f.IsZero() {
		return nil, nil
	}
	text := f.String()
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.programs[text]; p != nil {
		return p, nil
	}
	p, err := filter.Compile(f)
	if err != nil {
		return nil, err
	}
	if b.programs == nil || len(b.programs) >= mostPrograms {
		b.programs = make(map[string]*filter.Program) // those in use stay with their users
	}
	b.programs[text] = p
	return p, nil
}

// Matcher returns what decides with a program, nil where all events pass.
func (b *Bench) Matcher(p *filter.Program) Matcher {
	switch {
	case p == nil:
		return nil
	case b.Interpose != nil:
		return b.Interpose(p)
	}
	return p
}

// Wants returns what decides with a filter, nil where all events pass, and whether it
// evaluates expressions.
func (b *Bench) Wants(f *eventhub.Filter) (wants func(r eventhub.Record, offset uint64) bool, evaluates bool, err error) {
	program, err := b.Compile(f)
	m := b.Matcher(program)
	if err != nil || m == nil {
		return nil, false, err
	}
	wants = func(r eventhub.Record, offset uint64) bool {
		return b.Judge(m, r, offset) == filter.Passes
	}
	return wants, program.Evaluates(), nil
}

// Judge asks a filter about an event, and counts it where the filter could not judge it.
func (b *Bench) Judge(m Matcher, r eventhub.Record, offset uint64) filter.Verdict {
	v := m.Judge(r, offset)
	switch v {
	case filter.CostsTooMuch:
		b.tooCostly.Add(1)
		fallthrough
	case filter.Fails:
		b.failed.Add(1)
	}
	return v
}

// mostTold is of how many groups it is kept that their filter was told of.
const mostTold = 1000

// IsFirst reports whether nobody has asked about a group of that name before. Of one with a pattern, which
// is in many topics, one is told; and none once there were mostTold.
func (b *Bench) IsFirst(group string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told[group] || len(b.told) >= mostTold {
		return false
	}
	if b.told == nil {
		b.told = make(map[string]bool)
	}
	b.told[group] = true
	return true
}

// Counts returns how many events filters could not judge so far, and on how many of these
// one cost too much.
func (b *Bench) Counts() (failed, tooCostly uint64) { return b.failed.Load(), b.tooCostly.Load() }
