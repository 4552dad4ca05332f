package publish

import (
	"errors"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/store"
)

// A refusal is kept with its code, index and wait, and has room whatever its text is.
func TestRefusalsAreKept(t *testing.T) {
	for _, text := range []string{"no", strings.Repeat("ä", 4000), strings.Repeat("\x01", 4000), ""} {
		err := eventhub.AtIndex(&eventhub.Error{Code: eventhub.CodeRateLimited, Message: text, RetryAfter: time.Second}, "", 7)
		kept := encodeRefusal(err)
		if len(kept) == 0 || len(kept) > store.MaxRefusal {
			t.Errorf("%d bytes", len(kept))
		}
		var e *eventhub.Error
		if !errors.As(decodeRefusal(kept), &e) || e.Code != eventhub.CodeRateLimited || e.Index == nil || *e.Index != 7 {
			t.Errorf("%.50q: %+v", text, e)
		}
		if len(text) < mostRefusal && (e.RetryAfter != time.Second || e.Message != text) {
			t.Errorf("%q: %+v", text, e)
		}
	}
	if err := decodeRefusal([]byte("{")); eventhub.ErrorCode(err) != eventhub.CodeInternal {
		t.Error(err)
	}
}
