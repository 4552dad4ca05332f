package mongojournal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"eventhub/store/journal"
)

// fill appends entries until a place; that at 7 is "7".
func fill(t *testing.T, j *Journal, last uint64) {
	t.Helper()
	for at := uint64(1); at <= last; at++ {
		if err := j.Append(limited(t), at-1, fmt.Append(nil, at)); err != nil {
			t.Fatal(err)
		}
	}
}

func fails(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}

func readFails(t *testing.T, j *Journal, at uint64, want error) {
	t.Helper()
	_, err := j.Read(limited(t), at)
	fails(t, fmt.Sprintf("Read(%d)", at), err, want)
}

func ends(t *testing.T, j *Journal, want uint64) {
	t.Helper()
	if got, err := j.Last(limited(t)); err != nil || got != want {
		t.Errorf("Last = %d, %v; want %d", got, err, want)
	}
}

// eachWay runs a test with both ways to find places.
func eachWay(t *testing.T, test func(t *testing.T, j *Journal, db *mongo.Database)) {
	for name, single := range ways {
		t.Run(name, func(t *testing.T) {
			o, db := newDatabase(t)
			j := open(t, o)
			j.single = single
			test(t, j, db)
		})
	}
}

// TestLateAppend: an insert that was under way while its place was filled and trimmed finds it free. It is refused,
// and nobody reads what it leaves.
func TestLateAppend(t *testing.T) {
	eachWay(t, func(t *testing.T, j *Journal, _ *mongo.Database) {
		fill(t, j, 6)
		if err := j.Trim(limited(t), 4); err != nil {
			t.Fatal(err)
		}
		insert(t, j.entries, document{ID: key(3), Data: []byte("of another late append")})
		fails(t, "the late append", j.Append(limited(t), 3, []byte("late")), journal.ErrConflict)
		if is, err := j.taken(limited(t), 4); !is || err != nil {
			t.Fatalf("the late append has not come to its insert: %v", err)
		}
		readFails(t, j, 3, journal.ErrTrimmed)
		readFails(t, j, 4, journal.ErrTrimmed)
		visit := func(at uint64, entry []byte) error { return fmt.Errorf("visited %q at %d", entry, at) }
		fails(t, "Follow", j.Follow(limited(t), 2, visit), journal.ErrTrimmed)
		fails(t, "the first append", j.Append(limited(t), 0, []byte("late")), journal.ErrConflict)
		ends(t, j, 6)
	})
}

// TestTrimGoesOn: a trim that was interrupted counts, and the next one removes what it has left.
func TestTrimGoesOn(t *testing.T) {
	for name, single := range ways {
		t.Run(name, func(t *testing.T) {
			o, _ := newDatabase(t)
			ctx, cancel := context.WithCancel(limited(t))
			armed := false
			o.monitor = &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
				if armed && e.CommandName == "delete" {
					cancel()
				}
			}}
			j := open(t, o)
			j.single = single
			fill(t, j, 6)
			armed = true
			fails(t, "the first trim", j.Trim(ctx, 4), context.Canceled)
			armed = false
			readFails(t, j, 4, journal.ErrTrimmed)
			ends(t, j, 6)
			trimLeaves(t, j, 2, 3) // lower than the first
			trimLeaves(t, j, math.MaxUint64, 2)
			ends(t, j, 6)
			if limits, err := j.Limits(limited(t)); err != nil || limits.Used != 1 {
				t.Errorf("Limits = %+v, %v; one entry of one byte is left", limits, err)
			}
		})
	}
}

// trimLeaves trims, after which so many documents are left, with the one at place 0.
func trimLeaves(t *testing.T, j *Journal, upTo uint64, want int64) {
	t.Helper()
	if err := j.Trim(limited(t), upTo); err != nil {
		t.Fatal(err)
	}
	if left, err := j.entries.CountDocuments(limited(t), bson.D{}); err != nil || left != want {
		t.Errorf("after Trim(%d): %d documents, %v; want %d", upTo, left, err, want)
	}
	if marks, err := j.trims.CountDocuments(limited(t), bson.D{}); err != nil || marks != 1 {
		t.Errorf("after Trim(%d): %d marks, %v", upTo, marks, err)
	}
}

