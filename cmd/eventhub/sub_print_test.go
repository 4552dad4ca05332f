package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/bubble"
)

// fakeSub is the other end of a printer: it notes what is settled.
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

func (f *fakeSub) Sent(int) {}
func (f *fakeSub) Ready()   { f.mu.Lock(); f.ready++; f.mu.Unlock() }
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

// startPrinter runs a printer over out, of a group or of a tail.
func startPrinter(ctx context.Context, out io.Writer, leased bool, count int, prepare func(*printer)) (p *printer, sub *fakeSub, ended chan error) {
	sub = &fakeSub{}
	p = newPrinter(output.NewResults(out), offsets, leased, count)
	p.sub = sub
	if prepare != nil {
		prepare(p)
	}
	ended = make(chan error, 1)
	go func() { ended <- p.run(ctx, 30*time.Second) }()
	return p, sub, ended
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
		bubble.Test(t, func(t *testing.T) {
			out := &room{left: tt.room, err: tt.err}
			p, sub, ended := startPrinter(t.Context(), out, true, 0, nil)
			p.Deliver(batch("t", 1, 4))
			if err := <-ended; !errors.Is(err, tt.err) || errors.Is(err, output.ErrClosed) != (tt.err == syscall.EPIPE) {
				t.Errorf("room for %d: %v", tt.room, err)
			}
			if !slices.Equal(sub.acked, tt.acked) || sub.left != 1 {
				t.Errorf("room for %d: acked %v, left %d times; want %v", tt.room, sub.acked, sub.left, tt.acked)
			}
			if n := p.Deliver(batch("t", 5, 5)); n != 0 {
				t.Error("an event was taken after the end")
			}
		})
	}
}

// TestPrinterCounts: never more than count events are taken, over all topics.
func TestPrinterCounts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p, sub, ended := startPrinter(t.Context(), &out, true, 5, nil)
		if n := p.Deliver(batch("t", 1, 3)); n != 3 {
			t.Errorf("took %d of 3", n)
		}
		if n := p.Deliver(batch("u", 11, 20)); n != 2 {
			t.Errorf("took %d; 2 were wanted", n)
		}
		if n := p.Deliver(batch("t", 4, 4)); n != 0 {
			t.Errorf("took %d; enough were taken", n)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if out.String() != "1 2 3 11 12 " || !slices.Equal(sub.acked, []uint64{1, 2, 3, 11, 12}) {
			t.Errorf("printed %q, acked %v", out.String(), sub.acked)
		}
	})
}

// TestPrinterExtendsWhatWaits: while the output takes nothing the leases of what
// is being written and of what waits are kept alive; acked ones are not.
func TestPrinterExtendsWhatWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out := make(gate)
		p, sub, ended := startPrinter(ctx, out, true, 0, nil)
		p.Deliver(batch("t", 1, 2))
		synctest.Wait()
		p.Deliver(batch("u", 3, 3))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if want := []uint64{1, 2, 3}; !slices.Equal(sub.extended, want) {
			t.Errorf("after a third of the lease %v are extended; want %v", sub.extended, want)
		}
		sub.extended = nil
		out <- struct{}{} // 1 and 2 are out
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []uint64{3}; !slices.Equal(sub.extended, want) || len(sub.acked) != 2 {
			t.Errorf("%v are extended and %v acked", sub.extended, sub.acked)
		}
		cancel()
		out <- struct{}{}
		if err := <-ended; err != nil || !slices.Equal(sub.acked, []uint64{1, 2, 3}) {
			t.Errorf("%v; acked %v: what was being written at Ctrl-C is acked", err, sub.acked)
		}
	})
}

