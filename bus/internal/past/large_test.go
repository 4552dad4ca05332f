//go:build !race

package past

// These tests have one goroutine and events of a megabyte, as the pages that they fill have
// fixed bounds. The race detector would look at each byte of them and find nothing.

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/filter"
	"eventhub/store/memory"
)

// TestLinksBoundThePage: large events come in pages of some megabytes, and paging on
// gets them all.
func TestLinksBoundThePage(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 40
		payload := []byte(`"` + strings.Repeat("x", eventhub.MaxPayloadBytes-2) + `"`)
		r.commitTimes(events, eventhub.Event{Topic: "t", CausedBy: []string{"x"}, Payload: payload})
		var after eventhub.Place
		pages, n := 0, 0
		for {
			list, err := r.history.Effects(context.Background(), "x", after, admin.MaxPage)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) == 0 {
				break
			}
			pages++
			n += len(list)
			last := list[len(list)-1]
			after = eventhub.Place{Topic: last.Topic, Offset: last.Offset}
		}
		equal(t, "pages and events", []int{pages, n}, []int{3, events})
	})
}

// TestKeyHistoryIsBounded: a page ends by its bytes, and by the causes that it looks up, and goes
// on where it ended.
func TestKeyHistoryIsBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		large := `"` + strings.Repeat("x", 1<<20-2) + `"`
		r.commitTimes(20, keyed("large", large))
		for i := range 60 {
			e := keyed("caused", "1")
			for j := range eventhub.MaxCausedBy {
				e.CausedBy = append(e.CausedBy, fmt.Sprintf("cause-%d-%d", i, j))
			}
			r.commit(e)
		}
		for key, want := range map[string]struct{ changes, most int }{"large": {20, 9}, "caused": {60, pageCauses/eventhub.MaxCausedBy + 1}} {
			n, pages := 0, 0
			for q := (admin.KeyHistoryQuery{Topic: "t", Key: key, Limit: 1000}); ; pages++ {
				page, err := r.history.KeyHistory(bg, q)
				if err != nil {
					t.Fatal(err)
				}
				if n += len(page.Changes); len(page.Changes) > want.most {
					t.Errorf("a page of %q has %d changes; want at most %d", key, len(page.Changes), want.most)
				}
				if q.Before = page.Next; page.Next == 0 {
					break
				}
			}
			if n != want.changes || pages < 2 {
				t.Errorf("%d pages of %q have %d changes; want %d", pages, key, n, want.changes)
			}
		}
	})
}

// TestReplayPages: nothing is lost or twice where one page ends and the next begins,
// and the memory is that of a page.
func TestReplayPages(t *testing.T) {
	s := memory.Open(memory.Options{})
	r := &rig{t: t, store: s, history: New(s, filter.Compile, indexNow(s))}
	const events, size = 400, 100 << 10
	payload := []byte(`"` + strings.Repeat("x", size) + `"`)
	for range events / 40 {
		batch := make([]eventhub.Event, 40)
		for i := range batch {
			batch[i] = eventhub.Event{Topic: "t", Payload: payload}
		}
		r.commit(batch...)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	next := uint64(1)
	err := r.history.Replay(context.Background(), admin.ReplayQuery{Topic: "t"}, func(_ string, item eventhub.Item) error {
		if item.Offset != next || len(item.Record) < size {
			t.Errorf("offset %d with %d bytes; want %d", item.Offset, len(item.Record), next)
		}
		next++
		return nil
	})
	runtime.ReadMemStats(&after)
	if err != nil || next != events+1 {
		t.Errorf("the replay ended before offset %d, %v", next, err)
	}
	// The first page comes in pieces; then there is one for all.
	if made := after.TotalAlloc - before.TotalAlloc; made > 8<<20 {
		t.Errorf("a replay of %d MiB allocates %d MiB", events*size>>20, made>>20)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestStatePageIsBounded: large events make a page short, and all are read all the same.
func TestStatePageIsBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		const keys = 20
		large := `"` + strings.Repeat("x", 1<<20-100) + `"`
		for i := range keys {
			r.commit(keyed(fmt.Sprintf("k%02d", i), large))
		}
		page, err := r.history.State(bg, admin.StateQuery{Topic: "t", Limit: 1000})
		if err != nil || len(page.Events) < 7 || len(page.Events) > 9 || page.Next == "" {
			t.Errorf("the page has %d events of 1 MiB, next %q, %v", len(page.Events), page.Next, err)
		}
		all, err := r.states(admin.StateQuery{Topic: "t", Limit: 1000})
		if err != nil || len(all) != keys {
			t.Errorf("there are %d keys, %v; want %d", len(all), err, keys)
		}
	})
}

// TestStateDiffPageIsBounded: large events make a page short, and so do very many keys that
// have not changed; all changes are seen all the same.
func TestStateDiffPageIsBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		const keys = 12
		large := `"` + strings.Repeat("x", 1<<20-100) + `"`
		for range 2 {
			for i := range keys {
				r.commit(keyed(fmt.Sprintf("k%02d", i), large))
			}
		}
		page, err := r.history.StateDiff(bg, admin.StateDiffQuery{Topic: "t", From: offset(keys), Limit: 1000})
		if err != nil || len(page.Changes) < 3 || len(page.Changes) > 4 || page.Next == "" {
			t.Errorf("the page has %d changes of 2 MiB, next %q, %v", len(page.Changes), page.Next, err)
		}
		if all, _, _, err := r.diff(admin.StateDiffQuery{Topic: "t", From: offset(keys), Limit: 1000}); err != nil || len(all) != keys {
			t.Errorf("there are %d changes, %v; want %d", len(all), err, keys)
		}
	})
	inBubble(t, func(r *rig) {
		const keys = diffCalls * diffEvents
		events := make([]eventhub.Event, keys)
		for i := range events {
			events[i] = keyed(fmt.Sprintf("k%05d", i), "1")
		}
		r.commit(events...)
		r.commit(keyed("z", "1"))
		page, err := r.history.StateDiff(bg, admin.StateDiffQuery{Topic: "t", From: offset(keys), Limit: 1})
		if err != nil || len(page.Changes) != 0 || page.Next == "" {
			t.Errorf("the first page has %d changes, next %q, %v", len(page.Changes), page.Next, err)
		}
		r.wantDiff(admin.StateDiffQuery{From: offset(keys)}, "+z/8193")
	})
}
