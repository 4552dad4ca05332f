package ops

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"eventhub/internal/measure"
)

// maxScrapes is how many scrapes are served at a time; more are answered 503.
const maxScrapes = 4

// metricsHandler serves a registry of its own, so that nothing shows that
// somebody else has put into the global one.
func (o *Ops) metricsHandler() (http.Handler, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newCollector(o),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("ops: register the metrics: %w", err)
		}
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(o.cfg.Logger.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // what can be reported is reported; see Registry
		Registry:            registry,                 // counts promhttp_metric_handler_errors_total
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true,
	}), nil
}

// snapshot is what one scrape takes of all but the engine.
type snapshot struct {
	gateway measure.Gateway
	api     measure.API
	refused []measure.AuthRefused
	ready   bool
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
		descsOf(topicSeries), descsOf(groupSeries), descsOf(engineSeries), descsOf(hubSeries),
		histogramDescs(groupHistograms), histogramDescs(engineHistograms),
		{closedDesc, errorsDesc, requestsDesc, refusedDesc, publishDesc, buildDesc},
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
	if cfg.Closed() {
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
