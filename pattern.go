package eventhub

import "strings"

// Wildcards of a pattern, each a whole segment.
const (
	anySegment  = "*"  // one segment
	anySegments = "**" // none, one or more
)

// Pattern is a compiled topic pattern: segments joined by dots. Anywhere in it *
// matches one segment, and ** any number of them, none too. A
// topic's name is the pattern of that topic alone.
//
// The segments that make a topic the hub's own (system in front; dlq and
// snapshot at the end) are matched only where the pattern spells them out: ** is
// every topic but those.
//
// The same matcher serves subscriptions, rights and limits. A Pattern is
// immutable; the zero value matches nothing.
type Pattern struct {
	text     string
	segments []string
}

// IsPattern reports whether text has a wildcard, so that it may name more than
// one topic.
func IsPattern(text string) bool { return strings.Contains(text, anySegment) }

// ParsePattern compiles a pattern of at most MaxTopicBytes and MaxTopicSegments.
// The error has CodeBadTopic and names the offending value.
func ParsePattern(text string) (Pattern, error) {
	if !IsPattern(text) {
		if err := ValidateStoredTopic(text); err != nil {
			return Pattern{}, err
		}
		return Pattern{text, strings.Split(text, ".")}, nil
	}
	if len(text) > MaxTopicBytes {
		return Pattern{}, Errorf(CodeBadTopic, "pattern %s has %d bytes; at most %d are allowed", quote(text), len(text), MaxTopicBytes)
	}
	segments := strings.Split(text, ".")
	if len(segments) > MaxTopicSegments {
		return Pattern{}, Errorf(CodeBadTopic, "pattern %s has %d segments; at most %d are allowed", quote(text), len(segments), MaxTopicSegments)
	}
	for i, s := range segments {
		if s == anySegments && i > 0 && segments[i-1] == anySegments {
			return Pattern{}, Errorf(CodeBadTopic, "pattern %s has ** twice in a row; once says the same", quote(text))
		}
		if err := checkPatternSegment(text, s); err != nil {
			return Pattern{}, err
		}
	}
	return Pattern{text, segments}, nil
}

func checkPatternSegment(text, s string) error {
	if s == "" {
		return Errorf(CodeBadTopic, "pattern %s has an empty segment", quote(text))
	}
	if s == anySegment || s == anySegments {
		return nil
	}
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '*':
			return Errorf(CodeBadTopic, "pattern %s has %s; * and ** match whole segments", quote(text), quote(s))
		case !isNameByte(s[i]):
			return Errorf(CodeBadTopic, "pattern %s has %s; segments hold A–Z a–z 0–9 _ -, or are * or **", quote(text), quote(runeAt(s, i)))
		}
	}
	return nil
}

// String returns the pattern as it was written.
func (p Pattern) String() string { return p.text }

// Match reports whether topic, a valid name, is one of the pattern's. It does
// not allocate, and takes time proportional to the topic's segments.
func (p Pattern) Match(topic string) bool {
	if len(p.segments) == 0 {
		return false
	}
	// Bit i of at: the pattern's first i segments match what was read. There are
	// at most MaxTopicSegments of them and two suffixes, so all ways are followed
	// at once.
	at := p.skipAny(1)
	for i, rest, more := 0, topic, true; more && at != 0; i++ {
		var segment string
		segment, rest, more = strings.Cut(rest, ".")
		at = p.step(at, segment, isReserved(segment, i == 0, rest, more))
	}
	return at&(1<<len(p.segments)) != 0
}

// step follows all ways over one segment of the topic.
func (p Pattern) step(at uint32, segment string, reserved bool) (next uint32) {
	for i, s := range p.segments {
		switch {
		case at&(1<<i) == 0:
		case s == anySegments:
			if !reserved {
				next |= 1 << i
			}
		case s == segment || s == anySegment && !reserved:
			next |= 1 << (i + 1)
		}
	}
	return p.skipAny(next)
}

// skipAny adds the ways on which ** matches no segment.
func (p Pattern) skipAny(at uint32) uint32 {
	for i, s := range p.segments {
		if at&(1<<i) != 0 && s == anySegments {
			at |= 1 << (i + 1)
		}
	}
	return at
}

// isReserved reports whether a segment is one of those that make a topic the
// hub's own; rest is what comes after it.
func isReserved(segment string, first bool, rest string, more bool) bool {
	switch segment {
	case systemSegment:
		return first
	case deadLetterSuffix[1:], snapshotSuffix[1:]:
		// Also if another such suffix follows: in the dead letters of a
		// snapshot topic, or the snapshots of a dead-letter topic.
		for more && (rest == deadLetterSuffix[1:] || rest == snapshotSuffix[1:] ||
			strings.HasPrefix(rest, deadLetterSuffix[1:]+".") || strings.HasPrefix(rest, snapshotSuffix[1:]+".")) {
			_, rest, more = strings.Cut(rest, ".")
		}
		return !first && !more
	}
	return false
}
