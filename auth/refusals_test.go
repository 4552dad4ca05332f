package auth

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
)

// refusing returns Refusals and how many lines with a text they have logged. They log under
// their lock.
func refusing() (r *Refusals, logged func(string) int) {
	var out bytes.Buffer
	r = NewRefusals(slog.New(slog.NewTextHandler(&out, nil)))
	return r, func(text string) int {
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		return strings.Count(out.String(), text)
	}
}

// kept is how many addresses and reasons take memory.
func (r *Refusals) kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.recent)
}

var wrong = eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")

// TestRefusalsAreLoggedOnceAMinute, with how many were not, for each address and reason.
func TestRefusalsAreLoggedOnceAMinute(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, logged := refusing()
		defer r.Close()
		want := func(text string, n int) {
			t.Helper()
			if got := logged(text); got != n {
				t.Errorf("%d lines with %q; want %d", got, text, n)
			}
		}
		for i := range 100 {
			r.Add("http", fmt.Sprintf("192.0.2.1:%d", 5000+i), wrong)
		}
		want("level=WARN", 1)
		want("remote=192.0.2.1:5000 reason=bad_token", 1)
		r.Add("http", "192.0.2.2:5000", wrong)
		r.Add("ws", "192.0.2.1:5000", eventhub.Errorf(eventhub.CodeNoToken, "no"))
		want("level=WARN", 3)
		time.Sleep(LogEvery)
		want("times=99", 1)
		want("level=WARN", 4)
		time.Sleep(time.Hour) // nothing more came
		want("level=WARN", 4)
		if n := r.kept(); n != 0 {
			t.Errorf("%d refusals are kept after an hour", n)
		}
		r.Add("http", "192.0.2.1:1", wrong)
		want("level=WARN", 5)
		if got := fmt.Sprint(r.Measure()); got != "[{http bad_token 102} {ws no_token 1}]" {
			t.Errorf("counted %s", got)
		}
	})
}

// TestRefusalsFromVeryManyAddresses take bounded memory and lines.
func TestRefusalsFromVeryManyAddresses(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, logged := refusing()
		const addresses = 3 * maxAddresses
		for i := range addresses {
			r.Add("http", fmt.Sprintf("[2001:db8::%x]:443", i), wrong)
		}
		if n := r.kept(); n > maxAddresses+1 {
			t.Errorf("%d addresses are kept", n)
		}
		if n := logged("level=WARN"); n != maxAddresses+1 {
			t.Errorf("%d lines", n)
		}
		time.Sleep(LogEvery)
		if n := logged(fmt.Sprintf("remote=others reason=bad_token times=%d", addresses-maxAddresses-1)); n != 1 {
			t.Errorf("%d lines about the others", n)
		}
		r.Close()
		r.Add("http", "192.0.2.1:1", wrong)
		if got := fmt.Sprint(r.Measure()); got != fmt.Sprintf("[{http bad_token %d}]", addresses+1) {
			t.Errorf("counted %s", got)
		}
	})
}

// TestCountsBeginWithNothing: an alert on the increase of a counter does not see the value with which it begins.
func TestCountsBeginWithNothing(t *testing.T) {
	r := NewRefusals(slog.New(slog.DiscardHandler), "ws", "http")
	defer r.Close()
	begins := make(map[string]bool)
	for _, kind := range r.Measure() {
		begins[kind.Transport+" "+kind.Reason] = kind.Count == 0
	}
	for _, code := range []eventhub.Code{eventhub.CodeUnauthorized, eventhub.CodeNoToken, eventhub.CodeBadToken, eventhub.CodeJWTInvalid} {
		for _, transport := range []string{"ws", "http"} {
			if !begins[transport+" "+string(code)] {
				t.Errorf("%s over %s does not begin with 0", code, transport)
			}
		}
	}
	r.Add("http", "192.0.2.1:5000", wrong)
	for _, kind := range r.Measure() {
		if want := uint64(strings.Count(kind.Transport+kind.Reason, "httpbad_token")); kind.Count != want {
			t.Errorf("%+v; want %d", kind, want)
		}
	}
}
