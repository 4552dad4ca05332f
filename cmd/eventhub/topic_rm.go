package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/output"
)

func topicRemoveCommand() *cobra.Command {
	var r reach
	var yes bool
	cmd := &cobra.Command{
		Use:   "rm TOPIC",
		Short: "Delete a topic for good",
		Long: `Deletes a topic with its events, its groups and what is scheduled for it. Members that
have the topic alone are notified; those by a pattern continue without it. Its dead letters are a
topic of their own and stay. Published to again, the name is a new topic whose offsets go
on above the old ones. On a terminal it asks before; elsewhere --yes is needed.`,
		Example: `  eventhub topic rm orders.test
  eventhub topic rm orders.test --yes`,
		Args: words("TOPIC"),
	}
	yesFlag(cmd, &yes)
	r.register(cmd)
	cmd.ValidArgsFunction = completeNames(&r, false, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !yes && !output.IsTerminal(cmd.InOrStdin()) {
			return usageError{errors.New("nobody can be asked here; --yes deletes the topic without asking")}
		}
		adm, err := r.admin(cmd)
		if err != nil {
			return err
		}
		defer adm.Close()
		t, err := ask(cmd.Context(), &r, func(ctx context.Context) (admin.TopicInfo, error) { return adm.Topic(ctx, args[0]) })
		if err != nil {
			return err
		}
		if !yes && !confirm(cmd, fmt.Sprintf("Delete topic %s with its events (up to offset %d) and %d groups?", t.Topic, t.Head, t.Groups)) {
			return errors.New("nothing was deleted")
		}
		_, err = ask(cmd.Context(), &r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, adm.DeleteTopic(ctx, t.Topic)
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(results(cmd), "deleted topic %s\n", t.Topic)
		return err
	}
	return cmd
}
