package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"eventhub/bench"
)

// The defaults of several workloads.
const (
	benchPayload  = 256
	benchWarmup   = time.Second
	benchDuration = 10 * time.Second
	benchBacklog  = 1_000_000
)

func benchPublishCommand() *cobra.Command {
	var o bench.PublishOptions
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Publish, and wait for the OK of each event",
		Long: `Publishes to one topic over some connections. Each keeps --in-flight events
under way, and measures how many are answered and how long that takes. With --rate
events are due at fixed times whatever the answers do, and latencies count from then.`,
		Example: `  eventhub bench publish --serve
  eventhub bench publish --connections 16 --in-flight 256 --batch 64 --duration 30s
  eventhub bench publish --serve --sdk --keys 1000
  eventhub bench publish --rate 10000 --ids --keys 1000 -o json`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Connections, "connections", 16, "WebSocket connections")
	flags.IntVar(&o.InFlight, "in-flight", 64, "events under way on each connection, at most")
	flags.IntVar(&o.Payload, "payload", benchPayload, "bytes of each payload, a JSON string")
	flags.IntVar(&o.Batch, "batch", 1, "events in one PUBLISH")
	flags.IntVar(&o.Keys, "keys", 0, "give each event one of so many keys")
	flags.BoolVar(&o.IDs, "ids", false, "give each event an id, a UUID of version 7")
	flags.BoolVar(&o.SDK, "sdk", false, "publish through the Go SDK, as programs do, and not by frames that are made before")
	flags.Float64Var(&o.Rate, "rate", 0, "events a second in all; 0: as fast as answers come")
	flags.Int64Var(&o.Count, "count", 0, "how many events to measure, instead of --duration")
	flags.DurationVar(&o.Window, "window", 0, "with -o json, the latencies of each stretch of so long too; 0: none")
	benchTimes(cmd, &o.Duration, &o.Warmup)
	cmd.MarkFlagsMutuallyExclusive("count", "duration")
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		if o.Count != 0 {
			o.Duration = 0
		}
		return bench.Publish(ctx, t, o)
	})
}

func benchSubscribeCommand() *cobra.Command {
	var o bench.SubscribeOptions
	cmd := &cobra.Command{
		Use:   "subscribe",
		Short: "Work off a backlog as a group, and ack every event",
		Long: `Publishes a backlog, then reads it to its end as one group and acks every event. The
first tenth is warm-up. It is over when the hub has applied all acks.`,
		Example: `  eventhub bench subscribe --serve --batch
  eventhub bench subscribe --serve --sdk
  eventhub bench subscribe --members 4 --ack ids --count 5000000`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Members, "members", 1, "members of the group, each on a connection")
	flags.IntVar(&o.InFlight, "in-flight", 1_000, "leases that a member holds at once")
	flags.IntVar(&o.Payload, "payload", benchPayload, "bytes of each payload, a JSON string")
	flags.BoolVar(&o.Batch, "batch", false, "ask for EVENTS frames")
	flags.StringVar(&o.Ack, "ack", bench.AckID, "one ACK an event by its id or its lease, or ids: one for all of a read")
	flags.BoolVar(&o.SDK, "sdk", false, "consume through the Go SDK, as programs do, with a handler for each lease; without --batch and --ack")
	flags.Int64Var(&o.Count, "count", benchBacklog, "events of the backlog")
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		return bench.Subscribe(ctx, t, o)
	})
}

func benchLatencyCommand() *cobra.Command {
	var o bench.LatencyOptions
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Publish at a fixed rate, and measure how long a delivery takes",
		Long: `Publishes at a fixed rate while a group receives and acks. Latencies count from the
time at which an event was due, until its OK and until its EVENT.`,
		Example: `  eventhub bench latency --serve --rate 10000`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Publishers, "publishers", 16, "connections that publish")
	flags.IntVar(&o.Members, "members", 1, "members of the group, each on a connection")
	flags.Float64Var(&o.Rate, "rate", 10_000, "events a second in all")
	flags.IntVar(&o.Payload, "payload", benchPayload, "bytes of each payload, a JSON object")
	flags.BoolVar(&o.Batch, "batch", false, "ask for EVENTS frames")
	flags.StringVar(&o.Ack, "ack", bench.AckID, "one ACK an event by its id or its lease, or ids: one for all of a read")
	benchTimes(cmd, &o.Duration, &o.Warmup)
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		return bench.MeasureLatency(ctx, t, o)
	})
}

