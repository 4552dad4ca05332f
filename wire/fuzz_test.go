package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/testsize"
)

// FuzzDecode throws anything at one decoder that has seen everything before it.
// It must not panic; an error must be the protocol's; the same frame must give
// the same answer from a fresh decoder; the short way through the first pass
// must agree with the long one; and what passes must be JSON that the standard
// library reads the same way.
func FuzzDecode(f *testing.F) {
	for _, name := range []string{"client.txt", "seeds.txt", "errors.txt"} {
		for _, c := range readGolden(f, name) {
			f.Add(c.frame)
		}
	}
	f.Add([]byte(benchPublish))
	var used Decoder
	f.Fuzz(func(t *testing.T, frame []byte) {
		var req Request
		checkPlain(t, frame)
		err := used.Decode(frame, &req)
		checkSame(t, frame, &req, err)
		if err != nil {
			checkRefusal(t, frame, err)
			return
		}
		checkAccepted(t, frame, &req)
	})
}

// checkPlain holds splitPlain against split: it may give up, not disagree.
func checkPlain(t *testing.T, frame []byte) {
	t.Helper()
	var plain, strict Decoder
	if !plain.splitPlain(frame) {
		return
	}
	if err := strict.split(frame); err != nil {
		t.Fatalf("%q passed splitPlain; split says %v", frame, err)
	}
	if !reflect.DeepEqual(plain.m, strict.m) || !slices.EqualFunc(plain.opts, strict.opts, equalOptions) {
		t.Fatalf("%q: splitPlain cut\n%q %q\nand split\n%q %q", frame, plain.m, plain.opts, strict.m, strict.opts)
	}
}

func equalOptions(a, b option) bool {
	return bytes.Equal(a.name, b.name) && bytes.Equal(a.value, b.value)
}

// TestPlainFrames: the frames of the clients that there are go the short way,
// and splitPlain agrees with split on them and on all others, whatever byte of
// them is another.
func TestPlainFrames(t *testing.T) {
	batch := `{"op":"PUBLISH","corr":"1","events":[` + strings.Repeat(`{"topic":"t","payload":{"a":[1,2.5]},"opts":{"id":"x","key":"k"}},`, 999) + `{"topic":"t","payload":null}]}`
	for _, c := range append(readGolden(t, "seeds.txt"), goldenCase{frame: []byte(benchPublish)},
		goldenCase{title: "a batch", frame: []byte(batch)},
		goldenCase{title: "opts", frame: []byte(`{"op":"PUBLISH","topic":"t","payload":{"a":1},"opts":{"id":"x","headers":{"h":"v"}}}`)}) {
		checkPlain(t, c.frame)
		var d Decoder
		if !d.splitPlain(c.frame) {
			t.Errorf("%s: %s goes the long way", c.title, c.frame)
		}
	}
	for _, name := range []string{"client.txt", "errors.txt"} {
		for _, c := range readGolden(t, name) {
			checkPlain(t, c.frame)
			frame := bytes.Clone(c.frame)
			stride := testsize.Of(1, 7)
			for i := rand.IntN(stride); i < len(frame); i += stride {
				for _, b := range []byte("\x1f \"\\,:{}]0n\x7f\x80") {
					frame[i] = b
					checkPlain(t, frame)
				}
				frame[i] = c.frame[i]
			}
		}
	}
}

func checkSame(t *testing.T, frame []byte, req *Request, err error) {
	t.Helper()
	var fresh Decoder
	again := Request{Op: "stale", Topic: "stale", HasToken: true, Events: make([]eventhub.Event, 3)}
	err2 := fresh.Decode(bytes.Clone(frame), &again)
	if (err == nil) != (err2 == nil) || err != nil && err.Error() != err2.Error() {
		t.Fatalf("%q: %v, then %v", frame, err, err2)
	}
	if len(req.Events) == 0 && len(again.Events) == 0 {
		again.Events = req.Events // what memory is kept does not matter
	}
	if !reflect.DeepEqual(*req, again) {
		t.Fatalf("%q: %+v, then %+v", frame, *req, again)
	}
}

