package guard_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/guard"
	"eventhub/auth/policy"
	"eventhub/internal/causality"
)

// openWorld are all rights to one of two worlds, and to some topics that are in none.
func openWorld(t *testing.T) *policy.Policy {
	return rules(t, deny("*", "secret.**"), allow("*", "open.**", "shared.*", "other"))
}

// TestListsInPages: pages without what does not show are as full as others, whatever their
// size, in order, and end where there is no more.
func TestListsInPages(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		var want []string
		for i := range 30 {
			// Some come before those that show, some after them.
			topic := fmt.Sprintf("%s.t%02d", []string{"hidden", "secret"}[i%2], i)
			if i%7 == 3 {
				topic = fmt.Sprintf("open.t%02d", i)
				want = append(want, topic)
			}
			r.publish(event(topic, fmt.Sprint("id", i), "cause"))
			later := event(topic, fmt.Sprint("later", i))
			later.Delay = time.Duration(i+1) * time.Minute
			r.publish(later)
			sub, err := r.engine.Subscribe(t.Context(), eventhub.GroupOptions{Topic: topic, Group: "g"}, new(inbox))
			r.ok(err)
			sub.Drop(0)
		}
		e := guard.For(r.engine, openWorld(t), nil)
		for _, limit := range []int{1, 2, 3, 5, 1000} {
			for name, next := range map[string]func(after string) ([]string, string){
				"Topics": func(after string) (names []string, last string) {
					list, err := e.Topics(t.Context(), after, limit)
					r.ok(err)
					for _, of := range list {
						names, last = append(names, of.Topic), of.Topic
					}
					return names, last
				},
				"Groups": func(after string) (names []string, last string) {
					q := admin.GroupQuery{AfterTopic: after, Limit: limit}
					if after != "" {
						q.AfterGroup = "g"
					}
					list, err := e.Groups(t.Context(), q)
					r.ok(err)
					for _, of := range list {
						names, last = append(names, of.Topic), of.Topic
					}
					return names, last
				},
				"Scheduled": func(after string) (names []string, last string) {
					q := admin.ScheduleQuery{Limit: limit}
					_, _ = fmt.Sscan(after, &q.AfterAt, &q.AfterSeq)
					list, err := e.Scheduled(t.Context(), q)
					r.ok(err)
					for _, of := range list {
						names, last = append(names, of.Topic), fmt.Sprint(of.DeliverAt, " ", of.Seq)
					}
					return names, last
				},
				"Effects": func(after string) (names []string, last string) {
					list, err := e.Effects(t.Context(), "cause", eventhub.Place{Topic: after, Offset: uint64(len(after))}, limit)
					r.ok(err)
					for _, of := range list {
						names, last = append(names, of.Topic), of.Topic
					}
					return names, last
				},
			} {
				var got []string
				for page, last := next(""); len(page) > 0; page, last = next(last) {
					if len(page) > limit {
						t.Errorf("%s: a page of %d has %d", name, limit, len(page))
					}
					got = append(got, page...)
					if name != "Effects" && len(page) < limit {
						break
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s by %d: %v; want %v", name, limit, got, want)
				}
			}
		}
		for _, limit := range []int{0, 1001} {
			_, err := e.Topics(t.Context(), "", limit)
			r.wantCode("a page of a wrong size", err, eventhub.CodeBadRequest)
		}
	})
}

