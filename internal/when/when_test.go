package when

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

var now = time.UnixMilli(1_000_000_000_000)

func TestParse(t *testing.T) {
	for in, want := range map[string]time.Time{
		"0":                         time.UnixMilli(0),
		"1700000000000":             time.UnixMilli(1_700_000_000_000),
		"2001-09-09T01:46:40Z":      now,
		"2001-09-09T03:46:40+02:00": now,
		"2001-09-09T03:46:40 02:00": now, // a query without %2B
		"2001-09-09T01:46:40.5Z":    now.Add(500 * time.Millisecond),
		"1h":                        now.Add(-time.Hour),
		"2m ago":                    now.Add(-2 * time.Minute),
		"1h30mago":                  now.Add(-90 * time.Minute),
		"2d":                        now.Add(-48 * time.Hour),
		"1d12h ago":                 now.Add(-36 * time.Hour),
		"0s":                        now,
	} {
		if got, err := Parse(in, now); err != nil || got != want.UnixMilli() {
			t.Errorf("Parse(%q) = %d, %v; want %d", in, got, err, want.UnixMilli())
		}
		ahead := now.Add(now.Sub(want)).UnixMilli()
		if strings.ContainsAny(in, "TZ") || len(in) > 9 || in == "0" {
			ahead = want.UnixMilli()
		}
		if got, err := ParseAhead(in, now); strings.Contains(in, "ago") == (err == nil) || err == nil && got != ahead {
			t.Errorf("ParseAhead(%q) = %d, %v; want %d", in, got, err, ahead)
		}
		if got, err := ParseAbsolute(in); err == nil && got != want.UnixMilli() {
			t.Errorf("ParseAbsolute(%q) = %d; want %d", in, got, want.UnixMilli())
		}
	}
	for _, bad := range []string{"", "soon", "yesterday", "-1h", "-5", "1d-30h", "99999999999d", "300000d", "ago", "1h before", "2001-09-09", "1969-01-01T00:00:00Z"} {
		for name, parse := range map[string]func(string) (int64, error){
			"Parse":         func(s string) (int64, error) { return Parse(s, now) },
			"ParseAbsolute": ParseAbsolute,
		} {
			if got, err := parse(bad); err == nil || !strings.Contains(err.Error(), strconv.Quote(bad)) {
				t.Errorf("%s(%q) = %d, %v; want an error that names it", name, bad, got, err)
			}
		}
	}
	for _, relative := range []string{"2m", "2m ago"} {
		if got, err := ParseAbsolute(relative); err == nil {
			t.Errorf("ParseAbsolute(%q) = %d", relative, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for in, want := range map[string]time.Duration{"30s": 30 * time.Second, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "1d12h": 36 * time.Hour, "0s": 0} {
		if got, err := Span(in); err != nil || got != want {
			t.Errorf("Span(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "soon", "-5s", "5", "1d-30h", "99999999999d"} {
		if got, err := Span(bad); err == nil || !strings.Contains(err.Error(), strconv.Quote(bad)) {
			t.Errorf("Span(%q) = %v, %v; want an error that names it", bad, got, err)
		}
	}
}

func TestFormat(t *testing.T) {
	for text, d := range map[string]time.Duration{"3d": 72 * time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "1h": time.Hour, "1m": time.Minute,
		"30s": 30 * time.Second, "1d1m": 24*time.Hour + time.Minute, "1d1.5s": 24*time.Hour + 1500*time.Millisecond, "1h0m5s": time.Hour + 5*time.Second, "0s": 0} {
		if got := Format(d); got != text {
			t.Errorf("Format(%v) = %q; want %q", d, got, text)
		}
		if again, err := Span(text); err != nil || again != d {
			t.Errorf("Span(%q) = %v, %v; want %v", text, again, err, d)
		}
	}
}

func TestParsePlace(t *testing.T) {
	now := time.UnixMilli(1_723_140_000_000)
	for _, tt := range []struct {
		text   string
		offset uint64
		ms     int64
	}{
		{"1", 1, 0}, {"1723140000000", 1723140000000, 0}, {"0s", 0, now.UnixMilli()}, {"1m", 0, now.UnixMilli() - 60_000},
		{"2m ago", 0, now.UnixMilli() - 120_000}, {"2024-08-08T18:00:00Z", 0, now.UnixMilli()}, {"1970-01-01T00:00:00Z", 0, 1},
	} {
		if offset, ms, err := ParsePlace(tt.text, now); offset != tt.offset || ms != tt.ms || err != nil {
			t.Errorf("%q: offset %d, %d ms, %v; want %d and %d", tt.text, offset, ms, err, tt.offset, tt.ms)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.5", "x", "99999999999999999999", "1969-01-01T00:00:00Z"} {
		if offset, ms, err := ParsePlace(text, now); err == nil {
			t.Errorf("%q: offset %d, %d ms; want an error", text, offset, ms)
		}
	}
}
