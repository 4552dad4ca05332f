package bus

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
	"eventhub/store"
	"eventhub/store/storefault"
)

// info describes a group as Inspector does.
func (r *rig) info(topic, group string) admin.GroupInfo {
	r.t.Helper()
	info, err := r.bus.Group(context.Background(), topic, group)
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

func TestInspectTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		first := r.publish("a", 1, 1)[0]
		time.Sleep(time.Second)
		last := r.publish("a", 2, 2)[1]
		r.publish("b", 1, 1)
		r.subscribe(opts("a", "g")).Sub.Drop(0)
		info, err := r.bus.Topic(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now().Add(-time.Second).UnixMilli()
		equal(t, "topic", info, admin.TopicInfo{Topic: "a", FirstOffset: 1, Head: 3, Horizon: 1, FirstTS: began, HeadTS: began + 1000, HeadID: last.ID, Groups: 1,
			Kept: &admin.TopicUsage{Events: 3, Bytes: 264, IDsKeptMS: 600_000}, Index: &admin.TopicIndex{State: admin.IndexNone},
			Settings: &admin.TopicSettings{}, SettingsFrom: &admin.SettingsSource{Source: admin.SourceDefault}})
		page, err := r.bus.Topics(ctx, "a", 10)
		if err != nil || len(page) != 1 || page[0].Topic != "b" {
			t.Errorf("Topics after a = %+v, %v", page, err)
		}
		item, err := r.bus.Event(ctx, "a", first.ID)
		if err != nil || item.Offset != 1 || string(item.Record.ID()) != first.ID {
			t.Errorf("Event = %+v, %v", item, err)
		}
		for name, err := range map[string]error{
			"topic":          second(r.bus.Topic(ctx, "none")),
			"event":          second(r.bus.Event(ctx, "a", "none")),
			"event nowhere":  second(r.bus.Event(ctx, "none", first.ID)),
			"event of other": second(r.bus.Event(ctx, "b", first.ID)),
		} {
			if eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
				t.Errorf("%s: %v; want unknown_id", name, err)
			}
		}
		for _, limit := range []int{0, -1, admin.MaxPage + 1} {
			wantCode(t, second(r.bus.Topics(ctx, "", limit)), eventhub.CodeBadRequest)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestInspectGroup: what Inspector says of a group follows what happens to it,
// and a group that nobody has joined since the start is read from the store.
func TestInspectGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 1, 5)
		o := opts("t", "g")
		o.MaxInFlight, o.Peer = 4, eventhub.Peer{Transport: "ws", Name: "me"}
		in := r.subscribe(o)
		began := time.Now().UnixMilli()
		time.Sleep(time.Second)
		all := in.Take()
		in.Ack(byLease(all[0]), byLease(all[2]))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Minute}, byLease(all[3]))

		info := r.info("t", "g")
		equal(t, "position", []uint64{info.Cursor, info.Head, info.Lag}, []uint64{1, 5, 3})
		equal(t, "state", []int{info.InFlight, info.Waiting}, []int{2, 1})
		equal(t, "members", info.Members, []admin.MemberInfo{{Peer: o.Peer, InFlight: 2, MaxInFlight: 4, SinceTS: began}})
		equal(t, "last id", info.LastID, all[0].ID())
		equal(t, "oldest", info.OldestTS, began)

		held, err := r.bus.InFlight(ctx, "t", "g", 10)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now().UnixMilli()
		failed := []admin.Attempt{{Attempt: 1, Member: &o.Peer, SinceTS: began, EndedTS: now, Why: "nacked"}}
		equal(t, "in flight", held, []admin.InFlight{
			{Offset: 2, ID: all[1].ID(), Attempt: 1, State: "leased", Member: &o.Peer, SinceTS: began, Deadline: began + 30_000},
			{Offset: 4, ID: all[3].ID(), Attempt: 1, State: "waiting", DueTS: now + 60_000, History: failed},
			{Offset: 5, ID: held[2].ID, Attempt: 1, State: "leased", Member: &o.Peer, SinceTS: now, Deadline: now + 30_000},
		})
		held, err = r.bus.InFlight(ctx, "t", "g", 1)
		if err != nil || len(held) != 1 {
			t.Errorf("InFlight of one = %v, %v", held, err)
		}

		r.restart()
		info = r.info("t", "g")
		equal(t, "after a restart", []uint64{info.Cursor, info.Head, info.Lag}, []uint64{1, 5, 3})
		equal(t, "members after a restart", len(info.Members), 0)
		equal(t, "in flight after a restart", len(first(r.bus.InFlight(ctx, "t", "g", 10))), 0)
		wantCode(t, second(r.bus.Group(ctx, "t", "none")), eventhub.CodeNotSubscribed)
		wantCode(t, second(r.bus.InFlight(ctx, "t", "none", 1)), eventhub.CodeNotSubscribed)
	})
}

