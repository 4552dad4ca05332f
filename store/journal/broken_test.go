package journal_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// three returns an engine with a lead and the entries one and two, who leads, and the position.
func three(t *testing.T) (*memory.Journal, *memory.Handle, *journal.Leader, journal.Position) {
	engine := memory.New(small)
	j := engine.Open()
	d := lead(t, j, journal.Position{}, "a")
	put(t, d, "one")
	return engine, j, d, put(t, d, "two")
}

// TestJournalThatLostEntries: nobody goes on with a journal that has lost what it acknowledged.
func TestJournalThatLostEntries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, at := three(t)
		other := engine.Open()
		engine.Rollback(1)
		_, err := d.Append([]byte("three"), 1)()
		fails(t, "the hub that leads", err, journal.ErrDiverged)
		fails(t, "why it has ended", d.Err(), journal.ErrDiverged)
		ignore := func(journal.Entry) {}
		fails(t, "a follower", following(other, at, ignore), journal.ErrDiverged)
		_, err = journal.New(other).Lead(background, at, "b", 6)
		fails(t, "a hub that takes over", err, journal.ErrDiverged)
		if last, err := j.Last(background); err != nil || last != 2 {
			t.Errorf("the journal ends at %d, %v: somebody wrote over it", last, err)
		}
		// A hub that has less takes over; who has the lost entry still sees it.
		_, before := collect(t, other, journal.Position{})
		b := lead(t, other, before, "b")
		defer b.Close()
		fails(t, "a follower at a place with another entry", following(other, at, ignore), journal.ErrDiverged)
		put(t, b, "three")
		fails(t, "a follower below the end", following(other, at, ignore), journal.ErrDiverged)
		_, err = journal.New(other).Lead(background, at, "c", 6)
		fails(t, "a hub that takes over then", err, journal.ErrDiverged)
	})
}

// TestLostWhileFollowed: a follower that stands at the end when entries are lost meets the next ones.
func TestLostWhileFollowed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, _, d, at := three(t)
		_ = d.Close()
		_, before := collect(t, engine.Open(), journal.Position{})
		_ = before
		ended := make(chan error, 1)
		go func() {
			ended <- journal.New(engine.Open()).Follow(background, at, func(e journal.Entry) error {
				t.Errorf("followed %+v", e.Header)
				return nil
			})
		}()
		synctest.Wait()
		engine.Rollback(1)
		_, before = collect(t, engine.Open(), journal.Position{})
		b := lead(t, engine.Open(), before, "b")
		defer b.Close()
		put(t, b, "three")
		fails(t, "the follower", <-ended, journal.ErrDiverged)
	})
}

// TestShortForAWhile: an engine's former leader that does not know of the last entries is no loss.
func TestShortForAWhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, j, d, at := three(t)
		defer d.Close()
		stale := &staleEngine{Handle: j, until: time.Now().Add(10 * time.Second)}
		if got, _ := collect(t, stale, at); got != "" {
			t.Errorf("followed %s", got)
		}
		stale.until = time.Now().Add(10 * time.Second)
		b := lead(t, stale, at, "b")
		defer b.Close()
		stale.until = time.Now().Add(10 * time.Second)
		put(t, b, "three")
	})
}

// staleEngine answers as a former leader until a time: it ends one place earlier.
type staleEngine struct {
	*memory.Handle
	until time.Time
}

func (s *staleEngine) stale() bool { return time.Now().Before(s.until) }

func (s *staleEngine) Last(ctx context.Context) (uint64, error) {
	last, err := s.Handle.Last(ctx)
	if s.stale() {
		last--
	}
	return last, err
}

func (s *staleEngine) Append(ctx context.Context, after uint64, entry []byte) error {
	if s.stale() {
		return journal.ErrConflict
	}
	return s.Handle.Append(ctx, after, entry)
}

func (s *staleEngine) Read(ctx context.Context, at uint64) ([]byte, error) {
	if last, err := s.Last(ctx); err != nil || at > last {
		return nil, errors.Join(err, journal.ErrAbsent)
	}
	return s.Handle.Read(ctx, at)
}

