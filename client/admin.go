package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/admin"
)

const (
	answerWait = 30 * time.Second // a hub that was asked says nothing for so long: not reachable
	// idleWait is shorter than a hub keeps an idle connection, so that no
	// request meets one that is just being closed.
	idleWait = 30 * time.Second
	// maxAnswerBytes bounds one answer: a full page of groups with many members
	// is a few MiB, the largest event less than two.
	maxAnswerBytes      = 32 << 20
	maxAnswerHeadBytes  = 64 << 10
	maxRetryAfterInSecs = 24 * 60 * 60
)

// Admin is the administration of a hub, over its HTTP API: what there is, the past, dead
// letters, delayed events, import, export and backup. It keeps idle connections only. Its
// methods are safe for concurrent use.
//
// A program with a [Client] has it by Client.Admin; one that only administers makes it by
// [NewAdmin] and needs no WebSocket.
//
// A hub's refusal is its *eventhub.Error, as package admin documents it. If no hub could
// be reached, ErrUnreachable is in the chain. Any other answer, as from a proxy or another
// kind of server, is an error that names the URL, the status and the content type; with
// status 401 or 403 it has CodeForbidden. Calls of a Client's Admin fail with ErrClosed
// once the Client is closed.
type Admin struct {
	http   *http.Client
	cfg    config
	served atomic.Int64    // which of cfg.bases answered last
	life   context.Context // of the Client; no call outlives it
}

var (
	_ admin.Inspector = (*Admin)(nil)
	_ admin.Operator  = (*Admin)(nil)
)

// NewAdmin returns the administration of the hub at url, which may be what Dial takes:
// the HTTP API begins at the URL's path, without a last segment /ws. It does not connect:
// a call does, and tries the URLs of WithURLs in turn, the one that answered last first,
// until one is reached that leads. Options that concern the WebSocket alone, such as WithReconnect,
// are an error that names them. As in Dial, proxies of the environment are not used.
func NewAdmin(url string, opts ...Option) (*Admin, error) {
	cfg := defaults(url)
	for _, opt := range opts {
		opt(&cfg)
	}
	if len(cfg.webSocketOnly) > 0 {
		return nil, fmt.Errorf("client: NewAdmin opens no WebSocket and takes no %s", strings.Join(cfg.webSocketOnly, ", "))
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newAdmin(context.Background(), cfg), nil
}

// Admin returns the administration of the same hub: it has the URLs, the token source, the
// TLS configuration and the logger of the client, and a list of URLs in use of its own. It
// is the same at every call, and ends with the client.
func (c *Client) Admin() *Admin {
	c.adminOnce.Do(func() {
		c.admin = newAdmin(c.ctx, c.cfg)
		context.AfterFunc(c.ctx, c.admin.http.CloseIdleConnections)
	})
	return c.admin
}

func newAdmin(life context.Context, cfg config) *Admin {
	dial := cfg.netDial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        cfg.tls.Clone(),
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  answerWait,
		IdleConnTimeout:        idleWait,
		MaxResponseHeaderBytes: maxAnswerHeadBytes,
	}
	return &Admin{life: life, cfg: cfg, http: &http.Client{
		Transport: transport,
		// A hub redirects nobody, and the token is for the hub alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// bound returns ctx, ended with the cause ErrClosed when the Client is closed.
func (a *Admin) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// Close releases idle connections. Calls under way go on, and new ones connect again.
func (a *Admin) Close() error {
	a.http.CloseIdleConnections()
	return nil
}

// Topics implements admin.Inspector.
func (a *Admin) Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setGiven(query, "after", after)
	var page struct {
		Topics []admin.TopicInfo `json:"topics"`
	}
	err := a.get(ctx, "/v1/topics?"+query.Encode(), &page, func() bool { return page.Topics != nil })
	return page.Topics, err
}

// Topic implements admin.Inspector.
func (a *Admin) Topic(ctx context.Context, topic string) (admin.TopicInfo, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return admin.TopicInfo{}, err
	}
	var info admin.TopicInfo
	err := a.get(ctx, "/v1/topics/"+topic, &info, func() bool { return info.Topic == topic })
	return info, err
}

// Event implements admin.Inspector.
func (a *Admin) Event(ctx context.Context, topic, id string) (eventhub.Item, error) {
	if err := eventhub.ValidateID(id); err != nil {
		return eventhub.Item{}, err
	}
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return eventhub.Item{}, err
	}
	var event json.RawMessage
	var item eventhub.Item
	err := a.get(ctx, "/v1/topics/"+topic+"/events/"+segment(id), &event, func() (ok bool) {
		item, ok = itemOf(event)
		return ok && string(item.Record.ID()) == id
	})
	return item, err
}

