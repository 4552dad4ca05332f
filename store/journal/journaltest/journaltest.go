// Package journaltest is what an engine has to show to be a journal. Each engine's tests call Run, and
// RunLeaders with whatever disturbs it.
package journaltest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"eventhub/store/journal"
)

// within is how long anything may take before the test fails.
const within = time.Minute

// Engine is what the suite tests.
type Engine struct {
	// New makes an empty journal, and returns what opens a handle on it. The handles are
	// closed by the suite.
	New func(t *testing.T) (open func(t *testing.T) journal.Journal)
	// Cut breaks a handle's connection, which it makes again by itself. nil where it has none.
	Cut func(t *testing.T, j journal.Journal)
	// Races is how many random histories of writers that race there are.
	Races int
}

// env is one journal of a test.
type env struct {
	Engine
	opener func(t *testing.T) journal.Journal
}

func (e *env) open(t *testing.T) journal.Journal {
	t.Helper()
	j := e.opener(t)
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return j
}

// Run runs the suite.
func Run(t *testing.T, e Engine) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, e *env)
	}{
		{"Order", testOrder},
		{"Bytes", testBytes},
		{"Sizes", testSizes},
		{"Follow", testFollow},
		{"FollowFromTheMiddle", testFollowFromTheMiddle},
		{"FollowOverCut", testFollowOverCut},
		{"Trim", testTrim},
		{"FollowTrimmed", testFollowTrimmed},
		{"Races", testRaces},
		{"Members", testMembers},
		{"Now", testNow},
		{"Limits", testLimits},
		{"GivenUp", testGivenUp},
		{"Close", testClose},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, &env{Engine: e, opener: e.New(t)})
		})
	}
}

// limited returns a context that fails the test's waiting.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, errors.New("the test has waited long enough"))
	t.Cleanup(cancel)
	return ctx
}

// add appends an entry where that has to succeed.
func add(t *testing.T, j journal.Journal, after uint64, entry string) {
	t.Helper()
	if err := j.Append(limited(t), after, []byte(entry)); err != nil {
		t.Fatalf("Append after %d: %v", after, err)
	}
}

// fails checks an error.
func fails(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}

// has checks the entry at a place.
func has(t *testing.T, j journal.Journal, at uint64, want string) {
	t.Helper()
	if got, err := j.Read(limited(t), at); err != nil || string(got) != want {
		t.Errorf("Read(%d) = %.60q, %v; want %.60q", at, got, err, want)
	}
}

// ends checks the last place.
func ends(t *testing.T, j journal.Journal, want uint64) {
	t.Helper()
	if got, err := j.Last(limited(t)); err != nil || got != want {
		t.Errorf("Last = %d, %v; want %d", got, err, want)
	}
}

func testOrder(t *testing.T, e *env) {
	a, b := e.open(t), e.open(t)
	ends(t, a, 0)
	_, err := a.Read(limited(t), 1)
	fails(t, "Read of an empty journal", err, journal.ErrAbsent)
	fails(t, "Append after a place that is not there", a.Append(limited(t), 1, []byte("x")), journal.ErrConflict)
	add(t, a, 0, "one")
	add(t, b, 1, "two")
	add(t, a, 2, "three")
	for _, j := range []journal.Journal{a, b} {
		for after, what := range []string{"the first place", "a place with more after it", "the last place", "the end", "beyond the end"} {
			if after == 3 {
				continue
			}
			fails(t, "Append at "+what, j.Append(limited(t), uint64(after), []byte("x")), journal.ErrConflict)
		}
		ends(t, j, 3)
		has(t, j, 1, "one")
		has(t, j, 2, "two")
		has(t, j, 3, "three")
		_, err := j.Read(limited(t), 4)
		fails(t, "Read after the end", err, journal.ErrAbsent)
	}
	add(t, b, 3, "three") // the same bytes again are another entry
	ends(t, a, 4)
}