func checkRefusal(t *testing.T, frame []byte, err error) {
	t.Helper()
	var e *eventhub.Error
	if !errors.As(err, &e) {
		t.Fatalf("%q: error %v is not an *eventhub.Error", frame, err)
	}
	switch e.Code {
	case eventhub.CodeBadJSON, eventhub.CodeBadRequest, eventhub.CodeBadTopic,
		eventhub.CodeBadEvent, eventhub.CodeUnsupportedOp:
	default:
		t.Fatalf("%q: code %s", frame, e.Code)
	}
	if e.Message == "" || len(e.Message) > 500 {
		t.Fatalf("%q: message of %d bytes %q", frame, len(e.Message), e.Message)
	}
}

func checkAccepted(t *testing.T, frame []byte, req *Request) {
	t.Helper()
	if !json.Valid(frame) {
		t.Fatalf("%q passed; encoding/json refuses it", frame)
	}
	// Names of a map are exact, those of a struct are not.
	said, _ := unmarshal(t, frame).(map[string]any)
	text := func(name string) string { s, _ := said[name].(string); return s }
	if string(req.Op) != text("op") || req.Corr != text("corr") || req.HasCorr != (said["corr"] != nil) {
		t.Fatalf("%q was read as op %q, corr %q", frame, req.Op, req.Corr)
	}
	switch req.Op {
	case OpAuth:
		if req.Token != text("token") || req.HasToken != (said["token"] != nil) {
			t.Fatalf("%q was read as token %q", frame, req.Token)
		}
		if req.Name != text("name") {
			t.Fatalf("%q was read as name %q", frame, req.Name)
		}
		return
	case OpPublish:
		if req.Batch {
			checkEvents(t, frame, said["events"], req.Events)
			return
		}
		if !reflect.DeepEqual(unmarshal(t, req.Event.Payload), said["payload"]) {
			t.Fatalf("%q was read as payload %s", frame, req.Event.Payload)
		}
		opts, _ := said["opts"].(map[string]any)
		key, _ := opts["key"].(string)
		if req.Event.Key != key || req.Event.Topic != req.Topic {
			t.Fatalf("%q was read as %+v", frame, req.Event)
		}
	case OpCancel:
		if req.ID != text("id") {
			t.Fatalf("%q was read as id %q", frame, req.ID)
		}
	case OpSubscribe:
		if req.Subscribe.Topic != req.Topic || req.Subscribe.Group != req.Group {
			t.Fatalf("%q was read as %+v", frame, req.Subscribe)
		}
	case OpAck, OpNack, OpModack:
		if n := len(req.Settlement.Refs); n < 1 || n > MaxRefs {
			t.Fatalf("%q was read as %d refs", frame, n)
		}
		checkRefs(t, frame, said["ids"], req.Settlement.Refs)
		checkEvents(t, frame, said["publish"], req.Events)
	}
	if req.Topic != text("topic") || req.Op != OpPublish && req.Op != OpCancel && req.Group != text("group") {
		t.Fatalf("%q was read as topic %q, group %q", frame, req.Topic, req.Group)
	}
}

// checkEvents compares a list of events with what the standard library read.
func checkEvents(t *testing.T, frame []byte, said any, events []eventhub.Event) {
	t.Helper()
	list, _ := said.([]any)
	if len(list) != len(events) {
		t.Fatalf("%q was read as %d events", frame, len(events))
	}
	for i := range events {
		object, _ := list[i].(map[string]any)
		opts, _ := object["opts"].(map[string]any)
		id, _ := opts["id"].(string)
		if events[i].Topic != object["topic"] || events[i].ID != id || !reflect.DeepEqual(unmarshal(t, events[i].Payload), object["payload"]) {
			t.Fatalf("%q: event %d was read as %+v", frame, i, events[i])
		}
	}
}

func checkRefs(t *testing.T, frame []byte, said any, refs []eventhub.Ref) {
	t.Helper()
	list, _ := said.([]any)
	if list != nil && len(list) != len(refs) {
		t.Fatalf("%q was read as %d refs", frame, len(refs))
	}
	for i := range list {
		if id, _ := list[i].(string); refs[i].ID != id {
			t.Fatalf("%q: ref %d was read as %+v", frame, i, refs[i])
		}
	}
}

// unmarshal reads JSON with the standard library, numbers as they are.
func unmarshal(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return value
}
