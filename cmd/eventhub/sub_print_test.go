package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/cmd/eventhub/internal/output"
)

// fakeSub is the other end of a tap: it notes what is settled.
type fakeSub struct {
	eventhub.Subscription // what is not used
	mu                    sync.Mutex
	acked                 []uint64
	extended              []uint64
	ready                 int
	left                  int
}

func (f *fakeSub) Settle(ctx context.Context, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ref := range s.Refs {
		if s.Verdict == eventhub.Extend {
			f.extended = append(f.extended, ref.Lease.Offset)
		} else {
			f.acked = append(f.acked, ref.Lease.Offset)
		}
	}
	return make([]eventhub.Outcome, len(s.Refs)), nil
}

func (f *fakeSub) Ready() { f.mu.Lock(); f.ready++; f.mu.Unlock() }
func (f *fakeSub) Unsubscribe(context.Context) error {
	f.mu.Lock()
	f.left++
	f.mu.Unlock()
	return nil
}

// offsets renders an event as its offset and a space.
func offsets(dst []byte, d *eventhub.Delivery) ([]byte, error) {
	if d.Topic == "bad" {
		return append(dst, "half"...), errors.New("no event")
	}
	return append(strconv.AppendUint(dst, d.Offset, 10), ' '), nil
}

// batch makes deliveries at the offsets from first to last.
func batch(topic string, first, last uint64) (b []eventhub.Delivery) {
	for o := first; o <= last; o++ {
		b = append(b, eventhub.Delivery{Topic: topic, Offset: o, Lease: eventhub.Lease{Offset: o}})
	}
	return b
}

// room takes so many bytes and then fails.
type room struct {
	bytes.Buffer
	left int
	err  error
}

func (r *room) Write(p []byte) (int, error) {
	if len(p) <= r.left {
		r.left -= len(p)
		return r.Buffer.Write(p)
	}
	n, _ := r.Buffer.Write(p[:r.left])
	r.left = 0
	return n, r.err
}

// gate is an output that is as slow as the test wants: each write waits for a
// token.
type gate chan struct{}

func (g gate) Write(p []byte) (int, error) { <-g; return len(p), nil }

// startPrinter runs a printer with one tap per group over out.
func startPrinter(ctx context.Context, out io.Writer, count int, prepare func(*printer), groups ...string) (p *printer, subs []*fakeSub, ended chan error) {
	p = newPrinter(output.NewResults(out), offsets, count)
	for i, g := range groups {
		sub := &fakeSub{}
		subs = append(subs, sub)
		p.newTap(fmt.Sprint("t", i), g).sub = sub
	}
	if prepare != nil {
		prepare(p)
	}
	ended = make(chan error, 1)
	go func() { ended <- p.run(ctx, 30*time.Second) }()
	return p, subs, ended
}

// TestPrinterAcksWhatWasWritten: where a write breaks off, the events that went
// out whole are acked and no other, and the group is left.
func TestPrinterAcksWhatWasWritten(t *testing.T) {
	full := errors.New("full")
	for _, tt := range []struct {
		room  int
		err   error
		acked []uint64
	}{
		{0, full, nil},
		{1, full, nil},
		{2, full, []uint64{1}},
		{5, full, []uint64{1, 2}},
		{6, full, []uint64{1, 2, 3}},
		{3, syscall.EPIPE, []uint64{1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			out := &room{left: tt.room, err: tt.err}
			p, subs, ended := startPrinter(t.Context(), out, 0, nil, "g")
			p.taps[0].Deliver(batch("t0", 1, 4))
			if err := <-ended; !errors.Is(err, tt.err) || errors.Is(err, output.ErrClosed) != (tt.err == syscall.EPIPE) {
				t.Errorf("room for %d: %v", tt.room, err)
			}
			if !slices.Equal(subs[0].acked, tt.acked) || subs[0].left != 1 {
				t.Errorf("room for %d: acked %v, left %d times; want %v", tt.room, subs[0].acked, subs[0].left, tt.acked)
			}
			if n := p.taps[0].Deliver(batch("t0", 5, 5)); n != 0 {
				t.Error("an event was taken after the end")
			}
		})
	}
}

// TestPrinterCounts: never more than count events are taken, over all topics.
func TestPrinterCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p, subs, ended := startPrinter(t.Context(), &out, 5, nil, "g", "g")
		if n := p.taps[0].Deliver(batch("t0", 1, 3)); n != 3 {
			t.Errorf("took %d of 3", n)
		}
		if n := p.taps[1].Deliver(batch("t1", 11, 20)); n != 2 {
			t.Errorf("took %d; 2 were wanted", n)
		}
		if n := p.taps[0].Deliver(batch("t0", 4, 4)); n != 0 {
			t.Errorf("took %d; enough were taken", n)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if out.String() != "1 2 3 11 12 " || len(subs[0].acked) != 3 || len(subs[1].acked) != 2 {
			t.Errorf("printed %q, acked %v and %v", out.String(), subs[0].acked, subs[1].acked)
		}
	})
}

