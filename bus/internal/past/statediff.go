package past

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// # The difference of two states
//
// Both states are read in the order of keys and merged. The parts of them that are in memory
// have a bound, whatever there is, and so has what one call reads: of many keys that are the
// same in both, a page may say nothing but where to go on.

const (
	// diffBytes bounds the records of a page, and diffRead those of one read of a state.
	diffBytes = 8 << 20
	diffRead  = 2 << 20
	// diffCalls bounds how often the store is asked for one page, and diffEvents is for how
	// many events at least.
	diffCalls  = 32
	diffEvents = 256
)

// StateDiff implements admin.History. It holds nothing between two pages, as State does.
func (h *History) StateDiff(ctx context.Context, q admin.StateDiffQuery) (page admin.StateDiffPage, err error) {
	place, err := checkStateDiff(&q)
	if err != nil {
		return page, err
	}
	info, err := h.stateTopic(ctx, q.Topic, place.Life)
	if err != nil {
		return page, err
	}
	query := store.StateQuery{Topic: q.Topic, Prefix: place.Prefix, After: place.After}
	begin := stateDiff{limit: q.Limit, room: diffBytes, after: place.After}
	for _, side := range begin.sides() {
		side.stateRead, side.upTo = stateRead{history: h, info: &info, query: query}, place.After
	}
	if q.Page != "" {
		begin.from.query.At, begin.to.query.At = *place.From, place.At
	} else if err = begin.resolve(ctx, &q); err != nil {
		return page, err
	}
	begin.from.isOver = begin.from.query.At == 0
	begin.to.isOver = begin.to.query.At == 0 && q.To.TS != 0
	var d stateDiff
	next, done := "", false
	err = h.withIndex(ctx, q.Topic, func() (err error) {
		d = begin
		next, done, err = d.merge(ctx)
		return err
	})
	if err == nil {
		err = h.isWhole(ctx, &stretch{topic: q.Topic, life: info.Life})
	}
	if err != nil {
		return page, err
	}
	page = admin.StateDiffPage{From: d.from.query.At, To: d.to.query.At, Life: info.Life, Changes: d.changes}
	if !done {
		page.Next = diffPlace{Topic: q.Topic, Life: info.Life, From: &page.From, At: page.To, Prefix: place.Prefix, After: next}.token()
	}
	return page, nil
}

// checkStateDiff judges a query, and returns where it begins.
func checkStateDiff(q *admin.StateDiffQuery) (place diffPlace, err error) {
	bad := func(format string, args ...any) (diffPlace, error) {
		return diffPlace{}, eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return place, err
	}
	for _, err := range []error{CheckLimit(q.Limit), checkPrefix(q.Prefix), checkMoment("from", q.From), checkMoment("to", q.To)} {
		if err != nil {
			return place, err
		}
	}
	if q.Page == "" {
		if q.To.TS != 0 && q.From.TS > q.To.TS {
			return bad("from is the time %d, which is after to, %d", q.From.TS, q.To.TS)
		}
		return diffPlace{Prefix: q.Prefix}, nil
	}
	place, ok := parseDiffPlace(q.Page)
	switch {
	case !ok:
		return bad("page is %.48q; the next of a page before is wanted", q.Page)
	case place.Topic != q.Topic:
		return bad("page is of topic %q, and not of %q", place.Topic, q.Topic)
	case q.Prefix != "" && q.Prefix != place.Prefix:
		return bad("page is of the keys that begin with %.48q, and others are asked for", place.Prefix)
	case q.From != noMoment || q.To != noMoment:
		return bad("page has its own offsets, %d and %d: neither from nor to goes with it", *place.From, place.At)
	}
	return place, nil
}

var noMoment admin.Moment

// stateDiff is one call of StateDiff.
type stateDiff struct {
	from, to diffSide
	limit    int // changes
	room     int // bytes of records that may still be added
	after    string
	changes  []admin.StateChange
}

func (d *stateDiff) sides() [2]*diffSide { return [...]*diffSide{&d.to, &d.from} }

// resolve finds the offsets of the two moments. That of the later one stays 0 where it is now:
// the first read says what it is, and that is not below the head that is known here.
func (d *stateDiff) resolve(ctx context.Context, q *admin.StateDiffQuery) (err error) {
	if q.From == noMoment {
		if least := d.from.least(); least > 1 {
			return eventhub.Errorf(eventhub.CodeGone, "the state of topic %q before its first event is gone: it is known from offset %d on", q.Topic, least)
		}
	} else if d.from.query.At, err = d.from.at(ctx, "from", q.From); err != nil {
		return err
	}
	if d.to.query.At, err = d.to.at(ctx, "to", q.To); err != nil {
		return err
	}
	if to := d.to.query.At; d.from.query.At > to && q.To != noMoment {
		return eventhub.Errorf(eventhub.CodeBadRequest, "from is the offset %d, which is after to, %d", d.from.query.At, to)
	}
	return nil
}

