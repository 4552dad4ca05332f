package wire

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/naming"
)

// TestAliases: a frame with an alias in place of a name, in the opts of a frame or of
// one of its events, means the same.
func TestAliases(t *testing.T) {
	used := make(map[string]bool)
	for _, c := range readGolden(t, "client.txt") {
		for _, a := range naming.Aliases {
			other := strings.ReplaceAll(string(c.frame), `"`+a.Name+`":`, `"`+a.Alias+`":`)
			other = strings.ReplaceAll(other, `"from":"`+a.Name+`"`, `"from":"`+a.Alias+`"`)
			if other == string(c.frame) {
				continue
			}
			used[a.Name] = true
			var d Decoder
			var req Request
			if err := d.Decode([]byte(other), &req); err != nil {
				t.Errorf("%s: %v", other, err)
			} else if got := meaning(t, &req); !slices.Equal(got, c.means) {
				t.Errorf("%s means %q; want %q", other, got, c.means)
			}
		}
	}
	for _, a := range naming.Aliases {
		known := slices.Concat(publishOptions, subscribeOptions, backoffMembers)
		if slices.Contains(known, a.Name) && !used[a.Name] {
			t.Errorf("no golden frame has %s", a.Name)
		}
	}
}

// TestNames: each of the names that a suggestion is taken from is read.
func TestNames(t *testing.T) {
	for frame, names := range map[string][]string{
		`{"op":"PUBLISH","topic":"t","payload":1,"opts":{%q:null}}`:               publishOptions,
		`{"op":"SUBSCRIBE","topic":"t","opts":{%q:null}}`:                         subscribeOptions,
		`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"backoff":{%q:null}}}`: backoffMembers,
		`{"op":"SUBSCRIBE","topic":"t","opts":{"filter":{%q:null}}}`:              filterMembers,
		`{"op":"SUBSCRIBE","topic":"t","opts":{"conflate":{%q:null}}}`:            conflateMembers,
		`{"op":"SUBSCRIBE","topic":"t","opts":{"places":[{%q:null}]}}`:            placeMembers,
		`{"op":"PUBLISH","events":[{%q:null}]}`:                                   eventMembers,
	} {
		for _, name := range names {
			var d Decoder
			var req Request
			if err := d.Decode(fmt.Appendf(nil, frame, name), &req); err != nil && strings.Contains(err.Error(), "unknown name") {
				t.Errorf("%s: %v", name, err)
			}
			if err := d.Decode(fmt.Appendf(nil, frame, name+"_"), &req); eventhub.ErrorCode(err) != eventhub.CodeBadRequest ||
				!strings.HasSuffix(err.Error(), "did you mean "+name+"?") {
				t.Errorf("%s_: %v", name, err)
			}
		}
	}
}

// TestAliasesOfThePage: docs/protocol.md lists the aliases that there are.
func TestAliasesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Names\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := 0
	for row := range strings.SplitSeq(section, "\n") {
		if strings.HasPrefix(row, "| `") {
			rows++
		}
	}
	for _, a := range naming.Aliases {
		if row := fmt.Sprintf("| `%s` | `%s` |", a.Alias, a.Name); !strings.Contains(section, row) {
			t.Errorf("the page has no row %q", row)
		}
	}
	if rows != len(naming.Aliases) {
		t.Errorf("the page has %d rows; there are %d aliases", rows, len(naming.Aliases))
	}
}
