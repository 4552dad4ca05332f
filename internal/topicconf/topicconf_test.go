package topicconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
)

func TestParse(t *testing.T) {
	age := func(d time.Duration) admin.TopicSettings {
		return admin.TopicSettings{Retention: admin.Retention{Age: admin.Period(d)}}
	}
	for src, want := range map[string]admin.TopicSettings{
		`{}`:                            {},
		`{"retention":{"age":"3d"}}`:    age(72 * time.Hour),
		`{"retention":{"age":"1d12h"}}`: age(36 * time.Hour),
		`{"retentionDays":3}`:           age(72 * time.Hour),
		`{"retention_days":3, "compaction":false}`:     age(72 * time.Hour),
		`{"retention":{"age":null},"compaction":null}`: {},
		`{"retention":{"bytes":"1GiB"}}`:               {Retention: admin.Retention{Bytes: 1 << 30}},
		`{"retention":{"bytes":2048,"count":9}}`:       {Retention: admin.Retention{Bytes: 2048, Count: 9}},
		`{"key_required":true}`:                        {KeyRequired: true},
	} {
		if got, err := Parse("t", []byte(src)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", src, got, err, want)
		}
	}
	for src, want := range map[string]admin.Compaction{
		`{"compaction":true}`: {},
		`{"compaction":{}}`:   {},
		`{"compaction":{"min_age":"1h","hold":"3d"},"retention_days":30}`: {MinAge: admin.Period(time.Hour), Hold: admin.Period(72 * time.Hour)},
	} {
		if got, err := Parse("t", []byte(src)); err != nil || got.Compaction == nil || *got.Compaction != want {
			t.Errorf("%s: %+v, %v; want %+v", src, got.Compaction, err, want)
		}
	}
	for _, tt := range []struct{ src, want string }{
		{`{`, `bad_json: invalid JSON at byte 1`},
		{`[]`, `bad_request: the settings are expected to be an object`},
		{`null`, `bad_request: the settings are null`},
		{`{"retentio":{}}`, `bad_request: retentio is not a known name; did you mean retention?`},
		{`{"retention":{"agee":"3d"}}`, `bad_request: retention.agee is not a known name; did you mean age?`},
		{`{"retention":3}`, `bad_request: retention is 3; an object with age, bytes or count is expected`},
		{`{"retention":{"age":72}}`, `bad_request: retention.age is 72; a duration such as "30s", "1h30m" or "3d" is expected`},
		{`{"retention":{"age":"-3d"}}`, `bad_request: retention.age: "-3d" is not a duration`},
		{`{"retention":{"age":"0s"}}`, `bad_request: retention.age: "0s" is not a duration`},
		{`{"retention":{"age":"1ms"}}`, `bad_request: retention.age is 1ms; 1s to 36500d are allowed`},
		{`{"retention":{"bytes":-5}}`, `bad_request: retention.bytes: "-5" is not a number of bytes`},
		{`{"retention":{"bytes":"much"}}`, `bad_request: retention.bytes: "much" is not a number of bytes`},
		{`{"retention":{"count":0}}`, `bad_request: retention.count is 0; leave it out to keep everything`},
		{`{"retention":{"count":-1}}`, `bad_request: retention.count is -1; a number above 0 is expected`},
		{`{"retention":{"count":18446744073709551616}}`, `bad_request: retention.count is 18446744073709551616; a number above 0 is expected`},
		{`{"retention":{"count":"` + strings.Repeat("9", 65) + `"}}`, `bad_request: retention.count can not be such a string; a number above 0 is expected`},
		{`{"retentionDays":-3}`, `bad_request: retention_days can not be such a number; a number above 0 is expected`},
		{`{"retention_days":1.5}`, `bad_request: retention_days is 1.5; a number above 0 is expected`},
		{`{"retentionDays":0}`, `bad_request: retention_days is 0; 1 to 36500 are allowed`},
		{`{"retentionDays":36501}`, `bad_request: retention_days is 36501`},
		{`{"retentionDays":3,"retention":{"age":"3d"}}`, `bad_request: retention_days and retention.age are both given`},
		{`{"retentionDays":3,"retention_days":3}`, `bad_request: retention_days and its alias retentionDays are both given`},
		{`{"key_required":"yes"}`, `bad_request: key_required is "yes"; true or false is expected`},
		{`{"compaction":{"min_age":"1ms"}}`, `bad_request: compaction.min_age is 1ms; 1s to 36500d are allowed`},
		{`{"compaction":{"max_age":"1d"}}`, `bad_request: compaction.max_age is not a known name; did you mean min_age?`},
		{`{"compaction":{"hold":"x"}}`, `bad_request: compaction.hold: "x" is not a duration`},
		{`{"compaction":3}`, `bad_request: compaction is 3; true or an object`},
		{`{"compaction":true,"retention":{"bytes":"1GiB"}}`, `bad_request: retention.bytes and compaction contradict each other`},
		{`{"group_idle_expiry":"0s"}`, `bad_request: group_idle_expiry: "0s" is not a duration`},
		{`{"group_idle_expiry":true}`, `bad_request: group_idle_expiry can not be true; a duration such as`},
		{`{"rate":{"per_second":4}}`, `unsupported_op: rate is not supported by this version`},
		{`{"snapshot":{"topic":"u.snapshot"}}`, `bad_request: snapshot.topic is "u.snapshot"; the snapshots of a topic are in the topic of its name`},
		{`{"snapshot":3}`, `bad_request: snapshot is 3; true or an object`},
		{`{"snapshot":{"every":3}}`, `bad_request: snapshot.every is 3; a duration such as`},
		{`{"snapshot":{"every":"1ms"}}`, `bad_request: snapshot.every is 1ms; 1s to 36500d are allowed`},
		{`{"snapshot":{"every":"1s","interval_ms":1000}}`, `bad_request: snapshot.interval_ms and snapshot.every are both given`},
		{`{"snapshot":{"interval_ms":0}}`, `bad_request: snapshot.interval_ms is 0; 1 to`},
		{`{"snapshot":{"changes":0}}`, `bad_request: snapshot.changes is 0; leave it out`},
		{`{"snapshot":{"batch_keys":[]}}`, `bad_request: snapshot.batch_keys has 0 keys; 1 to 1000 are allowed`},
		{`{"snapshot":{"batch_keys":["` + strings.Repeat("k", 1025) + `"]}}`, `bad_request: snapshot.batch_keys has a key of 1025 bytes`},
		{`{"snapshot":{"key_source":"event.pid"}}`, `bad_request: snapshot.key_source at 1:6: `},
		{`{"snapshot":{"key_source":"event.offset"}}`, `bad_request: snapshot.key_source at 1:1: the expression is of type int; string is expected`},
		{`{"snapshot":true,"state":"off"}`, `bad_request: state off and snapshot contradict each other`},
		{`{"state":"perhaps"}`, `bad_request: state is "perhaps"; auto, on or off are allowed`},
		{`{"state":true}`, `bad_request: state can not be true; auto, on or off is expected`},
		{`{"state":"off","compaction":true}`, `bad_request: state off and compaction contradict each other`},
	} {
		if got, err := Parse("t", []byte(tt.src)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %+v, %v; want %s", tt.src, got, err, tt.want)
		}
	}
}

