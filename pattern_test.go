package eventhub

import (
	"slices"
	"strings"
	"testing"
)

func mustParse(t testing.TB, text string) Pattern {
	t.Helper()
	p, err := ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPatternMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		yes, no []string // separated by spaces
	}{
		{"a.b", words("a.b"), words("a b a.b.c a.bb A.b x.a.b a.b.dlq")},
		{"*", words("a dlq snapshot systems"), words("a.b system a.dlq")},
		{"a.*", words("a.b a.dlqs a.system"), words("a b.a a.b.c a.dlq a.snapshot")},
		{"*.b", words("a.b dlq.b"), words("b a.b.c system.b")},
		{"a.*.c", words("a.b.c a.dlq.c a.snapshot.c a.system.c"), words("a.c a.b.b.c a.b.d")},
		{"**", words("a a.b a.b.c.d dlq a.dlq.b a.system"), words("system system.x a.dlq a.snapshot a.b.dlq a.snapshot.dlq a.dlq.snapshot a.dlq.dlq")},
		{"a.**", words("a a.b a.b.c a.dlq.x"), words("b b.a ab a.dlq a.b.snapshot")},
		{"**.c", words("c a.c a.b.c c.c"), words("c.a a.cc system.c system.a.c")},
		{"a.**.c", words("a.c a.b.c a.b.b.c a.c.c"), words("a c a.c.d a.b")},
		{"**.b.**", words("b a.b b.c a.b.c b.b"), words("a a.c ab system.b b.dlq")},
		{"a.**.b.**.c", words("a.b.c a.x.b.y.c a.b.b.c.c"), words("a.c a.b a.x.c a.c.b")},
		{"*.**", words("a a.b a.b.c"), words("system system.a a.dlq")},
		{"**.*", words("a a.b a.b.c"), words("system system.a a.dlq")},
		{"*.**.*", words("a.b a.b.c"), words("a")},
		// What is the hub's own has to be spelled out, each segment of it.
		{"system", words("system"), words("system.a a")},
		{"system.*", words("system.a"), words("system system.a.b system.dlq a")},
		{"system.**", words("system system.a system.a.b"), words("a a.system system.a.dlq")},
		{"*.dlq", words("a.dlq dlq.dlq snapshot.dlq"), words("a a.b.dlq dlq system.dlq")},
		{"**.dlq", words("a.dlq a.b.dlq dlq"), words("a a.snapshot a.snapshot.dlq a.dlq.dlq system.a.dlq")},
		{"**.snapshot", words("a.snapshot a.b.snapshot snapshot"), words("a.dlq a.dlq.snapshot a.snapshot.dlq")},
		{"**.snapshot.dlq", words("a.snapshot.dlq a.b.snapshot.dlq"), words("a.dlq a.b.dlq a.snapshot")},
		{"a.*.dlq", words("a.b.dlq a.dlqs.dlq"), words("a.dlq a.snapshot.dlq a.dlq.dlq a.b.c.dlq")},
		{"a.*.snapshot", words("a.b.snapshot"), words("a.dlq.snapshot a.snapshot.snapshot")},
		{"*.snapshot.*", words("a.snapshot.b"), words("a.snapshot.dlq a.snapshot")},
		{"system.**.dlq", words("system.dlq system.a.dlq"), words("a.dlq")},
		{"orders.dlq", words("orders.dlq"), words("orders orders.dlq.dlq")},
	} {
		p := mustParse(t, tt.pattern)
		if p.String() != tt.pattern {
			t.Errorf("%q became %q", tt.pattern, p)
		}
		for _, topic := range tt.yes {
			if !p.Match(topic) || !matchSlowly(p.segments, strings.Split(topic, ".")) {
				t.Errorf("%s does not match %s", p, topic)
			}
		}
		for _, topic := range tt.no {
			if p.Match(topic) || matchSlowly(p.segments, strings.Split(topic, ".")) {
				t.Errorf("%s matches %s", p, topic)
			}
		}
	}
}

func words(s string) []string { return strings.Fields(s) }

// matchSlowly is the reference: it says what a pattern means, segment by segment.
func matchSlowly(pattern, topic []string) bool {
	return matchFrom(pattern, topic, ownSegments(topic))
}

func matchFrom(pattern, topic []string, own []bool) bool {
	if len(pattern) == 0 {
		return len(topic) == 0
	}
	if pattern[0] == "**" {
		return matchFrom(pattern[1:], topic, own) ||
			len(topic) > 0 && !own[0] && matchFrom(pattern, topic[1:], own[1:])
	}
	if len(topic) == 0 || pattern[0] != topic[0] && (pattern[0] != "*" || own[0]) {
		return false
	}
	return matchFrom(pattern[1:], topic[1:], own[1:])
}

// ownSegments are the segments that make a topic the hub's own.
func ownSegments(topic []string) []bool {
	own := make([]bool, len(topic))
	own[0] = topic[0] == "system"
	for i := len(topic) - 1; i > 0 && (topic[i] == "dlq" || topic[i] == "snapshot"); i-- {
		own[i] = true
	}
	return own
}

