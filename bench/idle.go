package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/wire"
)

// IdleOptions is the workload idle: connections that say nothing, and what they
// cost the hub.
type IdleOptions struct {
	Topic       string `json:"topic"` // of the tails, default a new one
	Connections int    `json:"connections"`
	Subscribe   bool   `json:"subscribe"` // each is a live tail
	// Settle is how long the hub is left alone before its memory is looked at.
	Settle time.Duration `json:"settle_ns"`
}

// Validate names everything that is out of range at once.
func (o *IdleOptions) Validate() error {
	return check(
		within{"connections", int64(o.Connections), 1, 100_000},
		within{"settle in ms", o.Settle.Milliseconds(), 0, math.MaxInt64},
	)
}

// Idle runs the workload. It needs Target.Ops.
func Idle(ctx context.Context, t *Target, o IdleOptions) (*Result, error) {
	o.Topic = t.topicOr(o.Topic, "idle")
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if t.Ops == "" {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "ops-url is empty; the hub's memory is read there")
	}
	r := begin(ctx, t)
	defer r.close()
	before, err := r.settled(o.Settle)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := r.idle(&o); err != nil {
		return nil, err
	}
	res := &Result{Workload: "idle", Settings: o, Unit: "connections"}
	res.rate(int64(o.Connections), time.Since(began))
	after, err := r.settled(o.Settle)
	if err != nil {
		return nil, err
	}
	res.Memory = &Memory{Before: before, After: after, PerConnection: float64(after-before) / float64(o.Connections)}
	res.finish(r)
	return res, nil
}

// idle opens the connections and answers the hub's pings from then on.
func (r *run) idle(o *IdleOptions) error {
	if o.Subscribe {
		tails := make([]wire.SubscribeOptions, o.Connections)
		for i := range tails {
			tails[i] = tail(o.Topic, eventhub.Latest)
		}
		_, err := r.join(tails, false, "", false, 0)
		return err
	}
	r.enter("connect", int64(o.Connections))
	conns, err := r.connect(o.Connections)
	if err != nil {
		return err
	}
	for _, c := range conns {
		r.work.Go(func() {
			for {
				err := c.read(func(message []byte) error { return fmt.Errorf("the hub sent %.80q to an idle connection", message) })
				if err != nil {
					r.fail(r.ended(err))
					return
				}
			}
		})
	}
	return nil
}

// settled leaves the hub alone for a while and returns its resident memory.
func (r *run) settled(d time.Duration) (int64, error) {
	wait := time.NewTimer(d)
	defer wait.Stop()
	r.enter("", 0)
	select {
	case <-wait.C:
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
	return residentBytes(r.ctx, r.t)
}

// residentBytes reads the hub's resident memory from its metrics.
func residentBytes(ctx context.Context, t *Target) (int64, error) {
	const name = "process_resident_memory_bytes "
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(t.Ops, "/")+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	if t.Token != "" {
		req.Header.Set("Authorization", "Bearer "+t.Token)
	}
	metrics := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := metrics.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", req.URL, resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name); ok {
			bytes, err := strconv.ParseFloat(value, 64)
			return int64(bytes), err
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return 0, fmt.Errorf("%s has no %s", req.URL, name)
}
