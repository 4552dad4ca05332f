package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const lease = 4 * time.Second

// copied is a replica that has what was applied.
type copied struct {
	mu     sync.Mutex
	at     journal.Position
	data   []string
	broken error
}

func (c *copied) Position() journal.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *copied) Apply(batch []byte, at journal.Position) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	c.at = at
	if len(batch) > 0 {
		c.data = append(c.data, string(batch))
	}
	return nil
}

func (c *copied) Sync() (journal.Position, error) { return c.Position(), nil }

func (c *copied) has() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.data)
}

// hub is a member in a test, with the goroutine that the hub has for it.
type hub struct {
	t       *testing.T
	name    string
	handle  *memory.Handle
	replica *copied
	member  *Member
	stop    context.CancelFunc
	ended   chan struct{}

	mu        sync.Mutex
	leader    *journal.Leader
	ledAt     time.Time
	err       error
	suspended []bool // what was said, in turn
}

func start(t *testing.T, j *memory.Journal, name string) *hub {
	return startOver(t, j, name, new(copied), 1)
}

func startOver(t *testing.T, j *memory.Journal, name string, r *copied, layout uint32) *hub {
	h := &hub{t: t, name: name, handle: j.Open(), replica: r, ended: make(chan struct{})}
	h.member = New(Options{Journal: h.handle, Replica: r, ID: name, URLs: []string{"ws://" + name}, Lease: lease, Layout: layout, Founds: true, Logger: slog.New(slog.DiscardHandler),
		Suspend: func(silent bool) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.suspended = append(h.suspended, silent)
		}})
	var ctx context.Context
	ctx, h.stop = context.WithCancel(context.Background())
	go func() {
		defer close(h.ended)
		leader, err := h.member.Lead(ctx)
		h.mu.Lock()
		h.leader, h.err, h.ledAt = leader, err, time.Now()
		h.mu.Unlock()
		if err != nil {
			return
		}
		err = h.member.Hold(ctx, leader, func(context.Context) (journal.Position, error) { return leader.Position(), nil })
		_ = leader.Close() // as the hub does
		h.mu.Lock()
		h.err = err
		h.mu.Unlock()
	}()
	return h
}

// leads returns the leader, nil where the hub does not lead.
func (h *hub) leads() *journal.Leader {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leader != nil && h.leader.Err() == nil {
		return h.leader
	}
	return nil
}

// kill ends the hub without a word.
func (h *hub) kill() error {
	h.stop()
	if l := h.leads(); l != nil {
		_ = l.Close()
	}
	<-h.ended
	_ = h.handle.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *hub) publish(text string) {
	h.t.Helper()
	if _, err := h.leads().Append([]byte(text), 1)(); err != nil {
		h.t.Fatal(err)
	}
}

// settle lets time pass.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *hub) mustLead(want bool) {
	h.t.Helper()
	if got := h.leads() != nil; got != want {
		h.t.Fatalf("%s leads: %v; want %v", h.name, got, want)
	}
}

// TestTakeover: the first hub leads at once, a beat keeps the others from it while there is
// nothing to write, and when the hub is gone another one leads within a lease and a half.
func TestTakeover(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		a.mustLead(true)
		b := start(t, j, "b")
		a.publish("one")
		settle(announceEvery / 2)
		c := start(t, j, "c")
		settle(lease / 4)
		if got := c.replica.has(); !slices.Equal(got, []string{"one"}) {
			t.Errorf("a member that comes later has %v", got)
		}
		c.kill()
		settle(time.Hour)
		a.mustLead(true)
		b.mustLead(false)
		if s := b.member.Status(); s.Active != "a" || s.Role != Standby || s.Behind != 0 || s.Epoch != 1 || s.Position != s.Last || !s.CaughtUp || s.Limits.Used == 0 {
			t.Errorf("the standby says %+v", s)
		}
		if urls := b.member.ActiveURLs(); !slices.Equal(urls, []string{"ws://a"}) {
			t.Errorf("the standby says that the active one is at %v", urls)
		}
		a.publish("two")
		killed := time.Now()
		a.kill()
		settle(lease / 2)
		b.mustLead(false)
		settle(lease * 3 / 2)
		b.mustLead(true)
		if took := b.ledAt.Sub(killed); took > lease+lease/2+lease/Looks {
			t.Errorf("the takeover took %s", took)
		}
		if got := b.replica.has(); !slices.Equal(got, []string{"one", "two"}) {
			t.Errorf("the new one has %v", got)
		}
		b.publish("three")
		b.kill()
	})
}

