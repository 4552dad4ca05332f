package wire

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/strictjson"
)

// TestLimitsOfThePage: the ranges that docs/protocol.md names for SUBSCRIBE's options
// are those that count: their ends pass, and what is beyond is refused.
func TestLimitsOfThePage(t *testing.T) {
	file, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(file)
	options := map[string]string{
		"max_in_flight": `"max_in_flight":%d`, "batch_size": `"batch_size":%d`, "ack_timeout_ms": `"ack_timeout_ms":%d`,
		"max_attempts": `"max_attempts":%d`, "backoff": `"backoff":{"min_ms":%[1]d,"max_ms":%[1]d}`,
	}
	for name, option := range options {
		row := regexp.MustCompile("(?m)^\\| `" + name + "` \\|.*[ ;,](\\d+)–(\\d+)").FindStringSubmatch(page)
		if row == nil {
			t.Errorf("the page names no range of %s", name)
			continue
		}
		least, _ := strconv.Atoi(row[1])
		most, _ := strconv.Atoi(row[2])
		for value, passes := range map[int]bool{least - 1: false, least: true, most: true, most + 1: false} {
			var d Decoder
			var r Request
			err := d.Decode(fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{`+option+`}}`, value), &r)
			if err == nil {
				opts := r.Subscribe.WithDefaults()
				err = opts.Validate()
			}
			if (err == nil) != passes {
				t.Errorf("%s %d, where the page says %d–%d: %v", name, value, least, most, err)
			}
		}
	}
	for _, text := range []string{
		fmt.Sprintf("nested at most %d deep", strictjson.MaxDepth),
		fmt.Sprintf("A group's name is 1–%d of\n`A–Z a–z 0–9 . _ : -`", eventhub.MaxGroupBytes),
	} {
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %q", text)
		}
	}
}
