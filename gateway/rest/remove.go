package rest

import (
	"net/http"
	"strconv"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/topicconf"
)

// remover returns what removes events, for those who have one.
func (a *Access) remover() (admin.Remover, error) {
	if a.Remover == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub removes no events on request")
	}
	return a.Remover, nil
}

// trimTopic answers with what a trim means, and trims only where the query says apply.
func trimTopic(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, err := topicOf(r)
	if err != nil {
		return reply{}, err
	}
	q, err := parameters(r, "apply", "before", "before_ts", "before_id", "keep")
	if err != nil {
		return reply{}, err
	}
	apply, err := yes("apply", q["apply"])
	if err != nil {
		return reply{}, err
	}
	query := admin.TrimQuery{BeforeID: q["before_id"]}
	if query.Before, err = positive(q, "before"); err != nil {
		return reply{}, err
	}
	if query.Keep, err = positive(q, "keep"); err != nil {
		return reply{}, err
	}
	if text, ok := q["before_ts"]; ok {
		if query.BeforeTS, err = momentOf("before_ts", text); err != nil {
			return reply{}, err
		}
		if query.BeforeTS == 0 { // it would be taken for none
			return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "before_ts is %q; a time after 1970-01-01T00:00:00Z is expected", text)
		}
	}
	remover, err := access.remover()
	if err != nil {
		return reply{}, err
	}
	plan, err := remover.Trim(r.Context(), topic, query, apply)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, plan)
}

// eraseEvents answers with how many events would be erased, and erases them only where the
// query says apply.
func eraseEvents(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, err := topicOf(r)
	if err != nil {
		return reply{}, err
	}
	asked, err := queryOf(r)
	if err != nil {
		return reply{}, err
	}
	q, err := single(asked, "apply", "id", "offset", "key", "limit")
	if err != nil {
		return reply{}, err
	}
	if !asked.Has("limit") { // admin.MaxErase, and not the length of a page
		delete(q, "limit")
	}
	query := admin.EraseQuery{ID: q["id"], Key: q["key"], By: access.by(r)}
	if query.Apply, err = yes("apply", q["apply"]); err != nil {
		return reply{}, err
	}
	if query.Offset, err = positive(q, "offset"); err != nil {
		return reply{}, err
	}
	limit, err := positive(q, "limit")
	if err != nil {
		return reply{}, err
	}
	query.Limit = int(min(limit, admin.MaxErase+1)) // more is refused
	remover, err := access.remover()
	if err != nil {
		return reply{}, err
	}
	result, err := remover.Erase(r.Context(), topic, query)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, result)
}

// positive reads a number of a query that is at least 1; 0 is one that is not given.
func positive(q map[string]string, name string) (uint64, error) {
	text, ok := q[name]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || n > eventhub.MaxOffset {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s is %.20q; 1 to %d are allowed", name, text, uint64(eventhub.MaxOffset))
	}
	return n, nil
}

// planSettings answers with what settings would remove now.
func planSettings(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	name, err := settingsName(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	body, err := access.readBody(w, r, maxSettingsBody)
	if err != nil {
		return reply{}, err
	}
	given, err := topicconf.Parse(name, body)
	if err != nil {
		return reply{}, err
	}
	remover, err := access.remover()
	if err != nil {
		return reply{}, err
	}
	plan, err := remover.PlanSettings(r.Context(), name, given)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, plan)
}
