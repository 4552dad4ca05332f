package past

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
)

func TestReplay(t *testing.T) {
	inBubble(t, func(r *rig) {
		began := time.Now().UnixMilli()
		r.publishEvents(
			eventhub.Event{Topic: "b", ID: "b1", Key: "k"},
			eventhub.Event{Topic: "a.x", ID: "a1", Key: "l"},
			eventhub.Event{Topic: "b", ID: "b2", Key: "l"},
			eventhub.Event{Topic: "a.x", ID: "a2", Key: "k"},
			eventhub.Event{Topic: "b", ID: "b3", Key: "k"},
		)
		at := func(kind eventhub.StartKind, of eventhub.Start) eventhub.Start { of.Kind = kind; return of }
		key := &eventhub.Filter{Key: "k"}
		for _, tt := range []struct {
			q    admin.ReplayQuery
			want string
		}{
			{admin.ReplayQuery{Topic: "b"}, "b/1 b/2 b/3"},
			{admin.ReplayQuery{Topic: "none"}, ""},
			{admin.ReplayQuery{Topic: "**"}, "a.x/1 a.x/2 b/1 b/2 b/3"},
			{admin.ReplayQuery{Topic: "*"}, "b/1 b/2 b/3"},
			{admin.ReplayQuery{Topic: "b", Start: at(eventhub.StartEarliest, eventhub.Start{})}, "b/1 b/2 b/3"},
			{admin.ReplayQuery{Topic: "b", Start: at(eventhub.StartOffset, eventhub.Start{Offset: 2})}, "b/2 b/3"},
			{admin.ReplayQuery{Topic: "b", Start: at(eventhub.StartOffset, eventhub.Start{Offset: 9})}, ""},
			{admin.ReplayQuery{Topic: "b", Start: at(eventhub.StartAfterID, eventhub.Start{AfterID: "b2"})}, "b/3"},
			{admin.ReplayQuery{Topic: "**", Start: at(eventhub.StartTime, eventhub.Start{TS: began + 2000})}, "a.x/2 b/2 b/3"},
			{admin.ReplayQuery{Topic: "**", ToTS: began + 3000}, "a.x/1 b/1 b/2"},
			{admin.ReplayQuery{Topic: "b", ToTS: began + 2001, Start: at(eventhub.StartTime, eventhub.Start{TS: began + 1})}, "b/2"},
			{admin.ReplayQuery{Topic: "b", ToTS: 1}, ""},
			{admin.ReplayQuery{Topic: "**", Limit: 3}, "a.x/1 a.x/2 b/1"},
			{admin.ReplayQuery{Topic: "**", Limit: 2}, "a.x/1 a.x/2"},
			{admin.ReplayQuery{Topic: "**", Filter: key}, "a.x/2 b/1 b/3"},
			{admin.ReplayQuery{Topic: "**", Filter: key, Limit: 2}, "a.x/2 b/1"},
		} {
			equal(t, fmt.Sprintf("%+v", tt.q), strings.Join(r.replay(tt.q), " "), tt.want)
		}
	})
}

// TestReplayRefuses: nothing is visited, and the error names the value.
func TestReplayRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishEvents(eventhub.Event{Topic: "b", ID: "b1"})
		for _, tt := range []struct {
			q    admin.ReplayQuery
			code eventhub.Code
			says string
		}{
			{admin.ReplayQuery{}, eventhub.CodeBadTopic, "empty"},
			{admin.ReplayQuery{Topic: "a..b"}, eventhub.CodeBadTopic, "a..b"},
			{admin.ReplayQuery{Topic: "b", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "x"}}, eventhub.CodeUnknownID, `"x"`},
			{admin.ReplayQuery{Topic: "*", Start: eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "b1"}}, eventhub.CodeBadRequest, `"b1"`},
			{admin.ReplayQuery{Topic: "*", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 7}}, eventhub.CodeBadRequest, "7"},
			{admin.ReplayQuery{Topic: "*", Life: 7}, eventhub.CodeBadRequest, "life 7"},
			{admin.ReplayQuery{Topic: "none", Life: 7}, eventhub.CodeUnknownID, "none"},
			{admin.ReplayQuery{Topic: "b", Start: eventhub.Start{Kind: eventhub.StartLatest, TS: 1}}, eventhub.CodeBadRequest, "latest"},
			{admin.ReplayQuery{Topic: "b", Start: eventhub.Start{Kind: eventhub.StartTime, TS: -1}}, eventhub.CodeBadRequest, "-1"},
			{admin.ReplayQuery{Topic: "b", ToTS: -2}, eventhub.CodeBadRequest, "-2"},
			{admin.ReplayQuery{Topic: "b", Limit: -3}, eventhub.CodeBadRequest, "-3"},
			{admin.ReplayQuery{Topic: "b", Filter: &eventhub.Filter{CEL: "("}}, eventhub.CodeBadRequest, "1:2"},
		} {
			err := r.history.Replay(context.Background(), tt.q, func(string, eventhub.Item) error {
				t.Errorf("%+v visits an event", tt.q)
				return nil
			})
			if wantCode(t, err, tt.code); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%+v: %v; want %q in it", tt.q, err, tt.says)
			}
		}
	})
}

