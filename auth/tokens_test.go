package auth

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/auth/policy"
	"eventhub/internal/bubble"
	"eventhub/internal/livefile"
)

const goodTokens = `tokens:
  - name: billing
    token: t0ken-of-billing
    scopes: ["*"]
  - {name: ops, token: t0ken-of-ops, policy: {rules: [{effect: allow, action: "*", topics: ["**"]}]}}
`

// TestTokensFile: each token of a file is somebody's, and nothing else is.
func TestTokensFile(t *testing.T) {
	v := newKinds(t, Config{Token: "t0ken-of-all", TokensFile: write(t, "tokens.yaml", []byte(goodTokens)), JWTSecret: secret})
	for _, tt := range []struct {
		token, name string
		code        eventhub.Code
	}{
		{"t0ken-of-billing", "billing", ""},
		{"t0ken-of-ops", "ops", ""},
		{"t0ken-of-all", "static token", ""},
		{hs(claimsIn(time.Hour)), "ann", ""},
		{"t0ken-of-billing ", "", eventhub.CodeBadToken},
		{"t0ken-of-billin", "", eventhub.CodeBadToken},
		{"T0ken-of-billing", "", eventhub.CodeBadToken},
		{"billing", "", eventhub.CodeBadToken},
		{"a.b.c", "", eventhub.CodeJWTInvalid},
		{"", "", eventhub.CodeNoToken},
	} {
		p, err := v.Verify(t.Context(), tt.token, true)
		if eventhub.ErrorCode(err) != tt.code || p.Name != tt.name || (err == nil) != (p.Policy != nil) {
			t.Errorf("%q: %+v, %v; want %q, code %q", tt.token, p, err, tt.name, tt.code)
		}
	}
	some := newKinds(t, Config{TokensFile: write(t, "tokens.yaml", []byte(strings.Replace(goodTokens, `["*"]`, `["publish:a"]`, 1)))})
	p, err := some.Verify(t.Context(), "t0ken-of-billing", true)
	if err != nil || p.Policy.Full() || !p.Policy.Allows(policy.Publish, "a", "") || p.Policy.Allows(policy.Publish, "b", "") {
		t.Errorf("%+v, %v; nobody may have other rights than the token says", p.Policy, err)
	}
}

