package mongojournal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store/journal"
)

// Version is that of the layout of the collections.
const Version = 1

// markKind is in the document at place 0, which says that the collection is a journal.
const markKind = "journal of an eventhub"

// ConfigError says what keeps a database from having the journal.
type ConfigError struct {
	What string // what is as it may not be
	Want string // what to do, or what it has to be
}

func (e *ConfigError) Error() string { return e.What + "; " + e.Want }

// hello and buildInfo are what a server says of itself.
type hello struct {
	SetName   string    `bson:"setName"`
	Msg       string    `bson:"msg"`
	LocalTime time.Time `bson:"localTime"`
}

type buildInfo struct {
	FerretDB bson.RawValue `bson:"ferretdb"`
	Ferret1  string        `bson:"ferretdbVersion"`
}

// judge says whether a server may have a journal, and whether it is a FerretDB.
func judge(h hello, b buildInfo) (ferret bool, err error) {
	switch {
	case b.Ferret1 != "" || !b.FerretDB.IsZero():
		return true, nil
	case h.Msg == "isdbgrid":
		return false, &ConfigError{"the server is of a sharded cluster, where an _id need not be unique", "a journal needs a replica set"}
	case h.SetName == "":
		return false, &ConfigError{"the server is of no replica set, so its answers stand for no majority", "a journal needs a replica set; one member is enough for a trial"}
	}
	return false, nil
}

// check runs checks until one fails, within openWithin.
func (j *Journal) check(ctx context.Context, checks ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	for _, check := range checks {
		if err := check(ctx); err != nil {
			return fmt.Errorf("the database %s: %w", j.database, refusedRights(err, j.database))
		}
	}
	return nil
}

func (j *Journal) checkServer(ctx context.Context) (err error) {
	var h hello
	var b buildInfo
	admin := j.client.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&h); err != nil {
		var server mongo.ServerError
		if errors.As(err, &server) && server.HasErrorCode(codeAuthentication) {
			return fmt.Errorf("the server does not let the user of the URL in, whose password or authSource may be another one: %w", err)
		}
		return fmt.Errorf("the servers are not reached, or do not answer: %w: %w", journal.ErrAway, err)
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&b); err != nil {
		return fmt.Errorf("ask the server for its version: %w", err)
	}
	j.single, err = judge(h, b)
	return err
}

// checkCollections refuses a collection that loses documents, hides them, or compares _ids otherwise.
func (j *Journal) checkCollections(ctx context.Context) error {
	db := j.entries.Database()
	for _, name := range []string{Entries, Trims, Members} {
		all, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
		if err != nil {
			return fmt.Errorf("ask for the collection %s: %w", name, err)
		}
		for _, c := range all {
			if c.Name != name {
				continue
			}
			if c.Type != "" && c.Type != "collection" {
				return &ConfigError{fmt.Sprintf("%s is a %s", name, c.Type), "the journal needs a collection of its own"}
			}
			for _, option := range []string{"capped", "collation", "validator"} {
				v, err := c.Options.LookupErr(option)
				if capped, is := v.BooleanOK(); err == nil && (!is || capped) {
					return &ConfigError{fmt.Sprintf("the collection %s has the option %s", name, option), "the journal needs one without"}
				}
			}
		}
	}
	return nil
}

// checkIndexes refuses indexes that refuse entries or remove them.
func (j *Journal) checkIndexes(ctx context.Context) error {
	for _, c := range []*mongo.Collection{j.entries, j.trims, j.members} {
		all, err := c.Indexes().ListSpecifications(ctx)
		var command mongo.CommandError
		if errors.As(err, &command) && command.HasErrorCode(codeNamespaceNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("ask for the indexes of %s: %w", c.Name(), err)
		}
		for _, i := range all {
			if i.Name != "_id_" && (i.Unique != nil && *i.Unique || i.ExpireAfterSeconds != nil) {
				return &ConfigError{fmt.Sprintf("the collection %s has the index %s, which is unique or removes documents", c.Name(), i.Name),
					"the journal needs one without"}
			}
		}
	}
	return nil
}

// mark is the document at place 0.
type mark struct {
	ID      string `bson:"_id"`
	Kind    string `bson:"kind"`
	Version int    `bson:"version"`
}

