package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"

	"eventhub"
)

// statuses are the HTTP statuses of the protocol's codes. A code that is not
// here is a 400: the client said something that the hub does not take.
var statuses = map[eventhub.Code]int{
	eventhub.CodeTooLarge:          http.StatusRequestEntityTooLarge,
	eventhub.CodeUnauthorized:      http.StatusUnauthorized,
	eventhub.CodeNoToken:           http.StatusUnauthorized,
	eventhub.CodeBadToken:          http.StatusUnauthorized,
	eventhub.CodeJWTInvalid:        http.StatusUnauthorized,
	eventhub.CodeForbidden:         http.StatusForbidden,
	eventhub.CodeUnknownID:         http.StatusNotFound,
	eventhub.CodeNotSubscribed:     http.StatusNotFound,
	eventhub.CodeGone:              http.StatusGone,
	eventhub.CodeAlreadySubscribed: http.StatusConflict,
	eventhub.CodeGroupMismatch:     http.StatusConflict,
	eventhub.CodeLeaseLost:         http.StatusConflict,
	eventhub.CodeConflict:          http.StatusConflict,
	eventhub.CodeBadSequence:       http.StatusConflict,
	eventhub.CodeFenced:            http.StatusConflict,
	eventhub.CodeUnknownProducer:   http.StatusConflict,
	eventhub.CodeWaitTimeout:       http.StatusGatewayTimeout,
	eventhub.CodeUnsupportedOp:     http.StatusNotImplemented,
	eventhub.CodeRateLimited:       http.StatusTooManyRequests,
	eventhub.CodeOverloaded:        http.StatusServiceUnavailable,
	eventhub.CodeShuttingDown:      http.StatusServiceUnavailable,
	eventhub.CodeNotActive:         http.StatusServiceUnavailable,
	eventhub.CodePublishFailed:     http.StatusInternalServerError,
	eventhub.CodeAckFailed:         http.StatusInternalServerError,
	eventhub.CodeInternal:          http.StatusInternalServerError,
}

func statusOf(code eventhub.Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusBadRequest
}

// problem is the body of an error: problem details (RFC 9457) with the
// protocol's code next to them.
type problem struct {
	Type   string        `json:"type"`
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail"`
	Code   eventhub.Code `json:"code"`
	Index  *int          `json:"index,omitempty"` // of the bad event in a list
	// Present is what an offset is that was expected to be another one.
	Present *uint64 `json:"present,omitempty"`
}

func newProblem(status int, e *eventhub.Error) problem {
	return problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: e.Message, Code: e.Code, Index: e.Index, Present: e.Present}
}

// atPlace says which event of a list the error is about, where it is about one; where
// writes its place as people look for it. It is used where an event is read and where the
// engine has judged it, and never for both.
func atPlace(err error, where func(i int) string) error {
	e := eventhub.AsError(err)
	if err == nil || e.Index == nil {
		return err
	}
	at := *e
	at.Message = where(*e.Index) + e.Message
	return &at
}

// ofList writes the place of an event in the list with that name.
func ofList(name string) func(i int) string {
	return func(i int) string { return name + "[" + strconv.Itoa(i) + "]: " }
}

// ofLines writes the place of an event by its line.
func ofLines(numbers []int) func(i int) string {
	return func(i int) string { return "line " + strconv.Itoa(numbers[i]) + ": " }
}

// alone removes the index of an event that came in no list.
func alone(err error) error {
	e := eventhub.AsError(err)
	if err == nil || e.Index == nil {
		return err
	}
	one := *e
	one.Index = nil
	return &one
}

// problemOf returns the error to report for err. A body that was cut off for its
// size is reported as the protocol reports it.
func problemOf(err error) *eventhub.Error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return eventhub.Errorf(eventhub.CodeTooLarge, "the body has more than %d bytes", tooLarge.Limit)
	}
	return eventhub.AsError(err)
}

// partialError is a failure of a request that has done something all the same: done,
// a JSON object, is what the answer would have been.
type partialError struct {
	error
	done any
}

func (p *partialError) Unwrap() error { return p.error }

// doneBeside returns what was done in spite of an error, nil for nothing.
func doneBeside(err error) any {
	var partial *partialError
	if errors.As(err, &partial) {
		return partial.done
	}
	return nil
}

// writeProblem answers with an error under a status, which is its code's except
// where the request fits no route. What was done all the same, nil for nothing,
// is added as extension members.
func writeProblem(w http.ResponseWriter, status int, e *eventhub.Error, done any) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if retry := e.RetryAfter; retry > 0 {
		// Rounded up: who comes back in time must not be too early.
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retry.Seconds()))))
	} else if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	answer, err := jsonReply(status, newProblem(status, e))
	if err == nil && done != nil {
		var members reply
		members, err = jsonReply(status, done)
		answer.body = slices.Concat(bytes.TrimSuffix(answer.body, []byte("}\n")), []byte(","), bytes.TrimPrefix(members.body, []byte("{")))
	}
	if err != nil {
		panic(err) // strings and numbers
	}
	w.Header().Set("Content-Type", "application/problem+json")
	write(w, answer)
}

// Refuse answers with an error as the API does, for a hub whose API is not open.
func Refuse(w http.ResponseWriter, e *eventhub.Error) { writeProblem(w, statusOf(e.Code), e, nil) }

func jsonReply(status int, v any) (reply, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return reply{}, err
	}
	return reply{status: status, body: append(body, '\n')}, nil
}
