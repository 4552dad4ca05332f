package wire

import (
	"bytes"
	"math"
	"strconv"

	"eventhub"
	"eventhub/internal/record/layout"
)

// The frames of the hub.
const (
	OpOK     Op = "OK"
	OpErr    Op = "ERR"
	OpEvent  Op = "EVENT"
	OpEvents Op = "EVENTS"
)

// HubFrame is one frame of the hub, decoded by a client. Which fields count
// depends on Op, and for an OK on what it answers. All bytes are parts of the
// frame, or of the decoder's memory, and valid until the next Decode.
type HubFrame struct {
	Op      Op
	Corr    []byte
	HasCorr bool

	// OK of a PUBLISH of one event. DeliverAt is in epoch milliseconds, and 0 where
	// Offset counts.
	ID        []byte
	Offset    uint64
	DeliverAt int64
	Duplicate bool
	// OK of a PUBLISH of a batch and of an ACK that published: one for each event,
	// in the decoder's memory, except the ids, which may be kept.
	Receipts []eventhub.Receipt
	// OK of ACK, NACK, MODACK. StaleAt has the indexes of the deliveries that are
	// meant, in the decoder's memory, and is nil where all are.
	Stale   bool
	StaleAt []int
	// OK of the SUBSCRIBE of a live tail; they may be kept.
	Known string
	Gaps  []eventhub.Gap
	// OK of AUTH.
	Info AuthInfo

	// ERR.
	Err *eventhub.Error

	// EVENT and EVENTS. Topic and Group are those of the SUBSCRIBE, Group is nil for
	// a live tail; the topic of a delivery is the event's own.
	Topic, Group []byte
	Delivery     eventhub.Delivery   // of an EVENT
	Deliveries   []eventhub.Delivery // of an EVENTS, in the decoder's memory
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

	// Handed out with a frame, used again by the next one.
	receipts   []eventhub.Receipt
	deliveries []eventhub.Delivery
	staleAt    []int
}

// hubMembers are the raw values of one frame, nil where absent.
type hubMembers struct {
	op, corr                         []byte
	id, offset, duplicate            []byte
	ids, offsets, duplicates         []byte
	deliverAt, stale, staleAt        []byte
	known, gaps                      []byte
	hub, version, durability, limits []byte
	protocol                         []byte
	code, msg, index, retryAfter     []byte
	topic, group, event, context     []byte
	events                           []byte
}

func (m *hubMembers) slot(name []byte) *[]byte {
	for _, s := range [...]struct {
		name string
		slot *[]byte
	}{
		{"op", &m.op}, {"corr", &m.corr},
		{"id", &m.id}, {"offset", &m.offset}, {"duplicate", &m.duplicate},
		{"ids", &m.ids}, {"offsets", &m.offsets}, {"duplicates", &m.duplicates},
		{"deliver_at", &m.deliverAt}, {"stale", &m.stale}, {"stale_at", &m.staleAt},
		{"known", &m.known}, {"gaps", &m.gaps},
		{"hub", &m.hub}, {"version", &m.version}, {"durability", &m.durability}, {"limits", &m.limits},
		{"protocol", &m.protocol},
		{"code", &m.code}, {"msg", &m.msg}, {"index", &m.index}, {"retry_after_ms", &m.retryAfter},
		{"topic", &m.topic}, {"group", &m.group}, {"event", &m.event}, {"ctx", &m.context}, {"events", &m.events},
	} {
		if s.name == string(name) {
			return s.slot
		}
	}
	return nil
}

