package console

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"eventhub/admin"
)

// namesFor is for how long a list of all names serves other windows too: who scrolls asks for many.
const namesFor = 5 * time.Second

// topicsWindow is a part of the list of topics, by name.
type topicsWindow struct {
	Total int        `json:"total"` // of those that the search finds
	From  int        `json:"from"`
	Rows  []topicRow `json:"rows"`
}

// nameList keeps the names of all topics for a moment.
type nameList struct {
	mu    sync.Mutex
	at    time.Time
	names []string
}

// topics answers GET /console/topics?search&from&rows: those whose names have the words of search, a window of them.
// With first it looks at no more than the first of all.
func (c *Console) topics(w http.ResponseWriter, r *http.Request) {
	window, err := c.topicsOf(r)
	if err != nil {
		c.cfg.Refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(encode(window), '\n')) // an error means that the client is gone
}

func (c *Console) topicsOf(r *http.Request) (*topicsWindow, error) {
	access, err := c.cfg.Admit(r)
	if err != nil {
		return nil, err
	}
	if access.Inspector == nil {
		return nil, c.cfg.WhyClosed()
	}
	q := r.URL.Query()
	from, err := number(q, "from", 0, 1<<30)
	if err != nil {
		return nil, err
	}
	rows, err := number(q, "rows", 50, maxNames)
	if err != nil {
		return nil, err
	}
	var names []string
	if q.Has("first") { // for a page that has just been opened: it asks for the rest then
		names, err = firstNames(r.Context(), access.Inspector, max(rows, 1))
	} else {
		names, err = c.topicNames(r.Context(), &access)
	}
	if err != nil {
		return nil, err
	}
	var found []string
	words := strings.Fields(strings.ToLower(q.Get("search")))
	for _, name := range names {
		if containsAll(strings.ToLower(name), words) {
			found = append(found, name)
		}
	}
	window := &topicsWindow{Total: len(found), From: max(min(from, len(found)-rows), 0), Rows: []topicRow{}}
	s := c.sampler.take()
	for _, name := range found[window.From:min(window.From+rows, len(found))] {
		row := topicRow{Topic: name} // of one that was deleted a moment ago
		if info, err := access.Inspector.Topic(r.Context(), name); err == nil {
			row = s.topicRow(&info)
		}
		window.Rows = append(window.Rows, row)
	}
	return window, nil
}

func containsAll(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// topicNames returns the names of the topics that an access shows, in byte order. Those who are shown all share
// a list.
func (c *Console) topicNames(ctx context.Context, access *Access) ([]string, error) {
	if access.Shows != nil {
		return listNames(ctx, access.Inspector)
	}
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	if c.names.names != nil && time.Since(c.names.at) < namesFor {
		return c.names.names, nil
	}
	names, err := listNames(ctx, access.Inspector)
	if err == nil {
		c.names.names, c.names.at = names, time.Now()
	}
	return names, err
}

func firstNames(ctx context.Context, from admin.Inspector, n int) (names []string, err error) {
	list, err := from.Topics(ctx, "", n)
	for i := range list {
		names = append(names, list[i].Topic)
	}
	return names, err
}

func listNames(ctx context.Context, from admin.Inspector) ([]string, error) {
	names := []string{}
	for t, err := range admin.AllTopics(ctx, from, "") {
		if err != nil {
			return nil, err
		}
		names = append(names, t.Topic)
	}
	return names, nil
}
