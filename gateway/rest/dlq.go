package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

// Dead letters: which there are, and, in dlq_redrive.go, what is done about them.

// redriver returns what knows about dead letters.
func (a *Access) redriver() (admin.Redriver, error) {
	if a.Redriver == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub redrives nothing")
	}
	return a.Redriver, nil
}

// by says who asks, for the marks of dead letters.
func (a *Access) by(r *http.Request) string {
	if a.Name == "" {
		return r.RemoteAddr
	}
	return a.Name + " at " + r.RemoteAddr
}

// listDeadLetterTopics answers with the topics that have dead letters, by name.
func listDeadLetterTopics(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "after", "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err == nil {
		err = optional("after", q["after"], eventhub.ValidateStoredTopic)
	}
	if err != nil {
		return reply{}, err
	}
	after := q["after"]
	if after != "" {
		after = dlqOf(after)
	}
	from, err := access.redriver()
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Topics []admin.DeadLetterTopic `json:"topics"`
		Next   string                  `json:"next,omitempty"`
	}{}
	found, err := from.DeadLetterTopics(r.Context(), after, limit)
	if err != nil {
		return reply{}, err
	}
	page.Topics = append([]admin.DeadLetterTopic{}, found...) // never null
	last, err := lastOfMore(found, limit, func(last *admin.DeadLetterTopic) ([]admin.DeadLetterTopic, error) {
		return from.DeadLetterTopics(r.Context(), last.DLQ, 1)
	})
	if err != nil {
		return reply{}, err
	}
	if last != nil {
		page.Next = last.DLQ
	}
	return jsonReply(http.StatusOK, page)
}

// dlqOf returns the dead-letter topic that a name means: its own, or that of a topic.
func dlqOf(topic string) string {
	if eventhub.IsDeadLetterTopic(topic) {
		return topic
	}
	return eventhub.DeadLetterTopic(topic)
}

// listDeadLetters answers with a page of the dead letters of one topic.
func listDeadLetters(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, err := topicOf(r)
	if err != nil {
		return reply{}, err
	}
	given, err := parameters(r, append([]string{"limit"}, letterNames...)...)
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(given["limit"])
	if err != nil {
		return reply{}, err
	}
	delete(given, "limit")
	meant, err := lettersOfQuery(given)
	if err != nil {
		return reply{}, err
	}
	q, err := meant.query(topic)
	if err != nil {
		return reply{}, err
	}
	from, err := access.redriver()
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Topic       string             `json:"topic"`
		DeadLetters []admin.DeadLetter `json:"dead_letters"`
		Next        uint64             `json:"next,omitempty"`
	}{topic, []admin.DeadLetter{}, 0}
	q.Limit = limit + 1 // one more than the page
	err = from.DeadLetters(r.Context(), q, func(d *admin.DeadLetter) error {
		if len(page.DeadLetters) == limit {
			page.Next = page.DeadLetters[limit-1].Offset
			return errPageFull
		}
		one := *d
		one.Record = nil
		page.DeadLetters = append(page.DeadLetters, one)
		return nil
	})
	if err != nil && !errors.Is(err, errPageFull) {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, page)
}

