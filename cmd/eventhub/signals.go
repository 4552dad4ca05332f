package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// untilSignal returns a context that the first SIGINT or SIGTERM ends; a second
// one ends the process at once.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go obey(signals, cancel, func() {
		fmt.Fprintln(os.Stderr, "eventhub: second signal, not waiting any longer")
		commands.end()
		os.Exit(exitFailed)
	})
	return ctx, cancel
}

// sameSignal is how long the first signal counts when it is sent again: timeout(1) and
// some supervisors signal the process and its group, so one signal arrives twice.
const sameSignal = time.Second

// obey calls stop at the first signal and giveUp at the second, until signals is closed.
func obey(signals <-chan os.Signal, stop, giveUp func()) {
	first, ok := <-signals
	if !ok {
		return
	}
	since := time.Now()
	stop()
	for s := range signals {
		if s != first || time.Since(since) >= sameSignal {
			giveUp()
			return
		}
	}
}
