// Package output prints what the commands found: aligned tables for people, JSON
// for programs, and whatever a format string says. Commands call it with plain
// values; it knows nothing of hubs.
//
// Tables are the same on terminals and in pipes, except colour: that is used on
// terminals only and never with NO_COLOR. What comes from events is in a
// table with its control characters escaped, so that no event can drive a
// terminal; JSON and format strings are exact.
package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/term"

	"eventhub/internal/naming"
)

// Format is how results are printed.
type Format string

// The formats.
const (
	Table   Format = "table"
	JSON    Format = "json"    // indented
	NDJSON  Format = "ndjson"  // one value a line
	Payload Format = "payload" // of events: the payload alone, one a line
)

// Choice is the value of an -o flag: one of some formats, or empty.
type Choice struct {
	Format  Format
	Allowed []Format
}

func (c *Choice) String() string { return string(c.Format) }

// Type is what the usage text shows.
func (c *Choice) Type() string { return "format" }

// Set implements the flag.
func (c *Choice) Set(s string) error {
	if !slices.Contains(c.Allowed, Format(s)) {
		return fmt.Errorf("%q is not one of %s%s", s, c.Names(), naming.DidYouMean(s, c.names()))
	}
	c.Format = Format(s)
	return nil
}

// Names lists what is allowed.
func (c *Choice) Names() string { return strings.Join(c.names(), ", ") }

func (c *Choice) names() []string {
	names := make([]string, len(c.Allowed))
	for i, f := range c.Allowed {
		names[i] = string(f)
	}
	return names
}

// ErrClosed is in the chain of a write's error when nobody reads the results any
// more, as after `| head -1`.
var ErrClosed = errors.New("nobody reads the output any more")

// Results is standard output. Its errors are distinguished from those of other
// pipes by ErrClosed.
type Results struct {
	w        io.Writer
	Terminal bool
	Color    bool
}

// NewResults wraps standard output.
func NewResults(w io.Writer) *Results {
	terminal := IsTerminal(w)
	return &Results{w: w, Terminal: terminal, Color: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (r *Results) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		return n, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if err != nil {
		return n, fmt.Errorf("write the results: %w", err)
	}
	return n, nil
}

// OnHangup calls f, once, when nobody reads the results any more, which a command
// that waits for something to print would otherwise not notice. It costs a thread
// until the process ends.
func (r *Results) OnHangup(f func()) {
	file, ok := r.w.(*os.File)
	if !ok {
		return
	}
	go func() {
		if waitHangup(file) == nil {
			f()
		}
	}()
}

// HungUp reports whether nobody reads the results any more.
func (r *Results) HungUp() bool {
	file, ok := r.w.(*os.File)
	if !ok {
		return false
	}
	gone, err := hungUp(file, 0)
	return gone && err == nil
}

// IsTerminal reports whether v, a file or not, is a terminal.
func IsTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Document prints one value: as JSON, or as the table function says.
func Document(w io.Writer, f Format, v any, table func(io.Writer) error) error {
	var b bytes.Buffer
	var err error
	if f == Table {
		err = table(&b)
	} else {
		err = encode(&b, f, v)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// encode appends v as JSON and a newline.
func encode(b *bytes.Buffer, f Format, v any) error {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if f == JSON {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}
