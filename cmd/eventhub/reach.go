package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

const (
	defaultURL = "ws://127.0.0.1:8090"
	// linger bounds what is still waited for after the first Ctrl-C.
	linger = 10 * time.Second
)

// reach is how a client command finds its hub and says who it is. Its flags come
// before the environment.
type reach struct {
	url, token, tokenFile string
	urls                  []string // of url, which resolve divides
	caFile                string
	tls                   *tls.Config // by caFile; nil: that of the system
	timeout               time.Duration
	name                  string // of a WebSocket client
}

func (r *reach) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&r.url, "url", defaultURL, "the hub: host:port, ws://, wss://, http:// or https://; those of a cluster with commas between them [$EVENTHUB_URL]")
	flags.StringVar(&r.token, "token", "", "token to present; better in a file or the environment [$EVENTHUB_TOKEN]")
	flags.StringVar(&r.tokenFile, "token-file", "", "file that holds the token [$EVENTHUB_TOKEN_FILE]")
	flags.StringVar(&r.caFile, "ca-file", "", "file with the certificates (PEM) that wss:// and https:// trust, in place of those of the system [$EVENTHUB_CA_FILE]")
	flags.DurationVar(&r.timeout, "timeout", 5*time.Second, "how long to try to reach the hub, and to wait for each answer of its HTTP API")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
}

// registerName adds --name to a command that dials.
func (r *reach) registerName(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.name, "name", "", fmt.Sprintf("how this client is called in lists of members and connections (default: eventhub-%s and the process id)", cmd.Name()))
}

// clientName returns the name to give. The default names neither the user nor the host: the hub
// knows the address anyway.
func (r *reach) clientName(cmd *cobra.Command) (string, error) {
	if !cmd.Flags().Changed("name") {
		return fmt.Sprintf("eventhub-%s:%d", cmd.Name(), os.Getpid()), nil
	}
	if err := eventhub.ValidateClient(r.name); err != nil {
		return "", usageError{fmt.Errorf("--name: %s", eventhub.AsError(err).Message)}
	}
	return r.name, nil
}

// resolve fills what no flag gave from the environment and reads the token file.
// An empty variable counts as not set.
func (r *reach) resolve(cmd *cobra.Command) error {
	flags := cmd.Flags()
	if env := os.Getenv("EVENTHUB_URL"); env != "" && !flags.Changed("url") {
		r.url = env
	}
	if !flags.Changed("token") && !flags.Changed("token-file") {
		r.token, r.tokenFile = os.Getenv("EVENTHUB_TOKEN"), os.Getenv("EVENTHUB_TOKEN_FILE")
		if r.token != "" && r.tokenFile != "" {
			return usageError{errors.New("both EVENTHUB_TOKEN and EVENTHUB_TOKEN_FILE are set; set one")}
		}
	}
	if r.timeout <= 0 {
		return usageError{fmt.Errorf("--timeout is %s; it must be positive", r.timeout)}
	}
	r.urls = nil
	for one := range strings.SplitSeq(r.url, ",") {
		one, err := hubURL(strings.TrimSpace(one))
		if err != nil {
			return usageError{err}
		}
		r.urls = append(r.urls, one)
	}
	r.url = strings.Join(r.urls, ",")
	if err := r.readCA(cmd); err != nil {
		return err
	}
	if r.tokenFile == "" {
		return nil
	}
	b, err := os.ReadFile(r.tokenFile)
	if err != nil {
		return usageError{fmt.Errorf("token file: %w", err)}
	}
	if r.token = strings.TrimRight(string(b), "\r\n"); r.token == "" {
		return usageError{fmt.Errorf("token file %s is empty", r.tokenFile)}
	}
	return nil
}

// readCA reads the certificates to trust.
func (r *reach) readCA(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("ca-file") {
		r.caFile = os.Getenv("EVENTHUB_CA_FILE")
	}
	if r.caFile == "" {
		return nil
	}
	content, err := os.ReadFile(r.caFile)
	if err != nil {
		return usageError{fmt.Errorf("CA file: %w", err)}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content) {
		return usageError{fmt.Errorf("CA file %s has no certificate in PEM", r.caFile)}
	}
	r.tls = &tls.Config{RootCAs: roots}
	return nil
}

