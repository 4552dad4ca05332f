package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"eventhub"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{"1": 1, "1024": 1024, "1B": 1, "1KiB": 1024, "3 MiB": 3 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40, "500MB": 5e8, "1kB": 1000} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "0", "-1", "1.5GiB", "GiB", "1gib", "1 G", "20000000TiB", "1e9"} {
		if got, err := ParseSize(bad); eventhub.ErrorCode(err) != eventhub.CodeBadRequest || !strings.Contains(err.Error(), bad) {
			t.Errorf("ParseSize(%q) = %d, %v; want an error that names it", bad, got, err)
		}
	}
	for size, want := range map[Size]string{0: "0B", 1: "1B", 1024: "1KiB", 1 << 30: "1GiB", 1536 << 20: "1536MiB", 5e8: "500000000B"} {
		if got := size.String(); got != want {
			t.Errorf("Size(%d) is written %q; want %q", uint64(size), got, want)
		}
	}
}

// TestSettingsInJSON: one form is written, and read again as what it was.
func TestSettingsInJSON(t *testing.T) {
	for want, s := range map[string]TopicSettings{
		`{}`:                    {},
		`{"key_required":true}`: {KeyRequired: true},
		`{"compaction":{}}`:     {Compaction: &Compaction{}},
		`{"retention":{"age":"3d","bytes":1073741824,"count":5}}`: {Retention: Retention{Age: Period(72 * time.Hour), Bytes: 1 << 30, Count: 5}},
		`{"group_idle_expiry":"1d12h"}`:                           {GroupIdleExpiry: Period(36 * time.Hour)},
	} {
		got, err := json.Marshal(s)
		if err != nil || string(got) != want {
			t.Errorf("%+v is written %s, %v; want %s", s, got, err, want)
		}
		var again TopicSettings
		if err := json.Unmarshal(got, &again); err != nil {
			t.Errorf("%s: %v", got, err)
		}
		if text, _ := json.Marshal(again); string(text) != want {
			t.Errorf("%s is read as %s", got, text)
		}
	}
}

func TestValidateSettings(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings TopicSettings
		code     eventhub.Code
		says     string
	}{
		{"t", TopicSettings{}, "", ""},
		{"t", TopicSettings{Retention: Retention{Age: MinRetentionAge, Bytes: MinRetentionBytes, Count: 1}, KeyRequired: true}, "", ""},
		{"t", TopicSettings{Retention: Retention{Age: MaxPeriod, Bytes: MaxSize, Count: eventhub.MaxOffset}}, "", ""},
		{"t", TopicSettings{Retention: Retention{Age: -1}}, eventhub.CodeBadRequest, "retention.age is -1ns; 1s to 36500d are allowed"},
		{"t", TopicSettings{Retention: Retention{Age: MinRetentionAge - 1}}, eventhub.CodeBadRequest, "retention.age"},
		{"t", TopicSettings{Retention: Retention{Age: MaxPeriod + 1}}, eventhub.CodeBadRequest, "retention.age"},
		{"t", TopicSettings{Retention: Retention{Bytes: 1023}}, eventhub.CodeBadRequest, "retention.bytes is 1023; 1024 to 1152921504606846976 are allowed"},
		{"t", TopicSettings{Retention: Retention{Bytes: MaxSize + 1}}, eventhub.CodeBadRequest, "retention.bytes"},
		{"t", TopicSettings{Retention: Retention{Count: eventhub.MaxOffset + 1}}, eventhub.CodeBadRequest, "retention.count"},
		{"t", TopicSettings{Retention: Retention{Bytes: 1 << 20}, Compaction: &Compaction{}}, eventhub.CodeBadRequest, "retention.bytes and compaction"},
		{"t", TopicSettings{Retention: Retention{Count: 1}, Compaction: &Compaction{}}, eventhub.CodeBadRequest, "retention.count and compaction"},
		{"t", TopicSettings{Compaction: &Compaction{}, Retention: Retention{Age: MinRetentionAge}}, "", ""},
		{"t", TopicSettings{Compaction: &Compaction{MinAge: MinCompactionAge, Hold: MaxPeriod, Grace: MaxPeriod}}, "", ""},
		{"t", TopicSettings{Compaction: &Compaction{MinAge: MinCompactionAge - 1}}, eventhub.CodeBadRequest, "compaction.min_age is 999.999999ms; 1s to 36500d are allowed"},
		{"t", TopicSettings{Compaction: &Compaction{Hold: MaxPeriod + 1}}, eventhub.CodeBadRequest, "compaction.hold"},
		{"t", TopicSettings{Compaction: &Compaction{Grace: -1}}, eventhub.CodeBadRequest, "compaction.grace"},
		{"t.dlq", TopicSettings{Compaction: &Compaction{}}, eventhub.CodeBadRequest, `compaction would remove dead letters of "t.dlq"`},
		{"t", TopicSettings{GroupIdleExpiry: MinGroupIdleExpiry}, "", ""},
		{"*.dlq", TopicSettings{GroupIdleExpiry: MaxPeriod}, "", ""},
		{"t", TopicSettings{GroupIdleExpiry: MinGroupIdleExpiry - 1}, eventhub.CodeBadRequest, "group_idle_expiry is 999.999999ms; 1s to 36500d are allowed"},
		{"t", TopicSettings{GroupIdleExpiry: MaxPeriod + 1}, eventhub.CodeBadRequest, "group_idle_expiry"},
		{"t.dlq", TopicSettings{Retention: Retention{Count: 1}}, "", ""},
		{"t.dlq", TopicSettings{KeyRequired: true}, eventhub.CodeBadRequest, `"t.dlq"`},
		{"**.snapshot", TopicSettings{KeyRequired: true}, eventhub.CodeBadRequest, `"**.snapshot"`},
	} {
		err := tt.settings.Validate(tt.name)
		if eventhub.ErrorCode(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v of %s: %v; want %s %s", tt.settings, tt.name, err, tt.code, tt.says)
		}
	}
}

func TestSettingsNames(t *testing.T) {
	for _, name := range []string{"t", "orders.**", "**", "*", "*.dlq", "t.dlq", "systems.a", "**.snapshot"} {
		if err := ValidateSettingsName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "system.redrive", "system.**", "system.*.dlq", "system", "a b", "a..b", "a*"} {
		if err := ValidateSettingsName(name); eventhub.ErrorCode(err) != eventhub.CodeBadTopic {
			t.Errorf("%q: %v; want %s", name, err, eventhub.CodeBadTopic)
		}
	}
}
