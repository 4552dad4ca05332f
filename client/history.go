package client

import (
	"bufio"
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

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/transfer"
)

// Transfer says what came over.
type Transfer struct {
	// Events is their number; 0 of a backup.
	Events int64 `json:"events"`
	Bytes  int64 `json:"bytes"`
	// Checksum is "sha256=" and the SHA-256 of these bytes, in hexadecimal.
	Checksum string `json:"checksum"`
}

// Imported says how far an import came.
type Imported struct {
	// Events are in the hub now: Added ones, and Duplicates, which were there before.
	Events     int64 `json:"events"`
	Added      int64 `json:"added"`
	Duplicates int64 `json:"duplicates"`
	// Checksum is that of ExportTo, over the lines that came; empty where the import
	// did not come to its end.
	Checksum string `json:"checksum,omitempty"`
	// Line is the one, from 1, that was not imported, or that begins the lines that
	// were refused together; 0 where all were, or where none is to blame.
	Line int `json:"line,omitempty"`
}

// ExportTo writes the events that q asks for to w as NDJSON, as they are stored, no
// faster than w takes them. q has no Filter and no Life. It returns without an error only when all
// of it has come and the hub's checksum is that of what was written; what was written
// before an error are whole events, but for the last line. Nothing is asked for twice:
// behind the first byte a lost connection is an error, and ErrUnreachable in its chain
// means that nothing was written.
func (a *API) ExportTo(ctx context.Context, q admin.ReplayQuery, w io.Writer) (Transfer, error) {
	query, err := exportQuery(q)
	if err != nil {
		return Transfer{}, err
	}
	answer, err := a.open(ctx, &transmission{method: http.MethodGet, path: "/export?" + query.Encode(), accept: transfer.NDJSON})
	if err != nil {
		return Transfer{}, err
	}
	defer answer.Body.Close()
	lines := &lineCount{}
	t, err := receive(ctx, answer, io.MultiWriter(w, lines))
	if t.Events = lines.n; err != nil {
		return t, err
	}
	if count := answer.Trailer.Get(transfer.CountTrailer); count != strconv.FormatInt(t.Events, 10) {
		return t, fmt.Errorf("client: the export has %d events, and the hub has sent %q", t.Events, count)
	}
	return t, nil
}

func exportQuery(q admin.ReplayQuery) (url.Values, error) {
	if !q.Filter.IsZero() {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "an export has no filter, and %s is given", q.Filter)
	}
	if q.Life != 0 {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "an export has no life, and %d is given", q.Life)
	}
	if _, err := eventhub.ParsePattern(q.Topic); err != nil {
		return nil, err
	}
	if err := q.Start.Validate(); err != nil {
		return nil, err
	}
	query := url.Values{"topic": {q.Topic}, "ndjson": {"1"}}
	switch s := q.Start; s.Kind {
	case eventhub.StartTime:
		query.Set("fromTs", strconv.FormatInt(s.TS, 10))
	case eventhub.StartAfterID:
		query.Set("afterId", s.AfterID)
	case eventhub.StartOffset:
		query.Set("offset", strconv.FormatUint(s.Offset, 10))
	}
	if q.ToTS != 0 {
		query.Set("toTs", strconv.FormatInt(q.ToTS, 10))
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	return query, nil
}

// lineCount counts the ends of lines.
type lineCount struct{ n int64 }

func (l *lineCount) Write(p []byte) (int, error) {
	l.n += int64(bytes.Count(p, []byte{'\n'}))
	return len(p), nil
}

// Replay is as [admin.History] promises it, save that q has no Filter and no Life, and that the
// record is changed when visit has returned.
func (a *API) Replay(ctx context.Context, q admin.ReplayQuery, visit func(topic string, item eventhub.Item) error) error {
	_, err := a.ExportTo(ctx, q, &lineVisitor{visit: visit})
	return err
}

// lineVisitor takes an export apart.
type lineVisitor struct {
	visit func(topic string, item eventhub.Item) error
	part  []byte // of a line whose end has not come
}