// TestPatterns: groups and tails by pattern have the allowed topics, later ones too, and
// bring the group to no other; a pattern, or a name in a list, that can have none is refused.
func TestPatterns(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(event("open.a", "1"), event("secret.a", "1"))
		e := guard.For(r.engine, openWorld(t), nil)
		group, tail := new(inbox), new(inbox)
		sub, err := e.Subscribe(t.Context(), eventhub.GroupOptions{Topic: "**", Group: "g", Start: eventhub.Earliest}, group)
		r.ok(err)
		follows, err := e.Tail(t.Context(), eventhub.TailOptions{Topic: "**", Topics: []string{"open.a"}, Start: eventhub.Earliest}, tail)
		r.ok(err)
		r.publish(event("open.b", "2"), event("secret.b", "2"), event("neither", "2"))
		want := []string{"open.a", "open.b"}
		if got := group.topics(); !slices.Equal(got, want) {
			t.Errorf("the group has %v; want %v", got, want)
		}
		if got := tail.topics(); !slices.Equal(got, want) {
			t.Errorf("the tail has %v; want %v", got, want)
		}
		sub.Drop(0)
		follows.Drop(0)
		r.publish(event("open.c", "3"), event("secret.c", "3"))
		synctest.Wait()
		list, err := r.engine.Groups(t.Context(), admin.GroupQuery{Group: "g"})
		r.ok(err)
		var brought []string
		for _, g := range list {
			brought = append(brought, g.Topic)
		}
		if want := []string{"open.a", "open.b", "open.c"}; !slices.Equal(brought, want) {
			t.Errorf("the pattern brought the group to %v; want %v", brought, want)
		}
		for _, o := range []eventhub.GroupOptions{
			{Topic: "secret.**", Group: "g"}, {Topic: "neither", Group: "g"}, {Topic: "open.*", Topics: []string{"secret.a"}, Group: "g"},
			{Topic: "secret.*.dlq", Group: "g"},
		} {
			_, err := e.Subscribe(t.Context(), o, group)
			r.wantCode(fmt.Sprint("a group of ", o.Topic, o.Topics), err, eventhub.CodeForbidden)
			_, err = e.Pull(t.Context(), o, 0)
			r.wantCode(fmt.Sprint("a pull of ", o.Topic, o.Topics), err, eventhub.CodeForbidden)
			_, err = e.Tail(t.Context(), eventhub.TailOptions{Topic: o.Topic, Topics: o.Topics}, tail)
			r.wantCode(fmt.Sprint("a tail of ", o.Topic, o.Topics), err, eventhub.CodeForbidden)
		}
		got, err := e.Pull(t.Context(), eventhub.GroupOptions{Topic: "**", Group: "pulled", Start: eventhub.Earliest}, 0)
		if err != nil || len(got) == 0 || slices.ContainsFunc(got, func(d eventhub.Delivery) bool { return !strings.HasPrefix(d.Topic, "open.") }) {
			t.Errorf("a pull has %v, %v", got, err)
		}
		var read []string
		r.ok(e.Replay(t.Context(), admin.ReplayQuery{Topic: "**"}, func(topic string, _ eventhub.Item) error {
			read = append(read, topic)
			return nil
		}))
		if want := []string{"open.a", "open.b", "open.c"}; !slices.Equal(read, want) {
			t.Errorf("a replay has %v; want %v", read, want)
		}
	})
}

// TestGroupsOfRules: a rule with groups is about these alone, and no tail; bad names are not
// a matter of rights.
func TestGroupsOfRules(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		mine := allow(policy.Subscribe, "a")
		mine.Groups = []string{"mine"}
		e := guard.For(r.engine, rules(t, mine), nil)
		subscribe := func(topic, group string) error {
			sub, err := e.Subscribe(t.Context(), eventhub.GroupOptions{Topic: topic, Group: group}, new(inbox))
			if err == nil {
				sub.Drop(0)
			}
			return err
		}
		r.ok(subscribe("a", "mine"))
		err := subscribe("a", "other")
		r.wantCode("another group", err, eventhub.CodeForbidden)
		for _, part := range []string{"subscribe", `"a"`, `"other"`} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not name %s", err, part)
			}
		}
		_, err = e.Tail(t.Context(), eventhub.TailOptions{Topic: "a"}, new(inbox))
		r.wantCode("a tail", err, eventhub.CodeForbidden)
		r.wantCode("no name of a topic", subscribe("a..b", "mine"), eventhub.CodeBadTopic)
		_, err = e.Publish(t.Context(), event("a b", "1"))
		r.wantCode("no name of a topic", err, eventhub.CodeBadTopic)
		_, err = e.Settle(t.Context(), "a", "other", eventhub.Settlement{})
		r.wantCode("acks of another group", err, eventhub.CodeForbidden)
	})
}

