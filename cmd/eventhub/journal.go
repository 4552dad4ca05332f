package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub/cmd/eventhub/internal/output"
	"eventhub/hub"
)

// These commands work on the journal itself, which --journal names as it does for a hub, so they need no hub.

func journalCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "journal", Short: "Look after the journal that several hubs share"}
	cmd.AddCommand(journalVerifyCommand(), journalTrimCommand(), journalProjectCommand(), journalReseedCommand())
	return cmd
}

// journalConfig returns the configuration with the journal of --journal, EVENTHUB_JOURNAL or the file.
func journalConfig(cmd *cobra.Command) (hub.Config, error) {
	settings, err := hubSchema().Load(cmd.Flags(), os.Environ())
	if err != nil {
		return hub.Config{}, configError(cmd, err)
	}
	cfg := hubConfig(settings)
	if cfg.Journal == "" || cfg.Journal == hub.JournalNone {
		return cfg, usageError{errors.New("no journal is named; --journal, EVENTHUB_JOURNAL or the file of --config names one, as for the hubs")}
	}
	if err := hub.CheckJournalURL(cfg.Journal); err != nil {
		return cfg, usageError{fmt.Errorf("journal: %w", err)}
	}
	return cfg, nil
}

// withJournal does something with the journal. Its error is that of the servers where they are not reached.
func withJournal(cmd *cobra.Command, do func(context.Context, *hub.Journal) error) error {
	cfg, err := journalConfig(cmd)
	if err != nil {
		return err
	}
	j, err := hub.LookAfter(cmd.Context(), cfg)
	if err != nil {
		return journalError(err)
	}
	defer j.Close()
	return journalError(do(cmd.Context(), j))
}

func journalError(err error) error {
	if hub.IsJournalAway(err) {
		return journalAway{err}
	}
	return err
}

// within bounds what does not take long.
func within[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, journalWithin, fmt.Errorf("no answer within %s", journalWithin))
	defer cancel()
	return do(ctx)
}

func clusterReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release MEMBER",
		Short: "Say that a hub does not come back, so that the journal is trimmed without it",
		Long: `Says in the journal that a member does not come back. The journal keeps what a member does
not have for a day after it was last seen; a member that was released is not waited for.
The journal itself stays as it is: the hubs trim it, or 'eventhub journal trim' does.

A member that has said something within half a minute is refused: stop its hub first. One
that comes back after all is a member again; where its next entries are gone by then, it is made of a copy
of the active hub. It needs the journal, and no hub.`,
		Example: `  eventhub cluster release hub3 --journal nats://10.0.0.1:4222/EVENTHUB`,
		Args:    words("MEMBER"),
	}
	format := formatFlag(cmd, listFormats)
	hubSchema().Register(cmd.Flags(), "journal")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withJournal(cmd, func(ctx context.Context, j *hub.Journal) error {
			m, err := within(ctx, func(ctx context.Context) (hub.JournalMember, error) { return j.Release(ctx, args[0]) })
			if err != nil {
				return err
			}
			released := struct {
				ID       string `json:"id"`
				Synced   uint64 `json:"synced"`
				SeenTS   int64  `json:"seen_ts"`
				Released bool   `json:"released"`
			}{m.ID, m.Synced, m.Seen.UnixMilli(), m.Released}
			return output.Document(results(cmd), format.Format, released, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "released %s, which was at %d and last seen %s\n", output.Safe(m.ID), m.Synced, output.Span(max(m.Ago, 0))+" ago")
				return err
			})
		})
	}
	return cmd
}

