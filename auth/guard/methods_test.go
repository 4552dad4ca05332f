package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
)

// asks says what each method of an engine asks for on the topic that it names: all of some
// actions, or one of several.
type asks struct {
	all, any []policy.Action
	// lists: without a topic it shows what there is, and refuses nothing.
	lists bool
}

var (
	publishes  = asks{all: []policy.Action{policy.Publish}}
	subscribes = asks{all: []policy.Action{policy.Subscribe}}
	reads      = asks{all: []policy.Action{policy.Read}}
	operates   = asks{all: []policy.Action{policy.Admin}}
	views      = asks{any: []policy.Action{policy.Read, policy.Admin}}
	lists      = asks{lists: true}
)

var methods = map[string]asks{
	"Publish": publishes, "Enqueue": publishes, "Cancel": publishes, "Recall": publishes, "OpenProducer": {}, "LeaveProducer": {},
	"Subscribe": subscribes, "Tail": subscribes, "Pull": subscribes, "Settle": subscribes,
	"AckAndPublish": {all: []policy.Action{policy.Subscribe, policy.Publish}},
	"Event":         reads, "Replay": reads, "Life": reads, "State": reads, "StateDiff": reads, "KeyHistory": reads, "KeyHistoryAmong": reads, "DeadLetters": reads,
	"Topic": views, "Groups": views, "Group": views, "EventGroups": views, "InFlight": views, "Scheduled": views, "EffectiveSettings": views,
	"Topics": lists, "Patterns": lists, "Find": lists, "FindAmong": lists, "Effects": lists, "Correlated": lists, "DeadLetterTopics": lists, "SettingsEntries": lists,
	"DeleteGroup": operates, "DeleteTopic": operates, "SeekGroup": operates, "SeekGroupIf": operates, "PauseGroup": operates, "ResumeGroup": operates,
	"Import": operates, "Redrive": operates, "Trim": operates, "Erase": operates, "PlanSettings": operates, "SetTopic": operates, "UnsetTopic": operates,
	"Requeue":   {all: []policy.Action{policy.Admin, policy.Publish}},
	"RequeueIf": {all: []policy.Action{policy.Admin, policy.Publish}},
	"Backup":    operates, // everywhere
	"TopicOf":   {},       // for guards alone: no transport has it
}

// named are the texts that methods take which are no topic, by the method and place.
var named = map[string][]string{
	"Topics": {""}, "Patterns": {""}, "DeadLetterTopics": {""}, "SettingsEntries": {""},
	"Find": {"both"}, "FindAmong": {"both"}, "Effects": {"open-1"}, "Correlated": {"corr"}, "Backup": {"nowhere"},
}

// call calls a method of an engine about a world with arguments that it can do something
// with, and returns all that it said.
func call(t *testing.T, e guard.Engine, method, topic string) (said string, err error) {
	t.Helper()
	m := reflect.ValueOf(e).MethodByName(method)
	var visited []any
	var args []reflect.Value
	var wait []chan struct{}
	texts := 0
	for i := range m.Type().NumIn() {
		in := m.Type().In(i)
		arg := reflect.New(in).Elem()
		switch v := arg.Addr().Interface().(type) {
		case *context.Context:
			*v = t.Context()
		case *string:
			*v = topic
			if texts == 1 {
				*v = strings.TrimSuffix(topic, ".a") + "-group"
			}
			if given, ok := named[method]; ok && texts < len(given) {
				*v = given[texts]
			}
			texts++
		case *int:
			*v = 100
		case *[]eventhub.Event:
			*v = []eventhub.Event{event(topic, "new")}
		case *[]eventhub.Publication:
			*v = []eventhub.Publication{{Events: []eventhub.Event{event(topic, "new")}}}
		case *[]eventhub.AckPublish:
			*v = []eventhub.AckPublish{{Refs: []eventhub.Ref{{Lease: eventhub.Lease{Runtime: 1}}}, Events: []eventhub.Event{event(topic, "new")}}}
		case *eventhub.ProducerOptions:
			v.ID = "producer"
		case **eventhub.Producer:
			*v = new(eventhub.Producer)
		case *eventhub.Receiver:
			*v = new(inbox)
		case *eventhub.GroupOptions:
			*v = eventhub.GroupOptions{Topic: topic, Group: "other"}
		case *eventhub.TailOptions:
			*v = eventhub.TailOptions{Topic: topic}
		case *eventhub.Settlement:
			v.Refs = []eventhub.Ref{{Lease: eventhub.Lease{Runtime: 1}}}
		case *admin.GroupQuery:
			v.Topic = topic
		case *admin.ScheduleQuery:
			v.Topic = topic
		case *admin.ReplayQuery:
			v.Topic = topic
		case *admin.StateQuery:
			v.Topic, v.Limit = topic, 5
		case *admin.StateDiffQuery:
			v.Topic, v.From.Offset, v.Limit = topic, 1, 5
		case *admin.KeyHistoryQuery:
			v.Topic, v.Key, v.Limit = topic, "k", 5
		case *admin.DeadLetterQuery:
			v.Topic = topic
		case *admin.RedriveQuery:
			v.Topic, v.Apply = topic, true
		case *admin.TrimQuery:
			v.Keep = 1
		case *admin.EraseQuery:
			v.Offset, v.Apply = 1, true
		case *uint64:
			*v = 1
		case *[]byte:
			*v = []byte(`{}`)
		case *bool:
			*v = true
		case *func(string) bool:
			*v = func(string) bool { return true }
		case *func(string, eventhub.Item) error:
			*v = func(topic string, item eventhub.Item) error {
				visited = append(visited, topic, string(item.Record))
				return nil
			}
		case *func(*admin.DeadLetter) error:
			*v = func(d *admin.DeadLetter) error { visited = append(visited, *d); return nil }
		case *eventhub.Start, *eventhub.Place, *admin.TopicSettings, **uint64, *eventhub.Lease, *time.Duration:
		default:
			if in.Kind() != reflect.Func {
				t.Fatalf("method %s takes a %s: say here what it is to be", method, in)
			}
			over := make(chan struct{})
			arg.Set(reflect.MakeFunc(in, func(in []reflect.Value) []reflect.Value {
				for i := range in[0].Len() { // publications, or ack-and-publishes
					if e, ok := in[0].Index(i).FieldByName("Err").Interface().(error); ok {
						err = errors.Join(err, e)
					}
				}
				close(over)
				return nil
			}))
			wait = append(wait, over)
		}
		args = append(args, arg)
	}
	invoke := m.Call
	if m.Type().IsVariadic() {
		invoke = m.CallSlice
	}
	var b strings.Builder
	fmt.Fprint(&b, visited)
	results := invoke(args)
	for _, over := range wait {
		<-over
	}
	for _, out := range results {
		if e, ok := out.Interface().(error); ok {
			err = errors.Join(err, e)
			continue
		}
		if sub, ok := out.Interface().(eventhub.Subscription); ok {
			sub.Drop(0)
			continue
		}
		text, e := json.Marshal(out.Interface())
		if e != nil {
			t.Fatal(e)
		}
		fmt.Fprintf(&b, "%s %+v", text, out.Interface())
	}
	return b.String() + fmt.Sprint(visited), err
}