// TestKeyHistoryHidesCauses: of a cause in a topic that may not be read a history says that it is
// hidden, and no more.
func TestKeyHistoryHidesCauses(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(event("secret.a", "s"), event("open.a", "o"), event("secret.a", "both"), event("open.b", "both"))
		e := event("open.s", "", "s", "o", "both", "none")
		e.Key = "k"
		r.publish(e)
		g := guard.For(r.engine, openWorld(t), nil)
		page, err := g.KeyHistory(t.Context(), admin.KeyHistoryQuery{Topic: "open.s", Key: "k", Limit: 1})
		r.ok(err)
		want := []admin.Cause{{ID: "s", Hidden: true}, {ID: "o", Topic: "open.a", Offset: 1}, {ID: "both", Topic: "open.b", Offset: 1}, {ID: "none", Missing: true}}
		if len(page.Changes) != 1 || !slices.Equal(page.Changes[0].Causes, want) {
			t.Errorf("%+v; want the causes %+v", page.Changes, want)
		}
		_, err = g.KeyHistory(t.Context(), admin.KeyHistoryQuery{Topic: "secret.a", Key: "k", Limit: 1})
		r.wantCode("a history of a topic without rights", err, eventhub.CodeForbidden)
		none := func(string) bool { return false }
		if page, err = g.KeyHistoryAmong(t.Context(), admin.KeyHistoryQuery{Topic: "open.s", Key: "k", Limit: 1}, none); err != nil || !page.Changes[0].Causes[1].Hidden {
			t.Errorf("among no topics: %+v, %v", page, err)
		}
	})
}

// TestConditionsAsk: a condition asks what the topic has, so who may not read the topic may not
// have one, over any door.
func TestConditionsAsk(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(event("a", "1"), event("b", "1"))
		in := new(inbox)
		e := guard.For(r.engine, rules(t, allow(policy.Publish, "*"), allow(policy.Read, "b"), allow(policy.Subscribe, "b")), nil)
		sub, err := e.Subscribe(t.Context(), eventhub.GroupOptions{Topic: "b", Group: "g", Start: eventhub.Earliest}, in)
		r.ok(err)
		ref := []eventhub.Ref{{Lease: in.take()[0].Lease}}
		on := func(topic string, x eventhub.Expect) eventhub.Event {
			return eventhub.Event{Topic: topic, Key: "k", Payload: []byte(`1`), Expect: x}
		}
		for _, x := range []eventhub.Expect{eventhub.IfKeyOffset(7), eventhub.IfTopicOffset(7)} {
			for topic, want := range map[string]eventhub.Code{"a": eventhub.CodeForbidden, "b": eventhub.CodeConflict} {
				batch := []eventhub.Event{event(topic, ""), on(topic, x)}
				_, err := e.Publish(t.Context(), batch...)
				r.wantCode("Publish", err, want)
				if at := eventhub.AsError(err).Index; at == nil || *at != 1 {
					t.Errorf("%v is about event %v; want 1", err, at)
				}
				pubs := []eventhub.Publication{{Events: batch}}
				over := make(chan struct{})
				e.Enqueue(t.Context(), pubs, func([]eventhub.Publication) { close(over) })
				<-over
				r.wantCode("Enqueue", pubs[0].Err, want)
				_, err = eventhub.AckAndPublish(t.Context(), sub, ref, batch...)
				r.wantCode("AckAndPublish", err, want)
			}
		}
		_, err = e.Publish(t.Context(), event("a", ""))
		r.wantCode("without a condition", err, "")
	})
}

