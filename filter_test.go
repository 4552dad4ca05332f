package eventhub

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestFilterIsZero(t *testing.T) {
	for name, f := range map[string]*Filter{"nil": nil, "zero": {}, "empty": {Headers: map[string]string{}, Tags: []string{}}} {
		if !f.IsZero() || f.String() != "{}" || f.Validate() != nil {
			t.Errorf("%s: IsZero %v, String %s, Validate %v", name, f.IsZero(), f, f.Validate())
		}
	}
	for _, f := range []*Filter{{Key: "k"}, {Headers: map[string]string{"a": ""}}, {Tags: []string{"t"}}, {CEL: "true"}} {
		if f.IsZero() || f.String() == "{}" || f.Validate() != nil {
			t.Errorf("%s: IsZero %v, Validate %v", f, f.IsZero(), f.Validate())
		}
	}
}

func TestFilterEqual(t *testing.T) {
	whole := func() *Filter {
		return &Filter{Key: "k", Headers: map[string]string{"a": "1", "b": "2"}, Tags: []string{"s", "t"}, CEL: "true"}
	}
	changed := func(change func(*Filter)) *Filter {
		f := whole()
		change(f)
		return f
	}
	for name, tt := range map[string]struct {
		a, b *Filter
		want bool
	}{
		"same":           {whole(), whole(), true},
		"nil and zero":   {nil, &Filter{}, true},
		"zero and empty": {&Filter{}, &Filter{Tags: []string{}}, true},
		"none and some":  {nil, whole(), false},
		"key":            {whole(), changed(func(f *Filter) { f.Key = "l" }), false},
		"header's value": {whole(), changed(func(f *Filter) { f.Headers["a"] = "2" }), false},
		"header more":    {whole(), changed(func(f *Filter) { f.Headers["c"] = "3" }), false},
		"tag":            {whole(), changed(func(f *Filter) { f.Tags[0] = "x" }), false},
		"tags' order":    {whole(), changed(func(f *Filter) { f.Tags[0], f.Tags[1] = f.Tags[1], f.Tags[0] }), true},
		"tag twice":      {whole(), changed(func(f *Filter) { f.Tags = append(f.Tags, "s") }), true},
		"tag more":       {whole(), changed(func(f *Filter) { f.Tags = append(f.Tags, "u") }), false},
		"expression":     {whole(), changed(func(f *Filter) { f.CEL = "true " }), false},
	} {
		if tt.a.Equal(tt.b) != tt.want || tt.b.Equal(tt.a) != tt.want {
			t.Errorf("%s: %s equals %s: %v; want %v", name, tt.a, tt.b, !tt.want, tt.want)
		}
	}
}

// TestFilterKnowsEachCondition: IsZero and Equal look at each field.
func TestFilterKnowsEachCondition(t *testing.T) {
	whole := Filter{Key: "k", Headers: map[string]string{"a": "1"}, Tags: []string{"t"}, CEL: "true"}
	for field, v := range reflect.ValueOf(whole).Fields() {
		if v.IsZero() {
			t.Fatalf("this test does not set %s", field.Name)
		}
		var alone Filter
		reflect.ValueOf(&alone).Elem().FieldByIndex(field.Index).Set(v)
		if alone.IsZero() || alone.Equal(&Filter{}) {
			t.Errorf("with %s alone: IsZero %v, equal to none %v; want neither", field.Name, alone.IsZero(), alone.Equal(&Filter{}))
		}
		without := whole
		reflect.ValueOf(&without).Elem().FieldByIndex(field.Index).SetZero()
		if without.Equal(&whole) {
			t.Errorf("a filter without %s equals one that has it", field.Name)
		}
	}
}

func TestFilterString(t *testing.T) {
	f := &Filter{Key: "host:*", Headers: map[string]string{"b": "2", "a": "1"}, Tags: []string{"#duck"}, CEL: `event.ts > 1 && event.key != ""`}
	var back Filter
	if err := json.Unmarshal([]byte(f.String()), &back); err != nil || !f.Equal(&back) {
		t.Errorf("%s came back as %s, %v", f, &back, err)
	}
	shown := Filter{CEL: `event.payload.a > 1 && event.key < "<b>"`}
	if want := `{"cel":"event.payload.a > 1 && event.key < \"<b>\""}`; shown.String() != want {
		t.Errorf("shown as %s; want %s, as it was written", shown.String(), want)
	}
	if !strings.Contains(f.String(), `"headers":{"a":"1","b":"2"}`) {
		t.Errorf("%s: names are not in order", f)
	}
}

func TestFilterValidate(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, tt := range []struct {
		filter Filter
		says   string // "" for valid
	}{
		{Filter{Key: long(MaxKeyBytes)}, ""},
		{Filter{Key: long(MaxKeyBytes + 1)}, "filter.key"},
		{Filter{Key: "\xff"}, `filter.key "\xff" is not valid UTF-8`},
		{Filter{Headers: map[string]string{"x-a": long(MaxHeaderBytes - 3)}}, ""},
		{Filter{Headers: map[string]string{"x-a": long(MaxHeaderBytes)}}, "filter.headers have 16387 bytes"},
		{Filter{Headers: map[string]string{"a b": "c"}}, `filter.headers: "a b" is not an HTTP token`},
		{Filter{Headers: map[string]string{"a": "\n"}}, "filter.headers: the value"},
		{Filter{Tags: []string{long(MaxTagBytes)}}, ""},
		{Filter{Tags: []string{"a", long(MaxTagBytes + 1)}}, "filter.tags[1]"},
		{Filter{Tags: []string{""}}, "filter.tags[0] is empty"},
		{Filter{Tags: make([]string, MaxTags+1)}, "filter.tags has 33 entries"},
		{Filter{CEL: long(MaxFilterBytes)}, ""}, // its meaning is judged elsewhere
		{Filter{CEL: long(MaxFilterBytes + 1)}, "filter.cel has 4097 bytes; at most 4096"},
		{Filter{CEL: "'\xff'"}, "filter.cel is not valid UTF-8"},
	} {
		err := tt.filter.Validate()
		if tt.says == "" {
			if err != nil {
				t.Errorf("Validate(%.60s) = %v", &tt.filter, err)
			}
			continue
		}
		if ErrorCode(err) != CodeBadRequest || !strings.Contains(AsError(err).Message, tt.says) {
			t.Errorf("Validate(%.60s) = %v; want bad_request with %q", &tt.filter, err, tt.says)
		}
	}
}
