package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/transfer"
)

// Transfer says what was received.
type Transfer struct {
	// Events is their number; 0 of a backup.
	Events int64 `json:"events"`
	Bytes  int64 `json:"bytes"`
	// Checksum is "sha256=" and the SHA-256 of these bytes, in hexadecimal.
	Checksum string `json:"checksum"`
}

// Imported says how far an import went.
type Imported struct {
	// Events are in the hub now: Added ones, and Duplicates, which it had before.
	Events     int64 `json:"events"`
	Added      int64 `json:"added"`
	Duplicates int64 `json:"duplicates"`
	// Checksum is that of ExportTo, over the lines that were sent; empty if the import
	// did not reach its end.
	Checksum string `json:"checksum,omitempty"`
	// Line is the one, from 1, that was not imported, or that begins the lines that
	// were refused together; 0 if all were imported, or if the error is not about a line.
	Line int `json:"line,omitempty"`
}

// ExportTo writes the events that q asks for to w as NDJSON, as they are stored, no
// faster than w takes them. q has no Filter and no Life. It returns without an error only
// when all of it was received and the hub's checksum is that of what was written; what was
// written before an error are whole events, except perhaps the last line, which is cut off or
// has the reason of a hub that can not go on, whose code the error has. q.OnGap is called in the
// end. Nothing is asked
// for twice: after the first byte a lost connection is an error, and ErrUnreachable in its
// chain means that nothing was written.
func (a *Admin) ExportTo(ctx context.Context, q admin.ReplayQuery, w io.Writer) (Transfer, error) {
	query, err := exportQuery(q)
	if err != nil {
		return Transfer{}, err
	}
	ctx, release := a.bound(ctx)
	defer release()
	answer, err := a.open(ctx, &transmission{method: http.MethodGet, path: "/export?" + query.Encode(), accept: transfer.NDJSON})
	if err != nil {
		return Transfer{}, err
	}
	defer answer.Body.Close()
	lines := &lineCount{}
	t, err := receive(ctx, answer, io.MultiWriter(w, lines))
	t.Events = lines.n
	if why := problemOfLine(lines.last()); err != nil && why != nil {
		t.Events--
		return t, fmt.Errorf("client: the export ended after %d events: %w", t.Events, why)
	}
	if err != nil {
		return t, err
	}
	if count := answer.Trailer.Get(transfer.CountTrailer); count != strconv.FormatInt(t.Events, 10) {
		return t, fmt.Errorf("client: the export has %d events, and the hub has sent %q", t.Events, count)
	}
	gaps, err := transfer.ParseGaps(answer.Trailer.Get(transfer.CompactedTrailer))
	if err != nil {
		return t, fmt.Errorf("client: the hub has sent what is no list of gaps: %w", err)
	}
	if q.OnGap != nil {
		for _, g := range gaps {
			q.OnGap(g)
		}
	}
	return t, nil
}

func exportQuery(q admin.ReplayQuery) (url.Values, error) {
	if err := q.Filter.Validate(); err != nil {
		return nil, err
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
		query.Set("from_ts", strconv.FormatInt(s.TS, 10))
	case eventhub.StartAfterID:
		query.Set("after_id", s.AfterID)
	case eventhub.StartOffset:
		query.Set("offset", strconv.FormatUint(s.Offset, 10))
	}
	if f := q.Filter; f != nil {
		setGiven(query, "filter", f.CEL)
		setGiven(query, "key", f.Key)
		query["tag"] = f.Tags
		for name, value := range f.Headers {
			query.Add("header", name+":"+value)
		}
	}
	if q.ToTS != 0 {
		query.Set("to_ts", strconv.FormatInt(q.ToTS, 10))
	}
	if q.Limit != 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	return query, nil
}

// lineCount counts the ends of lines, and keeps the end of what came.
type lineCount struct {
	n   int64
	end []byte
}

// keptEnd is how much of it, in bytes: more than a problem has.
const keptEnd = 16 << 10

