// Command projector runs the process projector against a remote hub: it turns
// heartbeats into the state of each process, by the Go SDK. Run one at a time; see
// package process.
package main

import (
	"context"
	"log/slog"

	"eventhub/client"
	"eventhub/examples/cmd/internal/remote"
	"eventhub/internal/demo/process"
)

func main() {
	program := remote.Program{
		Name: "projector",
		Does: "turns " + process.HeartbeatTopic + " into " + process.StateTopic + ", one projector a hub,",
		Work: func(ctx context.Context, c *client.Client, log *slog.Logger) error {
			p := process.Projector{Logger: log}
			return p.Run(ctx, c, c)
		},
	}
	program.Main()
}
