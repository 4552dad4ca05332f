package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"eventhub"
	"eventhub/internal/measure"
	"eventhub/internal/testsize"
)

// TestEverySeries: what the rooms have measured comes out under its name, each
// figure once.
func TestEverySeries(t *testing.T) {
	f := filled()
	cfg := f.config()
	cfg.Ready = []Check{states{}.check("store", 0)}
	got := scrape(t, open(t, cfg))
	want := samples{
		of("events_published_total", "orders"):                         7,
		of("eventhub_published_bytes_total", "orders"):                 700,
		of("eventhub_duplicates_total", "orders"):                      2,
		of("events_delivered_total", "orders", "billing"):              9,
		of("eventhub_events_redelivered_total", "orders", "billing"):   3,
		of("events_acked_total", "orders", "billing"):                  4,
		of("events_nacked_total", "orders", "billing"):                 2,
		of("eventhub_leases_expired_total", "orders", "billing"):       1,
		of("eventhub_events_dead_lettered_total", "orders", "billing"): 1,
		of("events_inflight", "orders", "billing"):                     3,
		of("ws_inflight", "orders", "billing"):                         2,
		of("eventhub_group_lag_events", "orders", "billing"):           5,
		of("eventhub_group_waiting_events", "orders", "billing"):       1,
		of("eventhub_group_held_events", "orders", "billing"):          6,
		of("eventhub_group_paused", "orders", "billing"):               1,
		of("eventhub_group_deliverable_events", "orders", "billing"):   0,
		of("eventhub_group_unattended_events", "orders", "billing"):    0,
		of("eventhub_dead_letters_open", "orders", "billing"):          14,
		of("eventhub_dead_letters_redriven", "orders", "billing"):      15,
		"eventhub_last_commit_timestamp_seconds":                       16.5,
		"eventhub_key_index_left_offsets":                              59,
		"eventhub_producers":                                           60,
		"eventhub_producers_used":                                      61,
		"eventhub_store_free_bytes":                                    18,
		"eventhub_store_needed_bytes":                                  19,
		`eventhub_publish_refused_total{code="overloaded"}`:            20,
		of("eventhub_group_members", "orders", "billing"):              2,
		of("subscribe_poll_duration_ms_sum", "orders", "billing"):      1,
		of("subscribe_poll_duration_ms_count", "orders", "billing"):    2,
		of("delivery_handler_duration_ms_sum", "orders", "billing"):    10,
		of("delivery_handler_duration_ms_count", "orders", "billing"):  2,
		of("delivery_latency_ms_sum", "orders", "billing"):             70000,
		of("delivery_latency_ms_count", "orders", "billing"):           1,
		"eventhub_commit_duration_seconds_sum":                         0.005,
		"eventhub_commit_duration_seconds_count":                       2,
		"eventhub_commit_events_sum":                                   7,
		"eventhub_commit_events_count":                                 2,
		"eventhub_filter_failed_total":                                 8,
		"eventhub_filter_too_costly_total":                             5,
		`eventhub_gaps_total{group="billing",topic="orders"}`:          2, `eventhub_gap_offsets_total{group="billing",topic="orders"}`: 17,
		of("eventhub_retention_removed_events_total", "orders"):  34,
		of("eventhub_retention_removed_bytes_total", "orders"):   35,
		of("eventhub_compaction_removed_events_total", "orders"): 41, of("eventhub_compaction_removed_bytes_total", "orders"): 42,
		of("eventhub_groups_ended_total", "orders"): 43,
		of("eventhub_topic_horizon", "orders"):      36,
		"eventhub_store_full_seconds":               37,
		"eventhub_retention_rounds_total":           38,
		"eventhub_retention_clock_held_seconds":     39,
		"eventhub_maintenance":                      1,
		"eventhub_outbox_oldest_seconds":            0, "eventhub_outbox_up": 0, // of a drainer that has not begun
		"eventhub_outbox_parked_total": 0, "eventhub_outbox_retried_total": 0, "eventhub_outbox_sent_total": 0,
		"eventhub_outbox_publish_seconds_count": 0, "eventhub_outbox_publish_seconds_sum": 0,
		`eventhub_outbox_rows{status="claimed"}`: 0, `eventhub_outbox_rows{status="error"}`: 0, `eventhub_outbox_rows{status="pending"}`: 0,
		"eventhub_member_active": 1, "eventhub_member_epoch": 101, "eventhub_failovers_total": 108,
		"eventhub_journal_position": 102, "eventhub_journal_last": 105, "eventhub_journal_behind_entries": 3,
		"eventhub_journal_behind_seconds": 1.5, "eventhub_journal_silent_seconds": 2.5, "eventhub_journal_full_seconds": 4.5,
		"eventhub_journal_append_seconds_count": 2, "eventhub_journal_append_seconds_sum": 0.75,
		"eventhub_journal_used_bytes": 106, "eventhub_journal_most_bytes": 107,
		"eventhub_projection_behind_entries": 109, "eventhub_projection_behind_seconds": 3.5, "eventhub_projection_events_total": 110, "eventhub_projection_errors_total": 111,
		"eventhub_commit_waiting_seconds":                                             1.5,
		"eventhub_queued_bytes":                                                       11,
		"eventhub_cached_bytes":                                                       12,
		"eventhub_groups_bytes":                                                       114,
		"eventhub_store_size_bytes":                                                   13,
		"eventhub_ready":                                                              1,
		"eventhub_connections":                                                        21,
		"eventhub_connections_opened_total":                                           24,
		`eventhub_connections_closed_total{code="none"}`:                              1,
		`eventhub_connections_closed_total{code="1000"}`:                              2,
		`eventhub_connections_closed_total{code="4000"}`:                              3,
		"eventhub_connections_unauthenticated":                                        97,
		"eventhub_connections_evicted_total":                                          98,
		"eventhub_memory_limit_bytes":                                                 111,
		"eventhub_memory_used_bytes":                                                  112,
		"eventhub_publish_load_percent":                                               113,
		"eventhub_connections_refused_total":                                          4,
		"eventhub_received_bytes_total":                                               25,
		"eventhub_sent_bytes_total":                                                   26,
		"eventhub_subscriptions":                                                      27,
		`eventhub_errors_total{code="bad_json"}`:                                      5,
		`eventhub_http_requests_total{route="POST /publish/{topic}",status="200"}`:    31,
		`eventhub_http_requests_total{route="POST /publish/{topic}",status="400"}`:    32,
		`eventhub_limit_events_per_second{limit="publish_topic",pattern="orders.**"}`: 12.5,
		`eventhub_limit_connections{limit="connections_address"}`:                     78,
		`eventhub_limit_refused_total{limit="connections_address",pattern=""}`:        79,
		`eventhub_limit_refused_total{limit="publish_topic",pattern="orders.**"}`:     77,
		"eventhub_audit_lost_total":                                                   35,
		`eventhub_auth_refused_total{reason="bad_token",transport="http"}`:            33,
		`eventhub_setting_reload_failures_total{setting="jwt_key_file"}`:              34,
		`eventhub_setting_stale{setting="tls_cert_file"}`:                             0,
		`eventhub_setting_reload_failures_total{setting="tls_cert_file"}`:             0,
		`eventhub_tls_certificate_expires_timestamp_seconds`:                          1900000000,
		`eventhub_setting_stale{setting="jwt_key_file"}`:                              1,
		`eventhub_build_info{goversion="` + runtime.Version() + `",version="v9"}`:     1,
	}
	own := make(samples)
	for key, v := range got {
		name, _, _ := strings.Cut(key, "{")
		if !strings.HasSuffix(name, "_bucket") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "promhttp_") {
			own[key] = v
		}
	}
	if diff := cmp.Diff(want, own); diff != "" {
		t.Errorf("the scrape differs (-want +got):\n%s", diff)
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
}

