package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/config"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/listing"
)

// shownGroups is how many groups the screen of `status` has rows for.
const shownGroups = 20

// state is what `status` prints.
type state struct {
	OK         bool   `json:"ok"`
	URL        string `json:"url"`
	Version    string `json:"version"` // like Durability empty where the hub lets no new connection in
	Durability string `json:"durability"`
	// Operations is what the operations listener says; nil where it does not answer, and
	// NoOperations says why.
	Operations   *operations `json:"operations,omitempty"`
	NoOperations string      `json:"no_operations,omitempty"`

	Topics          int               `json:"topics"`
	Groups          int               `json:"groups"`
	GroupsDone      int               `json:"groups_done"` // that have nothing to do
	DeadLettersOpen uint64            `json:"dead_letters_open"`
	Busy            []admin.GroupInfo `json:"busy_groups"` // that have something to do, or are paused
	Warnings        []warning         `json:"warnings"`
}

// warning is one thing that needs attention.
type warning struct {
	What    string `json:"what"`
	Command string `json:"command"` // to type next
}

func (s *state) warn(command, what string, args ...any) {
	s.Warnings = append(s.Warnings, warning{fmt.Sprintf(what, args...), command})
}

func statusCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is up, what is wrong and what to do",
		Long: `Shows on one screen the hub, its store, its groups and its dead letters, and of all that
needs attention the command to type next: a hub that is not ready, or lets no new connection
in because it is overloaded, a disk that fills up, groups that are paused, stuck or without
members while they have something to do, and open dead letters. The exit code is 0 if all is
well, 1 if something needs attention, and 3 if no hub can be reached. Of topics and groups it
counts those that the token may see.

What it says of the store comes from the operations listener: that of --ops, and without
one port 8082 of the host of --url.`,
		Example: `  eventhub status
  eventhub status --url wss://hub.example.com --ops hub.example.com:8082 -o json`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	hubSchema().Register(cmd.Flags(), "ops")
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings, err := hubSchema().Load(cmd.Flags(), os.Environ())
		if err != nil {
			return configError(cmd, err)
		}
		s, err := r.status(cmd, settings)
		if err != nil {
			return err
		}
		out := results(cmd)
		err = output.Document(out, format.Format, s, func(w io.Writer) error { return s.print(w, out.Color, time.Now()) })
		if err == nil && !s.OK {
			needs := "need"
			if len(s.Warnings) == 1 {
				needs = "needs"
			}
			err = fmt.Errorf("%s %s attention", output.Things(len(s.Warnings), "thing"), needs)
		}
		return err
	}
	return cmd
}

// status asks for all that is shown.
func (r *reach) status(cmd *cobra.Command, settings *config.Settings) (*state, error) {
	s := &state{Busy: []admin.GroupInfo{}, Warnings: []warning{}}
	c, err := r.dial(cmd, client.WithoutReconnect())
	switch {
	case err == nil:
		defer c.Close()
		info := c.Info()
		s.Version, s.Durability = info.Version, info.Durability
	case eventhub.ErrorCode(err) == eventhub.CodeOverloaded: // it still answers who asks over HTTP
		s.warn("eventhub connections ls", "the hub refuses new connections: %s", hubsWord(err))
	default:
		return nil, err
	}
	s.URL = r.url
	adm, err := r.admin(cmd)
	if err != nil {
		return nil, err
	}
	defer adm.Close()
	ops, err := r.opsAddr(settings)
	if err == nil {
		s.Operations, err = ask(cmd.Context(), r, func(ctx context.Context) (*operations, error) { return r.askOperations(ctx, ops) })
	}
	if err != nil {
		s.NoOperations = oneLine(err.Error())
	} else {
		s.judgeStore()
	}
	for _, err := range admin.AllTopics(cmd.Context(), asking{r, adm}, "") {
		if err != nil {
			return nil, err
		}
		s.Topics++
	}
	if err := s.addGroups(cmd.Context(), r, adm); err != nil {
		return nil, err
	}
	if err := s.addDeadLetters(cmd.Context(), r, adm); err != nil {
		return nil, err
	}
	s.OK = len(s.Warnings) == 0
	return s, nil
}

