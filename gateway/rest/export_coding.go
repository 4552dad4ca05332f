package rest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"eventhub"
	"eventhub/internal/cloudevents"
)

// Encoders are kept: one of zstd is some megabytes of tables. Both are set to keep
// up with a fast connection rather than to save the last byte.
var (
	gzipWriters = sync.Pool{New: func() any {
		w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		if err != nil {
			panic(err) // a level that there is
		}
		return w
	}}
	zstdWriters = sync.Pool{New: func() any {
		// Without concurrency no goroutine outlives a request that was cut off.
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
		if err != nil {
			panic(err) // options that there are
		}
		return w
	}}
)

// maxWindow is the most that a compressed body may make the hub remember, in
// bytes: what zstd uses up to level 19.
const maxWindow = 8 << 20

// encoder compresses. Close writes what is left.
type encoder interface {
	io.WriteCloser
	Reset(io.Writer)
}

// encoderFor returns the encoder of a coding, and what gives it back. "" is no
// coding.
func encoderFor(coding string, w io.Writer) (encoder, func()) {
	pool := &gzipWriters
	switch coding {
	case "":
		return plainEncoder{w}, func() {}
	case "zstd":
		pool = &zstdWriters
	}
	e := pool.Get().(encoder)
	e.Reset(w)
	return e, func() {
		e.Reset(nil) // or it would keep the request
		pool.Put(e)
	}
}

type plainEncoder struct{ io.Writer }

func (plainEncoder) Close() error    { return nil }
func (plainEncoder) Reset(io.Writer) {}

// acceptedCoding returns the coding to answer in: "zstd", "gzip", or "" where the
// client wants neither. Of two that it wants equally, zstd is the cheaper one.
func acceptedCoding(h http.Header) string {
	best, coding := 0.0, ""
	for _, part := range strings.Split(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, q := weighed(part)
		if name != "gzip" && name != "zstd" {
			continue
		}
		if q > best || q == best && q > 0 && name == "zstd" {
			best, coding = q, name
		}
	}
	return coding
}

// weighed takes a part of an Accept header apart, as in "gzip;q=0.5". A weight
// that can not be read is none.
func weighed(part string) (name string, q float64) {
	name, parameters, _ := strings.Cut(part, ";")
	q = 1
	for p := range strings.SplitSeq(parameters, ";") {
		if text, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(p)), "q="); ok {
			var err error
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				q = 0
			}
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), q
}

// contentCoding returns how a body is encoded, in lower case; "" means that it is not.
func contentCoding(h http.Header) string {
	coding := strings.ToLower(strings.TrimSpace(strings.Join(h.Values("Content-Encoding"), ",")))
	if coding == "identity" {
		return ""
	}
	return coding
}

// decoded returns the body without its Content-Encoding. done is called when it is
// read no more.
func decoded(h http.Header, body io.Reader) (plain io.Reader, done func(), err error) {
	coding := contentCoding(h)
	switch coding {
	case "":
		return body, func() {}, nil
	case "gzip", "x-gzip":
		return &lazyGzip{body: body}, func() {}, nil
	case "zstd":
		d, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, fmt.Errorf("read zstd: %w", err)
		}
		return d, d.Close, nil
	}
	return nil, nil, eventhub.Wrap(eventhub.CodeBadRequest, cloudevents.ErrMediaType,
		"Content-Encoding %.40q is not understood; gzip and zstd are", coding)
}

// lazyGzip reads the header of gzip when it is asked for the first byte, as zstd
// does: an error in it is reported with the rest.
type lazyGzip struct {
	body io.Reader
	r    *gzip.Reader
}

func (l *lazyGzip) Read(p []byte) (int, error) {
	if l.r == nil {
		r, err := gzip.NewReader(l.body)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // even of nothing, gzip has a header
		}
		if err != nil {
			return 0, err
		}
		l.r = r
	}
	return l.r.Read(p)
}
