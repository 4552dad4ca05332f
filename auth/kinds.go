package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lestrrat-go/jwx/v3/jwa"

	"eventhub/internal/livefile"
	"eventhub/internal/measure"
)

// The settings that name what is read again, as users know them.
const (
	tokensSetting  = "auth_tokens_file"
	keyFileSetting = "jwt_key_file"
	keyURLSetting  = "jwt_jwks_url"
)

// Config says which tokens are accepted. The zero value lets everybody in.
type Config struct {
	// Token, where not empty, is a static token of full rights.
	Token string
	// TokensFile, where not empty, is a file with tokens, their names and their rights.
	TokensFile string
	// JWTSecret, where not empty, verifies tokens by HS256.
	JWTSecret string
	// JWKSURL and KeyFile, where not empty, hold public keys: a JWK set, or, in a file, PEM.
	JWKSURL, KeyFile string
	// Audience and Issuer, where not empty, have to be those of each JSON Web Token.
	Audience, Issuer string
	Logger           *slog.Logger
}

// HasJWT reports whether JSON Web Tokens are accepted.
func (c *Config) HasJWT() bool { return c.JWTSecret != "" || c.JWKSURL != "" || c.KeyFile != "" }

// Given reports whether there is any authentication.
func (c *Config) Given() bool { return c.Token != "" || c.TokensFile != "" || c.HasJWT() }

// Validate returns what is wrong with the configuration, without a request to a URL: one line
// for each fault, with the setting first.
func (c *Config) Validate() error {
	var errs []error
	if err := checkVisible(c.Token); err != nil {
		errs = append(errs, fmt.Errorf("auth_token: %w", err))
	}
	if !c.HasJWT() && (c.Audience != "" || c.Issuer != "") {
		errs = append(errs, errors.New("jwt_aud, jwt_iss: they need one of jwt_secret, jwt_jwks_url, jwt_key_file"))
	}
	if c.JWKSURL != "" {
		if err := checkURL(c.JWKSURL); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", keyURLSetting, err))
		}
	}
	for _, f := range c.files(new(Kinds)) {
		errs = append(errs, f.Open())
	}
	return errors.Join(errs...)
}

// Kinds verifies tokens of all configured kinds. It is safe for concurrent use.
type Kinds struct {
	open    bool          // there is no authentication
	static  Verifier      // nil: there is no static token
	tokens  *staticTokens // nil: there is no file of tokens
	jwt     *jwtVerifier  // nil: no JSON Web Tokens are accepted
	sources []*livefile.Status

	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// files returns the files that are configured, and has k verify by what they have.
func (c *Config) files(k *Kinds) (files []*livefile.Files) {
	add := func(setting, path string, take func(content []byte) error) {
		f := livefile.New(c.Logger, func(contents [][]byte) error { return take(contents[0]) }, livefile.File{Setting: setting, Path: path})
		files, k.sources = append(files, f), append(k.sources, f.Status)
	}
	if c.TokensFile != "" {
		k.tokens = newStaticTokens(func(token string) bool { return c.Token != "" && token == c.Token })
		add(tokensSetting, c.TokensFile, func(content []byte) error { return k.tokens.take(c.TokensFile, content) })
	}
	if c.KeyFile != "" {
		keys := new(fileKeys)
		if k.jwt != nil {
			k.jwt.sources = append(k.jwt.sources, keys)
		}
		add(keyFileSetting, c.KeyFile, func(content []byte) error { return keys.take(c.KeyFile, content) })
	}
	return files
}

// New reads tokens and keys, those of a URL too, and keeps them fresh until Close.
func New(ctx context.Context, cfg Config) (*Kinds, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	k := &Kinds{open: !cfg.Given()}
	running, stop := context.WithCancel(context.Background())
	k.stop = stop
	if cfg.Token != "" {
		k.static = Static(cfg.Token)
	}
	if cfg.HasJWT() {
		k.jwt = &jwtVerifier{audience: cfg.Audience, issuer: cfg.Issuer}
	}
	if cfg.JWTSecret != "" {
		k.jwt.sources = append(k.jwt.sources, fixedKeys{{alg: jwa.HS256(), raw: []byte(cfg.JWTSecret)}})
	}
	for _, f := range cfg.files(k) {
		if err := f.Open(); err != nil {
			k.Close()
			return nil, err
		}
		k.tasks.Go(func() { f.Run(running) })
	}
	if cfg.JWKSURL != "" {
		state := &livefile.Status{Setting: keyURLSetting}
		r, err := newRemoteKeys(ctx, cfg.JWKSURL, cfg.Logger, state)
		if err != nil {
			k.Close()
			return nil, err
		}
		k.sources = append(k.sources, state)
		k.jwt.sources = append(k.jwt.sources, r)
		k.tasks.Go(func() { r.run(running) })
	}
	return k, nil
}

// Close ends what keeps tokens and keys fresh. Verify works on with those that there are.
func (k *Kinds) Close() {
	k.stop()
	k.tasks.Wait()
}

// Measure returns how reading each file and URL again went.
func (k *Kinds) Measure() []measure.Source {
	list := make([]measure.Source, 0, len(k.sources))
	for _, s := range k.sources {
		list = append(list, s.Measure())
	}
	return list
}

// Verify implements Verifier.
func (k *Kinds) Verify(ctx context.Context, token string, given bool) (Principal, error) {
	if k.open {
		return Open().Verify(ctx, token, given)
	}
	if !given || token == "" {
		return Principal{}, errNoToken
	}
	if k.static != nil {
		if p, err := k.static.Verify(ctx, token, true); err == nil {
			return p, nil
		}
	}
	if k.tokens != nil {
		if p, ok := k.tokens.find(token); ok {
			return p, nil
		}
	}
	onlyJWT := k.static == nil && k.tokens == nil
	if k.jwt == nil || !onlyJWT && strings.Count(token, ".") != 2 {
		return Principal{}, errBadToken
	}
	return k.jwt.verify(ctx, token)
}

// fileKeys are the keys of a file. Those of its last valid content stay.
type fileKeys struct{ keys atomic.Pointer[keySet] }

func (f *fileKeys) find(_ context.Context, alg, kid string) []key {
	found, _ := f.keys.Load().find(alg, kid)
	return found
}

func (f *fileKeys) take(path string, content []byte) error {
	keys, err := parseKeys(content, false)
	if err != nil {
		return fmt.Errorf("%s: %s", path, oneLine(err))
	}
	f.keys.Store(&keys)
	return nil
}