func actionsBut(without policy.Action) (rules []policy.Rule) {
	for _, a := range []policy.Action{policy.Publish, policy.Subscribe, policy.Read, policy.Admin} {
		if a != without {
			rules = append(rules, allow(a, "**"))
		}
	}
	return rules
}

// asksNothing reports whether a method names no topic and refuses nobody: TestProducersOfGuards has
// those of producers.
func asksNothing(method string) bool {
	return method == "TopicOf" || method == "OpenProducer" || method == "LeaveProducer"
}

// A producer is for whoever may publish something, to whatever topic.
func TestProducersOfGuards(t *testing.T) {
	for _, tt := range []struct {
		rule policy.Rule
		want bool
	}{{allow(policy.Publish, "other.b"), true}, {allow(policy.Read, "**"), false}} {
		inBubble(t, func(t *testing.T, r *rig) {
			g := guard.For(r.engine, rules(t, tt.rule), func(policy.Action, string, string) { t.Error("it is reported") })
			p, err := g.OpenProducer(t.Context(), eventhub.ProducerOptions{ID: "p"})
			if err != nil || (p != nil) != tt.want {
				t.Errorf("with %+v: %v, %v", tt.rule, p, err)
			}
			if p != nil {
				g.LeaveProducer(p)
			}
		})
	}
}

// TestEveryMethodAsks: each method is refused without one of its actions, whatever else is
// allowed, and not refused with these alone; a method without a row fails.
func TestEveryMethodAsks(t *testing.T) {
	engine := reflect.TypeFor[guard.Engine]()
	for i := range engine.NumMethod() {
		name := engine.Method(i).Name
		want, ok := methods[name]
		if !ok {
			t.Errorf("method %s has no row: what does it ask for?", name)
			continue
		}
		if asksNothing(name) {
			continue
		}
		try := func(expect bool, rs ...policy.Rule) {
			inBubble(t, func(t *testing.T, r *rig) {
				r.fill()
				reported := 0
				_, err := call(t, guard.For(r.engine, rules(t, rs...), func(policy.Action, string, string) { reported++ }), name, "open.a")
				denied := eventhub.ErrorCode(err) == eventhub.CodeForbidden
				if denied == expect {
					t.Errorf("%s with %+v: %v; want it allowed: %v", name, rs, err, expect)
				}
				if denied != (reported == 1) || reported > 1 {
					t.Errorf("%s with %+v: %v, which is reported %d times", name, rs, err, reported)
				}
			})
		}
		if want.lists {
			try(true)
			continue
		}
		var alone []policy.Rule
		for _, a := range want.all {
			try(false, actionsBut(a)...)
			alone = append(alone, allow(a, "**"))
		}
		for _, a := range want.any {
			try(true, allow(a, "**"))
		}
		if len(want.any) > 0 {
			try(false, allow(policy.Publish, "**"), allow(policy.Subscribe, "**"))
		} else {
			try(true, alone...)
		}
	}
}

