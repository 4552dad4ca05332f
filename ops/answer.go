package ops

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"eventhub"
)

// problem is the body of an error: problem details (RFC 9457) with the
// protocol's code, as the HTTP API answers them, and the text once more under the
// name that the seeds' dashboard gives it.
type problem struct {
	Type   string        `json:"type"`
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail"`
	Code   eventhub.Code `json:"code"`
	Error  string        `json:"error"`
}

// statusOf is the status of the codes that a question can be answered with.
func statusOf(code eventhub.Code) int {
	switch code {
	case eventhub.CodeUnauthorized, eventhub.CodeNoToken, eventhub.CodeBadToken, eventhub.CodeJWTInvalid:
		return http.StatusUnauthorized
	case eventhub.CodeForbidden:
		return http.StatusForbidden
	case eventhub.CodeUnknownID, eventhub.CodeNotSubscribed:
		return http.StatusNotFound
	case eventhub.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case eventhub.CodeRateLimited:
		return http.StatusTooManyRequests
	case eventhub.CodeOverloaded, eventhub.CodeShuttingDown, eventhub.CodeNotActive:
		return http.StatusServiceUnavailable
	case eventhub.CodeGone:
		return http.StatusGone
	case eventhub.CodeUnsupportedOp:
		return http.StatusNotImplemented
	case eventhub.CodeInternal:
		return http.StatusInternalServerError
	default:
		return http.StatusBadRequest
	}
}

func writeProblem(w http.ResponseWriter, e *eventhub.Error) {
	status := statusOf(e.Code)
	if errors.Is(e, errEncoded) {
		status = http.StatusUnsupportedMediaType
	}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		wait := max(e.RetryAfter, time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: e.Message, Code: e.Code, Error: e.Message,
	})
}

// writeJSON answers with status and v.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
	return nil
}

// writeText answers with status and lines of text.
func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // an error means that the client is gone
}