// TestLeasesUnderPatterns: a lease of a topic without rights names nothing, also where a
// pattern is named that has the topic.
func TestLeasesUnderPatterns(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(event("open.a", "1"), event("open.a", "2"), event("secret.a", "3"))
		all := new(inbox)
		_, err := r.engine.Subscribe(t.Context(), eventhub.GroupOptions{Topic: "**", Group: "g", Start: eventhub.Earliest}, all)
		r.ok(err)
		leases := make(map[string]eventhub.Ref)
		for _, d := range all.take() {
			leases[string(d.Record.ID())] = eventhub.Ref{Lease: d.Lease}
		}
		refs := []eventhub.Ref{leases["3"], leases["1"]}
		e := guard.For(r.engine, openWorld(t), nil)
		out, err := e.Settle(t.Context(), "**", "g", eventhub.Settlement{Refs: refs})
		if err != nil || !slices.Equal(out, []eventhub.Outcome{eventhub.Stale, eventhub.Applied}) {
			t.Errorf("outcomes %v, %v", out, err)
		}
		out, err = e.Settle(t.Context(), "**", "g", eventhub.Settlement{Verdict: eventhub.Extend, By: time.Minute, Refs: refs[:1]})
		if err != nil || !slices.Equal(out, []eventhub.Outcome{eventhub.Unknown}) {
			t.Errorf("outcomes of an extension %v, %v", out, err)
		}
		hs := []eventhub.AckPublish{
			{Refs: []eventhub.Ref{leases["3"]}, Events: []eventhub.Event{event("open.b", "b1")}},
			{Refs: []eventhub.Ref{leases["2"]}, Events: []eventhub.Event{event("open.b", "b2")}},
		}
		over := make(chan struct{})
		e.AckAndPublish(t.Context(), "**", "g", hs, func([]eventhub.AckPublish) { close(over) })
		<-over
		r.wantCode("an ack with publish by such a lease", hs[0].Err, eventhub.CodeLeaseLost)
		r.wantCode("one by another", hs[1].Err, "")
		info, err := r.engine.Group(t.Context(), "secret.a", "g")
		if err != nil || info.InFlight != 1 {
			t.Errorf("%d in flight in the topic without rights, %v", info.InFlight, err)
		}
	})
}

// TestSomeAreRefused: of independent publications, and of acks with publish, those to topics
// without rights are refused, each in its place, and the others are done.
func TestSomeAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		e := guard.For(r.engine, openWorld(t), nil)
		for round, denied := range [][]bool{{}, {true}, {false, true, false}, {true, false, true}, {true, true}, {false, false}} {
			var pubs []eventhub.Publication
			for i, is := range denied {
				topic := map[bool]string{true: "secret.a", false: "open.a"}[is]
				pubs = append(pubs, eventhub.Publication{Events: []eventhub.Event{event("open.a", ""), event(topic, fmt.Sprintf("r%d-%d", round, i))}})
			}
			over, calls := make(chan []eventhub.Publication, 2), 0
			e.Enqueue(t.Context(), pubs, func(pubs []eventhub.Publication) { calls++; over <- pubs })
			done := <-over
			synctest.Wait()
			if len(done) != len(denied) || calls != 1 {
				t.Fatalf("%d of %d are done in %d calls", len(done), len(denied), calls)
			}
			for i, is := range denied {
				p := &done[i]
				switch {
				case is && (eventhub.ErrorCode(p.Err) != eventhub.CodeForbidden || *eventhub.AsError(p.Err).Index != 1 || len(p.Receipts) != 0):
					t.Errorf("%v: %d: %v, %v; want it forbidden for its second event", denied, i, p.Receipts, p.Err)
				case !is && (p.Err != nil || len(p.Receipts) != 2 || p.Receipts[1].ID != fmt.Sprintf("r%d-%d", round, i)):
					t.Errorf("%v: %d: %v, %v", denied, i, p.Receipts, p.Err)
				}
			}
		}
		in := new(inbox)
		sub, err := e.Subscribe(t.Context(), eventhub.GroupOptions{Topic: "open.a", Group: "g", Start: eventhub.Earliest}, in)
		r.ok(err)
		got := in.take()
		_, err = eventhub.AckAndPublish(t.Context(), sub, []eventhub.Ref{{Lease: got[0].Lease}}, event("secret.a", "x"))
		r.wantCode("an ack with an event to a topic without rights", err, eventhub.CodeForbidden)
		_, err = eventhub.AckAndPublish(t.Context(), sub, []eventhub.Ref{{Lease: got[0].Lease}}, event("open.b", "x"))
		r.ok(err)
		if _, err := r.engine.Topic(t.Context(), "secret.a"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			t.Errorf("the topic without rights is there: %v", err)
		}
	})
}

