package hub_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/hub"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// clusterWithin is how long a test waits for what a lease of a second takes.
const clusterWithin = 30 * time.Second

// memberConfig is that of a hub which shares a journal in memory.
func memberConfig(j *memory.Handle, name, dir string) hub.Config {
	return hub.Config{
		Store: dir, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "[::1]:0", Grace: 2 * time.Second,
		OpenJournal: func(context.Context) (journal.Journal, error) { return j, nil },
		MemberID:    name, MemberURLs: []string{"ws://" + name}, Lease: time.Second,
	}
}

// ask returns the answer of a listener.
func ask(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// awaitReady waits until a hub serves.
func awaitReady(t *testing.T, h *hub.Hub) {
	t.Helper()
	awaitReadiness(t, h, func(status int, _ string) bool { return status == http.StatusOK })
}

func awaitReadiness(t *testing.T, h *hub.Hub, is func(status int, text string) bool) {
	t.Helper()
	for end := time.Now().Add(clusterWithin); ; time.Sleep(10 * time.Millisecond) {
		status, text := ask(t, "http://"+h.OpsAddr()+"/readyz")
		if is(status, text) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("readyz is %d %s", status, text)
		}
	}
}

func publishHTTP(t *testing.T, h *hub.Hub, id string) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+h.HTTPAddr()+"/publish/t?id="+id, "application/json", strings.NewReader("1"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func mustPublish(t *testing.T, h *hub.Hub, id string) {
	t.Helper()
	if status, body := publishHTTP(t, h, id); status/100 != 2 {
		t.Fatalf("publish of %s: %d %s", id, status, body)
	}
}

// mustHave checks the ids of topic t.
func mustHave(t *testing.T, h *hub.Hub, ids ...string) {
	t.Helper()
	_, body := ask(t, "http://"+h.HTTPAddr()+"/replay?topic=t")
	at := 0
	for _, id := range ids {
		next := strings.Index(body[at:], fmt.Sprintf("%q", id))
		if next < 0 {
			t.Fatalf("%s is not there, or out of order: %s", id, body)
		}
		at += next
	}
}

// TestStandby: a standby refuses clients and says who leads, its operations listener works, and
// it takes over when the other hub stops.
func TestStandby(t *testing.T) {
	j := memory.New(memory.Options{})
	dir := t.TempDir()
	a, err := hub.Start(memberConfig(j.Open(), "a", dir))
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, a)
	mustPublish(t, a, "one")
	b := start(t, memberConfig(j.Open(), "b", t.TempDir()))
	awaitReadiness(t, b, func(_ int, text string) bool {
		return strings.Contains(text, "standby of a (ws://a), epoch 1, 0 entries behind")
	})
	for _, path := range []string{"/v1/topics", "/", "/ws", "/nowhere"} {
		status, body := ask(t, "http://"+b.HTTPAddr()+path)
		if status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"not_active"`) || !strings.Contains(body, "ws://a") {
			t.Errorf("GET %s of the standby: %d %s", path, status, body)
		}
	}
	for path, want := range map[string]int{"/livez": 200, "/metrics": 200, "/cursors": 503, "/": 200, "/console/app.js": 200, "/console/rights": 200, "/console/events?topic=a": 503, "/console/topics": 503, "/console/api/v1/topics": 503} {
		if status, body := ask(t, "http://"+b.OpsAddr()+path); status != want {
			t.Errorf("GET %s of the standby: %d %s; want %d", path, status, body, want)
		}
	}
	for _, path := range []string{"/console/api/v1/topics", "/console/events?topic=a", "/console/topics", "/cursors", "/lag", "/inflight", "/snapshots?topic=a", "/latest-by-key?topic=a"} {
		if _, body := ask(t, "http://"+b.OpsAddr()+path); !strings.Contains(body, `"code":"not_active"`) || !strings.Contains(body, "ws://a") {
			t.Errorf("GET %s of the standby answers %s", path, body)
		}
	}
	if err := a.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, b)
	if status, body := ask(t, "http://"+b.OpsAddr()+"/console/api/v1/topics"); status != 200 {
		t.Errorf("the API for the console of the hub that leads now: %d %s", status, body)
	}
	mustPublish(t, b, "two")
	mustPublish(t, b, "one")
	mustHave(t, b, "one", "two")
	c := start(t, memberConfig(j.Open(), "a", dir))
	awaitReadiness(t, c, func(_ int, text string) bool {
		return strings.Contains(text, "standby of b (ws://b), epoch 2, 0 entries behind")
	})
}

// TestSucceeded: a hub that was cut off says no OK any more, and fails as one that another hub
// has succeeded.
func TestSucceeded(t *testing.T) {
	t.Run("its append is refused", func(t *testing.T) { testSucceeded(t, func(*memory.Journal) {}) })
	// As where the journal is nearly full: nobody waits for a member that is frozen for more than a minute.
	t.Run("the journal is trimmed beyond it", func(t *testing.T) { testSucceeded(t, func(j *memory.Journal) { trimAll(t, j) }) })
}

func testSucceeded(t *testing.T, meanwhile func(*memory.Journal)) {
	j := memory.New(memory.Options{})
	handle := j.Open()
	a, err := hub.Start(memberConfig(handle, "a", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, a)
	mustPublish(t, a, "one")
	b := start(t, memberConfig(j.Open(), "b", t.TempDir()))
	awaitReadiness(t, b, func(_ int, text string) bool { return strings.Contains(text, "0 entries behind") })
	handle.Cut(true)
	answered := make(chan int, 1)
	go func() {
		status := 0
		resp, err := http.Post("http://"+a.HTTPAddr()+"/publish/t?id=lost", "application/json", strings.NewReader("1"))
		if err == nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		answered <- status
	}()
	awaitReady(t, b)
	mustPublish(t, b, "two")
	// Whether it has noticed or not: it does not know of that one.
	if resp, err := http.Get("http://" + a.HTTPAddr() + "/replay?topic=t"); err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("the hub that was cut off answers a reader with %s", resp.Status)
		}
	}
	meanwhile(j)
	handle.Cut(false)
	select {
	case err := <-a.Failed():
		if !hub.IsSucceeded(err) {
			t.Errorf("the hub that was cut off fails with %v", err)
		}
	case <-time.After(clusterWithin):
		t.Error("the hub that was cut off does not notice")
	}
	if err := a.Stop(context.Background()); !hub.IsSucceeded(err) {
		t.Errorf("it stops with %v", err)
	}
	if status := <-answered; status/100 == 2 {
		t.Errorf("it said %d to a publish that is not in the log", status)
	}
	mustHave(t, b, "one", "two")
	if _, body := ask(t, "http://"+b.HTTPAddr()+"/replay?topic=t"); strings.Contains(body, "lost") {
		t.Errorf("what was never settled is in the log: %s", body)
	}
}

// takeLead has another hub lead the journal, which serves nobody.
func takeLead(t *testing.T, j *memory.Journal, name string) *journal.Leader {
	t.Helper()
	log := journal.New(j.Open())
	var at journal.Position
	for range 100 {
		last, err := j.Open().Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		errEnd := errors.New("all was read")
		if err := log.Follow(t.Context(), at, func(e journal.Entry) error {
			if at = e.Position; at.Seq >= last {
				return errEnd
			}
			return nil
		}); !errors.Is(err, errEnd) {
			t.Fatal(err)
		}
		leader, err := log.Lead(t.Context(), at, name, 1)
		if err == nil {
			return leader
		}
	}
	t.Fatal("the other hub does not come to lead")
	return nil
}

// TestAnswersOfSucceeded: what comes to a hub that another one has succeeded is answered with not_active and
// who that is.
func TestAnswersOfSucceeded(t *testing.T) {
	j := memory.New(memory.Options{})
	if _, err := j.Open().Announce(t.Context(), journal.Member{ID: "b", URLs: []string{"ws://b"}}); err != nil {
		t.Fatal(err)
	}
	a, err := hub.Start(memberConfig(j.Open(), "a", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Stop(context.Background()) }() // with the same error
	awaitReady(t, a)
	mustPublish(t, a, "one")
	awaitReadiness(t, a, func(int, string) bool { // it has heard of the other one
		_, body := ask(t, "http://"+a.OpsAddr()+"/cluster")
		return strings.Contains(body, "ws://b")
	})
	defer takeLead(t, j, "b").Close()
	for range 2 { // the first may be what finds it out
		status, body := publishHTTP(t, a, "late")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"not_active"`) || !strings.Contains(body, "b (ws://b) leads") {
			t.Errorf("a publish to a hub that was succeeded: %d %s", status, body)
		}
	}
	<-a.Failed()
	if status, body := ask(t, "http://"+a.OpsAddr()+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "this hub leads no more") {
		t.Errorf("readyz of a hub that was succeeded: %d %s", status, body)
	}
}

