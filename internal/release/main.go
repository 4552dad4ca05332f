// Command release says what a built binary consists of, for make release. It reads the
// list of modules that the Go linker put into the binary, so that what it says is true
// of exactly these bytes.
//
//	release sbom BINARY      a software bill of materials, CycloneDX 1.6 as JSON
//	release licenses BINARY  the licence and notice files of every module
//
// Licences are read from the sources of the modules, which the build has put into the
// module cache; nothing is downloaded. SOURCE_DATE_EPOCH, in seconds, is the time of the
// SBOM. The same binary and the same time give the same bytes.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 2 || args[0] != "sbom" && args[0] != "licenses" {
		return errors.New("usage: release sbom|licenses BINARY")
	}
	modules, err := linked(args[1])
	if err != nil {
		return err
	}
	if args[0] == "licenses" {
		return writeLicences(out, modules)
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH, the time of the SBOM in seconds: %w", err)
	}
	binary, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	for _, m := range modules {
		if len(m.licences) == 0 {
			fmt.Fprintf(os.Stderr, "release: no licence is recognised in %s; the SBOM has none for it\n", m.dir)
		}
	}
	return writeSBOM(out, binary, os.Getenv("VERSION"), time.Unix(seconds, 0), modules)
}

// module is a Go module of a binary, or the standard library.
type module struct {
	path, version string
	sum           string // as in go.sum; empty for the standard library
	dir           string // where its sources are
	licences      []string
}

// linked returns the modules of a binary, the standard library first.
func linked(binary string) ([]module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("%s is no program that Go built: %w", binary, err)
	}
	if info.GoVersion != runtime.Version() {
		return nil, fmt.Errorf("%s was built by %s, and this is %s, whose licence is read", binary, info.GoVersion, runtime.Version())
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	modules := []module{{path: "std", version: strings.TrimPrefix(info.GoVersion, "go"), dir: strings.TrimSpace(string(goroot))}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, module{path: m.Path, version: m.Version, sum: m.Sum})
	}
	if err := locate(modules[1:]); err != nil {
		return nil, err
	}
	for i := range modules {
		if modules[i].licences, err = licencesOf(modules[i].dir); err != nil {
			return nil, err
		}
	}
	return modules, nil
}

// locate finds the sources of modules in the module cache.
func locate(modules []module) error {
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		args = append(args, m.path+"@"+m.version)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOPROXY=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	listing, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the modules of the binary are not all in the module cache; build it here first: %w\n%s%s", err, listing, stderr.Bytes())
	}
	dirs := make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(listing)); ; {
		var m struct{ Path, Version, Dir string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("go mod download -json: %w", err)
		}
		dirs[m.Path+"@"+m.Version] = filepath.Clean(m.Dir)
	}
	for i := range modules {
		m := &modules[i]
		if m.dir = dirs[m.path+"@"+m.version]; m.dir == "" {
			return fmt.Errorf("%s %s is not in the module cache", m.path, m.version)
		}
	}
	return nil
}
