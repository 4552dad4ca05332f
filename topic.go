package eventhub

import "strings"

// Limits on names, in bytes unless said otherwise.
const (
	MaxTopicBytes    = 240
	MaxTopicSegments = 16
	MaxGroupBytes    = 128
)

const (
	deadLetterSuffix = ".dlq"
	snapshotSuffix   = ".snapshot"
	systemSegment    = "system"
)

// ValidateTopic checks the name of one topic: 1 to 16 segments of
// A–Z a–z 0–9 _ - joined by dots, at most 240 bytes. The error has
// CodeBadTopic and names the offending value.
func ValidateTopic(topic string) error {
	if topic == "" {
		return Errorf(CodeBadTopic, "topic is empty")
	}
	if len(topic) > MaxTopicBytes {
		return Errorf(CodeBadTopic, "topic %s has %d bytes; at most %d are allowed", quote(topic), len(topic), MaxTopicBytes)
	}
	return checkSegments(topic)
}

// ValidateStoredTopic is ValidateTopic for names that the hub derives: it
// leaves room for the suffix of a dead-letter or snapshot topic.
func ValidateStoredTopic(topic string) error {
	base := strings.TrimSuffix(strings.TrimSuffix(topic, deadLetterSuffix), snapshotSuffix)
	return ValidateTopic(base)
}

func checkSegments(topic string) error {
	segments, length := 1, 0
	for i := 0; i < len(topic); i++ {
		c := topic[i]
		switch {
		case c == '.':
			if length == 0 {
				return Errorf(CodeBadTopic, "topic %s has an empty segment", quote(topic))
			}
			segments++
			length = 0
		case isNameByte(c):
			length++
		default:
			return Errorf(CodeBadTopic, "topic %s has %s; segments hold A–Z a–z 0–9 _ -", quote(topic), quote(runeAt(topic, i)))
		}
	}
	if length == 0 {
		return Errorf(CodeBadTopic, "topic %s has an empty segment", quote(topic))
	}
	if segments > MaxTopicSegments {
		return Errorf(CodeBadTopic, "topic %s has %d segments; at most %d are allowed", quote(topic), segments, MaxTopicSegments)
	}
	return nil
}

// HubOnlyTopic reports whether only the hub itself publishes to the topic:
// those under system, dead-letter topics and snapshot topics.
func HubOnlyTopic(topic string) bool {
	return topic == systemSegment || strings.HasPrefix(topic, systemSegment+".") ||
		IsDeadLetterTopic(topic) || strings.HasSuffix(topic, snapshotSuffix)
}

// DeadLetterTopic returns the topic that holds the dead letters of topic.
func DeadLetterTopic(topic string) string { return topic + deadLetterSuffix }

// SnapshotTopic returns the topic that holds the snapshots of topic.
func SnapshotTopic(topic string) string { return topic + snapshotSuffix }

// IsDeadLetterTopic reports whether topic holds dead letters.
func IsDeadLetterTopic(topic string) bool { return strings.HasSuffix(topic, deadLetterSuffix) }

// SourceTopic returns the topic that a dead-letter or a snapshot topic is made of, which may
// be such a topic itself, and any other topic as it is.
func SourceTopic(topic string) string {
	if source, ok := strings.CutSuffix(topic, deadLetterSuffix); ok {
		return source
	}
	return strings.TrimSuffix(topic, snapshotSuffix)
}

// ValidateGroup checks the name of a group: 1 to 128 bytes of
// A–Z a–z 0–9 . _ : -. The error has CodeBadRequest.
func ValidateGroup(group string) error {
	if group == "" {
		return Errorf(CodeBadRequest, "group is empty")
	}
	if len(group) > MaxGroupBytes {
		return Errorf(CodeBadRequest, "group %s has %d bytes; at most %d are allowed", quote(group), len(group), MaxGroupBytes)
	}
	for i := 0; i < len(group); i++ {
		if !isIDByte(group[i]) {
			return Errorf(CodeBadRequest, "group %s has %s; A–Z a–z 0–9 . _ : - are allowed", quote(group), quote(runeAt(group, i)))
		}
	}
	return nil
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// isIDByte reports whether c is allowed in an event id or a group name.
func isIDByte(c byte) bool { return isNameByte(c) || c == '.' || c == ':' }