// verifiedJournal is what journal verify prints.
type verifiedJournal struct {
	OK      bool   `json:"ok"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Places  uint64 `json:"places"`
	Commits uint64 `json:"commits"`
	Leads   uint64 `json:"leads"`
	Bytes   uint64 `json:"bytes"`
	Epoch   uint64 `json:"epoch"`
	Hub     string `json:"hub"`
	FirstTS int64  `json:"first_ts"`
	LastTS  int64  `json:"last_ts"`
	Error   string `json:"error,omitempty"`
}

func journalVerifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read all of a journal, and hold each entry against the one before",
		Long: `Reads the journal from its first place to the last one that it has at the beginning, as a hub
does that follows it: each entry has to be one, whole and undamaged, to come after the one
before by its hash, and in an epoch that fits. It changes nothing, and hubs may go on
meanwhile. On a terminal standard error shows how far it is.

What is wrong ends the command with 1; what is printed is how far all was well.`,
		Example: `  eventhub journal verify --journal nats://10.0.0.1:4222/EVENTHUB
  eventhub journal verify -o json`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	hubSchema().Register(cmd.Flags(), "journal")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withJournal(cmd, func(ctx context.Context, j *hub.Journal) error {
			var seen func(*hub.JournalTally)
			if output.IsTerminal(cmd.ErrOrStderr()) {
				line := &progressLine{w: cmd.ErrOrStderr()}
				defer line.clear()
				shown := time.Now()
				seen = func(t *hub.JournalTally) {
					if now := time.Now(); now.Sub(shown) >= meterEvery {
						shown = now
						line.say(fmt.Sprintf("read up to %s, %s", output.Count(t.Last), byteSize(int64(t.Bytes))))
					}
				}
			}
			t, err := j.Verify(ctx, seen)
			v := verifiedJournal{OK: err == nil, First: t.First, Last: t.Last, Places: t.Places, Commits: t.Commits, Leads: t.Leads, Bytes: t.Bytes,
				Epoch: t.Epoch, Hub: t.Hub, FirstTS: t.FirstMS, LastTS: t.LastMS}
			if err != nil {
				v.Error = oneLine(err.Error())
			}
			out := results(cmd)
			return errors.Join(err, output.Document(out, format.Format, v, func(w io.Writer) error { return v.print(w, out.Color) }))
		})
	}
	return cmd
}

func (v *verifiedJournal) print(w io.Writer, color bool) error {
	if v.Places == 0 {
		_, err := io.WriteString(w, "the journal has no entry\n")
		return err
	}
	places := fmt.Sprintf("%d to %d", v.First, v.Last)
	if v.First > 1 {
		places += ", trimmed before"
	}
	return output.Fields(w, color, []output.Field{
		{Name: "Places", Value: places},
		{Name: "Commits", Value: strconv.FormatUint(v.Commits, 10)},
		{Name: "Bytes", Value: byteSize(int64(v.Bytes))},
		{Name: "From", Value: output.Time(v.FirstTS)},
		{Name: "To", Value: fmt.Sprintf("%s, by %s in epoch %d", output.Time(v.LastTS), output.Safe(v.Hub), v.Epoch)},
		{Name: "Leads", Value: strconv.FormatUint(v.Leads, 10)},
	})
}

// trimPlan is what journal trim prints.
type trimPlan struct {
	First   uint64   `json:"first"`
	Last    uint64   `json:"last"`
	UpTo    uint64   `json:"up_to"`
	Bytes   uint64   `json:"bytes"`
	HeldBy  []string `json:"held_by"`
	Why     string   `json:"why,omitempty"`
	Applied bool     `json:"applied"`
}

func journalTrimCommand() *cobra.Command {
	var apply bool
	var upTo uint64
	cmd := &cobra.Command{
		Use:   "trim",
		Short: "Remove the entries of a journal that no member needs",
		Long: `Says up to which place no member needs the journal, and with --apply removes the entries up to
there: two members at least have them on their disks, and so has each one that was seen
within a day and not released. Hubs do that by themselves, an hour later, so that a copy of a
member can be brought to another machine; this is for a journal that is to have room now.
--up-to removes less. The last entry stays.`,
		Example: `  eventhub journal trim
  eventhub journal trim --apply`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	applyFlag(cmd, &apply)
	cmd.Flags().Uint64Var(&upTo, "up-to", 0, "remove up to this place, where members need less than they could")
	hubSchema().Register(cmd.Flags(), "journal")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withJournal(cmd, func(ctx context.Context, j *hub.Journal) error {
			p, err := within(ctx, j.PlanTrim)
			if err != nil {
				return err
			}
			if upTo > p.UpTo {
				return usageError{fmt.Errorf("--up-to is %d, and members need what comes after %d%s", upTo, p.UpTo, heldBy(p.Holds, p.Why))}
			}
			if upTo > 0 {
				p.UpTo = upTo
			}
			plan := trimPlan{First: p.First, Last: p.Last, UpTo: p.UpTo, Bytes: p.Used, HeldBy: p.Holds, Why: p.Why, Applied: apply && p.UpTo >= p.First}
			if plan.Applied {
				if _, err := within(ctx, func(ctx context.Context) (any, error) { return nil, j.Trim(ctx, p.UpTo) }); err != nil {
					return err
				}
			}
			out := results(cmd)
			err = output.Document(out, format.Format, plan, func(w io.Writer) error { return plan.print(w, out.Color) })
			if err == nil && !apply && p.UpTo >= p.First {
				fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. The same with --apply trims the journal.")
			}
			return err
		})
	}
	return cmd
}

// heldBy says who needs the rest.
func heldBy(members []string, why string) string {
	if why != "" {
		return ": " + why
	}
	return ", which " + strings.Join(members, ", ") + " has not on its disk"
}

func (p *trimPlan) print(w io.Writer, color bool) error {
	goes := "nothing"
	if p.UpTo >= p.First {
		goes = fmt.Sprintf("%d to %d", p.First, min(p.UpTo, p.Last-1))
	}
	held := p.Why
	if held == "" {
		held = strings.Join(p.HeldBy, ", ")
	}
	removed := "no"
	if p.Applied {
		removed = "yes"
	}
	return output.Fields(w, color, []output.Field{
		{Name: "Places", Value: fmt.Sprintf("%d to %d, %s", p.First, p.Last, byteSize(int64(p.Bytes)))},
		{Name: "Not needed", Value: goes},
		{Name: "The rest is held by", Value: output.Safe(held)},
		{Name: "Removed", Value: removed},
	})
}

func journalReseedCommand() *cobra.Command {
	var yes, loss bool
	var before string
	cmd := &cobra.Command{
		Use:   "reseed DIR",
		Short: "Begin a new journal with the directory of a member, after the one before was lost",
		Long: `For when the journal is lost, and the members stop because they have more than it. The copy of
one member, whose hub is stopped, becomes the beginning of a new journal: that of --journal,
which must not be there, or must be empty. Take the member that has the highest place; without
an answer to the question this command changes nothing and says which place a copy has.

It refuses a journal that has entries, and a copy that has less than another member has said
that it has; --accept-loss takes the copy all the same. Members have said that beside the journal that
was lost: where the new one has another name, --lost names the old one, and it is asked as well. Afterwards the hub is started on DIR with
the new journal, and leads. The other members are made anew: empty directories, for which they
fetch copies. On a terminal it asks before; elsewhere --yes is needed.`,
		Example: `  eventhub journal reseed /var/lib/eventhub --journal nats://10.0.0.1:4222/EVENTHUB2 --lost nats://10.0.0.1:4222/EVENTHUB`,
		Args:    words("DIR"),
	}
	cmd.Flags().BoolVar(&loss, "accept-loss", false, "take the copy although another member has said that it has more")
	cmd.Flags().StringVar(&before, "lost", "", "the journal that was lost, whose members have said what they have")
	yesFlag(cmd, &yes)
	hubSchema().Register(cmd.Flags(), "journal")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := journalConfig(cmd)
		if err != nil {
			return err
		}
		dir := args[0]
		cfg.Store = dir
		var lost *hub.Config
		if before != "" {
			if err := hub.CheckJournalURL(before); err != nil {
				return usageError{fmt.Errorf("--lost: %w", err)}
			}
			lost = &hub.Config{Journal: before}
		}
		p, err := within(cmd.Context(), func(ctx context.Context) (*hub.JournalReseed, error) { return hub.PlanReseed(ctx, cfg, lost) })
		if err != nil {
			return journalError(err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is at place %d, epoch %d.\n", dir, p.Place, p.Epoch)
		if p.Heard == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "No member has said there what it has: compare the places of all directories, or name the journal that was lost with --lost.")
		}
		var ahead []string
		for _, m := range p.Ahead {
			ahead = append(ahead, fmt.Sprintf("%s has said %s that it has up to %d", output.Safe(m.ID), output.Span(max(m.Ago, 0))+" ago", m.Synced))
		}
		if ahead != nil && !loss {
			return fmt.Errorf("%s; take its directory, or give --accept-loss", strings.Join(ahead, ", "))
		}
		if !yes && !output.IsTerminal(cmd.InOrStdin()) {
			return usageError{errors.New("nobody can be asked here; --yes begins the journal without asking")}
		}
		if !yes && !confirm(cmd, fmt.Sprintf("Begin a new journal, %s, with it? What other members have beyond place %d is lost.", hub.JournalShown(cfg.Journal), p.Place)) {
			return errors.New("nothing was changed")
		}
		if _, err := within(cmd.Context(), func(ctx context.Context) (any, error) { return nil, p.Carry(ctx) }); err != nil {
			return journalError(err)
		}
		_, err = fmt.Fprintf(results(cmd), "%s begins a new journal when its hub is started: eventhub serve --store %s --journal %s\n", dir, dir, hub.JournalShown(cfg.Journal))
		return err
	}
	return cmd
}
