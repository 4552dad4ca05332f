package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

func connectionsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "connections", Aliases: []string{"connection"}, Short: "List and close connections"}
	cmd.AddCommand(connectionsListCommand(), connectionsCloseCommand())
	return cmd
}

func connectionsListCommand() *cobra.Command {
	var r reach
	var p paging
	var after string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List WebSocket connections, the oldest first",
		Long: `Lists who is connected by WebSocket: how each client calls itself, who signed in, where it
is, how many subscriptions it has, how many events are leased to it, how many were delivered,
and how many bytes were sent and wait to be sent. A QUEUED that does not go down is of a
client that reads slowly.`,
		Example: `  eventhub connections ls
  eventhub connections ls --all -o ndjson`,
		Args: words(),
	}
	format := formatFlag(cmd, listFormats)
	cmd.Flags().StringVar(&after, "after", "", "only those that came after this one")
	p.register(cmd)
	r.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return err
		}
		return paged[admin.ConnectionInfo]{&p,
			func(last admin.ConnectionInfo) string {
				return fmt.Sprintf("There are more connections: --all shows all, --after %s the next.", last.ID)
			},
			func(ctx context.Context, adm *client.Admin, last *admin.ConnectionInfo, limit int) ([]admin.ConnectionInfo, error) {
				if last != nil {
					after = last.ID
				}
				return adm.Connections(ctx, after, limit)
			},
		}.list(cmd, &r, format, connectionColumns)
	}
	return cmd
}

func connectionColumns(now time.Time) []output.Column[admin.ConnectionInfo] {
	count := func(n func(c *admin.ConnectionInfo) int64) func(admin.ConnectionInfo) string {
		return func(c admin.ConnectionInfo) string { return strconv.FormatInt(n(&c), 10) }
	}
	dash := func(text string) string {
		if text == "" {
			return "-"
		}
		return output.Safe(text)
	}
	return []output.Column[admin.ConnectionInfo]{
		{Name: "ID", Cell: func(c admin.ConnectionInfo) string { return c.ID }},
		{Name: "CLIENT", Cell: func(c admin.ConnectionInfo) string { return dash(c.Client) }},
		{Name: "NAME", Cell: func(c admin.ConnectionInfo) string { return dash(c.Name) }},
		{Name: "REMOTE", Cell: func(c admin.ConnectionInfo) string { return c.Remote }},
		{Name: "SINCE", Cell: func(c admin.ConnectionInfo) string { return output.Ago(now, c.SinceTS) }},
		{Name: "SUBSCRIPTIONS", Right: true, Cell: count(func(c *admin.ConnectionInfo) int64 { return int64(c.Subscriptions) })},
		{Name: "IN FLIGHT", Right: true, Cell: count(func(c *admin.ConnectionInfo) int64 { return int64(c.InFlight) })},
		{Name: "DELIVERED", Right: true, Cell: count(func(c *admin.ConnectionInfo) int64 { return c.Delivered })},
		{Name: "BYTES OUT", Right: true, Cell: count(func(c *admin.ConnectionInfo) int64 { return c.BytesOut })},
		{Name: "QUEUED", Right: true, Cell: count(func(c *admin.ConnectionInfo) int64 { return int64(c.QueuedBytes) })},
	}
}

func connectionsCloseCommand() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "close ID",
		Short: "Close a connection",
		Long: `Closes a WebSocket connection, as the hub does when it stops: publishes that it has accepted
are answered, events that are leased to the connection go back to their groups at once, and
these attempts do not count. The close code is 1001, so most clients connect again, under
another id: this frees what a client that hangs holds, and does not keep it away.`,
		Example: `  eventhub connections close mgx3k2ab-17`,
		Args:    words("ID"),
	}
	r.register(cmd)
	cmd.ValidArgsFunction = complete(&r, func(ctx context.Context, adm *client.Admin, args []string) (ids []string) {
		if len(args) > 0 {
			return nil
		}
		found, _ := adm.Connections(ctx, "", admin.MaxPage)
		for i := range found {
			ids = append(ids, found[i].ID)
		}
		return ids
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		_, err = ask(cmd.Context(), &r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, adm.CloseConnection(ctx, args[0])
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(results(cmd), "closed connection %s\n", args[0])
		return err
	}
	return cmd
}