// checkMark looks for the mark. Where it is not there, nothing else may be.
func (j *Journal) checkMark(ctx context.Context) (err error) {
	if j.exists, err = j.readMark(ctx); j.exists || err != nil {
		return err
	}
	other, err := j.entries.FindOne(ctx, bson.D{}, options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil
	case err != nil:
		return fmt.Errorf("read the collection %s: %w", Entries, err)
	}
	if j.exists, err = j.readMark(ctx); j.exists || err != nil { // it came in between
		return err
	}
	return &ConfigError{fmt.Sprintf("the collection %s has documents of somebody else, as %s", Entries, other), "the journal needs one that is empty"}
}

// checkBeside refuses documents of somebody else among the marks of trims and the members.
func (j *Journal) checkBeside(ctx context.Context) error {
	for _, order := range []int{-1, 1} {
		if _, err := j.trimMark(ctx, order); err != nil {
			return foreign(err)
		}
	}
	cursor, err := j.members.Find(ctx, bson.D{})
	if err == nil {
		_, err = membersOf(ctx, cursor)
	}
	return foreign(err)
}

// foreign makes an error of a document of somebody else one of the configuration.
func foreign(err error) error {
	if errors.Is(err, journal.ErrForeign) {
		return &ConfigError{err.Error(), "remove it: nobody but hubs writes there"}
	}
	return err
}

// writeMark writes the mark where it is not there. Another hub may do the same.
func (j *Journal) writeMark(ctx context.Context) error {
	if j.exists {
		return nil
	}
	if _, err := j.entries.InsertOne(ctx, newMark()); err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("write the mark of the journal: %w", err)
	}
	found, err := j.readMark(ctx)
	if err == nil && !found {
		err = errors.New("the mark of the journal is not there yet")
	}
	j.exists = found
	return err
}

func newMark() mark { return mark{ID: key(0), Kind: markKind, Version: Version} }

// readMark reports whether the mark is there, and refuses another's.
func (j *Journal) readMark(ctx context.Context) (bool, error) {
	raw, err := j.entries.FindOne(ctx, byID(key(0))).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the mark of the journal: %w", err)
	}
	var m mark
	if err := bson.Unmarshal(raw, &m); err != nil || m.Kind != markKind {
		return false, &ConfigError{fmt.Sprintf("the collection %s has a document of somebody else at _id %q", Entries, key(0)), "the journal needs one that is empty"}
	}
	if m.Version != Version {
		return false, &ConfigError{fmt.Sprintf("the journal has version %d, and this program has version %d", m.Version, Version),
			"a hub of that version opens it"}
	}
	return true, nil
}

// checkRights inserts what is there, and removes what is not: both change nothing.
func (j *Journal) checkRights(ctx context.Context) error {
	switch _, err := j.entries.InsertOne(ctx, newMark()); {
	case err == nil:
		return fmt.Errorf("the mark of the journal was gone from %s, and is there again", Entries)
	case !mongo.IsDuplicateKeyError(err):
		return fmt.Errorf("insert into %s: %w", Entries, err)
	}
	for _, c := range []*mongo.Collection{j.entries, j.trims, j.members} {
		if err := c.FindOne(ctx, byID(nothing)).Err(); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return fmt.Errorf("read %s: %w", c.Name(), err)
		}
		if _, err := c.DeleteOne(ctx, byID(nothing)); err != nil {
			return fmt.Errorf("remove from %s: %w", c.Name(), err)
		}
	}
	return nil
}

// nothing is no _id of a document of a journal: neither digits nor the id of a member, which has at most 64 bytes. It
// has no NUL, which PostgreSQL under FerretDB does not take.
var nothing = "nothing" + strings.Repeat("-", 64)

// Codes of the server.
const (
	codeUnauthorized      = 13
	codeAuthentication    = 18
	codeNamespaceNotFound = 26
	codeOutOfDisk         = 14031
	codeTooLarge          = 10334
	codeAtlas             = 8000
)

// refusedRights adds what a refusal for lack of rights means.
func refusedRights(err error, database string) error {
	var server mongo.ServerError
	if errors.As(err, &server) && server.HasErrorCode(codeUnauthorized) {
		return fmt.Errorf("the user of the URL needs the role readWrite of the database %s: %w", database, err)
	}
	return err
}
