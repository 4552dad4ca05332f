package archtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestSoakSuites holds the suites of scripts/soak against the tests that there are: a
// suite whose test has another name now would run nothing.
func TestSoakSuites(t *testing.T) {
	script, err := os.ReadFile("../../scripts/soak")
	if err != nil {
		t.Fatal(err)
	}
	suites := regexp.MustCompile(`(?m)^(?:\w+=\w+ )?suite (\S+) '?([^ ']+)'?`).FindAllSubmatch(script, -1)
	if len(suites) == 0 {
		t.Fatal("scripts/soak has no suite")
	}
	for _, suite := range suites {
		sources, err := filepath.Glob(filepath.Join("../..", string(suite[1]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		test := regexp.MustCompile(`(?m)^func ` + string(suite[2]) + `\(t \*testing\.T\)`)
		found := false
		for _, path := range sources {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found = found || test.Match(source)
		}
		if !found {
			t.Errorf("scripts/soak runs %s of ./%s, and there is no such test", suite[2], suite[1])
		}
	}
}

// TestSoakUnknownSuite: a name with a typo runs nothing, so it must not look as if all
// went well.
func TestSoakUnknownSuite(t *testing.T) {
	out, err := exec.Command("../../scripts/soak", "TestNobodyIsStuk").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("scripts/soak with an unknown suite: %v, want exit code 2", err)
	}
	for _, want := range []string{"TestNobodyIsStuk", "TestNobodyIsStuck"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the output does not name %s: %s", want, out)
		}
	}
}
