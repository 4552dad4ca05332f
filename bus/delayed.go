package bus

import (
	"context"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// Cancel implements admin.Scheduler.
func (b *Bus) Cancel(ctx context.Context, topic, id string) error {
	if err := eventhub.ValidateTopic(topic); err != nil {
		return err
	}
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	return b.mover.Cancel(ctx, topic, id)
}

// Scheduled implements admin.Scheduler.
func (b *Bus) Scheduled(ctx context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	if q.Limit == 0 {
		q.Limit = admin.MaxPage
	}
	if err := past.CheckLimit(q.Limit); err != nil {
		return nil, err
	}
	if q.Topic != "" {
		if err := eventhub.ValidateTopic(q.Topic); err != nil {
			return nil, err
		}
	}
	if q.AfterAt < 0 {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the place to go on from is %d; epoch milliseconds are not negative", q.AfterAt)
	}
	list, err := b.mover.List(ctx, q)
	if err != nil {
		return nil, storeError(err, "read the scheduled events")
	}
	return list, nil
}

// delayedEvent says which event of its publication is delayed, and where in the
// encoder's buffer its record is.
type delayedEvent struct{ index, start, end int }

// delayLast makes the event encoded last, that of the given index in its publication, a
// delayed one. isFresh says that its id is new.
func (s *encoder) delayLast(index, start int, at int64, isFresh bool) {
	last := len(s.appends) - 1
	a := &s.appends[last]
	s.delays = append(s.delays, store.Delay{Topic: a.Topic, ID: a.ID, FreshID: isFresh, Key: a.Key, At: at})
	s.delayed = append(s.delayed, delayedEvent{index, start, len(s.buf)})
	s.appends[last] = store.Append{}
	s.appends = s.appends[:last]
}

// forgetDelayed takes back the delayed events of a publication that is refused.
func (s *encoder) forgetDelayed(first int) {
	clear(s.delays[first:])
	s.delays, s.delayed = s.delays[:first], s.delayed[:first]
}

// placeDelayed gives the units their delayed events, once buf and delays stay where they
// are. Until then a unit has as many as it will have.
func (s *encoder) placeDelayed(units []store.Unit) {
	if len(s.delays) == 0 {
		return
	}
	for i, d := range s.delayed {
		s.delays[i].Record = eventhub.Record(s.buf[d.start:d.end:d.end])
	}
	at := 0
	for i := range units {
		n := len(units[i].Delays)
		units[i].Delays = s.delays[at : at+n : at+n]
		at += n
	}
}

// delayedReceipts adds the receipts of delayed events to those of the appends of the same
// publication, in the order of its events. delayed is parallel to delays.
func delayedReceipts(receipts []eventhub.Receipt, delays []store.Delay, delayed []delayedEvent) []eventhub.Receipt {
	appended := len(receipts)
	receipts = append(receipts, make([]eventhub.Receipt, len(delays))...)
	// From the end, so that none is overwritten before it has moved.
	for at, p := len(receipts)-1, len(delays)-1; p >= 0; at-- {
		if delayed[p].index != at {
			appended--
			receipts[at] = receipts[appended]
			continue
		}
		d := &delays[p]
		receipts[at] = eventhub.Receipt{ID: d.ID, DeliverAt: time.UnixMilli(d.At), Duplicate: d.Duplicate}
		if d.Duplicate && d.Seq == 0 {
			receipts[at].DeliverAt, receipts[at].Offset = time.Time{}, d.Offset
		}
		p--
	}
	return receipts
}