func (l *lineCount) Write(p []byte) (int, error) {
	l.n += int64(bytes.Count(p, []byte{'\n'}))
	l.end = append(l.end, p[max(0, len(p)-keptEnd):]...)
	l.end = append(l.end[:0], l.end[max(0, len(l.end)-keptEnd):]...)
	return len(p), nil
}

// last returns the last line, if it is complete and kept.
func (l *lineCount) last() []byte {
	lines, whole := bytes.CutSuffix(l.end, []byte{'\n'})
	if !whole {
		return nil
	}
	return lines[bytes.LastIndexByte(lines, '\n')+1:]
}

// problemOfLine returns the error that the last line of an export has, nil for an event.
func problemOfLine(line []byte) *eventhub.Error {
	if len(line) == 0 || bytes.HasPrefix(line, []byte(`{"offset":`)) {
		return nil
	}
	return (&response{kind: "application/problem+json", body: line}).problem()
}

// Replay is as [admin.History] promises it, except that q has no Life, and that the record changes after visit has returned.
func (a *Admin) Replay(ctx context.Context, q admin.ReplayQuery, visit func(topic string, item eventhub.Item) error) error {
	_, err := a.ExportTo(ctx, q, &lineVisitor{visit: visit})
	return err
}

// lineVisitor takes an export apart.
type lineVisitor struct {
	visit func(topic string, item eventhub.Item) error
	part  []byte // of a line whose end was not received yet
}

func (l *lineVisitor) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		l.part = append(l.part, line...)
		if rest = after; !whole {
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
	if problemOfLine(l.part) != nil {
		return nil // ExportTo says it
	}
	item, ok := itemOf(l.part)
	topic, found := topicOf(item.Record)
	if !ok || !found {
		return fmt.Errorf("client: the export has a line that is no event: %.80q", l.part)
	}
	return l.visit(topic, item)
}

// topicOf returns the topic of a record. No field before it has quotes in its value.
func topicOf(r eventhub.Record) (string, bool) {
	_, rest, found := bytes.Cut(r, []byte(`,"topic":"`))
	topic, _, whole := bytes.Cut(rest, []byte{'"'})
	return string(topic), found && whole && r.ID() != nil
}

// ImportFrom sends the NDJSON of an export, which may be compressed as gzip or zstd,
// to the hub, no faster than the hub takes it; see POST /v1/import in
// docs/http.md. Imported says how far it went, with an error too: a hub that refuses says
// it; if the connection was lost it is not known, and zero. Importing again adds what is
// missing. An error of r is in the chain.
func (a *Admin) ImportFrom(ctx context.Context, r io.Reader) (Imported, error) {
	in := &sourceReader{r: bufio.NewReaderSize(r, 64<<10)}
	send := &transmission{method: http.MethodPost, path: "/v1/import", accept: "application/json", body: in, kind: transfer.NDJSON}
	start, _ := in.r.Peek(4) // an error comes again when it is read
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		send.coding = "gzip"
	case bytes.Equal(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		send.coding = "zstd"
	}
	ctx, release := a.bound(ctx)
	defer release()
	if len(a.cfg.bases) > 1 { // what was read of the input cannot be sent again: the hub that leads is found before
		_, _ = a.ask(ctx, http.MethodGet, "/v1/topics?limit=1") // the import has the error
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

// refusedImport is a problem that says how far the import went.
type refusedImport struct {
	error
	done Imported
}

// BackupTo writes a tar of the hub's store, as it is at a moment during the call, to
// w. It has everything that was acknowledged before the call. For errors see ExportTo.
func (a *Admin) BackupTo(ctx context.Context, w io.Writer) (Transfer, error) {
	ctx, release := a.bound(ctx)
	defer release()
	answer, err := a.open(ctx, &transmission{method: http.MethodGet, path: "/v1/backup", accept: transfer.Tar})
	if err != nil {
		return Transfer{}, err
	}
	defer answer.Body.Close()
	return receive(ctx, answer, w)
}

// receive writes an answer to w and compares it with the checksum after it.
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
		return t, fmt.Errorf("client: no checksum came after the %d bytes: whether they are all is not known", n)
	default:
		return t, fmt.Errorf("client: the hub has sent %s, and what was received has %s", sent, t.Checksum)
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
