package wire

import (
	"bytes"
	"strconv"

	"eventhub"
	"eventhub/internal/strictjson"
)

// EventFrame makes the EVENT and EVENTS frames of one subscription. The part that
// is the same in all of them is made once. It is safe for concurrent use.
type EventFrame struct {
	one  []byte // an EVENT up to the event
	many []byte // an EVENTS up to the first of its entries
	mark []byte // a STATE up to the first member of its own
	tail bool   // nothing after the event but a gap, or that it is of the state
}

const (
	entryStart = `{"event":`
	eventsEnd  = "]}"

	epochKey    = `,"epoch":`
	redrivenKey = `,"redriven":`
	gapKey      = `"gap":{"after":`
	gapFirst    = `,"first":`

	gapCompacted  = `,"compacted":`
	gapTombstones = `,"tombstones":`

	stateKey    = `"state":true`
	snapshotKey = `,"snapshot":`
	offsetKey   = `,"offset":`
	countKey    = `,"count":`
	horizonKey  = `,"horizon":`
)

// NewEventFrame returns the frames of the subscription that was made with this
// topic, which may be a pattern, and this group; without one it is a live tail,
// whose frames have no group, and a ctx only where that has a gap or is of the state.
func NewEventFrame(topic, group string) *EventFrame {
	names := strictjson.AppendString([]byte(`,"topic":`), topic)
	if group != "" {
		names = strictjson.AppendString(append(names, `,"group":`...), group)
	}
	one := append([]byte(`{"op":"EVENT"`), names...)
	many := append([]byte(`{"op":"EVENTS"`), names...)
	return &EventFrame{
		one:  append(one, `,"event":`...),
		many: append(many, `,"events":[`...),
		mark: append([]byte(`{"op":"STATE"`), names...),
		tail: group == "",
	}
}

// Count returns how many deliveries are in a frame that f has made, or would
// make; 0 for any other.
func (f *EventFrame) Count(frame []byte) int {
	if bytes.HasPrefix(frame, f.one) {
		return 1
	}
	if !bytes.HasPrefix(frame, f.many) {
		return 0
	}
	n := 0
	for range eachElement(frame[len(f.many)-1:]) {
		n++
	}
	return n
}

// Append appends the EVENT of one delivery, or its STATE where it is a mark.
func (f *EventFrame) Append(dst []byte, d *eventhub.Delivery) []byte {
	if d.State.IsMark() {
		return f.appendMark(dst, d.State)
	}
	dst = append(dst, f.one...)
	dst = d.Record.AppendJSON(dst, d.Offset)
	return f.appendRest(dst, d)
}

// Size returns the exact number of bytes that Append appends, without touching
// the record.
func (f *EventFrame) Size(d *eventhub.Delivery) int {
	if d.State.IsMark() {
		var scratch [512]byte // a topic has at most 240 bytes
		return len(f.appendMark(scratch[:0], d.State))
	}
	return len(f.one) + f.sizeBehind(d)
}

// sizeBehind is the size of the event and of what follows it.
func (f *EventFrame) sizeBehind(d *eventhub.Delivery) int {
	// Everything of variable length but the record, written where it costs
	// nothing: at most 450 bytes.
	var scratch [480]byte
	small := eventhub.Record("{").AppendJSON(scratch[:0], d.Offset)
	small = f.appendRest(small, d)
	return len(small) + len(d.Record) - 1
}

// AppendAll appends the EVENTS of a batch that is not empty, and as many as Fit returned.
func (f *EventFrame) AppendAll(dst []byte, batch []eventhub.Delivery) []byte {
	if batch[0].State.IsMark() {
		return f.appendMark(dst, batch[0].State)
	}
	dst = append(dst, f.many...)
	for i := range batch {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, entryStart...)
		dst = batch[i].Record.AppendJSON(dst, batch[i].Offset)
		dst = f.appendRest(dst, &batch[i])
	}
	return append(dst, eventsEnd...)
}

