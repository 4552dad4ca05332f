package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"eventhub"
)

// maxPublishBytes bounds the events of one publish of several rows: they fit into a frame
// of the protocol with what stands around them.
const maxPublishBytes = 768 << 10

// errLease ends a publish that takes longer than the lease of its rows.
var errLease = errors.New("outbox: the hub has not answered before the lease of the rows ran out")

// errLimited ends a claim of which nothing could be sent, since the hub limits the topics of its rows.
var errLimited = errors.New("outbox: the hub limits how fast the topics of the rows are published to")

// publishRows publishes the rows of one claim in their order, some in each atomic step, and
// returns what has become of each. After the error, which is about the hub or the way to
// it, the rows that were not sent are given back. What the hub refuses for good is parked,
// and what comes after it is published. The rows of a topic that has a limit wait, and those of
// others are published; the error is errLimited where there are none.
func (d *Drainer) publishRows(ctx context.Context, rows []Row, deadline time.Time) ([]Outcome, error) {
	settled := make([]Outcome, 0, len(rows))
	rest := make([]Row, 0, len(rows))
	for _, r := range rows {
		if r.Broken != nil {
			settled = append(settled, d.park(r, r.Broken))
			continue
		}
		rest = append(rest, r)
	}
	longer, end := d.lasting(ctx)
	defer end()
	under, cancel := context.WithDeadlineCause(longer, deadline, errLease)
	defer cancel()
	sent, limited := 0, false
	for len(rest) > 0 && ctx.Err() == nil {
		n := fitting(rest, d.size)
		receipts, err := d.publish(under, rest[:n])
		switch {
		case err == nil:
			for i, r := range rest[:n] {
				settled = append(settled, Outcome{ID: r.Event.ID, Status: Sent, Offset: receipts[i].Offset})
			}
			sent += n
			d.size, rest = min(2*d.size, d.o.Batch), rest[n:]
		case isFinal(err):
			bad := 0
			if at := eventhub.AsError(err).Index; at != nil && *at >= 0 && *at < n {
				bad = *at
			} else if n > 1 { // which one is not said: found by halves
				d.size = n / 2
				continue
			}
			settled = append(settled, d.park(rest[bad], alone(err)))
			rest = slices.Delete(rest, bad, bad+1)
		case isLimit(err) && n > 1: // which topic it is is found by halves
			d.size = n / 2
		case isLimit(err):
			limited = true
			settled, rest = d.hold(settled, rest, err)
		default:
			settled = append(settled, d.failed(rest[:n], err)...)
			d.size = max(1, n/2)
			return giveBack(settled, rest[n:]), err
		}
	}
	if limited && sent == 0 {
		return giveBack(settled, rest), errLimited
	}
	return giveBack(settled, rest), nil
}

// isLimit reports whether the hub limits a topic for now, also where the publisher has waited for that
// until the lease ended.
func isLimit(err error) bool {
	var e *eventhub.Error
	return errors.As(err, &e) && e.Code == eventhub.CodeRateLimited
}

// hold gives back the first row, which has met the limit of its topic, and with it all rows of the topic:
// they wait for as long as it does, so that others are claimed in the meantime. It returns the outcomes,
// and the rows of other topics.
func (d *Drainer) hold(settled []Outcome, rows []Row, err error) ([]Outcome, []Row) {
	first := d.failed(rows[:1], err)[0]
	if wait := time.Now().Add(min(eventhub.AsError(err).RetryAfter, maxBackoff)); wait.After(first.RetryAt) {
		first.RetryAt = wait
	}
	settled = append(settled, first)
	others := make([]Row, 0, len(rows))
	for _, r := range rows[1:] {
		if r.Event.Topic != rows[0].Event.Topic {
			others = append(others, r)
			continue
		}
		settled = append(settled, Outcome{ID: r.Event.ID, Status: Pending, Error: first.Error, RetryAt: first.RetryAt, Unused: true})
	}
	return settled, others
}

