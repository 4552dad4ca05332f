package outboxurl

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheck(t *testing.T) {
	for text, wrong := range map[string]string{
		"sqlite:service.db":            "",
		"sqlite:///var/lib/service.db": "",
		"SQLite3:a?b#c%d.db":           "",
		"postgres://u@h:5432/db":       "",
		"postgresql:///db?host=/tmp":   "",
		"mongodb://a:1,b:2/db?w=1":     "",
		"mongodb+srv://u@h.example/db": "",

		"":                          "has no scheme",
		"service.db":                "has no scheme",
		"mysql://h/db":              "is of no database that has outboxes",
		"sqlite:":                   "has no path",
		"sqlite::memory:":           "of one process alone",
		"sqlite://service.db":       "names a host",
		"postgres:db":               "is not like postgres://",
		"postgres://h:port/db":      "its port is no number",
		"postgres://h/db?sslmode=x": "sslmode",
		"postgres://u:%zz@h/db":     "it has a % that begins no escape",
		"mongodb:db":                "is not like mongodb://",
		"mongodb://h":               "names no database",
		"mongodb://h/a b":           "has a character that none can have",
	} {
		err := Check(text)
		switch {
		case wrong == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong) || eventhub.ErrorCode(err) != eventhub.CodeBadRequest):
			t.Errorf("%q: %v; want %q", text, err, wrong)
		}
		if _, err := Schema(text); (err == nil) != (wrong == "") {
			t.Errorf("the schema of %q: %v", text, err)
		}
	}
}

func TestShown(t *testing.T) {
	for text, want := range map[string]string{
		"sqlite:a@b?c.db":                     "sqlite:a@b?c.db",
		"postgres://h:5432/db":                "postgres://h:5432/db",
		"postgres://u:p@h/db?sslmode=require": "postgres://***@h/db?***",
		"postgres://u:p@[::1]:5432/db":        "postgres://***@[::1]:5432/db",
		"mongodb://u:p@a:1,b:2/db":            "mongodb://***@a:1,b:2/db",
		"postgres://u:p?x@h/db":               "postgres://***",
		"postgres://u:p/db":                   "postgres://***",
		"postgres:u:p@h":                      "postgres://***",
		"user=u password=p":                   "***",
		"service.db":                          "service.db",
	} {
		if got := Shown(text); got != want {
			t.Errorf("%q is shown as %q; want %q", text, got, want)
		}
	}
}

// TestNothingShowsAPassword: in no form of a URL, right or wrong, and nowhere.
func TestNothingShowsAPassword(t *testing.T) {
	const secret = "tig3rTIG3R"
	for _, text := range []string{
		"postgres://scott:tig3rTIG3R@127.0.0.1:1/db", "postgres://scott:tig3rTIG3R@h:port/db", "postgres://scott:tig3rTIG3R@h/db?sslmode=x",
		"postgres://scott:tig3rTIG3R%zz@h/db", "postgres://scott:tig3rTIG3R/x@h/db", "postgres://scott:tig3rTIG3R", "postgres://h/db?password=tig3rTIG3R&sslmode=x",
		"postgres://127.0.0.1:1/db?password=a@tig3rTIG3R", "postgres:scott:tig3rTIG3R@h", "postgres://scott:tig3rTIG3R?@h/db", "postgres://scott:tig3rTIG3R#@h/db",
		"mongodb://scott:tig3rTIG3R@h", "mongodb://scott:tig3rTIG3R@127.0.0.1:1/db?serverSelectionTimeoutMS=100", "mongodb://scott:tig3rTIG3R@h/db?authMechanism=NONE",
		"mongodb://scott:tig3rTIG3R@@h/db", "mongodb://scott:tig3rTIG3R/@h/db", "mongodb://scott:tig3rTIG3R", "mongodb://sc@ott:tig3rTIG3R@h/db",
		"mongodb+srv://scott:tig3rTIG3R@127.0.0.1:1/db", "oracle://scott:tig3rTIG3R@h/db", "user=scott password=tig3rTIG3R", "scott:tig3rTIG3R@h",
	} {
		check := func(where, shown string) {
			if strings.Contains(shown, secret) || strings.Contains(shown, secret[:6]) {
				t.Errorf("%s of %q has the password: %s", where, text, shown)
			}
		}
		check("Shown", Shown(text))
		if err := Check(text); err != nil {
			check("Check", err.Error())
			continue
		}
		store, end, err := Open(t.Context(), text)
		if err != nil {
			check("Open", err.Error())
			continue
		}
		if err := store.Check(t.Context()); err == nil {
			t.Errorf("%q has a table", text)
		} else {
			check("the table's Check", err.Error())
		}
		_ = end() // the servers are not there
	}
}

func TestOnlyCreateMakesAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a ?#%41 b.db")
	text := "sqlite:" + path
	missing, end, err := Open(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := missing.Counts(t.Context()); err == nil {
		t.Error("rows of no file are counted")
	}
	if err := errors.Join(missing.Check(t.Context()), end()); err == nil || !strings.Contains(err.Error(), "eventhub outbox migrate makes one") {
		t.Fatalf("Open of a file that is missing: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("Open has made a file")
	}
	store, end, err := Create(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Migrate(t.Context()), end()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err) // and not one of another name
	}
	store, end, err = Open(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Check(t.Context()), end()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + "-journal"); err == nil {
		t.Error("a journal is left")
	}
}

func TestIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	for _, text := range []string{"postgres://u@" + addr + "/db?sslmode=disable", "mongodb://" + addr + "/db?serverSelectionTimeoutMS=200"} {
		store, end, err := Open(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Check(t.Context()); !IsAway(err) {
			t.Errorf("%s: %v is not an absence", text, err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if IsAway(outbox.ErrNoTable) || IsAway(nil) || IsAway(checkFile("nowhere/x", false)) {
		t.Error("a database without a table is there")
	}
}
