package filter

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"cel.dev/cel-go/cel"

	"eventhub"
	"eventhub/internal/testsize"
)

var clock = time.UnixMilli(1723140000000)

func TestExpressions(t *testing.T) {
	own := event{ID: "id-7", TS: 1700000000000, Key: "k\"", SID: "s", Headers: headers{"region": "eu-1", "x-a": "b"}, Tags: []string{"#duck", "urgent"}, CausedBy: []string{"c-1"},
		Payload: []byte(`{"cpu":90.5,"count":91,"big":12345678901234567890,"huge":1e999,"neg":-0,"text":"a\u00e9\n","on":true,"none":null,` +
			`"list":[1,2.0,"x",[3],{"y":4}],"nest":{"a":{"b":[5]}},"p\u0061th":1}`)}
	bare := event{Payload: []byte(`[1,2,3]`)}
	for _, tt := range []struct {
		cel   string
		event event
		want  string // yes, no, or fails
	}{
		{`event.id == "id-7" && event.topic == "shop.orders" && event.key == "k\"" && event.sid == "s"`, own, "yes"},
		{`event.ts == 1700000000000 && event.committed_ts == 1723140000000 && event.offset == 42`, own, "yes"},
		{`event.ts == event.committed_ts && event.ts == 1723140000000`, bare, "yes"},
		{`event.partition == 6 || event.partition >= 0`, own, "yes"},
		{`event.partition == -1 && event.key == "" && event.sid == ""`, bare, "yes"},
		{`has(event.ts) && has(event.committed_ts) && has(event.partition) && has(event.key) && has(event.sid) && has(event.headers) && has(event.tags) && has(event.caused_by) && has(event.payload)`, own, "yes"},
		{`has(event.committed_ts) || has(event.partition) || has(event.key) || has(event.sid) || has(event.headers) || has(event.tags) || has(event.caused_by)`, bare, "no"},
		{`has(event.id) && has(event.topic) && has(event.ts) && has(event.offset) && has(event.payload)`, bare, "yes"},
		{`event.headers.region == "eu-1" && event.headers["x-a"] == "b" && "region" in event.headers && size(event.headers) == 2`, own, "yes"},
		{`event.headers.zone == "a"`, own, "fails"},
		{`has(event.headers.zone)`, own, "no"},
		{`has(event.headers.zone) && event.headers.zone == "a" || event.key != ""`, own, "yes"},
		{`size(event.headers) == 0 && size(event.tags) == 0 && size(event.caused_by) == 0 && event.headers == {} && event.tags == []`, bare, "yes"},
		{`"#duck" in event.tags && event.tags[1] == "urgent" && event.caused_by == ["c-1"]`, own, "yes"},
		{`event.tags.exists(t, t.startsWith("#")) && event.tags.all(t, t.size() > 3) && event.tags.exists_one(t, t == "urgent")`, own, "yes"},
		{`event.tags[2] == "x"`, own, "fails"},
		{`event.headers.exists(name, event.headers[name].endsWith("1"))`, own, "yes"},
		// Numbers.
		{`event.payload.cpu > 90 && event.payload.count > 90 && event.payload.cpu < 91 && event.payload.count == 91`, own, "yes"},
		{`event.payload.count == 91.0 && event.payload.cpu != 90 && event.payload.count > 90.5 && event.payload.count == 91u`, own, "yes"},
		{`event.payload.big > 1e19 && event.payload.huge > 1e308 && event.payload.neg == 0`, own, "yes"},
		{`type(event.payload.count) == int && type(event.payload.cpu) == double && type(event.payload.big) == double && type(event.payload.list[1]) == double`, own, "yes"},
		{`event.payload.count + 1 == 92 && event.payload.count % 2 == 1`, own, "yes"},
		{`event.payload.cpu + 1 > 91`, own, "fails"},
		{`event.payload.cpu + 1.0 == 91.5`, own, "yes"},
		{`event.ts > 1.5 && event.offset < 42.5`, own, "yes"},
		// The payload.
		{`event.payload.text == "aé\n" && event.payload.on && event.payload.none == null && event.payload.path == 1`, own, "yes"},
		{`event.payload.text > 1`, own, "fails"},
		{`event.payload.list[0] == 1 && event.payload.list[3][0] == 3 && event.payload.list[4].y == 4 && event.payload.list[4] == {"y": 4}`, own, "yes"},
		{`event.payload.list == [1, 2, "x", [3], {"y": 4}] && [1, 2, "x", [3], {"y": 4}] == event.payload.list`, own, "yes"},
		{`event.payload.list == [1, 2, "x", [3], {"y": 5}] || event.payload.list == [1] || event.payload.nest == {"a": 1} || event.payload.nest == {"b": 1}`, own, "no"},
		{`event.payload.nest == {"a": {"b": [5]}} && {"a": {"b": [5]}} == event.payload.nest && event.payload.nest.a.b[0] == 5`, own, "yes"},
		{`2 in event.payload.list && "x" in event.payload.list && [3] in event.payload.list && !("3" in event.payload.list)`, own, "yes"},
		{`event.payload.list[-1] == 1`, own, "fails"},
		{`event.payload.list[5] == 1`, own, "fails"},
		{`event.payload.list[9223372036854775807] == 1`, own, "fails"},
		{`event.payload.list["0"] == 1`, own, "fails"},
		{`event.payload.list[0.5] == 1`, own, "fails"},
		{`event.payload.list[1.0] == 2`, own, "yes"},
		{`event.payload[1] == 1`, own, "fails"},
		{`event.payload[2] == 3 && event.payload[0] == 1 && event.payload[1] == 2 && event.payload[0] == 1 && event.payload[1] == 2 && event.payload[0] == 1 && event.payload[2] == 3 && event.payload[0] == 1 && event.payload[2] == 3 && event.payload[0] + event.payload[1] == 3`, bare, "yes"},
		{`event.payload.cpu > 1 && event.payload.count > 1 && event.payload.big > 1 && event.payload.on && event.payload.path == 1 && event.payload.cpu > 1 && event.payload.nest.a.b == [5] && !has(event.payload.nope)`, own, "yes"},
		{`has(event.payload.cpu) && has(event.payload.nest.a) && !has(event.payload.nest.b) && has(event.payload.none)`, own, "yes"},
		{`has(event.payload.nope.x)`, own, "fails"},
		{`has(event.payload.nope) && event.payload.nope.x == 1`, own, "no"},
		{`has(event.payload.x)`, bare, "fails"},
		{`event.payload.cpu > 1`, bare, "fails"},
		{`event.payload.size() == 3 && event.payload.filter(x, x > 1).map(x, x * 2) == [4, 6] && event.payload + [4] == [1, 2, 3, 4]`, bare, "yes"},
		{`event.payload.nest.all(k, k == "a") && event.payload.list.exists(x, x == "x")`, own, "yes"},
		{`type(event.payload) == map && type(event.payload.list) == list && type(event.payload.nest) == map`, own, "yes"},
		{`event.payload.map(x, string(x)).join("-") == "1-2-3" && "%s".format([event.payload]) == "[1, 2, 3]"`, bare, "yes"},
		{`event.payload.text.matches("^a.\\s$") && event.payload.text.contains("é") && "A".lowerAscii() == "a" && event.payload.text.charAt(0) == "a"`, own, "yes"},
		{`timestamp(event.ts / 1000).getFullYear() == 2023`, own, "yes"},
		// One side of || or && may fail where the other decides.
		{`event.payload.nope == 1 || event.key != ""`, own, "yes"},
		{`event.payload.nope == 1 && event.key == ""`, own, "no"},
		{`!(event.payload.nope == 1)`, own, "fails"},
		{`size(event.payload.count) == 1`, own, "fails"},
		{`size(event.payload.on) > 0 || event.payload.none.size() == 0 || event.payload.cpu.charAt(0) == "9" || event.payload.count.lowerAscii() == "a" || event.payload.on.split(",") == [] ||
			event.payload.nest.indexOf("a") == 0 || event.payload.count.replace("a", "b") == "" || event.payload.count.join("") == "" || event.payload.count.format([1]) == "" || timestamp(event.payload.nest) > timestamp(0) || event.key != ""`, own, "yes"},
	} {
		t.Run(tt.cel, func(t *testing.T) {
			p := mustCompile(t, filter{CEL: tt.cel})
			got := "no"
			if p.Match(encode(t, tt.event), 42) {
				got = "yes"
			}
			if p.Failed() == 1 {
				got = "fails"
			}
			if got != tt.want || p.TooCostly() != 0 {
				t.Errorf("%s on %s; want %s (%d too costly)", got, encode(t, tt.event), tt.want, p.TooCostly())
			}
		})
	}
}

