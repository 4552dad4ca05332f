package bus

import (
	"bytes"
	"context"
	"slices"
	"time"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/internal/record"
	"eventhub/store"
)

const (
	// maxImportOffset is refused where it is exceeded, and not passed over in silence.
	maxImportOffset = store.MaxKeepOffset
	// maxCommitTime is the largest commit time, in epoch milliseconds, that a
	// record has room for.
	maxCommitTime = 9_999_999_999_999
	// maxMadePayload bounds the payload, in bytes, of an event that a hub made: that
	// of a dead letter has a whole event in it.
	maxMadePayload = 2 * eventhub.MaxPayloadBytes
)

// importJob is the job of one import.
type importJob struct {
	commit.Call
	encoder
}

// Import implements admin.Importer.
func (b *Bus) Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	job := &importJob{}
	if err := job.encodeAll(events, b.clock.Wall()); err != nil {
		return nil, err
	}
	if err := b.space.Check(); err != nil {
		return nil, err
	}
	if err := b.committer.DoWithin(ctx, job, "the events may or may not be imported"); err != nil {
		return nil, err
	}
	return receipts(nil, job.Units[0].Appends), nil
}

// Done implements commit.Job.
func (s *importJob) Done(err error) { s.Answer(outcome(err, &s.Units[0])) }

// outcome is what became of a unit that publishes in a commit that ended with an error.
func outcome(err error, u *store.Unit) error {
	if err == nil && u.Err != nil {
		return unitError(u.Err)
	}
	return err
}

// encodeAll makes one unit of the events. The error has the index of the first
// that cannot be imported.
func (s *importJob) encodeAll(events []eventhub.Event, now time.Time) error {
	ends := make([]int, len(events))
	for i := range events {
		if err := s.encodeImport(&events[i], now); err != nil {
			return eventhub.AtIndex(err, "", i)
		}
		ends[i] = len(s.buf)
	}
	s.seal(&s.Request, ends)
	s.Plain = true
	return nil
}

// encodeImport encodes one event as it was: where it has no time of commit beside
// its ts, the ts is that time, and the publisher gave none.
func (s *encoder) encodeImport(e *eventhub.Event, now time.Time) error {
	if err := checkImport(e, now); err != nil {
		return err
	}
	as, keep := *e, e.CommittedTS
	if keep == 0 {
		as.TS, keep = 0, e.TS
	}
	var buf []byte
	var err error
	if eventhub.HubOnlyTopic(e.Topic) { // by name, as in encodeAs
		buf, err = record.AppendMade(s.buf, &as)
	} else {
		buf, err = record.Append(s.buf, &as)
	}
	if err != nil {
		return err
	}
	s.buf = buf
	s.appends = append(s.appends, store.Append{Topic: e.Topic, ID: e.ID, Key: e.Key,
		CausedBy: slices.Clone(e.CausedBy), Correlation: eventhub.Correlation(e.Headers),
		KeepOffset: e.Offset, KeepTime: keep})
	return nil
}

func checkImport(e *eventhub.Event, now time.Time) error {
	if err := eventhub.ValidateStoredTopic(e.Topic); err != nil {
		return err
	}
	if err := eventhub.ValidateID(e.ID); err != nil {
		return err
	}
	switch {
	case e.Offset > maxImportOffset:
		return eventhub.Errorf(eventhub.CodeBadEvent, "offset is %d; at most %d can be imported", e.Offset, uint64(maxImportOffset))
	case e.CommittedTS < 0 || e.CommittedTS > maxCommitTime:
		return eventhub.Errorf(eventhub.CodeBadEvent, "committed_ts is %d; 0 to %d are allowed", e.CommittedTS, int64(maxCommitTime))
	case e.Delay != 0 || !e.DeliverAt.IsZero():
		return eventhub.Errorf(eventhub.CodeBadEvent, "delay_ms is %d and deliver_at is %d; an import enters the log at once",
			e.Delay.Milliseconds(), eventhub.Millis(e.DeliverAt))
	case !eventhub.HubOnlyTopic(e.Topic):
		return e.ValidateFields(now)
	case len(e.Payload) > maxMadePayload:
		return eventhub.Errorf(eventhub.CodeTooLarge, "payload has %d bytes; at most %d are allowed in topic %q", len(e.Payload), maxMadePayload, e.Topic)
	}
	fields := *e
	fields.Payload = e.Payload[:min(len(e.Payload), 1)]
	return fields.ValidateFields(now)
}

// linkLast gives the event encoded last its links.
func (s *encoder) linkLast(e *eventhub.Event) {
	a := &s.appends[len(s.appends)-1]
	a.CausedBy = slices.Clone(e.CausedBy)
	if len(e.Headers) > 0 {
		a.Correlation = eventhub.Correlation(e.Headers)
	}
}

// mayLink tells most records that have no links from the others, cheaply.
func mayLink(r eventhub.Record) bool {
	return bytes.Contains(r, []byte(`"caused_by":`)) || bytes.Contains(r, []byte(`"headers":`))
}

// linkRecord gives an event its links that is known by its record alone.
func linkRecord(a *store.Append) {
	if !mayLink(a.Record) {
		return
	}
	// The record is the hub's own; one that can not be read has no links.
	if e, err := a.Record.Event(0); err == nil {
		a.CausedBy, a.Correlation = e.CausedBy, eventhub.Correlation(e.Headers)
	}
}
