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

// KeyHistory is admin.History's KeyHistory: a page of the changes of one key, the newest first.
// The next page has the same query with the page's Next as Before.
func (a *Admin) KeyHistory(ctx context.Context, q admin.KeyHistoryQuery) (admin.KeyHistoryPage, error) {
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return admin.KeyHistoryPage{}, err
	}
	query := url.Values{"key": {q.Key}, "limit": {strconv.Itoa(q.Limit)}}
	if q.Before != 0 {
		query.Set("before", strconv.FormatUint(q.Before, 10))
	}
	var page admin.KeyHistoryPage
	var body struct {
		Topic      string `json:"topic"`
		Life       uint64 `json:"life"`
		Horizon    uint64 `json:"horizon"`
		Compacted  uint64 `json:"compacted"`
		Tombstones uint64 `json:"tombstones"`
		Changes    []struct {
			Event  json.RawMessage `json:"event"`
			Before json.RawMessage `json:"before"`
			Gone   bool            `json:"before_gone"`
			Causes []admin.Cause   `json:"causes"`
		} `json:"changes"`
		Next uint64 `json:"next"`
	}
	err := a.get(ctx, "/v1/topics/"+q.Topic+"/state-history?"+query.Encode(), &body, func() bool {
		page = admin.KeyHistoryPage{Life: body.Life, Next: body.Next,
			Horizon: body.Horizon, Compacted: body.Compacted, Tombstones: body.Tombstones}
		for _, got := range body.Changes {
			c := admin.KeyChange{BeforeGone: got.Gone, Causes: got.Causes}
			var ok bool
			if c.Event, ok = itemOf(bytes.Clone(got.Event)); !ok {
				return false
			}
			if got.Before != nil {
				if c.Before, ok = itemOf(bytes.Clone(got.Before)); !ok {
					return false
				}
			}
			page.Changes = append(page.Changes, c)
		}
		isSound := q.Before == 0 || page.Next < q.Before
		return isSound && body.Topic == q.Topic && body.Life != 0 && body.Changes != nil
	})
	if err != nil {
		return admin.KeyHistoryPage{}, err
	}
	return page, nil
}
