package wire

import (
	"bytes"

	"eventhub"
	"eventhub/internal/record/layout"
)

// The frames of the hub.
const (
	OpOK     Op = "OK"
	OpErr    Op = "ERR"
	OpEvent  Op = "EVENT"
	OpEvents Op = "EVENTS"
	OpState  Op = "STATE"
)

// HubFrame is one frame of the hub, decoded by a client. Which fields count
// depends on Op, and for an OK on what it answers. All bytes are parts of the
// frame, or of the decoder's memory, and valid until the next Decode.
type HubFrame struct {
	Op      Op
	Corr    []byte
	HasCorr bool

	// OK of a PUBLISH of one event, or the ERR of one that is in the log although its wait
	// for groups has failed. DeliverAt is in epoch milliseconds, and 0 where
	// Offset counts.
	ID        []byte
	Offset    uint64
	DeliverAt int64
	Duplicate bool
	// OK of a PUBLISH of a batch, likewise, and of an ACK that published: one for each event,
	// in the decoder's memory, except the ids, which may be kept.
	Receipts []eventhub.Receipt
	// OK of ACK, NACK, MODACK. StaleAt has the indexes of the deliveries that are
	// meant, in the decoder's memory, and is nil where all are.
	Stale   bool
	StaleAt []int
	// OK of the SUBSCRIBE of a live tail; they may be kept.
	Known string
	Gaps  []eventhub.Gap
	// OK of the SUBSCRIBE of a group; it may be kept.
	Ended []eventhub.EndedGroup
	// OK of AUTH.
	Info AuthInfo

	// ERR.
	Err *eventhub.Error

	// EVENT, EVENTS and STATE. Topic and Group are those of the SUBSCRIBE, Group is nil for
	// a live tail; the topic of a delivery is the event's own.
	Topic, Group []byte
	Delivery     eventhub.Delivery   // of an EVENT; of a STATE, whose State is a mark and which has no record
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
	s.tailContext(&f.Delivery)
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
	if into.Gap != nil {
		into.Gap.Topic = into.Topic
	}
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
