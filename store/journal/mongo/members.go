package mongojournal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store/journal"
)

// forgetMembers is how long a member is known that says nothing.
const forgetMembers = 7 * 24 * time.Hour

// said is a member as it is read: what it says of itself as a document with the fields of the JSON, and when that
// was by the server's clock.
type said struct {
	ID   string    `bson:"_id"`
	Says bson.Raw  `bson:"says"`
	Seen time.Time `bson:"seen"`

	member journal.Member // of Says
}

// membersOf reads the documents of members, with ErrForeign where one is none.
func membersOf(ctx context.Context, cursor *mongo.Cursor) (docs []said, err error) {
	defer cursor.Close(ctx)
	for cursor.Next(ctx) {
		var d said
		err := cursor.Decode(&d)
		var text []byte
		if err == nil {
			text, err = bson.MarshalExtJSON(d.Says, false, false)
		}
		if err == nil {
			err = json.Unmarshal(text, &d.member)
		}
		if err != nil {
			return nil, fmt.Errorf("read the members: %w: a document of %s is %.1000s: %w", journal.ErrForeign, Members, cursor.Current, err)
		}
		docs = append(docs, d)
	}
	if err := cursor.Err(); err != nil {
		return nil, fmt.Errorf("read the members: %w", err)
	}
	return docs, nil
}

// Announce implements journal.Journal. Each member writes its own document only.
func (j *Journal) Announce(ctx context.Context, m journal.Member) ([]journal.Member, error) {
	ctx, done := j.call(ctx)
	defer done()
	all, err := j.said(ctx)
	if err == nil && m.ID != "" {
		err = j.say(ctx, m)
	}
	return all, j.failed("announce a member", err)
}

// Now implements journal.Journal: the clock of the primary, which stamps what members say.
func (j *Journal) Now(ctx context.Context) (time.Time, error) {
	ctx, done := j.call(ctx)
	defer done()
	var h hello
	err := j.client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&h)
	if err == nil && h.LocalTime.IsZero() {
		err = errors.New("the server says none")
	}
	return h.LocalTime, j.failed("ask for the time", err)
}

// say writes what a member says.
func (j *Journal) say(ctx context.Context, m journal.Member) error {
	if strings.ContainsRune(m.ID, 0) {
		return fmt.Errorf("the id of a member is %q, which has a NUL", m.ID)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var says bson.D
	if err := bson.UnmarshalExtJSON(text, false, &says); err != nil {
		return err
	}
	change := bson.D{
		{Key: "$set", Value: bson.D{{Key: "says", Value: says}}},
		{Key: "$currentDate", Value: bson.D{{Key: "seen", Value: true}}},
	}
	_, err = j.members.UpdateOne(ctx, byID(m.ID), change, options.UpdateOne().SetUpsert(true))
	return err
}

// said returns what all members last said, and forgets those that have said nothing for long, counted from
// who spoke last.
func (j *Journal) said(ctx context.Context) ([]journal.Member, error) {
	cursor, err := j.members.Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	docs, err := membersOf(ctx, cursor)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(docs, func(a, b said) int { return strings.Compare(a.ID, b.ID) })
	last := time.Time{}
	for _, d := range docs {
		if d.Seen.After(last) {
			last = d.Seen
		}
	}
	var all []journal.Member
	for _, d := range docs {
		if last.Sub(d.Seen) > forgetMembers {
			if _, err := j.members.DeleteOne(ctx, bson.D{{Key: "_id", Value: d.ID}, {Key: "seen", Value: d.Seen}}); err != nil {
				return nil, err
			}
			continue
		}
		m := d.member
		m.ID, m.Seen = d.ID, d.Seen
		all = append(all, m)
	}
	return all, nil
}
