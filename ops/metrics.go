package ops

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"eventhub"
	"eventhub/internal/measure"
)

// maxScrapes is how many scrapes are served at a time; more are answered 503.
const maxScrapes = 4

// metricsHandler serves a registry of its own, which it returns too, so that nothing shows
// that somebody else has put into the global one.
func (o *Ops) metricsHandler() (*prometheus.Registry, http.Handler, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newCollector(o),
	} {
		if err := registry.Register(c); err != nil {
			return nil, nil, fmt.Errorf("ops: register the metrics: %w", err)
		}
	}
	opts := o.handlerOptions()
	opts.Registry = registry // counts promhttp_metric_handler_errors_total
	opts.MaxRequestsInFlight = maxScrapes
	return registry, promhttp.HandlerFor(registry, opts), nil
}

func (o *Ops) handlerOptions() promhttp.HandlerOpts {
	return promhttp.HandlerOpts{
		ErrorLog:          slog.NewLogLogger(o.cfg.Logger.Handler(), slog.LevelWarn),
		ErrorHandling:     promhttp.ContinueOnError, // what can be reported is reported; see Registry
		EnableOpenMetrics: true,
	}
}

// showMetrics answers with all metrics, or without those of topics that the request may not
// see.
func (o *Ops) showMetrics(w http.ResponseWriter, r *http.Request, access Access) error {
	if access.Shows == nil {
		o.metrics.ServeHTTP(w, r)
		return nil
	}
	shows, err := access.Shows()
	if err != nil {
		return err
	}
	if shows == nil {
		o.metrics.ServeHTTP(w, r)
		return nil
	}
	select {
	case o.parts <- struct{}{}:
		defer func() { <-o.parts }()
	default:
		return eventhub.Errorf(eventhub.CodeOverloaded, "%d scrapes are under way; more are not served at a time", maxScrapes)
	}
	promhttp.HandlerFor(shown{o.scrapes, shows}, o.handlerOptions()).ServeHTTP(w, r)
	return nil
}

// shown gathers what a registry has without series of topics that do not show, and of patterns
// that match some. The row of all others together has some of these.
type shown struct {
	from  prometheus.Gatherer
	topic func(name string) bool
}

// Gather implements prometheus.Gatherer.
func (s shown) Gather() ([]*dto.MetricFamily, error) {
	families, err := s.from.Gather()
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		f.Metric = slices.DeleteFunc(f.Metric, func(m *dto.Metric) bool {
			return slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
				switch l.GetName() {
				case topicLabels[0]:
					return l.GetValue() == otherLabel || !s.topic(l.GetValue())
				case patternLabel:
					return l.GetValue() != "" && !s.topic(l.GetValue())
				}
				return false
			})
		})
		return len(f.Metric) == 0
	})
	return families, err
}

// snapshot is what one scrape takes of all but the engine.
type snapshot struct {
	gateway   measure.Gateway
	api       measure.API
	refused   []measure.AuthRefused
	sources   []measure.Source
	limits    []measure.Limit
	ready     bool
	auditLost uint64
	strangers int
	evicted   uint64
	limit     int64 // of memory
	used      int64
	load      int
}

// collector turns snapshots into metrics. The tables in series.go say which.
type collector struct {
	ops *Ops

	mu     sync.Mutex // one scrape at a time: capped has to see them in order
	topics *capped[string, measure.Topic]
	groups *capped[groupName, groupRow]
	// times are the groups with histograms of their own.
	times *capped[groupName, groupRow]
}

