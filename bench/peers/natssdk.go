package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// natsProgram publishes over one connection as programs do: with the SDK's futures, an id in
// Nats-Msg-Id, and a subject for each key. It waits for the future that is the oldest.
type natsProgram struct {
	js       natsjs.JetStream
	payloads [][]byte
	random   *rand.Rand
	rec      *recorder
}

// sentAt is a publish under way.
type sentAt struct {
	future natsjs.PubAckFuture
	since  time.Time
}

// flood keeps so many events under way until the time is over, and waits for all answers.
func (p *natsProgram) flood(ctx context.Context, until time.Time) (answered int64, err error) {
	var queue []sentAt
	for n := 0; ; n++ {
		now := time.Now()
		if now.Before(until) && len(queue) < len(p.payloads) {
			msg := &nats.Msg{
				Subject: fmt.Sprintf("%s.key-%08d", stream, p.random.IntN(keys)), Data: p.payloads[n%len(p.payloads)],
				Header: nats.Header{natsjs.MsgIDHeader: {fmt.Sprintf("%016x-%016x", p.random.Uint64(), p.random.Uint64())}},
			}
			future, err := p.js.PublishMsgAsync(msg)
			if err != nil {
				return answered, err
			}
			queue = append(queue, sentAt{future, now})
			continue
		}
		if len(queue) == 0 {
			return answered, nil
		}
		oldest := queue[0]
		queue = queue[1:]
		select {
		case ack := <-oldest.future.Ok():
			if ack.Duplicate {
				return answered, fmt.Errorf("nats says that a new event is a duplicate, of %d", ack.Sequence)
			}
		case err := <-oldest.future.Err():
			return answered, err
		case <-ctx.Done():
			return answered, context.Cause(ctx)
		}
		p.rec.Lock()
		p.rec.add(time.Since(oldest.since))
		p.rec.Unlock()
		answered++
	}
}

// publishBySDK is publish as programs do it.
func (s *natsServer) publishBySDK(ctx context.Context, st natsjs.Stream, conns []*nats.Conn, l publishLoad) (*outcome, error) {
	var all []*natsProgram
	var recs []*recorder
	for i, c := range conns {
		js, err := natsjs.New(c, natsjs.WithPublishAsyncMaxPending(2*l.depth))
		if err != nil {
			return nil, err
		}
		p := &natsProgram{js: js, random: rand.New(rand.NewPCG(1, uint64(i))), rec: newRecorder()}
		for range l.depth {
			p.payloads = append(p.payloads, noise(l.payload, p.random))
		}
		all, recs = append(all, p), append(recs, p.rec)
	}
	flood := func(d time.Duration) (int64, time.Duration, error) {
		var answered atomic.Int64
		began := time.Now()
		err := gather(ctx, len(all), func(ctx context.Context, i int) error {
			n, err := all[i].flood(ctx, began.Add(d))
			answered.Add(n)
			return err
		})
		return answered.Load(), time.Since(began), err
	}
	return measured(l, recs, flood, func(n int64) error { return s.holds(ctx, st, n) })
}
