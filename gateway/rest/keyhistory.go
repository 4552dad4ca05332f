package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/strictjson"
)

// causeBytes is about what a cause takes in an answer.
const causeBytes = 400

// showKeyHistory answers with a page of the changes of a key, the newest first. Its path is not
// below that of the state, where each segment is a key.
func showKeyHistory(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	given, err := parameters(r, "key", "before", "limit")
	if err != nil {
		return reply{}, err
	}
	q := admin.KeyHistoryQuery{Key: given["key"]}
	if q.Topic, err = topicOf(r); err != nil {
		return reply{}, err
	}
	if text, ok := given["before"]; ok {
		if q.Before, err = strconv.ParseUint(text, 10, 64); err != nil || q.Before == 0 {
			return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "before %.20q is not an offset, from 1 to %d", text, uint64(eventhub.MaxOffset))
		}
	}
	if q.Limit, err = pageLimit(given["limit"]); err != nil {
		return reply{}, err
	}
	from, err := access.history()
	if err != nil {
		return reply{}, err
	}
	page, err := from.KeyHistory(r.Context(), q)
	if err != nil {
		return reply{}, err
	}
	size := headRoom + 6*len(q.Key)
	for _, c := range page.Changes {
		size += len(c.Event.Record) + len(c.Before.Record) + 2*deliveryBytes + causeBytes*len(c.Causes)
	}
	if err := access.page.upTo(size); err != nil {
		return reply{}, err
	}
	// A name has nothing to escape.
	body := fmt.Appendf(make([]byte, 0, size), `{"topic":%q,"key":`, q.Topic)
	body = strictjson.AppendString(body, q.Key)
	body = fmt.Appendf(body, `,"life":%d,"horizon":%d`, page.Life, page.Horizon)
	if page.Compacted != 0 {
		body = fmt.Appendf(body, `,"compacted":%d`, page.Compacted)
	}
	if page.Tombstones != 0 {
		body = fmt.Appendf(body, `,"tombstones":%d`, page.Tombstones)
	}
	body = fmt.Appendf(body, `,"count":%d,"changes":[`, len(page.Changes))
	for i := range page.Changes {
		if i > 0 {
			body = append(body, ',')
		}
		if body, err = appendKeyChange(body, &page.Changes[i]); err != nil {
			return reply{}, err
		}
	}
	body = append(body, ']')
	if page.Next != 0 {
		body = fmt.Appendf(body, `,"next":%d`, page.Next)
	}
	return reply{status: http.StatusOK, body: append(body, "}\n"...)}, nil
}

func appendKeyChange(dst []byte, c *admin.KeyChange) ([]byte, error) {
	dst = fmt.Appendf(dst, `{"change":%q,"event":`, c.Kind())
	dst = c.Event.Record.AppendJSON(dst, c.Event.Offset)
	if c.Before.Record != nil {
		dst = c.Before.Record.AppendJSON(append(dst, `,"before":`...), c.Before.Offset)
	}
	if c.BeforeGone {
		dst = append(dst, `,"before_gone":true`...)
	}
	if len(c.Causes) > 0 {
		causes, err := json.Marshal(c.Causes)
		if err != nil {
			return nil, err
		}
		dst = append(append(dst, `,"causes":`...), causes...)
	}
	return append(dst, '}'), nil
}
