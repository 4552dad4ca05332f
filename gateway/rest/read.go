package rest

import (
	"errors"
	"net/http"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/cloudevents"
)

// Lists come in pages. A page says what to ask for next, unless it is the last;
// where it is full, one more item is read to see whether it is.

func listTopics(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "after", "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err == nil {
		err = optional("after", q["after"], eventhub.ValidateStoredTopic)
	}
	if err != nil {
		return reply{}, err
	}
	topics, err := access.Inspector.Topics(r.Context(), q["after"], limit)
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Topics []admin.TopicInfo `json:"topics"`
		Next   string            `json:"next,omitempty"`
	}{Topics: append([]admin.TopicInfo{}, topics...)} // never null
	last, err := lastOfMore(topics, limit, func(last *admin.TopicInfo) ([]admin.TopicInfo, error) {
		return access.Inspector.Topics(r.Context(), last.Topic, 1)
	})
	if err != nil {
		return reply{}, err
	}
	if last != nil {
		page.Next = last.Topic
	}
	return jsonReply(http.StatusOK, page)
}

// lastOfMore returns the last entry of a page that others follow, else nil. next reads what
// follows an entry.
func lastOfMore[T any](page []T, limit int, next func(last *T) ([]T, error)) (*T, error) {
	if len(page) < limit {
		return nil, nil
	}
	last := &page[len(page)-1]
	if following, err := next(last); err != nil || len(following) == 0 {
		return nil, err
	}
	return last, nil
}

func showTopic(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, err := topicOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	info, err := access.Inspector.Topic(r.Context(), topic)
	if err != nil {
		return reply{}, err
	}
	if from := info.SettingsFrom; from != nil {
		version := from.Version
		if from.Entry != topic {
			version = 0 // of a pattern's, and a change is about those of the topic's own name
		}
		etag(w, version)
	}
	return jsonReply(http.StatusOK, info)
}

// showEvent answers with the event as it is stored, or as a CloudEvent.
func showEvent(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, id, err := eventOfPath(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	item, err := access.Inspector.Event(r.Context(), topic, id)
	if err != nil {
		return reply{}, err
	}
	found := admin.Found{Topic: topic, Item: item}
	switch accepted(r, "application/json", cloudevents.StructuredType, cloudevents.BatchType) {
	case cloudevents.StructuredType:
		return asCloudEvent(w, found)
	case cloudevents.BatchType:
		return asCloudEvents(w, []admin.Found{found})
	}
	return reply{status: http.StatusOK, body: append(item.Record.AppendJSON(nil, item.Offset), '\n')}, nil
}

func listEventGroups(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, id, err := eventOfPath(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	groups, err := access.Inspector.EventGroups(r.Context(), topic, id)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, struct {
		Topic  string             `json:"topic"`
		ID     string             `json:"id"`
		Groups []admin.EventGroup `json:"groups"`
	}{topic, id, append([]admin.EventGroup{}, groups...)}) // never null
}

// place is where a page of groups ends.
type place struct {
	AfterTopic string `json:"after_topic"`
	AfterGroup string `json:"after_group"`
}

func listGroups(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	query, err := groupQuery(r)
	if err != nil {
		return reply{}, err
	}
	groups, err := access.Inspector.Groups(r.Context(), query)
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Groups []admin.GroupInfo `json:"groups"`
		Next   *place            `json:"next,omitempty"`
	}{Groups: make([]admin.GroupInfo, 0, len(groups))}
	for _, g := range groups {
		page.Groups = append(page.Groups, withMembers(g))
	}
	last, err := lastOfMore(groups, query.Limit, func(last *admin.GroupInfo) ([]admin.GroupInfo, error) {
		query.AfterTopic, query.AfterGroup, query.Limit = last.Topic, last.Group, 1
		return access.Inspector.Groups(r.Context(), query)
	})
	if err != nil {
		return reply{}, err
	}
	if last != nil {
		page.Next = &place{last.Topic, last.Group}
	}
	return jsonReply(http.StatusOK, page)
}

func groupQuery(r *http.Request) (admin.GroupQuery, error) {
	q, err := parameters(r, "topic", "group", "after_topic", "after_group", "limit")
	if err != nil {
		return admin.GroupQuery{}, err
	}
	limit, err := pageLimit(q["limit"])
	return admin.GroupQuery{
			Topic: q["topic"], Group: q["group"],
			AfterTopic: q["after_topic"], AfterGroup: q["after_group"],
			Limit: limit,
		}, errors.Join(err,
			optional("topic", q["topic"], eventhub.ValidateStoredTopic),
			optional("group", q["group"], eventhub.ValidateGroup),
			optional("after_topic", q["after_topic"], eventhub.ValidateStoredTopic),
			optional("after_group", q["after_group"], eventhub.ValidateGroup))
}

func showGroup(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, group, err := groupOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	info, err := access.Inspector.Group(r.Context(), topic, group)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, withMembers(info))
}

// withMembers returns the group with members [] in JSON where it has none.
func withMembers(g admin.GroupInfo) admin.GroupInfo {
	if g.Members == nil {
		g.Members = []admin.MemberInfo{}
	}
	return g
}

func deleteGroup(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, group, err := groupOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, access.Operator.DeleteGroup(r.Context(), topic, group)
}

func listInFlight(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, group, err := groupOf(r)
	if err != nil {
		return reply{}, err
	}
	q, err := parameters(r, "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err != nil {
		return reply{}, err
	}
	events, err := access.Inspector.InFlight(r.Context(), topic, group, limit)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, struct {
		Topic    string           `json:"topic"`
		Group    string           `json:"group"`
		InFlight []admin.InFlight `json:"in_flight"`
	}{topic, group, append([]admin.InFlight{}, events...)}) // never null
}
