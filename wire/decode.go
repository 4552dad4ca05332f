package wire

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
	"eventhub/internal/naming"
)

// Decoder reads the frames of one connection. The zero value is ready; it is
// not safe for concurrent use.
//
// A frame is read in two passes. The first cuts the object and its opts into
// raw members and checks all of the JSON, down to duplicate names inside the
// payload. It judges no value, so it reaches the end of every frame that is
// JSON, and corr and op are known wherever they are: an error can be answered
// with its corr. Frames without anything unusual take a short way through it.
// The second reads the members that the op wants, out of text that is known to
// be sound.
//
// Nothing of a frame is kept but the payload, which is a part of it; all other
// strings are copies. The decoder itself lets go of the frame when it is done: a
// connection that is idle is not to hold the buffer of what it said last. Topics and groups of recent frames are shared, because a
// connection says the same few over and over.
type Decoder struct {
	in   bytes.Buffer // feeds json without a copy
	json jsontext.Decoder

	m     members
	opts  []option
	stray spellings // of options that the frame itself has, where those are no members
	when  int       // options of the event being read that say when it enters the log
	text  []byte    // of the string unescaped last

	topics, groups names
	pattern        string         // the one that was found valid last
	refs           []eventhub.Ref // not yet handed out, see newRef
}

// members are the raw values of one frame, nil where absent.
type members struct {
	op, corr, token, name               []byte
	topic, group, payload               []byte
	opts                                []byte // an object is in Decoder.opts, and emptyObject here
	id, ids, lease                      []byte
	reason, delayMs, terminal, extendMs []byte
	events, publish                     []byte
	seq, producer                       []byte
}

// option is one raw member of opts.
type option struct {
	name, value []byte
}

// maxKeptText bounds the memory, in bytes, that a decoder holds on to after a
// frame with a long escaped string, and the frames whose names it may remember.
const maxKeptText = 4 << 10

var emptyObject = []byte("{}")

// maxOptions is how many members of opts are looked at. It is more than the
// protocol has options, so that one of them is unknown, and the frame refused,
// wherever there are more.
const maxOptions = 64

// slot returns where the value of a name goes, or nil for a name that no frame
// has.
func (m *members) slot(name []byte) *[]byte {
	switch string(name) {
	case "op":
		return &m.op
	case "corr":
		return &m.corr
	case "token":
		return &m.token
	case "name":
		return &m.name
	case "topic":
		return &m.topic
	case "group":
		return &m.group
	case "payload":
		return &m.payload
	case "opts":
		return &m.opts
	case "id":
		return &m.id
	case "ids":
		return &m.ids
	case "lease":
		return &m.lease
	case "reason":
		return &m.reason
	case "delay_ms":
		return &m.delayMs
	case "terminal":
		return &m.terminal
	case "extend_ms":
		return &m.extendMs
	case "events":
		return &m.events
	case "publish":
		return &m.publish
	case "seq":
		return &m.seq
	case "producer":
		return &m.producer
	}
	return nil
}

// Decode resets req and fills it from one frame. The payloads of its events are
// parts of frame, checked to be strict JSON; everything else is independent of it.
//
// An error is an *eventhub.Error: with CodeBadJSON it names the byte position,
// CodeBadRequest, CodeBadTopic and CodeBadEvent the member and what was found,
// CodeUnsupportedOp the op or option that this hub does not have. Corr, HasCorr
// and Op are filled then too, as far as they could be read; Op may be a name
// that is no op. The other fields mean nothing then.
//
// An event has members of the right type and a payload, no more: its topic and the
// ranges are the publisher's to check. Everything else has passed the domain's
// validation.
func (d *Decoder) Decode(frame []byte, req *Request) error {
	err := d.decode(frame, req)
	d.forget(len(frame))
	return err
}

// forget releases every reference into the frame, and the memory of the JSON reader
// where that may be much: it keeps the names of an object to find those that come
// twice.
func (d *Decoder) forget(size int) {
	if size > maxKeptText {
		d.json = jsontext.Decoder{}
	}
	d.m = members{}
	clear(d.opts)
	d.opts = d.opts[:0]
	d.rewind(nil)
}

