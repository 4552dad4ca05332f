package rest

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

func keyOf(t *testing.T, principal string, values ...string) onceKey {
	t.Helper()
	key, _, ok, err := readOnceKey(http.Header{idempotencyKey: values}, principal)
	if !ok || err != nil {
		t.Fatalf("the key %q of %q: %v, %v", values, principal, ok, err)
	}
	return key
}

func TestOnceKeys(t *testing.T) {
	if _, _, ok, err := readOnceKey(http.Header{}, "ann"); ok || err != nil {
		t.Errorf("without the header: %v, %v", ok, err)
	}
	k := keyOf(t, "ann", `"order-7 \"a\\b\""`)
	if k != keyOf(t, "ann", `order-7 "a\b"`) {
		t.Error("with and without quotes one key is two")
	}
	seen := map[onceKey]string{}
	for _, of := range [][2]string{{"ann", "x"}, {"an", "nx"}, {"", "annx"}, {"ann", "X"}, {"ann1", "x"}, {"", "3:annx"}, {"3:ann", "x"}} {
		key := keyOf(t, of[0], of[1])
		if other, ok := seen[key]; ok {
			t.Errorf("%q has the key of %s", of, other)
		}
		seen[key] = strings.Join(of[:], "/")
	}
	ids := map[string]bool{}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for i := range 1000 {
		id := k.id(i)
		if ids[id] || !uuid.MatchString(id) {
			t.Fatalf("the id of place %d is %q", i, id)
		}
		ids[id] = true
	}
}

func TestBadOnceKeys(t *testing.T) {
	for _, tt := range []struct{ values []string }{
		{[]string{""}}, {[]string{`""`}}, {[]string{`"open`}}, {[]string{`"`}}, {[]string{`"a"b`}}, {[]string{`"a";p=1`}}, {[]string{`"a\c"`}}, {[]string{`"a\`}},
		{[]string{"a\tb"}}, {[]string{"schlüssel"}}, {[]string{"\x7f"}}, {[]string{strings.Repeat("k", 257)}}, {[]string{`"` + strings.Repeat("k", 257) + `"`}}, {[]string{"a", "b"}},
	} {
		if _, _, _, err := readOnceKey(http.Header{idempotencyKey: tt.values}, "ann"); err == nil {
			t.Errorf("%q is taken", tt.values)
		} else if !strings.HasPrefix(err.Error(), "bad_request") || len(err.Error()) > 300 {
			t.Errorf("%q: %v", tt.values, err)
		}
	}
	keyOf(t, "ann", strings.Repeat("k", 256))
	keyOf(t, "ann", `"`+strings.Repeat("k", 256)+`"`)
}
