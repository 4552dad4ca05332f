package ops

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/measure"
	"eventhub/internal/promeval"
)

// TestCluster: an operator sees the members, in a standby too, whose rooms are closed.
func TestCluster(t *testing.T) {
	f := filled()
	cfg := f.config()
	cfg.Closed = func() bool { return true }
	h := open(t, cfg)
	want := `{"member":{"id":"hub1","role":"active","epoch":101,"active":"hub1","position":102,"last":105,"behind_entries":3,"behind_ms":1500,"silent_ms":2500,"full_ms":4500},` +
		`"journal":{"durability":"replicated","used_bytes":106,"most_bytes":107},"members":[` +
		`{"id":"hub1","urls":["ws://hub1:8090"],"active":true,"synced":101,"behind_entries":4,"layout":2,"seen_ts":1700000000000},` +
		`{"id":"hub2","urls":[],"active":false,"synced":99,"behind_entries":6,"layout":1,"seen_ts":1700000001000}]}` + "\n"
	if w := get(h, "/cluster"); w.Code != http.StatusOK || w.Body.String() != want {
		t.Errorf("answered %d %s; want %s", w.Code, w.Body, want)
	}
	f.cluster.Now = time.UnixMilli(1_700_000_003_000)
	if w := get(h, "/cluster"); !strings.Contains(w.Body.String(), `"most_bytes":107,"now_ts":1700000003000}`) {
		t.Errorf("with the time of the journal's servers: %s", w.Body)
	}
	f.cluster.Leads, f.cluster.Active = false, "hub2"
	if w := get(h, "/cluster"); !strings.Contains(w.Body.String(), `"role":"standby","epoch":101,"active":"hub2"`) {
		t.Errorf("a standby says %s", w.Body)
	}
	f.cluster.Active = "" // and nobody said anything
	f.cluster.Members = nil
	if w := get(h, "/cluster"); !strings.Contains(w.Body.String(), `"members":[]`) || strings.Contains(w.Body.String(), `"active":""`) {
		t.Errorf("a standby of nobody says %s", w.Body)
	}
	f.cluster = nil
	wantProblem(t, get(h, "/cluster"), http.StatusNotImplemented, eventhub.CodeUnsupportedOp, "shares no journal")
	cfg.Cluster = nil
	wantProblem(t, get(open(t, cfg), "/cluster"), http.StatusNotImplemented, eventhub.CodeUnsupportedOp, "shares no journal")
}

