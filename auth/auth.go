// Package auth turns a token into a principal: who is on the other end and what
// they may do. It knows tokens and rights, and nothing of connections, topics'
// contents or stores. The hub asks it for every AUTH; a gateway never sees how a
// token is checked.
//
// A principal of this package has full rights: there is either no
// authentication (the hub then listens on loopback alone) or one static token.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"

	"eventhub"
)

// Principal is an authenticated peer.
type Principal struct {
	// Name is for logs and never holds a secret.
	Name string
}

// Verifier checks tokens. Verify is safe for concurrent use. Its errors are
// eventhub.Errors: CodeNoToken where a token is needed and none was given,
// CodeBadToken for a wrong one.
type Verifier interface {
	Verify(ctx context.Context, token string, given bool) (Principal, error)
}

// Open lets everybody in, whatever token they bring.
func Open() Verifier { return open{} }

type open struct{}

func (open) Verify(context.Context, string, bool) (Principal, error) {
	return Principal{Name: "anonymous"}, nil
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
		return Principal{}, eventhub.Errorf(eventhub.CodeNoToken, "this hub wants a token: in AUTH, or over HTTP as Authorization: Bearer TOKEN")
	}
	digest := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(digest[:], s.digest[:]) != 1 {
		return Principal{}, eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid here")
	}
	return Principal{Name: "static token"}, nil
}
