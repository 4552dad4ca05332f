package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"eventhub/internal/measure"
)

// MaxPending is how many bytes of entries a Leader holds that are not settled. An Append that
// finds more waits; one alone may be larger.
const MaxPending = 64 << 20

// Lead takes the journal over for a hub: it appends a lead of the next epoch, after all there is.
// at is where the hub's copy of the store is; ErrBehind says that there is more, which is to be
// followed first. Pieces of a commit that the hub before did not finish do not count; with the lead
// they are void. layout is that of the data which the hub is to append.
//
// ErrFenced says that another was faster. Where ctx ends before the answer, the error is
// ErrUnknown: the journal may have the lead, and no writer.
func (l *Log) Lead(ctx context.Context, at Position, hub string, layout uint32) (*Leader, error) {
	limits, err := l.limits(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the limits of the journal: %w", err)
	}
	if room(limits.EntryBytes, hub) <= 0 {
		return nil, fmt.Errorf("the journal takes entries of %d bytes, which is too few", limits.EntryBytes)
	}
	tip, err := l.tip(ctx, at)
	if err != nil {
		return nil, err
	}
	d := &Leader{
		log: l, hub: hub, layout: layout, pieceBytes: room(limits.EntryBytes, hub),
		tip: Position{Seq: tip.Seq, Epoch: tip.Epoch + 1, Chain: tip.Chain},
	}
	began := time.Now()
	lead, err := d.encode(&Header{Kind: KindLead, Time: began.UnixMilli()}, nil)
	if err != nil {
		return nil, err
	}
	if err := l.settle(ctx, d.tip.Seq, lead); err != nil {
		return nil, fmt.Errorf("lead the journal: %w", err)
	}
	d.sent.Store(&began)
	d.begin()
	return d, nil
}

// tip returns the position at the end of the journal, where only pieces of one commit follow
// the position at.
func (l *Log) tip(ctx context.Context, at Position) (Position, error) {
	r, err := l.from(ctx, at)
	if err != nil {
		return Position{}, err
	}
	last, err := l.last(ctx)
	if err != nil {
		return Position{}, fmt.Errorf("ask for the end of the journal: %w", err)
	}
	for r.tip.Seq < last {
		entry, err := l.own(ctx, r.tip.Seq+1)
		switch {
		case errors.Is(err, ErrHole):
			return Position{}, diverged(r.tip.Seq+1, err)
		case err != nil:
			return Position{}, fmt.Errorf("read the journal at %d: %w", r.tip.Seq+1, err)
		}
		_, whole, err := r.take(r.tip.Seq+1, entry)
		if err != nil {
			return Position{}, err
		}
		if whole {
			return Position{}, fmt.Errorf("%w: it has entries up to %d, and the hub's copy is at %d", ErrBehind, last, at.Seq)
		}
	}
	return r.tip, nil
}

// Leader writes the entries of the hub that leads, one append at a time, in the order of the
// calls. When it has ended, because another hub leads, the journal has diverged, or it was
// closed, all that was not settled fails, and so does all that comes after.
type Leader struct {
	log        *Log
	hub        string
	layout     uint32
	pieceBytes int

	stop  context.CancelCauseFunc
	ended chan struct{} // the writer has ended

	sent atomic.Pointer[time.Time] // of the last entry that is in the journal

	mu       sync.Mutex
	changed  sync.Cond // pending, bytes or err changed
	tip      Position  // of the last entry that was encoded
	settled  Position  // of the last one that is in the journal
	pending  []piece
	bytes    int   // of pending
	released bool  // nothing may come after
	err      error // why it has ended
	took     measure.Histogram
	appended uint64 // bytes of all entries
}

// piece is one place that is to be written.
type piece struct {
	entry    []byte
	position Position
	promise  *promise // of the last piece, nil in the others
}

// promise is the answer to one Append.
type promise struct {
	done chan struct{}
	at   Position
	err  error
}

func (p *promise) settle(at Position, err error) {
	p.at, p.err = at, err
	close(p.done)
}

func (p *promise) wait() (Position, error) {
	<-p.done
	return p.at, p.err
}

// begin starts the writer, once the lead is in the journal.
func (d *Leader) begin() {
	d.settled = d.tip
	d.took = measure.NewHistogram(measure.Seconds)
	d.changed.L = &d.mu
	d.ended = make(chan struct{})
	ctx, stop := context.WithCancelCause(context.Background())
	d.stop = stop
	go d.write(ctx)
}

// Append appends the data of one commit, with its time in Unix milliseconds, after all that was
// appended before. It takes a copy of the data, and waits while MaxPending bytes are not settled.
//
// wait returns the position of the commit once it is durable, or why the leader has ended:
// with ErrFenced it is not in the journal and never will be, with ErrUnknown it may be; other
// errors are of calls after the end. Data of more than MaxData bytes is ErrTooLarge, which does
// not end the leader.
func (d *Leader) Append(data []byte, ms int64) (wait func() (Position, error)) {
	if len(data) > MaxData {
		return refused(fmt.Errorf("a commit of %d bytes: %w", len(data), ErrTooLarge))
	}
	return d.add(KindData, data, ms)
}

