package wire

import (
	"strconv"
	"time"

	"eventhub"
)

// The frames of the hub that are about many events. What they fill is the
// decoder's memory, used again by the next frame.

// plainEvents reads an EVENTS, or leaves it to strict. No byte of the frame is
// changed before all of its layout is known.
func (d *HubDecoder) plainEvents(frame []byte, f *HubFrame) bool {
	s := scanner{rest: frame}
	s.expect(`{"op":"EVENTS","topic":`)
	if s.failed {
		return false
	}
	*f = HubFrame{Op: OpEvents, Topic: s.text()}
	if s.has(`,"group":`) {
		f.Group = s.text()
	}
	s.expect(`,"events":[`)
	ds := d.deliveries[:0]
	for more := true; more && !s.failed; more = s.has(`,`) {
		s.expect(entryStart)
		one := eventhub.Delivery{Attempt: 1, Record: s.object()}
		if f.Group == nil {
			s.tailContext(&one)
		} else if !d.plainContext(&s, &one) {
			return false
		}
		ds = append(ds, one)
	}
	s.expect(eventsEnd)
	d.deliveries = ds
	if !s.done() {
		return false
	}
	f.Deliveries = ds
	return d.setEvents(ds) == nil
}

// setEvents cuts the records of deliveries, which hold whole events so far.
func (d *HubDecoder) setEvents(ds []eventhub.Delivery) error {
	for i := range ds {
		if err := d.setEvent(&ds[i], ds[i].Record); err != nil {
			return within("events", i, err)
		}
	}
	return nil
}

// plainContext reads what follows the event of a group, up to the end of
// the object around both.
func (d *HubDecoder) plainContext(s *scanner, into *eventhub.Delivery) bool {
	s.expect(contextKey)
	into.Attempt = int(s.number())
	s.expect(`,"max_attempts":`)
	into.MaxAttempts = int(s.number())
	s.expect(`,"ack_deadline_ms":`)
	into.AckTimeout = time.Duration(s.number()) * time.Millisecond
	var lease []byte
	if s.has(`,"lease":`) {
		lease = s.text()
	}
	if s.has(epochKey) {
		into.Epoch = s.number()
	}
	into.Sought = s.has(`,"sought":true`)
	if s.has(redrivenKey) {
		into.Redriven = int(s.number())
	}
	if s.has(`,` + gapKey) {
		s.gap(into)
	}
	s.expect(`}}`)
	return !s.failed && setLease(into, lease) == nil
}

// tailContext reads what follows the event of a live tail, up to the end of the object
// around both.
func (s *scanner) tailContext(into *eventhub.Delivery) {
	if s.has(`,"ctx":{`) {
		isState := s.has(stateKey)
		if isState {
			into.State = inState
			if s.has(snapshotKey) {
				into.State = &eventhub.StatePart{Snapshot: string(s.text())}
			}
		}
		if !isState || s.has(`,`) {
			s.expect(gapKey)
			s.gap(into)
		}
		s.expect(`}`)
	}
	s.expect(`}`)
}

// inState is what most events of a state say.
var inState = &eventhub.StatePart{}

// gap reads a gap from the first number on.
func (s *scanner) gap(into *eventhub.Delivery) {
	into.Gap = &eventhub.Gap{After: s.number()}
	s.expect(gapFirst)
	into.Gap.First = s.number()
	if s.has(gapCompacted) {
		into.Gap.Compacted = s.number()
	}
	if s.has(gapTombstones) {
		into.Gap.Tombstones = s.number()
	}
	s.expect(`}`)
}

// readEvents is the strict reader of an EVENTS.
func (d *HubDecoder) readEvents(f *HubFrame) error {
	if err := d.readSubscription(f); err != nil {
		return err
	}
	if absent(d.m.events) || d.m.events[0] != '[' {
		return missing("events")
	}
	d.deliveries = d.deliveries[:0]
	for i, entry := range eachElement(d.m.events) {
		if entry[0] != '{' {
			return wrongType("events["+strconv.Itoa(i)+"]", entry, "an object")
		}
		var event, context []byte
		for name, value := range eachMember(entry) {
			switch string(name) {
			case "event":
				event = value
			case "ctx":
				context = value
			}
		}
		if absent(event) || event[0] != '{' {
			return within("events", i, missing("event"))
		}
		one := eventhub.Delivery{Attempt: 1, Record: event}
		if err := d.readContext(f, &one, context); err != nil {
			return within("events", i, err)
		}
		d.deliveries = append(d.deliveries, one)
	}
	if len(d.deliveries) > 0 {
		f.Deliveries = d.deliveries
	}
	return d.setEvents(d.deliveries)
}

