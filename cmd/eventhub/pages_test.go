package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/spf13/pflag"

	"eventhub/admin"
	"eventhub/client"
)

// source is where the tree of the source is.
var source = filepath.Join("..", "..")

// readPages returns the Markdown files of the project by their paths.
func readPages(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != source && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(source, path)
		found[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// snippet is a fenced block of a page. Its info is what follows the first fence: a
// language, and "run" where TestSnippets runs it.
type snippet struct {
	page, info, text string
	line             int // of its first line of text
}

func (s snippet) String() string { return fmt.Sprintf("%s:%d", s.page, s.line) }

// parts splits a page into its fenced blocks and the lines between them.
func parts(name, page string) (blocks []snippet, prose []string) {
	var open *snippet
	for i, line := range strings.Split(page, "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open == nil:
			open = &snippet{page: name, info: fence, line: i + 2}
		case isFence:
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += line + "\n"
		default:
			prose = append(prose, line)
		}
	}
	return blocks, prose
}

var (
	linkPattern  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inlineCode   = regexp.MustCompile("`[^`]*`")
	linkInTitle  = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	notInAnchors = func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_' }
)

// anchors returns what links to the headings of a page name.
func anchors(prose []string) map[string]bool {
	found := make(map[string]bool)
	for _, line := range prose {
		title := strings.TrimLeft(line, "#")
		if title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		title = strings.ToLower(strings.TrimSpace(linkInTitle.ReplaceAllString(title, "$1")))
		anchor := strings.Map(func(r rune) rune {
			if notInAnchors(r) {
				return -1
			}
			return r
		}, strings.ReplaceAll(title, " ", "-"))
		for n, first := 1, anchor; found[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", first, n)
		}
		found[anchor] = true
	}
	return found
}

// TestLinks: what a page links to in the project is there, the heading too.
func TestLinks(t *testing.T) {
	all := readPages(t)
	headings := make(map[string]map[string]bool) // by page
	links := 0
	for name, page := range all {
		_, prose := parts(name, page)
		text := inlineCode.ReplaceAllString(strings.Join(prose, "\n"), "")
		for _, m := range linkPattern.FindAllStringSubmatch(text, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(target, "#")
			to := name
			if path != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			if _, err := os.Stat(filepath.Join(source, to)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, target)
				continue
			}
			if anchor != "" {
				if headings[to] == nil {
					_, prose := parts(to, all[to])
					headings[to] = anchors(prose)
				}
				if !headings[to][anchor] {
					t.Errorf("%s links to %s, which has no such heading", name, target)
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("there are %d links in all pages", links)
	}
}

// commandLines returns the calls of eventhub in a line of shell, as words.
func commandLines(line string) (calls [][]string) {
	var words []string
	var word strings.Builder
	quote, some := rune(0), false
	end := func() {
		if some {
			words = append(words, word.String())
		}
		word.Reset()
		some = false
	}
	call := func() {
		end()
		for len(words) > 0 && (words[0] == "$" || words[0] == "sudo" || strings.Contains(words[0], "=")) {
			words = words[1:] // a prompt, the environment of the command
		}
		if len(words) > 0 && filepath.Base(words[0]) == "eventhub" {
			calls = append(calls, words[1:])
		}
		words = nil
	}
	for _, r := range line + "\n" {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, some = r, true
		case r == '#' && !some:
			call()
			return calls
		case strings.ContainsRune("|&;()\n", r):
			call()
		case r == '<' || r == '>':
			call() // what follows is a file
		case unicode.IsSpace(r):
			end()
		default:
			word.WriteRune(r)
			some = true
		}
	}
	return calls
}

// TestCommandsOfPages: each call of eventhub in a block of a page is of a command that
// there is, with flags that it has.
func TestCommandsOfPages(t *testing.T) {
	n := 0
	for name, page := range readPages(t) {
		blocks, _ := parts(name, page)
		for _, s := range blocks {
			if !s.isShell() {
				continue
			}
			for line := range strings.SplitSeq(strings.ReplaceAll(s.text, "\\\n", " "), "\n") {
				for _, call := range commandLines(line) {
					n++
					cmd, rest, err := rootCommand().Find(call)
					if err == nil {
						err = cmd.ParseFlags(rest)
					}
					if err != nil || cmd.HasSubCommands() && len(cmd.Flags().Args()) > 0 {
						t.Errorf("%s: eventhub %s: %v", s, strings.Join(call, " "), err)
					}
					cmd.Flags().Visit(func(f *pflag.Flag) {
						if f.Deprecated != "" {
							t.Errorf("%s: eventhub %s: --%s is an older name: %s", s, strings.Join(call, " "), f.Name, f.Deprecated)
						}
					})
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("there are %d calls in all pages", n)
	}
}

// notRun says of how many blocks of shell of a page TestSnippets runs none, any number if
// that is 0, and why. All others have "run" after their language.
var notRun = map[string]struct {
	blocks int
	why    string
}{
	"README.md":               {1, "one is what runs this test"},
	"docs/backup.md":          {0, "TestScripts runs its commands, in backup.txtar"},
	"docs/cli.md":             {0, "TestScripts runs these commands"},
	"docs/configuration.md":   {2, "TestConfigPrint and TestConfigCheck run its commands"},
	"docs/install.md":         {0, "it installs on the machine; TestInstall runs make install into a directory"},
	"docs/ha.md":              {14, "they need NATS servers, or MongoDB; the tests of cluster start them, and hubs as the page says"},
	"docs/js-sdk.md":          {1, "it installs a package of npm; sdk/js/test/package.test.ts does so, and docs.test.ts beside it runs the programs"},
	"docs/mongodb.md":         {1, "it needs a hub with a journal in MongoDB; TestProjections of package hub asks for the same"},
	"docs/operations.md":      {0, "views of a group with a history; the tests of ops ask for each"},
	"docs/protocol.md":        {1, "it needs a WebSocket client that no test has; TestFramesOfThePage reads its frames"},
	"docs/runbooks.md":        {0, "TestRunbooks runs them, each against a hub in the state of its alert"},
	"docs/security.md":        {6, "they open a hub to the network, under names and with certificates that no test has, or wait for what comes; token.txtar makes and reads a token"},
	"docs/troubleshooting.md": {0, "TestScripts runs its commands, in dlq.txtar"},
	"examples/README.md":      {2, "the tests of examples run the programs, curl.sh among them"},
}

// isShell reports whether a block has commands.
func (s snippet) isShell() bool {
	language, _, _ := strings.Cut(s.info, " ")
	return language == "sh" || language == "console" || language == "" && regexp.MustCompile(`(?m)^(\$ |eventhub [a-z]+( |$)|(curl|make|go|sudo|while|for) )`).MatchString(s.text)
}

// TestSnippets runs the blocks of pages that are marked so, those of a page in one shell
// after the other, against a hub. A block of "sh" has to succeed; one of "console" has
// commands after "$ " and what they print.
func TestSnippets(t *testing.T) {
	for name, page := range readPages(t) {
		blocks, _ := parts(name, page)
		shell := slices.DeleteFunc(slices.Clone(blocks), func(s snippet) bool { return !s.isShell() })
		run := slices.DeleteFunc(slices.Clone(shell), func(s snippet) bool { return !strings.HasSuffix(s.info, " run") })
		if n, known := len(shell)-len(run), notRun[name]; n > 0 || known.blocks > 0 {
			t.Logf("%s: %d of %d blocks are not run: %s", name, n, len(shell), known.why)
			if known.why == "" || known.blocks > 0 && n != known.blocks {
				t.Errorf("%s: %d of %d blocks of shell have no \"run\" after their language; notRun has %d", name, n, len(shell), known.blocks)
			}
		}
		if len(run) > 0 {
			t.Run(name, func(t *testing.T) { runSnippets(t, run) })
		}
	}
}

// runSnippets runs the blocks of a page. The page names the default addresses; the hub
// has others. A block that starts a hub has it; for all others one runs already.
func runSnippets(t *testing.T, run []snippet) {
	addrs := map[string]string{"127.0.0.1:8090": freePort(t), "127.0.0.1:8081": freePort(t), "127.0.0.1:8082": freePort(t)}
	var toTest, toPage []string
	for page, test := range addrs {
		toTest, toPage = append(toTest, page, test), append(toPage, test, page)
	}
	var script strings.Builder
	script.WriteString("ready() { for _ in $(seq 600); do eventhub health >/dev/null 2>&1 && return; sleep 0.1; done; echo the hub is not ready; exit 1; }\n")
	script.WriteString("curl() { command curl -sS \"$@\"; }\n")
	if !slices.ContainsFunc(run, func(s snippet) bool { return strings.Contains(s.text, "eventhub serve") }) {
		script.WriteString("eventhub serve --store memory: 2>hub.log &\nready\n")
	}
	const mark = "@@@"
	for _, s := range run {
		fmt.Fprintf(&script, "echo %s\n", mark)
		if strings.HasPrefix(s.info, "sh") {
			fmt.Fprintf(&script, "( set -e\ncurl() { command curl -sS --fail-with-body \"$@\"; }\n%s)\n[ $? = 0 ] || echo it fails\n", strings.NewReplacer(toTest...).Replace(s.text))
			continue
		}
		for line := range strings.Lines(s.text) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				script.WriteString(strings.NewReplacer(toTest...).Replace(command))
				if strings.HasSuffix(command, "&\n") {
					script.WriteString("ready\n")
				}
			}
		}
	}
	script.WriteString("kill -9 $(jobs -p)\n")

	ctx, cancel := context.WithTimeout(t.Context(), watchdog)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir = t.TempDir()
	shell.Env = append(cleanEnv(), "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"),
		"EVENTHUB_WS="+addrs["127.0.0.1:8090"], "EVENTHUB_HTTP="+addrs["127.0.0.1:8081"], "EVENTHUB_OPS="+addrs["127.0.0.1:8082"],
		"EVENTHUB_URL=ws://"+addrs["127.0.0.1:8090"])
	shell.WaitDelay = watchdog
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	if err := os.Mkdir(filepath.Join(shell.Dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(shell.Dir, "bin", "eventhub")); err != nil {
		t.Fatal(err)
	}
	_ = shell.Run() // what it prints says how it went
	said := strings.Split(strings.NewReplacer(toPage...).Replace(out.String()), mark+"\n")
	for i, s := range run {
		if i+1 >= len(said) {
			t.Fatalf("%s is not reached:\n%s", s, out.String())
		}
		got, want := said[i+1], ""
		if strings.HasPrefix(s.info, "sh") {
			if strings.Contains(got, "it fails\n") {
				t.Errorf("%s fails:\n%s", s, got)
			}
			continue
		}
		for line := range strings.Lines(s.text) {
			if !strings.HasPrefix(line, "$ ") {
				want += line
			}
		}
		if got, want := settled(got), settled(want); got != want {
			t.Errorf("%s prints\n%s\nand the page says\n%s", s, got, want)
		}
	}
}

var unsettled = []struct {
	what *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`\b1[78]\d{11}\b`), "MS"},
	{regexp.MustCompile(`"time_ms":[0-9.]+`), `"time_ms"`},
	{regexp.MustCompile(`\b\d+(\.\d+)?\s?(ms|µs|s|m|h)\b`), "DURATION"},
	{regexp.MustCompile(`127\.0\.0\.1:[2-6]\d{4}\b`), "ADDRESS"},
	{regexp.MustCompile(`version=\S+`), "version"},
	{regexp.MustCompile(` +`), " "},
	{regexp.MustCompile(`(?m) $`), ""},
}

// settled replaces what differs from run to run.
func settled(s string) string {
	for _, u := range unsettled {
		s = u.what.ReplaceAllString(s, u.as)
	}
	return strings.TrimSpace(s)
}

// TestJSONOfPages: blocks of JSON are values of JSON, one or more.
func TestJSONOfPages(t *testing.T) {
	n := 0
	for name, page := range readPages(t) {
		blocks, _ := parts(name, page)
		for _, s := range blocks {
			if language, _, _ := strings.Cut(s.info, " "); language != "json" {
				continue
			}
			n++
			values := json.NewDecoder(strings.NewReader(s.text))
			for {
				var value any
				if err := values.Decode(&value); err == io.EOF {
					break
				} else if err != nil {
					t.Errorf("%s: %v", s, err)
					break
				}
			}
		}
	}
	if n == 0 {
		t.Error("no page has a block of JSON")
	}
}

// The beginning of each file of TestGoSnippets, and what the snippets take for granted.
const (
	goImports = `package snippets

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hubtest"
	"eventhub/inbox"
	"eventhub/projector"
)

var (
	_ context.Context
	_ = json.Unmarshal
	_ = errors.Is
	_ = fmt.Errorf
	_ testing.TB
	_ time.Time
	_ eventhub.Event
	_ admin.GroupInfo
	_ *client.Client
	_ = hubtest.Start
	_ *sql.DB
	_ *inbox.Inbox
	_ *projector.Projector
)
`
	goGiven = `
type Order struct{}

var (
	url      string
	token    string
	issuer   interface{ Token(context.Context, string) (string, error) }
	order    Order
	since    time.Time
	bill     func(context.Context, Order) error
	store    func(Order) error
	makeBill func(eventhub.Delivery) ([]byte, error)
	show     func(eventhub.Delivery) error
)
`
	goFunction = `
func _(ctx context.Context, c *client.Client, adm *client.Admin, db *sql.DB, err error) error {
	{
//line %s:%d
%s	}
	return err
}
`
)

// TestGoSnippets compiles the blocks of Go of all pages. A block that is no function is
// the body of one; what it does with its variables is its reader's.
func TestGoSnippets(t *testing.T) {
	root, err := filepath.Abs(source)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"given.go": goImports + goGiven}
	for name, page := range readPages(t) {
		blocks, _ := parts(name, page)
		for _, s := range blocks {
			if s.info != "go" {
				continue
			}
			text := strings.ReplaceAll(s.text, "{ … }", "{ return err }")
			if strings.HasPrefix(text, "func ") {
				text = fmt.Sprintf("\n//line %s:%d\n%s", s.page, s.line, text)
			} else {
				text = fmt.Sprintf(goFunction, s.page, s.line, text)
			}
			files[fmt.Sprintf("snippet%d.go", len(files))] = goImports + text
		}
	}
	if len(files) == 1 {
		t.Fatal("no page has a block of Go")
	}
	// The compiler alone sees the package in the tree.
	dir := t.TempDir()
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, "cmd", "eventhub", "snippets", name)] = path
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-gcflags=-e", "-overlay", filepath.Join(dir, "overlay.json"), "./cmd/eventhub/snippets")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	out, _ := build.CombinedOutput() // each error has a line
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "declared and not used") {
			t.Error(strings.TrimSpace(line))
		}
	}
}

