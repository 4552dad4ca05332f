// Package livefile takes the content of files of settings, and takes it again when it
// changes, while the hub runs. It owns when that happens and what is counted and logged of
// it; what the content means is the business of those who take it: package auth, and package
// hub.
//
// What can not be taken changes nothing: what was taken before counts until there is
// something better, and Status says so. Files that belong together, as a certificate and its
// key do, are taken together.
package livefile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eventhub/internal/measure"
	"eventhub/internal/yamlfile"
)

const (
	// LookEvery is how often files are compared with what was taken of them.
	LookEvery = time.Second
	// MaxBytes bounds one file.
	MaxBytes = 1 << 20
)

// Status counts how taking something again went. It is safe for concurrent use.
type Status struct {
	Setting  string // its key in the configuration
	failures atomic.Uint64
	stale    atomic.Bool
}

// Failed notes that what is new could not be taken.
func (s *Status) Failed() {
	s.failures.Add(1)
	s.stale.Store(true)
}

// Taken notes that what is new counts.
func (s *Status) Taken() { s.stale.Store(false) }

// Measure returns the counts.
func (s *Status) Measure() measure.Source {
	return measure.Source{Setting: s.Setting, Failures: s.failures.Load(), Stale: s.stale.Load()}
}

// File is one file and the setting that names it.
type File struct{ Setting, Path string }

// Files are files that are taken together.
type Files struct {
	Files []File
	// Take is given the content of each file, in their order. Its errors name the files, and
	// have one line for each fault. It is called by one goroutine at a time.
	Take func(contents [][]byte) error
	Log  *slog.Logger
	*Status

	mu   sync.Mutex
	seen [sha256.Size]byte // of the contents, or of the error, as last looked at
}

// New returns files whose Status has the setting of the first one.
func New(log *slog.Logger, take func(contents [][]byte) error, files ...File) *Files {
	return &Files{Files: files, Take: take, Log: log, Status: &Status{Setting: files[0].Setting}}
}

// read returns the contents, and a sum of all that came of it.
func (f *Files) read() (contents [][]byte, seen [sha256.Size]byte, err error) {
	sum := sha256.New()
	var errs []error
	for _, file := range f.Files {
		content, err := yamlfile.Content(file.Path, MaxBytes)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file.Setting, err))
		}
		fmt.Fprintf(sum, "%v %d ", err, len(content))
		sum.Write(content)
		contents = append(contents, content)
	}
	sum.Sum(seen[:0])
	return contents, seen, errors.Join(errs...)
}

// Open takes the files for the first time. The error has one line for each fault, which
// begins with the settings.
func (f *Files) Open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	contents, seen, err := f.read()
	if err != nil {
		return err
	}
	f.seen = seen
	if err = f.Take(contents); err == nil {
		return nil
	}
	var errs []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		errs = append(errs, fmt.Errorf("%s: %s", f.settings(), line))
	}
	return errors.Join(errs...)
}

// settings are those that name the files.
func (f *Files) settings() string {
	var names []string
	for _, file := range f.Files {
		names = append(names, file.Setting)
	}
	return strings.Join(names, ", ")
}

// Run looks at the files until ctx ends. It compares the content, because a file that is
// replaced through links, as those of a Kubernetes secret, may have neither a new name nor a
// later time.
func (f *Files) Run(ctx context.Context) {
	tick := time.NewTicker(LookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.Look()
		}
	}
}

// Look takes the files again if they have changed.
func (f *Files) Look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	contents, seen, err := f.read()
	if seen == f.seen {
		return
	}
	f.seen = seen
	if err == nil {
		err = f.Take(contents)
	}
	if err != nil {
		f.Failed()
		f.Log.Error("a file could not be read again; what it had before still counts", "setting", f.settings(), "error", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	f.Taken()
	for _, file := range f.Files {
		f.Log.Info("a file was read again", "setting", file.Setting, "path", file.Path)
	}
}
