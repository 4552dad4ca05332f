package auth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"eventhub"
	"eventhub/auth/policy"
	"eventhub/internal/naming"
	"eventhub/internal/yamlfile"
)

const (
	// maxTokenBytes is what the file of a single token may have.
	maxTokenBytes = 16 << 10
	// redacted is what is shown in place of a secret.
	redacted = "[redacted]"
)

// digest stands for a token. It has a key that nobody knows: who offers tokens and measures how
// long they are looked for finds out nothing about those that there are.
type digest [sha256.Size]byte

// staticTokens are tokens with names and rights, which a file may replace.
type staticTokens struct {
	key   [sha256.Size]byte
	taken func(token string) bool // by another setting
	table atomic.Pointer[map[digest]*staticToken]
}

// staticToken is one of them.
type staticToken struct {
	name   string
	rights *policy.Policy
	source string // of its rights, as JSON

	valid  context.Context // ends with the token, or its rights
	revoke context.CancelFunc
}

func newStaticTokens(taken func(token string) bool) *staticTokens {
	t := &staticTokens{taken: taken}
	_, _ = rand.Read(t.key[:]) // never fails
	t.table.Store(new(map[digest]*staticToken))
	return t
}

func (t *staticTokens) digest(token string) digest {
	return sha256.Sum256(append(t.key[:len(t.key):len(t.key)], token...))
}

// find returns whose token it is.
func (t *staticTokens) find(token string) (Principal, bool) {
	is, ok := (*t.table.Load())[t.digest(token)]
	if !ok {
		return Principal{}, false
	}
	return Principal{Name: is.name, Policy: is.rights, Revoked: is.valid}, true
}

// take reads a file and puts its tokens in the place of those that there are. A token that
// stays as it is stays valid; all others, and those with other rights, are revoked.
func (t *staticTokens) take(path string, content []byte) error {
	r := &tokenReader{File: yamlfile.File{Path: path, Secret: true}, tokens: t,
		found: make(map[digest]*staticToken), at: make(map[digest]string), lines: make(map[string]int)}
	if top := r.Document(content); top != nil {
		r.Members(top, "a line tokens: with a list below it", r.top)
	}
	if err := r.Err(); err != nil {
		return err
	}
	if len(r.found) == 0 {
		return fmt.Errorf("%s has no tokens", path)
	}
	old := *t.table.Load()
	for d, now := range r.found {
		if was := old[d]; was != nil && was.name == now.name && was.source == now.source {
			r.found[d] = was
			continue
		}
		now.valid, now.revoke = context.WithCancel(context.Background())
	}
	t.table.Store(&r.found)
	for d, was := range old {
		if r.found[d] != was {
			was.revoke()
		}
	}
	return nil
}

// tokenReader reads a file of tokens.
type tokenReader struct {
	yamlfile.File
	tokens *staticTokens
	found  map[digest]*staticToken
	at     map[digest]string // the names of the tokens
	lines  map[string]int    // of the names
}

func (r *tokenReader) top(name, value *yaml.Node) {
	if name.Value != "tokens" {
		r.Fail(name, "unknown name %q%s; tokens is the only one", r.Shown(name), naming.DidYouMean(r.Shown(name), []string{"tokens"}))
		return
	}
	if value.Kind != yaml.SequenceNode {
		r.Fail(value, "tokens: wants a list, each entry with name, token, and scopes or policy")
		return
	}
	for _, entry := range value.Content {
		r.entry(entry)
	}
}

