package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/strictjson"
)

// TestHubFramesAreStrictJSON: every frame of the hub passes its own strict
// reader, wastes no space, and comes after what dst held.
func TestHubFramesAreStrictJSON(t *testing.T) {
	for _, c := range hubFrames() {
		compact, err := strictjson.AppendCompact(nil, c.sent)
		if err != nil || !bytes.Equal(compact, c.sent) {
			t.Errorf("%s: %s: %v", c.title, c.sent, err)
		}
	}
	dst := []byte("before")
	for name, got := range map[string][]byte{
		"AppendOK":        AppendOK(dst, "", false),
		"AppendAuthOK":    AppendAuthOK(dst, "", false, AuthInfo{}),
		"AppendPublishOK": AppendPublishOK(dst, "", false, eventhub.Receipt{}),
		"AppendSettleOK":  AppendSettleOK(dst, "", false, nil),
		"AppendError":     AppendError(dst, "", false, eventhub.Errorf(eventhub.CodeInternal, "x")),
		"AppendBatchOK":   AppendBatchOK(dst, "", false, nil),
		"EventFrame":      NewEventFrame("t", "g").Append(dst, benchDelivery()),
		"EVENTS":          NewEventFrame("t", "g").AppendAll(dst, []eventhub.Delivery{*benchDelivery()}),
	} {
		if !bytes.HasPrefix(got, []byte(`before{"op":"`)) {
			t.Errorf("%s made %s of dst", name, got)
		}
	}
}

// TestAnswersCarryAnyText puts text of every kind into the answers and reads it
// back; what is not UTF-8 in a message must not break the frame.
func TestAnswersCarryAnyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		corr := rapid.String().Draw(t, "corr")
		msg := string(rapid.SliceOf(rapid.Byte()).Draw(t, "msg"))
		wait := rapid.Int64Range(-1, 1<<50).Draw(t, "wait")
		err := &eventhub.Error{Code: eventhub.CodeOverloaded, Message: msg, RetryAfter: time.Duration(wait)}
		frame := AppendError(nil, corr, true, err)
		if _, err := strictjson.AppendCompact(nil, frame); err != nil {
			t.Fatalf("%s: %v", frame, err)
		}
		var got struct {
			Op, Code, Msg, Corr string
			RetryAfterMS        *int64 `json:"retry_after_ms"`
		}
		if err := json.Unmarshal(frame, &got); err != nil {
			t.Fatal(err)
		}
		if got.Op != "ERR" || got.Code != "overloaded" || got.Corr != corr {
			t.Fatalf("%s for corr %q", frame, corr)
		}
		if utf8.ValidString(msg) && got.Msg != msg {
			t.Fatalf("%s for message %q", frame, msg)
		}
		if (got.RetryAfterMS != nil) != (wait > 0) || wait > 0 && time.Duration(*got.RetryAfterMS)*time.Millisecond < err.RetryAfter {
			t.Fatalf("%s for a wait of %v", frame, err.RetryAfter)
		}
	})
}

