package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
	"eventhub/store"
)

// position is how far a topic is projected.
type position struct {
	Topic   string `bson:"_id"`
	Epoch   uint64 `bson:"epoch"`
	Life    uint64 `bson:"life"`
	Through uint64 `bson:"through"` // all events up to this offset are there
	Horizon uint64 `bson:"horizon"` // nothing is there below this offset
	// Compacted and Tombstones are the marks up to which events that the compaction may remove are not there.
	Compacted  uint64 `bson:"compacted"`
	Tombstones uint64 `bson:"tombstones"`
	State      bool   `bson:"state"` // its current state is a collection
}

// topic is what is known of a topic's projection.
type topic struct {
	at      position          // as the batch leaves it
	written position          // as the database has it
	claimed bool              // the database has this hub's epoch in it
	cursors map[string]uint64 // by group, as the database has them
}

func newTopic(at position) *topic {
	return &topic{at: at, written: at, cursors: make(map[string]uint64)}
}

// The bounds of what is read of the log at once.
const (
	readEvents = 1000
	readBytes  = 1 << 20
)

// verify has a topic compared with the log, and its dead letters.
func (p *Projection) verify(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range []string{name, eventhub.DeadLetterTopic(name)} {
		p.add(of, nil)
		p.dirty[of].verify = true
	}
}

func (p *Projection) verifyAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.topics {
		p.add(name, nil)
		p.dirty[name].verify = true
	}
}

// project brings a topic up to date.
func (p *Projection) project(ctx context.Context, name string, why *hint) error {
	for {
		again, err := p.once(ctx, name, why)
		if err != nil {
			return fmt.Errorf("project topic %q: %w", name, err)
		}
		if !again {
			return nil
		}
	}
}

// once is project. again: the topic has got another life meanwhile.
func (p *Projection) once(ctx context.Context, name string, why *hint) (again bool, err error) {
	lives, err := p.source.Lives(ctx) // before the topic: a later life is not gone with it
	if err != nil {
		return false, err
	}
	info, err := p.source.Topic(ctx, name)
	t := p.topics[name]
	switch {
	case errors.Is(err, store.ErrNotFound):
		if t == nil {
			return false, nil
		}
		return false, p.gone(ctx, t, lives.Newest)
	case err != nil:
		return false, err
	}
	groups, err := p.source.ListGroups(ctx, name) // before the head of the events: a cursor is at one of these
	if err != nil {
		return false, err
	}
	if now, err := p.source.Topic(ctx, name); err == nil && now.Life == info.Life {
		info.Head = now.Head
	}
	if t == nil {
		if info.Head == 0 && len(groups) == 0 {
			return false, nil
		}
		t = newTopic(position{Topic: name})
		p.topics[name] = t
	}
	if !p.differs(t, &info, groups, why) {
		return false, nil
	}
	if err := p.prepare(ctx, t, &info); err != nil {
		return false, err
	}
	if again, err = p.takeEvents(ctx, t, &info); again || err != nil {
		return again, err
	}
	if err := p.remove(ctx, t, &info, why); err != nil {
		return false, err
	}
	return false, p.gatherCursors(ctx, t, groups)
}

// differs reports whether there may be anything to do.
func (p *Projection) differs(t *topic, info *store.TopicInfo, groups []store.GroupInfo, why *hint) bool {
	if t.at.Life != info.Life || t.at.Through < info.Head || t.at.Horizon < info.Horizon && info.Horizon > 1 ||
		t.at.Compacted < info.Compacted || t.at.Tombstones < info.Tombstones || len(why.erased) > 0 || why.verify || p.asks(t.at.Topic) != t.at.State {
		return true
	}
	return len(groups) != len(t.cursors) || slices.ContainsFunc(groups, func(g store.GroupInfo) bool {
		at, ok := t.cursors[g.Group]
		return !ok || at != g.State.Cursor
	})
}

