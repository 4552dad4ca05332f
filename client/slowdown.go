package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"eventhub"
)

// leastPause is how long a publish or a connection waits that the hub has refused for now without
// a time.
const leastPause = 100 * time.Millisecond

// pauseAfter returns how long to wait before a publish or a connection is tried again that was
// refused with err because too much comes at a time. It is a little more than the hub says, and not the
// same for all who wait.
func pauseAfter(err error) (wait time.Duration, again bool) {
	if err == nil || eventhub.ErrorCode(err) != eventhub.CodeRateLimited {
		return 0, false
	}
	return pauseOf(err), true
}

// pauseAfterPublish is pauseAfter for events that the hub may also refuse until it has indexed a topic: of
// a key of which something is expected.
func pauseAfterPublish(events []eventhub.Event, err error) (wait time.Duration, again bool) {
	if err != nil && eventhub.ErrorCode(err) == eventhub.CodeOverloaded && eventhub.AsError(err).RetryAfter > 0 &&
		slices.ContainsFunc(events, func(e eventhub.Event) bool { return e.Expect.Kind == eventhub.ExpectKeyOffset }) {
		return pauseOf(err), true
	}
	return pauseAfter(err)
}

// pauseOf returns how long to wait after an error that says so.
func pauseOf(err error) time.Duration {
	wait := eventhub.AsError(err).RetryAfter
	if wait <= 0 {
		wait = leastPause
	}
	return wait + rand.N(wait/8+1)
}

// pause waits. It is false where the context or the client ends before.
func (c *Client) pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// Publish sends the events in one frame, as one atomic step, and waits for their
// receipts. While there is no connection it waits for one. With a refusal of the hub nothing
// is published; the end of ctx, ErrClosed, CodeInternal and CodeUnknownProducer leave it open:
// whoever wants to publish again then gives the events ids, under which that is always safe.
//
// A hub that limits how fast is published makes it slower: it waits for as long as the hub says
// and tries again. CodeRateLimited is the error where ctx ends meanwhile. So does one that indexes a
// topic, because something is expected of a key; the error is CodeOverloaded then.
//
// What is more than a frame of the hub holds (see Info) can not be one step and is
// refused with CodeTooLarge: publish less in one call.
//
// Duplicate is reported for ids given by the caller only.
func (c *Client) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	for {
		receipts, err := c.publishOnce(ctx, events)
		wait, again := pauseAfterPublish(events, err)
		if !again || c.cfg.limitErrors {
			return receipts, err
		}
		if !c.pause(ctx, wait) {
			return receipts, fmt.Errorf("%w, and there was no time to try again", err)
		}
	}
}

// Enqueue implements eventhub.Publisher. Each publication is a frame of its own;
// its Receipts are filled with an Err as those of Publish; with CodeWaitTimeout or CodeGone they
// are whole, unless the hub is an older one, which gives the ids alone. done is
// called by a goroutine of the client or, where nothing was sent, before Enqueue
// returns; calls for answers come one after the other, in the order of the answers,
// and may call Enqueue, which waits while there is no room. When ctx ends later, what is not answered fails with its error, its
// outcome unknown. Where a connection is lost meanwhile, WaitUpTo begins again.
//
// Publications that the hub refuses with CodeRateLimited are sent again by themselves, after
// those that were sent meanwhile, and done is called when that is over, from a goroutine of
// its own. Drain does not wait for them: they fail with an error then, and are not published.
func (c *Client) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	c.enqueueOnce(ctx, pubs, func(pubs []eventhub.Publication) { c.enqueueAgain(ctx, pubs, done) })
}

// enqueueAgain sends again what was refused for now, or calls done.
func (c *Client) enqueueAgain(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	var wait time.Duration
	var refused []int
	for i := range pubs {
		if w, again := pauseAfterPublish(pubs[i].Events, pubs[i].Err); again && !c.cfg.limitErrors {
			wait, refused = max(wait, w), append(refused, i)
		}
	}
	if refused == nil || !c.addTask() {
		done(pubs)
		return
	}
	go func() {
		defer c.tasks.Done()
		if !c.pause(ctx, wait) {
			done(pubs)
			return
		}
		rest := make([]eventhub.Publication, len(refused))
		for i, at := range refused {
			rest[i] = pubs[at]
		}
		c.enqueueOnce(ctx, rest, func(rest []eventhub.Publication) {
			for i, at := range refused {
				pubs[at] = rest[i]
			}
			c.enqueueAgain(ctx, pubs, done)
		})
	}()
}

// addTask adds a task, whose end is tasks.Done, unless the client takes nothing any more.
func (c *Client) addTask() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.admit() != nil {
		return false
	}
	c.tasks.Add(1) // while run is one of them
	return true
}
