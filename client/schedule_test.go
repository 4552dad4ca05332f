package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
	"eventhub/gateway/rest"
)

// diary is a catalogue that also has patterns and scheduled events.
type diary struct {
	*catalogue
	planned []admin.Scheduled
}

func (c *catalogue) Patterns(_ context.Context, group string) ([]admin.GroupPattern, error) {
	if group == "" {
		return c.patterns, c.err
	}
	return slices.DeleteFunc(slices.Clone(c.patterns), func(p admin.GroupPattern) bool { return p.Group != group }), c.err
}

func (c *catalogue) deletePattern(pattern, group string) error {
	n := len(c.patterns)
	c.patterns = slices.DeleteFunc(c.patterns, func(p admin.GroupPattern) bool { return p.Group == group && p.Pattern == pattern })
	if len(c.patterns) == n {
		return eventhub.Errorf(eventhub.CodeNotSubscribed, "group %q has no pattern %q", group, pattern)
	}
	return nil
}

func (d *diary) Scheduled(_ context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	var page []admin.Scheduled
	for _, s := range d.planned {
		after := s.DeliverAt > q.AfterAt || s.DeliverAt == q.AfterAt && s.Seq > q.AfterSeq
		if after && (q.Topic == "" || q.Topic == s.Topic) && len(page) < q.Limit {
			page = append(page, s)
		}
	}
	return page, d.err
}

func (d *diary) Cancel(_ context.Context, topic, id string) error {
	at := slices.IndexFunc(d.planned, func(s admin.Scheduled) bool { return s.Topic == topic && s.ID == id })
	if at < 0 {
		return eventhub.Errorf(eventhub.CodeUnknownID, "topic %q has no scheduled event %q", topic, id)
	}
	d.planned = slices.Delete(d.planned, at, at+1)
	return nil
}

func filledDiary() *diary {
	c := filled()
	c.patterns = []admin.GroupPattern{
		{Group: "..", Pattern: "a.**", Topics: 2, Ordering: "key", Filter: &eventhub.Filter{Key: "<k>*", Tags: []string{"#t"}}, MaxAttempts: 3, MinBackoffMS: 4, MaxBackoffMS: 5},
		{Group: "g:1", Pattern: "*.b"},
		{Group: "g:1", Pattern: "**"},
	}
	return &diary{c, []admin.Scheduled{
		{Topic: "a.b", ID: "..", Key: "<k>\u2028", DeliverAt: 5, Seq: 1}, {Topic: "a.b", ID: "x", DeliverAt: 5, Seq: 2}, {Topic: "c", ID: "x", DeliverAt: 9, Seq: 1},
	}}
}

// TestAdminSaysWhatIsToCome: patterns and scheduled events are through HTTP and back
// what they were.
func TestAdminSaysWhatIsToCome(t *testing.T) {
	d := filledDiary()
	adm := newAdmin(t, serve(t, gateway(t, rest.Access{Inspector: d, Operator: d, Scheduler: d}, "")))
	ctx := bounded(t)
	for _, group := range []string{"", "..", "g:1"} {
		same(t, "patterns of "+group, func(i admin.Inspector) ([]admin.GroupPattern, error) { return i.Patterns(ctx, group) }, adm, d)
	}
	if none, err := adm.Patterns(ctx, "nobody"); err != nil || len(none) != 0 {
		t.Errorf("patterns of nobody: %v, %v", none, err)
	}
	for _, q := range []admin.ScheduleQuery{
		{Limit: 1}, {Limit: 1000}, {Topic: "a.b", Limit: 9}, {AfterAt: 5, AfterSeq: 1, Limit: 1}, {AfterAt: 5, Limit: 2},
	} {
		got, err := adm.Scheduled(ctx, q)
		want, _ := d.Scheduled(ctx, q)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%+v: %v (-want +got):\n%s", q, err, diff)
		}
	}
	if all, err := adm.Scheduled(ctx, admin.ScheduleQuery{}); len(all) != 3 || err != nil {
		t.Errorf("without a limit: %v, %v", all, err)
	}
}

// TestAdminTakesBack what is scheduled, and the patterns of groups.
func TestAdminTakesBack(t *testing.T) {
	d := filledDiary()
	adm := newAdmin(t, serve(t, gateway(t, rest.Access{Inspector: d, Operator: d, Scheduler: d}, "")))
	ctx := bounded(t)
	wantCode(t, adm.Cancel(ctx, "a.b", "nothing"), eventhub.CodeUnknownID)
	wantCode(t, adm.Cancel(ctx, "a.b", "a/b"), eventhub.CodeBadEvent)
	wantCode(t, adm.Cancel(ctx, "a.*", "x"), eventhub.CodeBadTopic)
	for _, id := range []string{"..", "x"} {
		if err := adm.Cancel(ctx, "a.b", id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if left := fmt.Sprint(d.planned); left != "[{c x  9 1}]" {
		t.Errorf("what is left is %s", left)
	}
	wantCode(t, adm.DeleteGroup(ctx, "a.**", "g:1"), eventhub.CodeNotSubscribed)
	wantCode(t, adm.DeleteGroup(ctx, "a.**.**", "g:1"), eventhub.CodeBadTopic)
	wantCode(t, adm.DeleteGroup(ctx, "a.**", "a b"), eventhub.CodeBadRequest)
	if err := adm.DeleteGroup(ctx, "**", "g:1"); err != nil || len(d.patterns) != 2 || d.patterns[1].Pattern != "*.b" {
		t.Errorf("%v; the patterns left are %v", err, d.patterns)
	}
	_, err := adm.Patterns(ctx, "a b")
	wantCode(t, err, eventhub.CodeBadRequest)
}
