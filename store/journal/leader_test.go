package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

// small is an engine that divides what has more than some thirty bytes.
var small = memory.Options{EntryBytes: 100}

func lead(t *testing.T, j journal.Journal, at journal.Position, hub string) *journal.Leader {
	t.Helper()
	d, err := journal.New(j).Lead(background, at, hub, 6)
	if err != nil {
		t.Fatalf("%s leads: %v", hub, err)
	}
	return d
}

// put appends data, which has to succeed.
func put(t *testing.T, d *journal.Leader, data string) journal.Position {
	t.Helper()
	at, err := d.Append([]byte(data), 77)()
	if err != nil {
		t.Fatalf("Append of %.20q: %v", data, err)
	}
	return at
}

func fails(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v; want %v", what, err, w)
		}
	}
}

// collect returns what a follower gets up to the end of the journal, one word each, and the
// last position.
func collect(t *testing.T, j journal.Journal, from journal.Position) (string, journal.Position) {
	t.Helper()
	var words []string
	err := following(j, from, func(e journal.Entry) {
		word := e.Kind.String() + string(e.Data)
		if e.Kind == journal.KindData {
			word = string(e.Data)
		}
		words = append(words, fmt.Sprintf("%d/%d:%s", e.Position.Seq, e.Epoch, word))
		from = e.Position
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Follow: %v", err)
	}
	return strings.Join(words, " "), from
}

// following follows until nothing more comes, in a bubble.
func following(j journal.Journal, from journal.Position, visit func(journal.Entry)) error {
	ctx, cancel := context.WithCancel(background)
	result := make(chan error, 1)
	go func() {
		result <- journal.New(j).Follow(ctx, from, func(e journal.Entry) error {
			visit(e)
			return nil
		})
	}()
	time.Sleep(time.Minute) // of the bubble
	cancel()
	return <-result
}

func TestLeaderAndFollower(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(small).Open()
		a := lead(t, j, journal.Position{}, "a")
		long := strings.Repeat("0123456789", 12)
		first := put(t, a, "one")
		put(t, a, "")
		waitBeat := a.Beat()
		second := put(t, a, long)
		if at, err := waitBeat(); err != nil || at.Seq != 4 {
			t.Errorf("the beat is at %+v, %v", at, err)
		}
		if first.Seq != 2 || second.Seq != 8 || first.Epoch != 1 || a.Position() != second {
			t.Errorf("the positions are %+v and %+v, and the leader's %+v", first, second, a.Position())
		}
		if at, err := a.Release()(); err != nil || at.Seq != 9 {
			t.Errorf("Release = %+v, %v", at, err)
		}
		_, err := a.Append([]byte("x"), 1)()
		fails(t, "an append after the release", err, journal.ErrClosed)
		got, end := collect(t, j, journal.Position{})
		if want := "1/1:lead 2/1:one 3/1: 4/1:beat 8/1:" + long + " 9/1:release"; got != want {
			t.Errorf("followed\n%s; want\n%s", got, want)
		}
		if got, _ := collect(t, j, second); got != "9/1:release" {
			t.Errorf("followed %s after the long one", got)
		}
		b := lead(t, j, end, "b")
		put(t, b, "two")
		if got, _ := collect(t, j, end); got != "10/2:lead 11/2:two" {
			t.Errorf("followed %s of the next hub", got)
		}
		_ = a.Close()
		_ = b.Close()
		fails(t, "why the leader has ended", b.Err(), journal.ErrClosed)
	})
}

// TestHeaders: an entry says whose it is, and when.
func TestHeaders(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		j := memory.New(small).Open()
		d := lead(t, j, journal.Position{}, "hub-a")
		defer d.Close()
		data := []byte(strings.Repeat("x", 90))
		wait := d.Append(data, 1234)
		clear(data) // the leader has a copy
		at, err := wait()
		if err != nil {
			t.Fatal(err)
		}
		nonces := make(map[[16]byte]bool)
		_ = following(j, journal.Position{}, func(e journal.Entry) {
			if e.Hub != "hub-a" || e.Layout != 6 || e.Epoch != 1 || nonces[e.Nonce] {
				t.Errorf("the header is %+v", e.Header)
			}
			nonces[e.Nonce] = true
			if e.Kind == journal.KindData && (e.Time != 1234 || e.Position != at || !bytes.Equal(e.Data, bytes.Repeat([]byte("x"), 90))) {
				t.Errorf("the entry is %+v; it was answered with %+v", e, at)
			}
		})
	})
}

