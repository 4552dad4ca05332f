package bench

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"eventhub"
	"eventhub/wire"
)

// flowGroup is the group of the workloads that have one.
const flowGroup = "bench"

// LatencyOptions is the workload latency: events published at a fixed rate, each
// delivered to one member of a group and acked.
type LatencyOptions struct {
	Topic      string        `json:"topic"` // default a new one
	Publishers int           `json:"publishers"`
	Members    int           `json:"members"`
	Rate       float64       `json:"rate"` // events a second
	Payload    int           `json:"payload_bytes"`
	Batch      bool          `json:"batch"` // EVENTS frames
	Ack        string        `json:"ack"`
	Duration   time.Duration `json:"duration_ns"`
	Warmup     time.Duration `json:"warmup_ns"`
}

// Validate names everything that is out of range at once.
func (o *LatencyOptions) Validate() error {
	f := o.flow()
	err := errors.Join(f.validate(), check(within{"members", int64(o.Members), 1, 10_000}), checkAck(o.Ack))
	if o.Rate == 0 {
		err = errors.Join(err, eventhub.Errorf(eventhub.CodeBadRequest, "rate is 0; the workload latency needs one"))
	}
	return err
}

func (o *LatencyOptions) flow() *flow {
	f := &flow{
		topic: o.Topic, publishers: o.Publishers, inFlight: latencySlots, payload: o.Payload, rate: o.Rate,
		batch: o.Batch, ack: o.Ack, duration: o.Duration, warmup: o.Warmup, copies: 1,
	}
	for range o.Members {
		f.receivers = append(f.receivers, member(o.Topic, flowGroup))
	}
	return f
}

// latencySlots is how many events of an open load may be unanswered on one
// connection. Those beyond it wait, and their time counts.
const latencySlots = 1_000

// MeasureLatency runs the workload.
func MeasureLatency(ctx context.Context, t *Target, o LatencyOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "latency")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	res, err := o.flow().run(ctx, t)
	if err != nil {
		return nil, err
	}
	res.Workload, res.Settings = "latency", o
	return res, nil
}

// FanoutOptions is the workload fanout: one publisher, and everybody gets
// everything.
type FanoutOptions struct {
	Topic  string `json:"topic"`  // default a new one
	Tails  int    `json:"tails"`  // live tails
	Groups int    `json:"groups"` // or groups with one member each
	// Rate is events a second, each is delivered so many times; 0: as fast
	// as they are answered, InFlight at once.
	Rate     float64       `json:"rate"`
	InFlight int           `json:"in_flight"`
	Payload  int           `json:"payload_bytes"`
	Batch    bool          `json:"batch"`
	Ack      string        `json:"ack"` // of groups
	Duration time.Duration `json:"duration_ns"`
	Warmup   time.Duration `json:"warmup_ns"`
}

// Validate names everything that is out of range at once.
func (o *FanoutOptions) Validate() error {
	err := errors.Join(o.flow().validate(), checkAck(o.Ack), check(
		within{"tails", int64(o.Tails), 0, 10_000},
		within{"groups", int64(o.Groups), 0, 10_000},
	))
	if (o.Tails == 0) == (o.Groups == 0) {
		err = errors.Join(err, eventhub.Errorf(eventhub.CodeBadRequest, "tails is %d and groups is %d; one of them says who receives", o.Tails, o.Groups))
	}
	return err
}

func (o *FanoutOptions) flow() *flow {
	f := &flow{
		topic: o.Topic, publishers: 1, inFlight: o.InFlight, payload: o.Payload, rate: o.Rate,
		batch: o.Batch, duration: o.Duration, warmup: o.Warmup, copies: int64(o.Tails + o.Groups),
	}
	for range o.Tails {
		f.receivers = append(f.receivers, tail(o.Topic, eventhub.Latest))
	}
	for i := range o.Groups {
		f.ack = o.Ack
		f.receivers = append(f.receivers, member(o.Topic, flowGroup+"-"+strconv.Itoa(i)))
	}
	return f
}

