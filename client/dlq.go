package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/transfer"
)

var _ admin.Redriver = (*Admin)(nil)

// DeadLetterTopic is admin.DeadLetterTopic.
type DeadLetterTopic = admin.DeadLetterTopic

// DeadLetterTopics implements admin.Redriver.
func (a *Admin) DeadLetterTopics(ctx context.Context, after string, limit int) ([]admin.DeadLetterTopic, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setGiven(query, "after", after)
	var page struct {
		Topics []admin.DeadLetterTopic `json:"topics"`
	}
	err := a.get(ctx, "/v1/dlq?"+query.Encode(), &page, func() bool { return page.Topics != nil })
	return page.Topics, err
}

// DeadLetters is as admin.Redriver promises it, except that the letters have no
// Record, which DeadLetter fetches, that the filter has neither headers nor tags, and
// that it includes letters that were added meanwhile.
func (a *Admin) DeadLetters(ctx context.Context, q admin.DeadLetterQuery, visit func(*admin.DeadLetter) error) error {
	query, err := letterQuery(&q)
	if err != nil {
		return err
	}
	for left := q.Limit; ; {
		limit := admin.MaxPage
		if q.Limit != 0 {
			limit = min(limit, left)
		}
		query.Set("limit", strconv.Itoa(limit))
		var page struct {
			DeadLetters []admin.DeadLetter `json:"dead_letters"`
			Next        uint64             `json:"next"`
		}
		err := a.get(ctx, "/v1/dlq/"+q.Topic+"?"+query.Encode(), &page, func() bool {
			return page.DeadLetters != nil && (page.Next == 0 || page.Next > q.After)
		})
		if err != nil {
			return err
		}
		for i := range page.DeadLetters {
			if err := visit(&page.DeadLetters[i]); err != nil {
				return err
			}
		}
		left -= len(page.DeadLetters)
		if page.Next == 0 || q.Limit != 0 && left <= 0 {
			return nil
		}
		q.After = page.Next
		query.Set("after", strconv.FormatUint(q.After, 10))
	}
}

// letterQuery writes a query as the HTTP API reads it.
func letterQuery(q *admin.DeadLetterQuery) (url.Values, error) {
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return nil, err
	}
	query := url.Values{}
	setGiven(query, "group", q.Group)
	setGiven(query, "ids", strings.Join(q.IDs, ","))
	if f := q.Filter; !f.IsZero() {
		if len(f.Headers)+len(f.Tags) > 0 {
			return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "dead letters have neither headers nor tags, and the filter is %s", f)
		}
		setGiven(query, "filter", f.CEL)
		setGiven(query, "key", f.Key)
	}
	var offsets []string
	for _, offset := range q.Offsets {
		offsets = append(offsets, strconv.FormatUint(offset, 10))
	}
	setGiven(query, "offsets", strings.Join(offsets, ","))
	for name, n := range map[string]int64{"from_ts": q.FromTS, "to_ts": q.ToTS, "after": int64(q.After)} {
		if n != 0 {
			query.Set(name, strconv.FormatInt(n, 10))
		}
	}
	if q.All {
		query.Set("all", "1")
	}
	return query, nil
}

// WholeDeadLetter is a dead letter with what it is about.
type WholeDeadLetter struct {
	admin.DeadLetter
	// History has the attempts that did not succeed, the last 20 of them.
	History []admin.Attempt
	// Original is the event that was given up.
	Original eventhub.Item
	// JSON is all of it as the hub sent it.
	JSON json.RawMessage
}

// DeadLetter returns one dead letter of a topic, named by its offset or its id, also one
// that was redriven or requeued. CodeUnknownID if there is none.
func (a *Admin) DeadLetter(ctx context.Context, topic, name string) (*WholeDeadLetter, error) {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return nil, err
	}
	if err := eventhub.ValidateID(name); err != nil {
		return nil, err
	}
	var d WholeDeadLetter
	err := a.get(ctx, "/v1/dlq/"+topic+"/"+segment(name), &d.JSON, func() (ok bool) {
		var rest struct {
			History []admin.Attempt `json:"history"`
			Event   json.RawMessage `json:"event"`
		}
		if json.Unmarshal(d.JSON, &d.DeadLetter) != nil || json.Unmarshal(d.JSON, &rest) != nil {
			return false
		}
		d.History = rest.History
		d.Original, ok = itemOf(rest.Event)
		return ok && string(d.Original.Record.ID()) == d.EventID
	})
	return &d, err
}

// redriveBody is what POST /v1/dlq/{topic}/redrive takes.
type redriveBody struct {
	Group   string           `json:"group,omitempty"`
	IDs     []string         `json:"ids,omitempty"`
	Offsets []uint64         `json:"offsets,omitempty"`
	FromTS  int64            `json:"from_ts,omitempty"`
	ToTS    int64            `json:"to_ts,omitempty"`
	Filter  *eventhub.Filter `json:"filter,omitempty"`
	All     bool             `json:"all,omitempty"`
	After   uint64           `json:"after,omitempty"`
	Limit   int              `json:"limit,omitempty"`
	Rate    int              `json:"rate,omitempty"`
}

// errSilent ends a redrive whose hub sends nothing any more.
var errSilent = fmt.Errorf("%w: it has said nothing for %s", ErrUnreachable, answerWait)