// TestEveryMember: each member of an event is in its record, in the place at which a filter
// looks for it, and an expression can read it at a cost that has a bound.
func TestEveryMember(t *testing.T) {
	var e event
	var names []string
	for field, v := range reflect.ValueOf(&e).Elem().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		names = append(names, name)
		switch v.Kind() {
		case reflect.String:
			v.SetString("text")
		case reflect.Int64:
			v.SetInt(1700000000000)
		case reflect.Uint64:
			v.SetUint(7)
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		case reflect.Map:
			v.Set(reflect.ValueOf(headers{"name": "value"}))
		case reflect.Slice:
			if v.Type() == reflect.TypeFor[[]string]() {
				v.Set(reflect.ValueOf([]string{"text"}))
			} else {
				v.SetBytes([]byte(`"text"`))
			}
		default:
			t.Fatalf("this test does not know how to set %s, a %s", name, v.Type())
		}
	}
	r := encode(t, e)
	for _, name := range names {
		p := mustCompile(t, filter{CEL: fmt.Sprintf("has(event.%s) && event.%[1]s == event.%[1]s", name)})
		if v := p.Judge(r, 7); v != Passes {
			t.Errorf("event.%s of %s: the verdict is %d; want %d", name, r, v, Passes)
		}
	}
}

// TestReadsNoFurther shows that a record is read up to the last member that the
// expression asks for: what follows the looked-at part is broken, and nobody notices.
func TestReadsNoFurther(t *testing.T) {
	whole := string(encode(t, event{TS: 5, Key: "k", SID: "s", Headers: headers{"a": "b"}, Tags: []string{"t"}, CausedBy: []string{"c"}}))
	for expression, last := range map[string]string{
		`event.offset == 1`: "committed_ts", `event.id == "id-1"`: "id", `event.ts == 5`: "ts", `event.topic != ""`: "topic", `event.partition >= 0`: "partition",
		`event.key == "k"`: "key", `event.sid == "s"`: "sid", `event.headers.a == "b"`: "headers", `event.tags == ["t"]`: "tags", `event.caused_by[0] == "c" && event.key == "k"`: "caused_by",
	} {
		at := strings.Index(whole, `"`+last+`":`)
		end := at + len(valueAt([]byte(whole), at+len(last)+3)) + len(last) + 3
		p := mustCompile(t, filter{CEL: expression})
		if !p.Match(eventhub.Record(whole[:end]+",BROKEN"), 1) {
			t.Errorf("%s looks after %s (failed: %d)", expression, whole[:end], p.Failed())
		}
	}
}