// TestAppendIsSettled: whatever happens to an append, it is there once.
func TestAppendIsSettled(t *testing.T) {
	for name, faults := range map[string][]memory.Fault{
		"lost replies":     {memory.LoseReply, memory.LoseReply},
		"lost requests":    {memory.LoseRequest, memory.LoseRequest},
		"late requests":    {memory.Delay, memory.Delay, memory.LoseReply},
		"doubled requests": {memory.Double, memory.Double},
		"proposed":         {memory.Propose, memory.Propose, memory.Propose},
		"refused":          {memory.Refuse, memory.Refuse, memory.Refuse},
		"all":              {memory.Refuse, memory.Delay, memory.Propose, memory.LoseRequest, memory.LoseReply, memory.Double, memory.Delay, memory.LoseReply},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				engine := memory.New(small)
				j := engine.Open()
				d := lead(t, j, journal.Position{}, "a")
				defer d.Close()
				left := faults
				j.Faults(func() (f memory.Fault) {
					if len(left) > 0 {
						f, left = left[0], left[1:]
					}
					return f
				})
				var waits []func() (journal.Position, error)
				for _, data := range []string{"one", "two", strings.Repeat("3", 60), "four"} {
					waits = append(waits, d.Append([]byte(data), 1))
				}
				go func() {
					random := seeded(1)
					for d.Position().Seq < 6 {
						time.Sleep(time.Second)
						engine.Deliver(random)
					}
				}()
				for i, wait := range waits {
					if _, err := wait(); err != nil {
						t.Errorf("append %d: %v", i, err)
					}
				}
				for engine.Deliver(seeded(1)) {
				}
				if len(left) > 0 {
					t.Errorf("%d faults did not happen", len(left))
				}
				want := "1/1:lead 2/1:one 3/1:two 5/1:" + strings.Repeat("3", 60) + " 6/1:four"
				if got, _ := collect(t, j, journal.Position{}); got != want {
					t.Errorf("followed %s; want %s", got, want)
				}
			})
		})
	}
}

// TestFenced: the hub that was replaced has an answer for nothing that is not in the journal, and
// what it had sent does not come into it later.
func TestFenced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine := memory.New(small)
		j, other := engine.Open(), engine.Open()
		a := lead(t, j, journal.Position{}, "a")
		defer a.Close()
		put(t, a, "one")
		j.Faults(func() memory.Fault { return memory.Delay })
		waits := []func() (journal.Position, error){a.Append([]byte("two"), 1), a.Append([]byte(strings.Repeat("3", 60)), 1), a.Beat()}
		_, at := collect(t, other, journal.Position{})
		b := lead(t, other, at, "b")
		defer b.Close()
		put(t, b, "of b")
		j.Faults(nil)
		for _, wait := range waits {
			at, err := wait()
			if fails(t, "what was pending", err, journal.ErrFenced); at != (journal.Position{}) {
				t.Errorf("it has the position %+v", at)
			}
		}
		<-a.Ended()
		_, err := a.Append([]byte("four"), 1)()
		fails(t, "what comes after", err, journal.ErrFenced)
		fails(t, "why it has ended", a.Err(), journal.ErrFenced)
		for engine.Deliver(seeded(1)) {
		}
		put(t, b, "of b again")
		if got, _ := collect(t, j, journal.Position{}); got != "1/1:lead 2/1:one 3/2:lead 4/2:of b 5/2:of b again" {
			t.Errorf("followed %s", got)
		}
	})
}

