package member

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// TestCaughtUp: a member that has not asked the journal, or does not have what it said, has not
// caught up, however short its life.
func TestCaughtUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		a.publish("one")
		b := start(t, j, "b")
		b.handle.Cut(true)
		synctest.Wait()
		if s := b.member.Status(); s.CaughtUp || s.Behind > 0 {
			t.Errorf("a standby that could not ask says %+v", s)
		}
		b.handle.Cut(false)
		settle(lease)
		if s := b.member.Status(); !s.CaughtUp {
			t.Errorf("a standby that follows says %+v", s)
		}
		if s := a.member.Status(); !s.CaughtUp {
			t.Errorf("who leads says %+v", s)
		}
		a.kill()
		b.kill()
	})
}

// TestWatch: a member that does not follow, because it needs a copy, asks how the journal is: one that answers is not
// silent for it, however long that takes.
func TestWatch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{Most: 1 << 30})
		a := start(t, j, "a")
		settle(lease)
		a.publish("one")
		mustTrim(t, j, 1)
		handle := j.Open()
		b := New(Options{Journal: handle, Replica: new(copied), ID: "b", Lease: lease, Layout: 1, Logger: slog.New(slog.DiscardHandler)})
		if _, err := b.Lead(t.Context()); !errors.Is(err, journal.ErrTrimmed) {
			t.Fatalf("a member without what was trimmed: %v; want %v", err, journal.ErrTrimmed)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.Watch(ctx)
		}()
		settle(10 * lease)
		if s := b.Status(); s.Silent > 0 || s.Last < 2 || s.Behind < 9*lease || s.CaughtUp || s.Limits.Most == 0 {
			t.Errorf("a member that waits for a copy says %+v", s)
		}
		handle.Cut(true)
		settle(3 * lease)
		if s := b.Status(); s.Silent < 2*lease {
			t.Errorf("silent for %s; want %s", s.Silent, 3*lease)
		}
		stop()
		<-ended
		_ = handle.Close()
		a.kill()
	})
}

// busy is a journal that has one more entry each time it is asked than has come so far.
type busy struct{ journal.Journal }

func (b busy) Last(ctx context.Context) (uint64, error) {
	last, err := b.Journal.Last(ctx)
	return last + 1, err
}

// TestCaughtUpUnderLoad: a member that follows closely is one, and counts for what is trimmed, also where more has come
// each time it looks.
func TestCaughtUpUnderLoad(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease + lease/Looks/2) // b looks between two entries
		b := New(Options{Journal: busy{j.Open()}, Replica: new(copied), ID: "b", Lease: lease, Layout: 1, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = b.Lead(ctx) // it is stopped
		}()
		settle(lease + 2*announceEvery)
		if s := b.Status(); !s.CaughtUp {
			t.Errorf("a standby that follows says %+v", s)
		}
		if s := a.member.Status(); len(s.Members) != 2 || s.Members[1].ID != "b" {
			t.Errorf("the members are %+v; want b too", s.Members)
		}
		stop()
		<-ended
		_ = b.opts.Journal.Close()
		a.kill()
	})
}
