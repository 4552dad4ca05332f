package wire

import (
	"bytes"
	"math"
	"time"

	"eventhub"
)

// The frames of the hub.
const (
	OpOK    Op = "OK"
	OpErr   Op = "ERR"
	OpEvent Op = "EVENT"
)

// HubFrame is one frame of the hub, decoded by a client. Which fields count
// depends on Op, and for an OK on what it answers. All bytes are parts of the
// frame, or of the decoder's memory, and valid until the next Decode.
type HubFrame struct {
	Op      Op
	Corr    []byte
	HasCorr bool

	// OK of PUBLISH.
	ID        []byte
	Offset    uint64
	Duplicate bool
	// OK of ACK, NACK, MODACK.
	Stale bool
	// OK of AUTH.
	Info AuthInfo

	// ERR.
	Err *eventhub.Error

	// EVENT. Topic and Group are those of the SUBSCRIBE, Group is nil for a live
	// tail; the topic of the delivery is the event's own.
	Topic, Group []byte
	Delivery     eventhub.Delivery
}

// CorrNumber returns the corr where it is one that the client's encoders wrote.
func (f *HubFrame) CorrNumber() (uint64, bool) {
	s := scanner{rest: f.Corr}
	n := s.number()
	return n, f.HasCorr && !s.failed && len(s.rest) == 0
}

// HubDecoder reads the frames of the hub. The zero value is ready; it is not
// safe for concurrent use.
//
// Frames laid out exactly as this package's encoders write them are cut at known
// places, and the JSON of an event is taken at the hub's word. Everything else
// goes through a strict JSON reader and is understood in any order and with
// unknown members.
type HubDecoder struct {
	values Decoder
	m      hubMembers
	topics names
}

// hubMembers are the raw values of one frame, nil where absent.
type hubMembers struct {
	op, corr                         []byte
	id, offset, duplicate, stale     []byte
	hub, version, durability, limits []byte
	protocol                         []byte
	code, msg, retryAfter            []byte
	topic, group, event, context     []byte
}

func (m *hubMembers) slot(name []byte) *[]byte {
	for _, s := range [...]struct {
		name string
		slot *[]byte
	}{
		{"op", &m.op}, {"corr", &m.corr},
		{"id", &m.id}, {"offset", &m.offset}, {"duplicate", &m.duplicate}, {"stale", &m.stale},
		{"hub", &m.hub}, {"version", &m.version}, {"durability", &m.durability}, {"limits", &m.limits},
		{"protocol", &m.protocol},
		{"code", &m.code}, {"msg", &m.msg}, {"retry_after_ms", &m.retryAfter},
		{"topic", &m.topic}, {"group", &m.group}, {"event", &m.event}, {"ctx", &m.context},
	} {
		if s.name == string(name) {
			return s.slot
		}
	}
	return nil
}

// Decode resets f and fills it from one frame, of which it may change the byte
// before an event's record: a frame is decoded once. An error means that the
// peer is no hub of this protocol.
func (d *HubDecoder) Decode(frame []byte, f *HubFrame) error {
	if d.plainEvent(frame, f) || d.plainOK(frame, f) {
		return nil
	}
	return d.strict(frame, f)
}

// plainOK reads the OK of a PUBLISH, ACK, NACK or MODACK, or leaves it to
// strict.
func (d *HubDecoder) plainOK(frame []byte, f *HubFrame) bool {
	*f = HubFrame{Op: OpOK}
	s := scanner{rest: frame}
	s.expect(`{"op":"OK"`)
	if f.HasCorr = s.has(`,"corr":`); f.HasCorr {
		f.Corr = s.text()
	}
	if s.has(`,"id":`) {
		f.ID = s.text()
		s.expect(`,"offset":`)
		f.Offset = s.number()
		f.Duplicate = s.has(`,"duplicate":true`)
	} else {
		f.Stale = s.has(`,"stale":true`)
	}
	s.expect(`}`)
	return s.done()
}

