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

// TestPasses: only what passes passes, and what cannot be judged is counted.
func TestPasses(t *testing.T) {
	var b Bench
	for _, tt := range []struct {
		verdict                   filter.Verdict
		passes, costly            bool
		wantFailed, wantTooCostly uint64
	}{
		{filter.Passes, true, false, 0, 0},
		{filter.CostsTooMuch, false, true, 1, 1},
		{filter.Fails, false, false, 2, 1},
		{filter.Passes, true, false, 2, 1},
	} {
		passes, costly := b.Passes(says(tt.verdict), nil, 1)
		failed, tooCostly := b.Counts()
		if passes != tt.passes || costly != tt.costly || failed != tt.wantFailed || tooCostly != tt.wantTooCostly {
			t.Errorf("verdict %v: %v, %v, counts %d, %d; want %+v", tt.verdict, passes, costly, failed, tooCostly, tt)
		}
	}
}