func TestRefusedExpressions(t *testing.T) {
	rep := strings.Repeat
	for _, tt := range []struct{ name, cel, says string }{
		{"unknown variable", "event.key == 'a' &&\n  foo > 1", "filter.cel at 2:3: undeclared reference to 'foo'; the one variable is event, and text is in quotes"},
		{"member without event", `payload.status == "failed"`, "filter.cel at 1:1: undeclared reference to 'payload'; write event.payload"},
		{"text without quotes", `event.payload.status == failed`, "filter.cel at 1:25: undeclared reference to 'failed'; the one variable is event, and text is in quotes"},
		{"unknown member", `event.foo == 1`, "filter.cel at 1:6: undefined field 'foo'; expected is one of id, topic, key,"},
		{"string", `event.key`, "filter.cel at 1:1: the expression is of type string; bool is expected"},
		{"list", `event.tags`, "of type list(string); bool"},
		{"dynamic", `event.payload.on`, "of type dyn; bool"},
		{"no end", `event.key ==`, "filter.cel at 1:13: syntax error: mismatched input '<EOF>', expecting a value"},
		{"too much", `event.key == "a" b`, "filter.cel at 1:18: syntax error: extraneous input 'b', expecting an operator or the end"},
		{"assignment", `event.key = "a"`, "filter.cel at 1:11: syntax error: not understood: '= '; to compare, write =="},
		{"open string", `event.key == "a`, "filter.cel at 1:14: syntax error: not understood"},
		{"what a terminal obeys", "\x1b[31m", `filter.cel at 1:1: syntax error: not understood: '\x1b'`},
		{"what a terminal obeys in an open string", "event.key == \"\u009b2J\u202e", `not understood: '"\u009b2J\u202e'`},
		{"types", `event.key > 1`, "filter.cel at 1:11: found no matching overload for '_>_' applied to '(string, int)'"},
		{"wide characters count once", `"é😀" == event.key && foo`, "filter.cel at 1:22: undeclared"},
		{"the event as a whole", `event == event`, "filter.cel at 1:1: event is used alone; expected is one of its members"},
		{"the event in a list", `[event].all(e, e.key == "")`, "filter.cel at 1:2: event is used alone"},
		{"the event as dyn", `dyn(event).key == ""`, "filter.cel at 1:5: event is used alone"},
		{"an event created in it", `eventhub.Event{}`, "filter.cel at 1:15: undeclared reference"},
		{"not UTF-8", "event.key == \"\xff\"", "filter.cel is not valid UTF-8"},
		{"pattern", `event.key.matches("(")`, "filter.cel at 1:19: the pattern of matches is not understood"},
		{"large pattern", `event.key.matches("a{900}b{900}")`, "filter.cel at 1:19: regex"},
		{"larger pattern", `event.key.matches("((a{1000}){1000}){1000}")`, "filter.cel at 1:19: the pattern of matches is not understood, or too large"},
		{"deep pattern", `event.key.matches("` + rep("(a*", 500) + rep(")*", 500) + `")`, "filter.cel at 1:19: the pattern"},
		{"computed pattern", `event.key.matches(event.sid)`, "filter.cel at 1:24: the pattern of matches is computed; a literal is expected"},
		{"computed pattern as a function", `matches(event.key, "a" + "b")`, "filter.cel at 1:24: the pattern of matches is computed"},
		{"duration", `duration("x") == duration("1s")`, "filter.cel at 1:10: invalid duration"},
		{"parentheses", rep("(", 4096), "filter.cel at 1:1: the expression nests too deeply"},
		{"closed parentheses", rep("(", 2000) + "true" + rep(")", 2000), "filter.cel at 1:1: the expression nests too deeply"},
		{"lists", rep("[", 2000) + rep("]", 2000) + "==[]", "nests too deeply"},
		{"parentheses, some", rep("(", 100) + "true" + rep(")", 100), "nests too deeply; at most 63 levels of parentheses, operators and members"},
		{"maps", rep("{1:", 800) + "1" + rep("}", 800) + "=={}", "nests too deeply"},
		{"calls", rep("size(", 600) + rep(")", 600) + "==1", "nests too deeply"},
		{"choices", rep("true?true:", 400) + "true", "nests too deeply"},
		{"sums", rep("1+", 1000) + "1==1", "nests too deeply"},
		{"members", "event.payload" + rep(".a", 2000) + "==1", "nests too deeply"},
		{"endless loops", rep("event.tags.all(a,", 20) + "true" + rep(")", 20), "filter.cel at 1:1: the expression has no bound to what it may cost"},
		{"loops over constants", rep("[1,2,3,4,5,6,7,8,9].all(a,", 5) + "true" + rep(")", 5), "filter.cel at 1:1: the expression may cost "},
		{"loops over the payload", "event.payload.l.all(a, event.payload.l.all(b, a < b))", "filter.cel at 1:1: the expression may cost "},
		{"growing text", rep("event.key.replace('','xxxxxxxx')+", 1) + "event.key" + rep(".replace('','xxxxxxxxxxxxxxxxxxxx')", 5) + " == ''", "filter.cel at 1:1: the expression"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			p, err := Compile(&filter{CEL: tt.cel})
			// A slow machine under the race detector takes a tenth of this.
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("compiling took %v", took)
			}
			if p != nil || eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
				t.Fatalf("Compile = %v, %v; want bad_request", p, err)
			}
			message := eventhub.AsError(err).Message
			if !strings.Contains(message, tt.says) {
				t.Errorf("says %q; want %q", message, tt.says)
			}
			if strings.ContainsAny(message, "\n\r") || len(message) > messageBytes+100 {
				t.Errorf("no short line: %q", message)
			}
		})
	}
}