// TestRelease: where the lead is given back nobody waits for the lease.
func TestRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		b := start(t, j, "b")
		settle(lease)
		if _, err := a.leads().Release()(); err != nil {
			t.Fatal(err)
		}
		settle(lease / Looks / 2)
		b.mustLead(true)
		a.kill()
		b.kill()
	})
}

// TestOneOfManyLeads: of hubs that all see the lease end one leads, and the others follow it.
func TestOneOfManyLeads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		first := start(t, j, "first")
		settle(lease)
		var hubs []*hub
		for i := range 7 {
			hubs = append(hubs, start(t, j, fmt.Sprint("h", i)))
		}
		settle(lease)
		first.publish("one")
		first.kill()
		settle(3 * lease)
		var leads []*hub
		for _, h := range hubs {
			if h.leads() != nil {
				leads = append(leads, h)
			}
		}
		if len(leads) != 1 {
			t.Fatalf("%d hubs lead", len(leads))
		}
		leads[0].publish("two")
		settle(lease)
		for _, h := range hubs {
			if got := h.replica.has(); h != leads[0] && !slices.Equal(got, []string{"one", "two"}) {
				t.Errorf("%s has %v", h.name, got)
			}
			h.kill()
		}
	})
}

func (h *hub) mustBeSuspended(want ...bool) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.suspended, want) {
		h.t.Errorf("%s was suspended and let go on in turn: %v; want %v", h.name, h.suspended, want)
	}
}

// TestSilence: who leads is suspended after a lease without an answer, and goes on when nobody has led
// since, however long that was.
func TestSilence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		b := start(t, j, "b")
		settle(lease)
		for n := range 3 {
			a.handle.Cut(true)
			b.handle.Cut(true)
			settle(lease * 3 / 4)
			a.handle.Cut(false)
			b.handle.Cut(false)
			settle(lease)
			a.mustBeSuspended(slices.Repeat([]bool{true, false}, n)...) // not for so short a silence
			a.handle.Cut(true)
			b.handle.Cut(true)
			settle(lease + lease/Looks + time.Second)
			a.mustBeSuspended(append(slices.Repeat([]bool{true, false}, n), true)...)
			settle(time.Hour)
			a.handle.Cut(false)
			b.handle.Cut(false)
			settle(lease / Looks * 2)
			a.mustBeSuspended(slices.Repeat([]bool{true, false}, n+1)...)
			settle(2 * lease)
			a.mustLead(true)
			b.mustLead(false)
		}
		a.publish("after")
		settle(time.Second)
		if got := b.replica.has(); !slices.Equal(got, []string{"after"}) {
			t.Errorf("the standby has %v", got)
		}
		a.kill()
		b.kill()
	})
}

// TestSent: when another hub leads, a lease has passed since the one before sent what it has in the journal, so that
// one can tell by itself that it may have been succeeded. And who goes on after a silence has sent something since.
func TestSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for n := range 20 {
			j := memory.New(memory.Options{})
			a := start(t, j, "a")
			settle(lease)
			b := start(t, j, "b")
			settle(lease + time.Duration(n)*lease/Looks/7)
			if n%2 == 0 {
				a.publish("one")
			}
			before := a.leads()
			a.handle.Cut(true)
			for b.leads() == nil {
				settle(lease / 64)
			}
			if since := b.ledAt.Sub(before.Sent()); since < lease {
				t.Errorf("the other one leads %s after this one has sent something; want %s at least", since, lease)
			}
			a.handle.Cut(false)
			settle(lease)
			a.kill()
			b.kill()
		}
	})
}

// TestSentSoon: after an answer that was long in coming a beat follows at once, since nobody is served before.
func TestSentSoon(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := start(t, memory.New(memory.Options{}), "a")
		settle(lease)
		a.handle.Cut(true)
		settle(time.Hour + lease/Looks/2) // between two looks
		a.mustBeSuspended(true)
		a.handle.Cut(false)
		settle(time.Millisecond)
		if since := time.Since(a.leads().Sent()); since > time.Millisecond {
			t.Errorf("what it has sent last is %s old", since)
		}
		a.mustBeSuspended(true, false)
		a.kill()
	})
}

