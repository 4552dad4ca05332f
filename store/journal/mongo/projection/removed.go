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

func lessThan(offset uint64) bson.D { return bson.D{{Key: "$lt", Value: offset}} }

// clear removes what there is of lives of a topic.
func (p *Projection) clear(ctx context.Context, t *topic, lives bson.D) error {
	if err := p.flush(ctx); err != nil {
		return err
	}
	of := bson.D{{Key: "topic", Value: t.at.Topic}, {Key: "life", Value: lives}}
	collections := []*mongo.Collection{p.events, p.cursors}
	if t.at.State {
		collections = append(collections, p.state(t))
	}
	for _, c := range collections {
		if _, err := c.DeleteMany(ctx, p.mine(of)); err != nil {
			return fmt.Errorf("remove from %s: %w", c.Name(), err)
		}
	}
	clear(t.cursors)
	return nil
}

// trim removes what is below the horizon.
func (p *Projection) trim(ctx context.Context, t *topic, horizon uint64) error {
	if err := p.flush(ctx); err != nil {
		return err
	}
	if t.at.Through > 0 {
		if _, err := p.events.DeleteMany(ctx, bson.D{{Key: "topic", Value: t.at.Topic}, {Key: "offset", Value: lessThan(horizon)}}); err != nil {
			return err
		}
		if t.at.State {
			if _, err := p.state(t).DeleteMany(ctx, bson.D{{Key: "offset", Value: lessThan(horizon)}}); err != nil {
				return err
			}
		}
	}
	t.at.Horizon, t.at.Through = horizon, max(t.at.Through, horizon-1)
	p.batch.touch(t)
	return nil
}

// remove removes what compaction may remove, and what was erased.
func (p *Projection) remove(ctx context.Context, t *topic, info *store.TopicInfo, why *hint) error {
	compacts := t.at.Compacted < info.Compacted || t.at.Tombstones < info.Tombstones
	if !compacts && len(why.erased) == 0 && !why.verify {
		return nil
	}
	if err := p.flush(ctx); err != nil {
		return err
	}
	if compacts {
		if err := p.compact(ctx, t, info); err != nil {
			return fmt.Errorf("compact: %w", err)
		}
		t.at.Compacted, t.at.Tombstones = max(t.at.Compacted, info.Compacted), max(t.at.Tombstones, info.Tombstones)
		p.batch.touch(t)
	}
	for low := 0; low < len(why.erased); low += mostNamed {
		if err := p.erase(ctx, t, why.erased[low:min(low+mostNamed, len(why.erased))]); err != nil {
			return fmt.Errorf("erase: %w", err)
		}
	}
	if why.verify {
		if err := p.compare(ctx, t); err != nil {
			return fmt.Errorf("compare with the log: %w", err)
		}
	}
	return nil
}

// mostNamed is how many documents one command names.
const mostNamed = 500

// compact removes the events of keys that have a newer one up to the mark, and ends of keys. A key that has one
// after the mark before is in the log: its newest event up to the mark is not removed there, or it is an end, which is
// still here.
func (p *Projection) compact(ctx context.Context, t *topic, info *store.TopicInfo) error {
	var page store.Batch
	for from := t.at.Compacted + 1; from <= info.Compacted; {
		page.Reset()
		if err := p.source.Read(ctx, t.at.Topic, from, readEvents, readBytes, &page); err != nil {
			return err
		}
		newest := make(map[string]uint64)
		for _, item := range page.Items {
			if from = item.Offset + 1; item.Offset <= info.Compacted && len(item.Record.Key()) > 0 {
				newest[p.key(item.Record.Key())] = item.Offset
			}
		}
		if len(page.Items) == 0 {
			break
		}
		models := make([]mongo.WriteModel, 0, len(newest))
		for key, offset := range newest {
			models = append(models, p.olderOf(t, key, offset))
		}
		if err := p.write(ctx, p.events, models); err != nil {
			return err
		}
	}
	return p.removeEnds(ctx, t, info.Tombstones)
}

func (p *Projection) olderOf(t *topic, key string, than uint64) mongo.WriteModel {
	return mongo.NewDeleteManyModel().SetFilter(bson.D{{Key: "topic", Value: t.at.Topic}, {Key: "key", Value: key}, {Key: "offset", Value: lessThan(than)}})
}

