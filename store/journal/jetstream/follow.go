package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"eventhub/store/journal"
)

const (
	// heartbeat is how often the server says that it is there where no entry comes. A follower
	// that misses two begins again.
	heartbeat = time.Second
	expiry    = 5 * time.Second
	// ahead is how many bytes the server may send before they are visited: more than it takes a visitor to apply
	// while the server reads the next ones, some tens of entries of 1 MiB.
	ahead = 32 << 20
	// idle is when the server removes a consumer whose follower is gone.
	idle = 30 * time.Second
	// again is the pause before a follower begins again.
	again = 200 * time.Millisecond
	// holes is how often a place has to be passed over until it is taken for lost.
	holes = 3
)

// Follow implements journal.Journal. It reads by a consumer, which it makes anew where anything
// is wrong with it: entries that were lost on the way, no heartbeat, a server that is gone.
func (j *Journal) Follow(ctx context.Context, after uint64, visit func(at uint64, entry []byte) error) error {
	ctx, done := j.call(ctx)
	defer done()
	f := follower{j: j, next: after + 1, visit: visit}
	for {
		before := f.next
		err := f.session(ctx)
		switch {
		case f.result != nil:
			return f.result
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.next > before:
			f.missed = 0
		}
		if errors.Is(err, errHole) {
			if err := f.hole(ctx); err != nil {
				return err
			}
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// follower is one Follow.
type follower struct {
	j      *Journal
	next   uint64
	visit  func(at uint64, entry []byte) error
	missed int   // how often next was passed over
	result error // of the visitor
}

// errHole: an entry after the next one came.
var errHole = errors.New("the next entry did not come")

// session visits what one consumer delivers, until anything is wrong with it or visit fails.
func (f *follower) session(ctx context.Context) error {
	consumer, err := f.consumer(ctx)
	if err != nil {
		return fmt.Errorf("make a consumer: %w", err)
	}
	defer f.j.forget(consumer.CachedInfo().Name)
	messages, err := consumer.Messages(jetstream.PullMaxBytes(ahead), jetstream.PullExpiry(expiry), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return fmt.Errorf("read from a consumer: %w", err)
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		switch at := meta.Sequence.Stream; {
		case at < f.next:
			continue
		case at > f.next:
			return errHole
		}
		if f.result = f.visit(f.next, msg.Data()); f.result != nil {
			return f.result
		}
		f.next++
	}
}

func (f *follower) consumer(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return f.j.stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       f.next,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: idle,
		Replicas:          1,
		MemoryStorage:     true,
	})
}

// hole looks why the next entry did not come: nil where it is there.
func (f *follower) hole(ctx context.Context) error {
	switch _, err := f.j.Read(ctx, f.next); {
	case errors.Is(err, journal.ErrTrimmed):
		return err
	case err == nil:
		return nil // it was lost on the way
	}
	if f.missed++; f.missed < holes {
		return nil
	}
	return fmt.Errorf("%w: the stream %s has entries after %d, and none at it", journal.ErrDiverged, f.j.options.Stream, f.next)
}

// forget removes a consumer. The server does it by itself after a while.
func (j *Journal) forget(consumer string) {
	if j.closed.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(j.closed, heartbeat)
	defer cancel()
	_ = j.stream.DeleteConsumer(ctx, consumer)
}