func TestLargeExpressionsCompile(t *testing.T) {
	for name, text := range map[string]string{
		"or":        strings.Repeat("event.key=='a'||", 200) + "true",
		"list":      "1 in [1" + strings.Repeat(",1", 1500) + "]",
		"nested":    strings.Repeat("(", 63) + "true" + strings.Repeat(")", 63),
		"sum":       strings.Repeat("1+", 60) + "1 == 61",
		"loop":      "event.payload.l.all(a, a.x > 1 && a.y.startsWith('b'))",
		"two loops": "event.tags.exists(a, event.caused_by.exists(b, a == b))",
	} {
		if !mustCompile(t, filter{CEL: text}).Match(encode(t, event{Payload: []byte(`{"l":[]}`), Tags: []string{"a"}, CausedBy: []string{"a"}}), 1) {
			t.Errorf("%s: does not pass", name)
		}
	}
}

// TestTooCostly: what the expression does not show is counted while it is
// evaluated.
func TestTooCostly(t *testing.T) {
	many := func(n int) []byte {
		array := "[" + strings.Repeat("1,", n/2) + "1]"
		return []byte(`{"l":` + array + `,"m":[` + array + `],"o":{"s":"` + strings.Repeat("x", n/2) + `","z":1},"z":1}`)
	}
	for _, tt := range []struct {
		name, cel string
		n         int
		costly    bool
	}{
		{"a loop", `event.payload.l.all(x, x == 1)`, 1000, false},
		{"a long loop", `event.payload.l.all(x, x == 1)`, 100_000, true},
		{"a comparison", `event.payload == event.payload`, 1000, false},
		{"deep comparisons", strings.Repeat("event.payload == event.payload && ", 60) + "true", 200_000, true},
		{"a text", `event.payload.o.s.contains("x")`, 300_000, false},
		{"a member, often", strings.Repeat("event.payload.z == 1 && ", 30) + "true", 200_000, false},
		{"a member within, often", strings.Repeat("event.payload.o.z == 1 && ", 30) + "true", 500_000, false},
		{"an element, often", strings.Repeat("event.payload.l[%d] == 1 && event.payload.l[0] == 1 && ", 30) + "true", 400_000, false},
		{"an element within, often", strings.Repeat("event.payload.m[0][%d] == 1 && ", 30) + "true", 200_000, false},
		{"a size, often", strings.Repeat("size(event.payload) == 4 && size(event.payload.l) > 1 && ", 30) + "true", 200_000, false},
		{"many texts", strings.Repeat("event.payload.o.s == '' || ", 60) + "true", 500_000, true},
	} {
		expression := func(n int) string { return strings.ReplaceAll(tt.cel, "%d", fmt.Sprint(n/2)) }
		p := mustCompile(t, filter{CEL: expression(tt.n)})
		passes := p.Match(encode(t, event{Payload: many(tt.n)}), 1)
		if passes == tt.costly || (p.TooCostly() == 1) != tt.costly || p.Failed() != p.TooCostly() {
			t.Errorf("%s: passes: %v, %d failed, %d too costly", tt.name, passes, p.Failed(), p.TooCostly())
		}
		if !mustCompile(t, filter{CEL: expression(2)}).Match(encode(t, event{Payload: many(2)}), 1) {
			t.Errorf("%s: a small event does not pass", tt.name)
		}
	}
}

