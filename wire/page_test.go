package wire

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// section returns what a page has below a heading, up to the next one.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the page has no %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n#")
	return rest
}

// TestOptionsOfThePage: the tables of docs/protocol.md have a row for each option that
// there is, and no other; the ends of their ranges pass, and what is beyond is refused.
func TestOptionsOfThePage(t *testing.T) {
	file, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(file)
	publish, settle := section(t, page, "### PUBLISH"), section(t, page, "### ACK, NACK, MODACK")
	for heading, want := range map[string][]string{"### PUBLISH": publishOptions, "### SUBSCRIBE": subscribeOptions} {
		var got []string
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section(t, page, heading), -1) {
			got = append(got, row[1])
		}
		slices.Sort(got)
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
			t.Errorf("the table below %q has %q; the options are %q", heading, got, want)
		}
	}
	number := regexp.MustCompile(`\d+`)
	for _, r := range []struct{ section, row, ends, frame string }{
		{publish, "| `delay_ms` | integer, ms |", "%d–%d", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"delay_ms":%d}}`},
		{publish, "| `wait_ms` | integer, ms |", "%d–%d", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"wait_for":["g"],"wait_ms":%d}}`},
		{settle, "| `delay_ms` | NACK | integer, ms |", "%d–%d", `{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":%d}`},
		{settle, "| `extend_ms` | MODACK | integer, ms |", "%d", `{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":%d}`},
		{section(t, page, "### SUBSCRIBE"), "| `conflate` | object | [`every_ms`](#live-tails),", "%d–%d", `{"op":"SUBSCRIBE","topic":"t","opts":{"conflate":{"every_ms":%d}}}`},
	} {
		_, rest, ok := strings.Cut(r.section, r.row)
		ends := number.FindAllString(rest, strings.Count(r.ends, "%d"))
		if !ok || len(ends) < strings.Count(r.ends, "%d") {
			t.Errorf("the page has no row %q with numbers", r.row)
			continue
		}
		most, _ := strconv.Atoi(ends[len(ends)-1])
		pass := map[int]bool{most: true, most + 1: false}
		if len(ends) == 2 {
			least, _ := strconv.Atoi(ends[0])
			pass[least-1], pass[least] = false, true
		}
		for value, passes := range pass {
			var d Decoder
			var req Request
			err := d.Decode(fmt.Appendf(nil, r.frame, value), &req)
			if err == nil && req.Op == OpPublish {
				err = req.Event.ValidateFields(time.Now())
			}
			if (err == nil) != passes {
				t.Errorf("%s with %d, where the page has %s %q: %v", r.frame, value, r.row, ends, err)
			}
		}
	}
}

// TestFramesOfThePage: the frames of clients in docs/protocol.md are ones that the hub
// understands, with … in place of what does not matter.
func TestFramesOfThePage(t *testing.T) {
	file, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("{…}", "{}", `"…"`, `"x"`, "…", "null")
	seen := make(map[Op]bool)
	for _, m := range regexp.MustCompile(`\{"op":"(AUTH|PUBLISH|CANCEL|SUBSCRIBE|UNSUBSCRIBE|PAUSE|RESUME|ACK|NACK|MODACK)"`).FindAllIndex(file, -1) {
		rest := fill.Replace(string(file[m[0]:]))
		var frame json.RawMessage
		if err := json.NewDecoder(strings.NewReader(rest)).Decode(&frame); err != nil {
			t.Errorf("%.80s: %v", rest, err)
			continue
		}
		var d Decoder
		var req Request
		if err := d.Decode(frame, &req); err != nil {
			t.Errorf("%s: %v", frame, err)
		}
		seen[req.Op] = true
	}
	for _, op := range []Op{OpAuth, OpPublish, OpCancel, OpSubscribe, OpUnsubscribe, OpAck, OpPause} {
		if !seen[op] {
			t.Errorf("the page has no %s", op)
		}
	}
}
