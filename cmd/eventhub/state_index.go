package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// indexPause is between two requests while the hub indexes a topic. The hub itself waits for
// admin.IndexWait before it says that it does.
const indexPause = time.Second

// askState makes a request about the state of a topic, and again as long as the hub is indexing the topic
// for it. Standard error says how far that is.
func askState[T any](cmd *cobra.Command, r *reach, adm *client.Admin, topic string, request func(context.Context) (T, error)) (T, error) {
	notes := cmd.ErrOrStderr()
	isTerminal, isShown := output.IsTerminal(notes), false
	defer func() {
		if isShown && isTerminal {
			fmt.Fprint(notes, "\r\x1b[K")
		}
	}()
	for {
		ctx, cancel := context.WithTimeout(cmd.Context(), r.timeout+admin.IndexWait)
		got, err := request(ctx)
		cancel()
		var refused *eventhub.Error
		if !errors.As(err, &refused) || refused.Code != eventhub.CodeOverloaded {
			return got, err
		}
		// The hub may be overloaded by something else.
		t, topicErr := ask(cmd.Context(), r, func(ctx context.Context) (admin.TopicInfo, error) { return adm.Topic(ctx, topic) })
		if topicErr != nil || t.Index == nil || t.Index.State == admin.IndexNone {
			return got, err
		}
		text := fmt.Sprintf("The hub indexes the keys of topic %s: %s", topic, indexText(t.Index))
		switch {
		case isTerminal:
			fmt.Fprintf(notes, "\r\x1b[K%s", text)
		case !isShown:
			fmt.Fprintln(notes, text)
		}
		isShown = true
		select {
		case <-time.After(indexPause):
		case <-cmd.Context().Done():
			return got, err
		}
	}
}
