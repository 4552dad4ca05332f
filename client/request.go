package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/wire"
)

func (a *Admin) get(ctx context.Context, path string, into any, fits func() bool) error {
	return a.fetch(ctx, http.MethodGet, path, into, fits)
}

// fetch asks for JSON and decodes it; fits says whether it is what was asked for.
func (a *Admin) fetch(ctx context.Context, method, path string, into any, fits func() bool) error {
	r, err := a.ask(ctx, method, path)
	if err != nil {
		return err
	}
	if r.status != http.StatusOK {
		return r.refusal()
	}
	if len(r.body) > maxAnswerBytes {
		return r.strange(fmt.Sprintf("it has more than %d bytes", maxAnswerBytes))
	}
	if r.kind != "application/json" {
		return r.refusal()
	}
	if err := json.Unmarshal(r.body, into); err != nil {
		return r.strange(err.Error())
	}
	if !fits() {
		return r.strange("it is not what was asked for")
	}
	return nil
}

// response is what came back from one URL.
type response struct {
	asked  string // method and URL
	status int
	kind   string // content type, without parameters
	header http.Header
	body   []byte // cut off after maxAnswerBytes and one
}

// ask asks for an answer that is read at once. It tries one URL after the other until one
// is reached.
func (a *Admin) ask(ctx context.Context, method, path string) (r *response, err error) {
	ctx, release := a.bound(ctx)
	defer release()
	err = a.eachHub(ctx, method, path, method == http.MethodGet, func(base, token string) (sent bool, err error) {
		r, sent, err = a.askOne(ctx, method, base+path, token)
		return sent, err
	})
	return r, err
}

// eachHub asks one URL after the other until one answers. again: the next one is asked
// also after a hub was connected to, which may have been asked before it was lost. A hub that does
// not lead has done nothing, so the next one is asked in any case; its refusal is the error where no other hub answers.
func (a *Admin) eachHub(ctx context.Context, method, path string, again bool, ask func(base, token string) (connected bool, _ error)) error {
	failures := []error{ErrUnreachable}
	token, _, err := a.cfg.token(ctx)
	if err != nil {
		return errors.Join(append(failures, fmt.Errorf("token: %w", err))...)
	}
	if strings.ContainsFunc(token, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return eventhub.Errorf(eventhub.CodeBadToken, "the token has a control character in it, perhaps a line's end")
	}
	var passive error
	first := int(a.served.Load())
	for i := range a.cfg.bases {
		at := (first + i) % len(a.cfg.bases)
		base := a.cfg.bases[at]
		connected, err := ask(base, token)
		if err == nil {
			a.served.Store(int64(at))
			return nil
		}
		if ctx.Err() != nil && (connected || context.Cause(ctx) == ErrClosed) {
			return fmt.Errorf("client: %s %s: %w", method, base+path, context.Cause(ctx))
		}
		if isPassive(err) {
			passive = err
			if ctx.Err() != nil {
				break
			}
			continue
		}
		failures = append(failures, fmt.Errorf("%s: %w", base, err))
		if ctx.Err() != nil || connected && !again {
			break
		}
		a.cfg.logger.Warn("the HTTP API of a hub was not reached", "url", base, "error", err)
	}
	if passive != nil {
		return passive
	}
	return errors.Join(failures...)
}

// isPassive reports whether an error is the refusal of a hub that does not lead.
func isPassive(err error) bool {
	refusal, ok := errors.AsType[*eventhub.Error](err)
	return ok && refusal.Code == eventhub.CodeNotActive
}

// askOne asks one URL. An error means that no hub was reached, or that the connection was
// lost; sent says that the hub may have been asked before.
func (a *Admin) askOne(ctx context.Context, method, url, token string) (r *response, sent bool, err error) {
	answer, sent, err := a.send(ctx, token, url, &transmission{method: method, accept: "application/json"})
	if err != nil {
		return nil, sent, err
	}
	defer answer.Body.Close()
	r, err = gather(answer)
	if err != nil {
		return nil, true, fmt.Errorf("the answer broke off after %d bytes: %w", len(r.body), err)
	}
	if r.isProxy() {
		return nil, true, r.refusal()
	}
	if r.status == http.StatusServiceUnavailable && isPassive(r.refusal()) {
		return nil, true, r.refusal()
	}
	return r, true, nil
}

// transmission is a request.
type transmission struct {
	method, path, accept string
	body                 io.Reader // nil for none
	kind, coding         string    // of the body
	match                string    // for If-Match
}