// TestAnswersInDoubt: a publish that was under way when the journal went away gets no answer; nothing is
// done of one that comes after that was given up.
func TestAnswersInDoubt(t *testing.T) {
	j := memory.New(memory.Options{})
	handle := j.Open()
	a, err := hub.Start(memberConfig(handle, "a", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Stop(context.Background()) }() // with the same error
	awaitReady(t, a)
	handle.Cut(true)
	if resp, err := http.Post("http://"+a.HTTPAddr()+"/publish/t?id=under-way", "application/json", strings.NewReader("1")); err == nil {
		resp.Body.Close()
		t.Errorf("a publish under way without the journal: %s", resp.Status)
	}
	if status, body := publishHTTP(t, a, "late"); status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"not_active"`) {
		t.Errorf("a publish without the journal: %d %s", status, body)
	}
	handle.Cut(false)
	awaitReady(t, a)
	if _, body := ask(t, "http://"+a.HTTPAddr()+"/replay?topic=t"); strings.Contains(body, "late") {
		t.Errorf("what was refused is there: %s", body)
	}
}

// TestSingleHubJoins: the store of a hub alone becomes the first member, others are made of a copy of
// it, and a copy becomes a store of its own.
func TestSingleHubJoins(t *testing.T) {
	j := memory.New(memory.Options{})
	dir := t.TempDir()
	alone, err := hub.Start(hub.Config{Store: dir, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	mustPublish(t, alone, "before")
	if err := alone.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	cfg := memberConfig(j.Open(), "a", dir)
	cfg.HTTPAddr = freeAddr(t)
	cfg.MemberURLs = []string{"http://" + cfg.HTTPAddr}
	a, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, a)
	mustPublish(t, a, "after")
	mustHave(t, a, "before", "after")
	fetching := memberConfig(j.Open(), "fetching", t.TempDir())
	late, err := hub.Start(fetching)
	if err != nil {
		t.Fatal(err)
	}
	standsBy(t, late)
	awaitPlace(t, j, late)
	if err := late.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	mustHold(t, fetching.Store, 2)

	other := t.TempDir()
	one, err := hub.Start(hub.Config{Store: other, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Start(memberConfig(j.Open(), "c", other)); err == nil || !strings.Contains(err.Error(), "entries of others") {
		t.Errorf("the store of another hub joins: %v", err)
	}
	if err := a.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}

	copied, detached := filepath.Join(t.TempDir(), "copy"), filepath.Join(t.TempDir(), "detached")
	for _, to := range []string{copied, detached} {
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	mustHold(t, copied, 2)
	b := start(t, memberConfig(j.Open(), "b", copied))
	awaitReady(t, b)
	mustPublish(t, b, "of-the-copy")
	mustHave(t, b, "before", "after", "of-the-copy")

	if _, err := hub.Start(hub.Config{Store: detached, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"}); err == nil {
		t.Error("a hub alone opens the store of a member")
	}
	for range 2 { // the setting may stay
		h, err := hub.Start(hub.Config{Store: detached, Journal: hub.JournalNone, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		mustHave(t, h, "before", "after")
		if err := h.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// mustHold checks how many events topic t has in a directory that nobody has open.
func mustHold(t *testing.T, dir string, want int) {
	t.Helper()
	found := 0
	if err := hub.VerifyStore(context.Background(), dir, func(text string) { t.Log(text) }, func(s hub.Stock) error {
		if s.Topic == "t" {
			found = int(s.Events)
		}
		return nil
	}); err != nil || found != want {
		t.Errorf("%s has %d events, %v; want %d", dir, found, err, want)
	}
}

// mustFail starts a hub that cannot follow, and says why.
func mustFail(t *testing.T, cfg hub.Config, want string) {
	t.Helper()
	h, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-h.Failed():
		if !strings.Contains(err.Error(), want) || hub.IsSucceeded(err) {
			t.Errorf("it fails with %v; want %s", err, want)
		}
	case <-time.After(clusterWithin):
		t.Error("it does not fail")
	}
	_ = h.Stop(context.Background()) // with the same error
}

// TestSuspended: a hub whose journal does not answer for the lease serves nobody, says so, and goes on
// by itself, as the hub that it was.
func TestSuspended(t *testing.T) {
	j := memory.New(memory.Options{})
	handle := j.Open()
	cfg := memberConfig(handle, "a", t.TempDir())
	cfg.OpsAddr = cfg.HTTPAddr // the operations listener goes on at the same address too
	h := start(t, cfg)
	awaitReady(t, h)
	mustPublish(t, h, "one")
	conn := dial(t, h.WSAddr())
	handle.Cut(true)
	under := make(chan error, 1)
	go func() {
		resp, err := http.Post("http://"+h.HTTPAddr()+"/publish/t?id=two", "application/json", strings.NewReader("1"))
		if err == nil {
			resp.Body.Close()
			err = fmt.Errorf("it got %s", resp.Status)
		} else {
			err = nil
		}
		under <- err
	}()
	awaitReadiness(t, h, func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "has not answered for")
	})
	if err := <-under; err != nil {
		t.Errorf("the publish under way: %v; want its connection cut", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(clusterWithin)) // for a test that fails
	if said, err := io.ReadAll(conn); err != nil || !strings.Contains(string(said), "journal does not answer") {
		t.Errorf("the connection got %q, %v", said, err)
	}
	if status, body := publishHTTP(t, h, "three"); status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"not_active"`) {
		t.Errorf("a publish meanwhile: %d %s", status, body)
	}
	for path, want := range map[string]int{"/metrics": 200, "/console/": 200, "/console/app.js": 200, "/console/rights": 200, "/console/api/v1/topics": 503, "/v1/topics": 503, "/": 503, "/nowhere": 503} {
		if status, body := ask(t, "http://"+h.OpsAddr()+path); status != want || status == 503 && !strings.Contains(body, `"code":"not_active"`) {
			t.Errorf("GET %s meanwhile: %d %s; want %d", path, status, body, want)
		}
	}
	if resp, err := http.Head("http://" + h.OpsAddr() + "/livez"); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("HEAD /livez meanwhile: %v, %v", resp, err)
	}
	if status, body := ask(t, "http://"+h.WSAddr()+"/metrics"); status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"not_active"`) {
		t.Errorf("the metrics where they are not, meanwhile: %d %s", status, body)
	}
	handle.Cut(false)
	awaitReady(t, h)
	mustPublish(t, h, "four")
	mustHave(t, h, "one", "two", "four") // two was under way, and is in the journal
	if status, text := ask(t, "http://"+h.OpsAddr()+"/cluster"); status != http.StatusOK || !strings.Contains(text, `"epoch":1,`) {
		t.Errorf("another hub has led: %s", text)
	}
}

// TestJournalFull: a hub whose journal is there, and takes nothing because it is full, says so, and not that there is no
// answer. It goes on when there is room.
func TestJournalFull(t *testing.T) {
	j := memory.New(memory.Options{})
	var log lines
	cfg := memberConfig(j.Open(), "a", t.TempDir())
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	h := start(t, cfg)
	awaitReady(t, h)
	mustPublish(t, h, "one")
	j.SetMost(1)
	const said = "the journal of this hub is full and has taken nothing for"
	awaitReadiness(t, h, func(status int, text string) bool {
		if strings.Contains(text, "has not answered") {
			t.Fatalf("readyz is %d %s", status, text)
		}
		return status == http.StatusServiceUnavailable && strings.Contains(text, said)
	})
	if status, body := ask(t, "http://"+h.OpsAddr()+"/cluster"); status != http.StatusOK || !strings.Contains(body, `"silent_ms":0,"full_ms":`) || strings.Contains(body, `"full_ms":0`) {
		t.Errorf("/cluster meanwhile: %d %s", status, body)
	}
	if status, body := publishHTTP(t, h, "two"); status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"not_active"`) || !strings.Contains(body, said) {
		t.Errorf("a publish meanwhile: %d %s", status, body)
	}
	j.SetMost(100_000_000)
	awaitReady(t, h)
	mustPublish(t, h, "three")
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "serves nobody") && !strings.Contains(line, journal.ErrFull.Error()) {
			t.Errorf("the log does not say why: %s", line)
		}
	}
}

