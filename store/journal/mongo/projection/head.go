package projection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/admin"
	"eventhub/store"
	mongojournal "eventhub/store/journal/mongo"
)

// Version is that of the collections.
const Version = 1

const (
	headID   = ":head" // no topic has a colon
	headKind = "projections of an eventhub"
	// askedID is the document with the last wish to have all made anew. It is one of its own, which the command line
	// writes and hubs read: FerretDB loses one of two updates of a document at once.
	askedID = ":asked"
)

// topicsOnly is the filter of positions.
var topicsOnly = bson.D{{Key: "_id", Value: bson.D{{Key: "$nin", Value: bson.A{headID, askedID}}}}}

// head says how far all is.
type head struct {
	Kind    string    `bson:"kind"`
	Version int       `bson:"version"`
	Epoch   uint64    `bson:"epoch"`
	Place   uint64    `bson:"place"` // of the journal: all up to there is in the projections
	At      time.Time `bson:"at"`    // when that was found
	// Reset is the id of the last wish for which everything was removed, and Done of the last one that is done.
	Reset string `bson:"reset"`
	Done  string `bson:"done"`
	Wrote uint64 `bson:"wrote"` // events since the last reset, while it is not done
	Whole uint64 `bson:"whole"` // how many there were to write then, at most
}

func byHead() bson.D { return bson.D{{Key: "_id", Value: headID}} }

// mine adds that no hub with a higher epoch has written.
func (p *Projection) mine(filter bson.D) bson.D {
	return append(filter, bson.E{Key: "epoch", Value: bson.D{{Key: "$lte", Value: p.epoch}}})
}

func set(fields bson.D) bson.D { return bson.D{{Key: "$set", Value: fields}} }

// Check refuses a database in which the projections would meet documents of somebody else, with a
// *mongojournal.ConfigError. It writes nothing.
func Check(ctx context.Context, db *mongo.Database) error {
	exists, err := hasHead(ctx, db)
	if err == nil && !exists {
		err = checkEmpty(ctx, db)
	}
	if err == nil {
		err = checkIndexes(ctx, db)
	}
	if err != nil {
		return fmt.Errorf("the documents for queries in the database %s: %w", db.Name(), err)
	}
	return nil
}

func hasHead(ctx context.Context, db *mongo.Database) (bool, error) {
	raw, err := db.Collection(Positions).FindOne(ctx, byHead()).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the collection %s: %w", Positions, err)
	}
	var h head
	switch err := bson.Unmarshal(raw, &h); {
	case err != nil || h.Kind != headKind:
		return false, &mongojournal.ConfigError{What: fmt.Sprintf("the collection %s has a document of somebody else at _id %q", Positions, headID), Want: elsewhere}
	case h.Version != Version:
		return false, &mongojournal.ConfigError{What: fmt.Sprintf("they have version %d, and this program has version %d", h.Version, Version), Want: "a hub of that version writes them"}
	}
	return true, nil
}

// elsewhere is what to do about documents of somebody else.
const elsewhere = "move them, give the journal a database of its own, or switch the projections off (project: off)"

// notOurs finds what no hub has written: its documents have an epoch, also where somebody has dropped the head.
var notOurs = bson.D{{Key: "epoch", Value: bson.D{{Key: "$exists", Value: false}}}, {Key: "_id", Value: bson.D{{Key: "$ne", Value: askedID}}}}

