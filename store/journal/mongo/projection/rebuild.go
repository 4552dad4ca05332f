package projection

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/store"
)

// ErrNone: no hub has written projections there yet.
var ErrNone = errors.New("the database has no projections")

// State says how far the projections in a database are.
type State struct {
	Place uint64    // of the journal: all up to there is in them
	At    time.Time // when that was found
	Epoch uint64    // of the hub that writes them
	// Asked: a rebuild was asked for that is not done. Begun: everything was removed for it, and Wrote events of Whole
	// are there again.
	Asked, Begun bool
	Wrote, Whole uint64
}

// Look returns how far the projections are, or ErrNone.
func Look(ctx context.Context, db *mongo.Database) (State, error) {
	exists, err := hasHead(ctx, db)
	if err != nil {
		return State{}, err
	}
	if !exists {
		return State{}, fmt.Errorf("%w: %s", ErrNone, db.Name())
	}
	var h head
	if err := db.Collection(Positions).FindOne(ctx, byHead()).Decode(&h); err != nil {
		return State{}, fmt.Errorf("read the head of the projections: %w", err)
	}
	asked, err := askedOf(ctx, db)
	if err != nil {
		return State{}, err
	}
	return State{Place: h.Place, At: h.At, Epoch: h.Epoch, Asked: asked != h.Done, Begun: asked == h.Reset, Wrote: h.Wrote, Whole: h.Whole}, nil
}

// Rebuild asks the hub that leads to remove everything and to write it anew, which it begins to do within
// ten seconds. Look says how far that is.
func Rebuild(ctx context.Context, db *mongo.Database) error {
	if _, err := Look(ctx, db); err != nil {
		return err
	}
	wish := set(bson.D{{Key: "asked", Value: rand.Text()}})
	if _, err := db.Collection(Positions).UpdateOne(ctx, byID(askedID), wish, options.UpdateOne().SetUpsert(true)); err != nil {
		return fmt.Errorf("ask for a rebuild: %w", err)
	}
	return nil
}

// reset removes all that hubs have written up to this one, and notes that.
func (p *Projection) reset(ctx context.Context, asked string) error {
	if err := p.dropStates(ctx); err != nil {
		return err
	}
	if err := p.removeAll(ctx); err != nil {
		return err
	}
	p.indexed = false // somebody may have dropped the collections with them
	if err := p.ensure(ctx); err != nil {
		return err
	}
	var whole uint64
	for info, err := range store.AllTopics(ctx, topicsOf{p.source}, "") {
		if err != nil {
			return fmt.Errorf("list the topics: %w", err)
		}
		whole += max(info.Head+1, info.Horizon) - info.Horizon
	}
	p.opts.Logger.Info("the projections are made anew", "events", whole)
	return p.writeHead(ctx, bson.D{{Key: "reset", Value: asked}, {Key: "wrote", Value: int64(0)}, {Key: "whole", Value: whole}})
}

// removeAll removes all documents that hubs have written up to this one.
func (p *Projection) removeAll(ctx context.Context) error {
	// The positions first: without them nothing counts as being there.
	for _, c := range []*mongo.Collection{p.positions, p.cursors, p.events} {
		if _, err := c.DeleteMany(ctx, p.mine(slices.Clone(topicsOnly))); err != nil {
			return fmt.Errorf("remove everything from %s: %w", c.Name(), err)
		}
	}
	return nil
}

// dropStates drops the collections of states that positions name.
func (p *Projection) dropStates(ctx context.Context) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	for _, t := range p.topics {
		if t.at.State {
			if err := p.state(t).Drop(ctx); err != nil {
				return fmt.Errorf("drop the collection of a state: %w", err)
			}
		}
	}
	return nil
}