// TestEventFrameSize: Size is the length of what Append appends, for every
// delivery, and the frame says what the delivery says.
func TestEventFrameSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic := rapid.StringMatching(`[a-z*]{1,8}(\.[a-z*]{1,8}){0,3}`).Draw(t, "topic")
		group := rapid.StringMatching(`[a-z:]{0,20}`).Draw(t, "group") // none: a live tail
		payload := rapid.StringMatching(`[ -~é]{0,200}`).Draw(t, "payload")
		record := []byte(`{"ts":1723140000000,"id":"a","topic":"t","payload":`)
		record = append(strictjson.AppendString(record, payload), '}')
		d := eventhub.Delivery{
			Offset:      rapid.Uint64Range(1, eventhub.MaxOffset).Draw(t, "offset"),
			Record:      record,
			Attempt:     rapid.IntRange(1, 1_000).Draw(t, "attempt"),
			MaxAttempts: rapid.IntRange(1, 1_000).Draw(t, "max"),
			AckTimeout:  time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "timeout")),
			Lease: eventhub.Lease{
				Runtime: rapid.Uint64().Draw(t, "runtime"),
				Offset:  rapid.Uint64().Draw(t, "leaseOffset"),
				Serial:  rapid.Uint64().Draw(t, "serial"),
			},
			Sought:   rapid.Bool().Draw(t, "sought"),
			Epoch:    rapid.Uint64Range(0, 1).Draw(t, "dated") * rapid.Uint64().Draw(t, "epoch"),
			Redriven: rapid.IntRange(0, 2).Draw(t, "redriven") * rapid.IntRange(1, 1<<30).Draw(t, "times"),
		}
		if rapid.Bool().Draw(t, "gapped") {
			d.Gap = &eventhub.Gap{After: rapid.Uint64Range(0, eventhub.MaxOffset).Draw(t, "after"), First: rapid.Uint64().Draw(t, "first"),
				Compacted: rapid.Uint64Range(0, 3).Draw(t, "compacted") * 11, Tombstones: rapid.Uint64Range(0, 2).Draw(t, "tombstones") * 7}
		}
		if group == "" {
			d.State = rapid.SampledFrom([]*eventhub.StatePart{nil, {}, {Snapshot: strings.Repeat("z", eventhub.MaxSnapshotBytes)}}).Draw(t, "state")
		}
		f := NewEventFrame(topic, group)
		if mark := rapid.SampledFrom([]*eventhub.StatePart{nil, {Horizon: d.Offset}, {Complete: true, Offset: d.Offset, Count: d.Attempt, Snapshot: "c-1"}}).Draw(t, "mark"); group == "" && mark != nil {
			m := eventhub.Delivery{Topic: topic, State: mark}
			if got := f.Append(nil, &m); f.Size(&m) != len(got) {
				t.Fatalf("Size is %d, the frame has %d bytes: %s", f.Size(&m), len(got), got)
			}
			if n, size := f.Fit([]eventhub.Delivery{d, m, d}, 1<<20); n != 1 || size != len(f.AppendAll(nil, []eventhub.Delivery{d})) {
				t.Fatalf("%d deliveries of %d bytes are before a mark", n, size)
			}
		}
		frame := f.Append(nil, &d)
		if f.Size(&d) != len(frame) {
			t.Fatalf("Size is %d, the frame has %d bytes: %s", f.Size(&d), len(frame), frame)
		}
		if _, err := strictjson.AppendCompact(nil, frame); err != nil {
			t.Fatalf("%s: %v", frame, err)
		}
		var got, want struct {
			Topic, Group string
			Event        eventhub.Event
			Ctx          struct {
				Attempt  int
				Max      int    `json:"max_attempts"`
				Deadline int64  `json:"ack_deadline_ms"`
				Lease    string `json:"lease"`
				Epoch    uint64 `json:"epoch"`
				Sought   bool   `json:"sought"`
				Redriven int    `json:"redriven"`
				Gap      struct{ After, First, Compacted, Tombstones uint64 }
				State    bool
				Snapshot string
			}
		}
		if err := json.Unmarshal(frame, &got); err != nil {
			t.Fatal(err)
		}
		want.Topic, want.Group, want.Event.Offset = topic, group, d.Offset
		if group != "" {
			want.Ctx.Attempt, want.Ctx.Max, want.Ctx.Deadline = d.Attempt, d.MaxAttempts, d.AckTimeout.Milliseconds()
			want.Ctx.Epoch, want.Ctx.Sought, want.Ctx.Redriven = d.Epoch, d.Sought, d.Redriven
			if !d.Lease.IsZero() {
				want.Ctx.Lease = d.Lease.String()
			}
		}
		if d.State != nil {
			want.Ctx.State, want.Ctx.Snapshot = true, d.State.Snapshot
		}
		if d.Gap != nil {
			want.Ctx.Gap.After, want.Ctx.Gap.First, want.Ctx.Gap.Compacted, want.Ctx.Gap.Tombstones = d.Gap.After, d.Gap.First, d.Gap.Compacted, d.Gap.Tombstones
		}
		var said string
		if err := json.Unmarshal(got.Event.Payload, &said); err != nil || said != payload {
			t.Fatalf("payload %s for %q: %v", got.Event.Payload, payload, err)
		}
		if got.Topic != want.Topic || got.Group != want.Group || got.Event.Offset != want.Event.Offset || got.Ctx != want.Ctx {
			t.Fatalf("%s\n got %+v\nwant %+v", frame, got, want)
		}
	})
}

// TestLeaseGoesRoundTrip: the lease of an EVENT, sent back in an ACK, names the
// same delivery.
func TestLeaseGoesRoundTrip(t *testing.T) {
	d := benchDelivery()
	frame := string(NewEventFrame("process.state", "ops").Append(nil, d))
	_, rest, _ := strings.Cut(frame, `"lease":"`)
	token, _, _ := strings.Cut(rest, `"`)
	req := mustDecode(t, `{"op":"ACK","topic":"process.state","group":"ops","lease":"`+token+`"}`)
	if got := req.Settlement.Refs[0].Lease; got != d.Lease {
		t.Errorf("lease %q came back as %+v; want %+v", token, got, d.Lease)
	}
}

