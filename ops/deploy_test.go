package ops

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the table of metrics into docs/metrics.md")

func deployed(t *testing.T, parts ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{".."}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func readYAML(t *testing.T, content []byte, into any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatal(err)
	}
}

// alertRules is the form of a file of alerting rules.
type alertRules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

var alertLabel = regexp.MustCompile(`\$labels\.(\w+)`)

// TestAlerts: every alert asks for what a hub exposes, speaks of labels that it
// has, and is spoken of in the handbook.
func TestAlerts(t *testing.T) {
	metrics := exposed(t)
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	handbook := string(deployed(t, "docs", "metrics.md"))
	seen := make(map[string]bool)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			for _, fault := range promFaults(r.Expr, metrics) {
				t.Errorf("alert %s: %s", r.Alert, fault)
			}
			if _, err := model.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("alert %s: %v", r.Alert, err)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("alert %s has severity %q", r.Alert, s)
			}
			said := r.Annotations["summary"] + r.Annotations["description"]
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s says nothing: %v", r.Alert, r.Annotations)
			}
			for _, m := range alertLabel.FindAllStringSubmatch(said, -1) {
				if label := m[1]; label != "instance" && !strings.Contains(r.Expr, label) && !labelled(r.Expr, metrics, label) {
					t.Errorf("alert %s speaks of label %s, which it does not have", r.Alert, label)
				}
			}
			page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
			heading := regexp.MustCompile("(?mi)^##+ " + strings.ReplaceAll(anchor, "-", "[ -]") + "$")
			if anchor == "" || !heading.Match(deployed(t, strings.Split(page, "/")...)) {
				t.Errorf("alert %s leads to %q, which is not there", r.Alert, r.Annotations["runbook_url"])
			}
			if page == "docs/ha.md" && !strings.Contains(string(deployed(t, "docs", "ha.md")), "`"+r.Alert+"`") {
				t.Errorf("docs/ha.md does not speak of alert %s", r.Alert)
			}
			if page == "docs/runbooks.md" && !strings.Contains(string(deployed(t, "docs", "runbooks.md")), "`"+r.Alert+"`") {
				t.Errorf("docs/runbooks.md does not speak of alert %s", r.Alert)
			}
			if seen[r.Alert] || !strings.Contains(handbook, "`"+r.Alert+"`") {
				t.Errorf("alert %s is there twice or not in docs/metrics.md", r.Alert)
			}
			seen[r.Alert] = true
		}
	}
	for _, m := range regexp.MustCompile("`(Eventhub[A-Z]\\w+)`").FindAllStringSubmatch(handbook, -1) {
		if !seen[m[1]] {
			t.Errorf("docs/metrics.md speaks of alert %s, which is not there", m[1])
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d alerts", len(seen))
	}
}

// labelled reports whether a metric of the expression has the label.
func labelled(expr string, metrics known, label string) bool {
	return slices.ContainsFunc(promToken.FindAllString(expr, -1), func(token string) bool { return slices.Contains(metrics[token], label) })
}

// TestScrapeExample: the example scrapes the default address as the job that
// alerts and dashboard look for.
func TestScrapeExample(t *testing.T) {
	var file struct {
		Global        map[string]string
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string                       `yaml:"job_name"`
			MetricsPath   string                       `yaml:"metrics_path"`
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, deployed(t, "deploy", "prometheus", "prometheus.yml"), &file)
	if got := fmt.Sprint(file.RuleFiles, file.ScrapeConfigs); got != "[alerts.yml] [{eventhub /metrics [{[127.0.0.1:8082]}]}]" {
		t.Errorf("the example is %s", got)
	}
}

// dashboard is as much of the form of Grafana's dashboards as is checked.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ UID string }
	Targets                  []struct{ Expr, LegendFormat string }
}

// TestDashboard: every panel asks for what a hub exposes by the variables that
// there are.
func TestDashboard(t *testing.T) {
	metrics := exposed(t)
	board := readDashboard(t)
	variables := []string{"$__rate_interval"}
	for _, v := range board.Templating.List {
		if v.Definition != "" {
			for _, fault := range promFaults(v.Definition, metrics) {
				t.Errorf("variable %s: %s", v.Name, fault)
			}
		}
		variables = append(variables, "$"+v.Name)
	}
	for _, name := range []string{"$datasource", "$instance", "$topic", "$group"} {
		if !slices.Contains(variables, name) {
			t.Errorf("there is no variable %s", name)
		}
	}
	for _, p := range board.Panels {
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q lacks a description, a target or the data source", p.Title)
		}
		for _, target := range p.Targets {
			for _, fault := range promFaults(target.Expr, metrics) {
				t.Errorf("panel %q: %s", p.Title, fault)
			}
			for _, v := range regexp.MustCompile(`\$\w+`).FindAllString(target.Expr, -1) {
				if !slices.Contains(variables, v) {
					t.Errorf("panel %q uses %s, which is no variable", p.Title, v)
				}
			}
			if labelled(target.Expr, metrics, "topic") && !strings.Contains(target.Expr, `topic=~"$topic"`) {
				t.Errorf("panel %q shows topics that nobody has chosen: %s", p.Title, target.Expr)
			}
			for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !labelled(target.Expr, metrics, m[1]) {
					t.Errorf("panel %q: the legend names %s, which is no label", p.Title, m[1])
				}
			}
		}
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var board dashboard
	if err := json.Unmarshal(deployed(t, "deploy", "grafana", "eventhub.json"), &board); err != nil {
		t.Fatal(err)
	}
	return board
}