const (
	eventStart = `{"offset":`
	contextKey = `,"ctx":{"attempt":`
)

// plainEvent reads an EVENT, or leaves it to strict. Behind the event stand
// numbers, a lease and a truth only, so the last contextKey is the real one, whatever the
// payload holds.
func (d *HubDecoder) plainEvent(frame []byte, f *HubFrame) bool {
	s := scanner{rest: frame}
	s.expect(`{"op":"EVENT","topic":`)
	if s.failed {
		return false
	}
	*f = HubFrame{Op: OpEvent, Topic: s.text()}
	if s.has(`,"event":`) {
		return d.plainTailEvent(s, f)
	}
	s.expect(`,"group":`)
	f.Group = s.text()
	s.expect(`,"event":`)
	at := bytes.LastIndex(s.rest, []byte(contextKey))
	if s.failed || at < 0 {
		return false
	}
	event := s.rest[:at:at]
	s.rest = s.rest[at+len(contextKey):]
	f.Delivery.Attempt = int(s.number())
	s.expect(`,"max_attempts":`)
	f.Delivery.MaxAttempts = int(s.number())
	s.expect(`,"ack_deadline_ms":`)
	f.Delivery.AckTimeout = time.Duration(s.number()) * time.Millisecond
	var lease []byte
	if s.has(`,"lease":`) {
		lease = s.text()
	}
	f.Delivery.Sought = s.has(`,"sought":true`)
	s.expect(`}}`)
	return s.done() && d.setLease(f, lease) == nil && d.setEvent(f, event) == nil
}

// plainTailEvent reads what stands in the EVENT of a live tail from its event on.
func (d *HubDecoder) plainTailEvent(s scanner, f *HubFrame) bool {
	f.Delivery.Attempt = 1
	event := s.object()
	s.expect(`}`)
	return s.done() && d.setEvent(f, event) == nil
}

// setLease parses the lease, nil for none.
func (d *HubDecoder) setLease(f *HubFrame, text []byte) (err error) {
	if text != nil {
		f.Delivery.Lease, err = eventhub.ParseLease(string(text))
	}
	return err
}

// setEvent cuts an event into offset and record. The comma between them becomes
// the record's brace.
func (d *HubDecoder) setEvent(f *HubFrame, event []byte) error {
	s := scanner{rest: event}
	s.expect(eventStart)
	f.Delivery.Offset = s.number()
	if s.failed || len(s.rest) < 2 || s.rest[0] != ',' || s.rest[len(s.rest)-1] != '}' {
		return eventhub.Errorf(eventhub.CodeBadEvent, "event %.48q does not begin with its offset", event)
	}
	topic := recordTopic(s.rest)
	if topic == nil {
		return eventhub.Errorf(eventhub.CodeBadEvent, "event at offset %d is not laid out as a record", f.Delivery.Offset)
	}
	f.Delivery.Topic = d.topics.intern(topic)
	s.rest[0] = '{'
	f.Delivery.Record = eventhub.Record(s.rest)
	return nil
}

// recordTopic returns the topic that a record, save its first byte, names, or
// nil for bytes that are no record.
func recordTopic(record []byte) []byte {
	s := scanner{rest: record[1:]}
	if !s.has(eventhub.RecordCommittedPrefix[1:]) {
		s.expect(eventhub.RecordTSPrefix[1:])
	}
	s.skip(eventhub.RecordTimeWidth)
	s.expect(`,"id":`)
	s.text()
	if s.has(`,"ts":`) {
		s.number()
	}
	s.expect(`,"topic":`)
	topic := s.text()
	if s.failed {
		return nil
	}
	return topic
}

