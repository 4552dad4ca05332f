package storetest

import (
	"slices"
	"strings"
	"testing"

	"eventhub/store"
)

var topicTests = []test{
	{name: "list in pages", run: testListTopics},
	{name: "list after reopening", run: testListTopicsReopened},
}

func sortGroups(list []store.GroupInfo) {
	slices.SortFunc(list, func(a, b store.GroupInfo) int { return strings.Compare(a.Group, b.Group) })
}

// topicNames are in byte order.
var topicNames = []string{"A", "Z9", "_x", "a", "a-b", "a.b", "a.b.c", "ab", "b.dlq", "b.snapshot", "z"}

func fillTopics(t failer, s *env) []store.TopicInfo {
	t.Helper()
	var want []store.TopicInfo
	for i, name := range topicNames {
		a := numbered(t, s, name, 1+i%3)
		want = append(want, store.TopicInfo{Name: name, Head: a[i%3].Offset})
	}
	return want
}

func testListTopics(t *testing.T, s *env) {
	same(t, "list of none", 0, len(s.listTopics(t, "", 10)))
	want := fillTopics(t, s)
	same(t, "all", want, s.listTopics(t, "", noLimit))
	for _, size := range []int{1, 2, 3, len(want), len(want) + 1} {
		var got []store.TopicInfo
		for after := ""; ; {
			page := s.listTopics(t, after, size)
			if len(page) > size {
				t.Fatalf("a page of %d has %d topics", size, len(page))
			}
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
			after = page[len(page)-1].Name
		}
		same(t, "all pages", want, got)
	}
	same(t, "after a name that is not there", want[4:6], s.listTopics(t, "a!", 2))
	same(t, "after the last", 0, len(s.listTopics(t, "z", 10)))
	same(t, "limit 0", 0, len(s.listTopics(t, "", 0)))
}

func testListTopicsReopened(t *testing.T, s *env) {
	want := fillTopics(t, s)
	s.reopen(t)
	if !s.Capabilities().Persistent {
		want = nil
	}
	same(t, "all", want, s.listTopics(t, "", noLimit))
}
