package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/publish"
)

// The id of a requeued event follows from its dead letter and the number of marks that this had. So of
// several who requeue it at once one publishes, and the others find an event of that id: the commit
// decides, as it does for every publish.

// requeue is one call of Requeue.
type requeue struct {
	bus     *Bus
	topic   string // of the dead letters
	offset  uint64
	payload []byte
	marks   int // that the caller has seen
	by      string

	letter    admin.DeadLetter // without its record
	published eventhub.Event
	events    publish.Events
}

// Requeue implements admin.Redriver.
func (b *Bus) Requeue(ctx context.Context, topic string, offset uint64, payload []byte, by string) (eventhub.Receipt, error) {
	return b.RequeueIf(ctx, topic, offset, payload, 0, by)
}

// RequeueIf implements admin.Redriver.
func (b *Bus) RequeueIf(ctx context.Context, topic string, offset uint64, payload []byte, marks int, by string) (eventhub.Receipt, error) {
	r := requeue{bus: b, topic: topic, offset: offset, payload: payload, marks: marks, by: by}
	if err := r.read(ctx); err != nil {
		return eventhub.Receipt{}, err
	}
	if r.events.Bytes() == 0 {
		return r.repeated(ctx)
	}
	job := publish.NewUnit(&r.events)
	job.Durable = true
	receipts, err := b.publishUnit(ctx, job, "the event may or may not be requeued")
	switch {
	case err != nil:
		return eventhub.Receipt{}, err
	case receipts[0].Duplicate: // somebody else was there between the reading and the commit
		return r.repeated(ctx)
	}
	return receipts[0], nil
}

// read finds the dead letter and makes what is published for it: nothing, where it has more marks than its
// caller has seen.
func (r *requeue) read(ctx context.Context) error {
	found := false
	q := admin.DeadLetterQuery{Topic: r.topic, Offsets: []uint64{r.offset}, All: true}
	err := r.bus.DeadLetters(ctx, q, func(d *admin.DeadLetter) error {
		found = true
		r.letter = *d
		r.letter.Record = nil
		marks, err := r.bus.letters.CountMarks(ctx, d)
		if err != nil {
			return err
		}
		if r.marks >= admin.MaxRedriveMarks || r.marks > marks {
			r.marks = marks
		}
		e, mark, err := deadletter.Requeue(d, r.payload, r.marks, r.by)
		r.published = e
		if err == nil {
			err = r.events.Add(&e, time.Now(), r.bus.topics)
		}
		if err == nil {
			err = r.events.AddMade(&mark)
		}
		if err == nil && marks > r.marks {
			r.events = publish.Events{}
		}
		return err
	})
	if err == nil && !found {
		err = eventhub.Errorf(eventhub.CodeUnknownID, "the event at offset %d of topic %q is no dead letter", r.offset, deadletter.Topic(r.topic))
	}
	return err
}

// repeated answers who is not the first: with the receipt of the first one, where that has published the same.
func (r *requeue) repeated(ctx context.Context) (eventhub.Receipt, error) {
	item, err := r.bus.Event(ctx, r.published.Topic, r.published.ID)
	switch {
	case err == nil:
		e, err := item.Event()
		if err != nil {
			return eventhub.Receipt{}, err
		}
		var compact bytes.Buffer
		if json.Compact(&compact, r.payload) == nil && bytes.Equal(compact.Bytes(), e.Payload) {
			return eventhub.Receipt{ID: e.ID, Offset: item.Offset, Duplicate: true}, nil
		}
	case eventhub.ErrorCode(err) != eventhub.CodeUnknownID:
		return eventhub.Receipt{}, err
	}
	return eventhub.Receipt{}, r.conflict(ctx)
}

// conflict says who was first, and how to publish all the same.
func (r *requeue) conflict(ctx context.Context) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	who, what, at, seen := "somebody", "dealt with", "", ""
	if n := len(r.letter.Marks); n > 0 {
		seen = fmt.Sprintf("; marks %d says that this was seen, and requeues it all the same", n)
		last := r.letter.Marks[n-1]
		who, what, at = last.By, "redriven", " at "+time.UnixMilli(last.TS).UTC().Format(time.RFC3339)
		if last.RequeuedAs != "" {
			what = "requeued"
		}
	}
	return eventhub.Errorf(eventhub.CodeConflict, "%.120s has %s the dead letter at offset %d of topic %q%s; nothing was published%s",
		who, what, r.letter.Offset, deadletter.Topic(r.letter.Topic), at, seen)
}
