package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// indexOf is what the description of a topic says of its index.
func (r *rig) indexOf(topic string) admin.TopicIndex {
	r.t.Helper()
	info, err := r.bus.Topic(context.Background(), topic)
	if err != nil || info.Index == nil {
		r.t.Fatal(info.Index, err)
	}
	return *info.Index
}

// index has a topic indexed.
func (r *rig) index(topic string) {
	r.t.Helper()
	if err := r.bus.indexed(context.Background(), topic); err != nil {
		r.t.Fatal(err)
	}
}

// TestConditionNeedsIndex: a condition on a key has the topic indexed. A publish that somebody waits for
// waits for that; others are refused with a time to try again, and nothing of them is there.
func TestConditionNeedsIndex(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.keyed("t", "k", 7)
		pubs := []eventhub.Publication{
			{Events: []eventhub.Event{expecting("k0", eventhub.IfKeyOffset(99))}},
			{Events: []eventhub.Event{expecting("k0", eventhub.IfTopicOffset(7))}},
			{Events: []eventhub.Event{expecting("", eventhub.Expect{}), expecting("new", eventhub.IfKeyOffset(0))}},
		}
		r.bus.Enqueue(ctx, pubs, func([]eventhub.Publication) {})
		synctest.Wait()
		for _, i := range []int{0, 2} {
			wantCode(t, pubs[i].Err, eventhub.CodeOverloaded)
			if eventhub.AsError(pubs[i].Err).RetryAfter <= 0 {
				t.Errorf("%v has no time to try again", pubs[i].Err)
			}
		}
		if pubs[1].Err != nil {
			t.Error(pubs[1].Err)
		}
		equal(t, "events", len(r.events("t")), 8)
		equal(t, "index", r.indexOf("t").State, admin.IndexReady)
		again := []eventhub.Publication{{Events: []eventhub.Event{expecting("new", eventhub.IfKeyOffset(0))}}}
		r.bus.Enqueue(ctx, again, func([]eventhub.Publication) {})
		synctest.Wait()
		if again[0].Err != nil {
			t.Error(again[0].Err)
		}

		r.keyed("u", "k", 7)
		e := expecting("new", eventhub.IfKeyOffset(0))
		e.Topic = "u"
		if _, err := r.bus.Publish(ctx, e); err != nil {
			t.Error(err)
		}
		if _, err := r.bus.SetTopic(ctx, "u", admin.TopicSettings{State: admin.StateOff}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		_, err := r.bus.Publish(ctx, e)
		wantCode(t, err, eventhub.CodeUnsupportedOp)
		off := []eventhub.Publication{{Events: []eventhub.Event{e}}}
		r.bus.Enqueue(ctx, off, func([]eventhub.Publication) {})
		synctest.Wait()
		wantCode(t, off[0].Err, eventhub.CodeUnsupportedOp)
	})
}

