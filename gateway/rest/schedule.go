package rest

import (
	"errors"
	"net/http"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

// scheduler returns what knows of scheduled events.
func (a *Access) scheduler() (admin.Scheduler, error) {
	if a.Scheduler == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub schedules no events")
	}
	return a.Scheduler, nil
}

// schedulePlace is where a page of scheduled events ends.
type schedulePlace struct {
	AfterAt  int64  `json:"after_at"`
	AfterSeq uint64 `json:"after_seq"`
}

func listScheduled(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	query, err := scheduleQuery(r)
	if err != nil {
		return reply{}, err
	}
	from, err := access.scheduler()
	if err != nil {
		return reply{}, err
	}
	events, err := from.Scheduled(r.Context(), query)
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Scheduled []admin.Scheduled `json:"scheduled"`
		Next      *schedulePlace    `json:"next,omitempty"`
	}{Scheduled: append([]admin.Scheduled{}, events...)} // never null
	last, err := lastOfMore(events, query.Limit, func(last *admin.Scheduled) ([]admin.Scheduled, error) {
		query.AfterAt, query.AfterSeq, query.Limit = last.DeliverAt, last.Seq, 1
		return from.Scheduled(r.Context(), query)
	})
	if err != nil {
		return reply{}, err
	}
	if last != nil {
		page.Next = &schedulePlace{last.DeliverAt, last.Seq}
	}
	return jsonReply(http.StatusOK, page)
}

func scheduleQuery(r *http.Request) (admin.ScheduleQuery, error) {
	q, err := parameters(r, "topic", "after_at", "after_seq", "limit")
	if err != nil {
		return admin.ScheduleQuery{}, err
	}
	query := admin.ScheduleQuery{Topic: q["topic"]}
	query.Limit, err = pageLimit(q["limit"])
	err = errors.Join(err, optional("topic", q["topic"], eventhub.ValidateStoredTopic))
	at, seq := q["after_at"], q["after_seq"]
	if at != "" {
		var bad error
		if query.AfterAt, bad = strconv.ParseInt(at, 10, 64); bad != nil || query.AfterAt < 0 {
			err = errors.Join(err, eventhub.Errorf(eventhub.CodeBadRequest, "after_at %.20q is not in epoch milliseconds", at))
		}
	}
	if seq != "" {
		var bad error
		if query.AfterSeq, bad = strconv.ParseUint(seq, 10, 64); bad != nil {
			err = errors.Join(err, eventhub.Errorf(eventhub.CodeBadRequest, "after_seq %.20q is not the seq of a scheduled event", seq))
		}
	}
	if seq != "" && at == "" {
		err = errors.Join(err, eventhub.Errorf(eventhub.CodeBadRequest, "after_seq is given and after_at is not; a place is both"))
	}
	return query, err
}

func cancelScheduled(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, id, err := eventOfPath(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	from, err := access.scheduler()
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, from.Cancel(r.Context(), topic, id)
}

func listPatterns(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "group")
	if err == nil {
		err = optional("group", q["group"], eventhub.ValidateGroup)
	}
	if err != nil {
		return reply{}, err
	}
	patterns, err := access.Inspector.Patterns(r.Context(), q["group"])
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, struct {
		Patterns []admin.GroupPattern `json:"patterns"`
	}{append([]admin.GroupPattern{}, patterns...)}) // never null
}

// deletePattern takes a pattern from a group, and the group from the topics that
// no other pattern of it matches.
func deletePattern(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "group", "pattern")
	if err != nil {
		return reply{}, err
	}
	for _, name := range []string{"group", "pattern"} {
		if q[name] == "" {
			return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "%s is missing in the query", name)
		}
	}
	group, pattern := q["group"], q["pattern"]
	if err := eventhub.ValidateGroup(group); err != nil {
		return reply{}, err
	}
	if _, err := eventhub.ParsePattern(pattern); err != nil {
		return reply{}, err
	}
	if !eventhub.IsPattern(pattern) {
		return reply{}, eventhub.Errorf(eventhub.CodeBadRequest,
			"pattern %q names one topic; DELETE /v1/topics/{topic}/groups/{group} removes a group from it", pattern)
	}
	return reply{status: http.StatusNoContent}, access.Operator.DeleteGroup(r.Context(), pattern, group)
}
