package rest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/cloudevents"
	"eventhub/internal/strictjson"
	"eventhub/internal/transfer"
)

// A chunk of an import is committed as a whole, before the next is read: that is what
// holds back a client that sends faster than the store takes.
const (
	importChunkEvents = 1000
	importChunkBytes  = 4 << 20
)

// maxBlank bounds the space between lines, in bytes: an input of nothing else
// compresses to a thousandth, and to read it costs as much as to read events.
const maxBlank = 1 << 20

// importKinds are the content types that an import may have. curl calls a file a form
// unless a setting says otherwise.
var importKinds = []string{transfer.NDJSON, "application/ndjson", "application/jsonl", "application/octet-stream", "application/x-www-form-urlencoded"}

// imported says how far an import came.
type imported struct {
	Count      int `json:"count"` // events that are in the hub now: Added and Duplicates
	Added      int `json:"added"`
	Duplicates int `json:"duplicates"`
	// Checksum is that of the export, where it was all of it.
	Checksum string `json:"checksum"`
}

// brokenImport is added to the problem of an import that did not come to its end.
type brokenImport struct {
	Line       int `json:"line,omitempty"` // the one that is wrong, or the first of the chunk that was refused
	Imported   int `json:"imported"`       // lines before it that are in the hub
	Added      int `json:"added"`
	Duplicates int `json:"duplicates"`
}

// importLines takes back what was exported, as NDJSON: ids, times and, where it can
// be, offsets are kept, and what is there already is not added again. It goes by
// chunks of at most 1,000 events or 4 MiB, and each is added as a whole or not at
// all; a line that is wrong ends it, and the answer says how far it came. Doing it
// again, after whatever end, is harmless.
//
// It needs admin of each topic, those of the hub's own too. Who has it of none gets no place,
// for there are few, and an import may take as long as it goes on.
func (a *API) importLines(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if _, err := parameters(r); err != nil {
		return reply{}, err
	}
	if access.Importer == nil {
		return reply{}, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub imports nothing")
	}
	if err := checkImportKind(r.Header.Get("Content-Type")); err != nil {
		return reply{}, err
	}
	if err := access.rights().Import(); err != nil {
		w.Header().Set("Connection", "close") // or the answer would wait for the body
		return reply{}, err
	}
	select {
	case a.importing <- struct{}{}:
		defer func() { <-a.importing }()
	default:
		w.Header().Set("Connection", "close")
		return reply{}, &eventhub.Error{Code: eventhub.CodeOverloaded,
			Message: fmt.Sprintf("%d imports are under way; no more are taken", maxImports), RetryAfter: 10 * time.Second}
	}
	ctx, cancel := a.untilStop(r.Context())
	defer cancel()
	control := http.NewResponseController(w)
	// The read that may be waiting is ended last: whoever begins one after it looks at
	// the context first.
	defer context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })()
	patient := &patientReader{ctx: ctx, control: control, body: r.Body, left: stallTime}
	body, done, err := decoded(r.Header, patient)
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, zstd") // RFC 7694
		return reply{}, err
	}
	defer done()
	i := &importer{to: access.Importer, in: bufio.NewReaderSize(&interruptible{ctx, &lineReader{body, patient}}, 128<<10), sum: transfer.NewSum(), now: time.Now()}
	if err := i.run(ctx); err != nil {
		err = withCause(ctx, err)
		if a.stopping.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = errStopping // which cuts bodies, and ctx may not know of it yet
		}
		if errors.Is(err, context.Canceled) {
			return reply{}, err // the client is gone
		}
		return reply{}, &partialError{err, brokenImport{i.bad, i.done.Count, i.done.Added, i.done.Duplicates}}
	}
	i.done.Checksum = i.sum.String()
	return jsonReply(http.StatusOK, i.done)
}

func checkImportKind(header string) error {
	if header == "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(header)
	if err != nil || !slices.Contains(importKinds, kind) {
		return eventhub.Wrap(eventhub.CodeBadRequest, cloudevents.ErrMediaType,
			"Content-Type %.80q is not what an import has; %s is", header, transfer.NDJSON)
	}
	return nil
}

// patientReader reads a body that may take long, as long as it goes on: of all the time in which
// it waits for the body, stallTime is the most between two bytes of lines. One goroutine uses it.
type patientReader struct {
	ctx     context.Context
	control *http.ResponseController
	body    io.Reader
	left    time.Duration // until then a byte of a line has to come
}

func (p *patientReader) Read(b []byte) (int, error) {
	began := time.Now()
	_ = p.control.SetReadDeadline(began.Add(p.left))
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := p.body.Read(b)
	p.left -= time.Since(began)
	return n, err
}

// lineReader reads what a patientReader has read, decoded. Space between lines, and what decodes
// to nothing, does not count as going on: it would keep a place for as long as its client wants.
type lineReader struct {
	in      io.Reader
	patient *patientReader
}

func (l *lineReader) Read(b []byte) (int, error) {
	n, err := l.in.Read(b)
	if len(bytes.TrimSpace(b[:n])) > 0 {
		l.patient.left = stallTime
	}
	return n, err
}

// importer reads lines and hands them on in chunks.
type importer struct {
	to  admin.Importer
	in  *bufio.Reader
	sum *transfer.Sum
	now time.Time

	blank int // bytes of empty lines, and around others, beyond as many of events

	text    []byte // the line being read
	number  int    // of the last line that was read, from 1
	bad     int    // the line at which it ended, 0 for none
	events  []eventhub.Event
	numbers []int // of their lines
	first   int   // line of the first of them
	size    int   // bytes of their lines
	done    imported
}

