package space

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is a store with a disk that a test fills. A step of a sweep takes a millisecond.
type disk struct {
	store.Maintenance
	free    atomic.Uint64
	broken  atomic.Bool  // Space fails
	asked   atomic.Int64 // calls of Space
	left    atomic.Int64 // steps of a sweep that there are
	endless bool         // there are always more
	noSweep bool         // Options.NoSweep
	steps   atomic.Int64
	backlog atomic.Uint64 // bytes that a step leaves
	later   atomic.Int64  // after how long there is something again, once
	stuck   atomic.Int64  // Shrink fails so many times
	shrunk  atomic.Int64  // calls of Shrink
	commits atomic.Uint64
	refuse  atomic.Pointer[error] // of Options.Refuse
	said    bytes.Buffer
}

const gib = 1 << 30

func (d *disk) Sweep(ctx context.Context) (store.Left, error) {
	d.steps.Add(1)
	if !sleep(ctx, time.Millisecond) {
		return store.Left{}, ctx.Err()
	}
	if d.left.Add(-1) > 0 || d.endless {
		return store.Left{Bytes: d.backlog.Load()}, nil
	}
	return store.Left{Again: time.Duration(d.later.Swap(-1))}, nil
}

func (d *disk) Shrink(context.Context) error {
	d.shrunk.Add(1)
	if d.stuck.Add(-1) >= 0 {
		return errors.New("no space left on device")
	}
	d.free.Store(50 * gib)
	return nil
}

func (d *disk) Space() (store.Space, error) {
	d.asked.Add(1)
	if d.broken.Load() {
		return store.Space{}, errors.New("no such device")
	}
	return store.Space{Free: d.free.Load(), Total: 100 * gib}, nil
}

// inBubble runs a test with a Guard whose sweeper has started.
func inBubble(t *testing.T, change func(*disk), test func(*Guard, *disk)) {
	t.Helper()
	bubble.Test(t, func(*testing.T) {
		d := &disk{Maintenance: memory.Open(memory.Options{})}
		d.free.Store(50 * gib)
		d.left.Store(1)
		d.later.Store(-1)
		change(d)
		g := New(Options{Store: d, Logger: slog.New(slog.NewTextHandler(&d.said, nil)), Commits: d.commits.Load, NoSweep: d.noSweep,
			Refuse: func() error {
				if err := d.refuse.Load(); err != nil {
					return *err
				}
				return nil
			}})
		g.Start()
		test(g, d)
		g.Stop()
	})
}

// TestNearlyFull: whoever asks for room is refused, and learns when to ask again, until there
// is some. The disk is asked every LookEvery and not more often, and both turns are said
// once.
func TestNearlyFull(t *testing.T) {
	inBubble(t, func(d *disk) { d.stuck.Store(1 << 40) }, func(g *Guard, d *disk) {
		for _, tt := range []struct {
			free    uint64
			refused bool
		}{{5 * gib, false}, {49 * gib / 10, true}, {1, true}, {5 * gib, false}, {50 * gib, false}} {
			d.free.Store(tt.free)
			time.Sleep(LookEvery)
			var refusal *eventhub.Error
			err := g.Check()
			if errors.As(err, &refusal) != tt.refused || err == nil == tt.refused {
				t.Errorf("with %d free: %v; refused should be %v", tt.free, err, tt.refused)
			}
			if tt.refused && (refusal.Code != eventhub.CodeOverloaded || refusal.RetryAfter != RetryAfter) {
				t.Errorf("with %d free: %+v", tt.free, refusal)
			}
		}
		asked := d.asked.Load()
		for range 1000 {
			if err := g.Check(); err != nil {
				t.Error(err)
			}
		}
		if n := d.asked.Load() - asked; n != 0 {
			t.Errorf("the disk was asked %d times more within LookEvery", n)
		}
		for _, said := range []string{"nearly full; publishes are refused", "has room again; publishes go on"} {
			if n := strings.Count(d.said.String(), said); n != 1 {
				t.Errorf("%q was said %d times: %s", said, n, &d.said)
			}
		}
		// A disk that does not answer is not full, and one that was full still is.
		d.broken.Store(true)
		time.Sleep(LookEvery)
		if err := g.Check(); err != nil {
			t.Error(err)
		}
		d.broken.Store(false)
		d.free.Store(1)
		time.Sleep(LookEvery)
		_ = g.Check()
		d.broken.Store(true)
		time.Sleep(LookEvery)
		if err := g.Check(); err == nil {
			t.Error("room was found on a full disk that does not answer")
		}
	})
}

