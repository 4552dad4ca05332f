package bus

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
)

// places returns topic and offset of each delivery, sorted: topics have no order
// among them.
func places(all []got) []string {
	var out []string
	for _, g := range all {
		out = append(out, fmt.Sprintf("%s/%d", g.Topic, g.Offset))
	}
	slices.Sort(out)
	return out
}

func TestPatternOverTopicsThatAreThereAndThatAreCreated(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 2)
		r.publish("p.b.c", 1, 1)
		r.publish("q", 1, 1)
		in := r.subscribe(opts("p.**", "g"))
		equal(t, "from the beginning", places(in.Take()), []string{"p.a/1", "p.a/2", "p.b.c/1"})
		r.publish("p.new", 1, 2)
		r.publish("q", 1, 1)
		r.publish("p.a", 1, 1)
		equal(t, "created and old", places(in.Take()), []string{"p.a/3", "p.new/1", "p.new/2"})
	})
}

func TestPatternStartsAtLatestButNewTopicsAtTheirFirstEvent(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 2)
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		in := r.subscribe(o)
		r.publish("p.a", 3, 1)
		r.publish("p.b", 1, 1)
		equal(t, "deliveries", places(in.Take()), []string{"p.a/3", "p.b/1"})
	})
}

func TestPatternOutlivesMembersAndRestarts(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		o.MaxAttempts = 3
		in := r.subscribe(o)
		if err := in.Sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.publish("p.alone", 1, 2)
		synctest.Wait()
		info, err := r.bus.Group(context.Background(), "p.alone", "g")
		if err != nil || info.Lag != 2 || info.MaxAttempts != 3 {
			t.Errorf("the group in the newborn topic: %+v, %v", info, err)
		}
		r.restart()
		r.publish("p.later", 1, 1)
		synctest.Wait()
		in = r.subscribe(eventhub.GroupOptions{Topic: "p.*", Group: "g"})
		equal(t, "what was missed", places(in.Take()), []string{"p.alone/1", "p.alone/2", "p.later/1"})
	})
}

// A crash between the commit that creates a topic and the one that gives it its
// group leaves a topic without: the next SUBSCRIBE finds it, at its first event.
func TestPatternFindsTopicsWhoseCreationWasMissed(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		in := r.subscribe(o)
		r.bus.patterns.end() // created topics get no groups
		r.publish("p.a", 1, 1)
		equal(t, "without a group", len(in.Take()), 0)
		r.restart()
		in = r.subscribe(eventhub.GroupOptions{Topic: "p.*", Group: "g"})
		equal(t, "after the restart", places(in.Take()), []string{"p.a/1"})
	})
}

func TestPatternAndNameShareTheGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		one, two := r.subscribe(opts("p.*", "g")), r.subscribe(opts("p.a", "g"))
		r.publish("p.a", 1, 1) // whoever has joined by then: the topic is created with it
		synctest.Wait()
		equal(t, "the first", append(one.TakeOffsets(), two.TakeOffsets()...), []uint64{1})
		r.publish("p.a", 2, 10)
		a, b := one.TakeOffsets(), two.TakeOffsets()
		if len(a) == 0 || len(b) == 0 {
			t.Errorf("one of the members got nothing: %v, %v", a, b)
		}
		all := append(a, b...)
		slices.Sort(all)
		equal(t, "together", all, []uint64{2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	})
}

// A lease counts from a member by pattern that is not yet one in the topic: it joins
// after the topic's creation.
func TestLeaseCountsBeforeTheGroupIsThere(t *testing.T) {
	inBubble(t, func(r *rig) {
		byPattern := r.subscribe(opts("p.*", "g"))
		r.bus.patterns.end() // created topics get no groups
		byName := r.subscribe(opts("p.a", "g"))
		r.publish("p.a", 1, 1)
		got := byName.Take()
		equal(t, "deliveries", len(got), 1)
		equal(t, "outcomes", byPattern.Ack(byLease(got[0])), []eventhub.Outcome{eventhub.Applied})
		equal(t, "cursor", r.cursor("p.a", "g").Offset, 1)
	})
}

