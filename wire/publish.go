package wire

import (
	"bytes"
	"slices"
	"strconv"

	"eventhub"
	"eventhub/internal/naming"
)

// readPublish fills req.Event, or req.Events, and whom to wait for.
func (d *Decoder) readPublish(req *Request) error {
	if !absent(d.m.opts) && d.m.opts[0] != '{' {
		return wrongType("opts", d.m.opts, "an object")
	}
	if !absent(d.m.events) {
		return d.readBatch(req)
	}
	if err := d.readTopic(req); err != nil {
		return err
	}
	if d.m.payload == nil {
		return eventhub.Errorf(eventhub.CodeBadRequest, "payload is missing; null is a payload")
	}
	req.Event.Topic = req.Topic
	req.Event.Payload = d.m.payload
	d.when = 0
	err := d.readPublishOpts(req, func(o *option) error {
		return d.readEventOption(o, &req.Event)
	})
	if err != nil {
		return err
	}
	return d.checkWhen()
}

// checkWhen refuses an event that says twice when it enters the log. In the domain a
// delay of 0, or a time of 0, is none.
func (d *Decoder) checkWhen() error {
	if d.when > 1 {
		return eventhub.Errorf(eventhub.CodeBadEvent, "both delay_ms and deliver_at are given; one of them is expected")
	}
	return nil
}

// readBatch reads a PUBLISH with events, whose own opts are about all of them.
func (d *Decoder) readBatch(req *Request) error {
	req.Batch = true
	for _, other := range []struct {
		name  string
		given bool
	}{{"topic", !absent(d.m.topic)}, {"payload", d.m.payload != nil}} {
		if other.given {
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given with events; each of them has its own", other.name)
		}
	}
	err := d.readPublishOpts(req, func(o *option) error {
		var ofEvents eventhub.Event
		if err := d.readEventOption(o, &ofEvents); err != nil || absent(o.value) {
			return err
		}
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given with events; it belongs in the opts of each", o.name)
	})
	if err != nil {
		return err
	}
	if req.Events, err = d.readEvents("events", d.m.events, req.Events); err != nil {
		return err
	}
	if len(req.Events) == 0 {
		return eventhub.Errorf(eventhub.CodeBadRequest, "events is empty; 1 to %d are allowed", MaxEvents)
	}
	return nil
}

// readPublishOpts reads the options of a PUBLISH as a whole and has read read the
// others.
func (d *Decoder) readPublishOpts(req *Request, read func(*option) error) error {
	waitMs := false
	waitFor := false
	for i := range d.opts {
		var err error
		switch o := &d.opts[i]; string(o.name) {
		case "wait_for":
			waitFor = !absent(o.value)
			err = d.readWaitFor(o.value, &req.WaitFor)
		case "wait_ms":
			waitMs = !absent(o.value)
			err = readMillis("wait_ms", o.value, 1, &req.WaitUpTo)
		default:
			err = read(o)
		}
		if err != nil {
			return err
		}
	}
	if waitMs && !waitFor {
		return eventhub.Errorf(eventhub.CodeBadRequest, "wait_ms is given but wait_for is missing")
	}
	if req.WaitUpTo > eventhub.MaxWait {
		return eventhub.Errorf(eventhub.CodeBadRequest, "wait_ms is %d; at most %d is allowed", req.WaitUpTo.Milliseconds(), eventhub.MaxWait.Milliseconds())
	}
	return nil
}

func (d *Decoder) readWaitFor(value []byte, into *[]string) error {
	if err := d.readTexts("wait_for", value, eventhub.MaxWaitFor, eventhub.CodeBadRequest, into); err != nil {
		return err
	}
	for i, group := range *into {
		if err := eventhub.ValidateGroup(group); err != nil {
			return within("wait_for", i, err)
		}
	}
	return nil
}

// readEvents appends the events of an array to into. An error names the index of
// the first bad one.
func (d *Decoder) readEvents(name string, array []byte, into []eventhub.Event) ([]eventhub.Event, error) {
	if array[0] != '[' {
		return into, wrongType(name, array, "an array of objects")
	}
	// Each event has a topic, so this is enough, and seldom too much.
	into = slices.Grow(into, min(bytes.Count(array, []byte(`"topic"`)), MaxEvents))
	for i, value := range eachElement(array) {
		if i == MaxEvents {
			return into, eventhub.Errorf(eventhub.CodeBadRequest, "%s has more than %d entries", name, MaxEvents)
		}
		if value[0] != '{' {
			return into, eventhub.AtIndex(wrongType(name+"["+strconv.Itoa(i)+"]", value, "an object"), "", i)
		}
		into = append(into, eventhub.Event{})
		if err := d.readEvent(value, &into[i]); err != nil {
			return into, eventhub.AtIndex(err, name, i)
		}
	}
	return into, nil
}

