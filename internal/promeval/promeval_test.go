package promeval

import (
	"strings"
	"testing"
	"time"
)

// TestFiring: expressions have the elements that Prometheus gives them.
func TestFiring(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	scrapes := []Scrape{
		Parse(begin, "# HELP a A.\na{t=\"x\"} 1\na{t=\"y\"} 5\nb{t=\"x\"} 0\nn 3\n"),
		Parse(begin.Add(5*time.Minute), "a{t=\"x\"} 4\na{t=\"y\"} 5\nb{t=\"x\"} 2\nb{t=\"z\"} 9\nn 3\n"),
	}
	for _, tt := range []struct{ expr, want string }{
		{`a`, `{t="x"} 4,{t="y"} 5`},
		{`a > 4`, `{t="y"} 5`},
		{`4 < a`, `{t="y"} 5`},
		{`a + b > 0`, `{t="x"} 6`},
		{`a{t="x"} * 2 + 1 >= 9`, `{t="x"} 9`},
		{`10 - a`, `{t="x"} 6,{t="y"} 5`},
		{`(a or b) > 4`, `{t="y"} 5,{t="z"} 9`},
		{`a unless b`, `{t="y"} 5`},
		{`a > 0 and b > 0`, `{t="x"} 4`},
		{`increase(a[10m]) > 0`, `{t="x"} 3`},
		{`increase(b{t="z"}[10m]) > 0`, ``},
		{`increase(a[1m]) > 0`, ``},
		{`changes(a{job="eventhub"}[10m]) == 1`, `{t="x"} 1`},
		{`max_over_time(b[10m])`, `{t="x"} 2,{t="z"} 9`},
		{`max_over_time(a{t="x"}[1m])`, `{t="x"} 4`},
		{`sum(a) > 8`, `{} 9`},
		{`count(a > 3)`, `{} 2`},
		{`count by (t) (a) or 0 * count(b)`, `{t="x"} 1,{t="y"} 1,{} 0`},
		{`sum by (t) (rate(a[5m])) * 100`, `{t="x"} 1,{t="y"} 0`},
		{`time() - n`, `{} 1.000297e+06`},
		{`up == 0`, ``},
	} {
		got, err := Firing(tt.expr, scrapes...)
		if strings.Join(got, ",") != tt.want || err != nil {
			t.Errorf("%s is %q, %v; want %s", tt.expr, got, err, tt.want)
		}
	}
	for _, bad := range []string{`a >`, `a{t="x"`, `a b`, `deriv(a[5m])`} {
		if got, err := Firing(bad, scrapes...); err == nil {
			t.Errorf("%s is %q", bad, got)
		}
	}
}
