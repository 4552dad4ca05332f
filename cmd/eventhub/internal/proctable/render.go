package proctable

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"eventhub/internal/demo/process"
)

// view is all that a frame shows.
type view struct {
	hubs   []string
	seen   int     // events
	rate   float64 // events per second
	states []process.State
	color  bool // emphasis by control sequences
}

// Widths of the columns that hold figures, and of the gap between columns.
const (
	pidWidth    = 7
	cpuWidth    = 6
	memWidth    = 9
	statusWidth = 6
	seenWidth   = 9
	gapWidth    = 2

	figuresWidth = pidWidth + cpuWidth + memWidth + statusWidth + seenWidth + 6*gapWidth

	// Host and name share what is left: as much as they need, within bounds.
	minTextWidth = 4
	maxTextWidth = 40
)

// Emphasis.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
)

// render draws the view as lines joined by newlines: at most height lines, none
// wider than width columns. It sorts v.states: most CPU first.
func render(v view, width, height int, now time.Time) string {
	if width <= 0 || height <= 0 {
		return ""
	}
	slices.SortFunc(v.states, func(a, b process.State) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Mem, a.Mem), cmp.Compare(a.ProcessID, b.ProcessID))
	})
	shown := v.states[:max(0, min(len(v.states), height-2))]
	hostWidth, nameWidth := textWidths(shown, width)
	frame := []string{cut(header(&v), width)}
	row := func(emphasis string, cells ...string) {
		line := pad(cells[0], hostWidth) + gap + pad(cells[1], nameWidth) + gap +
			padLeft(cells[2], pidWidth) + gap + padLeft(cells[3], cpuWidth) + gap + padLeft(cells[4], memWidth) + gap +
			pad(cells[5], statusWidth) + gap + padLeft(cells[6], seenWidth)
		line = cut(line, width)
		if v.color && emphasis != "" {
			line = emphasis + line + plain
		}
		frame = append(frame, line)
	}
	row(bold, "HOST", "NAME", "PID", "CPU%", "MEM(MB)", "STATUS", "LAST SEEN")
	for _, s := range shown {
		emphasis := ""
		if s.Status == process.Stale {
			emphasis = dim
		}
		row(emphasis, printable(s.Host), printable(s.Name), strconv.Itoa(s.PID),
			fmt.Sprintf("%.1f", s.CPU), fmt.Sprintf("%.1f", s.Mem), string(s.Status), age(s.LastSeenTS, now))
	}
	return strings.Join(frame[:min(len(frame), height)], "\n")
}

// header is the line of totals.
func header(v *view) string {
	alive := 0
	for i := range v.states {
		if v.states[i].Status == process.Alive {
			alive++
		}
	}
	parts := []string{
		"eventhub",
		fmt.Sprintf("%d events", v.seen), fmt.Sprintf("%.1f/s", v.rate),
		fmt.Sprintf("%d alive", alive), fmt.Sprintf("%d stale", len(v.states)-alive),
	}
	for _, hub := range v.hubs {
		parts = append(parts, printable(hub))
	}
	return strings.Join(parts, gap)
}

// textWidths shares the columns that the figures leave among host and name: the
// longest of each if that fits, else the host gives way, down to a third.
func textWidths(states []process.State, width int) (host, name int) {
	host, name = minTextWidth, minTextWidth
	for i := range states {
		host = max(host, columns(printable(states[i].Host)))
		name = max(name, columns(printable(states[i].Name)))
	}
	host, name = min(host, maxTextWidth), min(name, maxTextWidth)
	room := max(width-figuresWidth, 2*minTextWidth)
	if host+name > room {
		host = min(host, max(room-name, room/3, minTextWidth))
		name = min(name, room-host)
	}
	return host, name
}

// age is the time since ts (epoch milliseconds) in one unit.
func age(ts int64, now time.Time) string {
	seconds := max(0, now.UnixMilli()-ts) / 1000
	switch {
	case seconds < 100:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 100*60:
		return fmt.Sprintf("%dm", seconds/60)
	default:
		return fmt.Sprintf("%dh", seconds/3600)
	}
}

var gap = strings.Repeat(" ", gapWidth)

// pad makes s exactly width columns wide, at the left.
func pad(s string, width int) string {
	s = cut(s, width)
	return s + strings.Repeat(" ", width-columns(s))
}

// padLeft makes s exactly width columns wide, at the right.
func padLeft(s string, width int) string {
	s = cut(s, width)
	return strings.Repeat(" ", width-columns(s)) + s
}

// cut shortens s to at most width columns; an ellipsis says that it did.
func cut(s string, width int) string {
	if columns(s) <= width {
		return s
	}
	used := 1 // the ellipsis
	for i, r := range s {
		if used += runeColumns(r); used > width {
			return s[:i] + "…"
		}
	}
	return s
}

func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

// printable replaces what could move the cursor, change the direction of text
// or hide: control and format characters, odd spaces, invalid UTF-8.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// wide holds the blocks whose characters fill two columns (East Asian Wide and
// Fullwidth, and pictographs), in rough strokes: a wrong guess shifts a row.
var wide = []struct{ first, last rune }{
	{0x1100, 0x115F}, {0x2E80, 0x303E}, {0x3041, 0x4DBF}, {0x4E00, 0xA4CF}, {0xA960, 0xA97C},
	{0xAC00, 0xD7A3}, {0xF900, 0xFAFF}, {0xFE30, 0xFE6F}, {0xFF01, 0xFF60}, {0xFFE0, 0xFFE6},
	{0x16FE0, 0x18DFF}, {0x1AFF0, 0x1B2FF}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF},
	{0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD},
}

// runeColumns returns how many columns a printable character fills.
func runeColumns(r rune) int {
	const firstMark = 0x300
	if r < firstMark {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	for _, block := range wide {
		if r >= block.first && r <= block.last {
			return 2
		}
	}
	return 1
}
