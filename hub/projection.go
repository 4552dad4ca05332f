package hub

import (
	"context"
	"fmt"

	"eventhub"
	"eventhub/internal/measure"
	"eventhub/store"
	"eventhub/store/journal"
	mongojournal "eventhub/store/journal/mongo"
	"eventhub/store/journal/mongo/projection"
	"eventhub/store/pebble"
)

// The values of Config.Project.
const (
	ProjectOn  = "on"
	ProjectOff = "off"
)

// validateProject returns what is wrong with the projections.
func (c *Config) validateProject() (errs []error) {
	if c.Project != ProjectOn && c.Project != ProjectOff {
		errs = append(errs, fmt.Errorf("project is %q; on and off are allowed%s", c.Project, c.from("project")))
	}
	for _, text := range c.ProjectState {
		if _, err := eventhub.ParsePattern(text); err != nil {
			errs = append(errs, fmt.Errorf("project_state: %w%s", err, c.from("project_state")))
		}
	}
	return errs
}

// projects returns the journal where this hub is to write projections beside it: one in MongoDB; else nil.
func (c *Config) projects(j journal.Journal) *mongojournal.Journal {
	in, is := j.(*mongojournal.Journal)
	if !is || c.Project == ProjectOff {
		return nil
	}
	return in
}

// checkProjection refuses a database where the projections would meet documents of somebody else.
func (h *Hub) checkProjection(ctx context.Context, j journal.Journal) error {
	in := h.cfg.projects(j)
	if in == nil {
		return nil
	}
	if err := in.Check(ctx, projection.Check); err != nil {
		return fmt.Errorf("open the journal: %w%s", err, h.cfg.from("journal", "project"))
	}
	return nil
}

// project makes the projections of a hub that leads, where it is to have some.
func (h *Hub) project(j journal.Journal) *projection.Projection {
	in := h.cfg.projects(j)
	if in == nil {
		return nil
	}
	o := projection.Options{Logger: h.log}
	o.Database, o.Ferret = in.Database()
	for _, text := range h.cfg.ProjectState {
		pattern, _ := eventhub.ParsePattern(text) // it was checked
		o.State = append(o.State, pattern)
	}
	return projection.New(o)
}

// runProjection writes them until the hub leads no more.
func (h *Hub) runProjection() {
	c := h.cluster
	if c.projected == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	c.endProjection = stop
	c.projecting.Go(func() {
		c.projected.p.Run(ctx, c.store, c.leader.Position().Epoch, func() uint64 { return c.leader.Position().Seq })
	})
}

// stopProjection ends them, before the store is closed.
func (c *cluster) stopProjection() {
	if c != nil && c.endProjection != nil {
		c.endProjection()
		c.projecting.Wait()
	}
}

// projectedStore is the store of a hub that leads, which says what it commits to the projections.
type projectedStore struct {
	*pebble.Store
	p *projection.Projection
}

// begin says that a commit begins; its result is called when reads show the commit.
func (s *projectedStore) begin(units []*store.Unit, deleted string) (ended func()) {
	begun := s.p.Begin(s.Position().Seq)
	return func() { s.p.Note(begun, s.Position().Seq, units, deleted) }
}

// Commit implements store.Log.
func (s *projectedStore) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	defer s.begin(units, "")()
	return s.Store.Commit(ctx, units, sync)
}

// Start implements store.Pipeline.
func (s *projectedStore) Start(ctx context.Context, units []*store.Unit) (func() error, error) {
	ended := s.begin(units, "")
	wait, err := s.Store.Start(ctx, units)
	if err != nil {
		ended()
		return nil, err
	}
	return func() error {
		defer ended()
		return wait()
	}, nil
}

// DeleteTopic implements store.Topics.
func (s *projectedStore) DeleteTopic(ctx context.Context, name string) error {
	defer s.begin(nil, name)()
	return s.Store.DeleteTopic(ctx, name)
}

// measureProjection returns how the projections are doing; zero where this hub writes none.
func (c *cluster) measureProjection() measure.Projection {
	if c.projected == nil {
		return measure.Projection{}
	}
	s := c.projected.p.Status()
	return measure.Projection{Entries: s.Entries, Lag: s.Lag, Events: s.Events, Errors: s.Errors}
}