// TestChangesOfPatterns: what changes all topics of a pattern needs the right to all of them.
func TestChangesOfPatterns(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.fill()
		e := guard.For(r.engine, openWorld(t), nil)
		for _, tt := range []struct {
			pattern string
			code    eventhub.Code
		}{{"**", eventhub.CodeForbidden}, {"*.a", eventhub.CodeForbidden}, {"secret.**", eventhub.CodeForbidden}, {"open.**", ""}} {
			_, err := e.PlanSettings(t.Context(), tt.pattern, admin.TopicSettings{})
			r.wantCode("PlanSettings of "+tt.pattern, err, tt.code)
			_, err = e.SetTopic(t.Context(), tt.pattern, admin.TopicSettings{}, nil)
			r.wantCode("SetTopic of "+tt.pattern, err, tt.code)
			r.wantCode("UnsetTopic of "+tt.pattern, e.UnsetTopic(t.Context(), tt.pattern, nil), tt.code)
			err = e.DeleteGroup(t.Context(), tt.pattern, "open-group")
			r.wantCode("DeleteGroup in "+tt.pattern, err, tt.code)
		}
		r.wantCode("a backup", e.Backup(t.Context(), "x"), eventhub.CodeForbidden)
		r.wantCode("a backup for an admin of everything", guard.For(r.engine, policy.Scopes([]string{"admin"}), nil).Backup(t.Context(), "x"), eventhub.CodeUnsupportedOp)
	})
}

// TestDeadLettersHaveTheRightsOfTheirSource: by either name of them.
func TestDeadLettersHaveTheRightsOfTheirSource(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.fill()
		e := guard.For(r.engine, rules(t, deny("*", "secret.**"), allow("*", "open.a")), nil)
		for _, topic := range []string{"open.a", "open.a.dlq", "secret.a", "secret.a.dlq"} {
			want := eventhub.Code("")
			if strings.HasPrefix(topic, "secret") {
				want = eventhub.CodeForbidden
			}
			n := 0
			err := e.DeadLetters(t.Context(), admin.DeadLetterQuery{Topic: topic, All: true}, func(*admin.DeadLetter) error { n++; return nil })
			r.wantCode("the dead letters of "+topic, err, want)
			if want == "" && n != 1 {
				t.Errorf("%d dead letters of %s", n, topic)
			}
			_, err = e.Redrive(t.Context(), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: topic}})
			r.wantCode("a redrive of "+topic, err, want)
			_, err = e.Requeue(t.Context(), topic, 1, []byte(`1`), "me")
			r.wantCode("a requeue of "+topic, err, want)
			source := strings.TrimSuffix(topic, ".dlq")
			_, err = e.Topic(t.Context(), source+".dlq")
			r.wantCode("the topic of the dead letters of "+topic, err, want)
		}
		for _, topic := range []string{"open.a", "open.a.dlq"} {
			e := guard.For(r.engine, rules(t, allow("*", "**.dlq")), nil)
			_, err := e.Redrive(t.Context(), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: topic}})
			r.wantCode("a redrive of "+topic+" without rights to the source", err, eventhub.CodeForbidden)
			_, err = e.Requeue(t.Context(), topic, 1, []byte(`1`), "me")
			r.wantCode("a requeue of "+topic+" without rights to the source", err, eventhub.CodeForbidden)
		}
		// A filter reads.
		for name, tt := range map[string]struct {
			filter eventhub.Filter
			reads  bool
		}{
			"CEL": {eventhub.Filter{CEL: "true"}, true}, "a header": {eventhub.Filter{Headers: map[string]string{"x": "1"}}, true},
			"a tag": {eventhub.Filter{Tags: []string{"x"}}, true}, "key and CEL": {eventhub.Filter{Key: "k", CEL: "true"}, true}, "a key": {eventhub.Filter{Key: "k"}, false},
		} {
			q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "open.a", Filter: &tt.filter}}
			_, err := guard.For(r.engine, rules(t, allow(policy.Admin, "**")), nil).Redrive(t.Context(), q)
			if denied := eventhub.ErrorCode(err) == eventhub.CodeForbidden; denied != tt.reads || !denied && err != nil {
				t.Errorf("a redrive by %s of who may not read: %v; want it forbidden: %v", name, err, tt.reads)
			}
			_, err = guard.For(r.engine, rules(t, allow(policy.Admin, "**"), allow(policy.Read, "open.a.dlq")), nil).Redrive(t.Context(), q)
			r.wantCode("a redrive by "+name+" of who may read the dead letters", err, "")
		}
		alone := guard.For(r.engine, rules(t, allow(policy.Read, "**.dlq")), nil)
		r.ok(alone.DeadLetters(t.Context(), admin.DeadLetterQuery{Topic: "secret.a"}, func(*admin.DeadLetter) error { return nil }))
		_, err := alone.Topic(t.Context(), "secret.a")
		r.wantCode("the source for whoever may read dead letters alone", err, eventhub.CodeForbidden)
	})
}