// TestNothingOfOtherTopics: who has all rights to one world, and none to another, is refused
// what it asks about that one, gets nothing of it by lists and look-ups, and changes nothing
// there. Who has all rights gets it by the same calls.
func TestNothingOfOtherTopics(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.fill()
		before := r.secrets()
		few := guard.For(r.engine, rules(t, deny("*", "secret.**"), allow("*", "open.**", "new"), allow(policy.Read, "**")), nil)
		full := guard.For(r.engine, policy.All(), nil)
		if full != r.engine {
			t.Error("full rights have a guard before the engine")
		}
		for name, asks := range methods {
			if asksNothing(name) {
				continue
			}
			said, err := call(t, few, name, "secret.a")
			if !asks.lists {
				if eventhub.ErrorCode(err) != eventhub.CodeForbidden {
					t.Errorf("%s of a topic without rights: %s, %v; want it forbidden", name, said, err)
				}
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if leaks(said) {
				t.Errorf("%s shows %s", name, said)
			}
			if asks.lists {
				if !strings.Contains(said, "open") {
					t.Errorf("%s shows nothing of what is allowed: %s", name, said)
				}
				if said, err := call(t, full, name, "secret.a"); err != nil || !leaks(said) {
					t.Errorf("%s with full rights: %s, %v; this test cannot see what it is for", name, said, err)
				}
			}
		}
		if after := r.secrets(); after != before {
			t.Errorf("something has changed there:\n%s\n%s", before, after)
		}
	})
}

// TestNothingOfCrossingTopics: what somebody asks about a pattern of which all topics are allowed
// says nothing of others that happen to match it too, nor of patterns that cross it; neither does
// an error. With the right to the other world it says so.
func TestNothingOfCrossingTopics(t *testing.T) {
	of := []string{"**.eu", "*.*.eu", "*.eu", "any.**.eu", "any.eu"}
	for name, asks := range methods {
		if asksNothing(name) {
			continue
		}
		for _, about := range of {
			inBubble(t, func(t *testing.T, r *rig) {
				r.fill()
				r.publish(event("any.eu", "any-1"), event("secret.eu", "secret-eu", "any-1"))
				for _, pattern := range []string{"secret.**", "secret.*", "secret.eu.*"} {
					_, err := r.engine.SetTopic(t.Context(), pattern, admin.TopicSettings{Retention: admin.Retention{Count: 1000}}, nil)
					r.ok(err)
				}
				few := guard.For(r.engine, rules(t, deny("*", "secret.**"), allow("*", "**.eu")), nil)
				if said, err := call(t, few, name, about); leaks(said) || err != nil && leaks(err.Error()) {
					t.Errorf("%s of %s says %s, %v", name, about, said, err)
				}
				if asks.lists {
					return
				}
				few = guard.For(r.engine, rules(t, allow("*", "**.eu")), nil)
				if said, err := call(t, few, name, about); leaksEntry(said) || err != nil && leaksEntry(err.Error()) {
					t.Errorf("%s of %s with the right to all topics of it says %s, %v", name, about, said, err)
				}
			})
		}
	}
	inBubble(t, func(t *testing.T, r *rig) {
		r.fill()
		both := guard.For(r.engine, rules(t, allow("*", "**.eu"), allow(policy.Read, "open.**", "secret.**")), nil)
		for _, name := range []string{"SetTopic", "PlanSettings"} {
			if _, err := call(t, both, name, "**.eu"); err == nil || !strings.Contains(err.Error(), `and "open.*.*" tie`) {
				t.Errorf("%s with the right to see the other pattern: %v; want it named", name, err)
			}
		}
	})
}

// leaksEntry is leaks of patterns of the secret world alone.
func leaksEntry(said string) bool {
	return strings.Contains(said, "secret.*") || strings.Contains(said, "secret.eu.*")
}

// leaks reports whether a text has a topic, group or entry of the secret world. Ids do not
// count, for events of the open one name them as their causes.
func leaks(said string) bool {
	return strings.Contains(said, "secret.") || strings.Contains(said, "secret-group")
}

// secrets describes the secret world.
func (r *rig) secrets() string {
	r.t.Helper()
	ctx := context.Background()
	topics, err := r.engine.Topics(ctx, "", 1000)
	r.ok(err)
	topics = slices.DeleteFunc(topics, func(t admin.TopicInfo) bool { return !strings.HasPrefix(t.Topic, "secret") })
	groups, err := r.engine.Groups(ctx, admin.GroupQuery{})
	r.ok(err)
	groups = slices.DeleteFunc(groups, func(g admin.GroupInfo) bool { return !strings.HasPrefix(g.Topic, "secret") })
	settings, err := r.engine.SettingsEntries(ctx, "", 1000)
	r.ok(err)
	text, err := json.Marshal([]any{topics, groups, settings})
	r.ok(err)
	return string(text)
}
