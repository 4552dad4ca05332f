package mongoinbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/mongotest"
)

func TestMain(m *testing.M) {
	code := mongotest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open(t *testing.T) (*mongo.Database, *Inbox) {
	t.Helper()
	db := mongotest.Database(t)
	i := New(db, "")
	for range 2 {
		expires, err := i.Migrate(t.Context(), time.Hour)
		if err != nil || expires != mongotest.Real() {
			t.Fatalf("migrate: expires %v, %v", expires, err)
		}
	}
	return db, i
}

func event(topic, id string) *eventhub.Event { return &eventhub.Event{Topic: topic, ID: id} }

// inTransaction runs f in a transaction that is aborted where f fails.
func inTransaction(t *testing.T, db *mongo.Database, f func(ctx context.Context) error) error {
	t.Helper()
	return db.Client().UseSession(t.Context(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, f(ctx) })
		return err
	})
}

func TestOnceNeedsATransaction(t *testing.T) {
	db, i := open(t)
	session, err := db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(context.Background())
	for name, ctx := range map[string]context.Context{"no session": t.Context(), "no transaction": mongo.NewSessionContext(t.Context(), session)} {
		if first, err := i.Once(ctx, "g", event("t", "1")); first || eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("%s: %v, %v", name, first, err)
		}
	}
	if n, err := i.records.CountDocuments(t.Context(), bson.D{}); n != 0 || err != nil {
		t.Errorf("%d records, %v", n, err)
	}
}

// Where there are transactions the record goes with them; where there are none Once is an error.
func TestOnceInATransaction(t *testing.T) {
	db, i := open(t)
	var first []bool
	once := func(end error) func(context.Context) error {
		return func(ctx context.Context) error {
			is, err := i.Once(ctx, "g", event("t", "1"))
			first = append(first, is)
			return errors.Join(err, end)
		}
	}
	if !mongotest.Real() {
		if err := inTransaction(t, db, once(nil)); eventhub.ErrorCode(err) != eventhub.CodeBadRequest || first[0] {
			t.Errorf("a server without transactions: %v, %v", first, err)
		}
		return
	}
	rollback := errors.New("rollback")
	if err := inTransaction(t, db, once(rollback)); !errors.Is(err, rollback) {
		t.Fatal(err)
	}
	for range 2 {
		if err := inTransaction(t, db, once(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(first) != "[true true false]" {
		t.Errorf("first: %v", first)
	}
}

func TestDo(t *testing.T) {
	db, i := open(t)
	effects := 0
	do := func(group string, e *eventhub.Event, end error) (bool, error) {
		return i.Do(t.Context(), group, e, func(ctx context.Context) error {
			effects++
			if _, err := db.Collection("effects").InsertOne(ctx, bson.D{{Key: "id", Value: e.ID}}); err != nil {
				return err
			}
			return end
		})
	}
	if !mongotest.Real() {
		if first, err := do("g", event("t", "1"), nil); first || effects != 0 || eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("without transactions: %v, %v, %d effects", first, err, effects)
		}
	}
	i.Idempotent = true
	failed := errors.New("failed")
	if first, err := do("g", event("t", "1"), failed); first || !errors.Is(err, failed) {
		t.Errorf("an effect that fails: %v, %v", first, err)
	}
	effects = 0
	for n, test := range []struct {
		group string
		e     *eventhub.Event
		first bool
	}{
		{"g", event("t", "1"), true}, {"g", event("t", "1"), false}, {"h", event("t", "1"), true},
		{"g", event("u", "1"), true}, {"g", event("t", "2"), true}, {"g", event("t", "2"), false},
	} {
		before := effects
		first, err := do(test.group, test.e, nil)
		if first != test.first || err != nil || (effects > before) != first {
			t.Errorf("step %d: %v, %v, %d effects", n, first, err, effects-before)
		}
	}
}

// Of records that are written at the same time one is the first.
func TestOneIsFirst(t *testing.T) {
	_, i := open(t)
	for round := range 10 {
		var all sync.WaitGroup
		var mu sync.Mutex
		n := 0
		for range 4 {
			all.Go(func() {
				first, err := i.record(t.Context(), "g", event("t", fmt.Sprint(round)))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if first {
					n++
				}
			})
		}
		all.Wait()
		if n != 1 {
			t.Errorf("round %d: %d are the first", round, n)
		}
	}
}

func TestTrim(t *testing.T) {
	_, i := open(t)
	now := time.Now()
	for n, age := range []time.Duration{time.Hour, time.Minute, 0} {
		i.Now = func() time.Time { return now.Add(-age) }
		if _, err := i.record(t.Context(), "g", event("t", fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		age  time.Duration
		want int
	}{{2 * time.Hour, 0}, {time.Minute + time.Second, 1}, {-time.Second, 2}} {
		if got, err := i.Trim(t.Context(), test.age); got != test.want || err != nil {
			t.Errorf("older than %s: %d, %v; want %d", test.age, got, err, test.want)
		}
	}
}

func TestBadKeep(t *testing.T) {
	i := New(mongotest.Database(t), "other")
	for _, keep := range []time.Duration{-1, time.Millisecond} {
		if _, err := i.Migrate(t.Context(), keep); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("%s: %v", keep, err)
		}
	}
}