// TestBrowserSnippet sends what the snippet for browsers in docs/protocol.md sends: a
// page that was left leaves no group.
func TestBrowserSnippet(t *testing.T) {
	blocks, _ := parts("docs/protocol.md", readPages(t)["docs/protocol.md"])
	i := slices.IndexFunc(blocks, func(s snippet) bool { return s.info == "js" })
	if i < 0 {
		t.Fatal("the page has no snippet")
	}
	hub := startHub(t, "--store", "memory:")
	conn, _, _, err := ws.Dial(t.Context(), "ws://"+hub.ws+"/")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := regexp.MustCompile(`ws\.send\('([^']*)'\)`).FindAllStringSubmatch(blocks[i].text, -1)
	for _, m := range sent {
		if err := wsutil.WriteClientText(conn, []byte(m[1])); err != nil {
			t.Fatal(err)
		}
		answer, err := wsutil.ReadServerText(conn)
		if err != nil || !bytes.Contains(answer, []byte(`"op":"OK"`)) {
			t.Fatalf("%s: %s, %v", m[1], answer, err)
		}
	}
	var frame struct{ Topic string }
	if err := json.Unmarshal([]byte(sent[len(sent)-1][1]), &frame); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runBinary(t, nil, "pub", frame.Topic, `1`, "--url", "ws://"+hub.ws); code != 0 {
		t.Fatal(errs)
	}
	if event, err := wsutil.ReadServerText(conn); err != nil || !bytes.Contains(event, []byte(`"op":"EVENT"`)) {
		t.Errorf("the snippet gets %s, %v", event, err)
	}
	adm, err := client.NewAdmin("ws://" + hub.ws)
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	if groups, err := adm.Groups(t.Context(), admin.GroupQuery{Topic: frame.Topic}); err != nil || len(groups) > 0 {
		t.Errorf("groups of %s: %+v, %v", frame.Topic, groups, err)
	}
}
