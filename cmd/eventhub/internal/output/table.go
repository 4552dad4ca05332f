package output

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode/utf8"
)

const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
	gap   = "  "
)

// Column is one column of a table of T.
type Column[T any] struct {
	Name  string
	Width int  // at least
	Right bool // numbers
	Dim   bool // on terminals: less important
	Cell  func(T) string
}

// Rows prints values one by one, as they come. Tables get the columns' own
// widths; what is wider moves the rest of its line. JSON becomes one array. The
// caller writes what is appended.
type Rows[T any] struct {
	Format  Format
	Columns []Column[T]
	Color   bool

	printed int
	buf     bytes.Buffer
}

// Append appends one row, before the first one also what precedes it.
func (r *Rows[T]) Append(dst []byte, v T) ([]byte, error) {
	first := r.printed == 0
	r.printed++
	switch r.Format {
	case Table:
		if first {
			dst = r.appendHeader(dst)
		}
		return r.appendLine(dst, func(c *Column[T]) string { return c.Cell(v) }, ""), nil
	case JSON:
		r.buf.Reset()
		if err := encode(&r.buf, JSON, v); err != nil {
			return dst, err
		}
		opening := ",\n  "
		if first {
			opening = "[\n  "
		}
		dst = append(dst, opening...)
		return append(dst, bytes.ReplaceAll(bytes.TrimRight(r.buf.Bytes(), "\n"), []byte("\n"), []byte("\n  "))...), nil
	}
	r.buf.Reset()
	err := encode(&r.buf, NDJSON, v)
	return append(dst, r.buf.Bytes()...), err
}

// End appends what follows the last row. A table without rows is its header.
func (r *Rows[T]) End(dst []byte) []byte {
	switch {
	case r.Format == JSON && r.printed == 0:
		return append(dst, "[]\n"...)
	case r.Format == JSON:
		return append(dst, "\n]\n"...)
	case r.Format == Table && r.printed == 0:
		return r.appendHeader(dst)
	}
	return dst
}

func (r *Rows[T]) appendHeader(dst []byte) []byte {
	return r.appendLine(dst, func(c *Column[T]) string { return c.Name }, bold)
}

// appendLine appends one line of cells. style, where not empty, counts for the
// whole line.
func (r *Rows[T]) appendLine(dst []byte, cell func(*Column[T]) string, style string) []byte {
	start := len(dst)
	for i := range r.Columns {
		c := &r.Columns[i]
		text := cell(c)
		pad := max(0, c.Width-utf8.RuneCountInString(text))
		if i > 0 {
			dst = append(dst, gap...)
		}
		if c.Right {
			dst = append(dst, strings.Repeat(" ", pad)...)
		}
		s := style
		if s == "" && c.Dim {
			s = dim
		}
		dst = paint(dst, text, s, r.Color)
		if !c.Right && i < len(r.Columns)-1 {
			dst = append(dst, strings.Repeat(" ", pad)...)
		}
	}
	return append(dst[:start+len(bytes.TrimRight(dst[start:], " "))], '\n')
}

func paint(dst []byte, text, style string, color bool) []byte {
	if !color || style == "" || text == "" {
		return append(dst, text...)
	}
	dst = append(dst, style...)
	dst = append(dst, text...)
	return append(dst, plain...)
}

// List prints a listing that has an end. In a table every column is as wide as
// its widest cell.
func List[T any](w io.Writer, f Format, color bool, columns []Column[T], values iter.Seq2[T, error]) error {
	rows := Rows[T]{Format: f, Columns: columns, Color: color}
	var out []byte
	var all []T
	for v, err := range values {
		if err != nil {
			return err
		}
		if f == Table {
			all = append(all, v)
			continue
		}
		if out, err = rows.Append(out[:0], v); err != nil {
			return err
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	out = out[:0]
	for i := range columns {
		c := &columns[i]
		c.Width = max(c.Width, utf8.RuneCountInString(c.Name))
		for _, v := range all {
			c.Width = max(c.Width, utf8.RuneCountInString(c.Cell(v)))
		}
	}
	for _, v := range all {
		out, _ = rows.Append(out, v) // tables do not fail
	}
	_, err := w.Write(rows.End(out))
	return err
}

// Field is one line of a description.
type Field struct{ Name, Value string }

// Fields prints aligned "Name:  value" lines. An empty value leaves its name alone.
func Fields(w io.Writer, color bool, fields []Field) error {
	width := 0
	for _, f := range fields {
		width = max(width, utf8.RuneCountInString(f.Name))
	}
	var b []byte
	for _, f := range fields {
		b = paint(b, f.Name+":", bold, color)
		if f.Value == "" {
			b = append(b, '\n')
			continue
		}
		b = append(b, strings.Repeat(" ", width-utf8.RuneCountInString(f.Name))...)
		b = fmt.Appendf(b, "%s%s\n", gap, f.Value)
	}
	_, err := w.Write(b)
	return err
}
