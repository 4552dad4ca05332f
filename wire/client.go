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

// AppendAuth appends an AUTH; without hasToken it has no token, and with an empty name,
// see eventhub.ValidateClient, none.
func AppendAuth(dst []byte, corr uint64, token string, hasToken bool, name string) []byte {
	dst = openRequest(dst, OpAuth, corr)
	if hasToken {
		dst = strictjson.AppendString(append(dst, `,"token":`...), token)
	}
	if name != "" {
		dst = strictjson.AppendString(append(dst, `,"name":`...), name)
	}
	return append(dst, '}')
}

// AppendPublish appends a PUBLISH of an event that has passed Event.Validate:
// text that is not UTF-8 would not arrive as it is. The payload is checked to be
// strict JSON and loses its insignificant whitespace. On an error, which has
// CodeBadJSON, dst is returned as it was.
func AppendPublish(dst []byte, corr uint64, e *eventhub.Event) ([]byte, error) {
	start := len(dst)
	dst = slices.Grow(dst, sizeHint(e))
	dst, err := appendEvent(openRequest(dst, OpPublish, corr), e)
	if err != nil {
		return dst[:start], err
	}
	return append(dst, '}'), nil
}

// sizeHint is room for the frame of an event without headers and the like.
func sizeHint(e *eventhub.Event) int {
	return 128 + len(e.Topic) + len(e.ID) + len(e.Key) + len(e.Payload)
}

// appendEvent appends topic, payload and opts as members of the object that is
// open. On an error dst has some of them.
func appendEvent(dst []byte, e *eventhub.Event) ([]byte, error) {
	dst = strictjson.AppendString(appendName(dst, "topic"), e.Topic)
	dst, err := strictjson.AppendCompact(append(dst, `,"payload":`...), e.Payload)
	if err != nil {
		return dst, eventhub.Errorf(eventhub.CodeBadJSON, "payload: %v", err)
	}
	const opts = `,"opts":{`
	dst = append(dst, opts...)
	at := len(dst)
	if dst = appendPublishOpts(dst, e); len(dst) == at {
		return dst[:at-len(opts)], nil
	}
	return append(dst, '}'), nil
}

func appendPublishOpts(dst []byte, e *eventhub.Event) []byte {
	dst = appendText(dst, "id", e.ID)
	dst = appendNumber(dst, "ts", e.TS)
	dst = appendText(dst, "key", e.Key)
	dst = appendText(dst, "sid", e.SID)
	dst = appendHeaders(dst, e.Headers)
	dst = appendTexts(dst, "tags", e.Tags)
	dst = appendTexts(dst, "caused_by", e.CausedBy)
	dst = appendNumber(dst, "delay_ms", wholeMillis(e.Delay))
	dst = appendNumber(dst, "deliver_at", eventhub.Millis(e.DeliverAt))
	return appendExpect(dst, e.Expect)
}

func appendExpect(dst []byte, x eventhub.Expect) []byte {
	if x.IsZero() {
		return dst
	}
	dst = appendName(append(appendName(dst, "expect"), '{'), x.String())
	return append(strconv.AppendUint(dst, x.Offset, 10), '}')
}

func appendHeaders(dst []byte, headers map[string]string) []byte {
	if len(headers) == 0 {
		return dst
	}
	dst = append(appendName(dst, "headers"), '{')
	for name, value := range headers {
		dst = strictjson.AppendString(appendName(dst, name), value)
	}
	return append(dst, '}')
}

