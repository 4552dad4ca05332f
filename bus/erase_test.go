package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

func (r *rig) eraseBy(topic string, q admin.EraseQuery) admin.EraseResult {
	r.t.Helper()
	q.Apply, q.By = true, "ada"
	result, err := r.bus.Erase(context.Background(), topic, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

// keyed publishes n events, of the key where i is even.
func (r *rig) keyed(topic, key string, n int) {
	r.t.Helper()
	var events []eventhub.Event
	for i := range n {
		e := eventhub.Event{ID: fmt.Sprint("e", i), Topic: topic, Key: "other", Payload: []byte(`"secret"`)}
		if i%2 == 0 {
			e.Key = key
		}
		events = append(events, e)
	}
	if _, err := r.bus.Publish(context.Background(), events...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) offsets(topic string) (offsets []uint64) {
	r.t.Helper()
	for _, item := range r.items(topic) {
		offsets = append(offsets, item.Offset)
	}
	return offsets
}

func (r *rig) items(topic string) []store.Item {
	r.t.Helper()
	var batch store.Batch
	if err := r.store.Read(context.Background(), topic, 1, 1<<20, 1<<30, &batch); err != nil {
		r.t.Fatal(err)
	}
	return batch.Items
}

// TestErase: an event goes with its dead letters, by its id or its offset; its offset stays a
// gap, and who did it is noted, without a word of the event.
func TestErase(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.keyed("t", "k", 6)
		r.deadLetterAll("t", "g")
		r.deadLetterAll("t", "h")
		dry, err := r.bus.Erase(context.Background(), "t", admin.EraseQuery{ID: "e2"})
		equal(t, "dry", []any{err, dry}, []any{nil, admin.EraseResult{Topic: "t", Events: 1, DeadLetters: 2}})
		equal(t, "kept", len(r.offsets("t"))+len(r.offsets("t.dlq")), 18)
		equal(t, "erased", r.eraseBy("t", admin.EraseQuery{ID: "e2"}), admin.EraseResult{Topic: "t", Events: 1, DeadLetters: 2, Applied: true})
		equal(t, "erased", r.eraseBy("t", admin.EraseQuery{Offset: 5}), admin.EraseResult{Topic: "t", Events: 1, DeadLetters: 2, Applied: true})
		equal(t, "left", r.offsets("t"), []uint64{1, 2, 4, 6})
		for _, item := range r.items("t.dlq") {
			if text := string(item.Record); strings.Contains(text, `"e2"`) || strings.Contains(text, `"e4"`) {
				t.Errorf("a dead letter is left: %s", text)
			}
		}
		for _, q := range []admin.EraseQuery{{ID: "e2"}, {Offset: 3}, {Offset: 99}, {Key: "nobody"}} {
			_, err := r.bus.Erase(context.Background(), "t", q)
			wantCode(t, err, eventhub.CodeUnknownID)
		}
		marks := r.events(admin.AuditTopic)
		equal(t, "marks", len(marks), 2)
		var m admin.EraseMark
		if err := json.Unmarshal(marks[0].Payload, &m); err != nil {
			t.Fatal(err)
		}
		equal(t, "mark", m, admin.EraseMark{Action: "erase", By: "ada", Topic: "t", ID: "e2", Events: 1, DeadLetters: 2})
		if strings.Contains(string(marks[0].Payload), "secret") {
			t.Errorf("the mark has the payload: %s", marks[0].Payload)
		}
	})
}

// TestEraseKey: all events of a key go, with their dead letters and what is scheduled, also
// more than one call takes; what other keys have stays.
func TestEraseKey(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.keyed("t", "k", 10)
		r.deadLetterAll("t", "g")
		for i := range 3 {
			key := []string{"k", "other", "k"}[i]
			if _, err := r.bus.Publish(ctx, eventhub.Event{ID: fmt.Sprint("later", i), Topic: "t", Key: key, Payload: []byte("1"), DeliverAt: time.Now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}
		var all admin.EraseResult
		for all.More = true; all.More; {
			all.Add(r.eraseBy("t", admin.EraseQuery{Key: "k", Limit: 3}))
		}
		equal(t, "erased", all, admin.EraseResult{Topic: "t", Events: 5, DeadLetters: 5, Scheduled: 2, Applied: true})
		equal(t, "left", r.offsets("t"), []uint64{2, 4, 6, 8, 10})
		equal(t, "letters left", len(r.offsets("t.dlq")), 5)
		list, err := r.bus.Scheduled(ctx, admin.ScheduleQuery{Limit: 10})
		equal(t, "scheduled", []any{err, len(list), list[0].Key}, []any{nil, 1, "other"})
		_, err = r.bus.Erase(ctx, "t", admin.EraseQuery{Key: "k"})
		wantCode(t, err, eventhub.CodeUnknownID)
	})
}

// TestEraseLetters: the dead letters of an event go also where the event is gone before them,
// and a dead letter can be erased by itself.
func TestEraseLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.keyed("t", "k", 4)
		r.deadLetterAll("t", "g")
		r.trim("t", 3)
		equal(t, "by id", r.eraseBy("t", admin.EraseQuery{ID: "e1"}), admin.EraseResult{Topic: "t", DeadLetters: 1, Applied: true})
		equal(t, "by key", r.eraseBy("t", admin.EraseQuery{Key: "k"}), admin.EraseResult{Topic: "t", Events: 1, DeadLetters: 2, Applied: true})
		equal(t, "itself", r.eraseBy("t.dlq", admin.EraseQuery{Offset: r.offsets("t.dlq")[0]}), admin.EraseResult{Topic: "t.dlq", Events: 1, Applied: true})
		equal(t, "left", []int{len(r.offsets("t")), len(r.offsets("t.dlq"))}, []int{1, 0})
	})
}