// removeEnds removes the ends of keys up to the mark, with what is before them.
func (p *Projection) removeEnds(ctx context.Context, t *topic, upTo uint64) error {
	if upTo <= t.at.Tombstones {
		return nil
	}
	filter := bson.D{
		{Key: "topic", Value: t.at.Topic},
		{Key: "offset", Value: bson.D{{Key: "$gt", Value: t.at.Tombstones}, {Key: "$lte", Value: upTo}}},
		{Key: "payload", Value: bson.D{{Key: "$type", Value: "null"}}},
		{Key: "key", Value: bson.D{{Key: "$exists", Value: true}}},
	}
	var ends []placed
	if err := p.find(ctx, filter, &ends); err != nil {
		return err
	}
	models := make([]mongo.WriteModel, 0, len(ends))
	for _, e := range ends {
		models = append(models, p.olderOf(t, e.Key, e.Offset+1))
	}
	return p.write(ctx, p.events, models)
}

// placed is where a document is.
type placed struct {
	Offset uint64 `bson:"offset"`
	Key    string `bson:"key"`
}

var placedFields = bson.D{{Key: "_id", Value: 0}, {Key: "offset", Value: 1}, {Key: "key", Value: 1}}

func (p *Projection) find(ctx context.Context, filter bson.D, into *[]placed) error {
	found, err := p.events.Find(ctx, filter, options.Find().SetProjection(placedFields))
	if err != nil {
		return err
	}
	return found.All(ctx, into)
}