// TestJournalNearlyFull: publishes are refused as long as the journal has little room; reads and acks go
// on, and publishes too when there is room again.
func TestJournalNearlyFull(t *testing.T) {
	j := memory.New(memory.Options{})
	j.SetMost(200_000)
	h := start(t, memberConfig(j.Open(), "a", t.TempDir())) // alone: it trims nothing
	awaitReady(t, h)
	refused := ""
	n := 0
	for ; refused == "" && n < 1000; n++ {
		resp, err := http.Post(fmt.Sprintf("http://%s/publish/t?id=%d", h.HTTPAddr(), n), "application/json", strings.NewReader(`"`+strings.Repeat("x", 4000)+`"`))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			refused = fmt.Sprint(resp.StatusCode, " ", string(body))
		}
	}
	if !strings.HasPrefix(refused, "503 ") || !strings.Contains(refused, `"code":"overloaded"`) || !strings.Contains(refused, "journal is nearly full") {
		t.Fatalf("after %d publishes: %s", n, refused)
	}
	resp, err := http.Post("http://"+h.HTTPAddr()+"/v1/topics/t/groups/g/pull?max=1", "application/json", strings.NewReader(`{"from":"earliest"}`))
	if err != nil {
		t.Fatal(err)
	}
	pulled, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(pulled), `"lease"`) {
		t.Errorf("a pull meanwhile: %s %s", resp.Status, pulled)
	}
	mustHave(t, h, "0", "1")
	j.SetMost(100_000_000)
	for end := time.Now().Add(clusterWithin); ; time.Sleep(50 * time.Millisecond) {
		status, body := publishHTTP(t, h, "after")
		if status/100 == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with room again: %d %s", status, body)
		}
	}
}

