package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
)

// hoarder takes all that it is given, and acks nothing.
type hoarder struct{}

func (hoarder) Deliver(batch []eventhub.Delivery) int { return len(batch) }
func (hoarder) Ended(error)                           {}

// TestLeasesDoNotFillAHub: groups whose members take a million events each and ack none do not fill a hub with a small limit of memory:
// others connect and publish.
func TestLeasesDoNotFillAHub(t *testing.T) {
	t.Parallel()
	hub := startPatientHub(t, "--store", t.TempDir(), "--memory-limit", "128")
	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	defer cancel()
	c, err := client.Dial(ctx, "ws://"+hub.ws)
	if err != nil {
		t.Fatal(err)
	}
	for g := range 20 {
		if _, err := c.Subscribe(ctx, eventhub.GroupOptions{
			Topic: "t", Group: fmt.Sprint("g", g), MaxInFlight: 1_000_000, AckTimeout: time.Hour, BatchSize: 1000,
		}, hoarder{}); err != nil {
			t.Fatal(err)
		}
	}
	const batches, batch = 100, 1000
	for n := range batches {
		events := make([]eventhub.Event, batch)
		for i := range events {
			events[i] = eventhub.Event{Topic: "t", Payload: []byte("1")}
		}
		if _, err := c.Publish(ctx, events...); err != nil {
			t.Fatalf("batch %d: %v", n, err)
		}
	}
	other, err := client.Dial(ctx, "ws://"+hub.ws, client.WithoutReconnect())
	if err != nil {
		t.Fatalf("another connection: %v\n%s", err, hub.logged())
	}
	if _, err := other.Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte("2")}); err != nil {
		t.Fatalf("a publish of another connection: %v", err)
	}
	for _, c := range []*client.Client{c, other} {
		if err := c.Close(); err != nil && !errors.Is(err, client.ErrClosed) {
			t.Fatal(err)
		}
	}
}
