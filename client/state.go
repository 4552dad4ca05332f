package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

// State is admin.History's State: a page of the state by key of a topic. The next page has
// the same query with the page's Next as Page, and without At, AtTS and MinOffset.
func (a *Admin) State(ctx context.Context, q admin.StateQuery) (admin.StatePage, error) {
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return admin.StatePage{}, err
	}
	query := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	if q.Keys != nil {
		if len(q.Keys) == 0 {
			return admin.StatePage{}, eventhub.Errorf(eventhub.CodeBadRequest, "there are 0 keys; 1 to %d are allowed", admin.MaxStateKeys)
		}
		query["keys"] = q.Keys
	}
	setGiven(query, "prefix", q.Prefix)
	setGiven(query, "page", q.Page)
	if err := setMoment(query, "at", admin.Moment{Offset: q.At, TS: q.AtTS}); err != nil {
		return admin.StatePage{}, err
	}
	if q.MinOffset != 0 {
		query.Set("min_offset", strconv.FormatUint(q.MinOffset, 10))
		query.Set("wait_ms", strconv.FormatInt(q.Wait.Milliseconds(), 10))
	}
	var page admin.StatePage
	var body struct {
		Topic  string            `json:"topic"`
		Life   uint64            `json:"life"`
		At     uint64            `json:"at"`
		Events []json.RawMessage `json:"events"`
		Next   string            `json:"next"`
	}
	err := a.get(ctx, "/v1/topics/"+q.Topic+"/state?"+query.Encode(), &body, func() bool {
		page = admin.StatePage{At: body.At, Life: body.Life, Next: body.Next}
		for _, event := range body.Events {
			item, ok := itemOf(bytes.Clone(event))
			if !ok {
				return false
			}
			page.Events = append(page.Events, item)
		}
		return body.Topic == q.Topic && body.Life != 0 && body.Events != nil
	})
	if err != nil {
		return admin.StatePage{}, err
	}
	return page, nil
}