func (l *lineVisitor) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, behind, whole := bytes.Cut(rest, []byte{'\n'})
		l.part = append(l.part, line...)
		if rest = behind; !whole {
			break
		}
		if err := l.take(); err != nil {
			return 0, err
		}
		l.part = l.part[:0]
	}
	if len(l.part) > maxAnswerBytes {
		return 0, fmt.Errorf("client: a line of the export has more than %d bytes", maxAnswerBytes)
	}
	return len(p), nil
}

func (l *lineVisitor) take() error {
	item, ok := itemOf(l.part)
	topic, found := topicOf(item.Record)
	if !ok || !found {
		return fmt.Errorf("client: the export has a line that is no event: %.80q", l.part)
	}
	return l.visit(topic, item)
}

// topicOf returns the topic of a record. Nothing that stands before it has quotes.
func topicOf(r eventhub.Record) (string, bool) {
	_, rest, found := bytes.Cut(r, []byte(`,"topic":"`))
	topic, _, whole := bytes.Cut(rest, []byte{'"'})
	return string(topic), found && whole && r.ID() != nil
}

// ImportFrom sends the NDJSON of an export, which may be compressed as gzip or zstd,
// to the hub, no faster than the hub takes it; see POST /v1/import in
// docs/http.md. Imported says how far it came, beside an error too: what the hub
// refused, it told; where the connection was lost it is not known, and zero. Importing
// again adds what is missing. An error of r is in the chain.
func (a *API) ImportFrom(ctx context.Context, r io.Reader) (Imported, error) {
	in := &sourceReader{r: bufio.NewReaderSize(r, 64<<10)}
	send := &transmission{method: http.MethodPost, path: "/v1/import", accept: "application/json", body: in, kind: transfer.NDJSON}
	start, _ := in.r.Peek(4) // what is wrong with it comes again when it is read
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		send.coding = "gzip"
	case bytes.Equal(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		send.coding = "zstd"
	}
	answer, err := a.open(ctx, send)
	if failed := in.failed.Load(); failed != nil {
		return Imported{}, errors.Join(fmt.Errorf("client: the input can not be read: %w", *failed), closeBody(answer))
	}
	var refused *refusedImport
	if errors.As(err, &refused) {
		return refused.done, refused.error
	}
	if err != nil {
		return Imported{}, err
	}
	defer answer.Body.Close()
	got, err := gather(answer)
	if err != nil {
		return Imported{}, fmt.Errorf("client: the answer to the import broke off: %w", err)
	}
	var done struct {
		Count *int64 `json:"count"`
		Imported
	}
	if err := json.Unmarshal(got.body, &done); err != nil || done.Count == nil || done.Checksum == "" {
		return Imported{}, got.strange("it is not what was asked for")
	}
	done.Events = *done.Count
	return done.Imported, nil
}

func closeBody(answer *http.Response) error {
	if answer == nil {
		return nil
	}
	return answer.Body.Close()
}

// sourceReader keeps the error of a source apart from those of the connection.
type sourceReader struct {
	r      *bufio.Reader
	failed atomic.Pointer[error]
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// refusedImport is a problem that says how far the import came.
type refusedImport struct {
	error
	done Imported
}

// BackupTo writes a tar of the hub's store, as it is at a moment during the call, to
// w. All that was acknowledged before the call is in it. For errors see ExportTo.
func (a *API) BackupTo(ctx context.Context, w io.Writer) (Transfer, error) {
	answer, err := a.open(ctx, &transmission{method: http.MethodGet, path: "/v1/backup", accept: transfer.Tar})
	if err != nil {
		return Transfer{}, err
	}
	defer answer.Body.Close()
	return receive(ctx, answer, w)
}

// receive writes an answer to w and holds it against the checksum behind it.
func receive(ctx context.Context, answer *http.Response, w io.Writer) (Transfer, error) {
	sum := transfer.NewSum()
	to := &outlet{w: io.MultiWriter(w, sum)}
	buf := make([]byte, 256<<10)
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{answer.Body}, buf)
	t := Transfer{Bytes: n, Checksum: sum.String()}
	switch {
	case to.err != nil:
		return t, to.err
	case err != nil && ctx.Err() != nil:
		return t, fmt.Errorf("client: the transfer ended after %d bytes: %w", n, context.Cause(ctx))
	case err != nil:
		return t, fmt.Errorf("client: the transfer broke off after %d bytes: %w", n, err)
	}
	switch sent := answer.Trailer.Get(transfer.ChecksumTrailer); sent {
	case t.Checksum:
		return t, nil
	case "":
		return t, fmt.Errorf("client: nothing stands behind the last of %d bytes: whether that is all, nobody knows", n)
	default:
		return t, fmt.Errorf("client: the hub has sent %s, and what came has %s", sent, t.Checksum)
	}
}

