package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

// announce says what is followed, and from where on: of a group that exists its cursor
// counts, whatever --from says. It is a courtesy: where the hub does not answer, the
// subscription will report it.
func (f *following) announce(ctx context.Context, w io.Writer, fromGiven bool, adm *client.Admin) {
	if f.group == "" {
		fmt.Fprintf(w, "eventhub: live tail of %s, %s\n", strings.Join(f.topics, ", "), beginning(f.start))
		return
	}
	ignored := ""
	if fromGiven {
		ignored = "; --from counts only when a group is created"
	}
	for _, topic := range f.topics {
		if eventhub.IsPattern(topic) {
			f.announcePattern(ctx, w, topic, ignored, adm)
			continue
		}
		g, err := ask(ctx, &f.reach, func(ctx context.Context) (admin.GroupInfo, error) { return adm.Group(ctx, topic, f.group) })
		switch eventhub.ErrorCode(err) {
		case "":
			fmt.Fprintf(w, "eventhub: group %s of %s exists and continues after offset %d%s\n", g.Group, g.Topic, g.Cursor, ignored)
		case eventhub.CodeNotSubscribed, eventhub.CodeUnknownID:
			fmt.Fprintf(w, "eventhub: group %s of %s is new: it begins %s\n", f.group, topic, beginning(f.start))
		}
	}
}

func (f *following) announcePattern(ctx context.Context, w io.Writer, pattern, ignored string, adm *client.Admin) {
	found, err := ask(ctx, &f.reach, func(ctx context.Context) ([]admin.GroupPattern, error) { return adm.Patterns(ctx, f.group) })
	switch {
	case err != nil:
	case slices.ContainsFunc(found, func(p admin.GroupPattern) bool { return p.Pattern == pattern }):
		fmt.Fprintf(w, "eventhub: group %s has the pattern %s already and continues after its cursor in each topic%s\n", f.group, pattern, ignored)
	default:
		fmt.Fprintf(w, "eventhub: group %s gets the pattern %s: in each topic that has no such group it begins %s\n", f.group, pattern, beginning(f.start))
	}
}

// beginning says where a start is.
func beginning(s eventhub.Start) string {
	switch s.Kind {
	case eventhub.StartEarliest:
		return "at the earliest event"
	case eventhub.StartTime:
		return "at " + output.Time(s.TS)
	case eventhub.StartAfterID:
		return "after the event " + s.AfterID
	case eventhub.StartOffset:
		return fmt.Sprintf("at offset %d", s.Offset)
	}
	return "after the latest event of now"
}
