package eventhub

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Code is the stable name of a failure. Every transport shows the same codes;
// programs branch on them, people read the message beside them.
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
	CodeUnsupportedOp     Code = "unsupported_op"
	CodeOverloaded        Code = "overloaded"
	CodeShuttingDown      Code = "shutting_down"
	CodeInternal          Code = "internal"
)

// Error is a failure that may be shown to whoever caused it: Message holds the
// offending field and value and never a secret, a payload or a path. Err is the
// cause for logs, reached by errors.Is and errors.As.
type Error struct {
	Code    Code
	Message string
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