func benchFanoutCommand() *cobra.Command {
	var o bench.FanoutOptions
	cmd := &cobra.Command{
		Use:   "fanout",
		Short: "Publish to many live tails, or to many groups",
		Long: `One connection publishes; every tail, or every group, gets every event. Measures the
deliveries of all of them, and how long each takes from the time its event was due.`,
		Example: `  eventhub bench fanout --serve --tails 1000 --rate 1000
  eventhub bench fanout --groups 100`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Tails, "tails", 100, "live tails, each on a connection")
	flags.IntVar(&o.Groups, "groups", 0, "groups of one member, each on a connection, instead of tails")
	flags.Float64Var(&o.Rate, "rate", 0, "events a second; 0: as fast as they are answered")
	flags.IntVar(&o.InFlight, "in-flight", 64, "events under way at the publisher, at most")
	flags.IntVar(&o.Payload, "payload", benchPayload, "bytes of each payload, a JSON object")
	flags.BoolVar(&o.Batch, "batch", false, "ask for EVENTS frames")
	flags.StringVar(&o.Ack, "ack", bench.AckID, "of groups: one ACK an event by its id or its lease, or ids: one for all of a read")
	benchTimes(cmd, &o.Duration, &o.Warmup)
	cmd.MarkFlagsMutuallyExclusive("tails", "groups")
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		if o.Groups != 0 {
			o.Tails = 0
		}
		return bench.Fanout(ctx, t, o)
	})
}

func benchCatchupCommand() *cobra.Command {
	var o bench.CatchupOptions
	cmd := &cobra.Command{
		Use:   "catchup",
		Short: "Read a topic from its earliest event",
		Long: `Publishes a backlog, then reads it to its end by live tails that begin at the
earliest event. The first tenth is warm-up.`,
		Example: `  eventhub bench catchup --serve --batch`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Tails, "tails", 1, "live tails, each on a connection; each reads all of it")
	flags.IntVar(&o.Payload, "payload", benchPayload, "bytes of each payload, a JSON string")
	flags.BoolVar(&o.Batch, "batch", false, "ask for EVENTS frames")
	flags.Int64Var(&o.Count, "count", benchBacklog, "events of the backlog")
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		return bench.Catchup(ctx, t, o)
	})
}

func benchIdleCommand() *cobra.Command {
	var o bench.IdleOptions
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Hold connections that say nothing, and see what they cost the hub",
		Long: `Opens connections, leaves the hub alone, and compares its resident memory with that
before. The hub's metrics report it: --ops-url says where they are, unless --serve knows.`,
		Example: `  eventhub bench idle --serve --connections 10000`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Connections, "connections", 1_000, "WebSocket connections")
	flags.BoolVar(&o.Subscribe, "subscribe", false, "make each a live tail")
	flags.DurationVar(&o.Settle, "settle", 3*time.Second, "how long the hub is left alone before its memory is read")
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		return bench.Idle(ctx, t, o)
	})
}

func benchOverloadCommand() *cobra.Command {
	var o bench.OverloadOptions
	cmd := &cobra.Command{
		Use:   "overload",
		Short: "Publish more than the hub can take, and see what is left of its rate",
		Long: `Measures the best rate, as fast as answers come, and the latency at half of it. Then
events are due at that rate, and at --times of it, whatever the answers do: what is due
while a connection has --in-flight events under way, or was told to wait, is not sent. An
event that is due at its time costs more than one that is sent with others when answers
have come, so the goodput is given of both. At the end half of the best rate again, until
latencies are as they were.`,
		Example: `  eventhub bench overload --serve
  eventhub bench overload --serve --impatient --duration 1m`,
	}
	flags := cmd.Flags()
	benchTopic(cmd, &o.Topic)
	flags.IntVar(&o.Connections, "connections", 64, "WebSocket connections")
	flags.IntVar(&o.InFlight, "in-flight", 4096, "events under way on each connection under overload, at most")
	flags.IntVar(&o.Payload, "payload", benchPayload, "bytes of each payload, a JSON string")
	flags.Float64Var(&o.Times, "times", 3, "how many times the best rate is due under overload")
	flags.BoolVar(&o.Impatient, "impatient", false, "go on at once where the hub says when to try again")
	flags.DurationVar(&o.Measure, "measure", 5*time.Second, "how long to measure the best rate, at it, and half of it before and after")
	benchTimes(cmd, &o.Duration, &o.Warmup)
	return benchmark(cmd, func(ctx context.Context, t *bench.Target) (*bench.Result, error) {
		return bench.MeasureOverload(ctx, t, o)
	})
}

func benchTopic(cmd *cobra.Command, topic *string) {
	cmd.Flags().StringVar(topic, "topic", "", "topic to use (default: a new one)")
}

func benchTimes(cmd *cobra.Command, duration, warmup *time.Duration) {
	cmd.Flags().DurationVar(duration, "duration", benchDuration, "how long to measure")
	cmd.Flags().DurationVar(warmup, "warmup", benchWarmup, "how long to put the same load on before, without measuring")
}
