package eventhub

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var clock = time.UnixMilli(1723140000000)

func valid() Event { return Event{Topic: "a.b", Payload: []byte(`1`)} }

// spaced is a payload of n bytes, with some space in a string and more space
// between its tokens.
func spaced(n int) []byte {
	const begin, end = "\t[ \"", "\\\" \" \r\n]"
	return []byte(begin + strings.Repeat("x", n-len("[\"")-len("\\\" \"]")) + end)
}

// TestValidateNamesFieldAndValue walks through every limit, on both sides.
func TestValidateNamesFieldAndValue(t *testing.T) {
	many := func(n int, f func(i int) string) []string {
		var out []string
		for i := range n {
			out = append(out, f(i))
		}
		return out
	}
	headers := func(n, size int) map[string]string {
		m := make(map[string]string)
		for i := range n {
			m[fmt.Sprintf("x-%03d", i)] = strings.Repeat("v", size)
		}
		return m
	}
	id := func(i int) string { return fmt.Sprintf("id-%d", i) }
	for _, tt := range []struct {
		name   string
		change func(*Event)
		code   Code   // "" for valid
		says   string // part of the message
	}{
		{"least", func(*Event) {}, "", ""},
		{"topic empty", func(e *Event) { e.Topic = "" }, CodeBadTopic, "topic is empty"},
		{"topic 240 bytes", func(e *Event) { e.Topic = strings.Repeat("t", 240) }, "", ""},
		{"topic 241 bytes", func(e *Event) { e.Topic = strings.Repeat("t", 241) }, CodeBadTopic, "241 bytes"},
		{"topic 16 segments", func(e *Event) { e.Topic = "a" + strings.Repeat(".a", 15) }, "", ""},
		{"topic 17 segments", func(e *Event) { e.Topic = "a" + strings.Repeat(".a", 16) }, CodeBadTopic, "17 segments"},
		{"topic space", func(e *Event) { e.Topic = "a b" }, CodeBadTopic, `"a b" has " "`},
		{"topic umlaut", func(e *Event) { e.Topic = "aé" }, CodeBadTopic, `"é"`},
		{"topic star", func(e *Event) { e.Topic = "a.*" }, CodeBadTopic, `"*"`},
		{"topic newline", func(e *Event) { e.Topic = "a\nb" }, CodeBadTopic, `"\n"`},
		{"topic dot first", func(e *Event) { e.Topic = ".a" }, CodeBadTopic, "empty segment"},
		{"topic dot last", func(e *Event) { e.Topic = "a." }, CodeBadTopic, "empty segment"},
		{"topic dots", func(e *Event) { e.Topic = "a..b" }, CodeBadTopic, "empty segment"},
		{"id all characters", func(e *Event) { e.ID = "AZaz09._:-" }, "", ""},
		{"id 64", func(e *Event) { e.ID = strings.Repeat("i", 64) }, "", ""},
		{"id 65", func(e *Event) { e.ID = strings.Repeat("i", 65) }, CodeBadEvent, "id"},
		{"id slash", func(e *Event) { e.ID = "a/b" }, CodeBadEvent, `id "a/b" has "/"`},
		{"ts past", func(e *Event) { e.TS = 1 }, "", ""},
		{"ts 5 min ahead", func(e *Event) { e.TS = clock.Add(5 * time.Minute).UnixMilli() }, "", ""},
		{"ts more", func(e *Event) { e.TS = clock.Add(5*time.Minute).UnixMilli() + 1 }, CodeBadEvent, "ts is 1723140300001"},
		{"ts negative", func(e *Event) { e.TS = -1 }, CodeBadEvent, "ts is -1"},
		{"key 1 KiB", func(e *Event) { e.Key = strings.Repeat("k", 1024) }, "", ""},
		{"key more", func(e *Event) { e.Key = strings.Repeat("k", 1025) }, CodeBadEvent, "1025 bytes"},
		{"key not UTF-8", func(e *Event) { e.Key = "k\xff" }, CodeBadEvent, `key "k\xff" is not valid UTF-8`},
		{"sid more", func(e *Event) { e.SID = strings.Repeat("s", 129) }, CodeBadEvent, "sid"},
		{"headers 64", func(e *Event) { e.Headers = headers(64, 1) }, "", ""},
		{"headers 65", func(e *Event) { e.Headers = headers(65, 1) }, CodeBadEvent, "65 names"},
		{"headers 16 KiB", func(e *Event) { e.Headers = headers(1, 16<<10-5) }, "", ""},
		{"headers more", func(e *Event) { e.Headers = headers(1, 16<<10-4) }, CodeBadEvent, "16385 bytes"},
		{"header name empty", func(e *Event) { e.Headers = map[string]string{"": "v"} }, CodeBadEvent, "token"},
		{"header name colon", func(e *Event) { e.Headers = map[string]string{"a:b": "v"} }, CodeBadEvent, `"a:b"`},
		{"header value CR", func(e *Event) { e.Headers = map[string]string{"a": "x\ry"} }, CodeBadEvent, `"a"`},
		{"header value LF", func(e *Event) { e.Headers = map[string]string{"a": "x\ny"} }, CodeBadEvent, `"a"`},
		{"header value NUL", func(e *Event) { e.Headers = map[string]string{"a": "x\x00"} }, CodeBadEvent, `"a"`},
		{"header value not UTF-8", func(e *Event) { e.Headers = map[string]string{"a": "\xff"} }, CodeBadEvent, `"a"`},
		{"tags 32", func(e *Event) { e.Tags = many(32, id) }, "", ""},
		{"tags 33", func(e *Event) { e.Tags = many(33, id) }, CodeBadEvent, "33 entries"},
		{"tag 128", func(e *Event) { e.Tags = []string{strings.Repeat("t", 128)} }, "", ""},
		{"tag 129", func(e *Event) { e.Tags = []string{"a", strings.Repeat("t", 129)} }, CodeBadEvent, "tags[1]"},
		{"tag empty", func(e *Event) { e.Tags = []string{""} }, CodeBadEvent, "tags[0] is empty"},
		{"caused_by 64", func(e *Event) { e.CausedBy = many(64, id) }, "", ""},
		{"caused_by 65", func(e *Event) { e.CausedBy = many(65, id) }, CodeBadEvent, "65 ids"},
		{"caused_by bad", func(e *Event) { e.CausedBy = []string{"ok", "no no"} }, CodeBadEvent, `caused_by[1] "no no"`},
		{"payload missing", func(e *Event) { e.Payload = nil }, CodeBadRequest, "payload is missing"},
		{"payload 1 MiB", func(e *Event) { e.Payload = make([]byte, 1<<20) }, "", ""},
		{"payload 1 MiB and space", func(e *Event) { e.Payload = spaced(1 << 20) }, "", ""},
		{"payload more and space", func(e *Event) { e.Payload = spaced(1<<20 + 1) }, CodeTooLarge, "1048577 bytes"},
		{"payload more", func(e *Event) { e.Payload = make([]byte, 1<<20+1) }, CodeTooLarge, "1048577 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := valid()
			tt.change(&e)
			err := e.Validate(clock)
			if ErrorCode(err) != tt.code {
				t.Fatalf("Validate = %v; want code %q", err, tt.code)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("message %q lacks %q", err, tt.says)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("message has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestHubOnlyTopics(t *testing.T) {
	for topic, want := range map[string]bool{
		"a": false, "a.b": false, "systems.x": false, "dlq": false, "a.dlqx": false, "dlq.a": false,
		"system": true, "system.x.y": true, "a.dlq": true, "a.b.snapshot": true,
	} {
		if got := HubOnlyTopic(topic); got != want {
			t.Errorf("HubOnlyTopic(%q) = %v", topic, got)
		}
	}
	long := strings.Repeat("t", 240)
	if err := ValidateStoredTopic(DeadLetterTopic(long)); err != nil {
		t.Errorf("the dead-letter topic of the longest topic: %v", err)
	}
	if err := ValidateStoredTopic(long + "x.dlq"); err == nil {
		t.Error("a topic too long passes with a suffix")
	}
}

func TestValidateGroup(t *testing.T) {
	for group, ok := range map[string]bool{
		"ops": true, "a.b:c_d-E9": true, strings.Repeat("g", 128): true,
		"": false, strings.Repeat("g", 129): false, "a b": false, "a/b": false, "*": false,
	} {
		if err := ValidateGroup(group); (err == nil) != ok {
			t.Errorf("ValidateGroup(%q) = %v", group, err)
		}
	}
}

func TestLeaseText(t *testing.T) {
	for _, l := range []Lease{{1, 2, 3}, {1<<64 - 1, 1<<53 - 1, 1 << 63}} {
		back, err := ParseLease(l.String())
		if err != nil || back != l {
			t.Errorf("ParseLease(%s) = %+v, %v", l, back, err)
		}
	}
	for _, s := range []string{"", "-", "--", "1-2", "1-2-3-4", "1-2-!", "1--3", " 1-2-3", "1-2-zzzzzzzzzzzzzzzzzzzz", "+1-2-3"} {
		if _, err := ParseLease(s); ErrorCode(err) != CodeBadRequest {
			t.Errorf("ParseLease(%q) = %v; want bad_request", s, err)
		}
	}
}

func TestGroupOptionsRanges(t *testing.T) {
	base := GroupOptions{Topic: "t", Group: "g"}.WithDefaults()
	if err := base.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*GroupOptions){
		"batch_size":     func(o *GroupOptions) { o.BatchSize = -1 },
		"max_in_flight":  func(o *GroupOptions) { o.MaxInFlight = 1_000_001 },
		"ack_timeout_ms": func(o *GroupOptions) { o.AckTimeout = 999 * time.Millisecond },
		"max_attempts":   func(o *GroupOptions) { o.MaxAttempts = 1001 },
		"backoff.min_ms": func(o *GroupOptions) { o.Backoff.Min = -time.Second },
		"backoff.max_ms": func(o *GroupOptions) { o.Backoff = Backoff{2 * time.Second, time.Second} },
		"ts is -1":       func(o *GroupOptions) { o.Start = Start{Kind: StartTime, TS: -1} },
		"after_id":       func(o *GroupOptions) { o.Start = Start{Kind: StartAfterID} },
		"offset is 9007": func(o *GroupOptions) { o.Start = Start{Kind: StartOffset, Offset: 1 << 53} },
		"group":          func(o *GroupOptions) { o.Group = "a b" },
		"ordering":       func(o *GroupOptions) { o.Ordering = "keys" },
		"concurrency":    func(o *GroupOptions) { o.Concurrency = -1 },
		"group is empty": func(o *GroupOptions) { o.Group = "" },
	} {
		o := base
		change(&o)
		if err := o.Validate(); ErrorCode(err) != CodeBadRequest || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: Validate = %v", name, err)
		}
	}
}

func TestTailOptionsRanges(t *testing.T) {
	base := TailOptions{Topic: "t"}.WithDefaults()
	if err := base.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*TailOptions){
		"batch_size":        func(o *TailOptions) { o.BatchSize = 10_001 },
		"conflate.every_ms": func(o *TailOptions) { o.Conflate = time.Millisecond },
		"ts is -1":          func(o *TailOptions) { o.Start = At(time.UnixMilli(-1)) },
		"after_id":          func(o *TailOptions) { o.Start = AfterID("") },
		"filter.":           func(o *TailOptions) { o.Filter = &Filter{Tags: []string{""}} },
		"known has":         func(o *TailOptions) { o.Known = strings.Repeat("0", 33) },
		"places[0]: ts":     func(o *TailOptions) { o.Places = []Place{{Topic: "t", TS: -1}} },
	} {
		o := base
		change(&o)
		if err := o.Validate(); ErrorCode(err) != CodeBadRequest || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: Validate = %v", name, err)
		}
	}
}