// entry reads one token.
func (r *tokenReader) entry(node *yaml.Node) {
	known, members := r.Faults(), make(map[string]*yaml.Node)
	if node.Kind != yaml.MappingNode {
		r.Fail(node, "an entry wants name, token, and scopes or policy")
		return
	}
	names := []string{"name", "token", "scopes", "policy"}
	r.Members(node, "", func(name, value *yaml.Node) {
		switch name.Value {
		case "name", "token":
			if value.Kind != yaml.ScalarNode || value.Tag == "!!null" || value.Value == "" {
				r.Fail(value, "%s: is empty or no text", name.Value)
				return
			}
		case "scopes", "policy":
		default:
			more := cmp.Or(naming.DidYouMean(r.Shown(name), names), "; name, token, scopes and policy are allowed")
			r.Fail(name, "unknown name %q%s", r.Shown(name), more)
			return
		}
		members[name.Value] = value
	})
	if r.Faults() > known {
		return
	}
	for _, name := range names[:2] {
		if members[name] == nil {
			r.Fail(node, "a token has no %s", name)
		}
	}
	if (members["scopes"] == nil) == (members["policy"] == nil) {
		r.Fail(node, "a token wants either scopes or a policy, so that it says what it allows")
	}
	if r.Faults() > known {
		return
	}
	rights, text := r.rights(members)
	d := r.checkToken(members["token"], members["name"])
	r.checkName(members["name"])
	if r.Faults() == known {
		r.found[d] = &staticToken{name: members["name"].Value, rights: rights, source: text}
	}
}

func (r *tokenReader) checkName(node *yaml.Node) {
	first, twice := r.lines[node.Value]
	if err := eventhub.ValidateClient(node.Value); err != nil {
		r.Fail(node, "%s", eventhub.AsError(err).Message)
	} else if twice {
		r.Fail(node, "name %q is there again, after line %d", node.Value, first)
	} else {
		r.lines[node.Value] = node.Line
	}
}

func (r *tokenReader) checkToken(node, name *yaml.Node) digest {
	token := node.Value
	d := r.tokens.digest(token)
	other, twice := r.at[d]
	switch {
	case token == redacted:
		r.Fail(node, "%q is shown instead of a secret and is none", redacted)
	case len(token) > maxTokenBytes:
		r.Fail(node, "a token has %d bytes; at most %d are allowed", len(token), maxTokenBytes)
	case checkVisible(token) != nil:
		r.Fail(node, "token: %s", checkVisible(token))
	case r.tokens.taken(token):
		r.Fail(node, "the token is that of auth_token too")
	case twice:
		r.Fail(node, "the token is that of %q too", other)
	default:
		r.at[d] = name.Value
	}
	return d
}

// rights reads what the entry allows, and returns its text too.
func (r *tokenReader) rights(members map[string]*yaml.Node) (rights *policy.Policy, source string) {
	name := "scopes"
	if members["policy"] != nil {
		name = "policy"
	}
	node := members[name]
	var v any
	err := node.Decode(&v)
	if err != nil || v == nil {
		r.Fail(node, "%s: it has no value, or one that can not be read", name)
		return nil, ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		r.Fail(node, "%s: it has names that are no text", name)
		return nil, ""
	}
	if name == "policy" {
		rights, err = policy.Parse(text, nil, nil)
	} else {
		rights, err = policy.Parse(nil, text, nil)
	}
	if err == nil && name == "scopes" {
		err = checkScopes(text)
	}
	if err == nil && rights.Nothing() {
		err = errNothing
	}
	if err != nil {
		r.Fail(node, "%s: %s", name, strings.TrimPrefix(oneLine(err), name+" "))
		return nil, ""
	}
	return rights, name + string(text)
}

// errNothing is what is wrong with rights that people write and that are none.
var errNothing = errors.New("it allows nothing")

// checkScopes returns an error for a scope that allows nothing: in the token of somebody else
// it is passed over, in a file that people write it is a mistake.
func checkScopes(list []byte) error {
	var words []string
	if err := json.Unmarshal(list, &words); err != nil {
		return errors.New("it is not a list of texts")
	}
	actions := []policy.Action{policy.Publish, policy.Subscribe, policy.Read, policy.Admin}
	for _, word := range words {
		if !slices.ContainsFunc(actions, policy.Scopes([]string{word}).Somewhere) {
			return fmt.Errorf("%q is not of the form ACTION:PATTERN, with the action publish, subscribe, read, admin or *", word)
		}
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
