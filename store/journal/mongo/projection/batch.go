package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	// mostEvents and mostBytes are what one insert has, about, and mostEventsFerret what it has over FerretDB, which
	// takes them one by one: what is cut off within is inserted again.
	mostEvents       = 1000
	mostEventsFerret = 200
	mostBytes        = 4 << 20
	// mostModels is how many updates or removals one command has, and mostModelsFerret over FerretDB, where
	// each keeps a connection to the storage.
	mostModels       = 500
	mostModelsFerret = 10
	// progressEvery is how often the head says how far a rebuild is.
	progressEvery = time.Second
)

// batch is what is written together: documents, then the states and cursors that these say, then the positions that
// count them.
type batch struct {
	docs    []*document
	bytes   int
	touched map[*topic]bool
	states  map[*topic]map[string]*document // the newest of each key
	cursors []*cursor
	told    time.Time // when the head last said how far a rebuild is
}

func (b *batch) touch(t *topic) {
	if b.touched == nil {
		b.touched = make(map[*topic]bool)
	}
	b.touched[t] = true
}

func (b *batch) add(t *topic, d *document) {
	b.docs = append(b.docs, d)
	b.bytes += len(d.raw)
	b.touch(t)
	if t.at.State {
		b.setState(t, d)
	}
}

func (b *batch) setState(t *topic, d *document) {
	if d.key == "" {
		return
	}
	if b.states == nil {
		b.states = make(map[*topic]map[string]*document)
	}
	if b.states[t] == nil {
		b.states[t] = make(map[string]*document)
	}
	b.states[t][d.key] = d
}

func (p *Projection) isFull() bool {
	most := mostEvents
	if p.opts.Ferret {
		most = mostEventsFerret
	}
	return len(p.batch.docs) >= most || p.batch.bytes >= mostBytes
}

// flush writes the batch.
func (p *Projection) flush(ctx context.Context) error {
	b := &p.batch
	if len(b.touched) == 0 && len(b.states) == 0 && len(b.cursors) == 0 {
		return nil
	}
	if err := p.insert(ctx, b.docs); err != nil {
		return err
	}
	err := p.flushStates(ctx, b)
	if err == nil {
		err = p.flushCursors(ctx, b)
	}
	if err == nil {
		err = p.flushPositions(ctx, b)
	}
	if errors.Is(err, errFenced) {
		return errors.Join(err, p.takeBack(ctx, b.docs))
	}
	if err != nil {
		return err
	}
	n := uint64(len(b.docs))
	p.mu.Lock()
	p.stats.Events += n
	p.mu.Unlock()
	told := b.told
	*b = batch{told: told}
	return p.tell(ctx, n)
}

// tell says in the head how far a rebuild is.
func (p *Projection) tell(ctx context.Context, wrote uint64) error {
	if p.head.Reset == p.head.Done {
		return nil
	}
	all := p.head.Wrote + wrote
	if p.head.Wrote = all; time.Since(p.batch.told) < progressEvery {
		return nil
	}
	p.batch.told = time.Now()
	return p.writeHead(ctx, bson.D{{Key: "wrote", Value: all}})
}

// insert inserts documents; what is there already is of a batch whose position was not written.
func (p *Projection) insert(ctx context.Context, docs []*document) error {
	if len(docs) == 0 {
		return nil
	}
	all := make([]any, len(docs))
	for i, d := range docs {
		all[i] = bson.Raw(d.raw)
	}
	_, err := p.events.InsertMany(ctx, all, options.InsertMany().SetOrdered(false))
	var failed mongo.BulkWriteException
	if err == nil {
		return nil
	}
	if !errors.As(err, &failed) || failed.WriteConcernError != nil {
		return p.insertSingly(ctx, docs, err)
	}
	var there []string
	for _, e := range failed.WriteErrors {
		d := docs[e.Index]
		if mongo.IsDuplicateKeyError(e) {
			there = append(there, d.id)
		} else if err := p.insertPlain(ctx, d, e); err != nil {
			return err
		}
	}
	return p.areThere(ctx, there)
}

// insertSingly inserts documents one by one where the server refuses them together for what one of them is.
func (p *Projection) insertSingly(ctx context.Context, docs []*document, cause error) error {
	var server mongo.ServerError
	if !errors.As(cause, &server) || !server.HasErrorCode(codeBadValue) {
		return fmt.Errorf("insert %d events: %w", len(docs), cause)
	}
	var there []string
	for _, d := range docs {
		_, err := p.events.InsertOne(ctx, bson.Raw(d.raw))
		switch {
		case err == nil:
		case mongo.IsDuplicateKeyError(err):
			there = append(there, d.id)
		default:
			if err := p.insertPlain(ctx, d, err); err != nil {
				return err
			}
		}
	}
	return p.areThere(ctx, there)
}

