package rest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/internal/cloudevents"
	"eventhub/internal/naming"
	"eventhub/internal/when"
)

// receipt is the answer to one published event.
type receipt struct {
	ID        string `json:"id"`
	Offset    uint64 `json:"offset,omitempty"`
	DeliverAt int64  `json:"deliver_at,omitempty"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

func receiptOf(r eventhub.Receipt) receipt {
	return receipt{ID: r.ID, Offset: r.Offset, DeliverAt: eventhub.Millis(r.DeliverAt), Duplicate: r.Duplicate}
}

// later reports whether the event is not in the log yet.
func (r *receipt) later() bool { return r.Offset == 0 && r.DeliverAt != 0 }

// publishOne publishes the body as the payload of one event. What else the event
// has comes as query parameters or as x-eventhub-* headers.
func (a *API) publishOne(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if mode, err := cloudevents.ModeOf(r.Header); mode != cloudevents.None || err != nil {
		return a.publishCloudEvents(w, r, access, mode, err)
	}
	given, err := attributesOf(r, eventAttributes)
	if err != nil {
		return reply{}, err
	}
	e := &given.event
	e.Topic, e.Headers = r.PathValue("topic"), eventHeaders(r.Header)
	body, err := access.readBody(w, r, maxPayloadBody)
	if err != nil {
		return reply{}, err
	}
	e.Payload = bytes.TrimSpace(body)
	return a.answerOne(r, access, &given)
}

// answerOne publishes the event that a request gave.
func (a *API) answerOne(r *http.Request, access Access, given *given) (reply, error) {
	receipts, err := a.publishOnce(r, access, given.publication(given.event))
	err = alone(err)
	if len(receipts) == 0 {
		return reply{}, err
	}
	answer := receiptOf(receipts[0])
	if err != nil {
		return reply{}, &partialError{err, answer}
	}
	if answer.later() {
		return jsonReply(http.StatusAccepted, answer)
	}
	return jsonReply(http.StatusOK, answer)
}

// publish hands a publication over and waits for what becomes of it. Where there
// are receipts with an error, the events are published and something else went
// wrong.
func (a *API) publish(ctx context.Context, to eventhub.Publisher, pub eventhub.Publication) ([]eventhub.Receipt, error) {
	if len(pub.WaitFor) == 0 {
		return to.Publish(ctx, pub.Events...)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.stopping, cancel)()
	answered := make(chan struct{})
	pubs := []eventhub.Publication{pub}
	to.Enqueue(ctx, pubs, func([]eventhub.Publication) { close(answered) })
	<-answered
	return pubs[0].Receipts, pubs[0].Err
}

// given is what a request says besides payloads.
type given struct {
	event    eventhub.Event
	waitFor  []string
	waitUpTo time.Duration
}

func (g *given) publication(events ...eventhub.Event) eventhub.Publication {
	return eventhub.Publication{Events: events, WaitFor: g.waitFor, WaitUpTo: g.waitUpTo}
}

// attribute is something that the query or an x-eventhub-* header may say.
type attribute struct {
	set     func(g *given, value string) error
	repeats bool // it may be given more than once
}

// waitAttributes are what may be said of a publish as a whole, by name.
var waitAttributes = map[string]attribute{
	"wait_for": {repeats: true, set: func(g *given, v string) error {
		g.waitFor = append(g.waitFor, list(v)...)
		if n := len(g.waitFor); n > eventhub.MaxWaitFor {
			return eventhub.Errorf(eventhub.CodeBadRequest, "wait_for has %d groups; at most %d are allowed", n, eventhub.MaxWaitFor)
		}
		for _, group := range g.waitFor {
			if err := eventhub.ValidateGroup(group); err != nil {
				return eventhub.Errorf(eventhub.CodeBadRequest, "wait_for: %s", eventhub.AsError(err).Message)
			}
		}
		return nil
	}},
	"wait_ms": {set: func(g *given, v string) error {
		most := eventhub.MaxWait.Milliseconds()
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil || ms < 1 || ms > most {
			return eventhub.Errorf(eventhub.CodeBadRequest, "wait_ms %.20q is not a number from 1 to %d", v, most)
		}
		g.waitUpTo = time.Duration(ms) * time.Millisecond
		return nil
	}},
}

// eventAttributes are what may be said of one event and its publish, by name.
var eventAttributes = map[string]attribute{
	"id":  {set: func(g *given, v string) error { g.event.ID = v; return eventhub.ValidateID(v) }},
	"key": {set: func(g *given, v string) error { g.event.Key = v; return nil }},
	"sid": {set: func(g *given, v string) error { g.event.SID = v; return nil }},
	"ts": {set: func(g *given, v string) (err error) {
		if g.event.TS, err = when.ParseAbsolute(v); err != nil || g.event.TS < 1 {
			return eventhub.Errorf(eventhub.CodeBadEvent, "ts %.48q is neither epoch milliseconds from 1 on nor a time like 2026-01-31T15:04:05Z", v)
		}
		return nil
	}},
	"tags": {repeats: true, set: func(g *given, v string) error {
		g.event.Tags = append(g.event.Tags, list(v)...)
		return nil
	}},
	"caused_by": {repeats: true, set: func(g *given, v string) error {
		g.event.CausedBy = append(g.event.CausedBy, list(v)...)
		return nil
	}},
	"delay_ms": {set: func(g *given, v string) error {
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return eventhub.Errorf(eventhub.CodeBadEvent, "delay_ms %.20q is not a number of milliseconds", v)
		}
		return setDelay(&g.event, ms)
	}},
	"deliver_at": {set: func(g *given, v string) error {
		ms, err := when.ParseAbsolute(v)
		if err != nil {
			return eventhub.Errorf(eventhub.CodeBadEvent, "deliver_at: %v", err)
		}
		g.event.DeliverAt = time.UnixMilli(ms)
		return nil
	}},
	"expect_key_offset":   {set: expectation(eventhub.ExpectKeyOffset)},
	"expect_topic_offset": {set: expectation(eventhub.ExpectTopicOffset)},

	"wait_for": waitAttributes["wait_for"],
	"wait_ms":  waitAttributes["wait_ms"],
}

// expectation reads one of the two conditions, of which the event has at most one.
func expectation(kind eventhub.ExpectKind) func(*given, string) error {
	return func(g *given, v string) error {
		x := eventhub.Expect{Kind: kind}
		offset, err := strconv.ParseUint(v, 10, 64)
		if err != nil || offset > eventhub.MaxOffset {
			return eventhub.Errorf(eventhub.CodeBadRequest, "expect_%s %.20q is not an offset: 0 to %d", x, v, uint64(eventhub.MaxOffset))
		}
		if !g.event.Expect.IsZero() {
			return eventhub.Errorf(eventhub.CodeBadRequest, "both expect_key_offset and expect_topic_offset are given; one of them is expected")
		}
		x.Offset = offset
		g.event.Expect = x
		return nil
	}
}

// setDelay sets the delay of an event. One that no Duration holds is refused here;
// the rest is judged with the event.
func setDelay(e *eventhub.Event, ms int64) error {
	if most := eventhub.MaxDelay.Milliseconds(); ms < 0 || ms > most {
		return eventhub.Errorf(eventhub.CodeBadEvent, "delay_ms is %d; 0 to %d (a year) are allowed", ms, most)
	}
	e.Delay = time.Duration(ms) * time.Millisecond
	return nil
}

// errBothTimes also refuses a delay of 0 with a time: the event itself does not
// distinguish it from none.
func errBothTimes() error {
	return eventhub.Errorf(eventhub.CodeBadEvent, "both delay_ms and deliver_at are given; one of them is expected")
}

// list splits at commas. Neither a tag's nor an id's neighbours matter, so
// spaces around them go.
func list(v string) []string {
	parts := strings.Split(v, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

const attributePrefix = "X-Eventhub-"

// attributesOf reads the attributes of a request that are known to its path.
func attributesOf(r *http.Request, known map[string]attribute) (given, error) {
	var g given
	query, err := queryOf(r)
	if err != nil {
		return g, err
	}
	said := make(map[string]string) // attribute → where
	for name, values := range query {
		if err := g.set(known, said, name, "the query", values); err != nil {
			return g, err
		}
	}
	for name, values := range r.Header {
		name, ok := strings.CutPrefix(name, attributePrefix)
		if !ok {
			continue
		}
		name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
		if err := g.set(known, said, name, "a header", values); err != nil {
			return g, err
		}
	}
	if said["delay_ms"] != "" && said["deliver_at"] != "" {
		return g, errBothTimes()
	}
	if g.waitUpTo != 0 && len(g.waitFor) == 0 {
		return g, eventhub.Errorf(eventhub.CodeBadRequest, "wait_ms is given and wait_for is not; name the groups to wait for")
	}
	return g, nil
}

func (g *given) set(known map[string]attribute, said map[string]string, name, where string, values []string) error {
	a, ok := known[name]
	if !ok {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s has %.48q, which this path does not know%s", where, name,
			naming.DidYouMean(name, slices.Sorted(maps.Keys(known))))
	}
	if other := said[name]; other != "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given in %s and in %s", name, other, where)
	}
	said[name] = where
	if len(values) > 1 && !a.repeats {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given %d times in %s", name, len(values), where)
	}
	for _, v := range values {
		if err := a.set(g, v); err != nil {
			return err
		}
	}
	return nil
}

// eventHeaders picks the headers that belong to the event. All others are
// between the client and this hop, or secrets.
func eventHeaders(h http.Header) map[string]string {
	var headers map[string]string
	for name, values := range h {
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(name, attributePrefix), strings.HasPrefix(lower, "x-forwarded-"), lower == "x-real-ip":
			continue
		case strings.HasPrefix(lower, "x-"), strings.HasPrefix(lower, "ce-"), lower == "traceparent", lower == "tracestate":
			if headers == nil {
				headers = make(map[string]string)
			}
			headers[lower] = strings.Join(values, ", ")
		}
	}
	return headers
}

// readBody reads what a client has sent, as far as there is memory for it. The request
// stays as it is: it belongs to whoever answers it. A body that is encoded is refused
// before it is read.
func (a *Access) readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if coding := contentCoding(r.Header); coding != "" {
		w.Header().Set("Accept-Encoding", "identity") // RFC 7694
		return nil, eventhub.Wrap(eventhub.CodeBadRequest, cloudevents.ErrMediaType,
			"Content-Encoding %.40q is not accepted here; send the body as it is", coding)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, &heldBody{r.Body, a.body, w}, limit))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, eventhub.Wrap(eventhub.CodeBadRequest, err, "the body was not complete in time")
	}
	var known *eventhub.Error
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &known) && !errors.As(err, &tooLarge) {
		return nil, eventhub.Wrap(eventhub.CodeBadRequest, err, "the body ends too early, or its chunks or trailers are none")
	}
	return body, err
}