// TestCallsAreWeighed: what a call goes over and makes is counted before it begins, also
// where the language counts one for it or where it is counted only when it is over.
func TestCallsAreWeighed(t *testing.T) {
	long := `"` + strings.Repeat("a", 400_000) + `"`
	for _, tt := range []struct{ name, cel, small string }{
		{"a pattern written short", `event.payload.s.matches("^[a-z]{0,300}x$")`, `"x"`},
		{"a pattern as a function", `matches(event.payload.s, "^([a-z]{0,30}){0,8}x$")`, `"x"`},
		{"many patterns", `[event.payload.s].all(x, ` + strings.Repeat(`!x.matches("^b|(a|aa)+c") && `, 8) + `true)`, `"x"`},
		{"a search", `event.payload.s.indexOf(event.payload.s) == 0`, `"x"`},
		{"a search from the end", `event.payload.s.lastIndexOf(event.payload.s) == 0`, `"x"`},
		{"growth by replacement", `event.payload.s.replace("a", "` + strings.Repeat("b", 100) + `") != ""`, `"x"`},
		{"growth between all", `event.payload.s.replace("", "` + strings.Repeat("b", 100) + `") != ""`, `"x"`},
		{"growth by joining", `[event.payload.s].all(x, [` + strings.Repeat("x,", 30) + `x].join(x) != "")`, `"x"`},
		{"growth by a format", `[event.payload.s].all(x, "` + strings.Repeat("%s", 31) + `".format([` + strings.Repeat("x,", 30) + `x]) != "")`, `"x"`},
		{"a format of lists", `[event.payload.s].all(x, "%s".format([[` + strings.Repeat("x,", 30) + `x]]) != "")`, `"x"`},
		{"sizes", `[event.payload.s].all(x, event.tags.all(t, ` + strings.Repeat("size(x) > 0 && ", 10) + `true))`, `"x"`},
		{"conversions", `[event.payload.s].all(x, event.tags.all(t, ` + strings.Repeat(`bytes(x) != b"" && `, 10) + `true))`, `"x"`},
	} {
		p := mustCompile(t, filter{CEL: tt.cel})
		e := event{Tags: []string{"1", "2", "3"}, Payload: []byte(`{"s":` + long + `}`)}
		if v := p.Judge(encode(t, e), 1); v != CostsTooMuch || p.TooCostly() != 1 || p.Failed() != 1 {
			t.Errorf("%s: %d, %d too costly", tt.name, v, p.TooCostly())
		}
		e.Payload = []byte(`{"s":` + tt.small + `}`)
		if v := p.Judge(encode(t, e), 1); v != Passes {
			t.Errorf("%s: a small event gets %d", tt.name, v)
		}
	}
}

