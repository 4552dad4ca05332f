package inbox

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"eventhub"
)

// source hands over a log of deliveries, as far as the inbox takes them, and goes
// on when it hears of room.
type source struct {
	eventhub.Subscription
	in *Inbox

	mu       sync.Mutex
	left     []eventhub.Delivery
	refusals int
}

func (s *source) Ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.in.Deliver(s.left); n < len(s.left) {
		s.refusals++
		s.left = s.left[n:]
	} else {
		s.left = nil
	}
}

func arrived(in *Inbox) bool {
	select {
	case <-in.Arrived():
		return true
	default:
		return false
	}
}

// TestBatchesAreBoundedAndInOrder: what finds no room stays with the hub and comes
// after Take.
func TestBatchesAreBoundedAndInOrder(t *testing.T) {
	const many, room = 100, 7
	s := &source{in: New(room)}
	for i := range many {
		s.left = append(s.left, eventhub.Delivery{Offset: uint64(i + 1)})
	}
	s.Ready()
	next := uint64(1)
	for arrived(s.in) {
		batch := s.in.Take(s)
		if len(batch) > room {
			t.Fatalf("%d deliveries in an inbox for %d", len(batch), room)
		}
		for _, d := range batch {
			if d.Offset != next {
				t.Fatalf("offset %d came; want %d", d.Offset, next)
			}
			next++
		}
	}
	if next != many+1 || s.refusals != many/room {
		t.Errorf("%d deliveries and %d refusals; want %d and %d", next-1, s.refusals, many, many/room)
	}
}

// TestRecordsAreKept: a record is the hub's again when Deliver has returned.
func TestRecordsAreKept(t *testing.T) {
	in := New(1)
	record := eventhub.Record(`{"topic":"t"}`)
	in.Deliver([]eventhub.Delivery{{Record: record}})
	clear(record)
	if got := string(in.Take(nil)[0].Record); got != `{"topic":"t"}` {
		t.Errorf("the record has become %q", got)
	}
}

// TestArrivedSignalsOnce: for any number of batches, and not for a batch if
// nothing was taken.
func TestArrivedSignalsOnce(t *testing.T) {
	in := New(2)
	for range 3 {
		in.Deliver(make([]eventhub.Delivery, 1))
	}
	s := &source{in: in}
	if !arrived(in) || arrived(in) {
		t.Error("three deliveries did not arrive as one")
	}
	if n := len(in.Take(s)); n != 2 {
		t.Errorf("took %d", n)
	}
	in.Deliver(nil)
	if arrived(in) {
		t.Error("nothing arrived")
	}
}

func TestEndIsTold(t *testing.T) {
	in, cause := New(1), errors.New("the hub stops")
	in.Ended(cause)
	if err := <-in.Over(); !errors.Is(err, cause) {
		t.Error(fmt.Errorf("over: %w", err))
	}
}
