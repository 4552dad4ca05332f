package rest

import (
	"net/http"
	"strings"
	"testing"

	"eventhub"
)

// denied are Rights that allow nothing.
type denied struct{}

var errDenied = eventhub.Errorf(eventhub.CodeForbidden, "the token does not allow it")

func (denied) Backup() error { return errDenied }
func (denied) Import() error { return errDenied }

func (denied) Replay(string) error { return errDenied }

func (denied) Tail([]eventhub.Pattern) error { return errDenied }

// TestRightsComeBeforePlaces: who may not do something is told so, whether there is a place or
// not, and gets none: nothing is called and nothing of a body is waited for.
func TestRightsComeBeforePlaces(t *testing.T) {
	p := new(past)
	access := p.access()
	access.Rights = denied{}
	api, h := mount(t, access)
	for _, places := range []chan struct{}{nil, api.copies, api.importing, api.streams} {
		for len(places) < cap(places) {
			places <- struct{}{}
		}
		for _, what := range []string{"GET /v1/backup", "HEAD /v1/backup", "POST /v1/import", "GET /export?topic=t", "HEAD /export?topic=t",
			"GET /v1/topics/t/stream", "HEAD /v1/topics/t/stream", "HEAD /v1/topics/a.*/stream?from=earliest"} {
			method, path, _ := strings.Cut(what, " ")
			status, answer, header := request(h, method, path, "not read")
			if status != http.StatusForbidden {
				t.Errorf("%s: answered %d %s", what, status, answer)
			}
			if method == "POST" && header.Get("Connection") != "close" {
				t.Errorf("%s: the answer waits for the body: %v", what, header)
			}
		}
	}
	if p.copied != "" || p.count() > 0 {
		t.Errorf("a copy was made in %q, %d events were imported", p.copied, p.count())
	}
}

// followsOnly are Rights to follow topics.
type followsOnly struct{ denied }

func (followsOnly) Tail([]eventhub.Pattern) error { return nil }

// TestStateNeedsTheRightToRead: also where only the header of a stream is asked for.
func TestStateNeedsTheRightToRead(t *testing.T) {
	access := new(past).access()
	access.Rights = followsOnly{}
	_, h := mount(t, access)
	for target, want := range map[string]int{"/v1/topics/t/stream?from=offset&offset=1": http.StatusOK, "/v1/topics/t/stream?from=snapshot": http.StatusForbidden} {
		if status, answer, _ := request(h, "HEAD", target, ""); status != want {
			t.Errorf("HEAD %s: answered %d %s", target, status, answer)
		}
	}
}
