package wire

import (
	"strconv"
	"time"

	"eventhub"
	"eventhub/internal/naming"
)

// readSubscribe fills req.Subscribe: the options as given, the defaults of the
// others, all of it in range. A live tail is one with AutoAck.
func (d *Decoder) readSubscribe(req *Request) error {
	if err := d.readSubscription(req); err != nil {
		return err
	}
	opts := SubscribeOptions{GroupOptions: eventhub.GroupOptions{Topic: req.Topic, Group: req.Group}}
	if err := d.readSubscribeOpts(&opts, &req.Batch); err != nil {
		return err
	}
	if opts.IsTail() {
		if err := d.refuseGroupOptions(&opts); err != nil {
			return err
		}
		opts.AutoAck = true
	}
	opts = opts.WithDefaults()
	if err := opts.Validate(); err != nil {
		return err
	}
	req.Subscribe = opts
	return nil
}

func (d *Decoder) readSubscribeOpts(o *SubscribeOptions, batch *bool) error {
	if !absent(d.m.opts) && d.m.opts[0] != '{' {
		return wrongType("opts", d.m.opts, "an object")
	}
	if err := renameAll(d.opts); err != nil {
		return err
	}
	var start startOpts
	manualAck, create := true, true
	for _, option := range d.opts {
		var err error
		value := option.value
		switch string(option.name) {
		case "from":
			start.hasFrom = !absent(value)
			err = d.readText("from", value, &start.from)
			start.from = naming.Canonical(start.from)
		case "ts":
			start.hasTS = !absent(value)
			err = readInteger("ts", value, &start.ts)
		case "after_id":
			start.hasAfterID = !absent(value)
			err = d.readText("after_id", value, &start.afterID)
		case "offset":
			start.hasOffset = !absent(value)
			err = readInteger("offset", value, &start.offset)
		case "batch_size":
			err = readCount("batch_size", value, &o.BatchSize)
		case "max_in_flight":
			err = readCount("max_in_flight", value, &o.MaxInFlight)
		case "ack_timeout_ms":
			err = readMillis("ack_timeout_ms", value, 1, &o.AckTimeout)
		case "max_attempts":
			err = readCount("max_attempts", value, &o.MaxAttempts)
		case "backoff":
			err = d.readBackoff(value, &o.Backoff)
		case "manual_ack":
			err = readBool("manual_ack", value, &manualAck)
		case "ordering":
			err = d.readOrdering(value, &o.Ordering)
		case "topics":
			err = d.readTexts("topics", value, eventhub.MaxPatterns, eventhub.CodeBadRequest, &o.Topics)
		case "filter":
			err = d.readFilter(value, &o.Filter)
		case "batch":
			err = readBool("batch", value, batch)
		case "conflate":
			err = readConflate(value, &o.Conflate)
		case "places":
			err = d.readPlaces(value, &o.Places)
		case "known":
			err = d.readKept("known", value, &o.Known)
		case "snapshot":
			err = d.readKept("snapshot", value, &o.Snapshot)
		case "create":
			err = readBool("create", value, &create)
		default:
			err = unknownOption("opts", option.name, subscribeOptions)
		}
		if err != nil {
			return err
		}
	}
	o.AutoAck, o.NoCreate = !manualAck, !create
	return start.resolve(&o.Start)
}

// refuseGroupOptions names the option that asks something of a live tail which
// only groups have.
func (d *Decoder) refuseGroupOptions(o *SubscribeOptions) error {
	for _, option := range d.opts {
		refused := false
		switch string(option.name) {
		case "max_attempts", "backoff", "ack_timeout_ms":
			refused = !absent(option.value)
		case "manual_ack":
			refused = !absent(option.value) && !o.AutoAck
		}
		if refused {
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s is %.48s; a SUBSCRIBE without group has no leases and no acks", option.name, option.value)
		}
	}
	return nil
}