// hubsWord is the hub's own word in an error.
func hubsWord(err error) string {
	var e *eventhub.Error
	if errors.As(err, &e) {
		return oneLine(e.Message)
	}
	return oneLine(err.Error())
}

// opsAddr is where the operations listener is, if only the hub was named.
func (r *reach) opsAddr(settings *config.Settings) (string, error) {
	addr := settings.Text("ops")
	if settings.Source("ops").Kind == config.FromDefault {
		if len(r.urls) > 1 {
			return "", errors.New("--url names several hubs; --ops says whose operations listener is asked")
		}
		u, err := url.Parse(r.url)
		if err != nil {
			return "", err
		}
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "", err
		}
		return net.JoinHostPort(u.Hostname(), port), nil
	}
	return probeAddr(addr)
}

func (s *state) judgeStore() {
	o := s.Operations
	if !o.Ready {
		s.warn("eventhub health", "the hub is not ready: it is starting, stopping, or its store failed")
	}
	if o.NoMaintenance {
		s.warn("eventhub serve --maintenance=on", "maintenance is off: nothing that settings do not keep is removed")
	}
	if held := time.Duration(o.ClockHeldS) * time.Second; held >= time.Hour {
		s.warn("date", "the clock is %s ahead of the time that has passed; retention by age is slow until it has caught up", output.Span(held))
	}
	switch {
	case o.NeededBytes == 0:
	case o.FreeBytes < o.NeededBytes:
		s.warn("df -h", "the disk has %s free: publishes are refused below %s", byteSize(o.FreeBytes), byteSize(o.NeededBytes))
	case o.FreeBytes < 2*o.NeededBytes:
		s.warn("df -h", "the disk has only %s free: below %s publishes are refused", byteSize(o.FreeBytes), byteSize(o.NeededBytes))
	case o.FullInS > 0 && o.FullInS < int64(fullSoon/time.Second):
		s.warn("eventhub topic ls", "the disk is full in %s, if it goes on to fill like that", output.Span(time.Duration(o.FullInS)*time.Second))
	}
}

// fullSoon is from when on a disk that fills up is worth a warning, as in the alerts.
const fullSoon = 3 * 24 * time.Hour

// addGroups looks at every group.
func (s *state) addGroups(ctx context.Context, r *reach, adm *client.Admin) error {
	for g, err := range listing.All(admin.MaxPage, func(after *admin.GroupInfo) ([]admin.GroupInfo, error) {
		q := admin.GroupQuery{Limit: admin.MaxPage}
		if after != nil {
			q.AfterTopic, q.AfterGroup = after.Topic, after.Group
		}
		return ask(ctx, r, func(ctx context.Context) ([]admin.GroupInfo, error) { return adm.Groups(ctx, q) })
	}) {
		if err != nil {
			return err
		}
		s.Groups++
		todo := g.Lag + uint64(g.Redriven)
		if todo == 0 {
			s.GroupsDone++
		}
		if todo > 0 || g.Paused {
			s.Busy = append(s.Busy, g)
		}
		s.judgeGroup(&g, todo)
	}
	return nil
}

func (s *state) judgeGroup(g *admin.GroupInfo, todo uint64) {
	name, events := fmt.Sprintf("group %s of %s", g.Group, g.Topic), output.Things(todo, "event")
	at := g.Topic + " " + g.Group
	switch {
	case g.Paused && todo > 0:
		s.warn("eventhub group resume "+at, "%s is paused and has %s to do", name, events)
	case g.Paused:
		s.warn("eventhub group resume "+at, "%s is paused", name)
	case todo == 0 || g.BlockedBy == nil:
	case g.BlockedBy.Kind == "filter":
		s.warn("eventhub group info "+at, "%s has %s to do, and a filter that the hub does not accept any more", name, events)
	case g.BlockedBy.Kind == "no_members":
		s.warn("eventhub group info "+at, "%s has %s to do and no member", name, events)
	case g.BlockedBy.Kind == "members_paused":
		s.warn("eventhub group info "+at, "%s has %s to do, and all its members have paused", name, events)
	case g.BlockedBy.Kind == "window" || g.BlockedBy.Kind == "key":
		s.warn("eventhub group info "+at, "%s is stuck: %s", name, blocked(time.Now(), g))
	}
}

