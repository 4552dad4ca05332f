package ws

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	gws "github.com/gobwas/ws"

	"eventhub"
)

// instantPublisher is done before Enqueue returns.
type instantPublisher struct{ offset atomic.Uint64 }

func (*instantPublisher) Publish(context.Context, ...eventhub.Event) ([]eventhub.Receipt, error) {
	panic("the gateway enqueues")
}

func (p *instantPublisher) Enqueue(_ context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	for i := range pubs {
		pubs[i].Receipts = append(pubs[i].Receipts[:0], eventhub.Receipt{
			ID: "0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11", Offset: p.offset.Add(1),
		})
	}
	done(pubs)
}

// BenchmarkPublish has 16 connections with 64 publishes of 256 B in flight each,
// the clients in the same process. One op is one publish, answered.
func BenchmarkPublish(b *testing.B) {
	const connections, inFlight = 16, 64
	publisher := new(instantPublisher)
	f := serve(b, func(c *Config) {
		c.Authenticate = func(context.Context, string, bool) (Access, error) {
			return Access{Publisher: publisher}, nil
		}
	})
	one := text(fmt.Sprintf(`{"op":"PUBLISH","corr":"c-000001","topic":"bench.publish","payload":{"pad":"%s"}}`, strings.Repeat("x", 246)))
	window := bytes.Repeat(one, inFlight)
	var clients []*client
	for range connections {
		c := f.login(b)
		clients = append(clients, c)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	calls := f.writes.Load()
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	b.ResetTimer()
	var running sync.WaitGroup
	for _, c := range clients {
		running.Go(func() { c.keepPublishing(&left, window, len(one)) })
	}
	running.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	b.ReportMetric(float64(b.N)/float64(max(f.writes.Load()-calls, 1)), "answers/write")
}

// keepPublishing keeps the window full until nothing is left to claim.
func (c *client) keepPublishing(left *atomic.Int64, window []byte, frameBytes int) {
	want, pending := len(window)/frameBytes, 0
	for {
		claimed := min(int64(want), max(left.Add(-int64(want))+int64(want), 0))
		if claimed > 0 {
			if _, err := c.conn.Write(window[:int(claimed)*frameBytes]); err != nil {
				c.t.Error(err)
				return
			}
			pending += int(claimed)
		}
		if pending == 0 {
			return
		}
		want = 0
		for first := true; first || c.r.Buffered() > 0 && pending > 0; first = false {
			if err := c.skipFrame(); err != nil {
				c.t.Error(err)
				return
			}
			want++
			pending--
		}
	}
}

// skipFrame reads one short frame without keeping anything.
func (c *client) skipFrame() error {
	var head [2]byte
	for i := range head {
		b, err := c.r.ReadByte()
		if err != nil {
			return err
		}
		head[i] = b
	}
	if gws.OpCode(head[0]&0x0f) != gws.OpText || head[1] > 125 {
		return fmt.Errorf("frame % x is no short answer", head)
	}
	_, err := c.r.Discard(int(head[1]))
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// BenchmarkDeliver hands batches of 100 events of about 256 B to one connection.
// One op is one event.
func BenchmarkDeliver(b *testing.B) {
	f := serve(b, nil)
	c := f.login(b)
	sub := c.subscribe(f)
	batch := make([]eventhub.Delivery, 100)
	for i := range batch {
		batch[i] = delivery(uint64(i+1), 200)
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for range b.N {
			h, err := gws.ReadHeader(c.r)
			if err != nil {
				b.Error(err)
				return
			}
			if _, err := c.r.Discard(int(h.Length)); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for given := 0; given < b.N; {
		n := sub.receiver.Deliver(batch[:min(len(batch), b.N-given)])
		if given += n; n == 0 {
			<-sub.ready
		}
	}
	<-received
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
