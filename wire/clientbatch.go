package wire

import (
	"slices"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// AppendPublishBatch appends a PUBLISH of 1 to MaxEvents events that are
// committed together, each of them as for AppendPublish. On an error, which names
// the event, dst is returned as it was. The OK is that of a batch, also for one
// event.
func AppendPublishBatch(dst []byte, corr uint64, events []eventhub.Event) ([]byte, error) {
	return AppendPublishWait(dst, corr, events, nil, 0)
}

// AppendPublishWait is AppendPublishBatch of events that the groups, at most
// eventhub.MaxWaitFor, are to ack within waitUpTo before it is answered; 0 leaves
// the time to the hub.
func AppendPublishWait(dst []byte, corr uint64, events []eventhub.Event, waitFor []string, waitUpTo time.Duration) ([]byte, error) {
	start := len(dst)
	dst = openRequest(dst, OpPublish, corr)
	dst, err := appendEvents(dst, "events", events)
	if err != nil {
		return dst[:start], err
	}
	if len(waitFor) > 0 {
		dst = appendTexts(append(dst, `,"opts":{`...), "wait_for", waitFor)
		dst = append(appendNumber(dst, "wait_ms", wholeMillis(waitUpTo)), '}')
	}
	return append(dst, '}'), nil
}

// appendEvents appends a list of events. On an error dst has some of it.
func appendEvents(dst []byte, name string, events []eventhub.Event) (_ []byte, err error) {
	room := 0
	for i := range events {
		room += sizeHint(&events[i])
	}
	dst = append(appendName(slices.Grow(dst, room), name), '[')
	for i := range events {
		if dst, err = appendEvent(append(comma(dst, i), '{'), &events[i]); err != nil {
			return dst, eventhub.AtIndex(err, name, i)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']'), nil
}

// AppendCancel appends a CANCEL of a scheduled event.
func AppendCancel(dst []byte, corr uint64, topic, id string) []byte {
	dst = openAbout(dst, OpCancel, corr, topic, "")
	return append(appendText(dst, "id", id), '}')
}

// AppendSettles appends the ACK, NACK or MODACK that applies the verdict of s to 1
// to MaxRefs deliveries, each with an id, a lease or both; s.Refs is not
// looked at. s has passed Settlement.Validate.
func AppendSettles(dst []byte, corr uint64, topic, group string, s *eventhub.Settlement, refs []eventhub.Ref) []byte {
	if len(refs) == 1 {
		return AppendSettle(dst, corr, topic, group, s, refs[0])
	}
	dst = openAbout(dst, opOf(s.Verdict), corr, topic, group)
	return append(appendVerdict(appendRefs(dst, refs), s), '}')
}

// AppendAckPublish appends the ACK that ends 1 to MaxRefs deliveries and publishes
// the events, at most MaxEvents, each as for AppendPublish, in one step. On an
// error, which names the event, dst is returned as it was. The OK is that of a
// batch, and the plain one of an ACK where there are no events.
func AppendAckPublish(dst []byte, corr uint64, topic, group string, refs []eventhub.Ref, events []eventhub.Event) ([]byte, error) {
	start := len(dst)
	dst = openAbout(dst, OpAck, corr, topic, group)
	dst, err := appendEvents(appendRefs(dst, refs), "publish", events)
	if err != nil {
		return dst[:start], err
	}
	return append(dst, '}'), nil
}

// appendRefs appends ids and leases. Where any delivery has one of the two, the
// others that have none get a null.
func appendRefs(dst []byte, refs []eventhub.Ref) []byte {
	if slices.ContainsFunc(refs, func(r eventhub.Ref) bool { return r.ID != "" }) {
		dst = append(dst, `,"ids":[`...)
		for i := range refs {
			if dst = comma(dst, i); refs[i].ID == "" {
				dst = append(dst, "null"...)
			} else {
				dst = strictjson.AppendString(dst, refs[i].ID)
			}
		}
		dst = append(dst, ']')
	}
	if slices.ContainsFunc(refs, func(r eventhub.Ref) bool { return !r.Lease.IsZero() }) {
		dst = append(dst, `,"lease":[`...)
		for i := range refs {
			if dst = comma(dst, i); refs[i].Lease.IsZero() {
				dst = append(dst, "null"...)
			} else {
				dst = appendLease(dst, refs[i].Lease)
			}
		}
		dst = append(dst, ']')
	}
	return dst
}
