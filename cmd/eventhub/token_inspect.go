package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/auth"
	"eventhub/cmd/eventhub/internal/config"
	"eventhub/cmd/eventhub/internal/output"
)

// maxInspected bounds, in bytes, what is read as a token.
const maxInspected = 64 << 10

// inspected is what `token inspect` prints.
type inspected struct {
	Kind    string          `json:"kind"` // jwt or static
	Bytes   int             `json:"bytes"`
	Header  json.RawMessage `json:"header,omitempty"`
	Claims  json.RawMessage `json:"claims,omitempty"`
	Expires string          `json:"expires_at,omitempty"`
	Expired *bool           `json:"expired,omitempty"`
	// Verified is null where nothing is configured to verify it by.
	Verified *bool  `json:"verified"`
	Name     string `json:"name,omitempty"` // by which the hub knows who brings it
	Why      string `json:"why,omitempty"`  // it is not verified
}

func tokenInspectCommand() *cobra.Command {
	var tokenFile string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "inspect [TOKEN|-]",
		Short: "Show what a token says, and whether a hub would take it",
		Long: `Shows the header and the claims of a JSON Web Token, and when it ends. The token itself is
not shown. It is an argument, which other users of the machine can see, standard input (-),
the content of --token-file, or that of EVENTHUB_TOKEN or EVENTHUB_TOKEN_FILE.

If something is configured by which a hub would verify tokens, by flags, environment or the
file of --config as for "eventhub serve", it says whether a hub with these settings would
take the token. The exit code is then 0 if so and 4 if not. Only jwt_jwks_url asks somebody.`,
		Example: `  eventhub token inspect --token-file billing.token
  eventhub token mint --sub a --scope '*' | JWT_SECRET_FILE=secret eventhub token inspect -
  eventhub token inspect --jwt-jwks-url https://login.example.org/keys -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file that holds the token [$EVENTHUB_TOKEN_FILE]")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the keys of --jwt-jwks-url")
	hubSchema().Register(cmd.Flags(), "auth_token_file", "auth_tokens_file", "jwt_secret_file", "jwt_key_file", "jwt_jwks_url", "jwt_aud", "jwt_iss")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usageError{fmt.Errorf("--timeout is %s; it must be positive", timeout)}
		}
		settings, err := hubSchema().Load(cmd.Flags(), os.Environ())
		if err != nil {
			return configError(cmd, err)
		}
		token, err := tokenToInspect(cmd, args, tokenFile)
		if err != nil {
			return usageError{err}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		now := time.Now()
		report, unread := inspectToken(token, now)
		refusal, err := report.verify(ctx, token, settings)
		if err != nil {
			return err
		}
		if unread != nil && report.Verified == nil {
			return unread
		}
		err = output.Document(results(cmd), format.Format, report, func(w io.Writer) error { return report.print(w, now) })
		return errors.Join(err, refusal)
	}
	return cmd
}

// tokenToInspect reads the token from where it is given.
func tokenToInspect(cmd *cobra.Command, args []string, file string) (string, error) {
	text, path := os.Getenv("EVENTHUB_TOKEN"), os.Getenv("EVENTHUB_TOKEN_FILE")
	switch {
	case len(args) == 1 && file != "":
		return "", errors.New("give the token once: as an argument or by --token-file")
	case len(args) == 1:
		text, path = args[0], ""
	case file != "":
		text, path = "", file
	case text != "" && path != "":
		return "", errors.New("both EVENTHUB_TOKEN and EVENTHUB_TOKEN_FILE are set; set one")
	}
	var from io.Reader
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("token file: %w", err)
		}
		defer f.Close()
		from = f
	} else if text == "-" && len(args) == 1 {
		from = cmd.InOrStdin()
	}
	if from != nil {
		b, err := io.ReadAll(io.LimitReader(from, maxInspected+1))
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	switch {
	case text == "":
		return "", errors.New("there is no token: give one as - for standard input, by --token-file, EVENTHUB_TOKEN_FILE or EVENTHUB_TOKEN")
	case len(text) > maxInspected:
		return "", fmt.Errorf("what is given has more than %d bytes, which no token has", maxInspected)
	}
	return text, nil
}

// inspectToken says what can be seen of a token without a key. What has the form of a JSON Web Token
// and can not be read as one is a static token, if it is any: the error says why it is no other.
func inspectToken(token string, now time.Time) (*inspected, error) {
	r := &inspected{Kind: "static", Bytes: len(token)}
	if !auth.IsJWT(token) {
		return r, nil
	}
	parts, err := auth.Read(token)
	if err != nil {
		return r, fmt.Errorf("the token: %w", err)
	}
	r.Kind, r.Header, r.Claims = "jwt", parts.Header, parts.Claims
	var claims struct {
		Exp json.RawMessage `json:"exp"`
	}
	if json.Unmarshal(r.Claims, &claims) != nil {
		return r, nil
	}
	if _, ok := timeOf(claims.Exp, now); ok {
		var seconds float64
		_ = json.Unmarshal(claims.Exp, &seconds) // it is a time
		at := time.Unix(int64(seconds), 0)
		expired := !now.Before(at)
		r.Expires, r.Expired = at.UTC().Format(time.RFC3339), &expired
	}
	return r, nil
}

// verify says whether a hub with the settings would take the token. refusal is why not.
func (r *inspected) verify(ctx context.Context, token string, s *config.Settings) (refusal, err error) {
	cfg := auth.Config{Token: s.Text("auth_token"), TokensFile: s.Text("auth_tokens_file"), JWTSecret: s.Text("jwt_secret"), JWKSURL: s.Text("jwt_jwks_url"),
		KeyFile: s.Text("jwt_key_file"), Audience: s.Text("jwt_aud"), Issuer: s.Text("jwt_iss")}
	if err := cfg.Validate(); err != nil {
		return nil, usageError{err}
	}
	if !cfg.Given() {
		return nil, nil
	}
	kinds, err := auth.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer kinds.Close()
	p, refusal := kinds.Verify(ctx, token, true)
	verified := refusal == nil
	r.Verified = &verified
	if r.Name = p.Name; !verified {
		r.Why = eventhub.AsError(refusal).Message
	}
	return refusal, nil
}

func (r *inspected) print(w io.Writer, now time.Time) error {
	fields := []output.Field{{Name: "Kind", Value: map[string]string{"jwt": "JSON Web Token", "static": "static token"}[r.Kind] + " of " + output.Things(r.Bytes, "byte")}}
	fields = append(fields, members("Header", r.Header, now)...)
	fields = append(fields, members("Claim", r.Claims, now)...)
	if r.Kind == "jwt" {
		text := "it says no time at which it ends; hubs refuse such a token"
		if r.Expired != nil {
			text = "valid until " + r.Expires
			if *r.Expired {
				text = "expired at " + r.Expires
			}
		}
		fields = append(fields, output.Field{Name: "Expiry", Value: text})
	}
	verified := "not checked: nothing is configured to verify it by"
	if r.Verified != nil && *r.Verified {
		verified = fmt.Sprintf("yes, a hub with these settings knows it as %q", r.Name)
	} else if r.Verified != nil {
		verified = "no: " + output.Safe(r.Why)
	}
	return output.Fields(w, false, append(fields, output.Field{Name: "Verified", Value: verified}))
}

// members lists the members of an object, times in words.
func members(what string, object json.RawMessage, now time.Time) (fields []output.Field) {
	var all map[string]json.RawMessage
	if json.Unmarshal(object, &all) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := output.Safe(string(all[name]))
		if text, ok := timeOf(all[name], now); ok && slices.Contains(tokenTimes, name) {
			value += " (" + text + ")"
		}
		fields = append(fields, output.Field{Name: what + " " + output.Safe(name), Value: value})
	}
	return fields
}
