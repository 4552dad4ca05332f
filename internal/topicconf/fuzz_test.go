package topicconf

import (
	"errors"
	"testing"
	"unicode/utf8"

	"eventhub"
)

// FuzzParse reads what may be no settings of a topic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"retention":{"age":"7d","bytes":1000,"events":5}}`, `{"compaction":{"min_age":"1h"}}`, `{"snapshot":{}}`, `{"retention":{"age":"9999999999999d"}}`, `{"rate":1}`, "null", "[", "\xff"} {
		f.Add("orders.**", []byte(s))
	}
	f.Fuzz(func(t *testing.T, name string, src []byte) {
		s, err := Parse(name, src)
		var e *eventhub.Error
		switch {
		case err != nil && (!errors.As(err, &e) || !e.Code.Known() || !utf8.ValidString(e.Message)):
			t.Errorf("the error is %T %v", err, err)
		case err == nil && s.Validate(name) != nil:
			t.Errorf("%q passed for %q", src, name)
		}
	})
}

// FuzzParseFile reads what may be no file of settings: each entry that comes out is sound.
func FuzzParseFile(f *testing.F) {
	for _, s := range []string{"topics:\n  orders.**:\n    retention: {age: 7d}\n", `{"topics":{"a":{"retention":{"events":5}}}}`, "topics: &a\n  b: *a\n", "topics:\n  <<: {a: {}}\n", "a: b: c", "\x00", "? [a]\n: b"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := ParseFile("f.yaml", content)
		if err != nil {
			return
		}
		for _, e := range entries {
			if err := e.Settings.Validate(e.Name); err != nil {
				t.Errorf("%q passed: %s: %v", content, e.Name, err)
			}
		}
	})
}