// TestSlowEngine: an engine that takes longer for each call than one may take at first is led all the same, and is not
// asked in vain for ever; when it is fast again a call that has no answer is soon made again.
func TestSlowEngine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine := memory.New(small)
		slow := &slowEngine{Handle: engine.Open()}
		a := lead(t, slow, journal.Position{}, "a")
		defer a.Close()
		slow.takes.Store(int64(3 * time.Second))
		gaveUp := time.AfterFunc(time.Minute, func() {
			t.Error("an entry was asked for in vain for a minute")
			slow.takes.Store(0)
		})
		put(t, a, "one")
		gaveUp.Stop()
		began := time.Now()
		put(t, a, "two")
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("an entry took %s once it was known that the engine is slow", took)
		}
		slow.takes.Store(0)
		put(t, a, "three")
		slow.takes.Store(int64(time.Hour)) // of the call that is made now
		time.AfterFunc(100*time.Millisecond, func() { slow.takes.Store(0) })
		began = time.Now()
		put(t, a, "four")
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a call without an answer was made again after %s", took)
		}
		if got, _ := collect(t, engine.Open(), journal.Position{}); got != "1/1:lead 2/1:one 3/1:two 4/1:three 5/1:four" {
			t.Errorf("followed %s", got)
		}
	})
}

// slowEngine does what it is asked for, and answers after a time.
type slowEngine struct {
	*memory.Handle
	takes atomic.Int64 // a time.Duration
}

func (s *slowEngine) slow(ctx context.Context, err error) error {
	select {
	case <-time.After(time.Duration(s.takes.Load())):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowEngine) Last(ctx context.Context) (uint64, error) {
	last, err := s.Handle.Last(ctx)
	return last, s.slow(ctx, err)
}

func (s *slowEngine) Limits(ctx context.Context) (journal.Limits, error) {
	limits, err := s.Handle.Limits(ctx)
	return limits, s.slow(ctx, err)
}

func (s *slowEngine) Append(ctx context.Context, after uint64, entry []byte) error {
	return s.slow(ctx, s.Handle.Append(ctx, after, entry))
}

func (s *slowEngine) Read(ctx context.Context, at uint64) ([]byte, error) {
	entry, err := s.Handle.Read(ctx, at)
	return entry, s.slow(ctx, err)
}

// TestForeignBytes: bytes that no hub wrote there stop a follower, a hub that takes over, and
// the one that leads.
func TestForeignBytes(t *testing.T) {
	for name, breaks := range map[string]func(engine *memory.Journal, entries [][]byte){
		"a flipped bit":       func(engine *memory.Journal, _ [][]byte) { engine.Flip(2, 8*64) },
		"text":                func(engine *memory.Journal, _ [][]byte) { engine.Put([]byte("hello")) },
		"nothing":             func(engine *memory.Journal, _ [][]byte) { engine.Put(nil) },
		"a cut entry":         func(engine *memory.Journal, entries [][]byte) { engine.Put(entries[2][:40]) },
		"an entry once more":  func(engine *memory.Journal, entries [][]byte) { engine.Put(entries[2]) },
		"the first once more": func(engine *memory.Journal, entries [][]byte) { engine.Put(entries[0]) },
		"the same epoch led again": func(engine *memory.Journal, entries [][]byte) {
			engine.Put(entryOf(journal.Header{Kind: journal.KindLead, Epoch: 1, Hub: "b", Chain: journal.Hash(entries[2])}))
		},
		"data of an epoch without a lead": func(engine *memory.Journal, entries [][]byte) {
			engine.Put(entryOf(journal.Header{Kind: journal.KindData, Epoch: 2, Hub: "a", Chain: journal.Hash(entries[2])}))
		},
		"data of another hub": func(engine *memory.Journal, entries [][]byte) {
			engine.Put(entryOf(journal.Header{Kind: journal.KindData, Epoch: 1, Hub: "b", Chain: journal.Hash(entries[2])}))
		},
		"a hole in pieces": func(engine *memory.Journal, entries [][]byte) {
			first := entryOf(journal.Header{Kind: journal.KindData, Rest: 2, Epoch: 1, Hub: "a", Chain: journal.Hash(entries[2])})
			engine.Put(first)
			engine.Put(entryOf(journal.Header{Kind: journal.KindData, Epoch: 1, Hub: "a", Chain: journal.Hash(first)}))
		},
		"a beat in pieces": func(engine *memory.Journal, entries [][]byte) {
			first := entryOf(journal.Header{Kind: journal.KindData, Rest: 1, Epoch: 1, Hub: "a", Chain: journal.Hash(entries[2])})
			engine.Put(first)
			engine.Put(entryOf(journal.Header{Kind: journal.KindBeat, Epoch: 1, Hub: "a", Chain: journal.Hash(first)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				engine, j, d, at := three(t)
				_ = d.Close()
				var entries [][]byte
				for seq := range at.Seq {
					bytes, err := j.Read(background, seq+1)
					if err != nil {
						t.Fatal(err)
					}
					entries = append(entries, bytes)
				}
				_, first := collect(t, j, journal.Position{})
				breaks(engine, entries)
				n := 0
				err := following(j, journal.Position{}, func(journal.Entry) { n++ })
				if fails(t, "a follower", err, journal.ErrDiverged); n > 3 {
					t.Errorf("it followed %d entries", n)
				}
				if name == "a flipped bit" {
					first = journal.Position{Seq: 1, Epoch: 1, Chain: journal.Hash(entries[0])}
				}
				_, err = journal.New(j).Lead(background, first, "b", 6)
				fails(t, "a hub that takes over", err, journal.ErrDiverged)
			})
		})
	}
}

func entryOf(h journal.Header) []byte {
	bytes, err := journal.AppendEntry(nil, &h, nil)
	if err != nil {
		panic(err)
	}
	return bytes
}

// TestForeignBytesBelowALeader: the one that leads finds what is at its place.
func TestForeignBytesBelowALeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, _ := three(t)
		engine.Put([]byte("hello"))
		_, err := d.Append([]byte("three"), 1)()
		fails(t, "the append", err, journal.ErrDiverged, journal.ErrForeign)
		if last, err := j.Last(background); err != nil || last != 4 {
			t.Errorf("the journal ends at %d, %v", last, err)
		}
	})
}

