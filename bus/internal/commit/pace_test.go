package commit

import (
	"testing"
	"time"

	"eventhub"
)

// TestPace: what may wait follows from how fast large commits end one after the other, also where they overlap; small ones
// say nothing, and one that takes long counts with those around it.
func TestPace(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &pace{most: time.Second}
	idle := &pace{most: time.Second}
	for range 100 {
		idle.pending.Add(1000)
		start := now
		now = now.Add(time.Second) // a slow disk with little to do
		idle.over(1000, start, now)
	}
	idle.pending.Store(1 << 40)
	if idle.percent() != 0 {
		t.Error("something is known of a store that had only small commits")
	}
	commit := func(bytes int64, began time.Duration, took time.Duration) {
		p.pending.Add(bytes)
		start := now.Add(began)
		now = start.Add(took)
		p.over(bytes, start, now)
	}
	for range fewSamples {
		commit(1<<20, 0, 100*time.Millisecond) // 10 MiB a second
	}
	if got, want := p.window.Load(), int64(10<<20); got != want {
		t.Errorf("%d bytes may wait; want %d", got, want)
	}
	for range samples {
		commit(1<<20, -50*time.Millisecond, 100*time.Millisecond) // each began in the middle of the one before: 20 MiB a second
	}
	if got, want := p.window.Load(), int64(20<<20); got != want {
		t.Errorf("%d bytes may wait where commits overlap; want %d", got, want)
	}
	p.pending.Store(15 << 20)
	if got := p.percent(); got != 75 {
		t.Errorf("%d %% of what may wait do; want 75", got)
	}
	p.pending.Store(0)
	for range samples {
		commit(1<<20, 0, time.Minute)
	}
	if got := p.window.Load(); got != leastWindow {
		t.Errorf("%d bytes may wait for a store that is slower than that; want %d", got, leastWindow)
	}
	if p.pending.Load() != 0 {
		t.Errorf("%d bytes are pending", p.pending.Load())
	}
}

// TestPaceOfSlowAnswers: a journal whose answers take longer than a publish may wait, however much is in a commit, is kept
// busy by two commits at a time. What may wait does not shrink because little was let in.
func TestPaceOfSlowAnswers(t *testing.T) {
	const answer = 400 * time.Millisecond
	now := time.Unix(1000, 0)
	p := &pace{most: 250 * time.Millisecond}
	for range 100 {
		now = now.Add(answer)
		p.over(0, now.Add(-answer), now)
	}
	for range 100 {
		pending := int64(2 * commitBytes)
		if window := p.window.Load(); window > 0 {
			pending = min(pending, window)
		}
		first := min(pending, commitBytes)
		p.pending.Add(pending)
		now = now.Add(answer)
		p.over(first, now.Add(-answer), now)
		p.over(pending-first, now.Add(-answer), now)
	}
	if window := p.window.Load(); window < 2*commitBytes {
		t.Errorf("%d bytes may wait; two commits of %d are under way at a time", window, commitBytes)
	}
}

// TestPaceTurns: those that are refused get later and later times, in proportion to what they have, up to a bound; and
// the next ones after a while early ones again.
func TestPaceTurns(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &pace{most: time.Second}
	for range fewSamples {
		p.over(1<<20, now, now.Add(100*time.Millisecond))
		now = now.Add(100 * time.Millisecond)
	}
	wait := func(bytes int64) time.Duration {
		err := eventhub.AsError(p.refuse(bytes, now))
		if err.Code != eventhub.CodeOverloaded {
			t.Fatal(err)
		}
		return err.RetryAfter.Round(time.Millisecond)
	}
	if got := wait(10); got != leastRetry {
		t.Errorf("the first one may come after %s; want %s", got, leastRetry)
	}
	last := wait(512 << 10) // 8 times 50 ms
	if last != 400*time.Millisecond {
		t.Errorf("one of 512 KiB may come after %s; want 400ms", last)
	}
	if got := wait(512 << 10); got != 800*time.Millisecond {
		t.Errorf("the next one may come after %s; want 800ms", got)
	}
	for range 100 {
		last = wait(512 << 10)
	}
	if want := 1500 * time.Millisecond; last != want {
		t.Errorf("the hundredth may come after %s; want %s", last, want)
	}
	if now = now.Add(time.Minute); wait(10) != leastRetry {
		t.Error("a minute later the times are not early ones")
	}
}