// checkEmpty refuses documents of somebody else where there is no head.
func checkEmpty(ctx context.Context, db *mongo.Database) error {
	for _, name := range []string{Positions, Events, Cursors} {
		other, err := db.Collection(name).FindOne(ctx, notOurs, options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
		switch {
		case errors.Is(err, mongo.ErrNoDocuments):
		case err != nil:
			return fmt.Errorf("read the collection %s: %w", name, err)
		default:
			if exists, err := hasHead(ctx, db); exists || err != nil { // a hub came in between
				return err
			}
			return &mongojournal.ConfigError{What: fmt.Sprintf("the collection %s has documents of somebody else, as %s", name, other), Want: elsewhere}
		}
	}
	return nil
}

const offsetIndex = "topic_1_offset_1"

// checkIndexes refuses indexes that refuse documents or remove them.
func checkIndexes(ctx context.Context, db *mongo.Database) error {
	for _, name := range []string{Positions, Events, Cursors} {
		all, err := db.Collection(name).Indexes().ListSpecifications(ctx)
		var command mongo.CommandError
		if errors.As(err, &command) && command.HasErrorCode(codeNamespaceNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("ask for the indexes of %s: %w", name, err)
		}
		for _, i := range all {
			if i.Name != "_id_" && i.Name != offsetIndex && (i.Unique != nil && *i.Unique || i.ExpireAfterSeconds != nil) {
				return &mongojournal.ConfigError{What: fmt.Sprintf("the collection %s has the index %s, which is unique or removes documents", name, i.Name),
					Want: "the projections need one without: an id is not unique over topics, and events go at the horizon of their topic"}
			}
		}
	}
	return nil
}

const codeNamespaceNotFound = 26

// index is one that the projections have.
type index struct {
	name   string
	keys   bson.D
	unique bool
}

var eventIndexes = []index{
	{name: offsetIndex, keys: bson.D{{Key: "topic", Value: 1}, {Key: "offset", Value: 1}}, unique: true},
	{name: "topic_1_ts_1_id_1", keys: bson.D{{Key: "topic", Value: 1}, {Key: "ts", Value: 1}, {Key: "id", Value: 1}}},
	{name: "topic_1_key_1_ts_-1", keys: bson.D{{Key: "topic", Value: 1}, {Key: "key", Value: 1}, {Key: "ts", Value: -1}}},
	{name: "id_1", keys: bson.D{{Key: "id", Value: 1}}},
	{name: "headers.correlationId_1", keys: bson.D{{Key: "headers.correlationId", Value: 1}}},
}

// makeIndexes makes those that are missing: FerretDB closes the connection where one is there.
func makeIndexes(ctx context.Context, c *mongo.Collection, all []index) error {
	there, err := c.Indexes().ListSpecifications(ctx)
	var command mongo.CommandError
	if err != nil && !(errors.As(err, &command) && command.HasErrorCode(codeNamespaceNotFound)) {
		return fmt.Errorf("ask for the indexes of %s: %w", c.Name(), err)
	}
	for _, i := range all {
		if slices.ContainsFunc(there, func(s mongo.IndexSpecification) bool { return s.Name == i.name }) {
			continue
		}
		o := options.Index().SetName(i.name)
		if i.unique {
			o.SetUnique(true)
		}
		if _, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: i.keys, Options: o}); err != nil {
			return fmt.Errorf("make the index %s of %s: %w", i.name, c.Name(), err)
		}
	}
	return nil
}

// ensure makes the indexes, and the head where there is none.
func (p *Projection) ensure(ctx context.Context) error {
	if p.indexed {
		return nil
	}
	if err := Check(ctx, p.db); err != nil {
		return err
	}
	h := bson.D{{Key: "_id", Value: headID}, {Key: "kind", Value: headKind}, {Key: "version", Value: Version}, {Key: "epoch", Value: p.epoch}}
	exists, err := hasHead(ctx, p.db)
	if err == nil && !exists { // what there may be nobody has counted: somebody has dropped the head
		err = p.removeAll(ctx)
	}
	if err != nil {
		return err
	}
	if _, err := p.positions.InsertOne(ctx, h); err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("make the collection %s: %w", Positions, err)
	}
	if err := makeIndexes(ctx, p.events, eventIndexes); err != nil {
		return err
	}
	if err := makeIndexes(ctx, p.cursors, []index{{name: "topic_1", keys: bson.D{{Key: "topic", Value: 1}}}}); err != nil {
		return err
	}
	p.indexed = true
	return nil
}

// begin takes the projections for this hub, and has all topics looked at.
func (p *Projection) begin(ctx context.Context) error {
	if err := p.ensure(ctx); err != nil {
		return err
	}
	if err := p.writeHead(ctx, bson.D{}); err != nil {
		return err
	}
	asked, err := askedOf(ctx, p.db)
	if err == nil && (p.lost || asked != p.head.Reset) {
		err = p.reset(ctx, asked)
	}
	if err != nil {
		return err
	}
	p.lost = false
	if err := p.load(ctx); err != nil {
		return err
	}
	if err := p.findErased(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	p.done = p.head.Place
	for name := range p.topics {
		p.add(name, nil) // perhaps it is gone
	}
	p.mu.Unlock()
	for info, err := range store.AllTopics(ctx, topicsOf{p.source}, "") {
		if err != nil {
			return fmt.Errorf("list the topics: %w", err)
		}
		p.mu.Lock()
		p.add(info.Name, nil)
		p.mu.Unlock()
	}
	return nil
}

// topicsOf has of store.Topics what store.AllTopics asks for.
type topicsOf struct{ Source }

func (topicsOf) ListSettings(context.Context) ([]store.SettingInfo, error) {
	return nil, store.ErrUnsupported
}
func (topicsOf) DeleteTopic(context.Context, string) error { return store.ErrUnsupported }

// writeHead writes fields of the head, and reads it.
func (p *Projection) writeHead(ctx context.Context, fields bson.D) error {
	fields = append(fields, bson.E{Key: "epoch", Value: p.epoch})
	var h head
	err := p.positions.FindOneAndUpdate(ctx, p.mine(byHead()), set(fields), options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&h)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		if exists, err := hasHead(ctx, p.db); err != nil || exists {
			return errors.Join(errFenced, err)
		}
		p.indexed = false // somebody has dropped the collections
		return errors.New("the collections of the projections are gone; they are made anew")
	case err != nil:
		return fmt.Errorf("write the head of the projections: %w", err)
	}
	p.head = h
	return nil
}