// TestNestedAndRepeated: lists and maps that an expression puts into one another have far more elements than it takes to make
// them, and numbers and names of time zones may be long or many. All that goes over them counts.
func TestNestedAndRepeated(t *testing.T) {
	digits := strings.Repeat("1", 400_000)
	elements := "[" + strings.Repeat("1,", 999) + "1]"
	zones := "[" + strings.Repeat(`"No/Zone",`, 999) + `"No/Zone"]`
	doubled := func(start, made string, times int) string {
		return "[" + start + "]" + strings.Repeat(".map(x, "+made+")", times)
	}
	for _, tt := range []struct{ name, cel, payload string }{
		{"equal lists", doubled("1", "[x, x]", 30) + ".exists(x, x == x)", "1"},
		{"unequal lists", doubled("1", "[x, x]", 30) + ".exists(x, !(x != x))", "1"},
		{"equal maps", doubled("1", `{"a": x, "b": x}`, 30) + ".exists(x, x == x)", "1"},
		{"equal texts in lists", doubled("event.payload.s", "[x, x]", 30) + ".exists(x, x == x)", `{"s":"` + digits + `"}`},
		{"lists of the event", doubled("event.payload", "[x, x]", 30) + ".exists(x, x == x)", "[1]"},
		{"objects of the event", doubled("event.payload", `{"a": x, "b": x}`, 30) + ".exists(x, x == x)", `{"a":1}`},
		{"one of a list", doubled("1", "[x, x]", 30) + ".exists(x, x in [x])", "1"},
		{"one of lists", doubled("1", "[x, x]", 30) + ".exists(x, x in [dyn(0)] + [dyn(x)])", "1"},
		{"a format", doubled("1", "[x, x]", 30) + `.exists(x, "%s".format([x]) != "")`, "1"},
		{"long numbers", "event.payload.l.all(x, event.payload.n > 0)", `{"l":` + elements + `,"n":` + digits + `}`},
		{"time zones", "event.payload.all(z, timestamp(0).getHours(z) == 0)  || event.payload.exists(z, timestamp(0).getMinutes(z) == 61)", zones},
	} {
		p := mustCompile(t, filter{CEL: tt.cel})
		if v := p.Judge(encode(t, event{Payload: []byte(tt.payload)}), 1); v != CostsTooMuch {
			t.Errorf("%s: %d", tt.name, v)
		}
	}
	for _, text := range []string{
		doubled("1", "[x, x]", 8) + ".exists(x, x == x && !(x != x) && x in [x] && [x] == [x])",
		doubled("event.payload.l", `{"a": x, "b": [x]}`, 8) + ".exists(x, x == x && x in [1, x])",
		`event.payload.l == [1, [2], {"a": [3.0]}] && {"a": [3]} in event.payload.l && [2] in [[1], event.payload.l[1]] && !([2] in [[1], [2, 3]])`,
		`[1, [2]] != [1, [3]] && {"a": [1]} != {"a": [2]} && {"a": 1} != {"b": 1} && [[1]] != dyn([1]) && [null] == [null] && null in [null, [1]] && "a" in {"a": [1]}`,
		`event.payload.n > 0 && timestamp(0).getHours("UTC") == 0 && timestamp(0).getHours("+02:00") == 2 && timestamp(0).getFullYear() == 1970 && duration("90s").getMinutes() == 1`,
		`[1].all(event, size("abc") == 3 && event == 1) && ["A"].exists(event, event.lowerAscii() == "a")`,
	} {
		if v := mustCompile(t, filter{CEL: text}).Judge(encode(t, event{Payload: []byte(`{"l":[1,[2],{"a":[3]}],"n":` + digits + `}`)}), 1); v != Passes {
			t.Errorf("%s: %d", text, v)
		}
	}
}

