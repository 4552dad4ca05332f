package rest

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
	"eventhub/internal/strictjson"
	"eventhub/wire"
)

// What was pulled is settled by its leases, by whoever has them. An answer has one
// result for each lease, in order.

type settled struct {
	Lease string `json:"lease"`
	// Stale: the verdict has no effect.
	Stale bool `json:"stale,omitempty"`
	// Code is unknown_id where there is no lease to extend.
	Code eventhub.Code `json:"code,omitempty"`
}

type settleAnswer struct {
	Results []settled `json:"results"`
	// Receipts are of the events that were published.
	Receipts []receipt `json:"receipts,omitempty"`
}

// maxDelay is the longest delay of a nack.
const maxDelay = 24 * time.Hour

// leases are what every body that settles has.
type leases struct {
	Leases []string `json:"leases"`
}

// settling is a request that settles deliveries.
type settling struct {
	topic, group string
	leases       []string
	refs         []eventhub.Ref
}

// readSettling reads the body into b; l is a part of b.
func readSettling(w http.ResponseWriter, r *http.Request, access *Access, b any, l *leases) (*settling, error) {
	topic, group, err := memberOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return nil, err
	}
	body, err := access.readBody(w, r, maxBatchBody)
	if err != nil {
		return nil, err
	}
	if err := strictjson.Unmarshal(body, b); err != nil {
		return nil, badBody(err)
	}
	s := &settling{topic: topic, group: group, leases: l.Leases}
	if n := len(s.leases); n == 0 || n > maxPull {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "leases has %d entries; 1 to %d are allowed", n, maxPull)
	}
	s.refs = make([]eventhub.Ref, len(s.leases))
	for i, text := range s.leases {
		lease, err := eventhub.ParseLease(text)
		if err == nil && lease.IsZero() {
			err = eventhub.Errorf(eventhub.CodeBadRequest, "lease %q names nothing", text)
		}
		if err != nil {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "leases[%d]: %s", i, eventhub.AsError(err).Message)
		}
		s.refs[i].Lease = lease
	}
	return s, nil
}

// answer makes the answer out of the outcomes, nil where all have counted.
func (s *settling) answer(outcomes []eventhub.Outcome) settleAnswer {
	a := settleAnswer{Results: make([]settled, len(s.leases))}
	for i, lease := range s.leases {
		a.Results[i].Lease = lease
		if outcomes == nil {
			continue
		}
		switch outcomes[i] {
		case eventhub.Stale:
			a.Results[i].Stale = true
		case eventhub.Unknown:
			a.Results[i].Code = eventhub.CodeUnknownID
		}
	}
	return a
}

// settle applies one verdict and answers.
func (s *settling) settle(r *http.Request, access Access, verdict eventhub.Settlement) (reply, error) {
	verdict.Refs = s.refs
	if err := verdict.Validate(); err != nil {
		return reply{}, err
	}
	outcomes, err := access.Subscriber.Settle(r.Context(), s.topic, s.group, verdict)
	if err != nil {
		return reply{}, err
	}
	if len(outcomes) == 1 && outcomes[0] == eventhub.Unknown {
		return reply{}, eventhub.Errorf(eventhub.CodeUnknownID, "%.48q is no lease that can be extended", s.leases[0])
	}
	return jsonReply(http.StatusOK, s.answer(outcomes))
}

// ack says that deliveries are done. With publish, the events and the acks are one
// step, all of it or nothing.
func ack(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	var body struct {
		leases
		Publish jsontext.Value `json:"publish"`
	}
	s, err := readSettling(w, r, &access, &body, &body.leases)
	if err != nil {
		return reply{}, err
	}
	events, err := s.published(body.Publish)
	if err != nil {
		return reply{}, err
	}
	if len(events) == 0 {
		return s.settle(r, access, eventhub.Settlement{Verdict: eventhub.Ack})
	}
	answered := make(chan struct{})
	hs := []eventhub.AckPublish{{Refs: s.refs, Events: events}}
	access.Subscriber.AckAndPublish(r.Context(), s.topic, s.group, hs, func([]eventhub.AckPublish) { close(answered) })
	<-answered
	if err := hs[0].Err; err != nil {
		return reply{}, atPlace(err, ofList("publish"))
	}
	answer := s.answer(nil)
	for _, rc := range hs[0].Receipts {
		answer.Receipts = append(answer.Receipts, receiptOf(rc))
	}
	return jsonReply(http.StatusOK, answer)
}

// published reads the events of an ack as they are in an ACK, by having one read.
func (s *settling) published(list jsontext.Value) ([]eventhub.Event, error) {
	if len(list) == 0 {
		return nil, nil
	}
	frame := appendFrameStart(nil, wire.OpAck, "t", "g")
	frame = strictjson.AppendString(append(frame, `,"lease":`...), s.leases[0])
	frame = append(frame, `,"publish":`...)
	frame = append(append(frame, list...), '}')
	req, err := decodeFrame(frame)
	if err != nil {
		return nil, err
	}
	return req.Events, nil
}

// nack says that deliveries have failed.
func nack(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	var body struct {
		leases
		Reason   string `json:"reason"`
		DelayMS  *int64 `json:"delay_ms"`
		Terminal bool   `json:"terminal"`
	}
	s, err := readSettling(w, r, &access, &body, &body.leases)
	if err != nil {
		return reply{}, err
	}
	verdict := eventhub.Settlement{Verdict: eventhub.Nack, Reason: body.Reason, Terminal: body.Terminal}
	if body.DelayMS != nil {
		// 0 asks for the event at once; in the domain it would mean the backoff.
		if verdict.Delay, err = milliseconds("delay_ms", *body.DelayMS, 0, maxDelay); err != nil {
			return reply{}, err
		}
		verdict.Delay = max(verdict.Delay, time.Millisecond)
	}
	return s.settle(r, access, verdict)
}

// modack moves the deadlines of leases.
func modack(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	var body struct {
		leases
		ExtendMS *int64 `json:"extend_ms"`
	}
	s, err := readSettling(w, r, &access, &body, &body.leases)
	if err != nil {
		return reply{}, err
	}
	verdict := eventhub.Settlement{Verdict: eventhub.Extend} // without a time: the pull's ack_timeout_ms
	if body.ExtendMS != nil {
		if verdict.By, err = milliseconds("extend_ms", *body.ExtendMS, eventhub.MinAckTimeout, eventhub.MaxAckTimeout); err != nil {
			return reply{}, err
		}
	}
	return s.settle(r, access, verdict)
}

// milliseconds makes a duration of a number from least to most.
func milliseconds(name string, ms int64, least, most time.Duration) (time.Duration, error) {
	if ms < least.Milliseconds() || ms > most.Milliseconds() {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s is %d; %d to %d are allowed", name, ms, least.Milliseconds(), most.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}
