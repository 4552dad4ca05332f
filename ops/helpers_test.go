package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
	"eventhub/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rooms are a hub's rooms as the tests want them: an Inspector over fixed groups
// and topics, and what each room has measured.
type rooms struct {
	topics   map[string]admin.TopicInfo
	groupsBy []admin.GroupInfo // ordered by topic and group
	flying   []admin.InFlight
	broken   error // what every question is answered with

	engine      measure.Engine
	engineError error
	gateway     measure.Gateway
	api         measure.API
	auditLost   uint64
	strangers   int
	evicted     uint64
	limit, used int64
	load        int
	refused     []measure.AuthRefused
	sources     []measure.Source
	cluster     *measure.Cluster
	asked       map[string]int // how often a room was asked to measure
}

func (f *rooms) Topics(context.Context, string, int) ([]admin.TopicInfo, error) {
	panic("ops does not list topics")
}

func (f *rooms) Event(context.Context, string, string) (eventhub.Item, error) {
	panic("ops does not show events")
}

func (f *rooms) EventGroups(context.Context, string, string) ([]admin.EventGroup, error) {
	panic("ops does not show events")
}

func (f *rooms) Topic(_ context.Context, topic string) (admin.TopicInfo, error) {
	t, ok := f.topics[topic]
	if !ok {
		return t, cmp.Or(f.broken, error(eventhub.Errorf(eventhub.CodeUnknownID, "there is no topic %q", topic)))
	}
	return t, f.broken
}

func (f *rooms) Groups(_ context.Context, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	var found []admin.GroupInfo
	for _, g := range f.groupsBy {
		later := cmp.Or(strings.Compare(g.Topic, q.AfterTopic), strings.Compare(g.Group, q.AfterGroup)) > 0
		fits := (q.Topic == "" || g.Topic == q.Topic) && (q.Group == "" || g.Group == q.Group)
		if later && fits && len(found) < q.Limit {
			found = append(found, g)
		}
	}
	return found, f.broken
}

func (f *rooms) Group(_ context.Context, topic, group string) (admin.GroupInfo, error) {
	for _, g := range f.groupsBy {
		if g.Topic == topic && g.Group == group {
			return g, f.broken
		}
	}
	return admin.GroupInfo{}, cmp.Or(f.broken, error(eventhub.Errorf(eventhub.CodeNotSubscribed, "there is no group %q in topic %q", group, topic)))
}

func (f *rooms) InFlight(_ context.Context, _, _ string, limit int) ([]admin.InFlight, error) {
	return f.flying[:min(limit, len(f.flying))], f.broken
}

func (f *rooms) Patterns(context.Context, string) ([]admin.GroupPattern, error) {
	return nil, f.broken
}

// config is one that lets everybody in but bearers of the token "wrong" and,
// where they are needed, those without a token.
func (f *rooms) config() Config {
	f.asked = make(map[string]int)
	return Config{
		Engine: func(context.Context) (measure.Engine, error) {
			f.asked["engine"]++
			return f.engine, f.engineError
		},
		Gateway: func() measure.Gateway {
			f.asked["gateway"]++
			return f.gateway
		},
		API: func() measure.API {
			f.asked["api"]++
			return f.api
		},
		Authenticate: func(_ context.Context, token string, given bool) (Access, error) {
			if given && token != "right" {
				return Access{}, eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")
			}
			return Access{Inspector: f}, nil
		},
		AuthRefused: func() []measure.AuthRefused { return f.refused },
		AuditLost:   func() uint64 { return f.auditLost },
		Strangers:   func() (int, uint64) { return f.strangers, f.evicted },
		Pressure:    func() (int64, int64, int) { return f.limit, f.used, f.load },
		Sources:     func() []measure.Source { return f.sources },
		Cluster:     func() *measure.Cluster { return f.cluster },
		Limits: func() []measure.Limit {
			return []measure.Limit{{Limit: "publish_topic", Pattern: "orders.**", PerSecond: 12.5, Refused: 77}, {Limit: "connections_address", Connections: 78, Refused: 79}}
		},
		Origins: []string{"https://app.example"},
		Version: "v9",
	}
}

// open returns the routes of a listener.
func open(t *testing.T, cfg Config) http.Handler {
	t.Helper()
	o, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// A hub that drains an outbox has its metrics here too.
	if _, err := outbox.NewDrainer(nil, nil, outbox.Options{Registerer: o.Registerer()}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	o.Register(mux)
	return mux
}

// do makes a request over loopback, with headers given in pairs.
func do(h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8082}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	return do(h, http.MethodGet, target, "", header...)
}

// wantProblem checks a refusal.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, code eventhub.Code, says string) {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("answered %d %q, which is no problem: %v", w.Code, w.Body, err)
	}
	if w.Code != status || p.Status != status || p.Code != code || !strings.Contains(p.Detail, says) || p.Error != p.Detail {
		t.Errorf("answered %d %+v; want %d %s with %q", w.Code, p, status, code, says)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("a problem has Content-Type %q", got)
	}
	if (status == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
		t.Errorf("status %d with WWW-Authenticate %q", status, w.Header().Get("WWW-Authenticate"))
	}
}

// samples are the values of a scrape by name and labels, as they are written
// there: events_acked_total{group="g",topic="t"}. Of a histogram they are its
// _bucket, _sum and _count.
type samples map[string]float64

// metric is what a scrape says of one metric besides its values.
type metric struct {
	name, kind, help string
	labels           []string
}

