package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

var _ admin.Settings = (*Admin)(nil)

// EffectiveSettings implements admin.Settings.
func (a *Admin) EffectiveSettings(ctx context.Context, topic string) (admin.EffectiveSettings, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return admin.EffectiveSettings{}, err
	}
	var e admin.EffectiveSettings
	err := a.get(ctx, "/v1/topics/"+topic+"/settings", &e, func() bool { return e.Topic == topic && e.Source != "" })
	return e, err
}

// SettingsEntries implements admin.Settings.
func (a *Admin) SettingsEntries(ctx context.Context, after string, limit int) ([]admin.SettingsEntry, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setGiven(query, "after", after)
	var page struct {
		Settings []admin.SettingsEntry `json:"settings"`
	}
	err := a.get(ctx, "/v1/settings?"+query.Encode(), &page, func() bool { return page.Settings != nil })
	return page.Settings, err
}

// SetTopic implements admin.Settings. When the answer is lost the request is not sent
// again, to any URL: with ErrUnreachable the settings may be stored or not.
func (a *Admin) SetTopic(ctx context.Context, name string, settings admin.TopicSettings, match *uint64) (entry admin.SettingsEntry, err error) {
	if err := admin.ValidateSettingsName(name); err != nil {
		return entry, err
	}
	body, err := json.Marshal(settings)
	if err != nil {
		return entry, err
	}
	got, err := a.change(ctx, &transmission{method: http.MethodPut, path: "/v1/topics/" + name, accept: "application/json",
		body: bytes.NewReader(body), kind: "application/json", match: matching(match)})
	if err != nil {
		return entry, err
	}
	if err := json.Unmarshal(got.body, &entry); err != nil || entry.Name != name || entry.Version == 0 {
		return admin.SettingsEntry{}, got.strange("it is not what was asked for")
	}
	return entry, nil
}

// UnsetTopic implements admin.Settings. A lost answer is as with SetTopic.
func (a *Admin) UnsetTopic(ctx context.Context, name string, match *uint64) error {
	if err := admin.ValidateSettingsName(name); err != nil {
		return err
	}
	_, err := a.change(ctx, &transmission{method: http.MethodDelete, path: "/v1/topics/" + name + "/settings", accept: "application/json", match: matching(match)})
	return err
}

// matching writes a version for If-Match.
func matching(version *uint64) string {
	if version == nil {
		return ""
	}
	return `"` + strconv.FormatUint(*version, 10) + `"`
}

// change makes a request that is answered at once, with status 200 or 204.
func (a *Admin) change(ctx context.Context, t *transmission) (*response, error) {
	ctx, release := a.bound(ctx)
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, answerWait, errSilent)
	defer cancel()
	answer, err := a.open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	got, err := gather(answer)
	if err != nil {
		return nil, errors.Join(ErrUnreachable, fmt.Errorf("client: the answer broke off: %w", err))
	}
	return got, nil
}
