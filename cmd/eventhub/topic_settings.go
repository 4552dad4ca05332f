package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/listing"
)

// settingsFlags are the settings of a topic as flags give them.
type settingsFlags struct {
	age, bytes  string
	count       uint64
	compact     bool
	minAge      string
	hold, grace string
	keyRequired bool
	state       string
	groupIdle   string
	snapshot    bool
	every       string
	changes     uint64
	batchKeys   []string
	keySource   string
	everything  bool
}

func (f *settingsFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.age, "retention-age", "", "how long events are kept, such as 30s, 1h30m or 3d")
	flags.StringVar(&f.bytes, "retention-bytes", "", "size of the events that are kept, such as 500MB or 1GiB")
	flags.Uint64Var(&f.count, "retention-count", 0, "how many events are kept")
	flags.BoolVar(&f.compact, "compact", false, "keep the newest event of each key, and refuse events without a key")
	flags.StringVar(&f.minAge, "compact-min-age", "", "with --compact: how long every event is kept (default 1d)")
	flags.StringVar(&f.hold, "compact-hold", "", "with --compact: how long an event is kept for a group that is not done with it (default 7d)")
	flags.StringVar(&f.grace, "compact-grace", "", "with --compact: how long the end of a key, a payload null, is kept (default 1d)")
	flags.BoolVar(&f.keyRequired, "key-required", false, "refuse events without a key")
	flags.StringVar(&f.state, "state", "", "when to have the index by key, from which the state of the topic is read: auto (from the first question on), on, off")
	flags.BoolVar(&f.snapshot, "snapshot", false, "write the state of the topic to its snapshot topic from time to time")
	flags.StringVar(&f.every, "snapshot-every", "", "with --snapshot: how often (default 30s)")
	flags.Uint64Var(&f.changes, "snapshot-changes", 0, "with --snapshot: after how many events sooner than that")
	flags.StringArrayVar(&f.batchKeys, "snapshot-key", nil, "with --snapshot: a key that it has, and no others; may be repeated")
	flags.StringVar(&f.keySource, "snapshot-key-source", "", "with --snapshot: the key of an event, as an expression such as 'event.payload.host'")
	flags.StringVar(&f.groupIdle, "group-idle-expiry", "", "end groups that nobody has used for so long, such as 30d")
	flags.BoolVar(&f.everything, "keep-everything", false, "set nothing, so that no pattern counts for this name")
}

// settings checks the flags.
func (f *settingsFlags) settings(cmd *cobra.Command, name string) (s admin.TopicSettings, err error) {
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	usage := func(flag string, err error) error {
		return usageError{fmt.Errorf("--%s: %s", flag, eventhub.AsError(err).Message)}
	}
	if given("retention-age") {
		if s.Retention.Age, err = admin.ParsePeriod(f.age); err != nil {
			return s, usage("retention-age", err)
		}
	}
	if given("retention-bytes") {
		if s.Retention.Bytes, err = admin.ParseSize(f.bytes); err != nil {
			return s, usage("retention-bytes", err)
		}
	}
	if s.Retention.Count = f.count; given("retention-count") && f.count == 0 {
		return s, usageError{errors.New("--retention-count is 0; leave it out to keep everything")}
	}
	s.KeyRequired, s.State = f.keyRequired, admin.StateMode(f.state)
	if given("group-idle-expiry") {
		if s.GroupIdleExpiry, err = admin.ParsePeriod(f.groupIdle); err != nil {
			return s, usage("group-idle-expiry", err)
		}
	}
	var c admin.Compaction
	for _, period := range []struct {
		flag, text string
		to         *admin.Period
	}{{"compact-min-age", f.minAge, &c.MinAge}, {"compact-hold", f.hold, &c.Hold}, {"compact-grace", f.grace, &c.Grace}} {
		if !given(period.flag) {
			continue
		}
		if !f.compact {
			return s, usageError{fmt.Errorf("--%s goes with --compact", period.flag)}
		}
		if *period.to, err = admin.ParsePeriod(period.text); err != nil {
			return s, usage(period.flag, err)
		}
	}
	if f.compact {
		s.Compaction = &c
	}
	if s.Snapshot, err = f.snapshots(given); err != nil {
		return s, err
	}
	switch isNothing := s == (admin.TopicSettings{}); {
	case isNothing && !f.everything:
		return s, usageError{errors.New("nothing is set; give a setting, or --keep-everything; 'eventhub topic unset' removes settings")}
	case !isNothing && f.everything:
		return s, usageError{errors.New("--keep-everything goes with no setting")}
	}
	if err := s.Validate(name); err != nil {
		return s, usageError{errors.New(eventhub.AsError(err).Message)}
	}
	return s, nil
}

