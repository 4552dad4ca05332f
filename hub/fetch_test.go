package hub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pdb "github.com/cockroachdb/pebble/v2"

	"eventhub/hub"
	"eventhub/internal/freeport"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
	"eventhub/store/pebble"
)

const memberToken = "token-of-members"

// publishing publishes until it is stopped, and returns the ids with an OK then.
func publishing(t *testing.T, h *hub.Hub, prefix string) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan []string)
	go func() {
		var ids []string
		for n := 0; ctx.Err() == nil; n++ {
			id := fmt.Sprintf("%s-%d", prefix, n)
			r, err := http.NewRequest(http.MethodPost, "http://"+h.HTTPAddr()+"/publish/t?id="+id, strings.NewReader(`"`+strings.Repeat("x", 500)+`"`))
			if err != nil {
				t.Error(err)
				break
			}
			r.Header.Set("Authorization", "Bearer "+memberToken)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				break
			}
			_, _ = io.Copy(io.Discard, resp.Body) // the status is what counts
			resp.Body.Close()
			if resp.StatusCode/100 == 2 {
				ids = append(ids, id)
			}
		}
		ended <- ids
	}()
	return func() []string {
		cancel()
		return <-ended
	}
}

// freeAddr returns an address at which nobody listens: other hubs are told of it before there is one.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := freeport.On("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// breaking is a proxy before a hub that breaks the first backup off, in the middle.
func breaking(t *testing.T, addr string) (at string, broken func() bool) {
	t.Helper()
	to, err := url.Parse("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	var mu sync.Mutex
	first := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		isFirst := first
		first = false
		mu.Unlock()
		if isFirst {
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(make([]byte, 1000)) // the end is what counts
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	return s.URL, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !first
	}
}

// contentsOf are all keys and values of a store that nobody has open, but its position: who leads counts no beats.
func contentsOf(t *testing.T, dir string) (all []string) {
	t.Helper()
	temp := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(temp, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	db, err := pdb.Open(temp, &pdb.Options{Logger: noLog{}})
	if err != nil {
		t.Fatal(err)
	}
	iter, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		if !bytes.HasSuffix(iter.Key(), []byte("position")) {
			all = append(all, fmt.Sprintf("%q=%q", iter.Key(), iter.Value()))
		}
	}
	if err := errors.Join(iter.Error(), iter.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	return all
}

type noLog struct{}

func (noLog) Infof(string, ...any)  {}
func (noLog) Errorf(string, ...any) {}
func (noLog) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func withToken(cfg hub.Config) hub.Config {
	cfg.AuthToken = memberToken
	return cfg
}

// standsBy waits until a hub is a standby that has everything.
func standsBy(t *testing.T, h *hub.Hub) {
	t.Helper()
	for end := time.Now().Add(clusterWithin); ; time.Sleep(10 * time.Millisecond) {
		status, text := ask(t, "http://"+h.OpsAddr()+"/readyz?role=standby")
		if status == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("readyz of the standby is %d %s", status, text)
		}
		select {
		case err := <-h.Failed():
			t.Fatal(err)
		default:
		}
	}
}

// TestFetchesCopy: under load, a hub with an empty directory and one that is behind the trim get a copy of the hub
// that leads by themselves, also where the first attempt breaks off, and have what that one has, key by key.
func TestFetchesCopy(t *testing.T) {
	j := memory.New(memory.Options{})
	dirA, dirB, dirC := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := withToken(memberConfig(j.Open(), "a", dirA))
	cfg.HTTPAddr = freeAddr(t)
	proxy, broken := breaking(t, cfg.HTTPAddr)
	cfg.MemberURLs = []string{proxy}
	a, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, a)
	b, err := hub.Start(withToken(memberConfig(j.Open(), "b", dirB)))
	if err != nil {
		t.Fatal(err)
	}
	standsBy(t, b)
	if err := b.Stop(context.Background()); err != nil { // before most of what comes
		t.Fatal(err)
	}
	stop := publishing(t, a, "early")
	time.Sleep(200 * time.Millisecond)
	early := stop()
	last, err := j.Open().Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Open().Trim(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	stop = publishing(t, a, "late")
	c, err := hub.Start(withToken(memberConfig(j.Open(), "c", dirC)))
	if err != nil {
		t.Fatal(err)
	}
	standsBy(t, c)
	if !broken() {
		t.Error("nothing was fetched over the proxy")
	}
	if b, err = hub.Start(withToken(memberConfig(j.Open(), "b", dirB))); err != nil {
		t.Fatal(err)
	}
	standsBy(t, b)
	ids := slices.Concat(early, stop())
	if len(ids) < 20 {
		t.Fatalf("only %d publishes", len(ids))
	}
	standsBy(t, b)
	standsBy(t, c)
	awaitPlace(t, j, b, c)
	for _, h := range []*hub.Hub{b, c, a} {
		if err := h.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{dirA, dirB, dirC} { // they have not stopped at one place
		complete(t, dir, j)
	}
	want := contentsOf(t, dirA)
	for name, dir := range map[string]string{"the one behind the trim": dirB, "the new one": dirC} {
		got := contentsOf(t, dir)
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("%s has other contents than the leader from key %d of %d and %d on", name, i, len(got), len(want))
			}
		}
		if left, err := os.ReadDir(filepath.Join(dir, "scratch")); err == nil && len(left) > 0 {
			inside, _ := os.ReadDir(filepath.Join(dir, "scratch", left[0].Name()))
			if len(inside) > 0 {
				t.Errorf("%s has left %v in %s", name, inside, left[0].Name())
			}
		}
	}
	mustHold(t, dirC, len(ids))
}

