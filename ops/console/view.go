package console

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
)

const (
	// maxRows is how many rows of a list a page may see at a time, and maxNames how many topics.
	maxRows, maxNames = 100, 60
	// maxMembers and maxFlying are how many of them a group shows.
	maxMembers, maxFlying = 50, 20
)

// view is what a page shows besides the overview. It is called for each message.
type view func(ctx context.Context, s *sample, access *Access) (any, error)

// viewOf reads which view a page wants; nil: none. end is called when the stream ends. The parameters of others are not looked at:
// the page and the hub are of one version.
func viewOf(q url.Values) (show view, end func(), err error) {
	if q.Get("view") == "tail" {
		t, err := newTail(q)
		return t.show, t.end, err
	}
	show, err = plainView(q)
	return show, func() {}, err
}

// plainView is viewOf of those that keep nothing from message to message.
func plainView(q url.Values) (view, error) {
	switch kind := q.Get("view"); kind {
	case "":
		return nil, nil
	case "groups":
		return groupsView(q)
	case "connections":
		return connections(q), nil
	case "topics":
		names := q["topic"]
		if len(names) > maxNames {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "%d topics are asked for; at most %d are shown at a time", len(names), maxNames)
		}
		for _, name := range names {
			if err := eventhub.ValidateStoredTopic(name); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, s *sample, access *Access) (any, error) {
			return topicRows(ctx, s, access, names)
		}, nil
	case "topic":
		topic := q.Get("topic")
		return func(ctx context.Context, s *sample, access *Access) (any, error) {
			return oneTopic(ctx, s, access, topic)
		}, eventhub.ValidateStoredTopic(topic)
	case "group":
		topic, group := q.Get("topic"), q.Get("group")
		return func(ctx context.Context, s *sample, access *Access) (any, error) {
			return oneGroup(ctx, s, access, topic, group)
		}, cmp.Or(eventhub.ValidateStoredTopic(topic), eventhub.ValidateGroup(group))
	default:
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "view %.40q is unknown", kind)
	}
}

// groupRow is a row of the list of groups. Rates are in a second.
type groupRow struct {
	Topic    string   `json:"topic"`
	Group    string   `json:"group"`
	Lag      uint64   `json:"lag"`
	InFlight int      `json:"in_flight"`
	Waiting  int      `json:"waiting"`
	Held     int      `json:"held"`
	Members  int      `json:"members"`
	Paused   bool     `json:"paused,omitempty"`
	Letters  uint64   `json:"letters"`
	Acked    *float64 `json:"acked,omitempty"`
}

func rowOf(s *sample, g *measure.Group) groupRow {
	return groupRow{
		Topic: g.Topic, Group: g.Group, Lag: g.Lag, InFlight: leased(g), Waiting: g.Waiting, Held: g.Held,
		Members: g.Members, Paused: g.Paused, Letters: g.OpenLetters, Acked: s.rate(g.Acked, s.groupBefore(g).Acked),
	}
}

// orders are those of the list of groups; ties go by topic and group.
var orders = map[string]func(a, b *measure.Group) int{
	"":        func(a, b *measure.Group) int { return cmp.Compare(b.Lag, a.Lag) },
	"name":    func(_, _ *measure.Group) int { return 0 },
	"flight":  func(a, b *measure.Group) int { return cmp.Compare(leased(b), leased(a)) },
	"members": func(a, b *measure.Group) int { return cmp.Compare(b.Members, a.Members) },
	"letters": func(a, b *measure.Group) int { return cmp.Compare(b.OpenLetters, a.OpenLetters) },
}

// groupsView is a window of the list of groups: those whose topic or name has the words of search,
// in an order, the rows from from on.
func groupsView(q url.Values) (view, error) {
	order := orders[q.Get("sort")]
	if order == nil {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "sort %.40q is unknown", q.Get("sort"))
	}
	from, err := number(q, "from", 0, 1<<30)
	if err != nil {
		return nil, err
	}
	rows, err := number(q, "rows", 50, maxRows)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(strings.ToLower(q.Get("search")))
	topic := q.Get("topic")
	return func(_ context.Context, s *sample, access *Access) (any, error) {
		var found []*measure.Group
		for i := range s.engine.Groups {
			g := &s.engine.Groups[i]
			if g.Group == "" || topic != "" && g.Topic != topic || access.Shows != nil && !access.Shows(g.Topic) || !hasWords(g, words) {
				continue
			}
			found = append(found, g)
		}
		slices.SortFunc(found, func(a, b *measure.Group) int {
			return cmp.Or(order(a, b), strings.Compare(a.Topic, b.Topic), strings.Compare(a.Group, b.Group))
		})
		window := struct {
			Total int        `json:"total"`
			From  int        `json:"from"`
			Rows  []groupRow `json:"rows"`
		}{len(found), min(from, len(found)), []groupRow{}}
		for _, g := range found[window.From:min(window.From+rows, len(found))] {
			window.Rows = append(window.Rows, rowOf(s, g))
		}
		return window, nil
	}, nil
}

