package cluster

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"eventhub/internal/mongotest"
	"eventhub/internal/pgtest"
	"eventhub/store/journal"
	mongojournal "eventhub/store/journal/mongo"
)

// leaseOnMongo is longer than elsewhere: FerretDB takes up to a second for an answer where the machine has
// more to do.
const leaseOnMongo = 2 * time.Second

const mongoDatabase = "faults"

// newMongoRig is startMongoRig with a load.
func newMongoRig(t *testing.T) (*rig, *mongotest.Server) {
	t.Helper()
	r, server := startMongoRig(t)
	r.begin()
	return r, server
}

// startMongoRig starts FerretDB, and two hubs whose journal is there, each with a proxy of its own.
func startMongoRig(t *testing.T) (*rig, *mongotest.Server) {
	t.Helper()
	postgres := ""
	if mongotest.OverPostgres() {
		postgres = pgtest.Start(t).Database(t)
	}
	server, err := mongotest.StartOver(t.TempDir(), postgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	r := &rig{t: t}
	r.journal = func() journal.Journal {
		j, err := mongojournal.Open(context.Background(), mongojournal.Options{URL: server.URI, Database: mongoDatabase})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	for range 2 {
		r.proxies = append(r.proxies, []*proxy{startProxy(t, strings.Trim(strings.TrimPrefix(server.URI, "mongodb://"), "/"))})
	}
	r.hubs = startHubs(t, 2, leaseOnMongo, func(i int) string {
		return "mongodb://" + r.proxies[i][0].listener.Addr().String() + "/" + mongoDatabase
	})
	return r, server
}

// TestHubsOnMongo: a hub that leads is killed, frozen, or gets no answers, and the server is killed; nothing is lost,
// nothing is twice.
func TestHubsOnMongo(t *testing.T) {
	if mongotest.Real() {
		t.Skip("a replica set names its own addresses, which no proxy has")
	}
	t.Parallel()
	r, server := newMongoRig(t)
	const most = 3*leaseOnMongo + 5*time.Second
	for range *rounds {
		r.round(most, func() { r.replace(syscall.SIGKILL) })
		r.round(most, func() {
			r.lead.signal(syscall.SIGSTOP)
			next := r.active(r.lead)
			r.lead.signal(syscall.SIGCONT)
			r.lead.await(isStandby)
			r.lead = next
		})
		for range 3 {
			r.round(most, func() {
				mine := r.proxies[slices.Index(r.hubs, r.lead)][0]
				mine.loseReplies()
				time.Sleep(time.Duration(r.random.IntN(100)) * time.Millisecond)
				mine.cut()
			})
			r.lead = r.active(nil)
		}
		r.round(most, func() {
			server.Kill()
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		})
		r.lead = r.active(nil)
	}
	r.settled = func(lead *hub) { awaitSame(t, lead, mongotest.Connect(t, server.URI).Database(mongoDatabase)) }
	r.finish()
}
