package outbox

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a drainer counts. docs/metrics.md has them.
type metrics struct {
	rows    *prometheus.GaugeVec
	oldest  prometheus.Gauge
	up      prometheus.Gauge
	sent    prometheus.Counter
	parked  prometheus.Counter
	retried prometheus.Counter
	seconds prometheus.Histogram
}

func newMetrics(to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		rows: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventhub_outbox_rows", Help: "Rows of the outbox that are pending, claimed or parked (error).",
		}, []string{"status"}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "eventhub_outbox_oldest_seconds", Help: "Age of the oldest row that is pending or claimed; 0 where there is none.",
		}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "eventhub_outbox_up", Help: "1 where the table of the outbox could be read last time, 0 where not; rows and age are then those of before.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "eventhub_outbox_sent_total", Help: "Rows that this drainer has published.",
		}),
		parked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "eventhub_outbox_parked_total", Help: "Rows that the hub has refused for good.",
		}),
		retried: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "eventhub_outbox_retried_total", Help: "Rows that were given back after a publish that failed.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "eventhub_outbox_publish_seconds", Help: "Time from a publish of rows to the hub's answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
	}
	for _, status := range []Status{Pending, Claimed, Parked} {
		m.rows.WithLabelValues(string(status)) // before anything is counted
	}
	if to == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.rows, m.oldest, m.up, m.sent, m.parked, m.retried, m.seconds} {
		errs = append(errs, to.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) published(rows int, took time.Duration, err error) {
	m.seconds.Observe(took.Seconds())
	if err == nil {
		m.sent.Add(float64(rows))
	}
}

func (m *metrics) parkedRow() { m.parked.Inc() }

func (m *metrics) retriedRows(n int) { m.retried.Add(float64(n)) }

func (m *metrics) counted(n Counts, err error, now time.Time) {
	if err != nil {
		m.up.Set(0)
		return
	}
	m.up.Set(1)
	m.rows.WithLabelValues(string(Pending)).Set(float64(n.Pending))
	m.rows.WithLabelValues(string(Claimed)).Set(float64(n.Claimed))
	m.rows.WithLabelValues(string(Parked)).Set(float64(n.Parked))
	age := 0.0
	if !n.Oldest.IsZero() {
		age = max(0, now.Sub(n.Oldest).Seconds())
	}
	m.oldest.Set(age)
}
