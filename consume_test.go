package eventhub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/internal/bubble"
)

// fakeGroup is a Subscriber with one member, which the test feeds by hand.
type fakeGroup struct {
	refuse error

	mu       sync.Mutex
	receiver eventhub.Receiver
	verdicts []eventhub.Settlement
	left     int
	ready    int
	// ackAndPublish is asked by AckAndPublish.
	ackAndPublish func(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish))
}

func (f *fakeGroup) Subscribe(_ context.Context, _ eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.receiver = r
	return fakeMember{f}, f.refuse
}

func (f *fakeGroup) Tail(ctx context.Context, _ eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	return f.Subscribe(ctx, eventhub.GroupOptions{}, r)
}

func (f *fakeGroup) Settle(context.Context, string, string, eventhub.Settlement) ([]eventhub.Outcome, error) {
	return nil, errors.New("not used")
}

func (f *fakeGroup) AckAndPublish(context.Context, string, string, []eventhub.AckPublish, func([]eventhub.AckPublish)) {
	panic("not used")
}

type fakeMember struct{ f *fakeGroup }

func (m fakeMember) AckAndPublish(ctx context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	m.f.ackAndPublish(ctx, hs, done)
}

func (m fakeMember) Settle(ctx context.Context, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.verdicts = append(m.f.verdicts, s)
	return make([]eventhub.Outcome, len(s.Refs)), nil
}

func (m fakeMember) Ready() {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.ready++
}

func (m fakeMember) Unsubscribe(ctx context.Context) error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.f.left++
	return ctx.Err()
}

func (m fakeMember) Drop(int)                     {}
func (m fakeMember) Sent(int)                     {}
func (m fakeMember) Pause(context.Context) error  { return nil }
func (m fakeMember) Resume(context.Context) error { return nil }

// feed delivers events at offsets first, first+1, … from memory that is
// overwritten afterwards, as a Receiver must expect.
func (f *fakeGroup) feed(first, n int) int {
	var batch []eventhub.Delivery
	for i := range n {
		rec := []byte(`{"ts":1723140000000,"id":"e","topic":"t","payload":1}`)
		batch = append(batch, eventhub.Delivery{Topic: "t", Offset: uint64(first + i), Record: rec,
			Attempt: 1, Lease: eventhub.Lease{Runtime: 1, Offset: uint64(first + i), Serial: 1}})
	}
	f.mu.Lock()
	receiver := f.receiver
	f.mu.Unlock()
	taken := receiver.Deliver(batch)
	for _, d := range batch {
		clear(d.Record)
	}
	return taken
}

func TestConsumeGivesVerdicts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		var order []uint64
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.GroupOptions{Group: "g"}, func(_ context.Context, d eventhub.Delivery) error {
				if e, err := d.Event(); err != nil || e.ID != "e" {
					t.Errorf("offset %d: event %+v, %v", d.Offset, e, err)
				}
				order = append(order, d.Offset)
				if d.Offset == 2 {
					return errors.New("no\xff" + strings.Repeat("o", 2000))
				}
				return nil
			})
		}()
		synctest.Wait()
		if n := f.feed(1, 3); n != 3 {
			t.Errorf("took %d of 3", n)
		}
		synctest.Wait()
		if !slices.Equal(order, []uint64{1, 2, 3}) {
			t.Errorf("handled in the order %v", order)
		}
		for i, want := range []eventhub.Verdict{eventhub.Ack, eventhub.Nack, eventhub.Ack} {
			v := f.verdicts[i]
			if v.Verdict != want || v.Refs[0].Lease.Offset != uint64(i+1) {
				t.Errorf("verdict %d is %+v", i, v)
			}
			if err := v.Validate(); err != nil {
				t.Errorf("verdict %d: %v", i, err)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Consume = %v; want nil when its context ends", err)
		}
		if f.left != 1 {
			t.Errorf("left the group %d times", f.left)
		}
		if n := f.feed(9, 1); n != 0 {
			t.Errorf("took %d after the end", n)
		}
	})
}