// TestPrinterExtendsWhatWaits: while the output takes nothing the leases of what
// is being written and of what waits are kept alive; acked ones are not.
func TestPrinterExtendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out := make(gate)
		p, subs, ended := startPrinter(ctx, out, 0, nil, "g")
		p.taps[0].Deliver(batch("t0", 1, 2))
		synctest.Wait()
		p.taps[0].Deliver(batch("t0", 3, 3))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if want := []uint64{1, 2, 3}; !slices.Equal(subs[0].extended, want) {
			t.Errorf("after a third of the lease %v are extended; want %v", subs[0].extended, want)
		}
		subs[0].extended = nil
		out <- struct{}{} // 1 and 2 are out
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []uint64{3}; !slices.Equal(subs[0].extended, want) || len(subs[0].acked) != 2 {
			t.Errorf("%v are extended and %v acked", subs[0].extended, subs[0].acked)
		}
		cancel()
		out <- struct{}{}
		if err := <-ended; err != nil || !slices.Equal(subs[0].acked, []uint64{1, 2, 3}) {
			t.Errorf("%v; acked %v: what was being written at Ctrl-C is acked", err, subs[0].acked)
		}
	})
}

// TestPrinterBoundsTails: what waits of a tail is bounded, and it asks for more
// when there is room.
func TestPrinterBoundsTails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out := make(gate)
		p, subs, ended := startPrinter(ctx, out, 0, nil, "")
		if n := p.taps[0].Deliver(batch("t0", 1, queuedTails+5)); n != queuedTails {
			t.Errorf("took %d; want %d", n, queuedTails)
		}
		synctest.Wait()
		if subs[0].ready != 1 {
			t.Errorf("asked for more %d times; the queue is empty again", subs[0].ready)
		}
		cancel()
		out <- struct{}{}
		if err := <-ended; err != nil || len(subs[0].acked) != 0 {
			t.Errorf("%v; a tail acked %v", err, subs[0].acked)
		}
	})
}

// TestPrinterUntilHeads: tails end when each has printed its head, groups when
// each cursor has passed it, whoever moved it.
func TestPrinterUntilHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p, _, ended := startPrinter(t.Context(), &out, 0, func(p *printer) {
			p.untilHeads, p.taps[0].head, p.taps[1].head = true, 2, 5
		}, "", "")
		p.taps[0].Deliver(batch("t0", 1, 2))
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("ended before the second topic")
		}
		p.taps[1].Deliver(batch("t1", 7, 7)) // 5 was not of it any more
		if err := <-ended; err != nil || out.String() != "1 2 7 " {
			t.Errorf("%v, printed %q", err, out.String())
		}
		_, _, ended = startPrinter(t.Context(), &out, 0, func(p *printer) { p.untilHeads = true }, "")
		if err := <-ended; err != nil {
			t.Errorf("nothing to catch up with: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		cursors := map[string]uint64{"t0": 1, "t1": 3}
		var mu sync.Mutex
		p, _, ended := startPrinter(t.Context(), io.Discard, 0, func(p *printer) {
			p.untilHeads, p.taps[0].head, p.taps[1].head = true, 2, 3
			p.cursor = func(_ context.Context, topic string) (uint64, error) {
				mu.Lock()
				defer mu.Unlock()
				return cursors[topic], nil
			}
		}, "g", "g")
		p.taps[0].Deliver(batch("t0", 2, 2)) // another member holds one
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("ended while another member held an event")
		}
		mu.Lock()
		cursors["t0"] = 2
		mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		_, subs, ended := startPrinter(t.Context(), io.Discard, 0, func(p *printer) {
			p.untilHeads, p.taps[0].head = true, 2
			p.cursor = func(context.Context, string) (uint64, error) { return 0, gone }
		}, "g")
		if err := <-ended; !errors.Is(err, gone) || subs[0].left != 1 {
			t.Errorf("%v, left %d times", err, subs[0].left)
		}
	})
}

// TestPrinterReportsWhyItEnded: by a subscription that ended, and by an event
// that can not be printed, before which all is printed and acked.
func TestPrinterReportsWhyItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, subs, ended := startPrinter(t.Context(), io.Discard, 0, nil, "g")
		refused := errors.New("refused")
		p.taps[0].Ended(refused)
		if err := <-ended; !errors.Is(err, refused) || subs[0].left != 1 {
			t.Errorf("%v, left %d times", err, subs[0].left)
		}
		var out bytes.Buffer
		p, subs, ended = startPrinter(t.Context(), &out, 0, nil, "g")
		p.taps[0].Deliver(append(append(batch("t0", 1, 1), batch("bad", 2, 2)...), batch("t0", 3, 3)...))
		if err := <-ended; err == nil || out.String() != "1 " || !slices.Equal(subs[0].acked, []uint64{1}) {
			t.Errorf("%v, printed %q, acked %v", err, out.String(), subs[0].acked)
		}
	})
}