// TestBadTokensFile: each fault is one line with the place, which has nothing of a token.
func TestBadTokensFile(t *testing.T) {
	entry := "tokens:\n- {name: a, token: s3cret, scopes: [read]}\n"
	for _, tt := range []struct {
		content string
		want    []string // one for each line of the error
	}{
		{"", []string{" has no tokens"}},
		{"tokens: []\n", []string{" has no tokens"}},
		{"- s3cret\n", []string{":1: wants a line tokens:"}},
		{"tokens: s3cret\n", []string{":1: tokens: wants a list"}},
		{"tokens: [s3cret]\n", []string{":1: an entry wants name"}},
		{"token:\n- {}\n", []string{`:1: unknown name "token"; did you mean tokens?`}},
		{entry + "- {name: a, token: t, scopes: [read]}\n", []string{`:3: name "a" is there again, after line 2`}},
		{entry + "- {name: b, token: s3cret, scopes: [read]}\n", []string{`:3: the token is that of "a" too`}},
		{entry + "- {name: b, token: of-auth-token, scopes: [read]}\n", []string{":3: the token is that of auth_token too"}},
		{entry + "- name: b\n  token: t\n  scope: [x]\n  scopes: [read]\n", []string{`:5: unknown name "scope"; did you mean scopes?`}},
		{entry + "- {name: b, scopes: [read]}\n- {token: s3cret2, scopes: [read]}\n", []string{":3: a token has no token", ":4: a token has no name"}},
		{entry + "- name: b\n  token: ''\n  scopes: [read]\n", []string{":4: token: is empty"}},
		{entry + "- name: b\n  token:\n  scopes: [read]\n", []string{":4: token: is empty"}},
		{entry + "- {name: b, token: [s3cret2], scopes: [read]}\n", []string{":3: token: is empty or no text"}},
		{entry + "- {name: b, token: s3 cret, scopes: [read]}\n", []string{":3: token: it has at byte 2"}},
		{entry + "- {name: b, token: '[redacted]', scopes: [read]}\n", []string{":3: \"[redacted]\""}},
		{entry + "- {name: b, token: " + strings.Repeat("s3cret", 3000) + ", scopes: [read]}\n", []string{":3: a token has 18000 bytes"}},
		{entry + "- {name: b c, token: t, scopes: [read]}\n", []string{`:3: name "b c" has " "`}},
		{entry + "- {name: b, token: t}\n", []string{":3: a token wants either scopes or a policy"}},
		{entry + "- {name: b, token: t, scopes: []}\n", []string{":3: scopes: it allows nothing"}},
		{entry + "- {name: b, token: t, policy: {}}\n", []string{":3: policy: it allows nothing"}},
		{entry + "- {name: b, token: t, policy: {rules: []}}\n", []string{":3: policy: it allows nothing"}},
		{entry + "- {name: b, token: t, policy: {rules: [{effect: deny, action: '*', topics: [a]}]}}\n", []string{":3: policy: it allows nothing"}},
		{entry + "- {name: b, token: t, policy: {rules: [{effect: deny, action: '*', topics: ['**']}, {effect: allow, action: read, topics: [a]}]}}\n", []string{":3: policy: it allows nothing"}},
		{entry + "- {name: b, token: t, scopes: [read], policy: {rules: []}}\n", []string{":3: a token wants either"}},
		{entry + "- name: b\n  token: t\n  scopes: publish\n", []string{":5: scopes"}},
		{entry + "- {name: b, token: t, scopes: ['publish:a', 'pulbish:a']}\n", []string{`:3: scopes: "pulbish:a" is not of the form ACTION:PATTERN`}},
		{entry + "- {name: b, token: t, policy: {rules: [{effect: allow, action: x, topics: [a]}]}}\n", []string{":3: policy: rules[0]: action is not"}},
		{entry + "- name: b\n  token: t\n  policy: 5\n", []string{":5: policy"}},
		{entry + "- name: b\n  token: t\n  policy:\n", []string{":5: policy: it has no value"}},
		{entry + "- {name: b, token: t, policy: {1: 2}}\n", []string{":3: policy"}},
		{entry + "- {name: b, name: c, token: t, scopes: [read]}\n", []string{":3: name is there again"}},
		{entry + "- {name: b, token:s3cret2, scopes: [read]}\n", []string{`:3: unknown name "token…"`}},
		{entry + "- {name: b, token: *s3cret2, scopes: [read]}\n", []string{"needs quotes"}},
		{entry + "- {name: b, token: \"s3cret2\n", []string{":"}},
		{entry + "---\na: 1\n", []string{":3: a second document"}},
		{strings.Repeat(" ", livefile.MaxBytes+1), []string{"has more than 1048576 bytes"}},
	} {
		path := write(t, "tokens.yaml", []byte(tt.content))
		cfg := Config{Token: "of-auth-token", TokensFile: path}
		err := cfg.Validate()
		if err == nil {
			t.Errorf("%.80q is accepted", tt.content)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.80q: %v; want %q", tt.content, err, tt.want)
			continue
		}
		for i, want := range tt.want {
			if !strings.HasPrefix(lines[i], "auth_tokens_file: "+path) || !strings.Contains(lines[i], want) {
				t.Errorf("%.80q: %s; want %q", tt.content, lines[i], want)
			}
		}
	}
	for name, path := range map[string]string{"none": "/nonexistent", "a directory": t.TempDir()} {
		if err := (&Config{TokensFile: path}).Validate(); err == nil || !strings.Contains(err.Error(), "auth_tokens_file: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTokensFileIsReadAgain: a token that is taken out or gets other rights is revoked, one
// that stays does not notice, and a file that can not be read changes nothing.
func TestTokensFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(name, token, topic string) string {
		return fmt.Sprintf("- {name: %s, token: %s, policy: {rules: [{effect: allow, action: '*', topics: ['**']}, {effect: deny, action: read, topics: [%s]}]}}\n", name, token, topic)
	}
	put("tokens:\n" + entry("stays", "t1", "a") + entry("goes", "t2", "a") + entry("changes", "t3", "a"))
	bubble.Test(t, func(t *testing.T) {
		var log strings.Builder
		v, err := New(t.Context(), Config{TokensFile: path, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		who := func(token string) Principal {
			p, _ := v.Verify(t.Context(), token, true)
			return p
		}
		stays, goes, changes := who("t1"), who("t2"), who("t3")
		change := func(text string) {
			t.Helper()
			put(text)
			time.Sleep(2 * livefile.LookEvery)
			synctest.Wait()
		}
		state := func(failures uint64, stale bool) {
			t.Helper()
			if m := v.Measure(); len(m) != 1 || m[0].Setting != "auth_tokens_file" || m[0].Failures != failures || m[0].Stale != stale {
				t.Errorf("measured %+v; want %d failures, stale: %t", m, failures, stale)
			}
		}
		state(0, false)
		change("tokens:\n- {name: x, token: s3cret}\n")
		state(1, true)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * livefile.LookEvery)
		synctest.Wait()
		state(2, true)
		for _, p := range []Principal{stays, goes, changes} {
			if p.Revoked.Err() != nil {
				t.Errorf("%s is revoked by a file that can not be read", p.Name)
			}
		}
		change("tokens:\n" + entry("new", "t4", "a") + entry("changes", "t3", "b") + entry("stays", "t1", "a"))
		state(2, false)
		if stays.Revoked.Err() != nil || goes.Revoked.Err() == nil || changes.Revoked.Err() == nil {
			t.Errorf("revoked: stays %v, goes %v, changes %v", stays.Revoked.Err(), goes.Revoked.Err(), changes.Revoked.Err())
		}
		if who("t2").Name != "" || who("t4").Name != "new" || who("t3").Name != "changes" || who("t3").Revoked.Err() != nil || who("t1").Revoked != stays.Revoked {
			t.Errorf("now %v, %v, %v", who("t2"), who("t4"), who("t3"))
		}
		v.Close()
		if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "auth_tokens_file") || !strings.Contains(text, path+":2: a token wants") || strings.Contains(text, "s3cret") {
			t.Errorf("the log: %s", text)
		}
	})
}
