package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

func groupSeekCommand() *cobra.Command {
	var r reach
	var from string
	var apply bool
	var epoch uint64
	var start eventhub.Start
	cmd := &cobra.Command{
		Use:   "seek TOPIC GROUP --from PLACE",
		Short: "Move a group to another place in its topic",
		Long: `Says what moving a group would mean, and with --apply moves it. Then its leases are
void, attempts are forgotten, and everything above the new place is delivered again
from attempt 1; what is between an old and a higher new place is not delivered.

--from is the first event to deliver: latest (nothing that is there now), earliest, the
first one committed at a time, offset:N, or the one after the event of after:ID. An offset
above the head leaves out the events to come that get a lower one.`,
		Example: `  eventhub group seek orders billing --from earliest
  eventhub group seek orders billing --from 2h --apply
  eventhub group seek orders billing --from after:0199a1f9-731b-7d16-b8f6-fb271d31714f --apply`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if err := words("TOPIC", "GROUP")(cmd, args); err != nil {
				return err
			}
			if from == "" {
				return errors.New("--from is missing: " + input.StartForms)
			}
			if start, err = input.Start(from, time.Now()); err != nil {
				return fmt.Errorf("--from %w", err)
			}
			if cmd.Flags().Changed("if-epoch") && !apply {
				return errors.New("--if-epoch goes with --apply")
			}
			return nil
		},
	}
	format := formatFlag(cmd, listFormats)
	fromFlag(cmd, &from, "", "")
	olderFlag(cmd, "to", &from, "from")
	applyFlag(cmd, &apply)
	cmd.Flags().Uint64Var(&epoch, "if-epoch", 0, "with --apply: only if the group has this epoch, which is that of what was said before")
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		plan, err := ask(cmd.Context(), &r, func(ctx context.Context) (admin.SeekPlan, error) {
			if cmd.Flags().Changed("if-epoch") {
				return adm.SeekGroupIf(ctx, args[0], args[1], start, epoch)
			}
			return adm.SeekGroup(ctx, args[0], args[1], start, apply)
		})
		if err != nil {
			return err
		}
		out := results(cmd)
		err = output.Document(out, format.Format, plan, func(w io.Writer) error { return describePlan(w, out.Color, &plan) })
		if err == nil && !plan.Applied {
			fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. The same with --apply moves the group.")
		}
		return err
	}
	return cmd
}

func describePlan(w io.Writer, color bool, p *admin.SeekPlan) error {
	moved := "no"
	if p.Applied {
		moved = "yes"
	}
	fields := []output.Field{
		{Name: "Group", Value: p.Group},
		{Name: "Topic", Value: p.Topic},
		{Name: "Cursor", Value: fmt.Sprintf("%d, to be %d", p.From, p.To)},
		{Name: "Head", Value: strconv.FormatUint(p.Head, 10)},
		{Name: "Delivered again", Value: output.Things(p.Again, "offset")},
		{Name: "Skipped", Value: output.Things(p.Skipped, "event") + " not done"},
		{Name: "Leases voided", Value: output.Count(p.Voided)},
		{Name: "Epoch", Value: strconv.FormatUint(p.Epoch, 10)},
		{Name: "Moved", Value: moved},
	}
	if p.Gap != nil && p.Gap.First > p.Gap.After+1 {
		fields = append(fields, output.Field{Name: "Removed", Value: fmt.Sprintf("offsets %d to %d", p.Gap.After+1, p.Gap.First-1)})
	}
	if p.Gap != nil && p.Gap.Compacted > 0 {
		text := fmt.Sprintf("up to offset %d: replaced values may be missing", p.Gap.Compacted)
		if p.Gap.Tombstones > 0 {
			text += fmt.Sprintf(", and ends of keys up to %d", p.Gap.Tombstones)
		}
		fields = append(fields, output.Field{Name: "Compacted", Value: text})
	}
	return output.Fields(w, color, fields)
}

func groupPauseCommand() *cobra.Command {
	return pauseCommand("pause", "paused", (*client.Admin).PauseGroup, &cobra.Command{
		Short: "Stop the deliveries of a group",
		Long: `Stops the deliveries of a group until it is resumed, whatever members come and go and
also when the hub restarts. Members can still ack what they hold.`,
	})
}

func groupResumeCommand() *cobra.Command {
	return pauseCommand("resume", "resumed", (*client.Admin).ResumeGroup, &cobra.Command{
		Short: "Let the deliveries of a paused group go on",
	})
}

// pauseCommand makes a command that does one thing to one group and says so.
func pauseCommand(verb, done string, do func(*client.Admin, context.Context, string, string) error, cmd *cobra.Command) *cobra.Command {
	var r reach
	cmd.Use = verb + " TOPIC GROUP"
	cmd.Args = words("TOPIC", "GROUP")
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		_, err = ask(cmd.Context(), &r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, do(adm, ctx, args[0], args[1])
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(results(cmd), "%s group %s of %s\n", done, args[1], args[0])
		return err
	}
	return cmd
}
