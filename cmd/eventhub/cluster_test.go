package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
)

// TestClusterStatus: what is shown of an answer of the hub.
func TestClusterStatus(t *testing.T) {
	const answer = `{"member":{"id":"hub2","role":"standby","epoch":3,"active":"hub1","position":102,"last":105,"behind_entries":3,"behind_ms":1500,"silent_ms":2500},
		"journal":{"durability":"replicated","used_bytes":1048576,"most_bytes":4194304,"now_ts":1700000060000},"members":[
		{"id":"hub1","urls":["ws://a","ws://b"],"active":true,"synced":101,"behind_entries":4,"layout":2,"seen_ts":1700000000000},
		{"id":"hub2","urls":[],"active":false,"synced":99,"behind_entries":6,"layout":1,"seen_ts":1700000051000},
		{"id":"hub3","urls":[],"active":false,"synced":0,"behind_entries":105,"layout":1,"seen_ts":1700000000000},
		{"id":"hub4","urls":[],"active":false,"synced":7,"behind_entries":98,"layout":1,"seen_ts":1700000000000,"released":true}]}`
	c := askFakeCluster(t, answer)
	var b strings.Builder
	if err := c.print(&b, false); err != nil {
		t.Fatal(err)
	}
	const want = `Leads:    hub1, epoch 3
Asked:    hub2, standby, behind for 1 s
Place:    102 of 105
Journal:  replicated, 1.0 MiB of 4.0 MiB (25 %), NO ANSWER for 2 s

Members
MEMBER  ROLE      SYNCED  BEHIND  SEEN       URLS
hub1    active       101       4  1 min ago  ws://a ws://b
hub2    standby       99       6  9 s ago    -
hub3    away           0     105  1 min ago  -
hub4    released       7      98  1 min ago  -
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
	c = askFakeCluster(t, `{"member":{"id":"hub1","role":"standby"},"journal":{"durability":"sync","used_bytes":5,"most_bytes":0},"members":[]}`)
	b.Reset()
	if err := c.print(&b, false); err != nil || !strings.Contains(b.String(), "Leads:    nobody yet\n") || !strings.Contains(b.String(), "sync, 5 B without a limit\n") {
		t.Errorf("printed\n%s, %v", b.String(), err)
	}
	c = askFakeCluster(t, `{"member":{"id":"hub1","role":"standby","last":7},"journal":{"durability":"sync","used_bytes":5,"most_bytes":0},"members":[]}`)
	b.Reset()
	if err := c.print(&b, false); err != nil || !strings.Contains(b.String(), "Leads:    not known to this hub yet\n") {
		t.Errorf("printed\n%s, %v", b.String(), err)
	}
}

// TestClusterStatusWhereItIsFull: a journal that is full is told from one that does not answer.
func TestClusterStatusWhereItIsFull(t *testing.T) {
	c := askFakeCluster(t, `{"member":{"id":"hub1","role":"active","active":"hub1","full_ms":41000},"journal":{"durability":"replicated","used_bytes":1048570,"most_bytes":1048576},"members":[]}`)
	var b strings.Builder
	if err := c.print(&b, false); err != nil || !strings.Contains(b.String(), "(100 %), FULL: it has taken nothing for 41 s\n") || strings.Contains(b.String(), "NO ANSWER") {
		t.Errorf("printed\n%s, %v", b.String(), err)
	}
}

// TestClusterStatusOfBefore: a hub that does not say the time of the journal's servers is read by the clock of this machine.
func TestClusterStatusOfBefore(t *testing.T) {
	c := askFakeCluster(t, fmt.Sprintf(`{"member":{"id":"hub1","role":"active","active":"hub1"},"journal":{"durability":"sync","used_bytes":5,"most_bytes":0},"members":[
		{"id":"hub2","urls":[],"active":false,"synced":99,"behind_entries":6,"layout":1,"seen_ts":%d}]}`, time.Now().Add(-time.Hour).UnixMilli()))
	var b strings.Builder
	if err := c.print(&b, false); err != nil || !strings.Contains(b.String(), "away") || !strings.Contains(b.String(), "1 h ago") {
		t.Errorf("printed\n%s, %v", b.String(), err)
	}
}

// TestClusterStatusWithoutJournal: a hub that looks for its journal since its start.
func TestClusterStatusWithoutJournal(t *testing.T) {
	c := askFakeCluster(t, `{"member":{"id":"hub1","role":"standby","silent_ms":4000},"journal":{"durability":"","used_bytes":0,"most_bytes":0},"members":[]}`)
	var b strings.Builder
	if err := c.print(&b, false); err != nil || !strings.Contains(b.String(), "Journal:  not reached since the start, NO ANSWER for 4 s\n") {
		t.Errorf("printed\n%s, %v", b.String(), err)
	}
}

func fakeOperations(t *testing.T, status int, answer string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/cluster" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("asked for %s with %q", r.URL, r.Header.Get("Authorization"))
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer)) // an error shows in the answer
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func askFakeCluster(t *testing.T, answer string) *cluster {
	t.Helper()
	r := reach{url: "ws://x:1", token: "secret"}
	c, err := r.askCluster(context.Background(), fakeOperations(t, 200, answer))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClusterErrors: each has its exit code, and says what is wrong.
func TestClusterErrors(t *testing.T) {
	r := reach{url: "ws://x:1", token: "secret"}
	for _, tt := range []struct {
		status int
		answer string
		code   int
		says   string
	}{
		{501, `{"code":"unsupported_op","detail":"this hub shares no journal; there is no cluster"}`, exitFailed, "shares no journal"},
		{403, `{"code":"forbidden","detail":"admin on ** is needed"}`, exitDenied, "is needed"},
		{404, "404 page not found", exitFailed, "answered 404 and no cluster"},
		{200, "{}", exitFailed, "answered 200 and no cluster"},
	} {
		_, err := r.askCluster(context.Background(), fakeOperations(t, tt.status, tt.answer))
		if exitCode(err) != tt.code || err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%d %s: %v, exit code %d; want %d with %q", tt.status, tt.answer, err, exitCode(err), tt.code, tt.says)
		}
	}
	_, err := r.askCluster(context.Background(), "127.0.0.1:1")
	if !errors.Is(err, client.ErrUnreachable) || exitCode(err) != exitUnreachable || eventhub.ErrorCode(err) != eventhub.CodeInternal {
		t.Errorf("without a hub: %v", err)
	}
}