func TestTopicCreatedBySubscribingToIt(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		r.subscribe(opts("p.a", "other"))
		r.publish("p.a", 1, 1)
		equal(t, "deliveries", places(in.Take()), []string{"p.a/1"})
	})
}

// The room of a subscription is one, whatever topics it has; and whoever waits for
// it gets it.
func TestPatternSharesItsRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 2
		in := r.subscribe(o)
		for i := range 50 {
			r.publish(fmt.Sprintf("p.%d", i), 1, 2)
		}
		seen := make(map[string]bool)
		for n := 0; n < 100; n++ {
			batch := in.Take()
			if len(batch) == 0 {
				t.Fatalf("nothing comes after %d events", len(seen))
			}
			if held := r.held("g"); held > 2 {
				t.Fatalf("%d in flight", held)
			}
			for _, g := range batch {
				seen[places([]got{g})[0]] = true
			}
			for i, out := range in.Ack(leasesOf(batch)...) {
				if out != eventhub.Applied {
					t.Errorf("ack of %v: %d", batch[i].Lease, out)
				}
			}
			if len(seen) == 100 {
				break
			}
		}
		equal(t, "events", len(seen), 100)
	})
}

// A topic with much to do does not keep the others from the room.
func TestPatternRoomIsShared(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 1
		r.publish("p.busy", 1, 100)
		in := r.subscribe(o)
		for _, topic := range []string{"p.a", "p.b", "p.c"} {
			r.publish(topic, 1, 1)
		}
		var seen []string
		for range 5 {
			batch := in.Take()
			seen = append(seen, places(batch)...)
			in.Ack(leasesOf(batch)...)
		}
		slices.Sort(seen) // the others wait in the order of their turns
		equal(t, "the first five", seen, []string{"p.a/1", "p.b/1", "p.busy/1", "p.busy/2", "p.c/1"})
	})
}

// A topic that waited for room and does not need it any more lets the next have it.
func TestPatternRoomIsPassedOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		in, first := r.fullMember("p.x", "p.y", "p.z")
		other := r.subscribe(opts("p.y", "g"))
		equal(t, "taken by the other", places(other.Take()), []string{"p.y/1"})
		in.Ack(leasesOf(first)...)
		equal(t, "next", places(in.Take()), []string{"p.z/1"})
	})
}

// A suspect waits until the subscription holds nothing, whatever topic that is of,
// and is not forgotten then.
func TestSuspectWaitsForOtherTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		r.publish("p.b", 1, 2)
		r.publish("p.a", 1, 1)
		var others []got
		for range 2 {
			for _, g := range in.Take() {
				if g.Topic == "p.b" {
					others = append(others, g)
					continue
				}
				in.lapse(byLease(g))
			}
			time.Sleep(time.Millisecond)
		}
		equal(t, "while others are held", len(in.Take()), 0)
		in.Ack(byLease(others[0]))
		equal(t, "while one is held", len(in.Take()), 0)
		in.Ack(byLease(others[1]))
		equal(t, "then", places(in.Take()), []string{"p.a/1"})
	})
}

func leasesOf(batch []got) (refs []eventhub.Ref) {
	for _, g := range batch {
		refs = append(refs, byLease(g))
	}
	return refs
}

// held returns how many leases are out in all topics.
func (r *rig) held(group string) (n int) {
	for _, g := range r.bus.loaded() {
		g.mu.Lock()
		if g.name == group {
			n += g.state.Leased()
		}
		g.mu.Unlock()
	}
	return n
}

func TestPatternReceiverWithoutRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 20 {
			r.publish(fmt.Sprintf("p.%02d", i), 1, 1)
		}
		in := &inbox{Inbox: bustest.Inbox{T: t, Room: 5}}
		var err error
		if in.Sub, err = r.bus.Subscribe(context.Background(), opts("p.*", "g"), in); err != nil {
			t.Fatal(err)
		}
		equal(t, "with room for 5", len(in.Take()), 5)
		equal(t, "in flight", r.held("g"), 5)
		in.Mu.Lock()
		in.Room = -1
		in.Mu.Unlock()
		in.Sub.Ready()
		equal(t, "the others", len(in.Take()), 15)
	})
}

