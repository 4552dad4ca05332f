package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// lateMember is from when on a standby is away that says nothing: three times in a row.
const lateMember = 30 * time.Second

// cluster is what /cluster answers.
type cluster struct {
	Member struct {
		ID            string `json:"id"`
		Role          string `json:"role"`
		Epoch         uint64 `json:"epoch"`
		Active        string `json:"active,omitempty"`
		Position      uint64 `json:"position"`
		Last          uint64 `json:"last"`
		BehindEntries uint64 `json:"behind_entries"`
		BehindMS      int64  `json:"behind_ms"`
		SilentMS      int64  `json:"silent_ms"`
		FullMS        int64  `json:"full_ms"`
	} `json:"member"`
	Journal struct {
		Durability string `json:"durability"`
		UsedBytes  int64  `json:"used_bytes"`
		MostBytes  int64  `json:"most_bytes"`
		NowTS      int64  `json:"now_ts,omitempty"`
	} `json:"journal"`
	Members []clusterMember `json:"members"`
}

type clusterMember struct {
	ID            string   `json:"id"`
	URLs          []string `json:"urls"`
	Active        bool     `json:"active"`
	Synced        uint64   `json:"synced"`
	BehindEntries uint64   `json:"behind_entries"`
	Layout        uint32   `json:"layout"`
	SeenTS        int64    `json:"seen_ts"`
	Released      bool     `json:"released,omitempty"`
}

func clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Look at the hubs that share a journal, and release one that is gone"}
	cmd.AddCommand(clusterStatusCommand(), clusterReleaseCommand())
	return cmd
}

func clusterStatusCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which hubs share a journal, who leads and who is behind",
		Long: `Asks the operations listener of one hub, active or standby, what it knows of those that
share its journal: who leads and in which epoch, how far this hub is, how full the journal
is, and of each member the place up to which its copy is on its disk. A member says so
every 10 seconds, so one that has everything seems to be behind by what came since SEEN;
a standby that has said nothing for 30 seconds is away. Where the journal does not answer
a hub, what that hub knows is old: ask another one too. Where it is full, it answers, and
takes nothing: make room.

The listener is that of --ops, and without it port 8082 of the host of --url. A hub that
has tokens wants one with the right to operate it.`,
		Example: `  eventhub cluster status
  eventhub cluster status --ops 10.0.0.7:8082 -o json`,
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
		if err := r.resolve(cmd); err != nil {
			return err
		}
		addr, err := r.opsAddr(settings)
		if err != nil {
			return usageError{err}
		}
		c, err := ask(cmd.Context(), &r, func(ctx context.Context) (*cluster, error) { return r.askCluster(ctx, addr) })
		if err != nil {
			return err
		}
		out := results(cmd)
		return output.Document(out, format.Format, c, func(w io.Writer) error { return c.print(w, out.Color) })
	}
	return cmd
}

// askCluster asks for /cluster. The error has the code of the hub's.
func (r *reach) askCluster(ctx context.Context, addr string) (*cluster, error) {
	a, err := r.getOperations(ctx, addr, "/cluster")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrUnreachable, err)
	}
	if a.status != http.StatusOK {
		var problem struct {
			Code   eventhub.Code `json:"code"`
			Detail string        `json:"detail"`
		}
		if json.Unmarshal(a.body, &problem) == nil && problem.Code != "" {
			return nil, eventhub.Errorf(problem.Code, "%s: %s", a.at, problem.Detail)
		}
	}
	c := new(cluster)
	if err := json.Unmarshal(a.body, c); err != nil || a.status != http.StatusOK || c.Member.ID == "" {
		return nil, fmt.Errorf("%s answered %d and no cluster; is %s the --ops address of a hub of this version?", a.at, a.status, addr)
	}
	return c, nil
}

// print writes what is known for people.
func (c *cluster) print(w io.Writer, color bool) error {
	m := &c.Member
	asked := m.Role
	if m.Role == "standby" && m.BehindEntries > 0 {
		asked += fmt.Sprintf(", behind for %s", output.Span(time.Duration(m.BehindMS)*time.Millisecond))
	}
	leads := "nobody yet"
	switch {
	case m.Active != "":
		leads = fmt.Sprintf("%s, epoch %d", output.Safe(m.Active), m.Epoch)
	case m.Last > 0: // of a member that needs a copy
		leads = "not known to this hub yet"
	}
	var b strings.Builder
	_ = output.Fields(&b, color, []output.Field{ // a builder takes all
		{Name: "Leads", Value: leads},
		{Name: "Asked", Value: fmt.Sprintf("%s, %s", output.Safe(m.ID), asked)},
		{Name: "Place", Value: fmt.Sprintf("%d of %d", m.Position, m.Last)},
		{Name: "Journal", Value: c.journal()},
	})
	if err := section(&b, color, "Members", clusterColumns(c.now()), c.Members); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// now is the time by which the members were seen: by the clock of the journal's servers, where the hub says it.
func (c *cluster) now() time.Time {
	if c.Journal.NowTS == 0 {
		return time.Now()
	}
	return time.UnixMilli(c.Journal.NowTS)
}

// journal says what the journal promises, how full it is, and that it takes nothing or does not answer.
func (c *cluster) journal() string {
	j := &c.Journal
	text := output.Safe(j.Durability) + ", " + byteSize(j.UsedBytes)
	if j.Durability == "" {
		text = "not reached since the start"
	} else if j.MostBytes == 0 {
		text += " without a limit"
	} else {
		text += fmt.Sprintf(" of %s (%.0f %%)", byteSize(j.MostBytes), float64(j.UsedBytes)/float64(j.MostBytes)*100)
	}
	if c.Member.SilentMS > 0 {
		text += ", NO ANSWER for " + output.Span(time.Duration(c.Member.SilentMS)*time.Millisecond)
	}
	if c.Member.FullMS > 0 {
		text += ", FULL: it has taken nothing for " + output.Span(time.Duration(c.Member.FullMS)*time.Millisecond)
	}
	return text
}

func clusterColumns(now time.Time) []output.Column[clusterMember] {
	return []output.Column[clusterMember]{
		{Name: "MEMBER", Cell: func(m clusterMember) string { return output.Safe(m.ID) }},
		{Name: "ROLE", Cell: func(m clusterMember) string {
			switch {
			case m.Active:
				return "active"
			case m.Released:
				return "released"
			case now.Sub(time.UnixMilli(m.SeenTS)) > lateMember:
				return "away"
			}
			return "standby"
		}},
		{Name: "SYNCED", Right: true, Cell: func(m clusterMember) string { return strconv.FormatUint(m.Synced, 10) }},
		{Name: "BEHIND", Right: true, Cell: func(m clusterMember) string { return strconv.FormatUint(m.BehindEntries, 10) }},
		{Name: "SEEN", Cell: func(m clusterMember) string { return output.Ago(now, m.SeenTS) }},
		{Name: "URLS", Cell: func(m clusterMember) string {
			if len(m.URLs) == 0 {
				return "-"
			}
			return output.Safe(strings.Join(m.URLs, " "))
		}},
	}
}
