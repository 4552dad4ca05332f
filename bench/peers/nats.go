package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// jetstream is NATS JetStream on file storage, the server made from its module and
// run as a process of its own: this program under another first argument.
type jetstream struct{ syncAlways bool }

const natsCommand = "nats-server"

func (j *jetstream) name() string {
	if j.syncAlways {
		return "jetstream always"
	}
	return natsDefault
}

func (j *jetstream) durability() string {
	if j.syncAlways {
		return "sync_interval: always"
	}
	return "fsync every two minutes: up to that is lost with the machine"
}

func (j *jetstream) version(context.Context) (string, error) { return natsserver.VERSION, nil }

func (j *jetstream) start(ctx context.Context, dir string) (server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &natsServer{}
	s.process, err = launch(ctx, dir, func(line string) bool {
		url, ok := strings.CutPrefix(line, "serving ")
		s.url = url
		return ok
	}, program, natsCommand, "-dir", dir, "-sync-always="+strconv.FormatBool(j.syncAlways))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// runNATSServer is the child process.
func runNATSServer(args []string) error {
	flags := flag.NewFlagSet(natsCommand, flag.ContinueOnError)
	dir := flags.String("dir", "", "")
	syncAlways := flags.Bool("sync-always", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// Everything else is as the server itself sets it.
	s, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: *dir, SyncAlways: *syncAlways, NoSigs: true,
	})
	if err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt, syscall.SIGTERM)
	s.Start()
	if !s.ReadyForConnections(startWithin) {
		return errors.New("the server is not ready")
	}
	fmt.Println("serving " + s.ClientURL())
	<-end
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

type natsServer struct {
	*process
	url string
}

func (s *natsServer) connect(n int) (conns []*nats.Conn, err error) {
	for range n {
		// Both ends of a benchmark keep what they can not send at once.
		c, err := nats.Connect(s.url, nats.NoReconnect(), nats.SyncQueueLen(1<<20))
		if err != nil {
			closeNATS(conns)
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeNATS(conns []*nats.Conn) {
	for _, c := range conns {
		c.Close()
	}
}

// open makes the stream.
func (s *natsServer) open(ctx context.Context, c *nats.Conn) (natsjs.Stream, error) {
	js, err := natsjs.New(c)
	if err != nil {
		return nil, err
	}
	return js.CreateStream(ctx, natsjs.StreamConfig{Name: stream, Subjects: []string{stream, stream + ".>"}, Storage: natsjs.FileStorage})
}

// holds checks that the stream has so many events, which were all that came.
func (s *natsServer) holds(ctx context.Context, st natsjs.Stream, n int64) error {
	info, err := st.Info(ctx)
	if err == nil && info.State.Msgs != uint64(n) {
		err = fmt.Errorf("the stream has %d events; %d were answered", info.State.Msgs, n)
	}
	return err
}

// natsPublisher publishes asynchronously over one connection, as the SDK's
// PublishAsync does: each event with a reply subject of its own below one inbox.
// It spares the SDK's futures and their table.
type natsPublisher struct {
	conn     *nats.Conn
	inbox    string
	payloads [][]byte
	began    time.Time
	answer   func(slot int, err error) // in the connection's goroutine

	mu    sync.Mutex
	since []time.Duration
	free  []int
	rec   *recorder
}

func newNATSPublisher(c *nats.Conn, index, depth int, payload func(*rand.Rand) []byte) (*natsPublisher, error) {
	p := &natsPublisher{conn: c, inbox: nats.NewInbox() + ".", since: make([]time.Duration, depth), rec: newRecorder()}
	random := rand.New(rand.NewPCG(1, uint64(index)))
	for i := range depth {
		p.payloads = append(p.payloads, payload(random))
		p.free = append(p.free, i)
	}
	sub, err := c.Subscribe(p.inbox+"*", func(m *nats.Msg) {
		slot, err := strconv.Atoi(m.Subject[len(p.inbox):])
		if err == nil && (!bytes.HasPrefix(m.Data, []byte(`{"stream":`)) || bytes.Contains(m.Data, []byte(`"error"`))) {
			err = fmt.Errorf("nats says %s %s", m.Header.Get("Status"), m.Data)
		}
		p.answer(slot, err)
	})
	if err != nil {
		return nil, err
	}
	return p, sub.SetPendingLimits(-1, -1)
}

// take takes a free slot, where there is one.
func (p *natsPublisher) take(since time.Duration) (slot int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, false
	}
	slot = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.since[slot] = since
	return slot, true
}

// give frees a slot and records its latency.
func (p *natsPublisher) give(slot int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, slot)
	p.rec.Lock()
	p.rec.add(time.Since(p.began) - p.since[slot])
	p.rec.Unlock()
}

func (p *natsPublisher) send(slot int) error {
	return p.conn.PublishMsg(&nats.Msg{Subject: stream, Reply: p.inbox + strconv.Itoa(slot), Data: p.payloads[slot]})
}

// flood keeps depth events under way over each connection until the time is over or
// the count used up, and waits for all answers.
func (s *natsServer) flood(ctx context.Context, all []*natsPublisher, d time.Duration, count int64) (int64, time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d+2*time.Minute, errors.New("not all answers came within two minutes"))
	defer cancel()
	var answered, left, open atomic.Int64
	left.Store(count)
	fail, done := make(chan error, 1), make(chan struct{}, 1)
	began := time.Now()
	finish := func() {
		if open.Add(-1) == 0 {
			done <- struct{}{}
		}
	}
	refuse := func(err error) {
		select {
		case fail <- err:
		default:
		}
	}
	// next sends one event, or lets its lane end.
	next := func(p *natsPublisher) {
		now := time.Since(p.began)
		if now >= d || left.Add(-1) < 0 {
			finish()
			return
		}
		slot, _ := p.take(now) // there is one for each lane
		if err := p.send(slot); err != nil {
			refuse(err)
		}
	}
	for _, p := range all {
		p.began = began
		p.answer = func(slot int, err error) {
			if err != nil {
				refuse(err)
				return
			}
			p.give(slot)
			answered.Add(1)
			next(p)
		}
		open.Add(int64(len(p.since)))
	}
	for _, p := range all {
		for range p.since {
			next(p)
		}
	}
	select {
	case <-done:
	case err := <-fail:
		return 0, 0, err
	case <-ctx.Done():
		return 0, 0, context.Cause(ctx)
	}
	return answered.Load(), time.Since(began), nil
}