// TestFull: a journal that is full answers, so it is not silent, neither to who leads nor to who tries to take over;
// and it is silent where it gives no answer after that.
func TestFull(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		b := start(t, j, "b")
		settle(lease)
		j.SetMost(1)
		settle(10 * lease)
		a.mustBeSuspended(true)
		for _, h := range []*hub{a, b} {
			if s := h.member.Status(); s.Silent > 0 || s.Full < 8*lease || s.Full > 10*lease {
				t.Errorf("%s says of a journal that is full for %s that it is full for %s, silent for %s", h.name, 10*lease, s.Full, s.Silent)
			}
			h.handle.Cut(true)
		}
		settle(3 * lease)
		for _, h := range []*hub{a, b} {
			if s := h.member.Status(); s.Full > 0 || s.Silent < 2*lease || s.Silent > 3*lease+time.Second {
				t.Errorf("%s says of a journal that is cut off for %s that it is full for %s, silent for %s", h.name, 3*lease, s.Full, s.Silent)
			}
			h.handle.Cut(false)
		}
		settle(lease)
		j.SetMost(100_000)
		settle(2 * lease)
		for _, h := range []*hub{a, b} {
			if s := h.member.Status(); h.leads() != nil && (s.Full > 0 || s.Silent > 0) {
				t.Errorf("with room %s says that the journal is full for %s, silent for %s", h.name, s.Full, s.Silent)
			}
		}
		a.kill()
		b.kill()
	})
}

// TestSilenceWithMuchPending: a commit that fills all that a leader may have pending does not keep it from being
// suspended while the journal does not answer.
func TestSilenceWithMuchPending(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		a.handle.Cut(true)
		wait := a.leads().Append(make([]byte, journal.MaxPending), 1) // with its header it is more
		settle(lease + lease/Looks + time.Second)
		a.mustBeSuspended(true)
		a.handle.Cut(false)
		if _, err := wait(); err != nil {
			t.Error(err)
		}
		settle(lease)
		a.mustBeSuspended(true, false)
		a.kill()
	})
}

// TestWithoutJournal: who does not reach the journal never leads, and counts a whole lease after it
// does again. Who led and was suspended does not go on where another one has led since.
func TestWithoutJournal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		b := start(t, j, "b")
		settle(lease)
		a.handle.Cut(true)
		b.handle.Cut(true)
		settle(lease + lease/Looks + time.Second)
		a.mustBeSuspended(true)
		settle(time.Hour)
		b.mustLead(false)
		if s := b.member.Status(); s.Silent < 50*time.Minute {
			t.Errorf("the standby says that the journal is silent for %s", s.Silent)
		}
		b.handle.Cut(false)
		settle(lease * 3 / 4)
		b.mustLead(false)
		settle(lease)
		b.mustLead(true)
		b.publish("of b")
		a.handle.Cut(false)
		settle(lease)
		a.mustLead(false)
		a.mustBeSuspended(true)
		if err := a.kill(); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("the hub that led before ended with %v", err)
		}
		b.kill()
	})
}

// TestUnfinishedCommit: pieces of a commit that its hub did not finish keep nobody from leading.
func TestUnfinishedCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{EntryBytes: 256})
		a := start(t, j, "a")
		settle(lease)
		b := start(t, j, "b")
		settle(lease)
		pieces := 0
		a.handle.Faults(func() memory.Fault {
			if pieces++; pieces > 2 { // under the lock of the journal
				return memory.LoseRequest
			}
			return memory.None
		})
		a.leads().Append(make([]byte, 2000), 1)
		settle(lease / Looks / 2)
		_ = a.leads().Close()
		a.kill()
		settle(3 * lease)
		b.mustLead(true)
		b.publish("after")
		if got := b.replica.has(); len(got) != 0 {
			t.Errorf("it has applied %d entries of what was not finished", len(got))
		}
		b.kill()
	})
}

// TestFinalErrors: what no waiting mends ends the member.
func TestFinalErrors(t *testing.T) {
	for _, tt := range []struct {
		what    string
		replica *copied
		layout  uint32
		harm    func(j *memory.Journal)
		want    error
	}{
		{"a position of another journal", &copied{at: journal.Position{Seq: 2, Epoch: 1, Chain: 77}}, 2, nil, journal.ErrDiverged},
		{"an entry of a later version", new(copied), 1, nil, journal.ErrForeign},
		{"a flipped bit", new(copied), 2, func(j *memory.Journal) { j.Flip(2, 99) }, journal.ErrDiverged},
		{"a journal without its beginning", new(copied), 2, func(j *memory.Journal) { mustTrim(t, j, 2) }, journal.ErrTrimmed},
		{"a replica that is broken", &copied{broken: errBroken}, 2, nil, errBroken},
	} {
		t.Run(tt.what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				j := memory.New(memory.Options{})
				a := startOver(t, j, "a", new(copied), 2)
				settle(lease)
				a.publish("one")
				a.publish("two")
				if tt.harm != nil {
					tt.harm(j)
				}
				b := startOver(t, j, "b", tt.replica, tt.layout)
				settle(10 * lease)
				if err := b.kill(); !errors.Is(err, tt.want) {
					t.Errorf("ended with %v; want %v", err, tt.want)
				}
				a.kill()
			})
		})
	}
}

