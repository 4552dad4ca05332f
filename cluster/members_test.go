package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	inprocess "eventhub/hub"
	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
)

// memberOf is the configuration of a hub in this process.
func memberOf(url, name, dir string) inprocess.Config {
	return inprocess.Config{
		Store: dir, WSAddr: "127.0.0.1:0", HTTPAddr: "localhost:0", OpsAddr: "[::1]:0", Grace: 2 * time.Second,
		Journal: url, MemberID: name, MemberURLs: []string{"ws://" + name}, Lease: time.Second,
	}
}

func journalURL(s *server, stream string) string {
	return fmt.Sprintf("nats://127.0.0.1:%d/%s?replicas=1", s.Port, stream)
}

// awaitLead waits until a hub serves.
func awaitLead(t *testing.T, h *inprocess.Hub) {
	t.Helper()
	status := 0
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-h.Failed():
			t.Fatal(err)
		default:
		}
		answer, err := http.Get("http://" + h.OpsAddr() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if status = answer.StatusCode; status == http.StatusOK {
			return
		}
	}
	t.Fatalf("the hub does not lead: %d", status)
}

// startHub starts a hub that leads, and returns it with what stops it.
func startHub(t *testing.T, cfg inprocess.Config) *inprocess.Hub {
	t.Helper()
	h, err := inprocess.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			t.Errorf("Stop: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return h
}

// streamsOf names the streams of a server.
func streamsOf(t *testing.T, s *server) (names []string) {
	t.Helper()
	all := client(t, s.url()).StreamNames(context.Background())
	for name := range all.Name() {
		names = append(names, name)
	}
	if all.Err() != nil {
		t.Fatal(all.Err())
	}
	return names
}

// TestNothingIsCreated: a hub whose directory cannot be a member of a new journal creates none.
func TestNothingIsCreated(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	dir := t.TempDir()
	h, err := inprocess.Start(memberOf(journalURL(s, "ONE"), "a", dir))
	if err != nil {
		t.Fatal(err)
	}
	awaitLead(t, h)
	if _, err := inprocess.Start(memberOf(journalURL(s, "TWO"), "b", dir)); err == nil || !strings.Contains(err.Error(), "another eventhub holds") {
		t.Errorf("a directory that another hub has: %v", err)
	}
	if err := h.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{dir: "is at place", foreign: "is no eventhub store"} {
		_, err := inprocess.Start(memberOf(journalURL(s, "TWO"), "b", at))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a hub on %s: %v; want %q", at, err, want)
		}
	}
	if names := streamsOf(t, s); strings.Join(names, " ") != "ONE ONE-members" && strings.Join(names, " ") != "ONE-members ONE" {
		t.Errorf("there are the streams %v", names)
	}
}