func first[T any](v T, _ error) T { return v }

// TestInspectGroupsInPages lists all groups with every page size, and by every
// filter.
func TestInspectGroupsInPages(t *testing.T) {
	inBubble(t, func(r *rig) {
		var want []string
		for _, topic := range []string{"a", "a.b", "b"} {
			for _, name := range []string{"g", "h", "i"} {
				r.subscribe(opts(topic, name)).Sub.Drop(0)
				want = append(want, topic+"::"+name)
			}
		}
		r.publish("empty", 1, 1)
		list := func(q admin.GroupQuery) []string {
			var names []string
			for {
				page, err := r.bus.Groups(context.Background(), q)
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range page {
					names = append(names, g.Topic+"::"+g.Group)
				}
				if len(page) == 0 || len(names) > 20 {
					return names
				}
				q.AfterTopic, q.AfterGroup = page[len(page)-1].Topic, page[len(page)-1].Group
			}
		}
		for limit := range 10 {
			equal(t, fmt.Sprintf("pages of %d", limit), list(admin.GroupQuery{Limit: limit}), want)
		}
		equal(t, "of one topic", list(admin.GroupQuery{Topic: "a.b", Limit: 2}), want[3:6])
		equal(t, "of one name", list(admin.GroupQuery{Group: "h", Limit: 2}), []string{want[1], want[4], want[7]})
		equal(t, "of one name and topic", list(admin.GroupQuery{Topic: "b", Group: "h"}), want[7:8])
		equal(t, "of a topic that is not there", len(list(admin.GroupQuery{Topic: "none"})), 0)
	})
}

// TestDeleteGroup: members hear of it, leases are void, nothing of the group is
// left, and a group of the same name begins again.
func TestDeleteGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		all := in.Take()
		in.Ack(byLease(all[0]))
		if err := r.bus.DeleteGroup(ctx, "t", "g"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(in.Ends) != 1 || eventhub.ErrorCode(in.Ends[0]) != eventhub.CodeNotSubscribed {
			t.Errorf("the member heard %v", in.Ends)
		}
		_, err := in.Sub.Settle(ctx, eventhub.Settlement{Refs: []eventhub.Ref{byLease(all[1])}})
		wantCode(t, err, eventhub.CodeNotSubscribed)
		_, err = r.bus.Settle(ctx, "t", "g", eventhub.Settlement{Refs: []eventhub.Ref{byLease(all[1])}})
		wantCode(t, err, eventhub.CodeNotSubscribed)
		if _, err := r.store.Group(ctx, "t", "g"); err == nil {
			t.Error("the store still has the group")
		}
		wantCode(t, r.bus.DeleteGroup(ctx, "t", "g"), eventhub.CodeNotSubscribed)
		wantCode(t, r.bus.DeleteGroup(ctx, "none", "g"), eventhub.CodeNotSubscribed)
		r.publish("t", 4, 1)
		time.Sleep(time.Hour) // flushes and ends of leases of the old one
		equal(t, "deliveries to the old member", len(in.Take()), 0)

		again := r.subscribe(opts("t", "g"))
		redone := again.Take()
		equal(t, "deliveries to the new group", len(redone), 4)
		outcomes := again.Settle(eventhub.Settlement{Verdict: eventhub.Ack}, byLease(all[1]))
		equal(t, "a lease of the old group", outcomes[0], eventhub.Stale)
		in.Sub.Drop(0) // the old member leaves late
		again.Ack(byLease(redone[0]))
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		equal(t, "runtimes", len(r.bus.groups), 1)
	})
}

// TestDeleteGroupMeetsAFlush: state of the old group that is written late does
// not touch a new one of its name.
func TestDeleteGroupMeetsAFlush(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		old := r.bus.groups[groupKey{topic: "t", group: "g"}]
		in.Ack(byLease(in.Take()[0]))
		if err := r.bus.DeleteGroup(context.Background(), "t", "g"); err != nil {
			t.Fatal(err)
		}
		o := opts("t", "g")
		o.Start.Kind = eventhub.StartLatest
		r.subscribe(o)
		change := old.header(1)
		u := store.Unit{Groups: []store.GroupChange{change}}
		if err := r.store.Commit(context.Background(), []*store.Unit{&u}, true); err != nil {
			t.Fatal(err)
		}
		if u.Err == nil {
			t.Error("the store took a late write of the deleted group")
		}
		equal(t, "cursor of the new one", r.stored("t", "g").Cursor, 3)
	})
}

