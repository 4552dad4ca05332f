package strictjson

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestAppendCompactKeepsTokens(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{`null`, `null`},
		{` 1.0 `, `1.0`},
		{`1e400`, `1e400`},
		{`-0`, `-0`},
		{`12345678901234567890`, `12345678901234567890`},
		{"{ \"a\" : [ 1 ,\t2.50 ] ,\n\"b\":\"\\u00e9 \\/ x\" }", `{"a":[1,2.50],"b":"\u00e9 \/ x"}`},
		{`"  spaces  stay "`, `"  spaces  stay "`},
		{`"\ud83d\ude00"`, `"\ud83d\ude00"`},
		{`{"b":1,"a":2}`, `{"b":1,"a":2}`},
	} {
		got, err := AppendCompact([]byte("x"), []byte(tt.in))
		if err != nil || string(got) != "x"+tt.want {
			t.Errorf("AppendCompact(%s) = %s, %v; want x%s", tt.in, got, err, tt.want)
		}
	}
}

func TestAppendCompactRefuses(t *testing.T) {
	for in, want := range map[string]string{
		``:                    "invalid JSON",
		`{`:                   "invalid JSON",
		`{"a":1,}`:            "byte 7",
		`1 2`:                 "byte 2",
		`nul`:                 "invalid JSON",
		`{"a":1,"a":2}`:       `duplicate name "a"`,
		`{"x":{"k":1,"k":2}}`: `duplicate name "k"`,
		`{"a":1,"\u0061":2}`:  `duplicate name "a"`,
		`"\ud800"`:            "invalid JSON",
		"\"\xff\"":            "invalid JSON",
		"\"a\x01\"":           "invalid JSON",
		`01`:                  "invalid JSON",
		`[1`:                  "invalid JSON",
		`'a'`:                 "invalid JSON",
		`NaN`:                 "invalid JSON",
	} {
		got, err := AppendCompact([]byte("x"), []byte(in))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("AppendCompact(%q) error = %v; want one with %q", in, err, want)
		}
		if string(got) != "x" {
			t.Errorf("AppendCompact(%q) left %q; want dst as it was", in, got)
		}
	}
}

func TestNesting(t *testing.T) {
	nest := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	wide := []byte("[" + strings.Repeat(`{"a":"[[\\\"{"},`, 3*MaxDepth) + "1]")
	for _, tt := range []struct {
		name string
		in   []byte
		ok   bool
	}{{"deep", nest(MaxDepth), true}, {"too deep", nest(MaxDepth + 1), false}, {"far too deep", nest(20_000), false}, {"wide", wide, true}} {
		if _, err := AppendCompact(nil, tt.in); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// FuzzAppendCompact holds the strict reading against the standard library:
// whatever passes must be valid there and mean the same.
func FuzzAppendCompact(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":null}]}`, ` "x" `, `1e5`, `{"a":1,"a":2}`, "\"\\u0000\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := AppendCompact(nil, in)
		if err != nil {
			return
		}
		if !json.Valid(in) || !json.Valid(out) {
			t.Fatalf("passed %q as %q, which encoding/json refuses", in, out)
		}
		again, err := AppendCompact(nil, out)
		if err != nil || string(again) != string(out) {
			t.Fatalf("compacting %q again gave %q, %v", out, again, err)
		}
	})
}

func TestUnmarshalSaysWhereAndWhat(t *testing.T) {
	type thing struct {
		Name  string          `json:"name"`
		Count int             `json:"count"`
		Any   json.RawMessage `json:"any"`
		Map   map[string]string
	}
	var v thing
	if err := Unmarshal([]byte(` {"name":"n","count":2,"any":{"a": 1.0}} `), &v); err != nil || v.Name != "n" || v.Count != 2 || string(v.Any) != `{"a": 1.0}` {
		t.Errorf("Unmarshal = %+v, %v", v, err)
	}
	for in, want := range map[string]string{
		`{"name":1}`:             "/name can not be such a number",
		`{"count":"x"}`:          "/count can not be such a string",
		`{"count":1.5}`:          "/count can not be such a number",
		`{"nmae":"n"}`:           "/nmae is not a known name; did you mean name?",
		`{"Name":"n"}`:           "/Name is not a known name",
		`[]`:                     "the value can not be an array",
		`{"Map":{"k":{}}}`:       "/Map/k can not be an object",
		`{"name":"a","name":""}`: `duplicate name "name"`,
		`{"any":{"a":1,"a":1}}`:  `duplicate name "a"`,
		`{"name":`:               "invalid JSON at byte 8",
		`{} {}`:                  "invalid JSON at byte 3",
	} {
		if err := Unmarshal([]byte(in), new(thing)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Unmarshal(%s) = %v; want %q", in, err, want)
		}
	}
}

// TestUnmarshalTakesAliases: of the object itself, and not of what is in it.
func TestUnmarshalTakesAliases(t *testing.T) {
	type thing struct {
		After string `json:"after_id"`
		From  *int   `json:"from_ts"`
		In    *thing `json:"in"`
		List  []struct {
			To int `json:"to_ts"`
		} `json:"list"`
	}
	var raw struct {
		After string          `json:"after_id"`
		Any   json.RawMessage `json:"any"`
	}
	if err := Unmarshal([]byte(`{"any":{"n":1.50,"s":"\u0061/\/"},"afterId":"a"}`), &raw); err != nil || string(raw.Any) != `{"n":1.50,"s":"\u0061/\/"}` {
		t.Errorf("the tokens next to an alias became %s, %v", raw.Any, err)
	}
	for in, want := range map[string]string{
		`{"afterId":"a","from_ts":5}`:            `{"after_id":"a","from_ts":5,"in":null,"list":null}`,
		` { "fromTs": 5 , "afterId": "\u0061" }`: `{"after_id":"a","from_ts":5,"in":null,"list":null}`,
		`{"afterId":"a","after_id":"a"}`:         "after_id and its alias afterId are both given; one of them is expected",
		`{"afterId":5}`:                          "/after_id can not be such a number",
		`{"afterId":"a","x":1}`:                  "/x is not a known name",
		`{"afterId":"a","afterId":"b"}`:          `duplicate name "afterId"`,
		`{"toTs":5}`:                             "/toTs is not a known name",
		`{"in":{"afterId":"a"}}`:                 "/in/afterId is not a known name; did you mean after_id?",
		`{"list":[{},{"toTs":1}]}`:               "/list/1/toTs is not a known name; did you mean to_ts?",
	} {
		var v thing
		err := Unmarshal([]byte(in), &v)
		got, _ := json.Marshal(v)
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.Contains(string(got), want) {
			t.Errorf("Unmarshal(%s) = %s; want %s", in, got, want)
		}
		var meaning *MeaningError
		if err != nil && !strings.Contains(want, "duplicate") && !errors.As(err, &meaning) {
			t.Errorf("Unmarshal(%s) = %T; want a MeaningError", in, err)
		}
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "plain", "q\"\\/\n\t\x01", "é😀", "\u2028<>&"} {
		var back string
		if err := json.Unmarshal(AppendString(nil, s), &back); err != nil || back != s {
			t.Errorf("AppendString(%q) = %s, read back as %q, %v", s, AppendString(nil, s), back, err)
		}
	}
}
