package guard_test

import (
	"fmt"
	"slices"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
)

// TestDenied: what is refused for want of a right is reported with what was named; what is left
// out, and what is refused for another reason, is not.
func TestDenied(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.fill()
		var reported []string
		e := guard.For(r.engine, openWorld(t), func(a policy.Action, name, group string) {
			reported = append(reported, fmt.Sprintf("%s %s %s", a, name, group))
		})
		want := func(what string, list ...string) {
			t.Helper()
			if !slices.Equal(reported, list) {
				t.Errorf("%s: %q are reported; want %q", what, reported, list)
			}
			reported = nil
		}
		ctx := t.Context()
		_, err := e.Publish(ctx, event("open.a", "p1"), event("secret.a", "p2"), event("secret.b", "p3"))
		r.wantCode("publish", err, eventhub.CodeForbidden)
		want("publish", "publish secret.a ")
		pubs := []eventhub.Publication{{Events: []eventhub.Event{event("secret.a", "q1")}}, {Events: []eventhub.Event{event("open.a", "q2")}}, {Events: []eventhub.Event{event("secret.b", "q3")}}}
		e.Enqueue(ctx, pubs, func([]eventhub.Publication) {})
		want("enqueue", "publish secret.a ", "publish secret.b ")
		_, err = e.Subscribe(ctx, eventhub.GroupOptions{Topic: "secret.**", Group: "g"}, new(inbox))
		r.wantCode("subscribe", err, eventhub.CodeForbidden)
		want("subscribe", "subscribe secret.** g")
		r.wantCode("backup", e.Backup(ctx, "x"), eventhub.CodeForbidden)
		want("the hub as a whole", "admin  ")
		_, err = e.Topic(ctx, "secret.a")
		r.wantCode("topic", err, eventhub.CodeForbidden)
		want("views", "read secret.a ")

		_, err = e.Topics(ctx, "", 100)
		r.ok(err)
		_, err = e.SettingsEntries(ctx, "", 100)
		r.ok(err)
		_, err = e.Find(ctx, "both", 100)
		r.ok(err)
		_, err = e.(admin.Concealer).ConcealsEvent(ctx, "both")
		r.ok(err)
		_, err = guard.BeginningsFor(e).Topics(ctx, "", 100)
		r.ok(err)
		_, err = e.Publish(ctx, event("not..valid", "p4"))
		r.wantCode("bad topic", err, eventhub.CodeBadTopic)
		want("what is left out")
	})
}