// addDeadLetters looks at every topic that has some.
func (s *state) addDeadLetters(ctx context.Context, r *reach, adm *client.Admin) error {
	for d, err := range listing.All(admin.MaxPage, func(after *admin.DeadLetterTopic) ([]admin.DeadLetterTopic, error) {
		name := ""
		if after != nil {
			name = after.Topic
		}
		return ask(ctx, r, func(ctx context.Context) ([]admin.DeadLetterTopic, error) {
			return adm.DeadLetterTopics(ctx, name, admin.MaxPage)
		})
	}) {
		if eventhub.ErrorCode(err) == eventhub.CodeUnsupportedOp {
			return nil // of an older hub
		}
		if err != nil {
			return err
		}
		s.DeadLettersOpen += d.Open
		if d.Open == 0 {
			continue
		}
		var groups []string
		for _, g := range d.Groups {
			if g.Open > 0 {
				groups = append(groups, g.Group)
			}
		}
		by := "group " + strings.Join(groups, ", ")
		if len(groups) != 1 {
			by = output.Things(len(groups), "group")
		}
		s.warn("eventhub dlq ls "+d.Topic, "topic %s has %s, given up by %s", d.Topic, output.Things(d.Open, "open dead letter"), by)
	}
	return nil
}

func (s *state) print(w io.Writer, color bool, now time.Time) error {
	about := ""
	if s.Version != "" {
		about = fmt.Sprintf(", version %s, durability %s", s.Version, s.Durability)
	}
	hub := s.URL + about
	store := "not known: " + s.NoOperations + "; --ops says where the operations listener is"
	topics := output.Count(s.Topics)
	if o := s.Operations; o != nil {
		ready := "ready"
		if !o.Ready {
			ready = "NOT READY"
		}
		hub = fmt.Sprintf("%s, %s%s, up %s", s.URL, ready, about, output.Span(max(0, now.Sub(time.UnixMilli(o.StartedTS)))))
		store = o.describe(now)
	}
	var b strings.Builder
	_ = output.Fields(&b, color, []output.Field{ // a builder takes all
		{Name: "Hub", Value: hub},
		{Name: "Store", Value: store},
		{Name: "Topics", Value: topics},
		{Name: "Groups", Value: fmt.Sprintf("%s, %s with something to do", output.Count(s.Groups), output.Count(s.Groups-s.GroupsDone))},
		{Name: "Dead letters", Value: output.Count(s.DeadLettersOpen) + " open"},
	})
	if n := len(s.Busy); n > 0 {
		title := "Groups that have something to do"
		if n > shownGroups {
			title += fmt.Sprintf(", the first %d of %s ('eventhub group ls' has all)", shownGroups, output.Count(n))
		}
		if err := section(&b, color, title, groupColumns(now), s.Busy[:min(n, shownGroups)]); err != nil {
			return err
		}
	}
	b.WriteByte('\n')
	switch {
	case len(s.Warnings) > 0:
	case s.Operations == nil: // a token may show little, or nothing
		b.WriteString("Nothing of what this shows needs attention; the store is not known.\n")
	default:
		b.WriteString("All is well.\n")
	}
	for _, warn := range s.Warnings {
		fmt.Fprintf(&b, "! %s\n    %s\n", output.Safe(warn.What), output.Safe(warn.Command))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// errNoMetrics is for something else than an operations listener.
var errNoMetrics = errors.New("what answers there is not a hub's operations listener")
