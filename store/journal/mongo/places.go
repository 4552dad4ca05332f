package mongojournal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store/journal"
)

// key is the _id of a place; the highest one is the end of all.
func key(at uint64) string { return fmt.Sprintf("%020d", at) }

const digits = 20

var lastKey = strings.Repeat("9", digits)

func byID(id string) bson.D { return bson.D{{Key: "_id", Value: id}} }

// document is an entry as it is inserted.
type document struct {
	ID    string `bson:"_id"`
	Epoch int64  `bson:"epoch,omitempty"` // of an entry of a hub
	Bytes int64  `bson:"bytes"`           // of all entries up to this one
	Data  []byte `bson:"data"`
}

// dataOf returns the entry in a document. What is none is returned as it is: it is no entry of a hub either.
func dataOf(raw bson.Raw) []byte {
	if _, data, ok := raw.Lookup("data").BinaryOK(); ok {
		return slices.Clone(data)
	}
	return slices.Clone(raw)
}

func bytesOf(raw bson.Raw) int64 {
	n, _ := raw.Lookup("bytes").AsInt64OK()
	return n
}

// get returns the document at a place, nil where there is none, with the fields that are asked
// for, or all.
func (j *Journal) get(ctx context.Context, at uint64, fields ...string) (bson.Raw, error) {
	o := options.FindOne()
	if len(fields) > 0 {
		projection := bson.D{}
		for _, name := range fields {
			projection = append(projection, bson.E{Key: name, Value: 1})
		}
		o.SetProjection(projection)
	}
	raw, err := j.entries.FindOne(ctx, byID(key(at)), o).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return raw, err
}

// taken reports whether a place has a document.
func (j *Journal) taken(ctx context.Context, at uint64) (bool, error) {
	raw, err := j.get(ctx, at, "_id")
	return raw != nil, err
}

func (j *Journal) entryBytes() int {
	if j.single {
		return mostSingle
	}
	return mostEntry
}

// Append implements journal.Journal.
func (j *Journal) Append(ctx context.Context, after uint64, entry []byte) error {
	if most := j.entryBytes(); len(entry) > most && j.closed.Err() == nil {
		return fmt.Errorf("an entry of %d bytes, and %d are allowed: %w", len(entry), most, journal.ErrTooLarge)
	}
	ctx, done := j.call(ctx)
	defer done()
	return j.failed(fmt.Sprintf("append after %d", after), j.append(ctx, after, entry))
}

func (j *Journal) append(ctx context.Context, after uint64, entry []byte) error {
	d := document{ID: key(after + 1), Data: entry, Bytes: int64(len(entry))}
	if after > 0 {
		before, err := j.get(ctx, after, "bytes")
		switch {
		case err != nil:
			return fmt.Errorf("read the place before: %w", err)
		case before == nil:
			return fmt.Errorf("%w: there is nothing at %d", journal.ErrConflict, after)
		}
		d.Bytes += bytesOf(before)
	}
	if h, _, err := journal.ParseEntry(entry); err == nil {
		d.Epoch = int64(h.Epoch)
	}
	if _, err := j.entries.InsertOne(ctx, d); err != nil {
		return refusal(err)
	}
	// Whoever removed this place before the insert has said so before.
	t, err := j.trimmed(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("it is inserted, and may be at a place that was trimmed: %w", err)
	case after+1 <= t.upTo:
		return fmt.Errorf("%w: it was trimmed up to %d", journal.ErrConflict, t.upTo)
	}
	return nil
}

// refusal adds what a definite refusal means; any other error says nothing about the outcome.
func refusal(err error) error {
	var server mongo.ServerError
	switch {
	case mongo.IsDuplicateKeyError(err):
		return fmt.Errorf("%w: %w", journal.ErrConflict, err)
	case !errors.As(err, &server):
		return err
	case server.HasErrorCode(codeTooLarge):
		return fmt.Errorf("%w: %w", journal.ErrTooLarge, err)
	case server.HasErrorCode(codeOutOfDisk), server.HasErrorCodeWithMessage(codeAtlas, "over your space quota"):
		return fmt.Errorf("%w: %w", journal.ErrFull, err)
	}
	return err
}

// Read implements journal.Journal.
func (j *Journal) Read(ctx context.Context, at uint64) ([]byte, error) {
	ctx, done := j.call(ctx)
	defer done()
	entry, err := j.read(ctx, at)
	return entry, j.failed(fmt.Sprintf("read place %d", at), err)
}