// TestPrinterBoundsTails: what waits of a tail is bounded, and it asks for more
// when there is room, also where the last batch of one topic was taken whole.
func TestPrinterBoundsTails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out := make(gate)
		p, sub, ended := startPrinter(ctx, out, false, 0, nil)
		if n := p.Deliver(batch("t", 1, queuedTails+5)); n != queuedTails {
			t.Errorf("took %d; want %d", n, queuedTails)
		}
		if n := p.Deliver(nil); n != 0 { // of another topic
			t.Errorf("took %d of none", n)
		}
		synctest.Wait()
		if sub.ready != 1 {
			t.Errorf("asked for more %d times; the queue is empty again", sub.ready)
		}
		cancel()
		out <- struct{}{}
		if err := <-ended; err != nil || len(sub.acked) != 0 || len(sub.extended) != 0 {
			t.Errorf("%v; a tail acked %v", err, sub.acked)
		}
	})
}

// TestPrinterUntilHeads: a tail ends when it has printed each topic's head, a
// group when its cursor has passed each, whoever moved it.
// TestPrinterBoundsBytesOfTails: a tail whose output is slow holds no more bytes than it
// may, or one event that has more.
func TestPrinterBoundsBytesOfTails(t *testing.T) {
	p := newPrinter(output.NewResults(io.Discard), offsets, false, 0)
	p.sub = &fakeSub{}
	large := batch("t", 1, 3)
	large[0].Record = make(eventhub.Record, queuedBytes+1)
	large[1].Record, large[2].Record = make(eventhub.Record, queuedBytes/2), make(eventhub.Record, queuedBytes/2+1)
	for len(large) > 0 {
		if n := p.Deliver(large); n != 1 {
			t.Fatalf("took %d of %d; want 1", n, len(large))
		}
		if large = large[1:]; p.Deliver(large) != 0 {
			t.Fatal("took more before there was room")
		}
		p.take()
	}
}

func TestPrinterUntilHeads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p, _, ended := startPrinter(t.Context(), &out, false, 0, func(p *printer) {
			p.untilHeads, p.heads = true, map[string]uint64{"t": 2, "u": 5}
		})
		p.Deliver(batch("t", 1, 2))
		p.Deliver(batch("v", 9, 9)) // created later
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("ended before the second topic")
		}
		p.Deliver(batch("u", 7, 7)) // 5 was not of it any more
		if err := <-ended; err != nil || out.String() != "1 2 9 7 " {
			t.Errorf("%v, printed %q", err, out.String())
		}
		_, _, ended = startPrinter(t.Context(), &out, false, 0, func(p *printer) { p.untilHeads = true })
		if err := <-ended; err != nil {
			t.Errorf("nothing to catch up with: %v", err)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		cursors := map[string]uint64{"t": 1, "u": 3}
		var mu sync.Mutex
		p, _, ended := startPrinter(t.Context(), io.Discard, true, 0, func(p *printer) {
			p.untilHeads, p.heads = true, map[string]uint64{"t": 2, "u": 3}
			p.cursor = func(_ context.Context, topic string) (uint64, error) {
				mu.Lock()
				defer mu.Unlock()
				return cursors[topic], nil
			}
		})
		p.Deliver(batch("t", 2, 2)) // another member holds one
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("ended while another member held an event")
		}
		mu.Lock()
		cursors["t"] = 2
		mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		_, sub, ended := startPrinter(t.Context(), io.Discard, true, 0, func(p *printer) {
			p.untilHeads, p.heads = true, map[string]uint64{"t": 2}
			p.cursor = func(context.Context, string) (uint64, error) { return 0, gone }
		})
		if err := <-ended; !errors.Is(err, gone) || sub.left != 1 {
			t.Errorf("%v, left %d times", err, sub.left)
		}
	})
}