// complete applies to the copy in dir what the journal has more.
func complete(t *testing.T, dir string, j *memory.Journal) {
	t.Helper()
	r, err := pebble.OpenReplica(pebble.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	last, err := j.Open().Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	whole := errors.New("it has everything")
	err = journal.New(j.Open()).Follow(t.Context(), r.Position(), func(e journal.Entry) error {
		if err := r.Apply(e.Data, e.Position); err != nil {
			return err
		}
		if e.Position.Seq >= last {
			return whole
		}
		return nil
	})
	if r.Position().Seq < last {
		t.Fatalf("the copy in %s is at %d of %d: %v", dir, r.Position().Seq, last, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// awaitPlace waits until standbys have all that the journal has now.
func awaitPlace(t *testing.T, j *memory.Journal, hubs ...*hub.Hub) {
	t.Helper()
	last, err := j.Open().Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hubs {
		for end := time.Now().Add(clusterWithin); h.Place() < last; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a standby is at %d of %d", h.Place(), last)
			}
		}
	}
}

// TestMayNotFetch: a hub that may not fetch a copy by itself ends with one error that says why, and the command that makes
// one; and its directory stays.
func TestMayNotFetch(t *testing.T) {
	j := memory.New(memory.Options{})
	cfg := withToken(memberConfig(j.Open(), "a", t.TempDir()))
	cfg.MemberURLs = nil
	a := start(t, cfg)
	awaitReady(t, a)
	trimAll(t, j)
	dir := t.TempDir()
	mustFail(t, withToken(memberConfig(j.Open(), "b", dir)), "the hub that leads has no member_url")
	reachable := func() { // until a says again how it is
		t.Helper()
		if _, err := j.Open().Announce(t.Context(), journal.Member{ID: "a", URLs: []string{"http://" + a.HTTPAddr()}, Active: true}); err != nil {
			t.Fatal(err)
		}
	}
	reachable()
	cfg = withToken(memberConfig(j.Open(), "b", dir))
	cfg.MemberToken = "wrong"
	mustFail(t, cfg, "move "+dir+" away and make it by hand: eventhub backup --url http://"+a.HTTPAddr()+" "+dir)
	cfg = withToken(memberConfig(j.Open(), "b", dir))
	cfg.AuthToken, cfg.MemberToken = "another", memberToken // of the hub that leads
	reachable()
	b := start(t, cfg)
	standsBy(t, b)
}

// TestTwinThatFetches: a hub that is to fetch a copy of the one that leads, and has the id of that one, says so and ends.
func TestTwinThatFetches(t *testing.T) {
	j := memory.New(memory.Options{})
	a := start(t, withToken(memberConfig(j.Open(), "a", t.TempDir())))
	awaitReady(t, a)
	trimAll(t, j)
	twin, err := hub.Start(withToken(memberConfig(j.Open(), "a", t.TempDir())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = twin.Stop(context.Background()) }() // with the same error
	for end := time.Now().Add(clusterWithin); time.Now().Before(end); {
		j.Say(journal.Member{ID: "a", Active: true, Run: "of a", Seen: time.Now()}) // as a does each 10 s
		select {
		case err := <-twin.Failed():
			wantError(t, "the twin", err, `another hub has this member id: "a"`)
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("the twin goes on looking for a hub that leads")
}

// TestFetchedCopyIsSaid: from the attempt that has fetched a copy on a hub does not say any more why an earlier one
// did not, also while the copy is put in the place of its own.
func TestFetchedCopyIsSaid(t *testing.T) {
	const failed, fetches = "could not be fetched yet", "fetches a copy"
	j := memory.New(memory.Options{})
	cfg := withToken(memberConfig(j.Open(), "a", t.TempDir()))
	cfg.HTTPAddr = freeAddr(t)
	proxy, broken := breaking(t, cfg.HTTPAddr)
	cfg.MemberURLs = []string{proxy}
	awaitReady(t, start(t, cfg))
	trimAll(t, j)
	b := start(t, withToken(memberConfig(j.Open(), "b", t.TempDir())))
	hasFailed, again := false, false
	for end := time.Now().Add(clusterWithin); ; {
		_, text := ask(t, "http://"+b.OpsAddr()+"/readyz")
		switch {
		case strings.Contains(text, failed) && again:
			t.Fatalf("after the attempt that fetched a copy: %s", text)
		case strings.Contains(text, failed):
			hasFailed = true
		case strings.Contains(text, fetches):
			again = hasFailed
		case strings.Contains(text, "is a standby of") && hasFailed:
			if !broken() {
				t.Error("nothing was fetched over the proxy")
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal(text)
		}
	}
}

// TestFetchesOverTLS: a copy of a hub whose certificate the system does not know is fetched with member_ca_file.
func TestFetchesOverTLS(t *testing.T) {
	p := newPair(t, t.TempDir(), 1)
	j := memory.New(memory.Options{})
	cfg := withToken(memberConfig(j.Open(), "a", t.TempDir()))
	cfg.TLSCertFile, cfg.TLSKeyFile = p.cert, p.key
	cfg.HTTPAddr = freeAddr(t)
	cfg.MemberURLs = []string{"https://" + cfg.HTTPAddr}
	a := start(t, cfg)
	awaitReady(t, a)
	trimAll(t, j)
	cfg = withToken(memberConfig(j.Open(), "b", t.TempDir()))
	cfg.MemberCAFile = p.key
	if h, err := hub.Start(cfg); err == nil || !strings.Contains(err.Error(), p.key+" has no certificate in PEM") {
		t.Errorf("a file without a certificate: %v, %v", h, err)
	}
	cfg.MemberCAFile = p.cert
	standsBy(t, start(t, cfg))
}

// trimAll trims a journal so that no hub can begin with it.
func trimAll(t *testing.T, j *memory.Journal) {
	t.Helper()
	for range 3 {
		last, err := j.Open().Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Open().Trim(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond) // beats
	}
}

// TestFetchSaysHowFar: while a copy is on its way the hub says so, and can be stopped.
func TestFetchSaysHowFar(t *testing.T) {
	j := memory.New(memory.Options{})
	lead, err := journal.New(j.Open()).Lead(t.Context(), journal.Position{}, "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer lead.Close()
	for range 2 {
		if _, err := lead.Beat()(); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Open().Trim(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := j.Open().Announce(t.Context(), journal.Member{ID: "a", URLs: []string{"http://" + l.Addr().String()}, Active: true}); err != nil {
		t.Fatal(err)
	}
	cfg := memberConfig(j.Open(), "b", t.TempDir())
	cfg.Logger = slog.New(slog.DiscardHandler)
	b, err := hub.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	awaitReadiness(t, b, func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "this hub fetches a copy of a (http://"+l.Addr().String()+"), 0 bytes so far")
	})
	if status, text := ask(t, "http://"+b.HTTPAddr()+"/v1/topics"); status != http.StatusServiceUnavailable || !strings.Contains(text, `"code":"not_active"`) {
		t.Errorf("meanwhile: %d %s", status, text)
	}
	if err := b.Stop(context.Background()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// TestFetchOfAStandby: where the URL of the hub that leads is that of another one, which does not lead, a member that needs a copy
// says so, and whom it has asked, and not that the journal is silent.
func TestFetchOfAStandby(t *testing.T) {
	j := memory.New(memory.Options{})
	lead, err := journal.New(j.Open()).Lead(t.Context(), journal.Position{}, "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer lead.Close()
	for range 2 {
		if _, err := lead.Beat()(); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Open().Trim(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"status":503,"detail":"this hub is a standby of a","code":"not_active"}`) // the member may be gone
	}))
	t.Cleanup(other.Close)
	if _, err := j.Open().Announce(t.Context(), journal.Member{ID: "a", URLs: []string{other.URL}, Active: true}); err != nil {
		t.Fatal(err)
	}
	cfg := memberConfig(j.Open(), "b", t.TempDir())
	cfg.Logger = slog.New(slog.DiscardHandler)
	b := start(t, cfg)
	want := "this hub needs a copy of the hub that leads, which could not be fetched yet: no copy of a (" + other.URL + "): not_active: this hub is a standby of a"
	awaitReadiness(t, b, func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, want)
	})
	until(t, b, "/cluster", http.StatusOK, `"position":0,"last":3,"behind_entries":3,`) // who follows nothing asks all the same
	for _, path := range []string{"/readyz?role=standby", "/lag"} {
		if status, text := ask(t, "http://"+b.OpsAddr()+path); status != http.StatusServiceUnavailable || !strings.Contains(text, want) {
			t.Errorf("GET %s: %d %s; want %q", path, status, text, want)
		}
	}
}
