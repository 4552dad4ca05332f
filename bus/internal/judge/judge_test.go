package judge

import (
	"fmt"
	"testing"

	"eventhub"
	"eventhub/internal/filter"
)

// TestCompile: equal filters share a program, others do not, and one that is refused
// leaves nothing. What is kept is bounded.
func TestCompile(t *testing.T) {
	var b Bench
	compile := func(f *eventhub.Filter) *filter.Program {
		t.Helper()
		p, err := b.Compile(f)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if compile(nil) != nil || compile(&eventhub.Filter{}) != nil {
		t.Error("a filter that passes everything has a program")
	}
	red, same, blue := compile(&eventhub.Filter{Tags: []string{"red"}}), compile(&eventhub.Filter{Tags: []string{"red"}}), compile(&eventhub.Filter{Tags: []string{"blue"}})
	if red == nil || red != same || red == blue {
		t.Errorf("programs: %p, %p, %p; want the first two to be one", red, same, blue)
	}
	if _, err := b.Compile(&eventhub.Filter{CEL: "1 +"}); err == nil || len(b.programs) != 2 {
		t.Errorf("a bad filter: %v; %d programs are kept, want 2", err, len(b.programs))
	}
	for i := range 3 * mostPrograms {
		compile(&eventhub.Filter{Tags: []string{fmt.Sprint(i)}})
		if n := len(b.programs); n > mostPrograms {
			t.Fatalf("%d programs are kept; want at most %d", n, mostPrograms)
		}
	}
}

// says is a filter that gives the same verdict on all events.
type says filter.Verdict

func (s says) Judge(eventhub.Record, uint64) filter.Verdict { return filter.Verdict(s) }

// TestJudge: what cannot be judged is counted.
func TestJudge(t *testing.T) {
	var b Bench
	for _, tt := range []struct {
		verdict                   filter.Verdict
		wantFailed, wantTooCostly uint64
	}{
		{filter.Passes, 0, 0},
		{filter.CostsTooMuch, 1, 1},
		{filter.Fails, 2, 1},
		{filter.Excludes, 2, 1},
		{filter.Passes, 2, 1},
	} {
		v := b.Judge(says(tt.verdict), nil, 1)
		failed, tooCostly := b.Counts()
		if v != tt.verdict || failed != tt.wantFailed || tooCostly != tt.wantTooCostly {
			t.Errorf("verdict %v: %v, counts %d, %d; want %+v", tt.verdict, v, failed, tooCostly, tt)
		}
	}
}
