package ops

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

// TestLatestByKey asks a real engine: the answer is the event as it is stored, or null.
func TestLatestByKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{})
		b, err := bus.New(bus.Options{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		cfg := filled().config()
		cfg.Authenticate = func(context.Context, string, bool) (Access, error) { return Access{Inspector: b, History: b}, nil }
		h := open(t, cfg)
		for _, e := range [][2]string{{"a", "1"}, {"b", "1"}, {"a", `"<1.0>"`}, {"b", "null"}} {
			if _, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", Key: e[0], Payload: json.RawMessage(e[1])}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.State(context.Background(), admin.StateQuery{Topic: "t", Limit: 1}); err != nil { // the store has no index before
			t.Fatal(err)
		}
		item, err := s.Latest(context.Background(), "t", "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		stored := string(item.Record.AppendJSON(nil, item.Offset))
		for query, want := range map[string]string{
			"topic=t&key=a": stored, "topic=t&key=b": "null", "topic=t&key=none": "null", "topic=none&key=a": "null",
		} {
			w := get(h, "/latest-by-key?"+query)
			if w.Code != 200 || w.Body.String() != want+"\n" || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s: %d %s %q; want %q", query, w.Code, w.Header(), w.Body, want)
			}
		}
		for query, says := range map[string]string{
			"": "topic and key required", "topic=t": "topic and key required", "key=a": "topic and key required",
		} {
			wantProblem(t, get(h, "/latest-by-key?"+query), 400, eventhub.CodeBadRequest, says)
		}
		wantProblem(t, get(h, "/latest-by-key?topic=t+t&key=a"), 400, eventhub.CodeBadTopic, "t t")
		if err := errors.Join(b.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
}
