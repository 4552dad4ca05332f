// Package escape makes text that somebody has sent fit for a message, a log and a terminal. It is for what writes
// messages, in the hub and in the commands, and keeps no state.
package escape

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with an escape, as Go writes it, for each character that a terminal would obey or not show: control characters,
// characters that change the direction of text, bytes that are no UTF-8. All else, quotes and backslashes too, stays as it is.
func Text(s string) string {
	if strings.IndexFunc(s, hidden) < 0 && utf8.ValidString(s) {
		return s
	}
	escaped := make([]byte, 0, len(s)+8)
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			escaped = fmt.Appendf(escaped, `\x%02x`, s[0])
		case hidden(r):
			q := strconv.QuoteRuneToASCII(r)
			escaped = append(escaped, q[1:len(q)-1]...)
		default:
			escaped = append(escaped, s[:size]...)
		}
		s = s[size:]
	}
	return string(escaped)
}

func hidden(r rune) bool { return !unicode.IsPrint(r) }