// TestConsumeOfAGroupThatWasMoved: what waits in the topic of a seek has void leases and
// is not begun; what waits of another topic is.
func TestConsumeOfAGroupThatWasMoved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		step, ended := make(chan struct{}), make(chan error, 1)
		var handled []string
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.GroupOptions{Group: "g"}, func(_ context.Context, d eventhub.Delivery) error {
				handled = append(handled, fmt.Sprint(d.Topic, d.Offset, "/", d.Lease.Runtime))
				<-step
				return nil
			})
		}()
		synctest.Wait()
		f.feed(1, 3)
		synctest.Wait() // the first is being handled
		f.receiver.Deliver([]eventhub.Delivery{{Topic: "u", Offset: 1, Lease: eventhub.Lease{Runtime: 5, Offset: 1}}})
		f.receiver.Deliver([]eventhub.Delivery{
			{Topic: "t", Offset: 1, Lease: eventhub.Lease{Runtime: 2, Offset: 1}, Sought: true},
			{Topic: "t", Offset: 2, Lease: eventhub.Lease{Runtime: 2, Offset: 2}}})
		// With AutoAck there are no leases, and nothing comes again.
		f.receiver.Deliver([]eventhub.Delivery{{Topic: "auto", Offset: 9}})
		f.receiver.Deliver([]eventhub.Delivery{{Topic: "auto", Offset: 1, Sought: true}})
		close(step)
		synctest.Wait()
		if want := []string{"t1/1", "u1/5", "t1/2", "t2/2", "auto9/0", "auto1/0"}; !slices.Equal(handled, want) {
			t.Errorf("%v are handled; want %v", handled, want)
		}
		cancel()
		<-ended
	})
}

// TestConsumeEndsWithItsContext: also where the group was not joined yet.
func TestConsumeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	refused := errors.New("no entry")
	f := &fakeGroup{refuse: refused}
	consume := func(ctx context.Context) error {
		return eventhub.Consume(ctx, f, eventhub.GroupOptions{Group: "g"}, nil)
	}
	transform := func(ctx context.Context) error {
		return eventhub.Transform(ctx, f, eventhub.GroupOptions{Group: "g"}, nil)
	}
	if err, other := consume(ctx), transform(ctx); err != refused || other != refused {
		t.Errorf("Consume = %v and Transform = %v; want the refusal", err, other)
	}
	cancel()
	if err, other := consume(ctx), transform(ctx); err != nil || other != nil {
		t.Errorf("Consume = %v and Transform = %v; want nil when their context has ended", err, other)
	}
}

// TestConsumeFinishesWhatItBegan: a handler under way when the context ends
// still gives its verdict; what was only queued is not begun.
func TestConsumeFinishesWhatItBegan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		began := 0
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.GroupOptions{Group: "g"}, func(context.Context, eventhub.Delivery) error {
				began++
				<-release
				return nil
			})
		}()
		synctest.Wait()
		f.feed(1, 5)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatal("Consume returned while a handler was running")
		}
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if began != 1 || len(f.verdicts) != 1 {
			t.Errorf("%d handlers began and %d verdicts were given; want 1 and 1", began, len(f.verdicts))
		}
	})
}

func TestConsumeReportsWhyItEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		refused := errors.New("no entry")
		if err := eventhub.Consume(context.Background(), &fakeGroup{refuse: refused}, eventhub.GroupOptions{}, nil); !errors.Is(err, refused) {
			t.Errorf("Consume = %v; want the reason of the refusal", err)
		}
		f := &fakeGroup{}
		ended := make(chan error, 1)
		go func() { ended <- eventhub.Consume(context.Background(), f, eventhub.GroupOptions{Concurrency: 4}, nil) }()
		synctest.Wait()
		gone := errors.New("gone")
		f.receiver.Ended(gone)
		if err := <-ended; !errors.Is(err, gone) {
			t.Errorf("Consume = %v; want the reason", err)
		}
		f = &fakeGroup{}
		go func() {
			ended <- eventhub.Consume(context.Background(), f, eventhub.GroupOptions{Topic: "a.*", Group: "g"}, nil)
		}()
		synctest.Wait()
		f.receiver.Ended(eventhub.Errorf(eventhub.CodeNotSubscribed, "the topic was deleted"))
		if e := eventhub.AsError(<-ended); e.Code != eventhub.CodeNotSubscribed || e.Topic != "a.*" || e.Group != "g" {
			t.Errorf("Consume = %+v; want the subscription in it", e)
		}
	})
}

