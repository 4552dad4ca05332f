package wire

import (
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
)

// The frames of the benchmarks: a PUBLISH of 343 bytes with an object as
// payload and options, and the ACK of the seed clients.
const (
	benchPublish = `{"op":"PUBLISH","corr":"c-000123","topic":"process.state","payload":{"host":"node-17.example","pid":41235,"name":"ingest-worker","cpu":12.75,"rss":184549376,"state":"running","uptime_ms":86400123,"labels":["blue","eu-west","canary"]},"opts":{"key":"node-17:ingest-worker:41235","tags":["#duck"],"headers":{"x-trace":"4bf92f3577b34da6a3ce92"}}}`
	benchAck     = `{"op":"ACK","topic":"process.state","group":"ops","id":"0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11"}`
)

func benchmarkDecode(b *testing.B, frame string) {
	var d Decoder
	var req Request
	text := []byte(frame)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(text, &req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodePublish(b *testing.B) { benchmarkDecode(b, benchPublish) }

func BenchmarkDecodePublishPlain(b *testing.B) {
	benchmarkDecode(b, `{"op":"PUBLISH","corr":"c-000123","topic":"process.state","payload":{"host":"node-17.example","pid":41235,"state":"running"}}`)
}

// benchBatch is a PUBLISH of n events.
func benchBatch(n int) string {
	const event = `{"topic":"process.state","payload":{"host":"node-17.example","pid":41235,"name":"ingest-worker","cpu":12.75,"rss":184549376,"state":"running","uptime_ms":86400123,"labels":["blue","eu-west","canary"]},"opts":{"key":"node-17:ingest-worker:41235","tags":["#duck"],"headers":{"x-trace":"4bf92f3577b34da6a3ce92"}}}`
	return `{"op":"PUBLISH","corr":"c-000123","events":[` + strings.Repeat(event+",", n-1) + event + `]}`
}

func BenchmarkDecodeBatch64(b *testing.B) { benchmarkDecode(b, benchBatch(64)) }

func benchReceipts(n int) []eventhub.Receipt {
	return slices.Repeat([]eventhub.Receipt{{ID: "0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11", Offset: 1042}}, n)
}

func BenchmarkAppendBatchOK(b *testing.B) {
	rs := benchReceipts(64)
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendBatchOK(buf[:0], "c-000123", true, rs)
	}
}

func BenchmarkEventFrameAppendAll(b *testing.B) {
	f := NewEventFrame("process.*", "ops")
	batch := slices.Repeat([]eventhub.Delivery{*benchDelivery()}, 100)
	buf := make([]byte, 0, 64<<10)
	b.ReportAllocs()
	for b.Loop() {
		n, _ := f.Fit(batch, MaxEventsBytes)
		buf = f.AppendAll(buf[:0], batch[:n])
	}
}

func BenchmarkDecodeAck(b *testing.B) { benchmarkDecode(b, benchAck) }

func BenchmarkDecodeAckLease(b *testing.B) {
	benchmarkDecode(b, `{"op":"ACK","topic":"process.state","group":"ops","lease":"1k3f9zq0x8w2a-rs-5"}`)
}

func benchDelivery() *eventhub.Delivery {
	return &eventhub.Delivery{
		Topic:       "process.state",
		Offset:      1042,
		Record:      eventhub.Record(`{"ts":1723140000000,"id":"0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11","topic":"process.state","partition":3,"key":"node-17:ingest-worker:41235","payload":{"host":"node-17.example","pid":41235,"state":"running"}}`),
		Attempt:     1,
		MaxAttempts: 5,
		Lease:       eventhub.Lease{Runtime: 1 << 60, Offset: 1042, Serial: 77},
		AckTimeout:  30 * time.Second,
	}
}

func BenchmarkEventFrameAppend(b *testing.B) {
	f := NewEventFrame("process.*", "ops")
	d := benchDelivery()
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = f.Append(buf[:0], d)
	}
}

func BenchmarkEventFrameSize(b *testing.B) {
	f := NewEventFrame("process.*", "ops")
	d := benchDelivery()
	b.ReportAllocs()
	for b.Loop() {
		f.Size(d)
	}
}

func BenchmarkAppendPublishOK(b *testing.B) {
	r := eventhub.Receipt{ID: "0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11", Offset: 1042}
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendPublishOK(buf[:0], "c-000123", true, r)
	}
}