// fitting returns how many of the rows go into one publish.
func fitting(rows []Row, most int) int {
	bytes := 0
	for i := range rows {
		e := &rows[i].Event
		bytes += len(e.ID) + len(e.Topic) + len(e.Key) + len(e.SID) + len(e.Payload)
		for name, value := range e.Headers {
			bytes += len(name) + len(value)
		}
		for _, tag := range e.Tags {
			bytes += len(tag)
		}
		for _, id := range e.CausedBy {
			bytes += len(id)
		}
		if i > 0 && (i >= most || bytes > maxPublishBytes) {
			return i
		}
	}
	return len(rows)
}

// publish publishes rows in one atomic step. A time that lies ahead of this machine's clock
// is not published: the hub refuses what lies far ahead of its own.
func (d *Drainer) publish(ctx context.Context, rows []Row) ([]eventhub.Receipt, error) {
	now := time.Now()
	events := make([]eventhub.Event, len(rows))
	for i, r := range rows {
		events[i] = r.Event
		if r.Event.TS > now.UnixMilli() {
			events[i].TS = 0
		}
	}
	receipts, err := d.publisher.Publish(ctx, events...)
	if err != nil && errors.Is(context.Cause(ctx), errLease) {
		return nil, fmt.Errorf("%w: %w", errLease, err)
	}
	d.m.published(len(rows), time.Since(now), err)
	return receipts, err
}

// alone returns what a refusal says of the one row that it is about: which of the events of a
// publish that was means nothing to who reads the row.
func alone(err error) error {
	e := *eventhub.AsError(err)
	if e.Index != nil {
		e.Message = strings.TrimPrefix(e.Message, fmt.Sprintf("events[%d]: ", *e.Index))
	}
	return &e
}

// park settles a row that the hub refuses for good.
func (d *Drainer) park(r Row, why error) Outcome {
	d.o.Log.Warn("outbox: parked", "id", r.Event.ID, "topic", r.Event.Topic, "error", why)
	d.m.parkedRow()
	return Outcome{ID: r.Event.ID, Status: Parked, Error: why.Error()}
}

// failed gives rows back of which the hub could publish none. A row that a hub has refused
// alone waits by itself, and holds only its key up: others can go on.
func (d *Drainer) failed(rows []Row, err error) []Outcome {
	d.m.retriedRows(len(rows))
	var retry time.Time
	if len(rows) == 1 && isAboutTheRow(err) {
		wait := maxBackoff
		if shift := max(rows[0].Attempts-1, 0); shift < 7 {
			wait = min(minBackoff<<shift, maxBackoff)
		}
		retry = time.Now().Add(wait)
	}
	settled := make([]Outcome, len(rows))
	for i, r := range rows {
		settled[i] = Outcome{ID: r.Event.ID, Status: Pending, Error: err.Error(), RetryAt: retry}
	}
	return settled
}

// giveBack adds rows that were not tried.
func giveBack(settled []Outcome, rows []Row) []Outcome {
	for _, r := range rows {
		settled = append(settled, Outcome{ID: r.Event.ID, Status: Pending, Error: r.LastError, Unused: true})
	}
	return settled
}

// isFinal reports whether the hub refuses the events themselves: the same publish fails
// again. A right that is missing for a topic is about the events too.
func isFinal(err error) bool {
	var e *eventhub.Error
	return errors.As(err, &e) && !e.Code.Passing() && !isAboutTheToken(e.Code)
}

// isAboutTheToken reports whether a refusal is about the drainer's token: an operator gives
// it another one, and no row is to blame.
func isAboutTheToken(code eventhub.Code) bool {
	return code.Denied() && code != eventhub.CodeForbidden
}

// isAboutTheRow reports whether a failure that may pass can be due to the one event that
// was published, such as a limit of its topic. A hub that is not there, has too much to do
// or does not know the token is nobody's fault.
func isAboutTheRow(err error) bool {
	var e *eventhub.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == eventhub.CodeRateLimited || e.Code == eventhub.CodeInternal && !errors.Is(err, errLease)
}