// TestFollow: the handler gets one event after the other, and its error ends the tail;
// there are no verdicts.
func TestFollow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		var order []uint64
		enough := errors.New("enough")
		ended := make(chan error, 1)
		follow := func(ctx context.Context) {
			ended <- eventhub.Follow(ctx, f, eventhub.TailOptions{Topic: "t"}, func(_ context.Context, d eventhub.Delivery) error {
				if order = append(order, d.Offset); d.Offset == 3 {
					return enough
				}
				return nil
			})
		}
		go follow(context.Background())
		synctest.Wait()
		f.feed(1, 5)
		if err := <-ended; err != enough || !slices.Equal(order, []uint64{1, 2, 3}) {
			t.Errorf("Follow = %v after %v", err, order)
		}
		ctx, cancel := context.WithCancel(context.Background())
		go follow(ctx)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Follow = %v; want nil when its context ends", err)
		}
		go follow(context.Background())
		synctest.Wait()
		gone := errors.New("gone")
		f.receiver.Ended(gone)
		if err := <-ended; err != gone {
			t.Errorf("Follow = %v; want the reason", err)
		}
		if len(f.verdicts) != 0 || f.left != 3 {
			t.Errorf("%d verdicts, left %d times", len(f.verdicts), f.left)
		}
	})
}

// TestDeliveriesEnd: the loop ends with the reason, and what it did not get to goes
// back with the membership.
func TestDeliveriesEnd(t *testing.T) {
	gone, asked, refused := errors.New("gone"), errors.New("asked to stop"), errors.New("no entry")
	for name, tt := range map[string]struct {
		end  func(f *fakeGroup, cancel context.CancelCauseFunc)
		want error
		left int
	}{
		"context":      {func(_ *fakeGroup, cancel context.CancelCauseFunc) { cancel(asked) }, asked, 1},
		"subscription": {func(f *fakeGroup, _ context.CancelCauseFunc) { f.receiver.Ended(gone) }, gone, 1},
		"refusal":      {nil, refused, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := &fakeGroup{}
				if tt.end == nil {
					f.refuse = tt.want
				}
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				step, over := make(chan struct{}), make(chan struct{})
				var seen []uint64
				var reasons []error
				go func() {
					defer close(over)
					for d, err := range eventhub.Deliveries(ctx, f, eventhub.GroupOptions{Topic: "t", Group: "g"}) {
						if err != nil {
							reasons = append(reasons, err)
							continue // there is nothing after it
						}
						seen = append(seen, d.Offset)
						if err := d.Ack(ctx); err != nil {
							t.Error(err)
						}
						<-step
					}
				}()
				synctest.Wait()
				if tt.end != nil {
					f.feed(1, 3)
					step <- struct{}{}
					synctest.Wait()
					tt.end(f, cancel)
					synctest.Wait()
					step <- struct{}{}
				}
				<-over
				if len(reasons) != 1 || !errors.Is(reasons[0], tt.want) {
					t.Errorf("the reasons are %v; want %v", reasons, tt.want)
				}
				if want := 2 * tt.left; len(seen) != want || len(f.verdicts) != want || f.left != tt.left {
					t.Errorf("saw %v, %d verdicts, left %d times", seen, len(f.verdicts), f.left)
				}
			})
		})
	}
}

// TestDeliveriesLeft: who breaks off leaves the group, with a panic too.
func TestDeliveriesLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, panics := range []bool{false, true} {
			f, over := &fakeGroup{}, make(chan any)
			go func() {
				defer func() { over <- recover() }()
				for range eventhub.Deliveries(context.Background(), f, eventhub.GroupOptions{Topic: "t", Group: "g"}) {
					if panics {
						panic("in the loop")
					}
					break
				}
			}()
			synctest.Wait()
			f.feed(1, 3)
			if got := <-over; (got != nil) != panics {
				t.Errorf("recovered %v", got)
			}
			if n := f.feed(4, 1); n != 0 || f.left != 1 || len(f.verdicts) != 0 {
				t.Errorf("took %d more, left %d times, %d verdicts", n, f.left, len(f.verdicts))
			}
		}
	})
}

