package guard_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
	"eventhub/bus"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inBubble runs a test against an engine of its own. Time passes when it wants it to.
func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := memory.Open(memory.Options{MaxTopics: 3000})
		b, err := bus.New(bus.Options{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		test(t, &rig{t: t, engine: b})
	})
}

type rig struct {
	t      *testing.T
	engine guard.Engine
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantCode(what string, err error, code eventhub.Code) {
	r.t.Helper()
	if eventhub.ErrorCode(err) != code {
		r.t.Errorf("%s: %v; want %q", what, err, code)
	}
}

func event(topic, id string, causes ...string) eventhub.Event {
	return eventhub.Event{Topic: topic, ID: id, CausedBy: causes, Payload: []byte(`{}`), Headers: map[string]string{eventhub.CorrelationHeader: "corr"}}
}

func (r *rig) publish(events ...eventhub.Event) {
	r.t.Helper()
	_, err := r.engine.Publish(context.Background(), events...)
	r.ok(err)
}

// rules makes a policy of rules such as "allow read open.**".
func rules(t *testing.T, rules ...policy.Rule) *policy.Policy {
	t.Helper()
	p, err := policy.New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func allow(a policy.Action, topics ...string) policy.Rule {
	return policy.Rule{Effect: policy.Allow, Action: string(a), Topics: topics}
}

func deny(a policy.Action, topics ...string) policy.Rule {
	return policy.Rule{Effect: policy.Deny, Action: string(a), Topics: topics}
}

// inbox is a receiver that takes everything.
type inbox struct {
	mu    sync.Mutex
	got   []eventhub.Delivery
	ended []error
}

func (in *inbox) Deliver(batch []eventhub.Delivery) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, d := range batch {
		d.Record = slices.Clone(d.Record)
		in.got = append(in.got, d)
	}
	return len(batch)
}

func (in *inbox) Ended(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = append(in.ended, err)
}

// take waits for what is delivered and returns it.
func (in *inbox) take() []eventhub.Delivery {
	synctest.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	got := in.got
	in.got = nil
	return got
}

// topics returns the topics of what was delivered, sorted, each once.
func (in *inbox) topics() (topics []string) {
	for _, d := range in.take() {
		topics = append(topics, d.Topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// fill makes two worlds of the same kind, open and secret: events that cause one another,
// groups with leases and a dead letter, patterns, delayed events and settings.
func (r *rig) fill() {
	r.t.Helper()
	ctx := context.Background()
	for _, world := range []string{"open", "secret"} {
		topic := world + ".a"
		r.publish(event(topic, world+"-1"), event(topic, world+"-2", "open-1", "secret-1"), event(topic, "both", "open-2", "secret-2"))
		delayed := event(topic, world+"-later")
		delayed.Delay = time.Hour
		r.publish(delayed)
		in := new(inbox)
		_, err := r.engine.Subscribe(ctx, eventhub.GroupOptions{Topic: world + ".**", Group: world + "-group", Start: eventhub.Earliest}, in)
		r.ok(err)
		got := in.take()
		_, err = r.engine.Settle(ctx, topic, world+"-group", eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Refs: []eventhub.Ref{{Lease: got[0].Lease}}})
		r.ok(err)
		for _, name := range []string{topic, world + ".*.*"} {
			_, err := r.engine.SetTopic(ctx, name, admin.TopicSettings{Retention: admin.Retention{Count: 1000}}, nil)
			r.ok(err)
		}
	}
	time.Sleep(time.Second)
	synctest.Wait()
}
