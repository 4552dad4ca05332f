// Package policy decides what a principal may do: rules, in order, over actions, topics and
// groups. It owns what the claims policy, scopes and scope of a token mean, and knows nothing
// of tokens, connections or stores. Package auth makes policies, package auth/guard asks them.
//
// # Rules
//
// The first rule that is about the action, the topic and the group decides. What no rule is
// about is denied, so a policy without rules allows nothing.
//
//   - Topics are matched by eventhub.Pattern, as in subscriptions. A rule that is about a topic
//     is also about its dead letters and snapshots; a pattern may name these alone.
//   - A rule with groups is, of subscribe, about these groups alone, * for any, and never about
//     a live tail, which has none. Of other actions its groups say nothing.
//   - Topics of the hub's own (system.*) are those of rules that spell system out. A policy of
//     full rights (Full) has them too.
//
// # Invariants
//
//   - A policy does not change.
//   - What cannot be read never allows anything: a scope that is none is passed over, since
//     scopes only allow; rules with anything unknown in them make no policy.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
)

// Action is what somebody wants to do with a topic.
type Action string

// The actions.
const (
	Publish   Action = "publish"
	Subscribe Action = "subscribe"
	Read      Action = "read"  // replay, state, traces, export
	Admin     Action = "admin" // groups, topics and their settings, redrive, erase, import, backup, cluster
)

// Any stands for all actions in a rule or scope, and for all groups in a list of these.
const Any = "*"

// The effects of a rule.
const (
	Allow = "allow"
	Deny  = "deny"
)

var actions = []Action{Publish, Subscribe, Read, Admin}

// Rule allows or denies one action, or all, on the topics that patterns match.
type Rule struct {
	Effect string   `json:"effect"`
	Action string   `json:"action"`
	Topics []string `json:"topics"`
	Groups []string `json:"groups,omitempty"`
}

// Policy is what a principal may do. It is safe for concurrent use.
type Policy struct {
	rules []rule
	full  bool
}

// rule is a Rule, compiled.
type rule struct {
	action Action // Any: all
	groups []string
	topics eventhub.TopicRule
}

// All returns the policy of full rights.
func All() *Policy { return all }

var all = &Policy{full: true}

// New makes a policy of rules. The error says which rule is wrong, from 0, and repeats
// nothing of it: it may be of a token.
func New(rules []Rule) (*Policy, error) {
	p := &Policy{rules: make([]rule, 0, len(rules))}
	for i := range rules {
		compiled, err := compile(&rules[i])
		if err != nil {
			return nil, fmt.Errorf("rules[%d]: %w", i, err)
		}
		p.rules = append(p.rules, compiled)
	}
	p.full = len(rules) > 0 && rules[0].Effect == Allow && rules[0].Action == Any && len(rules[0].Groups) == 0 && p.rules[0].isEverywhere()
	return p, nil
}

func compile(r *Rule) (c rule, err error) {
	switch {
	case r.Effect != Allow && r.Effect != Deny:
		return c, errors.New("effect is neither allow nor deny")
	case r.Action != Any && !slices.Contains(actions, Action(r.Action)):
		return c, errors.New("action is not publish, subscribe, read, admin or *")
	case len(r.Topics) == 0:
		return c, errors.New("it has no topics")
	}
	c = rule{action: Action(r.Action), groups: r.Groups}
	c.topics = eventhub.TopicRule{Deny: r.Effect == Deny, Topics: make([]eventhub.Pattern, len(r.Topics))}
	for i, text := range r.Topics {
		if c.topics.Topics[i], err = eventhub.ParsePattern(text); err != nil {
			return c, fmt.Errorf("topics[%d] is not a pattern of topics", i)
		}
	}
	for i, name := range r.Groups {
		if name != Any && eventhub.ValidateGroup(name) != nil {
			return c, fmt.Errorf("groups[%d] is neither the name of a group nor *", i)
		}
	}
	return c, nil
}

// Parse reads the claims of a token as they stand in it, each nil where it is missing: the
// object policy, the list scopes, and scope, which is words separated by spaces. A policy
// counts before scopes, and scopes before scope; null is as missing. Without any of them
// nothing is allowed. Errors repeat nothing of the claims.
func Parse(policy, scopes, scope []byte) (*Policy, error) {
	var words []string
	switch {
	case isGiven(policy):
		var claim struct {
			Rules []Rule `json:"rules"`
		}
		if err := json.Unmarshal(policy, &claim, json.RejectUnknownMembers(true)); err != nil {
			return nil, errors.New("policy is not of the form {rules: [{effect, action, topics, groups}]}")
		}
		return New(claim.Rules)
	case isGiven(scopes):
		if err := json.Unmarshal(scopes, &words); err != nil {
			return nil, errors.New("scopes is not a list of texts")
		}
	case isGiven(scope):
		var text string
		if err := json.Unmarshal(scope, &text); err != nil {
			return nil, errors.New("scope is not a text")
		}
		words = strings.Fields(text)
	}
	return Scopes(words), nil
}

func isGiven(claim []byte) bool { return claim != nil && jsontext.Value(claim).Kind() != 'n' }

// Scopes returns the policy of scopes: action:pattern, or the action alone for all topics.
// Words that are not such a scope allow nothing; other programs have scopes too.
func Scopes(words []string) *Policy {
	p := new(Policy)
	for _, word := range words {
		action, pattern, found := strings.Cut(word, ":")
		if !found {
			pattern = everything
		}
		one, err := New([]Rule{{Effect: Allow, Action: action, Topics: []string{pattern}}})
		if err != nil {
			continue
		}
		p.full = p.full || one.full // all of them allow: their order does not matter
		p.rules = append(p.rules, one.rules...)
	}
	return p
}

// everything is the pattern of all topics but the hub's own.
const everything = "**"

// Full reports whether the policy allows everything, on the hub's own topics too: its first
// rule allows all actions on ** to all groups; of scopes any one does.
func (p *Policy) Full() bool { return p != nil && p.full }

// Allows reports whether an action on a topic, a valid name, is allowed. group is that of
// subscribe, empty for a live tail, and else ignored.
func (p *Policy) Allows(a Action, topic, group string) bool {
	if p == nil || p.full {
		return p != nil
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.isAbout(a, group) && r.topics.Match(topic) {
			return !r.topics.Deny
		}
	}
	return false
}

// isAbout reports whether the rule decides on the action, of subscribe by the group, on
// some topics.
func (r *rule) isAbout(a Action, group string) bool {
	if !r.isOf(a) {
		return false
	}
	if a != Subscribe || len(r.groups) == 0 {
		return true
	}
	return group != "" && (slices.Contains(r.groups, group) || slices.Contains(r.groups, Any))
}

// isOf reports whether the rule may decide on the action.
func (r *rule) isOf(a Action) bool { return r.action == Any || r.action == a }

// isEverywhere reports whether the rule is about all topics.
func (r *rule) isEverywhere() bool {
	return slices.ContainsFunc(r.topics.Topics, func(p eventhub.Pattern) bool { return p.String() == everything })
}
