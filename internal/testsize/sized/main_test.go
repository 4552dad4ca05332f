package main

import (
	"regexp"
	"slices"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// TestSized: a test has two sizes however it comes to them, and no other has.
func TestSized(t *testing.T) {
	const header = "package a\nimport (\n\"testing\"\n\"eventhub/internal/testsize\"\n\"eventhub/suite\"\n)\n"
	found, err := sized(fstest.MapFS{
		"suite/suite.go": file("package suite\nimport \"eventhub/internal/testsize\"\nfunc Run() int { return testsize.Of(2, 1) }\n"),
		"a/one_test.go": file(header + `
			var events = testsize.Int("events", 2, 1, "")
			type rig struct{ events int }
			func (r *rig) fill() { r.events = testsize.Of(2, 1) }
			func newRig() *rig { return new(rig) }
			func twice() int { return 2 * *events }
			func TestDirect(t *testing.T) { testsize.Checks(t, 2, 1) }
			func TestVariable(t *testing.T) { _ = *events }
			func TestFunction(t *testing.T) { twice() }
			func TestMethod(t *testing.T) { newRig().fill() }
			func TestSuite(t *testing.T) { suite.Run() }
			func TestHelper(t *testing.T) { heap() }
			func TestOneSize(t *testing.T) { events := 7; _ = events }
			func TestField(t *testing.T) { var v struct{ events, twice int }; v.events = v.twice }
			func TestMain(m *testing.M) { _ = *events; m.Run() }
		`),
		"a/full_test.go":         file("//go:build !race\n\npackage a\nimport \"testing\"\nfunc heap() {}\nfunc TestMemory(t *testing.T) {}\n"),
		"a/linux_test.go":        file("//go:build linux\n\npackage a\nimport \"testing\"\nfunc TestLinux(t *testing.T) {}\n"),
		"a/other_test.go":        file("//go:build !linux\n\npackage a\nimport \"testing\"\nfunc TestOtherSystem(t *testing.T) {}\n"),
		"b/b_test.go":            file("package b\nimport \"testing\"\nfunc TestOther(t *testing.T) {}\n"),
		"a/testdata/x_test.go":   file("no Go"),
		".hidden/hidden_test.go": file("no Go"),
		"other/go.mod":           file("module other\n"),
		"other/x_test.go":        file(header + "func TestOfAnotherModule(t *testing.T) { testsize.Checks(t, 2, 1) }\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"TestDirect", "TestFunction", "TestMemory", "TestMethod", "TestSuite", "TestVariable"}
	if len(found) != 1 || !slices.Equal(found["a"], want) {
		t.Errorf("%v; want %v of a", found, want)
	}
	matches := regexp.MustCompile(expression(found))
	if !matches.MatchString("TestDirect") || matches.MatchString("TestDirectly") || matches.MatchString("TestOther") {
		t.Errorf("the expression is %s", matches)
	}
}
