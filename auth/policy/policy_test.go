package policy

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/testsize"
)

var (
	seed      = flag.Int64("seed", 0, "of the random policies; 0 draws one")
	questions = testsize.Int("policy.questions", 300_000, 15_000, "how many random policies are asked about a random action on a random topic")
)

// drawn is a source of random policies and topics, in a world so small that rules meet.
type drawn struct{ *rand.Rand }

func newDrawn(t *testing.T) drawn {
	s := *seed
	if s == 0 {
		s = rand.Int64()
	}
	t.Logf("seed %d", s)
	return drawn{rand.New(rand.NewPCG(uint64(s), 0))}
}

func one[T any](d drawn, of []T) T { return of[d.IntN(len(of))] }

var (
	segments  = []string{"a", "b", "a", "b", "a", "b", "system", "dlq", "snapshot"}
	wildcards = append([]string{"*", "**", "*", "**"}, segments...)
	groups    = []string{"g", "h"}
)

func (d drawn) name(from []string, most int) string {
	parts := make([]string, 1+d.IntN(most))
	for i := range parts {
		parts[i] = one(d, from)
	}
	return strings.Join(parts, ".")
}

func (d drawn) pattern() string {
	for {
		if text := d.name(wildcards, 4); !strings.Contains(text, "**.**") {
			return text
		}
	}
}

func (d drawn) rules() []Rule {
	rules := make([]Rule, d.IntN(5))
	for i := range rules {
		r := &rules[i]
		r.Effect, r.Action = one(d, []string{Allow, Allow, Deny}), one(d, []string{Any, "publish", "subscribe", "read", "admin"})
		for range 1 + d.IntN(2) {
			r.Topics = append(r.Topics, d.pattern())
		}
		for d.IntN(3) == 0 {
			r.Groups = append(r.Groups, one(d, []string{"g", "h", Any}))
		}
	}
	return rules
}

// Reference: what the package's comment says, the slow way.

func allowed(rules []Rule, action Action, topic, group string) bool {
	if len(rules) > 0 && rules[0].Effect == "allow" && rules[0].Action == "*" && len(rules[0].Groups) == 0 && slices.Contains(rules[0].Topics, "**") {
		return true
	}
	names := []string{topic}
	for parts := strings.Split(topic, "."); len(parts) > 1 && isSuffix(parts[len(parts)-1]); names = append(names, strings.Join(parts, ".")) {
		parts = parts[:len(parts)-1]
	}
	for _, r := range rules {
		about := r.Action == "*" || r.Action == string(action)
		if action == "subscribe" && len(r.Groups) > 0 {
			some := false
			for _, g := range r.Groups {
				some = some || group != "" && (g == "*" || g == group)
			}
			about = about && some
		}
		topics := false
		for _, name := range names {
			for _, pattern := range r.Topics {
				topics = topics || matches(strings.Split(pattern, "."), strings.Split(name, "."), 0)
			}
		}
		if about && topics {
			return r.Effect == "allow"
		}
	}
	return false
}

func isSuffix(segment string) bool { return segment == "dlq" || segment == "snapshot" }

// matches follows a pattern over the segments of a topic from one on.
func matches(pattern, topic []string, at int) bool {
	if len(pattern) == 0 {
		return at == len(topic)
	}
	if pattern[0] == "**" && matches(pattern[1:], topic, at) {
		return true
	}
	if at == len(topic) {
		return false
	}
	own := at == 0 && topic[0] == "system" || at > 0 && !slices.ContainsFunc(topic[at:], func(s string) bool { return !isSuffix(s) })
	switch {
	case pattern[0] == "**":
		return !own && matches(pattern, topic, at+1)
	case pattern[0] == topic[at] || pattern[0] == "*" && !own:
		return matches(pattern[1:], topic, at+1)
	}
	return false
}

// TestAgainstReference: the compiled policy and the slow reference give the same answers.
func TestAgainstReference(t *testing.T) {
	d := newDrawn(t)
	yes := 0
	for i := range *questions {
		rules := d.rules()
		p, err := New(rules)
		if err != nil {
			t.Fatalf("%+v: %v", rules, err)
		}
		action, topic, group := one(d, actions), d.name(segments, 5), one(d, append(groups, ""))
		got, want := p.Allows(action, topic, group), allowed(rules, action, topic, group)
		if got != want {
			t.Fatalf("question %d: %s of %s by group %q under %+v is allowed: %v; want %v", i, action, topic, group, rules, got, want)
		}
		if got {
			yes++
		}
	}
	if yes < *questions/20 || yes > *questions/2 {
		t.Errorf("%d of %d are allowed; the world is too one-sided", yes, *questions)
	}
}

