package eventhub

import "errors"

// ExpectKind says what a condition of a publish is about.
type ExpectKind uint8

// The conditions. The zero value is none.
const (
	ExpectNothing     ExpectKind = iota
	ExpectKeyOffset              // about the newest event of the event's key
	ExpectTopicOffset            // about the last offset of its topic
)

// Expect is a condition under which an event is published. Where the offset is another one
// now, the error has CodeConflict and the present one (see [PresentOffset]), and nothing of the
// publish is done. [IfKeyOffset] and [IfTopicOffset] make one; the zero value asks for nothing.
//
// A condition is about the topic as it is before the publish: the other events of a batch do
// not count. An event whose id is in its topic already is a duplicate, whatever it expects.
type Expect struct {
	Kind   ExpectKind
	Offset uint64
}

// IfKeyOffset publishes the event if the newest event of its key is at that offset, 0 for a key
// without one. Events that were removed do not count; the tombstone of a key does, as long as
// it is there.
func IfKeyOffset(offset uint64) Expect { return Expect{Kind: ExpectKeyOffset, Offset: offset} }

// IfTopicOffset publishes the event if the last offset of its topic, its head, is that one, 0
// for a topic that never had an event. It stays where it is when events are removed.
func IfTopicOffset(offset uint64) Expect { return Expect{Kind: ExpectTopicOffset, Offset: offset} }

// IsZero reports whether nothing is asked for.
func (x Expect) IsZero() bool { return x.Kind == ExpectNothing }

// String returns the name of the condition on the wire, "" for none.
func (x Expect) String() string {
	switch x.Kind {
	case ExpectKeyOffset:
		return "key_offset"
	case ExpectTopicOffset:
		return "topic_offset"
	}
	return ""
}

// ExpectOf makes the condition of the two members of an expect, of which one is given. The error
// has CodeBadRequest.
func ExpectOf(keyOffset, topicOffset *uint64) (Expect, error) {
	switch {
	case keyOffset != nil && topicOffset != nil:
		return Expect{}, Errorf(CodeBadRequest, "expect: both key_offset and topic_offset are given; one of them is expected")
	case keyOffset != nil:
		return IfKeyOffset(*keyOffset), nil
	case topicOffset != nil:
		return IfTopicOffset(*topicOffset), nil
	}
	return Expect{}, Errorf(CodeBadRequest, "expect is empty; key_offset or topic_offset is expected")
}

// checkExpect refuses a condition that cannot be asked of the event; the error has
// CodeBadRequest.
func (e *Event) checkExpect() error {
	switch x := e.Expect; {
	case x.Kind == ExpectNothing:
		return nil
	case x.Kind > ExpectTopicOffset:
		return Errorf(CodeBadRequest, "expect has the kind %d, which is none", x.Kind)
	case x.Offset > MaxOffset:
		return Errorf(CodeBadRequest, "expect: %s is %d; at most %d is allowed", x, x.Offset, uint64(MaxOffset))
	case x.Kind == ExpectKeyOffset && e.Key == "":
		return Errorf(CodeBadRequest, "expect: key_offset is given, and the event has no key")
	case e.Delay != 0 || !e.DeliverAt.IsZero():
		return Errorf(CodeBadRequest, "expect: %s is given for a delayed event; what holds now need not hold then", x)
	}
	return nil
}

// PresentOffset returns the offset that an error with CodeConflict says there is instead of the
// expected one. ok is false for any other error.
func PresentOffset(err error) (offset uint64, ok bool) {
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeConflict || e.Present == nil {
		return 0, false
	}
	return *e.Present, true
}