func (s *natsServer) publishers(conns []*nats.Conn, depth int, payload func(*rand.Rand) []byte) (all []*natsPublisher, recs []*recorder, err error) {
	for i, c := range conns {
		p, err := newNATSPublisher(c, i, depth, payload)
		if err != nil {
			return nil, nil, err
		}
		all, recs = append(all, p), append(recs, p.rec)
	}
	return all, recs, nil
}

func (s *natsServer) publish(ctx context.Context, l publishLoad) (*outcome, error) {
	conns, err := s.connect(l.connections)
	if err != nil {
		return nil, err
	}
	defer closeNATS(conns)
	st, err := s.open(ctx, conns[0])
	if err != nil {
		return nil, err
	}
	if l.programs {
		return s.publishBySDK(ctx, st, conns, l)
	}
	all, recs, err := s.publishers(conns, l.depth, func(r *rand.Rand) []byte { return noise(l.payload, r) })
	if err != nil {
		return nil, err
	}
	return measured(l, recs,
		func(d time.Duration) (int64, time.Duration, error) { return s.flood(ctx, all, d, unlimited) },
		func(n int64) error { return s.holds(ctx, st, n) })
}

// member is a durable pull consumer with explicit acks.
func (s *natsServer) member(ctx context.Context, st natsjs.Stream) (natsjs.Consumer, error) {
	return st.CreateConsumer(ctx, natsjs.ConsumerConfig{Durable: group, AckPolicy: natsjs.AckExplicitPolicy, MaxAckPending: 1000})
}