// TestTrimmedBelowALeader: the answer was lost, and the place is gone: nobody knows.
func TestTrimmedBelowALeader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, _ := three(t)
		j.Cut(true)
		wait := d.Append([]byte("three"), 1)
		engine.Put([]byte("x"))
		engine.Put([]byte("y"))
		if err := engine.Open().Trim(background, 4); err != nil {
			t.Fatal(err)
		}
		j.Cut(false)
		_, err := wait()
		if fails(t, "the append", err, journal.ErrUnknown); errors.Is(err, journal.ErrFenced) {
			t.Errorf("the error says more than is known: %v", err)
		}
		_, err = d.Append([]byte("four"), 1)()
		if fails(t, "the next", err, journal.ErrClosed); errors.Is(err, journal.ErrUnknown) {
			t.Errorf("the next was never sent: %v", err)
		}
	})
}

// TestCloseLeavesTheOutcomeOpen: who closes learns that nothing is known, and what was sent may
// still come.
func TestCloseLeavesTheOutcomeOpen(t *testing.T) {
	for name, end := range map[string]func(d *journal.Leader, j *memory.Handle){
		"the leader":  func(d *journal.Leader, _ *memory.Handle) { _ = d.Close() },
		"the journal": func(_ *journal.Leader, j *memory.Handle) { _ = j.Close() },
	} {
		bubble.Test(t, func(t *testing.T) {
			engine, j, d, at := three(t)
			j.Faults(func() memory.Fault { return memory.Delay })
			waits := []func() (journal.Position, error){d.Append([]byte("three"), 1), d.Append([]byte("four"), 1)}
			time.Sleep(time.Hour)
			end(d, j)
			for _, wait := range waits {
				_, err := wait()
				fails(t, name, err, journal.ErrUnknown, journal.ErrClosed)
			}
			<-d.Ended()
			_, err := d.Append([]byte("five"), 1)()
			if fails(t, name+", what comes after", err, journal.ErrClosed); errors.Is(err, journal.ErrUnknown) {
				t.Errorf("%s: what was never sent: %v", name, err)
			}
			for engine.Deliver(seeded(1)) {
			}
			if got, _ := collect(t, engine.Open(), at); got != "4/1:three" {
				t.Errorf("%s: followed %s", name, got)
			}
		})
	}
}