// Decode resets f and fills it from one frame. It may change the frame's bytes
// before the records of events: a frame is decoded once. An error means that the
// peer is no hub of this protocol.
func (d *HubDecoder) Decode(frame []byte, f *HubFrame) error {
	if d.plainEvent(frame, f) || d.plainOK(frame, f) || d.plainEvents(frame, f) {
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
	switch {
	case s.has(`,"id":`):
		f.ID = s.text()
		if s.has(`,"deliver_at":`) {
			f.DeliverAt = int64(s.number())
		} else {
			s.expect(`,"offset":`)
			f.Offset = s.number()
		}
		f.Duplicate = s.has(`,"duplicate":true`)
	case s.has(`,"ids":[`):
		d.plainReceipts(&s, f)
	case s.has(`,"stale":true`):
		f.Stale = true
		if s.has(`,"stale_at":[`) {
			d.staleAt = d.staleAt[:0]
			s.indexes(MaxRefs, d.addStale)
			f.StaleAt = d.staleAt
		}
	}
	s.expect(`}`)
	return s.done()
}

func (d *HubDecoder) addStale(i int) { d.staleAt = append(d.staleAt, i) }

const (
	eventStart = `{"offset":`
	contextKey = `,"ctx":{"attempt":`
)

// plainEvent reads an EVENT, or leaves it to strict. After the event are
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
	s.rest = s.rest[at:]
	return d.plainContext(&s, &f.Delivery) && s.done() && d.setEvent(&f.Delivery, event) == nil
}

// plainTailEvent reads what is in the EVENT of a live tail from its event on.
func (d *HubDecoder) plainTailEvent(s scanner, f *HubFrame) bool {
	f.Delivery.Attempt = 1
	event := s.object()
	s.expect(`}`)
	return s.done() && d.setEvent(&f.Delivery, event) == nil
}

// setLease parses the lease, nil for none.
func setLease(into *eventhub.Delivery, text []byte) (err error) {
	if text != nil {
		into.Lease, err = eventhub.ParseLease(string(text))
	}
	return err
}

// setEvent cuts an event into offset and record. The comma between them becomes
// the record's brace.
func (d *HubDecoder) setEvent(into *eventhub.Delivery, event []byte) error {
	s := scanner{rest: event}
	s.expect(eventStart)
	into.Offset = s.number()
	if s.failed || len(s.rest) < 2 || s.rest[0] != ',' || s.rest[len(s.rest)-1] != '}' {
		return eventhub.Errorf(eventhub.CodeBadEvent, "event %.48q does not begin with its offset", event)
	}
	topic := recordTopic(s.rest)
	if topic == nil {
		return eventhub.Errorf(eventhub.CodeBadEvent, "event at offset %d is not laid out as a record", into.Offset)
	}
	into.Topic = d.topics.intern(topic)
	s.rest[0] = '{'
	into.Record = eventhub.Record(s.rest)
	return nil
}

// recordTopic returns the topic that a record, except its first byte, names, or
// nil for bytes that are no record.
func recordTopic(record []byte) []byte {
	s := scanner{rest: record[1:]}
	if !s.has(layout.CommittedPrefix[1:]) {
		s.expect(layout.TSPrefix[1:])
	}
	s.skip(layout.TimeWidth)
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
	case OpEvents:
		f.Op = OpEvents
		return d.readEvents(f)
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
		return eventhub.Errorf(eventhub.CodeBadJSON, "data after the object at byte %d", len(frame)-len(rest))
	}
	return nil
}

