package main

import "testing"

// TestErrorsAreOneLine: what a command says of an error is one line, and nothing in it is obeyed by a terminal, whoever has sent a part of it.
func TestErrorsAreOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"client: no hub\nno other":           "no hub: no other",
		"topic \"é…\" is not there":          "topic \"é…\" is not there",
		"not understood: '\x1b]0;x\a\u009b'": `not understood: '\x1b]0;x\a\u009b'`,
		"a\rb\u2028\u202e\xff":               `a\rb\u2028\u202e\xff`,
	} {
		if got := oneLine(in); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
}
