package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/cloudevents"
	"eventhub/internal/transfer"
	"eventhub/wire"
)

// maxReplayBytes bounds the events of one page: it ends after the event that
// brings it there.
const maxReplayBytes = 8 << 20

// errPageFull ends a replay when the page has what it may have.
var errPageFull = errors.New("the page is full")

// replay answers with a page of the past of one topic: the events as they are stored,
// or as a batch of CloudEvents, which leaves no room for anything else.
func replay(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := replayQuery(r)
	if err != nil {
		return reply{}, err
	}
	from, err := access.history()
	if err != nil {
		return reply{}, err
	}
	if q.Life == 0 {
		if q.Life, err = from.Life(r.Context(), q.Topic); err != nil {
			return reply{}, err
		}
	}
	page := replayPage{add: appendStored, held: access.page}
	q.OnGap = func(g eventhub.Gap) { page.gap = &g }
	asCloudEvents := accepted(r, eventsFormats...) == cloudevents.BatchType
	if asCloudEvents {
		page.add = appendCloudEvent
	}
	if err := page.read(r.Context(), from, q); err != nil {
		return reply{}, err
	}
	if asCloudEvents {
		page.link(w, r, q.Life)
		if page.gap != nil {
			gaps := transfer.NewGaps(q.Topic)
			gaps.Add(*page.gap)
			w.Header().Set(transfer.CompactedTrailer, gaps.String())
		}
		w.Header().Set("Content-Type", cloudevents.BatchType)
		return reply{status: http.StatusOK, body: page.enclosed("[", "]\n")}, nil
	}
	// A name has nothing to escape.
	head := fmt.Sprintf(`{"topic":%q,"count":%d,"events":[`, q.Topic, page.count)
	tail := []byte{']'}
	if page.gap != nil {
		tail = wire.AppendGap(append(tail, ','), page.gap)
	}
	if page.next != 0 {
		tail = fmt.Appendf(tail, `,"next":{"from":"offset","offset":%d,"life":%d}`, page.next, q.Life)
	}
	tail = append(tail, "}\n"...)
	return reply{status: http.StatusOK, body: page.enclosed(head, string(tail))}, nil
}

// replayPage is a page as it is read: its events, with commas between them.
type replayPage struct {
	add    func(dst []byte, topic string, item eventhub.Item) ([]byte, error)
	events []byte   // from headRoom on
	held   *holding // what they take of the memory for answers
	count  int
	gap    *eventhub.Gap // what compaction may have removed of it; nil for most
	next   uint64        // offset of the first event after the page, 0 where there is none
}

// headRoom is the room before the events for what the answer begins with: a large page
// is not copied for that.
const headRoom = eventhub.MaxTopicBytes + 64

// enclosed returns the page with what precedes and follows its events.
func (p *replayPage) enclosed(head, tail string) []byte {
	if p.events == nil {
		return []byte(head + tail)
	}
	start := headRoom - len(head)
	copy(p.events[start:], head)
	return append(p.events[start:], tail...)
}

func appendStored(dst []byte, _ string, item eventhub.Item) ([]byte, error) {
	return item.Record.AppendJSON(dst, item.Offset), nil
}

func appendCloudEvent(dst []byte, topic string, item eventhub.Item) ([]byte, error) {
	dst, err := cloudevents.AppendStructured(dst, topic, item.Offset, item.Record)
	if err != nil {
		return dst, fmt.Errorf("write a CloudEvent: %w", err)
	}
	return dst, nil
}

func (p *replayPage) read(ctx context.Context, from admin.History, q admin.ReplayQuery) error {
	limit := q.Limit
	q.Limit++ // one more than the page
	err := from.Replay(ctx, q, func(topic string, item eventhub.Item) (err error) {
		if q.Life == 0 {
			return errPageFull // created since its life was looked for: then it had no events
		}
		if p.count == limit || len(p.events)-headRoom >= maxReplayBytes {
			p.next = item.Offset
			return errPageFull
		}
		if p.count == 0 {
			p.events = make([]byte, headRoom, 2*headRoom+len(item.Record))
		} else {
			p.events = append(p.events, ',')
		}
		p.count++
		if p.events, err = p.add(p.events, topic, item); err != nil {
			return err
		}
		return p.held.upTo(len(p.events))
	})
	if errors.Is(err, errPageFull) {
		return nil
	}
	return err
}

// link says by a Link header (RFC 8288) what to ask for next.
func (p *replayPage) link(w http.ResponseWriter, r *http.Request, life uint64) {
	if p.next == 0 {
		return
	}
	query, _ := queryOf(r) // which was read before
	for _, place := range []string{"ts", "after_id"} {
		query.Del(place)
	}
	query.Set("from", "offset")
	query.Set("offset", strconv.FormatUint(p.next, 10))
	query.Set("life", strconv.FormatUint(life, 10))
	to := url.URL{RawQuery: query.Encode()}
	w.Header().Set("Link", "<"+to.String()+`>; rel="next"`)
}

func replayQuery(r *http.Request) (q admin.ReplayQuery, err error) {
	given, err := parameters(r, "topic", "from", "ts", "after_id", "offset", "life", "limit")
	if err != nil {
		return q, err
	}
	q.Topic = given["topic"]
	if q.Topic == "" {
		return q, eventhub.Errorf(eventhub.CodeBadRequest, "topic is missing in the query")
	}
	if eventhub.IsPattern(q.Topic) {
		return q, eventhub.Errorf(eventhub.CodeBadTopic, "topic %.120q is a pattern; /export reads those, pages are of one topic", q.Topic)
	}
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return q, err
	}
	if q.Limit, err = pageLimit(given["limit"]); err != nil {
		return q, err
	}
	if text, ok := given["life"]; ok {
		if q.Life, err = strconv.ParseUint(text, 10, 64); err != nil || q.Life == 0 || q.Life > eventhub.MaxOffset {
			return q, eventhub.Errorf(eventhub.CodeBadRequest, "life is %.20q; what next says is wanted, from 1 to %d", text, uint64(eventhub.MaxOffset))
		}
	}
	q.Start, err = replayStart(given, "ts")
	return q, err
}

// replayStart reads where to begin. The parameters that go with from say which it is where
// from does not; nothing at all means the first event there is. tsName is what the
// path calls a time.
func replayStart(given map[string]string, tsName string) (eventhub.Start, error) {
	place, err := startOfQuery(given, tsName)
	if err != nil {
		return eventhub.Start{}, err
	}
	if place.From == nil {
		from, names := "earliest", 0
		for param, name := range map[string]string{tsName: "ts", "after_id": "after_id", "offset": "offset"} {
			if _, ok := given[param]; ok {
				from, names = name, names+1
			}
		}
		if names > 1 {
			return eventhub.Start{}, eventhub.Errorf(eventhub.CodeBadRequest, "more than one of %s, after_id and offset is given; a replay begins at one place", tsName)
		}
		place.From = &from
	}
	start, err := place.resolve()
	if err == nil && start.Kind == eventhub.StartLatest {
		return start, eventhub.Errorf(eventhub.CodeBadRequest, `from is "latest", after which there is nothing to replay; earliest, ts, after_id and offset are allowed`)
	}
	return start, err
}