// TestLostEntries: a journal that has lost entries is told from one that ends.
func TestLostEntries(t *testing.T) {
	eachWay(t, func(t *testing.T, j *Journal, _ *mongo.Database) {
		fill(t, j, 6)
		ends(t, j, 6)
		remove(t, j.entries, key(3))
		readFails(t, j, 3, journal.ErrDiverged)
		visited := uint64(0)
		err := j.Follow(limited(t), 0, func(at uint64, _ []byte) error {
			visited = at
			return nil
		})
		fails(t, "Follow over a hole", err, journal.ErrDiverged)
		if visited != 2 {
			t.Errorf("visited up to %d", visited)
		}
		fails(t, "Trim up to a hole", j.Trim(limited(t), 3), journal.ErrDiverged)
		for at := uint64(4); at <= 6; at++ {
			remove(t, j.entries, key(at))
		}
		ends(t, j, 2) // although it was at 6
		fails(t, "Append after what is lost", j.Append(limited(t), 6, []byte("x")), journal.ErrConflict)
		ends(t, j, 2)
	})
}

// narrow is a connection that breaks where an answer is long.
type narrow struct {
	net.Conn
	most, got int
}

func (c *narrow) Write(b []byte) (int, error) {
	c.got = 0
	return c.Conn.Write(b)
}

func (c *narrow) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.got += n; c.got > c.most {
		return 0, errors.New("too long an answer")
	}
	return n, err
}

type narrowDialer struct{ most int }

func (d narrowDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var plain net.Dialer
	c, err := plain.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &narrow{Conn: c, most: d.most}, nil
}

