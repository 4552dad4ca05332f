package eventhub_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"eventhub"
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

func (f *fakeGroup) Subscribe(_ context.Context, _ eventhub.SubscribeOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.receiver = r
	return fakeMember{f}, f.refuse
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
	synctest.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		var order []uint64
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.SubscribeOptions{Group: "g"}, 1, func(_ context.Context, d eventhub.Delivery) error {
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

// TestConsumeFinishesWhatItBegan: a handler under way when the context ends
// still gives its verdict; what was only queued is not begun.
func TestConsumeFinishesWhatItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		release := make(chan struct{})
		began := 0
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.SubscribeOptions{Group: "g"}, 1, func(context.Context, eventhub.Delivery) error {
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
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("no entry")
		if err := eventhub.Consume(context.Background(), &fakeGroup{refuse: refused}, eventhub.SubscribeOptions{}, 1, nil); !errors.Is(err, refused) {
			t.Errorf("Consume = %v; want the reason of the refusal", err)
		}
		f := &fakeGroup{}
		ended := make(chan error, 1)
		go func() { ended <- eventhub.Consume(context.Background(), f, eventhub.SubscribeOptions{}, 4, nil) }()
		synctest.Wait()
		gone := errors.New("gone")
		f.receiver.Ended(gone)
		if err := <-ended; !errors.Is(err, gone) {
			t.Errorf("Consume = %v; want the reason", err)
		}
	})
}

// TestConsumeOfATailGivesNoVerdicts: there is nothing to ack.
func TestConsumeOfATailGivesNoVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for group, verdicts := range map[string]int{"": 0, "g": 3} {
			f := &fakeGroup{}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				ended <- eventhub.Consume(ctx, f, eventhub.SubscribeOptions{Topic: "t", Group: group}, 1,
					func(context.Context, eventhub.Delivery) error { return errors.New("no") })
			}()
			synctest.Wait()
			f.feed(1, 3)
			synctest.Wait()
			cancel()
			if err := <-ended; err != nil || len(f.verdicts) != verdicts {
				t.Errorf("group %q: %d verdicts, %v; want %d", group, len(f.verdicts), err, verdicts)
			}
		}
	})
}

// TestConsumeIsBounded: more than maxInFlight is not taken, with AutoAck
// neither, and asked for when half of it is done.
func TestConsumeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		step := make(chan struct{})
		handled := 0
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.SubscribeOptions{MaxInFlight: 4, AutoAck: true}, 1, func(context.Context, eventhub.Delivery) error {
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
