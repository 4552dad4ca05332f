package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/config"
	"eventhub/hub"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the hub until SIGINT or SIGTERM",
		Long: `Runs the hub until SIGINT or SIGTERM, which stop it in order: exit code 0. A
second signal does not wait; the same one again within a second is one signal.

Every setting is a flag, an environment variable, or a key of the same name in
the YAML file that --config names; the first of these that gives it decides.
On SIGHUP the log level is read again; what else has changed is logged and counts
from the next start.`,
		Example: `  eventhub serve --store /var/lib/eventhub
  eventhub serve --config /etc/eventhub.yaml --log-level debug
  eventhub serve --ws 0.0.0.0:8090 --auth-token-file /run/secrets/eventhub
  eventhub serve --store memory: --ws 0 --http 0 --ops 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Before the hub is up: a SIGHUP that nobody waits for ends the process.
			hangup := make(chan os.Signal, 1)
			signal.Notify(hangup, syscall.SIGHUP)
			defer signal.Stop(hangup)
			settings, err := loadHub(cmd)
			if err != nil {
				return configError(cmd, err)
			}
			cfg, level := loggingConfig(cmd, settings)
			load := func() (*config.Settings, error) {
				return checkHub(hubSchema().Reload(cmd.Flags(), os.Environ()))
			}
			for {
				err := runHub(cmd.Context(), cfg, func(ctx context.Context, h *hub.Hub) error {
					for {
						select {
						case <-ctx.Done():
							return nil
						case <-hangup:
							reload(cfg.Logger, level, settings, load)
							h.Look()
						}
					}
				})
				if cmd.Context().Err() != nil || !hub.IsSucceeded(err) {
					return err
				}
				cfg.Logger.Warn("this hub leads no more; it follows the journal from here on", "error", err)
			}
		},
	}
	registerHubFlags(cmd)
	return cmd
}

// loggingConfig returns the configuration of the hub, now with a logger, which has
// logged what the settings warn of. The logger's level is the LevelVar; the hub
// lets operators change it too.
func loggingConfig(cmd *cobra.Command, s *config.Settings) (hub.Config, *slog.LevelVar) {
	level := new(slog.LevelVar)
	cfg := hubConfig(s)
	cfg.Logger, cfg.LogLevel = newLogger(cmd.ErrOrStderr(), s, level), level
	for _, what := range s.Warnings {
		cfg.Logger.Warn("configuration: " + what)
	}
	return cfg, level
}

// newLogger returns the logger that the settings ask for. Its level is level,
// which it sets and which may be changed at any time.
func newLogger(w io.Writer, s *config.Settings, level *slog.LevelVar) *slog.Logger {
	level.Set(logLevel(s))
	options := logOptions(level)
	if s.Text("log_format") == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func logOptions(level slog.Leveler) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: plainErrors}
}

// plainErrors logs of an error what it says. The text handler would format it with %+v,
// to which the errors of the store answer with a stack trace.
func plainErrors(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}

// logLevel is the configured level.
func logLevel(s *config.Settings) slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.Text("log_level"))); err != nil {
		panic(err) // the schema has another opinion of what levels there are
	}
	return level
}

// reload sets the log level to what the sources say now and says which other
// keys have changed since the start. Nothing changes if anything is wrong.
func reload(logger *slog.Logger, level *slog.LevelVar, started *config.Settings, load func() (*config.Settings, error)) {
	now, err := load()
	if err != nil {
		logger.Error("configuration not taken over", "error", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	was, is := level.Level(), logLevel(now)
	report := func() {
		logger.Info("configuration read again", "log_level", now.Text("log_level"), "from", now.Source("log_level").String())
	}
	if is > was {
		report() // while it can still be seen
	}
	level.Set(is)
	if is <= was {
		report()
	}
	changed := slices.DeleteFunc(started.Changed(now), func(key string) bool { return key == "log_level" })
	if len(changed) > 0 {
		logger.Warn("configuration has changes that need a restart", "keys", strings.Join(changed, ","))
	}
}

// runHub runs a hub around work, whose context ends with a signal or when the
// hub can not go on, and takes it down in order.
func runHub(ctx context.Context, cfg hub.Config, work func(context.Context, *hub.Hub) error) error {
	if limit := hub.LimitMemory(cfg.MemoryLimit, os.DirFS("/")); limit > 0 {
		cfg.MemoryLimit = int(limit >> 20)
		if cfg.MemoryLimit < hub.LeastMemory {
			cfg.Logger.Warn("the memory has a limit below what a hub needs, which may refuse everybody", "mib", cfg.MemoryLimit, "least", hub.LeastMemory)
		} else {
			cfg.Logger.Info("the memory has a limit", "mib", cfg.MemoryLimit)
		}
	}
	h, err := hub.Start(cfg)
	if err != nil {
		return err
	}
	hub.RunAtLeast(os.Getenv("GOMAXPROCS"))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		select {
		case err := <-h.Failed():
			cancel(fmt.Errorf("the hub can not go on: %w", err))
		case <-ctx.Done():
		}
	}()
	err = work(ctx, h)
	if cause := context.Cause(ctx); err == nil && cause != context.Canceled {
		err = cause
	}
	cancel(nil)
	<-watch
	stopCtx, done := context.WithTimeout(context.Background(), cfg.Drain+cfg.Grace+time.Second)
	defer done()
	if stopErr := h.Stop(stopCtx); err == nil {
		err = stopErr
	}
	return err
}
