package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"eventhub"
	"eventhub/internal/transfer"
)

// A client that takes less than stepSize of an answer that is long, or sends nothing of
// such a body, for stallTime is cut off.
const (
	stallTime = time.Minute
	stepSize  = 64 << 10
)

// download is an answer that is sent while it is made, no faster than the client
// takes it. Its first byte sends the header; what goes wrong after that can be reported
// in no other way than by a last line, where the answer has lines, and by breaking the connection
// off. What comes after the last byte, as a trailer, shows a client that it has all.
//
// With the end of ctx, by a stop or with the token, what is still to be written has some time, in
// all: whoever writes looks at ctx between two parts of the answer, and ends it with a whole one.
type download struct {
	*writeTime
	w     http.ResponseWriter
	kind  string // content type
	begun bool
	// compacted is the CompactedTrailer, if there is one.
	compacted string
}

// newDownload prepares an answer that ends with ctx, or rest after it where its client is there to
// read that; trailers names what end will say.
// The client may take as long as it wants, so the server's bound on a request counts
// no more.
func newDownload(ctx context.Context, w http.ResponseWriter, kind string, rest time.Duration, trailers ...string) *download {
	d := &download{writeTime: timeFor(ctx, w, stallTime, rest), w: w, kind: kind}
	_ = d.control.SetReadDeadline(time.Time{}) // a test's recorder has none
	for _, name := range trailers {
		w.Header().Add("Trailer", name)
	}
	return d
}

// writeTime says how long the writes of an answer may take: each a step, until ctx ends, and all that
// come then the rest, together. A client that is gone gets none.
type writeTime struct {
	ctx        context.Context
	control    *http.ResponseController
	step, rest time.Duration
	release    func() bool

	mu    sync.Mutex
	endBy time.Time // zero until ctx has ended
	over  bool
}

func timeFor(ctx context.Context, w http.ResponseWriter, step, rest time.Duration) *writeTime {
	t := &writeTime{ctx: ctx, control: http.NewResponseController(w), step: step, rest: rest}
	t.release = context.AfterFunc(ctx, t.hurry)
	return t
}

func (t *writeTime) hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if t.endBy = time.Now().Add(t.rest); t.rest == 0 || isGone(t.ctx) {
		t.endBy = time.Unix(1, 0)
	}
	_ = t.control.SetWriteDeadline(t.endBy) // for the write under way
}

// allow gives the next write its time.
func (t *writeTime) allow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	by := t.endBy
	if by.IsZero() {
		by = time.Now().Add(t.step)
	}
	_ = t.control.SetWriteDeadline(by) // a test's recorder has none
}

// free ends it: what the server writes from here on has its own time.
func (t *writeTime) free() {
	t.release()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	_ = t.control.SetWriteDeadline(time.Time{})
}

// isGone reports whether the context of a request has ended because its client is gone, and not
// with the hub or the token.
func isGone(ctx context.Context) bool { return errors.Is(context.Cause(ctx), context.Canceled) }

// begin sends the header, once.
func (d *download) begin() {
	if d.begun {
		return
	}
	d.begun = true
	d.w.Header().Set("Content-Type", d.kind)
	d.w.Header().Set("Cache-Control", "no-store")
	d.w.WriteHeader(http.StatusOK)
}

// Write sends p and waits until the connection has taken it.
func (d *download) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		d.allow()
		d.begin()
		var step int
		step, err = d.w.Write(p[n:min(n+stepSize, len(p))])
		n += step
	}
	return n, err
}

// end sends what is left, and the trailers.
func (d *download) end(sum *transfer.Sum, count int) error {
	d.allow()
	d.begin()
	if err := d.control.Flush(); err != nil {
		return err
	}
	d.w.Header().Set(transfer.ChecksumTrailer, sum.String())
	if count >= 0 {
		d.w.Header().Set(transfer.CountTrailer, strconv.Itoa(count))
	}
	if d.compacted != "" {
		d.w.Header().Set(transfer.CompactedTrailer, d.compacted)
	}
	d.free()
	return nil
}

// fail answers with an error: in the usual way where nothing was sent.
func (a *API) fail(r *http.Request, d *download, err error) (reply, error) {
	d.free()
	if err = withCause(d.ctx, err); d.ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = context.Cause(d.ctx) // which is why there was no more time
	}
	if d.begun {
		a.breakOff(r, err)
	}
	for _, name := range []string{"Trailer", "Content-Encoding"} {
		d.w.Header().Del(name)
	}
	return reply{}, err
}

// breakOff ends a connection in the middle of an answer.
func (a *API) breakOff(r *http.Request, err error) {
	route := r.Method + " " + r.Pattern
	a.count(route, http.StatusOK) // as the client has seen it
	level := slog.LevelWarn
	if r.Context().Err() != nil {
		level = slog.LevelInfo // the client is gone, or its token
	}
	a.cfg.Logger.Log(context.WithoutCancel(r.Context()), level, "an answer was broken off", "remote", r.RemoteAddr, "route", route, "error", err)
	panic(http.ErrAbortHandler)
}

// untilStop returns a context for a request that may take long, which the end of
// the API cuts short.
func (a *API) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.stopping, func() {
		cancel(eventhub.Errorf(eventhub.CodeShuttingDown, "the hub is stopping"))
	})
	return ctx, func() { stop(); cancel(nil) }
}
