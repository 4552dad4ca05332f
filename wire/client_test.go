package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/strictjson"
)

// TestGoldenHubFramesAreUnderstood decodes every frame of the hub, on the short
// way and on the strict one, and lists what it found as the golden file does.
func TestGoldenHubFramesAreUnderstood(t *testing.T) {
	var used HubDecoder
	for _, c := range readGolden(t, "hub.txt") {
		var short, strict HubFrame
		if err := used.Decode(bytes.Clone(c.sent), &short); err != nil {
			t.Errorf("%s: %v", c.title, err)
			continue
		}
		if got := hubMeaning(t, &short); !slices.Equal(got, c.means) {
			t.Errorf("%s: %s", c.title, cmp.Diff(c.means, got))
		}
		var fresh HubDecoder
		if err := fresh.strict(bytes.Clone(c.sent), &strict); err != nil {
			t.Errorf("%s: strict: %v", c.title, err)
			continue
		}
		if got := hubMeaning(t, &strict); !slices.Equal(got, c.means) {
			t.Errorf("%s: strict: %s", c.title, cmp.Diff(c.means, got))
		}
	}
}

// TestShortWay: what a hub sends all day goes the short way.
func TestShortWay(t *testing.T) {
	for _, c := range readGolden(t, "hub.txt") {
		var d HubDecoder
		var f HubFrame
		frame := bytes.Clone(c.sent)
		took := d.plainEvent(frame, &f) || d.plainOK(frame, &f) || d.plainEvents(frame, &f)
		rare := strings.Contains(c.title, "AUTH") || strings.Contains(c.title, "SUBSCRIBE") || strings.HasPrefix(c.title, "ERR") || strings.HasPrefix(c.title, "STATE") || strings.Contains(c.title, "escapes")
		if took == rare {
			t.Errorf("%s: on the short way: %v", c.title, took)
		}
	}
	batch := slices.Repeat([]eventhub.Delivery{*benchDelivery()}, 100)
	frames := [][]byte{AppendBatchOK(nil, "7", true, benchReceipts(100))}
	for _, group := range []string{"ops", ""} {
		made := NewEventFrame("process.state", group)
		frames = append(frames, made.Append(nil, benchDelivery()), made.AppendAll(nil, batch))
	}
	for i, frame := range frames {
		most := 1.0 // the clone
		if i == 0 {
			most++ // the ids
		}
		var d HubDecoder
		var f HubFrame
		if n := testing.AllocsPerRun(100, func() {
			if err := d.Decode(bytes.Clone(frame), &f); err != nil {
				t.Fatal(err)
			}
		}); n > most {
			t.Errorf("%.60s… costs %v allocations", frame, n)
		}
	}
}

// hubMeaning lists the members of a decoded frame in the golden file's order.
func hubMeaning(t testing.TB, f *HubFrame) []string {
	t.Helper()
	m := meaningLines{t: t}
	m.add("op", f.Op)
	m.addIf(f.HasCorr, "corr", string(f.Corr))
	switch f.Op {
	case OpOK:
		m.published(f)
		m.addIf(f.Stale, "stale", true)
		m.addIf(f.StaleAt != nil, "stale_at", f.StaleAt)
		m.addIf(f.Known != "", "known", f.Known)
		m.gaps(f.Gaps)
		m.ended(f.Ended)
		if i := f.Info; i != (AuthInfo{}) {
			m.add("hub", i.Hub)
			m.add("version", i.Version)
			m.add("protocol", i.Protocol)
			m.add("durability", i.Durability)
			m.add("limits.max_frame_bytes", i.Limits.MaxFrameBytes)
			m.add("limits.max_payload_bytes", i.Limits.MaxPayloadBytes)
			m.add("limits.max_subscriptions", i.Limits.MaxSubscriptions)
			m.addIf(i.Producer.ID != "", "producer.id", i.Producer.ID)
			m.addIf(i.Producer.ID != "", "producer.epoch", i.Producer.Epoch)
			m.addIf(i.Producer.ID != "", "producer.born", i.Producer.Born)
			m.addIf(i.Producer.ID != "", "producer.seq", i.Producer.Seq)
			m.addIf(i.Producer.ID != "", "producer.window", i.Producer.Window)
		}
	case OpErr:
		m.published(f)
		m.add("code", f.Err.Code)
		m.add("msg", f.Err.Message)
		m.addIf(f.Err.Topic != "", "topic", f.Err.Topic)
		m.addIf(f.Err.Group != "", "group", f.Err.Group)
		if f.Err.Index != nil {
			m.add("index", *f.Err.Index)
		}
		if f.Err.Present != nil {
			m.add("present", *f.Err.Present)
		}
		m.addIf(f.Err.Seq > 0, "seq", f.Err.Seq)
		m.addIf(f.Err.RetryAfter > 0, "retry_after_ms", f.Err.RetryAfter.Milliseconds())
	case OpEvent:
		m.subscription(f)
		m.delivery("", f, &f.Delivery)
	case OpState:
		m.subscription(f)
		s := f.Delivery.State
		m.addIf(s.Complete, "offset", s.Offset)
		m.addIf(s.Complete, "count", s.Count)
		m.addIf(s.Complete, "snapshot", s.Snapshot)
		m.addIf(s.Horizon != 0, "horizon", s.Horizon)
		if !s.IsMark() || f.Delivery.Record != nil || f.Delivery.Topic != string(f.Topic) {
			t.Errorf("a STATE is %+v", f.Delivery)
		}
	case OpEvents:
		m.subscription(f)
		for i := range f.Deliveries {
			m.delivery(fmt.Sprintf("events[%d].", i), f, &f.Deliveries[i])
		}
	}
	slices.Sort(m.lines)
	return m.lines
}

