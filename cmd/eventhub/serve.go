package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"eventhub/hub"
)

// hubFlags are the flags of commands that run a hub. A flag that is not given
// takes its value from the first of its environment variables that is set.
type hubFlags struct {
	config    hub.Config
	logFormat string
	logLevel  string
}

// flagEnv names the environment variables behind each flag.
var flagEnv = map[string][]string{
	"ws":         {"EVENTHUB_WS", "WS_PORT"},
	"http":       {"EVENTHUB_HTTP", "HTTP_PORT"},
	"ops":        {"EVENTHUB_OPS", "OPS_PORT"},
	"store":      {"EVENTHUB_STORE", "MONGO_URL"},
	"auth-token": {"AUTH_TOKEN", "WS_TOKEN"},
	"insecure":   {"EVENTHUB_INSECURE"},
	"origin":     {"EVENTHUB_ORIGIN"},
	"max-topics": {"EVENTHUB_MAX_TOPICS"},
	"grace":      {"EVENTHUB_GRACE"},
	"log-format": {"EVENTHUB_LOG_FORMAT"},
	"log-level":  {"EVENTHUB_LOG_LEVEL"},
}

func (f *hubFlags) register(flags *pflag.FlagSet) {
	c := &f.config
	flags.Var(addrValue{&c.WSAddr}, "ws", "WebSocket address, host:port or port "+envHint("ws"))
	flags.Var(addrValue{&c.HTTPAddr}, "http", "HTTP API address, host:port or port "+envHint("http"))
	flags.Var(addrValue{&c.OpsAddr}, "ops", "health and operations address, host:port or port "+envHint("ops"))
	flags.StringVar(&c.Store, "store", hub.DefaultStore, "directory of the embedded store, or memory: "+envHint("store"))
	flags.StringVar(&c.AuthToken, "auth-token", "", "token that clients must present; better in the environment "+envHint("auth-token"))
	flags.BoolVar(&c.Insecure, "insecure", false, "allow addresses other than loopback without authentication "+envHint("insecure"))
	flags.StringSliceVar(&c.Origins, "origin", nil, "web origins that may connect besides the hub's own host "+envHint("origin"))
	flags.IntVar(&c.MaxTopics, "max-topics", 100_000, "most topics that are created "+envHint("max-topics"))
	flags.DurationVar(&c.Grace, "grace", hub.DefaultGrace, "how long a graceful stop may take "+envHint("grace"))
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json "+envHint("log-format"))
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error "+envHint("log-level"))
	c.WSAddr, c.HTTPAddr, c.OpsAddr = hub.DefaultWSAddr, hub.DefaultHTTPAddr, hub.DefaultOpsAddr
}

func envHint(flag string) string { return "[$" + strings.Join(flagEnv[flag], ", $") + "]" }

// fromEnv fills the flags that were not given. An empty variable counts as not
// set.
func (f *hubFlags) fromEnv(flags *pflag.FlagSet, getenv func(string) string) error {
	for name, variables := range flagEnv {
		flag := flags.Lookup(name)
		if flag == nil || flag.Changed {
			continue
		}
		for _, variable := range variables {
			value := getenv(variable)
			if value == "" {
				continue
			}
			if err := flag.Value.Set(value); err != nil {
				return usageError{fmt.Errorf("environment variable %s: %w", variable, hideSecret(name, err))}
			}
			break
		}
	}
	return nil
}

func hideSecret(flag string, err error) error {
	if flag == "auth-token" {
		return fmt.Errorf("not a valid value")
	}
	return err
}

// resolve reads the environment and returns the configuration.
func (f *hubFlags) resolve(cmd *cobra.Command) (hub.Config, error) {
	if err := f.fromEnv(cmd.Flags(), os.Getenv); err != nil {
		return hub.Config{}, err
	}
	logger, err := newLogger(cmd.ErrOrStderr(), f.logFormat, f.logLevel)
	if err != nil {
		return hub.Config{}, usageError{err}
	}
	c := f.config
	c.Logger, c.Version = logger, versionString()
	if err := c.WithDefaults().Validate(); err != nil {
		return hub.Config{}, usageError{err}
	}
	return c, nil
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q is not one of debug, info, warn, error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("log format %q is not one of text, json", format)
}

// addrValue is a flag for host:port; a port alone means that port on loopback.
type addrValue struct{ addr *string }

func (v addrValue) String() string {
	if v.addr == nil {
		return ""
	}
	return *v.addr
}

func (v addrValue) Type() string { return "address" }

func (v addrValue) Set(s string) error {
	if !strings.Contains(s, ":") {
		s = net.JoinHostPort("127.0.0.1", s)
	}
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is neither host:port nor a port", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	*v.addr = s
	return nil
}

func serveCommand() *cobra.Command {
	var flags hubFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the hub until SIGINT or SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := flags.resolve(cmd)
			if err != nil {
				return err
			}
			return runHub(cmd.Context(), config, func(ctx context.Context, _ *hub.Hub) error {
				<-ctx.Done()
				return nil
			})
		},
	}
	flags.register(cmd.Flags())
	return cmd
}

// runHub runs a hub around work, whose context ends with a signal or when the
// hub can not go on, and takes it down in order.
func runHub(ctx context.Context, config hub.Config, work func(context.Context, *hub.Hub) error) error {
	h, err := hub.Start(config)
	if err != nil {
		return err
	}
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
	grace := config.WithDefaults().Grace
	stopCtx, done := context.WithTimeout(context.Background(), grace+time.Second)
	defer done()
	if stopErr := h.Stop(stopCtx); err == nil {
		err = stopErr
	}
	return err
}