func TestPatternPause(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		if err := in.Sub.Pause(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.publish("p.a", 1, 1)
		r.publish("p.b", 1, 1)
		equal(t, "while it pauses", len(in.Take()), 0)
		if err := in.Sub.Resume(context.Background()); err != nil {
			t.Fatal(err)
		}
		equal(t, "afterwards", places(in.Take()), []string{"p.a/1", "p.b/1"})
	})
}

func TestPatternSettling(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		for _, topic := range []string{"p.a", "p.b"} {
			if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: topic, ID: "same", Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		r.publish("p.c", 1, 1)
		all := in.Take()
		equal(t, "deliveries", places(all), []string{"p.a/1", "p.b/1", "p.c/1"})
		// An id that two topics have means none of them, until the topic is named.
		equal(t, "by id", in.Ack(eventhub.Ref{ID: "same"}, eventhub.Ref{ID: "nobody"}), []eventhub.Outcome{eventhub.Ambiguous, eventhub.Stale})
		equal(t, "by topic and id", in.Ack(eventhub.Ref{ID: "same", Topic: "p.b"}, eventhub.Ref{ID: "same", Topic: "p.c"}), []eventhub.Outcome{eventhub.Applied, eventhub.Stale})
		equal(t, "cursor of b", r.cursor("p.b", "g").Offset, 1)
		equal(t, "cursor of a", r.cursor("p.a", "g").Offset, 0)
		outcomes, err := r.bus.Settle(context.Background(), "p.*", "g", eventhub.Settlement{Refs: leasesOf(all)})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(outcomes)
		equal(t, "by lease and pattern", outcomes, []eventhub.Outcome{eventhub.Applied, eventhub.Applied, eventhub.Stale})
		_, err = r.bus.Settle(context.Background(), "p.*", "h", eventhub.Settlement{Refs: leasesOf(all)})
		wantCode(t, err, eventhub.CodeNotSubscribed)
		if n := in.Sub.(*subscription).ids.len(); n != 0 {
			t.Errorf("%d ids are left", n)
		}
	})
}

// acksAtOnce acks by id, in a goroutine that gets its turn while the delivery is still handed over.
type acksAtOnce struct {
	*inbox
	sub      eventhub.Subscription
	outcomes chan []eventhub.Outcome
}

func (in *acksAtOnce) Deliver(batch []eventhub.Delivery) int {
	refs := make([]eventhub.Ref, len(batch))
	for i := range batch {
		refs[i].ID = string(batch[i].Record.ID())
	}
	go func() {
		outcomes, err := in.sub.Settle(context.Background(), eventhub.Settlement{Refs: refs})
		if err != nil {
			in.T.Error(err)
		}
		in.outcomes <- outcomes
	}()
	for range 1000 {
		runtime.Gosched()
	}
	return len(batch)
}

// Whoever has a delivery of a pattern may settle it by its id, however early.
func TestSettlingByIDAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := &acksAtOnce{inbox: &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}, outcomes: make(chan []eventhub.Outcome, 1)}
		var err error
		if in.sub, err = r.bus.Subscribe(context.Background(), opts("p.*", "g"), in); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			r.publish("p.a", i+1, 1)
			equal(t, "at once", <-in.outcomes, []eventhub.Outcome{eventhub.Applied})
		}
		synctest.Wait()
		equal(t, "cursor", r.cursor("p.a", "g").Offset, 20)
	})
}

