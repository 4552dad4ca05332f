package filter

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
)

// encode returns the record of an event, which gets an id and a topic.
func encode(t testing.TB, e eventhub.Event) eventhub.Record {
	t.Helper()
	if e.ID == "" {
		e.ID = "id-1"
	}
	if e.Topic == "" {
		e.Topic = "shop.orders"
	}
	if e.Payload == nil {
		e.Payload = []byte(`{}`)
	}
	rec, err := record.Append(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	r := eventhub.Record(rec)
	layout.SetCommitTime(r, 1723140000000)
	return r
}

func mustCompile(t testing.TB, f eventhub.Filter) *Program {
	t.Helper()
	p, err := Compile(&f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNoFilterLetsAllPass(t *testing.T) {
	for name, f := range map[string]*eventhub.Filter{"nil": nil, "zero": {}, "empty": {Headers: map[string]string{}, Tags: []string{}}} {
		p, err := Compile(f)
		if p != nil || err != nil {
			t.Errorf("%s: Compile = %v, %v; want no program", name, p, err)
		}
		if !p.Match(eventhub.Record("no record"), 1) || p.Failed() != 0 || p.TooCostly() != 0 {
			t.Errorf("%s: an event did not pass", name)
		}
	}
}

// reference is the slow reading of what matchMembers does: the whole event is
// decoded.
func reference(f *eventhub.Filter, e *eventhub.Event) bool {
	is := func(value, want string) bool {
		if start, ok := strings.CutSuffix(want, "*"); ok {
			return strings.HasPrefix(value, start)
		}
		return value == want
	}
	if f.Key != "" && !is(e.Key, f.Key) {
		return false
	}
	for name, want := range f.Headers {
		if value, ok := e.Headers[name]; !ok || !is(value, want) {
			return false
		}
	}
	for _, want := range f.Tags {
		found := false
		for _, tag := range e.Tags {
			found = found || is(tag, want)
		}
		if !found {
			return false
		}
	}
	return true
}

type (
	filter  = eventhub.Filter
	event   = eventhub.Event
	headers = map[string]string
)

func TestMembers(t *testing.T) {
	var (
		plain   = event{Key: "host-1:nginx", SID: "s", Headers: headers{"region": "eu-1", "trace": "t", "x": ""}, Tags: []string{"#duck", "urgent"}, CausedBy: []string{"c"}}
		escaped = event{Key: "say \"hi\"\\\n\u0001é😀", Headers: headers{"h": "a\"b\\"}, Tags: []string{"\"", "tab\t"}}
		bare    = event{}
		decoy   = event{Payload: []byte(`{"key":"host-1:nginx","headers":{"region":"eu-1"},"tags":["#duck"]}`)}
	)
	for _, tt := range []struct {
		name   string
		filter filter
		event  event
		want   bool
	}{
		{"key", filter{Key: "host-1:nginx"}, plain, true},
		{"key, beginning without a star", filter{Key: "host-1"}, plain, false},
		{"key, longer", filter{Key: "host-1:nginx2"}, plain, false},
		{"key, prefix", filter{Key: "host-1:*"}, plain, true},
		{"key, other prefix", filter{Key: "host-2:*"}, plain, false},
		{"key, any", filter{Key: "*"}, plain, true},
		{"no key, any", filter{Key: "*"}, bare, true},
		{"no key", filter{Key: "a*"}, bare, false},
		{"a star in the middle is a star", filter{Key: "host*nginx"}, plain, false},
		{"two stars: the first is one", filter{Key: "host**"}, plain, false},
		{"key with escapes", filter{Key: escaped.Key}, escaped, true},
		{"key with escapes, prefix within", filter{Key: "say \"hi\"\\\n*"}, escaped, true},
		{"key with escapes, longer", filter{Key: escaped.Key + "x"}, escaped, false},
		{"key with escapes, shorter", filter{Key: strings.TrimSuffix(escaped.Key, "😀")}, escaped, false},
		{"key with escapes, other", filter{Key: "say 'hi'*"}, escaped, false},
		{"header", filter{Headers: headers{"region": "eu-1"}}, plain, true},
		{"headers", filter{Headers: headers{"region": "eu-*", "trace": "t", "x": ""}}, plain, true},
		{"one header of two is other", filter{Headers: headers{"region": "eu-1", "trace": "u"}}, plain, false},
		{"one header of two is not there", filter{Headers: headers{"region": "eu-1", "zone": "*"}}, plain, false},
		{"header names are as they are", filter{Headers: headers{"Region": "eu-1"}}, plain, false},
		{"header that is there", filter{Headers: headers{"x": "*"}}, plain, true},
		{"no headers", filter{Headers: headers{"region": "*"}}, bare, false},
		{"header with escapes", filter{Headers: headers{"h": "a\"b\\"}}, escaped, true},
		{"tag", filter{Tags: []string{"#duck"}}, plain, true},
		{"tags in another order", filter{Tags: []string{"urgent", "#duck"}}, plain, true},
		{"two prefixes for one tag", filter{Tags: []string{"#*", "#d*"}}, plain, true},
		{"one tag of two", filter{Tags: []string{"#duck", "late"}}, plain, false},
		{"tag, beginning without a star", filter{Tags: []string{"urg"}}, plain, false},
		{"any tag", filter{Tags: []string{"*"}}, plain, true},
		{"no tags", filter{Tags: []string{"*"}}, bare, false},
		{"tag with escapes", filter{Tags: []string{"tab\t", "\""}}, escaped, true},
		{"all of them", filter{Key: "host-1:*", Headers: headers{"region": "eu-1"}, Tags: []string{"urgent"}}, plain, true},
		{"all but the key", filter{Key: "host-2:*", Headers: headers{"region": "eu-1"}, Tags: []string{"urgent"}}, plain, false},
		{"with an expression", filter{Key: "host-1:*", CEL: `event.sid == "s"`}, plain, true},
		{"all but the expression", filter{Key: "host-1:*", CEL: `event.sid == "x"`}, plain, false},
		{"the expression alone", filter{Key: "host-2:*", CEL: `event.sid == "s"`}, plain, false},
		{"a payload that looks like it: key", filter{Key: "host-1:nginx"}, decoy, false},
		{"a payload that looks like it: header", filter{Headers: headers{"region": "eu-1"}}, decoy, false},
		{"a payload that looks like it: tag", filter{Tags: []string{"#duck"}}, decoy, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := mustCompile(t, tt.filter)
			if got := p.Match(encode(t, tt.event), 1); got != tt.want {
				t.Errorf("%s passes %s: %v; want %v", encode(t, tt.event), &tt.filter, got, tt.want)
			}
			if p.Failed() != 0 {
				t.Errorf("%d events could not be judged", p.Failed())
			}
			if tt.filter.CEL == "" && reference(&tt.filter, &tt.event) != tt.want {
				t.Error("the reference is of another opinion")
			}
		})
	}
}

func TestWhatIsNoRecordDoesNotPass(t *testing.T) {
	whole := string(encode(t, event{Key: "k", Headers: headers{"a": "b"}, Tags: []string{"t"}}))
	broken := []string{"", "{", "{}", "[]", "null", `{"ts":1`, `{"foo":1,"payload":1}`, `{"ts":            1,"id":"a","topic":"t"}`}
	for cut := range strings.Index(whole, `,"payload"`) {
		broken = append(broken, whole[:cut])
	}
	for _, f := range []filter{{Tags: []string{"zz"}}, {CEL: `event.key != "k" || event.tags.size() == 0 || event.payload == 1`}} {
		p := mustCompile(t, f)
		for i, r := range broken {
			if p.Match(eventhub.Record(r), 1) || p.Failed() != uint64(i+1) {
				t.Errorf("%s: %q passes, or was not counted: %d", &f, r, p.Failed())
			}
		}
		if p.TooCostly() != 0 {
			t.Errorf("%s: %d were too costly", &f, p.TooCostly())
		}
	}
}

func TestCompileChecksSizes(t *testing.T) {
	for _, f := range []filter{{Key: strings.Repeat("k", 2000)}, {Headers: headers{"a b": "c"}}, {Tags: []string{""}}, {CEL: strings.Repeat("1", 5000)}} {
		if p, err := Compile(&f); p != nil || eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("Compile(%.40s) = %v, %v; want bad_request", &f, p, err)
		}
	}
}

func TestMatchOfManyAtOnce(t *testing.T) {
	p := mustCompile(t, filter{Tags: []string{"even"}, CEL: `event.payload.n % 2 == 0 && event.offset > 0`})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for n := range 200 {
				tag := "even"
				if n%3 == 0 {
					tag = "odd"
				}
				r := encode(t, event{Tags: []string{tag}, Payload: fmt.Appendf(nil, `{"n":%d}`, n+worker)})
				if got, want := p.Match(r, 7), n%3 != 0 && (n+worker)%2 == 0; got != want {
					t.Errorf("%s passes: %v", r, got)
				}
			}
		})
	}
	wg.Wait()
}

