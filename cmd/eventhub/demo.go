package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"eventhub/cmd/eventhub/internal/config"
	"eventhub/cmd/eventhub/internal/proctable"
	"eventhub/deploy"
	"eventhub/hub"
	"eventhub/internal/demo/heartbeat"
	"eventhub/internal/demo/process"
)

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub and watch this machine's processes flow through it",
		Long: `Runs a hub with a heartbeat agent, which publishes this machine's busiest
processes to heartbeat.received every second, and the process projector, which
turns them into process.state; and shows the states as a live table, or as plain
lines where standard output is no terminal. The store stays in ./eventhub-data:
started again, the demo continues where it was. Its topics have the settings that are
shipped as an example, heartbeats 3 days, unless --topics-file names others.`,
		Example: `  eventhub demo
  eventhub demo --store memory: | head -20`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := loadHub(cmd)
			if err != nil {
				return configError(cmd, err)
			}
			cfg, level := loggingConfig(cmd, settings)
			out := cmd.OutOrStdout()
			if isTerminal(out) && settings.Source("log_level").Kind == config.FromDefault {
				level.Set(slog.LevelError) // log lines would tear the live table
			}
			cfg.Topics = deploy.Topics // unless a file is named
			return runHub(cmd.Context(), cfg, func(ctx context.Context, h *hub.Hub) error {
				return demo(ctx, h, out, cfg.Logger)
			})
		},
	}
	registerHubFlags(cmd)
	return cmd
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// demo runs agent, projector and table until the context ends or one of them
// fails, which ends the others.
func demo(ctx context.Context, h *hub.Hub, out io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	engine := h.Bus()
	var parts sync.WaitGroup
	for name, run := range map[string]func() error{
		"heartbeat agent": func() error {
			agent := heartbeat.Agent{Logger: log}
			return agent.Run(ctx, engine)
		},
		"process projector": func() error {
			projector := process.Projector{Logger: log}
			return projector.Run(ctx, engine, engine)
		},
		"table": func() error {
			return proctable.Run(ctx, engine, out, proctable.Options{
				Hubs: []string{"ws://" + h.WSAddr(), "http://" + h.OpsAddr() + "/readyz"},
			})
		},
	} {
		parts.Go(func() {
			if err := run(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	parts.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