func TestBuckets(t *testing.T) {
	got := scrape(t, open(t, filled().config()))
	for le, n := range map[string]float64{"1": 0, "2": 0, "5": 1, "10": 2, "60000": 2, "+Inf": 2} {
		key := seriesKey("delivery_handler_duration_ms_bucket", `topic="orders"`, `group="billing"`, "le="+strconv.Quote(le))
		if v, ok := got[key]; !ok || v != n {
			t.Errorf("%s is %v (%v); want %v", key, v, ok, n)
		}
	}
}

// TestOneSnapshotAScrape: figures of one scrape belong together, and asking is
// not free.
func TestOneSnapshotAScrape(t *testing.T) {
	f := filled()
	h := open(t, f.config())
	for scrapes := 1; scrapes <= 3; scrapes++ {
		scrape(t, h)
		want := map[string]int{"engine": scrapes, "gateway": scrapes, "api": scrapes}
		if !maps.Equal(f.asked, want) {
			t.Errorf("after %d scrapes the rooms were asked %v", scrapes, f.asked)
		}
	}
}

// TestLint: names follow Prometheus' conventions, except those that were given.
func TestLint(t *testing.T) {
	body := get(open(t, filled().config()), "/metrics").Body
	problems, err := promlint.New(body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, p.Metric+": "+p.Text)
	}
	slices.Sort(got)
	const unit = ": metric names should not contain abbreviated units"
	want := []string{"delivery_handler_duration_ms" + unit, "delivery_latency_ms" + unit, "subscribe_poll_duration_ms" + unit}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("promlint differs (-want +got):\n%s", diff)
	}
}