// TestServersAwayAtStart: a hub that starts before its servers leads when they are there.
func TestServersAwayAtStart(t *testing.T) {
	t.Parallel()
	s := &server{config: config{Name: "late", Dir: t.TempDir(), Port: ports(t, 1)[0]}}
	h := startHub(t, memberOf(journalURL(s, "LATE"), "a", t.TempDir()))
	s.start(t)
	t.Cleanup(s.kill) // before the hub stops, which its leaving the lead does not wait for
	awaitLead(t, h)
	if err := h.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestAwayOrWrong: what may pass is told from what does not.
func TestAwayOrWrong(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	nobody := fmt.Sprintf("nats://127.0.0.1:%d", ports(t, 1)[0])
	_, err := jetstream.Look(context.Background(), jetstream.Options{URL: nobody, Stream: "s"})
	if !errors.Is(err, journal.ErrAway) {
		t.Errorf("servers that are not there: %v", err)
	}
	o := newStream(s.url(), 1)
	j, err := jetstream.Look(context.Background(), o)
	if err != nil || j.Exists() {
		t.Fatalf("Look = %v, %v", j, err)
	}
	if all := j.Probe(context.Background()); len(all) > 0 {
		t.Errorf("Probe = %v", all)
	}
	_ = j.Close()
	if names := streamsOf(t, s); len(names) > 0 {
		t.Errorf("Look has created %v", names)
	}
	_ = open(t, o).Close()
	o.Replicas = 3
	if _, err := jetstream.Look(context.Background(), o); err == nil || errors.Is(err, journal.ErrAway) {
		t.Errorf("a stream with one replica: %v", err)
	}
}

// TestCheck: all that is wrong with a journal is said at once, and nothing is created.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	check := func(url string, wrong, warns []string) *inprocess.JournalCheck {
		t.Helper()
		c, err := inprocess.CheckJournal(context.Background(), memberOf(url, "a", t.TempDir()))
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		texts := []string{}
		for _, err := range c.Errors {
			texts = append(texts, err.Error())
		}
		for _, tt := range []struct {
			is, want []string
		}{{texts, wrong}, {c.Warnings, warns}} {
			if len(tt.is) != len(tt.want) {
				t.Errorf("%s: %q; want %q", url, tt.is, tt.want)
				continue
			}
			for i, want := range tt.want {
				if !strings.Contains(tt.is[i], want) {
					t.Errorf("%s: %q; want %q", url, tt.is[i], want)
				}
			}
		}
		return c
	}
	one := journalURL(s, "CHECKED")
	if c := check(one, nil, []string{"one replica"}); !strings.Contains(c.Summary, "which the first hub creates") {
		t.Errorf("a stream that is not there: %s", c.Summary)
	}
	check(strings.TrimSuffix(one, "?replicas=1"), []string{"in no cluster"}, nil)
	if names := streamsOf(t, s); len(names) > 0 {
		t.Errorf("the check has created %v", names)
	}
	js, o := client(t, s.url()), jetstream.Options{URL: s.url(), Stream: "CHECKED", Replicas: 1}
	config := configOf(t, js, o)
	config.Discard, config.MaxMsgs, config.AllowDirect = natsjs.DiscardOld, 10, true
	if _, err := js.CreateStream(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	check(one+"&max_bytes=5", []string{"the discard policy", "max_msgs", "allow_direct"}, []string{"one replica", "no max_bytes", "max_bytes=5 counts"})
	if err := js.DeleteStream(context.Background(), "CHECKED"); err != nil {
		t.Fatal(err)
	}
	o.MostBytes, o.Synced = 1000, true
	j := open(t, o)
	defer j.Close()
	if err := j.Append(context.Background(), 0, make([]byte, 850)); err != nil {
		t.Fatal(err)
	}
	if c := check(one+"&sync=always", nil, []string{"one replica", "of 1000 bytes"}); !strings.Contains(c.Summary, "entries 1 to 1") || !strings.Contains(c.Summary, "sync, by your word") {
		t.Errorf("a stream that is there: %s", c.Summary)
	}
	slow := memberOf(one, "a", t.TempDir())
	slow.Lease = time.Microsecond // as if the servers were far away
	if c, err := inprocess.CheckJournal(context.Background(), slow); err != nil || len(c.Errors) != 1 || !strings.Contains(c.Errors[0].Error(), "at least 1s is needed") {
		t.Errorf("a lease that is too short: %+v, %v", c, err)
	}
	if _, err := inprocess.CheckJournal(context.Background(), memberOf("nats://127.0.0.1:1/S", "a", t.TempDir())); !errors.Is(err, journal.ErrAway) {
		t.Errorf("servers that are away: %v", err)
	}
}

// TestTools: what looks after a journal, over a real one: reading it, trimming it, releasing a member, and a new journal of a
// member's directory after the stream was lost.
// awaitSynced returns when a member has said that its copy is on its disk up to a place.
func awaitSynced(t *testing.T, tool *inprocess.Journal, id string, place uint64) {
	t.Helper()
	for {
		members, err := tool.Members(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(members, func(m inprocess.JournalMember) bool { return m.ID == id && m.Synced >= place }) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	dir, ctx := t.TempDir(), context.Background()
	cfg := memberOf(journalURL(s, "TOOLS"), "a", dir)
	if _, err := inprocess.LookAfter(ctx, cfg); !errors.Is(err, journal.ErrMissing) {
		t.Errorf("a journal that is not there: %v", err)
	}
	h, err := inprocess.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	awaitLead(t, h)
	answer, err := http.Post("http://"+h.HTTPAddr()+"/publish/t?id=one", "application/json", strings.NewReader("1"))
	if err != nil || answer.StatusCode/100 != 2 {
		t.Fatalf("publish: %v, %v", answer, err)
	}
	answer.Body.Close()
	j := open(t, jetstream.Options{URL: s.url(), Stream: "TOOLS", Replicas: 1})
	defer j.Close()
	if _, err := j.Announce(ctx, journal.Member{ID: "b", Synced: 1}); err != nil {
		t.Fatal(err)
	}
	tool, err := inprocess.LookAfter(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	awaitSynced(t, tool, "a", 2) // by its own word, which comes at a time of its own
	if tally, err := tool.Verify(ctx, nil); err != nil || tally.First != 1 || tally.Commits < 2 || tally.Hub != "a" {
		t.Errorf("Verify = %+v, %v", tally, err)
	}
	p, err := tool.PlanTrim(ctx)
	if err != nil || p.UpTo != 1 || len(p.Holds) != 1 || p.Holds[0] != "b" {
		t.Errorf("PlanTrim = %+v, %v", p, err)
	}
	if err := tool.Trim(ctx, p.UpTo); err != nil {
		t.Fatal(err)
	}
	if tally, err := tool.Verify(ctx, nil); err != nil || tally.First != 2 {
		t.Errorf("Verify after the trim = %+v, %v", tally, err)
	}
	if _, err := tool.Release(ctx, "b"); err == nil || !strings.Contains(err.Error(), "stop its hub first") {
		t.Errorf("Release of who is there: %v", err)
	}
	if err := h.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	if _, err := inprocess.PlanReseed(ctx, cfg, nil); err == nil || !strings.Contains(err.Error(), "not lost") {
		t.Errorf("a new journal while there is one: %v", err)
	}
	if err := client(t, s.url()).DeleteStream(ctx, "TOOLS"); err != nil {
		t.Fatal(err)
	}
	if _, err := inprocess.Start(cfg); err == nil || !strings.Contains(err.Error(), "is at place") {
		t.Errorf("a hub whose journal is lost: %v", err)
	}
	plan, err := inprocess.PlanReseed(ctx, cfg, nil)
	if err != nil || plan.Place < 3 || len(plan.Ahead) != 0 {
		t.Fatalf("PlanReseed = %+v, %v", plan, err)
	}
	if err := plan.Carry(ctx); err != nil {
		t.Fatal(err)
	}
	h = startHub(t, cfg)
	awaitLead(t, h)
	if answer, err = http.Get("http://" + h.HTTPAddr() + "/replay?topic=t"); err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(body), `"one"`) {
		t.Errorf("the new journal's hub has %s, %v", body, err)
	}
}

// TestFetch: over a real journal that is trimmed, a hub with an empty directory fetches a copy and follows from it, and
// takes over.
func TestFetch(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	cfg := memberOf(journalURL(s, "FETCH"), "a", t.TempDir())
	cfg.WSAddr = fmt.Sprintf("127.0.0.1:%d", ports(t, 1)[0])
	cfg.MemberURLs = []string{"ws://" + cfg.WSAddr}
	a, err := inprocess.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	awaitLead(t, a)
	for n := range 20 {
		answer, err := http.Post(fmt.Sprintf("http://%s/publish/t?id=event-%d", a.HTTPAddr(), n), "application/json", strings.NewReader("1"))
		if err != nil || answer.StatusCode/100 != 2 {
			t.Fatalf("publish: %v, %v", answer, err)
		}
		answer.Body.Close()
	}
	j := open(t, jetstream.Options{URL: s.url(), Stream: "FETCH", Replicas: 1})
	defer j.Close()
	if err := j.Trim(context.Background(), 10); err != nil {
		t.Fatal(err)
	}
	b := startHub(t, memberOf(journalURL(s, "FETCH"), "b", t.TempDir()))
	last, err := j.Last(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(within); b.Place() < last; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the new hub is at %d of %d", b.Place(), last)
		}
	}
	if err := a.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	awaitLead(t, b)
	answer, err := http.Get("http://" + b.HTTPAddr() + "/replay?topic=t")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(body), `"event-0"`) || !strings.Contains(string(body), `"event-19"`) {
		t.Errorf("the new hub has %s, %v", body, err)
	}
}