// snapshots checks the flags of snapshots.
func (f *settingsFlags) snapshots(given func(flag string) bool) (*admin.Snapshot, error) {
	for _, flag := range []string{"snapshot-every", "snapshot-changes", "snapshot-key", "snapshot-key-source"} {
		if given(flag) && !f.snapshot {
			return nil, usageError{fmt.Errorf("--%s goes with --snapshot", flag)}
		}
	}
	if !f.snapshot {
		return nil, nil
	}
	s := &admin.Snapshot{Changes: f.changes, BatchKeys: f.batchKeys, KeySource: f.keySource}
	if given("snapshot-every") {
		every, err := admin.ParsePeriod(f.every)
		if err != nil {
			return nil, usageError{fmt.Errorf("--snapshot-every: %s", eventhub.AsError(err).Message)}
		}
		s.Every = every
	}
	if given("snapshot-changes") && f.changes == 0 {
		return nil, usageError{errors.New("--snapshot-changes is 0; leave it out to go by the time alone")}
	}
	return s, nil
}

// versionFlag gives the command the flag of the version that a change is about.
func versionFlag(cmd *cobra.Command, version *uint64) {
	cmd.Flags().Uint64Var(version, "if-version", 0, "only if the stored settings have this version; 0: if there are none")
}

// expected returns the version that a flag names, nil for none.
func expected(cmd *cobra.Command, version *uint64) *uint64 {
	if cmd.Flags().Changed("if-version") {
		return version
	}
	return nil
}

func checkSettingsName(name string) error {
	if err := admin.ValidateSettingsName(name); err != nil {
		return usageError{fmt.Errorf("NAME: %s", eventhub.AsError(err).Message)}
	}
	return nil
}

func topicSetCommand() *cobra.Command {
	var r reach
	var f settingsFlags
	var version uint64
	var dry bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set what a topic keeps and takes",
		Long: `Stores settings under the name of a topic, which need not exist yet, or under a pattern
for topics that exist and topics to come. They replace all that was stored under that name.
Of the names that match a topic the most exact one counts, with all its settings. A bound
counts for what the topic has already.`,
		Example: `  eventhub topic set orders.eu --retention-age 3d --retention-bytes 1GiB
  eventhub topic set orders.eu --retention-age 3d --dry-run
  eventhub topic set 'orders.**' --key-required
  eventhub topic set orders.kept --keep-everything --if-version 0`,
		Args: words("NAME"),
	}
	format := formatFlag(cmd, listFormats)
	f.register(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed, and which groups would end, now")
	versionFlag(cmd, &version)
	cmd.MarkFlagsMutuallyExclusive("dry-run", "if-version")
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkSettingsName(args[0]); err != nil {
			return err
		}
		s, err := f.settings(cmd, args[0])
		if err != nil {
			return err
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		if dry {
			return planSettings(cmd, &r, adm, format.Format, args[0], s)
		}
		entry, err := ask(cmd.Context(), &r, func(ctx context.Context) (admin.SettingsEntry, error) {
			return adm.SetTopic(ctx, args[0], s, expected(cmd, &version))
		})
		if err != nil {
			return err
		}
		return printEntry(cmd, format.Format, entry)
	}
	return cmd
}

