package rest

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
	"eventhub/internal/naming"
	"eventhub/internal/strictjson"
	"eventhub/wire"
)

// maxPull is how many deliveries one pull takes, and how many leases are settled
// at once.
const maxPull = wire.MaxRefs

// pullOptions are those of SUBSCRIBE's opts that a pull may have: the others say
// how a subscription lives on.
var pullOptions = []string{"from", "ts", "after_id", "offset", "ack_timeout_ms", "max_attempts", "backoff", "ordering", "filter", "create"}

// pull hands deliveries to whoever asks: the request is a member of the group for
// as long as it lasts. What the client does not get goes back to the group.
func (a *API) pull(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	opts, wait, err := pullRequest(w, r, &access)
	if err == nil {
		err = access.page.take(0) // what was pulled is not refused
	}
	if err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.stopping, cancel)()
	var ended []eventhub.EndedGroup
	opts.OnEnded = func(e eventhub.EndedGroup) { ended = append(ended, e) }
	deliveries, err := access.Puller.Pull(ctx, opts, wait)
	if err != nil {
		return reply{}, err
	}
	if err := tokenEnded(r.Context()); err != nil {
		giveBack(access.Subscriber, opts, deliveries)
		return reply{}, err
	}
	if a.stopping.Err() != nil && len(deliveries) == 0 {
		return reply{}, errStopping
	}
	add := deliveredAs(r)
	size := len(pullStart) + len(pullEnd) + min(len(ended), wire.MaxEnded)*endedBytes
	for i := range deliveries {
		size += len(deliveries[i].Record) + deliveryBytes
	}
	access.page.force(size)
	body := append(make([]byte, 0, size), pullStart...)
	for i := range deliveries {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendDelivery(body, &deliveries[i], add)
	}
	body = append(wire.AppendEnded(append(body, ']'), ended), pullEnd...)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	out := a.patient(w)
	defer out.done()
	if r.Context().Err() != nil || out.write(body) != nil || out.flush() != nil {
		giveBack(access.Subscriber, opts, deliveries)
	}
	return reply{status: http.StatusOK, sent: true}, nil
}

const (
	pullStart = `{"deliveries":[`
	pullEnd   = "}\n"
	// deliveryBytes is about what a delivery has besides its record.
	deliveryBytes = 200
	// endedBytes is about what a topic takes in which the group had ended.
	endedBytes = eventhub.MaxTopicBytes + 64
)

// appendDelivery appends a delivery: the event as add does, and what EVENT has as
// ctx.
func appendDelivery(dst []byte, d *eventhub.Delivery, add appendDelivered) []byte {
	dst = append(dst, `{"event":`...)
	dst = add(dst, d)
	dst = append(dst, `,"ctx":{"attempt":`...)
	dst = strconv.AppendInt(dst, int64(d.Attempt), 10)
	dst = append(dst, `,"max_attempts":`...)
	dst = strconv.AppendInt(dst, int64(d.MaxAttempts), 10)
	dst = append(dst, `,"ack_deadline_ms":`...)
	dst = strconv.AppendInt(dst, d.AckTimeout.Milliseconds(), 10)
	dst = append(dst, `,"lease":"`...)
	dst = append(d.Lease.Append(dst), '"')
	if d.Redriven > 0 {
		dst = append(dst, `,"redriven":`...)
		dst = strconv.AppendInt(dst, int64(d.Redriven), 10)
	}
	if d.Gap != nil {
		dst = wire.AppendGap(append(dst, ','), d.Gap)
	}
	return append(dst, "}}"...)
}

// giveBack returns deliveries whose answer did not reach the client, as a lost
// connection does: the attempt counts, and they go to others at once. Should that
// fail, their leases run out.
func giveBack(to eventhub.Subscriber, opts eventhub.GroupOptions, deliveries []eventhub.Delivery) {
	s := eventhub.Settlement{Verdict: eventhub.Nack, Reason: "the client was gone before it was answered", Delay: time.Millisecond}
	for i := range deliveries {
		s.Refs = append(s.Refs, eventhub.Ref{Lease: deliveries[i].Lease})
	}
	if len(s.Refs) == 0 {
		return
	}
	_, _ = to.Settle(context.Background(), opts.Topic, opts.Group, s)
}

// pullRequest reads what is pulled: max and wait_ms in the query, the options of
// the group in the body, which may be empty.
func pullRequest(w http.ResponseWriter, r *http.Request, access *Access) (o eventhub.GroupOptions, wait time.Duration, _ error) {
	topic, group, err := memberOf(r)
	if err != nil {
		return o, 0, err
	}
	q, err := parameters(r, "max", "wait_ms")
	if err != nil {
		return o, 0, err
	}
	most, err := count(q, "max", 1, maxPull, eventhub.DefaultMaxInFlight)
	if err != nil {
		return o, 0, err
	}
	ms, err := count(q, "wait_ms", 0, int(eventhub.MaxPullWait.Milliseconds()), 0)
	if err != nil {
		return o, 0, err
	}
	body, err := access.readBody(w, r, maxOptionsBody)
	if err != nil {
		return o, 0, err
	}
	if o, err = subscribeOptions(topic, group, body); err != nil {
		return o, 0, err
	}
	o.MaxInFlight, o.Peer = most, peer(r)
	return o, time.Duration(ms) * time.Millisecond, nil
}

// maxOptionsBody is far more than a filter and what else there is needs.
const maxOptionsBody = 256 << 10

// subscribeOptions reads options as they are in a SUBSCRIBE, by having one read:
// what means something there means the same here.
func subscribeOptions(topic, group string, body []byte) (eventhub.GroupOptions, error) {
	var o eventhub.GroupOptions
	if body = bytes.TrimSpace(body); len(body) == 0 {
		body = []byte("{}")
	}
	var given map[string]jsontext.Value
	if err := strictjson.Unmarshal(body, &given); err != nil {
		return o, badBody(err)
	}
	for name := range given {
		if !slices.Contains(pullOptions, naming.Canonical(name)) {
			return o, eventhub.Errorf(eventhub.CodeBadRequest, "the body has %.48q, which is no option of a pull%s", name, naming.DidYouMean(name, pullOptions))
		}
	}
	frame := appendFrameStart(nil, wire.OpSubscribe, topic, group)
	frame = append(frame, `,"opts":`...)
	frame = append(append(frame, body...), '}')
	req, err := decodeFrame(frame)
	return req.Subscribe.GroupOptions, err
}

// memberOf reads topic, which may be a pattern, and group.
func memberOf(r *http.Request) (topic, group string, err error) {
	topic, group = r.PathValue("topic"), r.PathValue("group")
	if _, err := eventhub.ParsePattern(topic); err != nil {
		return "", "", err
	}
	return topic, group, eventhub.ValidateGroup(group)
}

// count reads a number in a query.
func count(q map[string]string, name string, least, most, absent int) (int, error) {
	text, given := q[name]
	if !given {
		return absent, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s %.20q is not a number from %d to %d", name, text, least, most)
	}
	return n, nil
}

// appendFrameStart begins a frame of the WebSocket protocol.
func appendFrameStart(dst []byte, op wire.Op, topic, group string) []byte {
	dst = strictjson.AppendString(append(dst, `{"op":`...), string(op))
	dst = strictjson.AppendString(append(dst, `,"topic":`...), topic)
	return strictjson.AppendString(append(dst, `,"group":`...), group)
}

// decodeFrame reads a frame; what it returns may refer to it.
func decodeFrame(frame []byte) (req wire.Request, _ error) {
	var d wire.Decoder
	err := d.Decode(frame, &req)
	return req, err
}
