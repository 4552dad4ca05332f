package eventhub

import "strings"

// Wildcards of a pattern, each a whole segment.
const (
	anySegment  = "*"  // one segment
	anySegments = "**" // none, one or more
)

// maxPatternSegments is how many segments a pattern has at most: it may be the name of the dead letters of snapshots.
const maxPatternSegments = MaxTopicSegments + 2

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

// Overlaps reports whether some topic that may exist is one of both patterns'. It takes time proportional to the product
// of the segments.
func (p Pattern) Overlaps(q Pattern) bool {
	// A place in both, and what the topic ends with so far. Each topic of both is a way from the first place to a last one.
	type place struct {
		i, j int
		end  ending
	}
	var seen [maxPatternSegments + 1][maxPatternSegments + 1][endings]bool
	ways := []place{{}}
	for len(ways) > 0 {
		at := ways[len(ways)-1]
		ways = ways[:len(ways)-1]
		if seen[at.i][at.j][at.end] {
			continue
		}
		seen[at.i][at.j][at.end] = true
		if at.i == len(p.segments) && at.j == len(q.segments) {
			if at.end == endsSomehow || at.end == endsReserved {
				return true
			}
			continue
		}
		if at.i < len(p.segments) && p.segments[at.i] == anySegments {
			ways = append(ways, place{at.i + 1, at.j, at.end})
		}
		if at.j < len(q.segments) && q.segments[at.j] == anySegments {
			ways = append(ways, place{at.i, at.j + 1, at.end})
		}
		if at.i == len(p.segments) || at.j == len(q.segments) {
			continue
		}
		a, b := p.segments[at.i], q.segments[at.j]
		next := place{at.i + 1, at.j + 1, endsSomehow}
		if a == anySegments {
			next.i--
		}
		if b == anySegments {
			next.j--
		}
		for _, next.end = range at.end.after(a, b) {
			ways = append(ways, next)
		}
	}
	return false
}

// ending is what the segments of a topic that was read in part end with.
type ending int

const (
	endsNowhere  ending = iota // there are none
	endsSomehow                // a segment that is not reserved, or system in front
	endsOpen                   // dlq or snapshot, which is not reserved because of what is to follow
	endsReserved               // dlq or snapshot, which is reserved: nothing else follows

	endings = iota
)

// after returns what a topic may end with after one more segment, which a and b match both.
func (e ending) after(a, b string) []ending {
	isAny := func(s string) bool { return s == anySegment || s == anySegments }
	text, both := a, a == b
	switch {
	case isAny(a) && isAny(b):
		text = ""
	case isAny(a):
		text = b
	case !isAny(b) && !both:
		return nil
	}
	switch suffix := text == deadLetterSuffix[1:] || text == snapshotSuffix[1:]; {
	case e == endsReserved && (!suffix || !both):
		return nil
	case e == endsReserved:
		return []ending{endsReserved}
	case e == endsNowhere && text == systemSegment && !both:
		return nil
	case e == endsNowhere || !suffix:
		return []ending{endsSomehow}
	case both && e == endsSomehow:
		return []ending{endsOpen, endsReserved}
	}
	return []ending{endsOpen}
}