func topicUnsetCommand() *cobra.Command {
	var r reach
	var version uint64
	cmd := &cobra.Command{
		Use:   "unset NAME",
		Short: "Remove the settings that are stored under a name",
		Long: `Removes what 'eventhub topic set' has stored under the name of a topic or under a pattern. What
another name says counts from then on, if any does. Settings of the hub's file stay.`,
		Example: `  eventhub topic unset orders.eu
  eventhub topic unset 'orders.**'`,
		Args: words("NAME"),
	}
	versionFlag(cmd, &version)
	r.register(cmd)
	cmd.ValidArgsFunction = completeSettings(&r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkSettingsName(args[0]); err != nil {
			return err
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		_, err = ask(cmd.Context(), &r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, adm.UnsetTopic(ctx, args[0], expected(cmd, &version))
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(results(cmd), "removed the settings of %s\n", args[0])
		return err
	}
	return cmd
}

func topicSettingsCommand() *cobra.Command {
	var r reach
	var p paging
	var after string
	cmd := &cobra.Command{
		Use:     "settings",
		Short:   "List the settings of topics, by name",
		Long:    `Lists the names that have settings, topics and patterns: those of the hub's file and stored ones.`,
		Example: `  eventhub topic settings`,
		Args:    words(),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&after, "after", "", "only those with a name after this one")
	p.register(cmd)
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}
		return paged[admin.SettingsEntry]{&p,
			func(last admin.SettingsEntry) string {
				return fmt.Sprintf("There are more: --all shows all, --after '%s' the next.", last.Name)
			},
			func(ctx context.Context, adm *client.Admin, last *admin.SettingsEntry, limit int) ([]admin.SettingsEntry, error) {
				if last != nil {
					after = last.Name
				}
				return adm.SettingsEntries(ctx, after, limit)
			},
		}.list(cmd, &r, format, settingsColumns)
	}
	return cmd
}

func settingsColumns(time.Time) []output.Column[admin.SettingsEntry] {
	column := func(name string, cell func(*admin.TopicSettings) string) output.Column[admin.SettingsEntry] {
		return output.Column[admin.SettingsEntry]{Name: name, Right: true, Cell: func(e admin.SettingsEntry) string { return cell(&e.Settings) }}
	}
	return []output.Column[admin.SettingsEntry]{
		{Name: "NAME", Cell: func(e admin.SettingsEntry) string { return e.Name }},
		{Name: "SOURCE", Cell: func(e admin.SettingsEntry) string { return e.Source }},
		{Name: "VERSION", Right: true, Cell: func(e admin.SettingsEntry) string { return offsetCell(e.Version) }},
		column("AGE", func(s *admin.TopicSettings) string { return ageCell(s.Retention.Age) }),
		column("BYTES", func(s *admin.TopicSettings) string { return sizeCell(s.Retention.Bytes) }),
		column("COUNT", func(s *admin.TopicSettings) string { return offsetCell(s.Retention.Count) }),
		{Name: "COMPACT", Cell: func(e admin.SettingsEntry) string { return compactCell(e.Settings.Compaction) }},
		{Name: "STATE", Cell: func(e admin.SettingsEntry) string { return stateCell(&e.Settings) }},
		{Name: "KEY", Cell: func(e admin.SettingsEntry) string { return keyCell(&e.Settings) }},
		column("SNAPSHOT", func(s *admin.TopicSettings) string { return snapshotCell(s.Snapshot) }),
		column("IDLE", func(s *admin.TopicSettings) string { return ageCell(s.GroupIdleExpiry) }),
	}
}

func ageCell(p admin.Period) string {
	if p == 0 {
		return "-"
	}
	return p.String()
}

func snapshotCell(s *admin.Snapshot) string {
	if s == nil {
		return "-"
	}
	return s.WithDefaults().Every.String()
}

func compactCell(c *admin.Compaction) string {
	if c == nil {
		return "-"
	}
	return c.WithDefaults().MinAge.String()
}