// TestPatternsAgainstTopics: what is said of a pattern holds for each of its topics, and is
// not said so rarely that it is of no use.
func TestPatternsAgainstTopics(t *testing.T) {
	d := newDrawn(t)
	topics := everyTopic(4)
	var covered, untouched, within, all, none, nowhere, nothing, everywhere int
	for range testsize.Of(4000, 400) {
		written := d.rules()
		p := mustNew(t, written)
		of, err := eventhub.ParsePattern(d.pattern())
		if err != nil {
			t.Fatal(err)
		}
		a, group := one(d, actions), one(d, append(groups, ""))
		rules := p.Topics(a, []eventhub.Pattern{of}, group)
		others := d.rules()
		if d.IntN(2) == 0 { // the same, and some more
			others = append([]Rule{{Effect: Allow, Action: Any, Topics: []string{d.pattern()}}}, written...)
		}
		other := mustNew(t, others).Topics(a, []eventhub.Pattern{of}, group)
		covers, touches, inside := p.Covers(a, of, group), p.Touches(a, of, group), Within([]eventhub.Pattern{of}, rules, other)
		yes, no := 0, 0
		for _, topic := range topics {
			if !of.Match(topic) {
				continue
			}
			can := p.Allows(a, topic, group)
			if can {
				yes++
			} else {
				no++
			}
			if covers && !can || !touches && can || inside && can && !other.Allow(topic) || rules.Allow(topic) != can {
				t.Fatalf("%s of %s by group %q is allowed: %v, by rules %v, others %v; %s is covered: %v, touched: %v, inside: %v under %+v, %+v",
					a, topic, group, can, rules.Allow(topic), other.Allow(topic), of, covers, touches, inside, p.rules, other)
			}
		}
		if again := mustNew(t, written).Topics(a, []eventhub.Pattern{of}, group); !Within([]eventhub.Pattern{of}, rules, again) {
			t.Fatalf("%s of %s by group %q is not within itself under %+v", a, of, group, p.rules)
		}
		for _, topic := range topics { // names near to that of a topic are shown by these rules
			if rules.Allow(topic) && !p.Allows(a, topic, group) {
				t.Fatalf("%s of %s is allowed by the rules for %s, and not under %+v", a, topic, of, p.rules)
			}
		}
		count(&covered, covers && yes > 0)
		count(&all, no == 0 && yes > 0)
		count(&untouched, !touches && no > 0)
		count(&none, yes == 0 && no > 0)
		count(&within, inside && yes > 0)
		as := []string{""}
		if a == Subscribe {
			as = []string{"", "g", "h", "other"}
		}
		any := slices.ContainsFunc(topics, func(topic string) bool {
			return slices.ContainsFunc(as, func(group string) bool { return p.Allows(a, topic, group) })
		})
		if any && !p.Somewhere(a) {
			t.Fatalf("%s is allowed on some topic, and not somewhere, under %+v", a, p.rules)
		}
		count(&nothing, !any)
		count(&nowhere, !any && !p.Somewhere(a))
		for _, topic := range topics {
			if p.Everywhere(a) && !p.Allows(a, topic, "") && !strings.HasPrefix(topic, "system") {
				t.Fatalf("%s is allowed everywhere, and not on %s, under %+v", a, topic, p.rules)
			}
		}
		if whole := wholly(written, a); whole && !p.Everywhere(a) {
			t.Fatalf("%s is allowed on ** and denied nowhere, and not everywhere, under %+v", a, p.rules)
		} else if whole {
			everywhere++
		}
	}
	t.Logf("covered %d of %d, untouched %d of %d, within %d; nowhere %d of %d; everywhere %d", covered, all, untouched, none, within, nowhere, nothing, everywhere)
	if 2*covered < all || 2*untouched < none || within == 0 || 10*nowhere < 9*nothing || everywhere == 0 {
		t.Errorf("covered %d of %d, untouched %d of %d, within %d; nowhere %d of %d; everywhere %d", covered, all, untouched, none, within, nowhere, nothing, everywhere)
	}
}

// wholly reports whether rules allow an action on all topics, and none is about it that denies any.
func wholly(rules []Rule, a Action) (whole bool) {
	for _, r := range rules {
		switch {
		case r.Action != Any && r.Action != string(a):
		case r.Effect == Deny:
			return false
		case slices.Contains(r.Topics, everything) && (a != Subscribe || len(r.Groups) == 0):
			whole = true
		}
	}
	return whole
}

