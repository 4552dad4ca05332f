package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/naming"
)

// announce says what is followed, and from where on: of a group that exists its cursor
// counts, whatever --from says. It is a courtesy: where the hub does not answer, the
// subscription will report it.
func (f *following) announce(ctx context.Context, w io.Writer, fromGiven bool, adm *client.Admin) {
	if f.group == "" {
		fmt.Fprintf(w, "eventhub: live tail of %s, %s\n", strings.Join(f.topics, ", "), beginning(f.start))
		f.announceMissing(ctx, w, adm)
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
			announceBlocked(w, &g)
		case eventhub.CodeNotSubscribed, eventhub.CodeUnknownID:
			f.announceNew(ctx, w, topic, adm)
		}
	}
}

// gapTo returns what reports gaps to w. A gap may come while another is reported.
func gapTo(w io.Writer) func(eventhub.Gap) {
	return func(g eventhub.Gap) {
		var text string
		switch {
		case g.First == 0:
			text = fmt.Sprintf("eventhub: the hub does not have the event of %s at offset %d any more; what was committed later follows\n", g.Topic, g.After)
		case g.First > g.After+1:
			text = fmt.Sprintf("eventhub: the events of %s after offset %d and before %d were removed before they came\n", g.Topic, g.After, g.First)
		}
		if g.Compacted > 0 {
			text += fmt.Sprintf("eventhub: %s was compacted up to offset %d before its events from %d on came: values that were replaced may be missing\n", g.Topic, g.Compacted, g.First)
		}
		if g.Tombstones > 0 {
			text += fmt.Sprintf("eventhub: of %s ends of keys up to offset %d may be missing too: a state by key has to be read anew\n", g.Topic, g.Tombstones)
		}
		_, _ = io.WriteString(w, text)
	}
}

// stateTo returns what reports to w how far a state is.
func stateTo(w io.Writer) func(*eventhub.Delivery) {
	seen := 0
	return func(d *eventhub.Delivery) {
		switch s := d.State; {
		case s.Complete:
			seen++
			again := ""
			if seen > 1 {
				again = " again"
			}
			fmt.Fprintf(w, "eventhub: the state of %s at offset %d is complete%s: %d keys\n", d.Topic, s.Offset, again, s.Count)
		case s.Horizon != 0:
			fmt.Fprintf(w, "eventhub: the events of %s before offset %d were removed, and the keys that have no later one\n", d.Topic, s.Horizon)
		case s.Snapshot != "" && seen > 0:
			fmt.Fprintf(w, "eventhub: the state of %s comes again: what came before does not count\n", d.Topic)
		}
	}
}

// compactedTo returns what reports to w where compaction may have removed events that a replay or
// an export is to have.
func compactedTo(w io.Writer) func(eventhub.Gap) {
	return func(g eventhub.Gap) {
		what := g.Topic + " is compacted"
		if eventhub.IsPattern(g.Topic) { // what a hub puts together
			what = "other topics of " + g.Topic + " are compacted"
		}
		text := fmt.Sprintf("eventhub: %s up to offset %d: values that were replaced may be missing", what, g.Compacted)
		if g.Tombstones > 0 {
			text += fmt.Sprintf(", and ends of keys up to offset %d", g.Tombstones)
		}
		_, _ = io.WriteString(w, text+"\n")
	}
}

// endedTo returns what reports groups to w that had ended and begin anew.
func endedTo(w io.Writer, group string) func(eventhub.EndedGroup) {
	return func(e eventhub.EndedGroup) {
		fmt.Fprintf(w, "eventhub: group %s of %s had ended %s, after offset %d: nobody had used it; it begins anew\n",
			group, e.Topic, moment(time.Now(), e.TS), e.Cursor)
	}
}

// announceBlocked says why a group gets nothing, where a member that comes now does not change that.
func announceBlocked(w io.Writer, g *admin.GroupInfo) {
	if g.BlockedBy == nil {
		return
	}
	switch g.BlockedBy.Kind {
	case "paused", "window", "key":
		fmt.Fprintf(w, "eventhub: group %s of %s is blocked: %s\n", g.Group, g.Topic, blocked(time.Now(), g))
	}
}

// announceMissing says which topics of a live tail do not exist yet.
func (f *following) announceMissing(ctx context.Context, w io.Writer, adm *client.Admin) {
	for _, topic := range f.topics {
		if !eventhub.IsPattern(topic) && !f.noCreate && f.isMissing(ctx, topic, adm) {
			fmt.Fprintf(w, "eventhub: topic %s does not exist yet%s\n", topic, f.nearTopic(ctx, topic, adm))
		}
	}
}

// announceNew says that a group is new, and perhaps its topic.
func (f *following) announceNew(ctx context.Context, w io.Writer, topic string, adm *client.Admin) {
	switch {
	case f.noCreate: // the hub will refuse it
	case f.isMissing(ctx, topic, adm):
		fmt.Fprintf(w, "eventhub: group %s of %s is new, and so is the topic%s\n", f.group, topic, f.nearTopic(ctx, topic, adm))
	default:
		fmt.Fprintf(w, "eventhub: group %s of %s is new: it begins %s%s\n", f.group, topic, beginning(f.start), f.nearGroup(ctx, topic, adm))
	}
}

func (f *following) isMissing(ctx context.Context, topic string, adm *client.Admin) bool {
	_, err := ask(ctx, &f.reach, func(ctx context.Context) (admin.TopicInfo, error) { return adm.Topic(ctx, topic) })
	return eventhub.ErrorCode(err) == eventhub.CodeUnknownID
}

// nearTopic and nearGroup suggest a name that is near the given one.

func (r *reach) nearTopic(ctx context.Context, topic string, adm *client.Admin) string {
	topics, _ := ask(ctx, r, func(ctx context.Context) ([]admin.TopicInfo, error) { return adm.Topics(ctx, "", admin.MaxPage) })
	names := make([]string, len(topics))
	for i := range topics {
		names[i] = topics[i].Topic
	}
	return naming.DidYouMean(topic, names)
}

func (f *following) nearGroup(ctx context.Context, topic string, adm *client.Admin) string {
	groups, _ := ask(ctx, &f.reach, func(ctx context.Context) ([]admin.GroupInfo, error) {
		return adm.Groups(ctx, admin.GroupQuery{Topic: topic})
	})
	names := make([]string, len(groups))
	for i := range groups {
		names[i] = groups[i].Group
	}
	return naming.DidYouMean(f.group, names)
}

func (f *following) announcePattern(ctx context.Context, w io.Writer, pattern, ignored string, adm *client.Admin) {
	found, err := ask(ctx, &f.reach, func(ctx context.Context) ([]admin.GroupPattern, error) { return adm.Patterns(ctx, f.group) })
	switch {
	case err != nil:
	case slices.ContainsFunc(found, func(p admin.GroupPattern) bool { return p.Pattern == pattern }):
		fmt.Fprintf(w, "eventhub: group %s has the pattern %s already and continues after its cursor in each topic%s\n", f.group, pattern, ignored)
	case !f.noCreate:
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
	case eventhub.StartSnapshot:
		return "with its state, and after it"
	}
	return "after the latest event of now"
}
