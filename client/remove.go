package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

var _ admin.Remover = (*Admin)(nil)

// Trim implements admin.Remover. When the answer is lost the request is not sent again, to
// any URL: with ErrUnreachable the events may be removed or not.
func (a *Admin) Trim(ctx context.Context, topic string, q admin.TrimQuery, apply bool) (admin.TrimPlan, error) {
	if err := q.Validate(); err != nil {
		return admin.TrimPlan{}, err
	}
	query := make(url.Values)
	setPositive(query, "before", q.Before)
	setPositive(query, "keep", q.Keep)
	if q.BeforeTS != 0 {
		query.Set("before_ts", strconv.FormatInt(q.BeforeTS, 10))
	}
	if q.BeforeID != "" {
		query.Set("before_id", q.BeforeID)
	}
	var plan admin.TrimPlan
	err := a.remove(ctx, topic, "/trim", query, apply, &plan, func() bool { return plan.Topic == topic && plan.Applied == apply })
	return plan, err
}

// Erase implements admin.Remover. q.By does not count: the hub says who asks. A lost answer is
// as with Trim; the same again goes on.
func (a *Admin) Erase(ctx context.Context, topic string, q admin.EraseQuery) (admin.EraseResult, error) {
	if err := q.Validate(); err != nil {
		return admin.EraseResult{}, err
	}
	query := make(url.Values)
	setPositive(query, "offset", q.Offset)
	setPositive(query, "limit", uint64(q.Limit))
	if q.ID != "" {
		query.Set("id", q.ID)
	}
	if q.Key != "" {
		query.Set("key", q.Key)
	}
	var result admin.EraseResult
	err := a.remove(ctx, topic, "/erase", query, q.Apply, &result, func() bool { return result.Topic == topic && result.Applied == q.Apply })
	return result, err
}

func (a *Admin) remove(ctx context.Context, topic, action string, query url.Values, apply bool, into any, fits func() bool) error {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return err
	}
	if apply {
		query.Set("apply", "1")
	}
	return a.fetch(ctx, http.MethodPost, "/v1/topics/"+topic+action+"?"+query.Encode(), into, fits)
}

func setPositive(query url.Values, name string, n uint64) {
	if n != 0 {
		query.Set(name, strconv.FormatUint(n, 10))
	}
}

// PlanSettings implements admin.Remover.
func (a *Admin) PlanSettings(ctx context.Context, name string, settings admin.TopicSettings) (plan admin.SettingsPlan, err error) {
	if err := admin.ValidateSettingsName(name); err != nil {
		return plan, err
	}
	body, err := json.Marshal(settings)
	if err != nil {
		return plan, err
	}
	got, err := a.change(ctx, &transmission{method: http.MethodPost, path: "/v1/topics/" + name + "/settings/plan", accept: "application/json",
		body: bytes.NewReader(body), kind: "application/json"})
	if err != nil {
		return plan, err
	}
	if err := json.Unmarshal(got.body, &plan); err != nil || plan.Name != name {
		return admin.SettingsPlan{}, got.strange("it is not what was asked for")
	}
	return plan, nil
}