// published adds what a frame says of the events of a PUBLISH.
func (m *meaningLines) published(f *HubFrame) {
	m.addIf(f.ID != nil, "id", string(f.ID))
	m.addIf(f.ID != nil && f.DeliverAt == 0, "offset", f.Offset)
	m.addIf(f.DeliverAt != 0, "deliver_at", f.DeliverAt)
	m.addIf(f.Duplicate, "duplicate", true)
	m.receipts(f.Receipts)
}

func (m *meaningLines) subscription(f *HubFrame) {
	m.add("topic", string(f.Topic))
	m.addIf(f.Group != nil, "group", string(f.Group))
}

func (m *meaningLines) delivery(at string, f *HubFrame, d *eventhub.Delivery) {
	if f.Group == nil {
		if d.Attempt != 1 || d.MaxAttempts != 0 || d.AckTimeout != 0 || !d.Lease.IsZero() {
			m.t.Errorf("the delivery to a live tail is %+v", d)
		}
	} else {
		m.add(at+"ctx.attempt", d.Attempt)
		m.add(at+"ctx.max_attempts", d.MaxAttempts)
		m.add(at+"ctx.ack_deadline_ms", d.AckTimeout.Milliseconds())
		m.addIf(!d.Lease.IsZero(), at+"ctx.lease", d.Lease.String())
		m.addIf(d.Epoch != 0, at+"ctx.epoch", d.Epoch)
		m.addIf(d.Sought, at+"ctx.sought", true)
		m.addIf(d.Redriven != 0, at+"ctx.redriven", d.Redriven)
	}
	if d.State != nil {
		m.add(at+"ctx.state", true)
		m.addIf(d.State.Snapshot != "", at+"ctx.snapshot", d.State.Snapshot)
	}
	if d.Gap != nil {
		m.add(at+"ctx.gap.after", d.Gap.After)
		m.add(at+"ctx.gap.first", d.Gap.First)
		m.addIf(d.Gap.Compacted != 0, at+"ctx.gap.compacted", d.Gap.Compacted)
		m.addIf(d.Gap.Tombstones != 0, at+"ctx.gap.tombstones", d.Gap.Tombstones)
		if d.Gap.Topic != d.Topic {
			m.t.Errorf("the gap of an event of %s is %+v", d.Topic, d.Gap)
		}
	}
	event := d.Record.AppendJSON([]byte(`{"event":`), d.Offset)
	for _, line := range flatten(m.t, append(event, '}')) {
		m.lines = append(m.lines, at+line)
	}
	if e, err := d.Event(); err != nil || e.Topic != d.Topic {
		m.t.Errorf("topic %q of %s, %v", d.Topic, d.Record, err)
	}
}

// receipts lists what a batch's OK says as it says it.
func (m *meaningLines) receipts(rs []eventhub.Receipt) {
	if rs == nil {
		return
	}
	var ids []string
	var offsets []uint64
	var deliverAt []int64
	var duplicates []int
	for i, r := range rs {
		ids, offsets, deliverAt = append(ids, r.ID), append(offsets, r.Offset), append(deliverAt, eventhub.Millis(r.DeliverAt))
		if r.Duplicate {
			duplicates = append(duplicates, i)
		}
	}
	m.add("ids", ids)
	m.add("offsets", offsets)
	m.addIf(slices.Max(deliverAt) > 0, "deliver_at", deliverAt)
	m.addIf(duplicates != nil, "duplicates", duplicates)
}