func TestNotReadyIsMeasured(t *testing.T) {
	cfg := filled().config()
	cfg.Ready = []Check{states{"store": errors.New("broken")}.check("store", 0)}
	if got := scrape(t, open(t, cfg))["eventhub_ready"]; got != 0 {
		t.Errorf("eventhub_ready is %v", got)
	}
}

// TestEngineFails: the rest of the scrape is there, and it is said that
// something is missing.
func TestEngineFails(t *testing.T) {
	f := filled()
	cfg := f.config()
	log, lines := logged(slog.LevelInfo)
	cfg.Logger, cfg.MaxLabels = log, 1
	f.engine.Groups = append(f.engine.Groups, measure.Group{Topic: "orders", Group: "other", Acked: 5})
	h := open(t, cfg)
	scrape(t, h)
	f.engineError = errors.New("the store is gone")
	got := scrape(t, h)
	if got["eventhub_connections"] != 21 || got[`promhttp_metric_handler_errors_total{cause="gathering"}`] > 1 {
		t.Errorf("eventhub_connections is %v", got["eventhub_connections"])
	}
	if _, n := got.sum("events_published_total"); n != 0 {
		t.Errorf("%d series of topics without an engine", n)
	}
	if said := strings.Join(lines(), "\n"); !strings.Contains(said, "the store is gone") {
		t.Errorf("logged %q", said)
	}
	f.engineError = nil
	got = scrape(t, h)
	if v := got[of("events_acked_total", otherLabel, otherLabel)]; v != 5 {
		t.Errorf("after the failure the others have acked %v; want 5", v)
	}
	if v := got[`promhttp_metric_handler_errors_total{cause="gathering"}`]; v != 1 {
		t.Errorf("%v failed scrapes are counted", v)
	}
}

// TestABadLabelFailsTheScrapeAlone: and not the process.
func TestABadLabelFailsTheScrapeAlone(t *testing.T) {
	f := filled()
	f.api.Requests[0].Route = "\xff"
	h := open(t, f.config())
	if _, ok := scrape(t, h)["go_goroutines"]; !ok {
		t.Error("the other metrics are missing")
	}
	f.api.Requests[0].Route = "GET /"
	if got := scrape(t, h)["eventhub_connections"]; got != 21 {
		t.Errorf("after the repair eventhub_connections is %v", got)
	}
}

// TestOpenMetrics: both formats that Prometheus asks for hold the same counter.
func TestOpenMetrics(t *testing.T) {
	h := open(t, filled().config())
	for _, accept := range []string{"text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"} {
		w := get(h, "/metrics", "Accept", accept)
		if kind, _, _ := strings.Cut(accept, ";"); !strings.HasPrefix(w.Header().Get("Content-Type"), kind) {
			t.Errorf("Accept %s was answered with %s", accept, w.Header().Get("Content-Type"))
		}
		if body, _ := io.ReadAll(w.Body); !strings.Contains(string(body), "\nevents_published_total{topic=\"orders\"} 7") {
			t.Errorf("Accept %s: the counter is missing", accept)
		}
	}
}

// TestManyScrapesAtOnce is for the race detector: snapshots are folded one at a
// time.
func TestManyScrapesAtOnce(t *testing.T) {
	f := manyTopics(200, 1)
	cfg := f.config()
	cfg.MaxLabels = 10
	// Without the counting of f.config, which is for one goroutine.
	cfg.Engine = func(context.Context) (measure.Engine, error) { return f.engine, nil }
	cfg.Gateway = func() measure.Gateway { return f.gateway }
	cfg.API = func() measure.API { return f.api }
	h := open(t, cfg)
	var scrapes sync.WaitGroup
	for range maxScrapes {
		scrapes.Go(func() {
			for range 5 {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
				if w.Code != 200 {
					t.Errorf("answered %d", w.Code)
				}
			}
		})
	}
	scrapes.Wait()
}

// manyTopics is an engine of n topics with a group each, whose counts are all
// different and grow by by.
func manyTopics(n int, by uint64) *rooms {
	f := new(rooms)
	for i := range n {
		name := fmt.Sprintf("t%d", i)
		g := measure.Group{Topic: name, Group: "g", InFlight: map[string]int{"ws": 1, "http": 2},
			Poll: measure.NewHistogram(measure.Turns), Handler: measure.NewHistogram(measure.Milliseconds), Latency: measure.NewHistogram(measure.Milliseconds)}
		f.engine.Topics = append(f.engine.Topics, measure.Topic{Topic: name})
		f.engine.Groups = append(f.engine.Groups, g)
		f.grow(i, by*uint64(i+1))
	}
	return f
}

