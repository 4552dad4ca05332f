package cloudevents

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/record"
)

// wantRoundTrip expects that what passed is an event that is written as a CloudEvent that reads as
// the same event, as far as the hub would take it.
func wantRoundTrip(t *testing.T, e eventhub.Event, err error) {
	t.Helper()
	if err != nil {
		var judged *eventhub.Error
		if !errors.As(err, &judged) || !judged.Code.Known() {
			t.Fatalf("the error is %T %v", err, err)
		}
		return
	}
	if e.TS == 0 {
		e.TS = 1 // the hub's own
	}
	if e.Validate(time.UnixMilli(4e12)) != nil || e.ID == "" || !e.DeliverAt.IsZero() || e.Delay != 0 {
		return
	}
	r, err := record.Append(nil, &e)
	if err != nil {
		return
	}
	if !json.Valid(e.Payload) {
		t.Fatalf("the payload is %q", e.Payload)
	}
	out, err := AppendStructured(nil, e.Topic, 7, r)
	if err != nil || !json.Valid(out) {
		t.Fatalf("%s is written as %s, %v", r, out, err)
	}
	again, err := ReadStructured(out, eventhub.Event{Topic: e.Topic, Key: e.Key})
	if err != nil || again.ID != e.ID || again.Key != e.Key || string(compacted(again.Payload)) != string(compacted(e.Payload)) {
		t.Fatalf("%s reads as %+v, %v; want %+v", out, again, err, e)
	}
}

func compacted(b []byte) []byte {
	var v any
	if json.Unmarshal(b, &v) != nil {
		return b
	}
	out, _ := json.Marshal(v) // it was read
	return out
}

// FuzzStructured reads what may be no CloudEvent, as one and as a batch of one.
func FuzzStructured(f *testing.F) {
	for _, s := range []string{
		`{"specversion":"1.0","id":"a","source":"/s","type":"t","subject":"k","time":"2030-01-02T03:04:05Z","datacontenttype":"application/json","data":{"a":1},"partitionkey":"p","x":"y"}`,
		`{"specversion":"1.0","id":"a","source":"s","type":"t","data_base64":"AAEC"}`, `{"specversion":"0.3"}`, `{"specversion":"1.0","id":"\u0000","source":"s","type":"t"}`,
		`{"specversion":"1.0","id":"a","source":"s","type":"t","data":"x","datacontenttype":"text/plain","n":5,"b":true}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := ReadStructured(body, eventhub.Event{Topic: "t"})
		wantRoundTrip(t, e, err)
		list, batchErr := ReadBatch(append(append([]byte("["), body...), ']'), eventhub.Event{Topic: "t"}, 1)
		if err == nil && (batchErr != nil || len(list) != 1 || list[0].ID != e.ID) {
			t.Errorf("as a batch: %+v, %v; alone %+v", list, batchErr, e)
		}
	})
}

// FuzzBinary reads headers and a body that may be no CloudEvent.
func FuzzBinary(f *testing.F) {
	f.Add("a", "/s", "t", "k%20ü", "x", "application/json", []byte(`{"a":1}`))
	f.Add(`"quo\"ted"`, "s", "t", "%", "%C3", "text/plain; charset=utf-8", []byte("text\xff"))
	f.Add("a", "s", "t", "", "", "application/octet-stream", []byte{0, 1, 2})
	f.Fuzz(func(t *testing.T, id, source, kind, subject, extra, contentType string, body []byte) {
		e, err := ReadBinary(header("Ce-Specversion", "1.0", "Ce-Id", id, "Ce-Source", source, "Ce-Type", kind, "Ce-Subject", subject, "Ce-Extra", extra,
			"Content-Type", contentType), body, eventhub.Event{Topic: "t"})
		wantRoundTrip(t, e, err)
	})
}
