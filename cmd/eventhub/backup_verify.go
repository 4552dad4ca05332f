package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/output"
	"eventhub/hub"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Read all of a backup, or of a store",
		Long: `Reads every event of the store in DIR: each has to be one, offsets and commit times have
to rise. Of a backup the files are held against its checksums first. It works on a copy
that is made beside DIR and shares with it what never changes, so DIR stays as it is; no
hub may run on it meanwhile. What is wrong is told, and ends the command with 1. What may
be wrong and leaves a whole store is a warning: the end of a log that is not whole, which
a crash may leave as well. In JSON that is an object with nothing but "warning".`,
		Example: `  eventhub verify /backups/eventhub-2026-01-31
  eventhub verify ./eventhub-data -o json`,
		Args: words("DIR"),
	}
	format := formatFlag(cmd, listFormats)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stock, warnings, err := verifyDir(cmd.Context(), filepath.Clean(args[0]))
		for _, text := range warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", text)
		}
		if err != nil {
			return err
		}
		var lines []verified
		if format.Format != output.Table {
			for _, text := range warnings {
				lines = append(lines, verified{Warning: text})
			}
		}
		for i := range stock {
			lines = append(lines, verified{Stock: &stock[i]})
		}
		out := results(cmd)
		if err := output.List(out, format.Format, out.Color, stockColumns(), each(lines)); err != nil {
			return err
		}
		var events, bytes uint64
		for _, s := range stock {
			events += s.Events
			bytes += s.Bytes
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "verified %s, %s, %s\n", output.Things(len(stock), "topic"), output.Things(events, "event"), output.Things(bytes, "byte"))
		return nil
	}
	return cmd
}

// verified is a topic, or a warning.
type verified struct {
	*hub.Stock
	Warning string `json:"warning,omitempty"`
}

func stockColumns() []output.Column[verified] {
	return []output.Column[verified]{
		{Name: "TOPIC", Cell: func(s verified) string { return s.Topic }},
		{Name: "EVENTS", Right: true, Cell: func(s verified) string { return strconv.FormatUint(s.Events, 10) }},
		{Name: "BYTES", Right: true, Cell: func(s verified) string { return strconv.FormatUint(s.Bytes, 10) }},
		{Name: "FIRST", Right: true, Cell: func(s verified) string { return offsetCell(s.First) }},
		{Name: "LAST", Right: true, Cell: func(s verified) string { return offsetCell(s.Last) }},
		{Name: "GROUPS", Right: true, Cell: func(s verified) string { return strconv.Itoa(s.Groups) }},
		{Name: "NEWEST EVENT", Cell: func(s verified) string { return output.Time(s.LastTS) }},
	}
}

// verifyDir reads a copy of the store in dir.
func verifyDir(ctx context.Context, dir string) (stock []hub.Stock, warnings []string, err error) {
	if _, err := os.Stat(filepath.Join(dir, formatFile)); err != nil {
		return nil, nil, usageError{fmt.Errorf("%s is no store: %w", dir, err)}
	}
	if err := notInUse(filepath.Join(dir, "LOCK")); err != nil {
		return nil, nil, err
	}
	sums, err := readSums(dir)
	if err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close() // it is only read
	if err := checkSums(root, sums); err != nil {
		return nil, nil, err
	}
	temp, err := placeForCopy(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = &verifyError{err, temp, dir}
		}
		err = errors.Join(err, os.RemoveAll(temp))
	}()
	if err := shareTree(dir, temp); err != nil {
		return nil, nil, err
	}
	warn := func(text string) { warnings = append(warnings, strings.ReplaceAll(text, temp, dir)) }
	err = hub.VerifyStore(ctx, temp, warn, func(s hub.Stock) error {
		stock = append(stock, s)
		return nil
	})
	return stock, warnings, err
}

// verifyError is what is wrong with a copy, told of the directory that was named.
type verifyError struct {
	error
	copied, named string
}

func (e *verifyError) Error() string { return strings.ReplaceAll(e.error.Error(), e.copied, e.named) }
func (e *verifyError) Unwrap() error { return e.error }

// placeForCopy makes a directory beside dir, or beside what dir is a link to: so the copy
// can have tables in common with it. Where it can not, the directory is among other
// temporary files.
func placeForCopy(dir string) (string, error) {
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		temp, err = os.MkdirTemp("", "eventhub-verify-*")
	}
	return filepath.Clean(temp), err
}

// shareTree copies a store. Its tables are written once and never changed, so the copy
// may have them in common with it; whatever else is there, a store that is opened may
// write to. from may be a link.
func shareTree(from, to string) error {
	return filepath.WalkDir(from+string(filepath.Separator), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case d.IsDir() && name == "scratch": // of a hub that sends backups
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case !d.Type().IsRegular() || name == "LOCK":
			return nil
		case filepath.Ext(name) == ".sst" && os.Link(path, target) == nil:
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close() // it is only read
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}
