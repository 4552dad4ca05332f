// Command heartbeat runs the heartbeat agent against a remote hub: it publishes
// this machine's busiest processes to heartbeat.received, by the Go SDK.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"time"

	"eventhub/client"
	"eventhub/examples/cmd/internal/remote"
	"eventhub/internal/demo/heartbeat"
)

func main() {
	var agent heartbeat.Agent
	program := remote.Program{
		Name: "heartbeat",
		Does: "publishes the busiest processes of this machine to " + heartbeat.Topic,
		Flags: func(flags *flag.FlagSet) {
			flags.Func("interval", fmt.Sprintf("`time` between two readings (default %s)", heartbeat.DefaultInterval), func(s string) (err error) {
				if agent.Interval, err = time.ParseDuration(s); err == nil && agent.Interval <= 0 {
					err = fmt.Errorf("%s is no time between readings", s)
				}
				return err
			})
		},
		Work: func(ctx context.Context, c *client.Client, log *slog.Logger) error {
			agent.Logger = log
			return agent.Run(ctx, c)
		},
	}
	program.Main()
}
