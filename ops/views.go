package ops

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/naming"
)

// cursorView is a cursor as the seeds' dashboard shows it: LastID and LastTS are
// those of the last event below which everything is done, and absent where there
// is no such event. Offset and Epoch are added; GroupInfo has the same as
// cursor, last_id, last_ts and epoch.
//
// LastTS is the commit time in epoch milliseconds. The seeds took the
// publisher's own ts, which says nothing about lag.
type cursorView struct {
	Topic  string `json:"topic,omitempty"`
	Group  string `json:"group"`
	LastID string `json:"lastId,omitempty"`
	LastTS int64  `json:"lastTs,omitempty"`
	Offset uint64 `json:"offset"`
	Epoch  uint64 `json:"epoch"`
}

func viewCursor(g *admin.GroupInfo) cursorView {
	return cursorView{Topic: g.Topic, Group: g.Group, LastID: g.LastID, LastTS: g.LastTS, Offset: g.Cursor, Epoch: g.Epoch}
}

// cursors answers GET /cursors?topic[&after][&limit]: the cursors of the groups
// of a topic, ordered by group. next, where it is there, is the after of the next
// page. A topic that does not exist has none.
func (o *Ops) cursors(w http.ResponseWriter, r *http.Request, access Access) error {
	q, err := question(r, "topic", "after", "limit")
	if err != nil {
		return err
	}
	topic := q.Get("topic")
	if topic == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "topic required")
	}
	limit, err := limitOf(q, admin.MaxPage)
	if err != nil {
		return err
	}
	ask := admin.GroupQuery{Topic: topic, Limit: limit}
	if after := q.Get("after"); after != "" {
		ask.AfterTopic, ask.AfterGroup = topic, after
	}
	groups, err := groups(r, access, ask)
	if err != nil {
		return err
	}
	answer := struct {
		Topic   string       `json:"topic"`
		Cursors []cursorView `json:"cursors"`
		Next    string       `json:"next,omitempty"`
	}{Topic: topic, Cursors: make([]cursorView, 0, len(groups))}
	for i := range groups {
		c := viewCursor(&groups[i])
		c.Topic = "" // said once
		answer.Cursors = append(answer.Cursors, c)
	}
	if len(groups) == limit {
		answer.Next = groups[limit-1].Group
	}
	return writeJSON(w, http.StatusOK, answer)
}

// lagView is how far a group is behind. LagMS is the commit time of the topic's
// newest event (Tail) less that of the event at the cursor, and null where one
// of the two has no event. Lag is the number of events that are not done, as in
// GroupInfo; null, like LastCursor, where there is no such group. Paused and
// BlockedBy are GroupInfo's: why the lag does not shrink.
type lagView struct {
	Topic      string      `json:"topic"`
	Group      string      `json:"group"`
	LastCursor *cursorView `json:"lastCursor"`
	Tail       *string     `json:"tail"`
	LagMS      *int64      `json:"lagMs"`
	Lag        *uint64     `json:"lag"`

	Paused    bool           `json:"paused,omitempty"`
	BlockedBy *admin.Blocked `json:"blocked_by,omitempty"`
}

func viewLag(g *admin.GroupInfo) lagView {
	c := viewCursor(g)
	v := lagView{
		Topic: g.Topic, Group: g.Group, LastCursor: &c, Tail: tail(g.HeadID), Lag: &g.Lag,
		Paused: g.Paused, BlockedBy: g.BlockedBy,
	}
	if ms, ok := g.LagMS(); ok {
		v.LagMS = &ms
	}
	return v
}

func tail(id string) *string {
	if id == "" {
		return nil
	}
	return &id
}

// lag answers GET /lag?topic&group with one lagView, of a group that does not
// exist as well, as the seeds' dashboard does. Without topic or without group it
// lists those that fit, ordered by topic and group, that come after after_topic and
// after_group on; next, where it is there, has these of the next page.
func (o *Ops) lag(w http.ResponseWriter, r *http.Request, access Access) error {
	q, err := question(r, "topic", "group", "after_topic", "after_group", "limit")
	if err != nil {
		return err
	}
	limit, err := limitOf(q, admin.MaxPage)
	if err != nil {
		return err
	}
	ask := admin.GroupQuery{
		Topic: q.Get("topic"), Group: q.Get("group"),
		AfterTopic: q.Get("after_topic"), AfterGroup: q.Get("after_group"), Limit: limit,
	}
	if ask.Topic != "" && ask.Group != "" {
		return lagOfOne(w, r, access, ask.Topic, ask.Group)
	}
	groups, err := groups(r, access, ask)
	if err != nil {
		return err
	}
	type place struct {
		AfterTopic string `json:"after_topic"`
		AfterGroup string `json:"after_group"`
	}
	answer := struct {
		Groups []lagView `json:"groups"`
		Next   *place    `json:"next,omitempty"`
	}{Groups: make([]lagView, 0, len(groups))}
	for i := range groups {
		answer.Groups = append(answer.Groups, viewLag(&groups[i]))
	}
	if len(groups) == limit {
		last := &groups[limit-1]
		answer.Next = &place{last.Topic, last.Group}
	}
	return writeJSON(w, http.StatusOK, answer)
}

