package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/admin"
)

func patternsOf(texts ...string) (all []eventhub.Pattern) {
	for _, text := range texts {
		p, err := eventhub.ParsePattern(text)
		if err != nil {
			panic(err)
		}
		all = append(all, p)
	}
	return all
}

func allowing(texts ...string) *eventhub.TopicRules {
	return &eventhub.TopicRules{Rules: []eventhub.TopicRule{{Topics: patternsOf(texts...)}}}
}

func denying(texts ...string) eventhub.TopicRule {
	return eventhub.TopicRule{Deny: true, Topics: patternsOf(texts...)}
}

// allBut allows every topic but those of some patterns.
func allBut(texts ...string) *eventhub.TopicRules {
	return &eventhub.TopicRules{Rules: append([]eventhub.TopicRule{denying(texts...)}, allowing("**").Rules...)}
}

// groupsOf returns the topics that have the group.
func (r *rig) groupsOf(name string) (topics []string) {
	r.t.Helper()
	groups, err := r.bus.Groups(context.Background(), admin.GroupQuery{Group: name})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, g := range groups {
		topics = append(topics, g.Topic)
	}
	return topics
}

// TestPatternOfFewRights: topics to which who subscribes has no right are left out, later
// ones too, with nobody connected and over restarts; what another one may have is added, from
// where that one starts.
func TestPatternOfFewRights(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"p.a", "p.secret", "q.a"} {
			r.publish(topic, 1, 1)
		}
		o := opts("p.**", "g")
		o.Topics, o.Allowed = []string{"p.**.dlq"}, allBut("p.secret.**")
		in := r.subscribe(o)
		for _, topic := range []string{"p.b", "p.secret.x"} {
			r.publish(topic, 2, 1)
		}
		equal(t, "deliveries", places(in.Take()), []string{"p.a/1", "p.b/1"})
		equal(t, "groups", r.groupsOf("g"), []string{"p.a", "p.b"})
		in.Sub.Drop(0)
		r.restart()
		r.publish("p.c", 3, 1)
		r.publish("p.secret.y", 3, 1)
		synctest.Wait()
		equal(t, "groups of topics to come", r.groupsOf("g"), []string{"p.a", "p.b", "p.c"})

		o.Allowed = allowing("p.secret")
		o.Start = eventhub.Start{}
		other := r.subscribe(o)
		r.publish("p.secret", 4, 1)
		r.publish("p.a", 4, 1)
		r.publish("p.secret.z", 4, 1)
		equal(t, "deliveries by other rights", places(other.Take()), []string{"p.secret/2"})
		equal(t, "groups of both", r.groupsOf("g"), []string{"p.a", "p.b", "p.c", "p.secret"})
		list, err := r.bus.Patterns(context.Background(), "g")
		if err != nil || len(list) != 2 || !list[0].Limited || list[0].Topics != 4 {
			t.Errorf("patterns %+v, %v", list, err)
		}

		o.Allowed, o.Start = nil, eventhub.Earliest
		all := r.subscribe(o)
		equal(t, "deliveries without a limit", len(places(all.Take())) > 0, true)
		r.publish("p.secret.new", 5, 1)
		synctest.Wait()
		if got := r.groupsOf("g"); !slices.Contains(got, "p.secret.new") || !slices.Contains(got, "p.secret.x") {
			t.Errorf("groups without a limit: %v", got)
		}
		r.restart()
		if list, err = r.bus.Patterns(context.Background(), "g"); err != nil || list[0].Limited {
			t.Errorf("patterns %+v, %v", list, err)
		}
	})
}

