package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/auth"
	"eventhub/cmd/eventhub/internal/config"
	"eventhub/hub"
	"eventhub/internal/origin"
	"eventhub/outbox"
	"eventhub/outbox/outboxurl"
)

// hubSchema is all that can be said about a hub, for every command that runs or
// checks one. A field of hub.Config that a user may set has a key here.
func hubSchema() *config.Schema {
	return config.New([]config.Key{
		{Name: "ws", Type: config.Address, Default: hub.DefaultWSAddr, Older: []string{"WS_PORT"},
			Usage: "WebSocket address, host:port or port"},
		{Name: "http", Type: config.Address, Default: hub.DefaultHTTPAddr, Older: []string{"HTTP_PORT"},
			Usage: "HTTP API address, host:port or port"},
		{Name: "ops", Type: config.Address, Default: hub.DefaultOpsAddr, Older: []string{"OPS_PORT"},
			Usage: "health and operations address, host:port or port"},
		{Name: "store", Type: config.Text, Default: hub.DefaultStore, Hide: hideURL,
			Usage: "directory of the embedded store, or memory: which keeps nothing"},
		{Name: "auth_token", Type: config.Text, Secret: true, Older: []string{"AUTH_TOKEN", "WS_TOKEN"},
			Usage: "token that clients must present; other users of the machine can see a flag, not a file"},
		{Name: "auth_tokens_file", Type: config.Text, Older: []string{"AUTH_TOKENS_FILE"},
			Usage: "file with tokens, each with a name and its rights, YAML or JSON; read again when it changes"},
		{Name: "jwt_secret", Type: config.Text, Secret: true, Older: []string{"JWT_SECRET"},
			Usage: "secret that verifies JSON Web Tokens by HS256, best 32 random bytes or more"},
		{Name: "jwt_jwks_url", Type: config.Text, Older: []string{"JWT_JWKS_URL"}, Hide: auth.ShownURL,
			Usage: "URL of the public keys (JWKS) that verify JSON Web Tokens"},
		{Name: "jwt_key_file", Type: config.Text, Older: []string{"JWT_KEY_FILE"},
			Usage: "file with public keys, JWKS or PEM, that verify JSON Web Tokens; read again when it changes"},
		{Name: "jwt_aud", Type: config.Text, Older: []string{"JWT_AUD"},
			Usage: "audience that each JSON Web Token must have"},
		{Name: "jwt_iss", Type: config.Text, Older: []string{"JWT_ISS"},
			Usage: "issuer that each JSON Web Token must have"},
		{Name: "tls_cert_file", Type: config.Text,
			Usage: "PEM file with the certificate of the listeners, which then speak TLS; read again when it changes"},
		{Name: "tls_key_file", Type: config.Text,
			Usage: "PEM file with the key of that certificate; read again when it changes"},
		{Name: "insecure", Type: config.Bool,
			Usage: "allow addresses other than loopback without authentication"},
		{Name: "origin", Type: config.List(checkOrigin),
			Usage: "web origins (scheme://host[:port]) that may connect besides the hub's own host"},
		{Name: "trusted_proxies", Type: config.List(hub.CheckProxy),
			Usage: "networks (10.0.0.0/8) or addresses of proxies whose X-Forwarded-For says where a request comes from"},
		{Name: "auth_query_token", Type: config.Bool,
			Usage: "event streams over HTTP take a token from ?access_token= too, for EventSource of browsers"},
		{Name: "durability", Type: config.OneOf("sync", "interval"), Default: "sync",
			Usage: "sync: an OK means on disk; interval: on disk within 10 ms, which a crash may lose"},
		{Name: "limits_file", Type: config.Text,
			Usage: "file with limits of publishes and connections, YAML or JSON; read again when it changes"},
		{Name: "topics_file", Type: config.Text,
			Usage: "file with settings of topics, YAML or JSON; what it has is changed there alone"},
		{Name: "console", Type: config.OneOf("on", "off"), Default: "on",
			Usage: "off: the operations listener has no page for people"},
		{Name: "maintenance", Type: config.OneOf("on", "off"), Default: "on",
			Usage: "off: remove nothing by itself, to look at an old copy"},
		{Name: "max_unauthenticated", Type: config.Int(1), Default: strconv.Itoa(hub.DefaultMaxUnauthenticated),
			Usage: "most connections that have shown no right yet; the oldest one of the address that has most gives way"},
		{Name: "max_publish_wait", Type: config.Duration, Default: hub.DefaultMaxPublishWait.String(),
			Usage: "how long a publish may wait for its commit, as fast as the store is, before others are refused"},
		{Name: "max_topics", Type: config.Int(1), Default: strconv.Itoa(hub.Config{}.WithDefaults().MaxTopics),
			Usage: "most topics that are created"},
		{Name: "max_producers", Type: config.Int(1), Default: strconv.Itoa(hub.Config{}.WithDefaults().MaxProducers),
			Usage: "most producers that number their publishes; the one that has been away longest gives way"},
		{Name: "producers_kept", Type: config.Duration, Default: "15m",
			Usage: "how long a producer is known after its last connection"},
		{Name: "memory_limit", Type: config.Int(0), Default: "0",
			Usage: "memory, in MiB, that the hub stays below; 0: GOMEMLIMIT, or nine tenths of what the cgroup allows"},
		{Name: "max_message_memory", Type: config.Int(hub.LeastMessageMemory), Default: strconv.Itoa(hub.Config{}.WithDefaults().MaxMessageMemory),
			Usage: "most memory, in MiB, of messages that are not complete; answers that are not taken may have as much"},
		{Name: "metrics_labels", Type: config.Int(1), Default: strconv.Itoa(hub.Config{}.WithDefaults().MetricsLabels),
			Usage: "topics, and groups, with metrics of their own; all others share one row"},
		{Name: "metrics_histograms", Type: config.Int(1), Default: strconv.Itoa(hub.Config{}.WithDefaults().MetricsHistograms),
			Usage: "groups with latency histograms of their own; all others share one row"},
		{Name: "outbox", Type: config.Text, Hide: outboxurl.Shown,
			Usage: "outbox that the hub publishes from: " + outboxurl.Forms + "; one with a password is better in the environment"},
		{Name: "outbox_order", Type: config.OneOf(string(outbox.ByKey), string(outbox.ByTopic)), Default: string(outbox.ByKey),
			Usage: "what of the outbox is published one after another: key (rows of one key of one topic) or topic"},
		{Name: "outbox_keep", Type: config.Duration, Default: "24h",
			Usage: "how long rows of the outbox stay that were sent"},
		{Name: "journal", Type: config.Text, Older: []string{"MONGO_URL"}, Hide: hub.JournalShown,
			Usage: "journal that this hub shares with others, " + hub.JournalForm + "; none: the store has shared one, and is to be one of its own"},
		{Name: "member_id", Type: config.Text,
			Usage: "name of this hub among those that share the journal; default: that of the machine"},
		{Name: "member_url", Type: config.List(checkMemberURL),
			Usage: "URLs at which clients reach this hub, which a standby gives to those who ask it"},
		{Name: "member_token", Type: config.Text, Secret: true,
			Usage: "token that this hub presents to the one that leads, where it has to fetch a copy of its store; default: auth_token"},
		{Name: "member_ca_file", Type: config.Text,
			Usage: "certificates to trust (PEM) where this hub fetches that copy, in place of the system's"},
		{Name: "lease", Type: config.Duration, Default: "5s",
			Usage: "how long nothing has to come from the hub that leads until another one takes over, at least 1s"},
		{Name: "project", Type: config.OneOf(hub.ProjectOn, hub.ProjectOff), Default: hub.ProjectOn,
			Usage: "on: the hub that leads, with a journal in MongoDB, keeps events and cursors there as documents"},
		{Name: "project_state", Type: config.List(checkTopicPattern),
			Usage: "topics, or patterns, whose current state it keeps there as a collection each"},
		{Name: "grace", Type: config.Duration, Default: hub.DefaultGrace.String(),
			Usage: "how long a graceful stop may take"},
		{Name: "drain", Type: config.Pause, Default: "0s",
			Usage: "how long a stopping hub is not ready and still takes everything, before that"},
		{Name: "log_format", Type: config.OneOf("text", "json"), Default: "text",
			Usage: "text or json"},
		{Name: "log_level", Type: config.OneOf("debug", "info", "warn", "error"), Default: "info",
			Usage: "debug, info, warn or error"},
	}, clientVariables...)
}

