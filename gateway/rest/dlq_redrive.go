package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/strictjson"
	"eventhub/internal/transfer"
)

// redrive gives events back to the groups that gave them up, or, without apply, says
// what that would mean. A redrive may take long: who accepts NDJSON gets a line about
// once a second that says how far it is. It ends with its client, and what was done
// until then stays.
func (a *API) redrive(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := redriveQuery(w, r, &access)
	if err != nil {
		return reply{}, err
	}
	to, err := access.redriver()
	if err != nil {
		return reply{}, err
	}
	q.By = access.by(r)
	ctx, cancel := a.untilStop(r.Context())
	defer cancel()
	if accepted(r, "application/json", transfer.NDJSON) == transfer.NDJSON {
		return a.redriveLines(ctx, cancel, w, r, to, q)
	}
	result, err := to.Redrive(ctx, q)
	if err != nil {
		return reply{}, redriveError(ctx, &result, err)
	}
	return jsonReply(http.StatusOK, result)
}

// redriveError adds to an error how far it went, where it went anywhere.
func redriveError(ctx context.Context, result *admin.RedriveResult, err error) error {
	err = withCause(ctx, err)
	if result.Matched == 0 {
		return err
	}
	return &partialError{err, result}
}

// redriveLines answers in lines: {"progress":…} for as long as it takes, and then the
// result, or the problem. One that is over before the first line is answered like any
// request.
func (a *API) redriveLines(ctx context.Context, cancel context.CancelFunc, w http.ResponseWriter, r *http.Request, to admin.Redriver, q admin.RedriveQuery) (reply, error) {
	lines := progressLines{writeTime: timeFor(ctx, w, writeWait, endWait), w: w, fresh: make(chan struct{}, 1)}
	defer lines.free()
	q.Progress = func(result admin.RedriveResult) {
		lines.set(result)
		select {
		case lines.fresh <- struct{}{}:
		default: // the token before has not been taken
		}
	}
	lines.set(admin.RedriveResult{Topic: q.Topic, Applied: q.Apply, After: q.After})
	over := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() {
		if lines.run(over) != nil {
			cancel() // the client is gone, or as good as gone
		}
	})
	result, err := to.Redrive(ctx, q)
	close(over)
	reporting.Wait()
	if err != nil {
		err = redriveError(ctx, &result, err)
	}
	if !lines.begun {
		if err != nil {
			return reply{}, err
		}
		w.Header().Set("Content-Type", transfer.NDJSON)
		return jsonReply(http.StatusOK, result)
	}
	if isGone(r.Context()) || lines.broken {
		a.breakOff(r, err)
	}
	var last []byte
	if err != nil {
		last = problemLine(err)
	} else if last, err = json.Marshal(result); err != nil {
		return reply{}, err
	}
	if err := lines.write(append(last, '\n')); err != nil {
		a.breakOff(r, err)
	}
	return reply{status: http.StatusOK, sent: true}, nil
}

// problemLine writes a problem as the last line of an answer.
func problemLine(err error) []byte {
	e := problemOf(err)
	status := statusOf(e.Code)
	line, failed := json.Marshal(newProblem(status, e))
	if done := doneBeside(err); failed == nil && done != nil {
		var members []byte
		members, failed = json.Marshal(done)
		line = slices.Concat(bytes.TrimSuffix(line, []byte("}")), []byte(","), bytes.TrimPrefix(members, []byte("{")))
	}
	if failed != nil {
		panic(failed) // strings and numbers
	}
	return line
}

// progressSilence is the silence, longer than that between two reports of an engine
// that makes progress, after which the client hears again how far it is: so that it knows that
// somebody is there.
const progressSilence = 1500 * time.Millisecond

// progressLines writes lines that say how far a redrive is.
type progressLines struct {
	*writeTime
	w      http.ResponseWriter
	begun  bool // a line was written, or tried to
	broken bool
	fresh  chan struct{} // holds one token while there is something new to say

	saying sync.Mutex
	line   []byte // what to say
}

// set notes how far it is.
func (p *progressLines) set(result admin.RedriveResult) {
	line, err := json.Marshal(struct {
		Progress admin.RedriveResult `json:"progress"`
	}{result})
	if err != nil {
		panic(err) // strings and numbers
	}
	p.saying.Lock()
	defer p.saying.Unlock()
	p.line = append(line, '\n')
}

// run writes lines until over is closed.
func (p *progressLines) run(over <-chan struct{}) error {
	silence := time.NewTimer(progressSilence)
	defer silence.Stop()
	for {
		select {
		case <-over:
			return nil
		case <-p.fresh:
		case <-silence.C:
		}
		silence.Reset(progressSilence)
		p.saying.Lock()
		line := p.line
		p.saying.Unlock()
		if err := p.write(line); err != nil {
			return err
		}
	}
}

func (p *progressLines) write(line []byte) error {
	if !p.begun {
		p.begun = true
		p.w.Header().Set("Content-Type", transfer.NDJSON)
		p.w.Header().Set("Cache-Control", "no-store")
		p.w.Header().Set("X-Accel-Buffering", "no") // or nginx waits for more
		p.w.WriteHeader(http.StatusOK)
	}
	p.allow()
	_, err := p.w.Write(line)
	if err == nil {
		err = p.control.Flush()
	}
	p.broken = p.broken || err != nil
	return err
}

