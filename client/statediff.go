package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"eventhub"
	"eventhub/admin"
)

// StateDiff is admin.History's StateDiff: a page of the difference between two states by key of
// a topic. The next page has the same query with the page's Next as Page, and without From and To.
func (a *Admin) StateDiff(ctx context.Context, q admin.StateDiffQuery) (admin.StateDiffPage, error) {
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return admin.StateDiffPage{}, err
	}
	query := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	setGiven(query, "prefix", q.Prefix)
	setGiven(query, "page", q.Page)
	for name, m := range map[string]admin.Moment{"from": q.From, "to": q.To} {
		if err := setMoment(query, name, m); err != nil {
			return admin.StateDiffPage{}, err
		}
	}
	var page admin.StateDiffPage
	var body struct {
		Topic   string `json:"topic"`
		Life    uint64 `json:"life"`
		From    uint64 `json:"from"`
		To      uint64 `json:"to"`
		Changes []struct {
			Key  string          `json:"key"`
			From json.RawMessage `json:"from"`
			To   json.RawMessage `json:"to"`
		} `json:"changes"`
		Next string `json:"next"`
	}
	err := a.get(ctx, "/v1/topics/"+q.Topic+"/state-diff?"+query.Encode(), &body, func() bool {
		page = admin.StateDiffPage{From: body.From, To: body.To, Life: body.Life, Next: body.Next}
		for _, got := range body.Changes {
			c := admin.StateChange{Key: got.Key}
			for into, event := range map[*eventhub.Item][]byte{&c.From: got.From, &c.To: got.To} {
				if event == nil {
					continue
				}
				var ok bool
				if *into, ok = itemOf(bytes.Clone(event)); !ok {
					return false
				}
			}
			if c.From.Record == nil && c.To.Record == nil {
				return false
			}
			page.Changes = append(page.Changes, c)
		}
		return body.Topic == q.Topic && body.Life != 0 && body.Changes != nil
	})
	if err != nil {
		return admin.StateDiffPage{}, err
	}
	return page, nil
}

// setMoment sets a parameter to a moment, where there is one.
func setMoment(query url.Values, name string, m admin.Moment) error {
	switch {
	case m.Offset != 0 && m.TS != 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s is the offset %d and the time %d; one of both is wanted", name, m.Offset, m.TS)
	case m.Offset != 0:
		query.Set(name, strconv.FormatUint(m.Offset, 10))
	case m.TS != 0:
		query.Set(name, time.UnixMilli(m.TS).UTC().Format(time.RFC3339Nano))
	}
	return nil
}
