// Package naming holds how options and fields are named for users: in snake_case, with
// the spellings of the first clients as aliases, and a suggestion for a name that nobody
// knows. It uses the standard library only.
package naming

import "strings"

// Alias is another spelling of a name. It means the same wherever the name is accepted:
// in opts of a frame, in a query, in a JSON body. Nothing is answered by an alias.
type Alias struct{ Alias, Name string }

// Aliases are all there are. docs/protocol.md lists them too.
var Aliases = []Alias{
	{"afterId", "after_id"},
	{"batchSize", "batch_size"},
	{"maxInFlight", "max_in_flight"},
	{"ackTimeoutMs", "ack_timeout_ms"},
	{"maxAttempts", "max_attempts"},
	{"minMs", "min_ms"},
	{"maxMs", "max_ms"},
	{"manualAck", "manual_ack"},
	{"fromTs", "from_ts"},
	{"toTs", "to_ts"},
	{"correlationId", "correlation_id"},
	{"causedBy", "caused_by"},
	{"retentionDays", "retention_days"},
	{"intervalMs", "interval_ms"},
	{"batchKeys", "batch_keys"},
	{"keySource", "key_source"},
}

// Canonical returns the name that a spelling stands for: another one if it is an alias,
// and the spelling itself if not.
func Canonical(spelling string) string {
	if a := Of(spelling); a != nil {
		return a.Name
	}
	return spelling
}

// Both is the message for an object, or a query, that has a name and its alias.
func (a *Alias) Both() string {
	return a.Name + " and its alias " + a.Alias + " are both given; one of them is expected"
}

// Of returns the alias that a spelling is, or nil.
func Of(spelling string) *Alias {
	for i := range Aliases {
		if Aliases[i].Alias == spelling {
			return &Aliases[i]
		}
	}
	return nil
}

// DidYouMean returns "; did you mean …?" if one of the known names is near enough to be
// meant, and "" otherwise.
func DidYouMean(given string, known []string) string {
	if near := Nearest(given, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// maxNear bounds, in bytes, the texts that are compared with names.
const maxNear = 64

// Nearest returns the known name that differs least, in at most a third of its letters,
// or "". Case, and whether parts are joined by hyphens or underscores, make no
// difference.
func Nearest(given string, known []string) string {
	given = fold(given)
	if given == "" || len(given) > maxNear {
		return ""
	}
	found, least := "", max(1, len(given)/3)+1
	for _, k := range known {
		if d := distance(given, fold(k)); d < least {
			found, least = k, d
		}
	}
	return found
}

var joints = strings.NewReplacer("-", "", "_", "")

func fold(s string) string { return strings.ToLower(joints.Replace(s)) }

// distance is how many bytes have to be inserted, removed, replaced or exchanged with the
// next one to make b of a (Levenshtein, with Damerau's exchanges).
func distance(a, b string) int {
	// Rows of the matrix: from a's first i bytes, i-1 and i-2 to b's first j.
	row, above, before := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		row, above, before = before, row, above
		row[0] = i + 1
		for j := range len(b) {
			replaced := above[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
