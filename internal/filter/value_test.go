package filter

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"eventhub/internal/strictjson"
)

// slow is the reference for decode: the standard library reads everything.
func slow(t *testing.T, raw []byte) ref.Val {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return types.DefaultTypeAdapter.NativeToValue(numbers(t, v))
}

func numbers(t *testing.T, v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, err := v.Float64()
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			t.Fatal(err)
		}
		return f
	case []any:
		for i := range v {
			v[i] = numbers(t, v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = numbers(t, v[name])
		}
	}
	return v
}

// same compares a value with the reference by all that expressions can ask.
func same(t *testing.T, got, want ref.Val) {
	t.Helper()
	if got.Type() != want.Type() {
		t.Fatalf("%v is of type %v; want %v", want.Value(), got.Type(), want.Type())
	}
	if types.Equal(got, want) != types.True || types.Equal(want, got) != types.True || types.Equal(got, got) != types.True {
		t.Fatalf("not equal to %v", want.Value())
	}
	switch got := got.(type) {
	case *object:
		want := want.(traits.Mapper)
		if got.Size() != want.Size() || types.Equal(got.all(), want) != types.True {
			t.Fatalf("has %v members; want %v", got.Size(), want.Value())
		}
		for _, round := range []string{"searched", "again", "noted down"} {
			for it := want.Iterator(); it.HasNext() == types.True; {
				name := it.Next()
				value, found := got.Find(name)
				if !found || got.Contains(name) != types.True {
					t.Fatalf("%s: %v is not there", round, name)
				}
				inner, _ := want.Find(name)
				same(t, value, inner)
			}
		}
		n := 0
		for it := got.Iterator(); it.HasNext() == types.True; n++ {
			if want.Contains(it.Next()) != types.True {
				t.Fatal("has a member more")
			}
		}
		if types.Int(n) != want.Size() || got.Contains(types.String("no such name")) != want.Contains(types.String("no such name")) {
			t.Fatalf("goes over %d members; want %v", n, want.Size())
		}
	case *list:
		sameList(t, got, want.(traits.Lister))
	}
}

func sameList(t *testing.T, got *list, want traits.Lister) {
	t.Helper()
	if got.Size() != want.Size() || types.Equal(got.all(), want) != types.True {
		t.Fatalf("has %v elements; want %v", got.Size(), want.Value())
	}
	size := int(want.Size().(types.Int))
	for range 2 {
		for i := size - 1; i >= 0; i-- {
			same(t, got.Get(types.Int(i)), want.Get(types.Int(i)))
		}
		for i := range size {
			same(t, got.Get(types.Int(i)), want.Get(types.Int(i)))
			if got.Contains(want.Get(types.Int(i))) != types.True {
				t.Fatalf("does not contain its element %d", i)
			}
		}
	}
	for _, place := range []ref.Val{types.Int(-1), types.Int(size), types.Int(math.MaxInt), types.Int(math.MinInt),
		types.Uint(math.MaxUint64), types.Double(0.5), types.Double(math.NaN()), types.String("0"), types.True, types.NullValue} {
		if !types.IsError(got.Get(place)) {
			t.Fatalf("has an element at %v", place)
		}
	}
	if size > 0 {
		same(t, got.Get(types.Double(0)), want.Get(types.Int(0)))
		same(t, got.Get(types.Uint(0)), want.Get(types.Int(0)))
	}
	n := 0
	for it := got.Iterator(); it.HasNext() == types.True; n++ {
		same(t, it.Next(), want.Get(types.Int(n)))
	}
	if n != size {
		t.Fatalf("goes over %d elements; want %d", n, size)
	}
}

var someJSON = []string{
	`null`, `true`, `false`, `0`, `-1`, `9223372036854775807`, `9223372036854775808`, `1.5`, `1e3`, `1e999`, `-0`, `-0.0`,
	`""`, `"a"`, `"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"`, `"\\"`, `"\\\""`, "\"é😀\u2028\"",
	`[]`, `[1]`, `[[],[[]],{},"]",[1,2,[3]]]`, `[1,1.0,"1",null,true,[1],{"1":1}]`,
	`{}`, `{"a":1}`, `{"a":{"b":{"c":[]}},"d":"}","\u0065":"{","f":[{}]}`, `{"":0}`,
}

func TestValues(t *testing.T) {
	for _, raw := range someJSON {
		same(t, new(meter).decode([]byte(raw)), slow(t, []byte(raw)))
	}
}

func TestValuesThatDiffer(t *testing.T) {
	for _, pair := range [][2]string{{`{"a":1}`, `{"a":2}`}, {`{"a":1}`, `{"b":1}`}, {`{"a":1}`, `{}`}, {`[1]`, `[2]`}, {`[1]`, `[1,1]`}, {`[]`, `{}`}, {`{}`, `1`}, {`[[1]]`, `[["1"]]`}} {
		a, b := new(meter).decode([]byte(pair[0])), new(meter).decode([]byte(pair[1]))
		for _, other := range []ref.Val{b, slow(t, []byte(pair[1]))} {
			if types.Equal(a, other) == types.True || types.Equal(other, a) == types.True {
				t.Errorf("%s equals %s", pair[0], pair[1])
			}
		}
	}
}

// FuzzValues holds the reading of a payload's bytes against the standard library.
func FuzzValues(f *testing.F) {
	for _, s := range someJSON {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 500 {
			t.Skip("nothing new in more of it, and each is gone over many times")
		}
		raw, err := strictjson.AppendCompact(nil, in)
		if err != nil {
			t.Skip("no payload")
		}
		same(t, new(meter).decode(raw), slow(t, raw))
	})
}

// FuzzText holds the comparing of escaped texts against strconv's reading.
func FuzzText(f *testing.F) {
	f.Add(`a\u0062c`, "abc")
	f.Add(`\ud83d\ude00x`, "😀x")
	f.Add(`\n\t\\`, "\n\t")
	f.Fuzz(func(t *testing.T, escaped, text string) {
		var plain string
		raw, err := strictjson.AppendCompact(nil, []byte(`"`+escaped+`"`))
		if err != nil || json.Unmarshal(raw, &plain) != nil || !utf8.ValidString(text) {
			t.Skip("no string, or no filter")
		}
		if got := unquote([]byte(escaped)); got != plain {
			t.Fatalf("unquote(%s) = %q; want %q", escaped, got, plain)
		}
		for _, want := range []string{text, plain, plain + text} {
			if got := sameText([]byte(escaped), want, false); got != (plain == want) {
				t.Fatalf("sameText(%s, %q) = %v", escaped, want, got)
			}
			if got := sameText([]byte(escaped), want, true); got != strings.HasPrefix(plain, want) {
				t.Fatalf("sameText(%s, %q as a prefix) = %v", escaped, want, got)
			}
		}
	})
}
