package wire

import (
	"bytes"
	"math"
	"strconv"

	"eventhub"
)

// The strict reading of frames of the hub: in any layout, with members that this version
// does not know.

// hubMembers are the raw values of one frame, nil where absent.
type hubMembers struct {
	op, corr                         []byte
	id, offset, duplicate            []byte
	ids, offsets, duplicates         []byte
	deliverAt, stale, staleAt        []byte
	known, gaps, ended               []byte
	hub, version, durability, limits []byte
	protocol                         []byte
	code, msg, index, retryAfter     []byte
	present, seq, producer           []byte
	topic, group, event, context     []byte
	events                           []byte
	count, snapshot, horizon         []byte
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
		{"known", &m.known}, {"gaps", &m.gaps}, {"ended", &m.ended},
		{"hub", &m.hub}, {"version", &m.version}, {"durability", &m.durability}, {"limits", &m.limits},
		{"protocol", &m.protocol},
		{"code", &m.code}, {"msg", &m.msg}, {"index", &m.index}, {"present", &m.present}, {"seq", &m.seq}, {"producer", &m.producer}, {"retry_after_ms", &m.retryAfter},
		{"topic", &m.topic}, {"group", &m.group}, {"event", &m.event}, {"ctx", &m.context}, {"events", &m.events},
		{"count", &m.count}, {"snapshot", &m.snapshot}, {"horizon", &m.horizon},
	} {
		if s.name == string(name) {
			return s.slot
		}
	}
	return nil
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
	op, ok := d.values.unquote(d.m.op)
	if !ok {
		return wrongType("op", d.m.op, "a string")
	}
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
	case OpState:
		f.Op = OpState
		return d.readState(f)
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
	if err := d.readEnded(f); err != nil {
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
	if err := d.readProducer(&f.Info.Producer); err != nil {
		return err
	}
	return d.readLimits(&f.Info.Limits)
}

// readPublished reads what an OK, or the ERR of a PUBLISH that is in the log, says of the
// events.
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
		var g eventhub.Gap
		if err := readGap(name, element, &g); err != nil {
			return err
		}
		for member, value := range eachMember(element) {
			if string(member) != "topic" {
				continue
			}
			if err := d.values.readText(name+".topic", value, &g.Topic); err != nil {
				return err
			}
		}
		f.Gaps = append(f.Gaps, g)
	}
	return nil
}

// readEnded reads what an OK says of where a group had ended.
func (d *HubDecoder) readEnded(f *HubFrame) error {
	if absent(d.m.ended) {
		return nil
	}
	if d.m.ended[0] != '[' {
		return wrongType("ended", d.m.ended, "an array of objects")
	}
	for i, element := range eachElement(d.m.ended) {
		name := "ended[" + strconv.Itoa(i) + "]"
		if absent(element) || element[0] != '{' {
			return wrongType(name, element, "an object")
		}
		var e eventhub.EndedGroup
		for member, value := range eachMember(element) {
			var err error
			switch string(member) {
			case "topic":
				err = d.values.readText(name+".topic", value, &e.Topic)
			case "ts":
				err = readInteger(name+".ts", value, &e.TS)
			case "cursor":
				err = readCardinal(name+".cursor", value, &e.Cursor)
			}
			if err != nil {
				return err
			}
		}
		f.Ended = append(f.Ended, e)
	}
	return nil
}

// readGap reads the offsets of a gap.
func readGap(name string, object []byte, into *eventhub.Gap) (err error) {
	if absent(object) || object[0] != '{' {
		return wrongType(name, object, "an object")
	}
	for member, value := range eachMember(object) {
		switch string(member) {
		case "after":
			err = readCardinal(name+".after", value, &into.After)
		case "first":
			err = readCardinal(name+".first", value, &into.First)
		case "compacted":
			err = readCardinal(name+".compacted", value, &into.Compacted)
		case "tombstones":
			err = readCardinal(name+".tombstones", value, &into.Tombstones)
		}
		if err != nil {
			return err
		}
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
	if err := d.readPublished(f); err != nil {
		return err
	}
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
	if !absent(d.m.present) {
		e.Present = new(uint64)
		if err := readCardinal("present", d.m.present, e.Present); err != nil {
			return err
		}
	}
	if err := readCardinal("seq", d.m.seq, &e.Seq); err != nil {
		return err
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

// readState reads a STATE.
func (d *HubDecoder) readState(f *HubFrame) error {
	if err := d.readSubscription(f); err != nil {
		return err
	}
	s := &eventhub.StatePart{}
	f.Delivery = eventhub.Delivery{Topic: d.topics.intern(f.Topic), Attempt: 1, State: s}
	if err := readCardinal("horizon", d.m.horizon, &s.Horizon); err != nil {
		return err
	}
	if s.Complete = !absent(d.m.count); !s.Complete {
		if s.Horizon == 0 {
			return missing("count")
		}
		return nil
	}
	var count uint64
	if err := readCardinal("count", d.m.count, &count); err != nil {
		return err
	}
	s.Count = int(count)
	if err := readCardinal("offset", d.m.offset, &s.Offset); err != nil {
		return err
	}
	return d.values.readText("snapshot", d.m.snapshot, &s.Snapshot)
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

// readContext reads the ctx of a delivery. That of a live tail, where it has one, says
// nothing but a gap and what is of the state.
func (d *HubDecoder) readContext(f *HubFrame, into *eventhub.Delivery, context []byte) error {
	tail := f.Group == nil
	if tail && absent(context) {
		return nil
	}
	if absent(context) || context[0] != '{' {
		return missing("ctx")
	}
	if !tail {
		into.Attempt = 0
	}
	for name, value := range eachMember(context) {
		if tail && string(name) != "gap" && string(name) != "state" && string(name) != "snapshot" {
			continue
		}
		var err error
		switch string(name) {
		case "state", "snapshot":
			if tail {
				err = d.readStatePart(string(name), value, into)
			}
		case "gap":
			into.Gap = &eventhub.Gap{}
			err = readGap("ctx.gap", value, into.Gap)
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
		case "epoch":
			err = readCardinal("ctx.epoch", value, &into.Epoch)
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

// readStatePart reads what the ctx of a live tail says of the state.
func (d *HubDecoder) readStatePart(name string, value []byte, into *eventhub.Delivery) error {
	var part eventhub.StatePart
	if into.State != nil {
		part = *into.State
	}
	isState := true
	var err error
	if name == "state" {
		err = readBool("ctx.state", value, &isState)
	} else {
		err = d.values.readText("ctx.snapshot", value, &part.Snapshot)
	}
	if err == nil && isState {
		into.State = &part
	}
	return err
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