// strict reads any frame.
func (d *HubDecoder) strict(frame []byte, f *HubFrame) error {
	*f = HubFrame{}
	if err := d.split(frame); err != nil {
		return err
	}
	if !absent(d.m.corr) {
		text, ok := d.values.unquote(d.m.corr)
		if !ok {
			return wrongType("corr", d.m.corr, "a string")
		}
		f.Corr, f.HasCorr = bytes.Clone(text), true
	}
	if absent(d.m.op) {
		return missing("op")
	}
	op, _ := d.values.unquote(d.m.op)
	switch Op(op) {
	case OpOK:
		f.Op = OpOK
		return d.readOK(f)
	case OpErr:
		f.Op = OpErr
		return d.readErr(f)
	case OpEvent:
		f.Op = OpEvent
		return d.readEvent(f)
	}
	return eventhub.Errorf(eventhub.CodeUnsupportedOp, "op %.48q is unknown", d.m.op)
}

// split cuts the object into raw members and checks all of its JSON.
func (d *HubDecoder) split(frame []byte) error {
	d.m = hubMembers{}
	v := &d.values
	v.rewind(frame)
	if v.json.PeekKind() != '{' {
		return v.notAnObject()
	}
	if _, err := v.json.ReadToken(); err != nil {
		return badJSON(err)
	}
	for {
		name, err := v.nextName()
		if err != nil {
			return badJSON(err)
		}
		if name == nil {
			break
		}
		slot := d.m.slot(name)
		value, err := v.json.ReadValue()
		if err != nil {
			return badJSON(err)
		}
		if slot != nil {
			*slot = value
		}
	}
	if rest := bytes.TrimLeft(frame[v.json.InputOffset():], jsonSpace); len(rest) > 0 {
		return eventhub.Errorf(eventhub.CodeBadJSON, "data behind the object at byte %d", len(frame)-len(rest))
	}
	return nil
}

func (d *HubDecoder) readOK(f *HubFrame) error {
	v, m := &d.values, &d.m
	if !absent(m.id) {
		text, ok := v.unquote(m.id)
		if !ok {
			return wrongType("id", m.id, "a string")
		}
		f.ID = bytes.Clone(text)
	}
	if err := readCardinal("offset", m.offset, &f.Offset); err != nil {
		return err
	}
	if err := readBool("duplicate", m.duplicate, &f.Duplicate); err != nil {
		return err
	}
	if err := readBool("stale", m.stale, &f.Stale); err != nil {
		return err
	}
	if err := v.readText("hub", m.hub, &f.Info.Hub); err != nil {
		return err
	}
	if err := v.readText("version", m.version, &f.Info.Version); err != nil {
		return err
	}
	if err := v.readText("durability", m.durability, &f.Info.Durability); err != nil {
		return err
	}
	if err := readCount("protocol", m.protocol, &f.Info.Protocol); err != nil {
		return err
	}
	return d.readLimits(&f.Info.Limits)
}

