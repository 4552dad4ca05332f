package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/output"
	"eventhub/hub"
)

// projected is what journal project prints.
type projected struct {
	Place      uint64 `json:"place"`
	Last       uint64 `json:"last"`
	AtTS       int64  `json:"at_ts"`
	Rebuilding bool   `json:"rebuilding"`
	Wrote      uint64 `json:"wrote,omitempty"`
	Whole      uint64 `json:"whole,omitempty"`
}

func journalProjectCommand() *cobra.Command {
	var rebuild bool
	cmd := &cobra.Command{
		Use:   "project",
		Short: "Say how far the documents beside a journal in MongoDB are, or have them made anew",
		Long: `Says up to which place of the journal its events and cursors are in the database as documents,
and when the hub that leads found that. Beats of the hub count as places, and it says so each ten
seconds where nothing else comes, so an idle hub is some places behind.

With --rebuild the hub that leads removes all documents, and writes them anew from its log; it begins
within ten seconds. The command waits until that is done; on a terminal standard error shows how far it
is. Where the command ends before, the hub goes on, and so does the next one that leads.
Publishing and deliveries go on; who queries the documents meanwhile finds a part of them.`,
		Example: `  eventhub journal project --journal mongodb://10.0.0.1:27017/hub
  eventhub journal project --rebuild -o json`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().BoolVar(&rebuild, "rebuild", false, "have all documents made anew, and wait for it")
	hubSchema().Register(cmd.Flags(), "journal")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withJournal(cmd, func(ctx context.Context, j *hub.Journal) (err error) {
			var p hub.JournalProjection
			if rebuild {
				p, err = rebuildProjection(cmd, ctx, j)
			} else {
				p, err = within(ctx, j.Projection)
			}
			if err != nil {
				return err
			}
			v := projected{Place: p.Place, Last: p.Last, Rebuilding: p.Asked}
			if !p.At.IsZero() {
				v.AtTS = p.At.UnixMilli()
			}
			if p.Begun && p.Asked || rebuild {
				v.Wrote, v.Whole = p.Wrote, p.Whole
			}
			out := results(cmd)
			return output.Document(out, format.Format, v, func(w io.Writer) error { return v.print(w, out.Color) })
		})
	}
	return cmd
}

// rebuildProjection shows how far it is.
func rebuildProjection(cmd *cobra.Command, ctx context.Context, j *hub.Journal) (hub.JournalProjection, error) {
	seen := func(hub.JournalProjection) {}
	if output.IsTerminal(cmd.ErrOrStderr()) {
		line := &progressLine{w: cmd.ErrOrStderr()}
		defer line.clear()
		seen = func(p hub.JournalProjection) {
			if !p.Begun {
				line.say("waiting for the hub that leads")
				return
			}
			line.say(fmt.Sprintf("wrote %s of %s events", output.Count(p.Wrote), output.Count(p.Whole)))
		}
	}
	return j.Rebuild(ctx, seen)
}

func (v *projected) print(w io.Writer, color bool) error {
	when := "never"
	if v.AtTS != 0 {
		when = output.Ago(time.Now(), v.AtTS)
	}
	fields := []output.Field{{Name: "Documents", Value: fmt.Sprintf("up to place %d of %d, as of %s", v.Place, v.Last, when)}}
	switch {
	case v.Rebuilding:
		fields = append(fields, output.Field{Name: "Rebuild", Value: fmt.Sprintf("under way, %d of %d events", v.Wrote, v.Whole)})
	case v.Whole > 0:
		fields = append(fields, output.Field{Name: "Rebuild", Value: fmt.Sprintf("done, %d events", v.Wrote)})
	}
	return output.Fields(w, color, fields)
}