// TestPrinterUntilHeadsOfDeleted: what was in a topic that is deleted or trimmed meanwhile does
// not come any more, and is not waited for; what came of it is printed.
func TestPrinterUntilHeadsOfDeleted(t *testing.T) {
	for what, gone := range map[string]map[string]admin.TopicInfo{
		"deleted":               topicsTo(map[string]uint64{"t": 2}),
		"trimmed":               {"t": {FirstOffset: 1, Head: 2}, "u": {FirstOffset: 6, Head: 7}},
		"trimmed to its newest": {"t": {FirstOffset: 1, Head: 2}, "u": {Head: 5}},
	} {
		t.Run(what, func(t *testing.T) { testUntilHeadsOfGone(t, gone) })
	}
	bubble.Test(t, func(t *testing.T) {
		_, _, ended := startPrinter(t.Context(), io.Discard, true, 0, func(p *printer) {
			p.untilHeads, p.heads = true, map[string]uint64{"t": 2, "u": 3}
			p.there = func(context.Context) (map[string]admin.TopicInfo, error) {
				return topicsTo(map[string]uint64{"t": 2}), nil
			}
			p.cursor = func(_ context.Context, topic string) (uint64, error) {
				if topic == "u" {
					return 0, errors.New("no such group")
				}
				return 2, nil
			}
		})
		if err := <-ended; err != nil {
			t.Errorf("the group's topic u was deleted: %v", err)
		}
	})
}

// topicsTo are topics that have all events up to their heads.
func topicsTo(heads map[string]uint64) map[string]admin.TopicInfo {
	infos := make(map[string]admin.TopicInfo)
	for topic, head := range heads {
		infos[topic] = admin.TopicInfo{FirstOffset: 1, Head: head}
	}
	return infos
}

func testUntilHeadsOfGone(t *testing.T, gone map[string]admin.TopicInfo) {
	bubble.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		heads := map[string]uint64{"t": 2, "u": 5}
		var deleted atomic.Bool
		p, _, ended := startPrinter(t.Context(), &out, false, 0, func(p *printer) {
			p.untilHeads, p.heads = true, maps.Clone(heads)
			p.there = func(context.Context) (map[string]admin.TopicInfo, error) {
				if deleted.Load() {
					return gone, nil
				}
				return topicsTo(heads), nil
			}
		})
		p.Deliver(batch("u", 3, 4))
		p.Deliver(batch("t", 1, 2))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("ended before the head of u")
		}
		deleted.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended) == 0 {
			t.Fatal("waits for the head of a topic that was deleted")
		}
		if err := <-ended; err != nil || out.String() != "3 4 1 2 " {
			t.Errorf("%v, printed %q", err, out.String())
		}
	})
}

// TestPrinterWritesWhatCameOfDeleted: what has come of a topic is written, also where the
// topic is deleted meanwhile.
func TestPrinterWritesWhatCameOfDeleted(t *testing.T) {
	var out bytes.Buffer
	p := newPrinter(output.NewResults(&out), offsets, false, 0)
	p.sub = &fakeSub{}
	p.untilHeads, p.heads = true, map[string]uint64{"u": 9}
	p.Deliver(batch("u", 1, 2))
	p.take()
	p.Deliver(batch("u", 3, 4))
	p.forgetGone(topicsTo(map[string]uint64{"t": 9}))
	p.print(t.Context())
	for p.take() {
		p.print(t.Context())
	}
	if out.String() != "1 2 3 4 " || !p.caughtUp() {
		t.Errorf("printed %q; nothing is left: %v", out.String(), p.caughtUp())
	}
}

// TestPrinterReportsWhyItEnded: by a subscription that ended, and by an event
// that can not be printed, before which all is printed and acked.
func TestPrinterReportsWhyItEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, sub, ended := startPrinter(t.Context(), io.Discard, true, 0, nil)
		refused := errors.New("refused")
		p.Ended(refused)
		if err := <-ended; !errors.Is(err, refused) || sub.left != 1 {
			t.Errorf("%v, left %d times", err, sub.left)
		}
		var out bytes.Buffer
		p, sub, ended = startPrinter(t.Context(), &out, true, 0, nil)
		p.Deliver(append(append(batch("t", 1, 1), batch("bad", 2, 2)...), batch("t", 3, 3)...))
		if err := <-ended; err == nil || out.String() != "1 " || !slices.Equal(sub.acked, []uint64{1}) {
			t.Errorf("%v, printed %q, acked %v", err, out.String(), sub.acked)
		}
	})
}
