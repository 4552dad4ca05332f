package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
	sdk "eventhub/client"
	"eventhub/store/journal"
	mongojournal "eventhub/store/journal/mongo"
)

// mongoDamage is what happens to a journal in MongoDB under two hubs that run: the one that leads, and one that follows.
type mongoDamage struct {
	name   string
	frozen bool                              // the one that follows is frozen meanwhile, and behind
	change func(*damagedInMongo, *testing.T) // what somebody does
	says   string                            // by hubs that end; journal.ErrDiverged where it is empty
	ends   int                               // how many hubs are to end; the others go on
	grows  bool                              // an entry may have come before it was seen
}

var mongoDamages = []mongoDamage{
	{name: "restored", change: (*damagedInMongo).restore, ends: 2},
	{name: "a document of somebody else", change: (*damagedInMongo).putNext, ends: 2},
	{name: "an entry altered", frozen: true, change: (*damagedInMongo).alter, ends: 1},
	{name: "trimmed", frozen: true, change: (*damagedInMongo).trim},
	{name: "an entry removed", frozen: true, change: (*damagedInMongo).remove, ends: 1},
	{name: "dropped", change: (*damagedInMongo).drop, ends: 2},
	{name: "renamed", change: (*damagedInMongo).rename, ends: 2},
	{name: "a document of somebody else among the trims", change: (*damagedInMongo).putTrim, ends: 2, says: "a document of eventhub_journal_trims is", grows: true},
	{name: "data of another type", frozen: true, change: (*damagedInMongo).retype, ends: 1},
}

// damagedInMongo is one journal, and its hubs.
type damagedInMongo struct {
	mongoDamage
	server      *mongoServer // with a database of this journal's own
	lead, other *hub
	behind      uint64 // where the other one is
}

// TestRolledBackOnMongo: entries of a journal in MongoDB are removed, altered or trimmed under the hubs, or somebody
// else writes between them. Each hub that it concerns says one clear error and ends, nothing is written over, and its copy has
// what it had; the others go on.
func TestRolledBackOnMongo(t *testing.T) {
	t.Parallel()
	server := startMongo(t)
	for i := range min(*rollbacks, len(mongoDamages)) {
		one := *server
		one.database = fmt.Sprint(server.database, "_", i)
		d := &damagedInMongo{mongoDamage: mongoDamages[i], server: &one}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if err := one.db(t).Drop(context.Background()); err != nil {
					t.Error(err)
				}
			})
			d.run(t)
		})
	}
}

func (d *damagedInMongo) run(t *testing.T) {
	r := &rig{t: t, hubs: startHubs(t, 2, leaseOfMany, func(int) string { return d.server.url(nil) })}
	d.lead = r.active(nil)
	d.other = r.hubs[1-slices.Index(r.hubs, d.lead)]
	d.other.await(isStandby)
	d.publish(t, 10)
	has := d.lead.place()
	for d.behind < has {
		d.behind = d.other.place()
	}
	if d.frozen {
		d.other.signal(syscall.SIGSTOP)
		d.publish(t, 10)
	}
	places := map[*hub]uint64{d.lead: has, d.other: has}
	d.change(d, t)
	before := d.entries(t)
	if d.frozen {
		d.other.signal(syscall.SIGCONT)
	}
	var all sync.WaitGroup
	for i, h := range []*hub{d.other, d.lead} {
		if i < d.ends {
			all.Go(func() { d.awaitEnd(t, h, places[h]) })
		}
	}
	all.Wait()
	if d.ends == 2 {
		if after := d.entries(t); !slices.EqualFunc(before, after, func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) && !(d.grows && len(after) == len(before)+1) {
			t.Errorf("the journal had %d entries, and has %d; or other ones", len(before), len(after))
		}
		return
	}
	d.publish(t, 3)
	if d.ends == 0 {
		d.other.await(" 0 entries behind")
	}
}

// awaitEnd waits until a hub has refused.
func (d *damagedInMongo) awaitEnd(t *testing.T, h *hub, place uint64) {
	select {
	case <-h.ended:
	case <-time.After(2 * within):
		t.Errorf("%s goes on", h.name)
		return
	}
	want := d.says
	if want == "" {
		want = journal.ErrDiverged.Error()
	}
	said := h.logged()
	if code := h.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(said, want) || strings.Count(said, "eventhub: ") != 1 {
		t.Errorf("%s ended with code %d, and said\n%s", h.name, code, said)
	}
	if _, at := h.copied(); at.Seq < place {
		t.Errorf("%s was at place %d, and is at %d", h.name, place, at.Seq)
	}
}