var errBroken = errors.New("broken")

func mustTrim(t *testing.T, j *memory.Journal, upTo uint64) {
	t.Helper()
	if err := j.Open().Trim(context.Background(), upTo); err != nil {
		t.Fatal(err)
	}
}

// TestTrim: the journal loses what two members have on their disks, and all that are seen; a hub
// that is alone keeps everything.
func TestTrim(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		for i := range 100 {
			a.publish(fmt.Sprint(i))
		}
		settle(2 * announceEvery)
		if _, err := a.handle.Read(context.Background(), 2); err != nil {
			t.Errorf("alone: %v", err)
		}
		b := start(t, j, "b")
		settle(reserve / 2)
		if _, err := a.handle.Read(context.Background(), 100); err != nil {
			t.Errorf("with two, after half an hour: %v", err)
		}
		settle(reserve/2 + 3*announceEvery)
		if _, err := a.handle.Read(context.Background(), 100); !errors.Is(err, journal.ErrTrimmed) {
			t.Errorf("with two: %v", err)
		}
		if got := b.replica.has(); len(got) != 100 {
			t.Errorf("the standby has %d entries", len(got))
		}
		a.kill()
		settle(3 * lease)
		b.mustLead(true)
		b.kill()
	})
}

// catchingUp is a journal whose Follow hands out all that it has, a moment between two entries,
// before it looks whether it is to end.
type catchingUp struct{ journal.Journal }

func (c catchingUp) Follow(ctx context.Context, after uint64, visit func(at uint64, entry []byte) error) error {
	last, err := c.Last(ctx)
	if err != nil {
		return err
	}
	for ; after < last; after++ {
		entry, err := c.Read(context.WithoutCancel(ctx), after+1)
		if err == nil {
			err = visit(after+1, entry)
		}
		if err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return c.Journal.Follow(ctx, after, visit)
}

// TestOldRelease: a member that catches up with a journal in which somebody has given the lead back
// takes it from nobody who leads since.
func TestOldRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		at, err := a.leads().Append([]byte("of a"), 1)()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.leads().Release()(); err != nil {
			t.Fatal(err)
		}
		a.kill()
		b := start(t, j, "b")
		settle(lease)
		b.mustLead(true)
		b.publish("of b")
		c := New(Options{Journal: catchingUp{j.Open()}, Replica: &copied{at: at}, ID: "c", Lease: lease, Layout: 1, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := c.Lead(ctx)
			ended <- err
		}()
		settle(4 * lease)
		b.mustLead(true)
		if s := c.Status(); s.Active != "b" || s.Position != s.Last {
			t.Errorf("the standby says %+v", s)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the standby ended with %v", err)
		}
		b.kill()
	})
}

// TestTrimWhereItIsFull: a member that is gone keeps a journal from being trimmed for a day, but not
// one that is nearly full; and one that was refused is none.
func TestTrimWhereItIsFull(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		b, gone := start(t, j, "b"), start(t, j, "gone")
		settle(3 * announceEvery)
		refused := startOver(t, j, "refused", &copied{broken: errBroken}, 1)
		settle(2 * announceEvery)
		if err := refused.kill(); !errors.Is(err, errBroken) {
			t.Fatalf("the member that is refused ended with %v", err)
		}
		for _, m := range a.member.Status().Members {
			if m.ID == "refused" {
				t.Errorf("it is a member: %+v", m)
			}
		}
		gone.kill()
		for range 200 {
			a.publish("some text that fills the journal")
		}
		settle(reserve + 3*announceEvery)
		if _, err := a.handle.Read(context.Background(), 100); err != nil {
			t.Errorf("with a member that is gone: %v", err)
		}
		limits, err := a.handle.Limits(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		j.SetMost(limits.Used * 100 / 95)
		settle(3 * announceEvery)
		if _, err := a.handle.Read(context.Background(), 100); !errors.Is(err, journal.ErrTrimmed) {
			t.Errorf("where it is full: %v", err)
		}
		a.mustLead(true)
		a.kill()
		b.kill()
	})
}