// TestParseSnapshot: the names of the first clients are known.
func TestParseSnapshot(t *testing.T) {
	for src, want := range map[string]admin.Snapshot{
		`{"snapshot":true}`: {},
		`{"snapshot":{"topic":"t.snapshot","every":"1m","changes":5}}`: {Topic: "t.snapshot", Every: admin.Period(time.Minute), Changes: 5},
		`{"snapshot":{"intervalMs":30000,"batchKeys":["a","b"],"keySource":"event.payload.id"}}`: {
			Every: admin.Period(30 * time.Second), BatchKeys: []string{"a", "b"}, KeySource: "event.payload.id"},
	} {
		got, err := Parse("t", []byte(src))
		if err != nil || got.Snapshot == nil || !reflect.DeepEqual(*got.Snapshot, want) {
			t.Errorf("%s: %+v, %v", src, got.Snapshot, err)
		}
	}
}

func TestParseFile(t *testing.T) {
	for what, src := range map[string]string{
		"yaml": "# why\ntopics:\n  heartbeat.received: {retentionDays: 3}\n  orders.**:\n    retention:\n      bytes: 1GiB\n    key_required: true\n  \"*.dlq\": {}\n",
		"json": `{"topics":{"heartbeat.received":{"retention":{"age":"72h"}},"orders.**":{"retention":{"bytes":1073741824},"key_required":true},"*.dlq":{}}}`,
	} {
		got, err := ParseFile("f", []byte(src))
		if err != nil || len(got) != 3 {
			t.Fatalf("%s: %+v, %v; want 3 entries", what, got, err)
		}
		for i, want := range []admin.SettingsEntry{
			{Name: "heartbeat.received", Source: "file", Settings: admin.TopicSettings{Retention: admin.Retention{Age: 3 * day}}},
			{Name: "orders.**", Source: "file", Settings: admin.TopicSettings{Retention: admin.Retention{Bytes: 1 << 30}, KeyRequired: true}},
			{Name: "*.dlq", Source: "file"},
		} {
			if got[i] != want {
				t.Errorf("%s: %+v; want %+v", what, got[i], want)
			}
		}
	}
	for _, empty := range []string{"", "# nothing\n", "topics:\n", "topics: {}\n"} {
		if got, err := ParseFile("f", []byte(empty)); err != nil || len(got) > 0 {
			t.Errorf("%q: %+v, %v; want none", empty, got, err)
		}
	}
}

