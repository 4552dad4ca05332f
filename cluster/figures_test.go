package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"eventhub"
	sdk "eventhub/client"
	"eventhub/store/journal/jetstream"
)

// cluster3 is three servers and hubs without proxies or a load.
type cluster3 struct {
	rig
	urls string
}

func startCluster(b *testing.B, lease time.Duration) *cluster3 {
	b.Helper()
	servers, urls := three(b)
	c := &cluster3{urls: urls}
	c.servers, c.stream = servers, jetstream.Options{URL: urls, Stream: "FIGURES"}
	hosts := strings.ReplaceAll(urls, "nats://", "")
	c.hubs = startHubs(b, 3, lease, func(int) string { return "nats://" + hosts + "/" + c.stream.Stream })
	c.awaitLead(b)
	for _, h := range c.hubs {
		if h != c.lead {
			h.await(isStandby)
		}
	}
	return c
}

func (c *cluster3) awaitLead(b *testing.B) {
	b.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, h := range c.hubs {
			if status, _ := h.ready(); status == http.StatusOK {
				c.lead = h
				return
			}
		}
	}
	b.Fatal("no hub leads")
}

// measured is what a workload of the program's bench says.
type measured struct {
	PerSecond float64 `json:"per_second"`
	Latency   struct {
		Quantiles []struct{ Percent, Ms float64 }
	} `json:"publish_latency"`
}

func (m *measured) quantile(percent float64) float64 {
	for _, q := range m.Latency.Quantiles {
		if q.Percent == percent {
			return q.Ms
		}
	}
	return -1
}

func (c *cluster3) bench(b *testing.B, args ...string) (m measured) {
	b.Helper()
	program, err := build()
	if err != nil {
		b.Fatal(err)
	}
	out, err := exec.Command(program, append([]string{"bench", "-o", "json", "--url", c.lead.url()}, args...)...).Output()
	if err != nil {
		b.Fatalf("%v: %v\n%s", args, err, out)
	}
	if err := json.Unmarshal(out, &m); err != nil {
		b.Fatal(err)
	}
	return m
}

// BenchmarkBatches: 16 connections with 64 publishes under way and with batches of 64, and beside it
// one client that waits for each answer of the same servers.
func BenchmarkBatches(b *testing.B) {
	c := startCluster(b, 5*time.Second)
	for b.Loop() {
		single := c.bench(b, "publish", "--duration", "5s")
		batch := c.bench(b, "publish", "--batch", "64", "--in-flight", "1024", "--duration", "5s")
		js := client(b, c.urls)
		ctx, cancel := context.WithTimeout(context.Background(), within)
		if _, err := js.CreateOrUpdateStream(ctx, natsjs.StreamConfig{Name: "SINGLE", Subjects: []string{"single"}, Replicas: 3}); err != nil {
			b.Fatal(err)
		}
		n, payload, end := 0, make([]byte, 256), time.Now().Add(5*time.Second)
		for ; time.Now().Before(end); n++ {
			if _, err := js.Publish(ctx, "single", payload); err != nil {
				b.Fatal(err)
			}
		}
		cancel()
		b.ReportMetric(single.PerSecond, "singles/s")
		b.ReportMetric(batch.PerSecond, "batched/s")
		b.ReportMetric(float64(n)/5, "synced/s")
		b.ReportMetric(batch.PerSecond/(float64(n)/5), "x-synced")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLatency: 5,000 events a second, and how far the standbys are behind meanwhile.
func BenchmarkLatency(b *testing.B) {
	c := startCluster(b, 5*time.Second)
	for b.Loop() {
		var lags []float64
		var looking sync.WaitGroup
		var noting sync.Mutex
		ctx, stop := context.WithCancel(context.Background())
		for _, h := range c.hubs {
			if h == c.lead {
				continue
			}
			looking.Go(func() {
				for ctx.Err() == nil {
					lead := c.lead.place()
					began := time.Now()
					for ctx.Err() == nil && h.place() < lead {
						time.Sleep(time.Millisecond)
					}
					took := time.Since(began)
					noting.Lock()
					lags = append(lags, float64(took.Microseconds())/1000)
					noting.Unlock()
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		m := c.bench(b, "publish", "--rate", "5000", "--duration", "15s")
		stop()
		looking.Wait()
		slices.Sort(lags)
		b.ReportMetric(m.quantile(50), "p50-ms")
		b.ReportMetric(m.quantile(99), "p99-ms")
		b.ReportMetric(lags[len(lags)*99/100], "lag-p99-ms")
		b.ReportMetric(float64(len(lags)), "lags")
	}
	b.ReportMetric(0, "ns/op")
}

// place returns up to where the hub has the journal.
func (h *hub) place() uint64 { return h.view().Position }

// BenchmarkCatchUp: a standby that was away while events were published follows faster than they were.
func BenchmarkCatchUp(b *testing.B) {
	c := startCluster(b, 5*time.Second)
	standby := c.hubs[(slices.Index(c.hubs, c.lead)+1)%3]
	var times []float64
	for b.Loop() {
		standby.signal(syscall.SIGKILL)
		<-standby.ended
		before := c.lead.place()
		began := time.Now()
		c.bench(b, "publish", "--batch", "64", "--in-flight", "1024", "--duration", "10s")
		live := time.Since(began)
		last := c.lead.place()
		standby.start()
		standby.await(isStandby)
		began = time.Now()
		for standby.place() < last {
			time.Sleep(20 * time.Millisecond) // the questions take processor time too
		}
		times = append(times, live.Seconds()/time.Since(began).Seconds())
		b.Logf("%d entries in %s, and again %.2f times as fast", last-before, live, times[len(times)-1])
	}
	slices.Sort(times)
	b.ReportMetric(times[0], "least-x-live")
	b.ReportMetric(times[len(times)/2], "x-live")
	b.ReportMetric(0, "ns/op")
}

var serves = regexp.MustCompile(`msg="this hub serves" took=(\S+)`)

// BenchmarkManyTopics: a hub stops that has 100,000 topics, and another one leads.
func BenchmarkManyTopics(b *testing.B) {
	c := startCluster(b, 5*time.Second)
	client, err := sdk.Dial(context.Background(), c.lead.url())
	if err != nil {
		b.Fatal(err)
	}
	for n := 0; n < 100_000; {
		var events []eventhub.Event
		for range 500 {
			events = append(events, eventhub.Event{Topic: fmt.Sprintf("many.t%d", n), Payload: []byte("1")})
			n++
		}
		if _, err := client.Publish(context.Background(), events...); err != nil {
			b.Fatal(err)
		}
	}
	client.Close()
	for b.Loop() {
		was := c.lead
		was.signal(syscall.SIGTERM)
		<-was.ended
		began := time.Now()
		c.awaitLead(b)
		gap := time.Since(began)
		said := serves.FindAllStringSubmatch(c.lead.logged(), -1)
		took, err := time.ParseDuration(said[len(said)-1][1])
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(took.Seconds(), "lead-s")
		b.ReportMetric(gap.Seconds(), "gap-s")
		was.start()
		was.await(isStandby)
	}
	b.ReportMetric(0, "ns/op")
}