// Redrive implements admin.Redriver; q.By has no effect, because the hub knows who asks.
// It lasts as long as ctx: the hub ends it when its client is gone. With an error the
// result is what the hub sent last. If the connection was lost or ctx ended, that may be a
// second old: some more may have been redriven, and the same call again skips those. It is
// not sent again by itself.
func (a *Admin) Redrive(ctx context.Context, q admin.RedriveQuery) (admin.RedriveResult, error) {
	last := admin.RedriveResult{Topic: q.Topic, Applied: q.Apply, After: q.After}
	if err := eventhub.ValidateStoredTopic(q.Topic); err != nil {
		return last, err
	}
	body, err := json.Marshal(redriveBody{q.Group, q.IDs, q.Offsets, q.FromTS, q.ToTS, q.Filter, q.All, q.After, q.Limit, q.Rate})
	if err != nil {
		return last, err
	}
	path := "/v1/dlq/" + q.Topic + "/redrive"
	if q.Apply {
		path += "?apply=1"
	}
	ctx, release := a.bound(ctx)
	defer release()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	silence := time.AfterFunc(answerWait, func() { end(errSilent) })
	defer silence.Stop()
	answer, err := a.open(ctx, &transmission{method: http.MethodPost, path: path, accept: transfer.NDJSON, body: bytes.NewReader(body), kind: "application/json"})
	var refused *refusedRedrive
	if errors.As(err, &refused) {
		return refused.done, refused.error
	}
	if err != nil {
		return last, err
	}
	defer answer.Body.Close()
	in := bufio.NewScanner(answer.Body)
	in.Buffer(nil, maxAnswerBytes)
	for in.Scan() {
		silence.Reset(answerWait)
		over, err := readRedriveLine(in.Bytes(), &last)
		if over || err != nil {
			return last, err
		}
		if q.Progress != nil {
			q.Progress(last)
		}
	}
	err = in.Err()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return last, fmt.Errorf("client: the answer to the redrive broke off: %w", err)
}

// readRedriveLine reads one line of the answer to a redrive: how far it went so far, or how
// it ended.
func readRedriveLine(line []byte, into *admin.RedriveResult) (over bool, _ error) {
	var l struct {
		Progress *admin.RedriveResult `json:"progress"`
		Code     eventhub.Code        `json:"code"`
		Detail   string               `json:"detail"`
		Matched  *int                 `json:"matched"`
		admin.RedriveResult
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return false, fmt.Errorf("client: a line of the answer to the redrive is %.80q: %w", line, err)
	}
	if l.Progress != nil {
		*into = *l.Progress
		return false, nil
	}
	if l.Matched != nil {
		*into = l.RedriveResult
		into.Matched = *l.Matched
	}
	switch {
	case l.Code != "":
		return true, &eventhub.Error{Code: l.Code, Message: l.Detail}
	case l.Matched == nil:
		return false, fmt.Errorf("client: a line of the answer to the redrive is %.80q", line)
	}
	return true, nil
}

// refusedRedrive is a problem that says how far the redrive went.
type refusedRedrive struct {
	error
	done admin.RedriveResult
}

// redriveDone returns what a refusal says of a redrive, if it is about one.
func redriveDone(refusal error, body []byte) (*refusedRedrive, bool) {
	var done struct {
		Matched *int `json:"matched"`
	}
	var result admin.RedriveResult
	if json.Unmarshal(body, &done) != nil || done.Matched == nil || json.Unmarshal(body, &result) != nil {
		return nil, false
	}
	return &refusedRedrive{refusal, result}, true
}

// Requeue implements admin.Redriver; by has no effect, because the hub knows who asks. When
// the answer is lost it is not sent again; the caller may do so, since the same payload
// again is a duplicate.
func (a *Admin) Requeue(ctx context.Context, topic string, offset uint64, payload []byte, by string) (eventhub.Receipt, error) {
	return a.RequeueIf(ctx, topic, offset, payload, 0, by)
}

// RequeueIf implements admin.Redriver, as Requeue does.
func (a *Admin) RequeueIf(ctx context.Context, topic string, offset uint64, payload []byte, marks int, _ string) (eventhub.Receipt, error) {
	var none eventhub.Receipt
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return none, err
	}
	path := "/v1/dlq/" + topic + "/" + strconv.FormatUint(offset, 10) + "/requeue"
	if marks != 0 {
		path += "?marks=" + strconv.Itoa(marks)
	}
	ctx, release := a.bound(ctx)
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, answerWait, errSilent)
	defer cancel()
	answer, err := a.open(ctx, &transmission{method: http.MethodPost, path: path, accept: "application/json", body: bytes.NewReader(payload), kind: "application/json"})
	if err != nil {
		return none, err
	}
	defer answer.Body.Close()
	got, err := gather(answer)
	if err != nil {
		return none, errors.Join(ErrUnreachable, fmt.Errorf("client: the answer broke off: %w", err))
	}
	var done struct {
		ID        string `json:"id"`
		Offset    uint64 `json:"offset"`
		Duplicate bool   `json:"duplicate"`
	}
	if err := json.Unmarshal(got.body, &done); err != nil || done.ID == "" || done.Offset == 0 {
		return none, got.strange("it is not what was asked for")
	}
	return eventhub.Receipt{ID: done.ID, Offset: done.Offset, Duplicate: done.Duplicate}, nil
}