// TestEraseIsResumed: where the store refuses a part, what was erased is, and the same again
// goes on.
func TestEraseIsResumed(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 2*store.MaxErase + 500
		for i := range 5 {
			var events []eventhub.Event
			for j := range n / 5 {
				events = append(events, eventhub.Event{ID: fmt.Sprint(i, "-", j), Topic: "t", Key: "k", Payload: []byte("1")})
			}
			if _, err := r.bus.Publish(context.Background(), events...); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		left := 2
		r.store.Store = &cutting{Store: r.store.Store, cut: func() {
			if left--; left == 0 {
				cancel()
			}
		}}
		result, err := r.bus.Erase(ctx, "t", admin.EraseQuery{Key: "k", Apply: true})
		if !errors.Is(err, context.Canceled) || result.Events < store.MaxErase || result.Events >= n {
			t.Fatalf("%+v, %v; want an interruption with a part erased", result, err)
		}
		r.pass(time.Second)
		for all := (admin.EraseResult{More: true}); all.More; {
			all.Add(r.eraseBy("t", admin.EraseQuery{Key: "k"}))
		}
		equal(t, "left", len(r.offsets("t")), 0)
		equal(t, "marks", len(r.events(admin.AuditTopic)), 2)
	})
}

// cutting is a store that tells of commits that erase.
type cutting struct {
	store.Store
	cut func()
}

func (c *cutting) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if slices.ContainsFunc(units, func(u *store.Unit) bool { return len(u.Topics) > 0 }) {
		c.cut()
	}
	return c.Store.Commit(ctx, units, sync)
}

// TestBadErasures: what cannot be erased is refused, and nothing is noted.
func TestBadErasures(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.keyed("t", "k", 2)
		r.publish("other", 0, 1)
		for _, tt := range []struct {
			topic string
			q     admin.EraseQuery
			code  eventhub.Code
		}{
			{"t", admin.EraseQuery{}, eventhub.CodeBadRequest},
			{"t", admin.EraseQuery{ID: "e1", Key: "k"}, eventhub.CodeBadRequest},
			{"t", admin.EraseQuery{Key: "k", Limit: admin.MaxErase + 1}, eventhub.CodeBadRequest},
			{"t", admin.EraseQuery{Key: strings.Repeat("k", 1025)}, eventhub.CodeBadRequest},
			{"t", admin.EraseQuery{ID: "a b"}, eventhub.CodeBadEvent},
			{"none", admin.EraseQuery{Key: "k"}, eventhub.CodeUnknownID},
			{admin.AuditTopic, admin.EraseQuery{Offset: 1}, eventhub.CodeBadTopic},
			{admin.RedriveTopic, admin.EraseQuery{Offset: 1}, eventhub.CodeBadTopic},
		} {
			tt.q.Apply = true
			_, err := r.bus.Erase(context.Background(), tt.topic, tt.q)
			wantCode(t, err, tt.code)
		}
		if _, err := r.store.Topic(context.Background(), admin.AuditTopic); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v; want no marks", err)
		}
	})
}