func lagOfOne(w http.ResponseWriter, r *http.Request, access Access, topic, group string) error {
	if err := validNames(topic, group); err != nil {
		return err
	}
	g, err := access.Inspector.Group(r.Context(), topic, group)
	if err == nil {
		return writeJSON(w, http.StatusOK, viewLag(&g))
	}
	if eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed {
		return err
	}
	v := lagView{Topic: topic, Group: group}
	t, err := access.Inspector.Topic(r.Context(), topic)
	if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		return err
	}
	v.Tail = tail(t.HeadID)
	return writeJSON(w, http.StatusOK, v)
}

// inFlight answers GET /inflight?topic&group[&limit]: how many events of the
// group are leased, how many wait to be delivered again and how many are held
// until an earlier one of their key is done, and the events themselves, lowest offset
// first, at most limit (1 to 1000, default 100).
func (o *Ops) inFlight(w http.ResponseWriter, r *http.Request, access Access) error {
	q, err := question(r, "topic", "group", "limit")
	if err != nil {
		return err
	}
	topic, group := q.Get("topic"), q.Get("group")
	if topic == "" || group == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "topic and group required")
	}
	if err := validNames(topic, group); err != nil {
		return err
	}
	limit, err := limitOf(q, 100)
	if err != nil {
		return err
	}
	g, err := access.Inspector.Group(r.Context(), topic, group)
	if err != nil {
		return err
	}
	events, err := access.Inspector.InFlight(r.Context(), topic, group, limit)
	if err != nil {
		return err
	}
	if events == nil {
		events = []admin.InFlight{}
	}
	return writeJSON(w, http.StatusOK, struct {
		Topic   string           `json:"topic"`
		Group   string           `json:"group"`
		Leased  int              `json:"leased"`
		Waiting int              `json:"waiting"`
		Held    int              `json:"held"`
		Events  []admin.InFlight `json:"events"`
	}{topic, group, g.InFlight, g.Waiting, g.Held, events})
}

// latestByKey answers GET /latest-by-key?topic&key with the newest event of a key as it is
// stored, and with null, as the seeds' dashboard does, where there is none: no such topic, no
// such key, or one whose newest event has the payload null.
func (o *Ops) latestByKey(w http.ResponseWriter, r *http.Request, access Access) error {
	q, err := question(r, "topic", "key")
	if err != nil {
		return err
	}
	topic, key := q.Get("topic"), q.Get("key")
	if topic == "" || key == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "topic and key required")
	}
	page, err := access.History.State(r.Context(), admin.StateQuery{Topic: topic, Keys: []string{key}, Limit: 1})
	if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		return err
	}
	body := []byte("null")
	if len(page.Events) > 0 {
		body = page.Events[0].Record.AppendJSON(nil, page.Events[0].Offset)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
	return nil
}

// snapshots answers GET /snapshots?topic with the snapshots that there are of a topic, the newest first.
func (o *Ops) snapshots(w http.ResponseWriter, r *http.Request, access Access) error {
	q, err := question(r, "topic")
	if err != nil {
		return err
	}
	topic := q.Get("topic")
	if topic == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "topic required")
	}
	if err := validNames(topic, ""); err != nil {
		return err
	}
	info, err := access.Inspector.Topic(r.Context(), topic)
	if err != nil {
		return err
	}
	s := info.Snapshots
	if s == nil {
		s = &admin.TopicSnapshots{Topic: eventhub.SnapshotTopic(topic), State: admin.SnapshotsOff, Snapshots: []admin.SnapshotInfo{}}
	}
	return writeJSON(w, http.StatusOK, s)
}

func groups(r *http.Request, access Access, q admin.GroupQuery) ([]admin.GroupInfo, error) {
	if err := validNames(q.Topic, q.Group); err != nil {
		return nil, err
	}
	return access.Inspector.Groups(r.Context(), q)
}

// validNames refuses names that no topic or group can have. Empty ones were not
// asked for.
func validNames(topic, group string) error {
	var errs []error
	if topic != "" {
		errs = append(errs, eventhub.ValidateStoredTopic(topic))
	}
	if group != "" {
		errs = append(errs, eventhub.ValidateGroup(group))
	}
	return errors.Join(errs...)
}

// question reads the query and refuses names that the view does not know: a
// misspelt one would be answered with more than was asked for.
func question(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, eventhub.Wrap(eventhub.CodeBadRequest, err, "the query can not be read: %v", err)
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "query parameter %q is unknown; known are %q%s", name, known, naming.DidYouMean(name, known))
		}
		if len(values) > 1 {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "query parameter %s is given %d times", name, len(values))
		}
	}
	return q, nil
}

// limitOf reads limit, from 1 to MaxPage.
func limitOf(q url.Values, byDefault int) (int, error) {
	if !q.Has("limit") {
		return byDefault, nil
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil || limit < 1 || limit > admin.MaxPage {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "limit is %q; 1 to %d are allowed", q.Get("limit"), admin.MaxPage)
	}
	return limit, nil
}