// TestHubFramesInOtherLayouts: order, space and unknown members do not matter,
// except in the event itself; what is no frame of a hub is an error.
func TestHubFramesInOtherLayouts(t *testing.T) {
	var d HubDecoder
	var f HubFrame
	good := func(frame string) *HubFrame {
		t.Helper()
		if err := d.Decode([]byte(frame), &f); err != nil {
			t.Errorf("%s: %v", frame, err)
		}
		return &f
	}
	if f := good(` {"offset": 7, "new": {"a": [1]}, "id": "a\u0062c", "corr": "12", "op": "OK"} `); f.Offset != 7 || string(f.ID) != "abc" {
		t.Errorf("%+v", f)
	} else if n, ok := f.CorrNumber(); !ok || n != 12 {
		t.Errorf("corr %d, %v", n, ok)
	}
	f2 := good(`{"ctx":{"lease":"1-2-3","attempt":2,"new":null},"op":"EVENT","group":"g","topic":"t",` +
		`"event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":{"ctx":{"attempt":1}}}}`)
	if f2.Delivery.Sought || f2.Delivery.Offset != 9 || f2.Delivery.Attempt != 2 || f2.Delivery.Lease.Serial != 3 || f2.Delivery.ID() != "e" {
		t.Errorf("%+v", f2)
	}
	for _, sought := range []bool{true, false} {
		f := good(fmt.Sprintf(`{"op":"EVENT","topic":"t","group":"g","event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":1},`+
			`"ctx":{"redriven":4,"gap":{"first":9,"new":1,"after":7},"sought":%v,"epoch":1723140000007,"attempt":2,"lease":"1-2-3"}}`, sought))
		if *f.Delivery.Gap != (eventhub.Gap{Topic: "t", After: 7, First: 9}) || f.Delivery.Sought != sought || f.Delivery.Epoch != 1723140000007 || f.Delivery.Redriven != 4 || f.Delivery.Lease.Serial != 3 {
			t.Errorf("%+v of a frame that says sought: %v", f.Delivery, sought)
		}
	}
	f3 := good(`{"new":1,"event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":"}"},"ctx":{"attempt":7},"group":null,"topic":"t","op":"EVENT"}`)
	if f3.Delivery.Offset != 9 || f3.Delivery.Attempt != 1 || f3.Group != nil || f3.Delivery.ID() != "e" {
		t.Errorf("%+v", f3)
	}
	// What a later hub may put after the event of a tail is not a part of it.
	const record = `"ts":1723140000000,"id":"e","topic":"t","payload":{"a":["}{",{"\\\"}":1}]}}`
	f3 = good(`{"op":"EVENT","topic":"t","event":{"offset":9,` + record + `,"ctx":{"gap":{"from":1}}}`)
	if got := string(f3.Delivery.Record); got != "{"+record {
		t.Errorf("the record is %s", got)
	}
	f3 = good(`{"ctx":{"snapshot":"s-1","gap":{"after":1,"first":3},"state":true},"op":"EVENT","topic":"t","event":{"offset":9,` + record + `}`)
	if s := f3.Delivery.State; s == nil || *s != (eventhub.StatePart{Snapshot: "s-1"}) || f3.Delivery.Gap.First != 3 {
		t.Errorf("%+v", f3.Delivery)
	}
	f3 = good(`{"count":0,"snapshot":"c-1","new":1,"offset":7,"topic":"t","op":"STATE"}`)
	if s := f3.Delivery.State; *s != (eventhub.StatePart{Snapshot: "c-1", Complete: true, Offset: 7}) || f3.Delivery.Topic != "t" {
		t.Errorf("%+v", f3.Delivery)
	}
	// A payload may look like the end of a frame.
	tricky := eventhub.Delivery{Topic: "t", Offset: 1, Attempt: 1, MaxAttempts: 5, AckTimeout: time.Second,
		Record: eventhub.Record(`{"ts":1723140000000,"id":"e","topic":"t","payload":{"a":1,"ctx":{"attempt":1,"max_attempts":5,"ack_deadline_ms":0}}}`)}
	if f := good(string(NewEventFrame("t", "g").Append(nil, &tricky))); !reflect.DeepEqual(f.Delivery, tricky) {
		t.Errorf("%+v\nwant %+v", f.Delivery, tricky)
	}
	for _, corr := range []string{`"x"`, `""`, `"007"`, `"99999999999999999"`, `"-1"`} {
		if n, ok := good(`{"op":"OK","corr":` + corr + `}`).CorrNumber(); ok {
			t.Errorf("corr %s is number %d", corr, n)
		}
	}
	f4 := good(` {"events":[ {"ctx":{"attempt":2,"lease":"1-2-3"},"new":1,"event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":"}]"}} ],"group":"g","topic":"t.*","op":"EVENTS"}`)
	if len(f4.Deliveries) != 1 || f4.Deliveries[0].ID() != "e" || f4.Deliveries[0].Attempt != 2 || f4.Deliveries[0].Lease.Serial != 3 || string(f4.Topic) != "t.*" {
		t.Errorf("%+v", f4)
	}
	f4 = good(`{"duplicates":[1] ,"offsets":[0,17],"ids":["\u0061","b"],"deliver_at":[5,0],"new":1,"op":"OK"}`)
	if want := []eventhub.Receipt{{ID: "a", DeliverAt: time.UnixMilli(5)}, {ID: "b", Offset: 17, Duplicate: true}}; !slices.Equal(f4.Receipts, want) {
		t.Errorf("%+v", f4)
	}
	f5 := good(`{"index":0,"group":"\u0067","msg":"m","topic":"t","new":1,"code":"shutting_down","op":"ERR"}`)
	if e := f5.Err; e.Topic != "t" || e.Group != "g" || e.Index == nil || *e.Index != 0 || e.Code != eventhub.CodeShuttingDown {
		t.Errorf("%+v", e)
	}
	if e := good(`{"op":"ERR","code":"x","msg":"m","topic":null,"group":null,"index":null}`).Err; e.Topic != "" || e.Group != "" || e.Index != nil {
		t.Errorf("%+v", e)
	}
	if f4 = good(`{"stale_at":[2,0],"stale":true,"op":"OK"}`); !slices.Equal(f4.StaleAt, []int{2, 0}) || !f4.Stale {
		t.Errorf("%+v", f4)
	}
	for _, frame := range []string{
		`{"op":"OK","ids":["a"]}`, `{"op":"OK","ids":["a"],"offsets":[]}`, `{"op":"OK","ids":["a"],"offsets":[1,2]}`, `{"op":"OK","ids":["a"],"offsets":["1"]}`,
		`{"op":"OK","ids":["a"],"offsets":[1],"duplicates":[1]}`, `{"op":"OK","ids":["a"],"offsets":[1],"duplicates":[-1]}`, `{"op":"OK","ids":["a"],"offsets":[1],"duplicates":3}`,
		`{"op":"OK","ids":["a"],"offsets":[null]}`, `{"op":"OK","ids":["a"],"offsets":[1],"duplicates":[null]}`,
		`{"op":"OK","ids":["a"],"offsets":[1],"deliver_at":[1,2]}`, `{"op":"OK","ids":[1],"offsets":[1]}`, `{"op":"OK","ids":1,"offsets":[1]}`, `{"op":"OK","ids":["a"`,
		`{"op":"OK","known":7}`, `{"op":"OK","gaps":{}}`, `{"op":"OK","gaps":[1]}`, `{"op":"OK","gaps":[{"topic":1}]}`, `{"op":"OK","gaps":[{"topic":"t","after":-1}]}`, `{"op":"OK","gaps":[{"first":"1"}]}`,
		`{"op":"OK","ended":{}}`, `{"op":"OK","ended":[1]}`, `{"op":"OK","ended":[{"topic":1}]}`, `{"op":"OK","ended":[{"cursor":-1}]}`, `{"op":"OK","ended":[{"ts":"1"}]}`,
		`{"op":"OK","stale":true,"stale_at":[1000]}`, `{"op":"OK","id":"a","deliver_at":"soon"}`,
		`{"op":"EVENTS","topic":"t"}`, `{"op":"EVENTS","topic":"t","events":{}}`, `{"op":"EVENTS","topic":"t","events":[3]}`, `{"op":"EVENTS","topic":"t","events":[{}]}`,
		`{"op":"EVENTS","topic":"t","group":"g","events":[{"event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":1}}]}`,
		`{"op":"EVENTS","topic":"t","events":[{"event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":1}},{"event":{"offset":9}}]}`,
		``, `[]`, `{"op":"OK"`, `{"op":"OK"}}`, `{"op":"WHAT"}`, `{"corr":"1"}`, `{"op":"OK","corr":1}`, `{"op":"OK","op":"OK"}`,
		`{"op":"OK","id":"a","offset":-1}`, `{"op":"OK","offset":"1"}`, `{"op":"OK","limits":3}`, `{"op":"ERR","code":1}`,
		`{"op":"ERR","code":"x","topic":1}`, `{"op":"ERR","code":"x","group":[]}`, `{"op":"ERR","code":"x","index":"1"}`, `{"op":"ERR","code":"x","index":-1}`, `{"op":"ERR","code":"x","index":1.5}`, `{"op":"ERR","code":"x","index":10000}`,
		`{"op":"ERR","code":"conflict","present":"1"}`, `{"op":"ERR","code":"conflict","present":-1}`,
		`{"op":"OK","protocol":"1"}`, `{"op":"OK","protocol":-1}`,
		`{"op":"EVENT","topic":"t","event":{"offset":1,"id":"e"}}`, `{"op":"EVENT","topic":"t","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t"}`,
		`{"op":"EVENT","topic":"t","event":3}`, `{"op":"EVENT","topic":"t","group":3,"event":{},"ctx":{}}`,
		`{"op":"EVENT"}`, `{"op":"EVENT","topic":"t","group":"g","event":{},"ctx":{}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1},"ctx":{}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"id":"e"},"ctx":{"attempt":1}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t"},"ctx":{"attempt":1,"lease":"?"}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"attempt":1,"sought":"yes"}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"attempt":1,"epoch":-1}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"attempt":1,"redriven":true}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"attempt":1,"redriven":-1}}`,
		`{"op":"EVENT","topic":"t","group":"g","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"attempt":1,"gap":[]}}`,
		`{"op":"EVENT","topic":"t","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"gap":{"after":1,"first":-2}}}`,
		`{"op":"EVENT","topic":"t","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":[]}`,
		`{"op":"EVENT","topic":"t","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"state":1}}`,
		`{"op":"EVENT","topic":"t","event":{"offset":1,"ts":1723140000000,"id":"e","topic":"t","payload":1},"ctx":{"snapshot":1}}`,
		`{"op":"STATE"}`, `{"op":"STATE","topic":"t"}`, `{"op":"STATE","topic":"t","count":-1}`, `{"op":"STATE","topic":"t","count":1,"offset":"7"}`, `{"op":"STATE","topic":"t","horizon":-1}`,
	} {
		if err := d.Decode([]byte(frame), &f); err == nil {
			t.Errorf("%s passes as %+v", frame, f)
		}
	}
}

