package escape

import "testing"

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "plain é 漢": "plain é 漢", `say "a\b"`: `say "a\b"`, "a\x1b[2Jb\n": `a\x1b[2Jb\n`,
		"\u202eevil\u0085\u2028": `\u202eevil\u0085\u2028`, "a\xffb": `a\xffb`, "\U000e0001": `\U000e0001`, "\ufffd": "\ufffd",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %s; want %s", in, got, want)
		}
	}
}