// What a subscription that has left could settle by id in a topic means nothing there once
// the group was sought or deleted: the id means the event of the other topic alone.
func TestSettlingByIDAfterLeaving(t *testing.T) {
	for what, change := range map[string]func(*rig) error{
		"sought": func(r *rig) error {
			_, err := r.bus.SeekGroup(context.Background(), "p.a", "g", eventhub.Latest, true)
			return err
		},
		"deleted": func(r *rig) error { return r.bus.DeleteTopic(context.Background(), "p.a") },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				in := r.subscribe(opts("p.*", "g"))
				for _, topic := range []string{"p.a", "p.b"} {
					if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: topic, ID: "same", Payload: []byte("1")}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				in.Take()
				if err := in.Sub.Unsubscribe(context.Background()); err != nil {
					t.Fatal(err)
				}
				if err := change(r); err != nil {
					t.Fatal(err)
				}
				equal(t, "by id", in.Ack(eventhub.Ref{ID: "same"}), []eventhub.Outcome{eventhub.Applied})
				equal(t, "cursor of b", r.cursor("p.b", "g").Offset, 1)
			})
		})
	}
}

// The latest leases of a subscription are given back, whatever topics they are of.
func TestDropOfAPatternGivesTheLatestBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		for _, topic := range []string{"p.c", "p.a", "p.b"} {
			r.publish(topic, 1, 1)
			synctest.Wait()
		}
		in.Take()
		in.Sub.Drop(2)
		again := r.subscribe(opts("p.*", "g")).Take()
		attempts := make(map[string]int)
		for _, g := range again {
			attempts[g.Topic] = g.Attempt
		}
		equal(t, "attempts", attempts, map[string]int{"p.c": 2, "p.a": 1, "p.b": 1})
	})
}

// A suspect goes to a subscription that holds nothing in any topic.
func TestSuspectOfOneTopicIsAloneInTheSubscription(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		r.publish("p.a", 1, 1)
		for range 2 {
			in.lapse(leasesOf(in.Take())...)
			r.publish("p.b", 1, 1)
			r.ackAll(in, "p.b")
			time.Sleep(time.Millisecond)
		}
		suspect := in.Take()
		equal(t, "the suspect", places(suspect), []string{"p.a/1"})
		r.publish("p.b", 1, 1)
		r.publish("p.new", 1, 1)
		equal(t, "meanwhile", len(in.Take()), 0)
		in.Ack(leasesOf(suspect)...)
		equal(t, "after it", places(in.Take()), []string{"p.b/3", "p.new/1"})
	})
}

func (r *rig) ackAll(in *inbox, topic string) {
	r.t.Helper()
	for _, g := range in.Take() {
		if g.Topic != topic {
			r.t.Errorf("%s came", places([]got{g}))
		}
		in.Ack(byLease(g))
	}
}

// A publish that creates a topic can wait for a group whose pattern matches it.
func TestWaitForAPatternGroupInANewTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		waited := make(chan error, 1)
		pubs := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "p.new", Payload: []byte("1")}}, WaitFor: []string{"g"}}}
		r.bus.Enqueue(context.Background(), pubs, func(p []eventhub.Publication) { waited <- p[0].Err })
		synctest.Wait()
		in.Ack(leasesOf(in.Take())...)
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// A publish that waits for a group while its first SUBSCRIBE by pattern is committed makes
// it as the pattern says, and not as nobody asked for.
func TestWaitForAPatternGroupThatIsJustMade(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Ordering, o.MaxAttempts = eventhub.OrderingKey, 7
		hold := make(chan struct{})
		r.store.set(hold, nil)
		in := &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}
		subscribed, waited := make(chan error, 1), make(chan error, 1)
		go func() {
			var err error
			in.Sub, err = r.bus.Subscribe(context.Background(), o, in)
			subscribed <- err
		}()
		synctest.Wait()
		pubs := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "p.new", Payload: []byte("1")}}, WaitFor: []string{"g"}}}
		go r.bus.Enqueue(context.Background(), pubs, func(p []eventhub.Publication) { waited <- p[0].Err })
		for table, i := &r.bus.patterns, 0; i < 1_000_000; i++ { // it waits for a lock, which no bubble sees
			table.mu.RLock()
			users := table.groups["g"].users
			table.mu.RUnlock()
			if users == 2 {
				break
			}
			runtime.Gosched()
		}
		r.store.set(nil, nil)
		close(hold)
		synctest.Wait()
		if err := <-subscribed; err != nil {
			t.Error(err)
			return
		}
		in.Ack(leasesOf(in.Take())...)
		if err := <-waited; err != nil {
			t.Error(err)
		}
		g, err := r.bus.Group(context.Background(), "p.new", "g")
		if err != nil || g.Ordering != eventhub.OrderingKey || g.MaxAttempts != 7 {
			t.Errorf("the group is %+v, %v", g, err)
		}
	})
}