// TestNoPanelHidesAnother, and each has an id and a title.
func TestNoPanelHidesAnother(t *testing.T) {
	taken := make(map[[2]int]string)
	ids := make(map[int]bool)
	for _, p := range readDashboard(t).Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q has no id of its own or no title", p.ID, p.Title)
		}
		ids[p.ID] = true
		for cell := range p.GridPos.W * p.GridPos.H {
			at := [2]int{p.GridPos.X + cell%p.GridPos.W, p.GridPos.Y + cell/p.GridPos.W}
			if taken[at] != "" || at[0] >= 24 {
				t.Fatalf("panel %q is outside, or covers %q", p.Title, taken[at])
			}
			taken[at] = p.Title
		}
	}
}

// TestEveryOwnMetricIsOnTheDashboard: what is worth measuring is worth a look.
func TestEveryOwnMetricIsOnTheDashboard(t *testing.T) {
	board := string(deployed(t, "deploy", "grafana", "eventhub.json"))
	for _, m := range documented(t) {
		if !strings.Contains(board, m.name) {
			t.Errorf("%s is not on the dashboard", m.name)
		}
	}
}

// documented are the metrics that the handbook has to explain: all but those of
// Prometheus' own collectors.
func documented(t *testing.T) []metric {
	t.Helper()
	_, all := read(t, open(t, filled().config()))
	all = slices.DeleteFunc(all, func(m metric) bool {
		return strings.HasPrefix(m.name, "go_") || strings.HasPrefix(m.name, "process_") || strings.HasPrefix(m.name, "promhttp_")
	})
	// The seeds' names first.
	slices.SortFunc(all, func(a, b metric) int {
		if own := strings.HasPrefix(a.name, "eventhub_"); own != strings.HasPrefix(b.name, "eventhub_") {
			return map[bool]int{true: 1, false: -1}[own]
		}
		return strings.Compare(a.name, b.name)
	})
	return all
}

const tableStart, tableEnd = "<!-- metrics: written by go test ./ops -update -->\n", "<!-- end of metrics -->\n"

// TestMetricsAreDocumented: the table of the handbook is that of the code.
func TestMetricsAreDocumented(t *testing.T) {
	var table strings.Builder
	table.WriteString("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n")
	for _, m := range documented(t) {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(m.labels, ", "), m.help)
	}
	handbook := string(deployed(t, "docs", "metrics.md"))
	before, rest, ok := strings.Cut(handbook, tableStart)
	have, after, ended := strings.Cut(rest, tableEnd)
	if !ok || !ended {
		t.Fatal("docs/metrics.md has no place for the table of metrics")
	}
	if have == table.String() {
		return
	}
	if !*update {
		t.Fatalf("docs/metrics.md has another table of metrics than the code: go test ./ops -run %s -update\nit has\n%s\nthe code has\n%s", t.Name(), have, table.String())
	}
	content := before + tableStart + table.String() + tableEnd + after
	if err := os.WriteFile(filepath.Join("..", "docs", "metrics.md"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLogLinesExist: what the handbook says of the log is what the hub says.
func TestLogLinesExist(t *testing.T) {
	var source strings.Builder
	for _, dir := range []string{"auth", "bus", "cmd", "gateway", "hub", "internal/livefile", "ops", "store"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			source.Write(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	lines := 0
	row := regexp.MustCompile(`(?m)^\| (?:debug|info|warn|error) \| (.*?) \|`)
	for _, m := range row.FindAllStringSubmatch(string(deployed(t, "docs", "operations.md")), -1) {
		for _, msg := range regexp.MustCompile("`(.*?)`").FindAllStringSubmatch(m[1], -1) {
			lines++
			if !strings.Contains(source.String(), strconv.Quote(msg[1])) {
				t.Errorf("no program logs %q", msg[1])
			}
		}
	}
	if lines < 15 {
		t.Errorf("only %d log lines are explained", lines)
	}
}
