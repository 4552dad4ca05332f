// Package testsize says how much a test that can be of any size does in this run. There
// are two sizes: the full one, and a small one for the race detector, under which all takes
// several times as long, and for the runs between two edits. Both run the same checks.
package testsize

import (
	"flag"
	"os"

	"eventhub/internal/raced"
)

// Env is the environment variable that chooses the size: "small" or "full". Without it a
// run is small under the race detector, and full otherwise.
const Env = "TEST_SIZE"

// Small reports whether this run is a small one. It panics where Env has another value
// than those that it knows.
func Small() bool { return small(os.Getenv(Env), raced.Enabled) }

func small(env string, raced bool) bool {
	switch env {
	case "":
		return raced
	case "small":
		return true
	case "full":
		return false
	}
	panic(Env + " is " + env + ", not small or full")
}

// Of returns the first number in a full run and the second in a small one.
func Of(full, small int) int {
	if Small() {
		return small
	}
	return full
}

// Int defines a flag for a size, whose default is that of the run.
func Int(name string, full, small int, usage string) *int {
	return flag.Int(name, Of(full, small), usage)
}
