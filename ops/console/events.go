package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/filter"
)

const (
	// pageEvents is how many events a page of a topic has, and lookThrough how many are looked at for those that
	// pass a filter, about.
	pageEvents, lookThrough = 50, 10_000
	// leastWidth and mostWidth bound how many offsets are read at once on the way back.
	leastWidth, mostWidth = pageEvents, 8_192
)

// eventsPage is a page of the events of a topic, as lines.
type eventsPage struct {
	Events []tailRow `json:"events"` // the lowest offset first
	// Before is where earlier events are: before that offset; After where later ones are: from that
	// offset on. Absent where there are none.
	Before uint64 `json:"before,omitempty"`
	After  uint64 `json:"after,omitempty"`
	// Looked is how many events were looked at; Partial: there are more that may pass the filter.
	Looked  int  `json:"looked"`
	Partial bool `json:"partial,omitempty"`
}

// reading is one request for a page.
type reading struct {
	from    admin.History
	topic   string
	program *filter.Program
	least   uint64 // the first offset that is kept
	head    uint64
	until   time.Time // when it is enough in any case
	page    eventsPage
}

// errEnough ends a replay.
var errEnough = errors.New("the page has what it may have")

// events answers GET /console/events?topic: a page of its events, with what the page shows of each. before is for
// those below an offset, of all without it; from=earliest, offset, from_ts and after_id for those from a place on. key and
// filter choose.
func (c *Console) events(w http.ResponseWriter, r *http.Request) {
	page, err := c.readEvents(r)
	if err != nil {
		c.cfg.Refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(encode(page), '\n')) // an error means that the client is gone
}

func (c *Console) readEvents(r *http.Request) (*eventsPage, error) {
	access, err := c.cfg.Admit(r)
	if err != nil {
		return nil, err
	}
	if access.Inspector == nil || access.History == nil {
		return nil, c.cfg.WhyClosed()
	}
	q := r.URL.Query()
	topic, err := onlyTopic(q)
	if err != nil {
		return nil, err
	}
	program, err := filter.Compile(&eventhub.Filter{Key: q.Get("key"), CEL: q.Get("filter")})
	if err != nil {
		return nil, err
	}
	start, before, err := placeOf(q)
	if err != nil {
		return nil, err
	}
	info, err := access.Inspector.Topic(r.Context(), topic)
	if err != nil {
		return nil, err
	}
	e := &reading{from: access.History, topic: topic, program: program, least: max(info.FirstOffset, 1), head: info.Head, until: time.Now().Add(patience)}
	e.page.Events = []tailRow{}
	if start != nil {
		err = e.forward(r.Context(), *start)
	} else {
		err = e.back(r.Context(), min(before-1, e.head))
	}
	return &e.page, err
}

// placeOf reads where a page begins: a start, or the offset before which it ends.
func placeOf(q url.Values) (start *eventhub.Start, before uint64, err error) {
	n, err := number(q, "before", eventhub.MaxOffset, eventhub.MaxOffset)
	at := eventhub.Start{Kind: eventhub.StartEarliest}
	switch {
	case err != nil:
	case q.Has("offset"):
		var offset int
		offset, err = number(q, "offset", 0, eventhub.MaxOffset)
		at = eventhub.FromOffset(uint64(max(offset, 1)))
	case q.Has("from_ts"):
		var ts int
		ts, err = number(q, "from_ts", 0, eventhub.MaxOffset)
		at = eventhub.At(time.UnixMilli(int64(ts)))
	case q.Has("after_id"):
		err = eventhub.ValidateID(q.Get("after_id"))
		at = eventhub.AfterID(q.Get("after_id"))
	case q.Get("from") != "earliest":
		return nil, uint64(max(n, 1)), nil
	}
	return &at, 0, err
}

// take puts an event into rows, where it passes.
func (e *reading) take(rows []tailRow, item eventhub.Item) []tailRow {
	e.page.Looked++
	if !e.program.Match(item.Record, item.Offset) {
		return rows
	}
	return append(rows, rowOfRecord(e.topic, item.Offset, item.Record))
}

func (e *reading) replay(ctx context.Context, start eventhub.Start, visit func(item eventhub.Item) error) error {
	err := e.from.Replay(ctx, admin.ReplayQuery{Topic: e.topic, Start: start}, func(_ string, item eventhub.Item) error { return visit(item) })
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// forward reads the events from a place on.
func (e *reading) forward(ctx context.Context, start eventhub.Start) error {
	first := uint64(0)
	err := e.replay(ctx, start, func(item eventhub.Item) error {
		if first == 0 {
			first = item.Offset
		}
		if e.program != nil && (e.page.Looked >= lookThrough || time.Now().After(e.until)) {
			e.page.Partial = true
		}
		if len(e.page.Events) == pageEvents || e.page.Partial {
			e.page.After = item.Offset
			return errEnough
		}
		e.page.Events = e.take(e.page.Events, item)
		return nil
	})
	switch {
	case first > e.least:
		e.page.Before = first
	case first == 0 && e.head >= e.least: // all there are, are before it
		e.page.Before = e.head + 1
	}
	return err
}

// fits returns how many offsets there is time for, where some events took that long: a filter may cost much, and
// what was begun has to be read to its end.
func (e *reading) fits(took time.Duration, events int) uint64 {
	each := took / time.Duration(max(events, 1))
	if each <= 0 {
		return mostWidth
	}
	return uint64(min(max(time.Until(e.until)/each, leastWidth), mostWidth))
}

// back reads the events up to an offset. A history is read forwards alone, so it reads some offsets, and then those
// before them: more at once where few have an event that passes, for offsets may be gone.
func (e *reading) back(ctx context.Context, last uint64) error {
	end := last
	for width := uint64(leastWidth); end >= e.least && len(e.page.Events) < pageEvents; {
		if e.program != nil && e.page.Looked >= lookThrough || time.Now().After(e.until) {
			e.page.Partial = true
			break
		}
		begin := e.least
		if end-e.least >= width {
			begin = end - width + 1
		}
		var rows []tailRow
		began, looked := time.Now(), e.page.Looked
		err := e.replay(ctx, eventhub.FromOffset(begin), func(item eventhub.Item) error {
			if item.Offset > end {
				return errEnough
			}
			rows = e.take(rows, item)
			return nil
		})
		if err != nil {
			return err
		}
		if more := len(rows) - (pageEvents - len(e.page.Events)); more > 0 {
			begin, rows = rows[more].Offset, rows[more:]
		}
		e.page.Events = slices.Insert(e.page.Events, 0, rows...)
		end = begin - 1
		if len(rows) < pageEvents/2 {
			width = min(4*width, mostWidth)
		}
		width = min(width, e.fits(time.Since(began), e.page.Looked-looked))
	}
	if end >= e.least {
		e.page.Before = end + 1
	}
	if last < e.head {
		e.page.After = last + 1
	}
	return nil
}
