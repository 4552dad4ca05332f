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
	tail bool   // nothing after the event but a gap
}

const (
	entryStart = `{"event":`
	eventsEnd  = "]}"

	epochKey    = `,"epoch":`
	redrivenKey = `,"redriven":`
	gapKey      = `"gap":{"after":`
	gapFirst    = `,"first":`
)

// NewEventFrame returns the frames of the subscription that was made with this
// topic, which may be a pattern, and this group; without one it is a live tail,
// whose frames have no group, and a ctx only where that has a gap.
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

// Append appends the EVENT of one delivery.
func (f *EventFrame) Append(dst []byte, d *eventhub.Delivery) []byte {
	dst = append(dst, f.one...)
	dst = d.Record.AppendJSON(dst, d.Offset)
	return f.appendRest(dst, d)
}

// Size returns the exact number of bytes that Append appends, without touching
// the record.
func (f *EventFrame) Size(d *eventhub.Delivery) int { return len(f.one) + f.sizeBehind(d) }

// sizeBehind is the size of the event and of what follows it.
func (f *EventFrame) sizeBehind(d *eventhub.Delivery) int {
	// Everything of variable length but the record, written where it costs
	// nothing: at most 340 bytes.
	var scratch [352]byte
	small := eventhub.Record("{").AppendJSON(scratch[:0], d.Offset)
	small = f.appendRest(small, d)
	return len(small) + len(d.Record) - 1
}

// AppendAll appends the EVENTS of a batch that is not empty.
func (f *EventFrame) AppendAll(dst []byte, batch []eventhub.Delivery) []byte {
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
// at most most bytes, and its exact size. It is one at least, however large.
func (f *EventFrame) Fit(batch []eventhub.Delivery, most int) (n, size int) {
	size = len(f.many) + len(eventsEnd)
	for i := range batch {
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
		if d.Gap != nil {
			dst = append(AppendGap(append(dst, `,"ctx":{`...), d.Gap), '}')
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

// AppendGap appends the member gap of a ctx.
func AppendGap(dst []byte, g *eventhub.Gap) []byte {
	dst = strconv.AppendUint(append(dst, gapKey...), g.After, 10)
	dst = strconv.AppendUint(append(dst, gapFirst...), g.First, 10)
	return append(dst, '}')
}