func count(n *int, is bool) {
	if is {
		*n++
	}
}

func everyTopic(most int) (topics []string) {
	level := []string{""}
	for range most {
		var next []string
		for _, prefix := range level {
			for _, s := range []string{"a", "b", "c", "system", "dlq", "snapshot"} {
				next = append(next, prefix+s)
			}
		}
		topics = append(topics, next...)
		level = level[:0]
		for _, topic := range next {
			level = append(level, topic+".")
		}
	}
	return topics
}

func mustNew(t *testing.T, rules []Rule) *Policy {
	t.Helper()
	p, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func parse(t *testing.T, claim string) *Policy {
	t.Helper()
	p, err := Parse([]byte(claim), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// question is one line of a table: what is asked, and the answer.
type question struct {
	action       Action
	topic, group string
	want         bool
}

func ask(t *testing.T, p *Policy, questions []question) {
	t.Helper()
	for _, q := range questions {
		if got := p.Allows(q.action, q.topic, q.group); got != q.want {
			t.Errorf("%s of %s by group %q: %v; want %v", q.action, q.topic, q.group, got, q.want)
		}
	}
}

// TestExamplesOfTheFirstClients: the tokens and rules of the programs that the protocol comes
// from. Where the answer is another one than theirs, the line says why.
func TestExamplesOfTheFirstClients(t *testing.T) {
	scopes := func(words ...string) *Policy { return Scopes(words) }
	t.Run("scopes", func(t *testing.T) {
		ask(t, scopes("publish:heartbeat.*", "subscribe:process.**"), []question{
			{Publish, "heartbeat.received", "", true},
			{Publish, "heartbeat", "", false},
			{Publish, "heartbeat.a.b", "", false},
			{Publish, "process.state", "", false},
			{Subscribe, "process.state", "dashboard", true},
			{Subscribe, "process.a.b.c", "", true},
			{Subscribe, "process", "g", true},
			{Subscribe, "heartbeat.received", "g", false},
			// There are more actions here than the two.
			{Read, "process.state", "", false},
			{Admin, "process.state", "", false},
			// No wildcard is a topic of the hub's own, but dead letters and snapshots have the rights of their source.
			{Subscribe, "process.state.dlq", "g", true},
			{Subscribe, "process.state.snapshot", "", true},
			{Subscribe, "heartbeat.received.dlq", "g", false},
		})
	})
	t.Run("default scopes", func(t *testing.T) {
		ask(t, scopes("publish:heartbeat.received", "subscribe:process.state"), []question{
			{Publish, "heartbeat.received", "", true},
			{Subscribe, "process.state", "g", true},
			{Publish, "process.state", "", false},
		})
	})
	t.Run("bare scope", func(t *testing.T) {
		ask(t, scopes("publish"), []question{{Publish, "a.b.c", "", true}, {Subscribe, "a", "", false}, {Publish, "system.a", "", false}})
	})
	t.Run("all actions", func(t *testing.T) {
		ask(t, scopes("*:orders.**"), []question{{Publish, "orders.a", "", true}, {Subscribe, "orders.a", "g", true}, {Admin, "orders", "", true}, {Admin, "a", "", false}})
	})
	t.Run("no scopes", func(t *testing.T) {
		// They had publish:** and subscribe:** then.
		ask(t, scopes(), []question{{Publish, "a", "", false}, {Subscribe, "a", "g", false}})
	})
	t.Run("first match wins", func(t *testing.T) {
		ask(t, parse(t, `{"rules":[{"effect":"deny","action":"*","topics":["secret.**"]},{"effect":"allow","action":"subscribe","topics":["**"]},{"effect":"deny","action":"*","topics":["**"]}]}`), []question{
			{Subscribe, "secret", "g", false},
			{Subscribe, "secret.a", "g", false},
			{Subscribe, "secret.a.dlq", "g", false},
			{Subscribe, "a", "g", true},
			{Publish, "a", "", false},
		})
	})
	t.Run("groups", func(t *testing.T) {
		ask(t, parse(t, `{"rules":[{"effect":"allow","action":"subscribe","topics":["a"],"groups":["one","two"]},{"effect":"allow","action":"*","topics":["a"],"groups":["three"]},{"effect":"allow","action":"subscribe","topics":["b"],"groups":["*"]},{"effect":"allow","action":"subscribe","topics":["c"],"groups":[]}]}`), []question{
			{Subscribe, "a", "one", true},
			{Subscribe, "a", "two", true},
			{Subscribe, "a", "three", true},
			{Subscribe, "a", "four", false},
			{Subscribe, "b", "any", true},
			{Subscribe, "b", "", false},
			{Subscribe, "c", "", true},
			{Publish, "a", "", true}, // of other actions groups say nothing
		})
	})
	t.Run("a tail and a rule with groups", func(t *testing.T) {
		// They denied a tail at such a rule, whatever came after it. Here the rule is not about tails.
		ask(t, parse(t, `{"rules":[{"effect":"deny","action":"subscribe","topics":["a"],"groups":["g"]},{"effect":"allow","action":"subscribe","topics":["a"]}]}`), []question{
			{Subscribe, "a", "", true}, {Subscribe, "a", "g", false}, {Subscribe, "a", "h", true},
		})
	})
	t.Run("** in the middle", func(t *testing.T) {
		// Theirs was greedy: a.**.b did not match a.b.c.b.
		ask(t, scopes("read:a.**.b"), []question{{Read, "a.b", "", true}, {Read, "a.b.c.b", "", true}, {Read, "a.b.c", "", false}})
	})
	t.Run("other scopes", func(t *testing.T) {
		// Of publish:a:b they took the first two parts.
		ask(t, scopes("openid", "profile", "publish:a:b", "publish:", "Publish:a", "read:a*", "admin:a", ""), []question{
			{Publish, "a", "", false}, {Read, "a", "", false}, {Admin, "a", "", true}, {Admin, "b", "", false},
		})
	})
}

// TestParse: which claim counts, what full rights are, and what is no policy. No error
// repeats anything of the claims.
func TestParse(t *testing.T) {
	const allowAll = `{"rules":[{"effect":"allow","action":"*","topics":["**"]}]}`
	for _, tt := range []struct {
		policy, scopes, scope string
		full, some, fails     bool
	}{
		{},
		{policy: "null", scopes: "null", scope: "null"},
		{policy: " null ", scope: `"*"`, full: true, some: true},
		{scopes: `["*"]`, full: true, some: true},
		{scopes: `["publish:a","*:**"]`, full: true, some: true},
		{scopes: `["*:a"]`, some: true},
		{scopes: `[]`, scope: `"*"`},
		{scope: `"openid  publish:a"`, some: true},
		{scope: `"openid"`},
		{policy: allowAll, full: true, some: true},
		{policy: `{}`, scopes: `["*"]`},
		{policy: `{"rules":[{"effect":"deny","action":"publish","topics":["secret"]},{"effect":"allow","action":"*","topics":["**"]}]}`, some: true},
		{policy: `{"rules":[{"effect":"allow","action":"*","topics":["**"],"groups":["*"]}]}`, some: true},
		{policy: `{"rules":[{"effect":"allow","action":"*","topics":["secret","**"]}]}`, full: true, some: true},
		{policy: `{"rules":[]}`},
		{policy: `{"rules":[{"effect":"deny","action":"*","topics":["**"]},{"effect":"allow","action":"*","topics":["a","b.**"]}]}`},
		{policy: `{"rules":[{"effect":"deny","action":"*","topics":["a.**"]},{"effect":"allow","action":"*","topics":["a","b.**"]}]}`, some: true},
		{policy: `{"rules":[{"effect":"deny","action":"*","topics":["**"]},{"effect":"allow","action":"read","topics":["system.redrive"]}]}`, some: true},
		{policy: `{"rules":[{"effect":"deny","action":"subscribe","topics":["**"],"groups":["*"]},{"effect":"allow","action":"subscribe","topics":["a"]}]}`, some: true}, // tails
		{policy: `{"rules":[{"effect":"deny","action":"subscribe","topics":["**"],"groups":["*"]},{"effect":"allow","action":"subscribe","topics":["a"],"groups":["g"]}]}`},
		{policy: `{"rules":[{"effect":"deny","action":"subscribe","topics":["**"],"groups":["g"]},{"effect":"allow","action":"subscribe","topics":["a"],"groups":["g","h"]}]}`, some: true},
		{policy: `{"rules":[{"effect":"maybe secret","action":"*","topics":["**"]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"deny","action":"secret","topics":["**"]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"deny","action":"*","topics":["secret*"]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"deny","action":"*","topics":[]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"deny","action":"*"}]}`, fails: true},
		{policy: `{"rules":[{"effect":"allow","action":"*","topics":["a"],"group":["secret"]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"allow","action":"*","topics":["a"],"groups":["se cret"]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"allow","Effect":"deny","action":"*","topics":["a"]}]}`, fails: true},
		{policy: `{"rules":[{"effect":"deny","effect":"allow","action":"*","topics":["a"]}]}`, fails: true},
		{policy: `{"rules":"secret"}`, fails: true},
		{policy: `[]`, fails: true},
		{scopes: `"secret"`, fails: true},
		{scopes: `[1]`, fails: true},
		{scope: `["secret"]`, fails: true},
	} {
		claim := func(text string) []byte {
			if text == "" {
				return nil
			}
			return []byte(text)
		}
		name := fmt.Sprintf("%s %s %s", tt.policy, tt.scopes, tt.scope)
		p, err := Parse(claim(tt.policy), claim(tt.scopes), claim(tt.scope))
		if (err != nil) != tt.fails {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil {
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "se cret") {
				t.Errorf("%s: %v repeats the claim", name, err)
			}
			continue
		}
		some := slices.ContainsFunc(actions, p.Somewhere)
		if p.Full() != tt.full || some != tt.some {
			t.Errorf("%s: full %v, anything allowed %v; want %v, %v", name, p.Full(), some, tt.full, tt.some)
		}
		if p.Full() != p.Allows(Read, "system.audit", "") {
			t.Errorf("%s: the hub's own topics are not those of full rights", name)
		}
	}
	var none *Policy
	if none.Full() || none.Allows(Read, "a", "") || none.Somewhere(Read) || none.Everywhere(Read) || none.Topics(Read, nil, "").Allow("a") {
		t.Error("no policy allows something")
	}
	if !All().Full() || !All().Allows(Publish, "a", "") || !All().Everywhere(Admin) || All().Topics(Read, nil, "") != nil {
		t.Error("the policy of full rights does not allow everything")
	}
}

// TestPatterns: examples of what is allowed on all topics of a pattern, on some, everywhere.
func TestPatterns(t *testing.T) {
	p := mustNew(t, []Rule{
		{Effect: Deny, Action: Any, Topics: []string{"orders.secret.**"}},
		{Effect: Allow, Action: Any, Topics: []string{"orders.**", "system.audit"}},
		{Effect: Allow, Action: string(Read), Topics: []string{"**"}},
	})
	for _, tt := range []struct {
		action          Action
		pattern         string
		covers, touches bool
	}{
		{Publish, "orders.eu.*", true, true},
		{Publish, "orders.**", false, true},
		{Publish, "orders.secret.*", false, false}, // the rule that denies all of it is before the one that allows it
		{Publish, "orders.*.*", false, true},
		{Publish, "orders.secret.*.dlq", false, false},
		{Publish, "**", false, true},
		{Publish, "billing.*", false, false},
		{Publish, "orders.eu.*.dlq", true, true},
		{Publish, "orders.*.dlq", false, true},
		{Publish, "orders.dlq.**", false, true},
		{Publish, "**.snapshot", false, true},
		{Read, "billing.**", true, true},
		{Read, "billing.**.dlq", true, true},
		{Read, "**", false, true},
		{Read, "system.*", false, true},
		{Admin, "system.audit", true, true},
		{Admin, "system.redrive", false, false},
	} {
		of, err := eventhub.ParsePattern(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if covers, touches := p.Covers(tt.action, of, ""), p.Touches(tt.action, of, ""); covers != tt.covers || touches != tt.touches {
			t.Errorf("%s of %s: covers %v, touches %v; want %v, %v", tt.action, tt.pattern, covers, touches, tt.covers, tt.touches)
		}
	}
	for words, want := range map[string]bool{"admin": true, "admin:**": true, "*": true, "admin:a.**": false, "read": false} {
		if got := Scopes([]string{words}).Everywhere(Admin); got != want {
			t.Errorf("admin everywhere by %s: %v; want %v", words, got, want)
		}
	}
	if of := []Rule{{Effect: Allow, Action: Any, Topics: []string{"**"}, Groups: []string{"g"}}}; !mustNew(t, of).Everywhere(Admin) || mustNew(t, of).Everywhere(Subscribe) {
		t.Error("of other actions than subscribe groups say something")
	}
	if p.Everywhere(Read) {
		t.Error("reading is allowed everywhere, and one rule denies it")
	}
}

// BenchmarkAllows is one decision of a policy of ten rules, the last of which counts.
func BenchmarkAllows(b *testing.B) {
	var words []string
	for i := range 9 {
		words = append(words, fmt.Sprintf("publish:team%d.**", i))
	}
	p := Scopes(append(words, "publish:orders.*.created"))
	for b.Loop() {
		if !p.Allows(Publish, "orders.eu.created", "") {
			b.Fatal("denied")
		}
	}
}
