package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"eventhub/client"
	"eventhub/internal/freeport"
)

// metric reads one metric without labels from /metrics.
func (p *hubProcess) metric(t *testing.T, name string) float64 {
	t.Helper()
	answer, err := http.Get("http://" + p.ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatalf("%s is %q", name, text)
			}
			return value
		}
	}
	t.Fatalf("/metrics has no %s: %v", name, lines.Err())
	return 0
}

// resident is the hub's memory in MiB, as /metrics has it.
func (p *hubProcess) resident(t *testing.T) float64 {
	t.Helper()
	return p.metric(t, "process_resident_memory_bytes") / (1 << 20)
}

// freePort returns a port of ours for a hub that comes back under the same
// address.
func freePort(t *testing.T) string {
	t.Helper()
	addr, err := freeport.On("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// connect is a client of the hub that comes back within moments.
func connect(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), "ws://"+addr, client.WithReconnect(time.Millisecond, 50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// sizes are the sizes of all files below a directory, by their paths.
func sizes(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	found := make(map[string]int64)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			found[path] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func sum(sizes map[string]int64) (n int64) {
	for _, size := range sizes {
		n += size
	}
	return n
}

// percentiles returns those of durations, in milliseconds, and sorts them.
func percentiles(ms []int64) string {
	slices.Sort(ms)
	return fmt.Sprintf("%d ms at the median, %d ms at the 99th percentile, %d ms at most", part(ms, 50), part(ms, 99), ms[len(ms)-1])
}

// part is the p-th percentile of what is sorted.
func part(sorted []int64, p int) int64 { return sorted[(len(sorted)*p+99)/100-1] }

// needFiles makes sure that so many files may be open.
func needFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur >= n {
		return
	}
	limit.Cur, limit.Max = n, max(limit.Max, n)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf("%d files must be open, of the test and of the hub alike: %v", n, os.NewSyscallError("setrlimit", err))
	}
}