func (m *meaningLines) gaps(gaps []eventhub.Gap) {
	var list []any
	for _, g := range gaps {
		said := map[string]any{"topic": g.Topic, "after": g.After, "first": g.First}
		if g.Compacted != 0 {
			said["compacted"] = g.Compacted
		}
		if g.Tombstones != 0 {
			said["tombstones"] = g.Tombstones
		}
		list = append(list, said)
	}
	m.addIf(list != nil, "gaps", list)
}

func (m *meaningLines) ended(ended []eventhub.EndedGroup) {
	var list []any
	for _, e := range ended {
		list = append(list, map[string]any{"topic": e.Topic, "ts": e.TS, "cursor": e.Cursor})
	}
	m.addIf(list != nil, "ended", list)
}

// FuzzDecodeHubFrame: no frame panics, and where both ways read one they agree.
func FuzzDecodeHubFrame(f *testing.F) {
	for _, c := range readGolden(f, "hub.txt") {
		f.Add(c.sent)
	}
	f.Add([]byte(`{"op":"EVENTS","topic":"t","events":[{"event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":"}]\""}},{"event":{"offset":10,"ts":1723140000000,"id":"f","topic":"u","payload":[{"event":{}}]},"ctx":{"attempt":1}}]}`))
	f.Add([]byte(`{"op":"OK","ids":["a","b"],"offsets":[1,0],"deliver_at":[0,5],"duplicates":[0]}`))
	f.Add([]byte(`{"op":"EVENT","topic":"t","event":{"offset":9,"ts":1723140000000,"id":"e","topic":"t","payload":"}}"},"ctx":{"attempt":1}}`))
	var used HubDecoder
	f.Fuzz(func(t *testing.T, frame []byte) {
		var got, want HubFrame
		var fresh HubDecoder
		err := used.Decode(bytes.Clone(frame), &got)
		strictErr := fresh.strict(bytes.Clone(frame), &want)
		if strictErr == nil && (err != nil || !reflect.DeepEqual(got, want)) {
			t.Fatalf("%q\n is %+v, %v\nstrictly %+v", frame, got, err, want)
		}
	})
}

