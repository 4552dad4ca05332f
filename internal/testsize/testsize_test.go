package testsize

import (
	"strings"
	"testing"
)

func TestSmall(t *testing.T) {
	for _, test := range []struct {
		env         string
		raced, want bool
	}{{"", false, false}, {"", true, true}, {"small", false, true}, {"small", true, true}, {"full", false, false}, {"full", true, false}} {
		if got := small(test.env, test.raced); got != test.want {
			t.Errorf("%s=%q, race detector %v: small is %v", Env, test.env, test.raced, got)
		}
	}
}

// A size with a typo must not pass for another one.
func TestUnknownSize(t *testing.T) {
	defer func() {
		if p, _ := recover().(string); !strings.Contains(p, "smal") {
			t.Errorf("a size that there is not: panic %q, which does not name it", p)
		}
	}()
	small("smal", false)
}

func TestOf(t *testing.T) {
	for size, want := range map[string]int{"full": 3, "small": 2} {
		t.Setenv(Env, size)
		if got := Of(3, 2); got != want {
			t.Errorf("%s: %d, want %d", size, got, want)
		}
	}
}
