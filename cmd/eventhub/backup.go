package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/backup"
)

func backupCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the store of a running hub",
		Long: `Writes a copy of the hub's store into DIR, which must not exist. It is the store as it
was at a moment after the command began: all that was acknowledged before is in it, topics,
groups and scheduled events alike. Publishing continues in the meantime.

DIR is there when all of it is on disk and as the hub has sent it, and not before. It is
a store: 'eventhub serve --store DIR' runs on it. Its file backup.sha256 has the
checksums of its files ('sha256sum -c' reads it), which 'eventhub verify' and 'eventhub
restore' hold them against; a hub that runs on DIR removes it, and DIR is a backup
no more.`,
		Example: `  eventhub backup /backups/eventhub-$(date +%F)
  eventhub verify /backups/eventhub-2026-01-31`,
		Args: words("DIR"),
	}
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir := filepath.Clean(args[0])
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		m := newMeter(cmd.ErrOrStderr(), "received", true)
		var got client.Transfer
		files, err := backup.Receive(dir, func(w io.Writer) (err error) {
			got, err = adm.BackupTo(cmd.Context(), io.MultiWriter(w, m))
			return err
		})
		m.end()
		if err != nil {
			return placeError(err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "backed up %s, %s, %s\n", output.Things(files, "file"), output.Things(got.Bytes, "byte"), got.Checksum)
		return nil
	}
	return cmd
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
		n, err := backup.Restore(args[0], filepath.Clean(args[1]))
		if err != nil {
			return placeError(err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "restored %s into %s\n", output.Things(n, "file"), args[1])
		return nil
	}
	return cmd
}

// placeError makes a directory that does not fit a mistake of the caller's.
func placeError(err error) error {
	var place *backup.PlaceError
	if errors.As(err, &place) {
		return usageError{err}
	}
	return err
}