// TestUnfinishedCommitIsVoid: what the hub before did not finish is no commit.
func TestUnfinishedCommitIsVoid(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine := memory.New(small)
		j, other := engine.Open(), engine.Open()
		a := lead(t, j, journal.Position{}, "a")
		at := put(t, a, "one")
		n := 0
		j.Faults(func() memory.Fault {
			if n++; n > 2 {
				return memory.LoseRequest
			}
			return memory.None
		})
		wait := a.Append([]byte(strings.Repeat("x", 200)), 1)
		time.Sleep(time.Second)
		if got, tip := collect(t, other, at); got != "" || tip != at {
			t.Errorf("followed %s up to %+v", got, tip)
		}
		b := lead(t, other, at, "b")
		defer b.Close()
		if at := put(t, b, "two"); at.Seq != 6 {
			t.Errorf("the next commit is at %+v", at)
		}
		j.Faults(nil)
		_, err := wait()
		fails(t, "the commit that was not finished", err, journal.ErrFenced)
		_ = a.Close()
		if got, _ := collect(t, other, journal.Position{}); got != "1/1:lead 2/1:one 5/2:lead 6/2:two" {
			t.Errorf("followed %s", got)
		}
		if got, _ := collect(t, other, at); got != "5/2:lead 6/2:two" {
			t.Errorf("followed %s after the position before it", got)
		}
	})
}

func TestLeadIsRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		engine := memory.New(small)
		j := engine.Open()
		a := lead(t, j, journal.Position{}, "a")
		defer a.Close()
		at := put(t, a, "one")
		put(t, a, "two")
		log := journal.New(j)
		_, err := log.Lead(background, at, "b", 6)
		fails(t, "a hub that is behind", err, journal.ErrBehind)
		_, err = log.Lead(background, a.Position(), "", 6)
		if err == nil {
			t.Error("a hub without an id leads")
		}
		_, err = log.Lead(background, a.Position(), strings.Repeat("b", 60), 6)
		if err == nil || !strings.Contains(err.Error(), "too few") {
			t.Errorf("an engine with small entries: %v", err)
		}
		_, err = a.Append(make([]byte, journal.MaxData+1), 1)()
		fails(t, "a commit that is too large", err, journal.ErrTooLarge)
		put(t, a, "three") // which did not end the leader
		if err := j.Trim(background, 3); err != nil {
			t.Fatal(err)
		}
		_, err = log.Lead(background, journal.Position{}, "b", 6)
		fails(t, "a hub whose entries are gone", err, journal.ErrTrimmed)
		fails(t, "its following", following(j, journal.Position{}, func(journal.Entry) {}), journal.ErrTrimmed)
	})
}

// TestRaceForTheLead: of hubs that take over at once one does, whatever answers are lost.
func TestRaceForTheLead(t *testing.T) {
	for _, fault := range []memory.Fault{memory.None, memory.LoseRequest, memory.LoseReply, memory.Delay, memory.Double, memory.Refuse} {
		bubble.Test(t, func(t *testing.T) {
			engine := memory.New(small)
			results := make(chan error)
			const hubs = 5
			for i := range hubs {
				j := engine.Open()
				n := 0
				j.Faults(func() memory.Fault {
					if n++; n == 1 {
						return fault
					}
					return memory.None
				})
				go func() {
					d, err := journal.New(j).Lead(background, journal.Position{}, fmt.Sprint("hub", i), 6)
					results <- err
					if err == nil {
						_ = d.Close()
					}
				}()
			}
			led := 0
			for range hubs {
				switch err := <-results; {
				case err == nil:
					led++
				case !errors.Is(err, journal.ErrFenced) && !errors.Is(err, journal.ErrBehind):
					t.Errorf("fault %d: %v", fault, err)
				}
			}
			if led != 1 {
				t.Errorf("fault %d: %d hubs lead", fault, led)
			}
		})
	}
}

// TestTook: each entry that the journal has was measured, the pieces of a commit too.
func TestTook(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := lead(t, memory.New(small).Open(), journal.Position{}, "a")
		if h := d.Took(); h.Count() != 0 || len(h.Buckets()) == 0 {
			t.Errorf("before the first entry %d are measured, in %d buckets", h.Count(), len(h.Buckets()))
		}
		at := put(t, d, strings.Repeat("x", 100)).Seq
		if h := d.Took(); h.Count() != at-1 || at < 3 { // the lead is none of it
			t.Errorf("%d entries are measured of %d", h.Count(), at-1)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