// TestConsumeIsBounded: more than max_in_flight is not taken, with AutoAck
// neither, and asked for when half of it is done.
func TestConsumeIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		step := make(chan struct{})
		handled := 0
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.GroupOptions{MaxInFlight: 4, AutoAck: true}, func(context.Context, eventhub.Delivery) error {
				<-step
				handled++
				return nil
			})
		}()
		synctest.Wait()
		f.feed(1, 1)
		synctest.Wait() // the worker has it; the queue is empty
		if n := f.feed(2, 9); n != 4 {
			t.Errorf("took %d of 9 with room for 4", n)
		}
		for want := range 2 {
			if f.ready != 0 {
				t.Errorf("asked for more after %d of 4", want)
			}
			step <- struct{}{}
			synctest.Wait()
		}
		if f.ready != 1 {
			t.Errorf("asked for more %d times; want once", f.ready)
		}
		if n := f.feed(6, 9); n != 2 {
			t.Errorf("took %d of 9 with room for 2", n)
		}
		cancel()
		close(step)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(f.verdicts) != 0 {
			t.Errorf("%d verdicts with AutoAck", len(f.verdicts))
		}
	})
}

// TestGapsReachHandlers: a gap comes with its delivery, in all forms of loops, and once to
// OnGap before that is handled, however often the event comes again; one that a tail learns
// when it begins comes with the next event of its topic.
func TestGapsReachHandlers(t *testing.T) {
	gap := func(after, first uint64) *eventhub.Gap { return &eventhub.Gap{Topic: "t", After: after, First: first} }
	for _, name := range []string{"Consume", "Transform", "Deliveries", "Events"} {
		bubble.Test(t, func(t *testing.T) {
			f := &fakeGroup{}
			var came []string
			onGap := func(g eventhub.Gap) { came = append(came, fmt.Sprintf("gap %d %d", g.After, g.First)) }
			note := func(d *eventhub.Delivery) {
				text := fmt.Sprintf("event %d", d.Offset)
				if d.Gap != nil {
					text += fmt.Sprintf(" after %d %d", d.Gap.After, d.Gap.First)
				}
				came = append(came, text)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			group := eventhub.GroupOptions{Topic: "t", Group: "g", OnGap: onGap}
			go func() {
				defer close(ended)
				switch name {
				case "Consume":
					_ = eventhub.Consume(ctx, f, group, func(_ context.Context, d eventhub.Delivery) error { note(&d); return nil })
				case "Transform":
					_ = eventhub.Transform(ctx, f, group, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) { note(&d); return nil, nil })
				case "Deliveries":
					for d, err := range eventhub.Deliveries(ctx, f, group) {
						if err == nil {
							note(&d)
						}
					}
				case "Events":
					for d, err := range eventhub.Events(ctx, f, eventhub.TailOptions{Topic: "t", OnGap: onGap}) {
						if err == nil {
							note(&d)
						}
					}
				}
			}()
			synctest.Wait()
			f.receiver.(eventhub.Gapped).Gap(eventhub.Gap{Topic: "u", After: 1, First: 2})
			f.receiver.(eventhub.Gapped).Gap(*gap(4, 7))
			deliver := func(offset uint64, g *eventhub.Gap) {
				f.receiver.Deliver([]eventhub.Delivery{{Topic: "t", Offset: offset, Gap: g, Record: eventhub.Record(`{"ts":1723140000000,"id":"e","topic":"t","payload":1}`)}})
				synctest.Wait()
			}
			deliver(7, nil)
			deliver(8, nil)
			deliver(20, gap(8, 20))
			deliver(20, gap(8, 20))
			deliver(40, gap(20, 40))
			cancel()
			<-ended
			want := []string{"gap 4 7", "event 7 after 4 7", "event 8", "gap 8 20", "event 20 after 8 20", "event 20 after 8 20", "gap 20 40", "event 40 after 20 40"}
			if !slices.Equal(came, want) {
				t.Errorf("%s: came %q; want %q", name, came, want)
			}
		})
	}
}