// TestErasedIsNotDelivered: a group that has not read an erased event does not get it, nor does
// one that had it given back.
func TestErasedIsNotDelivered(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.keyed("t", "k", 6)
		r.eraseBy("t", admin.EraseQuery{Offset: 2})
		in := r.subscribe(opts("t", "g"))
		equal(t, "delivered", in.TakeOffsets(), []uint64{1, 3, 4, 5, 6})
	})
}

// TestErasedWhileGivenUp: an event that is erased while its dead letter is on the way has none in
// the end: its commit comes after that of the erasure, or with it.
func TestErasedWhileGivenUp(t *testing.T) {
	for _, q := range []admin.EraseQuery{{ID: "e2"}, {Offset: 3}, {Key: "k"}} {
		for _, erasesFirst := range []bool{true, false} {
			inBubble(t, func(r *rig) {
				r.keyed("t", "k", 4)
				in := r.subscribe(opts("t", "g"))
				all := in.Take()
				giveUp := func() {
					in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[2]), byLease(all[1]))
				}
				hold, erased := make(chan struct{}), make(chan admin.EraseResult, 1)
				r.store.set(hold, nil)
				if !erasesFirst {
					go r.publish("other", 0, 1) // both wait for that
					synctest.Wait()
					giveUp()
				}
				go func() { erased <- r.eraseBy("t", q) }()
				synctest.Wait()
				if erasesFirst {
					giveUp()
				}
				r.store.set(nil, nil)
				close(hold)
				synctest.Wait()
				want := admin.EraseResult{Topic: "t", Events: 1, Applied: true}
				if q.Key != "" {
					want.Events = 2
				}
				if !erasesFirst {
					want.DeadLetters = 1
				}
				equal(t, "erased", <-erased, want)
				var noted int
				for _, mark := range r.events(admin.AuditTopic) {
					var m admin.EraseMark
					if err := json.Unmarshal(mark.Payload, &m); err != nil {
						t.Fatal(err)
					}
					noted += m.Events + m.DeadLetters
				}
				equal(t, "noted", noted, want.Total())
				letters := r.items("t.dlq")
				if len(letters) != 1 || strings.Contains(string(letters[0].Record), `"e2"`) {
					t.Errorf("the dead letters are %v", letters)
				}
				if erasesFirst { // nothing is there to be kept, so the group is told
					r.publish("t", 5, 1)
					got := in.Take()
					equal(t, "gap", got[0].Gap, &eventhub.Gap{Topic: "t", After: 2, First: 4})
				}
			})
		}
	}
}

// slowly is a store whose look-ups in the log take a while, after they have found what is there.
type slowly struct {
	store.Store
	takes atomic.Int64 // a time.Duration
}

func (s *slowly) sleep() { time.Sleep(time.Duration(s.takes.Load())) }

func (s *slowly) Find(ctx context.Context, topic, id string) (uint64, error) {
	defer s.sleep()
	return s.Store.Find(ctx, topic, id)
}

func (s *slowly) Latest(ctx context.Context, topic, key string, at uint64) (store.Item, error) {
	defer s.sleep()
	return s.Store.Latest(ctx, topic, key, at)
}

// TestErasedWhileItMoves: a delayed event that enters the log while it is looked for is erased.
func TestErasedWhileItMoves(t *testing.T) {
	for _, q := range []admin.EraseQuery{{ID: "later"}, {Key: "k"}} {
		inBubble(t, func(r *rig) {
			s := &slowly{Store: r.store.Store}
			r.store.Store = s
			if _, err := r.bus.Publish(bg, eventhub.Event{ID: "e1", Topic: "t", Key: "k", Payload: []byte(`1`)},
				eventhub.Event{ID: "later", Topic: "t", Key: "k", Payload: []byte(`2`), DeliverAt: time.Now().Add(30 * time.Second)}); err != nil {
				t.Fatal(err)
			}
			s.takes.Store(int64(time.Minute))
			want := admin.EraseResult{Topic: "t", Events: 1, Applied: true}
			left := []uint64{1}
			if q.Key != "" {
				want.Events, left = 2, nil
			}
			equal(t, "erased", r.eraseBy("t", q), want)
			equal(t, "left", r.offsets("t"), left)
		})
	}
}
