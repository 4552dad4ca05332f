package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/output"
)

// version is set by the linker in releases; otherwise the module's or the
// commit's is shown.
var version string

func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

// build is what `version` prints.
type build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// versionLine is the version for people.
func versionLine() string {
	return fmt.Sprintf("eventhub %s %s %s/%s\n", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  words(),
	}
	format := formatFlag(cmd, listFormats)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b := build{versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
		return output.Document(results(cmd), format.Format, b, func(w io.Writer) error {
			_, err := io.WriteString(w, versionLine())
			return err
		})
	}
	return cmd
}
