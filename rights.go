package eventhub

// TopicRule allows or denies topics: those that one of its patterns matches, and those that
// hold the dead letters or the snapshots of such a topic.
type TopicRule struct {
	Deny   bool
	Topics []Pattern
}

// Match reports whether the rule is about the topic, a valid name.
func (r *TopicRule) Match(topic string) bool {
	for {
		for i := range r.Topics {
			if r.Topics[i].Match(topic) {
				return true
			}
		}
		source := SourceTopic(topic)
		if source == topic {
			return false
		}
		topic = source
	}
}

// TopicRules say which of the topics that a pattern matches are allowed: the first rule that
// is about a topic decides, and what no rule is about is denied. A nil *TopicRules allows all.
// They do not change, and are safe for concurrent use.
type TopicRules struct {
	Rules []TopicRule
}

// Allow reports whether the topic, a valid name, is allowed.
func (r *TopicRules) Allow(topic string) bool {
	if r == nil {
		return true
	}
	for i := range r.Rules {
		if r.Rules[i].Match(topic) {
			return !r.Rules[i].Deny
		}
	}
	return false
}
