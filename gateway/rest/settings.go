package rest

import (
	"net/http"
	"strconv"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/topicconf"
)

// maxSettingsBody is far more than settings need.
const maxSettingsBody = 64 << 10

// settings returns what has the settings of topics.
func (a *Access) settings() (admin.Settings, error) {
	if a.Settings == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub has no settings of topics")
	}
	return a.Settings, nil
}

// settingsName reads the name of an entry in a path, a topic's or a pattern.
func settingsName(r *http.Request) (string, error) {
	name := r.PathValue("topic")
	return name, admin.ValidateSettingsName(name)
}

// etag writes the version of a stored entry, 0 for none.
func etag(w http.ResponseWriter, version uint64) {
	w.Header().Set("ETag", `"`+strconv.FormatUint(version, 10)+`"`)
}

// ifMatch reads the version that a change asks for, nil where it asks for none.
func ifMatch(r *http.Request) (*uint64, error) {
	given := r.Header.Values("If-Match")
	if other := r.Header.Values("If-None-Match"); len(other) > 0 {
		if len(given) > 0 || len(other) > 1 || other[0] != "*" {
			return nil, eventhub.Errorf(eventhub.CodeBadRequest, "If-None-Match is %.48s; * alone is taken, without If-Match", strings.Join(other, ", "))
		}
		return new(uint64), nil // only where there are none
	}
	if len(given) == 0 {
		return nil, nil
	}
	text := strings.Join(given, ", ")
	if inner, ok := strings.CutPrefix(text, `"`); ok {
		inner, ok = strings.CutSuffix(inner, `"`)
		if version, err := strconv.ParseUint(inner, 10, 64); err == nil && ok {
			return &version, nil
		}
	}
	return nil, eventhub.Errorf(eventhub.CodeBadRequest, `If-Match is %.48s; an ETag of these settings is expected, such as "3", or "0" where there are none`, text)
}

// putSettings stores the settings of a topic, or of a pattern's topics.
func putSettings(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	name, err := settingsName(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	match, err := ifMatch(r)
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
	to, err := access.settings()
	if err != nil {
		return reply{}, err
	}
	entry, err := to.SetTopic(r.Context(), name, given, match)
	if err != nil {
		return reply{}, err
	}
	etag(w, entry.Version)
	return jsonReply(http.StatusOK, entry)
}

func deleteSettings(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	name, err := settingsName(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	match, err := ifMatch(r)
	if err != nil {
		return reply{}, err
	}
	from, err := access.settings()
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, from.UnsetTopic(r.Context(), name, match)
}

// showSettings answers with what counts for a topic, whether there is one of that name or
// not.
func showSettings(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, err := topicOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	from, err := access.settings()
	if err != nil {
		return reply{}, err
	}
	effective, err := from.EffectiveSettings(r.Context(), topic)
	if err != nil {
		return reply{}, err
	}
	etag(w, effective.OwnVersion)
	return jsonReply(http.StatusOK, effective)
}

func listSettings(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "after", "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err == nil {
		err = optional("after", q["after"], admin.ValidateSettingsName)
	}
	if err != nil {
		return reply{}, err
	}
	from, err := access.settings()
	if err != nil {
		return reply{}, err
	}
	entries, err := from.SettingsEntries(r.Context(), q["after"], limit)
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Settings []admin.SettingsEntry `json:"settings"`
		Next     string                `json:"next,omitempty"`
	}{Settings: append([]admin.SettingsEntry{}, entries...)} // never null
	last, err := lastOfMore(entries, limit, func(last *admin.SettingsEntry) ([]admin.SettingsEntry, error) {
		return from.SettingsEntries(r.Context(), last.Name, 1)
	})
	if err != nil {
		return reply{}, err
	}
	if last != nil {
		page.Next = last.Name
	}
	return jsonReply(http.StatusOK, page)
}
