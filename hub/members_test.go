package hub_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// sharing returns what a hub needs that shares a journal by a handle. The operations listener is
// apart, which a hub has before it has joined.
func sharing(t *testing.T, id string, handle journal.Journal) hub.Config {
	return hub.Config{
		Store: t.TempDir(), WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "localhost:0",
		OpenJournal: func(context.Context) (journal.Journal, error) { return handle, nil },
		MemberID:    id, MemberURLs: []string{"ws://" + id}, Lease: time.Second,
	}
}

// asks returns what the operations listener answers.
func asks(t *testing.T, h *hub.Hub, path string) (status int, body string) {
	t.Helper()
	resp, err := http.Get("http://" + h.OpsAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// until asks again and again, for nobody is notified of readiness.
func until(t *testing.T, h *hub.Hub, path string, status int, part string) {
	t.Helper()
	var got int
	var body string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got, body = asks(t, h, path); got == status && strings.Contains(body, part) {
			return
		}
	}
	t.Fatalf("%s answers %d %s for a minute; want %d with %q", path, got, body, status, part)
}

// TestIdleHubHasEverything: a hub that leads says that it has what the journal has where nothing comes but signs of life: a
// journal could not be trimmed of them, and would fill and stay full.
func TestIdleHubHasEverything(t *testing.T) {
	j := memory.New(memory.Options{})
	h := start(t, sharing(t, "one", j.Open()))
	until(t, h, "/readyz", 200, "ok")
	if _, err := h.Bus().Publish(t.Context(), eventhub.Event{Topic: "t", Payload: json.RawMessage(`"` + strings.Repeat("x", 50_000) + `"`)}); err != nil {
		t.Fatal(err)
	}
	limits, err := j.Open().Limits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	j.SetMost(limits.Used * 100 / 85) // it says at once how it is
	want := h.Place() + 8             // a sign of life is an entry
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var v struct {
			Members []struct {
				Synced uint64 `json:"synced"`
			} `json:"members"`
		}
		_, body := asks(t, h, "/cluster")
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		if len(v.Members) == 1 && v.Members[0].Synced >= want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s; want a member that has place %d", body, want)
		}
	}
}

// TestMembersAreSeen: the operations listeners of the hub that leads and of one that follows say how
// both are, and whether the second one could take over.
func TestMembersAreSeen(t *testing.T) {
	j := memory.New(memory.Options{Most: 1 << 30})
	first := start(t, sharing(t, "one", j.Open()))
	until(t, first, "/readyz", 200, "ok")
	if _, err := first.Bus().Publish(t.Context(), eventhub.Event{Topic: "t", Payload: json.RawMessage("1")}); err != nil {
		t.Fatal(err)
	}
	handle := j.Open()
	second := start(t, sharing(t, "two", handle))
	until(t, second, "/readyz?role=standby", 200, "ok")
	if status, body := asks(t, second, "/readyz"); status != 503 || !strings.Contains(body, "standby of one") {
		t.Errorf("a standby is ready: %d %s", status, body)
	}
	if status, body := asks(t, first, "/readyz?role=standby"); status != 503 || !strings.Contains(body, "this hub leads the journal") {
		t.Errorf("who leads is a standby: %d %s", status, body)
	}
	for h, want := range map[*hub.Hub][]string{
		first:  {"member_active 1", "member_epoch 1", "failovers_total 1", "journal_most_bytes 1.073741824e+09", "journal_behind_entries 0"},
		second: {"member_active 0", "member_epoch 1", "failovers_total 0", "journal_append_seconds_count 0", "journal_silent_seconds 0"},
	} {
		_, body := asks(t, h, "/metrics")
		for _, line := range want {
			if !strings.Contains(body, "\neventhub_"+line+"\n") {
				t.Errorf("%s does not expose %s", h.OpsAddr(), line)
			}
		}
		for _, name := range []string{"free", "needed", "size"} { // the disk of a standby fills too
			if !regexp.MustCompile(`(?m)^eventhub_store_` + name + `_bytes [1-9]`).MatchString(body) {
				t.Errorf("%s does not say what is %s of its store", h.OpsAddr(), name)
			}
		}
		if h == first && strings.Contains(body, "\neventhub_journal_append_seconds_count 0\n") {
			t.Error("the appends of the hub that leads are not measured")
		}
	}
	until(t, second, "/cluster", 200, `"id":"two","urls":`) // it says so once it has caught up
	if status, body := asks(t, second, "/cluster"); status != 200 || !strings.Contains(body, `"member":{"id":"two","role":"standby","epoch":1,"active":"one"`) || !strings.Contains(body, `{"id":"one","urls":["ws://one"],"active":true`) {
		t.Errorf("the standby shows %d %s", status, body)
	}
	// The members are seen by the clock of the journal's servers, which the listener says too.
	j.SetAhead(time.Hour)
	third := start(t, sharing(t, "three", j.Open()))
	until(t, third, "/cluster", 200, `"id":"three","urls":["ws://three"]`)
	var v struct {
		Journal struct {
			NowTS int64 `json:"now_ts"`
		} `json:"journal"`
		Members []struct {
			ID     string `json:"id"`
			SeenTS int64  `json:"seen_ts"`
		} `json:"members"`
	}
	if _, body := asks(t, third, "/cluster"); json.Unmarshal([]byte(body), &v) != nil || len(v.Members) != 3 {
		t.Errorf("the third member shows %s", body)
	}
	for _, m := range v.Members {
		if ago := v.Journal.NowTS - m.SeenTS; m.ID == "three" && (ago < 0 || ago > time.Minute.Milliseconds()) {
			t.Errorf("%s was seen %d ms ago", m.ID, ago)
		}
	}
	if ahead := time.Until(time.UnixMilli(v.Journal.NowTS)); ahead < 59*time.Minute {
		t.Errorf("the clock of the servers is said to be %s ahead; want 1 h", ahead)
	}
	if status, body := asks(t, first, "/cluster"); status != 200 || !strings.Contains(body, `"member":{"id":"one","role":"active","epoch":1,"active":"one"`) || !strings.Contains(body, `"journal":{"durability":"`) {
		t.Errorf("who leads shows %d %s", status, body)
	}
	handle.Cut(true)
	until(t, second, "/readyz?role=standby", 503, "the journal has not answered for")
	handle.Cut(false)
	until(t, second, "/readyz?role=standby", 200, "ok")
}
