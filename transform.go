package eventhub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub/internal/consume"
)

// Transformer turns one event into others. With a nil error they are published
// and the delivery is acked in one atomic step; where there are none it is acked.
// Any other error nacks it as that of a [Handler] does. The delivery is
// the Transformer's to keep; the events, and their payloads, are not until
// Transform has returned.
type Transformer func(ctx context.Context, d Delivery) ([]Event, error)

// Transform is Consume for programs that make events out of events: the log has
// what t returned for a delivery exactly once, whatever is lost or killed on the
// way, as long as the log of the results keeps it.
//
// Results that have no ID get one that derives from the group, the topic and the
// offset of the delivery and their index, see [ResultID]. So a delivery that comes
// again, because nobody knows whether its step was taken, publishes the same ids,
// and the hub takes each id once. t should therefore make the same of the same
// event, in the same order. It also means that a group that is moved back adds
// nothing to the results that are kept; where the past is to be made again, t gives
// ids of its own, or the group has another name. Results without CausedBy get the
// delivery's id, and those without the headers traceparent, tracestate and
// correlation id (correlationid, correlation-id, x-correlation-id,
// ce-correlationid) get the delivery's: chains can be followed.
//
// What becomes of a step:
//
//   - If another member has the event by now (CodeLeaseLost), nothing is
//     published here, and Transform continues: that member publishes the results.
//   - If the hub has no room (CodeOverloaded, CodeRateLimited) the step is tried
//     again, and those after it wait, as long as the member has the delivery.
//   - Any other refusal is that of an event that can not be published: the delivery
//     is nacked with it.
//   - If the subscription is ending the delivery comes again, to another
//     member or later.
//
// The steps are handed over in the order in which t returned, and a worker does not
// wait for them: while some are being committed, others gather and go together
// next. With a Concurrency of 1 the results are in the order of the
// deliveries, except for those of deliveries that fail and come again. What bounds
// the speed, besides t, is MaxInFlight: so many steps at most are taken in one
// commit and, where the hub is remote, one way there and back.
//
// When ctx ends, the steps of what t had begun are still taken; for those that have
// no answer within 10 s, because the hub is out of reach, it is open whether they
// were. AutoAck, which leaves nothing to ack, is refused with CodeBadRequest.
func Transform(ctx context.Context, s Subscriber, opts GroupOptions, t Transformer) error {
	if opts.AutoAck {
		return Errorf(CodeBadRequest, "a transformation of %s has nothing to ack with AutoAck", quote(opts.Topic))
	}
	return join(ctx, s, opts, func(sub Subscription) (func(Delivery), func()) {
		add, finish := ackPublishTo(ctx, sub)
		handle := func(d Delivery) {
			events, err := t(ctx, d)
			if stopped(ctx, err) {
				return
			}
			if err != nil || len(events) == 0 {
				settle(ctx, sub, d.Lease, err)
				return
			}
			add(AckPublish{Refs: []Ref{{Lease: d.Lease}}, Events: results(opts.Group, &d, events)})
		}
		return handle, finish
	})
}

// ResultID is the id of the result with that index, from 0, of the event at an
// offset in a group's work: 24 hexadecimal digits that stand for group and topic,
// the offset and the index.
func ResultID(group, topic string, offset uint64, index int) string {
	sum := sha256.Sum256([]byte(group + "\x00" + topic))
	id := hex.AppendEncode(make([]byte, 0, MaxIDBytes), sum[:12])
	id = strconv.AppendUint(append(id, '-'), offset, 10)
	return string(strconv.AppendInt(append(id, '-'), int64(index), 10))
}

// results fills in what makes the events those of the delivery.
func results(group string, d *Delivery, events []Event) []Event {
	events = slices.Clone(events)
	chain := chainHeaders(d.Record)
	for i := range events {
		e := &events[i]
		if e.ID == "" {
			e.ID = ResultID(group, d.Topic, d.Offset, i)
		}
		if len(e.CausedBy) == 0 {
			e.CausedBy = []string{d.ID()}
		}
		e.Headers = withHeaders(e.Headers, chain)
	}
	return events
}

// chainHeaders returns the headers that follow an event to what comes of it.
func chainHeaders(r Record) map[string]string {
	if !bytes.Contains(r, []byte(`"headers":`)) { // as in most
		return nil
	}
	var e struct {
		Headers map[string]string `json:"headers"`
	}
	if json.Unmarshal(r, &e) != nil {
		return nil // it is the hub's own record
	}
	maps.DeleteFunc(e.Headers, func(name, _ string) bool {
		return !IsCorrelationHeader(name) && !strings.EqualFold(name, "traceparent") && !strings.EqualFold(name, "tracestate")
	})
	return e.Headers
}

// withHeaders adds what headers do not have, in a copy.
func withHeaders(headers, more map[string]string) map[string]string {
	copied := false
	for name, value := range more {
		if hasHeader(headers, name) {
			continue
		}
		if !copied {
			headers, copied = maps.Clone(headers), true
		}
		if headers == nil {
			headers = make(map[string]string, len(more))
		}
		headers[name] = value
	}
	return headers
}

func hasHeader(headers map[string]string, name string) bool {
	for has := range headers {
		if strings.EqualFold(has, name) {
			return true
		}
	}
	return false
}

// ackPublishWait bounds the wait for answers when nothing new is begun.
const ackPublishWait = 10 * time.Second

// ackPublishTo sends the steps of a Transform, in order: one call at a time, with all that
// gathered during the one before. finish returns when all steps are done, or cannot be;
// steps that would be tried again then come again as deliveries.
func ackPublishTo(ctx context.Context, sub Subscription) (add func(AckPublish), finish func()) {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(ackPublishWait, cancel) })
	steps := consume.NewSteps(func(steps []AckPublish) (again []AckPublish, wait time.Duration) {
		answered := make(chan struct{})
		sub.AckAndPublish(calls, steps, func([]AckPublish) { close(answered) })
		<-answered
		return judge(calls, sub, steps)
	})
	return steps.Add, func() {
		steps.Finish()
		stop()
		cancel()
	}
}

// judge handles the outcomes. It returns the steps to try again, and when, if the hub said
// so.
func judge(ctx context.Context, sub Subscription, steps []AckPublish) (again []AckPublish, wait time.Duration) {
	for _, step := range steps {
		switch err := AsError(step.Err); ErrorCode(step.Err) {
		case "":
		case CodeLeaseLost: // another member's
		case CodeShuttingDown: // it comes again
		case CodeOverloaded, CodeRateLimited:
			wait = max(wait, err.RetryAfter)
			again = append(again, AckPublish{Refs: step.Refs, Events: step.Events})
		default:
			settle(ctx, sub, step.Refs[0].Lease, step.Err)
		}
	}
	return again, wait
}
