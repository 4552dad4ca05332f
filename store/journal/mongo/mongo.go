// Package mongojournal keeps a journal in a database of MongoDB: each entry is one document of the
// collection eventhub_journal, and its place is the _id.
//
//	{_id: "00000000000000000042", epoch: 3, bytes: 81234, data: <the entry>}
//
// The _id has 20 digits, so that the order of the texts is that of the places. bytes are those of
// all entries up to this one. epoch is for people who look.
//
// # What it relies on
//
//   - The index of _id is unique: of two inserts of one place one is refused. That is the fence.
//     The place before is looked at first, so that no append makes a hole.
//   - Writes have the write concern majority with j: true, reads the read concern majority, and both go to the
//     primary, whatever the URL says. So what was answered is on the disks of a majority, an election
//     does not lose it, and what was read is never taken back. A duplicate key is no proof of that: it may be of a
//     document that a majority does not have yet. The Log reads the place then, and concludes nothing
//     from its absence.
//   - A removed _id is free again, and an insert that was under way for long finds it so. So a trim writes
//     first how far it goes, by an insert into eventhub_journal_trims, and removes then; an
//     append reads that mark after its insert, and is refused where its place is at the mark or below. What such
//     an insert leaves nobody reads.
//   - The mark of trims is the highest _id there, and only lower ones are removed. So no step
//     needs an update with a condition: FerretDB has no atomic ones.
//   - No document goes but by Trim, and places are compared byte by byte: Open refuses a collection that is
//     capped, has a collation, a validator, or an index that is unique or removes documents.
//
// # Servers
//
// A replica set, of one member too. A single server has no majority that an answer could stand for, and is
// refused; so is a sharded cluster, whose _id need not be unique.
//
// FerretDB is allowed, for tests and trials. It takes the concerns and does nothing for them: what it shows of this
// package are fencing, lost answers, restarts and trims. It proves nothing of majorities, rollbacks and
// elections, and its answer is worth what its storage is. Over it places are read one by one, as it fetches and decodes
// all documents for a range. Over SQLite version 1.24 looks through the table for each find, by _id too, so a
// journal of some MiB is slow there.
//
// A follower polls, up to ten times a second where nothing comes, and less where that takes long. The driver's own
// repetition is off: the Log repeats.
package mongojournal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"eventhub/store/journal"
)

// DefaultDatabase is the database of a URL that names none.
const DefaultDatabase = "prom"

// The names of the collections.
const (
	Entries = "eventhub_journal"
	Trims   = "eventhub_journal_trims"
	Members = "eventhub_journal_members"
)

const (
	// mostEntry is how large an entry may be, and mostSingle over FerretDB. A document may have
	// 16 MiB; an insert that takes long is given up and sent again, so entries are kept far below that.
	mostEntry  = 1 << 20
	mostSingle = 256 << 10
	// openWithin is how long Open waits for answers at most, selectWithin for a server where the URL
	// does not say it.
	openWithin   = 30 * time.Second
	selectWithin = 5 * time.Second
	// answerWithin is how long a follower waits for one answer until it asks again. Where there was none for one
	// place either the time doubles, up to moreWithin times answerWithin.
	answerWithin = 2 * time.Second
	moreWithin   = 4
	// closeWithin bounds the good-bye to the servers.
	closeWithin = 2 * time.Second
)

// Options say where the journal is.
type Options struct {
	URL      string // mongodb:// or mongodb+srv://, with the options that the driver knows
	Database string // DefaultDatabase where empty
	// Dialer makes the connections; nil for the driver's.
	Dialer options.ContextDialer

	monitor *event.CommandMonitor // for tests
}

// ParseURL returns the options of a URL, whose path is the database. It asks nobody, and no
// error has the password.
func ParseURL(text string) (Options, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	rest, _, _ = strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest[strings.LastIndex(rest, "@")+1:], "/")
	switch {
	case !ok || scheme != "mongodb" && scheme != "mongodb+srv":
		return Options{}, fmt.Errorf("its scheme is %q; want mongodb or mongodb+srv", scheme)
	case hosts == "":
		return Options{}, errors.New("it names no server")
	case strings.ContainsAny(database, `/\. "$*<>:|`):
		return Options{}, fmt.Errorf("the database is %q, which has a character that no name can have", database)
	case database == "admin" || database == "local" || database == "config":
		return Options{}, fmt.Errorf("the database is %q, which is the server's own; the database of the user is the option authSource", database)
	case database == "":
		database = DefaultDatabase
	}
	o := Options{URL: text, Database: database}
	if scheme == "mongodb" { // the other asks name servers
		if err := o.client().Validate(); err != nil {
			return Options{}, o.hide(err)
		}
	}
	return o, nil
}