// TestTypesAreBounded: an expression whose types nest is refused before anybody looks for them, which would take minutes.
func TestTypesAreBounded(t *testing.T) {
	for text, refused := range map[string]bool{
		"[1]" + strings.Repeat(".map(x, [[[[x]]]])", 57) + ".exists(x, x == x)":                 true,
		"[1]" + strings.Repeat(`.map(x, {"a": {"b": [x]}})`, 57) + ".exists(x, x == x)":         true,
		"[1]" + strings.Repeat(".map(x, [[[[x]]]])", 57) + ".exists(x, true)":                   true,
		"[1]" + strings.Repeat(".map(x, [x])", 31) + ".exists(x, x == x)":                       false,
		"[1]" + strings.Repeat(".map(x, [x])", 32) + ".exists(x, x == x)":                       true,
		"[1]" + strings.Repeat(".map(x, x + 1)", 60) + ".exists(x, x == 61)":                    false,
		"[1]" + strings.Repeat(".map(x, [x][0])", 15) + ".exists(x, x == 1)":                    false,
		strings.Repeat("[", 32) + strings.Repeat("]", 32) + " == event.payload":                 false,
		strings.Repeat("[", 33) + strings.Repeat("]", 33) + " == event.payload":                 true,
		"event.payload in [[1], [2]] || event.tags.map(t, {'t': [t]}).exists(m, m.t[0] == 'a')": false,
	} {
		compiled := make(chan error, 1)
		go func() {
			_, err := Compile(&filter{CEL: text})
			compiled <- err
		}()
		select {
		case err := <-compiled:
			if refused != (err != nil) || refused && !strings.Contains(err.Error(), "deep into one another") {
				t.Errorf("%.60s: %v", text, err)
			}
		case <-time.After(20 * time.Second): // it takes milliseconds
			t.Fatalf("%.60s: nobody knows its types", text)
		}
	}
}

// TestChainsEnd: whatever an expression makes of what it has made, it ends soon.
func TestChainsEnd(t *testing.T) {
	made := []string{"[x, x]", "[x, [x]]", `{"a": x, "b": x}`, `{"a": [x], "b": event.payload}`, "[x] + [x, x]", "x in [x, x] ? [x, x] : [x]", "[x == x, x == [x]]", `"%s".format([x])`,
		"[x].map(y, [y, x])", "[x, event.payload]", "dyn(x)", "[x].filter(y, y == x)"}
	asked := []string{"x == x", "x != x", "x in [x]", `"%s%s".format([x, x]) == ""`, "[x] == [[x], x]", "x in event.payload", "x == event.payload", "event.payload == x"}
	r := encode(t, event{Payload: []byte(`{"a":[1,[2],{"b":"text"}],"b":[[[1]]]}`)})
	random := rand.New(rand.NewPCG(1, 2))
	verdicts := make(map[Verdict]int)
	for range testsize.Of(150, 30) {
		text := []string{"[dyn(event.payload)]", "[dyn(1)]"}[random.IntN(2)]
		two := []string{made[random.IntN(len(made))], made[random.IntN(len(made))]}
		for range random.IntN(30) {
			text += ".map(x, " + two[random.IntN(2)] + ")"
		}
		text += ".exists(x, " + asked[random.IntN(len(asked))] + ")"
		p, err := Compile(&filter{CEL: text})
		if err != nil {
			continue // refused before it costs anything
		}
		judged := make(chan Verdict, 1)
		go func() { judged <- p.Judge(r, 1) }()
		select {
		case v := <-judged:
			verdicts[v]++
		case <-time.After(20 * time.Second): // it takes 0.1 s on a machine at rest
			t.Fatalf("%s does not end", text)
		}
	}
	if verdicts[Passes] == 0 || verdicts[Excludes] == 0 || verdicts[CostsTooMuch] == 0 {
		t.Errorf("verdicts: %v; of each kind some are expected", verdicts)
	}
}