func (d *Decoder) decode(frame []byte, req *Request) error {
	reset(req)
	d.stray = 0
	if cap(d.text) > maxKeptText {
		d.text = nil
	}
	var splitErr error
	if !d.splitPlain(frame) {
		splitErr = d.split(frame)
	}
	corrErr := d.readCorr(req)
	opErr := d.readOp(req)
	if splitErr != nil {
		return splitErr
	}
	if corrErr != nil {
		return corrErr
	}
	if opErr != nil {
		return opErr
	}
	if err := d.readSeq(req); err != nil {
		return err
	}
	if err := d.readProducer(req); err != nil {
		return err
	}
	if misplaced := d.misplaced(req.Op); misplaced != 0 {
		return misplaced.belongInOpts(req.Op)
	}
	if err := d.refuseOpts(req.Op); err != nil {
		return err
	}
	switch req.Op {
	case OpAuth:
		return d.readAuth(req)
	case OpPublish:
		return d.readPublish(req)
	case OpSubscribe:
		return d.readSubscribe(req)
	case OpUnsubscribe, OpPause, OpResume:
		return d.readSubscription(req)
	case OpAck, OpNack, OpModack:
		return d.readSettlement(req)
	case OpCancel:
		return d.readCancel(req)
	}
	return eventhub.Errorf(eventhub.CodeUnsupportedOp, "op %.48q is unknown%s", string(req.Op), naming.DidYouMean(string(req.Op), ops))
}

// keptEvents is how many events a Request keeps memory for: a batch of 64, as the
// allocator rounds it up.
const keptEvents = 80

// reset empties req and keeps the memory of its events, if it is little.
func reset(req *Request) {
	events := req.Events
	*req = Request{}
	if cap(events) <= keptEvents {
		clear(events)
		req.Events = events[:0]
	}
}

// split is the first pass. On an error the members before it are kept.
func (d *Decoder) split(frame []byte) error {
	d.m = members{}
	d.opts = d.opts[:0]
	d.rewind(frame)
	if kind := d.json.PeekKind(); kind != jsontext.KindBeginObject {
		return d.notAnObject()
	}
	if err := d.splitObject(); err != nil {
		return badJSON(err)
	}
	if rest := bytes.TrimLeft(frame[d.json.InputOffset():], jsonSpace); len(rest) > 0 {
		return eventhub.Errorf(eventhub.CodeBadJSON, "data after the object at byte %d", len(frame)-len(rest))
	}
	return nil
}

// notAnObject says what the frame is instead: no JSON, or another value.
func (d *Decoder) notAnObject() error {
	value, err := d.json.ReadValue()
	if err != nil {
		return badJSON(err)
	}
	at := d.json.InputOffset() - int64(len(value))
	return eventhub.Errorf(eventhub.CodeBadJSON, "the frame is %s at byte %d; one JSON object is expected", kindName(value), at)
}

func (d *Decoder) splitObject() error {
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	for {
		name, err := d.nextName()
		if err != nil || name == nil {
			return err
		}
		if string(name) == "opts" && d.json.PeekKind() == jsontext.KindBeginObject {
			if err := d.splitOpts(); err != nil {
				return err
			}
			continue
		}
		value, err := d.json.ReadValue()
		if err != nil {
			return err
		}
		if slot := d.m.slot(name); slot != nil {
			*slot = value
		} else if !absent(value) {
			d.stray.add(name)
		}
	}
}

// splitOpts cuts opts, where it is an object, into d.opts.
func (d *Decoder) splitOpts() error {
	d.m.opts = emptyObject
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	for {
		name, err := d.nextName()
		if err != nil || name == nil {
			return err
		}
		value, err := d.json.ReadValue()
		if err != nil {
			return err
		}
		if len(d.opts) < maxOptions {
			d.opts = append(d.opts, option{name, value})
		}
	}
}

func (d *Decoder) readCorr(req *Request) error {
	if absent(d.m.corr) {
		return nil
	}
	corr, ok := d.unquote(d.m.corr)
	if !ok {
		return wrongType("corr", d.m.corr, "a string")
	}
	if len(corr) > MaxCorrBytes {
		return eventhub.Errorf(eventhub.CodeBadRequest, "corr %.48q has %d bytes; at most %d are allowed", corr, len(corr), MaxCorrBytes)
	}
	req.Corr, req.HasCorr = string(corr), true
	return nil
}