// clientVariables are those of the commands that talk to a hub.
var clientVariables = []string{"EVENTHUB_URL", "EVENTHUB_TOKEN", "EVENTHUB_TOKEN_FILE", "EVENTHUB_CA_FILE"}

func checkTopicPattern(text string) error {
	_, err := eventhub.ParsePattern(text)
	return err
}

func checkOrigin(text string) error {
	_, err := origin.New([]string{text})
	return err
}

// hideURL hides what may hold a password: all of a URL but its scheme.
func hideURL(store string) string {
	if scheme, _, ok := strings.Cut(store, "://"); ok {
		return scheme + "://" + config.Redacted
	}
	return store
}

// hubConfig returns the configuration of the hub, without its logger.
func hubConfig(s *config.Settings) hub.Config {
	return hub.Config{
		Store:              s.Text("store"),
		WSAddr:             s.Text("ws"),
		HTTPAddr:           s.Text("http"),
		OpsAddr:            s.Text("ops"),
		AuthToken:          s.Text("auth_token"),
		AuthTokensFile:     s.Text("auth_tokens_file"),
		JWTSecret:          s.Text("jwt_secret"),
		JWKSURL:            s.Text("jwt_jwks_url"),
		JWTKeyFile:         s.Text("jwt_key_file"),
		JWTAudience:        s.Text("jwt_aud"),
		JWTIssuer:          s.Text("jwt_iss"),
		TLSCertFile:        s.Text("tls_cert_file"),
		TLSKeyFile:         s.Text("tls_key_file"),
		Insecure:           s.Bool("insecure"),
		Origins:            s.Strings("origin"),
		TrustedProxies:     s.Strings("trusted_proxies"),
		AuthQueryToken:     s.Bool("auth_query_token"),
		Durability:         s.Text("durability"),
		Console:            s.Text("console"),
		Maintenance:        s.Text("maintenance"),
		LimitsFile:         s.Text("limits_file"),
		TopicsFile:         s.Text("topics_file"),
		MaxUnauthenticated: s.Int("max_unauthenticated"),
		MaxPublishWait:     s.Duration("max_publish_wait"),
		MaxTopics:          s.Int("max_topics"),
		MaxProducers:       s.Int("max_producers"),
		ProducersKept:      s.Duration("producers_kept"),
		MemoryLimit:        s.Int("memory_limit"),
		MaxMessageMemory:   s.Int("max_message_memory"),
		MetricsLabels:      s.Int("metrics_labels"), MetricsHistograms: s.Int("metrics_histograms"),
		Outbox: s.Text("outbox"), OutboxOrder: s.Text("outbox_order"), OutboxKeep: s.Duration("outbox_keep"),
		Journal: s.Text("journal"), MemberID: s.Text("member_id"), MemberURLs: s.Strings("member_url"), Lease: s.Duration("lease"), Project: s.Text("project"), ProjectState: s.Strings("project_state"), MemberToken: s.Text("member_token"), MemberCAFile: s.Text("member_ca_file"),
		Grace:   s.Duration("grace"),
		Drain:   s.Duration("drain"),
		Sources: sources(s),
		Version: versionString(),
	}
}

