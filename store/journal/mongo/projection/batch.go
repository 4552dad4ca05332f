package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// tell says in the head how far a rebuild is, and looks every now and then whether there is a wish for one: a pass may take
// long where there is much to write.
func (p *Projection) tell(ctx context.Context, wrote uint64) error {
	if time.Since(p.looked) >= lookEvery {
		if err := p.lookForWish(ctx); err != nil {
			return err
		}
	}
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
	var there []*document
	for _, e := range failed.WriteErrors {
		d := docs[e.Index]
		if mongo.IsDuplicateKeyError(e) {
			there = append(there, d)
		} else if err := p.insertPlain(ctx, d, e); err != nil {
			return err
		}
	}
	return p.areThere(ctx, there)
}

// insertSingly inserts documents one by one where the server refuses them together for what one of them is.
func (p *Projection) insertSingly(ctx context.Context, docs []*document, cause error) error {
	if !refusesForm(cause) {
		return fmt.Errorf("insert %d events: %w", len(docs), cause)
	}
	var there []*document
	for _, d := range docs {
		_, err := p.events.InsertOne(ctx, bson.Raw(d.raw))
		switch {
		case err == nil:
		case mongo.IsDuplicateKeyError(err):
			there = append(there, d)
		default:
			if err := p.insertPlain(ctx, d, err); err != nil {
				return err
			}
		}
	}
	return p.areThere(ctx, there)
}

// codesOfForm are what a server says of a document that it never takes: bad value, failed to parse, wrong type, too deep, invalid BSON,
// a name with $, an invalid reference, a name with a dot, too large, an index key too large. Any other refusal may pass.
var codesOfForm = []int{2, 9, 14, 15, 22, 52, 55, 57, 10334, 17280}

// noNUL is what PostgreSQL says under FerretDB of a NUL.
const noNUL = "SQLSTATE 22P05"

// refusesForm reports whether a server takes a document only in another form.
func refusesForm(err error) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && (slices.ContainsFunc(codesOfForm, server.HasErrorCode) || server.HasErrorMessage(noNUL))
}

// insertPlain inserts an event as a text that the server refuses as a document.
func (p *Projection) insertPlain(ctx context.Context, d *document, cause error) error {
	if d.plain != nil || !refusesForm(cause) {
		return fmt.Errorf("insert %s: %w", d.id, cause)
	}
	if err := d.makePlain(p.epoch); err != nil {
		return err
	}
	if _, err := p.events.InsertOne(ctx, bson.Raw(d.plain)); err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("insert %s as a text, after %w: %w", d.id, cause, err)
	}
	return nil
}

// areThere makes sure that what was refused as a duplicate is the document of that event, and not one of
// somebody else with its _id, or its topic and offset.
func (p *Projection) areThere(ctx context.Context, docs []*document) error {
	if len(docs) == 0 {
		return nil
	}
	missing := make(map[string]*document, len(docs))
	ids := make([]string, len(docs))
	for i, d := range docs {
		ids[i], missing[d.id] = d.id, d
	}
	o := options.Find().SetProjection(bson.D{{Key: "offset", Value: 1}, {Key: "id", Value: 1}, {Key: "life", Value: 1}})
	found, err := p.events.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, o)
	if err != nil {
		return err
	}
	defer found.Close(ctx)
	for found.Next(ctx) {
		id, _ := found.Current.Lookup("_id").StringValueOK()
		if d := missing[id]; d != nil && d.isOf(found.Current) {
			delete(missing, id)
		}
	}
	if err := found.Err(); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("the collection %s has documents of somebody else in place of %d events, as %s: move them", Events, len(missing), slices.Min(slices.Collect(maps.Keys(missing))))
	}
	return nil
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
		err := p.write(ctx, p.state(t), models)
		if refusesForm(err) {
			err = p.writeStatesSingly(ctx, t, keys)
		}
		if err != nil {
			return fmt.Errorf("write the state of topic %q: %w", t.at.Topic, err)
		}
	}
	return nil
}

// writeStatesSingly writes states one by one where the server refuses them together, and one that it refuses by itself with the
// event as a text.
func (p *Projection) writeStatesSingly(ctx context.Context, t *topic, keys map[string]*document) error {
	for key, d := range keys {
		err := p.write(ctx, p.state(t), []mongo.WriteModel{p.stateModel(key, d.raw)})
		if refusesForm(err) && d.plain == nil {
			if err := d.makePlain(p.epoch); err != nil {
				return err
			}
			err = p.write(ctx, p.state(t), []mongo.WriteModel{p.stateModel(key, d.raw)})
		}
		if err != nil {
			return fmt.Errorf("key %q: %w", key, err)
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
		if err := p.fenced(ctx, p.positions); err != nil {
			return err
		}
		p.lost = true
		return fmt.Errorf("the collection %s has lost positions; all is made anew", Positions)
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
// there was kept from it by a higher epoch, or by somebody else's.
func (p *Projection) writeCounted(ctx context.Context, c *mongo.Collection, models []mongo.WriteModel) (matched int64, err error) {
	most := mostModels
	if p.opts.Ferret {
		most = mostModelsFerret
	}
	for len(models) > 0 {
		n := min(most, len(models))
		r, err := c.BulkWrite(ctx, models[:n], options.BulkWrite().SetOrdered(false))
		if mongo.IsDuplicateKeyError(err) {
			return matched, p.occupied(ctx, c, err)
		}
		if err != nil {
			return matched, err
		}
		matched += r.MatchedCount
		models = models[n:]
	}
	return matched, nil
}

// fenced returns errFenced where another hub with a higher epoch has written to a collection.
func (p *Projection) fenced(ctx context.Context, c *mongo.Collection) error {
	err := c.FindOne(ctx, bson.D{{Key: "epoch", Value: bson.D{{Key: "$gt", Value: p.epoch}}}}).Err()
	switch {
	case err == nil:
		return errFenced
	case !errors.Is(err, mongo.ErrNoDocuments):
		return fmt.Errorf("look for another hub in %s: %w", c.Name(), err)
	}
	return nil
}

// occupied says whose document is in the place of one that was to be written.
func (p *Projection) occupied(ctx context.Context, c *mongo.Collection, cause error) error {
	if err := p.fenced(ctx, c); err != nil {
		return err
	}
	// The cause is no server's error any more: nothing is to be written in another form.
	return fmt.Errorf("the collection %s has documents of somebody else in place of the hub's: move them: %v", c.Name(), cause) //nolint:errorlint // see above
}