// TestNarrowConnection: a follower to whom many entries at once do not come asks for fewer.
func TestNarrowConnection(t *testing.T) {
	o, _ := newDatabase(t)
	j := open(t, o)
	const n, size = 5, 200 << 10
	for at := range uint64(n) {
		if err := j.Append(limited(t), at, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	o.Dialer = narrowDialer{most: 3 * size}
	far := open(t, o)
	far.single = false
	err := far.Follow(limited(t), 0, func(at uint64, entry []byte) error {
		if len(entry) != size {
			t.Errorf("%d bytes at %d", len(entry), at)
		}
		if at == n {
			return io.EOF
		}
		return nil
	})
	fails(t, "Follow", err, io.EOF)
}

// TestForeignDocument: a document that somebody else puts at the next place stops followers and the leader.
func TestForeignDocument(t *testing.T) {
	eachWay(t, func(t *testing.T, j *Journal, db *mongo.Database) {
		log := journal.New(j)
		leader, err := log.Lead(limited(t), journal.Position{}, "hub-1", 1)
		if err != nil {
			t.Fatal(err)
		}
		defer leader.Close()
		at, err := leader.Append([]byte("one"), 1)()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := j.get(limited(t), at.Seq)
		if epoch, _ := raw.Lookup("epoch").AsInt64OK(); err != nil || epoch != 1 {
			t.Errorf("the document is %s, %v; want the epoch 1", raw, err)
		}
		insert(t, db.Collection(Entries), bson.D{{Key: "_id", Value: key(at.Seq + 1)}, {Key: "data", Value: "hello"}})
		err = log.Follow(limited(t), at, func(journal.Entry) error { return io.EOF })
		fails(t, "Follow", err, journal.ErrDiverged)
		fails(t, "Follow", err, journal.ErrForeign)
		_, err = leader.Append([]byte("two"), 1)()
		fails(t, "Append", err, journal.ErrDiverged)
		if !j.single {
			insert(t, db.Collection(Entries), bson.D{{Key: "_id", Value: "5"}})
			_, err := j.Last(limited(t))
			fails(t, "Last", err, journal.ErrForeign)
		}
	})
}

// TestForeignTrim: a document that somebody else puts among the marks of trims ends the leader, and is no server that does not answer.
func TestForeignTrim(t *testing.T) {
	eachWay(t, func(t *testing.T, j *Journal, db *mongo.Database) {
		leader, err := journal.New(j).Lead(limited(t), journal.Position{}, "hub-1", 1)
		if err != nil {
			t.Fatal(err)
		}
		defer leader.Close()
		insert(t, db.Collection(Trims), bson.D{{Key: "order", Value: 7}})
		wait := leader.Append([]byte("one"), 1)
		select {
		case <-leader.Ended():
			_, err := wait()
			fails(t, "Append", err, journal.ErrDiverged)
			fails(t, "Append", err, journal.ErrForeign)
		case <-limited(t).Done():
			t.Error("the leader goes on")
		}
	})
}

// TestLostTrims: a journal whose marks of trims are lost is no empty one, which a hub would begin.
func TestLostTrims(t *testing.T) {
	eachWay(t, func(t *testing.T, j *Journal, db *mongo.Database) {
		fill(t, j, 6)
		if err := j.Trim(limited(t), 4); err != nil {
			t.Fatal(err)
		}
		if err := db.Collection(Trims).Drop(limited(t)); err != nil {
			t.Fatal(err)
		}
		fresh := &Journal{database: j.database, client: j.client, entries: j.entries, trims: j.trims, members: j.members, single: j.single, closed: j.closed}
		leader, err := journal.New(fresh).Lead(limited(t), journal.Position{}, "hub-1", 1)
		if err == nil {
			_ = leader.Close()
		}
		if err == nil || j.single && !errors.Is(err, journal.ErrDiverged) {
			t.Errorf("Lead: %v", err)
		}
		if n, err := j.entries.CountDocuments(limited(t), bson.D{}); n != 3 || err != nil {
			t.Errorf("there are %d documents, %v", n, err)
		}
	})
}

// TestLastFromFar: the end is found from where the handle stands, wherever that is.
func TestLastFromFar(t *testing.T) {
	o, _ := newDatabase(t)
	j, other := open(t, o), open(t, o)
	j.single = true
	for at := uint64(1); at <= 40; at++ {
		if err := other.Append(limited(t), at-1, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if at%3 == 0 || at > 35 {
			ends(t, j, at)
		}
		fresh := &Journal{database: j.database, client: j.client, entries: j.entries, trims: j.trims, members: j.members, single: true, closed: j.closed}
		if at%5 == 0 {
			if err := other.Trim(limited(t), at-4); err != nil {
				t.Fatal(err)
			}
		}
		ends(t, fresh, at)
	}
}

// TestLastWhileTrimmed: places that are trimmed while the end is looked for are not taken for the end.
func TestLastWhileTrimmed(t *testing.T) {
	o, _ := newDatabase(t)
	other := open(t, o)
	fill(t, other, 6)
	armed := false
	o.monitor = &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if name, _ := e.Command.Lookup("find").StringValueOK(); armed && name == Entries {
			armed = false
			if err := other.Trim(limited(t), 4); err != nil {
				t.Error(err)
			}
		}
	}}
	j := open(t, o)
	j.single, armed = true, true
	ends(t, j, 6)
	if armed {
		t.Error("nothing was trimmed")
	}
}

// TestFollowSlowServer: a server that takes longer for each answer than one may take at first is followed all the same.
func TestFollowSlowServer(t *testing.T) {
	o, _ := newDatabase(t)
	fill(t, open(t, o), 3)
	const within = 200 * time.Millisecond
	var slow atomic.Bool
	late := 0
	o.monitor = &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if name, _ := e.Command.Lookup("find").StringValueOK(); slow.Load() && name == Entries {
			late++
			time.Sleep(3 * within / 2)
		}
	}}
	j := open(t, o)
	j.answerWithin = within
	slow.Store(true)
	enough := errors.New("enough")
	got := 0
	err := j.Follow(limited(t), 0, func(uint64, []byte) error {
		if got++; got == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || late < 4 {
		t.Errorf("Follow = %v after %d of 3 entries and %d late answers", err, got, late)
	}
}

func TestMembersAreForgotten(t *testing.T) {
	o, db := newDatabase(t)
	j := open(t, o)
	for id, age := range map[string]time.Duration{"gone": 8 * 24 * time.Hour, "old": 6 * 24 * time.Hour} {
		insert(t, db.Collection(Members), bson.D{{Key: "_id", Value: id}, {Key: "says", Value: bson.D{{Key: "synced", Value: int64(3)}}}, {Key: "seen", Value: time.Now().Add(-age)}})
	}
	if _, err := j.Announce(limited(t), journal.Member{ID: "new"}); err != nil { // it returns what was said before
		t.Fatal(err)
	}
	all, err := j.Announce(limited(t), journal.Member{})
	if err != nil || len(all) != 2 || all[0].ID != "new" || all[1].ID != "old" || all[1].Synced != 3 {
		t.Errorf("Announce = %+v, %v; want new and old", all, err)
	}
	if n, err := db.Collection(Members).CountDocuments(limited(t), bson.D{}); err != nil || n != 2 {
		t.Errorf("%d documents, %v", n, err)
	}
	if _, err := j.Announce(limited(t), journal.Member{ID: "a\x00b"}); err == nil || !strings.Contains(err.Error(), "NUL") {
		t.Errorf("a NUL in the id: %v", err)
	}
	insert(t, db.Collection(Members), bson.D{{Key: "_id", Value: 7}, {Key: "of", Value: "somebody else"}})
	if _, err := j.Announce(limited(t), journal.Member{ID: "new"}); err == nil || !strings.Contains(err.Error(), "read the members") {
		t.Errorf("a document of somebody else: %v", err)
	}
}

// TestConcerns: whatever the URL says, writes wait for a majority and its disks, and reads are of what a
// majority has.
func TestConcerns(t *testing.T) {
	o, _ := newDatabase(t)
	o.URL += "?w=1&journal=false&readConcernLevel=local&readPreference=secondaryPreferred&retryWrites=true"
	var mu sync.Mutex
	seen := map[string]int{}
	o.monitor = &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		mu.Lock()
		defer mu.Unlock()
		seen[e.CommandName]++
		switch e.CommandName {
		case "insert", "update", "delete":
			w, _ := e.Command.Lookup("writeConcern", "w").StringValueOK()
			if synced, _ := e.Command.Lookup("writeConcern", "j").BooleanOK(); w != "majority" || !synced {
				t.Errorf("a write without its concern: %s", e.Command)
			}
			if _, err := e.Command.LookupErr("txnNumber"); err == nil {
				t.Errorf("the driver repeats this write: %s", e.Command)
			}
		case "find":
			if level, _ := e.Command.Lookup("readConcern", "level").StringValueOK(); level != "majority" {
				t.Errorf("a read without its concern: %s", e.Command)
			}
			if mode, is := e.Command.Lookup("$readPreference", "mode").StringValueOK(); is && mode != "primary" && mode != "primaryPreferred" {
				t.Errorf("a read of others than the primary: %s", e.Command)
			}
		}
	}}
	if again := o.client().RetryWrites; again == nil || *again {
		t.Error("the driver repeats writes")
	}
	j := open(t, o)
	fill(t, j, 3)
	if err := j.Trim(limited(t), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Announce(limited(t), journal.Member{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"insert", "update", "delete", "find"} {
		if seen[name] == 0 {
			t.Errorf("no %s was seen: %v", name, seen)
		}
	}
}

// TestRefusals: which answers of a server say that nothing was appended.
func TestRefusals(t *testing.T) {
	write := func(code int, message string) error {
		return mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: code, Message: message}}}
	}
	for _, tt := range []struct{ err, want error }{
		{write(11000, "E11000 duplicate key"), journal.ErrConflict},
		{write(codeTooLarge, "too large"), journal.ErrTooLarge},
		{write(codeOutOfDisk, "no space"), journal.ErrFull},
		{mongo.CommandError{Code: codeAtlas, Message: "you are over your space quota, using 512 MB of 512 MB"}, journal.ErrFull},
		{mongo.CommandError{Code: codeAtlas, Message: "another reason"}, nil},
		{mongo.WriteException{WriteConcernError: &mongo.WriteConcernError{Code: 64, Message: "waiting for replication timed out"}}, nil},
		{mongo.CommandError{Code: 10107, Message: "not primary"}, nil},
		{io.EOF, nil},
	} {
		got := refusal(tt.err)
		for _, known := range []error{journal.ErrConflict, journal.ErrTooLarge, journal.ErrFull} {
			if errors.Is(got, known) != (known == tt.want) {
				t.Errorf("%v became %v; want %v", tt.err, got, tt.want)
			}
		}
	}
}