// publish publishes to the hub that leads.
func (d *damagedInMongo) publish(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c, err := sdk.Dial(ctx, d.lead.url(), sdk.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range n {
		if _, err := c.Publish(ctx, eventhub.Event{Topic: "back", Payload: []byte(`"event"`)}); err != nil {
			t.Fatal(err)
		}
	}
}

func (d *damagedInMongo) collection(t *testing.T) *mongo.Collection {
	return d.server.db(t).Collection(mongojournal.Entries)
}

// entries returns all documents of the journal.
func (d *damagedInMongo) entries(t *testing.T) (all []bson.Raw) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	found, err := d.collection(t).Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err == nil {
		err = found.All(ctx, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func idOfPlace(at uint64) string { return fmt.Sprintf("%020d", at) }

// done fails the test where a change was not made.
func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// restore has the journal be what it was five entries ago.
func (d *damagedInMongo) restore(t *testing.T) {
	all := d.entries(t)
	id, _ := all[len(all)-6].Lookup("_id").StringValueOK()
	for range 2 { // the hub may append meanwhile
		_, err := d.collection(t).DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: id}}}})
		done(t, err)
	}
}

// putNext puts a document where the next entry is to be.
func (d *damagedInMongo) putNext(t *testing.T) {
	for at := d.lead.place() + 1; ; at++ {
		_, err := d.collection(t).InsertOne(t.Context(), bson.D{{Key: "_id", Value: idOfPlace(at)}, {Key: "epoch", Value: "x"}, {Key: "data", Value: 7}})
		if !mongo.IsDuplicateKeyError(err) {
			done(t, err)
			return
		}
	}
}

func (d *damagedInMongo) set(t *testing.T, at uint64, data any) {
	t.Helper()
	r, err := d.collection(t).UpdateOne(t.Context(), bson.D{{Key: "_id", Value: idOfPlace(at)}}, bson.D{{Key: "$set", Value: bson.D{{Key: "data", Value: data}}}})
	if done(t, err); r.ModifiedCount != 1 {
		t.Fatalf("nothing was changed at %d", at)
	}
}

// alter changes a byte of an entry that the other hub does not have.
func (d *damagedInMongo) alter(t *testing.T) {
	at := d.behind + 3
	raw, err := d.collection(t).FindOne(t.Context(), bson.D{{Key: "_id", Value: idOfPlace(at)}}).Raw()
	done(t, err)
	_, data, _ := raw.Lookup("data").BinaryOK()
	data = bytes.Clone(data)
	data[len(data)/2] ^= 1
	d.set(t, at, data)
}

// retype has the data of an entry be a text.
func (d *damagedInMongo) retype(t *testing.T) { d.set(t, d.behind+3, "data") }

func (d *damagedInMongo) remove(t *testing.T) {
	_, err := d.collection(t).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: idOfPlace(d.behind + 3)}})
	done(t, err)
}

// trim trims the journal beyond what the other hub has, which is to fetch a copy.
func (d *damagedInMongo) trim(t *testing.T) {
	j, err := mongojournal.Open(t.Context(), mongojournal.Options{URL: d.server.url(nil), Database: d.server.database})
	done(t, err)
	defer j.Close()
	done(t, j.Trim(t.Context(), d.behind+5))
}

func (d *damagedInMongo) drop(t *testing.T) {
	done(t, d.collection(t).Drop(t.Context()))
}

func (d *damagedInMongo) rename(t *testing.T) {
	admin := d.server.db(t).Client().Database("admin")
	from := d.server.database + "." + mongojournal.Entries
	done(t, admin.RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: from}, {Key: "to", Value: from + "_away"}}).Err())
}

func (d *damagedInMongo) putTrim(t *testing.T) {
	_, err := d.server.db(t).Collection(mongojournal.Trims).InsertOne(t.Context(), bson.D{{Key: "of", Value: "somebody else"}})
	done(t, err)
}