// TestClientFramesArrive sends every kind of frame through the hub's decoder.
func TestClientFramesArrive(t *testing.T) {
	var d Decoder
	arrives := func(t testing.TB, frame []byte) *Request {
		t.Helper()
		var req Request
		if compact, err := strictjson.AppendCompact(nil, frame); err != nil || !bytes.Equal(compact, frame) {
			t.Fatalf("%s: %v", frame, err)
		}
		if err := d.Decode(frame, &req); err != nil {
			t.Fatalf("%s: %v", frame, err)
		}
		return &req
	}
	for _, tt := range []struct {
		frame []byte
		want  Request
	}{
		{AppendAuth(nil, 1, "", false, ""), Request{Op: OpAuth, Corr: "1", HasCorr: true}},
		{AppendAuth(nil, 0, "a\"b", true, ""), Request{Op: OpAuth, Token: "a\"b", HasToken: true}},
		{WithProducer(AppendAuth(nil, 1, "a", true, ""), AuthProducer{ID: "p", Epoch: 7}), Request{Op: OpAuth, Corr: "1", HasCorr: true, Token: "a", HasToken: true, Producer: AuthProducer{ID: "p", Epoch: 7}}},
		{WithProducer(AppendAuth(nil, 0, "", false, ""), AuthProducer{ID: "p"}), Request{Op: OpAuth, Producer: AuthProducer{ID: "p"}}},
		{AppendAuth(nil, 0, "a", true, "billing@w:1/2"), Request{Op: OpAuth, Token: "a", HasToken: true, Name: "billing@w:1/2"}},
		{AppendUnsubscribe(nil, 3, "t.u", ""), Request{Op: OpUnsubscribe, Corr: "3", HasCorr: true, Topic: "t.u"}},
		{AppendUnsubscribe(nil, 1<<63, "t.u", "g:1"), Request{Op: OpUnsubscribe, Corr: "9223372036854775808", HasCorr: true, Topic: "t.u", Group: "g:1"}},
		{AppendPause(nil, 4, "t.u", "g:1"), Request{Op: OpPause, Corr: "4", HasCorr: true, Topic: "t.u", Group: "g:1"}},
		{AppendPause(nil, 0, "t.u", ""), Request{Op: OpPause, Topic: "t.u"}},
		{AppendCancel(nil, 6, "t.u", "order-17"), Request{Op: OpCancel, Corr: "6", HasCorr: true, Topic: "t.u", ID: "order-17"}},
		{AppendResume(nil, 5, "t.u", "g:1"), Request{Op: OpResume, Corr: "5", HasCorr: true, Topic: "t.u", Group: "g:1"}},
	} {
		if got := arrives(t, tt.frame); !reflect.DeepEqual(*got, tt.want) {
			t.Errorf("%s is %+v", tt.frame, got)
		}
	}
	t.Run("PUBLISH", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			e := drawEvent(rt)
			frame, err := AppendPublish([]byte("before"), 7, &e)
			if err != nil {
				rt.Fatal(err)
			}
			got := arrives(t, bytes.TrimPrefix(frame, []byte("before")))
			if diff := cmp.Diff(e, got.Event); diff != "" || got.Corr != "7" {
				rt.Fatalf("%s: corr %q, %s", frame, got.Corr, diff)
			}
		})
	})
	t.Run("PUBLISH of a batch", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			events := rapid.SliceOfN(rapid.Custom(drawEvent), 1, 5).Draw(rt, "events")
			var groups []string
			var upTo time.Duration
			if rapid.Bool().Draw(rt, "wait") {
				groups, upTo = []string{"g", "h:1"}, time.Duration(rapid.IntRange(0, 300_000).Draw(rt, "up to"))*time.Millisecond
			}
			frame, err := AppendPublishWait([]byte("before"), 7, events, groups, upTo)
			if err != nil {
				rt.Fatal(err)
			}
			got := arrives(t, bytes.TrimPrefix(frame, []byte("before")))
			if diff := cmp.Diff(events, got.Events); diff != "" || !got.Batch || !slices.Equal(got.WaitFor, groups) || got.WaitUpTo != upTo {
				rt.Fatalf("%s: %+v, %s", frame, got, diff)
			}
		})
	})
	t.Run("ACK with publish", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			events := rapid.SliceOfN(rapid.Custom(drawEvent), 0, 5).Draw(rt, "events")
			refs := drawRefs(rt)
			frame, err := AppendAckPublish(nil, 7, "t.*", "g", refs, events)
			if err != nil {
				rt.Fatal(err)
			}
			got := arrives(t, frame)
			want := eventhub.Settlement{Refs: refs}
			if diff := cmp.Diff(want, got.Settlement) + cmp.Diff(events, got.Events, cmpopts.EquateEmpty()); diff != "" || got.Topic != "t.*" {
				rt.Fatalf("%s: %s", frame, diff)
			}
		})
	})
	t.Run("ACK of many", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			s := drawSettlement(rt)
			s.Refs = drawRefs(rt)
			frame := AppendSettles(nil, 7, "t", "g", &s, s.Refs)
			if diff := cmp.Diff(s, arrives(t, frame).Settlement); diff != "" {
				rt.Fatalf("%s: %s", frame, diff)
			}
		})
	})
	t.Run("SUBSCRIBE", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			o := drawSubscribe(rt)
			want := o.WithDefaults()
			if o.Group == "" { // a SUBSCRIBE without group says nothing of leases and acks
				want.AutoAck, want.AckTimeout = true, eventhub.DefaultAckTimeout
			}
			batch := rapid.Bool().Draw(rt, "batch frames")
			got := arrives(t, AppendSubscribe(nil, 7, &o, batch))
			if diff := cmp.Diff(want, got.Subscribe); diff != "" || got.Batch != batch {
				rt.Fatalf("batch %v of %v, %s", got.Batch, batch, diff)
			}
		})
	})
	t.Run("ACK", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			s := drawSettlement(rt)
			got := arrives(t, AppendSettle(nil, 0, "t", "g", &s, s.Refs[0]))
			if diff := cmp.Diff(s, got.Settlement); diff != "" || got.HasCorr {
				rt.Fatalf("%s", diff)
			}
		})
	})
}