// EventGroups implements admin.Inspector.
func (a *Admin) EventGroups(ctx context.Context, topic, id string) ([]admin.EventGroup, error) {
	if err := eventhub.ValidateID(id); err != nil {
		return nil, err
	}
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return nil, err
	}
	var list struct {
		Topic  string             `json:"topic"`
		ID     string             `json:"id"`
		Groups []admin.EventGroup `json:"groups"`
	}
	err := a.get(ctx, "/v1/topics/"+topic+"/events/"+segment(id)+"/groups", &list, func() bool {
		return list.Topic == topic && list.ID == id && list.Groups != nil
	})
	return list.Groups, err
}

// itemOf splits an event: after the offset the record begins. It changes event.
func itemOf(event []byte) (eventhub.Item, bool) {
	rest, ok := bytes.CutPrefix(event, []byte(`{"offset":`))
	end := bytes.IndexByte(rest, ',')
	if !ok || end < 0 {
		return eventhub.Item{}, false
	}
	offset, err := strconv.ParseUint(string(rest[:end]), 10, 64)
	rest[end] = '{'
	return eventhub.Item{Offset: offset, Record: rest[end:]}, err == nil
}

// Groups implements admin.Inspector.
func (a *Admin) Groups(ctx context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	if q.Limit == 0 {
		q.Limit = admin.MaxPage
	}
	query := url.Values{"limit": {strconv.Itoa(q.Limit)}}
	setGiven(query, "topic", q.Topic)
	setGiven(query, "group", q.Group)
	setGiven(query, "after_topic", q.AfterTopic)
	setGiven(query, "after_group", q.AfterGroup)
	var page struct {
		Groups []admin.GroupInfo `json:"groups"`
	}
	err := a.get(ctx, "/v1/groups?"+query.Encode(), &page, func() bool { return page.Groups != nil })
	return page.Groups, err
}

func setGiven(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}

// Group implements admin.Inspector.
func (a *Admin) Group(ctx context.Context, topic, group string) (admin.GroupInfo, error) {
	path, err := groupPath(topic, group)
	if err != nil {
		return admin.GroupInfo{}, err
	}
	var info admin.GroupInfo
	err = a.get(ctx, path, &info, func() bool { return info.Topic == topic && info.Group == group })
	return info, err
}

// InFlight implements admin.Inspector.
func (a *Admin) InFlight(ctx context.Context, topic, group string, limit int) ([]admin.InFlight, error) {
	path, err := groupPath(topic, group)
	if err != nil {
		return nil, err
	}
	var list struct {
		Topic    string           `json:"topic"`
		Group    string           `json:"group"`
		InFlight []admin.InFlight `json:"in_flight"`
	}
	err = a.get(ctx, path+"/inflight?limit="+strconv.Itoa(limit), &list, func() bool {
		return list.Topic == topic && list.Group == group && list.InFlight != nil
	})
	return list.InFlight, err
}