// TestCopies: a copy of the store is refused when it could take the room of acks, and not when publishes alone are refused.
func TestCopies(t *testing.T) {
	inBubble(t, func(d *disk) { d.stuck.Store(1 << 40) }, func(g *Guard, d *disk) {
		full := errors.New("the journal is full")
		for _, tt := range []struct {
			free    uint64
			besides error
			refused bool
		}{{free: 50 * gib}, {free: 256 << 20}, {free: 256<<20 - 1, refused: true}, {free: 50 * gib, besides: full}} {
			d.free.Store(tt.free)
			d.refuse.Store(&tt.besides)
			time.Sleep(LookEvery)
			err := g.CheckCopy()
			if (err != nil) != tt.refused || err != nil && (eventhub.ErrorCode(err) != eventhub.CodeOverloaded || !strings.Contains(err.Error(), "255 MiB are free")) {
				t.Errorf("%+v: %v", tt, err)
			}
		}
	})
}

// TestNoRoomBesides: what the store writes to besides the disk is asked as the disk is, and either of
// them refuses.
func TestNoRoomBesides(t *testing.T) {
	inBubble(t, func(d *disk) { d.stuck.Store(1 << 40) }, func(g *Guard, d *disk) {
		full := errors.New("the journal is full")
		for _, tt := range []struct {
			disk, broken bool
			besides      error
		}{{}, {besides: full}, {besides: full, broken: true}, {}, {disk: true}, {disk: true, besides: full}, {disk: true}, {}} {
			d.free.Store(50 * gib)
			if tt.disk {
				d.free.Store(1)
			}
			d.broken.Store(tt.broken)
			d.refuse.Store(&tt.besides)
			time.Sleep(LookEvery)
			for range 2 { // the second time by what is known
				err := g.Check()
				if (err != nil) != (tt.disk || tt.besides != nil) || !tt.disk && err != tt.besides {
					t.Errorf("%+v: %v", tt, err)
				}
			}
		}
		for said, want := range map[string]int{"publishes are refused\" error": 2, "msg=\"publishes go on\"": 2} {
			if n := strings.Count(d.said.String(), said); n != want {
				t.Errorf("%q was said %d times: %s", said, n, &d.said)
			}
		}
	})
}

// TestSweeps: what an earlier run left is swept at the start, and what a deletion leaves
// after it; in between nothing is done, and a disk that becomes full wakes the sweeper too.
func TestSweeps(t *testing.T) {
	inBubble(t, func(d *disk) { d.left.Store(3) }, func(g *Guard, d *disk) {
		time.Sleep(time.Minute)
		if n := d.steps.Load(); n != 3 {
			t.Errorf("%d steps after the start; want 3", n)
		}
		time.Sleep(time.Hour)
		d.left.Store(2)
		g.Deleted()
		g.Deleted() // several at once are one
		time.Sleep(time.Minute)
		if n := d.steps.Load(); n > 3+2+1 || n < 3+2 {
			t.Errorf("%d steps after a deletion; want 5, or one more that finds nothing", n)
		}
		d.free.Store(1)
		_ = g.Check()
		synctest.Wait()
		if n := d.shrunk.Load(); n != 1 {
			t.Errorf("when the disk became full the store was asked for room %d times; want 1", n)
		}
	})
}