// outlet keeps the error of a writer apart from those of the connection.
type outlet struct {
	w   io.Writer
	err error
}

func (s *outlet) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.err = err
	return n, err
}

// transmission is a request with a long answer or a long body.
type transmission struct {
	method, path, accept string
	body                 io.Reader // nil for none
	kind, coding         string    // of the body
}

// open makes a request and returns the answer that it hopes for, whose body is the
// caller's to close. It tries the next URL only as long as no hub was connected to.
func (a *API) open(ctx context.Context, t *transmission) (*http.Response, error) {
	failures := []error{ErrUnreachable}
	token, _, err := a.cfg.token(ctx)
	if err != nil {
		return nil, errors.Join(append(failures, fmt.Errorf("token: %w", err))...)
	}
	if strings.ContainsFunc(token, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, eventhub.Errorf(eventhub.CodeBadToken, "the token has a control character in it, perhaps a line's end")
	}
	first := int(a.served.Load())
	for i := range a.cfg.bases {
		at := (first + i) % len(a.cfg.bases)
		answer, connected, err := a.openOne(ctx, t, a.cfg.bases[at], token)
		if err == nil {
			a.served.Store(int64(at))
			return answer, a.judge(t, answer)
		}
		if connected && ctx.Err() != nil {
			return nil, fmt.Errorf("client: %s %s: %w", t.method, a.cfg.bases[at]+t.path, context.Cause(ctx))
		}
		failures = append(failures, fmt.Errorf("%s: %w", a.cfg.bases[at], err))
		if ctx.Err() != nil || connected {
			break
		}
		a.cfg.logger.Warn("the API of a hub was not reached", "url", a.cfg.bases[at], "error", err)
	}
	return nil, errors.Join(failures...)
}

func (a *API) openOne(ctx context.Context, t *transmission, base, token string) (_ *http.Response, connected bool, err error) {
	var got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	var body io.Reader
	if t.body != nil {
		body = io.NopCloser(t.body)
	}
	request, err := http.NewRequestWithContext(ctx, t.method, base+t.path, body)
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
	answer, err := a.http.Do(request)
	if err != nil {
		return nil, got.Load(), bare(err)
	}
	return answer, true, nil
}

// judge returns the error of an answer that is not the one hoped for, whose body it
// closes.
func (a *API) judge(t *transmission, answer *http.Response) error {
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // a bad one is none that is known
	if answer.StatusCode == http.StatusOK && kind == t.accept {
		return nil
	}
	defer answer.Body.Close()
	r, err := gather(answer)
	if err != nil {
		return errors.Join(ErrUnreachable, fmt.Errorf("client: the answer broke off: %w", err))
	}
	refusal := r.refusal()
	switch r.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if r.problem() == nil { // a proxy whose hub is gone
			return errors.Join(ErrUnreachable, refusal)
		}
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
	if told, ok := redriveDone(refusal, r.body); ok {
		return told
	}
	if done.Imported == nil {
		return refusal
	}
	return &refusedImport{refusal, Imported{Events: *done.Imported, Added: done.Added, Duplicates: done.Duplicates, Line: done.Line}}
}

// gather reads a short answer.
func gather(answer *http.Response) (*response, error) {
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	asked := answer.Request
	return &response{asked.Method + " " + asked.URL.String(), answer.StatusCode, kind, answer.Header, body}, err
}
