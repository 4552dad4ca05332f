package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
)

// ends are where --until-caught-up stops: the offset that each topic has to be read up to,
// and how to ask for a group's cursor; nil for tails, which forget what they have passed.
// there returns the topics that exist, since what was in one that was deleted, or was removed,
// does not come any more; nil if the subscription reports that.
type ends struct {
	heads  map[string]uint64
	cursor func(ctx context.Context, topic string) (uint64, error)
	there  func(ctx context.Context) (map[string]admin.TopicInfo, error)
	passed chan struct{} // a head was settled: a cursor may have come there
}

func newEnds() ends {
	return ends{heads: make(map[string]uint64), passed: make(chan struct{}, 1)}
}

// reached waits until the group's cursor has reached the head that was at the beginning in
// every topic, by whichever member's verdicts.
func (e *ends) reached(ctx context.Context) error {
	waiting := slices.Sorted(maps.Keys(e.heads))
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		for len(waiting) > 0 {
			cursor, err := e.cursor(ctx, waiting[0])
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil && !e.isGone(ctx, waiting[0]) {
				return err
			}
			if err == nil && cursor < e.heads[waiting[0]] {
				break
			}
			waiting = waiting[1:]
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-time.After(wait): // nobody is notified of others' acks
		case <-e.passed:
			wait = firstLook
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isGone reports whether a topic was deleted after its head was noted.
func (e *ends) isGone(ctx context.Context, topic string) bool {
	if e.there == nil {
		return false
	}
	there, err := e.there(ctx)
	return err == nil && there[topic].Head < e.heads[topic]
}

// findHeads notes what each topic has to be read up to, and how to know that it
// was.
func (f *following) findHeads(ctx context.Context, adm *client.Admin, e *ends) error {
	topics, err := f.topicsThere(ctx, adm)
	if err == nil {
		err = f.mayLook(ctx, adm, topics)
	}
	if err != nil {
		return fmt.Errorf("the newest events: %w", err)
	}
	for i := range topics {
		if topic := &topics[i]; topic.Head > 0 && (f.group != "" || topic.FirstOffset > 0 && !f.beginsBehind(topic)) {
			e.heads[topic.Topic] = topic.Head
		}
	}
	if f.group == "" || f.many() { // else the subscription ends with its topic
		e.there = func(ctx context.Context) (map[string]admin.TopicInfo, error) {
			topics, err := f.topicsThere(ctx, adm)
			there := make(map[string]admin.TopicInfo, len(topics))
			for i := range topics {
				there[topics[i].Topic] = topics[i]
			}
			return there, err
		}
	}
	if f.group == "" {
		return nil
	}
	e.cursor = func(ctx context.Context, topic string) (uint64, error) {
		g, err := ask(ctx, &f.reach, func(ctx context.Context) (admin.GroupInfo, error) { return adm.Group(ctx, topic, f.group) })
		return g.Cursor, err
	}
	return nil
}

// topicsThere returns the topics that are asked for and exist.
func (f *following) topicsThere(ctx context.Context, adm *client.Admin) ([]admin.TopicInfo, error) {
	var found []admin.TopicInfo
	if !slices.ContainsFunc(f.topics, eventhub.IsPattern) {
		for _, name := range f.topics {
			topic, err := ask(ctx, &f.reach, func(ctx context.Context) (admin.TopicInfo, error) { return adm.Topic(ctx, name) })
			if err == nil {
				found = append(found, topic)
			} else if eventhub.ErrorCode(err) != eventhub.CodeUnknownID { // a tail creates no topic
				return nil, err
			}
		}
		return found, nil
	}
	for topic, err := range admin.AllTopics(ctx, asking{&f.reach, adm}, "") {
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(f.patterns, func(p eventhub.Pattern) bool { return p.Match(topic.Topic) }) {
			found = append(found, topic)
		}
	}
	return found, nil
}

// mayLook returns an error where nothing was found of a name or a pattern because the token may not
// look there: lists leave such topics out, and what nobody knows of would not be waited for.
func (f *following) mayLook(ctx context.Context, adm *client.Admin, found []admin.TopicInfo) error {
	for _, name := range f.topics {
		p, err := eventhub.ParsePattern(name)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(found, func(topic admin.TopicInfo) bool { return p.Match(topic.Topic) }) {
			continue
		}
		_, err = ask(ctx, &f.reach, func(ctx context.Context) (struct{}, error) {
			q := admin.ReplayQuery{Topic: name, Start: eventhub.Start{Kind: eventhub.StartEarliest}, Limit: 1}
			return struct{}{}, adm.Replay(ctx, q, func(string, eventhub.Item) error { return nil })
		})
		if eventhub.ErrorCode(err) == eventhub.CodeForbidden {
			return err
		}
	}
	return nil
}

// asking lists topics with the patience of a command.
type asking struct {
	reach *reach
	admin *client.Admin
}

// Topics implements admin.TopicLister.
func (a asking) Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	return ask(ctx, a.reach, func(ctx context.Context) ([]admin.TopicInfo, error) { return a.admin.Topics(ctx, after, limit) })
}

// beginsBehind reports whether a tail begins where the topic ends.
func (f *following) beginsBehind(topic *admin.TopicInfo) bool {
	switch f.start.Kind {
	case eventhub.StartLatest:
		return true
	case eventhub.StartTime:
		return topic.HeadTS < f.start.TS
	case eventhub.StartAfterID:
		return topic.HeadID == f.start.AfterID
	case eventhub.StartOffset:
		return topic.Head < f.start.Offset
	}
	return false
}