// TestBadPayloadsLeaveNoTrace: a payload is one strict JSON value or no frame.
func TestBadPayloadsLeaveNoTrace(t *testing.T) {
	for _, payload := range []string{``, `{`, `1,"x":2`, `1}{`, `{"a":1,"a":2}`, "\"\xff\"", strings.Repeat("[", 2000) + strings.Repeat("]", 2000)} {
		got, err := AppendPublish([]byte("before"), 1, &eventhub.Event{Topic: "t", Payload: []byte(payload)})
		if eventhub.ErrorCode(err) != eventhub.CodeBadJSON || string(got) != "before" {
			t.Errorf("%.20q made %.40q, %v", payload, got, err)
		}
		events := []eventhub.Event{{Topic: "t", Payload: []byte("1")}, {Topic: "t", Payload: []byte(payload)}}
		got, err = AppendPublishBatch([]byte("before"), 1, events)
		if eventhub.ErrorCode(err) != eventhub.CodeBadJSON || string(got) != "before" || !strings.Contains(err.Error(), "events[1]") {
			t.Errorf("%.20q in a batch made %.40q, %v", payload, got, err)
		}
		got, err = AppendAckPublish([]byte("before"), 1, "t", "g", []eventhub.Ref{{ID: "x"}}, events)
		if eventhub.ErrorCode(err) != eventhub.CodeBadJSON || string(got) != "before" || !strings.Contains(err.Error(), "publish[1]") {
			t.Errorf("%.20q in an ACK made %.40q, %v", payload, got, err)
		}
	}
}

