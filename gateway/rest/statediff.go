package rest

import (
	"fmt"
	"net/http"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/strictjson"
	"eventhub/internal/when"
)

// showStateDiff answers with a page of the difference between two states by key. Its path is
// not below that of the state, where each segment is a key.
func showStateDiff(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	given, err := parameters(r, "from", "to", "prefix", "limit", "page")
	if err != nil {
		return reply{}, err
	}
	q, err := stateDiffQuery(r, given)
	if err != nil {
		return reply{}, err
	}
	from, err := access.history()
	if err != nil {
		return reply{}, err
	}
	page, err := from.StateDiff(r.Context(), q)
	if err != nil {
		return reply{}, err
	}
	size := headRoom
	for _, c := range page.Changes {
		size += len(c.From.Record) + len(c.To.Record) + 2*deliveryBytes
	}
	if err := access.page.upTo(size); err != nil {
		return reply{}, err
	}
	// A name and a token have nothing to escape.
	body := fmt.Appendf(make([]byte, 0, size), `{"topic":%q,"life":%d,"from":%d,"to":%d,"count":%d,"changes":[`,
		q.Topic, page.Life, page.From, page.To, len(page.Changes))
	for i := range page.Changes {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendChange(body, &page.Changes[i])
	}
	body = append(body, ']')
	if page.Next != "" {
		body = fmt.Appendf(body, `,"next":%q`, page.Next)
	}
	return reply{status: http.StatusOK, body: append(body, "}\n"...)}, nil
}

func appendChange(dst []byte, c *admin.StateChange) []byte {
	dst = fmt.Appendf(dst, `{"change":%q,"key":`, c.Kind())
	dst = strictjson.AppendString(dst, c.Key)
	if c.From.Record != nil {
		dst = c.From.Record.AppendJSON(append(dst, `,"from":`...), c.From.Offset)
	}
	if c.To.Record != nil {
		dst = c.To.Record.AppendJSON(append(dst, `,"to":`...), c.To.Offset)
	}
	return append(dst, '}')
}

func stateDiffQuery(r *http.Request, given map[string]string) (q admin.StateDiffQuery, err error) {
	if q.Topic, err = topicOf(r); err != nil {
		return q, err
	}
	now := time.Now()
	for name, m := range map[string]*admin.Moment{"from": &q.From, "to": &q.To} {
		if text, ok := given[name]; ok {
			if m.Offset, m.TS, err = when.ParsePlace(text, now); err != nil {
				return q, eventhub.Errorf(eventhub.CodeBadRequest, "%s: %v", name, err)
			}
		}
	}
	q.Prefix, q.Page = given["prefix"], given["page"]
	if _, ok := given["page"]; ok && q.Page == "" {
		return q, eventhub.Errorf(eventhub.CodeBadRequest, "page is empty; the next of a page before is wanted")
	}
	q.Limit, err = pageLimit(given["limit"])
	return q, err
}