func newCollector(o *Ops) *collector {
	return &collector{
		ops:    o,
		topics: newCapped(o.cfg.MaxLabels, topicKind),
		groups: newCapped(o.cfg.MaxLabels, groupKind),
		times:  newCapped(o.cfg.MaxHistograms, groupKind),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, descs := range [][]*prometheus.Desc{
		descsOf(topicSeries), descsOf(groupSeries), descsOf(engineSeries), descsOf(storeSeries), descsOf(hubSeries), descsOf(clusterSeries),
		histogramDescs(clusterHistograms), histogramDescs(groupHistograms), histogramDescs(engineHistograms),
		{closedDesc, errorsDesc, requestsDesc, refusedDesc, staleDesc, reloadDesc, expiresDesc, limitDesc, boundDesc, limitedDesc, publishDesc, buildDesc},
	} {
		for _, d := range descs {
			out <- d
		}
	}
}

// Collect implements prometheus.Collector. A label that is not UTF-8 makes it
// panic, which the registry turns into an error of the scrape.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg := &c.ops.cfg
	_, ready := c.ops.ready(ctx)
	s := snapshot{ready: ready}
	if cfg.AuthRefused != nil {
		s.refused = cfg.AuthRefused()
	}
	if cfg.Strangers != nil {
		s.strangers, s.evicted = cfg.Strangers()
	}
	if cfg.Pressure != nil {
		s.limit, s.used, s.load = cfg.Pressure()
	}
	if cfg.AuditLost != nil {
		s.auditLost = cfg.AuditLost()
	}
	if cfg.Sources != nil {
		s.sources = cfg.Sources()
	}
	if cfg.Limits != nil {
		s.limits = cfg.Limits()
	}
	cluster := cfg.Cluster()
	if cluster != nil {
		emit(out, clusterSeries, cluster)
		emitHistograms(out, clusterHistograms, cluster)
	}
	if cfg.Closed() {
		if cluster != nil && cluster.NeededBytes > 0 {
			emit(out, storeSeries, &measure.Engine{StoreBytes: cluster.StoreBytes, FreeBytes: cluster.FreeBytes, NeededBytes: cluster.NeededBytes})
		}
		collectHub(out, &s)
		c.collectBuild(out)
		return
	}
	if engine, err := cfg.Engine(ctx); err == nil {
		c.collectEngine(out, &engine)
	} else {
		out <- prometheus.NewInvalidMetric(topicSeries[0].desc, fmt.Errorf("ops: measure the engine: %w", err))
	}
	s.gateway, s.api = cfg.Gateway(), cfg.API()
	collectHub(out, &s)
	c.collectBuild(out)
}

func (c *collector) collectBuild(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(buildDesc, prometheus.GaugeValue, 1, c.ops.cfg.Version, runtime.Version())
}

// collectEngine sends what the engine has measured. c.mu is held.
func (c *collector) collectEngine(out chan<- prometheus.Metric, engine *measure.Engine) {
	rows := make([]groupRow, len(engine.Groups))
	for i := range engine.Groups {
		rows[i] = rowOf(&engine.Groups[i])
	}
	topics, groups, times := c.topics.fold(engine.Topics), c.groups.fold(rows), c.times.fold(rows)
	for i := range topics {
		emit(out, topicSeries, &topics[i], topics[i].Topic)
	}
	for i := range groups {
		emit(out, groupSeries, &groups[i], groups[i].Topic, groups[i].Group.Group)
	}
	for i := range times {
		emitHistograms(out, groupHistograms, &times[i], times[i].Topic, times[i].Group.Group)
	}
	emit(out, engineSeries, engine)
	emit(out, storeSeries, engine)
	for code, n := range engine.PublishRefused {
		out <- prometheus.MustNewConstMetric(publishDesc, prometheus.CounterValue, float64(n), code)
	}
	emitHistograms(out, engineHistograms, engine)
}

func collectHub(out chan<- prometheus.Metric, s *snapshot) {
	emit(out, hubSeries, s)
	for code, n := range s.gateway.Closed {
		out <- prometheus.MustNewConstMetric(closedDesc, prometheus.CounterValue, float64(n), closeCode(code))
	}
	for code, n := range s.gateway.Errors {
		out <- prometheus.MustNewConstMetric(errorsDesc, prometheus.CounterValue, float64(n), code)
	}
	for _, r := range s.refused {
		out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(r.Count), r.Transport, r.Reason)
	}
	for _, a := range s.sources {
		out <- prometheus.MustNewConstMetric(staleDesc, prometheus.GaugeValue, oneIf(a.Stale), a.Setting)
		out <- prometheus.MustNewConstMetric(reloadDesc, prometheus.CounterValue, float64(a.Failures), a.Setting)
		if !a.Expires.IsZero() {
			out <- prometheus.MustNewConstMetric(expiresDesc, prometheus.GaugeValue, float64(a.Expires.Unix()))
		}
	}
	for _, l := range s.limits {
		if l.Connections > 0 {
			out <- prometheus.MustNewConstMetric(boundDesc, prometheus.GaugeValue, float64(l.Connections), l.Limit)
		} else {
			out <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, l.PerSecond, l.Limit, l.Pattern)
		}
		out <- prometheus.MustNewConstMetric(limitedDesc, prometheus.CounterValue, float64(l.Refused), l.Limit, l.Pattern)
	}
	for _, r := range s.api.Requests {
		out <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(r.Count), r.Route, strconv.Itoa(r.Status))
	}
}

// closeCode names a close code; 0 stands for none.
func closeCode(code int) string {
	if code == 0 {
		return "none"
	}
	return strconv.Itoa(code)
}
