package guard_test

import (
	"strings"
	"testing"

	"eventhub"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
)

// TestMisspeltGroup: the error names a group that is near only to whoever may see it in a list or
// subscribe as it.
func TestMisspeltGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.publish(event("open.a", "1"))
		for group, topic := range map[string]string{"worker-2": "open.a", "worker-1": "open.b.*"} {
			sub, err := r.engine.Subscribe(ctx, eventhub.GroupOptions{Topic: topic, Group: group}, new(inbox))
			r.ok(err)
			r.ok(sub.Unsubscribe(ctx))
		}
		as := func(groups ...string) policy.Rule {
			return policy.Rule{Effect: policy.Allow, Action: string(policy.Subscribe), Topics: []string{"open.**"}, Groups: groups}
		}
		may := func(a policy.Action, topic string) policy.Rule {
			return policy.Rule{Effect: policy.Allow, Action: string(a), Topics: []string{topic}}
		}
		for name, tt := range map[string]struct {
			rules []policy.Rule
			named bool
		}{
			"only as the one that is missing":  {[]policy.Rule{as("worker-1")}, false},
			"sees the groups of another topic": {[]policy.Rule{as("worker-1"), may(policy.Read, "open.b")}, false},
			"may be the other one":             {[]policy.Rule{as("worker-1", "worker-2")}, true},
			"may be any":                       {[]policy.Rule{as("*")}, true},
			"reads the topic":                  {[]policy.Rule{as("worker-1"), may(policy.Read, "open.a")}, true},
			"administers the topic":            {[]policy.Rule{as("worker-1"), may(policy.Admin, "open.a")}, true},
		} {
			e := guard.For(r.engine, rules(t, tt.rules...), nil)
			opts := eventhub.GroupOptions{Topic: "open.a", Group: "worker-1", NoCreate: true}
			_, subscribed := e.Subscribe(ctx, opts, new(inbox))
			_, pulled := e.Pull(ctx, opts, 0)
			opts.Topics = []string{"open.b.*"}
			_, patterned := e.Subscribe(ctx, opts, new(inbox))
			for _, err := range []error{subscribed, pulled, patterned} {
				r.wantCode(name, err, eventhub.CodeNotSubscribed)
				if named := err != nil && strings.HasSuffix(err.Error(), "; did you mean worker-2?"); named != tt.named || !named && strings.Contains(err.Error(), "worker-2") {
					t.Errorf("%s: %v; want that it names the other group: %t", name, err, tt.named)
				}
			}
		}
	})
}
