// Package auth turns a token into a principal: who is on the other end and what
// they may do. It knows tokens and rights, and nothing of connections, topics'
// contents or stores. The hub asks it for every AUTH; a gateway never sees how a
// token is checked.
//
// Without authentication (the hub then listens on loopback alone), and with the static
// token, a principal has full rights; with a token of the file or a JSON Web Token those
// that this states. Static tokens are looked at first, then the other kind.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"
	"time"

	"eventhub"
	"eventhub/auth/policy"
)

// Principal is an authenticated peer.
type Principal struct {
	// Name is for logs and never holds a secret.
	Name string
	// Policy is what the peer may do. Never nil without an error.
	Policy *policy.Policy
	// Expires is when the token ends, without leeway; zero: never.
	Expires time.Time
	// Revoked ends when the token, or what it allows, is taken back before that; nil: never.
	Revoked context.Context
}

// Ends is when connections of the principal end: at its expiry and the leeway; zero: never.
func (p *Principal) Ends() time.Time {
	if p.Expires.IsZero() {
		return time.Time{}
	}
	return p.Expires.Add(Leeway)
}

// Verifier checks tokens. Verify is safe for concurrent use. Its errors are
// eventhub.Errors: CodeNoToken where a token is needed and none was given,
// CodeBadToken for a wrong one, CodeJWTInvalid for a JSON Web Token that does not verify.
type Verifier interface {
	Verify(ctx context.Context, token string, given bool) (Principal, error)
}

// Open lets everybody in, whatever token they bring.
func Open() Verifier { return open{} }

type open struct{}

func (open) Verify(context.Context, string, bool) (Principal, error) {
	return Principal{Name: "anonymous", Policy: policy.All()}, nil
}

var (
	errNoToken  = eventhub.Errorf(eventhub.CodeNoToken, "this hub wants a token: in AUTH, or over HTTP as Authorization: Bearer TOKEN")
	errBadToken = eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")
)

// checkVisible returns what is wrong with a token that no Authorization header can carry.
func checkVisible(token string) error {
	i := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("it has at byte %d a character that no Authorization header can carry; visible ASCII characters are allowed, without spaces", i)
}

// Static accepts exactly one token, which must not be empty.
func Static(token string) Verifier {
	if token == "" {
		panic("auth: Static needs a token")
	}
	return static{sha256.Sum256([]byte(token))}
}

// static keeps a digest, so that the comparison takes the same time whatever
// the length and content of what is offered.
type static struct{ digest [sha256.Size]byte }

func (s static) Verify(_ context.Context, token string, given bool) (Principal, error) {
	if !given || token == "" {
		return Principal{}, errNoToken
	}
	digest := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(digest[:], s.digest[:]) != 1 {
		return Principal{}, errBadToken
	}
	return Principal{Name: "static token", Policy: policy.All()}, nil
}