// TestJournalAwayAtStart: a hub that starts before its journal says so, waits for it, and then leads; it can be
// stopped meanwhile. What is wrong for good ends the start.
func TestJournalAwayAtStart(t *testing.T) {
	j := memory.New(memory.Options{})
	var is atomic.Bool
	cfg := memberConfig(j.Open(), "a", t.TempDir())
	cfg.OpenJournal = func(context.Context) (journal.Journal, error) {
		if !is.Load() {
			return nil, fmt.Errorf("%w: no servers", journal.ErrAway)
		}
		return j.Open(), nil
	}
	a, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{a.OpsAddr() + "/readyz": "looks for its journal", a.OpsAddr() + "/readyz?role=standby": "looks for its journal",
		a.HTTPAddr() + "/v1/topics": `"code":"not_active"`} {
		if status, body := ask(t, "http://"+at); status != http.StatusServiceUnavailable || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s; want %s", at, status, body, want)
		}
	}
	for _, path := range []string{"/livez", "/metrics", "/cluster"} {
		if status, body := ask(t, "http://"+a.OpsAddr()+path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if entries, err := os.ReadDir(cfg.Store); err != nil || len(entries) > 0 {
		t.Errorf("the directory has %v, %v, before there is a journal", entries, err)
	}
	if err := a.Stop(context.Background()); err != nil {
		t.Errorf("Stop: %v", err)
	}
	a = start(t, cfg)
	is.Store(true)
	awaitReady(t, a)
	mustPublish(t, a, "one")

	cfg = memberConfig(j.Open(), "b", t.TempDir())
	cfg.OpenJournal = func(context.Context) (journal.Journal, error) { return nil, errors.New("the stream is no journal") }
	if _, err := hub.Start(cfg); err == nil || !strings.Contains(err.Error(), "no journal") {
		t.Errorf("a journal that is wrong for good: %v", err)
	}
}

// TestStopWithoutJournal: a hub whose journal does not answer stops within its grace, whatever it
// is doing.
func TestStopWithoutJournal(t *testing.T) {
	j := memory.New(memory.Options{})
	leading, following := j.Open(), j.Open()
	a, err := hub.Start(memberConfig(leading, "a", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, a)
	b, err := hub.Start(memberConfig(following, "b", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	awaitReadiness(t, b, func(_ int, text string) bool { return strings.Contains(text, "0 entries behind") })
	leading.Cut(true)
	following.Cut(true)
	ended := make(chan error, 1)
	go func() {
		resp, err := http.Post("http://"+a.HTTPAddr()+"/publish/t?id=under-way", "application/json", strings.NewReader("1"))
		if err != nil { // it was cut off
			ended <- nil
			return
		}
		resp.Body.Close()
		if resp.StatusCode/100 == 2 {
			err = fmt.Errorf("it said %s", resp.Status)
		}
		ended <- err
	}()
	for _, h := range []*hub.Hub{b, a} {
		stopped := make(chan error, 1)
		go func() { stopped <- h.Stop(context.Background()) }()
		select {
		case err := <-stopped:
			if h == b && err != nil {
				t.Errorf("the standby stops with %v", err)
			}
			if h == a && err != nil && !errors.Is(err, journal.ErrUnknown) && eventhub.ErrorCode(err) == "" {
				t.Errorf("the hub that leads stops with %v", err)
			}
		case <-time.After(clusterWithin):
			t.Fatal("a hub does not stop")
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestClusterConfig: what cannot be is said at once.
func TestClusterConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg  hub.Config
		want string
	}{
		{hub.Config{Journal: "redis://h/s"}, `its scheme is "redis"`},
		{hub.Config{Journal: "mongodb://u:secret@h/a.b"}, `the database is "a.b"`},
		{hub.Config{Journal: "mongodb://u:secret@h:port/s"}, "want mongodb://"},
		{hub.Config{Journal: "mongodb+srv:///s"}, "it names no server"},
		{hub.Config{Journal: "nats://u:secret@h:1"}, "it names no stream"},
		{hub.Config{Journal: "nats://h:1/s?replicas=many"}, "replicas=many"},
		{hub.Config{Journal: "nats://h:1/s?sync=never"}, "always is allowed"},
		{hub.Config{Journal: "nats://h:1/s?colour=red"}, "there is no such option"},
		{hub.Config{Journal: "nats://h:1/s", Store: hub.MemoryStore}, "a journal needs a store on the disk"},
		{hub.Config{Journal: "nats://h:1/s", Durability: hub.DurabilityInterval}, "durability is interval"},
		{hub.Config{Journal: "nats://h:1/s", Lease: time.Millisecond}, "at least 1s"},
		{hub.Config{Journal: "nats://h:1/s", MemberID: strings.Repeat("x", 65)}, "1 to 64 bytes of UTF-8"},
		{hub.Config{Journal: "nats://h:1/s", MemberID: "hub\xff"}, `member id is "hub\xff"; 1 to 64 bytes of UTF-8`},
	} {
		err := tt.cfg.WithDefaults().Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v; want %q", tt.cfg.Journal, err, tt.want)
		}
	}
	for _, text := range []string{"nats://u:secret@h:1/s", "mongodb://u:secret@g:1,h:1/s", "mongodb+srv://u:secret@h:1/s?tlsCertificateKeyFilePassword=secret"} {
		if got := hub.JournalShown(text); strings.Contains(got, "secret") || !strings.Contains(got, "h:1/s") {
			t.Errorf("a journal is shown as %s", got)
		}
	}
	if err := (hub.Config{Journal: "mongodb://h:1/s"}).WithDefaults().Validate(); err != nil {
		t.Errorf("a journal in MongoDB: %v", err)
	}
}
