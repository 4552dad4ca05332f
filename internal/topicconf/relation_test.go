package topicconf

import (
	"strings"
	"testing"

	"eventhub"

	"pgregory.net/rapid"
)

func mustPattern(t interface{ Fatal(...any) }, text string) eventhub.Pattern {
	p, err := eventhub.ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRelate(t *testing.T) {
	for _, tt := range []struct {
		p, q string
		want Relation
	}{
		{"orders.eu", "orders.*", Inside},
		{"orders.*", "orders.**", Inside},
		{"orders.**", "**", Inside},
		{"*", "**", Inside},
		{"orders.*", "*.created", Crossing},
		{"orders.**", "**.created", Crossing},
		{"orders.eu.*", "orders.*.created", Crossing},
		{"orders.**", "payments.**", Disjoint},
		{"a.*", "*", Disjoint},
		{"a.**.b", "a.*.b", Around},
		{"a.b", "a.b", Same},
		{"a.*.**", "a.**.*", Same},
		{"orders.**", "**.dlq", Disjoint}, // what ** is not
		{"orders.**.dlq", "**.dlq", Inside},
		{"orders.**.dlq", "**.dlq.dlq", Disjoint},
		{"*.dlq.*", "a.**", Crossing}, // a dlq in the middle is like any other
		{"**.snapshot", "**.dlq", Disjoint},
		{"system.*", "**", Disjoint},
		{"system.*", "*.a", Disjoint},
		{"a.system", "a.*", Inside},
		{"**.system.a", "system.a", Around},
	} {
		p, q := mustPattern(t, tt.p), mustPattern(t, tt.q)
		if got := Relate(p, q); got != tt.want {
			t.Errorf("Relate(%s, %s) = %d; want %d", tt.p, tt.q, got, tt.want)
		}
		if got := Relate(q, p); got != turned(tt.want) {
			t.Errorf("Relate(%s, %s) = %d; want %d", tt.q, tt.p, got, turned(tt.want))
		}
	}
}

func turned(r Relation) Relation {
	switch r {
	case Inside:
		return Around
	case Around:
		return Inside
	}
	return r
}

// TestRelateAgreesWithMatch: on random topics of few segments, no match contradicts what
// Relate says; and what it says has a topic that shows it.
func TestRelateAgreesWithMatch(t *testing.T) {
	names := []string{"a", "b", "system", "dlq", "snapshot"}
	topics := everyTopic(append(names, "z"), 5)
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(label string) eventhub.Pattern {
			for {
				segments := rapid.SliceOfN(rapid.SampledFrom(append(names, "*", "**", "*", "**")), 1, 3).Draw(rt, label)
				if p, err := eventhub.ParsePattern(strings.Join(segments, ".")); err == nil {
					return p
				}
			}
		}
		p, q := draw("p"), draw("q")
		var both, onlyP, onlyQ bool
		for _, topic := range topics {
			inP, inQ := p.Match(topic), q.Match(topic)
			both, onlyP, onlyQ = both || inP && inQ, onlyP || inP && !inQ, onlyQ || inQ && !inP
		}
		want := Same
		switch {
		case !both:
			want = Disjoint
		case onlyP && onlyQ:
			want = Crossing
		case onlyP:
			want = Around
		case onlyQ:
			want = Inside
		}
		if got := Relate(p, q); got != want {
			rt.Fatalf("Relate(%s, %s) = %d; by %d topics it is %d", p, q, got, len(topics), want)
		}
	})
}

// everyTopic returns all names of up to most segments.
func everyTopic(segments []string, most int) (topics []string) {
	level := []string{""}
	for range most {
		var next []string
		for _, prefix := range level {
			for _, s := range segments {
				next = append(next, strings.TrimPrefix(prefix+"."+s, "."))
			}
		}
		topics = append(topics, next...)
		level = next
	}
	return topics
}

// TestRelateIsBounded: patterns that can be entered in thousands of ways count as crossing,
// from both sides, although shorter ones of the same form do not cross.
func TestRelateIsBounded(t *testing.T) {
	for stars, want := range map[int]Relation{3: Inside, 13: Crossing} {
		p, q := mustPattern(t, strings.Repeat("*.", stars)+"a.*.**"), mustPattern(t, strings.Repeat("*.", stars)+"a.**")
		if got := Relate(p, q); got != want {
			t.Errorf("with %d stars: Relate = %d; want %d", stars, got, want)
		}
		if got := Relate(q, p); got != turned(want) {
			t.Errorf("with %d stars, turned: Relate = %d; want %d", stars, got, turned(want))
		}
	}
}
