package ops

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub/internal/promeval"
)

// known are metrics by name, with their labels.
type known map[string][]string

// exposed are the metrics of a hub in which every series has a value, as
// Prometheus stores them, with what it adds.
func exposed(t *testing.T) known {
	cfg := filled().config()
	metrics := known{"up": {"job", "instance"}}
	for key := range scrape(t, open(t, cfg)) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(key, "}"), "{")
		metrics[name] = []string{"job", "instance"}
		for _, l := range labelName.FindAllStringSubmatch(labels, -1) {
			metrics[name] = append(metrics[name], l[1])
		}
	}
	return metrics
}

var (
	labelName = regexp.MustCompile(`(\w+)="`)

	// promToken is a string, a range, a number or duration, a name, an operator,
	// or any other character.
	promToken = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[0-9][0-9a-zA-Z.]*|[a-zA-Z_:$][a-zA-Z0-9_:]*|=~|!~|[!=<>]=|\S`)
	promName  = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	promRange = regexp.MustCompile(`^\[([0-9]+[smhd]|\$__rate_interval)\]$`)

	promFunctions = []string{"avg", "changes", "count", "deriv", "histogram_quantile", "increase", "label_values", "max", "max_over_time", "min", "rate", "sum", "time"}
	promWords     = []string{"and", "or", "unless", "offset"}
	promClauses   = []string{"by", "without", "on", "ignoring"}
)

// promFaults says what is wrong with an expression in PromQL, or with Grafana's
// label_values: metrics, labels and functions that do not exist, brackets that do
// not fit. It reads as much of the language as deploy uses and takes what it does
// not know for a fault.
func promFaults(expr string, metrics known) []string {
	p := promReader{tokens: promToken.FindAllString(expr, -1), metrics: metrics}
	for p.at < len(p.tokens) {
		p.step()
	}
	if p.open != 0 {
		p.fault("%d brackets are not closed", p.open)
	}
	if p.found == 0 {
		p.fault("no metric")
	}
	for i := range p.faults {
		p.faults[i] += " in " + expr
	}
	return p.faults
}

type promReader struct {
	tokens  []string
	at      int
	metrics known
	labels  []string // of the metrics that were named
	open    int
	found   int
	faults  []string
}

func (p *promReader) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

// peek is the token at the reader, or "" after the last.
func (p *promReader) peek() string {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return ""
}

func (p *promReader) step() {
	token := p.peek()
	p.at++
	switch {
	case token == "(":
		p.open++
	case token == ")":
		p.open--
	case token[0] == '[':
		if !promRange.MatchString(token) {
			p.fault("range %s", token)
		}
	case !promName.MatchString(token), slices.Contains(promWords, token):
	case slices.Contains(promClauses, token):
		p.clause()
	case slices.Contains(promFunctions, token):
	case p.peek() == "(":
		p.fault("function %s", token)
	default:
		p.selector(token)
	}
}

// clause reads the labels of by (…) and its like. They are to be on any metric:
// which one they mean, only an evaluation would show.
func (p *promReader) clause() {
	for p.at++; p.peek() != ")" && p.peek() != ""; p.at++ {
		label := p.peek()
		if label != "," && !slices.ContainsFunc(p.all(), func(labels []string) bool { return slices.Contains(labels, label) }) {
			p.fault("label %s", label)
		}
	}
	p.at++
}

func (p *promReader) all() [][]string {
	var all [][]string
	for _, labels := range p.metrics {
		all = append(all, labels)
	}
	return all
}

// selector reads a metric and its matchers, or the label of label_values.
func (p *promReader) selector(name string) {
	if p.found > 0 && p.tokens[0] == "label_values" {
		if !slices.Contains(p.labels, name) {
			p.fault("label %s", name)
		}
		return
	}
	p.found++
	labels, ok := p.metrics[name]
	if !ok {
		p.fault("metric %s", name)
	}
	p.labels = labels
	if p.peek() != "{" {
		return
	}
	for p.at++; p.peek() != "}" && p.peek() != ""; p.at++ {
		if token := p.peek(); promName.MatchString(token) && ok && !slices.Contains(labels, token) {
			p.fault("label %s of %s", token, name)
		}
	}
	p.at++
}

// TestPromFaults shows that the check bites: what is right passes, and each
// misspelling is found.
func TestPromFaults(t *testing.T) {
	metrics := exposed(t)
	for _, tt := range []struct{ expr, fault string }{
		{`up{job="eventhub"} == 0`, ""},
		{`sum by (topic) (rate(events_published_total{instance=~"$instance",topic=~"$topic"}[$__rate_interval]))`, ""},
		{`histogram_quantile(0.99, sum by (instance, le) (rate(eventhub_commit_duration_seconds_bucket[5m]))) > 0.25`, ""},
		{`eventhub_store_size_bytes > 10e9 and eventhub_store_size_bytes > 1.5 * (eventhub_store_size_bytes offset 1d)`, ""},
		{`label_values(events_published_total{topic=~"a"}, topic)`, ""},
		{`process_start_time_seconds + go_goroutines`, ""},

		{`rate(events_publishd_total[5m])`, "metric events_publishd_total"},
		{`eventhub_commit_duration_seconds > 1`, "metric eventhub_commit_duration_seconds"}, // a histogram has no such series
		{`sum by (topc) (events_inflight)`, "label topc"},
		{`events_inflight{grup="a"}`, "label grup of events_inflight"},
		{`eventhub_connections{topic="a"}`, "label topic of eventhub_connections"},
		{`rat(events_acked_total[5m])`, "function rat"},
		{`rate(events_acked_total[5min])`, "range [5min]"},
		{`sum(rate(events_acked_total[5m])`, "1 brackets"},
		{`label_values(events_published_total, group)`, "label group"},
		{`1 > 2`, "no metric"},
	} {
		faults := promFaults(tt.expr, metrics)
		if tt.fault == "" && len(faults) > 0 || tt.fault != "" && (len(faults) != 1 || !strings.HasPrefix(faults[0], tt.fault)) {
			t.Errorf("%s: found %q; want %q", tt.expr, faults, tt.fault)
		}
	}
}

// TestDeadLetterAlert: the alert stays as long as a dead letter is open, or redriven and not
// done, however long that is, and ends then, although the counter of dead letters stays.
func TestDeadLetterAlert(t *testing.T) {
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	i := slices.IndexFunc(file.Groups[0].Rules, func(r struct {
		Alert, Expr, For    string
		Labels, Annotations map[string]string
	}) bool {
		return r.Alert == "EventhubDeadLetters"
	})
	f := filled()
	f.engine.Groups[0].DeadLettered = 2
	hub := open(t, f.config())
	var scrapes []promeval.Scrape
	now := time.Unix(1_000_000, 0)
	for _, tt := range []struct {
		open, redriven uint64
		after          time.Duration
		want           string
	}{
		{0, 0, 0, ""},
		{2, 0, time.Minute, `{group="billing",topic="orders"} 2`},
		{2, 0, 24 * time.Hour, `{group="billing",topic="orders"} 2`},
		{1, 1, time.Minute, `{group="billing",topic="orders"} 2`},
		{0, 1, 24 * time.Hour, `{group="billing",topic="orders"} 1`},
		{0, 0, time.Minute, ""},
	} {
		now = now.Add(tt.after)
		f.engine.Groups[0].OpenLetters, f.engine.Groups[0].Redriven = tt.open, tt.redriven
		scrapes = append(scrapes, promeval.Parse(now, get(hub, "/metrics").Body.String()))
		active, err := promeval.Firing(file.Groups[0].Rules[i].Expr, scrapes...)
		if got := strings.Join(active, ","); got != tt.want || err != nil {
			t.Errorf("%d open and %d redriven after %s: the alert has %s, %v; want %s", tt.open, tt.redriven, tt.after, got, err, tt.want)
		}
	}
}

// TestConnectionsAlert: it fires before connections are refused, by the limit that holds.
func TestConnectionsAlert(t *testing.T) {
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	for scraped, want := range map[string]int{
		"eventhub_connections 9000\n": 0, "eventhub_connections 9001\n": 1,
		"eventhub_connections 4500\neventhub_limit_connections{limit=\"connections_total\"} 5000\n": 0,
		"eventhub_connections 4501\neventhub_limit_connections{limit=\"connections_total\"} 5000\n": 1,
		"eventhub_connections 100\neventhub_limit_connections{limit=\"connections_address\"} 50\n":  0,
		"eventhub_connections 9001\neventhub_limit_connections{limit=\"connections_total\"} 9001\n": 1,
	} {
		found := false
		for _, r := range file.Groups[0].Rules {
			if r.Alert != "EventhubConnectionsNearLimit" {
				continue
			}
			found = true
			if active, err := promeval.Firing(r.Expr, promeval.Parse(time.Unix(1_000_000, 0), scraped)); len(active) != want || err != nil {
				t.Errorf("%q: %v, %v", scraped, active, err)
			}
		}
		if !found {
			t.Error("there is no such alert")
		}
	}
}

// TestOverloadedAlert: how much waits swings with each commit, so an alert on what a scrape finds would begin anew with most of
// them. It holds over what scrapes found under three times the load that a hub could take, and ends after one that was alone
// before it fires.
func TestOverloadedAlert(t *testing.T) {
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	i := slices.IndexFunc(file.Groups[0].Rules, func(r struct {
		Alert, Expr, For    string
		Labels, Annotations map[string]string
	}) bool {
		return r.Alert == "EventhubOverloaded"
	})
	rule := file.Groups[0].Rules[i]
	wait, err := time.ParseDuration(rule.For)
	if err != nil {
		t.Fatal(err)
	}
	longest := func(percents ...int) (longest time.Duration) {
		const every = 15 * time.Second
		var scrapes []promeval.Scrape
		var since time.Duration = -1
		for n, percent := range percents {
			at := time.Duration(n) * every
			scrapes = append(scrapes, promeval.Parse(time.Unix(1_000_000, 0).Add(at), fmt.Sprintf("eventhub_publish_load_percent %d\n", percent)))
			active, err := promeval.Firing(rule.Expr, scrapes...)
			if err != nil {
				t.Fatal(err)
			}
			if len(active) == 0 {
				since = -1
				continue
			}
			if since < 0 {
				since = at
			}
			longest = max(longest, at-since)
		}
		return longest
	}
	swings := []int{49, 30, 58, 30, 100, 13, 91, 9, 4, 4, 6, 9, 100, 119, 101, 14, 88, 65, 11, 100, 30, 100, 11, 22, 101, 61, 100, 101, 79, 100, 100, 100, 20, 12, 100, 74, 103, 4, 75, 83}
	if held := longest(swings...); held < wait {
		t.Errorf("under overload it holds for %s at most, and fires after %s", held, wait)
	}
	if held := longest(append([]int{20, 100}, make([]int, 20)...)...); held >= wait {
		t.Errorf("after one scrape it holds for %s, and fires after %s", held, wait)
	}
	if held := longest(slices.Repeat([]int{79, 20}, 20)...); held != 0 {
		t.Errorf("below what is refused it holds for %s", held)
	}
}

// TestOutboxAlerts: each fires for what it is about and for nothing else, and none for a hub that
// has no outbox or an outbox that is well.
func TestOutboxAlerts(t *testing.T) {
	var file alertRules
	readYAML(t, deployed(t, "deploy", "prometheus", "alerts.yml"), &file)
	body := get(open(t, filled().config()), "/metrics").Body.String()
	was := []string{"\neventhub_outbox_up 0\n", "\neventhub_outbox_oldest_seconds 0\n", "\neventhub_outbox_rows{status=\"error\"} 0\n"}
	for _, line := range was {
		if !strings.Contains(body, line) {
			t.Fatalf("a hub with an outbox does not expose %q", line)
		}
	}
	scraped := func(up, oldest, parked string) string {
		return strings.NewReplacer(was[0], "\neventhub_outbox_up "+up+"\n", was[1], "\neventhub_outbox_oldest_seconds "+oldest+"\n",
			was[2], "\neventhub_outbox_rows{status=\"error\"} "+parked+"\n").Replace(body)
	}
	for name, tt := range map[string]struct{ metrics, want string }{
		"well":             {scraped("1", "299", "0"), ""},
		"old":              {scraped("1", "301", "0"), "EventhubOutboxOld"},
		"parked":           {scraped("1", "0", "2"), "EventhubOutboxParked"},
		"away":             {scraped("0", "0", "0"), "EventhubOutboxAway"},
		"of a hub without": {"up 1\n", ""},
	} {
		var fires []string
		rules := 0
		for _, r := range file.Groups[0].Rules {
			if !strings.HasPrefix(r.Alert, "EventhubOutbox") {
				continue
			}
			rules++
			active, err := promeval.Firing(r.Expr, promeval.Parse(time.Unix(1_000_000, 0), tt.metrics))
			if err != nil {
				t.Error(err)
			}
			if len(active) > 0 {
				fires = append(fires, r.Alert)
			}
		}
		if got := strings.Join(fires, ","); got != tt.want || rules != 3 {
			t.Errorf("%s: %q fire of %d; want %q", name, got, rules, tt.want)
		}
	}
}
