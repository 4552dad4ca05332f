package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"eventhub"
	"eventhub/client"
)

// TestSmallMemoryLimit: what a hub keeps in memory of what was published (memtables, blocks, the events at the head) has a part of its
// limit. With what a hub without a limit keeps, it would refuse connections and publishes after some 40 MiB, for good: nothing that a
// client may still do makes that less.
func TestSmallMemoryLimit(t *testing.T) {
	t.Parallel()
	hub := startPatientHub(t, "--store", t.TempDir(), "--memory-limit", "128")
	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	defer cancel()
	payload, err := json.Marshal(strings.Repeat("x", 200<<10))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		c, err := client.Dial(ctx, "ws://"+hub.ws, client.WithoutReconnect())
		if err != nil {
			t.Fatalf("a connection after what was published: %v\n%s", err, hub.logged())
		}
		for range 25 {
			if _, err := c.Publish(ctx, eventhub.Event{Topic: "t", Payload: payload}); err != nil {
				t.Fatalf("a publish: %v", err)
			}
		}
		if err := c.Close(); err != nil && !errors.Is(err, client.ErrClosed) {
			t.Fatal(err)
		}
	}
}