func TestMembersDoNotAllocate(t *testing.T) {
	p := mustCompile(t, filter{Key: "host-1:*", Headers: headers{"region": "eu-1", "trace": "*"}, Tags: []string{"#duck"}})
	for name, e := range map[string]event{
		"plain":   {Key: "host-1:x", Headers: headers{"region": "eu-1", "trace": "t"}, Tags: []string{"#duck"}},
		"escaped": {Key: "host-1:\"é\u0001", Headers: headers{"region": "eu-1", "trace": "\""}, Tags: []string{"\t", "#duck"}},
	} {
		r := encode(t, e)
		if allocs := testing.AllocsPerRun(100, func() {
			if !p.Match(r, 1) {
				t.Error("does not pass")
			}
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// FuzzMembers holds the reading of the record's bytes against the decoded event.
func FuzzMembers(f *testing.F) {
	f.Add("k", "a", "b", "t", "s", "k*", "b", "t")
	f.Add("say \"hi\"\n", "x-a", "é\\", "\"", "", "say \"*", "é\\", "\"*")
	f.Add("", "a", "", "", "", "*", "*", "*")
	f.Add("a\u2028b", "z", "\x7f", "😀", "s", "a\u2028*", "\x7f*", "😀")
	f.Fuzz(func(t *testing.T, key, name, value, tag, sid, wantKey, wantValue, wantTag string) {
		e := event{ID: "i", Topic: "t", Key: key, SID: sid, Headers: headers{name: value, "other": wantValue}, Payload: []byte(`[{"key":"k"}]`)}
		if tag != "" {
			e.Tags = []string{"first", tag}
		}
		want := filter{Key: wantKey, Headers: headers{name: wantValue}}
		if wantTag != "" {
			want.Tags = []string{wantTag}
		}
		if e.Validate(clock) != nil || want.Validate() != nil {
			t.Skip("no event, or no filter")
		}
		r := encode(t, e)
		decoded, err := r.Event(1)
		if err != nil {
			t.Fatal(err)
		}
		p := mustCompile(t, want)
		if got := p.Match(r, 1); got != reference(&want, &decoded) || p.Failed() != 0 {
			t.Fatalf("%s passes %s: %v; the reference says %v", r, &want, got, !got)
		}
	})
}

// FuzzScan reads what may be no record at all; there is nothing to hold it
// against but that it ends, and does not read out of bounds.
func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"ts":1723140000000,"id":"a","topic":"t","partition":3,"key":"k\"","headers":{"a":"b"},"tags":["t"],"payload":{"n":[1,{"a":2}]}}`))
	f.Add([]byte(`{"committed_ts":1723140000000,"id":"a","ts":5,"topic":"t","payload":"\\"}`))
	f.Add([]byte(`{"ts":0,"payload":`))
	f.Add([]byte(`{"ts":1,"payload":{"n":[1,"\ud83d\ude00","\u00`))
	members := mustCompile(f, filter{Key: "k*", Headers: headers{"a": "*"}, Tags: []string{"t"}})
	all := mustCompile(f, filter{CEL: `event.payload == [1] || event.payload.n[1].a == 2 || event.tags == ["t"] || event.key > "a" ||
		event.headers.all(h, h != event.id) || size(event.payload) > 1 || 1 in event.payload || event.partition > 1`})
	f.Fuzz(func(t *testing.T, b []byte) {
		members.Match(b, 1)
		e := &evaluation{record: b}
		if !e.read(b, memberPayload) {
			return
		}
		// The library catches panics: they must not hide there.
		if _, _, err := all.cel.program.Eval(e); err != nil && strings.Contains(err.Error(), "internal error") {
			t.Fatalf("%q: %v", b, err)
		}
	})
}

// FuzzCompile compiles what may be no expression, and asks it about an event: the library must not
// panic, and what it costs is bounded.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		`event.payload.n > 1 && event.headers["a"] == "b"`, `event.tags.exists(t, t.startsWith("x"))`, `size(event.payload) > 0`, `[1,2,3].map(x, [1,2,3].map(y, x*y)) == []`,
		`event.key.matches("(a+)+$")`, `1/0 == 1`, `event.payload[event.payload]`, `"\xff"`, `((((((((`, `event`, `has(event.payload.a.b)`, `timestamp("x") == event.ts`,
	} {
		f.Add(s)
	}
	record := encode(f, event{ID: "i", Topic: "t", Key: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", Headers: headers{"a": "b"}, Tags: []string{"x"}, Payload: []byte(`{"n":[1,{"a":2}],"s":"text"}`)})
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Compile(&filter{CEL: text})
		if err != nil || p == nil {
			return
		}
		e := &evaluation{record: record}
		if e.read(record, memberPayload) {
			if _, _, err := p.cel.program.Eval(e); err != nil && strings.Contains(err.Error(), "internal error") {
				t.Fatalf("%q: %v", text, err)
			}
		}
		p.Match(record, 1)
	})
}