// grow adds to all counts of the i-th topic and group.
func (f *rooms) grow(i int, by uint64) {
	t, g := &f.engine.Topics[i], &f.engine.Groups[i]
	t.Events, t.Bytes, t.Duplicates = t.Events+by, t.Bytes+10*by, t.Duplicates+2*by
	t.Removed, t.RemovedBytes, t.GroupsEnded = t.Removed+by, t.RemovedBytes+3*by, t.GroupsEnded+6*by
	t.Compacted, t.CompactedBytes = t.Compacted+4*by, t.CompactedBytes+5*by
	g.Delivered, g.Redelivered, g.Acked, g.Nacked = g.Delivered+3*by, g.Redelivered+by, g.Acked+2*by, g.Nacked+by
	g.Expired, g.DeadLettered = g.Expired+5*by, g.DeadLettered+7*by
	g.Gaps, g.GapOffsets = g.Gaps+by, g.GapOffsets+4*by
	g.Lag, g.Waiting, g.Held, g.Members = by, i, 2*i, 1
	for _, h := range []*measure.Histogram{&g.Poll, &g.Handler, &g.Latency} {
		h.Observe(float64(i % 70_000))
	}
}

// TestLabelsAreCapped: ten thousand topics and groups make a bounded number of
// series whose sums are exact, and whoever has a label keeps it.
func TestLabelsAreCapped(t *testing.T) {
	const most = 50
	topics := testsize.Of(10_000, 1_000)
	f := manyTopics(topics, 1)
	cfg := f.config()
	cfg.MaxLabels = most
	h := open(t, cfg)
	var labels []string
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 3 {
		got := scrape(t, h)
		if len(got) > 500+most*(3+13+3*20) {
			t.Fatalf("round %d: %d series", round, len(got))
		}
		var now []string
		for key := range got {
			if strings.HasPrefix(key, "events_published_total{") || strings.HasPrefix(key, "events_acked_total{") {
				now = append(now, key)
			}
		}
		slices.Sort(now)
		if len(now) != 2*(most+1) || labels != nil && !slices.Equal(labels, now) {
			t.Errorf("round %d: %d labels, and some changed: %v", round, len(now), now)
		}
		labels = now
		wantSums(t, got, &f.engine)
		for i := range f.engine.Topics {
			f.grow(i, random.Uint64N(100))
		}
		random.Shuffle(topics, func(i, j int) {
			e := &f.engine
			e.Topics[i], e.Topics[j] = e.Topics[j], e.Topics[i]
			e.Groups[i], e.Groups[j] = e.Groups[j], e.Groups[i]
		})
	}
}

// TestSeriesAreBounded: a monitor that scrapes a hub with its defaults gets fewer than
// 7,000 series, however many topics and groups there are.
func TestSeriesAreBounded(t *testing.T) {
	if n := len(scrape(t, open(t, manyTopics(10_000, 1).config()))); n > 7000 {
		t.Errorf("%d series of 10,000 topics", n)
	}
}

// wantSums compares the sums of all series with those of the engine.
func wantSums(t *testing.T, got samples, e *measure.Engine) {
	t.Helper()
	want := make(samples)
	for _, topic := range e.Topics {
		want["events_published_total"] += float64(topic.Events)
		want["eventhub_published_bytes_total"] += float64(topic.Bytes)
		want["eventhub_duplicates_total"] += float64(topic.Duplicates)
		want["eventhub_retention_removed_events_total"] += float64(topic.Removed)
		want["eventhub_retention_removed_bytes_total"] += float64(topic.RemovedBytes)
		want["eventhub_compaction_removed_events_total"] += float64(topic.Compacted)
		want["eventhub_compaction_removed_bytes_total"] += float64(topic.CompactedBytes)
		want["eventhub_groups_ended_total"] += float64(topic.GroupsEnded)
	}
	for _, g := range e.Groups {
		want["events_delivered_total"] += float64(g.Delivered)
		want["eventhub_events_redelivered_total"] += float64(g.Redelivered)
		want["events_acked_total"] += float64(g.Acked)
		want["events_nacked_total"] += float64(g.Nacked)
		want["eventhub_leases_expired_total"] += float64(g.Expired)
		want["eventhub_events_dead_lettered_total"] += float64(g.DeadLettered)
		want["eventhub_gaps_total"] += float64(g.Gaps)
		want["eventhub_gap_offsets_total"] += float64(g.GapOffsets)
		want["eventhub_group_lag_events"] += float64(g.Lag)
		want["eventhub_group_waiting_events"] += float64(g.Waiting)
		want["eventhub_group_held_events"] += float64(g.Held)
		want["eventhub_group_members"] += float64(g.Members)
		want["eventhub_group_deliverable_events"] += float64(g.Lag)
		want["events_inflight"] += 3
		want["ws_inflight"]++
		for name, h := range map[string]*measure.Histogram{"subscribe_poll_duration_ms": &g.Poll, "delivery_handler_duration_ms": &g.Handler, "delivery_latency_ms": &g.Latency} {
			want[name+"_sum"] += h.Sum()
			want[name+"_count"] += float64(h.Count())
			for _, n := range h.Buckets() {
				want[name+"_bucket"] += float64(n)
			}
			want[name+"_bucket"] += float64(h.Count()) // le="+Inf"
		}
	}
	for name, v := range want {
		if sum, _ := got.sum(name); sum != v {
			t.Errorf("the series of %s add up to %v; want %v", name, sum, v)
		}
	}
}