// open makes a request and returns the answer that it hopes for, whose body is the
// caller's to read and to close; ctx, which is bound, lasts as long. It tries the next URL
// only as long as no hub was connected to, or those that were do not lead.
func (a *Admin) open(ctx context.Context, t *transmission) (answer *http.Response, err error) {
	var judged error
	err = a.eachHub(ctx, t.method, t.path, false, func(base, token string) (connected bool, err error) {
		if again, ok := t.body.(io.Seeker); ok {
			if _, err := again.Seek(0, io.SeekStart); err != nil {
				return true, err
			}
		}
		if answer, connected, err = a.send(ctx, token, base+t.path, t); err != nil {
			return connected, err
		}
		if judged = a.judge(t, answer); isPassive(judged) && rewinds(t.body) {
			return true, judged
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return answer, judged
}

// rewinds reports whether a body can be sent again.
func rewinds(body io.Reader) bool {
	_, ok := body.(io.Seeker)
	return body == nil || ok
}

// send makes a request to one URL and returns its answer, of any status. connected says
// that a hub was connected to.
func (a *Admin) send(ctx context.Context, token, url string, t *transmission) (_ *http.Response, connected bool, err error) {
	var got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	var body io.Reader
	if t.body != nil {
		body = io.NopCloser(t.body)
	}
	request, err := http.NewRequestWithContext(ctx, t.method, url, body)
	if err != nil {
		return nil, false, err
	}
	set := func(name, value string) {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	if token != "" {
		set("Authorization", "Bearer "+token)
	}
	set("Accept", t.accept+", application/problem+json")
	set("Accept-Encoding", "identity") // or the transport would ask for gzip
	set("Content-Type", t.kind)
	set("Content-Encoding", t.coding)
	set("If-Match", t.match)
	answer, err := a.http.Do(request)
	if err != nil {
		return nil, got.Load(), bare(err)
	}
	if ctx.Err() != nil {
		// A server that sees the end of the connection first ends its handler, and what that leaves is no answer of the hub.
		answer.Body.Close()
		return nil, true, context.Cause(ctx)
	}
	return answer, true, nil
}

// bare removes the method and the URL, which the message already has.
func bare(err error) error {
	var named *url.Error
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}

// refusal is the error of an answer other than the expected one.
func (r *response) refusal() error {
	if e := r.problem(); e != nil {
		return e
	}
	why := "it does not come from a hub's HTTP API"
	if to := r.header.Get("Location"); to != "" {
		why += fmt.Sprintf(", and sends us to %q", to)
	}
	err := r.strange(why)
	if r.status == http.StatusUnauthorized || r.status == http.StatusForbidden {
		return eventhub.Wrap(eventhub.CodeForbidden, err, "The request was refused before it came to a hub.")
	}
	return err
}

// problem reads problem details with a code of the protocol. It is nil for anything
// else.
func (r *response) problem() *eventhub.Error {
	var p struct {
		Code   eventhub.Code `json:"code"`
		Detail string        `json:"detail"`
		Index  *int          `json:"index"`

		Present *uint64 `json:"present"`
	}
	if r.kind != "application/problem+json" || json.Unmarshal(r.body, &p) != nil || p.Code == "" {
		return nil
	}
	if p.Index != nil && (*p.Index < 0 || *p.Index >= wire.MaxEvents) {
		p.Index = nil // no list has that place
	}
	e := &eventhub.Error{Code: p.Code, Message: p.Detail, Index: p.Index, Present: p.Present}
	if r.status == http.StatusPreconditionFailed {
		e.Err = admin.ErrOtherVersion
	}
	if seconds, err := strconv.Atoi(r.header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(min(max(seconds, 0), maxRetryAfterInSecs)) * time.Second
	}
	return e
}

// isProxy reports whether a proxy answered because its hub is gone.
func (r *response) isProxy() bool {
	switch r.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return r.problem() == nil
	}
	return false
}

// strange is the error of an answer that no hub gives.
func (r *response) strange(why string) error {
	kind := r.header.Get("Content-Type")
	if kind == "" {
		kind = "no content type"
	}
	if r.status == http.StatusBadRequest && bytes.Contains(r.body, []byte("HTTPS server")) { // so Go's servers answer
		why = "it speaks TLS: its URL begins with https://"
	}
	return fmt.Errorf("client: %s was answered with status %d and %.80s: %s", r.asked, r.status, kind, why)
}

// judge returns the error of an answer that is not the one hoped for, whose body it
// closes.
func (a *Admin) judge(t *transmission, answer *http.Response) error {
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // a bad one is none that is known
	if answer.StatusCode == http.StatusOK && kind == t.accept || answer.StatusCode == http.StatusNoContent && t.method == http.MethodDelete {
		return nil
	}
	defer answer.Body.Close()
	r, err := gather(answer)
	if err != nil {
		return errors.Join(ErrUnreachable, fmt.Errorf("client: the answer broke off: %w", err))
	}
	refusal := r.refusal()
	if r.isProxy() {
		return errors.Join(ErrUnreachable, refusal)
	}
	var done struct {
		Imported   *int64 `json:"imported"`
		Added      int64  `json:"added"`
		Duplicates int64  `json:"duplicates"`
		Line       int    `json:"line"`
	}
	if r.problem() == nil || json.Unmarshal(r.body, &done) != nil {
		return refusal
	}
	if redrive, ok := redriveDone(refusal, r.body); ok {
		return redrive
	}
	if done.Imported == nil {
		return refusal
	}
	return &refusedImport{refusal, Imported{Events: *done.Imported, Added: done.Added, Duplicates: done.Duplicates, Line: done.Line}}
}

// gather reads an answer that is not long.
func gather(answer *http.Response) (*response, error) {
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // a bad one is none that is known
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes+1))
	asked := answer.Request
	return &response{asked.Method + " " + asked.URL.String(), answer.StatusCode, kind, answer.Header, body}, err
}
