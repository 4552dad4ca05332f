package rest

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"eventhub"
)

const (
	// streamPath is the event stream's, which a browser's EventSource asks for, and queryToken
	// where such a request may have its token: EventSource can set no header.
	streamPath = "/v1/topics/{topic}/stream"
	queryToken = "access_token"
)

// Why the context of a request has ended, where its token did.
var (
	errExpired = eventhub.Errorf(eventhub.CodeJWTInvalid, "The token has expired.")
	errRevoked = eventhub.Errorf(eventhub.CodeBadToken, "The token was revoked.")
)

// tokenEnded returns why a request that waited is not answered, where its token has ended
// meanwhile.
func tokenEnded(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errExpired) || errors.Is(cause, errRevoked) {
		return cause
	}
	return nil
}

// withoutToken returns what a request that has failed is answered with: where its token has
// ended meanwhile, that. It stays as it is where nobody knows what the request has done, for
// who gets 401 takes it that it has done nothing.
func withoutToken(r *http.Request, err error) error {
	ended := tokenEnded(r.Context())
	if ended == nil || !errors.Is(err, r.Context().Err()) {
		return err
	}
	var partial *partialError
	switch {
	case errors.As(err, &partial):
		e := eventhub.AsError(ended)
		return &partialError{eventhub.Wrap(e.Code, err, "%s: %s", strings.TrimSuffix(e.Message, "."), eventhub.AsError(err).Message), partial.done}
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return ended
	}
	return err
}

// token returns the token of a request, and the request without it where it was in the query:
// nothing that is logged or answered from here on can have it.
func (a *API) token(r *http.Request, route string) (_ *http.Request, token string, given bool, err error) {
	token, given, err = bearer(r)
	if !a.cfg.QueryToken || route != "GET "+streamPath || !strings.Contains(r.URL.RawQuery, queryToken) {
		return r, token, given, err
	}
	query, bad := url.ParseQuery(r.URL.RawQuery)
	tokens, ok := query[queryToken]
	delete(query, queryToken)
	without, target := *r, *r.URL
	target.RawQuery = query.Encode()
	without.URL, without.RequestURI = &target, ""
	switch {
	case err != nil:
	case bad != nil:
		err = eventhub.Errorf(eventhub.CodeBadRequest, "the query can not be read") // and is not shown: the token may be in what is wrong
	case ok && (given || len(tokens) > 1):
		err = eventhub.Errorf(eventhub.CodeBadToken, "there is more than one token: %s is given with Authorization, or twice", queryToken)
	case ok:
		token, given = tokens[0], true
	}
	return &without, token, given, err
}

// bearer returns the token of the Authorization header (RFC 6750).
func bearer(r *http.Request) (token string, given bool, err error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", false, nil
	}
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false, eventhub.Errorf(eventhub.CodeBadToken, "Authorization is not Bearer and a token")
	}
	return strings.TrimSpace(token), true, nil
}
