package bench

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/internal/eventid"
)

// The workloads publish and subscribe with the option SDK: the load is what a program does that uses the Go SDK,
// so what the SDK costs is in the figure. Of publish each event under way is a publication of its own (or a
// batch), handed over with Enqueue again when its answer has come.

// sdkConnect bounds how long a client may take to connect.
const sdkConnect = 10 * time.Second

// sdkLoad publishes by clients of the SDK. It is always a closed one.
type sdkLoad struct {
	r     *run
	o     *PublishOptions
	conns []*sdkPublisher

	accepted atomic.Int64 // events that the hub took, of all phases

	// Of the phase under way.
	left  atomic.Int64 // publications that may still be sent
	until int64        // time of the run after which none is sent
	lanes sync.WaitGroup
}

type sdkPublisher struct {
	l     *sdkLoad
	c     *client.Client
	lanes []*sdkLane
	rec   *recorder
}

// sdkLane is one publication that is under way, again and again.
type sdkLane struct {
	p      *sdkPublisher
	random *rand.Rand
	pubs   [1]eventhub.Publication
	rooms  []eventhub.Receipt
	since  int64
}

func (o *PublishOptions) validateSDK() error {
	if !o.SDK || o.Rate == 0 && o.Window == 0 {
		return nil
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "sdk is given with a rate or a window; through the SDK a run is as fast as answers come, and is measured as a whole")
}

func newSDKLoad(r *run, o *PublishOptions) (*sdkLoad, error) {
	l := &sdkLoad{r: r, o: o}
	r.enter("connect", int64(o.Connections))
	for i := range o.Connections {
		c, err := l.dial()
		if err != nil {
			return l, err
		}
		p := &sdkPublisher{l: l, c: c, rec: newRecorder()}
		random := rand.New(rand.NewPCG(r.t.Seed, uint64(i)))
		for n := range max(o.InFlight/o.Batch, 1) {
			p.lanes = append(p.lanes, p.newLane(o.shape(), random, uint64(i)<<32|uint64(n)))
		}
		l.conns = append(l.conns, p)
		r.moved.Add(1)
	}
	return l, nil
}

func (l *sdkLoad) dial() (*client.Client, error) {
	return dialSDK(l.r, client.WithMaxPending(max(l.o.InFlight, l.o.Batch)), client.WithRateLimitErrors())
}

func dialSDK(r *run, opts ...client.Option) (*client.Client, error) {
	t := r.t
	opts = append(opts, client.WithName("eventhub-bench"))
	if t.Token != "" {
		opts = append(opts, client.WithToken(t.Token))
	}
	if t.TLS != nil {
		opts = append(opts, client.WithTLS(t.TLS))
	}
	ctx, cancel := context.WithTimeout(r.ctx, sdkConnect)
	defer cancel()
	return client.Dial(ctx, t.webSocketURL(), opts...)
}

func (p *sdkPublisher) newLane(s *shape, payloads *rand.Rand, stream uint64) *sdkLane {
	lane := &sdkLane{p: p, random: rand.New(rand.NewPCG(p.l.r.t.Seed+1, stream)), rooms: make([]eventhub.Receipt, s.batch)}
	lane.pubs[0].Events = make([]eventhub.Event, s.batch)
	for i := range lane.pubs[0].Events {
		lane.pubs[0].Events[i] = eventhub.Event{Topic: s.topic, Payload: payload(s, payloads)}
	}
	return lane
}

// close closes the clients.
func (l *sdkLoad) close() error {
	var errs []error
	for _, p := range l.conns {
		errs = append(errs, p.c.Close())
	}
	return errors.Join(errs...)
}

// phase publishes so many events, or for so long, and returns when every answer is there.
func (l *sdkLoad) phase(name string, count int64, d time.Duration) (time.Duration, error) {
	l.r.enter(name, count)
	batch := int64(l.o.Batch)
	l.left.Store(math.MaxInt64)
	if count > 0 {
		l.left.Store((count + batch - 1) / batch)
	}
	start := l.r.now()
	l.until = math.MaxInt64
	if d > 0 {
		l.until = start + int64(d)
	}
	for _, p := range l.conns {
		for _, lane := range p.lanes {
			l.lanes.Add(1)
			go lane.send() // Enqueue may wait for room
		}
	}
	l.lanes.Wait()
	return time.Duration(l.r.now() - start), context.Cause(l.r.ctx)
}