// TestBadFiles: what is wrong is named with its line, and all of it at once.
func TestBadFiles(t *testing.T) {
	for _, tt := range []struct{ src, want string }{
		{"topic:\n  a: {}\n", `f:1: unknown name "topic"; did you mean topics?; topics is the only one`},
		{"- a\n", `f:1: wants a line topics: with entries below it`},
		{"topics: 3\n", `f:1: wants entries of the form name: settings`},
		{"topics:\n  a: {}\n  a: {}\n", `f:3: a is there again, after line 2`},
		{"topics:\n  a:\n    retention:\n      agee: 3d\n", `f:4: a: retention.agee is not a known name; did you mean age?`},
		{"topics:\n  a:\n    retention:\n      age: 72\n", `f:4: a: retention.age is 72;`},
		{"topics:\n  a:\n    retention: {age: 1ms}\n", `f:3: a: retention.age is 1ms`},
		{"topics:\n  a:\n    compaction: {hold: 1ms}\n", `f:3: a: compaction.hold is 1ms`},
		{"topics:\n  a:\n    retention:\n", `f:3: a: retention has no value; leave it out for the default`},
		{"topics:\n  a:\n", `f:2: a: the entry has no value`},
		{"topics:\n  a: [1]\n", `f:2: a: the entry is a list or a reference`},
		{"topics:\n  a: 3\n", `f:2: a: the settings are expected to be an object`},
		{"topics:\n  system.redrive: {}\n", `f:2: "system.redrive" cannot have settings`},
		{"topics:\n  a b: {}\n", `f:2: topic "a b"`},
		{"topics:\n  orders.*: {}\n  \"*.created\": {}\n", `f:3: patterns "*.created" and "orders.*" tie: some topics match both`},
		{"topics:\n  a.*.**: {}\n  a.**.*: {}\n", `f:3: patterns "a.**.*" and "a.*.**" match the same topics`},
		{"topics:\n  *.dlq: {}\n", `needs quotes`},
		{"topics:\n  a: {}\n---\ntopics:\n", `f:3: a second document; one is allowed`},
		{"topics:\n  a: {x: 1}\n  b: {y: 1}\n", "f:2: a: x is not a known name\nf:3: b: y is not a known name"},
	} {
		if got, err := ParseFile("f", []byte(tt.src)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %+v, %v; want %s", tt.src, got, err, tt.want)
		}
	}
}

// TestFileIsRegular: a pipe, which has its content once, is refused, and not read.
func TestFileIsRegular(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "topics.yaml")
	if err := os.WriteFile(path, []byte("topics:\n  a: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := ReadFile(path); err != nil || len(list) != 1 {
		t.Errorf("a file: %+v, %v", list, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, bad := range []string{dir, fmt.Sprint("/dev/fd/", r.Fd())} {
		if list, err := ReadFile(bad); err == nil || !strings.Contains(err.Error(), bad+" is not a regular file") {
			t.Errorf("%s: %+v, %v", bad, list, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestPlace: whatever the order in which patterns come, of those that match a topic the most
// exact one is the first.
func TestPlace(t *testing.T) {
	patterns := []string{"**", "orders.**", "orders.*", "orders.eu.**", "orders.eu.*", "payments.**", "**.dlq", "orders.**.dlq", "*.us.created"}
	for shift := range patterns {
		for _, step := range []int{1, 2, 4, 5, 7} {
			var list []eventhub.Pattern
			for i := range patterns {
				p := mustPattern(t, patterns[(shift+i*step)%len(patterns)])
				at, err := Place(list, p)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list[:at:at], append([]eventhub.Pattern{p}, list[at:]...)...)
			}
			for topic, want := range map[string]string{
				"a": "**", "orders": "orders.**", "orders.eu": "orders.eu.**", "orders.x": "orders.*", "orders.eu.a": "orders.eu.*", "orders.eu.a.b": "orders.eu.**",
				"orders.us.a": "orders.**", "orders.us.created": "*.us.created", "payments.a": "payments.**", "a.dlq": "**.dlq", "orders.a.dlq": "orders.**.dlq", "system.a": "",
			} {
				got := ""
				for _, p := range list {
					if p.Match(topic) {
						got = p.String()
						break
					}
				}
				if got != want {
					t.Errorf("in %v the first for %s is %q; want %q", list, topic, got, want)
				}
			}
		}
	}
}