// AppendSubscribe appends a SUBSCRIBE of options that have passed
// SubscribeOptions.Validate; with batch it asks for EVENTS. Zero values are left
// out: the hub's defaults hold. Without a group it asks for a live tail, and the
// length of leases is left out too.
func AppendSubscribe(dst []byte, corr uint64, o *SubscribeOptions, batch bool) []byte {
	dst = openAbout(dst, OpSubscribe, corr, o.Topic, o.Group)
	dst = appendStart(append(dst, `,"opts":{`...), &o.Start)
	dst = appendTexts(dst, "topics", o.Topics)
	dst = appendFilter(dst, o.Filter)
	dst = appendNumber(dst, "batch_size", int64(o.BatchSize))
	dst = appendNumber(dst, "max_in_flight", int64(o.MaxInFlight))
	if batch {
		dst = append(appendName(dst, "batch"), "true"...)
	}
	if o.NoCreate {
		dst = append(appendName(dst, "create"), "false"...)
	}
	if o.Group == "" {
		if o.Conflate != 0 {
			dst = append(appendName(dst, "conflate"), '{')
			dst = append(appendNumber(dst, "every_ms", wholeMillis(o.Conflate)), '}')
		}
		dst = appendPlaces(dst, o.Places)
		dst = appendText(dst, "known", o.Known)
		dst = appendText(dst, "snapshot", o.Snapshot)
		return append(dst, "}}"...)
	}
	dst = appendNumber(dst, "ack_timeout_ms", o.AckTimeout.Milliseconds())
	dst = appendText(dst, "ordering", o.Ordering)
	dst = appendNumber(dst, "max_attempts", int64(o.MaxAttempts))
	if o.Backoff != (eventhub.Backoff{}) {
		dst = append(appendName(dst, "backoff"), '{')
		dst = appendNumber(dst, "min_ms", o.Backoff.Min.Milliseconds())
		dst = appendNumber(dst, "max_ms", o.Backoff.Max.Milliseconds())
		dst = append(dst, '}')
	}
	if o.AutoAck {
		dst = append(appendName(dst, "manual_ack"), "false"...)
	}
	return append(dst, "}}"...)
}

func appendPlaces(dst []byte, places []eventhub.Place) []byte {
	for i := range places {
		if i == 0 {
			dst = append(appendName(dst, "places"), '[')
		} else {
			dst = append(dst, ',')
		}
		p := &places[i]
		dst = appendText(append(dst, '{'), "topic", p.Topic)
		dst = strconv.AppendUint(appendName(dst, "offset"), p.Offset, 10)
		dst = append(appendNumber(dst, "ts", p.TS), '}')
	}
	if len(places) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// appendFilter keeps a filter that asks for nothing apart from none.
func appendFilter(dst []byte, f *eventhub.Filter) []byte {
	if f == nil {
		return dst
	}
	dst = append(appendName(dst, "filter"), '{')
	dst = appendText(dst, "key", f.Key)
	dst = appendHeaders(dst, f.Headers)
	dst = appendTexts(dst, "tags", f.Tags)
	return append(appendText(dst, "cel", f.CEL), '}')
}

func appendStart(dst []byte, s *eventhub.Start) []byte {
	switch s.Kind {
	case eventhub.StartEarliest:
		return appendText(dst, "from", "earliest")
	case eventhub.StartSnapshot:
		return appendText(dst, "from", "snapshot")
	case eventhub.StartTime:
		dst = appendName(appendText(dst, "from", "ts"), "ts")
		return strconv.AppendInt(dst, s.TS, 10)
	case eventhub.StartAfterID:
		return appendText(appendText(dst, "from", "after_id"), "after_id", s.AfterID)
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
	dst = openAbout(dst, opOf(s.Verdict), corr, topic, group)
	dst = appendText(dst, "id", ref.ID)
	if !ref.Lease.IsZero() {
		dst = appendLease(append(dst, `,"lease":`...), ref.Lease)
	}
	return append(appendVerdict(dst, s), '}')
}

func opOf(v eventhub.Verdict) Op {
	switch v {
	case eventhub.Nack:
		return OpNack
	case eventhub.Extend:
		return OpModack
	}
	return OpAck
}

func appendVerdict(dst []byte, s *eventhub.Settlement) []byte {
	switch s.Verdict {
	case eventhub.Nack:
		dst = appendText(dst, "reason", s.Reason)
		dst = appendNumber(dst, "delay_ms", wholeMillis(s.Delay))
		if s.Terminal {
			dst = append(dst, `,"terminal":true`...)
		}
	case eventhub.Extend:
		dst = appendNumber(dst, "extend_ms", wholeMillis(s.By))
	}
	return dst
}

func appendLease(dst []byte, l eventhub.Lease) []byte {
	return append(l.Append(append(dst, '"')), '"')
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