// hubURL returns the URL that is meant by a text: host:port alone is that of a WebSocket.
func hubURL(text string) (string, error) {
	if strings.ContainsAny(text, "@?#") { // what is too much may be a secret, and is not shown
		return "", errors.New("the url has more than host, port and path; a token goes into --token-file")
	}
	if !strings.Contains(text, "://") {
		host, port, err := net.SplitHostPort(text)
		if err != nil {
			return "", fmt.Errorf("url %q has no port; host:port or a URL like %s is expected", text, defaultURL)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
			return "", fmt.Errorf("url %q is not like %s, nor host:port with a port from 1 to 65535", text, defaultURL)
		}
		return "ws://" + text, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("url %q is not like %s", text, defaultURL)
	}
	switch u.Scheme {
	case "ws", "wss", "http", "https":
		return text, nil
	}
	return "", fmt.Errorf("url %q starts with none of ws://, wss://, http://, https://", text)
}

// credentials are the options that say who asks, whom to trust, and which hubs there are besides the first.
func (r *reach) credentials() (options []client.Option) {
	if len(r.urls) > 1 {
		options = append(options, client.WithURLs(r.urls[1:]...))
	}
	if r.tls != nil {
		options = append(options, client.WithTLS(r.tls))
	}
	if r.tokenFile != "" {
		return append(options, client.WithTokenFile(r.tokenFile)) // which may be replaced meanwhile
	}
	if r.token != "" {
		options = append(options, client.WithToken(r.token))
	}
	return options
}

// dial connects over WebSocket. Lost connections are reported on standard error.
func (r *reach) dial(cmd *cobra.Command, more ...client.Option) (*client.Client, error) {
	if err := r.resolve(cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout)
	defer cancel()
	name, err := r.clientName(cmd)
	if err != nil {
		return nil, err
	}
	options := append(r.credentials(), client.WithName(name), client.WithLogger(slog.New(&notices{w: cmd.ErrOrStderr()})))
	return client.Dial(ctx, r.urls[0], append(options, more...)...)
}

// admin returns the administration of the hub. Nothing is sent yet.
func (r *reach) admin(cmd *cobra.Command) (*client.Admin, error) {
	if err := r.resolve(cmd); err != nil {
		return nil, err
	}
	return client.NewAdmin(r.urls[0], r.credentials()...)
}

// ask makes one request to the HTTP API.
func ask[T any](ctx context.Context, r *reach, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return request(ctx)
}

// lingering returns a context that ends a while after ctx does: what was begun
// may be finished.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(linger, func() { cancel(fmt.Errorf("no answer within %s after the interrupt", linger)) })
		context.AfterFunc(late, func() { timer.Stop() })
	})
	return late, func() { stop(); cancel(nil) }
}

// results returns standard output. A reader that goes away is output.ErrClosed.
func results(cmd *cobra.Command) *output.Results {
	return output.NewResults(cmd.OutOrStdout())
}

// notices is a slog.Handler for people: what the client says, such as of a connection that
// is lost or back, in one line without time and level.
type notices struct {
	w     io.Writer
	attrs []slog.Attr
}

func (n *notices) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (n *notices) Handle(_ context.Context, r slog.Record) error {
	line := []byte("eventhub: " + r.Message)
	add := func(a slog.Attr) bool {
		text := oneLine(a.Value.String())
		if a.Value.Kind() == slog.KindDuration {
			d := a.Value.Duration()
			text = d.Round(time.Millisecond).String()
			if d >= time.Second {
				text = d.Round(100 * time.Millisecond).String()
			}
		}
		line = fmt.Appendf(line, ", %s %s", a.Key, text)
		return true
	}
	for _, a := range n.attrs {
		add(a)
	}
	r.Attrs(add)
	_, err := n.w.Write(append(line, '\n'))
	return err
}

func (n *notices) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &notices{n.w, append(n.attrs[:len(n.attrs):len(n.attrs)], attrs...)}
}

func (n *notices) WithGroup(string) slog.Handler { return n }

// oneLine makes one line of an error that joins several, in which a terminal obeys nothing: a part of it may be what somebody has sent.
func oneLine(s string) string {
	return output.Safe(strings.ReplaceAll(strings.ReplaceAll(s, "\n", ": "), "client: ", ""))
}
