// Package input reads what people and programs give to the commands: lines of
// standard input, payloads, whole events, places in a topic. Every error names
// the offending value; none of it talks to a hub.
package input

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
)

// MaxLine is the longest line that is read, in bytes: an event with the largest
// payload and all that may be around it.
const MaxLine = 2 << 20

// A chunk ends at so many lines or bytes.
const (
	chunkLines = 256
	chunkBytes = 256 << 10
)

// Line is one line without its end. Of one above MaxLine only the number is
// known.
type Line struct {
	Number  int // from 1
	Text    []byte
	TooLong bool
}

// Chunk is the lines that one look at the input brought, so that a slow writer's
// lines are handed on at once and a fast one's many at a time. Err, with or
// without lines, ends the input; its end is io.EOF.
type Chunk struct {
	Lines []Line
	Err   error
}

// Reader splits an input into chunks of lines.
type Reader struct {
	r      *bufio.Reader
	number int
	// Of the chunk being read: the texts back to back, and where each ends.
	text []byte
	ends []int
	long []bool
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, chunkBytes)}
}

// Next waits for a line and returns it with those that need no more waiting.
func (r *Reader) Next() Chunk {
	r.text, r.ends, r.long = nil, r.ends[:0], r.long[:0] // the last chunk keeps its text
	err := r.line()
	for err == nil && len(r.ends) < chunkLines && len(r.text) < chunkBytes && r.whole() {
		err = r.line()
	}
	c := Chunk{Err: err, Lines: make([]Line, len(r.ends))}
	start := 0
	for i, end := range r.ends {
		r.number++
		c.Lines[i] = Line{Number: r.number, Text: bytes.TrimSuffix(r.text[start:end:end], []byte("\r")), TooLong: r.long[i]}
		start = end
	}
	return c
}

// whole reports whether the end of the next line is here already.
func (r *Reader) whole() bool {
	b, _ := r.r.Peek(r.r.Buffered()) // what is buffered can be peeked at
	return bytes.IndexByte(b, '\n') >= 0
}

// line appends the next line. Of one that is too long nothing is kept.
func (r *Reader) line() error {
	start, long := len(r.text), false
	for {
		part, err := r.r.ReadSlice('\n')
		last := err == nil
		if last {
			part = part[:len(part)-1]
		}
		if long = long || len(r.text)-start+len(part) > MaxLine; long {
			r.text = r.text[:start]
		} else {
			r.text = append(r.text, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if last || len(r.text) > start || long {
			r.ends = append(r.ends, len(r.text))
			r.long = append(r.long, long)
		}
		return err
	}
}

// Chunks reads in until its end, an error, or the end of ctx; the last chunk has the Err. The
// goroutine that reads may hang, on an input that says nothing, and then stays.
func Chunks(ctx context.Context, in io.Reader) <-chan Chunk {
	chunks := make(chan Chunk)
	go func() {
		for r := NewReader(in); ; {
			chunk := r.Next()
			select {
			case chunks <- chunk:
			case <-ctx.Done():
				return
			}
			if chunk.Err != nil {
				return
			}
		}
	}()
	return chunks
}