// read returns what /metrics says.
func read(t *testing.T, h http.Handler) (samples, []metric) {
	t.Helper()
	w := get(h, "/metrics")
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics answered %d %s", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := make(samples)
	var metrics []metric
	for name, family := range families {
		described := metric{name: name, kind: strings.ToLower(family.GetType().String()), help: family.GetHelp()}
		for i, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+strconv.Quote(l.GetValue()))
				if i == 0 {
					described.labels = append(described.labels, l.GetName())
				}
			}
			put := func(suffix string, v float64, more ...string) {
				all[seriesKey(name+suffix, append(more, labels...)...)] = v
			}
			hist := m.GetHistogram()
			if hist == nil {
				put("", m.GetCounter().GetValue()+m.GetGauge().GetValue()+m.GetUntyped().GetValue()+m.GetSummary().GetSampleSum())
				continue
			}
			put("_sum", hist.GetSampleSum())
			put("_count", float64(hist.GetSampleCount()))
			for _, b := range hist.GetBucket() {
				put("_bucket", float64(b.GetCumulativeCount()), "le="+strconv.Quote(strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)))
			}
		}
		metrics = append(metrics, described)
	}
	return all, metrics
}

// scrape returns the samples of /metrics.
func scrape(t *testing.T, h http.Handler) samples {
	t.Helper()
	all, _ := read(t, h)
	return all
}

// seriesKey is the key of samples; labels come in any order.
func seriesKey(name string, labels ...string) string {
	if len(labels) == 0 {
		return name
	}
	slices.Sort(labels)
	return name + "{" + strings.Join(labels, ",") + "}"
}

// of is the key of a topic's or group's series.
func of(name, topic string, group ...string) string {
	labels := []string{"topic=" + strconv.Quote(topic)}
	for _, g := range group {
		labels = append(labels, "group="+strconv.Quote(g))
	}
	return seriesKey(name, labels...)
}

// sum adds what begins with the name of a metric.
func (s samples) sum(name string) (total float64, series int) {
	for key, v := range s {
		if bare, _, _ := strings.Cut(key, "{"); bare == name {
			total += v
			series++
		}
	}
	return total, series
}

// logged returns a logger and the lines that it has got.
func logged(level slog.Leveler) (*slog.Logger, func() []string) {
	var b strings.Builder
	log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return log, func() []string { return strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' }) }
}

// filled is a hub in which every series that there is has a value.
func filled() *rooms {
	hist := func(bounds []float64, values ...float64) measure.Histogram {
		h := measure.NewHistogram(bounds)
		for _, v := range values {
			h.Observe(v)
		}
		return h
	}
	return &rooms{
		engine: measure.Engine{
			Topics: []measure.Topic{{Topic: "orders", Events: 7, Bytes: 700, Duplicates: 2, Removed: 34, RemovedBytes: 35, Horizon: 36, Compacted: 41, CompactedBytes: 42, GroupsEnded: 43}},
			Groups: []measure.Group{{
				Topic: "orders", Group: "billing",
				Delivered: 9, Redelivered: 3, Acked: 4, Nacked: 2, Expired: 1, DeadLettered: 1, Gaps: 2, GapOffsets: 17,
				OpenLetters: 14, Redriven: 15,
				Lag: 5, Waiting: 1, Held: 6, Paused: true, Members: 2, InFlight: map[string]int{"ws": 2, "": 1},
				Poll: hist(measure.Turns, 0, 1), Handler: hist(measure.Milliseconds, 3, 7), Latency: hist(measure.Milliseconds, 70000),
			}},
			CommitSeconds: hist(measure.Seconds, 0.002, 0.003), CommitEvents: hist(measure.Counts, 1, 6),
			CommitWaiting: 1500 * time.Millisecond, QueuedBytes: 11, CachedBytes: 12, GroupBytes: 114, StoreBytes: 13, FullIn: 37 * time.Second, RetentionRounds: 38, AgesHeld: 39 * time.Second, Indexing: 59, Producers: 60, ProducersUsed: 61, LastCommit: time.UnixMilli(16_500), FreeBytes: 18, NeededBytes: 19, PublishRefused: map[string]uint64{"overloaded": 20}, FilterFailed: 8, FilterTooCostly: 5,
		},
		gateway: measure.Gateway{
			Connections: 21, Opened: 24, Closed: map[int]uint64{0: 1, 1000: 2, 4000: 3}, Refused: 4,
			BytesReceived: 25, BytesSent: 26, Errors: map[string]uint64{"bad_json": 5}, Subscriptions: 27,
		},
		cluster: &measure.Cluster{
			ID: "hub1", Leads: true, Epoch: 101, Active: "hub1", Position: 102, Last: 105, Behind: 1500 * time.Millisecond, Silent: 2500 * time.Millisecond, Full: 4500 * time.Millisecond,
			Durability: "replicated", Used: 106, Most: 107, Failovers: 108, Projection: measure.Projection{Entries: 109, Lag: 3500 * time.Millisecond, Events: 110, Errors: 111}, AppendSeconds: hist(measure.Seconds, 0.25, 0.5),
			Members: []measure.Member{
				{ID: "hub1", URLs: []string{"ws://hub1:8090"}, Synced: 101, Layout: 2, Seen: time.UnixMilli(1_700_000_000_000)},
				{ID: "hub2", Synced: 99, Layout: 1, Seen: time.UnixMilli(1_700_000_001_000)},
			},
		},
		auditLost: 35,
		strangers: 97, evicted: 98,
		limit: 111, used: 112, load: 113,
		refused: []measure.AuthRefused{{Transport: "http", Reason: "bad_token", Count: 33}},
		sources: []measure.Source{{Setting: "jwt_key_file", Failures: 34, Stale: true}, {Setting: "tls_cert_file", Expires: time.Unix(1900000000, 0)}},
		api:     measure.API{Requests: []measure.Requests{{Route: "POST /publish/{topic}", Status: 200, Count: 31}, {Route: "POST /publish/{topic}", Status: 400, Count: 32}}},
	}
}
