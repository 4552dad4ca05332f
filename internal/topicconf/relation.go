package topicconf

import (
	"slices"
	"strings"

	"eventhub"
)

// Relation says how the topics of two patterns are related.
type Relation int

// The relations of a pattern p to another one, q.
const (
	Disjoint Relation = iota // no topic matches both
	Inside                   // every topic of p is one of q: p is more exact
	Around                   // every topic of q is one of p: q is more exact
	Same                     // the same topics
	Crossing                 // some topics match both, and each has others: they tie over some topic
)

// Relate compares two patterns by what they match, as eventhub.Pattern.Match does. It follows
// both patterns at once over all kinds of topics, from the last segment to the first, since
// what comes after a segment decides whether it is reserved.
//
// It costs a step for each way in which both patterns can be entered, some dozens for usual
// patterns. Where there are more than mostWays it gives up: the patterns count as crossing.
func Relate(p, q eventhub.Pattern) Relation {
	a, b := strings.Split(p.String(), "."), strings.Split(q.String(), ".")
	if apart(a, b) {
		return Disjoint
	}
	slices.Reverse(a)
	slices.Reverse(b)
	if apart(a, b) {
		return Disjoint
	}
	alphabet := alphabetOf(a, b)
	var both, onlyA, onlyB bool
	level := map[ways]bool{{enter(a, 1), enter(b, 1), true}: true}
	seen := make(map[ways]bool)
	for range eventhub.MaxTopicSegments {
		next := make(map[ways]bool)
		for at := range level {
			for _, segment := range alphabet {
				first := at.step(a, b, segment, segment == "system")
				inA, inB := first.a&(1<<len(a)) != 0, first.b&(1<<len(b)) != 0
				both, onlyA, onlyB = both || inA && inB, onlyA || inA && !inB, onlyB || !inA && inB
				more := at.step(a, b, segment, at.tail && isTail(segment))
				if (more.a != 0 || more.b != 0) && !seen[more] {
					seen[more], next[more] = true, true
				}
			}
			if both && onlyA && onlyB || len(seen) > mostWays {
				return Crossing
			}
		}
		level = next
	}
	switch {
	case !both:
		return Disjoint
	case onlyA && onlyB:
		return Crossing
	case onlyA:
		return Around
	case onlyB:
		return Inside
	}
	return Same
}

// mostWays bounds what two patterns cost that somebody made to be expensive: wildcards in
// front of what ** follows can match in exponentially many ways. Whoever asks may be the
// committer.
const mostWays = 1 << 12

// ways are how far two patterns, read from the end, can be after the same segments: bit i
// says that i segments of the pattern have matched them. tail says that these were segments
// with which the name of a topic of the hub ends, and no other.
type ways struct {
	a, b uint32
	tail bool
}

func (w ways) step(a, b []string, segment string, reserved bool) ways {
	return ways{advance(a, w.a, segment, reserved), advance(b, w.b, segment, reserved), w.tail && isTail(segment)}
}

func isTail(segment string) bool { return segment == "dlq" || segment == "snapshot" }

func isWildcard(segment string) bool { return strings.HasPrefix(segment, "*") }

// apart reports whether two patterns have different names in the same place, as far as there
// is no ** in front of it. Most pairs are settled by that.
func apart(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] == "**" || b[i] == "**" {
			return false
		}
		if a[i] != b[i] && !isWildcard(a[i]) && !isWildcard(b[i]) {
			return true
		}
	}
	return false
}

// alphabetOf returns every kind of segment that makes a difference: those that one of the
// patterns names, those that may be reserved, and one that is none of these.
func alphabetOf(a, b []string) []string {
	alphabet := []string{"system", "dlq", "snapshot", "\x00"}
	for _, s := range slices.Concat(a, b) {
		if !isWildcard(s) && !slices.Contains(alphabet, s) {
			alphabet = append(alphabet, s)
		}
	}
	return alphabet
}

// advance follows all ways of a pattern over one segment.
func advance(pattern []string, at uint32, segment string, reserved bool) (next uint32) {
	for i, s := range pattern {
		switch {
		case at&(1<<i) == 0:
		case s == "**":
			if !reserved {
				next |= 1 << i
			}
		case s == segment || s == "*" && !reserved:
			next |= 1 << (i + 1)
		}
	}
	return enter(pattern, next)
}

// enter adds the ways on which ** matches no segment.
func enter(pattern []string, at uint32) uint32 {
	for i, s := range pattern {
		if at&(1<<i) != 0 && s == "**" {
			at |= 1 << (i + 1)
		}
	}
	return at
}