func drawEvent(t *rapid.T) eventhub.Event {
	text := rapid.StringN(0, 20, -1)
	payload, err := json.Marshal(map[string]any{"text": text.Draw(t, "payload"), "n": rapid.Int().Draw(t, "n")})
	if err != nil {
		t.Fatal(err)
	}
	e := eventhub.Event{Topic: "t.u", Payload: payload}
	draw := func(what string) bool { return rapid.Bool().Draw(t, "with "+what) }
	if draw("id") {
		e.ID = rapid.StringMatching(`[A-Za-z0-9._:-]{1,64}`).Draw(t, "id")
	}
	if draw("ts") {
		e.TS = rapid.Int64Range(1, 1<<50).Draw(t, "ts")
	}
	switch rapid.IntRange(0, 2).Draw(t, "when") {
	case 1:
		e.Delay = time.Duration(rapid.IntRange(1, 1<<20).Draw(t, "delay")) * time.Millisecond
	case 2:
		e.DeliverAt = time.UnixMilli(rapid.Int64Range(1, 1<<50).Draw(t, "deliver at"))
	}
	e.Key, e.SID = text.Draw(t, "key"), text.Draw(t, "sid")
	if draw("headers") {
		e.Headers = rapid.MapOfN(rapid.StringMatching(`[a-z!-]{1,9}`), text, 1, 4).Draw(t, "headers")
	}
	if draw("tags") {
		e.Tags = rapid.SliceOfN(text, 1, 4).Draw(t, "tags")
	}
	if draw("expect") {
		e.Expect.Kind = rapid.SampledFrom([]eventhub.ExpectKind{eventhub.ExpectKeyOffset, eventhub.ExpectTopicOffset}).Draw(t, "kind")
		e.Expect.Offset = rapid.Uint64Range(0, eventhub.MaxOffset).Draw(t, "expected")
	}
	if draw("caused_by") {
		e.CausedBy = []string{"a", "b:c"}
	}
	return e
}

func drawSubscribe(t *rapid.T) SubscribeOptions {
	o := SubscribeOptions{GroupOptions: eventhub.GroupOptions{Topic: "t", Group: "g", AutoAck: rapid.Bool().Draw(t, "auto")}}
	o.Start.Kind = eventhub.StartKind(rapid.IntRange(0, 4).Draw(t, "start"))
	if rapid.IntRange(0, 9).Draw(t, "the state") == 0 {
		o.Group, o.Start.Kind = "", eventhub.StartSnapshot
		o.Places = []eventhub.Place{{Topic: "t", Offset: 7, TS: 8}}
		o.Snapshot = rapid.SampledFrom([]string{"", "s-1-2-3-4"}).Draw(t, "snapshot")
		return o
	}
	switch o.Start.Kind {
	case eventhub.StartTime:
		o.Start.TS = rapid.Int64Range(0, 1<<50).Draw(t, "ts")
	case eventhub.StartAfterID:
		o.Start.AfterID = "e:1"
	case eventhub.StartOffset:
		o.Start.Offset = rapid.Uint64Range(0, eventhub.MaxOffset).Draw(t, "offset")
	}
	if rapid.Bool().Draw(t, "member's") {
		o.BatchSize = rapid.IntRange(1, 10_000).Draw(t, "batch")
		o.MaxInFlight = rapid.IntRange(1, 1_000_000).Draw(t, "in flight")
		o.AckTimeout = time.Duration(rapid.IntRange(1000, 3_600_000).Draw(t, "timeout")) * time.Millisecond
	}
	if rapid.Bool().Draw(t, "a pattern") {
		o.Topic, o.Topics = "t.**", []string{"u.*", "v"}
	}
	o.NoCreate = rapid.Bool().Draw(t, "nothing new")
	if rapid.Bool().Draw(t, "a filter") {
		o.Filter = drawFilter(t)
	}
	if rapid.Bool().Draw(t, "a tail") {
		o.Group = ""
		o.Conflate = time.Duration(rapid.SampledFrom([]int{0, 10, 3_600_000}).Draw(t, "conflate")) * time.Millisecond
		for i := range rapid.IntRange(0, 3).Draw(t, "places") {
			o.Places = append(o.Places, eventhub.Place{Topic: fmt.Sprint("t.", i),
				Offset: rapid.Uint64Range(0, eventhub.MaxOffset).Draw(t, "place"), TS: rapid.Int64Range(0, 1<<50).Draw(t, "seen")})
		}
		return o
	}
	if rapid.Bool().Draw(t, "group's") {
		o.Ordering = rapid.SampledFrom([]string{"", eventhub.OrderingNone, eventhub.OrderingKey}).Draw(t, "ordering")
		o.MaxAttempts = rapid.IntRange(1, 1000).Draw(t, "attempts")
		o.Backoff = eventhub.Backoff{Min: time.Second, Max: time.Minute}
	}
	return o
}