// client returns the options of the driver.
func (o *Options) client() *options.ClientOptions {
	c := options.Client().SetAppName("eventhub journal").SetServerSelectionTimeout(selectWithin).ApplyURI(o.URL)
	if o.Dialer != nil {
		c.SetDialer(o.Dialer)
	}
	if o.monitor != nil {
		c.SetMonitor(o.monitor)
	}
	journaled := true
	return c.SetRetryWrites(false).SetRetryReads(false).SetReadPreference(readpref.Primary()).SetReadConcern(readconcern.Majority()).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journaled})
}

// hide returns an error of the driver about the URL without the user and the password.
func (o *Options) hide(err error) error {
	_, rest, _ := strings.Cut(o.URL, "://")
	user := rest[:max(strings.LastIndex(rest, "@"), 0)]
	_, password, _ := strings.Cut(user, ":")
	text := err.Error()
	for _, secret := range []string{o.URL, user, password} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return errors.New(text)
}

// Journal is a journal in a database.
type Journal struct {
	database                string
	client                  *mongo.Client
	entries, trims, members *mongo.Collection
	// single: places are read one by one.
	single       bool
	exists       bool          // the mark was there
	answerWithin time.Duration // the constant, but in tests

	closed context.Context // done when Close was called
	close  context.CancelFunc
	once   sync.Once

	mu    sync.Mutex
	known uint64 // a place that was taken when it was looked at
}

var _ journal.Journal = (*Journal)(nil)

// Open connects to the servers, and makes an empty database a journal. What can not be this journal is
// a *ConfigError.
func Open(ctx context.Context, o Options) (*Journal, error) {
	j, err := Look(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := j.Create(ctx); err != nil {
		_ = j.Close()
		return nil, err
	}
	return j, nil
}

// Look is Open, but it writes nothing: where Exists says that there is no journal, it is of no use before
// Create.
func Look(ctx context.Context, o Options) (*Journal, error) {
	if o.Database == "" {
		o.Database = DefaultDatabase
	}
	c := o.client()
	err := c.Validate()
	j := &Journal{database: o.Database, answerWithin: answerWithin}
	if err == nil {
		j.client, err = mongo.Connect(c)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to MongoDB: %w", o.hide(err))
	}
	j.closed, j.close = context.WithCancel(context.Background())
	db := j.client.Database(o.Database)
	j.entries, j.trims, j.members = db.Collection(Entries), db.Collection(Trims), db.Collection(Members)
	if err := j.check(ctx, j.checkServer, j.checkCollections, j.checkIndexes, j.checkMark, j.checkBeside); err != nil {
		_ = j.Close()
		return nil, err
	}
	return j, nil
}

// Exists reports whether the journal was there when it was looked for.
func (j *Journal) Exists() bool { return j.exists }

// Create makes the database a journal where it is none, which another hub may do as well, and makes sure of the
// rights. Nothing else may be called meanwhile.
func (j *Journal) Create(ctx context.Context) error {
	return j.check(ctx, j.writeMark, j.checkRights)
}

// CheckRights makes sure of the rights where the journal was there. Create does so too.
func (j *Journal) CheckRights(ctx context.Context) error {
	return awayUnlessRefused(j.check(ctx, j.checkRights))
}

// Check does what others have to check of the database at a start (Database), as Look does with its own checks: where it
// fails for anything but a *ConfigError or a lack of rights, the error has journal.ErrAway.
func (j *Journal) Check(ctx context.Context, check func(context.Context, *mongo.Database) error) error {
	return awayUnlessRefused(j.check(ctx, func(ctx context.Context) error { return check(ctx, j.entries.Database()) }))
}

// awayUnlessRefused adds journal.ErrAway to an error that another attempt may not have.
func awayUnlessRefused(err error) error {
	var config *ConfigError
	var server mongo.ServerError
	if err == nil || errors.As(err, &config) || errors.As(err, &server) && server.HasErrorCode(codeUnauthorized) {
		return err
	}
	return fmt.Errorf("%w: %w", journal.ErrAway, err)
}

// Close implements journal.Journal.
func (j *Journal) Close() (err error) {
	j.once.Do(func() {
		j.close()
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		err = j.client.Disconnect(ctx)
	})
	return err
}

// call returns a context that also ends when the journal is closed.
func (j *Journal) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(j.closed, func() { cancel(journal.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// failed says what was to be done when a call failed, with ErrClosed where the journal is closed.
func (j *Journal) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case j.closed.Err() != nil:
		return fmt.Errorf("%s: %w", what, journal.ErrClosed)
	}
	return fmt.Errorf("%s of the journal in the database %s: %w", what, j.database, err)
}

// Database returns the database of the journal, for what others keep beside it there, and whether the server
// is a FerretDB. The client is the journal's, and ends with it.
func (j *Journal) Database() (db *mongo.Database, ferret bool) { return j.entries.Database(), j.single }
