package input

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"eventhub"
)

// StartForms says what Start takes.
const StartForms = "latest, earliest, a time (2026-01-31T15:04:05Z or epoch ms), a duration (1h30m, 2d, also with ago), offset:N or after:ID"

// Start reads a place in a topic, see StartForms. now is what durations count
// back from.
func Start(s string, now time.Time) (eventhub.Start, error) {
	switch s {
	case "latest":
		return eventhub.Start{Kind: eventhub.StartLatest}, nil
	case "earliest":
		return eventhub.Earliest, nil
	}
	if id, ok := strings.CutPrefix(s, "after:"); ok {
		if err := eventhub.ValidateID(id); err != nil {
			return eventhub.Start{}, fmt.Errorf("%q: %s", s, eventhub.AsError(err).Message)
		}
		return eventhub.Start{Kind: eventhub.StartAfterID, AfterID: id}, nil
	}
	if number, ok := strings.CutPrefix(s, "offset:"); ok {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > eventhub.MaxOffset {
			return eventhub.Start{}, fmt.Errorf("%q: an offset is a number from 0 to %d", s, uint64(eventhub.MaxOffset))
		}
		return eventhub.Start{Kind: eventhub.StartOffset, Offset: n}, nil
	}
	ms, ok := moment(s, now)
	if !ok {
		return eventhub.Start{}, fmt.Errorf("%q is none of %s", s, StartForms)
	}
	if ms < 0 {
		return eventhub.Start{}, fmt.Errorf("%q is before 1970", s)
	}
	return eventhub.Start{Kind: eventhub.StartTime, TS: ms}, nil
}

// Time reads a time: RFC 3339 or epoch milliseconds, and returns the latter.
func Time(s string) (int64, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return 0, fmt.Errorf("%q is neither epoch milliseconds nor a time like 2026-01-31T15:04:05Z", s)
	}
	return t.UnixMilli(), nil
}

// Span reads a duration that is not negative, such as 30s, 1h30m or 2d.
func Span(s string) (time.Duration, error) {
	d, ok := span(s)
	if !ok {
		return 0, fmt.Errorf("%q is not a duration such as 30s, 1h30m or 2d", s)
	}
	return d, nil
}

// moment reads a point in time as epoch milliseconds.
func moment(s string, now time.Time) (ms int64, ok bool) {
	if ms, err := Time(s); err == nil {
		return ms, true
	}
	back, ok := span(strings.TrimSpace(strings.TrimSuffix(s, "ago")))
	return now.Add(-back).UnixMilli(), ok
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