// redriveBody is the body of a redrive: what the query could say too.
type redriveBody struct {
	Group   *string        `json:"group"`
	IDs     []string       `json:"ids"`
	Offsets []uint64       `json:"offsets"`
	FromTS  *int64         `json:"from_ts"`
	ToTS    *int64         `json:"to_ts"`
	Filter  jsontext.Value `json:"filter"` // as in SUBSCRIBE
	All     bool           `json:"all"`
	After   *uint64        `json:"after"`
	Limit   *int           `json:"limit"`
	Rate    *int           `json:"rate"`
}

// redriveQuery reads what is redriven, and how: all of it but apply from the query or
// from the body. Who forgets a parameter has changed nothing.
func redriveQuery(w http.ResponseWriter, r *http.Request, access *Access) (q admin.RedriveQuery, err error) {
	topic, err := topicOf(r)
	if err != nil {
		return q, err
	}
	query, err := queryOf(r)
	if err != nil {
		return q, err
	}
	limited := query.Has("limit") // without one, all there are
	given, err := single(query, append([]string{"apply", "limit", "rate"}, letterNames...)...)
	if err != nil {
		return q, err
	}
	if q.Apply, err = yes("apply", given["apply"]); err != nil {
		return q, err
	}
	delete(given, "apply")
	if !limited {
		delete(given, "limit")
	}
	body, err := access.readBody(w, r, maxOptionsBody)
	if err != nil {
		return q, err
	}
	body = bytes.TrimSpace(body)
	if len(body) > 0 && len(given) > 0 {
		return q, eventhub.Errorf(eventhub.CodeBadRequest, "what is redriven is given in the query and in the body; one of them is wanted")
	}
	var meant givenRedrive
	if len(body) > 0 {
		meant, err = redriveOfBody(body)
	} else {
		meant, err = redriveOfQuery(given)
	}
	if err != nil {
		return q, err
	}
	return meant.query(topic, q.Apply)
}

// givenRedrive is what a request says of a redrive; what is not given is nil.
type givenRedrive struct {
	givenLetters
	limit, rate *int
}

func redriveOfBody(body []byte) (g givenRedrive, err error) {
	var b redriveBody
	if err := strictjson.Unmarshal(body, &b); err != nil {
		return g, badBody(err)
	}
	g = givenRedrive{givenLetters{b.Group, b.IDs, b.Offsets, b.FromTS, b.ToTS, nil, b.All, b.After}, b.Limit, b.Rate}
	if len(b.Filter) > 0 && b.Filter.Kind() != 'n' {
		// Read by who reads that of a SUBSCRIBE: it means the same here.
		opts, err := subscribeOptions("t", "g", slices.Concat([]byte(`{"filter":`), b.Filter, []byte("}")))
		if err != nil {
			return g, err
		}
		g.Filter = opts.Filter
	}
	return g, nil
}

func redriveOfQuery(q map[string]string) (g givenRedrive, err error) {
	if g.givenLetters, err = lettersOfQuery(q); err != nil {
		return g, err
	}
	for name, into := range map[string]**int{"limit": &g.limit, "rate": &g.rate} {
		if v, ok := q[name]; ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				return g, eventhub.Errorf(eventhub.CodeBadRequest, "%s is %.20q; a number from 1 on is wanted", name, v)
			}
			*into = &n
		}
	}
	return g, nil
}

func (g *givenRedrive) query(topic string, apply bool) (q admin.RedriveQuery, err error) {
	q = admin.RedriveQuery{Apply: apply, Rate: value(g.rate)}
	if q.DeadLetterQuery, err = g.givenLetters.query(topic); err != nil {
		return q, err
	}
	q.Limit = value(g.limit)
	switch {
	case g.limit != nil && q.Limit < 1:
		return q, eventhub.Errorf(eventhub.CodeBadRequest, "limit is %d; a number from 1 on is wanted", q.Limit)
	case g.rate != nil && (q.Rate < 1 || q.Rate > admin.MaxRedriveRate):
		return q, eventhub.Errorf(eventhub.CodeBadRequest, "rate is %d a second; 1 to %d are allowed", q.Rate, admin.MaxRedriveRate)
	}
	return q, nil
}

// seenMarks reads how many marks of a dead letter its caller has seen.
func seenMarks(r *http.Request) (int, error) {
	given, err := parameters(r, "marks")
	if err != nil {
		return 0, err
	}
	text, ok := given["marks"]
	if !ok {
		return 0, nil
	}
	marks, err := strconv.Atoi(text)
	if err != nil || marks < 0 {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "marks is %.20q; how many the dead letter showed is wanted", text)
	}
	return marks, nil
}

// requeue publishes the event of a dead letter again, with the body as its payload.
func requeue(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, q, err := letterOfPath(r)
	marks := 0
	if err == nil {
		marks, err = seenMarks(r)
	}
	if err != nil {
		return reply{}, err
	}
	body, err := access.readBody(w, r, maxPayloadBody)
	if err != nil {
		return reply{}, err
	}
	to, err := access.redriver()
	if err != nil {
		return reply{}, err
	}
	if len(q.Offsets) == 0 {
		err := to.DeadLetters(r.Context(), q, func(d *admin.DeadLetter) error {
			q.Offsets = []uint64{d.Offset}
			return nil
		})
		if err != nil {
			return reply{}, err
		}
		if len(q.Offsets) == 0 {
			return reply{}, noDeadLetter(topic, r)
		}
	}
	payload, err := strictjson.AppendCompact(nil, body)
	if err != nil {
		payload = bytes.TrimSpace(body) // which is refused in the words of a publish
	}
	done, err := to.RequeueIf(r.Context(), topic, q.Offsets[0], payload, marks, access.by(r))
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, receiptOf(done))
}