// TestLimitedPatternIsDeleted: with the pattern go the groups that it brought, and no others.
func TestLimitedPatternIsDeleted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 1)
		r.publish("p.secret", 1, 1)
		r.subscribe(opts("p.secret", "g"))
		o := opts("p.*", "g")
		o.Allowed = allBut("p.secret")
		r.subscribe(o)
		wantCode(t, r.bus.DeleteGroup(context.Background(), "p.a", "g"), eventhub.CodeBadRequest)
		if err := r.bus.DeleteGroup(context.Background(), "p.*", "g"); err != nil {
			t.Fatal(err)
		}
		equal(t, "groups", r.groupsOf("g"), []string{"p.secret"})
		if err := r.bus.DeleteGroup(context.Background(), "p.secret", "g"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFewRightsAndNoCreate: nothing is created, and no name of a topic that is not allowed is
// proposed for a misspelt one.
func TestFewRightsAndNoCreate(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.secret", 1, 1)
		in := r.subscribe(opts("p.secret", "group"))
		in.Sub.Drop(0)
		o := opts("p.secrit", "group")
		o.NoCreate, o.Allowed = true, allowing("p.secrit")
		_, err := r.bus.Subscribe(context.Background(), o, in)
		wantCode(t, err, eventhub.CodeUnknownID)
		if strings.Contains(err.Error(), "p.secret") {
			t.Errorf("%v names a topic that is not allowed", err)
		}
		_, err = r.bus.Tail(context.Background(), eventhub.TailOptions{Topic: "p.*", NoCreate: true, Allowed: allBut("p.secret")}, in)
		wantCode(t, err, eventhub.CodeUnknownID)
	})
}

// TestTailOfFewRights: a tail by pattern does not have topics that are not allowed, nor do
// they join it later.
func TestTailOfFewRights(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 1)
		r.publish("p.secret", 1, 1)
		o := tailOpts("p.**")
		o.Start, o.Allowed = eventhub.Earliest, allBut("p.secret.**")
		in := r.tail(o)
		r.publish("p.b", 2, 1)
		r.publish("p.secret", 2, 1)
		r.publish("p.secret.new", 2, 1)
		equal(t, "events", places(in.Take()), []string{"p.a/1", "p.b/1"})
	})
}

// TestReplayOfFewRights: a replay by pattern passes over topics that are not allowed.
func TestReplayOfFewRights(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"p.a", "p.secret", "p.z"} {
			r.publish(topic, 1, 1)
		}
		var got []string
		err := r.bus.Replay(context.Background(), admin.ReplayQuery{Topic: "p.*", Allowed: allBut("p.secret")}, func(topic string, _ eventhub.Item) error {
			got = append(got, topic)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "topics", got, []string{"p.a", "p.z"})
	})
}

// TestLimits: what many subscribe by their rights is kept together, bounded, and read again
// as it was written, next to settings that stay as they are.
func TestLimits(t *testing.T) {
	var l limits = limitsOf(allowing("a"))
	add := func(r *eventhub.TopicRules, more bool) {
		t.Helper()
		next, got, err := l.with(r)
		if err != nil || got != more {
			t.Fatalf("with %+v: more %v, %v; want %v", r, got, err, more)
		}
		l = next
	}
	add(allowing("a"), false)
	add(allowing("b", "a"), true)
	add(allowing("b"), false)
	add(allBut("c"), true)
	add(allBut("c"), false)
	add(allowing("d"), true)
	if len(l) != 2 {
		t.Errorf("%d entries of rights with and without a denial; want 2", len(l))
	}
	settings := json.RawMessage(`{"ordering":"key","max_attempts":3,"backoff_min_ms":1,"backoff_max_ms":2}`)
	value, err := l.appendTo(settings)
	if err != nil {
		t.Fatal(err)
	}
	set, raw, again, err := decodePattern(value)
	if err != nil || string(raw) != string(settings) || set.MaxAttempts != 3 {
		t.Fatalf("%s is read as %s, %+v, %v", value, raw, set, err)
	}
	for topic, want := range map[string]bool{"a": true, "b": true, "c": false, "d": true, "e": true, "c.dlq": false, "e.dlq": true, "system.a": false} {
		if l.allow(topic) != want || again.allow(topic) != want {
			t.Errorf("%s is within the limits: %v, read again %v; want %v", topic, l.allow(topic), again.allow(topic), want)
		}
	}
	for i := range maxLimits - 2 {
		add(allBut(fmt.Sprint("n", i)), true)
	}
	if _, _, err := l.with(allBut("one.more")); err == nil {
		t.Errorf("%d entries are not too many", maxLimits+1)
	}
	var many []string
	for i := range maxLimitPatterns + 1 {
		many = append(many, fmt.Sprint("m", i))
	}
	if _, _, err := l.with(allowing(many...)); err == nil {
		t.Errorf("%d patterns are not too many", len(many))
	}
	add(nil, true)
	add(allowing("x"), false)
	if l != nil || !l.allow("system.a") {
		t.Errorf("limits without a limit are %v", l)
	}
}
