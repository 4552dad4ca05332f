package main

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
)

// TestSecondSignal: a signal that is sent to a process and to its group, as
// timeout(1) does, arrives twice and is one. Another signal, or the same one a second
// later, is a second one.
func TestSecondSignal(t *testing.T) {
	const once, late = 3 * time.Millisecond, time.Second
	for _, c := range []struct {
		name string
		next []os.Signal
		wait []time.Duration // before each of next
		want []string
	}{
		{"one", nil, nil, []string{"stop"}},
		{"twice at once", []os.Signal{syscall.SIGTERM}, []time.Duration{0}, []string{"stop"}},
		{"three times within a second", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, []time.Duration{once, late - 2*once}, []string{"stop"}},
		{"again after a second", []os.Signal{syscall.SIGTERM}, []time.Duration{late}, []string{"stop", "give up"}},
		{"twice at once, and after a second", []os.Signal{syscall.SIGTERM, syscall.SIGTERM}, []time.Duration{0, late}, []string{"stop", "give up"}},
		{"another one at once", []os.Signal{syscall.SIGINT}, []time.Duration{0}, []string{"stop", "give up"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal, 3) // nobody takes them after giveUp
				var got []string
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					obey(signals, func() { got = append(got, "stop") }, func() { got = append(got, "give up") })
				}()
				signals <- syscall.SIGTERM
				for i, s := range c.next {
					time.Sleep(c.wait[i])
					signals <- s
				}
				synctest.Wait()
				if !slices.Equal(got, c.want) {
					t.Errorf("it did %q; want %q", got, c.want)
				}
				close(signals)
				<-ended
			})
		})
	}
}
