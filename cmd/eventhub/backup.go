package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

func backupCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the store of a running hub",
		Long: `Writes a copy of the hub's store into DIR, which must not exist. It is the store as it
was at a moment after the command began: all that was acknowledged before is in it, topics,
groups and scheduled events alike. Publishing goes on meanwhile.

DIR is there when all of it is on disk and as the hub has sent it, and not before. It is
a store: 'eventhub serve --store DIR' runs on it. In it stands backup.sha256 with the
checksums of its files ('sha256sum -c' reads it), which 'eventhub verify' and 'eventhub
restore' hold them against; a hub that runs on DIR changes them.`,
		Example: `  eventhub backup /backups/eventhub-$(date +%F)
  eventhub verify /backups/eventhub-2026-01-31`,
		Args: words("DIR"),
	}
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir := filepath.Clean(args[0])
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			return usageError{errors.Join(fmt.Errorf("%s is there already; a backup makes its directory", dir), err)}
		}
		api, err := r.api(cmd)
		if err != nil {
			return err
		}
		defer api.Close()
		m := newMeter(cmd.ErrOrStderr(), "received", true)
		got, files, err := receiveBackup(cmd.Context(), api, dir, m)
		m.end()
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "backed up %s, %s, %s\n", output.Things(files, "file"), output.Things(got.Bytes, "byte"), got.Checksum)
		return nil
	}
	return cmd
}

// receiveBackup unpacks a backup into a directory beside dir, which gets its name when
// all is there.
func receiveBackup(ctx context.Context, api *client.API, dir string, m *meter) (got client.Transfer, files int, err error) {
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		return got, 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	r, w := io.Pipe()
	unpacked := make(chan error, 1)
	var sums []fileSum
	go func() {
		var err error
		sums, err = unpackTar(temp, r)
		r.CloseWithError(err) // ends the sender, where it goes on
		unpacked <- err
	}()
	got, err = api.BackupTo(ctx, io.MultiWriter(w, m))
	w.CloseWithError(err)
	// Where both fail, the one that broke first has broken the other.
	if unpackErr := <-unpacked; err == nil {
		err = unpackErr
	}
	if err == nil {
		err = sealBackup(temp, sums)
	}
	if err == nil {
		err = os.Rename(temp, dir)
	}
	if err == nil {
		err = syncDir(filepath.Dir(dir))
	}
	return got, len(sums), err
}

func restoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore BACKUP DIR",
		Short: "Make a store of a backup",
		Long: `Copies a backup into DIR, which must be empty or not exist, for 'eventhub serve --store
DIR'. A DIR that exists stays the directory it is: it may be a mount point, or a link to one. Each file is held against the backup's checksums while it is copied. It needs no
hub, and does not change the backup.`,
		Example: `  eventhub restore /backups/eventhub-2026-01-31 ./eventhub-data`,
		Args:    words("BACKUP", "DIR"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := restoreBackup(args[0], filepath.Clean(args[1]))
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "restored %s into %s\n", output.Things(n, "file"), args[1])
		return nil
	}
	return cmd
}

// restoreBackup copies a backup. Where it fails, dir is as it was.
func restoreBackup(backup, dir string) (files int, err error) {
	sums, err := readSums(backup)
	if err != nil {
		return 0, err
	}
	if len(sums) == 0 {
		return 0, usageError{fmt.Errorf("%s is no backup: it has no %s, or an empty one", backup, sumsFile)}
	}
	from, err := os.OpenRoot(backup)
	if err != nil {
		return 0, err
	}
	defer from.Close() // it is only read
	there, err := isEmptyDir(dir)
	if err != nil {
		return 0, usageError{err}
	}
	if there {
		return len(sums), restoreInto(dir, from, sums)
	}
	return len(sums), restoreAs(dir, from, sums)
}

// isEmptyDir reports whether dir is there. A directory that is not empty is an error, as
// is a link to nothing, which could be meant for a disk that is not mounted.
func isEmptyDir(dir string) (there bool, err error) {
	left, err := os.ReadDir(dir)
	switch {
	case err == nil && len(left) > 0 && left[0].Name() != "lost+found":
		return true, fmt.Errorf("%s is not empty: it has %q", dir, left[0].Name())
	case err == nil && len(left) > 1:
		return true, fmt.Errorf("%s is not empty: it has %q", dir, left[1].Name())
	case err == nil:
		return true, nil
	case !errors.Is(err, os.ErrNotExist):
		return false, err
	}
	if target, err := os.Readlink(dir); err == nil {
		return false, fmt.Errorf("%s is a link to %s, which is not there", dir, target)
	}
	return false, nil
}

// restoreAs makes dir, which gets its name when all of it is on disk.
func restoreAs(dir string, from *os.Root, sums []fileSum) (err error) {
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	if err := copyAll(from, temp, sums); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// restoreInto fills a directory that is there: it may be a mount point, or named by a
// link, and can not be replaced. What makes it a store comes last, so a restore that was
// cut short is not taken for one.
func restoreInto(dir string, from *os.Root, sums []fileSum) (err error) {
	temp, err := os.MkdirTemp(dir, ".restore-*")
	if err != nil {
		return err
	}
	var moved []string
	defer func() {
		if err == nil {
			return
		}
		for _, name := range moved {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
		err = errors.Join(err, os.RemoveAll(temp))
	}()
	if err := copyAll(from, temp, sums); err != nil {
		return err
	}
	entries, err := os.ReadDir(temp)
	if err != nil {
		return err
	}
	for _, last := range []bool{false, true} {
		for _, e := range entries {
			if (e.Name() == formatFile) != last {
				continue
			}
			if err := os.Rename(filepath.Join(temp, e.Name()), filepath.Join(dir, e.Name())); err != nil {
				return err
			}
			moved = append(moved, e.Name())
		}
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(temp); err != nil {
		return err
	}
	return syncDir(dir)
}

// formatFile is what makes a directory a store.
const formatFile = "FORMAT"

// copyAll copies the files of a backup into a directory, to the disk.
func copyAll(from *os.Root, dir string, sums []fileSum) error {
	to, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, s := range sums {
		if err := s.copy(from, to); err != nil {
			return err
		}
	}
	return syncTree(dir)
}
