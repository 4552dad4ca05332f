package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

var _ admin.Scheduler = (*Admin)(nil)

// Cancel implements admin.Scheduler. A lost answer is as with DeleteGroup.
func (a *Admin) Cancel(ctx context.Context, topic, id string) error {
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return err
	}
	return a.delete(ctx, "/v1/topics/"+topic+"/scheduled/"+segment(id))
}

// Scheduled implements admin.Scheduler.
func (a *Admin) Scheduled(ctx context.Context, q admin.ScheduleQuery) ([]admin.Scheduled, error) {
	if q.Limit == 0 {
		q.Limit = admin.MaxPage
	}
	query := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	setGiven(query, "topic", q.Topic)
	if q.AfterAt != 0 || q.AfterSeq != 0 {
		query.Set("after_at", strconv.FormatInt(q.AfterAt, 10))
		query.Set("after_seq", strconv.FormatUint(q.AfterSeq, 10))
	}
	var page struct {
		Scheduled []admin.Scheduled `json:"scheduled"`
	}
	err := a.get(ctx, "/v1/scheduled?"+query.Encode(), &page, func() bool { return page.Scheduled != nil })
	return page.Scheduled, err
}

// Patterns implements admin.Inspector.
func (a *Admin) Patterns(ctx context.Context, group string) ([]admin.GroupPattern, error) {
	query := url.Values{}
	if group != "" {
		if err := eventhub.ValidateGroup(group); err != nil {
			return nil, err
		}
		query.Set("group", group)
	}
	path := "/v1/patterns"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	var list struct {
		Patterns []admin.GroupPattern `json:"patterns"`
	}
	err := a.get(ctx, path, &list, func() bool { return list.Patterns != nil })
	return list.Patterns, err
}

// deletePattern is DeleteGroup of a pattern.
func (a *Admin) deletePattern(ctx context.Context, pattern, group string) error {
	if _, err := eventhub.ParsePattern(pattern); err != nil {
		return err
	}
	if err := eventhub.ValidateGroup(group); err != nil {
		return err
	}
	return a.delete(ctx, "/v1/patterns?"+url.Values{"group": {group}, "pattern": {pattern}}.Encode())
}

// delete asks for a DELETE, which is answered without a body.
func (a *Admin) delete(ctx context.Context, path string) error {
	r, err := a.ask(ctx, http.MethodDelete, path)
	if err != nil {
		return err
	}
	if r.status == http.StatusNoContent {
		return nil
	}
	return r.refusal()
}
