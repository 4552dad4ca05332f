package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// eventhub is the built binary, with an fsync before every OK or, in its mode
// interval, one every 10 ms.
type eventhub struct{ binary, mode string }

func (e *eventhub) name() string {
	if e.mode == modeSync {
		return hubName
	}
	return hubName + " " + e.mode
}

func (e *eventhub) durability() string {
	if e.mode == modeSync {
		return "fsync before every OK"
	}
	return "fsync every 10 ms"
}

func (e *eventhub) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, e.binary, "version").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w; make build makes it", e.binary, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first), nil
}

var hubUp = regexp.MustCompile(`msg="hub is up" ws=(\S+) http=\S+ ops=(\S+)`)

func (e *eventhub) start(ctx context.Context, dir string) (server, error) {
	s := &hubServer{binary: e.binary, mode: e.mode}
	var err error
	s.process, err = launch(ctx, dir, func(line string) bool {
		m := hubUp.FindStringSubmatch(line)
		if m != nil {
			s.url, s.ops = "ws://"+m[1], "http://"+m[2]
		}
		return m != nil
	}, e.binary, "serve", "--durability", e.mode, "--store", filepath.Join(dir, "store"), "--ws", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return s, nil
}

type hubServer struct {
	*process
	binary, mode, url, ops string
}

func (s *hubServer) publish(ctx context.Context, l publishLoad) (*outcome, error) {
	args := []string{
		"--connections", strconv.Itoa(l.connections), "--in-flight", strconv.Itoa(l.depth), "--payload", strconv.Itoa(l.payload),
		"--batch", strconv.Itoa(l.batch), "--warmup", l.warmup.String(), "--duration", l.duration.String(),
	}
	if l.ids {
		args = append(args, "--ids")
	}
	if l.programs {
		args = append(args, "--sdk")
	}
	if l.ids || l.programs {
		args = append(args, "--keys", strconv.Itoa(keys))
	}
	if l.index {
		set := exec.CommandContext(ctx, s.binary, "topic", "set", stream, "--state", "on", "--url", s.url)
		if out, err := set.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("eventhub topic set: %w: %s", err, out)
		}
		args = append(args, "--topic", stream)
	}
	return s.bench(ctx, "publish", args...)
}

func (s *hubServer) consume(ctx context.Context, l consumeLoad) (*outcome, error) {
	args := []string{"--members", "1", "--in-flight", "1000", "--payload", strconv.Itoa(l.payload), "--count", strconv.Itoa(l.count), "--ack", "id"}
	if l.frames == "EVENTS" {
		args = append(args, "--batch")
	}
	return s.bench(ctx, "subscribe", args...)
}

func (s *hubServer) latency(ctx context.Context, l latencyLoad) (*outcome, error) {
	return s.bench(ctx, "latency", "--publishers", strconv.Itoa(l.publishers), "--members", "1", "--payload", strconv.Itoa(l.payload),
		"--rate", fmt.Sprint(l.rate), "--warmup", l.warmup.String(), "--duration", l.duration.String())
}

// benchResult is what `eventhub bench -o json` prints, as far as it is needed.
type benchResult struct {
	Count     int64   `json:"count"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	Published int64   `json:"published"`
	Errors    int64   `json:"errors"`
	Hub       struct {
		Durability string `json:"durability"`
	} `json:"hub"`
	Publish  *latencies `json:"publish_latency"`
	Delivery *latencies `json:"delivery_latency"`
	Memory   *struct {
		PerConnection float64 `json:"per_connection_bytes"`
	} `json:"memory"`
}

type latencies struct {
	Quantiles []quantile `json:"quantiles"`
}

// bench runs the hub's own load generator, which checks the hub's counts by itself.
func (s *hubServer) bench(ctx context.Context, workload string, args ...string) (*outcome, error) {
	cmd := exec.CommandContext(ctx, s.binary, append([]string{"bench", workload, "--url", s.url, "--ops-url", s.ops, "-o", "json"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[1:], " "), err, errs.String())
	}
	wall := time.Since(began)
	var r benchResult
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("bench %s printed %q: %w", workload, out.String(), err)
	}
	if r.Count < 1 || r.Errors != 0 || r.Hub.Durability != s.mode {
		return nil, fmt.Errorf("bench %s measured %+v; a count, no errors and durability %s are wanted", workload, r, s.mode)
	}
	o := &outcome{
		Value: r.PerSecond, Count: r.Count, Seconds: r.Seconds, Wall: wall.Seconds(), Events: r.Published,
		LoadCPU: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(),
	}
	switch {
	case r.Delivery != nil:
		o.Quantiles = r.Delivery.Quantiles
	case r.Publish != nil:
		o.Quantiles = r.Publish.Quantiles
	}
	switch {
	case workload == "latency":
		o.Value = o.at(50)
	case r.Memory != nil:
		o.Value = r.Memory.PerConnection
	}
	return o, nil
}