// TestCountTellsSubscriptionsApart: a frame is known by the one that made it,
// however alike the names are, and what is in it is counted, whatever payloads
// look like.
func TestCountTellsSubscriptionsApart(t *testing.T) {
	frames := []*EventFrame{
		NewEventFrame("t", "g"), NewEventFrame("t", ""), NewEventFrame("t", "gg"), NewEventFrame("tt", "g"), NewEventFrame("t.*", "g"),
	}
	tricky := *benchDelivery()
	tricky.Record = eventhub.Record(`{"ts":1723140000000,"id":"e","topic":"t","payload":["]},{",{"events":[1,2]},"\\\"]"]}`)
	batch := []eventhub.Delivery{*benchDelivery(), tricky, *benchDelivery()}
	for i, f := range frames {
		for n, frame := range [][]byte{1: f.Append(nil, &tricky), 2: f.AppendAll(nil, batch[:2]), 3: f.AppendAll(nil, batch)} {
			for j, other := range frames {
				want := 0
				if i == j {
					want = n
				}
				if got := other.Count(frame); got != want {
					t.Errorf("%s has %d deliveries of subscription %d; want %d", frame, got, j, want)
				}
			}
		}
	}
	if n := frames[1].Count(AppendOK(nil, "1", true)); n != 0 {
		t.Errorf("an OK has %d deliveries", n)
	}
}

// TestFit: an EVENTS has the size that Fit returns, is as full as its bound allows,
// and holds one delivery at least.
func TestFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewEventFrame("t.*", rapid.SampledFrom([]string{"g", ""}).Draw(t, "group"))
		var batch []eventhub.Delivery
		for range rapid.IntRange(1, 9).Draw(t, "n") {
			d := *benchDelivery()
			d.Offset = rapid.Uint64Range(1, eventhub.MaxOffset).Draw(t, "offset")
			d.Epoch = rapid.Uint64Range(0, 20).Draw(t, "epoch")
			d.Sought = rapid.Bool().Draw(t, "sought")
			d.Redriven = rapid.IntRange(0, 11).Draw(t, "redriven")
			if first := rapid.Uint64Range(0, 20).Draw(t, "first"); first > 0 {
				d.Gap = &eventhub.Gap{First: first, Compacted: first * 20, Tombstones: first * 9}
			}
			batch = append(batch, d)
		}
		// About what some of them need.
		some := rapid.IntRange(1, len(batch)).Draw(t, "some")
		most := len(f.AppendAll(nil, batch[:some])) + rapid.IntRange(-1, 1).Draw(t, "room")
		n, size := f.Fit(batch, most)
		if n < 1 || n > len(batch) || size != len(f.AppendAll(nil, batch[:n])) {
			t.Fatalf("%d deliveries of %d bytes; want %d bytes", n, size, len(f.AppendAll(nil, batch[:n])))
		}
		if size > most && n > 1 || n < len(batch) && len(f.AppendAll(nil, batch[:n+1])) <= most {
			t.Fatalf("%d of %d deliveries fit into %d bytes", n, len(batch), most)
		}
	})
}

func TestEncodersDoNotAllocate(t *testing.T) {
	f := NewEventFrame("process.*", "ops")
	d := benchDelivery()
	buf := make([]byte, 0, 1024)
	outcomes := []eventhub.Outcome{eventhub.Applied, eventhub.Stale}
	receipts := []eventhub.Receipt{{ID: "order-17", Offset: 1042}, {ID: "order-18", DeliverAt: time.UnixMilli(5), Duplicate: true}}
	batch := []eventhub.Delivery{*d, *d}
	for name, encode := range map[string]func(){
		"EventFrame.Append": func() { f.Append(buf, d) },
		"EventFrame.Size":   func() { f.Size(d) },
		"AppendPublishOK":   func() { AppendPublishOK(buf, "c-7", true, eventhub.Receipt{ID: "order-17", Offset: 1042}) },
		"AppendSettleOK":    func() { AppendSettleOK(buf, "c-7", true, outcomes) },
		"AppendBatchOK":     func() { AppendBatchOK(buf, "c-7", true, receipts) },
		"EventFrame.Fit":    func() { f.Fit(batch, 1024) },
		"AppendAll":         func() { f.AppendAll(buf, batch) },
	} {
		if n := testing.AllocsPerRun(100, encode); n != 0 {
			t.Errorf("%s takes %v allocations", name, n)
		}
	}
}
