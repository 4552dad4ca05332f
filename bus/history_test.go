package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
	"eventhub/store/memory"
)

// replay returns "topic/offset" of what a replay visits.
func (r *rig) replay(q admin.ReplayQuery) []string {
	r.t.Helper()
	seen := []string{}
	err := r.bus.Replay(context.Background(), q, func(topic string, item eventhub.Item) error {
		seen = append(seen, fmt.Sprint(topic, "/", item.Offset))
		return nil
	})
	if err != nil {
		r.t.Errorf("Replay(%+v): %v", q, err)
	}
	return seen
}

// publishEvents publishes each event by itself and a second after the one before.
func (r *rig) publishEvents(events ...eventhub.Event) []eventhub.Receipt {
	r.t.Helper()
	var all []eventhub.Receipt
	for _, e := range events {
		if e.Payload == nil {
			e.Payload = []byte(`1`)
		}
		receipts, err := r.bus.Publish(context.Background(), e)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, receipts...)
		time.Sleep(time.Second)
	}
	return all
}

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
			err := r.bus.Replay(context.Background(), tt.q, func(string, eventhub.Item) error {
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
		r.publish("a", 1, 2)
		r.publish("c", 1, 1)
		var seen []string
		q := admin.ReplayQuery{Topic: "**"}
		err := r.bus.Replay(context.Background(), q, func(topic string, item eventhub.Item) error {
			seen = append(seen, fmt.Sprint(topic, item.Offset))
			for _, name := range []string{"a", "b", "c"} {
				r.publish(name, 1, 1)
			}
			return nil
		})
		equal(t, "seen", strings.Join(seen, " "), "a1 a2 c1")
		if err != nil {
			t.Error(err)
		}
		enough := errors.New("enough")
		n := 0
		err = r.bus.Replay(context.Background(), q, func(string, eventhub.Item) error {
			n++
			return enough
		})
		if !errors.Is(err, enough) || n != 1 {
			t.Errorf("a visit that fails ends the replay with %v after %d", err, n)
		}
		ctx, cancel := context.WithCancel(context.Background())
		n = 0
		err = r.bus.Replay(ctx, q, func(string, eventhub.Item) error {
			n++
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) || n > 5 {
			t.Errorf("a replay whose context ends: %v after %d", err, n)
		}
	})
}

