package policy

import (
	"slices"
	"strings"

	"eventhub"
	"eventhub/internal/topicconf"
)

// What is done with all topics of a pattern, or with the hub as a whole, is not decided topic
// by topic. The answers here are on the safe side: where two patterns are too intricate to be
// compared, more is denied.

// Covers reports whether the action is allowed on every topic that the pattern can match.
func (p *Policy) Covers(a Action, of eventhub.Pattern, group string) bool {
	if p == nil || p.full {
		return p != nil
	}
	for i := range p.rules {
		r := &p.rules[i]
		switch {
		case !r.isAbout(a, group):
		case r.topics.Deny && r.touches(of):
			return false
		case !r.topics.Deny && r.covers(of):
			return true
		}
	}
	return false
}

// Touches reports whether some rule allows the action on a topic that the pattern can match,
// and none before it denies the action on all of them. Several such rules together may deny it
// all the same.
func (p *Policy) Touches(a Action, of eventhub.Pattern, group string) bool {
	if p == nil || p.full {
		return p != nil
	}
	for i := range p.rules {
		r := &p.rules[i]
		switch {
		case !r.isAbout(a, group):
		case r.topics.Deny && r.covers(of):
			return false
		case !r.topics.Deny && r.touches(of):
			return true
		}
	}
	return false
}

// Everywhere reports whether the action is allowed on the hub as a whole: on ** by a rule
// that no other one about it precedes.
func (p *Policy) Everywhere(a Action) bool {
	if p == nil || p.full {
		return p != nil
	}
	i := slices.IndexFunc(p.rules, func(r rule) bool { return r.isAbout(a, "") && (r.topics.Deny || r.isEverywhere()) })
	return i >= 0 && !p.rules[i].topics.Deny
}

// Somewhere reports whether some rule allows the action on topics that no rule before it denies all
// of, of subscribe to some group or to tails. Several rules together may deny it all the same.
func (p *Policy) Somewhere(a Action) bool {
	if p == nil || p.full {
		return p != nil
	}
	for i := range p.rules {
		if r := &p.rules[i]; !r.topics.Deny && r.isOf(a) && slices.ContainsFunc(r.topics.Topics, func(of eventhub.Pattern) bool {
			return !slices.ContainsFunc(p.rules[:i], func(before rule) bool {
				return before.topics.Deny && before.isOf(a) && before.isForAllOf(a, r) && before.covers(of)
			})
		}) {
			return true
		}
	}
	return false
}

// Nothing reports whether the policy allows nothing at all.
func (p *Policy) Nothing() bool { return !slices.ContainsFunc(actions, p.Somewhere) }

// isForAllOf reports whether a rule is about every group that another one is about, and about tails
// where that is.
func (r *rule) isForAllOf(a Action, other *rule) bool {
	if a != Subscribe || len(r.groups) == 0 {
		return true
	}
	return len(other.groups) > 0 && (slices.Contains(r.groups, Any) ||
		!slices.ContainsFunc(other.groups, func(g string) bool { return !slices.Contains(r.groups, g) }))
}

// Topics returns which topics of the patterns the action is allowed on, without rules that
// allow none of them; nil: on all, the hub's own too. Topics of no pattern are not allowed by
// it either where the policy does not.
func (p *Policy) Topics(a Action, of []eventhub.Pattern, group string) *eventhub.TopicRules {
	if p.Full() {
		return nil
	}
	allowed := new(eventhub.TopicRules)
	if p == nil {
		return allowed
	}
	last := 0
	for i := range p.rules {
		r := &p.rules[i]
		if !r.isAbout(a, group) || !r.topics.Deny && !slices.ContainsFunc(of, r.touches) {
			continue
		}
		allowed.Rules = append(allowed.Rules, r.topics)
		if !r.topics.Deny {
			last = len(allowed.Rules)
		}
	}
	allowed.Rules = allowed.Rules[:last] // what follows denies what is denied anyway
	return allowed
}

// Within reports whether all topics of the patterns that rules allow are allowed by others too.
func Within(of []eventhub.Pattern, inner, outer *eventhub.TopicRules) bool {
	if outer == nil {
		return true
	}
	others := new(Policy)
	for _, r := range outer.Rules {
		others.rules = append(others.rules, rule{action: Any, topics: r})
	}
	return !slices.ContainsFunc(of, func(p eventhub.Pattern) bool {
		return !others.Covers(Read, p, "") && (inner == nil || !others.keep(p, inner.Rules))
	})
}

// keep reports whether the topics of a pattern that rules allow are allowed.
func (p *Policy) keep(of eventhub.Pattern, inner []eventhub.TopicRule) bool {
	for i := range inner {
		if r := (rule{topics: inner[i]}); r.topics.Deny || !r.touches(of) {
			continue
		}
		for _, allowed := range inner[i].Topics {
			if !p.keepOne(of, allowed, inner[:i]) {
				return false
			}
		}
	}
	return true
}

// keepOne is keep of the topics that one pattern of a rule allows, after other rules: what these
// deny was never allowed by it, and so may be denied here.
func (p *Policy) keepOne(of, allowed eventhub.Pattern, before []eventhub.TopicRule) bool {
	for i := range p.rules {
		r := &p.rules[i]
		if !r.topics.Deny {
			if r.covers(of) || r.covers(allowed) {
				return true
			}
			continue
		}
		for _, denied := range r.topics.Topics {
			one := rule{topics: eventhub.TopicRule{Topics: []eventhub.Pattern{denied}}}
			if one.touches(of) && !slices.ContainsFunc(before, func(b eventhub.TopicRule) bool {
				return b.Deny && (&rule{topics: b}).covers(denied)
			}) {
				return false
			}
		}
	}
	return false
}

// touches reports whether the rule may be about a topic of the pattern.
func (r *rule) touches(of eventhub.Pattern) bool {
	for ok := true; ok; of, ok = sourceOf(of, strings.TrimSuffix(of.String(), ".**")) { // which may match no segment
		if slices.ContainsFunc(r.topics.Topics, func(p eventhub.Pattern) bool { return topicconf.Relate(p, of) != topicconf.Disjoint }) {
			return true
		}
	}
	return false
}

// covers reports whether one pattern of the rule is about all topics of the other pattern.
func (r *rule) covers(of eventhub.Pattern) bool {
	for ok := true; ok; of, ok = sourceOf(of, of.String()) {
		if slices.ContainsFunc(r.topics.Topics, func(p eventhub.Pattern) bool {
			relation := topicconf.Relate(p, of)
			return relation == topicconf.Around || relation == topicconf.Same
		}) {
			return true
		}
	}
	return false
}

// sourceOf returns the pattern of what the topics of a pattern are made of, where these are
// dead letters or snapshots: no wildcard matches such a segment, so the pattern ends with it.
func sourceOf(of eventhub.Pattern, text string) (eventhub.Pattern, bool) {
	source := eventhub.SourceTopic(text)
	if source == text {
		return of, false
	}
	parsed, err := eventhub.ParsePattern(source)
	return parsed, err == nil
}