// prepare makes sure that this hub may write, and removes what is of another life or below the horizon.
func (p *Projection) prepare(ctx context.Context, t *topic, info *store.TopicInfo) error {
	if err := p.claim(ctx, t, info.Life); err != nil {
		return err
	}
	if t.at.Life != info.Life {
		if err := p.clear(ctx, t, bson.D{{Key: "$lt", Value: info.Life}}); err != nil {
			return err
		}
		t.at = position{Topic: info.Name, Epoch: p.epoch, Life: info.Life}
		p.batch.touch(t)
	}
	if t.at.Through > 0 && t.at.Through < info.Tombstones {
		// Ends of keys may be gone that never came here, and what they ended would stay.
		if err := p.clear(ctx, t, bson.D{{Key: "$lte", Value: info.Life}}); err != nil {
			return err
		}
		t.at = position{Topic: info.Name, Epoch: p.epoch, Life: info.Life}
		p.batch.touch(t)
	}
	if t.at.Horizon < info.Horizon && info.Horizon > 1 {
		if err := p.trim(ctx, t, info.Horizon); err != nil {
			return err
		}
	}
	return p.prepareState(ctx, t)
}

// claim writes this hub's epoch into the position, and reads what is there. A document that is beyond
// it is of a batch whose position was not written: it may have been erased since. A topic without a position begins
// with a life.
func (p *Projection) claim(ctx context.Context, t *topic, life uint64) error {
	if t.claimed {
		return nil
	}
	name := t.at.Topic
	var at position
	o := options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.Before)
	err := p.positions.FindOneAndUpdate(ctx, p.mine(byID(name)), set(bson.D{{Key: "epoch", Value: p.epoch}}), o).Decode(&at)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		at.Topic, at.Life = name, life
	case mongo.IsDuplicateKeyError(err):
		return p.occupied(ctx, p.positions, err)
	case err != nil:
		return err
	default:
		beyond := bson.D{{Key: "topic", Value: name}, {Key: "offset", Value: bson.D{{Key: "$gt", Value: at.Through}}}}
		if _, err := p.events.DeleteMany(ctx, p.mine(beyond)); err != nil {
			return err
		}
	}
	at.Epoch = p.epoch
	t.at, t.written, t.claimed = at, at, true
	t.written.Life = 0 // which is written with the first batch
	p.batch.touch(t)
	return nil
}

// takeEvents adds the events that are not there to the batch, up to the head that was read: what comes meanwhile is
// noted, and so of the next pass. Otherwise a topic that gets more than is written would be the only one for ever.
func (p *Projection) takeEvents(ctx context.Context, t *topic, info *store.TopicInfo) (again bool, err error) {
	var page store.Batch
	for t.at.Through < info.Head {
		page.Reset()
		if err := p.source.Read(ctx, info.Name, t.at.Through+1, readEvents, readBytes, &page); err != nil {
			return false, err
		}
		now, err := p.source.Topic(ctx, info.Name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return false, err
		}
		if now.Life != info.Life {
			return true, p.flush(ctx)
		}
		if len(page.Items) == 0 {
			break
		}
		for _, item := range page.Items {
			d, err := p.encode(info.Name, item, info.Life)
			if err != nil {
				return false, fmt.Errorf("offset %d: %w", item.Offset, err)
			}
			t.at.Through = item.Offset
			p.batch.add(t, d)
			if p.isFull() {
				if err := p.flush(ctx); err != nil {
					return false, err
				}
			}
		}
	}
	if t.at.Through < info.Head {
		t.at.Through = info.Head
		p.batch.touch(t)
	}
	return false, nil
}

func byID(id string) bson.D { return bson.D{{Key: "_id", Value: id}} }

// gone removes what there is of a topic that is deleted, up to a life.
func (p *Projection) gone(ctx context.Context, t *topic, newest uint64) error {
	if err := p.claim(ctx, t, newest); err != nil {
		return err
	}
	if err := p.clear(ctx, t, bson.D{{Key: "$lte", Value: newest}}); err != nil {
		return err
	}
	if _, err := p.positions.DeleteOne(ctx, p.mine(byID(t.at.Topic))); err != nil {
		return err
	}
	delete(p.topics, t.at.Topic)
	return nil
}