// TestReplayPages: nothing is lost or twice where one page ends and the next begins,
// and the memory is that of a page.
func TestReplayPages(t *testing.T) {
	s := memory.Open(memory.Options{})
	b, err := New(Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	const events, size = 400, 100 << 10
	payload := []byte(`"` + strings.Repeat("x", size) + `"`)
	for range events / 40 {
		batch := make([]eventhub.Event, 40)
		for i := range batch {
			batch[i] = eventhub.Event{Topic: "t", Payload: payload}
		}
		if _, err := b.Publish(context.Background(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	next := uint64(1)
	err = b.Replay(context.Background(), admin.ReplayQuery{Topic: "t"}, func(_ string, item eventhub.Item) error {
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
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// found shows a page as "topic/id".
func found(t *testing.T) func(list []admin.Found, err error) string {
	return func(list []admin.Found, err error) string {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		var names []string
		for _, f := range list {
			names = append(names, fmt.Sprintf("%s/%s", f.Topic, f.Record.ID()))
		}
		return strings.Join(names, " ")
	}
}

// TestLinks: whichever way an event comes into the log, it is found by what it says
// of others.
func TestLinks(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, none := context.Background(), eventhub.Place{}
		r.publishEvents(
			eventhub.Event{Topic: "b", ID: "root", Headers: map[string]string{"X-Correlation-Id": "c"}},
			eventhub.Event{Topic: "a", ID: "root"},
			eventhub.Event{Topic: "c", ID: "two", CausedBy: []string{"root", "other", "root"}},
			eventhub.Event{Topic: "a", ID: "one", CausedBy: []string{"root"}, Headers: map[string]string{"x-correlation-id": "c", "x-a": "d"}},
			eventhub.Event{Topic: "a", ID: "later", CausedBy: []string{"root"}, Headers: map[string]string{"x-correlation-id": "c"}, Delay: time.Minute},
		)
		equal(t, "find", found(t)(r.bus.Find(ctx, "root", 10)), "a/root b/root")
		equal(t, "find one", found(t)(r.bus.Find(ctx, "root", 1)), "a/root")
		equal(t, "find none", found(t)(r.bus.Find(ctx, "later", 1)), "")
		equal(t, "effects", found(t)(r.bus.Effects(ctx, "root", none, 10)), "a/one c/two")
		equal(t, "effects of the other", found(t)(r.bus.Effects(ctx, "other", none, 10)), "c/two")
		equal(t, "correlated", found(t)(r.bus.Correlated(ctx, "c", none, 10)), "a/one b/root")
		time.Sleep(2 * time.Minute) // now the last one is published
		equal(t, "effects", found(t)(r.bus.Effects(ctx, "root", none, 10)), "a/one a/later c/two")
		equal(t, "behind", found(t)(r.bus.Effects(ctx, "root", eventhub.Place{Topic: "a", Offset: 2}, 10)), "a/later c/two")
		equal(t, "a page", found(t)(r.bus.Effects(ctx, "root", eventhub.Place{Topic: "a", Offset: 2}, 1)), "a/later")
		equal(t, "correlated", found(t)(r.bus.Correlated(ctx, "c", none, 10)), "a/one a/later b/root")
		equal(t, "correlated behind", found(t)(r.bus.Correlated(ctx, "c", eventhub.Place{Topic: "aa"}, 10)), "b/root")

		// A dead letter is an effect of its event.
		in := r.subscribe(opts("c", "g"))
		e := in.take()[0]
		in.settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(e))
		synctest.Wait()
		list, err := r.bus.Effects(ctx, "two", none, 10)
		if err != nil || len(list) != 1 || list[0].Topic != "c.dlq" {
			t.Errorf("effects of a dead event: %v, %v", list, err)
		}
		// And so is what an ack-and-publish publishes.
		r.publishEvents(eventhub.Event{Topic: "c", ID: "three"})
		h := []eventhub.AckPublish{{Refs: []eventhub.Ref{byLease(in.take()[0])},
			Events: []eventhub.Event{{Topic: "d", ID: "four", CausedBy: []string{"three"}, Payload: []byte(`1`)}}}}
		in.sub.AckAndPublish(ctx, h, func([]eventhub.AckPublish) {})
		synctest.Wait()
		equal(t, "effects of an ack-and-publish", found(t)(r.bus.Effects(ctx, "three", none, 10)), "d/four")
	})
}

func TestLinksRefuse(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, none := context.Background(), eventhub.Place{}
		long := strings.Repeat("x", eventhub.MaxCorrelationBytes+1)
		r.publishEvents(eventhub.Event{Topic: "a", ID: "long", Headers: map[string]string{eventhub.CorrelationHeader: long}},
			eventhub.Event{Topic: "a", ID: "fits", Headers: map[string]string{eventhub.CorrelationHeader: long[1:]}})
		equal(t, "longest", found(t)(r.bus.Correlated(ctx, long[1:], none, 1)), "a/fits")
		for _, tt := range []struct {
			err  error
			code eventhub.Code
		}{
			{second(r.bus.Find(ctx, "no id", 1)), eventhub.CodeBadEvent},
			{second(r.bus.Find(ctx, "x", 0)), eventhub.CodeBadRequest},
			{second(r.bus.Find(ctx, "x", admin.MaxPage+1)), eventhub.CodeBadRequest},
			{second(r.bus.Effects(ctx, "", none, 1)), eventhub.CodeBadEvent},
			{second(r.bus.Effects(ctx, "x", none, -1)), eventhub.CodeBadRequest},
			{second(r.bus.Correlated(ctx, "", none, 1)), eventhub.CodeBadRequest},
			{second(r.bus.Correlated(ctx, long, none, 1)), eventhub.CodeBadRequest},
			{second(r.bus.Correlated(ctx, "x", none, 0)), eventhub.CodeBadRequest},
		} {
			wantCode(t, tt.err, tt.code)
		}
	})
}

// TestLinksBoundThePage: large events come in pages of some megabytes, and paging on
// gets them all.
func TestLinksBoundThePage(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 40
		payload := []byte(`"` + strings.Repeat("x", eventhub.MaxPayloadBytes-2) + `"`)
		for range events {
			if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", CausedBy: []string{"x"}, Payload: payload}); err != nil {
				t.Fatal(err)
			}
		}
		var after eventhub.Place
		pages, n := 0, 0
		for {
			list, err := r.bus.Effects(context.Background(), "x", after, admin.MaxPage)
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

// TestLinksOfWhatIsDeleted: what is deleted while a page is made of it does not end the
// pages: there may be more behind it.
func TestLinksOfWhatIsDeleted(t *testing.T) {
	for name, find := range map[string]func(*Bus) ([]admin.Found, error){
		"effects":    func(b *Bus) ([]admin.Found, error) { return b.Effects(bg, "x", eventhub.Place{}, 2) },
		"correlated": func(b *Bus) ([]admin.Found, error) { return b.Correlated(bg, "c", eventhub.Place{}, 2) },
	} {
		inBubble(t, func(r *rig) {
			headers := map[string]string{eventhub.CorrelationHeader: "c"}
			for _, topic := range []string{"a", "b", "b", "c", "d"} {
				r.publishEvents(eventhub.Event{Topic: topic, CausedBy: []string{"x"}, Headers: headers})
			}
			b, err := New(Options{Store: &leavingLinks{Store: r.store.Store, leave: func(topic string) {
				if topic != "d" {
					r.deleteTopic(topic)
				}
			}}})
			if err != nil {
				t.Fatal(err)
			}
			if list, err := find(b); err != nil || len(list) != 1 || list[0].Topic != "d" {
				t.Errorf("%s: %v, %v; want the event of topic d", name, list, err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// leavingLinks has each topic leave in which links are found.
type leavingLinks struct {
	store.Store
	leave func(topic string)
}

func (l *leavingLinks) left(places []store.Place, err error) ([]store.Place, error) {
	for i, p := range places {
		if i == 0 || p.Topic != places[i-1].Topic {
			l.leave(p.Topic)
		}
	}
	return places, err
}

func (l *leavingLinks) Effects(ctx context.Context, id string, after store.Place, limit int) ([]store.Place, error) {
	return l.left(l.Store.Effects(ctx, id, after, limit))
}

func (l *leavingLinks) Correlated(ctx context.Context, of string, after store.Place, limit int) ([]store.Place, error) {
	return l.left(l.Store.Correlated(ctx, of, after, limit))
}

func TestHistoryOfAStoreThatFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		broken := &failingReads{Store: r.store.Store}
		b, err := New(Options{Store: broken})
		if err != nil {
			t.Fatal(err)
		}
		broken.fail = errors.New("no luck")
		ctx, none := context.Background(), eventhub.Place{}
		err = b.Replay(ctx, admin.ReplayQuery{Topic: "t"}, func(string, eventhub.Item) error { return nil })
		for _, err := range []error{err, second(b.Find(ctx, "x", 1)), second(b.Effects(ctx, "x", none, 1)), second(b.Correlated(ctx, "x", none, 1)), b.Backup(ctx, "d")} {
			if wantCode(t, err, eventhub.CodeInternal); !errors.Is(err, broken.fail) {
				t.Errorf("%v lacks its cause", err)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// failingReads fails what history asks of a store.
type failingReads struct {
	store.Store
	fail error
}

func (f *failingReads) Read(context.Context, string, uint64, int, int, *store.Batch) error {
	return f.fail
}

func (f *failingReads) Places(context.Context, string, int) ([]store.Place, error) {
	return nil, f.fail
}

func (f *failingReads) Effects(context.Context, string, store.Place, int) ([]store.Place, error) {
	return nil, f.fail
}

func (f *failingReads) Correlated(context.Context, string, store.Place, int) ([]store.Place, error) {
	return nil, f.fail
}

func (f *failingReads) Checkpoint(context.Context, string) error { return f.fail }

// TestReplayOfWhatIsDeleted: a replay that does not see all that it set out to read does
// not end as if it had, whether the topic is gone or is there again; what it has read
// before, or does not need, may go.
func TestReplayOfWhatIsDeleted(t *testing.T) {
	again := func(r *rig, topic string) {
		r.deleteTopic(topic)
		r.publish(topic, 1, 30)
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
		{name: "deleted and made again", q: admin.ReplayQuery{Topic: "b"}, at: "b", run: func(r *rig) { again(r, "b") }},
		{name: "one that comes later", q: admin.ReplayQuery{Topic: "*"}, at: "a", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "one that comes later, made again", q: admin.ReplayQuery{Topic: "*"}, at: "a", run: func(r *rig) { again(r, "b") }},
		{name: "up to a time", q: admin.ReplayQuery{Topic: "*", ToTS: 1 << 50}, at: "a", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "from a time", q: admin.ReplayQuery{Topic: "*", Start: eventhub.Start{Kind: eventhub.StartTime, TS: 1}}, at: "a", run: func(r *rig) { r.deleteTopic("b") }},
		{name: "before a later page", q: admin.ReplayQuery{Topic: "b", Life: 1 << 50, Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}}},
		{name: "all of its life", q: admin.ReplayQuery{Topic: "b"}, ofLife: true, whole: true, want: 8},
		{name: "one that was read", q: admin.ReplayQuery{Topic: "*"}, at: "b", run: func(r *rig) { again(r, "a") }, whole: true, want: 16},
		{name: "one behind the limit", q: admin.ReplayQuery{Topic: "*", Limit: 8}, at: "a", run: func(r *rig) { r.deleteTopic("b") }, whole: true, want: 8},
		{name: "one that is made meanwhile", q: admin.ReplayQuery{Topic: "*"}, at: "a", run: func(r *rig) { r.publish("aa", 1, 1) }, whole: true, want: 16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				large := []byte(`"` + strings.Repeat("x", replayBytes/3) + `"`) // a page has two or three
				for _, topic := range []string{"a", "b"} {
					for range 8 {
						if _, err := r.bus.Publish(bg, eventhub.Event{Topic: topic, Payload: large}); err != nil {
							t.Fatal(err)
						}
					}
				}
				if tt.ofLife {
					life, err := r.bus.Life(bg, tt.q.Topic)
					if err != nil || life == 0 {
						t.Fatalf("life %d, %v", life, err)
					}
					tt.q.Life = life
				}
				n, done := 0, false
				err := r.bus.Replay(bg, tt.q, func(topic string, _ eventhub.Item) error {
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