// checkMemberURL refuses what no client can connect to.
func checkMemberURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || !slices.Contains([]string{"ws", "wss", "http", "https"}, u.Scheme) {
		return fmt.Errorf("%q is no URL of a hub; want ws://HOST:PORT or http://HOST:PORT, with wss or https for TLS", text)
	}
	return nil
}

// sources says where the settings came from that are not defaults. A secret that a file
// holds is one setting.
func sources(s *config.Settings) []hub.Source {
	given := []hub.Source{} // known, even where nothing is given
	for _, k := range hubSchema().Keys() {
		from := s.Source(k.Name)
		if from.Kind != config.FromDefault && !k.IsTwin() {
			given = append(given, hub.Source{Setting: k.Name, From: from.String()})
		}
	}
	return given
}

// loadHub reads flags, environment and file, and checks that a hub could be run
// with them. The error has everything that is wrong, one line each; the settings
// are there even so.
func loadHub(cmd *cobra.Command) (*config.Settings, error) {
	return checkHub(hubSchema().Load(cmd.Flags(), os.Environ()))
}

func checkHub(settings *config.Settings, err error) (*config.Settings, error) {
	return settings, errors.Join(err, hubConfig(settings).Validate())
}

// configError makes the caller's error of what is wrong with the configuration:
// of several errors the number, after each had a line on standard error.
func configError(cmd *cobra.Command, err error) error {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) == 1 {
		return usageError{fmt.Errorf("configuration: %w", err)}
	}
	for _, line := range lines {
		fmt.Fprintln(cmd.ErrOrStderr(), "error:", line)
	}
	return usageError{fmt.Errorf("%d errors in the configuration", len(lines))}
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show or check the configuration of a hub, without starting one",
	}
	cmd.AddCommand(configPrintCommand(), configCheckCommand())
	return cmd
}

