package ws

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"eventhub"
)

// isUpgrade reports whether a WebSocket is asked for; whether in the right way
// is checkHandshake's to say, and the upgrader's.
func isUpgrade(r *http.Request) bool { return hasToken(r.Header, "Upgrade", "websocket") }

// hasToken reports whether a header has the token in one of its lists, in any case:
// a list may be parted into several lines (RFC 9110, section 5.3).
func hasToken(h http.Header, name, token string) bool {
	return slices.ContainsFunc(h.Values(name), func(line string) bool {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
		return false
	})
}

// checkHandshake says what is wrong with a request for an upgrade, of what the
// upgrader does not look at or understands otherwise, and brings the rest into the
// form that it knows.
//
// A body is refused: this side would take it for frames and a proxy in front for a
// body, so that one of two users of a connection could speak for the other.
func checkHandshake(r *http.Request) (refusal string) {
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return "A request for a WebSocket has no body."
	}
	if !hasToken(r.Header, "Connection", "upgrade") {
		return "The header Connection does not have Upgrade."
	}
	keys := r.Header.Values("Sec-WebSocket-Key")
	if len(keys) != 1 {
		return "The header Sec-WebSocket-Key is expected once."
	}
	if nonce, err := base64.StdEncoding.DecodeString(keys[0]); err != nil || len(nonce) != 16 {
		return "The header Sec-WebSocket-Key is not the base64 of 16 bytes."
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	return ""
}

// refuseUpgrade answers a request that becomes no WebSocket, in the form of the errors of
// the HTTP API (RFC 9457).
func refuseUpgrade(w http.ResponseWriter, status int, code eventhub.Code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(struct {
		Type   string        `json:"type"`
		Title  string        `json:"title"`
		Status int           `json:"status"`
		Detail string        `json:"detail"`
		Code   eventhub.Code `json:"code"`
	}{"about:blank", http.StatusText(status), status, detail, code})
}