// Fanout runs the workload.
func Fanout(ctx context.Context, t *Target, o FanoutOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "fanout")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	res, err := o.flow().run(ctx, t)
	if err != nil {
		return nil, err
	}
	res.Workload, res.Settings = "fanout", o
	return res, nil
}

func member(topic, group string) wire.SubscribeOptions {
	return wire.SubscribeOptions{GroupOptions: eventhub.GroupOptions{Topic: topic, Group: group, BatchSize: 1_000, MaxInFlight: 1_000}}
}

func tail(topic string, from eventhub.Start) wire.SubscribeOptions {
	return wire.OfTail(eventhub.TailOptions{Topic: topic, Start: from, BatchSize: 1_000})
}

// flow is publishers and receivers at the same time. Every event says when it was
// due, so that a delivery shows its latency.
type flow struct {
	topic            string
	publishers       int
	inFlight         int
	payload          int
	rate             float64
	batch            bool
	ack              string
	duration, warmup time.Duration
	receivers        []wire.SubscribeOptions
	copies           int64 // deliveries of each event
}

func (f *flow) shape() *shape {
	return &shape{topic: f.topic, bytes: f.payload, batch: 1, stamp: true}
}

func (f *flow) validate() error {
	return errors.Join(checkRate(f.rate), check(
		within{"publishers", int64(f.publishers), 1, 10_000},
		within{"in-flight", int64(f.inFlight), 1, maxSlots},
		within{"payload", int64(f.payload), int64(f.shape().leastPayload()), eventhub.MaxPayloadBytes},
		within{"duration in ms", f.duration.Milliseconds(), 1, math.MaxInt64},
		within{"warmup in ms", f.warmup.Milliseconds(), 0, math.MaxInt64},
	))
}

func (f *flow) run(ctx context.Context, t *Target) (*Result, error) {
	before, err := t.head(ctx, f.topic)
	if err != nil {
		return nil, err
	}
	r := begin(ctx, t)
	defer r.close()
	crowd, err := r.join(f.receivers, f.batch, f.ack, true, 0)
	if err != nil {
		return nil, err
	}
	pub, err := newLoad(r, f.shape(), f.publishers, f.inFlight, f.rate)
	if err != nil {
		return nil, err
	}
	// The warm-up ends when all of it has come.
	if f.warmup > 0 {
		if _, err := f.phase("warm-up", pub, crowd, f.warmup); err != nil {
			return nil, err
		}
		pub.forget()
		crowd.forget()
	}
	warm := crowd.deliveries.Load()
	took, err := f.phase("measure", pub, crowd, f.duration)
	if err != nil {
		return nil, err
	}
	res := &Result{Unit: "deliveries", Published: pub.accepted.Load(), Publish: pub.latency(), Delivery: summarize(crowd.recs...)}
	res.rate(crowd.deliveries.Load()-warm, took)
	if err := crowd.leave(); err != nil {
		return nil, err
	}
	res.Redelivered = crowd.redelivered.Load()
	res.finish(r)
	res.Hub.Topic = f.topic
	return res, f.verify(ctx, t, before, res)
}

// phase publishes for so long and returns when everybody has everything.
func (f *flow) phase(name string, pub *load, crowd *audience, d time.Duration) (time.Duration, error) {
	began := time.Now()
	if _, err := pub.phase(name, 0, d); err != nil {
		return 0, err
	}
	err := crowd.wait(pub.accepted.Load() * f.copies)
	return time.Since(began), err
}

// verify asks the hub whether it sees what was counted.
func (f *flow) verify(ctx context.Context, t *Target, before uint64, res *Result) error {
	head, err := t.head(ctx, f.topic)
	if err != nil {
		return err
	}
	if int64(head-before) != res.Published {
		return differs("the head of "+f.topic, head-before, res.Published)
	}
	if f.ack == "" {
		return nil
	}
	for _, o := range f.receivers {
		if err := t.allDone(ctx, f.topic, o.Group); err != nil {
			return err
		}
	}
	return nil
}
