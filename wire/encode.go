package wire

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// The encoders append one frame of the hub each. A frame without corr is the
// answer to one without.

// AppendOK appends the plain OK.
func AppendOK(dst []byte, corr string, hasCorr bool) []byte {
	return append(openOK(dst, corr, hasCorr), '}')
}

// AppendAuthOK appends the OK of an AUTH.
func AppendAuthOK(dst []byte, corr string, hasCorr bool, info AuthInfo) []byte {
	dst = openOK(dst, corr, hasCorr)
	dst = append(dst, `,"hub":`...)
	dst = strictjson.AppendString(dst, info.Hub)
	dst = append(dst, `,"version":`...)
	dst = strictjson.AppendString(dst, info.Version)
	dst = append(dst, `,"protocol":`...)
	dst = strconv.AppendInt(dst, int64(info.Protocol), 10)
	dst = append(dst, `,"durability":`...)
	dst = strictjson.AppendString(dst, info.Durability)
	dst = append(dst, `,"limits":{"max_frame_bytes":`...)
	dst = strconv.AppendInt(dst, int64(info.Limits.MaxFrameBytes), 10)
	dst = append(dst, `,"max_payload_bytes":`...)
	dst = strconv.AppendInt(dst, int64(info.Limits.MaxPayloadBytes), 10)
	dst = append(dst, `,"max_subscriptions":`...)
	dst = strconv.AppendInt(dst, int64(info.Limits.MaxSubscriptions), 10)
	return append(dst, "}}"...)
}

// AppendPublishOK appends the OK of a PUBLISH.
func AppendPublishOK(dst []byte, corr string, hasCorr bool, r eventhub.Receipt) []byte {
	dst = openOK(dst, corr, hasCorr)
	dst = append(dst, `,"id":`...)
	dst = strictjson.AppendString(dst, r.ID)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendUint(dst, r.Offset, 10)
	if r.Duplicate {
		dst = append(dst, `,"duplicate":true`...)
	}
	return append(dst, '}')
}

// AppendSettleOK appends the OK of an ACK, NACK or MODACK. It says stale where
// any of the outcomes is Stale; what is Unknown is an error and not for here.
func AppendSettleOK(dst []byte, corr string, hasCorr bool, outcomes []eventhub.Outcome) []byte {
	dst = openOK(dst, corr, hasCorr)
	if slices.Contains(outcomes, eventhub.Stale) {
		dst = append(dst, `,"stale":true`...)
	}
	return append(dst, '}')
}

// AppendError appends an ERR: code, message and when to try again, and nothing
// of err's cause.
func AppendError(dst []byte, corr string, hasCorr bool, err *eventhub.Error) []byte {
	dst = append(dst, `{"op":"ERR","code":`...)
	dst = strictjson.AppendString(dst, string(err.Code))
	dst = append(dst, `,"msg":`...)
	dst = strictjson.AppendString(dst, err.Message)
	dst = appendCorr(dst, corr, hasCorr)
	if err.RetryAfter > 0 {
		// Rounded up: who comes back in time must not be too early.
		ms := (err.RetryAfter + time.Millisecond - 1).Milliseconds()
		dst = append(dst, `,"retry_after_ms":`...)
		dst = strconv.AppendInt(dst, ms, 10)
	}
	return append(dst, '}')
}

func openOK(dst []byte, corr string, hasCorr bool) []byte {
	return appendCorr(append(dst, `{"op":"OK"`...), corr, hasCorr)
}

func appendCorr(dst []byte, corr string, hasCorr bool) []byte {
	if !hasCorr {
		return dst
	}
	return strictjson.AppendString(append(dst, `,"corr":`...), corr)
}

// EventFrame makes the EVENT frames of one subscription. The part that is the
// same in all of them is made once. It is safe for concurrent use.
type EventFrame struct {
	prefix []byte // up to the event
	tail   bool   // nothing behind the event
}

// NewEventFrame returns the frames of the subscription that was made with this
// topic, which may be a pattern, and this group; without one it is a live tail,
// whose frames have neither group nor ctx.
func NewEventFrame(topic, group string) *EventFrame {
	prefix := append([]byte(nil), `{"op":"EVENT","topic":`...)
	prefix = strictjson.AppendString(prefix, topic)
	if group != "" {
		prefix = append(prefix, `,"group":`...)
		prefix = strictjson.AppendString(prefix, group)
	}
	return &EventFrame{prefix: append(prefix, `,"event":`...), tail: group == ""}
}

// Made reports whether the bytes are a frame that f has made, or would make.
func (f *EventFrame) Made(frame []byte) bool { return bytes.HasPrefix(frame, f.prefix) }

// Append appends the frame of one delivery.
func (f *EventFrame) Append(dst []byte, d *eventhub.Delivery) []byte {
	dst = append(dst, f.prefix...)
	dst = d.Record.AppendJSON(dst, d.Offset)
	return f.appendRest(dst, d)
}

// Size returns the exact number of bytes that Append appends, without touching
// the record.
func (f *EventFrame) Size(d *eventhub.Delivery) int {
	// Everything of variable length but the record, written where it costs
	// nothing: at most 212 bytes.
	var scratch [224]byte
	small := eventhub.Record("{").AppendJSON(scratch[:0], d.Offset)
	small = f.appendRest(small, d)
	return len(f.prefix) + len(small) + len(d.Record) - 1
}

// appendRest appends what stands behind the event.
func (f *EventFrame) appendRest(dst []byte, d *eventhub.Delivery) []byte {
	if f.tail {
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
	if d.Sought {
		dst = append(dst, `,"sought":true`...)
	}
	return append(dst, "}}"...)
}
