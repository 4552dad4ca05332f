package mongojournal

import (
	"context"
	"flag"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.uber.org/goleak"

	"eventhub/internal/mongotest"
	"eventhub/store/journal"
	"eventhub/store/journal/journaltest"
)

// within is how long anything may take before a test fails.
const within = time.Minute

func TestMain(m *testing.M) {
	code := mongotest.Run(m)
	if err := goleak.Find(); err != nil && code == 0 {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

// limited returns a context that fails the test's waiting.
func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return ctx
}

// newDatabase returns the options of a journal in an empty database, which goes with the test.
func newDatabase(t testing.TB) (Options, *mongo.Database) {
	t.Helper()
	db := mongotest.Database(t)
	return Options{URL: mongotest.URI(t), Database: db.Name()}, db
}

func open(t testing.TB, o Options) *Journal {
	t.Helper()
	j, err := Open(limited(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return j
}

// wire dials the connections of one client, and can break them.
type wire struct {
	mu    sync.Mutex
	conns []net.Conn
}

// DialContext implements options.ContextDialer.
func (w *wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns = append(w.conns, c)
	}
	return c, err
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// ways are how a journal finds its places: that of FerretDB, and that of MongoDB.
var ways = map[string]bool{"Singles": true, "Ranges": false}

// engine is the server as the suite sees it. New closes no handle: the suite does.
func engine(single bool, races int) journaltest.Engine {
	var mu sync.Mutex
	cuts := make(map[journal.Journal]*wire)
	return journaltest.Engine{
		New: func(t *testing.T) func(*testing.T) journal.Journal {
			o, _ := newDatabase(t)
			return func(t *testing.T) journal.Journal {
				t.Helper()
				o, w := o, &wire{}
				o.Dialer = w
				j, err := Open(limited(t), o)
				if err != nil {
					t.Fatal(err)
				}
				j.single = single
				mu.Lock()
				defer mu.Unlock()
				cuts[j] = w
				return j
			}
		},
		Cut: func(_ *testing.T, j journal.Journal) {
			mu.Lock()
			defer mu.Unlock()
			cuts[j].cut()
		},
		Races: races,
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, single := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			journaltest.Run(t, engine(single, 2))
		})
	}
}

var turns = flag.Int("journal.turns", 3, "how many hubs lead in TestLeaders")

// TestLeaders: hubs take the journal from each other, while the server is killed and started again, and
// while connections break.
func TestLeaders(t *testing.T) {
	if mongotest.Real() {
		t.Skip("it kills the server")
	}
	t.Parallel()
	for name, single := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mongotest.Own(t)
			var mu sync.Mutex
			var wires []*wire
			e := engine(single, 0)
			e.New = func(*testing.T) func(*testing.T) journal.Journal {
				return func(t *testing.T) journal.Journal {
					t.Helper()
					w := &wire{}
					j, err := Open(limited(t), Options{URL: s.URI, Database: "leaders", Dialer: w})
					if err != nil {
						t.Fatal(err)
					}
					j.single = single
					mu.Lock()
					defer mu.Unlock()
					wires = append(wires, w)
					return j
				}
			}
			journaltest.RunLeaders(t, e, journaltest.Leaders{Turns: *turns, Commits: 10, Disturb: func(t *testing.T, turn int) {
				if turn%2 == 1 {
					s.Kill()
					if err := s.Restart(); err != nil {
						t.Fatal(err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, w := range wires {
					w.cut()
				}
			}})
		})
	}
}

func insert(t *testing.T, c *mongo.Collection, document any) {
	t.Helper()
	if _, err := c.InsertOne(limited(t), document); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, c *mongo.Collection, id string) {
	t.Helper()
	if r, err := c.DeleteOne(limited(t), bson.D{{Key: "_id", Value: id}}); err != nil || r.DeletedCount != 1 {
		t.Fatalf("remove %s: %+v, %v", id, r, err)
	}
}