// TestTraceThroughOtherTopics: it says that something is hidden, and not what.
func TestTraceThroughOtherTopics(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(event("secret.a", "cause"), event("open.a", "x", "cause"))
		for i := range 1001 { // more than a page
			r.publish(event("open.a", fmt.Sprint("e", i), "x"))
		}
		r.publish(event("secret.a", "effect", "x"), event("open.a", "beyond", "effect"))
		e := guard.For(r.engine, openWorld(t), nil)
		trace, err := causality.Walk(t.Context(), e, e, "cause", 1, 1000)
		r.ok(err)
		if n := trace.Nodes[0]; !n.Hidden || n.Topic != "" || len(trace.Nodes) != 2 || trace.Nodes[1].ID != "x" {
			t.Errorf("the trace of what is hidden: %+v", trace.Nodes)
		}
		for id, want := range map[string]bool{"x": true, "cause": false, "nobody": false} {
			if is, err := e.(admin.Concealer).ConcealsEffects(t.Context(), id); err != nil || is != want {
				t.Errorf("effects of %s are hidden: %v, %v; want %v", id, is, err, want)
			}
		}
		_, err = causality.Walk(t.Context(), e, e, "effect", 1, 1000)
		r.ok(err) // beyond names it
		r.publish(event("secret.a", "alone"))
		_, err = causality.Walk(t.Context(), e, e, "alone", 1, 1000)
		r.wantCode("the trace of what nobody names", err, eventhub.CodeUnknownID)
		found, err := e.Find(t.Context(), "alone", 10)
		if err != nil || len(found) != 0 {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// TestBeyondAPage: who may see the last topic alone finds it after more topics than a page has,
// in every list, and nothing says that there are others.
func TestBeyondAPage(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		topics := []string{"open.z"}
		for i := range admin.MaxPage + 5 {
			topics = append(topics, fmt.Sprintf("a.%d", i))
		}
		for _, topic := range topics {
			delayed := event(topic, "later")
			delayed.Delay = time.Hour
			r.publish(event(topic, "same"), delayed)
			in := new(inbox)
			_, err := r.engine.Subscribe(ctx, eventhub.GroupOptions{Topic: topic, Group: "g", Start: eventhub.Earliest}, in)
			r.ok(err)
			_, err = r.engine.Settle(ctx, topic, "g", eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Refs: []eventhub.Ref{{Lease: in.take()[0].Lease}}})
			r.ok(err)
			_, err = r.engine.SetTopic(ctx, topic, admin.TopicSettings{Retention: admin.Retention{Count: 1000}}, nil)
			r.ok(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		e := guard.For(r.engine, rules(t, allow(policy.Read, "open.**")), nil)
		for _, limit := range []int{1, 2, admin.MaxPage} {
			list := func(what string, n int, err error, first func() string) {
				t.Helper()
				if err != nil || n == 0 || first() != "open.z" || n > 2 {
					t.Errorf("%s, %d at most: %d entries, %v", what, limit, n, err)
				}
			}
			found, err := e.Find(ctx, "same", limit)
			list("events", len(found), err, func() string { return found[0].Topic })
			infos, err := e.Topics(ctx, "", limit)
			list("topics", len(infos), err, func() string { return infos[0].Topic })
			groups, err := e.Groups(ctx, admin.GroupQuery{Limit: limit})
			list("groups", len(groups), err, func() string { return groups[0].Topic })
			later, err := e.Scheduled(ctx, admin.ScheduleQuery{Limit: limit})
			list("delayed events", len(later), err, func() string { return later[0].Topic })
			letters, err := e.DeadLetterTopics(ctx, "", limit)
			list("dead letters", len(letters), err, func() string { return eventhub.SourceTopic(letters[0].DLQ) })
			entries, err := e.SettingsEntries(ctx, "", limit)
			list("settings", len(entries), err, func() string { return entries[0].Name })
			events, err := e.Correlated(ctx, "corr", eventhub.Place{}, limit)
			list("events of a correlation", len(events), err, func() string { return events[0].Topic })
		}
		other := guard.For(r.engine, rules(t, allow(policy.Read, "a.**")), nil)
		for who, want := range map[guard.Engine]bool{e: true, other: true, guard.For(r.engine, rules(t, allow(policy.Read, "a.**", "open.**")), nil): false} {
			if is, err := who.(admin.Concealer).ConcealsEvent(ctx, "same"); err != nil || is != want {
				t.Errorf("an event is hidden: %v, %v; want %v", is, err, want)
			}
		}
	})
}

// TestBeginnings: whoever may follow a topic learns where its tail is to begin, and no more.
func TestBeginnings(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.publish(event("open.a", "1"), event("secret.a", "2"))
		e := guard.For(r.engine, rules(t, allow(policy.Subscribe, "open.**"), allow(policy.Read, "secret.**")), nil)
		b := guard.BeginningsFor(e)
		list, err := b.Topics(t.Context(), "", 10)
		if err != nil || len(list) != 1 || list[0].Topic != "open.a" {
			t.Errorf("topics %v, %v", list, err)
		}
		_, err = b.Topic(t.Context(), "open.a")
		r.ok(err)
		_, err = b.Event(t.Context(), "open.a", "1")
		r.ok(err)
		_, err = b.Topic(t.Context(), "secret.a")
		r.wantCode("the head", err, eventhub.CodeForbidden)
		_, err = b.Event(t.Context(), "secret.a", "2")
		r.wantCode("an event", err, eventhub.CodeForbidden)
		if guard.BeginningsFor(r.engine) != guard.Beginnings(r.engine) {
			t.Error("full rights have something before the engine")
		}
	})
}

