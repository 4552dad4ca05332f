package archtest

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBoundsHaveTests holds the table of bounds in docs/security.md against the tests and the
// metrics that there are: each row names a test, and the metrics are those of docs/metrics.md.
func TestBoundsHaveTests(t *testing.T) {
	tests := make(map[string]bool)
	name := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range name.FindAllSubmatch(source, -1) {
			tests[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Bounds\n")
	table, _, _ = strings.Cut(table, "\n## ")
	word := regexp.MustCompile("`(\\w+)`")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) != 6 || strings.HasPrefix(line, "| Bound ") {
			continue
		}
		rows++
		named := word.FindAllStringSubmatch(cells[5], -1)
		if len(named) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, found := range named {
			if !tests[found[1]] {
				t.Errorf("there is no %s: %s", found[1], line)
			}
		}
		for _, found := range word.FindAllStringSubmatch(cells[4], -1) {
			metric := found[1]
			if !strings.HasPrefix(metric, "ws_") {
				metric = "eventhub_" + metric
			}
			if metric != "eventhub_status" && metric != "eventhub_code" && !bytes.Contains(metrics, []byte("\n| `"+metric+"` |")) {
				t.Errorf("there is no metric %s: %s", metric, line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows", rows)
	}
}
