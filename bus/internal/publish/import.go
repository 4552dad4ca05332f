package publish

import (
	"slices"
	"time"

	"eventhub"
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

// NewImport returns the job that imports events as one unit. The error has the index of the
// first that cannot be imported.
func NewImport(events []eventhub.Event, now time.Time, rules Rules) (*Call, error) {
	all := &Events{ends: make([]int, 0, len(events))}
	for i := range events {
		if err := all.end(all.encodeImport(&events[i], now, rules)); err != nil {
			return nil, eventhub.AtIndex(err, "", i)
		}
	}
	return NewUnit(all), nil
}

// encodeImport encodes one event as it was: where it has no time of commit besides
// its ts, the ts is that time, and the publisher gave none.
func (s *encoder) encodeImport(e *eventhub.Event, now time.Time, rules Rules) error {
	if err := checkImport(e, now); err != nil {
		return err
	}
	if err := obey(rules, e); err != nil {
		return err
	}
	as, keep := *e, e.CommittedTS
	if keep == 0 {
		as.TS, keep = 0, e.TS
	}
	var buf []byte
	var err error
	if eventhub.HubOnlyTopic(e.Topic) { // by name, as in encode
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
	case !e.Expect.IsZero():
		return eventhub.Errorf(eventhub.CodeBadRequest, "expect: %s is given; an import takes no conditions", e.Expect)
	case !eventhub.HubOnlyTopic(e.Topic):
		return e.ValidateFields(now)
	case len(e.Payload) > maxMadePayload:
		return eventhub.Errorf(eventhub.CodeTooLarge, "payload has %d bytes; at most %d are allowed in topic %q", len(e.Payload), maxMadePayload, e.Topic)
	}
	fields := *e
	fields.Payload = e.Payload[:min(len(e.Payload), 1)]
	return fields.ValidateFields(now)
}
