package rest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/when"
)

// showState answers with a page of the state by key of a topic, or with one event where the
// query has a key.
func (a *API) showState(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	query, err := queryOf(r)
	if err != nil {
		return reply{}, err
	}
	keys := query["keys"]
	delete(query, "keys")
	if query.Has("key") {
		given, err := single(query, "key", "at", "min_offset", "wait_ms")
		if err == nil && keys != nil {
			err = eventhub.Errorf(eventhub.CodeBadRequest, "key asks for one event and keys for a page; one of both is wanted")
		}
		if err != nil {
			return reply{}, err
		}
		return a.showValue(w, r, access, given["key"], given)
	}
	given, err := single(query, "prefix", "at", "limit", "page", "min_offset", "wait_ms")
	if err != nil {
		return reply{}, err
	}
	q, err := stateQuery(r, given)
	if err != nil {
		return reply{}, err
	}
	q.Keys, q.Prefix, q.Page = keys, given["prefix"], given["page"]
	if _, ok := given["page"]; ok && q.Page == "" {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "page is empty; the next of a page before is wanted")
	}
	if q.Limit, err = pageLimit(given["limit"]); err != nil {
		return reply{}, err
	}
	page, err := a.readState(r, access, q)
	if err != nil {
		return reply{}, err
	}
	if isUnchanged(w, r, stateTag(&page)) {
		return reply{status: http.StatusNotModified}, nil
	}
	size := headRoom
	for _, e := range page.Events {
		size += len(e.Record) + deliveryBytes
	}
	if err := access.page.upTo(size); err != nil {
		return reply{}, err
	}
	// A name and a token have nothing to escape.
	body := fmt.Appendf(make([]byte, 0, size), `{"topic":%q,"life":%d,"at":%d,"count":%d,"events":[`, q.Topic, page.Life, page.At, len(page.Events))
	for i, e := range page.Events {
		if i > 0 {
			body = append(body, ',')
		}
		body = e.Record.AppendJSON(body, e.Offset)
	}
	body = append(body, ']')
	if page.Next != "" {
		body = fmt.Appendf(body, `,"next":%q`, page.Next)
	}
	return reply{status: http.StatusOK, body: append(body, "}\n"...)}, nil
}

// showStateKey is showState of a key in the path.
func (a *API) showStateKey(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	given, err := parameters(r, "at", "min_offset", "wait_ms")
	if err != nil {
		return reply{}, err
	}
	return a.showValue(w, r, access, r.PathValue("key"), given)
}

// showValue answers with the newest event of a key.
func (a *API) showValue(w http.ResponseWriter, r *http.Request, access Access, key string, given map[string]string) (reply, error) {
	q, err := stateQuery(r, given)
	if err != nil {
		return reply{}, err
	}
	q.Keys, q.Limit = []string{key}, 1
	page, err := a.readState(r, access, q)
	if err != nil {
		return reply{}, err
	}
	if len(page.Events) == 0 {
		return reply{}, eventhub.Errorf(eventhub.CodeUnknownID, "key %.120q has no value in topic %q at offset %d", key, q.Topic, page.At)
	}
	e := page.Events[0]
	// The event at an offset of a life never changes.
	if isUnchanged(w, r, fmt.Sprintf(`"%d-%d"`, page.Life, e.Offset)) {
		return reply{status: http.StatusNotModified}, nil
	}
	return reply{status: http.StatusOK, body: append(e.Record.AppendJSON(nil, e.Offset), '\n')}, nil
}

// readState reads a page; a stopping hub waits for no offset.
func (a *API) readState(r *http.Request, access Access, q admin.StateQuery) (admin.StatePage, error) {
	from, err := access.history()
	if err != nil {
		return admin.StatePage{}, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.stopping, cancel)()
	page, err := from.State(ctx, q)
	if err != nil && a.stopping.Err() != nil {
		err = errStopping
	}
	return page, err
}

// defaultStateWait is how long a request waits for min_offset that does not say.
const defaultStateWait = 5 * time.Second

// stateQuery reads what pages and single keys have in common.
func stateQuery(r *http.Request, given map[string]string) (q admin.StateQuery, err error) {
	if q.Topic, err = topicOf(r); err != nil {
		return q, err
	}
	if text, ok := given["at"]; ok {
		if q.At, q.AtTS, err = when.ParsePlace(text, time.Now()); err != nil {
			return q, eventhub.Errorf(eventhub.CodeBadRequest, "at: %v", err)
		}
	}
	text, waits := given["min_offset"]
	if waits {
		if q.MinOffset, err = strconv.ParseUint(text, 10, 64); err != nil || q.MinOffset == 0 {
			return q, eventhub.Errorf(eventhub.CodeBadRequest, "min_offset %.20q is not an offset, from 1 to %d", text, uint64(eventhub.MaxOffset))
		}
	}
	if _, ok := given["wait_ms"]; ok && !waits {
		return q, eventhub.Errorf(eventhub.CodeBadRequest, "wait_ms goes with min_offset")
	}
	ms, err := count(given, "wait_ms", 0, int(admin.MaxStateWait.Milliseconds()), int(defaultStateWait.Milliseconds()))
	q.Wait = time.Duration(ms) * time.Millisecond
	return q, err
}

// stateTag is the entity tag of a page: which events there are on it, and what follows.
func stateTag(page *admin.StatePage) string {
	hash := sha256.New()
	number := func(n uint64) { _, _ = hash.Write(binary.BigEndian.AppendUint64(nil, n)) } // takes all
	number(page.Life)
	number(page.At)
	for _, e := range page.Events {
		number(e.Offset)
	}
	_, _ = hash.Write([]byte(page.Next))
	return `"` + hex.EncodeToString(hash.Sum(nil)[:12]) + `"`
}

// isUnchanged sets the entity tag of an answer, and reports whether the client has it already.
func isUnchanged(w http.ResponseWriter, r *http.Request, tag string) bool {
	w.Header().Set("ETag", tag)
	for _, list := range r.Header.Values("If-None-Match") {
		if slices.ContainsFunc(strings.Split(list, ","), func(one string) bool {
			one = strings.TrimSpace(one)
			return one == "*" || strings.TrimPrefix(one, "W/") == tag
		}) {
			return true
		}
	}
	return false
}