// TestNewGroupAfterARestart: a group that is made again has an epoch above that of
// the one before, also where the clock has not moved and the engine was started
// in between, before the deletion or after it. So its dead letters are its own.
func TestNewGroupAfterARestart(t *testing.T) {
	for _, tt := range []struct {
		restartFirst bool
		seeks        int
	}{{true, 3}, {false, 3}, {false, 0}} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				ctx := context.Background()
				r.publish("t", 1, 1)
				in := r.subscribe(opts("t", "g"))
				for range tt.seeks {
					if _, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Earliest, true); err != nil {
						t.Fatal(err)
					}
				}
				giveUp := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}
				got := in.Take()
				in.Settle(giveUp, byLease(got[len(got)-1]))
				before := r.stored("t", "g").Epoch
				if tt.restartFirst {
					r.restart()
				}
				if err := r.bus.DeleteGroup(ctx, "t", "g"); err != nil {
					t.Fatal(err)
				}
				if !tt.restartFirst {
					r.restart()
				}
				in = r.subscribe(opts("t", "g"))
				if after := r.stored("t", "g").Epoch; after <= before {
					t.Errorf("epoch %d after %d", after, before)
				}
				in.Settle(giveUp, byLease(in.Take()[0]))
				equal(t, "dead letters", len(r.events("t.dlq")), 2)
			})
		})
	}
}

// measured asks the bus and returns one group's counts.
func (r *rig) measured(topic, group string) (measure.Engine, measure.Group) {
	r.t.Helper()
	synctest.Wait()
	e, err := r.bus.Measure(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	var found []measure.Group
	for _, g := range e.Groups {
		if g.Topic == topic && g.Group == group {
			found = append(found, g)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("group %s::%s is reported %d times", topic, group, len(found))
	}
	return e, found[0]
}

// TestMeasure: the counts add up with what was published, delivered, acked,
// nacked and given up.
func TestMeasure(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.MaxAttempts, o.Peer.Transport = 2, "ws"
		in := r.subscribe(o)
		r.publish("t", 1, 6)
		again := eventhub.Event{Topic: "t", ID: "x", Payload: []byte("1")}
		for range 2 {
			if _, err := r.bus.Publish(context.Background(), again); err != nil {
				t.Fatal(err)
			}
		}
		all := in.Take()
		time.Sleep(20 * time.Millisecond)
		in.Ack(byLease(all[0]), byLease(all[1]))
		in.Nack(byLease(all[2]))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(all[3]))
		time.Sleep(time.Minute) // the third comes again; three run out and come again

		e, g := r.measured("t", "g")
		equal(t, "delivered, redelivered", []uint64{g.Delivered, g.Redelivered}, []uint64{7 + 4, 4})
		equal(t, "acked, nacked", []uint64{g.Acked, g.Nacked}, []uint64{2, 2})
		equal(t, "members, in flight", []int{g.Members, g.InFlight["ws"]}, []int{1, 3})
		time.Sleep(time.Minute) // all four run out and are given up
		e, g = r.measured("t", "g")
		equal(t, "expired, dead-lettered, lag", []uint64{g.Expired, g.DeadLettered, g.Lag}, []uint64{7, 5, 0})
		equal(t, "handler times", []any{g.Handler.Count(), g.Handler.Sum()}, []any{2, 40})
		equal(t, "latencies", []any{g.Latency.Count(), g.Latency.Sum()}, []any{2, 40})
		for _, topic := range e.Topics {
			switch topic.Topic {
			case "t":
				equal(t, "events, duplicates of t", []uint64{topic.Events, topic.Duplicates}, []uint64{7, 1})
			case "t.dlq":
				equal(t, "dead letters", topic.Events, 5)
			}
			if topic.Bytes < 50*topic.Events {
				t.Errorf("%d bytes for %d events", topic.Bytes, topic.Events)
			}
		}
		if e.CommitEvents.Sum() != 12 || e.CommitSeconds.Count() < 3 || e.StoreBytes == 0 {
			t.Errorf("commits of %v events, %d commits, %d bytes stored", e.CommitEvents.Sum(), e.CommitSeconds.Count(), e.StoreBytes)
		}
	})
}

// TestMeasureIdle: a group that nobody has joined since the start shows its lag,
// as long as it exists.
func TestMeasureIdle(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.subscribe(opts("t", "g"))
		r.subscribe(opts("t", "h"))
		r.publish("t", 1, 3)
		r.restart()
		for range 2 { // the second time no walk is needed
			_, g := r.measured("t", "g")
			equal(t, "lag", g.Lag, 3)
		}
		r.publish("t", 4, 2)
		_, g := r.measured("t", "g")
		equal(t, "lag after two more", g.Lag, 5)
		in := r.subscribe(opts("t", "g"))
		in.Ack(byLease(in.Take()[0]))
		_, g = r.measured("t", "g")
		equal(t, "lag of the group that runs", g.Lag, 4)
		if err := r.bus.DeleteGroup(context.Background(), "t", "h"); err != nil {
			t.Fatal(err)
		}
		e, _ := r.measured("t", "g")
		equal(t, "groups", len(e.Groups), 1)
	})
}