// TestClusterIsForOperators: who does not operate the hub does not see the members.
func TestClusterIsForOperators(t *testing.T) {
	cfg := filled().config()
	cfg.Authenticate = func(context.Context, string, bool) (Access, error) {
		return Access{Operates: func() error { return eventhub.Errorf(eventhub.CodeForbidden, "no rights") }}, nil
	}
	w := httptest.NewRecorder()
	open(t, cfg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/cluster", nil))
	wantProblem(t, w, http.StatusForbidden, eventhub.CodeForbidden, "no rights")
}

// TestClusterMetrics: a standby has them, whose rooms are closed, and a hub that is alone has none.
func TestClusterMetrics(t *testing.T) {
	f := filled()
	cfg := f.config()
	cfg.Closed = func() bool { return true }
	f.cluster.Leads = false
	h := open(t, cfg)
	got := scrape(t, h)
	if v, ok := got["eventhub_member_active"]; v != 0 || !ok || got["eventhub_journal_behind_entries"] != 3 || got["eventhub_journal_append_seconds_count"] != 2 {
		t.Errorf("a standby exposes %v", got)
	}
	if v, ok := got["eventhub_store_free_bytes"]; ok {
		t.Errorf("a standby whose disk is not known has %v free", v)
	}
	f.cluster.StoreBytes, f.cluster.FreeBytes, f.cluster.NeededBytes = 7, 8, 9
	if got := scrape(t, h); got["eventhub_store_size_bytes"] != 7 || got["eventhub_store_free_bytes"] != 8 || got["eventhub_store_needed_bytes"] != 9 {
		t.Errorf("of its disk a standby exposes %v", got)
	}
	if len(f.asked) > 0 {
		t.Errorf("rooms that are closed were asked: %v", f.asked)
	}
	f.cluster = nil
	for name := range scrape(t, h) {
		if strings.Contains(name, "member_active") || strings.Contains(name, "member_epoch") || strings.Contains(name, "journal") || strings.Contains(name, "failovers") {
			t.Errorf("a hub that shares no journal exposes %s", name)
		}
	}
}

// tookTime is how long a check took, as it is said.
var tookTime = regexp.MustCompile(`\d+\.\dms`)

// TestReadyAsStandby: that a hub takes no work says nothing about whether it can take over. The
// log has no line of it.
func TestReadyAsStandby(t *testing.T) {
	s := states{"store": errors.New("not open")}
	cfg := new(rooms).config()
	log, lines := logged(slog.LevelInfo)
	cfg.Logger = log
	cfg.Ready, cfg.Standby = []Check{s.check("store", 0)}, []Check{s.check("standby", 0)}
	h := open(t, cfg)
	wantAnswer := func(target string, status int, part string) {
		t.Helper()
		w := get(h, target)
		body := tookTime.ReplaceAllString(w.Body.String(), "<time>")
		if w.Code != status || !strings.Contains(body, part) {
			t.Errorf("%s answered %d %q; want %d with %q", target, w.Code, w.Body, status, part)
		}
	}
	wantAnswer("/readyz?role=standby", 200, "ok\n")
	wantAnswer("/healthz?role=standby&verbose", 200, "standby ok <time>\nok\n")
	s["standby"] = eventhub.Errorf(eventhub.CodeConflict, "this hub leads")
	wantAnswer("/readyz?role=standby", 503, "standby failed <time>: this hub leads\nfailed\n")
	wantAnswer("/readyz?role=standby&format=json", 503, `"checks":[{"name":"standby","status":"failed"`)
	wantAnswer("/readyz?role=leader", 503, `role "leader" is unknown; standby is known`)
	if got := lines(); len(got) > 0 {
		t.Errorf("logged %q", got)
	}
	wantAnswer("/readyz", 503, "store failed")
	cfg.Standby = nil
	h = open(t, cfg)
	wantAnswer("/readyz?role=standby", 503, "this hub shares no journal")
}

// exposing is what one hub of a cluster exposes.
type exposing struct {
	leads          bool
	behind, silent time.Duration
	full           time.Duration
	projects       time.Duration // its documents are behind for that long
	used, most     uint64
}

// scrapeOf is a scrape of all hubs of a cluster.
func scrapeOf(t *testing.T, members []exposing) string {
	t.Helper()
	var all strings.Builder
	for i, m := range members {
		f := filled()
		f.cluster = &measure.Cluster{Leads: m.leads, Behind: m.behind, Silent: m.silent, Full: m.full, Used: m.used, Most: m.most, Projection: measure.Projection{Lag: m.projects}, AppendSeconds: measure.NewHistogram(measure.Seconds)}
		cfg := f.config()
		cfg.Closed = func() bool { return !m.leads }
		cfg.Ready = []Check{{Name: "store", Check: func(context.Context) error {
			if !m.leads {
				return eventhub.Errorf(eventhub.CodeNotActive, "a standby")
			}
			return nil
		}}}
		for line := range strings.Lines(get(open(t, cfg), "/metrics").Body.String()) {
			name, value, _ := strings.Cut(line, " ")
			if name != "#" && !strings.Contains(name, "{") { // the alerts look at none that has labels
				all.WriteString(name + `{instance="` + string(rune('a'+i)) + `"} ` + value)
			}
		}
	}
	return all.String()
}

// TestClusterAlerts: each fires for what it is about and for nothing else; a standby is not ready by
// its nature, which is no alert.
func TestClusterAlerts(t *testing.T) {
	const gib = 1 << 30
	leads, stands := exposing{leads: true}, exposing{}
	looked := []string{"EventhubNotReady", "EventhubNotOneActive", "EventhubStandbyBehind", "EventhubJournalSilent", "EventhubJournalFull", "EventhubJournalNearlyFull", "EventhubFewMembers", "EventhubProjectionBehind"}
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	for name, tt := range map[string]struct {
		members []exposing
		want    string
	}{
		"well":                   {[]exposing{leads, stands, stands}, ""},
		"two":                    {[]exposing{stands, leads}, ""},
		"a little behind":        {[]exposing{leads, {behind: 29 * time.Second}}, ""},
		"nobody leads":           {[]exposing{stands, stands}, "EventhubNotOneActive"},
		"two lead":               {[]exposing{leads, leads}, "EventhubNotOneActive"},
		"one of three behind":    {[]exposing{leads, stands, {behind: 31 * time.Second}}, "EventhubStandbyBehind"},
		"one of two behind":      {[]exposing{leads, {behind: 31 * time.Second}}, "EventhubStandbyBehind,EventhubFewMembers"},
		"alone":                  {[]exposing{leads}, "EventhubFewMembers"},
		"silent":                 {[]exposing{{leads: true, silent: 11 * time.Second}, {silent: 11 * time.Second}}, "EventhubJournalSilent,EventhubFewMembers"},
		"one is cut off":         {[]exposing{leads, stands, {silent: 11 * time.Second}}, "EventhubJournalSilent"},
		"full":                   {[]exposing{{leads: true, full: 11 * time.Second, used: 10 * gib, most: 10 * gib}, stands}, "EventhubJournalFull,EventhubJournalNearlyFull"},
		"full for a moment":      {[]exposing{{leads: true, full: 9 * time.Second}, stands}, ""},
		"room":                   {[]exposing{{leads: true, used: 8 * gib, most: 10 * gib}, stands}, ""},
		"nearly full":            {[]exposing{{leads: true, used: 8*gib + 1, most: 10 * gib}, stands}, "EventhubJournalNearlyFull"},
		"without a limit":        {[]exposing{{leads: true, used: 8 * gib}, stands}, ""},
		"projections behind":     {[]exposing{{leads: true, projects: 61 * time.Second}, stands}, "EventhubProjectionBehind"},
		"projections lag":        {[]exposing{{leads: true, projects: 59 * time.Second}, stands}, ""},
		"hubs without a journal": {nil, ""},
	} {
		scraped := scrapeOf(t, tt.members)
		if tt.members == nil {
			scraped = "up 1\neventhub_ready 1\n"
		}
		var fires, known []string
		for _, r := range file.Groups[0].Rules {
			if !slices.Contains(looked, r.Alert) {
				continue
			}
			known = append(known, r.Alert)
			active, err := promeval.Firing(r.Expr, promeval.Parse(time.Unix(1_000_000, 0), scraped))
			if err != nil {
				t.Error(err)
			}
			if len(active) > 0 {
				fires = append(fires, r.Alert)
			}
		}
		if got := strings.Join(fires, ","); got != tt.want || len(known) != len(looked) {
			t.Errorf("%s: %q fire of %v; want %q", name, got, known, tt.want)
		}
	}
}

// TestNotReadyAlert: it still fires for a hub that is alone.
func TestNotReadyAlert(t *testing.T) {
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	for _, r := range file.Groups[0].Rules {
		if r.Alert != "EventhubNotReady" {
			continue
		}
		for scraped, want := range map[string]int{
			"eventhub_ready 0\n": 1, "eventhub_ready 1\n": 0, "eventhub_ready 0\neventhub_member_active 1\n": 1, "eventhub_ready 0\neventhub_member_active 0\n": 0,
		} {
			if active, err := promeval.Firing(r.Expr, promeval.Parse(time.Unix(1_000_000, 0), scraped)); len(active) != want || err != nil {
				t.Errorf("%q: %v, %v", scraped, active, err)
			}
		}
		return
	}
	t.Error("there is no such alert")
}
