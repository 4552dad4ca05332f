// Package heartbeat is the demo's publisher: an agent that publishes once a second
// which processes of this machine are busiest. It owns the payload of [Topic] and
// talks to any [eventhub.Publisher]: `eventhub demo` runs it on the engine in process,
// examples/cmd/heartbeat on a client of a remote hub.
//
// Every tick is one call of Publish with at most [Top] events, one per process,
// keyed host:name:pid. A heartbeat is perishable: one that cannot be published
// is logged and never sent again, because the next tick says more than it did.
//
// examples/heartbeat/curl.sh is the same agent without Go, on HTTP alone.
package heartbeat

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"eventhub"
)

const (
	// Topic is where heartbeats are published.
	Topic = "heartbeat.received"
	// Top is the most processes that one tick publishes.
	Top = 20
	// DefaultInterval is the time between ticks of an agent that does not say.
	DefaultInterval = time.Second

	// perishes is how long a tick may wait for its receipts. A remote hub that is
	// gone holds it up until there is a connection again; by then, what it says
	// of a process is history and would be taken for news.
	perishes = 5 * time.Second

	// maxNameBytes bounds host and name so that the key, which holds both, stays
	// below eventhub.MaxKeyBytes.
	maxNameBytes = 255
	// nameless stands for a host or a process whose name is empty: a key has
	// three parts.
	nameless = "unknown"
)

// Payload is what one heartbeat says of one process.
type Payload struct {
	PID  int32  `json:"pid"`
	Name string `json:"name"`
	Host string `json:"host"`
	// CPU is in percent of one core since the previous tick, 0 on the first
	// tick that sees the process.
	CPU float64 `json:"cpu_pct"`
	// Mem is the resident memory in MiB.
	Mem float64 `json:"mem_mb"`
	// SID distinguishes the runs of an agent.
	SID string `json:"sid,omitempty"`
}

// Key is the event key of the process: host:name:pid.
func (p *Payload) Key() string {
	return p.Host + ":" + p.Name + ":" + strconv.Itoa(int(p.PID))
}

// Agent publishes heartbeats. The zero value reads this machine and is ready;
// its fields must not change once Run was called.
type Agent struct {
	// Interval is the time between ticks; DefaultInterval if not positive.
	Interval time.Duration
	// Host is the name of this machine in events; the system's if empty.
	Host string
	// Source is where processes are read; those of this machine if nil.
	Source Source
	// Logger gets failures; slog.Default if nil.
	Logger *slog.Logger
}

// Run publishes a first set of heartbeats at once and then one per interval
// until ctx ends, when it returns nil. Ticks that a slow publisher misses are
// left out. An error means that the machine's name is not to be had, and
// nothing was published; or that the hub denies us, which no tick will change.
func (a *Agent) Run(ctx context.Context, pub eventhub.Publisher) error {
	r, err := a.start()
	if err != nil {
		return err
	}
	interval := a.Interval
	if interval <= 0 {
		interval = DefaultInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := r.tick(ctx, pub); err != nil && ctx.Err() == nil {
			if eventhub.ErrorCode(err).Denied() {
				return fmt.Errorf("heartbeat: publish to %s: %w", Topic, err)
			}
			r.log.Error("heartbeats were not published", "topic", Topic, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// run is one run of an agent, with its defaults filled in.
type run struct {
	host, sid string
	source    Source
	log       *slog.Logger
}

func (a *Agent) start() (*run, error) {
	r := &run{host: a.Host, sid: rand.Text(), source: a.Source, log: a.Logger}
	if r.log == nil {
		r.log = slog.Default()
	}
	if r.source == nil {
		r.source = NewMachine()
	}
	if r.host == "" {
		var err error
		if r.host, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("heartbeat: name of this machine: %w", err)
		}
	}
	r.host = keyPart(r.host)
	return r, nil
}

// tick reads the processes and publishes the busiest.
func (r *run) tick(ctx context.Context, pub eventhub.Publisher) error {
	readings, err := r.source.Read(ctx)
	if err != nil {
		return err
	}
	events := make([]eventhub.Event, 0, Top)
	for _, reading := range busiest(readings, Top) {
		name, err := r.source.Name(ctx, reading.PID)
		if err != nil {
			continue // it ended since it was read
		}
		e, err := r.event(reading, name)
		if err != nil {
			return err
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, perishes)
	defer cancel()
	_, err = pub.Publish(ctx, events...)
	return err
}

func (r *run) event(reading Reading, name string) (eventhub.Event, error) {
	p := Payload{
		PID: reading.PID, Name: keyPart(name), Host: r.host, SID: r.sid,
		CPU: hundredths(reading.CPU), Mem: hundredths(float64(reading.RSS) / (1 << 20)),
	}
	payload, err := json.Marshal(&p)
	if err != nil {
		return eventhub.Event{}, fmt.Errorf("heartbeat of %s: %w", p.Key(), err)
	}
	return eventhub.Event{Topic: Topic, Key: p.Key(), SID: r.sid, Payload: payload}, nil
}

// busiest returns the n readings with the most CPU, then the most memory, then
// the lowest pid. It sorts in place.
func busiest(readings []Reading, n int) []Reading {
	slices.SortFunc(readings, func(a, b Reading) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.RSS, a.RSS), cmp.Compare(a.PID, b.PID))
	})
	return readings[:min(n, len(readings))]
}

// keyPart makes any name fit for a key: valid UTF-8 of at most maxNameBytes,
// never empty.
func keyPart(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxNameBytes {
		end := maxNameBytes
		for !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	return cmp.Or(s, nameless)
}

// hundredths rounds: further digits are noise that every consumer would store.
func hundredths(f float64) float64 { return math.Round(f*100) / 100 }