// load reads the positions and the cursors that are written.
func (p *Projection) load(ctx context.Context) error {
	p.topics, p.batch = make(map[string]*topic), batch{}
	found, err := p.positions.Find(ctx, topicsOnly)
	if err != nil {
		return fmt.Errorf("read the positions: %w", err)
	}
	defer found.Close(ctx)
	for found.Next(ctx) {
		var at position
		if err := found.Decode(&at); err != nil {
			return fmt.Errorf("read a position, %s: %w", found.Current, err)
		}
		p.topics[at.Topic] = newTopic(at)
	}
	if err := found.Err(); err != nil {
		return fmt.Errorf("read the positions: %w", err)
	}
	return p.loadCursors(ctx)
}

// findErased has those topics compared of which events were erased lately: the mark of an erasure is in
// the log, and this hub does not know what the one before had done about it. Where the log does not reach back
// far enough, all are compared.
func (p *Projection) findErased(ctx context.Context) error {
	if p.head.At.IsZero() {
		return nil // nothing was ever projected
	}
	since := p.head.At.Add(-marksBack).UnixMilli()
	from, err := p.source.SeekTime(ctx, admin.AuditTopic, since)
	if err != nil {
		return fmt.Errorf("look for erasures: %w", err)
	}
	var page store.Batch
	for first := true; ; first = false {
		page.Reset()
		if err := p.source.Read(ctx, admin.AuditTopic, from, readEvents, readBytes, &page); err != nil {
			return fmt.Errorf("look for erasures: %w", err)
		}
		if first && page.Horizon > 1 && from <= page.Horizon {
			p.verifyAll()
			return nil
		}
		if len(page.Items) == 0 {
			return nil
		}
		for _, item := range page.Items {
			from = item.Offset + 1
			var mark struct {
				Payload admin.EraseMark `json:"payload"`
			}
			if json.Unmarshal(item.Record, &mark) == nil && mark.Payload.Action == "erase" {
				p.verify(mark.Payload.Topic)
			}
		}
	}
}

// marksBack is how far before the last pass marks of erasures count: one mark may come long before the last
// events of its erasure.
const marksBack = time.Hour

// finish writes that all up to a place is projected, and begins anew where somebody has asked for that.
func (p *Projection) finish(ctx context.Context, place uint64) error {
	if p.head.Place == place && p.head.Reset == p.head.Done && !p.head.At.IsZero() {
		var h head
		if err := p.positions.FindOne(ctx, byHead()).Decode(&h); err != nil {
			return fmt.Errorf("read the head of the projections: %w", err)
		}
		if h.Epoch > p.epoch {
			return errFenced
		}
	} else {
		fields := bson.D{{Key: "place", Value: place}, {Key: "at", Value: time.Now()}}
		if p.head.Reset != p.head.Done {
			fields = append(fields, bson.E{Key: "done", Value: p.head.Reset}, bson.E{Key: "wrote", Value: p.head.Wrote})
		}
		if err := p.writeHead(ctx, fields); err != nil {
			return err
		}
	}
	return p.lookForWish(ctx)
}

// lookForWish returns errAsked where somebody has asked for a rebuild that is not begun.
func (p *Projection) lookForWish(ctx context.Context) error {
	asked, err := askedOf(ctx, p.db)
	if err == nil && asked != p.head.Reset {
		err = errAsked
	}
	p.looked = time.Now()
	return err
}

// askedOf returns the id of the last wish to have all made anew, nothing where there was none.
func askedOf(ctx context.Context, db *mongo.Database) (string, error) {
	raw, err := db.Collection(Positions).FindOne(ctx, byID(askedID)).Raw()
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return "", fmt.Errorf("look for a wish for a rebuild: %w", err)
	}
	asked, _ := raw.Lookup("asked").StringValueOK()
	return asked, nil
}

// errAsked: all is to be made anew.
var errAsked = errors.New("the projections are made anew, as somebody has asked for")
