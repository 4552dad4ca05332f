package past

import (
	"context"
	"errors"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// Topics implements admin.Inspector.
func (h *History) Topics(ctx context.Context, after string, limit int) ([]admin.TopicInfo, error) {
	if err := CheckLimit(limit); err != nil {
		return nil, err
	}
	list, err := h.store.ListTopics(ctx, after, limit)
	if err != nil {
		return nil, store.Failed(err, "list the topics")
	}
	infos := make([]admin.TopicInfo, len(list))
	for i, t := range list {
		if infos[i], err = h.describe(ctx, t); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// Topic implements admin.Inspector.
func (h *History) Topic(ctx context.Context, name string) (admin.TopicInfo, error) {
	if err := eventhub.ValidateStoredTopic(name); err != nil {
		return admin.TopicInfo{}, err
	}
	t, err := h.store.Topic(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return admin.TopicInfo{}, NoTopic(name)
	}
	if err != nil {
		return admin.TopicInfo{}, store.Failed(err, "look up topic %q", name)
	}
	return h.describe(ctx, t)
}

// describe adds to a topic what its ends say.
func (h *History) describe(ctx context.Context, t store.TopicInfo) (admin.TopicInfo, error) {
	info := admin.TopicInfo{Topic: t.Name, Head: t.Head, Horizon: t.Horizon}
	groups, err := h.store.ListGroups(ctx, t.Name)
	if err != nil {
		return info, store.Failed(err, "list the groups of topic %q", t.Name)
	}
	info.Groups = len(groups)
	first, err := First(ctx, h.store, t.Name, 1)
	if err != nil || t.Head == 0 {
		return info, err
	}
	head, err := First(ctx, h.store, t.Name, t.Head)
	info.FirstOffset, info.FirstTS = first.Offset, first.Record.CommitTime()
	info.HeadTS = t.LastTime // also where that event was removed
	if head.Offset == t.Head {
		info.HeadTS, info.HeadID = head.Record.CommitTime(), string(head.Record.ID())
	}
	return info, err
}

// Event implements admin.Inspector.
func (h *History) Event(ctx context.Context, topic, id string) (eventhub.Item, error) {
	if err := eventhub.ValidateID(id); err != nil {
		return eventhub.Item{}, err
	}
	if _, err := h.Topic(ctx, topic); err != nil {
		return eventhub.Item{}, err
	}
	unknown := func() error {
		return eventhub.Errorf(eventhub.CodeUnknownID, "there is no event %q in topic %q%s", id, topic, MayBeGone(ctx, h.store, topic))
	}
	offset, err := h.store.Find(ctx, topic, id)
	if errors.Is(err, store.ErrNotFound) {
		return eventhub.Item{}, unknown()
	}
	if err != nil {
		return eventhub.Item{}, store.Failed(err, "look up event %q of topic %q", id, topic)
	}
	item, err := First(ctx, h.store, topic, offset)
	if err == nil && item.Offset != offset {
		err = unknown()
	}
	return item, err
}

// Recall returns the event of an id in the log of a topic, as eventhub.Recaller has it.
func (h *History) Recall(ctx context.Context, topic, id string) (eventhub.Record, error) {
	offset, err := h.store.Find(ctx, topic, id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, store.Failed(err, "look up event %q of topic %q", id, topic)
	}
	var item eventhub.Item
	if err == nil {
		if item, err = First(ctx, h.store, topic, offset); err != nil {
			return nil, err
		}
	}
	if offset == 0 || item.Offset != offset {
		return nil, eventhub.Errorf(eventhub.CodeUnknownID, "there is no event %q in topic %q", id, topic)
	}
	return item.Record, nil
}

// CheckLimit refuses a page of a size that is not allowed.
func CheckLimit(limit int) error {
	if limit < 1 || limit > admin.MaxPage {
		return eventhub.Errorf(eventhub.CodeBadRequest, "limit is %d; 1 to %d are allowed", limit, admin.MaxPage)
	}
	return nil
}

// NoTopic says that a topic is not there.
func NoTopic(name string) error {
	return eventhub.Errorf(eventhub.CodeUnknownID, "there is no topic %q", name)
}