// TestRangesOfWaitsAndVerdicts names the value, also one of less than a millisecond.
func TestRangesOfWaitsAndVerdicts(t *testing.T) {
	for want, validate := range map[string]func() error{
		"wait_ms is -0.000001":         (&Publication{WaitFor: []string{"g"}, WaitUpTo: -1}).ValidateWait,
		"wait_ms is 300000.000001":     (&Publication{WaitFor: []string{"g"}, WaitUpTo: MaxWait + 1}).ValidateWait,
		"wait_for has 17 groups":       (&Publication{WaitFor: make([]string, 17)}).ValidateWait,
		`wait_for names "g" twice`:     (&Publication{WaitFor: []string{"g", "h", "g"}}).ValidateWait,
		"wait_for[1]: ":                (&Publication{WaitFor: []string{"g", "no group"}}).ValidateWait,
		"verdict is 9; 0 to 2 are":     (&Settlement{Verdict: 9}).Validate,
		"reason has 1025 bytes; at mo": (&Settlement{Verdict: Nack, Reason: strings.Repeat("x", 1025)}).Validate,
	} {
		if err := validate(); ErrorCode(err) != CodeBadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s…", err, want)
		}
	}
	if err := (&Publication{WaitFor: []string{"g"}, WaitUpTo: MaxWait}).ValidateWait(); err != nil {
		t.Error(err)
	}
}

