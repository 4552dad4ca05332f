package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/hubtest"
)

// TestExportSaysWhatCompactionTook: export and replay print a line on standard error for a topic
// that is compacted, where its events are asked for, and the events on standard output alone.
func TestExportSaysWhatCompactionTook(t *testing.T) {
	h := hubtest.Start(t, hubtest.WithCompactEvery(time.Millisecond))
	least := admin.MinCompactionAge
	_, err := h.Admin().SetTopic(t.Context(), "stock", admin.TopicSettings{Compaction: &admin.Compaction{MinAge: least, Grace: least}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"stock", "plain"} {
		if _, err := h.Client().Publish(t.Context(),
			eventhub.Event{Topic: topic, Key: "lamp", Payload: []byte("1")}, eventhub.Event{Topic: topic, Key: "lamp", Payload: []byte("2")}); err != nil {
			t.Fatal(err)
		}
	}
	const said = "eventhub: stock is compacted up to offset 2: values that were replaced may be missing, and ends of keys up to offset 2\n"
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	deadline := time.Now().Add(watchdog)
	for left, marks := 2, uint64(0); left > 1 || marks < 2; <-again.C {
		left = 0
		q := admin.ReplayQuery{Topic: "stock", OnGap: func(g eventhub.Gap) { marks = g.Tombstones }}
		err := h.Admin().Replay(t.Context(), q, func(string, eventhub.Item) error { left++; return nil })
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d events are left, ends of keys up to %d: %v", left, marks, err)
		}
	}
	file := filepath.Join(t.TempDir(), "events")
	for _, tt := range []struct {
		args []string
		says bool
	}{
		{[]string{"export", "stock"}, true},
		{[]string{"export", "stock", "-f", file}, true},
		{[]string{"export", "*", "--filter-key", "lamp"}, true},
		{[]string{"export", "stock", "--from", "offset:3"}, false},
		{[]string{"export", "plain"}, false},
		{[]string{"replay", "stock"}, true},
		{[]string{"replay", "stock", "-o", "json"}, true},
		{[]string{"replay", "plain"}, false},
	} {
		code, stdout, stderr := runBinary(t, nil, append(tt.args, "--url", h.URL)...)
		if code != 0 || strings.Contains(stderr, said) != tt.says || strings.Contains(stderr, "is compacted") != tt.says || strings.Contains(stdout, "compacted") {
			t.Errorf("%v: exit code %d, %q on standard error and %q on standard output", tt.args, code, stderr, stdout)
		}
	}
}
