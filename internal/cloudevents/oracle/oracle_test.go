// Package oracle checks that the CloudEvents SDK and the hub understand each other:
// the SDK sends in every mode, and receives in every mode that the hub answers in.
package oracle

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"eventhub/hubtest"
)

const (
	structuredType = "application/cloudevents+json"
	batchType      = "application/cloudevents-batch+json"
)

// made returns an event that says all it can.
func made(t *testing.T, id string) cloudevents.Event {
	t.Helper()
	e := cloudevents.NewEvent()
	e.SetID(id)
	e.SetSource("/agents/1?x=é")
	e.SetType("com.example.made")
	e.SetSubject("host:name:17")
	e.SetTime(time.Date(2024, 8, 8, 18, 0, 0, 123e6, time.UTC))
	e.SetDataSchema("https://example.com/schema#1")
	e.SetExtension("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	e.SetExtension("correlationid", "cart-17")
	e.SetExtension("count", 5)
	e.SetExtension("flag", true)
	if err := e.SetData(cloudevents.ApplicationJSON, map[string]any{"n": 1.5, "text": "<é>"}); err != nil {
		t.Fatal(err)
	}
	return e
}

// same compares what was sent with what came back. Extensions are text on the way,
// and the hub adds where the event is.
func same(t *testing.T, how string, want, got cloudevents.Event, topic string, offset int) {
	t.Helper()
	if err := got.Validate(); err != nil {
		t.Errorf("%s: what came back is not valid: %v", how, err)
	}
	for name, pair := range map[string][2]any{
		"id":              {want.ID(), got.ID()},
		"source":          {want.Source(), got.Source()},
		"type":            {want.Type(), got.Type()},
		"subject":         {want.Subject(), got.Subject()},
		"time":            {want.Time(), got.Time()},
		"dataschema":      {want.DataSchema(), got.DataSchema()},
		"datacontenttype": {cloudevents.ApplicationJSON, got.DataContentType()},
		"data":            {canonical(t, want.Data()), canonical(t, got.Data())},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %s is %v; want %v", how, name, pair[1], pair[0])
		}
	}
	extensions := map[string]string{"eventhubtopic": topic, "eventhuboffset": fmt.Sprint(offset)}
	for name, value := range want.Extensions() {
		extensions[name] = fmt.Sprint(value)
	}
	for name, value := range got.Extensions() {
		if extensions[name] != value {
			t.Errorf("%s: extension %s is %v; want %q", how, name, value, extensions[name])
		}
		delete(extensions, name)
	}
	if len(extensions) > 0 {
		t.Errorf("%s: these extensions did not come back: %v", how, extensions)
	}
}

func canonical(t *testing.T, data []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("data %q: %v", data, err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// receive asks the hub and lets the SDK read the answer.
func receive(t *testing.T, url, accept string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, answer.Status)
	}
	return answer
}

// TestOneEvent: the SDK's client sends, binary and structured, and reads back.
func TestOneEvent(t *testing.T) {
	url := hubtest.Start(t).HTTPURL
	client, err := cloudevents.NewClientHTTP()
	if err != nil {
		t.Fatal(err)
	}
	for mode, encode := range map[string]func(context.Context) context.Context{
		"binary": binding.WithForceBinary, "structured": binding.WithForceStructured,
	} {
		topic := "sdk." + mode
		ctx := cloudevents.ContextWithTarget(encode(t.Context()), url+"/publish/"+topic)
		want := made(t, "i-1")
		for range 2 { // again: the same event
			if result := client.Send(ctx, want); !cloudevents.IsACK(result) {
				t.Fatalf("%s: the hub's answer is %v", mode, result)
			}
		}
		got, err := cehttp.NewEventFromHTTPResponse(receive(t, url+"/v1/topics/"+topic+"/events/i-1", structuredType))
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		same(t, mode, want, *got, topic, 1)
		// An event of the hub's answer is one that can be sent again.
		if result := client.Send(cloudevents.ContextWithTarget(encode(t.Context()), url+"/publish/again."+mode), *got); !cloudevents.IsACK(result) {
			t.Fatalf("%s: sent again: %v", mode, result)
		}
		again, err := cehttp.NewEventFromHTTPResponse(receive(t, url+"/v1/topics/again."+mode+"/events/i-1", structuredType))
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		same(t, mode+" again", want, *again, "again."+mode, 1)

		bad := made(t, "a b")
		if result := client.Send(ctx, bad); cloudevents.IsACK(result) {
			t.Errorf("%s: an id that the hub does not take was acked", mode)
		}
	}
}

// TestBatch: the SDK sends a batch and reads one.
func TestBatch(t *testing.T) {
	url := hubtest.Start(t).HTTPURL
	want := []cloudevents.Event{made(t, "b-1"), made(t, "b-2")}
	r, err := cehttp.NewHTTPRequestFromEvents(t.Context(), url+"/publish/sdk.batch", want)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("a batch: %s", answer.Status)
	}
	got, err := cehttp.NewEventsFromHTTPResponse(receive(t, url+"/v1/events?correlation_id=cart-17", batchType))
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d events came back: %v", len(got), err)
	}
	for i := range got {
		same(t, want[i].ID(), want[i], got[i], "sdk.batch", i+1)
	}
}

// TestDataInOtherForms: JSON as bytes, which the SDK writes as base64, and none.
func TestDataInOtherForms(t *testing.T) {
	url := hubtest.Start(t).HTTPURL
	client, err := cloudevents.NewClientHTTP()
	if err != nil {
		t.Fatal(err)
	}
	for id, set := range map[string]func(*cloudevents.Event) error{
		"bytes": func(e *cloudevents.Event) error { return e.SetData(cloudevents.ApplicationJSON, []byte(`{"a":[1,2]}`)) },
		"none":  func(*cloudevents.Event) error { return nil },
	} {
		e := cloudevents.NewEvent()
		e.SetID(id)
		e.SetSource("s")
		e.SetType("t")
		if err := set(&e); err != nil {
			t.Fatal(err)
		}
		for mode, encode := range map[string]func(context.Context) context.Context{
			"binary": binding.WithForceBinary, "structured": binding.WithForceStructured,
		} {
			ctx := cloudevents.ContextWithTarget(encode(t.Context()), url+"/publish/forms."+mode)
			if result := client.Send(ctx, e); !cloudevents.IsACK(result) {
				t.Fatalf("%s of %s: %v", mode, id, result)
			}
			got, err := cehttp.NewEventFromHTTPResponse(receive(t, url+"/v1/topics/forms."+mode+"/events/"+id, structuredType))
			if err != nil {
				t.Fatalf("%s of %s: %v", mode, id, err)
			}
			want := `{"a":[1,2]}`
			if id == "none" {
				want = "null"
			}
			if canonical(t, got.Data()) != want {
				t.Errorf("%s of %s came back as %s", mode, id, got.Data())
			}
		}
	}
}