// TestMeasureTails: tails are counted together, also those that have ended.
func TestMeasureTails(t *testing.T) {
	inBubble(t, func(r *rig) {
		ended, in := r.tail(tailOpts("t")), r.tail(tailOpts("t"))
		r.publish("t", 1, 3)
		equal(t, "deliveries", len(ended.Take()), 3)
		ended.Sub.Drop(0)
		r.publish("t", 4, 1)
		_, g := r.measured("t", "")
		equal(t, "delivered, members", []uint64{g.Delivered, uint64(g.Members)}, []uint64{7, 1})
		in.Sub.Drop(0)
		_, g = r.measured("t", "")
		equal(t, "delivered, members after the last", []uint64{g.Delivered, uint64(g.Members)}, []uint64{7, 0})
	})
}

// TestMeasureForgets: names that are no more cost no memory, whether anybody measures or
// not; tails that outlive their topic go on counting in its next life.
func TestMeasureForgets(t *testing.T) {
	inBubble(t, func(r *rig) {
		kept := func(want ...int) {
			t.Helper()
			synctest.Wait()
			c, known := &r.bus.counts, &r.bus.known
			_, _, tailTopics := r.bus.tails.Holds()
			equal(t, "topics, tails, groups gone, groups that came", []int{len(c.topics), tailTopics, len(known.gone), len(known.added)}, want)
		}
		live := func(topic string) {
			tail, in := r.tail(tailOpts(topic)), r.subscribe(opts(topic, "g"))
			r.publish(topic, 1, 1)
			equal(t, "deliveries", []int{len(tail.Take()), len(in.Take())}, []int{1, 1})
			tail.Sub.Drop(0)
			r.deleteTopic(topic)
		}
		for i := range 20 {
			live(fmt.Sprint("t", i))
		}
		kept(0, 0, 0, 0)
		r.subscribe(opts("p.*", "g"))
		r.publish("p.a", 1, 1)
		r.measured("p.a", "g")
		live("t")
		r.deleteTopic("p.a")
		kept(0, 0, 0, 0)

		stays := r.tail(tailOpts("stays"))
		r.publish("stays", 1, 2)
		equal(t, "deliveries", len(stays.Take()), 2)
		r.deleteTopic("stays")
		r.publish("stays", 3, 1)
		equal(t, "deliveries of the next life", len(stays.Take()), 1)
		_, g := r.measured("stays", "")
		equal(t, "handed to the tail", g.Delivered, 3)
		r.deleteTopic("stays")
		kept(0, 1, 0, 0)
		stays.Sub.Drop(0)
		kept(0, 0, 0, 0)
	})
}

// TestMeasureWhileATopicIsDeleted: a group whose topic goes while all groups are read for
// the first time is not reported.
func TestMeasureWhileATopicIsDeleted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.subscribe(opts("t", "g"))
		r.publish("t", 1, 3)
		r.stop()
		s := r.faulty()
		r.start(Options{})
		s.After(storefault.ListGroups, func(*storefault.Call) {
			s.After(storefault.ListGroups, nil)
			r.deleteTopic("t")
		})
		for range 2 {
			e, err := r.bus.Measure(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "groups", len(e.Groups), 0)
		}
	})
}

// TestMeasureForgetsWhatWasJustMade: a topic that is deleted as soon as its pattern has
// brought the group leaves no group that is reported. With one processor the created topics'
// goroutine hears of the commit when the deletion is over.
func TestMeasureForgetsWhatWasJustMade(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		in.Sub.Drop(0) // nobody loads the group
		r.stop()
		s := &interposed{Store: r.store.Store}
		r.store.Store = s
		r.start(Options{})
		reported := func() []measure.Group {
			synctest.Wait()
			e, err := r.bus.Measure(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return e.Groups
		}
		equal(t, "groups at first", len(reported()), 0)
		s.when(afterCommit, 1, func() { // that which makes the group
			if err := r.bus.DeleteTopic(context.Background(), "p.a"); err != nil {
				t.Error(err)
			}
		})
		r.publish("p.a", 1, 1)
		equal(t, "groups after the deletion", len(reported()), 0)
		s.off()
	})
}

func TestBlockedByPausedMembers(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("t", "g"))
		in.Sub.Pause(bg)
		r.publish("t", 1, 3)
		synctest.Wait()
		b := r.info("t", "g").BlockedBy
		t.Logf("%+v", b)
		if b != nil && b.Kind == "members_full" {
			t.Errorf("blocked_by is %q; the only member holds 0 of %d and has paused", b.Kind, 100)
		}
	})
}
