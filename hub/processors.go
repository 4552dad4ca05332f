package hub

import "runtime"

// leastRunning is how many goroutines may run at a time at least, on however few processors.
//
// On two processors two pieces of work that take long, such as a step of a compaction, a merge of tables
// or a collection of garbage, else have all that the runtime has, and what comes over the network
// waits until the runtime stops one of them, which is after 10 ms. Where more may run, the
// system has them take turns, and lets what has just become ready go first. Publishes beside the
// compaction of a topic had a 99.9th percentile of 15 to 60 ms with two, and of 8 ms with four.
const leastRunning = 4

// RunAtLeast has the runtime run leastRunning goroutines at a time or more, unless the environment
// variable GOMAXPROCS, whose value chosen is, says how many. It is called once, after Start, which
// counts the processors.
func RunAtLeast(chosen string) {
	if chosen == "" && runtime.GOMAXPROCS(0) < leastRunning {
		runtime.GOMAXPROCS(leastRunning)
	}
}
