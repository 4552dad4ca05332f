package transfer

import (
	"reflect"
	"testing"
)

// FuzzGaps reads what may be no trailer; what passes is written as what reads the same.
func FuzzGaps(f *testing.F) {
	for _, s := range []string{`[{"topic":"t","after":1,"first":5}]`, `null`, `[{"after":-1}]`, `[{"topic":"t","after":18446744073709551615}]`, "[", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		gaps, err := ParseGaps(text)
		if err != nil || len(gaps) == 0 {
			return
		}
		l := Gaps{pattern: "p"}
		for _, g := range gaps {
			l.list = append(l.list, Gap(g))
		}
		if again, err := ParseGaps(l.String()); err != nil || !reflect.DeepEqual(again, gaps) {
			t.Errorf("%q reads as %v, and then as %v, %v", text, gaps, again, err)
		}
	})
}
