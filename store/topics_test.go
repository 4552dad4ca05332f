package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"eventhub/store"
)

// names is a store of topics that have nothing but names, in byte order.
type names struct {
	store.Topics
	names []string
	pages int
	fails int // the page that fails, from 1
}

var errPage = errors.New("no page")

func (n *names) ListTopics(_ context.Context, after string, limit int) (page []store.TopicInfo, err error) {
	if n.pages++; n.pages == n.fails {
		return nil, errPage
	}
	from, found := slices.BinarySearch(n.names, after)
	if found {
		from++
	}
	for _, name := range n.names[from:min(from+limit, len(n.names))] {
		page = append(page, store.TopicInfo{Name: name})
	}
	return page, nil
}

func TestAllTopics(t *testing.T) {
	for _, tt := range []struct{ topics, pages int }{
		{0, 1}, {1, 1}, {store.TopicsPage - 1, 1}, {store.TopicsPage, 2}, {store.TopicsPage + 1, 2}, {2*store.TopicsPage + 5, 3},
	} {
		n := &names{}
		for i := range tt.topics {
			n.names = append(n.names, fmt.Sprintf("t%06d", i))
		}
		var got []string
		for topic, err := range store.AllTopics(t.Context(), n, "") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, topic.Name)
		}
		if !slices.Equal(got, n.names) || n.pages != tt.pages {
			t.Errorf("%d topics gave %d in %d pages, want %d pages", tt.topics, len(got), n.pages, tt.pages)
		}
	}
}

func TestAllTopicsEndsEarly(t *testing.T) {
	n := &names{fails: 2}
	for i := range 2 * store.TopicsPage {
		n.names = append(n.names, fmt.Sprintf("t%06d", i))
	}
	for topic, err := range store.AllTopics(t.Context(), n, "t000003") {
		if err != nil || topic.Name != "t000004" {
			t.Errorf("after t000003 comes %q: %v", topic.Name, err)
		}
		break
	}
	if n.pages != 1 {
		t.Errorf("%d pages were read for one topic", n.pages)
	}
	n.pages = 0
	seen, failed := 0, false
	for _, err := range store.AllTopics(t.Context(), n, "") {
		if failed {
			t.Fatal("the walk went on after an error")
		}
		if failed = err != nil; failed {
			if !errors.Is(err, errPage) {
				t.Error(err)
			}
			continue
		}
		seen++
	}
	if !failed || seen != store.TopicsPage {
		t.Errorf("%d topics, failed %v", seen, failed)
	}
}