func (d *HubDecoder) readOK(f *HubFrame) error {
	v, m := &d.values, &d.m
	if err := d.readPublished(f); err != nil {
		return err
	}
	if err := readBool("stale", m.stale, &f.Stale); err != nil {
		return err
	}
	if !absent(m.staleAt) {
		d.staleAt = d.staleAt[:0]
		if err := readIndexes("stale_at", m.staleAt, MaxRefs, d.addStale); err != nil {
			return err
		}
		if len(d.staleAt) > 0 {
			f.StaleAt = d.staleAt
		}
	}
	if err := v.readText("known", m.known, &f.Known); err != nil {
		return err
	}
	if err := d.readGaps(f); err != nil {
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

// readPublished reads what an OK says of the events that were published.
func (d *HubDecoder) readPublished(f *HubFrame) error {
	v, m := &d.values, &d.m
	if !absent(m.ids) {
		return d.readReceipts(f)
	}
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
	if err := readInteger("deliver_at", m.deliverAt, &f.DeliverAt); err != nil {
		return err
	}
	return readBool("duplicate", m.duplicate, &f.Duplicate)
}

// readGaps reads what an OK says of where a live tail goes on.
func (d *HubDecoder) readGaps(f *HubFrame) error {
	if absent(d.m.gaps) {
		return nil
	}
	if d.m.gaps[0] != '[' {
		return wrongType("gaps", d.m.gaps, "an array of objects")
	}
	for i, element := range eachElement(d.m.gaps) {
		name := "gaps[" + strconv.Itoa(i) + "]"
		if element[0] != '{' {
			return wrongType(name, element, "an object")
		}
		var g eventhub.Gap
		for member, value := range eachMember(element) {
			var err error
			switch string(member) {
			case "topic":
				err = d.values.readText(name+".topic", value, &g.Topic)
			case "after":
				err = readCardinal(name+".after", value, &g.After)
			case "first":
				err = readCardinal(name+".first", value, &g.First)
			}
			if err != nil {
				return err
			}
		}
		f.Gaps = append(f.Gaps, g)
	}
	return nil
}

func (d *HubDecoder) readLimits(into *Limits) error {
	object := d.m.limits
	if absent(object) {
		return nil
	}
	if object[0] != '{' {
		return wrongType("limits", object, "an object")
	}
	for name, value := range eachMember(object) {
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
	if err := d.values.readText("topic", d.m.topic, &e.Topic); err != nil {
		return err
	}
	if err := d.values.readText("group", d.m.group, &e.Group); err != nil {
		return err
	}
	if !absent(d.m.index) {
		var n uint64
		if err := readCardinal("index", d.m.index, &n); err != nil {
			return err
		}
		if n >= MaxEvents {
			return outOfRange("index", int64(n), 0, MaxEvents-1)
		}
		index := int(n)
		e.Index = &index
	}
	f.Err = e
	return readMillis("retry_after_ms", d.m.retryAfter, 0, &e.RetryAfter)
}

func (d *HubDecoder) readEvent(f *HubFrame) error {
	if err := d.readSubscription(f); err != nil {
		return err
	}
	event := d.m.event
	if absent(event) || event[0] != '{' {
		return missing("event")
	}
	f.Delivery.Attempt = 1
	if err := d.readContext(f, &f.Delivery, d.m.context); err != nil {
		return err
	}
	return d.setEvent(&f.Delivery, event)
}

// readSubscription reads whose deliveries a frame has.
func (d *HubDecoder) readSubscription(f *HubFrame) error {
	v, m := &d.values, &d.m
	topic, ok := v.unquote(m.topic)
	if !ok {
		return missing("topic")
	}
	f.Topic = bytes.Clone(topic)
	if absent(m.group) {
		return nil
	}
	group, ok := v.unquote(m.group)
	if !ok {
		return wrongType("group", m.group, "a string")
	}
	f.Group = bytes.Clone(group)
	return nil
}

// readContext reads the ctx of a group's delivery. That of a live tail, should it
// have one, says nothing yet.
func (d *HubDecoder) readContext(f *HubFrame, into *eventhub.Delivery, context []byte) error {
	if f.Group == nil {
		return nil
	}
	into.Attempt = 0
	if absent(context) || context[0] != '{' {
		return missing("ctx")
	}
	for name, value := range eachMember(context) {
		var err error
		switch string(name) {
		case "attempt":
			err = readCount("ctx.attempt", value, &into.Attempt)
		case "max_attempts":
			err = readCount("ctx.max_attempts", value, &into.MaxAttempts)
		case "ack_deadline_ms":
			err = readMillis("ctx.ack_deadline_ms", value, 0, &into.AckTimeout)
		case "lease":
			text, ok := d.values.unquote(value)
			if !ok {
				return wrongType("ctx.lease", value, "a string")
			}
			err = setLease(into, text)
		case "sought":
			err = readBool("ctx.sought", value, &into.Sought)
		case "redriven":
			err = readCount("ctx.redriven", value, &into.Redriven)
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
	if s.failed || len(s.rest) == 0 || s.rest[0] != '{' {
		s.failed = true
		return nil
	}
	end := valueEnd(s.rest)
	object := s.rest[:end:end]
	s.rest = s.rest[end:]
	s.failed = end == 0
	return object
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
