package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// healthLimit is far above what an answer to /readyz has, in bytes.
const healthLimit = 1 << 20

// health is what /readyz answers as JSON.
type health struct {
	Status string        `json:"status"` // ok or failed
	Checks []healthCheck `json:"checks"`
}

type healthCheck struct {
	Name   string  `json:"name"`
	Status string  `json:"status"`
	TimeMS float64 `json:"time_ms"`
	Error  string  `json:"error,omitempty"`
}

func healthCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a hub whether it is ready, for probes and scripts",
		Long: `Asks the operations listener of a hub for /readyz and prints its checks. The exit
code is 0 if the hub is ready, 1 if it is not, and 3 if nothing answers. No token is
needed, and the hub writes nothing; "eventhub check" publishes and consumes.

The address is the one that "eventhub serve" would listen on with the same --ops,
--config and environment, so a container can probe itself without arguments. Where
the hub listens on all addresses (0.0.0.0), the loopback address is asked.`,
		Example: `  eventhub health
  eventhub health --ops 10.0.0.7:8082 -o json`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	hubSchema().Register(cmd.Flags(), "ops")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return usageError{fmt.Errorf("--timeout is %s; it must be positive", timeout)}
		}
		settings, err := hubSchema().Load(cmd.Flags(), os.Environ())
		if err != nil {
			return configError(cmd, err)
		}
		addr, err := probeAddr(settings.Text("ops"))
		if err != nil {
			return usageError{fmt.Errorf("%w (%s)", err, settings.Source("ops"))}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		h, err := askHealth(ctx, addr)
		if err != nil {
			return err
		}
		return errors.Join(printHealth(cmd, format.Format, h), h.verdict())
	}
	return cmd
}

// probeAddr returns where a hub on this machine answers that listens on addr.
func probeAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("ops: %w", err)
	}
	if port == "0" {
		return "", fmt.Errorf("ops is %s: port 0 means any free port; give the one in the hub's log line \"hub is up\"", addr)
	}
	if ip := net.ParseIP(host); host == "" || ip.Equal(net.IPv4zero) {
		host = "127.0.0.1"
	} else if ip.Equal(net.IPv6unspecified) {
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// askHealth asks for /readyz, directly: a proxy of the environment is not used. The
// error wraps client.ErrUnreachable where nothing answers.
//
// Whether the listener speaks TLS shows in its answer. No certificate is checked then, for no
// token is sent, and the probe of a machine calls it by an address.
func askHealth(ctx context.Context, addr string) (*health, error) {
	h, err := askHealthBy(ctx, "http", addr)
	if errors.Is(err, errSpeaksTLS) {
		h, err = askHealthBy(ctx, "https", addr)
	}
	return h, err
}

// errSpeaksTLS is an answer to a request in the clear. Servers of Go's give it in words.
var errSpeaksTLS = errors.New("the listener speaks TLS")

func askHealthBy(ctx context.Context, scheme, addr string) (*health, error) {
	at := scheme + "://" + addr + "/readyz"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"?format=json", nil)
	if err != nil {
		return nil, usageError{fmt.Errorf("ops address %s: %w", addr, err)}
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", client.ErrUnreachable, at, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, healthLimit))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", client.ErrUnreachable, at, err)
	}
	if scheme == "http" && resp.StatusCode == http.StatusBadRequest && bytes.Contains(body, []byte("HTTPS server")) {
		return nil, errSpeaksTLS
	}
	h := new(health)
	if err := json.Unmarshal(body, h); err != nil || h.Status == "" || h.Checks == nil {
		return nil, fmt.Errorf("%s answered %s and no checks; is %s the --ops address of a hub?", at, resp.Status, addr)
	}
	return h, nil
}

func printHealth(cmd *cobra.Command, format output.Format, h *health) error {
	out := results(cmd)
	return output.Document(out, format, h, func(w io.Writer) error {
		rows := output.Rows[healthCheck]{Format: output.Table, Color: out.Color, Columns: []output.Column[healthCheck]{
			{Name: "CHECK", Width: 9, Cell: func(c healthCheck) string { return output.Safe(c.Name) }},
			{Name: "TIME", Width: 10, Right: true, Cell: func(c healthCheck) string { return fmt.Sprintf("%.1f ms", c.TimeMS) }},
			{Name: "RESULT", Cell: func(c healthCheck) string { return output.Safe(c.Status) }},
		}}
		for _, c := range h.Checks {
			line, err := rows.Append(nil, c)
			if err == nil {
				_, err = w.Write(line)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// verdict is nil if the hub is ready, and otherwise an error with all checks that fail.
func (h *health) verdict() error {
	if h.Status == "ok" {
		return nil
	}
	var failed []string
	for _, c := range h.Checks {
		if c.Status != "ok" {
			failed = append(failed, output.Safe(c.Name)+": "+output.Safe(c.Error))
		}
	}
	return fmt.Errorf("the hub is not ready: %s", strings.Join(failed, "; "))
}
