package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

func importCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "import FILE | -",
		Short: "Take back what was exported",
		Long: `Sends the events of an export to the hub, from FILE or, as -, from standard input; it
may be compressed with gzip or zstd. Ids and times are kept, and so are offsets where the
topic has none as high; so an import into an empty hub is the same there, byte for byte.
An event whose id is in its topic already is not added again.

Events are added in the order of the lines, up to 1,000 at a time, each such part as a
whole or not at all. A line that is damaged, or is no exported event, ends the import and
is named; what was before its part stays. Whatever has ended an import, doing it again
continues from there. The last line on standard error has the checksum of the events'
lines: it is that of the export.`,
		Example: `  eventhub import orders.ndjson
  zstd -dc january.ndjson.zst | eventhub import -`,
		Args: words("FILE"),
	}
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := cmd.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return usageError{err}
			}
			defer f.Close() // it is only read
			in = f
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		m := newMeter(cmd.ErrOrStderr(), "sent", true)
		done, err := adm.ImportFrom(cmd.Context(), io.TeeReader(in, m))
		m.end()
		if err != nil {
			return importError(err, done)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "imported %s: %s added, %s there already, %s\n",
			output.Things(done.Events, "event"), output.Count(done.Added), output.Count(done.Duplicates), done.Checksum)
		return nil
	}
	return cmd
}

// importError adds to an error how far the import came, where that is known.
func importError(err error, done client.Imported) error {
	if done.Events == 0 {
		return err
	}
	return fmt.Errorf("%w; %s before that are in the hub (%s added, %s there already), and importing again goes on from there",
		err, output.Things(done.Events, "event"), output.Count(done.Added), output.Count(done.Duplicates))
}

// lines counts the ends of lines.
func lines(p []byte) int64 { return int64(bytes.Count(p, []byte{'\n'})) }
