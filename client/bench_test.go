package client_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
)

// BenchmarkPublish is the durable publish of 256 B payloads over one connection
// to a hub on a real disk, 256 in flight: raw frames that were made before, raw
// frames with an id each as the SDK gives them, and the SDK by one Publish per
// event, by batches, and by Enqueue.
func BenchmarkPublish(b *testing.B) {
	payload := `"` + strings.Repeat("x", 254) + `"`
	for _, load := range []struct {
		name string
		run  func(b *testing.B, addr, payload string)
	}{
		{"raw", func(b *testing.B, addr, payload string) { rawLoad(b, addr, payload, false) }},
		{"raw-ids", func(b *testing.B, addr, payload string) { rawLoad(b, addr, payload, true) }},
		{"single", func(b *testing.B, addr, payload string) { publishLoad(b, addr, payload, inFlight, 1) }},
		{"batch32", func(b *testing.B, addr, payload string) { publishLoad(b, addr, payload, inFlight/32, 32) }},
		{"enqueue32", enqueueLoad},
	} {
		b.Run(load.name, func(b *testing.B) {
			h := startHub(b, hub.Config{Store: b.TempDir()})
			b.ReportAllocs()
			load.run(b, h.WSAddr(), payload)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

const inFlight = 256

func publishLoad(b *testing.B, addr, payload string, callers, batch int) {
	c := dial(b, addr)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			events := make([]eventhub.Event, batch)
			for i := range events {
				events[i] = event("bench.ws", payload)
			}
			for {
				n := min(int64(batch), left.Add(-int64(batch))+int64(batch))
				if n <= 0 {
					return
				}
				if _, err := c.Publish(context.Background(), events[:n]...); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func enqueueLoad(b *testing.B, addr, payload string) {
	c := dial(b, addr, client.WithMaxPending(inFlight))
	events := []eventhub.Event{event("bench.ws", payload)}
	var under sync.WaitGroup
	b.ResetTimer()
	for left := b.N; left > 0; left -= 32 {
		pubs := make([]eventhub.Publication, min(32, left))
		for i := range pubs {
			pubs[i].Events = events
		}
		under.Add(1)
		c.Enqueue(context.Background(), pubs, func(pubs []eventhub.Publication) {
			defer under.Done()
			for i := range pubs {
				if pubs[i].Err != nil {
					b.Error(pubs[i].Err)
				}
			}
		})
	}
	under.Wait()
	b.StopTimer()
}

// rawLoad keeps inFlight publishes under way with frames that cost nothing: they
// are masked with zeros, so that an id is written into its place.
func rawLoad(b *testing.B, addr, payload string, ids bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, _, _, err := ws.Dial(ctx, "ws://"+addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	const place = "00000000-0000-0000-000000000000000000"
	opts := ""
	if ids {
		opts = `,"opts":{"id":"` + place + `"}`
	}
	frame := zeroMasked(`{"op":"PUBLISH","corr":"1234567","topic":"bench.ws","payload":` + payload + opts + `}`)
	if _, err := conn.Write(zeroMasked(`{"op":"AUTH"}`)); err != nil {
		b.Fatal(err)
	}
	if _, err := wsutil.ReadServerText(conn); err != nil {
		b.Fatal(err)
	}
	frames := bytes.Repeat(frame, inFlight)
	at := bytes.Index(frame, []byte(place))
	b.ResetTimer()
	if err := rawLoop(conn, frames, len(frame), at, b.N); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
}

func rawLoop(conn net.Conn, frames []byte, size, idAt, total int) error {
	buf := make([]byte, 64<<10)
	for sent, open, room := 0, 0, inFlight; ; {
		n := min(room, total-sent)
		for i := range n {
			if idAt >= 0 {
				strconv.AppendInt(frames[i*size+idAt:][:0], int64(1_000_000_000+sent+i), 10)
			}
		}
		if _, err := conn.Write(frames[:n*size]); err != nil {
			return err
		}
		sent, open = sent+n, open+n
		if open == 0 {
			return nil
		}
		read, err := conn.Read(buf)
		if err != nil {
			return err
		}
		if bytes.Contains(buf[:read], []byte(`"ERR"`)) {
			return fmt.Errorf("the hub said %s", buf[:read])
		}
		room = bytes.Count(buf[:read], []byte{'}'}) // every answer is one object
		open -= room
	}
}

func zeroMasked(text string) []byte {
	frame, err := ws.CompileFrame(ws.MaskFrameWith(ws.NewTextFrame([]byte(text)), [4]byte{}))
	if err != nil {
		panic(err)
	}
	return frame
}

// BenchmarkConsume is how fast one member of a group handles and acks events of
// 256 B that are in the log of a hub in memory, up to 1,000 in flight: in frames of
// one event each, and in such of several.
func BenchmarkConsume(b *testing.B) {
	payload := `"` + strings.Repeat("x", 254) + `"`
	for _, load := range []struct {
		name string
		opts []client.Option
	}{
		{"single", []client.Option{client.WithSingleEvents()}},
		{"batches", nil},
	} {
		b.Run(load.name, func(b *testing.B) {
			h := startHub(b, hub.Config{})
			c := dial(b, h.WSAddr(), load.opts...)
			for left := b.N; left > 0; left -= 1000 {
				events := make([]eventhub.Event, min(1000, left))
				for i := range events {
					events[i] = event("bench.consume", payload)
				}
				if _, err := c.Publish(context.Background(), events...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			ctx, stop := context.WithCancel(context.Background())
			n := 0
			opts := earliest("bench.consume", "g")
			opts.MaxInFlight, opts.BatchSize = 1000, 1000
			if err := c.Consume(ctx, opts, func(context.Context, eventhub.Delivery) error {
				if n++; n == b.N {
					stop()
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkStateMap: until a map of 100,000 keys is loaded, hub and client in one process.
func BenchmarkStateMap(b *testing.B) {
	const keys = 100_000
	h := startHub(b, hub.Config{Store: b.TempDir()})
	c := dial(b, h.WSAddr())
	for first := 0; first < keys; first += 1000 {
		var events []eventhub.Event
		for i := range 1000 {
			e := keyed(fmt.Sprint("key-", first+i), i+1)
			e.Payload = fmt.Appendf(nil, `{"N":%d,"Text":%q}`, i+1, strings.Repeat("x", 100))
			events = append(events, e)
		}
		publishAll(b, c, events...)
	}
	for b.Loop() {
		m, err := client.State[stock](bounded(b), c, "stock")
		if err != nil {
			b.Fatal(err)
		}
		if err := m.WaitLoaded(bounded(b)); err != nil || m.Len() != keys {
			b.Fatal(m.Len(), err)
		}
		m.Close()
	}
}