// erase removes events. Where the topic is compacted, the event may have been the newest of its key, for which older
// ones were removed from the log: these go too.
func (p *Projection) erase(ctx context.Context, t *topic, offsets []uint64) error {
	filter := bson.D{{Key: "topic", Value: t.at.Topic}, {Key: "offset", Value: bson.D{{Key: "$in", Value: offsets}}}}
	compacted := t.at.Compacted > 0
	var all []placed
	if t.at.State || compacted {
		if err := p.find(ctx, filter, &all); err != nil {
			return err
		}
	}
	if _, err := p.events.DeleteMany(ctx, filter); err != nil {
		return err
	}
	if compacted && len(all) < len(offsets) { // of one that never came here nothing is known
		if err := p.compare(ctx, t); err != nil {
			return err
		}
	}
	keys := make(map[string]bool)
	for _, e := range all {
		if e.Key != "" {
			keys[e.Key] = true
		}
	}
	for key := range keys {
		if compacted {
			if err := p.compareKey(ctx, t, key); err != nil {
				return err
			}
		}
		if t.at.State {
			if err := p.renewKey(ctx, t, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareKey removes the documents of a key whose events the log does not show.
func (p *Projection) compareKey(ctx context.Context, t *topic, key string) error {
	var all []placed
	of := bson.D{{Key: "topic", Value: t.at.Topic}, {Key: "key", Value: key}}
	if err := p.find(ctx, of, &all); err != nil {
		return err
	}
	var wrong []uint64
	var page store.Batch
	for _, e := range all {
		page.Reset()
		if err := p.source.Read(ctx, t.at.Topic, e.Offset, 1, 1, &page); err != nil {
			return err
		}
		if len(page.Items) == 0 || page.Items[0].Offset != e.Offset {
			wrong = append(wrong, e.Offset)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	_, err := p.events.DeleteMany(ctx, append(of, bson.E{Key: "offset", Value: bson.D{{Key: "$in", Value: wrong}}}))
	return err
}

// compare removes the documents of events that the log does not show.
func (p *Projection) compare(ctx context.Context, t *topic) error {
	o := options.Find().SetProjection(placedFields).SetSort(bson.D{{Key: "offset", Value: 1}})
	found, err := p.events.Find(ctx, bson.D{{Key: "topic", Value: t.at.Topic}}, o)
	if err != nil {
		return err
	}
	defer found.Close(ctx)
	var page store.Batch
	var wrong []uint64
	next := 0 // in page
	for from := uint64(1); found.Next(ctx); {
		var d placed
		if err := found.Decode(&d); err != nil {
			return err
		}
		for {
			for next < len(page.Items) && page.Items[next].Offset < d.Offset {
				next++
			}
			if next < len(page.Items) || from > d.Offset {
				break
			}
			page.Reset()
			next = 0
			if err := p.source.Read(ctx, t.at.Topic, max(from, d.Offset), readEvents, readBytes, &page); err != nil {
				return err
			}
			if from = d.Offset + 1; len(page.Items) > 0 {
				from = page.Items[len(page.Items)-1].Offset + 1
			}
		}
		if next == len(page.Items) || page.Items[next].Offset != d.Offset {
			wrong = append(wrong, d.Offset)
		}
	}
	if err := found.Err(); err != nil {
		return err
	}
	for low := 0; low < len(wrong); low += mostNamed {
		if err := p.erase(ctx, t, wrong[low:min(low+mostNamed, len(wrong))]); err != nil {
			return err
		}
	}
	return nil
}

// state is the collection of the current state of a topic.
func (p *Projection) state(t *topic) *mongo.Collection {
	return p.db.Collection(StatePrefix + t.at.Topic)
}

// asks reports whether the current state of a topic is asked for, and can have a collection.
func (p *Projection) asks(name string) bool {
	for _, pattern := range p.opts.State {
		if pattern.Match(name) {
			return p.fits(name)
		}
	}
	return false
}

const (
	// mostNamespace is how many bytes database, dot and collection have at most, and mostFerret the collection over FerretDB.
	mostNamespace = 255
	mostFerret    = 235
)

// fits reports whether the state of a topic can have a collection, and warns once where not.
func (p *Projection) fits(name string) bool {
	n := len(StatePrefix) + len(name)
	if len(p.db.Name())+1+n <= mostNamespace && (!p.opts.Ferret || n <= mostFerret) {
		return true
	}
	if !p.long[name] {
		if p.long == nil {
			p.long = make(map[string]bool)
		}
		p.long[name] = true
		p.opts.Logger.Warn("the state of a topic is not kept: its name is too long for a collection", "topic", name)
	}
	return false
}

// prepareState fills the collection of the state of a topic that was projected before it was asked for, and drops one
// that is asked for no more.
func (p *Projection) prepareState(ctx context.Context, t *topic) error {
	asks := p.asks(t.at.Topic)
	switch {
	case asks == t.at.State:
		return nil
	case !asks:
		if err := p.state(t).Drop(ctx); err != nil {
			return fmt.Errorf("drop the collection of the state: %w", err)
		}
	default:
		if err := p.fillState(ctx, t); err != nil {
			return fmt.Errorf("make the collection of the state: %w", err)
		}
	}
	t.at.State = asks
	p.batch.touch(t)
	return nil
}

// fillState fills the collection of the state of a topic. What a hub has left there of which no position says so goes before.
func (p *Projection) fillState(ctx context.Context, t *topic) error {
	other, err := p.state(t).FindOne(ctx, notOurs, options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Raw()
	switch {
	case err == nil:
		return fmt.Errorf("the collection %s has documents of somebody else, as %s: move them", p.state(t).Name(), other)
	case !errors.Is(err, mongo.ErrNoDocuments):
		return err
	}
	if _, err := p.state(t).DeleteMany(ctx, p.mine(bson.D{})); err != nil {
		return err
	}
	var page store.Batch
	for from := max(t.at.Horizon, 1); from <= t.at.Through; {
		page.Reset()
		if err := p.source.Read(ctx, t.at.Topic, from, readEvents, readBytes, &page); err != nil {
			return err
		}
		if len(page.Items) == 0 {
			return nil
		}
		for _, item := range page.Items {
			if from = item.Offset + 1; item.Offset > t.at.Through {
				return nil
			}
			d, err := p.encode(t.at.Topic, item, t.at.Life)
			if err != nil {
				return err
			}
			p.batch.setState(t, d)
		}
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// renewKey makes the state of a key, of which events were removed, what the others say.
func (p *Projection) renewKey(ctx context.Context, t *topic, key string) error {
	of := bson.D{{Key: "topic", Value: t.at.Topic}, {Key: "key", Value: key}}
	raw, err := p.events.FindOne(ctx, of, options.FindOne().SetSort(bson.D{{Key: "offset", Value: -1}})).Raw()
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return err
	}
	return p.write(ctx, p.state(t), []mongo.WriteModel{p.stateModel(key, raw)})
}

// stateModel has the state of a key be the document of an event; nil, or the end of a key, removes it.
func (p *Projection) stateModel(key string, raw bson.Raw) mongo.WriteModel {
	if raw == nil || raw.Lookup("payload").Type == bson.TypeNull {
		return mongo.NewDeleteOneModel().SetFilter(p.mine(byID(key)))
	}
	d := bson.D{{Key: "_id", Value: key}}
	elements, _ := raw.Elements()
	for _, e := range elements {
		if name := e.Key(); name != "_id" && name != "epoch" {
			d = append(d, bson.E{Key: name, Value: e.Value()})
		}
	}
	d = append(d, bson.E{Key: "epoch", Value: p.epoch})
	return mongo.NewReplaceOneModel().SetFilter(p.mine(byID(key))).SetReplacement(d).SetUpsert(true)
}
