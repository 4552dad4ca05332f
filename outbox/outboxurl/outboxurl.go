// Package outboxurl opens the outbox that a URL names: that of an SQLite file, or of a
// database of PostgreSQL or MongoDB. It is for programs that take the database from a
// flag or a configuration. No error and nothing else of it shows a password.
package outboxurl

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"eventhub"
	"eventhub/outbox"
)

// redacted stands for what is not shown.
const redacted = "***"

// Forms are the URLs that are understood, for help texts.
const Forms = "sqlite:PATH, postgres://USER@HOST/DATABASE or mongodb://HOST/DATABASE"

// backend is one kind of database.
type backend struct {
	schemes []string
	// prefixes are how URLs of it begin, as people write them.
	prefixes []string
	// check returns what is wrong with a URL, without its text.
	check func(text string) error
	// open opens the outbox; create makes a database that is a file.
	open func(ctx context.Context, text string, create bool) (outbox.Store, func() error, error)
	// schema returns what makes the table by hand.
	schema func(text string) (string, error)
	// shown is the URL without what is secret.
	shown func(text string) string
	// away reports whether an error says that the database cannot be reached; nil: none does.
	away func(error) bool
}

// backends are all of them; the files of this package have one each.
var backends = []backend{sqliteBackend, postgresBackend, mongoBackend}

// Check returns an error with eventhub.CodeBadRequest where text is not the URL of an outbox. It
// connects to nothing and opens no file.
func Check(text string) error {
	b, err := find(text)
	if err == nil {
		err = b.check(text)
	}
	return err
}

// Open opens the outbox that text names. The store and close, which ends its connections, belong
// to the caller. Nothing is connected to and no file opened yet, and none is made: what is missing is
// an error of the first use, which had best be Check.
func Open(ctx context.Context, text string) (store outbox.Store, close func() error, err error) {
	return open(ctx, text, false)
}

// Create is as [Open], and an SQLite file that is missing is made at the first use.
func Create(ctx context.Context, text string) (store outbox.Store, close func() error, err error) {
	return open(ctx, text, true)
}

func open(ctx context.Context, text string, create bool) (outbox.Store, func() error, error) {
	b, err := find(text)
	if err == nil {
		err = b.check(text)
	}
	if err != nil {
		return nil, nil, err
	}
	return b.open(ctx, text, create)
}

// Schema returns what makes the table in the database that text names, for migration tools of
// the user's own. It connects to nothing.
func Schema(text string) (string, error) {
	b, err := find(text)
	if err == nil {
		err = b.check(text)
	}
	if err != nil {
		return "", err
	}
	return b.schema(text)
}

// IsAway reports whether an error of a store says that its database cannot be reached.
func IsAway(err error) bool {
	return slices.ContainsFunc(backends, func(b backend) bool { return b.away != nil && b.away(err) })
}

// Shown returns what may be shown of a URL: not what stands before an @, which may be a password,
// nor its query. It takes any text.
func Shown(text string) string {
	if b, err := find(text); err == nil {
		return b.shown(text)
	}
	return hide(text)
}

// hide shows a text that may be anything: of what may hold a password the scheme alone.
func hide(text string) string {
	if !strings.ContainsAny(text, "@?=") {
		return text
	}
	if scheme, _, ok := strings.Cut(text, ":"); ok && !strings.ContainsAny(scheme, "@?= ") {
		return scheme + "://" + redacted
	}
	return redacted
}

// shownURL shows of a URL its scheme, hosts and path, and of what may be something else less.
func shownURL(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || strings.ContainsAny(scheme, "@?=") {
		return hide(text)
	}
	rest, query := cutAny(rest, "?#")
	if strings.Contains(query, "@") {
		return scheme + "://" + redacted // the ? may be one of the password
	}
	at := strings.LastIndex(rest, "@")
	hosts, path, _ := strings.Cut(rest[at+1:], "/")
	for _, host := range strings.Split(hosts, ",") {
		host = host[strings.LastIndex(host, "]")+1:]
		if _, port, ok := strings.Cut(host, ":"); ok && strings.Trim(port, "0123456789") != "" {
			return scheme + "://" + redacted // USER:PASSWORD without a host
		}
	}
	shown := scheme + "://"
	if at >= 0 {
		shown += redacted + "@"
	}
	shown += hosts
	if strings.Contains(rest[at+1:], "/") {
		shown += "/" + path
	}
	if query != "" {
		shown += "?" + redacted
	}
	return shown
}

// cutAny is strings.Cut at the first of several characters.
func cutAny(s, chars string) (before, after string) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// without takes secrets out of a text.
func without(text string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, redacted)
		}
	}
	return text
}

// secretOf is the password of a URL.
func secretOf(u *url.URL) string {
	password, _ := u.User.Password()
	return password
}

// lastPart is what follows the last sep, or all.
func lastPart(text, sep string) string {
	if i := strings.LastIndex(text, sep); i >= 0 {
		return text[i+len(sep):]
	}
	return text
}

func find(text string) (backend, error) {
	scheme, _, ok := strings.Cut(text, ":")
	if !ok {
		return backend{}, bad("%q has no scheme; %s is wanted", hide(text), Forms)
	}
	scheme = strings.ToLower(scheme)
	for _, b := range backends {
		if slices.Contains(b.schemes, scheme) {
			return b, nil
		}
	}
	return backend{}, bad("%q is of no database that has outboxes; %s is wanted", hide(text), Forms)
}

func bad(format string, args ...any) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "outbox: "+format, args...)
}

// reason is what is wrong with a URL. The error of package url has the whole text, with the password.
func reason(err error) string {
	var e *url.Error
	if !errors.As(err, &e) {
		return "it is no URL"
	}
	var escape url.EscapeError
	switch {
	case errors.As(err, &escape):
		return "it has a % that begins no escape"
	case strings.Contains(e.Err.Error(), "port"):
		return "its port is no number; @ : / ? # and % in a password are written as %40 %3A %2F %3F %23 and %25"
	}
	return "it is no URL; @ : / ? # and % in a password are written as %40 %3A %2F %3F %23 and %25"
}

// Prefixes are what the URLs begin with, for completion in a shell.
func Prefixes() (all []string) {
	for _, b := range backends {
		all = append(all, b.prefixes...)
	}
	return all
}
