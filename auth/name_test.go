package auth

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestNames: a subject has its own name, whatever it is, and one that fits into logs.
func TestNames(t *testing.T) {
	long := strings.Repeat("s", 127)
	seen := map[string]string{}
	for _, sub := range []string{
		"ann", "jwt2", long, long + "s", long + "st", long + "su", long + "é", strings.Repeat("é", 64), strings.Repeat("é", 65), strings.Repeat("é", 66),
		"a\tb", "a\nb", "a?b", "a\x00b", "\xff", "\xfe", "~", strings.Repeat("x", 9000), strings.Repeat("x", 9001),
	} {
		name := nameOf(sub)
		for _, sub := range []string{sub, name} { // a subject may be another one's name
			name := nameOf(sub)
			if other, ok := seen[name]; ok && other != sub {
				t.Errorf("%.40q and %.40q are both %q", sub, other, name)
			}
			seen[name] = sub
			if len(name) > maxNameBytes || !utf8.ValidString(name) || strings.ContainsAny(name, "\t\n\x00") {
				t.Errorf("%.40q is %q", sub, name)
			}
		}
	}
	for _, same := range []string{"ann", long + "s", "a?b", strings.Repeat("é", 64)} {
		if nameOf(same) != same {
			t.Errorf("%q is %q", same, nameOf(same))
		}
	}
	if nameOf("") != "jwt" {
		t.Errorf("a token without a subject is %q", nameOf(""))
	}
}
