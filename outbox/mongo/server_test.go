package mongooutbox

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub"
	"eventhub/internal/mongotest"
	"eventhub/internal/testsize"
	"eventhub/outbox"
)

// On a server without transactions, an Add in one is an error and adds nothing.
func TestAddInATransaction(t *testing.T) {
	db, s := open(t)
	_, end, err := begin(t, db.Collection(DefaultCollection), eventhub.Event{Topic: "t", Payload: []byte(`1`)})
	if mongotest.Real() {
		if err != nil {
			t.Fatal(err)
		}
		if err := end(true); err != nil {
			t.Fatal(err)
		}
	} else if err == nil {
		t.Error("a transaction on a server that has none")
	}
	n, err := s.Counts(t.Context())
	if want := map[bool]int{true: 1, false: 0}[mongotest.Real()]; err != nil || n.Pending != want {
		t.Errorf("%+v, %v; want %d pending", n, err, want)
	}
}

func TestWait(t *testing.T) {
	db, s := open(t)
	for range 2 { // the first opens the stream where there is one
		if err := s.Wait(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if s.noStream == mongotest.Real() {
		t.Fatalf("no change stream: %v", s.noStream)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if !mongotest.Real() {
		cancel() // what else ends it after an hour
	} else {
		if err := s.Wait(ctx, time.Hour); err != nil { // another stream, as it is longer
			t.Fatal(err)
		}
		add(t, db, "a")
	}
	if err := s.Wait(ctx, time.Hour); err != nil {
		t.Error(err)
	}
}

// Rows with any _id are claimed, settled and found again by its text.
func TestIDsOfOthers(t *testing.T) {
	db, s := open(t)
	stopClock(s, start)
	oid, data := bson.NewObjectID(), []byte("0123456789abcdef")
	uuid := hex.EncodeToString(data)
	values := map[string]any{
		oid.Hex(): oid,
		uuid[:8] + "-" + uuid[8:12] + "-" + uuid[12:16] + "-" + uuid[16:20] + "-" + uuid[20:]: bson.Binary{Subtype: 4, Data: data},
		`bson:{"$numberInt":"5"}`: int32(5),
		`bson:{"a": true}`:        bson.D{{Key: "a", Value: true}},
		"bson:x":                  "bson:x",
	}
	for _, id := range values {
		if _, err := db.Collection(DefaultCollection).InsertOne(t.Context(), bson.D{
			{Key: "_id", Value: id}, {Key: "topic", Value: "t"}, {Key: "payload", Value: 1}, {Key: "status", Value: "pending"}, {Key: "ts", Value: 1},
		}); err != nil {
			t.Fatal(err)
		}
	}
	got := turn(t, s, "w", 10)
	if len(got) != len(values) {
		t.Fatalf("claimed %q", got)
	}
	var settled []outbox.Outcome
	for id := range values {
		if !slices.Contains(got, id) {
			t.Errorf("%q is not claimed, but %q", id, got)
		}
		settled = append(settled, outbox.Outcome{ID: id, Status: outbox.Parked, Error: "no"})
	}
	turn(t, s, "w", 0, settled...)
	for id := range values {
		r, err := s.Show(t.Context(), id)
		if err != nil || r.Status != outbox.Parked || r.Event.ID != id {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
}

// More outcomes are settled at once than FerretDB has connections to its storage.
func TestManyOutcomes(t *testing.T) {
	db, s := open(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute) // of a server that never answers
	defer stop()
	events := make([]eventhub.Event, 120)
	for i := range events {
		events[i] = eventhub.Event{Topic: "t", Payload: []byte(`1`)}
	}
	if _, err := Add(ctx, db.Collection(DefaultCollection), events...); err != nil {
		t.Fatal(err)
	}
	claim := outbox.Claim{Worker: "w", Max: len(events), Lease: time.Minute}
	rows, err := s.Turn(ctx, nil, claim)
	if err != nil || len(rows) != len(events) {
		t.Fatalf("claimed %d, %v", len(rows), err)
	}
	var settled []outbox.Outcome
	for _, r := range rows {
		settled = append(settled, outbox.Outcome{ID: r.Event.ID, Status: outbox.Sent})
	}
	if left, err := s.Turn(ctx, settled, claim); err != nil || len(left) != 0 {
		t.Fatalf("%d left, %v", len(left), err)
	}
	if n, err := s.Counts(ctx); err != nil || n.Pending+n.Claimed != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

// Pages of a list meet, also among rows whose ts is missing or no number.
func TestPagesOfOddTimes(t *testing.T) {
	db, s := open(t)
	for i, ts := range []any{nil, nil, int32(1), 1.0, int64(2), "x", "y"} {
		doc := bson.D{{Key: "_id", Value: fmt.Sprint("i", i)}, {Key: "topic", Value: "t"}, {Key: "payload", Value: i}, {Key: "status", Value: "pending"}}
		if ts != nil {
			doc = append(doc, bson.E{Key: "ts", Value: ts})
		}
		if _, err := db.Collection(DefaultCollection).InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	last, got := "", []string{}
	for {
		rows, err := s.List(t.Context(), nil, last, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			break
		}
		last = rows[0].Event.ID
		got = append(got, last)
	}
	if want := "[i0 i1 i2 i3 i4 i5 i6]"; fmt.Sprint(got) != want {
		t.Errorf("pages %v, want %s", got, want)
	}
}

// log is a hub that keeps ids, and calls after with how many it has.
type log struct {
	eventhub.Publisher // of which drainers use Publish alone
	mu                 sync.Mutex
	keys               map[string][]string
	has                map[string]bool
	after              func(n int)
}

func (l *log) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if err := ctx.Err(); err != nil { // the lease has run out
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		if !l.has[e.ID] {
			l.has[e.ID] = true
			l.keys[e.Key] = append(l.keys[e.Key], e.ID)
		}
	}
	l.after(len(l.has))
	return make([]eventhub.Receipt, len(events)), nil
}

// Two drainers go on when their server is killed and started again: every row is published,
// and those of a key in their order.
func TestServerIsKilled(t *testing.T) {
	server, err := mongotest.Start(t.TempDir()) // FerretDB, also where the other tests have a real server
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Kill() }()
	db := mongotest.Connect(t, server.URI).Database("service")
	s := New(db, "")
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := make(map[string][]string)
	rows := testsize.Of(120, 40)
	for i := range rows {
		key := fmt.Sprint("k", i%5)
		want[key] = append(want[key], add(t, db, key)...)
	}
	killed := make(chan struct{})
	var once sync.Once
	hub := &log{keys: make(map[string][]string), has: make(map[string]bool), after: func(n int) {
		if n > rows/2 {
			once.Do(func() { server.Kill(); close(killed) }) // before the answer, so that nothing of it can be written
		}
	}}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute) // of a drainer that does not end
	defer stop()
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			d, err := outbox.NewDrainer(New(db, ""), hub, outbox.Options{
				Worker: fmt.Sprint("w", i), Batch: 6, Lease: 2 * time.Second, Interval: outbox.MinInterval, UntilEmpty: true,
			})
			if err == nil {
				err = d.Run(ctx)
			}
			if err != nil || ctx.Err() != nil {
				t.Error(err, ctx.Err())
			}
		})
	}
	<-killed
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for key, ids := range want {
		if !slices.Equal(hub.keys[key], ids) {
			t.Errorf("key %s: %q, want %q", key, hub.keys[key], ids)
		}
	}
}
