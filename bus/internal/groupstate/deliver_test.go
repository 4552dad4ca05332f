package groupstate

import (
	"testing"

	"eventhub"
)

// settledEvent is what is reported of one.
type settledEvent struct {
	offset    uint64
	how       Ending
	held, age int64
}

// single is a host and a member that keep what is reported.
type single struct{ settled []settledEvent }

func (s *single) Changed() {}
func (s *single) Settled(offset uint64, how Ending, held, age int64) {
	s.settled = append(s.settled, settledEvent{offset, how, held, age})
}
func (s *single) Freed()            {}
func (s *single) Forgot(string)     {}
func (s *single) KeepsLeases() bool { return true }

// TestUndeliveredAge: an event whose next delivery nobody took, and that is acked late by who
// had it before, was as old as it was then.
func TestUndeliveredAge(t *testing.T) {
	s := &single{}
	g := new(Group)
	g.Restore(s, Config{MaxAttempts: 3, Backoff: func(int) int64 { return 1 }}, newProgress(), 0, 1, 0, 1)
	h := &Holder{Member: s, Peer: &eventhub.Peer{}, Timeout: 1000}
	record := eventhub.Record(`{"ts":1700000000000,"id":"e","topic":"t","payload":1}`)
	const began = 1700000000010
	e := g.Read(1, nil, true, began)
	before := g.Deliver(e, h, record, began, 0)
	g.Delivered(e, &before, false, began)
	g.Fail(e, Failure{Cause: Nacked, Now: began})
	before = g.Deliver(e, h, record, began+100, 0)
	g.Undelivered(e, &before)
	g.Ack(e, began+200)
	if want := (settledEvent{1, Acked, 200, 210}); len(s.settled) != 1 || s.settled[0] != want {
		t.Errorf("settled are %+v; want %+v", s.settled, want)
	}
}
