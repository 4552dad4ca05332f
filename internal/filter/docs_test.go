package filter

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"eventhub"
)

// TestDocumentedExamples runs the examples of docs/filters.md: each has to pass
// the first event here, and not the second.
func TestDocumentedExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```json filter\n(.*?)\n```").FindAllStringSubmatch(string(page), -1)
	if len(examples) != len(documented) {
		t.Fatalf("the page has %d examples; %d are known here", len(examples), len(documented))
	}
	for i, example := range examples {
		var f filter
		d := json.NewDecoder(strings.NewReader(example[1]))
		d.DisallowUnknownFields()
		if err := d.Decode(&f); err != nil {
			t.Errorf("%s: %v", example[1], err)
			continue
		}
		p := mustCompile(t, f)
		if r := encode(t, documented[i].yes); !p.Match(r, 1) {
			t.Errorf("%s does not pass %s", example[1], r)
		}
		if r := encode(t, documented[i].no); p.Match(r, 1) {
			t.Errorf("%s passes %s", example[1], r)
		}
		if p.Failed() != 0 {
			t.Errorf("%s cannot be evaluated", example[1])
		}
	}
}

var documented = []struct{ yes, no event }{
	{event{Key: "host-1:nginx"}, event{Key: "host-10:nginx"}},
	{event{Headers: headers{"x-region": "eu-1", "traceparent": "00-1"}}, event{Headers: headers{"x-region": "eu-1"}}},
	{event{Tags: []string{"urgent", "a", "#duck"}}, event{Tags: []string{"urgent"}}},
	{event{Key: "host-7", Headers: headers{"x-region": "eu-1"}, Payload: []byte(`{"cpu":90.5}`)}, event{Key: "host-7", Headers: headers{"x-region": "eu-1"}, Payload: []byte(`{"cpu":90}`)}},
	{event{Payload: []byte(`{"error":{"code":503}}`)}, event{}},
	{event{Payload: []byte(`{"state":"lost"}`)}, event{Payload: []byte(`{"state":"up"}`)}},
	{event{Tags: []string{"a", "#b"}}, event{Tags: []string{"a"}}},
	{event{Key: "host-12:x", Payload: []byte(`{"message":"short"}`)}, event{Key: "host-x:1", Payload: []byte(`{"message":"short"}`)}},
	{event{Payload: []byte(`{"items":[{"price":1,"count":1},{"price":501,"count":2}]}`)}, event{Payload: []byte(`{"items":[]}`)}},
	{event{Key: "key-2", TS: 1723139000000}, event{Key: "key-2", TS: 1723139999000}},
}

// TestDocumentedFigures: the page names the limits that there are, and every
// member that can be read.
func TestDocumentedFigures(t *testing.T) {
	page, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	for says, holds := range map[string]bool{
		"at most 4 KiB":                   eventhub.MaxFilterBytes == 4<<10,
		"may cost 100,000":                costLimit == 100_000,
		"256 members, elements":           supposed == 256,
		"more than 8 MiB":                 byteLimit == 8<<20,
		"nests at most 63 levels":         parseDepth == 64,
		"at most 1,000 instructions":      regexSize == 1000,
		"at most 240 bytes and 16 segmen": eventhub.MaxTopicBytes == 240 && eventhub.MaxTopicSegments == 16,
	} {
		if !holds || !strings.Contains(text, says) {
			t.Errorf("%q: holds %v, is written %v", says, holds, strings.Contains(text, says))
		}
	}
	for _, f := range fields {
		if !strings.Contains(text, "`event."+f.name+"`") {
			t.Errorf("event.%s is not in the page", f.name)
		}
	}
}

// TestDocumentedPatterns runs the table of patterns: what follows "not" does
// not match, the other topics do.
func TestDocumentedPatterns(t *testing.T) {
	page, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), "What the hub itself")
	code := regexp.MustCompile("(not )?`([^`]+)`")
	checked := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(table, -1) {
		p, err := eventhub.ParsePattern(row[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range code.FindAllStringSubmatch(row[2], -1) {
			checked++
			if got := p.Match(topic[2]); got != (topic[1] == "") {
				t.Errorf("%s matches %s: %v", p, topic[2], got)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d topics were checked", checked)
	}
}