// DeleteGroup implements admin.Operator. When the answer is lost the request is not sent
// again, to any URL: with ErrUnreachable the group may be deleted or not.
func (a *Admin) DeleteGroup(ctx context.Context, topic, group string) error {
	if eventhub.IsPattern(topic) {
		return a.deletePattern(ctx, topic, group)
	}
	path, err := groupPath(topic, group)
	if err != nil {
		return err
	}
	return a.delete(ctx, path)
}

// DeleteTopic implements admin.Operator. A lost answer is as with DeleteGroup.
func (a *Admin) DeleteTopic(ctx context.Context, topic string) error {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return err
	}
	return a.delete(ctx, "/v1/topics/"+topic)
}

// SeekGroup implements admin.Operator. When the answer is lost the request is not sent
// again, to any URL: with ErrUnreachable the group may have moved or not, which its epoch
// shows.
func (a *Admin) SeekGroup(ctx context.Context, topic, group string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	query := url.Values{}
	if apply {
		query.Set("apply", "1")
	}
	return a.seekGroup(ctx, topic, group, start, query)
}

// SeekGroupIf implements admin.Operator. A lost answer is as with SeekGroup.
func (a *Admin) SeekGroupIf(ctx context.Context, topic, group string, start eventhub.Start, epoch uint64) (admin.SeekPlan, error) {
	return a.seekGroup(ctx, topic, group, start, url.Values{"apply": {"1"}, "epoch": {strconv.FormatUint(epoch, 10)}})
}

func (a *Admin) seekGroup(ctx context.Context, topic, group string, start eventhub.Start, query url.Values) (admin.SeekPlan, error) {
	if err := start.Validate(); err != nil {
		return admin.SeekPlan{}, err
	}
	path, err := groupPath(topic, group)
	if err != nil {
		return admin.SeekPlan{}, err
	}
	maps.Copy(query, startQuery(start))
	var plan admin.SeekPlan
	err = a.fetch(ctx, http.MethodPost, path+"/seek?"+query.Encode(), &plan, func() bool {
		return plan.Topic == topic && plan.Group == group && plan.Applied == query.Has("apply")
	})
	return plan, err
}

// startQuery writes a valid start as the HTTP API reads it.
func startQuery(s eventhub.Start) url.Values {
	switch s.Kind {
	case eventhub.StartEarliest:
		return url.Values{"from": {"earliest"}}
	case eventhub.StartTime:
		return url.Values{"from": {"ts"}, "ts": {strconv.FormatInt(s.TS, 10)}}
	case eventhub.StartAfterID:
		return url.Values{"from": {"after_id"}, "after_id": {s.AfterID}}
	case eventhub.StartOffset:
		return url.Values{"from": {"offset"}, "offset": {strconv.FormatUint(s.Offset, 10)}}
	}
	return url.Values{"from": {"latest"}}
}

// PauseGroup implements admin.Operator. A lost answer is as with SeekGroup.
func (a *Admin) PauseGroup(ctx context.Context, topic, group string) error {
	return a.postGroup(ctx, topic, group, "/pause")
}

// ResumeGroup implements admin.Operator. A lost answer is as with SeekGroup.
func (a *Admin) ResumeGroup(ctx context.Context, topic, group string) error {
	return a.postGroup(ctx, topic, group, "/resume")
}

// postGroup asks the hub to do something with a group.
func (a *Admin) postGroup(ctx context.Context, topic, group, action string) error {
	path, err := groupPath(topic, group)
	if err != nil {
		return err
	}
	// The state of the group afterwards is not checked: others change it too.
	var info admin.GroupInfo
	return a.fetch(ctx, http.MethodPost, path+action, &info, func() bool { return info.Topic == topic && info.Group == group })
}

func groupPath(topic, group string) (string, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return "", err
	}
	if err := eventhub.ValidateGroup(group); err != nil {
		return "", err
	}
	return "/v1/topics/" + topic + "/groups/" + segment(group), nil
}

// segment writes an id or the name of a group as a segment of a path. They have no
// character to escape, but two of them would mean the way up.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return name
}