// BenchmarkScrape is a scrape of a hub with 10,000 topics and groups; of them
// DefaultMaxLabels have series of their own.
func BenchmarkScrape(b *testing.B) {
	o, err := New(manyTopics(10_000, 1).config())
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	o.Register(mux)
	b.ReportAllocs()
	bytes := 0
	for b.Loop() {
		w := get(mux, "/metrics")
		bytes = w.Body.Len()
	}
	b.ReportMetric(float64(bytes), "bytes/scrape")
}

// TestMetricsOfSomeTopics: who may see some topics gets the series of these, and of the hub,
// and not the row of all others; who may see none gets nothing.
func TestMetricsOfSomeTopics(t *testing.T) {
	f := filled()
	f.engine.Topics = append(f.engine.Topics, measure.Topic{Topic: "billing"}, measure.Topic{Topic: "returns"})
	cfg := f.config()
	cfg.MaxLabels = 2 // so that there are others
	var shows func(string) bool
	var refused error
	cfg.Authenticate = func(context.Context, string, bool) (Access, error) {
		return Access{Shows: func() (func(string) bool, error) { return shows, refused }}, nil
	}
	h := open(t, cfg)
	scrape := func() (status int, all string, topics []string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
		for _, label := range regexp.MustCompile(`topic="([^"]*)"`).FindAllStringSubmatch(w.Body.String(), -1) {
			if !slices.Contains(topics, label[1]) {
				topics = append(topics, label[1])
			}
		}
		return w.Code, w.Body.String(), topics
	}
	_, _, all := scrape()
	const seen = "orders"
	if len(all) != 3 || !slices.Contains(all, otherLabel) || !slices.Contains(all, seen) {
		t.Fatalf("all metrics are of topics %v; %s, another one and others are wanted", all, seen)
	}
	shows = func(topic string) bool { return topic == seen || topic == otherLabel }
	if status, text, topics := scrape(); status != http.StatusOK || !slices.Equal(topics, []string{seen}) || !strings.Contains(text, "eventhub_build_info") {
		t.Errorf("%d, series of %v; want those of %s, and of the hub", status, topics, seen)
	}
	shows = func(string) bool { return false }
	if status, text, topics := scrape(); status != http.StatusOK || len(topics) > 0 || !strings.Contains(text, "eventhub_build_info") {
		t.Errorf("%d, series of %v; want those of the hub alone", status, topics)
	}
	refused = eventhub.Errorf(eventhub.CodeForbidden, "no rights")
	if status, text, _ := scrape(); status != http.StatusForbidden || strings.Contains(text, "eventhub_build_info") {
		t.Errorf("%d without a right to anything", status)
	}
}

// TestOperatorsAlone: what concerns the hub itself is for those who operate it.
func TestOperatorsAlone(t *testing.T) {
	cfg := filled().config()
	cfg.Level = new(slog.LevelVar)
	cfg.Authenticate = func(context.Context, string, bool) (Access, error) {
		return Access{Operates: func() error { return eventhub.Errorf(eventhub.CodeForbidden, "no rights") }}, nil
	}
	h := open(t, cfg)
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "http://localhost/log-level", strings.NewReader("debug")))
		if w.Code != http.StatusForbidden || cfg.Level.Level() != slog.LevelInfo {
			t.Errorf("%s: %d, level %s", method, w.Code, cfg.Level.Level())
		}
	}
}