func sizeCell(s admin.Size) string {
	if s == 0 {
		return "-"
	}
	return s.String()
}

func keyCell(s *admin.TopicSettings) string {
	if s.KeyRequired || s.Compaction != nil {
		return "required"
	}
	return "-"
}

func stateCell(s *admin.TopicSettings) string {
	if s.Compaction != nil || s.Snapshot != nil && s.Snapshot.KeySource == "" {
		return string(admin.StateOn)
	}
	return string(cmp.Or(s.State, admin.StateAuto))
}

func topicShowCommand() *cobra.Command {
	var r reach
	var effective bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show the settings of a topic or a pattern",
		Long: `Shows the settings that the hub's file or the store has under the name of a topic or under a
pattern; with --effective those that count for the topic of that name, which need not exist,
and where they are from.`,
		Example: `  eventhub topic show 'orders.**'
  eventhub topic show --effective orders.eu`,
		Args: words("NAME"),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().BoolVar(&effective, "effective", false, "what counts for the topic, and where it is from")
	r.register(cmd)
	cmd.ValidArgsFunction = completeSettings(&r)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		if effective {
			return showEffective(cmd, &r, adm, format.Format, args[0])
		}
		if err := checkSettingsName(args[0]); err != nil {
			return err
		}
		for e, err := range entriesOf(cmd.Context(), &r, adm) {
			if err != nil {
				return err
			}
			if e.Name == args[0] {
				return printEntry(cmd, format.Format, e)
			}
		}
		return eventhub.Errorf(eventhub.CodeUnknownID, "there are no settings of %q; --effective shows what counts for a topic", args[0])
	}
	return cmd
}

// entriesOf returns all entries, a page at a time.
func entriesOf(ctx context.Context, r *reach, adm *client.Admin) iter.Seq2[admin.SettingsEntry, error] {
	return listing.All(admin.MaxPage, func(last *admin.SettingsEntry) ([]admin.SettingsEntry, error) {
		after := ""
		if last != nil {
			after = last.Name
		}
		return ask(ctx, r, func(ctx context.Context) ([]admin.SettingsEntry, error) {
			return adm.SettingsEntries(ctx, after, admin.MaxPage)
		})
	})
}

func showEffective(cmd *cobra.Command, r *reach, adm *client.Admin, format output.Format, topic string) error {
	if err := eventhub.ValidateStoredTopic(topic); err != nil {
		return usageError{fmt.Errorf("NAME: %s", eventhub.AsError(err).Message)}
	}
	e, err := ask(cmd.Context(), r, func(ctx context.Context) (admin.EffectiveSettings, error) { return adm.EffectiveSettings(ctx, topic) })
	if err != nil {
		return err
	}
	out := results(cmd)
	return output.Document(out, format, e, func(w io.Writer) error {
		fields := append([]output.Field{{Name: "Topic", Value: e.Topic}}, settingsFields(&e.Settings)...)
		return output.Fields(w, out.Color, append(fields, output.Field{Name: "From", Value: fromText(&e.SettingsSource)}))
	})
}

func printEntry(cmd *cobra.Command, format output.Format, e admin.SettingsEntry) error {
	out := results(cmd)
	return output.Document(out, format, e, func(w io.Writer) error {
		fields := append([]output.Field{{Name: "Name", Value: e.Name}}, settingsFields(&e.Settings)...)
		from := admin.SettingsSource{Source: e.Source, Version: e.Version}
		return output.Fields(w, out.Color, append(fields, output.Field{Name: "From", Value: fromText(&from)}))
	})
}