// readFilter reads an object of conditions, or a string, which is an expression.
// An empty object is a filter that lets everything pass; empty texts are refused,
// because in the domain they ask for nothing.
func (d *Decoder) readFilter(value []byte, into **eventhub.Filter) error {
	if absent(value) {
		return nil
	}
	f := new(eventhub.Filter)
	*into = f
	if value[0] == '"' {
		return d.readCondition("filter", value, &f.CEL)
	}
	if value[0] != '{' {
		return wrongType("filter", value, "an object or a string")
	}
	for name, condition := range eachMember(value) {
		var err error
		switch string(name) {
		case "key":
			err = d.readCondition("filter.key", condition, &f.Key)
		case "cel":
			err = d.readCondition("filter.cel", condition, &f.CEL)
		case "headers":
			err = inFilter(d.readHeaders(condition, &f.Headers))
		case "tags":
			err = d.readTexts("filter.tags", condition, eventhub.MaxTags, eventhub.CodeBadRequest, &f.Tags)
		default:
			err = unknownOption("filter", name, filterMembers)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Decoder) readCondition(name string, value []byte, into *string) error {
	if err := d.readText(name, value, into); err != nil || absent(value) || *into != "" {
		return err
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s is empty; leave it out to ask for nothing", name)
}

// inFilter says that the error is about a filter, not about an event.
func inFilter(err error) error {
	if err == nil {
		return nil
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "filter.%s", eventhub.AsError(err).Message)
}

func readConflate(value []byte, into *time.Duration) error {
	if absent(value) {
		return nil
	}
	if value[0] != '{' {
		return wrongType("conflate", value, "an object")
	}
	for name, every := range eachMember(value) {
		if string(name) != "every_ms" {
			return unknownOption("conflate", name, conflateMembers)
		}
		if err := readMillis("conflate.every_ms", every, 1, into); err != nil {
			return err
		}
	}
	if *into == 0 {
		return missing("conflate.every_ms")
	}
	return nil
}

// readKept reads a text that the hub gave to have it back, whose judgement is left to the hub.
func (d *Decoder) readKept(name string, value []byte, into *string) error {
	if err := d.readText(name, value, into); err != nil || absent(value) || *into != "" {
		return err
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s is empty; leave it out to ask for nothing", name)
}

// readPlaces leaves the judgement of names to SubscribeOptions.Validate.
func (d *Decoder) readPlaces(value []byte, into *[]eventhub.Place) error {
	if absent(value) {
		return nil
	}
	if value[0] != '[' {
		return wrongType("places", value, "an array of objects")
	}
	for i, element := range eachElement(value) {
		name := "places[" + strconv.Itoa(i) + "]"
		if element[0] != '{' {
			return wrongType(name, element, "an object")
		}
		if i == eventhub.MaxPlaces {
			return eventhub.Errorf(eventhub.CodeBadRequest, "places has more than %d entries", eventhub.MaxPlaces)
		}
		var p eventhub.Place
		if err := d.readPlace(name, element, &p); err != nil {
			return err
		}
		*into = append(*into, p)
	}
	return nil
}

func (d *Decoder) readPlace(name string, object []byte, into *eventhub.Place) error {
	var offset int64
	hasOffset := false
	for member, value := range eachMember(object) {
		var err error
		switch string(member) {
		case "topic":
			err = d.readText(name+".topic", value, &into.Topic)
		case "offset":
			hasOffset = !absent(value)
			err = readInteger(name+".offset", value, &offset)
		case "ts":
			err = readInteger(name+".ts", value, &into.TS)
		default:
			err = unknownOption(name, member, placeMembers)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case into.Topic == "":
		return missing(name + ".topic")
	case !hasOffset:
		return missing(name + ".offset")
	case offset < 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s.offset is %d; offsets are not negative", name, offset)
	}
	into.Offset = uint64(offset)
	return nil
}

// readOrdering leaves the judgement of names to SubscribeOptions.Validate, except
// the empty one, which means something there.
func (d *Decoder) readOrdering(value []byte, into *string) error {
	if err := d.readText("ordering", value, into); err != nil || absent(value) || *into != "" {
		return err
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, `ordering is ""; none and key are allowed`)
}

func (d *Decoder) readBackoff(value []byte, into *eventhub.Backoff) error {
	if absent(value) {
		return nil
	}
	if value[0] != '{' {
		return wrongType("backoff", value, "an object")
	}
	var bounds []option
	for name, bound := range eachMember(value) {
		bounds = append(bounds, option{name, bound})
	}
	if err := renameAll(bounds); err != nil {
		return err
	}
	for _, bound := range bounds {
		var err error
		switch string(bound.name) {
		case "min_ms":
			err = readMillis("backoff.min_ms", bound.value, 1, &into.Min)
		case "max_ms":
			err = readMillis("backoff.max_ms", bound.value, 1, &into.Max)
		default:
			err = unknownOption("backoff", bound.name, backoffMembers)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startOpts are the options that say where a new group begins. Each of ts,
// after_id and offset belongs to the from of the same name.
type startOpts struct {
	from, afterID                         string
	ts, offset                            int64
	hasFrom, hasTS, hasAfterID, hasOffset bool
}

func (s *startOpts) resolve(into *eventhub.Start) error {
	switch {
	case !s.hasFrom || s.from == "latest":
		into.Kind = eventhub.StartLatest
	case s.from == "earliest":
		into.Kind = eventhub.StartEarliest
	case s.from == "ts":
		into.Kind, into.TS = eventhub.StartTime, s.ts
	case s.from == "snapshot":
		into.Kind = eventhub.StartSnapshot
	case s.from == "after_id":
		into.Kind, into.AfterID = eventhub.StartAfterID, s.afterID
	case s.from == "offset":
		if s.offset < 0 || s.offset > eventhub.MaxOffset {
			return outOfRange("offset", s.offset, 0, eventhub.MaxOffset)
		}
		into.Kind, into.Offset = eventhub.StartOffset, uint64(s.offset)
	default:
		return eventhub.Errorf(eventhub.CodeBadRequest, "from is %.48q; latest, earliest, ts, after_id, offset and snapshot are allowed%s", s.from, naming.DidYouMean(s.from, StartNames))
	}
	for _, place := range []struct {
		name  string
		given bool
	}{{"ts", s.hasTS}, {"after_id", s.hasAfterID}, {"offset", s.hasOffset}} {
		wanted := s.hasFrom && s.from == place.name
		switch {
		case wanted && !place.given:
			return eventhub.Errorf(eventhub.CodeBadRequest, "from is %q but %s is missing", s.from, place.name)
		case place.given && !s.hasFrom:
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given but from is missing; %q is expected", place.name, place.name)
		case place.given && !wanted:
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given but from is %q; %q is expected", place.name, s.from, place.name)
		}
	}
	return nil
}