// readEvent reads one event of an array. Its names are known all: one that is not
// obeyed would change what is published.
func (d *Decoder) readEvent(object []byte, e *eventhub.Event) error {
	var topic, opts []byte
	for name, value := range eachMember(object) {
		switch string(name) {
		case "topic":
			topic = value
		case "payload":
			e.Payload = value
		case "opts":
			opts = value
		default:
			if slices.Contains(publishOptions, naming.Canonical(string(name))) {
				return eventhub.Errorf(eventhub.CodeBadRequest, "%q belongs in opts", name)
			}
			return unknownOption("the event", name, eventMembers)
		}
	}
	if absent(topic) {
		return eventhub.Errorf(eventhub.CodeBadTopic, "topic is missing")
	}
	text, ok := d.unquote(topic)
	if !ok {
		return eventhub.Errorf(eventhub.CodeBadTopic, "topic is %s; a string is expected", kindName(topic))
	}
	e.Topic = d.topics.intern(text)
	if e.Payload == nil {
		return eventhub.Errorf(eventhub.CodeBadRequest, "payload is missing; null is a payload")
	}
	if absent(opts) {
		return nil
	}
	if opts[0] != '{' {
		return wrongType("opts", opts, "an object")
	}
	d.when = 0
	d.opts = d.opts[:0] // those of the frame are read
	d.cutOptions(opts)
	for i := range d.opts {
		if err := d.readEventOption(&d.opts[i], e); err != nil {
			return err
		}
	}
	return d.checkWhen()
}

// readEventOption reads an option of one event, which is in d.opts.
func (d *Decoder) readEventOption(o *option, e *eventhub.Event) error {
	value := o.value
	switch string(o.name) {
	case "id":
		return d.readEventID(value, &e.ID)
	case "ts":
		return readTS(value, &e.TS)
	case "key":
		return d.readText("key", value, &e.Key)
	case "sid":
		return d.readText("sid", value, &e.SID)
	case "headers":
		return d.readHeaders(value, &e.Headers)
	case "tags":
		return d.readTexts("tags", value, eventhub.MaxTags, eventhub.CodeBadEvent, &e.Tags)
	case "caused_by":
		return d.readTexts("caused_by", value, eventhub.MaxCausedBy, eventhub.CodeBadEvent, &e.CausedBy)
	case "delay_ms":
		d.countWhen(value)
		return readMillis("delay_ms", value, -maxMillis, &e.Delay)
	case "deliver_at":
		d.countWhen(value)
		var ms int64
		err := readInteger("deliver_at", value, &ms)
		e.DeliverAt = timeOf(ms)
		return err
	case "expect":
		return d.readExpect(value, &e.Expect)
	case "wait_for", "wait_ms":
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given for one event; it belongs in the opts of the whole PUBLISH", o.name)
	}
	alias, err := rename(d.opts, o)
	if err != nil {
		return err
	}
	if alias {
		return d.readEventOption(o, e)
	}
	return unknownOption("opts", o.name, publishOptions)
}

func (d *Decoder) countWhen(value []byte) {
	if !absent(value) {
		d.when++
	}
}

// readExpect reads a condition.
func (d *Decoder) readExpect(value []byte, into *eventhub.Expect) (err error) {
	if absent(value) {
		return nil
	}
	if value[0] != '{' {
		return wrongType("expect", value, "an object")
	}
	var numbers [2]uint64
	var given [2]*uint64
	for name, member := range eachMember(value) {
		i := slices.Index(expectMembers, string(name))
		if i < 0 {
			return unknownOption("expect", name, expectMembers)
		}
		if absent(member) {
			continue
		}
		if err := readCardinal("expect: "+expectMembers[i], member, &numbers[i]); err != nil {
			return err
		}
		given[i] = &numbers[i]
	}
	*into, err = eventhub.ExpectOf(given[0], given[1])
	return err
}

// readEventID refuses the empty id, which in the domain would mean none.
func (d *Decoder) readEventID(value []byte, into *string) error {
	if err := d.readText("id", value, into); err != nil || absent(value) {
		return err
	}
	if *into == "" {
		return eventhub.ValidateID("")
	}
	return nil
}

// readTS refuses 0, which in the domain would mean none.
func readTS(value []byte, into *int64) error {
	if err := readInteger("ts", value, into); err != nil || absent(value) {
		return err
	}
	if *into == 0 {
		return eventhub.Errorf(eventhub.CodeBadEvent, "ts is 0; epoch milliseconds from 1 on are allowed")
	}
	return nil
}

func (d *Decoder) readHeaders(value []byte, into *map[string]string) error {
	if absent(value) {
		return nil
	}
	if value[0] != '{' {
		return wrongType("headers", value, "an object of strings")
	}
	var headers map[string]string
	for name, element := range eachMember(value) {
		text, ok := d.unquote(element)
		if !ok {
			return eventhub.Errorf(eventhub.CodeBadRequest, "headers: the value of %.48q is %s; a string is expected", name, kindName(element))
		}
		if len(headers) == eventhub.MaxHeaders {
			return eventhub.Errorf(eventhub.CodeBadEvent, "headers has more than %d names", eventhub.MaxHeaders)
		}
		if headers == nil {
			headers = make(map[string]string)
		}
		headers[string(name)] = string(text)
	}
	*into = headers
	return nil
}