func TestPatternSettingsAreFixed(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxAttempts = 3
		o.Filter = &eventhub.Filter{Tags: []string{"x"}}
		r.subscribe(o)
		other := o
		other.MaxAttempts = 4
		_, err := r.bus.Subscribe(context.Background(), other, &inbox{Inbox: bustest.Inbox{T: t}})
		wantCode(t, err, eventhub.CodeGroupMismatch)
		other = o
		other.Filter = &eventhub.Filter{}
		_, err = r.bus.Subscribe(context.Background(), other, &inbox{Inbox: bustest.Inbox{T: t}})
		wantCode(t, err, eventhub.CodeGroupMismatch)
		// No pattern of refused subscriptions stays.
		other.Topic, other.Topics = "z.*", []string{"p.*"}
		_, err = r.bus.Subscribe(context.Background(), other, &inbox{Inbox: bustest.Inbox{T: t}})
		wantCode(t, err, eventhub.CodeGroupMismatch)
		// One topic that has the group otherwise refuses all, before anything is made.
		r.publish("y.a", 1, 1)
		r.subscribe(opts("y.b", "g"))
		other = o
		other.Topic = "y.*"
		_, err = r.bus.Subscribe(context.Background(), other, &inbox{Inbox: bustest.Inbox{T: t}})
		wantCode(t, err, eventhub.CodeGroupMismatch)
		_, err = r.bus.Cursor(context.Background(), "y.a", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
		equal(t, "patterns noticed", len(r.bus.patterns.groups["g"].patterns), 1)
		list, err := r.bus.Patterns(context.Background(), "")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "patterns", list, []admin.GroupPattern{{Group: "g", Pattern: "p.*", Ordering: "none", Filter: o.Filter, MaxAttempts: 3,
			MinBackoffMS: eventhub.DefaultMinBackoff.Milliseconds(), MaxBackoffMS: eventhub.DefaultMaxBackoff.Milliseconds()}})
	})
}

func TestDeleteGroupWithPatterns(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("p.a", 1, 1)
		r.publish("p.b", 1, 1)
		wide, narrow := r.subscribe(opts("p.*", "g")), r.subscribe(opts("*.a", "g"))
		wantCode(t, r.bus.DeleteGroup(ctx, "p.b", "g"), eventhub.CodeBadRequest)
		wantCode(t, r.bus.DeleteGroup(ctx, "q.*", "g"), eventhub.CodeNotSubscribed)
		if err := r.bus.DeleteGroup(ctx, "p.*", "g"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		equal(t, "ends reported", []int{len(wide.Ends), len(narrow.Ends)}, []int{1, 0})
		_, err := r.bus.Cursor(ctx, "p.b", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
		if _, err := r.bus.Cursor(ctx, "p.a", "g"); err != nil {
			t.Errorf("the other pattern's topic: %v", err)
		}
		r.publish("p.c", 1, 1)
		r.publish("q.a", 1, 1)
		narrow.Ack(leasesOf(narrow.Take())...)
		r.restart()
		synctest.Wait()
		_, err = r.bus.Cursor(ctx, "p.c", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
		equal(t, "the newborn's cursor", r.cursor("q.a", "g").Offset, 1)
	})
}

func TestBusStopsPatternsOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 1)
		r.publish("p.b", 1, 1)
		some, none := r.subscribe(opts("p.*", "g")), r.subscribe(opts("none.*", "g"))
		some.Take()
		r.stop()
		equal(t, "ends reported", []int{len(some.Ends), len(none.Ends)}, []int{1, 1})
		wantCode(t, some.Ends[0], eventhub.CodeShuttingDown)
		r.start(Options{})
		again := r.subscribe(opts("p.*", "g")).Take()
		equal(t, "again", places(again), []string{"p.a/1", "p.b/1"})
		equal(t, "attempts", []int{again[0].Attempt, again[1].Attempt}, []int{1, 1})
	})
}

