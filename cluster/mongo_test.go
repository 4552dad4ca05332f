package cluster

import (
	"cmp"
	"context"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"eventhub/internal/mongotest"
	"eventhub/store/journal"
	mongojournal "eventhub/store/journal/mongo"
)

// leaseOnMongo is longer than elsewhere: FerretDB takes up to a second for an answer where the machine has
// more to do.
const leaseOnMongo = 2 * time.Second

// mongoServer is where the journals of these tests are: a FerretDB of the test's own, or the replica set of MONGODB_URI,
// which is asked for its primary, so that a proxy can stand before it.
type mongoServer struct {
	*mongotest.Server
	database string
	target   string // for proxies; empty: there can be none
	before   string // of a URL, up to its hosts
	after    string // the options of a URL through a proxy
}

func startMongo(t *testing.T) *mongoServer {
	t.Helper()
	s := &mongoServer{Server: mongotest.Own(t), database: "eventhub_test_" + bson.NewObjectID().Hex(), before: "mongodb://"}
	t.Cleanup(func() {
		if mongotest.Real() {
			if err := s.db(t).Drop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	if !mongotest.Real() {
		s.target = strings.Trim(strings.TrimPrefix(s.URI, "mongodb://"), "/")
		return s
	}
	u, err := url.Parse(s.URI)
	if err != nil {
		t.Fatal("the URL of the server cannot be read")
	}
	var hello struct {
		Primary string `bson:"primary"`
		Me      string `bson:"me"`
	}
	if err := mongotest.Connect(t, s.URI).Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	options := u.Query()
	if u.User != nil {
		s.before += u.User.String() + "@"
		if !options.Has("authSource") {
			options.Set("authSource", cmp.Or(strings.Trim(u.Path, "/"), "admin"))
		}
	}
	if u.Scheme == "mongodb+srv" || options.Get("tls") == "true" || options.Get("ssl") == "true" {
		t.Log("a server that speaks TLS has no proxy before it: no answers are lost")
		s.before, s.after = u.Scheme+"://"+strings.TrimPrefix(s.before, "mongodb://")+u.Host, "?"+options.Encode()
		return s
	}
	options.Del("replicaSet")
	options.Set("directConnection", "true")
	s.target, s.after = cmp.Or(hello.Primary, hello.Me, strings.Split(u.Host, ",")[0]), "?"+options.Encode()
	return s
}

// url returns the URL of the journal, through a proxy or not.
func (s *mongoServer) url(p *proxy) string {
	switch {
	case s.target == "":
		return s.before + "/" + s.database + s.after
	case p == nil:
		return s.before + s.target + "/" + s.database + s.after
	}
	return s.before + p.listener.Addr().String() + "/" + s.database + s.after
}

// db returns the database of the journal.
func (s *mongoServer) db(t *testing.T) *mongo.Database {
	t.Helper()
	return mongotest.Connect(t, s.URI).Database(s.database)
}

// startMongoRig starts a server, and two hubs whose journal is there, each with a proxy of its own.
func startMongoRig(t *testing.T) (*rig, *mongoServer) {
	t.Helper()
	s := startMongo(t)
	r := &rig{t: t}
	r.journal = func() journal.Journal {
		j, err := mongojournal.Open(context.Background(), mongojournal.Options{URL: s.url(nil), Database: s.database})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	for range 2 {
		if s.target == "" {
			r.proxies = append(r.proxies, nil)
			continue
		}
		r.proxies = append(r.proxies, []*proxy{startProxy(t, s.target)})
	}
	r.hubs = startHubs(t, 2, leaseOnMongo, func(i int) string {
		if r.proxies[i] == nil {
			return s.url(nil)
		}
		return s.url(r.proxies[i][0])
	})
	return r, s
}

// TestHubsOnMongo: a hub that leads is killed, frozen, or gets no answers, and the server is killed; nothing is lost,
// nothing is twice, and a new hub has all of it.
func TestHubsOnMongo(t *testing.T) {
	t.Parallel()
	r, server := startMongoRig(t)
	r.begin()
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
		for i := 0; i < 3 && server.target != ""; i++ {
			r.round(most, func() {
				mine := r.proxies[slices.Index(r.hubs, r.lead)][0]
				mine.loseReplies()
				time.Sleep(time.Duration(r.random.IntN(100)) * time.Millisecond)
				mine.cut()
			})
			r.lead = r.active(nil)
		}
		if mongotest.Real() {
			continue // which is not the test's to kill
		}
		r.round(most, func() {
			server.Kill()
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		})
		r.lead = r.active(nil)
	}
	r.settled = func(lead *hub) {
		awaitSame(t, lead, server.db(t))
		r.newest(server)
	}
	r.finish()
}

// newest has a hub that has nothing follow the journal and lead it. Its store, made of what the faults have left, passes
// `eventhub check`, and the journal is whole.
func (r *rig) newest(server *mongoServer) {
	r.t.Helper()
	h := startHubs(r.t, 1, leaseOnMongo, func(int) string { return server.url(nil) }, "--member-id", "newest")[0]
	h.name = "newest"
	h.await(isStandby)
	h.await(" 0 entries behind")
	for _, other := range r.hubs {
		other.end(syscall.SIGTERM)
	}
	r.hubs = append(r.hubs, h)
	r.active(nil)
	h.runs("check", "--url", h.url())
	h.runs("journal", "verify", "--journal", server.url(nil))
	r.load.check(h)
	awaitSame(r.t, h, server.db(r.t))
}

// runs runs a command of the program, which is to succeed.
func (h *hub) runs(args ...string) {
	h.t.Helper()
	if out, err := exec.Command(h.program, args...).CombinedOutput(); err != nil {
		h.t.Errorf("%v: %v\n%s", args, err, out)
	}
}