// Fit returns how many deliveries from the front of a batch go into one EVENTS of
// at most most bytes, and its exact size. It is one at least, however large. A mark of the state
// has a frame of its own.
func (f *EventFrame) Fit(batch []eventhub.Delivery, most int) (n, size int) {
	if batch[0].State.IsMark() {
		return 1, f.Size(&batch[0])
	}
	size = len(f.many) + len(eventsEnd)
	for i := range batch {
		if batch[i].State.IsMark() {
			break
		}
		entry := len(entryStart) + f.sizeBehind(&batch[i])
		if i > 0 {
			entry++ // the comma
			if size+entry > most {
				break
			}
		}
		n, size = i+1, size+entry
	}
	return n, size
}

// appendRest appends what follows the event.
func (f *EventFrame) appendRest(dst []byte, d *eventhub.Delivery) []byte {
	if f.tail {
		if d.Gap != nil || d.State != nil {
			dst = appendTailContext(append(dst, `,"ctx":`...), d)
		}
		return append(dst, '}')
	}
	dst = append(dst, `,"ctx":{"attempt":`...)
	dst = strconv.AppendInt(dst, int64(d.Attempt), 10)
	dst = append(dst, `,"max_attempts":`...)
	dst = strconv.AppendInt(dst, int64(d.MaxAttempts), 10)
	dst = append(dst, `,"ack_deadline_ms":`...)
	dst = strconv.AppendInt(dst, d.AckTimeout.Milliseconds(), 10)
	if !d.Lease.IsZero() {
		dst = append(dst, `,"lease":"`...)
		dst = d.Lease.Append(dst)
		dst = append(dst, '"')
	}
	if d.Epoch != 0 {
		dst = append(dst, epochKey...)
		dst = strconv.AppendUint(dst, d.Epoch, 10)
	}
	if d.Sought {
		dst = append(dst, `,"sought":true`...)
	}
	if d.Redriven > 0 {
		dst = append(dst, redrivenKey...)
		dst = strconv.AppendInt(dst, int64(d.Redriven), 10)
	}
	if d.Gap != nil {
		dst = AppendGap(append(dst, ','), d.Gap)
	}
	return append(dst, "}}"...)
}

// appendTailContext appends the ctx of a live tail.
func appendTailContext(dst []byte, d *eventhub.Delivery) []byte {
	dst = append(dst, '{')
	if d.State != nil {
		dst = append(dst, stateKey...)
		if d.State.Snapshot != "" {
			dst = appendSnapshot(dst, d.State)
		}
	}
	if d.Gap != nil {
		if d.State != nil {
			dst = append(dst, ',')
		}
		dst = AppendGap(dst, d.Gap)
	}
	return append(dst, '}')
}

// appendSnapshot appends the member snapshot, which needs no escapes.
func appendSnapshot(dst []byte, s *eventhub.StatePart) []byte {
	dst = append(append(dst, snapshotKey...), '"')
	return append(append(dst, s.Snapshot...), '"')
}

// appendMark appends a STATE.
func (f *EventFrame) appendMark(dst []byte, s *eventhub.StatePart) []byte {
	dst = append(dst, f.mark...)
	if s.Complete {
		dst = strconv.AppendUint(append(dst, offsetKey...), s.Offset, 10)
		dst = strconv.AppendInt(append(dst, countKey...), int64(s.Count), 10)
		dst = appendSnapshot(dst, s)
	} else {
		dst = strconv.AppendUint(append(dst, horizonKey...), s.Horizon, 10)
	}
	return append(dst, '}')
}

// AppendGap appends the member gap of a ctx.
func AppendGap(dst []byte, g *eventhub.Gap) []byte {
	dst = strconv.AppendUint(append(dst, gapKey...), g.After, 10)
	return append(appendGapEnd(append(dst, gapFirst...), g), '}')
}

// appendGapEnd appends what follows the name of first, without the end of the object.
func appendGapEnd(dst []byte, g *eventhub.Gap) []byte {
	dst = strconv.AppendUint(dst, g.First, 10)
	if g.Compacted > 0 {
		dst = strconv.AppendUint(append(dst, gapCompacted...), g.Compacted, 10)
	}
	if g.Tombstones > 0 {
		dst = strconv.AppendUint(append(dst, gapTombstones...), g.Tombstones, 10)
	}
	return dst
}
