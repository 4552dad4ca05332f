// Package promeval evaluates as much of PromQL as the alerts in deploy use, over scrapes that
// a test has made, so that a test sees whether an alert is there or over. It is for tests. An
// increase is the difference of the last and the first value in its range, without
// extrapolation; an alert's "for" is the caller's.
package promeval

import (
	"bufio"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scrape is what a monitor got of a hub at a time. Series have their names and labels as
// Prometheus writes them: up, or events_acked_total{group="g",topic="t"}.
type Scrape struct {
	At     time.Time
	Series map[string]float64
}

// Parse reads the text of /metrics.
func Parse(at time.Time, text string) Scrape {
	s := Scrape{At: at, Series: map[string]float64{"up": 1}}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			s.Series[line[:i]] = v
		}
	}
	return s
}

// sample is one element of a vector; the name of a metric is no label.
type sample struct {
	labels map[string]string
	value  float64
}

// value is a vector, or a number where scalar is true.
type value struct {
	vector []sample
	number float64
	scalar bool
}

// Firing returns the elements of an expression, as "{group="g",topic="t"} 3", in order: where
// there are some, an alert on it is active. Scrapes are in the order of time; the last one is
// now.
func Firing(expr string, scrapes ...Scrape) (found []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("promeval: %v in %s", r, expr)
		}
	}()
	p := &parser{tokens: token.FindAllString(expr, -1), scrapes: scrapes}
	v := p.binary(0)
	if p.at != len(p.tokens) {
		panic(fmt.Sprintf("%q is left", p.tokens[p.at]))
	}
	for _, s := range v.vector {
		found = append(found, key(s.labels)+" "+strconv.FormatFloat(s.value, 'g', -1, 64))
	}
	slices.Sort(found)
	return found, nil
}

