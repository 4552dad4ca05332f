package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"eventhub/internal/promeval"
)

// runbook is what TestRunbooks knows of a section of docs/runbooks.md.
type runbook struct {
	files   map[string]string // that are there before the hub
	serve   []string          // flags of the hub; DIR/ is where the files are
	prepare string            // shell: brings the hub into the state of the alert
	// alerts are those that are there then and over in the end, as far as a test can have
	// them: not where they need a disk that is nearly full, or a quarter of an hour.
	alerts []string
	fails  []string // commands that report the state by their exit code
	says   []string // what the commands print, among other things
	over   []string // what those print that show that it is over
}

var runbooks = map[string]runbook{
	"A check fails": {
		serve:   []string{"--drain", "1h"},
		prepare: `kill -TERM $HUB_PID; until ! eventhub health >/dev/null; do :; done`,
		alerts:  []string{"EventhubNotReady"},
		fails:   []string{"eventhub health", "curl 'http://127.0.0.1:8082/readyz?verbose'"},
		says:    []string{"serving", "failed", "hub is draining"},
		over:    []string{"ok"},
	},
	"The disk is nearly full": {
		prepare: `eventhub pub old-orders 1`,
		says:    []string{"eventhub_store_free_bytes", "eventhub_store_needed_bytes", "old-orders"},
		over:    []string{"eventhub_store_free_bytes"},
	},
	"A group stands still": {
		prepare: `eventhub pub orders 1; eventhub pub orders 2; eventhub sub orders -g billing --from earliest -c 1; eventhub group pause orders billing`,
		alerts:  []string{"EventhubGroupPausedForLong", "EventhubGroupWithoutMembers"},
		says:    []string{"Lag: *1", "paused"},
		over:    []string{"Lag: *0"},
	},
	"Dead letters wait": {
		prepare: `for n in 1 2 3; do eventhub pub orders "{\"order\":$n}"; done
			eventhub sub orders -g billing --from earliest -c 3 --nack --terminal --reason 'no such customer'
			until [ "$(eventhub dlq ls orders -o ndjson | wc -l)" = 3 ]; do :; done
			eventhub dlq redrive orders --offset 3 --apply
			eventhub sub orders -g billing >/dev/null 2>&1 & echo $! >consumer.pid`,
		alerts: []string{"EventhubDeadLetters"},
		says:   []string{"no such customer", "orders +2 ", "Redriven: +1 event"},
		over:   []string{"orders +0 +0 +2 +1 "},
	},
	"A group was overtaken": {
		prepare: `for n in 1 2 3 4; do eventhub pub orders "{\"order\":$n}"; done
			eventhub sub orders -g billing --from earliest -c 1
			eventhub topic trim orders --before 4 --apply
			eventhub sub orders -g billing -c 1`,
		says: []string{`eventhub_gaps_total\{group="billing",topic="orders"\} [12]`, `eventhub_gap_offsets_total\{group="billing",topic="orders"\} 2`},
		over: []string{"Lag: *0"},
	},
	"Peers are refused": {
		serve:   []string{"--auth-token", "right"},
		prepare: `for n in 1 2 3 4 5 6 7 8; do EVENTHUB_TOKEN=wrong eventhub topic ls; done; printf old >program.token`,
		alerts:  []string{"EventhubPeersRefused"},
		fails:   []string{"EVENTHUB_TOKEN_FILE=program.token eventhub check"},
		says:    []string{"a peer was refused.*reason=bad_token", `eventhub_auth_refused_total\{reason="bad_token",transport="http"\} 8`},
		over:    []string{"eventhub_auth_refused_total"},
	},
	"A setting can not be read again": {
		files: map[string]string{"tokens.yaml": "tokens: [{name: a, token: a-token, scopes: ['*']}]\n"},
		serve: []string{"--auth-token", "right", "--auth-tokens-file", "DIR/tokens.yaml"},
		prepare: `cp tokens.yaml tokens.new.yaml; echo 'tokens: [{name: a}]' >tokens.yaml
			until curl 'http://127.0.0.1:8082/metrics' | grep '^eventhub_setting_stale.* 1'; do :; done`,
		alerts: []string{"EventhubSettingStale"},
		says:   []string{"a file could not be read again.*tokens.yaml:1: a token has no token", `eventhub_setting_stale\{setting="auth_tokens_file"\} 1`},
		over:   []string{`eventhub_setting_stale\{setting="auth_tokens_file"\} 0`},
	},
}

// sections returns the blocks below each heading of a page.
func sections(page string) map[string][]snippet {
	found := make(map[string][]snippet)
	for _, part := range strings.Split(page, "\n## ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		found[title], _ = parts(title, rest)
	}
	return found
}

// alertExpressions returns the expressions of the alerts in deploy by their names.
func alertExpressions(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(source, "deploy", "prometheus", "alerts.yml"))
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, r := range file.Groups[0].Rules {
		found[r.Alert] = r.Expr
	}
	return found
}

