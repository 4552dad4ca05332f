package wire

import (
	"eventhub"
)

// readPublish fills req.Event. A PUBLISH that asks for what this version does
// not have is refused: an event published at once is not what was asked for.
func (d *Decoder) readPublish(req *Request) error {
	if !absent(d.m.events) {
		return unsupported("a PUBLISH with events")
	}
	if err := d.readTopic(req); err != nil {
		return err
	}
	if d.m.payload == nil {
		return eventhub.Errorf(eventhub.CodeBadRequest, "payload is missing; null is a payload")
	}
	req.Event.Topic = req.Topic
	req.Event.Payload = d.m.payload
	return d.readPublishOpts(&req.Event)
}

func (d *Decoder) readPublishOpts(e *eventhub.Event) error {
	if !absent(d.m.opts) && d.m.opts[0] != '{' {
		return wrongType("opts", d.m.opts, "an object")
	}
	for _, o := range d.opts {
		var err error
		switch string(o.name) {
		case "id":
			err = d.readEventID(o.value, &e.ID)
		case "ts":
			err = readTS(o.value, &e.TS)
		case "key":
			err = d.readText("key", o.value, &e.Key)
		case "sid":
			err = d.readText("sid", o.value, &e.SID)
		case "headers":
			err = d.readHeaders(o.value, &e.Headers)
		case "tags":
			err = d.readTexts("tags", o.value, eventhub.MaxTags, &e.Tags)
		case "caused_by":
			err = d.readTexts("caused_by", o.value, eventhub.MaxCausedBy, &e.CausedBy)
		case "delay_ms", "deliver_at", "wait_for", "wait_ms":
			if !absent(o.value) {
				err = unsupported(string(o.name) + " in PUBLISH")
			}
		default:
			err = unknownOption("opts", o.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
	for name, element := range d.members(value) {
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

func unknownOption(where string, name []byte) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s has the unknown name %.48q", where, name)
}
