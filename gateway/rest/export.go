package rest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/cloudevents"
	"eventhub/internal/transfer"
)

// exportBuffer is how much of an export is gathered before it is sent, in bytes: the next event
// is read when the connection has taken it.
const exportBuffer = 256 << 10

// What an export takes of the memory for answers until it ends, for its client may take as long as it wants: what is gathered, and
// the page of the log that it is from; one that is compressed takes the tables of the encoder besides.
const (
	exportMemory  = exportBuffer + exportBuffer/4 + 1<<20
	encoderMemory = 2 << 20
)

// maxKeptBuffer keeps one huge event from staying in the pool.
const maxKeptBuffer = 4 * exportBuffer

var exportBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, exportBuffer+exportBuffer/4)
	return &b
}}

// history returns what reads the past.
func (a *Access) history() (admin.History, error) {
	if a.History == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub keeps no past that can be read")
	}
	return a.History, nil
}

// export sends the events of a topic, or of all topics of a pattern, one topic after
// the other: as NDJSON or as a JSON array, the bytes as they are stored. It ends at
// the heads that there were when it began. The trailers after the last byte say how
// many events there were, the checksum of their lines, and where compaction may have removed
// some; where it can not go on
// the connection is broken off.
func (a *API) export(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	query, lines, err := exportQuery(r)
	if err != nil {
		return reply{}, err
	}
	from, err := access.history()
	if err == nil {
		err = access.rights().Replay(query.Topic)
	}
	if err != nil {
		return reply{}, err
	}
	kind, add := transfer.NDJSON, (*exporter).addLine
	if !lines {
		kind, add = accepted(r, "application/json", cloudevents.BatchType), (*exporter).addElement
		if kind == cloudevents.BatchType {
			add = (*exporter).addCloudEvent
		}
	}
	coding := acceptedCoding(r.Header)
	if r.Method != http.MethodHead {
		needs := exportMemory
		if coding != "" {
			needs += encoderMemory
		}
		if err := access.page.take(needs); err != nil {
			return reply{}, err
		}
	}
	w.Header().Add("Vary", "Accept, Accept-Encoding")
	if coding != "" {
		w.Header().Set("Content-Encoding", coding)
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", kind)
		return reply{status: http.StatusOK}, nil
	}
	ctx, cancel := a.untilStop(r.Context())
	defer cancel()
	d := newDownload(ctx, w, kind, endWait, transfer.ChecksumTrailer, transfer.CountTrailer, transfer.CompactedTrailer)
	out, release := encoderFor(coding, d)
	defer release()
	e := &exporter{out: out, lines: lines, add: add, sum: transfer.NewSum()}
	e.broken = func(err error) {
		if d.begun && !isGone(ctx) {
			e.sayWhy(withCause(ctx, err))
			_ = d.control.Flush()
		}
	}
	gaps := transfer.NewGaps(query.Topic)
	query.OnGap = gaps.Add
	if err = e.run(ctx, from, query); err == nil {
		d.compacted = gaps.String()
		err = d.end(e.sum, e.count)
	}
	if err != nil {
		return a.fail(r, d, err)
	}
	return reply{status: http.StatusOK, sent: true}, nil
}

// sayWhy makes the reason why an export can not go on its last line, after the events that it
// has; in an array, whose end is missing, it is the last element. The connection is broken off
// then, so that nobody takes it for whole.
func (e *exporter) sayWhy(err error) {
	if !e.lines {
		e.separate()
	}
	if e.send() == nil {
		if _, err := e.out.Write(append(problemLine(err), '\n')); err == nil {
			_ = e.out.Close() // it fails where nobody listens any more
		}
	}
}