// TestRunbooks runs the commands of each section of docs/runbooks.md against a hub in the
// state of its alert: the alert is there before and over afterwards.
func TestRunbooks(t *testing.T) {
	exprs := alertExpressions(t)
	found := sections(readPages(t)["docs/runbooks.md"])
	if len(found) != len(runbooks) {
		t.Errorf("the page has %d sections; %d are known", len(found), len(runbooks))
	}
	for title, blocks := range found {
		book, ok := runbooks[title]
		if !ok || len(blocks) < 2 || blocks[len(blocks)-1].info != "sh over" {
			t.Errorf("section %q is not known, or does not end in how to see that it is over", title)
			continue
		}
		t.Run(title, func(t *testing.T) {
			r := &runbookRun{t: t, dir: t.TempDir(), runbook: book, exprs: exprs}
			for name, text := range book.files {
				if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r.start()
			defer r.end()
			r.scrape()
			r.shell(book.prepare)
			r.scrape()
			r.alerts(true)
			if said, missing := r.blocks(blocks[:len(blocks)-1], book.fails, book.says); missing != "" {
				t.Errorf("the commands do not print %q:\n%s", missing, said)
			}
			r.untilOver(blocks[len(blocks)-1:])
			r.now = r.now.Add(time.Hour) // what counts in a range begins anew
			r.scrape()
			r.alerts(false)
		})
	}
}

type runbookRun struct {
	t   *testing.T
	dir string
	hub *hubProcess
	runbook
	exprs   map[string]string
	now     time.Time // the monitor's
	scrapes []promeval.Scrape
}

// end ends the hub, and the consumer that a shell has left behind.
func (r *runbookRun) end() {
	r.hub.kill()
	if pid, err := os.ReadFile(filepath.Join(r.dir, "consumer.pid")); err == nil {
		r.shell("kill -9 " + string(pid))
	}
}

// scrape does what a monitor does once in a minute.
func (r *runbookRun) scrape() {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.hub.ops+"/metrics", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if slices.Contains(r.serve, "--auth-token") {
		req.Header.Set("Authorization", "Bearer right")
	}
	for range 2 {
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			r.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			r.t.Fatalf("/metrics is %d %s, %v", answer.StatusCode, text, err)
		}
		if r.now.IsZero() {
			r.now = time.Now()
		}
		r.now = r.now.Add(time.Minute)
		r.scrapes = append(r.scrapes, promeval.Parse(r.now, string(text)))
	}
}

// alerts checks that the alerts of the section are there, or over.
func (r *runbookRun) alerts(there bool) {
	r.t.Helper()
	for _, name := range r.runbook.alerts {
		active, err := promeval.Firing(r.exprs[name], r.scrapes...)
		if err != nil || r.exprs[name] == "" || len(active) > 0 != there {
			r.t.Errorf("alert %s has %v, %v; want some: %t\n%s", name, active, err, there, r.hub.logged())
		}
	}
}

// untilOver looks, as somebody would, until the commands print that it is over: a consumer
// may not be done yet.
func (r *runbookRun) untilOver(blocks []snippet) {
	r.t.Helper()
	for late := time.After(watchdog); ; {
		said, missing := r.blocks(blocks, nil, r.over)
		if missing == "" || r.t.Failed() {
			return
		}
		select {
		case <-late:
			r.t.Fatalf("the commands do not print %q:\n%s", missing, said)
		default:
		}
	}
}

// blocks runs the commands of some blocks, of which some are to fail. It returns what they
// print, and what they should print and do not, "" where there is nothing.
func (r *runbookRun) blocks(blocks []snippet, fails, says []string) (said, missing string) {
	r.t.Helper()
	for _, s := range blocks {
		for line := range strings.Lines(s.text) {
			line = strings.TrimSpace(line)
			out, code := r.shell(line)
			if (code != 0) != slices.Contains(fails, line) {
				r.t.Errorf("%s ends with %d:\n%s\n%s", line, code, out, r.hub.logged())
			}
			said += out
			if line == "systemctl restart eventhub" {
				r.restart()
			}
		}
	}
	for _, text := range says {
		if !regexp.MustCompile(text).MatchString(said) {
			return said, text
		}
	}
	return said, ""
}

// restart is what systemd does.
func (r *runbookRun) restart() {
	r.hub.kill()
	r.start()
}

func (r *runbookRun) start() {
	args := []string{"--store", filepath.Join(r.dir, "store")}
	for _, flag := range r.serve {
		args = append(args, strings.Replace(flag, "DIR", r.dir, 1))
	}
	r.hub = startHub(r.t, args...)
}

// stubs stand for what a machine has and a test does not.
const stubs = `journalctl() { cat hub.log; }
systemctl() { [ "$*" = "restart eventhub" ]; }
df() { command df -h .; }
curl() { command curl -sS --fail-with-body -H 'Authorization: Bearer right' "$@"; }
`

// shell runs commands and returns what they print, and the exit code.
func (r *runbookRun) shell(script string) (said string, code int) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, "hub.log"), []byte(r.hub.logged()), 0o600); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), watchdog)
	defer cancel()
	at := strings.NewReplacer("127.0.0.1:8082", r.hub.ops).Replace(script)
	shell := exec.CommandContext(ctx, "bash", "-c", stubs+at)
	shell.Dir = r.dir
	shell.Env = append(cleanEnv(), "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"),
		"EVENTHUB_URL=ws://"+r.hub.ws, "EVENTHUB_OPS="+r.hub.ops, fmt.Sprint("HUB_PID=", r.hub.cmd.Process.Pid))
	if slices.Contains(r.serve, "--auth-token") && !strings.Contains(script, "EVENTHUB_TOKEN") {
		shell.Env = append(shell.Env, "EVENTHUB_TOKEN=right")
	}
	// A file and no pipe, which would be read until the consumer of a script has ended too: that one lives on.
	out, err := os.Create(filepath.Join(r.dir, "shell.out"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	shell.Stdout, shell.Stderr = out, out
	_ = shell.Run() // the exit code says how it went
	text, err := os.ReadFile(out.Name())
	if err != nil || ctx.Err() != nil {
		r.t.Fatalf("%s does not end, or %v:\n%s", script, err, text)
	}
	return string(text), shell.ProcessState.ExitCode()
}
