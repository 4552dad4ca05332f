package outboxurl

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the driver

	"eventhub"
	"eventhub/outbox"
	"eventhub/outbox/sqlite"
)

// maxConns are enough for a drainer, its housework and an operator; writers of one file wait for
// each other anyway.
const maxConns = 4

var sqliteBackend = backend{
	schemes:  []string{"sqlite", "sqlite3"},
	prefixes: []string{"sqlite:"},
	check: func(text string) error {
		_, err := sqlitePath(text)
		return err
	},
	open:   openSQLite,
	schema: func(string) (string, error) { return sqlite.Schema, nil },
	shown:  func(text string) string { return text }, // a path, which holds no secret
}

// sqlitePath returns the path of the file. All after the scheme counts as it is.
func sqlitePath(text string) (string, error) {
	_, path, _ := strings.Cut(text, ":")
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		if !strings.HasPrefix(rest, "/") {
			return "", bad("%q names a host; write sqlite:PATH, or sqlite:///PATH with a path from the root", text)
		}
		path = rest
	}
	switch {
	case path == "":
		return "", bad("%q has no path; write sqlite:PATH", text)
	case path == ":memory:":
		return "", bad("%q is of one process alone; name a file", text)
	case strings.ContainsRune(path, 0):
		return "", bad("%q has a zero byte", text)
	}
	return path, nil
}

func openSQLite(_ context.Context, text string, create bool) (outbox.Store, func() error, error) {
	path, err := sqlitePath(text)
	if err != nil {
		return nil, nil, err
	}
	mode := "rw"
	if create {
		mode = "rwc"
	}
	if create {
		if err := checkFile(path, create); err != nil {
			return nil, nil, err
		}
	}
	full, err := filepath.Abs(path) // a path without / would be a host
	if err != nil {
		return nil, nil, err
	}
	name := url.URL{Scheme: "file", Path: filepath.ToSlash(full), RawQuery: url.Values{
		"_pragma": {"busy_timeout(10000)"}, // of the service, which writes too
		"mode":    {mode},
	}.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, nil, bad("%q: %v", text, err)
	}
	db.SetMaxOpenConns(maxConns)
	return &file{sqlite.New(db), path}, db.Close, nil
}

// file is an outbox that says in words when its file is not there.
type file struct {
	*sqlite.Store
	path string
}

// Check implements [outbox.Table].
func (f *file) Check(ctx context.Context) error {
	if err := checkFile(f.path, false); err != nil {
		return err
	}
	return f.Store.Check(ctx)
}

// checkFile says in words what SQLite would have a number for.
func checkFile(path string, create bool) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && create:
		dir, err := os.Stat(filepath.Dir(path))
		if err != nil || !dir.IsDir() {
			return bad("there is no directory %q for the file", filepath.Dir(path))
		}
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return eventhub.Wrap(eventhub.CodeBadRequest, err, "outbox: there is no file %q; eventhub outbox migrate makes one", path)
	case err != nil:
		return eventhub.Wrap(eventhub.CodeBadRequest, err, "outbox: the file cannot be looked at")
	case info.IsDir():
		return bad("%q is a directory; the file of the database is wanted", path)
	}
	return nil
}
