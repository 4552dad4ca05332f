package rest

import (
	"runtime"
	"strings"
	"testing"

	"eventhub"
)

// TestBatchesAreBoundedBeforeTheyAreRead: what a body makes the hub keep has to do
// with what a batch may be, not with how many entries fit into the body.
func TestBatchesAreBoundedBeforeTheyAreRead(t *testing.T) {
	list := func(entry string, n int) string { return strings.TrimSuffix(strings.Repeat(entry+",", n), ",") }
	const one = `{"topic":"t","payload":1}`
	for name, tt := range map[string]struct {
		decode func([]byte) ([]eventhub.Event, func(int) string, error)
		body   string
		code   eventhub.Code
		msg    string
		most   uint64 // MiB
	}{
		"objects without anything": {decodeBatch, `{"events":[` + list(`{}`, 5_000_000) + `]}`, eventhub.CodeBadTopic, "events[0]: topic is missing", 1},
		"too many events":          {decodeBatch, `{"events":[` + list(one, 600_000) + `]}`, eventhub.CodeBadRequest, "the batch has more than 10000 events", 64},
		"an event of many tags": {decodeBatch, `{"events":[` + one + `,{"topic":"t","payload":1,"tags":[` + list(`""`, 5_000_000) + `]}]}`,
			eventhub.CodeTooLarge, "events[1]: the event has 15000034 bytes; at most 1245184 are allowed", 1},
		"a line of many tags": {decodeLines, one + "\n" + `{"topic":"t","payload":1,"tags":[` + list(`""`, 5_000_000) + `]}`,
			eventhub.CodeTooLarge, "line 2: the event has 15000034 bytes; at most 1245184 are allowed", 1},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(tt.body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := tt.decode(body)
			runtime.ReadMemStats(&after)
			e := eventhub.AsError(err)
			if e == nil || e.Code != tt.code || e.Message != tt.msg {
				t.Errorf("refused with %v; want %s: %s", err, tt.code, tt.msg)
			}
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > tt.most {
				t.Errorf("a body of %d MiB made the hub allocate %d MiB; at most %d are right", len(body)>>20, mib, tt.most)
			}
		})
	}
}

// TestBatchesThatAreNone: what is no batch is distinguished from an empty batch.
func TestBatchesThatAreNone(t *testing.T) {
	for body, want := range map[string]string{
		`{"events":{}}`:                                      "bad_request: /events can not be an object",
		`{"events":[1]}`:                                     "bad_request: events[0]: the value can not be such a number",
		`{"events":[{"topic":1}]}`:                           "bad_request: events[0]: /topic can not be such a number",
		`{"events":[{"wait_for":["g"]}]}`:                    "bad_request: events[0]: /wait_for is not a known name",
		`{"events":[{"topic":"t",}]}`:                        "bad_json: invalid JSON at byte 24",
		`{"events":[],"events":[]}`:                          "bad_json: duplicate name \"events\" at byte 13",
		`{"events":[{"topic":"t","payload":{"a":1,"a":2}}]}`: "bad_json: duplicate name \"a\" at byte 41",
		`{"events":[`:                                        "bad_json: invalid JSON at byte 11",
		`{"events":[]}x`:                                     "bad_json: invalid JSON at byte 13",
	} {
		events, _, err := decodeBatch([]byte(body))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s is %v, %v; want %s", body, events, err, want)
		}
	}
	for _, body := range []string{`{"events":[]}`, `{"events":null}`, `{}`} {
		if events, _, err := decodeBatch([]byte(body)); err != nil || len(events) != 0 {
			t.Errorf("%s is %v, %v; want no events", body, events, err)
		}
	}
}
