package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// Stop takes the hub down. First it is not ready, for the time that Config.Drain gives. Then, within the
// grace period: the drainer of the outbox settles its rows; no door takes new connections but that of the
// operations listener, which closes last; the WebSockets get 1001, and what waits for a client of HTTP ends
// (door says how); in the end the state of all groups is flushed, and the store synced and closed. Stop
// returns what could not be done in order.
func (h *Hub) Stop(ctx context.Context) error {
	if !h.stopping.CompareAndSwap(false, true) {
		return nil
	}
	h.endFollowing()
	if h.opened.Load() {
		h.drain(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Grace)
	defer cancel()
	if !h.opened.Load() {
		return h.stopStandby(ctx)
	}
	h.log.Info("hub is stopping", "connections", h.gateway.Open())
	h.operations.Stop()
	h.stopOutbox(ctx)
	var errs []error
	doors := slices.DeleteFunc(slices.Clone(h.doors), h.isApart)
	for _, d := range doors {
		errs = append(errs, d.close())
	}
	h.api.Stop()
	ended := make(chan error)
	go func() { ended <- h.gateway.Shutdown(ctx) }()
	for _, d := range doors {
		go func() { ended <- d.shut(ctx) }()
	}
	go func() { ended <- h.endConsoleAPI(ctx) }()
	for range 2 + len(doors) {
		errs = append(errs, <-ended)
	}
	h.opened.Store(false)
	h.audit.Close(ctx)
	errs = append(errs, h.closeStore(ctx), h.leave(ctx))
	if d := h.door(h.cfg.OpsAddr); h.isApart(d) {
		errs = append(errs, d.close(), d.shut(ctx))
	}
	h.serving.Wait()
	h.closeAuth()
	if cause := h.broken.Load(); cause != nil {
		errs = append(errs, *cause) // perhaps only now, in the last writes
	}
	if err := errors.Join(errs...); err != nil {
		h.log.Error("hub stopped, not in order", "error", err)
		return err
	}
	h.log.Info("hub stopped")
	return nil
}

// drain lets whoever looks at readiness send the traffic elsewhere.
func (h *Hub) drain(ctx context.Context) {
	if h.cfg.Drain == 0 || h.broken.Load() != nil {
		return
	}
	h.log.Info("hub is draining", "for", h.cfg.Drain)
	select {
	case <-time.After(h.cfg.Drain):
	case <-h.storeLost:
	case <-ctx.Done():
	}
}

// closeStore ends the engine and its store, however long it takes to save what there is to be saved; beyond
// the grace period the log says so. Where the store is broken there is nothing, and what waits for it may
// wait for ever: then the grace period counts, and the rest ends with the process.
func (h *Hub) closeStore(ctx context.Context) error {
	closed := make(chan error, 1)
	go func() {
		err := h.bus.Close()
		h.cluster.stopProjection()
		closed <- errors.Join(err, h.store.Close())
	}()
	select {
	case err := <-closed:
		return err
	case <-h.storeLost:
	case <-ctx.Done():
		h.log.Warn("the grace period is over, and the store is still being closed", "grace", h.cfg.Grace)
		if h.cluster != nil {
			_ = h.cluster.leader.Close() // what waits for the journal waits no more
		}
		select {
		case err := <-closed:
			return err
		case <-h.storeLost:
		}
	}
	select {
	case err := <-closed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("hub: close the broken store: %w", ctx.Err())
	}
}

// abandon takes down what Start had made when it failed.
func (h *Hub) abandon() error {
	var errs []error
	h.stopping.Store(true)
	for _, d := range h.doors {
		if d.server != nil {
			_ = d.server.Close() // nobody is answered but those who ask how it is
		}
		if err := d.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	h.serving.Wait()
	h.closeAuth()
	h.audit.Close(context.Background())
	if h.bus != nil {
		errs = append(errs, h.bus.Close())
	}
	if h.store != nil {
		errs = append(errs, h.store.Close())
	}
	if h.cluster != nil {
		errs = append(errs, h.cluster.close())
	}
	return errors.Join(errs...)
}