// TestSweeperYields: while others commit, fewer than one in a hundred meets a step of the
// sweep; where nobody does, or the disk is full, the sweep goes on twenty times as fast.
func TestSweeperYields(t *testing.T) {
	inBubble(t, func(d *disk) { d.endless = true; d.stuck.Store(1 << 40) }, func(g *Guard, d *disk) {
		steps := func(commits bool) int64 {
			before := d.steps.Load()
			for range 1000 {
				time.Sleep(10 * time.Millisecond)
				if commits {
					d.commits.Add(1)
				}
			}
			return d.steps.Load() - before
		}
		idle, busy := steps(false), steps(true)
		d.free.Store(1)
		time.Sleep(time.Second) // what was found out of the disk holds for a while
		full := steps(true)
		if idle < 1900 || busy > 110 || full < 1900 {
			t.Errorf("in 10 s there were %d steps with nobody else, %d with commits, %d with a full disk; want at least 1900, at most 110, at least 1900", idle, busy, full)
		}
	})
}

// TestSweeperKeepsUp: the more there is left, the more of the time is swept, also while others
// commit; so what is left stays bounded.
func TestSweeperKeepsUp(t *testing.T) {
	inBubble(t, func(d *disk) { d.endless = true }, func(_ *Guard, d *disk) {
		steps := func(backlog uint64) (n int64) {
			d.backlog.Store(backlog)
			time.Sleep(2 * time.Second) // the rest that is under way
			before := d.steps.Load()
			for range 1000 {
				time.Sleep(10 * time.Millisecond)
				d.commits.Add(1)
			}
			return d.steps.Load() - before
		}
		none, some, most, more := steps(0), steps(mostBacklog/4), steps(mostBacklog), steps(1<<50)
		if none > 110 || some < 1900 || some > 2300 || most < 7500 || most > 8500 || more != most {
			t.Errorf("in 10 s there were %d, %d, %d, %d steps of a millisecond; want 100, 2080, 8000, as many", none, some, most, more)
		}
	})
}

// TestSweepsLater: where something can be removed only later one timer waits for that, and
// after it nothing is done.
func TestSweepsLater(t *testing.T) {
	inBubble(t, func(d *disk) { d.later.Store(int64(10 * time.Minute)) }, func(g *Guard, d *disk) {
		time.Sleep(10 * time.Minute)
		if n := d.steps.Load(); n != 1 {
			t.Errorf("%d steps before anything was due; want 1", n)
		}
		time.Sleep(time.Hour)
		if n := d.steps.Load(); n != 2 {
			t.Errorf("%d steps in all; want 2", n)
		}
		d.later.Store(int64(time.Hour))
		g.Removed()
		time.Sleep(time.Minute)
		g.Removed() // with nothing for later any more
		time.Sleep(2 * time.Hour)
		if n := d.steps.Load(); n != 4 {
			t.Errorf("%d steps in all; want 4", n)
		}
	})
}

// TestNoSweep: with the option nothing is swept, but a full disk is asked for room.
func TestNoSweep(t *testing.T) {
	inBubble(t, func(d *disk) { d.noSweep = true }, func(g *Guard, d *disk) {
		g.Deleted()
		g.Removed()
		d.free.Store(1)
		time.Sleep(time.Minute)
		_ = g.Check()
		synctest.Wait()
		if d.steps.Load() != 0 || d.shrunk.Load() != 1 {
			t.Errorf("%d steps, and the store was asked for room %d times; want 0 and 1", d.steps.Load(), d.shrunk.Load())
		}
	})
}

// TestShrinkIsTriedAgain: what a full disk kept from giving room back is tried again while
// the disk is full, every RetryAfter, and then there is room without anybody's doing. A
// sweep that lasts does not hold that up.
func TestShrinkIsTriedAgain(t *testing.T) {
	inBubble(t, func(d *disk) { d.stuck.Store(3); d.left.Store(1000) }, func(g *Guard, d *disk) {
		d.free.Store(1)
		for range 3 {
			if eventhub.ErrorCode(g.Check()) != eventhub.CodeOverloaded {
				t.Fatal("there is room though the disk is full")
			}
			time.Sleep(RetryAfter)
		}
		time.Sleep(RetryAfter)
		if err := g.Check(); err != nil {
			t.Errorf("the disk has room again: %v", err)
		}
		if n := d.shrunk.Load(); n != 4 {
			t.Errorf("the store was asked for room %d times; want 4", n)
		}
		time.Sleep(time.Hour)
		if n := d.shrunk.Load(); n != 4 {
			t.Errorf("the store was asked for room %d times in the end; want 4", n)
		}
	})
}