func (i *importer) run(ctx context.Context) error {
	for {
		line, readErr := i.line()
		if i.blank = max(0, i.blank+len(i.text)-2*len(line)); i.blank > maxBlank {
			i.bad = i.number
			return eventhub.Errorf(eventhub.CodeBadRequest, "line %d: more than %d bytes are empty lines, which no export has", i.number, maxBlank)
		}
		if len(line) > 0 {
			if err := i.add(line, readErr); err != nil {
				i.bad = i.number
				return err
			}
		}
		if readErr == nil && len(i.events) < importChunkEvents && i.size < importChunkBytes {
			continue
		}
		if readErr != nil && readErr != io.EOF {
			return i.broken(ctx, readErr)
		}
		if err := i.commit(ctx); err != nil {
			return err
		}
		if readErr == io.EOF {
			return nil
		}
	}
}

// line returns the next line without its end and without space around it; it is valid
// until the next call. An error, which may come with a line that has no end, is
// that of the input.
func (i *importer) line() ([]byte, error) {
	i.text = i.text[:0]
	for {
		part, err := i.in.ReadSlice('\n')
		i.text = append(i.text, part...)
		if len(i.text) > transfer.MaxLine+1 {
			i.number++
			return i.text, nil // which add refuses
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err == nil || len(i.text) > 0 {
			i.number++
		}
		return bytes.TrimSpace(i.text), err
	}
}

// add takes a line into the chunk. end is why nothing comes after it.
func (i *importer) add(line []byte, end error) error {
	where := fmt.Sprintf("line %d: ", i.number)
	if len(line) > transfer.MaxLine {
		return eventhub.Errorf(eventhub.CodeTooLarge, "%sit has more than %d bytes", where, transfer.MaxLine)
	}
	if end != nil && end != io.EOF {
		return nil // a part of a line: the end of the input is reported
	}
	var e eventhub.Event
	if err := strictjson.Unmarshal(line, &e); err != nil {
		if end != nil {
			return eventhub.Wrap(eventhub.CodeBadJSON, err, "%sthe input ends in the middle of it", where)
		}
		return atLine(badBody(err), i.number)
	}
	if err := checkImported(&e, i.now); err != nil {
		return atLine(err, i.number)
	}
	i.sum.Line(line)
	if len(i.events) == 0 {
		i.first = i.number
	}
	i.events, i.numbers = append(i.events, e), append(i.numbers, i.number)
	i.size += len(line)
	return nil
}

// atLine says that an error is about a line.
func atLine(err error, number int) error {
	e := *eventhub.AsError(err)
	e.Message = fmt.Sprintf("line %d: %s", number, e.Message)
	return &e
}

// checkImported refuses what no export has. The hub judges the events of a part again, all
// together: here a line is refused at its place, before the lines after it are read, and so
// the first wrong line is the one that is named.
func checkImported(e *eventhub.Event, now time.Time) error {
	for _, member := range []struct {
		name    string
		missing bool
	}{{"topic", e.Topic == ""}, {"id", e.ID == ""}, {"payload", len(e.Payload) == 0}} {
		if member.missing {
			return eventhub.Errorf(eventhub.CodeBadEvent, "%s is missing; an import takes what was exported", member.name)
		}
	}
	if err := eventhub.ValidateStoredTopic(e.Topic); err != nil {
		return err
	}
	if e.Offset > eventhub.MaxOffset {
		return eventhub.Errorf(eventhub.CodeBadEvent, "offset is %d; at most %d is allowed", e.Offset, uint64(eventhub.MaxOffset))
	}
	if most := now.Add(eventhub.MaxFutureTS).UnixMilli(); e.CommittedTS < 0 || e.CommittedTS > most {
		return eventhub.Errorf(eventhub.CodeBadEvent, "committed_ts is %d; 0 to %d are allowed", e.CommittedTS, most)
	}
	checked := *e
	if eventhub.HubOnlyTopic(e.Topic) {
		checked.Payload = nullPayload // a dead letter holds an event, and more than a payload may
	}
	return checked.ValidateFields(now)
}

var nullPayload = []byte("null")

// commit hands the chunk on.
func (i *importer) commit(ctx context.Context) error {
	if len(i.events) == 0 {
		return nil
	}
	receipts, err := i.to.Import(ctx, i.events...)
	if err != nil {
		i.bad = i.first
		var e *eventhub.Error
		if !errors.As(err, &e) {
			return err // of the hub's side
		}
		at := *e
		at.Index = nil
		at.Message = fmt.Sprintf("lines %d to %d, which are added together: %s", i.first, i.number, e.Message)
		if e.Index != nil {
			at.Message = fmt.Sprintf("line %d, which is added together with lines %d to %d: %s", i.numbers[*e.Index], i.first, i.number, e.Message)
		}
		return &at
	}
	for _, rc := range receipts {
		if rc.Duplicate {
			i.done.Duplicates++
		} else {
			i.done.Added++
		}
	}
	i.done.Count += len(i.events)
	clear(i.events) // their payloads
	i.events, i.numbers, i.size = i.events[:0], i.numbers[:0], 0
	return nil
}

// broken reports an input that can not be read on. What was not committed is gone.
func (i *importer) broken(ctx context.Context, err error) error {
	// A read that has failed ends the request's context too.
	if cause := context.Cause(ctx); eventhub.ErrorCode(cause) == eventhub.CodeShuttingDown && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if err := tokenEnded(ctx); err != nil {
		return err
	}
	if len(i.events) > 0 {
		i.bad = i.first
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return eventhub.Wrap(eventhub.CodeBadRequest, err, "no event came for %s after line %d", stallTime, i.number)
	}
	return eventhub.Wrap(eventhub.CodeBadRequest, err, "the body breaks off, or is not encoded as it says, after line %d", i.number)
}
