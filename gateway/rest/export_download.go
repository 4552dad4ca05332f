package rest

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
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
// in no other way than by breaking the connection off. What comes after the last
// byte, as a trailer, shows a client that it has all.
type download struct {
	ctx     context.Context
	w       http.ResponseWriter
	control *http.ResponseController
	release func() bool
	kind    string // content type
	begun   bool
}

// newDownload prepares an answer that ends with ctx; trailers names what end will say.
// The client may take as long as it wants, so the server's bound on a request counts
// no more.
func newDownload(ctx context.Context, w http.ResponseWriter, kind string, trailers ...string) *download {
	d := &download{ctx: ctx, w: w, control: http.NewResponseController(w), kind: kind}
	_ = d.control.SetReadDeadline(time.Time{}) // a test's recorder has none
	d.release = context.AfterFunc(ctx, func() { _ = d.control.SetWriteDeadline(time.Unix(1, 0)) })
	for _, name := range trailers {
		w.Header().Add("Trailer", name)
	}
	return d
}

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
		if err = d.allow(); err != nil {
			break
		}
		d.begin()
		var step int
		step, err = d.w.Write(p[n:min(n+stepSize, len(p))])
		n += step
	}
	return n, err
}

// allow gives the next write its time. The end of the context comes before or after
// it: in neither case does it wait.
func (d *download) allow() error {
	_ = d.control.SetWriteDeadline(time.Now().Add(stallTime))
	return context.Cause(d.ctx)
}

// end sends what is left, and the trailers.
func (d *download) end(sum *transfer.Sum, count int) error {
	if err := d.allow(); err != nil {
		return err
	}
	d.begin()
	if err := d.control.Flush(); err != nil {
		return err
	}
	d.w.Header().Set(transfer.ChecksumTrailer, sum.String())
	if count >= 0 {
		d.w.Header().Set(transfer.CountTrailer, strconv.Itoa(count))
	}
	if d.release() {
		_ = d.control.SetWriteDeadline(time.Time{}) // the next answer has its own time
	}
	return nil
}

// fail answers with an error: in the usual way where nothing was sent.
func (a *API) fail(r *http.Request, d *download, err error) (reply, error) {
	d.release()
	err = withCause(d.ctx, err)
	if d.begun {
		a.breakOff(r, err)
	}
	_ = d.control.SetWriteDeadline(time.Time{})
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
		level = slog.LevelInfo // the client is gone
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