func drawFilter(t *rapid.T) *eventhub.Filter {
	text := rapid.StringN(1, 9, -1)
	f := new(eventhub.Filter)
	if rapid.Bool().Draw(t, "of key") {
		f.Key = text.Draw(t, "key")
	}
	if rapid.Bool().Draw(t, "of headers") {
		f.Headers = map[string]string{"x-a": rapid.StringMatching(`[ -~é]{0,9}`).Draw(t, "header")}
	}
	if rapid.Bool().Draw(t, "of tags") {
		f.Tags = rapid.SliceOfN(text, 1, 3).Draw(t, "tags")
	}
	if rapid.Bool().Draw(t, "of an expression") {
		f.CEL = text.Draw(t, "cel")
	}
	return f
}

// drawRefs returns deliveries named by an id, a lease or both, in any mix.
func drawRefs(t *rapid.T) []eventhub.Ref {
	refs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) (r eventhub.Ref) {
		by := rapid.IntRange(0, 2).Draw(t, "named by")
		if by != 0 {
			r.ID = rapid.StringN(1, 9, -1).Draw(t, "id")
		}
		if by != 1 {
			r.Lease = eventhub.Lease{Runtime: rapid.Uint64().Draw(t, "runtime"), Offset: 3, Serial: 4}
		}
		return r
	}), 1, 5).Draw(t, "refs")
	return refs
}

func drawSettlement(t *rapid.T) eventhub.Settlement {
	ref := eventhub.Ref{Lease: eventhub.Lease{Runtime: rapid.Uint64Range(1, 1<<63).Draw(t, "runtime"), Offset: 3, Serial: 4}}
	switch rapid.IntRange(0, 2).Draw(t, "named by") {
	case 0:
		ref = eventhub.Ref{ID: "e:1"}
	case 1:
		ref.ID = "e:1"
	}
	s := eventhub.Settlement{Verdict: eventhub.Verdict(rapid.IntRange(0, 2).Draw(t, "verdict")), Refs: []eventhub.Ref{ref}}
	switch s.Verdict {
	case eventhub.Nack:
		s.Reason = rapid.StringN(0, 20, -1).Draw(t, "reason")
		s.Delay = time.Duration(rapid.IntRange(0, 1000).Draw(t, "delay")) * time.Millisecond
		s.Terminal = rapid.Bool().Draw(t, "terminal")
	case eventhub.Extend:
		if rapid.Bool().Draw(t, "by") {
			s.By = time.Duration(rapid.IntRange(1000, 3_600_000).Draw(t, "by")) * time.Millisecond
		}
	}
	return s
}

func BenchmarkDecodeEvent(b *testing.B) {
	frame := NewEventFrame("process.state", "ops").Append(nil, benchDelivery())
	comma := bytes.Index(frame, []byte(`,"ts"`))
	var d HubDecoder
	var f HubFrame
	b.ReportAllocs()
	for b.Loop() {
		frame[comma] = ','
		if err := d.Decode(frame, &f); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecode100Events compares 100 deliveries in an EVENTS with as many EVENT.
func BenchmarkDecode100Events(b *testing.B) {
	made := NewEventFrame("process.state", "ops")
	one := made.Append(nil, benchDelivery())
	many := made.AppendAll(nil, slices.Repeat([]eventhub.Delivery{*benchDelivery()}, 100))
	var d HubDecoder
	var f HubFrame
	decode := func(b *testing.B, frame []byte) {
		if err := d.Decode(frame, &f); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("EVENTS", func(b *testing.B) {
		b.ReportAllocs()
		frame := make([]byte, len(many))
		for b.Loop() {
			copy(frame, many) // it is changed
			decode(b, frame)
		}
	})
	b.Run("EVENT", func(b *testing.B) {
		b.ReportAllocs()
		frame := make([]byte, len(one))
		for b.Loop() {
			for range 100 {
				copy(frame, one)
				decode(b, frame)
			}
		}
	})
}

func BenchmarkDecodeBatchOK(b *testing.B) {
	frame := AppendBatchOK(nil, "c-000123", true, benchReceipts(64))
	var d HubDecoder
	var f HubFrame
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Decode(frame, &f); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleHubFrame_CorrNumber() {
	var d HubDecoder
	var f HubFrame
	if err := d.Decode([]byte(`{"op":"OK","corr":"42"}`), &f); err != nil {
		fmt.Println(err)
	}
	fmt.Println(f.CorrNumber())
	// Output: 42 true
}