// Beat appends an entry which says that the hub is there.
func (d *Leader) Beat() (wait func() (Position, error)) {
	return d.add(KindBeat, nil, time.Now().UnixMilli())
}

// Release appends an entry which says that the hub leads no more. Nothing can be appended after it.
func (d *Leader) Release() (wait func() (Position, error)) {
	return d.add(KindRelease, nil, time.Now().UnixMilli())
}

// Position returns that of the last entry that is known to be in the journal.
func (d *Leader) Position() Position {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settled
}

// Sent returns when the last entry that is known to be in the journal was sent to it for the first time. Nobody
// else has led by then, and nobody takes over before a lease has passed since, however late the answer came, or
// this process ran again to see it.
func (d *Leader) Sent() time.Time { return *d.sent.Load() }

// Took returns how many seconds each entry took until the journal had it.
func (d *Leader) Took() measure.Histogram {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.took
}

// Appended returns how many bytes all entries have that were appended, settled or not; an engine takes
// some more for each.
func (d *Leader) Appended() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.appended
}

// Full returns the answer of a journal that is there and takes nothing: ErrFull, nil where that was not its last one.
func (d *Leader) Full() error {
	_, err := d.log.Full()
	return err
}

// Ended is closed when the leader has ended; Err says why.
func (d *Leader) Ended() <-chan struct{} { return d.ended }

// Err returns why the leader has ended, nil while it has not.
func (d *Leader) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Close ends the leader, and returns when nothing more is sent. What is not settled fails with
// ErrUnknown: what was sent may still come into the journal. It appends no release. A leader that
// has ended by itself is closed too.
func (d *Leader) Close() error {
	d.stop(ErrClosed)
	<-d.ended
	return nil
}

func refused(err error) func() (Position, error) {
	return func() (Position, error) { return Position{}, err }
}

// add encodes an entry, or the pieces of one, and leaves them to the writer.
func (d *Leader) add(kind Kind, data []byte, ms int64) func() (Position, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.err == nil && !d.released && d.bytes > 0 && d.bytes+len(data) > MaxPending {
		d.changed.Wait()
	}
	switch {
	case d.err != nil:
		return refused(d.after())
	case d.released:
		return refused(fmt.Errorf("this hub has released the journal: %w", ErrClosed))
	}
	d.released = kind == KindRelease
	p := &promise{done: make(chan struct{})}
	for rest := max(len(data)-1, 0) / d.pieceBytes; rest >= 0; rest-- {
		part := data[:min(len(data), d.pieceBytes)]
		data = data[len(part):]
		entry, err := d.encode(&Header{Kind: kind, Rest: uint32(rest), Time: ms}, part)
		if err != nil {
			panic(err) // the lead had the same header
		}
		d.pending = append(d.pending, piece{entry: entry, position: d.tip})
		d.bytes += len(entry)
		d.appended += uint64(len(entry))
	}
	d.pending[len(d.pending)-1].promise = p
	d.changed.Broadcast()
	return p.wait
}

// after is the error of calls after the end.
func (d *Leader) after() error {
	if errors.Is(d.err, ErrUnknown) { // of what was pending then; this was never sent
		return fmt.Errorf("this hub leads the journal no more: %w", ErrClosed)
	}
	return d.err
}

// encode makes the entry after the tip, and moves the tip to it.
func (d *Leader) encode(h *Header, data []byte) ([]byte, error) {
	h.Layout, h.Epoch, h.Hub, h.Chain = d.layout, d.tip.Epoch, d.hub, d.tip.Chain
	_, _ = rand.Read(h.Nonce[:]) // never fails
	entry, err := AppendEntry(make([]byte, 0, fixedBytes+len(d.hub)+len(data)), h, data)
	if err != nil {
		return nil, err
	}
	d.tip.Seq++
	d.tip.Chain = Hash(entry)
	return entry, nil
}

// write sends what is pending until the leader ends.
func (d *Leader) write(ctx context.Context) {
	defer close(d.ended)
	unwatch := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.changed.Broadcast()
	})
	defer unwatch()
	for {
		p, err := d.next(ctx)
		began := time.Now()
		if err == nil {
			err = d.log.settle(ctx, p.position.Seq, p.entry)
		}
		if err != nil {
			d.end(err)
			return
		}
		d.done(p, began)
	}
}

// next waits for a piece.
func (d *Leader) next(ctx context.Context) (piece, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.pending) == 0 {
		if ctx.Err() != nil {
			return piece{}, context.Cause(ctx)
		}
		d.changed.Wait()
	}
	return d.pending[0], nil
}

// done takes the first piece out, which is in the journal, and was sent for the first time at began.
func (d *Leader) done(p piece, began time.Time) {
	d.sent.Store(&began)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.took.Observe(time.Since(began).Seconds())
	d.pending[0] = piece{}
	d.pending = d.pending[1:]
	d.bytes -= len(p.entry)
	d.settled = p.position
	d.changed.Broadcast()
	if p.promise != nil {
		p.promise.settle(p.position, nil)
	}
}

// end fails what is pending.
func (d *Leader) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	for _, p := range d.pending {
		if p.promise != nil {
			p.promise.settle(Position{}, err)
		}
	}
	d.pending, d.bytes = nil, 0
	d.changed.Broadcast()
}
