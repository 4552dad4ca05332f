package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errNotFor says that a system does not take part in a workload.
var errNotFor = errors.New("not for this system")

// system is one of those that are compared, in one configuration.
type system interface {
	name() string
	// durability says in words what an OK means.
	durability() string
	version(ctx context.Context) (string, error)
	// start runs a server over a directory that is empty.
	start(ctx context.Context, dir string) (server, error)
}

// server is a running system, good for one run. What was not written there by the
// load is an error of the run: each asks the server itself.
type server interface {
	publish(ctx context.Context, l publishLoad) (*outcome, error)
	consume(ctx context.Context, l consumeLoad) (*outcome, error)
	latency(ctx context.Context, l latencyLoad) (*outcome, error)
	// stop ends the server in order and says what processor time it took, and how many bytes it
	// has had the system write.
	stop() (used time.Duration, written float64, err error)
}

// publishLoad is the same for all: connections that keep so many events of so many
// bytes under way, a warm-up, and then a time that is measured.
type publishLoad struct {
	connections, depth, payload int
	batch                       int  // events a frame, where the system has that
	ids                         bool // and keys
	index                       bool // by key, of eventhub
	// programs has the load publish as programs do: through the SDK, known twice, with one of so many keys.
	programs         bool
	warmup, duration time.Duration
}

// keys is how many different ones there are.
const keys = 1000

// consumeLoad is a backlog that one member works off and acks: so many events, or what came within
// fill where that is less.
type consumeLoad struct {
	count, payload int
	fill           time.Duration
	frames         string // of eventhub: EVENT or EVENTS
}

// latencyLoad is a fixed rate from many connections to one member.
type latencyLoad struct {
	publishers, payload int
	rate                float64
	warmup, duration    time.Duration
}

// workload is one row of the report.
type workload struct {
	name, about string
	only        string // the one system that has it; empty: all
	unit        string
	goals       []goal
	run         func(ctx context.Context, s server, seconds float64) (*outcome, error)
}

// goal is what the row should reach: a multiple of another system's median of the
// same row, or of another row's of the same system, or a plain number.
type goal struct {
	of    string  // a system, "" for a plain number
	row   string  // a row other than this one
	least float64 // at least; of latencies and bytes: at most
	// percent, where not 0: the goal is about that percentile of the row's latencies.
	percent float64
}

const (
	connections = 16
	payload     = 256
	hubName     = "eventhub"

	// The modes of the hub's durability.
	modeSync     = "sync"
	modeInterval = "interval"

	redisAlways = "redis always"
	natsDefault = "jetstream default"
	firstRow    = "publish 16x64"
)

func publishing(l publishLoad) func(context.Context, server, float64) (*outcome, error) {
	l.connections, l.payload, l.batch = connections, payload, max(l.batch, 1)
	return func(ctx context.Context, s server, seconds float64) (*outcome, error) {
		l.warmup, l.duration = min(3*time.Second, inSeconds(seconds)), inSeconds(seconds)
		return s.publish(ctx, l)
	}
}

// backlogPerSecond sizes the backlogs: about what the fastest of them read in so
// many seconds.
const backlogPerSecond = 200_000

func consuming(frames string) func(context.Context, server, float64) (*outcome, error) {
	return func(ctx context.Context, s server, seconds float64) (*outcome, error) {
		return s.consume(ctx, consumeLoad{count: int(seconds * backlogPerSecond), payload: payload, frames: frames, fill: 3 * inSeconds(seconds)})
	}
}

func inSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// The rows, in the order in which they are measured.
var workloads = []workload{
	{
		name: firstRow, about: "durable publish, one event a request, 16 connections with 64 under way each",
		unit: "events/s", run: publishing(publishLoad{depth: 64}),
		goals: []goal{{of: redisAlways, least: 1.4}, {of: natsDefault, least: 1.4}},
	},
	{
		name: "publish 16x256", about: "the same with 256 under way",
		unit: "events/s", run: publishing(publishLoad{depth: 256}),
		goals: []goal{{of: redisAlways, least: 1.5}},
	},
	{
		name: "publish batches", about: "the same with 64 under way: eventhub in one frame and one atomic step, the others pipelined",
		unit: "events/s", run: publishing(publishLoad{depth: 64, batch: 64}),
		goals: []goal{{of: redisAlways, least: 1.5}},
	},
	{
		name: "publish one by one", about: "16 connections, each waits for every answer",
		unit: "events/s", run: publishing(publishLoad{depth: 1}),
		goals: []goal{{of: redisAlways, least: 1}},
	},
	{
		name: "publish as programs", about: "the first row with 1,000 keys, through an SDK and so that no event is there twice if it is sent twice: eventhub's Go SDK with its numbered publishes; nats.go's PublishMsgAsync with Nats-Msg-Id and a subject a key; Redis by a script that adds the id to a set and then the event with id and key",
		unit: "events/s", run: publishing(publishLoad{depth: 64, programs: true}),
		goals: []goal{{of: natsDefault, least: 1.5}, {of: hubName, row: firstRow, least: 0.85}},
	},
	{
		name: "publish ids keys", about: "the first row with ids of the publisher's and 1,000 keys, which nobody asks for",
		only: hubName, unit: "events/s", run: publishing(publishLoad{depth: 64, ids: true}),
		goals: []goal{{of: hubName, row: firstRow, least: 0.6}},
	},
	{
		name: "publish ids keys indexed", about: "the same with the index by key",
		only: hubName, unit: "events/s", run: publishing(publishLoad{depth: 64, ids: true, index: true}),
		goals: []goal{{of: hubName, row: firstRow, least: 0.6}},
	},
	{
		name: "subscribe EVENTS", about: "a group of one member reads a backlog and acks every event; eventhub in EVENTS frames, Redis by XREADGROUP COUNT 100 and XACK of as many, JetStream by a durable pull consumer with explicit acks",
		unit: "events/s", run: consuming("EVENTS"),
		goals: []goal{{of: natsDefault, least: 1}, {of: redisAlways, least: 1}},
	},
	{
		name: "subscribe EVENT", about: "the same, one EVENT a frame",
		only: hubName, unit: "events/s", run: consuming("EVENT"),
		goals: []goal{{least: 150_000}},
	},
	{
		name: "latency 10k/s", about: "publish to delivery at 10,000 events a second from 16 connections, from the time each was due",
		unit: "ms p50", goals: []goal{{least: 0.6}, {least: 1.5, percent: 99}, {least: 4, percent: 99.9}},
		run: func(ctx context.Context, s server, seconds float64) (*outcome, error) {
			return s.latency(ctx, latencyLoad{
				publishers: connections, payload: payload, rate: 10_000,
				warmup: min(3*time.Second, inSeconds(seconds)), duration: inSeconds(seconds),
			})
		},
	},
	{
		name: "catch-up", about: "one live tail from the earliest event, EVENTS frames",
		only: hubName, unit: "events/s", goals: []goal{{least: 300_000}},
		run: func(ctx context.Context, s server, seconds float64) (*outcome, error) {
			return s.(*hubServer).bench(ctx, "catchup", "--batch", "--count", fmt.Sprint(int(seconds*backlogPerSecond)))
		},
	},
	{
		name: "fan-out 1 to 1000", about: "one publisher at 1,100 events a second, 1,000 live tails",
		only: hubName, unit: "deliveries/s", goals: []goal{{least: 1_000_000}, {least: 150, percent: 99}},
		run: func(ctx context.Context, s server, seconds float64) (*outcome, error) {
			return s.(*hubServer).bench(ctx, "fanout", "--tails", "1000", "--rate", "1100", "--duration", inSeconds(seconds).String())
		},
	},
	{
		name: "idle 10000", about: "resident memory for each of 10,000 connections that say nothing",
		only: hubName, unit: "bytes", goals: []goal{{least: 20 << 10}},
		run: func(ctx context.Context, s server, _ float64) (*outcome, error) {
			return s.(*hubServer).bench(ctx, "idle", "--connections", "10000")
		},
	},
}

// lowerIsBetter reports whether the row's figure is a cost.
func lowerIsBetter(unit string) bool { return unit == "ms p50" || unit == "bytes" }

// outcome is one figure and what follows it.
type outcome struct {
	Workload string  `json:"workload"`
	System   string  `json:"system"`
	Round    int     `json:"round"`
	Value    float64 `json:"value"` // in the unit of the workload
	Count    int64   `json:"count"`
	Seconds  float64 `json:"seconds"`
	// Quantiles are of the latency until the answer, or until the delivery.
	Quantiles []quantile `json:"quantiles,omitempty"`
	// Processor time, in seconds, of the load while Wall seconds went by, and of the
	// server from its start to its end.
	LoadCPU   float64 `json:"load_cpu_seconds"`
	Wall      float64 `json:"wall_seconds"`
	ServerCPU float64 `json:"server_cpu_seconds"`
	// Events are all that the server took, the warm-up's too, and Written the bytes that it had the
	// system write meanwhile. 0: not known.
	Events  int64   `json:"events,omitempty"`
	Written float64 `json:"written_bytes,omitempty"`
}

type quantile struct {
	Percent float64 `json:"percent"`
	MS      float64 `json:"ms"`
}

func (o *outcome) String() string {
	return fmt.Sprintf("round %d  %-20s %-18s %14.2f   %d in %.2f s, load %.2f cores", o.Round, o.Workload, o.System, o.Value, o.Count, o.Seconds, o.loadCores())
}

// loadCores is how many processors the load kept busy: near 1 for a load of one
// thread, or near all there are, means that the load is what was measured.
func (o *outcome) loadCores() float64 {
	if o.Wall == 0 {
		return 0
	}
	return o.LoadCPU / o.Wall
}

func (o *outcome) at(percent float64) float64 {
	for _, q := range o.Quantiles {
		if q.Percent == percent {
			return q.MS
		}
	}
	return 0
}
