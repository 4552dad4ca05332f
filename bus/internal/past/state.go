package past

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

const (
	// stateBytes bounds the records of a page.
	stateBytes = 8 << 20
	// stateCalls bounds how often the store is asked for one page.
	stateCalls = 16
)

// State implements admin.History, but for StateQuery.MinOffset, which is the caller's. It
// reads a page and holds nothing between two: where the next one begins is in the page itself.
func (h *History) State(ctx context.Context, q admin.StateQuery) (page admin.StatePage, err error) {
	place, err := checkState(&q)
	if err != nil {
		return page, err
	}
	info, err := h.stateTopic(ctx, q.Topic, place.Life)
	if err != nil {
		return page, err
	}
	page.Life = info.Life
	r := stateRead{history: h, info: &info, query: store.StateQuery{Topic: q.Topic, Keys: q.Keys, Prefix: place.Prefix, After: place.After}}
	if r.query.At = place.At; place.At == 0 {
		if r.query.At, err = r.at(ctx, "at", admin.Moment{Offset: q.At, TS: q.AtTS}); err != nil {
			return admin.StatePage{}, err
		}
	}
	if r.query.At == 0 && q.AtTS != 0 {
		return page, nil // before the first event
	}
	more, begin := false, r.query
	err = h.withIndex(ctx, q.Topic, func() (err error) {
		r.query, r.batch = begin, store.Batch{}
		more, err = r.read(ctx, q.Limit)
		return err
	})
	if err == nil {
		err = h.isWhole(ctx, &stretch{topic: q.Topic, life: info.Life})
	}
	if err != nil {
		return admin.StatePage{}, err
	}
	page.At, page.Events = r.query.At, r.batch.Items
	if more {
		page.Next = statePlace{Topic: q.Topic, Life: info.Life, At: page.At, Prefix: place.Prefix, After: r.query.After}.token()
	}
	return page, nil
}

// stateTopic returns what there is of a topic, in the life of the page that is gone on with; 0
// is the first page.
func (h *History) stateTopic(ctx context.Context, topic string, life uint64) (store.TopicInfo, error) {
	info, err := h.store.Topic(ctx, topic)
	switch {
	case errors.Is(err, store.ErrNotFound):
		err = NoTopic(topic)
	case err != nil:
		err = store.Failed(err, "look up topic %q", topic)
	case life != 0 && life != info.Life:
		err = eventhub.Wrap(eventhub.CodeUnknownID, store.ErrGone,
			"page is of an earlier topic %q, which was deleted: begin again without page", topic)
	}
	return info, err
}

// checkState judges a query, and puts its keys in order. The place is where it begins.
func checkState(q *admin.StateQuery) (place statePlace, err error) {
	bad := func(format string, args ...any) (statePlace, error) {
		return statePlace{}, eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return place, err
	}
	if err := CheckLimit(q.Limit); err != nil {
		return place, err
	}
	switch {
	case q.Keys != nil && q.Prefix != "":
		return bad("keys and the prefix %.48q are given; one of both is wanted", q.Prefix)
	case q.Keys != nil && (len(q.Keys) == 0 || len(q.Keys) > admin.MaxStateKeys):
		return bad("there are %d keys; 1 to %d are allowed", len(q.Keys), admin.MaxStateKeys)
	}
	err = checkPrefix(q.Prefix)
	if err == nil {
		err = checkMoment("at", admin.Moment{Offset: q.At, TS: q.AtTS})
	}
	if err != nil {
		return place, err
	}
	for _, key := range q.Keys {
		switch {
		case key == "":
			return bad("a key is empty")
		case len(key) > eventhub.MaxKeyBytes:
			return bad("key %.48q… has %d bytes; at most %d are allowed", key, len(key), eventhub.MaxKeyBytes)
		}
	}
	q.Keys = slices.Compact(slices.Sorted(slices.Values(q.Keys)))
	if q.Page == "" {
		return statePlace{Prefix: q.Prefix}, nil
	}
	place, ok := parseStatePlace(q.Page)
	switch {
	case !ok:
		return bad("page is %.48q; the next of a page before is wanted", q.Page)
	case place.Topic != q.Topic:
		return bad("page is of topic %q, and not of %q", place.Topic, q.Topic)
	case q.Prefix != "" && q.Prefix != place.Prefix, q.Keys != nil && place.Prefix != "":
		return bad("page is of the keys that begin with %.48q, and others are asked for", place.Prefix)
	case q.At != 0 || q.AtTS != 0 || q.MinOffset != 0:
		return bad("page has its own offset, %d: neither at nor min_offset goes with it", place.At)
	}
	return place, nil
}

