package past

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// TestBeginInACompactedTopic: a place or a time that compaction has passed says how far that
// went, earliest does not.
func TestBeginInACompactedTopic(t *testing.T) {
	inBubble(t, testBeginCompacted)
}

func testBeginCompacted(r *rig) {
	t := r.t
	for _, key := range []string{"a", "a", "b", "a", "c", "c"} {
		r.commit(eventhub.Event{Topic: "t", Key: key})
	}
	r.compact("t", 4, 2) // 1 and 2 are gone
	for _, tt := range []struct {
		start  eventhub.Start
		cursor uint64
		gap    *eventhub.Gap
	}{
		{eventhub.Earliest, 0, nil},
		{eventhub.Latest, 6, nil},
		{eventhub.FromOffset(1), 0, &eventhub.Gap{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}},
		{eventhub.FromOffset(3), 2, &eventhub.Gap{Topic: "t", After: 2, First: 3, Compacted: 4}},
		{eventhub.FromOffset(5), 4, nil},
		{eventhub.Start{Kind: eventhub.StartTime, TS: 1}, 2, &eventhub.Gap{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}},
		{eventhub.Start{Kind: eventhub.StartTime, TS: 1 << 42}, 6, nil},
	} {
		cursor, gap, marks, err := Begin(bg, r.store, "t", tt.start)
		if err != nil || cursor != tt.cursor || (gap == nil) != (tt.gap == nil) || gap != nil && *gap != *tt.gap || marks != (store.Marks{Compacted: 4, Tombstones: 2}) {
			t.Errorf("%+v begins after %d with the gap %+v and %+v, %v; want %d and %+v", tt.start, cursor, gap, marks, err, tt.cursor, tt.gap)
		}
	}
}

// TestReplayOfACompactedTopic: a replay tells of which part compaction may have removed events,
// once for each topic, also where it begins with the first event there is.
func TestReplayOfACompactedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"t", "u", "v"} {
			var events []eventhub.Event
			for _, key := range []string{"a", "a", "b", "a", "c", "c"} {
				events = append(events, eventhub.Event{Topic: topic, Key: key})
			}
			r.publishEvents(events...) // of the seconds 0 to 5, and so on
		}
		began := time.Now().Add(-18 * time.Second)
		r.compact("t", 4, 2)
		r.compact("u", 4, 4)
		r.remove("u", 3)
		at := func(second int) eventhub.Start { return eventhub.At(began.Add(time.Duration(second) * time.Second)) }
		for _, tt := range []struct {
			q    admin.ReplayQuery
			want []eventhub.Gap
		}{
			{admin.ReplayQuery{Topic: "t"}, []eventhub.Gap{{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}}},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.Earliest, Limit: 1}, []eventhub.Gap{{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}}},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.FromOffset(3)}, []eventhub.Gap{{Topic: "t", After: 2, First: 3, Compacted: 4}}},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.FromOffset(4)}, []eventhub.Gap{{Topic: "t", After: 3, First: 4, Compacted: 4}}},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.FromOffset(5)}, nil},
			{admin.ReplayQuery{Topic: "t", Start: at(0)}, []eventhub.Gap{{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}}},
			{admin.ReplayQuery{Topic: "t", Start: at(5)}, nil},
			{admin.ReplayQuery{Topic: "t", ToTS: began.Add(time.Second).UnixMilli()}, []eventhub.Gap{{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}}}, // nothing is left of it
			{admin.ReplayQuery{Topic: "u"}, []eventhub.Gap{{Topic: "u", After: 2, First: 3, Compacted: 4, Tombstones: 4}}},
			{admin.ReplayQuery{Topic: "v"}, nil},
			{admin.ReplayQuery{Topic: "none"}, nil},
			{admin.ReplayQuery{Topic: "*"}, []eventhub.Gap{{Topic: "t", First: 1, Compacted: 4, Tombstones: 2}, {Topic: "u", After: 2, First: 3, Compacted: 4, Tombstones: 4}}},
		} {
			var got []eventhub.Gap
			r.replay(tt.q) // nobody has to listen
			tt.q.OnGap = func(g eventhub.Gap) { got = append(got, g) }
			r.replay(tt.q)
			equal(t, fmt.Sprintf("%s from %+v", tt.q.Topic, tt.q.Start), got, tt.want)
		}
	})
}

// TestReplayIsPassed: compaction passes a replay between two pages. It is told so before the
// first event after that, where it may have missed something.
func TestReplayIsPassed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		marks [2]uint64
		want  []eventhub.Gap
	}{
		{"what was visited", [2]uint64{2, 2}, nil},
		{"the next page", [2]uint64{7, 2}, []eventhub.Gap{{Topic: "t", After: 2, First: 3, Compacted: 7}}},
		{"further", [2]uint64{8, 8}, []eventhub.Gap{{Topic: "t", After: 2, First: 3, Compacted: 8, Tombstones: 8}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				large := []byte(`"` + strings.Repeat("x", replayBytes/3) + `"`) // a page has two
				for range 8 {
					r.commit(eventhub.Event{Topic: "t", Key: "k", Payload: large})
				}
				var got []eventhub.Gap
				n, told := 0, 0
				q := admin.ReplayQuery{Topic: "t", OnGap: func(g eventhub.Gap) { got, told = append(got, g), n }}
				err := r.history.Replay(bg, q, func(_ string, item eventhub.Item) error {
					if n++; n == 2 {
						r.compact("t", tt.marks[0], tt.marks[1])
					}
					return nil
				})
				equal(t, "told", got, tt.want)
				if err != nil || len(got) > 0 && told != 2 {
					t.Errorf("it was told after %d of %d events, %v", told, n, err)
				}
			})
		})
	}
}

// compact compacts a topic up to a mark, and removes ends of keys up to another.
func (r *rig) compact(topic string, values, ends uint64) {
	r.t.Helper()
	u := store.Unit{Topics: []store.TopicChange{{Topic: topic, Compacted: values, Tombstones: ends}}}
	if err := r.store.Commit(bg, []*store.Unit{&u}, true); err != nil || u.Err != nil {
		r.t.Fatal(err, u.Err)
	}
	if err := indexNow(r.store)(bg, topic); err != nil {
		r.t.Fatal(err)
	}
	for done := false; !done; {
		var err error
		if _, done, err = r.store.Compact(bg, topic); err != nil {
			r.t.Fatal(err)
		}
	}
}
