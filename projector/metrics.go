package projector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"eventhub"
	"eventhub/admin"
)

// metrics are what a projector counts. docs/databases.md has them.
type metrics struct {
	events, rebuilds, failures prometheus.Counter
	delay, lag                 prometheus.Gauge
}

func newMetrics(to prometheus.Registerer, projection string) (*metrics, error) {
	label := prometheus.Labels{"projection": projection}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: label})
	}
	m := &metrics{
		events:   counter("eventhub_projector_events_total", "Events that were applied."),
		rebuilds: counter("eventhub_projector_rebuilds_total", "How often the projection was made from what the topics have."),
		failures: counter("eventhub_projector_failures_total", "Failures of the database, the hub or Apply that were waited for."),
		delay:    gauge("eventhub_projector_delay_seconds", "Age of the newest event of the last transaction, at its commit."),
		lag:      gauge("eventhub_projector_lag_events", "Offsets from where the projection is to the heads of its topics."),
	}
	if to == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.events, m.rebuilds, m.failures, m.delay, m.lag} {
		errs = append(errs, to.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) applied(events int, places []eventhub.Place, now time.Time) {
	m.events.Add(float64(events))
	var newest int64
	for _, at := range places {
		newest = max(newest, at.TS)
	}
	if newest > 0 {
		m.delay.Set(max(0, float64(now.UnixMilli()-newest)/1000))
	}
}

func (m *metrics) rebuilt() { m.rebuilds.Inc() }
func (m *metrics) failed()  { m.failures.Inc() }

// Lag returns how many offsets of its topics a projection has not come to, as the database
// and the hub say. hub is a *client.Admin. Offsets of removed events count.
func Lag(ctx context.Context, p *Projector, hub admin.TopicLister) (lag uint64, err error) {
	of := &Projector{db: p.db, p: p.p}
	if err := of.readPlaces(ctx); err != nil {
		return 0, err
	}
	var patterns []eventhub.Pattern
	for _, text := range p.p.Topics {
		pattern, err := eventhub.ParsePattern(text)
		if err != nil {
			return 0, err
		}
		patterns = append(patterns, pattern)
	}
	for topic, err := range admin.AllTopics(ctx, hub, "") {
		if err != nil {
			return 0, fmt.Errorf("projector: reading topics: %w", err)
		}
		for _, pattern := range patterns {
			if pattern.Match(topic.Topic) {
				lag += topic.Head - min(topic.Head, of.places[topic.Topic].Offset)
				break
			}
		}
	}
	return lag, nil
}

// watchLag keeps the metric of the lag, where there is somebody to ask and to notify.
func (p *Projector) watchLag(ctx context.Context) (stop func()) {
	hub, ok := p.past.(admin.TopicLister)
	if !ok || p.o.Registerer == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every := time.NewTicker(lagEvery)
		defer every.Stop()
		for {
			if lag, err := Lag(ctx, p, hub); err == nil {
				p.m.lag.Set(float64(lag))
			}
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
		}
	}()
	return func() { cancel(); <-ended }
}