func hasWords(g *measure.Group, words []string) bool {
	for _, w := range words {
		if !strings.Contains(strings.ToLower(g.Topic), w) && !strings.Contains(strings.ToLower(g.Group), w) {
			return false
		}
	}
	return true
}

func number(q url.Values, name string, byDefault, most int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return byDefault, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s is %.20q; 0 to %d are allowed", name, text, most)
	}
	return n, nil
}

// topicRow is what changes of a topic.
type topicRow struct {
	Topic  string `json:"topic"`
	First  uint64 `json:"first_offset"`
	Head   uint64 `json:"head"`
	HeadTS int64  `json:"head_ts,omitempty"`
	Groups int    `json:"groups"`
	// Kept counts the events that are kept, and Size is that of their records; where AtLeast, there are more.
	Kept      uint64   `json:"kept_events"`
	Size      uint64   `json:"size_bytes"`
	AtLeast   bool     `json:"size_at_least,omitempty"`
	Published *float64 `json:"published,omitempty"`
	Bytes     *float64 `json:"bytes,omitempty"`
}

func (s *sample) topicRow(t *admin.TopicInfo) topicRow {
	row := topicRow{Topic: t.Topic, First: t.FirstOffset, Head: t.Head, HeadTS: t.HeadTS, Groups: t.Groups}
	if t.Kept != nil {
		row.Kept, row.Size, row.AtLeast = t.Kept.Events, t.Kept.Bytes, t.Kept.AtLeast
	}
	var now measure.Topic
	if counted := s.topics[t.Topic]; counted != nil {
		now = *counted
	}
	now.Topic = t.Topic
	was := s.topicBefore(&now)
	row.Published, row.Bytes = s.rate(now.Events, was.Events), s.rate(now.Bytes, was.Bytes)
	return row
}

// topicRows has a row for each of the topics that there are.
func topicRows(ctx context.Context, s *sample, access *Access, names []string) (any, error) {
	rows := struct {
		Rows []topicRow `json:"rows"`
	}{[]topicRow{}}
	for _, name := range names {
		switch t, err := access.Inspector.Topic(ctx, name); eventhub.ErrorCode(err) {
		case "":
			rows.Rows = append(rows.Rows, s.topicRow(&t))
		case eventhub.CodeUnknownID, eventhub.CodeForbidden: // it was deleted, or is not for this page
		default:
			return nil, err
		}
	}
	return rows, nil
}

func oneTopic(ctx context.Context, s *sample, access *Access, topic string) (any, error) {
	t, err := access.Inspector.Topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	return s.topicRow(&t), nil
}

// groupView is all of one group.
type groupView struct {
	admin.GroupInfo
	MemberCount  int              `json:"member_count"`
	Flying       []admin.InFlight `json:"flying"`
	Letters      uint64           `json:"letters"`
	Acked        *float64         `json:"acked,omitempty"`
	Delivered    *float64         `json:"delivered,omitempty"`
	Nacked       *float64         `json:"nacked,omitempty"`
	Published    *float64         `json:"published,omitempty"`
	AckedTotal   uint64           `json:"acked_total"`
	Redelivered  uint64           `json:"redelivered_total"`
	Expired      uint64           `json:"expired_total"`
	DeadLettered uint64           `json:"dead_lettered_total"`
	Wrong        *wrong           `json:"wrong,omitempty"`
}

func oneGroup(ctx context.Context, s *sample, access *Access, topic, group string) (any, error) {
	info, err := access.Inspector.Group(ctx, topic, group)
	if err != nil {
		return nil, err
	}
	flying, err := access.Inspector.InFlight(ctx, topic, group, maxFlying)
	if err != nil {
		return nil, err
	}
	g := s.groups[name{topic, group}]
	if g == nil { // it has just been created
		g = &measure.Group{Topic: topic, Group: group}
	}
	was := s.groupBefore(g)
	v := &groupView{
		GroupInfo: info, MemberCount: len(info.Members), Flying: []admin.InFlight{}, Letters: g.OpenLetters,
		Acked: s.rate(g.Acked, was.Acked), Delivered: s.rate(g.Delivered, was.Delivered), Nacked: s.rate(g.Nacked, was.Nacked),
		AckedTotal: g.Acked, Redelivered: g.Redelivered, Expired: g.Expired, DeadLettered: g.DeadLettered,
		Wrong: judge(&info, flying, moves(s, g), s.at),
	}
	if t := s.topics[topic]; t != nil {
		v.Published = s.rate(t.Events, s.topicBefore(t).Events)
	}
	v.Members, v.BlockedBy = clipMembers(info.Members, maxMembers), clipBlocked(info.BlockedBy)
	for i := range flying {
		v.Flying = append(v.Flying, *clipEvent(&flying[i]))
	}
	return v, nil
}