// TestLeadIsGivenUp: a lead without an answer is unknown, and the next one follows what came of it.
func TestLeadIsGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, at := three(t)
		_ = d.Close()
		j.Faults(func() memory.Fault { return memory.Delay })
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		_, err := journal.New(j).Lead(ctx, at, "b", 6)
		fails(t, "the lead", err, journal.ErrUnknown, context.DeadlineExceeded)
		engine.Deliver(seeded(1))
		j.Faults(nil)
		_, err = journal.New(j).Lead(background, at, "b", 6)
		fails(t, "the next", err, journal.ErrBehind)
		_, at = collect(t, j, at)
		b := lead(t, j, at, "b")
		if at := b.Position(); at.Epoch != 3 || at.Seq != 5 {
			t.Errorf("it leads at %+v", at)
		}
		_ = b.Close()
	})
}

// TestPendingIsBounded: a leader without answers takes no more than it may hold, and goes on
// when they come or it ends.
func TestPendingIsBounded(t *testing.T) {
	for _, heal := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			j := memory.New(memory.Options{EntryBytes: 8 << 20}).Open()
			d := lead(t, j, journal.Position{}, "a")
			j.Cut(true)
			data := make([]byte, 5<<20)
			taken := make(chan func() (journal.Position, error), 100)
			go func() {
				for range 20 {
					taken <- d.Append(data, 1)
				}
				close(taken)
			}()
			synctest.Wait()
			if n := len(taken) * len(data); n > journal.MaxPending || n < journal.MaxPending/2 {
				t.Errorf("it holds %d bytes", n)
			}
			if heal {
				j.Cut(false)
			} else {
				_ = d.Close()
			}
			n := 0
			for wait := range taken {
				_, err := wait()
				if n++; (err == nil) != heal {
					t.Errorf("append %d: %v", n, err)
				}
			}
			_ = d.Close()
			j.Cut(false)
			if last, err := j.Last(background); err != nil || (last == 21) != heal {
				t.Errorf("the journal ends at %d, %v", last, err)
			}
		})
	}
}

// TestFullJournal: a full journal takes nothing, and goes on with what waits when it has room.
func TestFullJournal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, _ := three(t)
		defer d.Close()
		engine.SetMost(1)
		wait := d.Append([]byte("three"), 1)
		time.Sleep(time.Hour)
		if last, _ := j.Last(background); last != 3 {
			t.Errorf("the journal ends at %d", last)
		}
		engine.SetMost(0)
		if at, err := wait(); err != nil || at.Seq != 4 {
			t.Errorf("it is at %+v, %v", at, err)
		}
	})
}

// TestFilledByAnother: a journal that has lost entries, and that another hub has filled up to the place that
// the former one waits for, does not take what that one has.
func TestFilledByAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, at := three(t)
		other := engine.Open()
		engine.Rollback(1) // "two"
		_, before := collect(t, other, journal.Position{})
		j.Cut(true)
		wait := d.Append([]byte("three"), 1)
		time.Sleep(5 * time.Second)
		b := lead(t, other, before, "b") // at the place of "two"
		defer b.Close()
		if b.Position().Seq != at.Seq {
			t.Fatalf("the other hub leads at %d; want %d", b.Position().Seq, at.Seq)
		}
		j.Cut(false)
		_, err := wait()
		fails(t, "the former hub", err, journal.ErrDiverged)
		put(t, b, "of b")
		if words, _ := collect(t, other, journal.Position{}); !strings.Contains(words, "of b") || strings.Contains(words, "three") {
			t.Errorf("the journal has %s", words)
		}
	})
}

// TestAnotherEntryOfTheSameHub: a hub whose own last entry is another one in the journal, of the same hub and
// epoch and after the same entry, neither follows nor leads.
func TestAnotherEntryOfTheSameHub(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine, j, d, at := three(t)
		_ = d.Close()
		before, err := j.Read(background, at.Seq-1)
		if err != nil {
			t.Fatal(err)
		}
		engine.Rollback(1)
		engine.Put(entryOf(journal.Header{Kind: journal.KindData, Epoch: at.Epoch, Hub: "a", Layout: 6, Chain: journal.Hash(before)}))
		_, err = journal.New(j).Lead(background, at, "a", 6)
		fails(t, "leading", err, journal.ErrDiverged)
		fails(t, "following", following(j, at, func(journal.Entry) {}), journal.ErrDiverged)
	})
}