// TestEnginesClock: who was seen is told by the engine's clock, however far that of the hubs is from it: a
// member that is there counts, one that is gone does not.
func TestEnginesClock(t *testing.T) {
	for _, ahead := range []time.Duration{-2 * SeenWithin, -2 * seenWithinFull, 2 * seenWithinFull, 2 * SeenWithin} {
		t.Run(ahead.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				j := memory.New(memory.Options{})
				j.SetAhead(ahead)
				a := start(t, j, "a")
				settle(lease)
				b, gone := start(t, j, "b"), start(t, j, "gone")
				settle(3 * announceEvery)
				gone.kill()
				for range 200 {
					a.publish("some text that fills the journal")
				}
				settle(announceEvery)
				limits, err := a.handle.Limits(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				j.SetMost(limits.Used * 100 / 95)
				settle(seenWithinFull / 2)
				if _, err := a.handle.Read(context.Background(), 100); err != nil {
					t.Errorf("with a member that was seen within a minute: %v", err)
				}
				settle(seenWithinFull)
				if _, err := a.handle.Read(context.Background(), 100); !errors.Is(err, journal.ErrTrimmed) {
					t.Errorf("where it is gone for a minute: %v", err)
				}
				s := a.member.Status()
				if off := s.Now.Sub(time.Now().Add(ahead)); off != 0 {
					t.Errorf("the engine's clock is said to be off by %s", off)
				}
				for _, m := range s.Members {
					if away := s.Now.Sub(m.Seen); m.ID != "gone" && (away < 0 || away > 2*announceEvery) {
						t.Errorf("%s was seen %s ago", m.ID, away)
					}
				}
				a.kill()
				b.kill()
			})
		})
	}
}

// TestRoom: a member that leads knows how much room its journal has, also what it has appended since it
// asked.
func TestRoom(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(announceEvery)
		if r := a.member.Room(); r.IsLow() || r != (Room{}) {
			t.Errorf("without a bound: %+v", r)
		}
		limits, err := a.handle.Limits(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		most := limits.Used + 100_000
		j.SetMost(most)
		settle(announceEvery)
		if r := a.member.Room(); r.IsLow() || r.Most != most || r.Least != most/10 || r.Free < 95_000 {
			t.Errorf("with a bound: %+v", r)
		}
		for range 9 {
			a.publish(string(make([]byte, 10_000)))
		}
		if r := a.member.Room(); !r.IsLow() || r.Free > 10_000 {
			t.Errorf("after 90,000 bytes, before the journal was asked again: %+v", r)
		}
		settle(announceEvery)
		if r := a.member.Room(); !r.IsLow() || r.Free > 10_000 || r.Free < 5000 {
			t.Errorf("after 90,000 bytes: %+v", r)
		}
		j.SetMost(10 << 30)
		settle(announceEvery)
		if r := a.member.Room(); r.IsLow() || r.Least != 10<<30/20 {
			t.Errorf("with a large bound: %+v", r)
		}
		a.kill()
	})
}

// TestFounder: a journal that has nothing begins with the store of a member that has one, although
// others were there before.
func TestFounder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		ctx, stop := context.WithCancel(context.Background())
		m := New(Options{Journal: j.Open(), Replica: new(copied), ID: "empty", Lease: lease, Layout: 1, Logger: slog.New(slog.DiscardHandler)})
		ended := make(chan error, 1)
		go func() {
			leader, err := m.Lead(ctx)
			if err == nil {
				_ = leader.Close()
			}
			ended <- err
		}()
		settle(lease / 2)
		founder := start(t, j, "founder")
		settle(4 * lease)
		founder.mustLead(true)
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the empty member ended with %v", err)
		}
		founder.kill()
	})
}

// away is a journal that does not answer reads for a while, as one without a leader.
type away struct {
	journal.Journal
	until time.Time
}

var errAway = errors.New("there is no leader")

func (a away) Read(ctx context.Context, at uint64) ([]byte, error) {
	if time.Now().Before(a.until) {
		return nil, errAway
	}
	return a.Journal.Read(ctx, at)
}

// TestPassingErrors: a standby follows on when the engine is there again.
func TestPassingErrors(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		at, err := a.leads().Append([]byte("one"), 1)()
		if err != nil {
			t.Fatal(err)
		}
		r := &copied{at: at}
		m := New(Options{Journal: away{j.Open(), time.Now().Add(time.Minute)}, Replica: r, ID: "b", Lease: lease, Layout: 1, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := m.Lead(ctx)
			ended <- err
		}()
		a.publish("two")
		settle(2 * time.Minute)
		if got := r.has(); !slices.Equal(got, []string{"two"}) {
			t.Errorf("the standby has %v", got)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the standby ended with %v", err)
		}
		a.kill()
	})
}