// testBytes: an entry comes back as it was, whatever is in it, and is neither kept nor changed.
func testBytes(t *testing.T, e *env) {
	j := e.open(t)
	all := make([]byte, 1024)
	for i := range all {
		all[i] = byte(i * 7)
	}
	for i, entry := range []string{string(all), "\x00", "\r\n\r\n", "NATS/1.0\r\n\r\n", "{\"a\":1}", "\xff\xfe\xfd"} {
		sent := []byte(entry)
		if err := j.Append(limited(t), uint64(i), sent); err != nil || string(sent) != entry {
			t.Fatalf("Append of %.20q: %v, and it is %.20q then", entry, err, sent)
		}
		clear(sent)
		has(t, j, uint64(i)+1, entry)
		got, _ := j.Read(limited(t), uint64(i)+1)
		clear(got)
		has(t, j, uint64(i)+1, entry)
	}
}

func testSizes(t *testing.T, e *env) {
	j := e.open(t)
	limits, err := j.Limits(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	entry := make([]byte, limits.EntryBytes+1)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(entry)
	fails(t, "one byte too much", j.Append(limited(t), 0, entry), journal.ErrTooLarge)
	ends(t, j, 0)
	add(t, j, 0, string(entry[1:]))
	has(t, j, 1, string(entry[1:]))
	got := follow(t, j, 0)
	if first := got.next(); first.at != 1 || !bytes.Equal(first.entry, entry[1:]) {
		t.Errorf("followed %d bytes at %d", len(first.entry), first.at)
	}
}

// place is an entry at its place.
type place struct {
	at    uint64
	entry []byte
}

// following is a Follow that is under way.
type following struct {
	t      *testing.T
	got    chan place
	result chan error
	cancel context.CancelFunc
}

// follow follows a journal until the test ends.
func follow(t *testing.T, j journal.Journal, after uint64) *following {
	ctx, cancel := context.WithCancel(context.Background())
	f := &following{t: t, got: make(chan place), result: make(chan error, 1), cancel: cancel}
	go func() {
		f.result <- j.Follow(ctx, after, func(at uint64, entry []byte) error {
			select {
			case f.got <- place{at: at, entry: entry}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		close(f.result)
	}()
	t.Cleanup(func() {
		cancel()
		<-f.result
	})
	return f
}

func (f *following) next() place {
	f.t.Helper()
	select {
	case p := <-f.got:
		return p
	case err := <-f.result:
		f.t.Fatalf("Follow ended: %v", err)
	case <-time.After(within):
		f.t.Fatal("no entry came")
	}
	return place{}
}

func (f *following) want(at uint64, entry string) {
	f.t.Helper()
	if p := f.next(); p.at != at || string(p.entry) != entry {
		f.t.Errorf("followed %q at %d; want %q at %d", p.entry, p.at, entry, at)
	}
}

// end returns the result of a Follow that ends.
func (f *following) end() error {
	f.t.Helper()
	select {
	case err := <-f.result:
		return err
	case p := <-f.got:
		f.t.Fatalf("followed %q at %d; want the end", p.entry, p.at)
	case <-time.After(within):
		f.t.Fatal("Follow does not end")
	}
	return nil
}

func testFollow(t *testing.T, e *env) {
	a, b := e.open(t), e.open(t)
	early := follow(t, b, 0)
	add(t, a, 0, "one")
	add(t, a, 1, "two")
	early.want(1, "one")
	late := follow(t, a, 0)
	late.want(1, "one")
	late.want(2, "two")
	early.want(2, "two")
	add(t, b, 2, "three")
	early.want(3, "three")
	late.want(3, "three")
	early.cancel()
	fails(t, "a Follow that is given up", early.end(), context.Canceled)
	enough := errors.New("enough")
	err := a.Follow(limited(t), 0, func(at uint64, _ []byte) error {
		if at == 2 {
			return enough
		}
		return nil
	})
	fails(t, "a Follow whose visit fails", err, enough)
}

func testFollowFromTheMiddle(t *testing.T, e *env) {
	j := e.open(t)
	const n = 40
	for i := range uint64(n) {
		add(t, j, i, string('a'+rune(i)))
	}
	for _, after := range []uint64{1, n / 2, n - 1} {
		f := follow(t, j, after)
		for at := after + 1; at <= n; at++ {
			f.want(at, string('a'+rune(at-1)))
		}
	}
	f := follow(t, j, n)
	add(t, j, n, "new")
	f.want(n+1, "new")
}

func testFollowOverCut(t *testing.T, e *env) {
	if e.Cut == nil {
		return
	}
	a, b := e.open(t), e.open(t)
	f := follow(t, b, 0)
	at := uint64(0)
	for range 3 {
		add(t, a, at, "before")
		f.want(at+1, "before")
		e.Cut(t, b)
		add(t, a, at+1, "while")
		add(t, a, at+2, "after")
		f.want(at+2, "while")
		f.want(at+3, "after")
		at += 3
	}
}

func testTrim(t *testing.T, e *env) {
	a, b := e.open(t), e.open(t)
	if err := a.Trim(limited(t), 3); err != nil {
		t.Errorf("Trim of an empty journal: %v", err)
	}
	for i, entry := range []string{"one", "two", "three", "four"} {
		add(t, a, uint64(i), entry)
	}
	for range 2 { // again is nothing
		if err := a.Trim(limited(t), 2); err != nil {
			t.Fatalf("Trim: %v", err)
		}
	}
	for _, j := range []journal.Journal{a, b} {
		for at := range uint64(3) {
			_, err := j.Read(limited(t), at)
			if at > 0 {
				fails(t, "Read of what is trimmed", err, journal.ErrTrimmed)
			}
		}
		has(t, j, 3, "three")
		ends(t, j, 4)
	}
	if err := b.Trim(limited(t), math.MaxUint64); err != nil {
		t.Errorf("Trim of all: %v", err)
	}
	ends(t, a, 4)
	has(t, a, 4, "four") // the last one stays
	_, err := a.Read(limited(t), 3)
	fails(t, "Read of what is trimmed", err, journal.ErrTrimmed)
	_, err = a.Read(limited(t), 5)
	fails(t, "Read after the end", err, journal.ErrAbsent)
	fails(t, "Append after a place that is trimmed", a.Append(limited(t), 3, []byte("x")), journal.ErrConflict)
	add(t, b, 4, "five")
	has(t, a, 5, "five")
}

func testFollowTrimmed(t *testing.T, e *env) {
	j := e.open(t)
	for i := range uint64(5) {
		add(t, j, i, string('a'+rune(i)))
	}
	if err := j.Trim(limited(t), 3); err != nil {
		t.Fatal(err)
	}
	for after := range uint64(3) {
		fails(t, "Follow of what is trimmed", follow(t, j, after).end(), journal.ErrTrimmed)
	}
	f := follow(t, j, 3)
	f.want(4, "d")
	f.want(5, "e")
}

func testMembers(t *testing.T, e *env) {
	a, b := e.open(t), e.open(t)
	say := func(j journal.Journal, m journal.Member, want ...journal.Member) {
		t.Helper()
		before := time.Now()
		if _, err := j.Announce(limited(t), m); err != nil {
			t.Fatalf("Announce of %q: %v", m.ID, err)
		}
		all, err := j.Announce(limited(t), journal.Member{})
		if err != nil || len(all) != len(want) {
			t.Fatalf("Announce of %q: %+v, %v; want %d members", m.ID, all, err, len(want))
		}
		for i, m := range all {
			if away := m.Seen.Sub(before); away < -within || away > within {
				t.Errorf("%q was seen at %v; it is %v", m.ID, m.Seen, before)
			}
			w := want[i]
			if m.ID != w.ID || m.Run != w.Run || m.Released != w.Released || m.Synced != w.Synced || m.Layout != w.Layout || m.Active != w.Active || len(m.URLs) != len(w.URLs) {
				t.Errorf("member %d is %+v; want %+v", i, m, w)
			}
		}
	}
	one := journal.Member{ID: "hub-1", URLs: []string{"http://a:8080", "http://b"}, Active: true, Synced: 7, Layout: 3}
	two := journal.Member{ID: "hub 2/ü.*>", Synced: 1 << 60}
	say(a, one, one)
	say(b, two, two, one)
	one.Synced, one.Active, one.URLs = 9, false, []string{"http://c"}
	say(a, one, two, one)
	say(b, two, two, one)
	again := one
	again.Run, again.Released = "r", true
	before, err := a.Announce(limited(t), again)
	if err != nil || len(before) != 2 || before[1].Synced != 9 || before[1].Run != "" {
		t.Errorf("Announce returns %+v, %v; want what was said before", before, err)
	}
	say(b, two, two, again)
}

// testNow: the engine's time is that by which members are seen, and asking for it writes nothing.
func testNow(t *testing.T, e *env) {
	j := e.open(t)
	if _, err := j.Now(limited(t)); err != nil {
		t.Errorf("Now where nobody has said anything: %v", err)
	}
	began := time.Now()
	if _, err := j.Announce(limited(t), journal.Member{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		now, err := j.Now(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		all, err := j.Announce(limited(t), journal.Member{})
		if err != nil || len(all) != 1 {
			t.Fatalf("Announce: %+v, %v; want one member", all, err)
		}
		// Stamps are to the millisecond in some engines.
		if ago, most := now.Sub(all[0].Seen), time.Since(began); ago < -time.Millisecond || ago > most+time.Millisecond {
			t.Errorf("it is %v, and %q was seen %s ago; want 0 to %s", now, all[0].ID, ago, most)
		}
	}
	ends(t, j, 0)
}

func testLimits(t *testing.T, e *env) {
	j := e.open(t)
	before, err := j.Limits(limited(t))
	if err != nil || before.EntryBytes < 1024 || before.Durability == "" {
		t.Fatalf("Limits = %+v, %v", before, err)
	}
	add(t, j, 0, string(make([]byte, 1000)))
	after, err := j.Limits(limited(t))
	if err != nil || after.Used < before.Used+1000 || after.EntryBytes != before.EntryBytes {
		t.Errorf("Limits after 1,000 bytes = %+v, %v; before them %+v", after, err, before)
	}
}

// testGivenUp: a call with a context that is done ends, and an append has an error of the unknown.
func testGivenUp(t *testing.T, e *env) {
	j := e.open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := j.Append(ctx, 0, []byte("x"))
	if err == nil || errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrFull) || errors.Is(err, journal.ErrClosed) {
		t.Errorf("Append that is given up: %v", err)
	}
	if _, err := j.Last(ctx); err == nil {
		t.Error("Last that is given up has an answer")
	}
	if _, err := j.Read(ctx, 1); err == nil || errors.Is(err, journal.ErrAbsent) {
		t.Errorf("Read that is given up: %v", err)
	}
	fails(t, "Follow that is given up", j.Follow(ctx, 0, func(uint64, []byte) error { return nil }), context.Canceled)
}

func testClose(t *testing.T, e *env) {
	j := e.opener(t)
	add(t, j, 0, "one")
	f := follow(t, j, 0)
	f.want(1, "one")
	for range 2 {
		if err := j.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	fails(t, "Follow that is under way", f.end(), journal.ErrClosed)
	fails(t, "Append", j.Append(limited(t), 1, []byte("x")), journal.ErrClosed)
	_, err := j.Last(limited(t))
	fails(t, "Last", err, journal.ErrClosed)
	_, err = j.Read(limited(t), 1)
	fails(t, "Read", err, journal.ErrClosed)
	_, err = j.Limits(limited(t))
	fails(t, "Limits", err, journal.ErrClosed)
	_, err = j.Announce(limited(t), journal.Member{ID: "a"})
	fails(t, "Announce", err, journal.ErrClosed)
	fails(t, "Trim", j.Trim(limited(t), 1), journal.ErrClosed)
	fails(t, "Follow", j.Follow(limited(t), 0, func(uint64, []byte) error { return nil }), journal.ErrClosed)
	ends(t, e.open(t), 1)
}

// numbered is an entry that tells who appended it, and as the how manieth.
func numbered(writer, n int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(writer)), uint32(n))
}
