package bus

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"eventhub"
)

// limits are the topics that a pattern of a group brings it to, by the rights of those who
// subscribed by it: a topic that any entry allows. nil is no limit. They do not change: with
// makes others.
type limits []*eventhub.TopicRules

// Bounds of the limits of one pattern. Rights without a denial, which are most, share the
// first entry.
const (
	maxLimits        = 16
	maxLimitPatterns = 1000
)

func limitsOf(r *eventhub.TopicRules) limits {
	if r == nil {
		return nil
	}
	return limits{r}
}

// allow reports whether a topic is within the limits.
func (l limits) allow(topic string) bool {
	return l == nil || slices.ContainsFunc(l, func(r *eventhub.TopicRules) bool { return r.Allow(topic) })
}

// with returns the limits that let in what r allows too, and whether these are others. The
// text of the error goes on after the name of the pattern.
func (l limits) with(r *eventhub.TopicRules) (_ limits, more bool, _ error) {
	switch {
	case l == nil:
		return nil, false, nil
	case r == nil:
		return nil, true, nil
	}
	if !denies(r) {
		if i := slices.IndexFunc(l, func(r *eventhub.TopicRules) bool { return !denies(r) }); i >= 0 {
			joined, more := join(l[i], r)
			if len(joined.Rules[0].Topics) > maxLimitPatterns {
				return nil, false, errors.New("was subscribed by rights to more patterns of topics than it keeps")
			}
			l = slices.Clone(l)
			l[i] = joined
			return l, more, nil
		}
	}
	if slices.ContainsFunc(l, func(have *eventhub.TopicRules) bool { return reflect.DeepEqual(have, r) }) {
		return l, false, nil
	}
	if len(l) == maxLimits {
		return nil, false, errors.New("was subscribed by more different rights than it keeps")
	}
	return append(slices.Clip(l), r), true, nil
}

func denies(r *eventhub.TopicRules) bool {
	return slices.ContainsFunc(r.Rules, func(rule eventhub.TopicRule) bool { return rule.Deny })
}

// join returns one rule that allows what two without denials allow, and whether that is more
// than the first does.
func join(x, y *eventhub.TopicRules) (_ *eventhub.TopicRules, more bool) {
	var all eventhub.TopicRule
	add := func(r *eventhub.TopicRules) (added bool) {
		for _, rule := range r.Rules {
			for _, p := range rule.Topics {
				if !slices.ContainsFunc(all.Topics, func(q eventhub.Pattern) bool { return q.String() == p.String() }) {
					all.Topics, added = append(all.Topics, p), true
				}
			}
		}
		return added
	}
	add(x)
	more = add(y)
	slices.SortFunc(all.Topics, func(p, q eventhub.Pattern) int { return strings.Compare(p.String(), q.String()) })
	return &eventhub.TopicRules{Rules: []eventhub.TopicRule{all}}, more
}

// storedLimits is what a stored pattern has besides its settings: the rules of each entry.
type storedLimits struct {
	Limits [][]storedRule `json:"limits,omitempty"`
}

type storedRule struct {
	Deny   bool     `json:"deny,omitempty"`
	Topics []string `json:"topics"`
}

// appendTo returns settings, a JSON object, with the limits as one more member.
func (l limits) appendTo(settings json.RawMessage) (json.RawMessage, error) {
	if l == nil {
		return settings, nil
	}
	stored := storedLimits{make([][]storedRule, len(l))}
	for i, r := range l {
		stored.Limits[i] = make([]storedRule, len(r.Rules))
		for j, rule := range r.Rules {
			stored.Limits[i][j].Deny = rule.Deny
			for _, p := range rule.Topics {
				stored.Limits[i][j].Topics = append(stored.Limits[i][j].Topics, p.String())
			}
		}
	}
	member, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	return slices.Concat(bytes.TrimSuffix(settings, []byte("}")), []byte(","), member[1:]), nil
}

// decodePattern reads what is stored of a pattern: its settings, these alone as they are
// stored with groups, and its limits.
func decodePattern(value json.RawMessage) (s settings, raw json.RawMessage, l limits, err error) {
	var stored storedLimits
	if err := errors.Join(json.Unmarshal(value, &s), json.Unmarshal(value, &stored)); err != nil {
		return s, nil, nil, err
	}
	if stored.Limits == nil {
		return s, value, nil, nil
	}
	for _, entry := range stored.Limits {
		r := new(eventhub.TopicRules)
		for _, rule := range entry {
			parsed := eventhub.TopicRule{Deny: rule.Deny}
			for _, text := range rule.Topics {
				p, err := eventhub.ParsePattern(text)
				if err != nil {
					return s, nil, nil, err
				}
				parsed.Topics = append(parsed.Topics, p)
			}
			r.Rules = append(r.Rules, parsed)
		}
		l = append(l, r)
	}
	raw, err = json.Marshal(s)
	return s, raw, l, err
}
