package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
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

// API is a hub over its HTTP API: what there is, and administration. It keeps no
// connection but idle ones and needs no Client beside it. Its methods are safe
// for concurrent use.
//
// A hub's refusal is its *eventhub.Error, as package eventhub's Inspector and
// Admin promise it. Where no hub could be talked to, ErrUnreachable is in the
// chain. Anything else that comes back, as from a proxy or another kind of
// server, is an error that names the URL, the status and the content type; when
// it asks for rights (401, 403) it has CodeForbidden.
type API struct {
	http   *http.Client
	cfg    config
	served atomic.Int64 // which of cfg.bases answered last
}

var (
	_ admin.Inspector = (*API)(nil)
	_ admin.Operator  = (*API)(nil)
)

// NewAPI returns the hub at url, which may be what Dial takes: the API begins at
// the URL's path, without a last segment /ws. It does not connect: a call does,
// and tries the URLs of WithURLs in turn, the one that answered last first, until
// one is reached. Of the options WithURLs, WithToken, WithTokenSource, WithTLS and
// WithLogger count. As in Dial, proxies of the environment are not used.
func NewAPI(url string, opts ...Option) (*API, error) {
	cfg := defaults(url)
	for _, opt := range opts {
		opt(&cfg)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        cfg.tls.Clone(),
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  answerWait,
		IdleConnTimeout:        idleWait,
		MaxResponseHeaderBytes: maxAnswerHeadBytes,
	}
	return &API{cfg: cfg, http: &http.Client{
		Transport: transport,
		// A hub redirects nobody, and the token is for the hub alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close lets go of idle connections. Calls under way go on.
func (a *API) Close() error {
	a.http.CloseIdleConnections()
	return nil
}

// Topics implements admin.Inspector.
func (a *API) Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setGiven(query, "after", after)
	var page struct {
		Topics []admin.TopicInfo `json:"topics"`
	}
	err := a.get(ctx, "/v1/topics?"+query.Encode(), &page, func() bool { return page.Topics != nil })
	return page.Topics, err
}

// Topic implements admin.Inspector.
func (a *API) Topic(ctx context.Context, topic string) (admin.TopicInfo, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return admin.TopicInfo{}, err
	}
	var info admin.TopicInfo
	err := a.get(ctx, "/v1/topics/"+topic, &info, func() bool { return info.Topic == topic })
	return info, err
}

// Event implements admin.Inspector.
func (a *API) Event(ctx context.Context, topic, id string) (eventhub.Item, error) {
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
func (a *API) EventGroups(ctx context.Context, topic, id string) ([]admin.EventGroup, error) {
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

// itemOf takes an event apart: where the offset ends, the record begins. It
// changes event.
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
func (a *API) Groups(ctx context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
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
func (a *API) Group(ctx context.Context, topic, group string) (admin.GroupInfo, error) {
	path, err := groupPath(topic, group)
	if err != nil {
		return admin.GroupInfo{}, err
	}
	var info admin.GroupInfo
	err = a.get(ctx, path, &info, func() bool { return info.Topic == topic && info.Group == group })
	return info, err
}

// InFlight implements admin.Inspector.
func (a *API) InFlight(ctx context.Context, topic, group string, limit int) ([]admin.InFlight, error) {
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

// DeleteGroup implements admin.Operator. When the answer is lost it is not asked
// again, by whatever URL: with ErrUnreachable the group may be gone or not.
func (a *API) DeleteGroup(ctx context.Context, topic, group string) error {
	if eventhub.IsPattern(topic) {
		return a.deletePattern(ctx, topic, group)
	}
	path, err := groupPath(topic, group)
	if err != nil {
		return err
	}
	return a.delete(ctx, path)
}

// DeleteTopic implements admin.Operator. A lost answer is as that of DeleteGroup.
func (a *API) DeleteTopic(ctx context.Context, topic string) error {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return err
	}
	return a.delete(ctx, "/v1/topics/"+topic)
}

// SeekGroup implements admin.Operator. When the answer is lost it is not asked
// again, by whatever URL: with ErrUnreachable the group may have moved or not,
// which its epoch tells.
func (a *API) SeekGroup(ctx context.Context, topic, group string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	if err := start.Validate(); err != nil {
		return admin.SeekPlan{}, err
	}
	path, err := groupPath(topic, group)
	if err != nil {
		return admin.SeekPlan{}, err
	}
	query := startQuery(start)
	if apply {
		query.Set("apply", "1")
	}
	var plan admin.SeekPlan
	err = a.fetch(ctx, http.MethodPost, path+"/seek?"+query.Encode(), &plan, func() bool {
		return plan.Topic == topic && plan.Group == group && plan.Applied == apply
	})
	return plan, err
}

// startQuery writes a valid start as the API reads it.
func startQuery(s eventhub.Start) url.Values {
	switch s.Kind {
	case eventhub.StartEarliest:
		return url.Values{"from": {"earliest"}}
	case eventhub.StartTime:
		return url.Values{"from": {"ts"}, "ts": {strconv.FormatInt(s.TS, 10)}}
	case eventhub.StartAfterID:
		return url.Values{"from": {"afterId"}, "afterId": {s.AfterID}}
	case eventhub.StartOffset:
		return url.Values{"from": {"offset"}, "offset": {strconv.FormatUint(s.Offset, 10)}}
	}
	return url.Values{"from": {"latest"}}
}

// PauseGroup implements admin.Operator. A lost answer is as that of SeekGroup.
func (a *API) PauseGroup(ctx context.Context, topic, group string) error {
	return a.steer(ctx, topic, group, "/pause")
}

// ResumeGroup implements admin.Operator. A lost answer is as that of SeekGroup.
func (a *API) ResumeGroup(ctx context.Context, topic, group string) error {
	return a.steer(ctx, topic, group, "/resume")
}

func (a *API) steer(ctx context.Context, topic, group, how string) error {
	path, err := groupPath(topic, group)
	if err != nil {
		return err
	}
	// How the group is afterwards is not judged: others steer it too.
	var info admin.GroupInfo
	return a.fetch(ctx, http.MethodPost, path+how, &info, func() bool { return info.Topic == topic && info.Group == group })
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

// segment writes an id or the name of a group as a segment of a path. They have
// nothing to escape, save that two of them would mean the way up.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return name
}

func (a *API) get(ctx context.Context, path string, into any, fits func() bool) error {
	return a.fetch(ctx, http.MethodGet, path, into, fits)
}

// fetch asks for JSON and decodes it; fits says whether it is what was asked for.
func (a *API) fetch(ctx context.Context, method, path string, into any, fits func() bool) error {
	r, err := a.ask(ctx, method, path)
	if err != nil {
		return err
	}
	if r.status != http.StatusOK {
		return r.refusal()
	}
	if len(r.body) > maxAnswerBytes {
		return r.strange(fmt.Sprintf("it has more than %d bytes", maxAnswerBytes))
	}
	if r.kind != "application/json" {
		return r.refusal()
	}
	if err := json.Unmarshal(r.body, into); err != nil {
		return r.strange(err.Error())
	}
	if !fits() {
		return r.strange("it is not what was asked for")
	}
	return nil
}

// response is what came back from one URL.
type response struct {
	asked  string // method and URL
	status int
	kind   string // content type, without parameters
	header http.Header
	body   []byte // cut off behind maxAnswerBytes
}

// ask tries one URL after the other until one is reached.
func (a *API) ask(ctx context.Context, method, path string) (*response, error) {
	failures := []error{ErrUnreachable}
	token, _, err := a.cfg.token(ctx)
	if err != nil {
		return nil, errors.Join(append(failures, fmt.Errorf("token: %w", err))...)
	}
	if strings.ContainsFunc(token, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return nil, eventhub.Errorf(eventhub.CodeBadToken, "the token has a control character in it, perhaps a line's end")
	}
	first := int(a.served.Load())
	for i := range a.cfg.bases {
		at := (first + i) % len(a.cfg.bases)
		r, sent, err := a.askOne(ctx, method, a.cfg.bases[at]+path, token)
		if err == nil {
			a.served.Store(int64(at))
			return r, nil
		}
		if sent && ctx.Err() != nil {
			return nil, fmt.Errorf("client: %s %s: %w", method, a.cfg.bases[at]+path, context.Cause(ctx))
		}
		failures = append(failures, fmt.Errorf("%s: %w", a.cfg.bases[at], err))
		if ctx.Err() != nil || sent && method != http.MethodGet {
			break
		}
		a.cfg.logger.Warn("the API of a hub was not reached", "url", a.cfg.bases[at], "error", err)
	}
	return nil, errors.Join(failures...)
}

// askOne asks one URL. An error means that no hub was reached, or that it was
// lost; sent says that it may have been asked before.
func (a *API) askOne(ctx context.Context, method, url, token string) (r *response, sent bool, err error) {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, false, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	request.Header.Set("Accept", "application/json, application/problem+json")
	answer, err := a.http.Do(request)
	if err != nil {
		return nil, connected.Load(), bare(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes+1))
	if err != nil {
		return nil, true, fmt.Errorf("the answer broke off after %d bytes: %w", len(body), err)
	}
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // a bad one is none that is known
	r = &response{method + " " + url, answer.StatusCode, kind, answer.Header, body}
	switch r.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if r.problem() == nil { // a proxy whose hub is gone
			return nil, true, r.refusal()
		}
	}
	return r, true, nil
}

// bare takes the method and the URL off, which are told already.
func bare(err error) error {
	var told *url.Error
	if errors.As(err, &told) {
		return told.Err
	}
	return err
}

// refusal is the error of an answer other than the one that was hoped for.
func (r *response) refusal() error {
	if e := r.problem(); e != nil {
		return e
	}
	why := "it does not come from a hub's HTTP API"
	if to := r.header.Get("Location"); to != "" {
		why += fmt.Sprintf(", and sends us to %q", to)
	}
	err := r.strange(why)
	if r.status == http.StatusUnauthorized || r.status == http.StatusForbidden {
		return eventhub.Wrap(eventhub.CodeForbidden, err, "The request was refused before it came to a hub.")
	}
	return err
}

// problem reads problem details with a code of the protocol, nil where it is
// anything else.
func (r *response) problem() *eventhub.Error {
	var p struct {
		Code   eventhub.Code `json:"code"`
		Detail string        `json:"detail"`
	}
	if r.kind != "application/problem+json" || json.Unmarshal(r.body, &p) != nil || p.Code == "" {
		return nil
	}
	e := &eventhub.Error{Code: p.Code, Message: p.Detail}
	if seconds, err := strconv.Atoi(r.header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(min(max(seconds, 0), maxRetryAfterInSecs)) * time.Second
	}
	return e
}

// strange tells of an answer that no hub gives.
func (r *response) strange(why string) error {
	kind := r.header.Get("Content-Type")
	if kind == "" {
		kind = "no content type"
	}
	return fmt.Errorf("client: %s was answered with status %d and %.80s: %s", r.asked, r.status, kind, why)
}