// TestReplayEnds: at the heads that there were when it began, with the error of
// visit, and with its context.
func TestReplayEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 2)
		r.publish("c", 1)
		var seen []string
		q := admin.ReplayQuery{Topic: "**"}
		err := r.history.Replay(context.Background(), q, func(topic string, item eventhub.Item) error {
			seen = append(seen, fmt.Sprint(topic, item.Offset))
			for _, name := range []string{"a", "b", "c"} {
				r.publish(name, 1)
			}
			return nil
		})
		equal(t, "seen", strings.Join(seen, " "), "a1 a2 c1")
		if err != nil {
			t.Error(err)
		}
		enough := errors.New("enough")
		n := 0
		err = r.history.Replay(context.Background(), q, func(string, eventhub.Item) error {
			n++
			return enough
		})
		if !errors.Is(err, enough) || n != 1 {
			t.Errorf("a visit that fails ends the replay with %v after %d", err, n)
		}
		ctx, cancel := context.WithCancel(context.Background())
		n = 0
		err = r.history.Replay(ctx, q, func(string, eventhub.Item) error {
			n++
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) || n > 5 {
			t.Errorf("a replay whose context ends: %v after %d", err, n)
		}
	})
}

// TestReplayOfWhatIsDeleted: a replay that does not see all that it set out to read does
// not end as if it had, whether the topic is gone or is there again; what it has read
// before, or does not need, may go.
func TestReplayOfWhatIsDeleted(t *testing.T) {
	again := func(r *rig, topic string) {
		r.deleteTopic(topic)
		r.publish(topic, 30)
	}
	for _, tt := range []struct {
		name  string
		q     admin.ReplayQuery
		at    string // the topic at whose first event something is done
		run   func(r *rig)
		whole bool
		// ofLife has the query name the topic's life.
		ofLife bool
		want   int // events, where it is whole
	}{
		{name: "deleted", q: admin.ReplayQuery{Topic: "b"}, at: "b", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "deleted and created again", q: admin.ReplayQuery{Topic: "b"}, at: "b", run: func(r *rig) { again(r, "b") }},
		{name: "one that comes later", q: admin.ReplayQuery{Topic: "*"}, at: "a", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "one that comes later, created again", q: admin.ReplayQuery{Topic: "*"}, at: "a", run: func(r *rig) { again(r, "b") }},
		{name: "up to a time", q: admin.ReplayQuery{Topic: "*", ToTS: 1 << 50}, at: "a", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "from a time", q: admin.ReplayQuery{Topic: "*", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 1}}, at: "a", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "before a later page", q: admin.ReplayQuery{Topic: "b", Life: 1 << 50, Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}}},
		{name: "all of its life", q: admin.ReplayQuery{Topic: "b"}, ofLife: true, whole: true, want: 8},
		{name: "one that was read", q: admin.ReplayQuery{Topic: "*"}, at: "b", run: func(r *rig) { again(r, "a") }, whole: true, want: 16},
		{name: "one after the limit", q: admin.ReplayQuery{Topic: "*", Limit: 8}, at: "a", run: func(r *rig) { r.deleteTopic("b") }, whole: true, want: 8},
		{name: "one that is created in the meantime", q: admin.ReplayQuery{Topic: "*"}, at: "a", run: func(r *rig) { r.publish("aa", 1) }, whole: true, want: 16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				large := []byte(`"` + strings.Repeat("x", replayBytes/3) + `"`) // a page has two or three
				for _, topic := range []string{"a", "b"} {
					r.commitTimes(8, eventhub.Event{Topic: topic, Payload: large})
				}
				if tt.ofLife {
					life, err := r.history.Life(bg, tt.q.Topic)
					if err != nil || life == 0 {
						t.Fatalf("life %d, %v", life, err)
					}
					tt.q.Life = life
				}
				n, done := 0, false
				err := r.history.Replay(bg, tt.q, func(topic string, _ eventhub.Item) error {
					if n++; topic == tt.at && !done {
						done = true
						tt.run(r)
					}
					return nil
				})
				if tt.whole {
					if err != nil || n != tt.want {
						t.Errorf("%d events, %v; want %d", n, err, tt.want)
					}
					return
				}
				wantCode(t, err, eventhub.CodeUnknownID)
			})
		})
	}
}