func TestFilteredEventsCountAsDone(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.Filter = &eventhub.Filter{Key: "want*"}
		in := r.subscribe(o)
		for i := range 6 {
			key := "no"
			if i%3 == 1 {
				key = fmt.Sprintf("want%d", i)
			}
			if _, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Key: key, Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		all := in.Take()
		equal(t, "passed", places(all), []string{"t/2", "t/5"})
		equal(t, "cursor", r.cursor("t", "g").Offset, 1)
		in.Ack(leasesOf(all)...)
		equal(t, "cursor", r.cursor("t", "g").Offset, 6)
		info, err := r.bus.Group(context.Background(), "t", "g")
		if err != nil || info.Lag != 0 || !info.Filter.Equal(o.Filter) {
			t.Errorf("group %+v, %v", info, err)
		}
	})
}

func TestBadPatterns(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, o := range []eventhub.GroupOptions{
			{Topic: "p.**.**", Group: "g"}, {Topic: "p.a*", Group: "g"}, {Topic: "", Group: "g"}, {Topic: "p.*", Topics: []string{"x..y"}, Group: "g"},
		} {
			_, err := r.bus.Subscribe(context.Background(), o, &inbox{Inbox: bustest.Inbox{T: t}})
			wantCode(t, err, eventhub.CodeBadTopic)
		}
		for _, start := range []eventhub.Start{{Kind: eventhub.StartOffset, Offset: 1}, {Kind: eventhub.StartAfterID, AfterID: "x"}} {
			_, err := r.bus.Subscribe(context.Background(), eventhub.GroupOptions{Topic: "p.*", Group: "g", Start: start}, &inbox{Inbox: bustest.Inbox{T: t}})
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		_, err := r.bus.Subscribe(context.Background(), eventhub.GroupOptions{Topic: "t", Group: "g", Filter: &eventhub.Filter{CEL: "event.key =="}}, &inbox{Inbox: bustest.Inbox{T: t}})
		wantCode(t, err, eventhub.CodeBadRequest)
		list, err := r.bus.Patterns(context.Background(), "")
		equal(t, "patterns", list, []admin.GroupPattern{})
		if err != nil || len(r.bus.patterns.groups) != 0 {
			t.Errorf("left: %v, %v", r.bus.patterns.groups, err)
		}
	})
}

// A group by pattern compiles its filter once, whatever number of topics it has.
func TestPatternSharesItsFilter(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i := range 5 {
			r.publish(fmt.Sprintf("p.%d", i), 1, 1)
		}
		o := opts("p.*", "g")
		o.Filter = &eventhub.Filter{CEL: "event.payload == 1"}
		in := r.subscribe(o)
		equal(t, "deliveries", len(in.Take()), 5)
		first := r.bus.running("p.0", "g").filter
		for _, g := range r.bus.loaded() {
			if g.filter == nil || g.filter != first {
				t.Errorf("%s has a program of its own", g.key.topic)
			}
		}
	})
}

// TestClientLeavesDuringItsSubscribe: a pattern whose commit was under way when its client
// went away is durable, so it is listed, brings its group, and can be deleted.
func TestClientLeavesDuringItsSubscribe(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, leave := context.WithCancel(bg)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if sub, err := r.bus.Subscribe(ctx, opts("p.*", "g"), &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}); err == nil {
				sub.Drop(0)
			}
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		<-answered
		synctest.Wait()
		stored := r.storedPatterns("g")
		r.publish("p.a", 1, 1)
		synctest.Wait()
		if groups, err := r.store.ListGroups(bg, "p.a"); err != nil || len(groups) != len(stored) {
			t.Errorf("the topic has the groups %v, %v; the patterns are %v", groups, err, stored)
		}
		for _, p := range stored {
			if err := r.bus.DeleteGroup(bg, p.Pattern, p.Group); err != nil {
				t.Errorf("delete %v: %v", p, err)
			}
		}
		if left, err := r.store.ListPatterns(bg); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// TestClientLeavesWhileItDeletesAPattern: the pattern is gone everywhere or nowhere.