// TestDecisions: they do not depend on what was asked before, on memory that is used again,
// nor on how many topics there are.
func TestDecisions(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		e := guard.For(r.engine, openWorld(t), nil)
		memory := make([]byte, len("secret.t000"))
		for i := range 2000 {
			world, want := "shared.t", eventhub.CodeUnknownID
			if i%3 == 0 {
				world, want = "secret.t", eventhub.CodeForbidden
			}
			text := append(memory[:0], fmt.Sprintf("%s%03d", world, i*7%400)...)
			topic := unsafe.String(&text[0], len(text))
			if err := e.Cancel(context.Background(), topic, "nobody"); eventhub.ErrorCode(err) != want {
				t.Fatalf("question %d about %s: %v; want %s", i, topic, err, want)
			}
		}
	})
}

// TestStateTakesBothRights: a tail with the state takes the rights to subscribe and to read.
func TestStateTakesBothRights(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		for scopes, allowed := range map[string]bool{"subscribe:a read:a": true, "subscribe:a": false, "read:a": false, "subscribe:a read:b": false} {
			e := guard.For(r.engine, policy.Scopes(strings.Fields(scopes)), nil)
			sub, err := e.Tail(t.Context(), eventhub.TailOptions{Topic: "a", Start: eventhub.Snapshot}, new(inbox))
			if denied := eventhub.ErrorCode(err) == eventhub.CodeForbidden; denied == allowed || !denied && err != nil {
				t.Errorf("%s: %v", scopes, err)
			}
			if sub != nil {
				sub.Drop(0)
			}
		}
	})
}

