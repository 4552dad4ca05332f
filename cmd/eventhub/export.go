package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/backup"
)

func exportCommand() *cobra.Command {
	var r reach
	var w window
	var file string
	cmd := &cobra.Command{
		Use:   "export TOPIC|PATTERN",
		Short: "Write the events of topics to a file",
		Long: `Writes the events of a topic, or of all topics of a PATTERN, one topic after the other,
as NDJSON: each line is an event as it is stored. 'eventhub import' takes it back. It
ends at the newest events that there were when it began.

The last line on standard error has the number of events and the SHA-256 of what was
written, which is held against the hub's own before the command is done. With --file
the file is there when all of it is on disk, and not before; one of that name is
replaced, and keeps its rights. A device or a named pipe is written to like standard
output: if the output is cut short in a pipe, the exit code shows it.

A topic that does not exist is an error. Where --from is below the horizon of a topic, or
events are removed before they are read, the command fails too; the error says at which
offset the topic begins. Where compaction may have removed some, a line on standard error
says up to which offset.`,
		Example: `  eventhub export orders > orders.ndjson
  eventhub export '**' --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z -f january.ndjson
  eventhub export 'orders.**' --url ws://old:8090 | eventhub import - --url ws://new:8090`,
		Args: words("TOPIC"),
	}
	w.register(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "write to this file in place of standard output, -")
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q, err := w.query(cmd, args[0])
		if err != nil {
			return err
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		to := &destination{name: file}
		if err := to.open(cmd); err != nil {
			return err
		}
		m := newMeter(cmd.ErrOrStderr(), "exported", !to.terminal)
		ctx, reached, cancel := r.untilReached(cmd.Context())
		defer cancel()
		if q.Filter != nil { // as in replay
			reached()
		}
		q.OnGap = compactedTo(cmd.ErrOrStderr())
		done, err := adm.ExportTo(ctx, q, io.MultiWriter(m.onFirst(reached), to.w))
		m.end()
		if err == nil && done.Events == 0 {
			err = r.missing(cmd.Context(), args[0], adm)
		}
		if err = to.close(err); err != nil {
			if done.Events > 0 {
				err = fmt.Errorf("%w; %s had come, which are not all", err, output.Things(done.Events, "event"))
			}
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "exported %s, %s, %s\n", output.Things(done.Events, "event"), output.Things(done.Bytes, "byte"), done.Checksum)
		return nil
	}
	return cmd
}

// destination is where an export goes: standard output, a file that gets its name when it
// is whole, or what is no regular file, such as a named pipe, which is written to as it is.
type destination struct {
	name     string
	w        io.Writer
	file     *os.File
	direct   bool
	terminal bool
}

func (d *destination) open(cmd *cobra.Command) error {
	if d.name == "" || d.name == "-" {
		out := results(cmd)
		d.w, d.terminal = out, out.Terminal
		return nil
	}
	// What is not given otherwise is what the umask leaves of it.
	mode := os.FileMode(0o666)
	there, err := os.Stat(d.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(d.name); err == nil {
			return usageError{fmt.Errorf("%s is a link to what is not there", d.name)}
		}
	case err != nil:
		return usageError{err}
	case there.IsDir():
		return usageError{fmt.Errorf("%s is a directory", d.name)}
	case !there.Mode().IsRegular():
		d.file, err = openDirect(cmd.Context(), d.name)
		d.w, d.direct = d.file, true
		if err == nil {
			d.terminal = output.IsTerminal(d.file)
		}
		return err
	default:
		mode = there.Mode().Perm()
		// A link stays one: what it leads to is replaced.
		if d.name, err = filepath.EvalSymlinks(d.name); err != nil {
			return err
		}
	}
	temp := filepath.Join(filepath.Dir(d.name), "."+filepath.Base(d.name)+"-"+rand.Text())
	d.file, err = os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	d.w = d.file
	if of, ok := errors.AsType[*fs.PathError](err); ok { // of a name that nobody has given
		return fmt.Errorf("%s: %w", d.name, of.Err)
	}
	if err == nil && there != nil {
		if err = d.file.Chmod(mode); err != nil { // what the umask has taken, and the file before had
			err = d.close(err)
		}
	}
	return err
}

// openDirect opens what is no regular file. A named pipe is opened when somebody reads from it, which is waited for
// until ctx ends.
func openDirect(ctx context.Context, name string) (*os.File, error) {
	type opened struct {
		f   *os.File
		err error
	}
	done := make(chan opened)
	go func() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		select {
		case done <- opened{f, err}:
		case <-ctx.Done():
			_ = f.Close() // also where there is none
		}
	}()
	select {
	case o := <-done:
		return o.f, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted before somebody has read from %s", name)
	}
}

// close ends the file: under its name where err is nil, and otherwise not at all.
func (d *destination) close(err error) error {
	if d.file == nil {
		return err
	}
	if d.direct {
		return errors.Join(err, d.file.Close())
	}
	if err == nil {
		err = d.file.Sync()
	}
	if err = errors.Join(err, d.file.Close()); err == nil {
		err = os.Rename(d.file.Name(), d.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(d.file.Name()))
	}
	return backup.SyncDir(filepath.Dir(d.name))
}

// meterEvery is how often the progress is shown.
const meterEvery = 200 * time.Millisecond

// meter shows how much has come, on a terminal. It is not for concurrent use.
type meter struct {
	w             io.Writer // nil: nothing is shown
	verb          string
	events, bytes int64
	began, shown  time.Time
	first         func()
}

// newMeter shows progress on w if that is a terminal, and wanted.
func newMeter(w io.Writer, verb string, wanted bool) *meter {
	m := &meter{verb: verb, began: time.Now(), first: func() {}}
	if wanted && output.IsTerminal(w) {
		m.w = w
	}
	return m
}

// onFirst has f called when something comes.
func (m *meter) onFirst(f func()) *meter {
	m.first = f
	return m
}

func (m *meter) Write(p []byte) (int, error) {
	if m.bytes == 0 {
		m.first()
	}
	m.bytes += int64(len(p))
	if m.w == nil {
		return len(p), nil
	}
	m.events += lines(p)
	if now := time.Now(); now.Sub(m.shown) >= meterEvery {
		m.shown = now
		rate := float64(m.bytes) / 1e6 / max(now.Sub(m.began).Seconds(), 1e-3)
		// A terminal that is gone shows elsewhere.
		_, _ = fmt.Fprintf(m.w, "\r\x1b[K%s %s, %.1f MB/s", m.verb, output.Things(m.events, "event"), rate)
	}
	return len(p), nil
}

// end takes the progress away.
func (m *meter) end() {
	if m.w != nil && !m.shown.IsZero() {
		_, _ = io.WriteString(m.w, "\r\x1b[K")
	}
}
