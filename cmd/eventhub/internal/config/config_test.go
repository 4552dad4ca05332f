package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// sentinel is the secret that must show nowhere.
const sentinel = "S3NTINEL"

func testSchema() *Schema {
	return New([]Key{
		{Name: "addr", Type: Address, Default: "127.0.0.1:1", Older: []string{"OLD_ADDR", "OLDER_ADDR"}},
		{Name: "place", Type: Text, Default: "./here", Hide: func(v string) string { return strings.ReplaceAll(v, sentinel, "…") }},
		{Name: "token", Type: Text, Secret: true, Older: []string{"TOKEN"}},
		{Name: "open", Type: Bool},
		{Name: "names", Type: List(func(s string) error {
			if s == "bad" {
				return fmt.Errorf("name %q", s)
			}
			return nil
		})},
		{Name: "most_things", Type: Int(1), Default: "10"},
		{Name: "wait", Type: Duration, Default: "5s"},
		{Name: "level", Type: OneOf("low", "high"), Default: "low"},
	}, "EVENTHUB_URL")
}

// load runs Load with a file of this content; "-" means none.
func load(t *testing.T, content string, environ []string, args ...string) (*Settings, error) {
	t.Helper()
	s := testSchema()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.Register(flags)
	if content != "-" {
		args = append(args, "--config", write(t, "hub.yaml", content))
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return s.Load(flags, environ)
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHyphensInTheFile: they mean what underscores do, as in files of older versions, and
// a key that is there in both ways is there twice.
func TestHyphensInTheFile(t *testing.T) {
	if s, err := load(t, "most-things: 7\n", nil); err != nil || s.Int("most_things") != 7 {
		t.Errorf("%d, %v", s.Int("most_things"), err)
	}
	if _, err := load(t, "most-things: 7\nmost_things: 7\n", nil); err == nil || !strings.Contains(err.Error(), "most_things is set again, after line 1") {
		t.Errorf("both ways: %v", err)
	}
}

// TestLayers: the strongest source decides, each key for itself.
func TestLayers(t *testing.T) {
	file := "addr: 2\nnames: [file, \"other\"]\nmost-things: 1_000\nopen: true\n"
	for _, tt := range []struct {
		environ      []string
		args         []string
		addr, source string
	}{
		{nil, nil, "127.0.0.1:2", "hub.yaml:1"},
		{[]string{"OLDER_ADDR=3"}, nil, "127.0.0.1:3", "env OLDER_ADDR"},
		{[]string{"OLD_ADDR=4", "OLDER_ADDR=3"}, nil, "127.0.0.1:4", "env OLD_ADDR"},
		{[]string{"OLD_ADDR=4", "OLDER_ADDR=3", "EVENTHUB_ADDR=h:5"}, nil, "h:5", "env EVENTHUB_ADDR"},
		{[]string{"OLD_ADDR=", "OLDER_ADDR=3", "EVENTHUB_ADDR="}, nil, "127.0.0.1:3", "env OLDER_ADDR"},
		{[]string{"EVENTHUB_ADDR=h:5"}, []string{"--addr", "6", "--addr=[::1]:7"}, "[::1]:7", "flag --addr"},
	} {
		s, err := load(t, file, tt.environ, tt.args...)
		if err != nil {
			t.Errorf("%v %v: %v", tt.environ, tt.args, err)
			continue
		}
		if s.Text("addr") != tt.addr || !strings.HasSuffix(s.Source("addr").String(), tt.source) {
			t.Errorf("%v %v: addr is %s from %s; want %s from %s", tt.environ, tt.args, s.Text("addr"), s.Source("addr"), tt.addr, tt.source)
		}
		if !s.Bool("open") || s.Int("most_things") != 1000 || s.Duration("wait") != 5*time.Second || s.Text("level") != "low" ||
			!slices.Equal(s.Strings("names"), []string{"file", "other"}) || s.Source("wait").Kind != FromDefault {
			t.Errorf("%v %v: the other keys are wrong: %+v", tt.environ, tt.args, s.values.All())
		}
	}
}

// TestOverriddenIsNotJudged: a flag is the way out of a broken environment.
func TestOverriddenIsNotJudged(t *testing.T) {
	if _, err := load(t, "-", []string{"OLD_ADDR=tcp://10.0.0.1:80/x"}, "--addr", "1"); err != nil {
		t.Error(err)
	}
	if _, err := load(t, "-", []string{"OLD_ADDR=tcp://10.0.0.1:80/x"}); err == nil {
		t.Error("the broken variable was taken")
	}
}

func TestLists(t *testing.T) {
	for _, tt := range []struct {
		file    string
		environ []string
		args    []string
		want    []string
	}{
		{"-", nil, nil, []string{}},
		{"names: []", nil, nil, []string{}},
		{"names: a, b", nil, nil, []string{"a", "b"}},
		{"names:\n- a\n- 0123\n", nil, nil, []string{"a", "0123"}},
		{"names: [a]", []string{"EVENTHUB_NAMES=b,c,"}, nil, []string{"b", "c"}},
		{"-", []string{"EVENTHUB_NAMES=b"}, []string{"--names", "c,d", "--names", "e"}, []string{"c", "d", "e"}},
		{"names: [a]", nil, []string{"--names="}, []string{}},
	} {
		s, err := load(t, tt.file, tt.environ, tt.args...)
		if err != nil {
			t.Error(err)
		} else if got := s.Strings("names"); !slices.Equal(got, tt.want) {
			t.Errorf("%q %v %v: %q; want %q", tt.file, tt.environ, tt.args, got, tt.want)
		}
	}
}

// TestWrong: every mistake is reported with its place, and nothing but what is said
// here is.
func TestWrong(t *testing.T) {
	for _, tt := range []struct {
		name    string
		file    string
		environ []string
		args    []string
		want    []string // one for each error, its parts parted by |
	}{
		{"unknown key", "addr: 1\nadr: 2\n", nil, nil, []string{"hub.yaml:2|unknown key \"adr\"|did you mean addr?"}},
		{"unknown key, other joints", "Most_Things: 2\n", nil, nil, []string{"hub.yaml:1|did you mean most_things?"}},
		{"unknown key, unlike any", "zzzzzz: 2\n", nil, nil, []string{`hub.yaml:1: unknown key "zzzzzz"`}},
		{"config in the file", "config: x\n", nil, nil, []string{`unknown key "config"`}},
		{"twice", "addr: 1\n\naddr: 2\n", nil, nil, []string{"hub.yaml:3|addr is set again, after line 1"}},
		{"no value", "addr:\n", nil, nil, []string{"hub.yaml:1|addr: has no value"}},
		{"null", "names: null\n", nil, nil, []string{"hub.yaml:1|names: has no value"}},
		{"empty", "addr: ''\n", nil, nil, []string{"addr: is empty|hub.yaml:1"}},
		{"empty flag", "-", nil, []string{"--token="}, []string{"token: is empty|flag --token"}},
		{"nested", "addr:\n  host: x\n", nil, nil, []string{"hub.yaml:2|addr: wants a value"}},
		{"nested in a list", "names: [[a]]\n", nil, nil, []string{"hub.yaml:1|names: wants a list of texts"}},
		{"list for a value", "wait: [1s]\n", nil, nil, []string{"wait: wants one value|hub.yaml:1"}},
		{"alias", "addr: &a 1\nplace: *a\n", nil, nil, []string{"hub.yaml:2|place: wants a value"}},
		{"key that is no text", "[a]: 1\n", nil, nil, []string{"hub.yaml:1|no text"}},
		{"sequence", "- addr\n", nil, nil, []string{"hub.yaml:1|key: value"}},
		{"text", "addr\n", nil, nil, []string{"hub.yaml:1|key: value"}},
		{"two documents", "addr: 1\n---\naddr: 2\n", nil, nil, []string{"hub.yaml:2|second document"}},
		{"tab", "addr: 1\n\tplace: x\n", nil, nil, []string{"hub.yaml:2: found a tab"}},
		{"not YAML", "addr: 1\nplace: 'x\n", nil, nil, []string{"hub.yaml:|unexpected end"}},
		{"not text", "addr: \xff\n", nil, nil, []string{"hub.yaml|UTF-8"}},
		{"values", "addr: 1:2:3\nopen: yes\nnames: [ok, bad, bad]\nmost-things: 1e3\nwait: 10\nlevel: hi\n", nil, nil, []string{
			`addr: "1:2:3" is neither|hub.yaml:1`,
			`open: "yes" is not true or false|hub.yaml:2`,
			`names: name "bad"; name "bad"|hub.yaml:3`,
			`most_things: "1e3" is not a whole number|hub.yaml:4`,
			`wait: "10" is not a duration|hub.yaml:5`,
			`level: "hi" is not one of low, high|hub.yaml:6`,
		}},
		{"ranges", "-", []string{"EVENTHUB_ADDR=65536", "EVENTHUB_MOST_THINGS=0", "EVENTHUB_WAIT=-1s"}, []string{"--level", "higher"}, []string{
			`addr: port "65536"|env EVENTHUB_ADDR`,
			"most_things: 0 is below 1|env EVENTHUB_MOST_THINGS",
			"wait: -1s is not above zero|env EVENTHUB_WAIT",
			`level: "higher" is not one of|flag --level`,
		}},
		{"flags are judged together", "-", nil, []string{"--addr=x:y", "--wait=soon"}, []string{"flag --addr", "flag --wait"}},
		{"no file", "-", []string{"EVENTHUB_CONFIG=/nonexistent/hub.yaml"}, nil, []string{"/nonexistent/hub.yaml|env EVENTHUB_CONFIG"}},
		{"no file, by flag", "-", []string{"EVENTHUB_CONFIG=a"}, []string{"--config", "/nonexistent"}, []string{"/nonexistent|flag --config"}},
		{"empty path", "-", []string{"EVENTHUB_CONFIG=a"}, []string{"--config="}, []string{"path is empty|flag --config"}},
		{"a directory", "-", nil, []string{"--config", "/"}, []string{"directory|flag --config"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.file, tt.environ, tt.args...)
			var errs Errors
			if !errors.As(err, &errs) || len(errs) != len(tt.want) {
				t.Fatalf("%d errors; want %d:\n%v", len(errs), len(tt.want), err)
			}
			for i, parts := range tt.want {
				for _, part := range strings.Split(parts, "|") {
					if !strings.Contains(errs[i].Error(), part) {
						t.Errorf("error %d lacks %q: %v", i, part, errs[i])
					}
				}
			}
		})
	}
}

// TestRightInSpiteOfErrors: what is right counts in spite of what is wrong, so that
// the caller's own checks do not say what is not true.
func TestRightInSpiteOfErrors(t *testing.T) {
	s, err := load(t, "addr: 7\nnonsense: 1\ntoken: x\nwait: soon\n", nil)
	if err == nil {
		t.Fatal("no error")
	}
	if s.Text("addr") != "127.0.0.1:7" || s.Text("token") != "x" || s.Duration("wait") != 5*time.Second {
		t.Errorf("%+v", s.values.All())
	}
	if s, _ = load(t, "-", []string{"TOKEN_FILE=/nonexistent"}); s.Text("token") == "" {
		t.Error("a secret that can not be read looks like none")
	}
}

func TestSecretFiles(t *testing.T) {
	for _, tt := range []struct {
		name, content, want, says string
	}{
		{"plain", "s3cret", "s3cret", ""},
		{"newline", "s3cret\n", "s3cret", ""},
		{"CR LF", "s3cret\r\n", "s3cret", ""},
		{"spaces are its own", " s3cret ", " s3cret ", ""},
		{"empty", "", "", "empty"},
		{"newline alone", "\n", "", "empty"},
		{"two lines", sentinel + "\nmore\n", "", "more than one line"},
		{"two newlines", sentinel + "\n\n", "", "more than one line"},
		{"too long", strings.Repeat(sentinel, 4096), "", "more than 16384 bytes"},
		{"redacted", Redacted, "", "instead of a secret"},
	} {
		path := write(t, "secret", tt.content)
		s, err := load(t, "token_file: "+path, nil)
		switch {
		case tt.says == "":
			if err != nil || s.Text("token") != tt.want {
				t.Errorf("%s: %q, %v", tt.name, s.Text("token"), err)
			}
			if source := s.Source("token"); source.Path != path || !strings.Contains(source.String(), "named by file") {
				t.Errorf("%s: token comes from %s", tt.name, source)
			}
		case err == nil:
			t.Errorf("%s: taken as %q", tt.name, s.Text("token"))
		case !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), sentinel):
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	good := write(t, "secret", "file")
	for _, environ := range [][]string{{"TOKEN_FILE=" + good}, {"EVENTHUB_TOKEN_FILE=" + good, "TOKEN_FILE=/nonexistent"}} {
		if s, err := load(t, "-", environ); err != nil || s.Text("token") != "file" {
			t.Errorf("%v: %q, %v", environ, s.Text("token"), err)
		}
	}
	if s, err := load(t, "-", nil, "--token-file", good); err != nil || s.Text("token") != "file" {
		t.Errorf("%q, %v", s.Text("token"), err)
	}
}

// TestSecretTwice: whichever sources give a secret and its file, it is not for
// this program to choose.
func TestSecretTwice(t *testing.T) {
	path := write(t, "secret", sentinel+"2")
	for _, tt := range []struct {
		file    string
		environ []string
		args    []string
	}{
		{"token: " + sentinel + "\ntoken-file: " + path, nil, nil},
		{"token_file: " + path, []string{"TOKEN=" + sentinel}, nil},
		{"-", []string{"TOKEN=" + sentinel, "TOKEN_FILE=" + path}, nil},
		{"-", []string{"TOKEN_FILE=" + path}, []string{"--token=" + sentinel}},
	} {
		_, err := load(t, tt.file, tt.environ, tt.args...)
		if err == nil || !strings.Contains(err.Error(), "both given") || strings.Contains(err.Error(), sentinel) {
			t.Errorf("%v %v: %v", tt.environ, tt.args, err)
		}
	}
}

// TestSecretsAreNotShown: not in errors, not in warnings, not in what is
// printed, however wrong the place of the secret is.
func TestSecretsAreNotShown(t *testing.T) {
	for _, tt := range []struct {
		file    string
		environ []string
		args    []string
	}{
		{"token: " + sentinel, nil, nil},
		{"token: [" + sentinel + "]", nil, nil},
		{"token: {a: " + sentinel + "}", nil, nil},
		{"token: {" + sentinel + ": a}", nil, nil},
		{"token: *" + sentinel, nil, nil},
		{"token: &" + sentinel + " x\nplace: *" + sentinel, nil, nil},
		{"token: !" + sentinel + " x", nil, nil},
		{"token: !!int " + sentinel, nil, nil},
		{"token: \"" + sentinel, nil, nil},
		{"token: |\n  " + sentinel + "\n x", nil, nil},
		{"token: %" + sentinel, nil, nil},
		{"token: @" + sentinel, nil, nil},
		{"token: " + sentinel + ": x", nil, nil},
		{"token: " + sentinel + "\ntoken: " + sentinel, nil, nil},
		{"token:" + sentinel, nil, nil},
		{"token:" + sentinel + "\naddr: 1", nil, nil},
		{"{token:" + sentinel + "}", nil, nil},
		{"{token " + sentinel + "}", nil, nil},
		{"? [token, " + sentinel + "]\n: 1", nil, nil},
		{sentinel, nil, nil},
		{"[" + sentinel + "]", nil, nil},
		{"place: mongodb://u:" + sentinel + "@h/", nil, nil},
		{"-", []string{"TOKEN=" + sentinel, "EVENTHUB_TOKENS=" + sentinel}, nil},
		{"-", nil, []string{"--token", sentinel}},
		{"-", nil, []string{"--token", sentinel, "--token="}},
	} {
		s, err := load(t, tt.file, tt.environ, tt.args...)
		var all bytes.Buffer
		fmt.Fprintln(&all, err, s.Warnings)
		for _, sources := range []bool{false, true} {
			if err := errors.Join(s.WriteYAML(&all, sources), s.WriteJSON(&all, sources)); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(all.String(), sentinel) {
			t.Errorf("%q %v %v shows:\n%s", tt.file, tt.environ, tt.args, all.String())
		}
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	testSchema().Register(flags)
	if err := flags.Parse([]string{"--token", sentinel}); err != nil {
		t.Fatal(err)
	}
	if text := flags.FlagUsages() + flags.Lookup("token").Value.String(); strings.Contains(text, sentinel) {
		t.Errorf("the flags show it:\n%s", text)
	}
}

// TestRedactedIsNoSecret: what print shows can not come back as the secret.
func TestRedactedIsNoSecret(t *testing.T) {
	if s, err := load(t, "token: '"+Redacted+"'", nil); err == nil {
		t.Errorf("taken as %q", s.Text("token"))
	}
}

// TestWrittenIsRead: what is written is a file that gives the same settings.
func TestWrittenIsRead(t *testing.T) {
	odd := []string{"a b", "#x", "null", "true", "0123", "- x", "it's", `"q"`, "a\tb", "a\nb", "{x}", "é☃", strings.Repeat("long ", 100), "*a", " "}
	for _, place := range odd {
		var names []string
		for _, name := range odd {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
		first, err := load(t, "-", []string{"EVENTHUB_NAMES=" + strings.Join(names, ","), "TOKEN=" + sentinel},
			"--place", place, "--wait", "1h1m", "--open", "--level", "HIGH", "--addr", "[::]:9", "--most-things", "12")
		if err != nil {
			t.Fatal(err)
		}
		for form, write := range map[string]func(*bytes.Buffer) error{
			"yaml":              func(b *bytes.Buffer) error { return first.WriteYAML(b, false) },
			"yaml with sources": func(b *bytes.Buffer) error { return first.WriteYAML(b, true) },
			"json":              func(b *bytes.Buffer) error { return first.WriteJSON(b, false) },
		} {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			again, err := load(t, b.String(), nil)
			if err != nil {
				t.Fatalf("%s: %v\n%s", form, err, b.String())
			}
			if changed := first.Changed(again); !slices.Equal(changed, []string{"token"}) {
				t.Errorf("%s: %v came back otherwise:\n%s", form, changed, b.String())
			}
		}
	}
}

func TestWrittenSources(t *testing.T) {
	s, err := load(t, "addr: 2\nwait: 1m\n", []string{"EVENTHUB_LEVEL=high", "TOKEN=" + sentinel}, "--open")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.WriteJSON(&b, true); err != nil {
		t.Fatal(err)
	}
	var got map[string]struct {
		Value  any
		Source string
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"addr": "127.0.0.1:2 file " + s.File + ":1", "wait": "1m0s file " + s.File + ":2", "level": "high env EVENTHUB_LEVEL",
		"open": "true flag --open", "place": "./here default", "token": Redacted + " env TOKEN", "most_things": "10 default",
	} {
		if is := fmt.Sprint(got[key].Value, " ", got[key].Source); is != want {
			t.Errorf("%s is %q; want %q", key, is, want)
		}
	}
	b.Reset()
	if err := s.WriteYAML(&b, true); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"addr: 127.0.0.1:2 *# file .*:1", `# token: '\[redacted\]' *# env TOKEN`, "# token_file: not set *# default"} {
		if !regexp.MustCompile("(?m)^" + line + "$").Match(b.Bytes()) {
			t.Errorf("lacks %q:\n%s", line, b.String())
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	s, err := load(t, "-", []string{"EVENTHUB_URL=x", "EVENTHUB_CONFIG=", "EVENTHUB_MOSTTHINGS=3", "EVENTHUB_SERVICE_HOST=x", "OTHER=x", "EVENTHUB_TOKEN_FILE="})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Warnings) != 2 || !strings.Contains(s.Warnings[0], "did you mean EVENTHUB_MOST_THINGS?") ||
		!strings.HasSuffix(s.Warnings[1], "EVENTHUB_SERVICE_HOST is unknown and has no effect") {
		t.Errorf("%q", s.Warnings)
	}
}

func TestFilesOfNothing(t *testing.T) {
	for _, content := range []string{"", "\n", "# nothing\n", "---\n", "{}", "~"} {
		s, err := load(t, content, nil)
		if err != nil || s.Text("addr") != "127.0.0.1:1" {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// TestPipes: process substitution works, once. A second time there would be
// nobody who writes, and Reload would wait for ever.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "file"), filepath.Join(dir, "secret")
	written := make(chan error, 2)
	for path, content := range map[string]string{file: "addr: 9\n", secret: "s3cret"} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		go func() { written <- os.WriteFile(path, []byte(content), 0) }()
	}
	args := []string{"--config", file, "--token-file", secret}
	s, err := load(t, "-", nil, args...)
	if err := errors.Join(err, <-written, <-written); err != nil || s.Text("addr") != "127.0.0.1:9" || s.Text("token") != "s3cret" {
		t.Errorf("%s, %s, %v", s.Text("addr"), s.Text("token"), err)
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	testSchema().Register(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	_, err = testSchema().Reload(flags, nil)
	for _, path := range []string{file, secret} {
		if err == nil || !strings.Contains(err.Error(), path+" is not a regular file") {
			t.Errorf("Reload = %v; want it to refuse %s", err, path)
		}
	}
}
