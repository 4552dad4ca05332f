package wire

import (
	"slices"
	"strconv"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// The encoders of this file append one frame of a client each. corr is written
// as decimal text; 0 leaves it out, and such a frame is answered by an ERR
// without corr, or not at all.

// AppendAuth appends an AUTH; without hasToken it has no token.
func AppendAuth(dst []byte, corr uint64, token string, hasToken bool) []byte {
	dst = openRequest(dst, OpAuth, corr)
	if hasToken {
		dst = strictjson.AppendString(append(dst, `,"token":`...), token)
	}
	return append(dst, '}')
}

// AppendPublish appends a PUBLISH of an event that has passed Event.Validate:
// text that is not UTF-8 would not arrive as it is. The payload is checked to be
// strict JSON and loses its insignificant whitespace. On an error, which has
// CodeBadJSON, dst is returned as it was.
func AppendPublish(dst []byte, corr uint64, e *eventhub.Event) ([]byte, error) {
	start := len(dst)
	dst = slices.Grow(dst, 128+len(e.Topic)+len(e.ID)+len(e.Key)+len(e.Payload))
	dst = openRequest(dst, OpPublish, corr)
	dst = strictjson.AppendString(append(dst, `,"topic":`...), e.Topic)
	dst, err := strictjson.AppendCompact(append(dst, `,"payload":`...), e.Payload)
	if err != nil {
		return dst[:start], eventhub.Errorf(eventhub.CodeBadJSON, "payload: %v", err)
	}
	return append(appendPublishOpts(append(dst, `,"opts":{`...), e), "}}"...), nil
}

func appendPublishOpts(dst []byte, e *eventhub.Event) []byte {
	dst = appendText(dst, "id", e.ID)
	dst = appendNumber(dst, "ts", e.TS)
	dst = appendText(dst, "key", e.Key)
	dst = appendText(dst, "sid", e.SID)
	if len(e.Headers) > 0 {
		dst = append(appendName(dst, "headers"), '{')
		for name, value := range e.Headers {
			dst = strictjson.AppendString(appendName(dst, name), value)
		}
		dst = append(dst, '}')
	}
	dst = appendTexts(dst, "tags", e.Tags)
	return appendTexts(dst, "caused_by", e.CausedBy)
}

// AppendSubscribe appends a SUBSCRIBE of options that have passed
// SubscribeOptions.Validate. Zero values are left out: the hub's defaults hold.
// Without a group it asks for a live tail, and the length of leases is left out
// too.
func AppendSubscribe(dst []byte, corr uint64, o *eventhub.SubscribeOptions) []byte {
	dst = openAbout(dst, OpSubscribe, corr, o.Topic, o.Group)
	dst = appendStart(append(dst, `,"opts":{`...), &o.Start)
	dst = appendNumber(dst, "batchSize", int64(o.BatchSize))
	dst = appendNumber(dst, "maxInFlight", int64(o.MaxInFlight))
	if o.Group == "" {
		return append(dst, "}}"...)
	}
	dst = appendNumber(dst, "ackTimeoutMs", o.AckTimeout.Milliseconds())
	dst = appendText(dst, "ordering", o.Ordering)
	dst = appendNumber(dst, "maxAttempts", int64(o.MaxAttempts))
	if o.Backoff != (eventhub.Backoff{}) {
		dst = append(appendName(dst, "backoff"), '{')
		dst = appendNumber(dst, "minMs", o.Backoff.Min.Milliseconds())
		dst = appendNumber(dst, "maxMs", o.Backoff.Max.Milliseconds())
		dst = append(dst, '}')
	}
	if o.AutoAck {
		dst = append(appendName(dst, "manualAck"), "false"...)
	}
	return append(dst, "}}"...)
}

func appendStart(dst []byte, s *eventhub.Start) []byte {
	switch s.Kind {
	case eventhub.StartEarliest:
		return appendText(dst, "from", "earliest")
	case eventhub.StartTime:
		dst = appendName(appendText(dst, "from", "ts"), "ts")
		return strconv.AppendInt(dst, s.TS, 10)
	case eventhub.StartAfterID:
		return appendText(appendText(dst, "from", "afterId"), "afterId", s.AfterID)
	case eventhub.StartOffset:
		dst = appendName(appendText(dst, "from", "offset"), "offset")
		return strconv.AppendUint(dst, s.Offset, 10)
	}
	return dst
}

// AppendUnsubscribe appends an UNSUBSCRIBE; without a group, of a live tail.
func AppendUnsubscribe(dst []byte, corr uint64, topic, group string) []byte {
	return append(openAbout(dst, OpUnsubscribe, corr, topic, group), '}')
}

// AppendPause and AppendResume append a PAUSE and a RESUME of a member; without a
// group, of a live tail.

func AppendPause(dst []byte, corr uint64, topic, group string) []byte {
	return append(openAbout(dst, OpPause, corr, topic, group), '}')
}

func AppendResume(dst []byte, corr uint64, topic, group string) []byte {
	return append(openAbout(dst, OpResume, corr, topic, group), '}')
}

// AppendSettle appends the ACK, NACK or MODACK that applies the verdict of s to
// one delivery; s.Refs is not looked at. s has passed Settlement.Validate.
func AppendSettle(dst []byte, corr uint64, topic, group string, s *eventhub.Settlement, ref eventhub.Ref) []byte {
	op := OpAck
	switch s.Verdict {
	case eventhub.Nack:
		op = OpNack
	case eventhub.Extend:
		op = OpModack
	}
	dst = openAbout(dst, op, corr, topic, group)
	dst = appendText(dst, "id", ref.ID)
	if !ref.Lease.IsZero() {
		dst = append(ref.Lease.Append(append(dst, `,"lease":"`...)), '"')
	}
	switch op {
	case OpNack:
		dst = appendText(dst, "reason", s.Reason)
		dst = appendNumber(dst, "delay_ms", wholeMillis(s.Delay))
		if s.Terminal {
			dst = append(dst, `,"terminal":true`...)
		}
	case OpModack:
		dst = appendNumber(dst, "extend_ms", wholeMillis(s.By))
	}
	return append(dst, '}')
}

// wholeMillis rounds up: what is positive must not become 0, which means
// something else.
func wholeMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func openRequest(dst []byte, op Op, corr uint64) []byte {
	dst = append(append(dst, `{"op":"`...), op...)
	dst = append(dst, '"')
	if corr == 0 {
		return dst
	}
	dst = strconv.AppendUint(append(dst, `,"corr":"`...), corr, 10)
	return append(dst, '"')
}

// openAbout begins a frame that is about a subscription, which is a live tail
// where group is empty.
func openAbout(dst []byte, op Op, corr uint64, topic, group string) []byte {
	dst = openRequest(dst, op, corr)
	dst = strictjson.AppendString(append(dst, `,"topic":`...), topic)
	if group == "" {
		return dst
	}
	return strictjson.AppendString(append(dst, `,"group":`...), group)
}

// appendName begins a member of the object that is open.
func appendName(dst []byte, name string) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return append(strictjson.AppendString(dst, name), ':')
}

// appendText, appendNumber and appendTexts append a member that is not empty.

func appendText(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return strictjson.AppendString(appendName(dst, name), value)
}

func appendNumber(dst []byte, name string, value int64) []byte {
	if value == 0 {
		return dst
	}
	return strconv.AppendInt(appendName(dst, name), value, 10)
}

func appendTexts(dst []byte, name string, values []string) []byte {
	if len(values) == 0 {
		return dst
	}
	dst = append(appendName(dst, name), '[')
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(dst, v)
	}
	return append(dst, ']')
}
