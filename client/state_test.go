package client_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
)

// TestStateSaysWhatTheHubSays: a remote hub answers as the engine does, pages and refusals too.
func TestStateSaysWhatTheHubSays(t *testing.T) {
	engine, url := traceable(t)
	remote := adminOf(t, url)
	for i := range 9 {
		e := eventhub.Event{Topic: "s", Key: fmt.Sprintf("k/%d é", i%4), Payload: json.RawMessage(fmt.Sprint(i))}
		if _, err := engine.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now().UnixMilli()
	for _, q := range []admin.StateQuery{
		{Limit: 10}, {Limit: 3}, {At: 5, Limit: 10}, {AtTS: now, Limit: 10}, {AtTS: 1, Limit: 10}, {Prefix: "k/1", Limit: 10},
		{Keys: []string{"k/3 é", "k/0 é", "none"}, Limit: 1}, {MinOffset: 9, Wait: time.Second, Limit: 10},
		{At: 10, Limit: 1}, {AtTS: now + 1e9, Limit: 1}, {Limit: 0}, {Page: "nonsense", Limit: 1}, {MinOffset: 10, Limit: 1},
		{Keys: []string{}, Limit: 1}, {At: 1, AtTS: 1, Limit: 1},
	} {
		for q.Topic = "s"; ; {
			want, wantErr := engine.State(t.Context(), q)
			got, err := remote.State(t.Context(), q)
			if eventhub.ErrorCode(err) != eventhub.ErrorCode(wantErr) {
				t.Errorf("State(%+v): %v; the engine says %v", q, err, wantErr)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("State(%+v) (-engine +remote):\n%s", q, diff)
			}
			if got.Next == "" {
				break
			}
			q = admin.StateQuery{Topic: "s", Keys: q.Keys, Prefix: q.Prefix, Page: got.Next, Limit: q.Limit}
		}
	}
}

// TestStateDiffSaysWhatTheHubSays: a remote hub answers as the engine does, pages and refusals too.
func TestStateDiffSaysWhatTheHubSays(t *testing.T) {
	engine, url := traceable(t)
	remote := adminOf(t, url)
	for i := range 12 {
		payload := fmt.Sprint(i)
		if i%5 == 4 {
			payload = "null"
		}
		e := eventhub.Event{Topic: "s", Key: fmt.Sprintf("k/%d <é>", i%4), Payload: json.RawMessage(payload)}
		if _, err := engine.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now().UnixMilli()
	at := func(offset uint64) admin.Moment { return admin.Moment{Offset: offset} }
	for _, q := range []admin.StateDiffQuery{
		{From: at(3), Limit: 10}, {From: at(3), Limit: 1}, {From: at(3), To: at(5), Limit: 10}, {From: admin.Moment{TS: 1}, To: admin.Moment{TS: now}, Limit: 2},
		{From: at(1), Prefix: "k/1", Limit: 10}, {Limit: 1}, {To: at(2), Limit: 1}, {From: at(13), Limit: 1}, {From: at(2), To: at(1), Limit: 1},
		{From: admin.Moment{TS: now + 1e9}, Limit: 1}, {From: at(1)}, {Page: "nonsense", Limit: 1}, {From: admin.Moment{Offset: 1, TS: 1}, Limit: 1},
	} {
		for q.Topic = "s"; ; {
			want, wantErr := engine.StateDiff(t.Context(), q)
			got, err := remote.StateDiff(t.Context(), q)
			if eventhub.ErrorCode(err) != eventhub.ErrorCode(wantErr) {
				t.Errorf("StateDiff(%+v): %v; the engine says %v", q, err, wantErr)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("StateDiff(%+v) (-engine +remote):\n%s", q, diff)
			}
			if got.Next == "" {
				break
			}
			q = admin.StateDiffQuery{Topic: "s", Prefix: q.Prefix, Page: got.Next, Limit: q.Limit}
		}
	}
}

// TestKeyHistorySaysWhatTheHubSays: a remote hub answers as the engine does, pages and refusals too.
func TestKeyHistorySaysWhatTheHubSays(t *testing.T) {
	engine, url := traceable(t)
	remote := adminOf(t, url)
	const key = "k/é <&>?"
	for i := range 9 {
		e := eventhub.Event{Topic: "s", ID: fmt.Sprint("s-", i), Key: key, Payload: json.RawMessage(fmt.Sprint(i))}
		if i%4 == 3 {
			e.Payload = json.RawMessage("null")
		}
		if i > 2 {
			e.CausedBy = []string{fmt.Sprint("s-", i-2), "nobody"}
		}
		if _, err := engine.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	compare := func(queries ...admin.KeyHistoryQuery) {
		for _, q := range queries {
			for q.Topic = "s"; ; {
				want, wantErr := engine.KeyHistory(t.Context(), q)
				got, err := remote.KeyHistory(t.Context(), q)
				if eventhub.ErrorCode(err) != eventhub.ErrorCode(wantErr) {
					t.Errorf("KeyHistory(%+v): %v; the engine says %v", q, err, wantErr)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("KeyHistory(%+v) (-engine +remote):\n%s", q, diff)
				}
				if q.Before = got.Next; got.Next == 0 {
					break
				}
			}
		}
	}
	compare([]admin.KeyHistoryQuery{{Key: key, Limit: 10}, {Key: key, Limit: 2}, {Key: key, Before: 4, Limit: 1}, {Key: "none", Limit: 1},
		{Key: "", Limit: 1}, {Key: key}, {Key: key, Before: eventhub.MaxOffset + 1, Limit: 1}}...)
	if _, err := engine.Trim(t.Context(), "s", admin.TrimQuery{Keep: 4}, true); err != nil {
		t.Fatal(err)
	}
	compare(admin.KeyHistoryQuery{Key: key, Limit: 10})
}
