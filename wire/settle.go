package wire

import (
	"bytes"
	"strconv"
	"time"

	"eventhub"
)

// leastExtend is the shortest extension of a lease: a MODACK that asks for less
// gets this much.
const leastExtend = time.Second

// readSettlement fills req.Settlement from an ACK, NACK or MODACK.
func (d *Decoder) readSettlement(req *Request) error {
	if err := d.readNames(req); err != nil {
		return err
	}
	s := &req.Settlement
	if err := d.readRefs(s); err != nil {
		return err
	}
	var err error
	switch req.Op {
	case OpAck:
		s.Verdict = eventhub.Ack
		if !absent(d.m.publish) {
			return unsupported("publish in ACK")
		}
	case OpNack:
		s.Verdict = eventhub.Nack
		err = d.readNack(s)
	case OpModack:
		s.Verdict = eventhub.Extend
		err = d.readExtend(s)
	}
	if err != nil {
		return err
	}
	return s.Validate()
}

func (d *Decoder) readNack(s *eventhub.Settlement) error {
	if err := d.readText("reason", d.m.reason, &s.Reason); err != nil {
		return err
	}
	if err := readBool("terminal", d.m.terminal, &s.Terminal); err != nil {
		return err
	}
	if err := readMillis("delay_ms", d.m.delayMs, 0, &s.Delay); err != nil {
		return err
	}
	if s.Delay == 0 && !absent(d.m.delayMs) {
		// 0 asks for the event at once; in the domain it would mean the backoff.
		s.Delay = time.Millisecond
	}
	return nil
}

// readExtend leaves By at 0, the subscription's ack timeout, where no time is
// given.
func (d *Decoder) readExtend(s *eventhub.Settlement) error {
	if absent(d.m.extendMs) {
		return nil
	}
	if err := readMillis("extend_ms", d.m.extendMs, -maxMillis, &s.By); err != nil {
		return err
	}
	s.By = max(s.By, leastExtend)
	return nil
}

// readRefs reads what the verdict is on: one id, one lease, both of one
// delivery, or many ids.
func (d *Decoder) readRefs(s *eventhub.Settlement) error {
	if !absent(d.m.ids) {
		if !absent(d.m.id) || !absent(d.m.lease) {
			return eventhub.Errorf(eventhub.CodeBadRequest, "ids is given beside id or lease; it stands alone")
		}
		return d.readIDs(s)
	}
	if absent(d.m.id) && absent(d.m.lease) {
		return eventhub.Errorf(eventhub.CodeBadRequest, "id is missing; id, ids or lease is expected")
	}
	refs := d.newRef()
	if !absent(d.m.id) {
		if !d.readRefID(d.m.id, &refs[0].ID) {
			return badRefID("id", d.m.id)
		}
	}
	if err := d.readLease(&refs[0].Lease); err != nil {
		return err
	}
	s.Refs = refs
	return nil
}

func (d *Decoder) readIDs(s *eventhub.Settlement) error {
	ids := d.m.ids
	if ids[0] != '[' {
		return wrongType("ids", ids, "an array of strings")
	}
	refs := make([]eventhub.Ref, 0, min(bytes.Count(ids, []byte{','})+1, MaxRefs))
	for i, value := range d.elements(ids) {
		if i == MaxRefs {
			return eventhub.Errorf(eventhub.CodeBadRequest, "ids has more than %d entries", MaxRefs)
		}
		refs = append(refs, eventhub.Ref{})
		if !d.readRefID(value, &refs[i].ID) {
			return badRefID("ids["+strconv.Itoa(i)+"]", value)
		}
	}
	if len(refs) == 0 {
		return eventhub.Errorf(eventhub.CodeBadRequest, "ids is empty; 1 to %d are allowed", MaxRefs)
	}
	s.Refs = refs
	return nil
}

// readRefID reads the id of a delivered event and reports whether it can be one:
// text that is not empty. More is not looked at; an id that no delivery has is
// simply unknown.
func (d *Decoder) readRefID(value []byte, into *string) bool {
	text, ok := d.unquote(value)
	*into = string(text)
	return ok && len(text) > 0
}

func badRefID(name string, value []byte) error {
	if value[0] == '"' {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is empty", name)
	}
	return wrongType(name, value, "a string")
}

func (d *Decoder) readLease(into *eventhub.Lease) error {
	if absent(d.m.lease) {
		return nil
	}
	text, ok := d.unquote(d.m.lease)
	if !ok {
		return wrongType("lease", d.m.lease, "a string")
	}
	lease, err := eventhub.ParseLease(string(text))
	if err != nil {
		return err
	}
	if lease.IsZero() {
		return eventhub.Errorf(eventhub.CodeBadRequest, "lease %q names nothing", text)
	}
	*into = lease
	return nil
}

// refChunk is how many refs are allocated at once: almost every settlement has
// one.
const refChunk = 16

// newRef returns one zero ref of its own.
func (d *Decoder) newRef() []eventhub.Ref {
	if len(d.refs) == 0 {
		d.refs = make([]eventhub.Ref, refChunk)
	}
	ref := d.refs[:1:1]
	d.refs = d.refs[1:]
	return ref
}
