package proctable

import (
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Control sequences of the terminal. The alternate screen keeps what was there
// before; without line wrap a glyph that is wider than expected harms its own
// row only.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	endOfLine   = "\x1b[K"
	endOfScreen = "\x1b[J"
)

// screen is the display for terminals: the whole table, drawn in place with one
// write, when a tick finds that it looks different from what was drawn.
type screen struct {
	out   io.Writer
	size  func() (width, height int)
	hubs  []string
	color bool

	table         *table
	drawn         string
	width, height int // of drawn
}

func newScreen(out io.Writer, size func() (int, int), hubs []string, color bool) *screen {
	return &screen{out: out, size: size, hubs: hubs, color: color, table: newTable(time.Now())}
}

func (s *screen) begin() error {
	if _, err := io.WriteString(s.out, enterScreen); err != nil {
		return err
	}
	return s.tick(time.Now())
}

func (s *screen) show(batch []update) error {
	for i := range batch {
		s.table.apply(&batch[i])
	}
	return nil
}

func (s *screen) tick(now time.Time) error {
	s.table.forget(now)
	width, height := s.size()
	frame := render(view{
		hubs: s.hubs, seen: s.table.seen, rate: s.table.rate(now),
		states: slices.Collect(maps.Values(s.table.states)), color: s.color,
	}, width, height, now)
	if frame == s.drawn && width == s.width && height == s.height {
		return nil
	}
	s.drawn, s.width, s.height = frame, width, height
	_, err := io.WriteString(s.out, home+strings.ReplaceAll(frame, "\n", endOfLine+"\r\n")+endOfLine+endOfScreen)
	return err
}

func (s *screen) end() error {
	_, err := io.WriteString(s.out, leaveScreen)
	return err
}
