package rest

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
)

// maxHeadPages bounds how many pages of topics are looked through for where a
// stream of several topics begins.
const maxHeadPages = 3

// streamOptions reads what a stream is to have, and from where on.
func streamOptions(r *http.Request) (o eventhub.TailOptions, patterns []eventhub.Pattern, _ error) {
	filter, q, err := filterParameters(r, "topics", "from", "ts", "after_id", "offset", "conflate_ms")
	if err == nil {
		err = notEmpty(q, "topics")
	}
	if err != nil {
		return o, nil, err
	}
	o = eventhub.TailOptions{Topic: r.PathValue("topic"), Filter: filter}
	if q["topics"] != "" {
		o.Topics = list(q["topics"])
	}
	if patterns, err = o.Patterns(); err != nil {
		return o, nil, err
	}
	if v, given := q["conflate_ms"]; given {
		ms, err := strconv.ParseInt(v, 10, 32)
		if err != nil || ms < 1 {
			return o, nil, eventhub.Errorf(eventhub.CodeBadRequest, "conflate_ms is %.20q; a number of milliseconds is expected", v)
		}
		o.Conflate = time.Duration(ms) * time.Millisecond
	}
	start, err := startOfQuery(q, "ts")
	switch {
	case err != nil || start == (givenStart{}):
	case start.From != nil && *start.From == "snapshot":
		o.Start, err = eventhub.Snapshot, start.alone()
	default:
		o.Start, err = start.resolve()
	}
	if err != nil {
		return o, nil, err
	}
	o = o.WithDefaults()
	return o, patterns, o.Validate()
}

// filterParameters reads a query that may have a filter, nil for none, and these parameters.
func filterParameters(r *http.Request, known ...string) (*eventhub.Filter, map[string]string, error) {
	filter, rest, err := streamFilter(r)
	if err != nil {
		return nil, nil, err
	}
	q, err := single(rest, append(known, "filter", "key")...)
	if err == nil {
		err = notEmpty(q, "filter", "key")
	}
	if err != nil {
		return nil, nil, err
	}
	if filter.CEL, filter.Key = q["filter"], q["key"]; filter.IsZero() {
		filter = nil
	}
	return filter, q, nil
}

func notEmpty(q map[string]string, names ...string) error {
	for _, name := range names {
		if v, given := q[name]; given && v == "" {
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s is empty; leave it out to ask for nothing", name)
		}
	}
	return nil
}

// streamFilter reads what may be given in the query more than once, and returns the
// rest of it.
func streamFilter(r *http.Request) (*eventhub.Filter, url.Values, error) {
	query, err := queryOf(r)
	if err != nil {
		return nil, nil, err
	}
	f := &eventhub.Filter{Tags: query["tag"]}
	for _, header := range query["header"] {
		name, value, ok := strings.Cut(header, ":")
		name = strings.ToLower(name)
		if _, twice := f.Headers[name]; !ok || twice {
			return nil, nil, eventhub.Errorf(eventhub.CodeBadRequest, "header is %.48q; a name, a colon and a value are expected, each name once", header)
		}
		if f.Headers == nil {
			f.Headers = make(map[string]string)
		}
		f.Headers[name] = strings.TrimSpace(value)
	}
	delete(query, "tag")
	delete(query, "header")
	return f, query, nil
}

// beginning resolves where a new stream begins, so that its id says so before it
// has had an event, and who is cut off at once misses nothing.
func beginning(ctx context.Context, from Beginnings, o *eventhub.TailOptions, patterns []eventhub.Pattern) (*places, error) {
	p := &places{one: oneTopic(patterns)}
	switch {
	case o.Start.Kind == eventhub.StartTime:
		p.since = o.Start.TS
	case o.Start.Kind == eventhub.StartLatest && !p.one:
		p.since = max(0, time.Now().Add(-latestMargin).UnixMilli())
		if err := addHeads(ctx, from, p, patterns); err != nil {
			return nil, err
		}
	case p.one:
		at, err := placeBefore(ctx, from, o)
		if err != nil {
			return nil, err
		}
		p.advance(o.Topic, at.Offset, at.TS)
	}
	return p, nil
}

// placeBefore returns the place after which a stream of one topic begins.
func placeBefore(ctx context.Context, from Beginnings, o *eventhub.TailOptions) (p eventhub.Place, _ error) {
	switch o.Start.Kind {
	case eventhub.StartOffset:
		p.Offset = max(o.Start.Offset, 1) - 1
	case eventhub.StartAfterID:
		item, err := from.Event(ctx, o.Topic, o.Start.AfterID)
		if err != nil {
			return p, err
		}
		p.Offset, p.TS = item.Offset, item.Record.CommitTime()
	case eventhub.StartLatest, eventhub.StartEarliest:
		info, err := from.Topic(ctx, o.Topic)
		if eventhub.ErrorCode(err) == eventhub.CodeUnknownID {
			return p, nil // and its first event is the first of the stream
		}
		if o.Start.Kind == eventhub.StartEarliest && info.FirstOffset > 0 {
			p.Offset = info.FirstOffset - 1 // what was removed before that is not asked for
			return p, err
		}
		p.Offset, p.TS = info.Head, info.HeadTS
		return p, err
	}
	return p, nil
}

// addHeads notes the newest events of the topics that there are, as far as there
// is room for them and they are soon found. For the others the time will do.
func addHeads(ctx context.Context, from Beginnings, p *places, patterns []eventhub.Pattern) error {
	seen := 0
	for t, err := range admin.AllTopics(ctx, from, "") {
		if err != nil {
			return err
		}
		if slices.ContainsFunc(patterns, func(q eventhub.Pattern) bool { return q.Match(t.Topic) }) {
			n := len(p.at)
			if p.advance(t.Topic, t.Head, t.HeadTS); len(p.at) <= n {
				return nil // full
			}
		}
		if seen++; seen == maxHeadPages*admin.MaxPage {
			return nil
		}
	}
	return nil
}