func TestClientLeavesWhileItDeletesAPattern(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.a", 1, 1)
		in := r.subscribe(opts("p.*", "g"))
		ctx, leave := context.WithCancel(bg)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		deleted := make(chan error, 1)
		go func() { deleted <- r.bus.DeleteGroup(ctx, "p.*", "g") }()
		synctest.Wait()
		leave()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		<-deleted
		synctest.Wait()
		stored := r.storedPatterns("g")
		equal(t, "ends reported", len(in.Ends), 1-len(stored))
	})
}

// TestPatternsThatOverlap: a group has one filter and one ordering in topics to come, whichever of its patterns matches them.
func TestPatternsThatOverlap(t *testing.T) {
	lamps, chairs := &eventhub.Filter{Key: "lamp"}, &eventhub.Filter{Key: "chair"}
	for name, tt := range map[string]struct {
		pattern string
		change  func(*eventhub.GroupOptions)
		refused string // by what, "" for nothing
	}{
		"another filter":   {"**", func(o *eventhub.GroupOptions) { o.Filter = chairs }, `filter is {"key":"chair"}; group "g" has {"key":"lamp"} by its pattern "p.*", which may match topics of "**" too`},
		"no filter":        {"*.x", func(o *eventhub.GroupOptions) { o.Filter = &eventhub.Filter{} }, `filter is {}; group "g" has {"key":"lamp"} by`},
		"another ordering": {"p.**", func(o *eventhub.GroupOptions) { o.Ordering = eventhub.OrderingNone }, `ordering is "none"; group "g" has "key" by`},
		"the same":         {"**", func(o *eventhub.GroupOptions) { o.Filter, o.Ordering = lamps, eventhub.OrderingKey }, ""},
		"whatever it has":  {"**", func(*eventhub.GroupOptions) {}, ""},
		"more attempts":    {"**", func(o *eventhub.GroupOptions) { o.MaxAttempts = 7 }, ""},
		"other topics":     {"q.*", func(o *eventhub.GroupOptions) { o.Filter = chairs }, ""},
		"dead letters":     {"*.dlq", func(o *eventhub.GroupOptions) { o.Filter = chairs }, ""},
		"another group":    {"**", func(o *eventhub.GroupOptions) { o.Group, o.Filter = "h", chairs }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				first := opts("p.*", "g")
				first.Filter, first.Ordering = lamps, eventhub.OrderingKey
				in := r.subscribe(first)
				o := opts(tt.pattern, "g")
				tt.change(&o)
				_, err := r.bus.Subscribe(bg, o, &inbox{Inbox: bustest.Inbox{T: t}})
				list, patternsErr := r.bus.Patterns(bg, o.Group)
				if patternsErr != nil {
					t.Fatal(patternsErr)
				}
				if tt.refused == "" {
					if err != nil || len(list) == 0 {
						t.Errorf("Subscribe to %s: %v; patterns %+v", tt.pattern, err, list)
					}
					return
				}
				if wantCode(t, err, eventhub.CodeGroupMismatch); !strings.Contains(err.Error(), tt.refused) || len(list) != 1 {
					t.Errorf("refused with %v; patterns %+v", err, list)
				}
				// The way out: the group gives the first pattern up.
				if err := in.Sub.Unsubscribe(bg); err != nil {
					t.Fatal(err)
				}
				if err := r.bus.DeleteGroup(bg, "p.*", "g"); err != nil {
					t.Fatal(err)
				}
				if _, err := r.bus.Subscribe(bg, o, &inbox{Inbox: bustest.Inbox{T: t}}); err != nil {
					t.Errorf("after the end of the first pattern: %v", err)
				}
			})
		})
	}
}
