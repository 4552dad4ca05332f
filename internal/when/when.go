// Package when reads points in time and durations as users write them, on the command
// line and in queries. It uses the standard library only.
package when

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Forms says what Parse takes.
const Forms = "a time (2026-01-31T15:04:05Z or epoch ms) or a duration (1h30m, 2d, also with ago)"

// Parse reads a point in time and returns it in epoch milliseconds. A duration counts
// back from now.
func Parse(s string, now time.Time) (ms int64, err error) {
	if ms, err := absolute(s); err == nil {
		return ms, notBefore1970(s, ms)
	}
	back, ok := span(strings.TrimSpace(strings.TrimSuffix(s, "ago")))
	if !ok {
		return 0, fmt.Errorf("%.48q is not %s", s, Forms)
	}
	ms = now.Add(-back).UnixMilli()
	return ms, notBefore1970(s, ms)
}

// ParseAbsolute is Parse without durations: RFC 3339 or epoch milliseconds.
func ParseAbsolute(s string) (ms int64, err error) {
	if ms, err = absolute(s); err != nil {
		return 0, fmt.Errorf("%.48q is neither epoch milliseconds nor a time like 2026-01-31T15:04:05Z", s)
	}
	return ms, notBefore1970(s, ms)
}

// ParsePlace reads a place in a topic: an offset, which is a number from 1 on, or a point in
// time as Parse does, which is not a number. One of both is 0.
func ParsePlace(s string, now time.Time) (offset uint64, ms int64, err error) {
	if s != "" && strings.Trim(s, "0123456789") == "" {
		if offset, err = strconv.ParseUint(s, 10, 64); err != nil || offset == 0 {
			return 0, 0, fmt.Errorf("%.48q is no offset; they begin at 1", s)
		}
		return offset, 0, nil
	}
	if ms, err = Parse(s, now); err != nil {
		return 0, 0, fmt.Errorf("%.48q is neither an offset nor a time (2026-01-31T15:04:05Z) or a duration (1h30m, 2d, also with ago)", s)
	}
	return 0, max(ms, 1), nil
}

// ParseAhead is Parse for what is to come: a duration counts from now on.
func ParseAhead(s string, now time.Time) (ms int64, err error) {
	if ms, err := absolute(s); err == nil {
		return ms, notBefore1970(s, ms)
	}
	ahead, ok := span(s)
	if !ok {
		return 0, fmt.Errorf("%.48q is not a time (2026-01-31T15:04:05Z or epoch ms) or a duration from now on (1h30m, 2d)", s)
	}
	return now.Add(ahead).UnixMilli(), nil
}

func absolute(s string) (ms int64, err error) {
	if ms, err = strconv.ParseInt(s, 10, 64); err == nil {
		return ms, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		// The plus of an offset is a space in a query that did not escape it.
		t, err = time.Parse(time.RFC3339, strings.Replace(s, " ", "+", 1))
	}
	return t.UnixMilli(), err
}

func notBefore1970(s string, ms int64) error {
	if ms < 0 {
		return fmt.Errorf("%.48q is before 1970", s)
	}
	return nil
}

// Span reads a duration that is not negative, such as 30s, 1h30m or 2d.
func Span(s string) (time.Duration, error) {
	d, ok := span(s)
	if !ok {
		return 0, fmt.Errorf("%.48q is not a duration such as 30s, 1h30m or 2d", s)
	}
	return d, nil
}

// span reads a duration that is not negative; days may precede the rest.
func span(s string) (time.Duration, bool) {
	var whole time.Duration
	if days, rest, found := strings.Cut(s, "d"); found {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > math.MaxInt64/uint64(24*time.Hour) {
			return 0, false
		}
		whole = time.Duration(n) * 24 * time.Hour
		if rest == "" {
			return whole, true
		}
		s = rest
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || whole+d < 0 {
		return 0, false
	}
	return whole + d, true
}

// Format writes a duration in the form that Span reads: days, and what is left of them, as
// in 3d, 1d12h or 1h30m.
func Format(d time.Duration) string {
	const day = 24 * time.Hour
	text := ""
	if d >= day {
		if text = strconv.FormatInt(int64(d/day), 10) + "d"; d%day == 0 {
			return text
		}
		d %= day
	}
	rest := d.String()
	if strings.HasSuffix(rest, "m0s") {
		rest = strings.TrimSuffix(rest, "0s")
	}
	if strings.HasSuffix(rest, "h0m") {
		rest = strings.TrimSuffix(rest, "0m")
	}
	return text + rest
}