// TestIndexedWhenAsked: the first good question about the state of a topic has its keys indexed, by whatever
// door; a bad one does not.
func TestIndexedWhenAsked(t *testing.T) {
	ctx := context.Background()
	for name, ask := range map[string]func(*Bus, string) error{
		"state": func(b *Bus, topic string) error {
			page, err := b.State(ctx, admin.StateQuery{Topic: topic, Limit: 10})
			if err == nil && (len(page.Events) != 2 || page.At != 7) {
				err = fmt.Errorf("%+v", page)
			}
			return err
		},
		"difference": func(b *Bus, topic string) error {
			page, err := b.StateDiff(ctx, admin.StateDiffQuery{Topic: topic, Limit: 10})
			if err == nil && len(page.Changes) != 2 {
				err = fmt.Errorf("%+v", page)
			}
			return err
		},
	} {
		inBubble(t, func(r *rig) {
			r.keyed("t", "k", 7)
			r.keyed("u", "k", 7)
			for _, q := range []admin.StateQuery{{Topic: "t"}, {Topic: "t", Limit: 1, At: 99}, {Topic: "t", Limit: 1, Page: "x"}} {
				if _, err := r.bus.State(ctx, q); err == nil {
					t.Errorf("%+v is no error", q)
				}
			}
			equal(t, "index before", r.indexOf("t"), admin.TopicIndex{State: admin.IndexNone})
			if err := ask(r.bus, "t"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			equal(t, "index after", r.indexOf("t"), admin.TopicIndex{State: admin.IndexReady})
			equal(t, "index of another", r.indexOf("u"), admin.TopicIndex{State: admin.IndexNone})
			equal(t, "in a list", []any{func() any {
				list, err := r.bus.Topics(ctx, "", 10)
				return []any{list[0].Index == nil, err}
			}()}, []any{[]any{true, nil}})
		})
	}
}

// TestStateIsOff: where the settings of a topic say so its state can not be asked for, its index goes, and
// all else goes on.
func TestStateIsOff(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.keyed("t", "k", 6)
		set := func(mode admin.StateMode) {
			t.Helper()
			if _, err := r.bus.SetTopic(ctx, "t", admin.TopicSettings{State: mode}, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		set(admin.StateOn)
		equal(t, "index", r.indexOf("t").State, admin.IndexReady)
		set(admin.StateOff)
		equal(t, "index", r.indexOf("t").State, admin.IndexNone)
		_, err := r.bus.State(ctx, admin.StateQuery{Topic: "t", Limit: 1})
		wantCode(t, err, eventhub.CodeUnsupportedOp)
		_, err = r.bus.StateDiff(ctx, admin.StateDiffQuery{Topic: "t", Limit: 1})
		wantCode(t, err, eventhub.CodeUnsupportedOp)
		equal(t, "erased", r.eraseBy("t", admin.EraseQuery{Key: "k"}).Events, 3)
		set(admin.StateAuto)
		page, err := r.bus.State(ctx, admin.StateQuery{Topic: "t", Limit: 9})
		equal(t, "state", []any{len(page.Events), err}, []any{1, nil})
		_, err = r.bus.SetTopic(ctx, "t", admin.TopicSettings{State: admin.StateOff, Compaction: &admin.Compaction{}}, nil)
		wantCode(t, err, eventhub.CodeBadRequest)
	})
}

// TestEraseKeyWhateverTheIndex: an erasure by key finds the same events and dead letters, the newest first, and says
// in the same way that there are more.
func TestEraseKeyWhateverTheIndex(t *testing.T) {
	for _, status := range []store.IndexStatus{store.NotIndexed, store.Indexing, store.Indexed} {
		inBubble(t, func(r *rig) {
			ctx := context.Background()
			r.keyed("t", "k", 12)
			r.deadLetterAll("t", "g")
			r.keyed("u.dlq.not", "k", 1)
			for _, topic := range []string{"t", "t.dlq"} {
				u := store.Unit{Topics: []store.TopicChange{{Topic: topic, Index: store.StartIndex}}}
				if status == store.NotIndexed {
					break
				}
				if err := r.bus.removeEvents(ctx, u); err != nil {
					t.Fatal(err)
				}
				for done := status == store.Indexing; !done; {
					var err error
					if _, done, err = r.store.IndexKeys(ctx, topic, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			dry, err := r.bus.Erase(ctx, "t", admin.EraseQuery{Key: "k"})
			equal(t, "dry", []any{dry, err}, []any{admin.EraseResult{Topic: "t", Events: 6, DeadLetters: 6}, nil})
			_, err = r.bus.Erase(ctx, "t", admin.EraseQuery{Key: "none"})
			wantCode(t, err, eventhub.CodeUnknownID)
			first := r.eraseBy("t", admin.EraseQuery{Key: "k", Limit: 4})
			equal(t, "the first", first, admin.EraseResult{Topic: "t", Events: 4, More: true, Applied: true})
			equal(t, "left", r.offsets("t"), []uint64{1, 2, 3, 4, 6, 8, 10, 12})
			rest := r.eraseBy("t", admin.EraseQuery{Key: "k"})
			equal(t, "the rest", rest, admin.EraseResult{Topic: "t", Events: 2, DeadLetters: 6, Applied: true})
			equal(t, "left", r.offsets("t"), []uint64{2, 4, 6, 8, 10, 12})
			equal(t, "dead letters", len(r.offsets("t.dlq")), 6)
			if info, err := r.store.Topic(ctx, "t"); err != nil || info.Index != status {
				t.Errorf("the index is %s, %v; it was %s", info.Index, err, status)
			}
		})
	}
}

// TestIndexGoesOnAfterARestart: a hub that was stopped while it built an index ends it, and serves nothing of it
// before.
func TestIndexGoesOnAfterARestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.keyed("t", "k", 300)
		if err := r.bus.removeEvents(ctx, store.Unit{Topics: []store.TopicChange{{Topic: "t", Index: store.StartIndex}}}); err != nil {
			t.Fatal(err)
		}
		if _, done, err := r.store.IndexKeys(ctx, "t", nil); done || err != nil {
			t.Fatal(done, err)
		}
		if _, err := r.store.Latest(ctx, "t", "k", 0); !errors.Is(err, store.ErrNotIndexed) {
			t.Errorf("Latest: %v", err)
		}
		equal(t, "index", r.indexOf("t").State, admin.IndexBuilding)
		r.restart()
		time.Sleep(time.Second)
		equal(t, "index", r.indexOf("t").State, admin.IndexReady)
		page, err := r.bus.State(ctx, admin.StateQuery{Topic: "t", Limit: 9})
		offsets := []uint64{}
		for _, item := range page.Events {
			offsets = append(offsets, item.Offset)
		}
		slices.Sort(offsets)
		equal(t, "state", []any{offsets, err}, []any{[]uint64{299, 300}, nil})
	})
}