// done checks that the consumer has nothing left, once the server has seen the acks.
func (s *natsServer) done(ctx context.Context, c natsjs.Consumer) error {
	for try := 0; ; try++ {
		info, err := c.Info(ctx)
		if err != nil {
			return err
		}
		if info.NumAckPending == 0 && info.NumPending == 0 {
			return nil
		}
		if try == 1000 {
			return fmt.Errorf("%d events are not acked and %d not delivered", info.NumAckPending, info.NumPending)
		}
		time.Sleep(time.Millisecond) // no call says when acks are seen
	}
}

func (s *natsServer) consume(ctx context.Context, l consumeLoad) (*outcome, error) {
	conns, err := s.connect(9)
	if err != nil {
		return nil, err
	}
	defer closeNATS(conns)
	st, err := s.open(ctx, conns[0])
	if err != nil {
		return nil, err
	}
	all, _, err := s.publishers(conns[1:], 512, func(r *rand.Rand) []byte { return noise(l.payload, r) })
	if err != nil {
		return nil, err
	}
	count, _, err := s.flood(ctx, all, l.fill, int64(l.count))
	if err != nil {
		return nil, err
	}
	if err := s.holds(ctx, st, count); err != nil {
		return nil, err
	}
	c, err := s.member(ctx, st)
	if err != nil {
		return nil, err
	}
	return load(func() (*outcome, error) {
		var warm, n int64
		began := time.Now()
		err := receiveNATS(ctx, c, func([]byte) bool {
			n++
			if n == count/10 { // the first tenth is warm-up
				warm, began = n, time.Now()
			}
			return n < count
		})
		if err == nil {
			err = s.done(ctx, c)
		}
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		return &outcome{Value: float64(n-warm) / took.Seconds(), Count: n - warm, Seconds: took.Seconds()}, nil
	})
}

// receiveNATS acks and hands over what comes until take has enough.
func receiveNATS(ctx context.Context, c natsjs.Consumer, take func(payload []byte) bool) error {
	over := make(chan error, 1)
	end := func(err error) {
		select {
		case over <- err:
		default:
		}
	}
	enough := false
	receiving, err := c.Consume(func(m natsjs.Msg) {
		if enough {
			end(errors.New("more came than there was"))
			return
		}
		if err := m.Ack(); err != nil {
			end(err)
			return
		}
		if enough = !take(m.Data()); enough {
			end(nil)
		}
	}, natsjs.PullMaxMessages(1000))
	if err != nil {
		return err
	}
	defer receiving.Stop()
	select {
	case err = <-over:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return err
}

func (s *natsServer) latency(ctx context.Context, l latencyLoad) (*outcome, error) {
	conns, err := s.connect(l.publishers + 1)
	if err != nil {
		return nil, err
	}
	defer closeNATS(conns)
	st, err := s.open(ctx, conns[0])
	if err != nil {
		return nil, err
	}
	c, err := s.member(ctx, st)
	if err != nil {
		return nil, err
	}
	all, _, err := s.publishers(conns[1:], openSlots, func(r *rand.Rand) []byte { return stamped(l.payload, r) })
	if err != nil {
		return nil, err
	}
	f := newFlow(l)
	failed := make(chan error, 1)
	for _, p := range all {
		p.began = f.began
		p.answer = func(slot int, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
				return
			}
			p.give(slot)
			f.answered(1)
		}
	}
	return load(func() (*outcome, error) {
		o, err := f.run(ctx, func(ctx context.Context) error {
			return receiveNATS(ctx, c, func(payload []byte) bool { f.arrived(payload); return !f.complete() })
		}, sender{
			n: 1,
			send: func(i int64, due time.Duration) error {
				p := all[int(i)%len(all)]
				slot, ok := p.take(due)
				if !ok {
					return fmt.Errorf("%d events of one connection are not answered", len(p.since))
				}
				stamp(p.payloads[slot], due)
				return p.send(slot)
			},
			serve: func(ctx context.Context, _ int) error {
				select {
				case err := <-failed:
					return err
				case <-ctx.Done():
					return nil
				}
			},
			close: func() {},
		})
		if err == nil {
			err = errors.Join(s.holds(ctx, st, f.total()), s.done(ctx, c))
		}
		return o, err
	})
}