var (
	token   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\[[^\]]*\]|[0-9][0-9a-zA-Z.]*|[a-zA-Z_:][a-zA-Z0-9_:]*|[!=<>]=|\S`)
	label   = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	levels  = [][]string{{"or"}, {"and", "unless"}, {"==", "!=", "<", ">", "<=", ">="}, {"+", "-"}, {"*", "/"}}
	ofRange = []string{"increase", "rate", "changes", "max_over_time"}
)

func key(labels map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, fmt.Sprintf("%s=%q", name, labels[name]))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

type parser struct {
	tokens  []string
	at      int
	scrapes []Scrape
}

func (p *parser) peek() string {
	if p.at < len(p.tokens) {
		return p.tokens[p.at]
	}
	return ""
}

func (p *parser) next() string {
	t := p.peek()
	p.at++
	return t
}

func (p *parser) want(t string) {
	if got := p.next(); got != t {
		panic(fmt.Sprintf("%q instead of %q", got, t))
	}
}

// binary reads operators from a level of precedence on.
func (p *parser) binary(level int) value {
	if level == len(levels) {
		return p.primary()
	}
	left := p.binary(level + 1)
	for slices.Contains(levels[level], p.peek()) {
		op := p.next()
		left = combine(op, left, p.binary(level+1))
	}
	return left
}

func combine(op string, a, b value) value {
	if a.scalar && b.scalar {
		v, _ := apply(op, a.number, b.number)
		return value{number: v, scalar: true}
	}
	if a.scalar { // the vector is on the left of all that follows
		flipped := map[string]string{"<": ">", ">": "<", "<=": ">=", ">=": "<="}
		if f, ok := flipped[op]; ok {
			op = f
		} else if op == "-" || op == "/" {
			var out value
			for _, s := range b.vector {
				v, _ := apply(op, a.number, s.value)
				out.vector = append(out.vector, sample{s.labels, v})
			}
			return out
		}
		a, b = b, a
	}
	right := make(map[string]float64)
	for _, s := range b.vector {
		right[key(s.labels)] = s.value
	}
	var out value
	for _, s := range a.vector {
		other, there := right[key(s.labels)]
		if b.scalar {
			other, there = b.number, true
		}
		switch {
		case op == "unless" && there, op != "unless" && op != "or" && !there:
			continue
		case op == "and", op == "or", op == "unless":
			out.vector = append(out.vector, s)
			delete(right, key(s.labels))
			continue
		}
		if v, ok := apply(op, s.value, other); ok {
			out.vector = append(out.vector, sample{s.labels, v})
		}
	}
	if op == "or" {
		for _, s := range b.vector {
			if _, left := right[key(s.labels)]; left {
				out.vector = append(out.vector, s)
			}
		}
	}
	return out
}

// apply is an operator of two numbers; a comparison keeps the left one, where it holds.
func apply(op string, a, b float64) (_ float64, ok bool) {
	switch op {
	case "+":
		return a + b, true
	case "-":
		return a - b, true
	case "*":
		return a * b, true
	case "/":
		return a / b, true
	}
	holds := map[string]bool{"==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}
	return a, holds[op]
}

func (p *parser) primary() value {
	t := p.next()
	switch {
	case t == "(":
		v := p.binary(0)
		p.want(")")
		return v
	case t[0] >= '0' && t[0] <= '9':
		n, err := strconv.ParseFloat(t, 64)
		if err != nil {
			panic(err)
		}
		return value{number: n, scalar: true}
	case t == "time":
		p.want("(")
		p.want(")")
		return value{number: float64(p.scrapes[len(p.scrapes)-1].At.UnixMilli()) / 1000, scalar: true}
	case slices.Contains(ofRange, t):
		p.want("(")
		v := p.selector(p.next(), t)
		p.want(")")
		return v
	case t == "sum", t == "max", t == "min", t == "count":
		return p.aggregate(t)
	}
	return p.selector(t, "")
}

// aggregate reads sum by (labels) (vector), with or without the clause.
func (p *parser) aggregate(how string) value {
	var by []string
	if p.peek() == "by" {
		p.next()
		p.want("(")
		for p.peek() != ")" {
			if name := p.next(); name != "," {
				by = append(by, name)
			}
		}
		p.want(")")
	}
	p.want("(")
	v := p.binary(0)
	p.want(")")
	var out value
	at := make(map[string]int)
	for _, s := range v.vector {
		if how == "count" {
			s.value = 1
		}
		kept := make(map[string]string)
		for _, name := range by {
			if text, ok := s.labels[name]; ok {
				kept[name] = text
			}
		}
		i, there := at[key(kept)]
		if !there {
			at[key(kept)] = len(out.vector)
			out.vector = append(out.vector, sample{kept, s.value})
			continue
		}
		sum := &out.vector[i].value
		*sum = map[string]float64{"sum": *sum + s.value, "count": *sum + 1, "max": max(*sum, s.value), "min": min(*sum, s.value)}[how]
	}
	return out
}

// selector reads a metric with its matchers (= alone), and its range where a function wants
// one. The labels job and instance, which Prometheus adds, match anything.
func (p *parser) selector(name, function string) value {
	matchers := make(map[string]string)
	if p.peek() == "{" {
		for p.next(); p.peek() != "}"; {
			if p.peek() == "," {
				p.next()
			}
			of := p.next()
			p.want("=")
			text, err := strconv.Unquote(p.next())
			if err != nil {
				panic(err)
			}
			if of != "job" && of != "instance" {
				matchers[of] = text
			}
		}
		p.next()
	}
	now := p.scrapes[len(p.scrapes)-1]
	if function == "" {
		return value{vector: choose(now, name, matchers)}
	}
	within, err := time.ParseDuration(strings.Trim(p.next(), "[]"))
	if err != nil {
		panic(err)
	}
	var inRange []Scrape
	for _, s := range p.scrapes {
		if now.At.Sub(s.At) <= within {
			inRange = append(inRange, s)
		}
	}
	return value{vector: over(function, within, inRange, name, matchers)}
}

// over is a function of a range.
func over(function string, within time.Duration, scrapes []Scrape, name string, matchers map[string]string) (out []sample) {
	values := make(map[string][]float64)
	labels := make(map[string]map[string]string)
	for _, s := range scrapes {
		for _, one := range choose(s, name, matchers) {
			k := key(one.labels)
			values[k], labels[k] = append(values[k], one.value), one.labels
		}
	}
	for k, all := range values {
		if function == "max_over_time" {
			out = append(out, sample{labels[k], slices.Max(all)})
			continue
		}
		if len(all) < 2 {
			continue // one value says nothing of a change
		}
		result, changes := all[len(all)-1]-all[0], 0
		for i := range all[1:] {
			if all[i] != all[i+1] {
				changes++
			}
		}
		switch function {
		case "rate":
			result /= within.Seconds()
		case "changes":
			result = float64(changes)
		}
		out = append(out, sample{labels[k], result})
	}
	return out
}

// choose returns the series of a metric in a scrape.
func choose(s Scrape, name string, matchers map[string]string) (out []sample) {
	for series, v := range s.Series {
		bare, rest, _ := strings.Cut(series, "{")
		if bare != name {
			continue
		}
		labels := make(map[string]string)
		for _, m := range label.FindAllStringSubmatch(rest, -1) {
			labels[m[1]] = m[2]
		}
		fits := true
		for of, text := range matchers {
			fits = fits && labels[of] == text
		}
		if fits {
			out = append(out, sample{labels, v})
		}
	}
	return out
}
