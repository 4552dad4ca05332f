package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"eventhub"
	"eventhub/outbox"
	"eventhub/outbox/outboxurl"
)

const (
	// outboxGrace bounds what a drainer still does when the hub stops, within the hub's own grace.
	outboxGrace = 5 * time.Second
	// The waits between two looks for a database or a table that is not there.
	leastOutboxWait = time.Second
	mostOutboxWait  = 30 * time.Second
)

// outboxDrain publishes the rows of an outbox while the hub runs.
type outboxDrain struct {
	drainer *outbox.Drainer
	close   func() error // of the database
	stop    context.CancelFunc
	ended   chan struct{}
}

// validateOutbox returns everything that is wrong with the outbox.
func (c *Config) validateOutbox() (errs []error) {
	if c.Outbox == "" {
		return nil
	}
	if err := outboxurl.Check(c.Outbox); err != nil {
		errs = append(errs, fmt.Errorf("%s%s", eventhub.AsError(err).Message, c.from("outbox")))
	}
	if o := outbox.Order(c.OutboxOrder); o != outbox.ByKey && o != outbox.ByTopic {
		errs = append(errs, fmt.Errorf("outbox order is %q; %s and %s are allowed%s", o, outbox.ByKey, outbox.ByTopic, c.from("outbox_order")))
	}
	if c.OutboxKeep < 0 {
		errs = append(errs, fmt.Errorf("outbox keep is %s; it can not be negative%s", c.OutboxKeep, c.from("outbox_keep")))
	}
	return errs
}

// openOutbox makes the drainer of the outbox, where there is one. The database may be away.
func (h *Hub) openOutbox() error {
	if h.cfg.Outbox == "" {
		return nil
	}
	store, closeStore, err := outboxurl.Open(context.Background(), h.cfg.Outbox)
	if err != nil {
		return fmt.Errorf("%w%s", err, h.cfg.from("outbox"))
	}
	drainer, err := outbox.NewDrainer(store, h.bus, outbox.Options{
		Order: outbox.Order(h.cfg.OutboxOrder), Keep: h.cfg.OutboxKeep, Grace: min(outboxGrace, h.cfg.Grace),
		Log: h.log, Registerer: h.operations.Registerer(),
	})
	if err != nil {
		return errors.Join(err, closeStore())
	}
	h.outbox = &outboxDrain{drainer: drainer, close: closeStore, ended: make(chan struct{})}
	return nil
}

// drainOutbox begins to publish.
func (h *Hub) drainOutbox() {
	d := h.outbox
	if d == nil {
		return
	}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	go func() {
		defer close(d.ended)
		h.drainUntil(ctx, d.drainer)
		if err := d.close(); err != nil {
			h.log.Warn("outbox: cannot close the database", "error", err)
		}
	}()
}

// drainUntil runs the drainer until ctx ends. A database or a table that is not there, or one of
// another version, is no reason for the hub not to run: it is looked for again.
func (h *Hub) drainUntil(ctx context.Context, d *outbox.Drainer) {
	said := ""
	for wait := leastOutboxWait; ctx.Err() == nil; wait = min(2*wait, mostOutboxWait) {
		err := d.Run(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if text := err.Error(); text != said {
			said = text
			h.log.Error("outbox: nothing is published; the hub looks again", "outbox", outboxurl.Shown(h.cfg.Outbox), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// stopOutbox ends the drainer before anything that it uses, and waits until its rows are settled
// or ctx ends.
func (h *Hub) stopOutbox(ctx context.Context) {
	if h.outbox == nil {
		return
	}
	h.outbox.stop()
	select {
	case <-h.outbox.ended:
	case <-ctx.Done():
		h.log.Warn("outbox: the grace period is over; rows that are claimed are published again after their lease")
	}
}
