package naming

import (
	"regexp"
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"ws", "http", "auth-token", "log-level"}
	for word, want := range map[string]string{
		"wss": "ws", "w": "ws", "htpp": "http", "AUTH_TOKEN": "auth-token", "authtokn": "auth-token",
		"loglevels": "log-level", "x": "", "port": "", "": "", "levels": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%q is near %q; want %q", word, got, want)
		}
	}
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ab", "ba", 1}, {"form", "from", 1}, {"abcd", "badc", 2}, {"ca", "abc", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d; want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// TestAliases: every name is in snake_case, and its alias differs from it in nothing but
// case and underscores.
func TestAliases(t *testing.T) {
	snake := regexp.MustCompile("^[a-z][a-z0-9]*(_[a-z0-9]+)*$")
	seen := make(map[string]bool)
	for _, a := range Aliases {
		if !snake.MatchString(a.Name) || snake.MatchString(a.Alias) || fold(a.Name) != fold(a.Alias) || seen[a.Name] {
			t.Errorf("%+v", a)
		}
		seen[a.Name] = true
		if Canonical(a.Alias) != a.Name || Canonical(a.Name) != a.Name {
			t.Errorf("%+v stands for %q and %q", a, Canonical(a.Alias), Canonical(a.Name))
		}
	}
	if got := Nearest(strings.Repeat("x", 1<<20), []string{"x"}); got != "" {
		t.Errorf("a text of a MiB is near %q", got)
	}
}
