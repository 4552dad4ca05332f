package client_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"eventhub"
	"eventhub/client"
)

// TestRefusedUpgrade: what a hub says when it takes no WebSocket is in the error; what
// anybody else says is not.
func TestRefusedUpgrade(t *testing.T) {
	const problem = `{"type":"about:blank","title":"x","status":%d,"detail":"this is the operations listener","code":%q}`
	for name, r := range map[string]struct {
		status      int
		kind, body  string
		code        eventhub.Code
		unreachable bool
		says        string
	}{
		"of a hub's other listener": {404, "application/problem+json", fmt.Sprintf(problem, 404, "unsupported_op"), eventhub.CodeUnsupportedOp, true, "this is the operations listener"},
		"of a hub that denies":      {403, "application/problem+json", fmt.Sprintf(problem, 403, "forbidden"), eventhub.CodeForbidden, false, "this is the operations listener"},
		"of a web server":           {404, "text/html", "<html>" + problem, eventhub.CodeInternal, true, "404"},
		"of a proxy that denies":    {403, "text/html", "no", eventhub.CodeForbidden, false, "403"},
		"with half a problem":       {404, "application/problem+json", `{"code":"unsupp`, eventhub.CodeInternal, true, "404"},
		"with more than is read":    {404, "application/problem+json", `{"code":"unsupported_op","detail":"` + strings.Repeat("x", 16<<10) + `"}`, eventhub.CodeInternal, true, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", r.kind)
				w.WriteHeader(r.status)
				_, _ = w.Write([]byte(r.body)) // the client may be gone
			}))
			defer s.Close()
			_, err := client.Dial(bounded(t), "ws"+strings.TrimPrefix(s.URL, "http"))
			if err == nil || eventhub.ErrorCode(err) != r.code || errors.Is(err, client.ErrUnreachable) != r.unreachable || !strings.Contains(err.Error(), r.says) {
				t.Errorf("%v (%s); want %s, which says %q", err, eventhub.ErrorCode(err), r.code, r.says)
			}
		})
	}
}