// settingsFields describes settings to people.
func settingsFields(s *admin.TopicSettings) []output.Field {
	var bounds []string
	if r := &s.Retention; r.Age != 0 {
		bounds = append(bounds, r.Age.String())
	}
	if s.Retention.Bytes != 0 {
		bounds = append(bounds, s.Retention.Bytes.String())
	}
	if s.Retention.Count != 0 {
		bounds = append(bounds, output.Things(s.Retention.Count, "event"))
	}
	keeps, key := "everything", "not required"
	if bounds != nil {
		keeps = "at most " + strings.Join(bounds, ", ")
	}
	if s.Compaction != nil {
		c := s.Compaction.WithDefaults()
		newest := fmt.Sprintf("the newest event of each key, and what is younger than %s (groups %s, ends of keys %s)", c.MinAge, c.Hold, c.Grace)
		if keeps = newest + "; " + keeps; bounds == nil {
			keeps = newest
		}
	}
	if s.KeyRequired || s.Compaction != nil {
		key = "required"
	}
	fields := []output.Field{{Name: "Keeps", Value: keeps}, {Name: "Key", Value: key}}
	if s.State != "" {
		fields = append(fields, output.Field{Name: "State", Value: stateText(s.State)})
	}
	if s.Snapshot != nil {
		fields = append(fields, output.Field{Name: "Snapshots", Value: snapshotText(s.Snapshot)})
	}
	if s.GroupIdleExpiry != 0 {
		fields = append(fields, output.Field{Name: "Idle groups", Value: "end after " + s.GroupIdleExpiry.String()})
	}
	return fields
}

// stateText says when a topic has the index by key.
func stateText(mode admin.StateMode) string {
	switch mode {
	case admin.StateOn:
		return "on: the index by key is always there"
	case admin.StateOff:
		return "off: questions about the state are refused"
	}
	return "auto: the index by key is there from the first question on"
}

// snapshotText says when snapshots of a topic are made, and of what.
func snapshotText(s *admin.Snapshot) string {
	text := "every " + s.WithDefaults().Every.String()
	if s.Changes != 0 {
		text += ", or after " + output.Things(s.Changes, "event")
	}
	if s.BatchKeys != nil {
		text += ", of " + output.Things(len(s.BatchKeys), "key")
	}
	if s.KeySource != "" {
		text += ", by the key " + s.KeySource
	}
	return text
}

// snapshotFields says which snapshots there are of a topic.
func snapshotFields(now time.Time, s *admin.TopicSnapshots) []output.Field {
	text := fmt.Sprintf("%s, %s", s.Topic, s.State)
	switch {
	case s.Failed != "":
		text += "; the last one failed: " + s.Failed
	case s.NextTS != 0:
		text += "; the next one is due " + moment(now, s.NextTS)
	case s.State == admin.SnapshotsWaiting:
		text += "; nothing has changed since the last one"
	}
	fields := []output.Field{{Name: "Snapshots in", Value: text}}
	for _, one := range s.Snapshots {
		fields = append(fields, output.Field{Name: "  at offset " + output.Count(one.Offset), Value: fmt.Sprintf("%s, %s, from offset %d on there", moment(now, one.TS), output.Things(one.Count, "key"), one.First)})
	}
	return fields
}

// idleFields says which groups of a topic end, and have ended.
func idleFields(now time.Time, idle *admin.TopicIdle) []output.Field {
	text := output.Things(idle.Groups, "group")
	if idle.Next != "" {
		text += fmt.Sprintf("; %s ends first, %s at the earliest", idle.Next, moment(now, idle.NextTS))
	}
	fields := []output.Field{{Name: "Idle now", Value: text}}
	for _, g := range idle.Ended {
		fields = append(fields, output.Field{Name: "  ended " + g.Group, Value: fmt.Sprintf("%s, cursor %d", moment(now, g.TS), g.Cursor)})
	}
	return fields
}

// fromText says where settings are from.
func fromText(from *admin.SettingsSource) string {
	text := map[string]string{
		admin.SourceFile: "the hub's file", admin.SourceStored: "stored settings", admin.SourceDefault: "no settings",
	}[from.Source]
	switch {
	case from.Entry != "" && from.Source == admin.SourceFile:
		text += ", entry " + from.Entry
	case from.Entry != "":
		text += " of " + from.Entry
	}
	if from.Version != 0 {
		text += ", version " + strconv.FormatUint(from.Version, 10)
	}
	return text
}