func TestStarts(t *testing.T) {
	when := time.UnixMilli(1_723_140_000_123)
	for name, pair := range map[string][2]Start{
		"latest":   {Latest, {}},
		"earliest": {Earliest, {Kind: StartEarliest}},
		"time":     {At(when.Add(time.Microsecond)), {Kind: StartTime, TS: 1_723_140_000_123}},
		"id":       {AfterID("x"), {Kind: StartAfterID, AfterID: "x"}},
		"offset":   {FromOffset(7), {Kind: StartOffset, Offset: 7}},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %+v", name, pair[0])
		}
	}
}

func TestDelayBounds(t *testing.T) {
	at := func(d time.Duration) int64 { return clock.Add(d).UnixMilli() }
	for _, tt := range []struct {
		name  string
		event Event
		due   int64
		says  string // "" for valid
	}{
		{"none", Event{}, 0, ""},
		{"delay", Event{Delay: time.Second}, at(time.Second), ""},
		{"delay is rounded up", Event{Delay: time.Second + time.Nanosecond}, at(1001 * time.Millisecond), ""},
		{"least delay", Event{Delay: 1}, at(time.Millisecond), ""},
		{"a year", Event{Delay: MaxDelay}, at(MaxDelay), ""},
		{"more than a year", Event{Delay: MaxDelay + time.Millisecond}, 0, "delay_ms is 31536000001; 0 to 31536000000 (a year) are allowed"},
		{"the longest there is", Event{Delay: 1<<63 - 1}, 0, "delay_ms is"},
		{"negative delay", Event{Delay: -time.Millisecond}, 0, "delay_ms is -1"},
		{"time", Event{DeliverAt: time.UnixMilli(at(time.Hour))}, at(time.Hour), ""},
		{"time gone by", Event{DeliverAt: time.UnixMilli(1)}, 1, ""},
		{"time a year ahead", Event{DeliverAt: time.UnixMilli(at(MaxDelay))}, at(MaxDelay), ""},
		{"time beyond", Event{DeliverAt: time.UnixMilli(at(MaxDelay) + 1)}, 0, "deliver_at is 1754676000001, more than a year ahead of the hub's clock (1723140000000)"},
		{"the last time there is", Event{DeliverAt: time.UnixMilli(1<<63 - 1)}, 0, "deliver_at is"},
		{"negative time", Event{DeliverAt: time.UnixMilli(-5)}, 0, "deliver_at is -5"},
		{"both", Event{Delay: time.Second, DeliverAt: time.UnixMilli(at(time.Second))}, 0, "both delay_ms and deliver_at are given"},
		{"both, one of them absurd", Event{Delay: -1, DeliverAt: time.UnixMilli(-1)}, 0, "both"},
	} {
		e := tt.event
		e.Topic, e.Payload = "a.b", []byte(`1`)
		err := e.Validate(clock)
		if tt.says != "" {
			if ErrorCode(err) != CodeBadEvent || !strings.Contains(AsError(err).Message, tt.says) {
				t.Errorf("%s: Validate = %v; want bad_event with %q", tt.name, err, tt.says)
			}
			continue
		}
		if err != nil || e.Due(clock) != tt.due {
			t.Errorf("%s: Validate = %v, Due = %d; want %d", tt.name, err, e.Due(clock), tt.due)
		}
	}
	// Where the clock has parts of a millisecond, no event is early.
	if e := (Event{Delay: time.Second}); e.Due(clock.Add(time.Nanosecond)) != at(time.Second)+1 {
		t.Errorf("Due = %d, before the second is over", e.Due(clock.Add(time.Nanosecond)))
	}
}