// TestWildcardsMissTheHubsOwn: what publishers may not publish to, no wildcard
// alone reaches.
func TestWildcardsMissTheHubsOwn(t *testing.T) {
	all := mustParse(t, "**")
	for _, first := range words("a system dlq snapshot") {
		for _, second := range append(words(".a .system .dlq .snapshot"), "") {
			for _, third := range append(words(".a .system .dlq .snapshot"), "") {
				if topic := first + second + third; all.Match(topic) == HubOnlyTopic(topic) {
					t.Errorf("** matches %s: %v; it is the hub's own: %v", topic, all.Match(topic), HubOnlyTopic(topic))
				}
			}
		}
	}
}

func TestParsePatternRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                              "topic is empty",
		".":                             `topic "." has an empty segment`,
		"a..b":                          `topic "a..b" has an empty segment`,
		"a b":                           `topic "a b" has " "`,
		"*.":                            `pattern "*." has an empty segment`,
		".*":                            `pattern ".*" has an empty segment`,
		"a..*":                          `pattern "a..*" has an empty segment`,
		"a*":                            `pattern "a*" has "a*"; * and ** match whole segments`,
		"*a":                            `has "*a"`,
		"a.***":                         `has "***"`,
		"**a":                           `has "**a"`,
		"**.**":                         `pattern "**.**" has ** twice in a row; once says the same`,
		"a.**.**.b":                     "twice in a row",
		"a/*":                           `pattern "a/*" has "/"`,
		"*.é":                           `has "é"; segments hold`,
		"*.a?":                          `has "?"`,
		"*.\x00":                        `has "\x00"`,
		"*.\xff":                        `has "\xff"`,
		"a.>.*":                         `has ">"`,
		"*.{a,b}":                       `has "{"`,
		"*" + strings.Repeat(".*", 16):  "17 segments; at most 16 are allowed",
		"*." + strings.Repeat("a", 240): "242 bytes; at most 240 are allowed",
		strings.Repeat("a", 241):        "241 bytes",
	} {
		p, err := ParsePattern(text)
		if ErrorCode(err) != CodeBadTopic || !strings.Contains(AsError(err).Message, says) {
			t.Errorf("ParsePattern(%.30q) error = %v; want bad_topic with %q", text, err, says)
		}
		if p.Match(text) || p.Match("a") || p.Match("") {
			t.Errorf("what ParsePattern(%.30q) refused matches", text)
		}
	}
}

func TestLargestPatterns(t *testing.T) {
	for _, tt := range []struct{ pattern, yes, no string }{
		{"*" + strings.Repeat(".*", 15), "a" + strings.Repeat(".b", 15), "a" + strings.Repeat(".b", 14)},
		{"**" + strings.Repeat(".a.**", 7) + ".b", "x" + strings.Repeat(".a", 14) + ".b", "a" + strings.Repeat(".a", 15)},
		{"*." + strings.Repeat("a", 238), "b." + strings.Repeat("a", 238), "b." + strings.Repeat("a", 237)},
		// The hub's own topics may be longer than a publisher's.
		{"a" + strings.Repeat(".a", 15) + ".snapshot.dlq", "a" + strings.Repeat(".a", 15) + ".snapshot.dlq", "a" + strings.Repeat(".a", 15) + ".dlq"},
		{"**.dlq", "a" + strings.Repeat(".a", 15) + ".dlq", "a" + strings.Repeat(".a", 15) + ".snapshot.dlq"},
	} {
		if p := mustParse(t, tt.pattern); !p.Match(tt.yes) || p.Match(tt.no) {
			t.Errorf("%s matches %s: %v, %s: %v", p, tt.yes, p.Match(tt.yes), tt.no, p.Match(tt.no))
		}
	}
}

func TestIsPattern(t *testing.T) {
	for text, want := range map[string]bool{"": false, "a.b": false, "a.*": true, "**": true, "a*b": true} {
		if IsPattern(text) != want {
			t.Errorf("IsPattern(%q) = %v", text, !want)
		}
	}
}

