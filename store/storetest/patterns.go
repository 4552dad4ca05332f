package storetest

import (
	"context"
	"testing"

	"eventhub/store"
)

var patternTests = []test{
	{name: "write, overwrite, remove", run: testPatternLife},
	{name: "order", run: testPatternOrder},
	{name: "changes of one commit", run: testPatternChanges},
	{name: "values are copied", run: testPatternCopied},
	{name: "reopening", run: testPatternReopened},
}

func (s *env) patterns(t failer) []store.PatternInfo {
	t.Helper()
	list, err := s.ListPatterns(context.Background())
	if err != nil {
		t.Fatalf("ListPatterns: %v", err)
	}
	return list
}

func pattern(group, pattern, value string) store.PatternChange {
	return store.PatternChange{Group: group, Pattern: pattern, Value: []byte(value)}
}

func noPattern(group, pattern string) store.PatternChange {
	return store.PatternChange{Group: group, Pattern: pattern, Delete: true}
}

func patternsOf(changes ...store.PatternChange) (list []store.PatternInfo) {
	for _, ch := range changes {
		list = append(list, store.PatternInfo{Group: ch.Group, Pattern: ch.Pattern, Value: ch.Value})
	}
	return list
}

func testPatternLife(t *testing.T, s *env) {
	same(t, "patterns of none", 0, len(s.patterns(t)))
	a, b := pattern("g", "a.**", `{"x":1}`), pattern("g", "*", ``)
	s.commit(t, &store.Unit{Patterns: []store.PatternChange{a, b}})
	same(t, "patterns", patternsOf(b, a), s.patterns(t))
	a.Value = []byte(`[2]`)
	s.commit(t, &store.Unit{Patterns: []store.PatternChange{a}})
	same(t, "patterns after one was overwritten", patternsOf(b, a), s.patterns(t))
	s.commit(t, &store.Unit{Patterns: []store.PatternChange{noPattern("g", "*"), noPattern("g", "none"), noPattern("h", "a.**")}})
	same(t, "patterns after one was removed", patternsOf(a), s.patterns(t))
	same(t, "topics", 0, len(s.listTopics(t, "", noLimit)))
	s.commit(t, &store.Unit{Patterns: []store.PatternChange{noPattern("g", "a.**")}})
	same(t, "patterns after the last was removed", 0, len(s.patterns(t)))
}

// testPatternOrder: by group, then by pattern, also where one name goes on where
// another ends.
func testPatternOrder(t *testing.T, s *env) {
	var want []store.PatternChange
	for _, group := range []string{"G", "g", "g-", "g.h", "g:", "gg", "h"} {
		for _, p := range []string{"*", "**", "*.b", "a", "a.**", "b"} {
			want = append(want, pattern(group, p, `"`+group+" "+p+`"`))
		}
	}
	for i := range want {
		// 17 and their number, 42, have no common factor.
		s.commit(t, &store.Unit{Patterns: []store.PatternChange{want[i*17%len(want)]}})
	}
	same(t, "patterns", patternsOf(want...), s.patterns(t))
}

func testPatternChanges(t *testing.T, s *env) {
	one, two := pattern("g", "a", `1`), pattern("g", "a", `2`)
	for _, tt := range []struct {
		name    string
		changes []store.PatternChange
		want    []store.PatternChange
	}{
		{"write, write", []store.PatternChange{one, two}, []store.PatternChange{two}},
		{"write, remove", []store.PatternChange{one, noPattern("g", "a")}, nil},
		{"write, remove, write", []store.PatternChange{one, noPattern("g", "a"), two}, []store.PatternChange{two}},
		{"remove, write", []store.PatternChange{noPattern("g", "a"), one}, []store.PatternChange{one}},
	} {
		s.commit(t, &store.Unit{Patterns: tt.changes})
		same(t, "in one unit: "+tt.name, patternsOf(tt.want...), s.patterns(t))
		s.commit(t, &store.Unit{Patterns: []store.PatternChange{pattern("g", "a", `0`)}})
		var units []*store.Unit
		for _, ch := range tt.changes {
			units = append(units, &store.Unit{Patterns: []store.PatternChange{ch}})
		}
		s.commit(t, units...)
		same(t, tt.name, patternsOf(tt.want...), s.patterns(t))
	}
}

func testPatternCopied(t *testing.T, s *env) {
	ch := pattern("g", "a", `"first"`)
	s.commit(t, &store.Unit{Patterns: []store.PatternChange{ch}})
	clear(ch.Value)
	want := patternsOf(pattern("g", "a", `"first"`))
	same(t, "patterns after the caller changed its own", want, s.patterns(t))
	clear(s.patterns(t)[0].Value)
	same(t, "patterns after a reader changed its own", want, s.patterns(t))
}

func testPatternReopened(t *testing.T, s *env) {
	a, b := pattern("g", "a", `1`), pattern("g", "b", `2`)
	s.commit(t, &store.Unit{Patterns: []store.PatternChange{a, pattern("h", "a", `3`)}})
	u := &store.Unit{Patterns: []store.PatternChange{noPattern("h", "a"), b}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	want := patternsOf(a, b)
	same(t, "patterns after an unsynced commit", want, s.patterns(t))
	s.reopen(t)
	if !s.Capabilities().Persistent {
		want = nil
	}
	same(t, "patterns after reopening", want, s.patterns(t))
}
