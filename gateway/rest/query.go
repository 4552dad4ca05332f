package rest

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/naming"
	"eventhub/internal/when"
)

// defaultLimit is the length of a page whose request does not say.
const defaultLimit = 100

// parameters reads a query that may have the known names, once each. Absent ones
// are "". What is not obeyed would change what the client gets, so anything else
// is an error.
func parameters(r *http.Request, known ...string) (map[string]string, error) {
	query, err := queryOf(r)
	if err != nil {
		return nil, err
	}
	return single(query, known...)
}

// queryOf reads a query, with names in place of their aliases.
func queryOf(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the query can not be read: %v", err)
	}
	for spelling, values := range query {
		a := naming.Of(spelling)
		if a == nil {
			continue
		}
		if query.Has(a.Name) {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "%s", a.Both())
		}
		delete(query, spelling)
		query[a.Name] = values
	}
	return query, nil
}

// single is parameters for a query that was read.
func single(query url.Values, known ...string) (map[string]string, error) {
	given := make(map[string]string, len(query))
	for name, values := range query {
		if !slices.Contains(known, name) {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the query has %.48q, which this path does not know%s", name, naming.DidYouMean(name, known))
		}
		if len(values) > 1 {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "%s is given %d times in the query", name, len(values))
		}
		given[name] = values[0]
	}
	if _, ok := given["limit"]; !ok && slices.Contains(known, "limit") {
		given["limit"] = strconv.Itoa(defaultLimit)
	}
	return given, nil
}

// pageLimit reads the length of a page.
func pageLimit(text string) (int, error) { return limitOf(text, admin.MaxPage) }

// limitOf reads a limit of at most so many.
func limitOf(text string, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "limit %.20q is not a number from 1 to %d", text, most)
	}
	return n, nil
}

// The names in a request are judged here: what can be no name reaches neither
// engine nor store.

func topicOf(r *http.Request) (string, error) {
	topic := r.PathValue("topic")
	return topic, eventhub.ValidateStoredTopic(topic)
}

func groupOf(r *http.Request) (topic, group string, err error) {
	if topic, err = topicOf(r); err != nil {
		return "", "", err
	}
	group = r.PathValue("group")
	return topic, group, eventhub.ValidateGroup(group)
}

func eventOfPath(r *http.Request) (topic, id string, err error) {
	if topic, err = topicOf(r); err != nil {
		return "", "", err
	}
	id = r.PathValue("id")
	return topic, id, eventhub.ValidateID(id)
}

// optional checks a name in a query, where an empty one asks for nothing.
func optional(parameter, name string, validate func(string) error) error {
	if name == "" {
		return nil
	}
	if err := validate(name); err != nil {
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s: %s", parameter, eventhub.AsError(err).Message)
	}
	return nil
}

// momentOf reads a point in time in a query.
func momentOf(name, text string) (int64, error) {
	ms, err := when.Parse(text, time.Now())
	if err != nil {
		return 0, eventhub.Errorf(eventhub.CodeBadRequest, "%s: %v", name, err)
	}
	return ms, nil
}