// exportQuery reads what is asked for, and whether it is to come as lines.
func exportQuery(r *http.Request) (q admin.ReplayQuery, lines bool, err error) {
	filter, given, err := filterParameters(r, "topic", "from_ts", "to_ts", "after_id", "offset", "ndjson", "limit")
	if err == nil {
		err = filter.Validate()
	}
	if err != nil {
		return q, false, err
	}
	q.Filter = filter
	q.Topic = given["topic"]
	if q.Topic == "" {
		return q, false, eventhub.Errorf(eventhub.CodeBadRequest, "topic is missing in the query")
	}
	if _, err := eventhub.ParsePattern(q.Topic); err != nil {
		return q, false, err
	}
	if r.URL.Query().Has("limit") { // without one, all there are
		if q.Limit, err = strconv.Atoi(given["limit"]); err != nil || q.Limit < 1 {
			return q, false, eventhub.Errorf(eventhub.CodeBadRequest, "limit %.20q is not a number from 1 on", given["limit"])
		}
	}
	if text, ok := given["to_ts"]; ok {
		if q.ToTS, err = momentOf("to_ts", text); err != nil {
			return q, false, err
		}
		if q.ToTS < 1 {
			return q, false, eventhub.Errorf(eventhub.CodeBadRequest, "to_ts is %.20q; a time after the beginning of 1970 is wanted", text)
		}
	}
	if q.Start, err = replayStart(given, "from_ts"); err != nil {
		return q, false, err
	}
	if eventhub.IsPattern(q.Topic) && (q.Start.Kind == eventhub.StartAfterID || q.Start.Kind == eventhub.StartOffset) {
		return q, false, eventhub.Errorf(eventhub.CodeBadRequest, "after_id and offset are places in one topic, and %.120q is a pattern", q.Topic)
	}
	lines = accepted(r, "application/json", transfer.NDJSON, cloudevents.BatchType) == transfer.NDJSON
	if text, ok := given["ndjson"]; ok {
		lines, err = yes("ndjson", text)
	}
	return q, lines, err
}

// exporter writes events. It allocates nothing for each of them.
type exporter struct {
	out   encoder
	lines bool // or an array
	add   func(e *exporter, topic string, item eventhub.Item) error
	sum   *transfer.Sum
	count int
	buf   []byte // of the pool, while run has it
	// broken is called by run where the events end before they are all.
	broken func(error)
}

// The events of an array have a comma between them, so that each is in a line of its own
// there too.
const (
	arrayBegin = "[\n"
	arrayNext  = ",\n"
	arrayEnd   = "\n]\n"
	arrayEmpty = "[]\n"
)

func (e *exporter) run(ctx context.Context, from admin.History, q admin.ReplayQuery) error {
	kept := exportBuffers.Get().(*[]byte)
	e.buf = (*kept)[:0]
	defer func() {
		if cap(e.buf) <= maxKeptBuffer {
			*kept = e.buf
			exportBuffers.Put(kept)
		}
	}()
	err := from.Replay(ctx, q, func(topic string, item eventhub.Item) error {
		if err := e.add(e, topic, item); err != nil {
			return err
		}
		e.count++
		if len(e.buf) < exportBuffer {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return e.send()
	})
	if err != nil {
		e.broken(err)
		return err
	}
	if !e.lines {
		e.endArray()
	}
	return errors.Join(e.send(), e.out.Close())
}

// withCause says why the context ended, where that is why a call failed.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		return cause
	}
	return err
}

func (e *exporter) addLine(_ string, item eventhub.Item) error {
	e.buf = append(item.Record.AppendJSON(e.buf, item.Offset), '\n')
	return nil
}

func (e *exporter) addElement(_ string, item eventhub.Item) error {
	start := e.separate()
	e.buf = item.Record.AppendJSON(e.buf, item.Offset)
	e.sum.Line(e.buf[start:])
	return nil
}

func (e *exporter) addCloudEvent(topic string, item eventhub.Item) (err error) {
	start := e.separate()
	if e.buf, err = appendCloudEvent(e.buf, topic, item); err != nil {
		return err
	}
	e.sum.Line(e.buf[start:])
	return nil
}

// separate appends what precedes an element, and returns where the element begins.
func (e *exporter) separate() (start int) {
	between := arrayNext
	if e.count == 0 {
		between = arrayBegin
	}
	e.buf = append(e.buf, between...)
	return len(e.buf)
}

func (e *exporter) endArray() {
	end := arrayEnd
	if e.count == 0 {
		end = arrayEmpty
	}
	e.buf = append(e.buf, end...)
}

// send hands over what was gathered, unless that is nothing.
func (e *exporter) send() error {
	if len(e.buf) == 0 {
		return nil
	}
	if e.lines {
		_, _ = e.sum.Write(e.buf)
	}
	_, err := e.out.Write(e.buf)
	e.buf = e.buf[:0]
	return err
}
