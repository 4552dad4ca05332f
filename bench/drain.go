package bench

import (
	"context"
	"errors"
	"time"

	"eventhub"
	"eventhub/wire"
)

// Preloading is done as fast as can be: what it costs is not measured.
const (
	preloadConnections = 8
	preloadBatch       = 64
	preloadInFlight    = 8 * preloadBatch
)

// warmShare of a backlog, one in so many, is read before the clock starts.
const warmShare = 10

// SubscribeOptions is the workload subscribe: a group works off a backlog, and
// acks every event.
type SubscribeOptions struct {
	Topic    string `json:"topic"` // default a new one
	Members  int    `json:"members"`
	InFlight int    `json:"in_flight"` // leases of each member
	Payload  int    `json:"payload_bytes"`
	Batch    bool   `json:"batch"` // EVENTS frames
	Ack      string `json:"ack"`
	// SDK consumes through the Go SDK, whose handlers ack as it does; Batch and Ack say nothing then.
	SDK bool `json:"sdk,omitempty"`
	// Count is how many events are preloaded, rounded up to whole frames. The first
	// tenth is warm-up.
	Count int64 `json:"count"`
}

// Validate names everything that is out of range at once.
func (o *SubscribeOptions) Validate() error {
	return errors.Join(checkAck(o.Ack), check(
		within{"members", int64(o.Members), 1, 10_000},
		within{"in-flight", int64(o.InFlight), 1, 10_000},
		within{"payload", int64(o.Payload), 2, eventhub.MaxPayloadBytes},
		within{"count", o.Count, preloadBatch, 1_000_000_000},
	))
}

// Subscribe runs the workload.
func Subscribe(ctx context.Context, t *Target, o SubscribeOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "subscribe")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := drain{topic: o.Topic, payload: o.Payload, count: o.Count, batch: o.Batch, ack: o.Ack, copies: 1}
	for range o.Members {
		s := member(o.Topic, flowGroup)
		s.Start, s.MaxInFlight = eventhub.Earliest, o.InFlight
		d.receivers = append(d.receivers, s)
	}
	d.sdk = o.SDK
	res, err := d.run(ctx, t)
	if err != nil {
		return nil, err
	}
	res.Workload, res.Settings = "subscribe", o
	if err := t.allDone(ctx, o.Topic, flowGroup); err != nil {
		return nil, err
	}
	return res, nil
}

// CatchupOptions is the workload catchup: tails that begin at the earliest event
// of a backlog.
type CatchupOptions struct {
	Topic   string `json:"topic"` // default a new one
	Tails   int    `json:"tails"`
	Payload int    `json:"payload_bytes"`
	Batch   bool   `json:"batch"`
	// Count is how many events are preloaded, rounded up to whole frames. The first
	// tenth is warm-up.
	Count int64 `json:"count"`
}

// Validate names everything that is out of range at once.
func (o *CatchupOptions) Validate() error {
	return check(
		within{"tails", int64(o.Tails), 1, 10_000},
		within{"payload", int64(o.Payload), 2, eventhub.MaxPayloadBytes},
		within{"count", o.Count, preloadBatch, 1_000_000_000},
	)
}

// Catchup runs the workload.
func Catchup(ctx context.Context, t *Target, o CatchupOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "catchup")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := drain{topic: o.Topic, payload: o.Payload, count: o.Count, batch: o.Batch, copies: int64(o.Tails)}
	for range o.Tails {
		d.receivers = append(d.receivers, tail(o.Topic, eventhub.Earliest))
	}
	res, err := d.run(ctx, t)
	if err != nil {
		return nil, err
	}
	res.Workload, res.Settings = "catchup", o
	return res, nil
}

// drain reads a backlog to its end.
type drain struct {
	topic     string
	payload   int
	count     int64
	batch     bool
	ack       string
	receivers []wire.SubscribeOptions
	copies    int64
	sdk       bool // through the Go SDK
}

func (d *drain) run(ctx context.Context, t *Target) (*Result, error) {
	before, err := t.head(ctx, d.topic)
	if err != nil {
		return nil, err
	}
	if before > 0 {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "topic %q has events; this workload needs a new one", d.topic)
	}
	r := begin(ctx, t)
	defer r.close()
	loaded, err := preload(ctx, t, &shape{topic: d.topic, bytes: d.payload, batch: preloadBatch}, d.count)
	if err != nil {
		return nil, err
	}
	if d.sdk {
		return d.consume(r, loaded)
	}
	crowd, err := r.join(d.receivers, d.batch, d.ack, false, loaded*d.copies/warmShare)
	if err != nil {
		return nil, err
	}
	r.enter("measure", loaded*d.copies)
	warm, err := crowd.awaitWarm()
	if err != nil {
		return nil, err
	}
	if err := crowd.wait(loaded * d.copies); err != nil {
		return nil, err
	}
	if err := crowd.leave(); err != nil {
		return nil, err
	}
	res := &Result{Unit: "deliveries", Published: loaded, Redelivered: crowd.redelivered.Load()}
	res.rate(crowd.deliveries.Load()-warm.deliveries, time.Since(warm.at))
	if all := crowd.deliveries.Load(); all != loaded*d.copies {
		return nil, differs("the number of deliveries", loaded*d.copies, all)
	}
	res.finish(r)
	res.Hub.Topic = d.topic
	return res, nil
}

// preload publishes the backlog, at least so many events, and returns how many the
// hub has.
func preload(ctx context.Context, t *Target, s *shape, count int64) (int64, error) {
	r := begin(ctx, t)
	defer r.close()
	for s.batch > 1 && s.batch*s.bytes > preloadFrame {
		s.batch /= 2
	}
	l, err := newLoad(r, s, preloadConnections, preloadInFlight, 0)
	if err != nil {
		return 0, err
	}
	if _, err := l.phase("preload", count, 0); err != nil {
		return 0, err
	}
	if refused := r.refused.sample(); refused != "" {
		return 0, eventhub.Errorf(eventhub.CodePublishFailed, "the backlog can not be made: %s", refused)
	}
	head, err := t.head(ctx, s.topic)
	if err == nil && int64(head) != l.accepted.Load() {
		err = differs("the head of "+s.topic, head, l.accepted.Load())
	}
	return l.accepted.Load(), err
}

// preloadFrame bounds the payloads of one frame of a backlog.
const preloadFrame = 512 << 10