// TestRights: each right that the user does not have is named, and asking changes nothing.
func TestRights(t *testing.T) {
	t.Parallel()
	s := &server{config: config{Name: "rights", Dir: t.TempDir(), Port: ports(t, 1)[0], Rights: true}}
	s.start(t)
	t.Cleanup(s.kill)
	o := jetstream.Options{URL: s.url(), Stream: "RIGHTS", Replicas: 1, Connect: []nats.Option{nats.UserInfo("hub", "hub")}}
	j := open(t, o)
	defer j.Close()
	leader, err := journal.New(j).Lead(context.Background(), journal.Position{}, "hub-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer leader.Close()
	if all := j.Probe(context.Background()); len(all) > 0 {
		t.Errorf("what a hub may do with the rights that the page names: %v", all)
	}
	if last, err := j.Last(context.Background()); err != nil || last != 1 {
		t.Errorf("after the probe the journal ends at %d, %v", last, err)
	}
	if _, err := j.Read(context.Background(), 1); err != nil {
		t.Errorf("after the probe: %v", err)
	}
	o.Connect = []nats.Option{nats.UserInfo("reader", "reader")}
	reader, err := jetstream.Look(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var denied []string
	for _, err := range reader.Probe(context.Background()) {
		if _, ok := errors.AsType[*jetstream.RightsError](err); !ok {
			t.Errorf("Probe: %v", err)
		}
		denied = append(denied, err.Error())
	}
	for _, want := range []string{`"eventhub.journal.RIGHTS"`, `"eventhub.members.RIGHTS.probe"`, "STREAM.PURGE.RIGHTS", "STREAM.CREATE.RIGHTS"} {
		if !strings.Contains(strings.Join(denied, "\n"), want) {
			t.Errorf("the rights that are missing do not name %s: %v", want, denied)
		}
	}
	if len(denied) != 5 { // and the creation of the members' stream
		t.Errorf("%d rights are missing: %v", len(denied), denied)
	}
	o.Connect = []nats.Option{nats.UserInfo("none", "none")}
	if _, err := jetstream.Look(context.Background(), o); err == nil || errors.Is(err, journal.ErrAway) || !strings.Contains(err.Error(), "too few rights") {
		t.Errorf("a user without rights: %v", err)
	}
	o.Connect = []nats.Option{nats.UserInfo("hub", "wrong")}
	if _, err := jetstream.Look(context.Background(), o); !errors.Is(err, nats.ErrAuthorization) || errors.Is(err, journal.ErrAway) {
		t.Errorf("a wrong password: %v", err)
	}
}