// showDeadLetter answers with one dead letter, named by its offset or its id, with the
// attempts that came to nothing and the original event as it was stored.
func showDeadLetter(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, q, err := letterOfPath(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	from, err := access.redriver()
	if err != nil {
		return reply{}, err
	}
	var body []byte
	err = from.DeadLetters(r.Context(), q, func(d *admin.DeadLetter) (err error) {
		body, err = wholeLetter(d)
		return err
	})
	if err == nil && body == nil {
		err = noDeadLetter(topic, r)
	}
	return reply{status: http.StatusOK, body: body}, err
}

// letterOfPath reads which dead letter a path names.
func letterOfPath(r *http.Request) (topic string, q admin.DeadLetterQuery, err error) {
	if topic, err = topicOf(r); err != nil {
		return "", q, err
	}
	q = admin.DeadLetterQuery{Topic: topic, All: true}
	name := r.PathValue("offset")
	if offset, err := strconv.ParseUint(name, 10, 64); err == nil {
		q.Offsets = []uint64{offset}
		return topic, q, checkOffset("offset", offset)
	}
	q.IDs = []string{name}
	return topic, q, eventhub.ValidateID(name)
}

// noDeadLetter is the error for an event of a dead-letter topic that is no dead letter.
func noDeadLetter(topic string, r *http.Request) error {
	return eventhub.Errorf(eventhub.CodeUnknownID, "%.80q is no dead letter of topic %q", r.PathValue("offset"), dlqOf(topic))
}

func checkOffset(name string, offset uint64) error {
	if offset == 0 || offset > eventhub.MaxOffset {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is %d; 1 to %d are allowed", name, offset, uint64(eventhub.MaxOffset))
	}
	return nil
}

// wholeLetter writes a dead letter with what its payload has of the original, whose
// tokens are kept.
func wholeLetter(d *admin.DeadLetter) ([]byte, error) {
	letter, err := d.Record.Event(d.Offset)
	if err != nil {
		return nil, err
	}
	var payload struct {
		History json.RawMessage `json:"history"`
		Event   json.RawMessage `json:"event"`
	}
	if err := json.Unmarshal(letter.Payload, &payload); err != nil {
		return nil, err
	}
	body, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	body = bytes.TrimSuffix(body, []byte("}"))
	if payload.History != nil {
		body = slices.Concat(body, []byte(`,"history":`), payload.History)
	}
	return slices.Concat(body, []byte(`,"event":`), payload.Event, []byte("}\n")), nil
}

// letterNames are the names in a query that say which dead letters are meant.
var letterNames = []string{"group", "ids", "offsets", "from_ts", "to_ts", "filter", "key", "all", "after"}

// givenLetters say which dead letters are meant, as a request does; what is not given
// is nil.
type givenLetters struct {
	Group   *string
	IDs     []string
	Offsets []uint64
	FromTS  *int64
	ToTS    *int64
	Filter  *eventhub.Filter
	All     bool
	After   *uint64
}

// lettersOfQuery reads them from a query.
func lettersOfQuery(q map[string]string) (g givenLetters, err error) {
	if v, ok := q["group"]; ok {
		g.Group = &v
	}
	if v, ok := q["ids"]; ok {
		g.IDs = list(v)
	}
	if v, ok := q["offsets"]; ok {
		for _, text := range list(v) {
			offset, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return g, eventhub.Errorf(eventhub.CodeBadRequest, "offsets has %.20q; numbers from 1 to %d, with commas between them, are wanted", text, uint64(eventhub.MaxOffset))
			}
			g.Offsets = append(g.Offsets, offset)
		}
	}
	for name, into := range map[string]**int64{"from_ts": &g.FromTS, "to_ts": &g.ToTS} {
		if v, ok := q[name]; ok {
			ts, err := momentOf(name, v)
			if err != nil {
				return g, err
			}
			*into = &ts
		}
	}
	if v, ok := q["after"]; ok {
		after, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return g, eventhub.Errorf(eventhub.CodeBadRequest, "after is %.20q; a number from 0 to %d is wanted", v, uint64(eventhub.MaxOffset))
		}
		g.After = &after
	}
	for _, name := range []string{"filter", "key"} {
		if v, ok := q[name]; ok && v == "" {
			return g, eventhub.Errorf(eventhub.CodeBadRequest, "%s is empty; leave it out to ask for nothing", name)
		}
	}
	if f := (eventhub.Filter{CEL: q["filter"], Key: q["key"]}); !f.IsZero() {
		g.Filter = &f
	}
	g.All, err = yes("all", q["all"])
	return g, err
}

// query makes a query of it, and refuses what would mean more than was said: a list
// of nothing, a range of no time.
func (g *givenLetters) query(topic string) (q admin.DeadLetterQuery, err error) {
	q = admin.DeadLetterQuery{Topic: topic, IDs: g.IDs, Offsets: g.Offsets, Filter: g.Filter, All: g.All,
		Group: value(g.Group), FromTS: value(g.FromTS), ToTS: value(g.ToTS), After: value(g.After)}
	bad := func(format string, args ...any) (admin.DeadLetterQuery, error) {
		return q, eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
	}
	if g.Group != nil {
		if err := eventhub.ValidateGroup(q.Group); err != nil {
			return q, err
		}
	}
	switch {
	case g.IDs != nil && len(g.IDs) == 0:
		return bad("ids is empty; leave it out to name none")
	case g.Offsets != nil && len(g.Offsets) == 0:
		return bad("offsets is empty; leave it out to name none")
	case max(len(g.IDs), len(g.Offsets)) > admin.MaxPage:
		return bad("%d ids and %d offsets are named; at most %d of each can be", len(g.IDs), len(g.Offsets), admin.MaxPage)
	case q.FromTS < 0:
		return bad("from_ts is %d; epoch milliseconds are not negative", q.FromTS)
	case g.ToTS != nil && q.ToTS < 1:
		return bad("to_ts is %d; epoch milliseconds from 1 on are wanted", q.ToTS)
	case g.ToTS != nil && q.FromTS >= q.ToTS:
		return bad("from_ts is %d, which is not before to_ts, %d", q.FromTS, q.ToTS)
	case q.After > eventhub.MaxOffset:
		return bad("after is %d; at most %d is allowed", q.After, uint64(eventhub.MaxOffset))
	}
	for i, id := range q.IDs {
		if err := eventhub.ValidateID(id); err != nil {
			return bad("ids[%d]: %s", i, eventhub.AsError(err).Message)
		}
	}
	for i, offset := range q.Offsets {
		if err := checkOffset("offsets["+strconv.Itoa(i)+"]", offset); err != nil {
			return q, err
		}
	}
	return q, q.Filter.Validate()
}