func checkPrefix(prefix string) error {
	if len(prefix) > eventhub.MaxKeyBytes {
		return eventhub.Errorf(eventhub.CodeBadRequest, "prefix %.48q… has %d bytes; keys have at most %d", prefix, len(prefix), eventhub.MaxKeyBytes)
	}
	return nil
}

func checkMoment(name string, m admin.Moment) error {
	switch {
	case m.Offset > eventhub.MaxOffset:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is the offset %d; at most %d is allowed", name, m.Offset, uint64(eventhub.MaxOffset))
	case m.TS < 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is the time %d; epoch milliseconds are not negative", name, m.TS)
	case m.Offset != 0 && m.TS != 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is the offset %d and the time %d; one of both is wanted", name, m.Offset, m.TS)
	}
	return nil
}

// stateRead is the reader of a state, for one call.
type stateRead struct {
	history *History
	info    *store.TopicInfo
	query   store.StateQuery
	batch   store.Batch
}

// at returns the offset of a moment, 0 for now, and for a time before the first event. name is
// that of the option.
func (r *stateRead) at(ctx context.Context, name string, m admin.Moment) (uint64, error) {
	switch {
	case m.Offset > r.info.Head:
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s is the offset %d, and topic %q has them up to %d", name, m.Offset, r.info.Name, r.info.Head)
	case m.TS == 0:
		return m.Offset, nil
	case m.TS >= r.info.LastTime && r.info.Head != 0:
		return r.info.Head, nil
	}
	s := r.history.store
	after, err := s.SeekTime(ctx, r.info.Name, m.TS+1)
	if err != nil {
		return 0, store.Failed(err, "find the time in topic %q", r.info.Name)
	}
	// Where events were removed, the time may be that of one of them. It is not where an event
	// that is kept since then was there already.
	least := r.least()
	if least <= 1 {
		return after - 1, nil
	}
	first, err := First(ctx, s, r.info.Name, least)
	if err == nil && (first.Offset == 0 || first.Offset >= after) {
		err = eventhub.Errorf(eventhub.CodeGone, "the state of topic %q at the time %d is gone: it is known from offset %d on", r.info.Name, m.TS, least)
	}
	return after - 1, err
}

// least is the first offset of which the state is known.
func (r *stateRead) least() uint64 { return max(r.info.Horizon, r.info.Compacted) }

// read fills the batch, and reports whether there may be more.
func (r *stateRead) read(ctx context.Context, limit int) (more bool, err error) {
	room, measured := stateBytes, 0
	for calls := 1; ; calls++ {
		r.query.Limit, r.query.MaxBytes = limit-len(r.batch.Items), room
		got, err := r.history.store.State(ctx, r.query, &r.batch)
		if err != nil {
			return false, store.Failed(err, "read the state of topic %q", r.query.Topic)
		}
		if err := r.isExact(); err != nil {
			return false, err
		}
		r.query.At, r.query.After = got.At, got.After
		for ; measured < len(r.batch.Items); measured++ {
			room -= len(r.batch.Items[measured].Record)
		}
		if got.Done || len(r.batch.Items) == limit || room <= 0 || calls == stateCalls {
			return !got.Done, nil
		}
	}
}

// isExact returns an error where what was just read may lack values that there were at the
// offset that was asked for.
func (r *stateRead) isExact() error {
	at, least := r.query.At, max(r.batch.Horizon, r.batch.Compacted)
	// Of a topic without events the state at its head is what it is now.
	isNow := at == 0 || at == r.info.Head && least == at+1
	if isNow || at >= least {
		return nil
	}
	return eventhub.Errorf(eventhub.CodeGone, "the state of topic %q at offset %d is gone: it is known from offset %d on", r.query.Topic, at, least)
}

// statePlace is where a page of a state begins. Clients get it as a token.
type statePlace struct {
	Topic  string `json:"t"`
	Life   uint64 `json:"l"`
	At     uint64 `json:"o"`
	Prefix string `json:"p,omitempty"`
	After  string `json:"k"`
}

func (p statePlace) token() string {
	text, _ := json.Marshal(p) // texts and numbers
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseStatePlace(token string) (p statePlace, ok bool) {
	if !parseToken(token, &p) {
		return statePlace{}, false
	}
	return p, p.isSound()
}

// isSound reports whether it can be where a page begins.
func (p *statePlace) isSound() bool {
	isSet := p.Topic != "" && p.Life != 0 && p.At != 0 && p.At <= eventhub.MaxOffset && p.After != ""
	return isSet && len(p.After) <= eventhub.MaxKeyBytes && len(p.Prefix) <= eventhub.MaxKeyBytes
}

// parseToken reads the place that a token has, and reports whether it has one.
func parseToken(token string, place any) bool {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(place) == nil && !d.More()
}