const codeBadValue = 2

// insertPlain inserts an event as a text that the server refuses as a document.
func (p *Projection) insertPlain(ctx context.Context, d *document, cause error) error {
	var server mongo.ServerError
	if d.plain != nil || !errors.As(cause, &server) && !errors.As(cause, new(mongo.WriteError)) {
		return fmt.Errorf("insert %s: %w", d.id, cause)
	}
	raw := bson.Raw(d.raw)
	topic, _ := raw.Lookup("topic").StringValueOK()
	life, _ := raw.Lookup("life").AsInt64OK()
	if err := d.flatten(topic, uint64(life), p.epoch); err != nil {
		return err
	}
	d.raw = d.plain
	if _, err := p.events.InsertOne(ctx, bson.Raw(d.plain)); err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("insert %s as a text, after %w: %w", d.id, cause, err)
	}
	return nil
}

// areThere makes sure that what was refused as a duplicate is a document of an event, and not one of
// somebody else with its topic and offset.
func (p *Projection) areThere(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	n, err := p.events.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err == nil && n != int64(len(ids)) {
		err = fmt.Errorf("the collection %s has documents of somebody else, in place of some from %s to %s: move them", Events, ids[0], ids[len(ids)-1])
	}
	return err
}

// takeBack removes what was inserted while another hub led.
func (p *Projection) takeBack(ctx context.Context, docs []*document) error {
	ids := make([]string, len(docs))
	for i, d := range docs {
		ids[i] = d.id
	}
	_, err := p.events.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}, {Key: "epoch", Value: p.epoch}})
	return err
}

func (p *Projection) flushStates(ctx context.Context, b *batch) error {
	for t, keys := range b.states {
		models := make([]mongo.WriteModel, 0, len(keys))
		for key, d := range keys {
			models = append(models, p.stateModel(key, d.raw))
		}
		if err := p.write(ctx, p.state(t), models); err != nil {
			return fmt.Errorf("write the state of topic %q: %w", t.at.Topic, err)
		}
	}
	return nil
}

// flushPositions writes positions. Where one has a higher epoch than this hub, another hub leads.
func (p *Projection) flushPositions(ctx context.Context, b *batch) error {
	models := make([]mongo.WriteModel, 0, len(b.touched))
	for t := range b.touched {
		if t.at != t.written {
			fields := bson.D{
				{Key: "epoch", Value: p.epoch}, {Key: "life", Value: t.at.Life}, {Key: "through", Value: t.at.Through}, {Key: "horizon", Value: t.at.Horizon},
				{Key: "compacted", Value: t.at.Compacted}, {Key: "tombstones", Value: t.at.Tombstones}, {Key: "state", Value: t.at.State},
			}
			models = append(models, mongo.NewUpdateOneModel().SetFilter(p.mine(byID(t.at.Topic))).SetUpdate(set(fields)))
		}
	}
	matched, err := p.writeCounted(ctx, p.positions, models)
	if err != nil {
		return fmt.Errorf("write the positions: %w", err)
	}
	if matched != int64(len(models)) {
		return errFenced
	}
	for t := range b.touched {
		t.written = t.at
	}
	return nil
}

func (p *Projection) write(ctx context.Context, c *mongo.Collection, models []mongo.WriteModel) error {
	_, err := p.writeCounted(ctx, c, models)
	return err
}

// writeCounted writes changes in any order, and returns how many found a document. One that inserts a document which is
// there was kept from it by a higher epoch.
func (p *Projection) writeCounted(ctx context.Context, c *mongo.Collection, models []mongo.WriteModel) (matched int64, err error) {
	most := mostModels
	if p.opts.Ferret {
		most = mostModelsFerret
	}
	for len(models) > 0 {
		n := min(most, len(models))
		r, err := c.BulkWrite(ctx, models[:n], options.BulkWrite().SetOrdered(false))
		if mongo.IsDuplicateKeyError(err) {
			return matched, errFenced
		}
		if err != nil {
			return matched, err
		}
		matched += r.MatchedCount
		models = models[n:]
	}
	return matched, nil
}
