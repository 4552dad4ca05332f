package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// checkPlain holds Plain against the slow reading: what it takes is read there, and left
// as it is.
func checkPlain(t failer, text []byte) {
	t.Helper()
	n := Plain(text)
	if n == 0 {
		return
	}
	if n > len(text) {
		t.Fatalf("Plain(%q) = %d", text, n)
	}
	value := text[:n]
	out, err := jsontext.AppendFormat(nil, value, jsontext.PreserveRawStrings(true))
	if err != nil || !bytes.Equal(out, value) {
		t.Fatalf("%q is plain; the library makes %q of it, %v", value, out, err)
	}
	if tooDeep(value, plainDepth) {
		t.Fatalf("%q is plain, and deep", value)
	}
	if n < len(text) {
		whole := jsontext.NewDecoder(bytes.NewReader(text))
		if again, err := whole.ReadValue(); err == nil && len(again) != n && text[n] != '.' && !strings.ContainsRune("0123456789eE+-", rune(text[n])) {
			t.Fatalf("of %q, %q is plain; the library reads %q", text, value, again)
		}
	}
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func FuzzPlain(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":null}],"c":"x"}`, `"x"`, `1e5`, `{"a":1,"a":2}`, `-0.5E-7`, `"\u0000"`, `[[[]]]x`, `{"a":{"a":1}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkPlain(t, text) })
}

// TestPlainValues: values as programs write them are plain, whole, and with any one byte
// of them changed or left out the slow reading agrees.
func TestPlainValues(t *testing.T) {
	var many strings.Builder
	for i := range plainNames {
		fmt.Fprintf(&many, `,"name-%d":%d`, i, i)
	}
	for _, text := range []string{
		`null`, `true`, `false`, `0`, `-1`, `12.50`, `1e400`, `-0.5E-7`, `""`, `"a"`, `"1234567"`, `"12345678"`, `"123456789 ~` + "\x7f" + `"`,
		`[]`, `{}`, `[[],{}]`, `{"a":1,"b":{"a":1,"b":[true,false,null]}}`, `[{"topic":"t","payload":{"cpu":0.5}},{"topic":"t","payload":"x"}]`,
		`{` + many.String()[1:] + `}`, `[` + strings.Repeat(`{"a":{"b":1}},`, 200) + `1]`,
		strings.Repeat("[", plainDepth) + strings.Repeat("]", plainDepth),
	} {
		if n := Plain([]byte(text)); n != len(text) {
			t.Errorf("Plain(%s) = %d; want %d", text, n, len(text))
		}
		if out, err := AppendCompact([]byte("x"), []byte(text)); err != nil || string(out) != "x"+text {
			t.Errorf("AppendCompact(%s) = %s, %v", text, out, err)
		}
		if len(text) > 400 {
			continue
		}
		for i := range text {
			checkPlain(t, []byte(text[:i]+text[i+1:]))
			for _, c := range []byte("\x00\x1f \"\\,:{}[]0-.en\x7f\x80\xff") {
				changed := []byte(text)
				changed[i] = c
				checkPlain(t, changed)
			}
		}
	}
}

func TestNotPlain(t *testing.T) {
	for _, text := range []string{
		``, ` 1`, `[ ]`, `[1, 2]`, `{"a": 1}`, `"é"`, `"\n"`, "\"\x1f\"", `{"a":1,"a":2}`, `{"a":1,}`, `[1,]`, `[,1]`, `{"a"}`, `{"a":}`, `{1:2}`,
		`nul`, `tru`, `-`, `+1`, `.5`, `1.`, `1e`, `1e+`, `"a`, `"1234567890`, `[1`, `{"a":1`, `[1}`, `{"a":1]`, `x`,
		strings.Repeat("[", plainDepth+1) + strings.Repeat("]", plainDepth+1),
	} {
		if n := Plain([]byte(text)); n == len(text) && n > 0 {
			t.Errorf("Plain(%q) = %d", text, n)
		}
		checkPlain(t, []byte(text))
	}
}

// TestPlainOfRandomValues: what encoding/json writes is plain where it is ASCII and
// small, and wherever Plain says so the slow reading agrees.
func TestPlainOfRandomValues(t *testing.T) {
	plain := 0
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(drawValue(t, 4))
		if err != nil {
			t.Fatal(err)
		}
		checkPlain(t, text)
		if Plain(text) == len(text) {
			plain++
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		text[at] = rapid.Byte().Draw(t, "byte")
		checkPlain(t, text)
	})
	if plain == 0 {
		t.Error("none was plain")
	}
}

func drawValue(t *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 6).Draw(t, "kind")
	if depth == 0 {
		kind %= 5
	}
	switch kind {
	case 0:
		return rapid.Float64Range(-1e9, 1e9).Draw(t, "number")
	case 1:
		return rapid.Int().Draw(t, "number")
	case 2:
		return rapid.StringMatching(`[ -~]{0,40}`).Draw(t, "text")
	case 3:
		return rapid.String().Draw(t, "text")
	case 4:
		return rapid.SampledFrom([]any{nil, true, false}).Draw(t, "literal")
	case 5:
		list := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "n") {
			list = append(list, drawValue(t, depth-1))
		}
		return list
	}
	object := map[string]any{}
	for range rapid.IntRange(0, 6).Draw(t, "n") {
		object[rapid.StringMatching(`[a-z]{0,12}`).Draw(t, "name")] = drawValue(t, depth-1)
	}
	return object
}

func BenchmarkAppendCompact(b *testing.B) {
	text := strings.Repeat("abcdefgh", 32)
	for _, bb := range []struct{ name, value string }{
		{"string", `"` + text + `"`},
		{"heartbeat", `{"pid":4711,"comm":"postgres","cpu":0.0725,"rss":104857600,"threads":12,"state":"S","cmdline":"postgres: writer process","tags":["db","primary"],"up":true}`},
		{"unicode", `{"text":"` + strings.Repeat("größer", 40) + `"}`},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(bb.value)))
			b.ReportAllocs()
			value := []byte(bb.value)
			var out []byte
			for b.Loop() {
				var err error
				if out, err = AppendCompact(out[:0], value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