func (d *Decoder) readOp(req *Request) error {
	if absent(d.m.op) {
		return missing("op")
	}
	op, ok := d.unquote(d.m.op)
	if !ok {
		return wrongType("op", d.m.op, "a string")
	}
	req.Op = knownOp(op)
	return nil
}

// knownOp returns the op without a copy where it is one of the clients' frames.
func knownOp(op []byte) Op {
	switch Op(op) {
	case OpPublish:
		return OpPublish
	case OpAck:
		return OpAck
	case OpNack:
		return OpNack
	case OpModack:
		return OpModack
	case OpSubscribe:
		return OpSubscribe
	case OpUnsubscribe:
		return OpUnsubscribe
	case OpPause:
		return OpPause
	case OpResume:
		return OpResume
	case OpAuth:
		return OpAuth
	case OpCancel:
		return OpCancel
	}
	return Op(op)
}

func (d *Decoder) readAuth(req *Request) error {
	if err := d.readText("name", d.m.name, &req.Name); err != nil {
		return err
	}
	if !absent(d.m.name) {
		if err := eventhub.ValidateClient(req.Name); err != nil {
			return err
		}
	}
	req.HasToken = !absent(d.m.token)
	return d.readText("token", d.m.token, &req.Token)
}

// readSubscription reads what names a subscription: topic and group, or the
// topic alone, which names a live tail.
func (d *Decoder) readSubscription(req *Request) error {
	if absent(d.m.group) {
		return d.readSubscribedTopic(req)
	}
	return d.readNames(req)
}

// readNames reads topic and group of a frame that is about a group.
func (d *Decoder) readNames(req *Request) error {
	if err := d.readSubscribedTopic(req); err != nil {
		return err
	}
	if absent(d.m.group) {
		return missing("group")
	}
	group, ok := d.unquote(d.m.group)
	if !ok {
		return wrongType("group", d.m.group, "a string")
	}
	req.Group = d.groups.intern(group)
	return eventhub.ValidateGroup(req.Group)
}

func (d *Decoder) readSubscribedTopic(req *Request) error {
	if err := d.readTopic(req); err != nil {
		return err
	}
	if !eventhub.IsPattern(req.Topic) {
		return eventhub.ValidateStoredTopic(req.Topic)
	}
	if req.Topic == d.pattern { // it names the deliveries of one ACK after another
		return nil
	}
	if _, err := eventhub.ParsePattern(req.Topic); err != nil {
		return err
	}
	d.pattern = req.Topic
	return nil
}

// readCancel reads which event is to be taken back.
func (d *Decoder) readCancel(req *Request) error {
	if err := d.readTopic(req); err != nil {
		return err
	}
	if err := eventhub.ValidateStoredTopic(req.Topic); err != nil {
		return err
	}
	if absent(d.m.id) {
		return missing("id")
	}
	return d.readEventID(d.m.id, &req.ID)
}

// readTopic reads the topic without a look at its syntax.
func (d *Decoder) readTopic(req *Request) error {
	if absent(d.m.topic) {
		return eventhub.Errorf(eventhub.CodeBadTopic, "topic is missing")
	}
	topic, ok := d.unquote(d.m.topic)
	if !ok {
		return eventhub.Errorf(eventhub.CodeBadTopic, "topic is %s; a string is expected", kindName(d.m.topic))
	}
	req.Topic = d.topics.intern(topic)
	return nil
}

// badJSON turns the JSON library's error into the protocol's.
func badJSON(err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case !errors.As(err, &syntax):
		// The bare io.EOF of a frame without a value.
		return eventhub.Wrap(eventhub.CodeBadJSON, err, "the frame is empty at byte 0; one JSON object is expected")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return eventhub.Wrap(eventhub.CodeBadJSON, err, "duplicate name %.48q at byte %d", syntax.JSONPointer.LastToken(), syntax.ByteOffset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return eventhub.Wrap(eventhub.CodeBadJSON, err, "invalid JSON: the frame breaks off at byte %d", syntax.ByteOffset)
	}
	return eventhub.Wrap(eventhub.CodeBadJSON, err, "invalid JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
}
