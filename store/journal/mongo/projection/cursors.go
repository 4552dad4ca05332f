package projection

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store"
)

// cursor is a change of one.
type cursor struct {
	topic  *topic
	group  string
	gone   bool
	offset uint64
	last   eventAt // the newest event up to offset, where it is known
	found  bool
}

// eventAt is which event a cursor is at.
type eventAt struct {
	ID string `bson:"id"`
	TS int64  `bson:"ts"`
}

// loadCursors reads the cursors that are written.
func (p *Projection) loadCursors(ctx context.Context) error {
	found, err := p.cursors.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "topic", Value: 1}, {Key: "group", Value: 1}, {Key: "offset", Value: 1}}))
	if err != nil {
		return fmt.Errorf("read the cursors: %w", err)
	}
	defer found.Close(ctx)
	for found.Next(ctx) {
		var c struct {
			Topic  string `bson:"topic"`
			Group  string `bson:"group"`
			Offset uint64 `bson:"offset"`
		}
		if err := found.Decode(&c); err != nil {
			return fmt.Errorf("read a cursor, %s: %w", found.Current, err)
		}
		t := p.topics[c.Topic]
		if t == nil { // its position was not written
			t = newTopic(position{Topic: c.Topic})
			p.topics[c.Topic] = t
		}
		t.cursors[c.Group] = c.Offset
	}
	if err := found.Err(); err != nil {
		return fmt.Errorf("read the cursors: %w", err)
	}
	return nil
}

// gatherCursors adds the cursors that have moved to the batch.
func (p *Projection) gatherCursors(ctx context.Context, t *topic, groups []store.GroupInfo) error {
	there := make(map[string]bool, len(groups))
	for _, g := range groups {
		there[g.Group] = true
		if at, ok := t.cursors[g.Group]; ok && at == g.State.Cursor {
			continue
		}
		c := &cursor{topic: t, group: g.Group, offset: g.State.Cursor}
		if err := p.findLast(ctx, c); err != nil {
			return err
		}
		p.batch.cursors = append(p.batch.cursors, c)
	}
	for group := range t.cursors {
		if !there[group] {
			p.batch.cursors = append(p.batch.cursors, &cursor{topic: t, group: group, gone: true})
		}
	}
	return nil
}

// findLast looks for the event at the cursor in the log.
func (p *Projection) findLast(ctx context.Context, c *cursor) error {
	if c.offset == 0 {
		c.found = true
		return nil
	}
	var page store.Batch
	if err := p.source.Read(ctx, c.topic.at.Topic, c.offset, 1, 1, &page); err != nil {
		return err
	}
	if len(page.Items) == 0 || page.Items[0].Offset != c.offset {
		return nil
	}
	event, err := page.Items[0].Record.Event(c.offset)
	if err != nil {
		return err
	}
	c.last, c.found = eventAt{event.ID, event.TS}, true
	return nil
}

// findBefore looks in the projection for the event before a cursor at whose offset there is none.
func (p *Projection) findBefore(ctx context.Context, c *cursor) error {
	of := bson.D{{Key: "topic", Value: c.topic.at.Topic}, {Key: "offset", Value: bson.D{{Key: "$lte", Value: c.offset}}}}
	o := options.FindOne().SetSort(bson.D{{Key: "offset", Value: -1}}).SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "id", Value: 1}, {Key: "ts", Value: 1}})
	if err := p.events.FindOne(ctx, of, o).Decode(&c.last); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return err
	}
	return nil
}

// flushCursors writes cursors.
func (p *Projection) flushCursors(ctx context.Context, b *batch) error {
	models := make([]mongo.WriteModel, 0, len(b.cursors))
	for _, c := range b.cursors {
		if !c.gone && !c.found {
			if err := p.findBefore(ctx, c); err != nil {
				return fmt.Errorf("find the event before a cursor: %w", err)
			}
		}
		models = append(models, p.cursorModel(c))
	}
	if err := p.write(ctx, p.cursors, models); err != nil {
		return fmt.Errorf("write the cursors: %w", err)
	}
	for _, c := range b.cursors {
		if c.gone {
			delete(c.topic.cursors, c.group)
		} else {
			c.topic.cursors[c.group] = c.offset
		}
	}
	return nil
}

func (p *Projection) cursorModel(c *cursor) mongo.WriteModel {
	name := c.topic.at.Topic
	id := cursorID(name, c.group)
	if c.gone {
		return mongo.NewDeleteOneModel().SetFilter(p.mine(byID(id)))
	}
	d := bson.D{{Key: "_id", Value: id}, {Key: "topic", Value: name}, {Key: "group", Value: c.group}, {Key: "offset", Value: c.offset}}
	if c.last.ID != "" {
		d = append(d, bson.E{Key: "lastId", Value: c.last.ID}, bson.E{Key: "lastTs", Value: c.last.TS})
	}
	d = append(d, bson.E{Key: "life", Value: c.topic.at.Life}, bson.E{Key: "epoch", Value: p.epoch})
	return mongo.NewReplaceOneModel().SetFilter(p.mine(byID(id))).SetReplacement(d).SetUpsert(true)
}