// TestTextOfWhatIsNone: a value that is no text is none, however large, and whatever was counted before.
func TestTextOfWhatIsNone(t *testing.T) {
	often := strings.Repeat("event.payload == event.payload && ", 2) + "true"
	text, err := CompileText(often + " ? event.payload : event.payload.s")
	if err != nil {
		t.Fatal(err)
	}
	r := encode(t, event{Payload: []byte(`{"a":{"k":1},"s":"` + strings.Repeat("a", 900_000) + `"}`)})
	if got, ok := text.Of(r, 1); ok || got != "" {
		t.Errorf("an object has the text %.20q", got)
	}
	for cel, want := range map[string]string{"event.payload.s": "a", "event.payload.n": "", "event.key": "k", "event.payload.none": ""} {
		text, err := CompileText(cel)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := text.Of(encode(t, event{Key: "k", Payload: []byte(`{"s":"a","n":1,"none":null}`)}), 1)
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", cel, got, ok)
		}
	}
}

// TestEstimatesHold: an expression is evaluated without counting only where the
// estimate is right that it cannot cost too much; so estimates have to be above
// what an event as large as it may be costs.
func TestEstimatesHold(t *testing.T) {
	var tags, causes []string
	for i := range eventhub.MaxTags {
		tags = append(tags, fmt.Sprintf("%0*d", eventhub.MaxTagBytes, i))
	}
	for i := range eventhub.MaxCausedBy {
		causes = append(causes, fmt.Sprintf("%0*d", eventhub.MaxIDBytes, i))
	}
	values := make(headers)
	for i := range eventhub.MaxHeaders {
		values[fmt.Sprintf("h%02d", i)] = strings.Repeat("v", eventhub.MaxHeaderBytes/eventhub.MaxHeaders-3)
	}
	r := encode(t, event{ID: strings.Repeat("i", 64), TS: 1, Key: strings.Repeat("k", eventhub.MaxKeyBytes), SID: strings.Repeat("s", eventhub.MaxSIDBytes),
		Tags: tags, CausedBy: causes, Headers: values, Payload: []byte(`{"s":"` + strings.Repeat("x", eventhub.MaxPayloadBytes-100) + `","n":1}`)})
	env, err := environment()
	if err != nil {
		t.Fatal(err)
	}
	bounded := 0
	for _, text := range []string{
		`event.key.contains("kkkx") || event.sid.endsWith("x") || event.id == event.key`,
		`event.tags.exists(t, t == event.key) || event.caused_by.all(c, c.size() == 64)`,
		`event.headers.all(h, event.headers[h].matches("^v+$"))`,
		`event.tags.exists(t, event.caused_by.exists(c, c == t))`,
		`event.payload.s == "x" || event.payload.n == 1`,
		`event.payload.s.contains("xy") || event.payload.s.size() > 1`,
		`event.key.upperAscii().lowerAscii().replace("k", "j").reverse() == event.key + event.sid`,
		`event.headers.map(h, event.headers[h]).join(",").split(",").size() == 64`,
		`event.tags == event.caused_by || event.headers == {"a": "b"}`,
	} {
		checked, issues := env.Compile(text)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		estimate, err := env.EstimateCost(checked, sizes{eventhub.MaxPayloadBytes})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := judgeCost(env, checked); ok && err == nil {
			bounded++
		}
		program, err := env.Program(checked, cel.CostTracking(nil))
		if err != nil {
			t.Fatal(err)
		}
		e := &evaluation{record: r}
		if !e.read(r, memberPayload) {
			t.Fatal("no record")
		}
		_, details, err := program.Eval(e)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if actual := *details.ActualCost(); actual > estimate.Max || actual < 3 {
			t.Errorf("%s costs %d; the estimate was %d", text, actual, estimate.Max)
		}
	}
	if bounded < 3 {
		t.Errorf("only %d of the expressions are known to be cheap", bounded)
	}
}