// send publishes once, or ends the lane.
func (s *sdkLane) send() {
	l := s.p.l
	now := l.r.now()
	if now >= l.until || l.left.Add(-1) < 0 || l.r.ctx.Err() != nil {
		l.lanes.Done()
		return
	}
	events := s.pubs[0].Events
	for i := range events {
		if l.o.IDs {
			events[i].ID = eventid.New()
		}
		if l.o.Keys > 0 {
			events[i].Key = "key-" + strconv.Itoa(s.random.IntN(l.o.Keys))
		}
	}
	s.since = now
	s.pubs[0] = eventhub.Publication{Events: events, Receipts: s.rooms[:0]}
	s.p.c.Enqueue(l.r.ctx, s.pubs[:], s.answered)
}

// answered is called by the client's goroutine.
func (s *sdkLane) answered(pubs []eventhub.Publication) {
	l, batch := s.p.l, int64(s.p.l.o.Batch)
	if err := pubs[0].Err; err == nil {
		s.p.rec.Lock()
		s.p.rec.add(l.r.now() - s.since)
		s.p.rec.Unlock()
		l.accepted.Add(batch)
	} else if l.r.ctx.Err() == nil {
		if bad := l.r.refuse(eventhub.AsError(err)); bad != nil {
			l.r.fail(bad)
		}
	}
	l.r.moved.Add(batch)
	s.send()
}

// publishBySDK is Publish through the SDK.
func publishBySDK(r *run, o *PublishOptions) (res *Result, err error) {
	if _, err := r.connect(1); err != nil { // for what the hub says of itself
		return nil, err
	}
	load, err := newSDKLoad(r, o)
	defer func() { err = errors.Join(err, load.close()) }()
	if err != nil {
		return nil, err
	}
	if o.Warmup > 0 {
		if _, err := load.phase("warm-up", 0, o.Warmup); err != nil {
			return nil, err
		}
	}
	recorders := make([]*recorder, len(load.conns))
	for i, p := range load.conns {
		p.rec.reset()
		recorders[i] = p.rec
	}
	warm := load.accepted.Load()
	took, err := load.phase("measure", o.Count, o.Duration)
	if err != nil {
		return nil, err
	}
	res = &Result{Workload: "publish", Settings: *o, Unit: "events", Published: load.accepted.Load(), Publish: summarize(recorders...)}
	res.rate(res.Published-warm, took)
	return res, nil
}

// consume reads the backlog to its end through the SDK: one client for each member, and a handler for each of
// the leases that it holds.
func (d *drain) consume(r *run, loaded int64) (res *Result, err error) {
	if _, err := r.connect(1); err != nil { // for what the hub says of itself
		return nil, err
	}
	ctx, stop := context.WithCancel(r.ctx)
	defer stop()
	var fresh, again, begun atomic.Int64
	handle := func(_ context.Context, e eventhub.Delivery) error {
		if e.Attempt > 1 {
			again.Add(1)
			return nil
		}
		r.moved.Add(1)
		switch fresh.Add(1) {
		case loaded / warmShare:
			begun.Store(r.now())
		case loaded:
			stop() // what has begun ends with its ack
		}
		return nil
	}
	clients := make([]*client.Client, len(d.receivers))
	for i := range clients {
		if clients[i], err = dialSDK(r); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, clients[i].Close()) }()
	}
	r.enter("measure", loaded)
	var members sync.WaitGroup
	for i := range clients {
		o := d.receivers[i].GroupOptions
		o.Concurrency = o.MaxInFlight
		members.Go(func() {
			if err := clients[i].Consume(ctx, o, handle); err != nil && ctx.Err() == nil {
				r.fail(r.ended(err))
			}
		})
	}
	members.Wait()
	if err := context.Cause(r.ctx); err != nil {
		return nil, err
	}
	res = &Result{Unit: "deliveries", Published: loaded, Redelivered: again.Load()}
	res.rate(loaded-loaded/warmShare, time.Duration(r.now()-begun.Load()))
	res.finish(r)
	res.Hub.Topic = d.topic
	return res, nil
}