func (j *Journal) read(ctx context.Context, at uint64) ([]byte, error) {
	if at == 0 {
		return nil, journal.ErrTrimmed
	}
	raw, err := j.get(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := j.isKept(ctx, at); err != nil {
		return nil, err
	}
	if raw != nil {
		return dataOf(raw), nil
	}
	switch more, err := j.taken(ctx, at+1); {
	case err != nil:
		return nil, err
	case !more:
		return nil, journal.ErrAbsent
	}
	return j.hole(ctx, at)
}

// isKept returns ErrTrimmed where a place is trimmed. It is asked after the place was read, not before:
// what is below the mark may be of an append that came after the trim.
func (j *Journal) isKept(ctx context.Context, at uint64) error {
	t, err := j.trimmed(ctx)
	if err == nil && at <= t.upTo {
		err = journal.ErrTrimmed
	}
	return err
}

// hole reads a place again after which there was an entry: that it is empty now says that the journal
// has lost what was there.
func (j *Journal) hole(ctx context.Context, at uint64) ([]byte, error) {
	raw, err := j.get(ctx, at)
	if err != nil {
		return nil, err
	}
	switch err := j.isKept(ctx, at); {
	case err != nil:
		return nil, err
	case raw == nil:
		return nil, fmt.Errorf("%w: there are entries after %d, and none at it", journal.ErrDiverged, at)
	}
	return dataOf(raw), nil
}

// Last implements journal.Journal.
func (j *Journal) Last(ctx context.Context) (uint64, error) {
	ctx, done := j.call(ctx)
	defer done()
	last, err := j.last(ctx)
	return last, j.failed("ask for the end", err)
}

func (j *Journal) last(ctx context.Context) (uint64, error) {
	if j.single {
		return j.lastBySingles(ctx)
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: key(0)}, {Key: "$lte", Value: lastKey}}}}
	o := options.FindOne().SetSort(bson.D{{Key: "_id", Value: -1}}).SetProjection(bson.D{{Key: "_id", Value: 1}})
	raw, err := j.entries.FindOne(ctx, filter, o).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) { // not even the mark
		return 0, fmt.Errorf("%w: the collection %s is empty", journal.ErrDiverged, Entries)
	}
	if err != nil {
		return 0, err
	}
	id, _ := raw.Lookup("_id").StringValueOK()
	at, err := strconv.ParseUint(id, 10, 64)
	if err != nil || len(id) != digits {
		return 0, fmt.Errorf("%w: a document of %s has the _id %q", journal.ErrForeign, Entries, id)
	}
	return at, nil
}

// lastBySingles looks for the end from a place that is known to be taken, in steps that double, and then
// between the last two.
func (j *Journal) lastBySingles(ctx context.Context) (uint64, error) {
	for {
		t, err := j.trimmed(ctx)
		if err != nil {
			return 0, err
		}
		low, err := j.start(ctx, t.upTo)
		if err != nil {
			return 0, err
		}
		high, step := uint64(0), uint64(1) // high is empty
		for high == 0 || high-low > 1 {
			middle := low + step
			if high > 0 {
				middle = low + (high-low)/2
			}
			is, err := j.taken(ctx, middle)
			switch {
			case err != nil:
				return 0, err
			case is:
				low, step = middle, step*2
			default:
				high = middle
			}
		}
		// Whatever was trimmed meanwhile looked empty.
		if t, err = j.trimmed(ctx); err != nil {
			return 0, err
		}
		if low == 0 {
			empty, err := j.isEmpty(ctx)
			if err != nil {
				return 0, err
			}
			if !empty {
				continue
			}
		}
		if high > t.upTo {
			j.know(low)
			return low, nil
		}
	}
}

// isEmpty looks whether there are entries where none was found at the first place: false where they have come since. Those of
// which the marks of trims are lost are not taken for none, for a hub would begin the journal anew before them.
func (j *Journal) isEmpty(ctx context.Context) (bool, error) {
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: key(0)}, {Key: "$lte", Value: lastKey}}}}
	raw, err := j.entries.FindOne(ctx, filter, options.FindOne().SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if id, _ := raw.Lookup("_id").StringValueOK(); id == key(1) {
		return false, nil
	}
	t, err := j.trimmed(ctx)
	if err == nil && t.upTo == 0 {
		err = fmt.Errorf("%w: its first entry is %s, and %s does not say that those before were trimmed", journal.ErrDiverged, raw, Trims)
	}
	return false, err
}

// start returns a place that is taken, or how far the journal is trimmed.
func (j *Journal) start(ctx context.Context, trimmed uint64) (uint64, error) {
	j.mu.Lock()
	known := j.known
	j.mu.Unlock()
	if known <= trimmed {
		return trimmed, nil
	}
	is, err := j.taken(ctx, known)
	if !is { // trimmed meanwhile, or lost
		return trimmed, err
	}
	return known, nil
}

func (j *Journal) know(at uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.known = at
}

// Limits implements journal.Journal.
func (j *Journal) Limits(ctx context.Context) (journal.Limits, error) {
	ctx, done := j.call(ctx)
	defer done()
	l := journal.Limits{EntryBytes: j.entryBytes(), Durability: journal.DurabilitySync}
	if j.single {
		l.Durability = journal.DurabilityReplicated // what its storage does is not known
	}
	used, err := j.used(ctx)
	if err != nil {
		return journal.Limits{}, j.failed("ask for the size", err)
	}
	t, err := j.trimmed(ctx)
	if err != nil {
		return journal.Limits{}, j.failed("ask for the first place", err)
	}
	l.Used, l.First = used, t.upTo+1
	return l, nil
}

// used returns the bytes of the entries that are there.
func (j *Journal) used(ctx context.Context) (uint64, error) {
	last, err := j.last(ctx)
	if err != nil || last == 0 {
		return 0, err
	}
	t, err := j.trimmed(ctx)
	if err != nil {
		return 0, err
	}
	raw, err := j.get(ctx, last, "bytes")
	return uint64(max(bytesOf(raw)-t.bytes, 0)), err
}