func (d *HubDecoder) readLimits(into *Limits) error {
	object := d.m.limits
	if absent(object) {
		return nil
	}
	if object[0] != '{' {
		return wrongType("limits", object, "an object")
	}
	for name, value := range d.values.members(object) {
		var err error
		switch string(name) {
		case "max_frame_bytes":
			err = readCount("max_frame_bytes", value, &into.MaxFrameBytes)
		case "max_payload_bytes":
			err = readCount("max_payload_bytes", value, &into.MaxPayloadBytes)
		case "max_subscriptions":
			err = readCount("max_subscriptions", value, &into.MaxSubscriptions)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *HubDecoder) readErr(f *HubFrame) error {
	e := &eventhub.Error{}
	if err := d.values.readText("code", d.m.code, (*string)(&e.Code)); err != nil {
		return err
	}
	if err := d.values.readText("msg", d.m.msg, &e.Message); err != nil {
		return err
	}
	f.Err = e
	return readMillis("retry_after_ms", d.m.retryAfter, 0, &e.RetryAfter)
}

func (d *HubDecoder) readEvent(f *HubFrame) error {
	v, m := &d.values, &d.m
	topic, ok := v.unquote(m.topic)
	if !ok {
		return missing("topic")
	}
	f.Topic = bytes.Clone(topic)
	if absent(m.event) || m.event[0] != '{' {
		return missing("event")
	}
	if absent(m.group) {
		f.Delivery.Attempt = 1
		return d.setEvent(f, m.event)
	}
	group, ok := v.unquote(m.group)
	if !ok {
		return wrongType("group", m.group, "a string")
	}
	f.Group = bytes.Clone(group)
	if absent(m.context) || m.context[0] != '{' {
		return missing("ctx")
	}
	if err := d.readContext(f); err != nil {
		return err
	}
	return d.setEvent(f, m.event)
}

func (d *HubDecoder) readContext(f *HubFrame) error {
	for name, value := range d.values.members(d.m.context) {
		var err error
		switch string(name) {
		case "attempt":
			err = readCount("ctx.attempt", value, &f.Delivery.Attempt)
		case "max_attempts":
			err = readCount("ctx.max_attempts", value, &f.Delivery.MaxAttempts)
		case "ack_deadline_ms":
			err = readMillis("ctx.ack_deadline_ms", value, 0, &f.Delivery.AckTimeout)
		case "lease":
			text, ok := d.values.unquote(value)
			if !ok {
				return wrongType("ctx.lease", value, "a string")
			}
			err = d.setLease(f, text)
		case "sought":
			err = readBool("ctx.sought", value, &f.Delivery.Sought)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readCardinal(name string, value []byte, into *uint64) error {
	n := int64(*into)
	if err := readInteger(name, value, &n); err != nil {
		return err
	}
	if n < 0 {
		return outOfRange(name, n, 0, math.MaxInt64)
	}
	*into = uint64(n)
	return nil
}

// maxDigits is how many digits MaxOffset has.
const maxDigits = 16

// scanner walks over a frame whose layout is known. After the first surprise it
// has failed and every further step is void.
type scanner struct {
	rest   []byte
	failed bool
}

func (s *scanner) done() bool { return !s.failed && len(s.rest) == 0 }

// has steps over text if it is next.
func (s *scanner) has(text string) bool {
	if s.failed || len(s.rest) < len(text) || string(s.rest[:len(text)]) != text {
		return false
	}
	s.rest = s.rest[len(text):]
	return true
}

func (s *scanner) expect(text string) {
	if !s.has(text) {
		s.failed = true
	}
}

func (s *scanner) skip(n int) {
	if s.failed || len(s.rest) < n {
		s.failed = true
		return
	}
	s.rest = s.rest[n:]
}

// text steps over a string without anything to unescape.
func (s *scanner) text() []byte {
	quoted := plainString(s.rest)
	if s.failed || quoted == nil {
		s.failed = true
		return nil
	}
	s.rest = s.rest[len(quoted):]
	return quoted[1 : len(quoted)-1]
}

// object steps over a JSON object.
func (s *scanner) object() []byte {
	depth, inText := 0, false
	for i := 0; i < len(s.rest) && !s.failed; i++ {
		switch c := s.rest[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				object := s.rest[: i+1 : i+1]
				s.rest = s.rest[i+1:]
				return object
			}
		}
	}
	s.failed = true
	return nil
}

// number steps over an integer as the encoders write it: no sign, no leading
// zeros, at most maxDigits.
func (s *scanner) number() (n uint64) {
	digits := 0
	for digits < len(s.rest) && s.rest[digits] >= '0' && s.rest[digits] <= '9' {
		digits++
	}
	if s.failed || digits == 0 || digits > maxDigits || digits > 1 && s.rest[0] == '0' {
		s.failed = true
		return 0
	}
	for _, c := range s.rest[:digits] {
		n = n*10 + uint64(c-'0')
	}
	s.rest = s.rest[digits:]
	return n
}
