package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// shownPreview is how many characters of a payload a line of a trace has.
const shownPreview = 48

// printTrace prints the causes and effects of an event.
func (g *getting) printTrace(cmd *cobra.Command, adm *client.Admin, args []string) error {
	id := args[len(args)-1]
	if len(args) == 2 { // the event has to be in the topic
		if _, err := ask(cmd.Context(), &g.reach, func(ctx context.Context) (eventhub.Item, error) { return adm.Event(ctx, args[0], id) }); err != nil {
			return err
		}
	}
	limit := admin.MaxTraceNodes
	if cmd.Flags().Changed("limit") {
		limit = g.limit
	}
	trace, err := ask(cmd.Context(), &g.reach, func(ctx context.Context) (admin.Trace, error) {
		return adm.Trace(ctx, id, g.depth, limit)
	})
	if err != nil {
		return err
	}
	out := results(cmd)
	err = output.Document(out, g.format.Format, trace, func(w io.Writer) error { return drawTrace(w, out.Color, time.Now(), &trace) })
	if err == nil && trace.Truncated {
		fmt.Fprintf(cmd.ErrOrStderr(), "There is more than these %s: --depth and --limit say how far to look, up to %d and %d.\n",
			output.Things(len(trace.Nodes), "event"), admin.MaxTraceDepth, admin.MaxTraceNodes)
	}
	return err
}

// drawing is a trace that becomes a tree of lines: each event has below it what it
// caused. An event that several have caused is below each of them, and what
// comes of it below the first alone.
type drawing struct {
	trace   *admin.Trace
	now     time.Time
	color   bool
	effects [][]admin.TraceEdge // of each node
	shown   []bool
	lines   bytes.Buffer
}

func drawTrace(w io.Writer, color bool, now time.Time, trace *admin.Trace) error {
	d := &drawing{
		trace: trace, now: now, color: color,
		effects: make([][]admin.TraceEdge, len(trace.Nodes)), shown: make([]bool, len(trace.Nodes)),
	}
	caused := make([]bool, len(trace.Nodes))
	for _, e := range trace.Edges {
		d.effects[e.Cause] = append(d.effects[e.Cause], e)
		caused[e.Effect] = caused[e.Effect] || !e.Cycle
	}
	for n := range trace.Nodes {
		if !caused[n] {
			d.draw(n, "", "", false)
		}
	}
	_, err := w.Write(d.lines.Bytes())
	return err
}

// draw writes a node with the prefix lead, and its effects with the prefix below and their branches.
func (d *drawing) draw(n int, lead, below string, cycle bool) {
	node := &d.trace.Nodes[n]
	again := ""
	switch {
	case cycle:
		again = "↺ a cycle: see above"
	case d.shown[n] && len(d.effects[n]) > 0:
		again = "↑ see above"
	}
	if again != "" {
		fmt.Fprintf(&d.lines, "%s%s  %s\n", lead, d.name(node), again)
		return
	}
	fmt.Fprintf(&d.lines, "%s%s\n", lead, d.line(node))
	d.shown[n] = true
	for i, e := range d.effects[n] {
		if i == len(d.effects[n])-1 {
			d.draw(e.Effect, below+"└─ ", below+"   ", e.Cycle)
		} else {
			d.draw(e.Effect, below+"├─ ", below+"│  ", e.Cycle)
		}
	}
}

// name says which event a node is.
func (d *drawing) name(n *admin.TraceNode) string {
	if n.Missing || n.Hidden {
		return n.ID
	}
	return fmt.Sprintf("%s@%d  %s", n.Topic, n.Offset, d.dim(shortID(n.ID)))
}

// line describes a node.
func (d *drawing) line(n *admin.TraceNode) string {
	if n.Missing {
		return n.ID + d.dim("  not here: trimmed, or never published")
	}
	if n.Hidden {
		return strings.TrimSpace(n.ID + d.dim("  hidden: in a topic that the token may not read"))
	}
	parts := []string{d.name(n), d.dim(output.Ago(d.now, n.TS)), output.Safe(cutText(n.Preview, shownPreview))}
	for _, g := range n.Groups {
		parts = append(parts, "["+g.Group+": "+groupState(&g)+"]")
	}
	if n.Distance == 0 {
		parts = append(parts, "◀")
	}
	return strings.Join(parts, "  ")
}

func (d *drawing) dim(text string) string {
	if !d.color {
		return text
	}
	return "\x1b[2m" + text + "\x1b[0m"
}

// groupState says what became of an event in a group.
func groupState(g *admin.EventGroup) string {
	switch g.State {
	case "leased", "ack_and_publish":
		return fmt.Sprintf("in flight, attempt %d", g.Attempt)
	case "waiting":
		return fmt.Sprintf("waiting, %s failed", output.Things(g.Attempt, "attempt"))
	case "ahead":
		return "not yet"
	}
	return strings.ReplaceAll(g.State, "_", " ")
}

// shortID keeps what distinguishes ids: those of one hub begin with the time.
func shortID(id string) string {
	if len(id) <= 32 {
		return id
	}
	return id[:8] + "…" + id[len(id)-6:]
}

// cutText keeps the first characters of a text.
func cutText(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}