// TestAdopt: with other rights a subscription goes on where all that it has, and could have
// later, is still allowed, and publishes by the new ones.
func TestAdopt(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		patterns := func(texts ...string) (all []eventhub.Pattern) {
			for _, text := range texts {
				p, err := eventhub.ParsePattern(text)
				r.ok(err)
				all = append(all, p)
			}
			return all
		}
		// A scope after a - is a rule that denies; what follows it allows.
		scopes := func(words string) guard.Engine {
			if !strings.HasPrefix(words, "-") {
				return guard.For(r.engine, policy.Scopes(strings.Fields(words)), nil)
			}
			var rules []policy.Rule
			for _, word := range strings.Fields(words) {
				word, denies := strings.CutPrefix(word, "-")
				action, topics, _ := strings.Cut(word, ":")
				rule := policy.Rule{Effect: policy.Allow, Action: action, Topics: []string{topics}}
				if denies {
					rule.Effect = policy.Deny
				}
				rules = append(rules, rule)
			}
			p, err := policy.New(rules)
			r.ok(err)
			return guard.For(r.engine, p, nil)
		}
		for _, tt := range []struct {
			from, topic, group, to string
			goesOn                 bool
		}{
			{"*", "a", "g", "subscribe:a", true},
			{"*", "a", "g", "publish:a", false},
			{"*", "a.*", "", "subscribe:a.**", true},
			{"*", "a.**", "", "subscribe:a.*", false},
			{"subscribe:a.b", "**", "g", "subscribe:a.*", true}, // it has a.b alone
			{"subscribe:a.*", "**", "g", "subscribe:a.b", false},
			{"subscribe:a.*", "**", "g", "*", true},
			{"subscribe:a.*", "a.b", "", "subscribe:a.b", true},
			{"-*:a.b.** *:a.**", "a.**", "g", "-*:a.b.** *:a.**", true}, // the same again
			{"-*:a.b.** *:a.**", "**", "", "-*:a.b.* subscribe:a.**", true},
			{"-*:a.b.* *:a.**", "**", "", "-*:a.b.** *:a.**", false},
			{"-*:a.b.* *:a.**", "**", "", "-*:a.b.* -*:a.c *:a.**", false},
			{"-*:a.b.dlq *:a.**", "a.*.dlq", "", "-*:a.*.dlq *:a.**", false},
			{"*", "a", "the state", "subscribe:a read:a", true},
			{"*", "a", "the state", "subscribe:a", false},
			{"subscribe:a read:a", "a", "the state", "subscribe:a read:b", false},
		} {
			from, to := scopes(tt.from), scopes(tt.to)
			var sub eventhub.Subscription
			var err error
			if tt.group == "the state" {
				tt.group = ""
				sub, err = from.Tail(t.Context(), eventhub.TailOptions{Topic: tt.topic, Start: eventhub.Snapshot}, new(inbox))
			} else if tt.group == "" {
				sub, err = from.Tail(t.Context(), eventhub.TailOptions{Topic: tt.topic}, new(inbox))
			} else {
				sub, err = from.Subscribe(t.Context(), eventhub.GroupOptions{Topic: tt.topic, Group: tt.group}, new(inbox))
			}
			r.ok(err)
			adopted, err := guard.Adopt(to, sub, patterns(tt.topic), tt.group)
			if denied := eventhub.ErrorCode(err) == eventhub.CodeForbidden; denied == tt.goesOn || !denied && err != nil {
				t.Errorf("%+v: %v", tt, err)
			}
			if err == nil {
				// What it had first is known also after full rights.
				adopted, err = guard.Adopt(r.engine, adopted, patterns(tt.topic), tt.group)
				r.ok(err)
				_, err = guard.Adopt(from, adopted, patterns(tt.topic), tt.group)
				r.ok(err)
			}
			sub.Drop(0)
		}
	})
}
