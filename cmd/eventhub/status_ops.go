package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"eventhub/cmd/eventhub/internal/output"
)

// metricsLimit is far above what a scrape of a hub has, in bytes.
const metricsLimit = 16 << 20

// operations is what `status` takes from a scrape of the operations listener. Times are
// epoch milliseconds.
type operations struct {
	Ready         bool  `json:"ready"`
	StartedTS     int64 `json:"started_ts"`
	Connections   int64 `json:"connections"`
	SizeBytes     int64 `json:"size_bytes"`
	FreeBytes     int64 `json:"free_bytes"`
	NeededBytes   int64 `json:"needed_bytes"` // below which publishes are refused; 0: never
	LastCommitTS  int64 `json:"last_commit_ts,omitempty"`
	FullInS       int64 `json:"full_in_s,omitempty"` // until publishes are refused; absent: not to be seen
	ClockHeldS    int64 `json:"clock_held_s,omitempty"`
	NoMaintenance bool  `json:"no_maintenance,omitempty"`
}

// askOperations scrapes the operations listener.
func (r *reach) askOperations(ctx context.Context, addr string) (*operations, error) {
	a, err := r.getOperations(ctx, addr, "/metrics")
	if err != nil {
		return nil, err
	}
	values, err := metricValues(bytes.NewReader(a.body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.at, err)
	}
	if _, ours := values["eventhub_ready"]; !ours || a.status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d %s: %w", a.at, a.status, http.StatusText(a.status), errNoMetrics)
	}
	seconds := func(name string) int64 { return int64(values[name] * 1000) }
	fullIn := int64(0)
	if full, ok := values["eventhub_store_full_seconds"]; ok && !math.IsInf(full, 0) {
		fullIn = max(int64(full), 1)
	}
	held := int64(values["eventhub_retention_clock_held_seconds"])
	off, known := values["eventhub_maintenance"]
	return &operations{
		FullInS: fullIn, ClockHeldS: held, NoMaintenance: known && off == 0,
		Ready: values["eventhub_ready"] == 1, StartedTS: seconds("process_start_time_seconds"),
		Connections: int64(values["eventhub_connections"]), SizeBytes: int64(values["eventhub_store_size_bytes"]),
		FreeBytes: int64(values["eventhub_store_free_bytes"]), NeededBytes: int64(values["eventhub_store_needed_bytes"]),
		LastCommitTS: seconds("eventhub_last_commit_timestamp_seconds"),
	}, nil
}

// operationsAnswer is an answer of the operations listener.
type operationsAnswer struct {
	at     string // where it was asked for
	status int
	body   []byte
}

// getOperations asks the operations listener for a path. That of a hub which is called over TLS is
// asked over TLS first; it may be a listener of the machine that a proxy is in front of.
func (r *reach) getOperations(ctx context.Context, addr, path string) (*operationsAnswer, error) {
	var clear tls.RecordHeaderError
	if strings.HasPrefix(r.url, "wss:") || strings.HasPrefix(r.url, "https:") {
		found, err := r.getOperationsAt(ctx, "https://"+addr+path)
		if !errors.As(err, &clear) {
			return found, err
		}
	}
	return r.getOperationsAt(ctx, "http://"+addr+path)
}

// getOperationsAt asks directly: a proxy of the environment is not used.
func (r *reach) getOperationsAt(ctx context.Context, at string) (*operationsAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: r.tls}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, metricsLimit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return &operationsAnswer{at, resp.StatusCode, body}, nil
}

// metricValues reads the metrics without labels out of Prometheus' text format.
func metricValues(r io.Reader) (map[string]float64, error) {
	values := make(map[string]float64)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, text, ok := strings.Cut(lines.Text(), " ")
		if !ok || name == "#" || strings.Contains(name, "{") {
			continue
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			values[name] = value
		}
	}
	return values, lines.Err()
}

// describe says what is known of the store.
func (o *operations) describe(now time.Time) string {
	commit := "no commit since the start"
	if o.LastCommitTS != 0 {
		commit = "last commit " + output.Ago(now, o.LastCommitTS)
	}
	if o.NeededBytes == 0 {
		return "in memory, " + commit
	}
	full := ""
	if o.FullInS > 0 {
		full = ", full in " + output.Span(time.Duration(o.FullInS)*time.Second)
	}
	return fmt.Sprintf("%s, %s free (publishes are refused below %s%s), %s",
		byteSize(o.SizeBytes), byteSize(o.FreeBytes), byteSize(o.NeededBytes), full, commit)
}

// byteSize writes a number of bytes as people do.
func byteSize(n int64) string {
	size, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, next
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", size, unit)
}
