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
	"eventhub/cmd/eventhub/internal/procpage"
	"eventhub/cmd/eventhub/internal/proctable"
	"eventhub/deploy"
	"eventhub/hub"
	"eventhub/internal/demo/heartbeat"
	"eventhub/internal/demo/process"
)

func demoCommand() *cobra.Command {
	page := procpage.DefaultAddr
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub and watch this machine's processes flow through it",
		Long: `Runs a hub with a heartbeat agent, which publishes this machine's busiest
processes to heartbeat.received every second, and the process projector, which
turns them into process.state; and shows the states as a live table, or as plain
lines where standard output is no terminal. A page for browsers of this machine, whose
address it prints, has the same table with its past. The store stays in ./eventhub-data:
started again, the demo continues where it was. Its topics have the settings that are
shipped as an example, heartbeats 3 days, unless --topics-file names others.`,
		Example: `  eventhub demo
  eventhub demo --page off
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
			p, err := listenPage(cmd.Context(), page)
			if err != nil {
				return err
			}
			if p != nil {
				defer p.Close() // where the hub does not start
			}
			return runHub(cmd.Context(), cfg, func(ctx context.Context, h *hub.Hub) error {
				return demo(ctx, h, demoParts{out: out, log: cfg.Logger, page: p, tls: cfg.TLSCertFile != ""})
			})
		},
	}
	registerHubFlags(cmd)
	cmd.Flags().StringVar(&page, "page", page, "loopback address of the page of processes, host:port or port; off: no page")
	return cmd
}

// listenPage opens the page's address, or returns nil where there is to be no page.
func listenPage(ctx context.Context, addr string) (*procpage.Page, error) {
	if addr == "off" {
		return nil, nil
	}
	addr, err := procpage.Address(addr)
	if err != nil {
		return nil, usageError{fmt.Errorf("--page: %w; off is no page", err)}
	}
	p, err := procpage.Listen(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("the page: %w; --page takes another address, 0 for any free port, and off for no page", err)
	}
	return p, nil
}

// demoParts is what the demo runs besides the hub, and where it says so.
type demoParts struct {
	out  io.Writer
	log  *slog.Logger
	page *procpage.Page // nil: none
	tls  bool           // the hub's listeners speak TLS
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// demo runs agent, projector, table and page until the context ends or one of them
// fails, which ends the others.
func demo(ctx context.Context, h *hub.Hub, d demoParts) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	engine := h.Bus()
	shown := []string{"ws://" + h.WSAddr(), "http://" + h.OpsAddr() + "/readyz"}
	work := map[string]func() error{
		"heartbeat agent": func() error {
			agent := heartbeat.Agent{Logger: d.log}
			return agent.Run(ctx, engine)
		},
		"process projector": func() error {
			projector := process.Projector{Logger: d.log}
			return projector.Run(ctx, engine, engine)
		},
	}
	if d.page != nil {
		shown = append([]string{d.page.URL()}, shown...) // the first is cut off last
		d.log.Info("the page of processes is up", "page", d.page.URL())
		work["page"] = func() error { return d.page.Serve(ctx, procpage.HubURL(h.WSAddr(), d.tls)) }
	}
	work["table"] = func() error {
		return proctable.Run(ctx, engine, d.out, proctable.Options{Hubs: shown})
	}
	var parts sync.WaitGroup
	for name, run := range work {
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
