package eventhub

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Code is the stable name of a failure. Every transport shows the same codes;
// programs branch on them, people read the message next to them.
type Code string

// The codes of the protocol. They are never renamed.
const (
	CodeBadJSON           Code = "bad_json"
	CodeBadRequest        Code = "bad_request"
	CodeBadTopic          Code = "bad_topic"
	CodeBadEvent          Code = "bad_event"
	CodeTooLarge          Code = "too_large"
	CodeUnauthorized      Code = "unauthorized"
	CodeNoToken           Code = "no_token"
	CodeBadToken          Code = "bad_token"
	CodeJWTInvalid        Code = "jwt_invalid"
	CodeForbidden         Code = "forbidden"
	CodeRateLimited       Code = "rate_limited"
	CodePublishFailed     Code = "publish_failed"
	CodeAckFailed         Code = "ack_failed"
	CodeLeaseLost         Code = "lease_lost"
	CodeWaitTimeout       Code = "wait_timeout"
	CodeAlreadySubscribed Code = "already_subscribed"
	CodeNotSubscribed     Code = "not_subscribed"
	CodeGroupMismatch     Code = "group_mismatch"
	CodeUnknownID         Code = "unknown_id"
	CodeGone              Code = "gone"
	CodeUnsupportedOp     Code = "unsupported_op"
	CodeConflict          Code = "conflict"
	// CodeBadSequence: the number of a publication is not the next one of its producer, nor one
	// whose answer is known.
	CodeBadSequence Code = "bad_sequence"
	// CodeUnknownProducer: the hub does not know the producer, or not any more.
	CodeUnknownProducer Code = "unknown_producer"
	// CodeFenced: somebody else has opened the producer since.
	CodeFenced       Code = "fenced"
	CodeOverloaded   Code = "overloaded"
	CodeShuttingDown Code = "shutting_down"
	// CodeNotActive: this hub is a standby, and another one takes requests.
	CodeNotActive Code = "not_active"
	CodeInternal  Code = "internal"
)

// Error is a failure that may be shown to whoever caused it: Message holds the
// offending field and value and never a secret, a payload or a path. Err is the
// cause for logs, reached by errors.Is and errors.As.
type Error struct {
	Code    Code
	Message string
	// Topic and Group say which subscription the failure is about, where the
	// failure ends one; Topic is as the subscription named it, so it may be a
	// pattern, and the Group of a tail is empty. Both are empty in other failures.
	Topic, Group string
	// Index is the place, from 0, of the event (or the ack-and-publish, or the
	// entry of another list) that the failure is about, where the request had a
	// list; nil where the failure is about the request as a whole. Nothing of the
	// list was done. See [AtIndex].
	Index *int
	// Present is what an offset is that was expected to be another one, with
	// CodeConflict; nil in other failures. See [PresentOffset].
	Present *uint64
	// Seq is the number of the publication that was refused, where the refusal has used it; else 0.
	Seq uint64
	// RetryAfter, when positive, says how long to wait before the same request
	// may succeed.
	RetryAfter time.Duration
	Err        error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf builds an Error without a cause.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap builds an Error with a cause, which stays out of the message.
func Wrap(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: cause}
}

// AtIndex returns a copy of err's Error with the Index i: it is about entry i of
// the list with that name, and its message begins with name[i], or stays as it is
// where name is empty. An error that has an Index already is returned as it is.
func AtIndex(err error, name string, i int) *Error {
	e := AsError(err)
	if e == nil || e.Index != nil {
		return e
	}
	at := *e
	if name != "" {
		at.Message = name + "[" + strconv.Itoa(i) + "]: " + e.Message
	}
	at.Index = &i
	return &at
}

// Ending returns a copy of err's Error that says which subscription has ended:
// Topic and Group are those of its options. An error that has a Topic already is
// returned as it is.
func Ending(err error, topic, group string) *Error {
	e := AsError(err)
	if e == nil || e.Topic != "" {
		return e
	}
	ended := *e
	ended.Topic, ended.Group = topic, group
	return &ended
}

// AsError finds the Error in err's chain. An error without one becomes
// CodeInternal with a message that gives nothing away; a context that ended
// becomes CodeShuttingDown. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &Error{Code: CodeShuttingDown, Message: "The request was cut short.", Err: err}
	}
	return &Error{Code: CodeInternal, Message: "Internal error; the hub's log has the cause.", Err: err}
}

// ErrorCode returns the code of err: that of the Error in its chain,
// CodeInternal for any other error, and "" for nil.
func ErrorCode(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
