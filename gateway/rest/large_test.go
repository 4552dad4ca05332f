//go:build !race

package rest

// A page of events of a megabyte: its bound is fixed, and the race detector would look at each
// byte of it.

import (
	"encoding/json"
	"strings"
	"testing"

	"eventhub"
)

// TestReplayPagesAreBounded: large events end a page before the limit does, and none
// is left out.
func TestReplayPagesAreBounded(t *testing.T) {
	p := &past{events: chronicle(20, `"`+strings.Repeat("x", eventhub.MaxPayloadBytes-2)+`"`)}
	_, h := mount(t, p.access())
	status, answer, _ := request(h, "GET", "/replay?topic=t&limit=1000", "")
	var page struct {
		Count  int `json:"count"`
		Events []struct {
			Offset uint64 `json:"offset"`
		} `json:"events"`
		Next struct {
			From   string `json:"from"`
			Offset uint64 `json:"offset"`
		} `json:"next"`
	}
	if err := json.Unmarshal([]byte(answer), &page); err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	if n := len(page.Events); n != 8 || page.Count != n || page.Events[n-1].Offset+2 != page.Next.Offset || page.Next.From != "offset" {
		t.Errorf("%d events, count %d, next %+v", n, page.Count, page.Next)
	}
}