// plainReceipts reads the lists of a batch's OK from the first id on.
func (d *HubDecoder) plainReceipts(s *scanner, f *HubFrame) {
	ids := *s
	n := 0
	for more := true; more && !s.failed; more = s.has(`,`) {
		s.text()
		n++
	}
	if s.failed || len(s.rest) == 0 || s.rest[0] != ']' {
		s.failed = true
		return
	}
	// One string for all ids: they are short, and go one way.
	quoted := string(ids.rest[:len(ids.rest)-len(s.rest)])
	rs := d.receipts[:0]
	for range n {
		size := len(ids.text())
		rs = append(rs, eventhub.Receipt{ID: quoted[1 : 1+size]})
		quoted = quoted[min(size+3, len(quoted)):] // the quotes and the comma
		ids.has(`,`)
	}
	d.receipts, f.Receipts = rs, rs
	s.expect(`],"offsets":[`)
	s.numbers(n, func(i int, v uint64) { rs[i].Offset = v })
	if s.has(`,"deliver_at":[`) {
		s.numbers(n, func(i int, v uint64) { rs[i].DeliverAt = timeOf(int64(v)) })
	}
	if s.has(`,"duplicates":[`) {
		s.indexes(n, func(i int) { rs[i].Duplicate = true })
	}
}

// numbers steps over a list of n numbers and its end.
func (s *scanner) numbers(n int, set func(i int, v uint64)) {
	for i := range n {
		if i > 0 {
			s.expect(`,`)
		}
		set(i, s.number())
	}
	s.expect(`]`)
}

// indexes steps over a list of indexes below n and its end.
func (s *scanner) indexes(n int, set func(i int)) {
	for more := true; more; more = s.has(`,`) {
		i := s.number()
		if s.failed || i >= uint64(n) {
			s.failed = true
			return
		}
		set(int(i))
	}
	s.expect(`]`)
}

// readReceipts is the strict reader of a batch's lists.
func (d *HubDecoder) readReceipts(f *HubFrame) error {
	v, m := &d.values, &d.m
	if m.ids[0] != '[' {
		return wrongType("ids", m.ids, "an array of strings")
	}
	d.receipts = d.receipts[:0]
	for i, value := range eachElement(m.ids) {
		text, ok := v.unquote(value)
		if !ok {
			return wrongType("ids["+strconv.Itoa(i)+"]", value, "a string")
		}
		d.receipts = append(d.receipts, eventhub.Receipt{ID: string(text)})
	}
	rs := d.receipts
	if len(rs) > 0 {
		f.Receipts = rs
	}
	if err := readCardinals("offsets", m.offsets, len(rs), func(i int, n uint64) { rs[i].Offset = n }); err != nil {
		return err
	}
	if !absent(m.deliverAt) {
		err := readCardinals("deliver_at", m.deliverAt, len(rs), func(i int, n uint64) { rs[i].DeliverAt = timeOf(int64(n)) })
		if err != nil {
			return err
		}
	}
	return readIndexes("duplicates", m.duplicates, len(rs), func(i int) { rs[i].Duplicate = true })
}

// readCardinals reads a list of exactly n numbers.
func readCardinals(name string, array []byte, n int, set func(i int, v uint64)) error {
	if absent(array) || array[0] != '[' {
		return missing(name)
	}
	count := 0
	for i, value := range eachElement(array) {
		var v uint64
		if absent(value) {
			return wrongType(name+"["+strconv.Itoa(i)+"]", value, "an integer")
		}
		if err := readCardinal(name+"["+strconv.Itoa(i)+"]", value, &v); err != nil {
			return err
		}
		if count++; count > n {
			break
		}
		set(i, v)
	}
	if count != n {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is not as long as ids, which has %d entries", name, n)
	}
	return nil
}

// readIndexes reads a list of indexes below n, where there is one.
func readIndexes(name string, array []byte, n int, set func(i int)) error {
	if absent(array) {
		return nil
	}
	if array[0] != '[' {
		return wrongType(name, array, "an array of integers")
	}
	for i, value := range eachElement(array) {
		index := uint64(n)
		if err := readCardinal(name+"["+strconv.Itoa(i)+"]", value, &index); err != nil {
			return err
		}
		if index >= uint64(n) {
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s[%d] is %.24s; there are %d entries", name, i, value, n)
		}
		set(int(index))
	}
	return nil
}
