package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"eventhub/auth"
	"eventhub/cmd/eventhub/internal/config"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/when"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a JSON Web Token, or look at one",
	}
	cmd.AddCommand(tokenMintCommand(), tokenInspectCommand())
	return cmd
}

// minting is what `token mint` is asked for.
type minting struct {
	key, kid, sub, ttl, policy, aud, iss string
	scopes                               []string
	format                               *output.Choice
}

// minted is what it prints.
type minted struct {
	Token     string      `json:"token"`
	Alg       string      `json:"alg"`
	Kid       string      `json:"kid,omitempty"`
	ExpiresAt string      `json:"expires_at"`
	Claims    auth.Claims `json:"claims"`
}

func tokenMintCommand() *cobra.Command {
	m := new(minting)
	cmd := &cobra.Command{
		Use:   "mint",
		Short: "Make a JSON Web Token",
		Long: `Makes a JSON Web Token, which hubs take that have the secret or the public key of
what signs it. No hub is asked.

It is signed by the private key of --key, a PEM file or a JSON Web Key, which fixes the
algorithm: RS256, ES256, ES384, ES512, EdDSA, or the one that the JSON Web Key names. Without
--key it is signed by the hub's secret, jwt_secret, which comes from the sources of "eventhub
serve": --jwt-secret-file, the environment, or the file of --config. So do the audience and
the issuer, if they are not given here.

The token says who it is of (--sub) and what that one may do, by scopes or by a policy:
docs/security.md. It ends after --ttl. Standard output gets the token alone; it is as secret
as a password.`,
		Example: `  eventhub token mint --sub billing --scope 'subscribe:orders.**' --scope publish:invoices --ttl 30d >billing.token
  eventhub token mint --sub ops --scope '*' --ttl 8h --key signing.pem --kid 2026-11
  eventhub token mint --sub dashboard --policy dashboard.yaml --aud hub -o json`,
		Args: words(),
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd) },
	}
	flags := cmd.Flags()
	m.format = formatFlag(cmd, listFormats)
	flags.StringVar(&m.key, "key", "", "file with the private key, PEM or a JSON Web Key; default: the secret jwt_secret")
	flags.StringVar(&m.kid, "kid", "", "name of the key in the token's header (default: that of the JSON Web Key)")
	flags.StringVar(&m.sub, "sub", "", "who the token is of: the name in logs and lists")
	flags.StringArrayVar(&m.scopes, "scope", nil, "what the token allows, as ACTION:PATTERN or ACTION; may be given several times")
	flags.StringVar(&m.policy, "policy", "", "file with the policy of the token, YAML or JSON: {rules: [...]}")
	flags.StringVar(&m.ttl, "ttl", "1h", "how long the token lasts, such as 30m, 8h or 30d")
	flags.StringVar(&m.aud, "aud", "", "audience (default: jwt_aud)")
	flags.StringVar(&m.iss, "iss", "", "issuer (default: jwt_iss)")
	hubSchema().Register(flags, "jwt_secret_file")
	cmd.MarkFlagsMutuallyExclusive("scope", "policy")
	cmd.MarkFlagsMutuallyExclusive("key", "jwt-secret-file")
	return cmd
}

func (m *minting) run(cmd *cobra.Command) error {
	settings, err := hubSchema().Load(cmd.Flags(), os.Environ())
	if err != nil {
		return configError(cmd, err)
	}
	signer, err := m.signer(settings)
	if err != nil {
		return usageError{err}
	}
	claims, err := m.claims(settings, time.Now())
	if err != nil {
		return usageError{err}
	}
	token, err := signer.Mint(claims)
	if err != nil {
		return usageError{err}
	}
	made := minted{Token: token, Alg: signer.Alg(), Kid: signer.Kid(), Claims: claims,
		ExpiresAt: time.Unix(claims.Expires, 0).UTC().Format(time.RFC3339)}
	return output.Document(results(cmd), m.format.Format, made, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, token)
		return err
	})
}

func (m *minting) signer(settings *config.Settings) (*auth.Signer, error) {
	secret := settings.Text("jwt_secret")
	if m.key == "" && secret == "" {
		return nil, errors.New("there is nothing to sign with: give --key, --jwt-secret-file, JWT_SECRET_FILE or JWT_SECRET")
	}
	signer := auth.SecretSigner(secret)
	if m.key != "" {
		var err error
		if signer, err = auth.ReadSigner(m.key); err != nil {
			return nil, fmt.Errorf("--key: %w", err)
		}
	}
	if m.kid != "" {
		signer.SetKid(m.kid)
	}
	return signer, nil
}

func (m *minting) claims(settings *config.Settings, now time.Time) (c auth.Claims, err error) {
	ttl, err := when.Span(m.ttl)
	if err == nil && ttl < time.Second {
		err = fmt.Errorf("is %s; it must be a second or more", m.ttl)
	}
	if err != nil {
		return c, fmt.Errorf("--ttl %w", err)
	}
	if m.sub == "" {
		return c, errors.New("--sub is missing: who is the token of?")
	}
	if len(m.scopes) == 0 && m.policy == "" {
		return c, errors.New("neither --scope nor --policy is given; such a token allows nothing")
	}
	c = auth.Claims{Subject: m.sub, Scopes: m.scopes, Audience: cmp.Or(m.aud, settings.Text("jwt_aud")), Issuer: cmp.Or(m.iss, settings.Text("jwt_iss")),
		Issued: now.Unix(), Expires: now.Add(ttl).Unix()}
	if m.policy != "" {
		if c.Policy, err = auth.ReadPolicy(m.policy); err != nil {
			return c, fmt.Errorf("--policy: %w", err)
		}
	}
	return c, c.Validate()
}

// tokenTimes are the claims that are times.
var tokenTimes = []string{"exp", "iat", "nbf", "auth_time"}

// timeOf returns a claim in words, where it is a time.
func timeOf(claim json.RawMessage, now time.Time) (text string, ok bool) {
	var seconds float64
	if json.Unmarshal(claim, &seconds) != nil || !(seconds > 0 && seconds < 253402300800) { // the year 10000
		return "", false
	}
	ms := int64(seconds) * 1000
	return time.UnixMilli(ms).UTC().Format(time.RFC3339) + ", " + output.Ago(now, ms), true
}
