package bus

import (
	"context"
	"time"

	"eventhub"
	"eventhub/admin"
)

// State implements admin.History.
func (b *Bus) State(ctx context.Context, q admin.StateQuery) (admin.StatePage, error) {
	bad := func(format string, args ...any) (admin.StatePage, error) {
		return admin.StatePage{}, eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	switch now := b.clock.Wall().UnixMilli(); {
	case q.AtTS > now:
		return bad("at is the time %s, which is in the future: it is %s now", clockTime(q.AtTS), clockTime(now))
	case q.Wait < 0 || q.Wait > admin.MaxStateWait:
		return bad("the wait for min_offset is %s; up to %s is allowed", q.Wait, admin.MaxStateWait)
	case q.MinOffset > eventhub.MaxOffset:
		return bad("min_offset is %d; at most %d is allowed", q.MinOffset, uint64(eventhub.MaxOffset))
	case q.At != 0 && q.At < q.MinOffset:
		return bad("at is the offset %d, which is below min_offset, %d", q.At, q.MinOffset)
	}
	if q.MinOffset != 0 && q.Page == "" {
		if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
			return admin.StatePage{}, err
		}
		if err := b.awaitOffset(ctx, q.Topic, q.MinOffset, q.Wait); err != nil {
			return admin.StatePage{}, err
		}
	}
	return b.history.State(ctx, q)
}

// indexed returns when the store has indexed the keys of a topic, and begins that where need be. It is
// called before anything reads the state by key. Where that takes too long the error says how far
// it is; where the settings of the topic say that it has no state, the error has CodeUnsupportedOp.
func (b *Bus) indexed(ctx context.Context, topic string) error { return b.keyIndex.Ask(ctx, topic) }

// StateDiff implements admin.History.
func (b *Bus) StateDiff(ctx context.Context, q admin.StateDiffQuery) (admin.StateDiffPage, error) {
	now := b.clock.Wall().UnixMilli()
	for _, m := range []struct {
		name string
		admin.Moment
	}{{"from", q.From}, {"to", q.To}} {
		if m.TS > now {
			return admin.StateDiffPage{}, eventhub.Errorf(eventhub.CodeBadRequest, "%s is the time %s, which is in the future: it is %s now", m.name, clockTime(m.TS), clockTime(now))
		}
	}
	return b.history.StateDiff(ctx, q)
}

// wakeUp is woken by a log; it has room for one wake-up.
type wakeUp chan struct{}

// Wake implements topiclog.Watcher.
func (w wakeUp) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// awaitOffset waits until a topic has an offset.
func (b *Bus) awaitOffset(ctx context.Context, topic string, offset uint64, wait time.Duration) error {
	head, err := b.store.Head(ctx, topic)
	if err != nil {
		return storeError(err, "look up topic %q", topic)
	}
	if head >= offset {
		return nil
	}
	log := b.logs.Use(topic)
	defer b.logs.Leave(log)
	if head, err = b.store.Head(ctx, topic); err != nil {
		return storeError(err, "look up topic %q", topic)
	}
	log.Learn(head)
	woken := make(wakeUp, 1)
	log.Watch(woken)
	defer log.Unwatch(woken)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if head = log.Head(); head >= offset {
			return nil
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return eventhub.AsError(ctx.Err())
		case <-timer.C:
			return eventhub.Errorf(eventhub.CodeWaitTimeout, "topic %q has no offset %d after %s: its head is %d", topic, offset, wait, head)
		}
	}
}

// clockTime writes a time, in epoch milliseconds, as people read it.
func clockTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