// merge goes through both states until there are enough changes. next is the key after which
// to go on.
func (d *stateDiff) merge(ctx context.Context) (next string, done bool, err error) {
	for calls := 0; ; {
		behind := &d.to
		if d.from.isBehind(behind) {
			behind = &d.from
		}
		for {
			key, ok := d.first()
			if !ok || !behind.isOver && key > behind.upTo {
				break
			}
			if !d.take(key) {
				return d.after, false, nil
			}
		}
		switch {
		case behind.isOver: // and so are both
			return "", true, nil
		case calls == diffCalls:
			return behind.upTo, false, nil
		}
		calls++
		if err := behind.fill(ctx, max(d.limit, diffEvents)); err != nil {
			return "", false, err
		}
	}
}

// first returns the first key that was read and not yet compared.
func (d *stateDiff) first() (key string, ok bool) {
	for _, side := range d.sides() {
		if e := side.peek(); e != nil && (!ok || string(e.Record.Key()) < key) {
			key, ok = string(e.Record.Key()), true
		}
	}
	return key, ok
}

// take compares the two events of a key, of which at least one is the next of its side. It
// reports whether the page had room for what came of it.
func (d *stateDiff) take(key string) bool {
	c := admin.StateChange{Key: key, From: d.from.of(key), To: d.to.of(key)}
	if c.From.Offset != c.To.Offset {
		size := len(c.From.Record) + len(c.To.Record)
		if len(d.changes) == d.limit || len(d.changes) > 0 && size > d.room {
			return false
		}
		d.room -= size
		c.From.Record, c.To.Record = bytes.Clone(c.From.Record), bytes.Clone(c.To.Record)
		d.changes = append(d.changes, c)
	}
	for _, side := range d.sides() {
		if side.of(key).Record != nil {
			side.next++
		}
	}
	d.after = key
	return true
}

// diffSide is one of the two states.
type diffSide struct {
	stateRead
	next   int    // the first event of the batch that was not yet compared
	upTo   string // all keys up to this one were read
	isOver bool   // all keys were
}

// isBehind reports whether fewer keys of a side were read than of another one.
func (s *diffSide) isBehind(other *diffSide) bool {
	return !s.isOver && (other.isOver || s.upTo < other.upTo)
}

func (s *diffSide) peek() *eventhub.Item {
	if s.next == len(s.batch.Items) {
		return nil
	}
	return &s.batch.Items[s.next]
}

// of returns the next event if it is that of a key.
func (s *diffSide) of(key string) eventhub.Item {
	if e := s.peek(); e != nil && string(e.Record.Key()) == key {
		return *e
	}
	return eventhub.Item{}
}

// fill reads on, where all that was read before was compared.
func (s *diffSide) fill(ctx context.Context, limit int) error {
	s.batch.Reset()
	s.next = 0
	s.query.Limit, s.query.MaxBytes = limit, diffRead
	got, err := s.history.store.State(ctx, s.query, &s.batch)
	if err != nil {
		return store.Failed(err, "read the state of topic %q", s.query.Topic)
	}
	if err := s.isExact(); err != nil {
		return err
	}
	s.query.At, s.query.After = got.At, got.After
	s.upTo, s.isOver = got.After, got.Done
	return nil
}

// diffPlace is where a page of a difference begins. Clients get it as a token.
type diffPlace struct {
	Topic  string  `json:"t"`
	Life   uint64  `json:"l"`
	From   *uint64 `json:"f"`
	At     uint64  `json:"o"`
	Prefix string  `json:"p,omitempty"`
	After  string  `json:"k"`
}

func (p diffPlace) token() string {
	text, _ := json.Marshal(p) // texts and numbers
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseDiffPlace(token string) (p diffPlace, ok bool) {
	if !parseToken(token, &p) || p.From == nil {
		return diffPlace{}, false
	}
	rest := statePlace{Topic: p.Topic, Life: p.Life, At: p.At, Prefix: p.Prefix, After: p.After}
	return p, rest.isSound() && *p.From <= p.At
}
