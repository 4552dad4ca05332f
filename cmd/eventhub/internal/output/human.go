package output

import (
	"fmt"
	"strconv"
	"time"

	"eventhub/internal/escape"
)

// Count writes a number with a comma between thousands.
func Count[N int | int64 | uint64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	first := 0
	if s[0] == '-' {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Things writes a number with its noun: "1 event", "2 events".
func Things[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// Time writes an epoch-millisecond time in the zone of this machine, exactly; "-"
// where there is none.
func Time(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Format("2006-01-02T15:04:05.000Z07:00")
}

// Ago writes how long ago an epoch-millisecond time was, in its largest unit; "-"
// where there is none. A time ahead, which another machine's clock may give, is
// reported as such.
func Ago(now time.Time, ms int64) string {
	if ms == 0 {
		return "-"
	}
	d := now.Sub(time.UnixMilli(ms))
	if d < 0 {
		return "in " + Span(-d)
	}
	return Span(d) + " ago"
}

// Span writes a duration in its largest unit, rounded down.
func Span(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// Took writes how long a step took, in milliseconds.
func Took(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// Safe is a text as a terminal may have it, see [escape.Text].
func Safe(s string) string { return escape.Text(s) }