func TestPatternMatchDoesNotAllocate(t *testing.T) {
	p := mustParse(t, "a.**.b.*.**")
	if allocs := testing.AllocsPerRun(100, func() {
		if !p.Match("a.x.y.b.z.dlq.z") || p.Match("a.x.y.z") {
			t.Error("matches otherwise")
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// FuzzPattern holds Match against the reference.
func FuzzPattern(f *testing.F) {
	for _, pattern := range words("a.b * ** a.** **.dlq *.snapshot.dlq **.a.**.b system.** *.**.*") {
		for _, topic := range words("a.b a.b.c.d system.a a.dlq a.snapshot.dlq dlq.snapshot a.a.b.a.b") {
			f.Add(pattern, topic)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, topic string) {
		p, err := ParsePattern(pattern)
		if err != nil {
			if ErrorCode(err) != CodeBadTopic || strings.ContainsAny(AsError(err).Message, "\n\x00") {
				t.Fatalf("ParsePattern(%q) error = %q", pattern, err)
			}
			return
		}
		if ValidateStoredTopic(topic) != nil {
			return
		}
		if got := p.Match(topic); got != matchSlowly(strings.Split(pattern, "."), strings.Split(topic, ".")) {
			t.Fatalf("%s matches %s: %v; the reference says %v", pattern, topic, got, !got)
		}
		if !IsPattern(pattern) && p.Match(topic) != (pattern == topic) {
			t.Fatalf("the name %s matches %s: %v", pattern, topic, p.Match(topic))
		}
	})
}

// TestPatternAgreesWithReference goes over all short patterns and topics.
func TestPatternAgreesWithReference(t *testing.T) {
	var topics []string
	level := []string{""}
	for range 4 {
		var next []string
		for _, start := range level {
			for _, s := range words("a b system dlq snapshot") {
				next = append(next, strings.TrimPrefix(start+"."+s, "."))
			}
		}
		topics, level = append(topics, next...), next
	}
	patterns := slices.Clone(topics[:30])
	for _, p := range topics[:155] {
		patterns = append(patterns, strings.NewReplacer("b", "*", "snapshot", "**").Replace(p), strings.ReplaceAll(p, "system", "**"))
	}
	checked := 0
	for _, text := range patterns {
		p, err := ParsePattern(text)
		if err != nil {
			continue // ** twice in a row
		}
		for _, topic := range topics {
			checked++
			if got := p.Match(topic); got != matchSlowly(p.segments, strings.Split(topic, ".")) {
				t.Fatalf("%s matches %s: %v", p, topic, got)
			}
		}
	}
	if checked < 100_000 {
		t.Errorf("only %d pairs were checked", checked)
	}
}

// TestLargestPatternsOverlap: the largest ones have room, and those with most ways through both take no longer than others.
func TestLargestPatternsOverlap(t *testing.T) {
	name := strings.Repeat("a.", MaxTopicSegments-1) + "a.snapshot.dlq"
	wild := strings.Repeat("**.a.", MaxTopicSegments/2-1) + "**."
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{name, name, true},
		{name, "**.snapshot.dlq", true},
		{name, "**.dlq", false},
		{wild + "b", wild + "c", false},
		{wild + "b", wild + "*", true},
	} {
		if got := mustParse(t, tt.a).Overlaps(mustParse(t, tt.b)); got != tt.want {
			t.Errorf("%s and %s overlap: %v", tt.a, tt.b, got)
		}
	}
}

// TestPatternsOverlap goes over pairs of short patterns: they overlap if a short topic is one of both.
func TestPatternsOverlap(t *testing.T) {
	var topics []string
	level := []string{""}
	for range 5 {
		var next []string
		for _, start := range level {
			for _, s := range words("a c system dlq snapshot") {
				next = append(next, strings.TrimPrefix(start+"."+s, "."))
			}
		}
		topics, level = append(topics, next...), next
	}
	var patterns []Pattern
	var matched [][]uint64 // a bit for each topic
	level = []string{""}
	for range 3 {
		var next []string
		for _, start := range level {
			for _, s := range words("a system dlq snapshot * **") {
				next = append(next, strings.TrimPrefix(start+"."+s, "."))
			}
		}
		level = next
		for _, text := range next {
			p, err := ParsePattern(text)
			if err != nil {
				continue // ** twice in a row
			}
			bits := make([]uint64, len(topics)/64+1)
			for i, topic := range topics {
				if p.Match(topic) {
					bits[i/64] |= 1 << (i % 64)
				}
			}
			patterns, matched = append(patterns, p), append(matched, bits)
		}
	}
	found := map[bool]int{}
	for i, p := range patterns {
		for j, q := range patterns {
			want := false
			for k, bits := range matched[i] {
				want = want || bits&matched[j][k] != 0
			}
			found[want]++
			if got := p.Overlaps(q); got != want {
				t.Fatalf("%s and %s overlap: %v", p, q, got)
			}
		}
	}
	if found[true] < 1000 || found[false] < 1000 {
		t.Errorf("pairs by whether they overlap: %v", found)
	}
}

func BenchmarkPatternsOverlap(b *testing.B) {
	wild := strings.Repeat("**.a.", MaxTopicSegments/2-1) + "**."
	for _, texts := range [][2]string{{"orders.*", "orders.eu.**"}, {wild + "b", wild + "c"}} {
		b.Run(texts[0], func(b *testing.B) {
			p, q := mustParse(b, texts[0]), mustParse(b, texts[1])
			for b.Loop() {
				p.Overlaps(q)
			}
		})
	}
}

func BenchmarkPatternMatch(b *testing.B) {
	for _, text := range []string{"process.state.eu.host-1", "process.*.eu.*", "process.**", "**.host-1", "**.state.**.host-1"} {
		b.Run(text, func(b *testing.B) {
			p := mustParse(b, text)
			b.ReportAllocs()
			for b.Loop() {
				if !p.Match("process.state.eu.host-1") {
					b.Fatal("does not match")
				}
			}
		})
	}
}
