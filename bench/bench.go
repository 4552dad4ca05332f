// Package bench puts load on a hub over WebSocket and measures what comes back.
// It is the load side of `eventhub bench` and speaks to a hub as any client does,
// but leaner than the SDK: connections are raw, frames are made and masked once and
// patched where they must differ, and of the answers no more is read than their
// correlation. What it measures is then the hub's, as far as two processes on one
// machine can be distinguished from others. PublishOptions.SDK alone is about the SDK too.
//
// Each function of this package runs one workload to its end and returns a Result.
// What the hub refuses is counted in it; an error means that the run could not go
// on, and that there is nothing to be read from it. Numbers that a workload reports
// are checked against the hub's own: the head of a topic, the lag of a group.
//
// Latencies of a run with a rate are counted from the time at which the event was
// due, and not from when it was sent: a hub that stalls is charged for all that had
// to wait meanwhile.
package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/internal/eventid"
)

// DefaultPatience is how long a run waits for anything to move.
const DefaultPatience = 30 * time.Second

// Target is the hub that is measured, and what all workloads have in common.
type Target struct {
	URL   string // ws://, wss://, http:// or https://
	Token string // empty: none is presented
	// TLS configures wss and https connections; nil: as Go does.
	TLS *tls.Config
	// Ops is the base of the hub's operations listener (http://…), which the
	// workload idle alone needs.
	Ops string

	// Progress, where not nil, is called twice a second with how far the run is. It must
	// not block. Calls do not overlap.
	Progress func(Progress)
	// Patience bounds how long nothing at all may move before the run fails.
	// Default DefaultPatience.
	Patience time.Duration
	// Seed makes what is random, payloads and the choice of keys, the same again.
	Seed uint64

	made string // the topic that the last run has made a name for
}

// Progress says how far a run is.
type Progress struct {
	Phase     string // "preload", "warm-up", "measure", …
	Done      int64  // events, deliveries or connections
	Total     int64  // 0 where it is not known
	PerSecond float64
}

// Result is what a workload measured.
type Result struct {
	Workload string  `json:"workload"`
	Hub      HubInfo `json:"hub"`
	Settings any     `json:"settings"`

	// What is counted says Unit: events answered, deliveries received,
	// connections held.
	Unit      string  `json:"unit"`
	Count     int64   `json:"count"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// Published counts all events that the hub took, warm-up and preload
	// included: by so much the head of the topic has moved.
	Published int64 `json:"published"`
	// Redelivered counts deliveries that were not the first of their event.
	Redelivered int64  `json:"redelivered,omitempty"`
	Errors      int64  `json:"errors"`
	FirstError  string `json:"first_error,omitempty"`

	Publish  *Latency `json:"publish_latency,omitempty"`  // until the OK
	Delivery *Latency `json:"delivery_latency,omitempty"` // until the EVENT
	// Windows are the parts of the run, where the workload was asked for them.
	Windows []Window `json:"windows,omitempty"`
	Memory  *Memory  `json:"memory,omitempty"`
	// Overload is of the workload of that name.
	Overload *Overload `json:"overload,omitempty"`
}

// HubInfo is what the hub said of itself, and the topic that was used.
type HubInfo struct {
	Version    string `json:"version"`
	Durability string `json:"durability"`
	Topic      string `json:"topic,omitempty"`
}

// Memory is what connections cost the hub, in bytes of resident memory.
type Memory struct {
	Before        int64   `json:"before_bytes"`
	After         int64   `json:"after_bytes"`
	PerConnection float64 `json:"per_connection_bytes"`
}

// rate fills Count, Seconds and PerSecond.
func (r *Result) rate(count int64, took time.Duration) {
	r.Count, r.Seconds = count, took.Seconds()
	if took > 0 {
		r.PerSecond = float64(count) / took.Seconds()
	}
}

// finish fills what the run itself counted.
func (r *Result) finish(run *run) {
	r.Errors, r.FirstError = run.refused.total(), run.refused.sample()
	if len(run.conns) > 0 {
		info := run.conns[0].info
		r.Hub.Version, r.Hub.Durability = info.Version, info.Durability
	}
}

// webSocketURL is the URL with the scheme that a WebSocket has.
func (t *Target) webSocketURL() string {
	if rest, ok := strings.CutPrefix(t.URL, "http"); ok {
		return "ws" + rest
	}
	return t.URL
}

// admin opens the administration of the hub, by which a run is checked.
func (t *Target) admin() (*client.Admin, error) {
	opts := []client.Option{client.WithTLS(t.TLS)}
	if t.Token != "" {
		opts = append(opts, client.WithToken(t.Token))
	}
	return client.NewAdmin(t.URL, opts...)
}

// head returns the highest offset of the topic, 0 where there is no topic.
func (t *Target) head(ctx context.Context, topic string) (uint64, error) {
	adm, err := t.admin()
	if err != nil {
		return 0, err
	}
	defer adm.Close()
	info, err := adm.Topic(ctx, topic)
	if eventhub.ErrorCode(err) == eventhub.CodeUnknownID {
		return 0, nil
	}
	return info.Head, err
}

// allDone checks that the group has nothing left to do in the topic.
func (t *Target) allDone(ctx context.Context, topic, group string) error {
	adm, err := t.admin()
	if err != nil {
		return err
	}
	defer adm.Close()
	info, err := adm.Group(ctx, topic, group)
	if err == nil && info.Lag != 0 {
		err = differs(fmt.Sprintf("the lag of %s::%s", topic, group), info.Lag, 0)
	}
	return err
}

// topicOr returns the topic, or a new one where it is empty, which CleanUp deletes.
func (t *Target) topicOr(topic, workload string) string {
	t.made = ""
	if topic != "" {
		return topic
	}
	id := eventid.New()
	t.made = "bench." + workload + "-" + id[len(id)-12:]
	return t.made
}

// settling is how long the hub may take to work off what a run that was broken off has
// sent, until which a deleted topic may be there again.
const settling = 100 * time.Millisecond

// CleanUp deletes the topic that the last run has made, with its events and groups, and
// returns its name. It does nothing, and returns "", where the run was given a topic, or
// has not got as far as to make one.
func (t *Target) CleanUp(ctx context.Context) (topic string, err error) {
	if t.made == "" {
		return "", nil
	}
	adm, err := t.admin()
	if err != nil {
		return "", err
	}
	defer adm.Close()
	for {
		switch err := adm.DeleteTopic(ctx, t.made); {
		case eventhub.ErrorCode(err) == eventhub.CodeUnknownID:
			return topic, nil
		case err != nil:
			return "", fmt.Errorf("topic %s is not deleted: %w", t.made, err)
		}
		topic = t.made
		select {
		case <-time.After(settling):
		case <-ctx.Done():
			return topic, nil
		}
	}
}

// within is one range that an option must keep to.
type within struct {
	name            string
	value, min, max int64
}

// check names everything that is out of its range at once.
func check(ranges ...within) error {
	var errs []error
	for _, r := range ranges {
		if r.value < r.min || r.value > r.max {
			errs = append(errs, eventhub.Errorf(eventhub.CodeBadRequest, "%s is %d; %d to %d are allowed", r.name, r.value, r.min, r.max))
		}
	}
	return errors.Join(errs...)
}

// differs reports a number of the hub that is not what the run counted.
func differs(what string, hub, counted any) error {
	return fmt.Errorf("%s is %v at the hub, and %v were counted here: this run measured something else", what, hub, counted)
}
