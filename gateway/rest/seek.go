package rest

import (
	"bytes"
	"context"
	"net/http"
	"strconv"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/naming"
	"eventhub/internal/strictjson"
	"eventhub/wire"
)

// maxStartBody is far more than a start needs.
const maxStartBody = 4 << 10

// seekGroup answers with what moving the group means, and moves it only where
// the query says apply: who forgets a parameter has changed nothing. With an epoch it moves the group that
// a plan was about, and no other.
func seekGroup(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, group, err := groupOf(r)
	if err != nil {
		return reply{}, err
	}
	q, err := parameters(r, "apply", "epoch", "from", "ts", "after_id", "offset")
	if err != nil {
		return reply{}, err
	}
	apply, err := yes("apply", q["apply"])
	if err != nil {
		return reply{}, err
	}
	start, err := startOf(w, r, &access, q)
	if err != nil {
		return reply{}, err
	}
	var plan admin.SeekPlan
	if text, given := q["epoch"]; given {
		epoch, bad := strconv.ParseUint(text, 10, 64)
		switch {
		case bad != nil:
			return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "epoch is %.20q; that of a plan is wanted", text)
		case !apply:
			return reply{}, eventhub.Errorf(eventhub.CodeBadRequest, "epoch is given without apply; it says which plan is applied")
		}
		plan, err = access.Operator.SeekGroupIf(r.Context(), topic, group, start, epoch)
	} else {
		plan, err = access.Operator.SeekGroup(r.Context(), topic, group, start, apply)
	}
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, plan)
}

// yes reads a switch that is off where it is absent.
func yes(name, value string) (bool, error) {
	switch value {
	case "1", "true":
		return true, nil
	case "", "0", "false":
		return false, nil
	}
	return false, eventhub.Errorf(eventhub.CodeBadRequest, "%s is %.20q; 1 and 0 are allowed", name, value)
}

// givenStart is a place as a request names it, in the words of SUBSCRIBE's opts;
// what is not given is nil.
type givenStart struct {
	From    *string `json:"from"`
	TS      *int64  `json:"ts"`
	AfterID *string `json:"after_id"`
	Offset  *uint64 `json:"offset"`
}

// startOf reads the place to go to, from the query or from the body.
func startOf(w http.ResponseWriter, r *http.Request, access *Access, q map[string]string) (eventhub.Start, error) {
	given, err := startOfQuery(q, "ts")
	if err != nil {
		return eventhub.Start{}, err
	}
	body, err := access.readBody(w, r, maxStartBody)
	if err != nil {
		return eventhub.Start{}, err
	}
	if len(bytes.TrimSpace(body)) > 0 {
		if given != (givenStart{}) {
			return eventhub.Start{}, eventhub.Errorf(eventhub.CodeBadRequest, "the place is given in the query and in the body; one of them is wanted")
		}
		if err := strictjson.Unmarshal(body, &given); err != nil {
			return eventhub.Start{}, badBody(err)
		}
	}
	return given.resolve()
}

// startOfQuery reads a place from a query. tsName is what the path calls a time.
func startOfQuery(q map[string]string, tsName string) (givenStart, error) {
	var given givenStart
	if v, ok := q["from"]; ok {
		given.From = &v
	}
	if v, ok := q[tsName]; ok {
		ts, err := momentOf(tsName, v)
		if err != nil {
			return given, err
		}
		given.TS = &ts
	}
	if v, ok := q["after_id"]; ok {
		given.AfterID = &v
	}
	if v, ok := q["offset"]; ok {
		offset, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return given, eventhub.Errorf(eventhub.CodeBadRequest, "offset is %.20q; a number from 0 to %d is wanted", v, uint64(eventhub.MaxOffset))
		}
		given.Offset = &offset
	}
	return given, nil
}

// resolve checks that from is there, and with it what belongs to it and nothing
// else. Unlike in SUBSCRIBE from has no default: who
// moves a group says where to.
func (g *givenStart) resolve() (eventhub.Start, error) {
	if g.From == nil {
		return eventhub.Start{}, eventhub.Errorf(eventhub.CodeBadRequest, "from is missing; latest, earliest, ts, after_id and offset are allowed")
	}
	start := eventhub.Start{TS: value(g.TS), AfterID: value(g.AfterID), Offset: value(g.Offset)}
	switch naming.Canonical(*g.From) {
	case "latest":
		start.Kind = eventhub.StartLatest
	case "earliest":
		start.Kind = eventhub.StartEarliest
	case "ts":
		start.Kind = eventhub.StartTime
	case "after_id":
		start.Kind = eventhub.StartAfterID
	case "offset":
		start.Kind = eventhub.StartOffset
	default:
		return eventhub.Start{}, eventhub.Errorf(eventhub.CodeBadRequest, "from is %.48q; latest, earliest, ts, after_id and offset are allowed%s", *g.From, naming.DidYouMean(*g.From, wire.PlaceNames))
	}
	for _, place := range g.places() {
		switch wanted := naming.Canonical(*g.From) == place.name; {
		case wanted && !place.given:
			return eventhub.Start{}, eventhub.Errorf(eventhub.CodeBadRequest, "from is %q but %s is missing", *g.From, place.name)
		case place.given && !wanted:
			return eventhub.Start{}, eventhub.Errorf(eventhub.CodeBadRequest, "%s is given but from is %q", place.name, *g.From)
		}
	}
	return start, start.Validate()
}

type givenPlace struct {
	name  string
	given bool
}

// places are the ways to name a place.
func (g *givenStart) places() []givenPlace {
	return []givenPlace{{"ts", g.TS != nil}, {"after_id", g.AfterID != nil}, {"offset", g.Offset != nil}}
}

// alone returns an error where from, which names no place, has one with it.
func (g *givenStart) alone() error {
	for _, place := range g.places() {
		if place.given {
			return eventhub.Errorf(eventhub.CodeBadRequest, "%s is given but from is %q", place.name, *g.From)
		}
	}
	return nil
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func pauseGroup(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	return operate(r, access, admin.Operator.PauseGroup)
}

func resumeGroup(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	return operate(r, access, admin.Operator.ResumeGroup)
}

// operate does something to a group and answers with how it is afterwards.
func operate(r *http.Request, access Access, do func(admin.Operator, context.Context, string, string) error) (reply, error) {
	topic, group, err := groupOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	if err := do(access.Operator, r.Context(), topic, group); err != nil {
		return reply{}, err
	}
	info, err := access.Inspector.Group(r.Context(), topic, group)
	if err != nil {
		return reply{}, err
	}
	return jsonReply(http.StatusOK, withMembers(info))
}
