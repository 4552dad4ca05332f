package wire

import (
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
	if req.Op != OpAck && !absent(d.m.publish) {
		return eventhub.Errorf(eventhub.CodeBadRequest, "publish is given in a %s; an ACK alone takes it", req.Op)
	}
	var err error
	switch req.Op {
	case OpAck:
		s.Verdict = eventhub.Ack
		err = d.readAckPublish(req)
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

// readAckPublish reads what an ACK publishes. An empty list asks for a plain ACK.
func (d *Decoder) readAckPublish(req *Request) (err error) {
	if !absent(d.m.publish) {
		req.Events, err = d.readEvents("publish", d.m.publish, req.Events)
	}
	return err
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
// delivery, or a list of either or both.
func (d *Decoder) readRefs(s *eventhub.Settlement) error {
	if !absent(d.m.ids) || !absent(d.m.lease) && d.m.lease[0] == '[' {
		if !absent(d.m.id) {
			return eventhub.Errorf(eventhub.CodeBadRequest, "id is given with ids or a list of leases; one of them is expected")
		}
		return d.readManyRefs(s)
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
	if !absent(d.m.lease) {
		if err := d.readLease("lease", d.m.lease, &refs[0].Lease); err != nil {
			return err
		}
	}
	s.Refs = refs
	return nil
}

// readManyRefs reads ids and leases, which are of the same length where both are
// given; null says that the other one names the delivery.
func (d *Decoder) readManyRefs(s *eventhub.Settlement) error {
	name, longest := "ids", d.m.ids
	if absent(longest) {
		name, longest = "lease", d.m.lease
	}
	n, err := countRefs(name, longest)
	if err != nil {
		return err
	}
	refs := make([]eventhub.Ref, n)
	if !absent(d.m.lease) {
		leases, err := countRefs("lease", d.m.lease)
		if err != nil {
			return err
		}
		if leases != n {
			return eventhub.Errorf(eventhub.CodeBadRequest, "lease has %d entries and ids has %d; as many are expected", leases, n)
		}
		for i, value := range eachElement(d.m.lease) {
			if absent(value) {
				continue
			}
			if err := d.readLease("lease["+strconv.Itoa(i)+"]", value, &refs[i].Lease); err != nil {
				return err
			}
		}
	}
	if err := d.readIDs(refs); err != nil {
		return err
	}
	for i := range refs {
		if refs[i] == (eventhub.Ref{}) {
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s[%d] is null and nothing else names the delivery", name, i)
		}
	}
	s.Refs = refs
	return nil
}

// countRefs counts the entries of ids or of a list of leases.
func countRefs(name string, array []byte) (n int, err error) {
	if array[0] != '[' {
		return 0, wrongType(name, array, "an array of strings")
	}
	for range eachElement(array) {
		if n++; n > MaxRefs {
			return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s has more than %d entries", name, MaxRefs)
		}
	}
	if n == 0 {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s is empty; 1 to %d are allowed", name, MaxRefs)
	}
	return n, nil
}

// readIDs fills refs from ids, where given.
func (d *Decoder) readIDs(refs []eventhub.Ref) error {
	if absent(d.m.ids) {
		return nil
	}
	for i, value := range eachElement(d.m.ids) {
		if !absent(value) && !d.readRefID(value, &refs[i].ID) {
			return badRefID("ids["+strconv.Itoa(i)+"]", value)
		}
	}
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

func (d *Decoder) readLease(name string, value []byte, into *eventhub.Lease) error {
	text, ok := d.unquote(value)
	if !ok {
		return wrongType(name, value, "a string")
	}
	lease, err := eventhub.ParseLease(string(text))
	if err != nil {
		return err
	}
	if lease.IsZero() {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s %q names nothing", name, text)
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