// TestReplayOfWhatIsRemoved: a place below the horizon is refused with the horizon; what is
// there is replayed, erased events left out; what is removed before it is read, or between
// two pages, ends the replay with an error, and never with less than there was.
func TestReplayOfWhatIsRemoved(t *testing.T) {
	inBubble(t, func(r *rig) {
		began := time.Now().UnixMilli()
		for n := range 9 {
			r.publishEvents(eventhub.Event{Topic: "t", ID: fmt.Sprint("e", n+1)})
		}
		r.publishEvents(eventhub.Event{Topic: "u"})
		r.remove("t", 4, 6)
		for _, tt := range []struct {
			q    admin.ReplayQuery
			want string // offsets, or a part of the message
		}{
			{admin.ReplayQuery{Topic: "t"}, "4 5 7 8 9"},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.Earliest}, "4 5 7 8 9"},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.FromOffset(4)}, "4 5 7 8 9"},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.FromOffset(3)}, `the events of topic "t" after offset 2 were removed: it begins at offset 4`},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.AfterID("e5")}, "7 8 9"},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartTime, TS: began + 4000}}, "5 7 8 9"},
			{admin.ReplayQuery{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 7}}, `events of topic "t" from the time 7 on may have been removed: it begins at offset 4`},
			{admin.ReplayQuery{Topic: "**", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 7}}, `topic "t" from the time 7`},
			{admin.ReplayQuery{Topic: "t", ToTS: began + 2000}, ""},
		} {
			var seen []string
			err := r.history.Replay(bg, tt.q, func(_ string, item eventhub.Item) error {
				seen = append(seen, fmt.Sprint(item.Offset))
				return nil
			})
			if err == nil {
				equal(t, fmt.Sprintf("%+v", tt.q), strings.Join(seen, " "), tt.want)
				continue
			}
			if wantCode(t, err, eventhub.CodeGone); !strings.Contains(err.Error(), tt.want) || tt.want == "" || seen != nil {
				t.Errorf("%+v visits %v and ends with %v; want %q", tt.q, seen, err, tt.want)
			}
		}
		_, err := r.history.Event(bg, "t", "e2")
		wantCode(t, err, eventhub.CodeUnknownID)
		equal(t, "message", eventhub.AsError(err).Message, `there is no event "e2" in topic "t"; it may have been removed: the topic begins at offset 4`)
		info, err := r.history.Topic(bg, "t")
		if r.remove("t", 0, 9); err != nil {
			t.Fatal(err)
		}
		after, err := r.history.Topic(bg, "t")
		if err != nil || after.Head != 9 || after.HeadTS != info.HeadTS || after.HeadID != "" || after.FirstOffset != 4 {
			t.Errorf("without its newest event the topic is %+v, %v; it was %+v", after, err, info)
		}
	})
}

// TestReplayIsOvertaken: while events are read the horizon passes what is to be read next.
func TestReplayIsOvertaken(t *testing.T) {
	for _, tt := range []struct {
		name    string
		horizon uint64
		whole   bool
	}{{"what was visited", 3, true}, {"the next page", 7, false}, {"all that is left", 9, false}} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				large := []byte(`"` + strings.Repeat("x", replayBytes/3) + `"`) // a page has two or three
				for range 8 {
					r.commit(eventhub.Event{Topic: "t", Payload: large})
				}
				n := 0
				err := r.history.Replay(bg, admin.ReplayQuery{Topic: "t"}, func(string, eventhub.Item) error {
					if n++; n == 2 {
						r.remove("t", tt.horizon)
					}
					return nil
				})
				if tt.whole {
					if err != nil || n != 8 {
						t.Errorf("%d events, %v; want all", n, err)
					}
					return
				}
				if wantCode(t, err, eventhub.CodeGone); n >= 8 || !strings.Contains(err.Error(), fmt.Sprintf("it begins at offset %d", tt.horizon)) {
					t.Errorf("%d events, %v", n, err)
				}
			})
		})
	}
}
