package proctable

import (
	"fmt"
	"io"
	"time"
)

// lines is the display for files and pipes: one line per state, and one write
// per batch.
type lines struct {
	out io.Writer
	buf []byte
}

func (*lines) begin() error         { return nil }
func (*lines) tick(time.Time) error { return nil }
func (*lines) end() error           { return nil }

func (l *lines) show(batch []update) error {
	l.buf = l.buf[:0]
	for i := range batch {
		l.buf = appendLine(l.buf, &batch[i])
	}
	if len(l.buf) == 0 {
		return nil
	}
	_, err := l.out.Write(l.buf)
	return err
}

// appendLine appends one state in local time, as in
//
//	12:00:01 alive host:name:pid cpu=1.2% mem=33.4MB
func appendLine(dst []byte, u *update) []byte {
	if u.kind != changed && u.kind != removed {
		return dst
	}
	dst = time.UnixMilli(u.at).AppendFormat(dst, time.TimeOnly)
	if u.kind == removed {
		return fmt.Appendf(dst, " removed %s\n", printable(u.key))
	}
	return fmt.Appendf(dst, " %s %s cpu=%.1f%% mem=%.1fMB\n", u.state.Status, printable(u.key), u.state.CPU, u.state.Mem)
}