func configPrintCommand() *cobra.Command {
	var output string
	var sources bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the configuration that a hub would run with",
		Long: `Prints the values that flags, environment, file and defaults give together, as a
file that --config reads again. Secrets are never shown: where one is set, its
key is there as a comment (in JSON it is left out).`,
		Example: `  eventhub config print --config hub.yaml --sources
  eventhub config print --store /var/lib/eventhub >hub.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := hubSchema().Load(cmd.Flags(), os.Environ())
			if err != nil {
				return configError(cmd, err)
			}
			warn(cmd.ErrOrStderr(), settings.Warnings)
			switch output {
			case "yaml":
				return settings.WriteYAML(cmd.OutOrStdout(), sources)
			case "json":
				return settings.WriteJSON(cmd.OutOrStdout(), sources)
			}
			return usageError{fmt.Errorf("output %q is not one of yaml, json", output)}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "yaml or json")
	cmd.Flags().BoolVar(&sources, "sources", false, "show where each value came from; as JSON this is no configuration file any more")
	registerHubFlags(cmd)
	return cmd
}

func configCheckCommand() *cobra.Command {
	offline := false
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the configuration of a hub",
		Long: `Checks what "eventhub serve" would run with, given this file (or the one of
--config or EVENTHUB_CONFIG), this environment and these flags: exit code 0 if it
could, 2 with everything that is wrong if not. Nothing is opened or created, so
a port in use or a store that is locked shows only at the start.

Of a journal the servers are asked: whether the stream may be a journal, its replicas,
what the user may do, and how long an answer takes. Nothing is changed there either. Exit
code 3 says that they are not reached, which a hub that starts would wait for;
--offline does not ask them.`,
		Example: `  eventhub config check hub.yaml
  eventhub config check --offline hub.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if cmd.Flags().Changed("config") {
					return usageError{fmt.Errorf("give the file once, as %s or with --config", args[0])}
				}
				if err := cmd.Flags().Set("config", args[0]); err != nil {
					return fmt.Errorf("take %s as the file: %w", args[0], err)
				}
			}
			settings, err := loadHub(cmd)
			warn(cmd.ErrOrStderr(), settings.Warnings)
			if err != nil {
				return configError(cmd, err)
			}
			warn(cmd.ErrOrStderr(), dangers(settings))
			summary := ""
			if journal := settings.Text("journal"); journal != "" && journal != hub.JournalNone && !offline {
				if summary, err = checkJournal(cmd, settings); err != nil {
					return err
				}
			}
			what := "defaults, environment and flags"
			if settings.File != "" {
				what = settings.File
			}
			var values []string
			for _, key := range []string{"store", "ws", "http", "ops"} {
				values = append(values, fmt.Sprintf("%s %s (%s)", key, settings.Text(key), settings.Source(key)))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "ok: %s; %s\n%s", what, strings.Join(values, ", "), summary)
			return err
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask the servers of the journal")
	registerHubFlags(cmd)
	return cmd
}

// checkJournal asks the servers of the journal, warns, and returns a line that says what there is.
func checkJournal(cmd *cobra.Command, settings *config.Settings) (summary string, err error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), journalWithin)
	defer cancel()
	c, err := hub.CheckJournal(ctx, hubConfig(settings))
	if err != nil {
		return "", journalAway{err}
	}
	warn(cmd.ErrOrStderr(), c.Warnings)
	if err := errors.Join(c.Errors...); err != nil {
		return "", configError(cmd, err)
	}
	return "ok: " + c.Summary + "\n", nil
}

// journalWithin is how long the servers of a journal have for all that is asked.
const journalWithin = 15 * time.Second

// registerHubFlags gives the command all flags of the schema, with completion.
func registerHubFlags(cmd *cobra.Command) {
	schema := hubSchema()
	schema.Register(cmd.Flags())
	complete := func(flag string, values []string, directive cobra.ShellCompDirective) {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, directive)); err != nil {
			panic(err) // the flag is not there, or has a completion
		}
	}
	for _, k := range schema.Keys() {
		if choices := k.Type.Choices(); choices != nil {
			complete(k.Flag(), choices, cobra.ShellCompDirectiveNoFileComp)
		}
	}
	complete("config", []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt)
	complete("store", nil, cobra.ShellCompDirectiveFilterDirs)
	complete("limits-file", []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt)
	complete("topics-file", []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt)
	complete("auth-tokens-file", []string{"yaml", "yml", "json"}, cobra.ShellCompDirectiveFilterFileExt)
}

func warn(w io.Writer, warnings []string) {
	for _, what := range warnings {
		fmt.Fprintln(w, "warning:", what)
	}
}

// dangers names what is allowed and will bite.
func dangers(s *config.Settings) []string {
	var found []string
	closed := hubConfig(s)
	closed.Insecure = false
	if err := closed.Validate(); err != nil {
		for _, what := range strings.Split(err.Error(), "\n") {
			found = append(found, "allowed by insecure alone: "+what)
		}
	}
	if store := s.Text("store"); store == hub.MemoryStore {
		found = append(found, "store memory: keeps nothing: all events are lost when the hub stops")
	} else if parent := filepath.Dir(store); !isDir(parent) {
		found = append(found, fmt.Sprintf("store %s: there is no directory %s; the hub would make it, but is a disk missing?", store, parent))
	}
	if at := s.Source("outbox"); at.Kind == config.FromFlag && strings.Contains(s.Text("outbox"), "@") {
		found = append(found, "outbox is given as a flag, which other users of the machine can see with its password: better EVENTHUB_OUTBOX")
	}
	for _, name := range []string{"auth_token", "jwt_secret", "member_token"} {
		secret := s.Source(name)
		if secret.Kind == config.FromFlag {
			found = append(found, name+" is given as a flag, which other users of the machine can see: better "+name+"_file")
		}
		found = append(found, readableByAll(secret.Path)...)
	}
	found = append(found, readableByAll(s.Text("auth_tokens_file"))...)
	found = append(found, readableByAll(s.Text("tls_key_file"))...)
	if secret := s.Text("jwt_secret"); secret != "" && len(secret) < 32 {
		found = append(found, fmt.Sprintf("jwt_secret has %d bytes, which can be guessed from one token; better 32 random bytes", len(secret)))
	}
	if strings.HasPrefix(s.Text("jwt_jwks_url"), "http://") {
		found = append(found, "jwt_jwks_url is not https: whoever is on the way can give the hub other keys")
	}
	return found
}

// readableByAll warns of a file with secrets.
func readableByAll(path string) []string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s holds a secret and every user of the machine can read it (mode %04o)", path, info.Mode().Perm())}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
