package bus

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
)

// A SUBSCRIBE by name that meets the group that a pattern brings joins that.
func TestSubscribeByNameMeetsTheGroupOfAPattern(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		in := r.subscribe(o)
		hold := make(chan struct{})
		r.bus.patterns.end() // the creation is noticed when the commits are held
		r.publish("p.a", 1, 1)
		synctest.Wait()
		r.store.set(hold, nil)
		r.bus.patterns.attend(r.bus)
		r.bus.patterns.topicsCreated([]store.TopicLife{{Topic: "p.a", Life: r.life("p.a")}})
		synctest.Wait()
		answer := make(chan error, 1)
		named := &inbox{t: t, room: -1}
		go func() {
			_, err := r.bus.Subscribe(bg, eventhub.SubscribeOptions{Topic: "p.a", Group: "g"}, named)
			answer <- err
		}()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		if err := <-answer; err != nil {
			t.Logf("group.load does not expect that a creation makes the group between its look and its commit (store.ErrExists)")
			t.Errorf("Subscribe by name: %v (%s)", err, eventhub.ErrorCode(err))
		}
		equal(t, "deliveries", len(in.take())+len(named.take()), 1)
	})
}

// Where the creation was missed, because the process ended behind the commit that created
// the topic, a SUBSCRIBE by name does not lose what the pattern promises.
func TestSubscribeByNameAfterAMissedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		r.subscribe(o)
		r.bus.patterns.end()
		r.publish("p.a", 1, 1)
		r.restart()
		named := r.subscribe(eventhub.SubscribeOptions{Topic: "p.a", Group: "g"}) // latest
		all := r.subscribe(eventhub.SubscribeOptions{Topic: "p.*", Group: "g"})
		t.Logf("group.create resolves the options' start and does not look whether a pattern of the group matches the topic")
		equal(t, "deliveries", len(named.take())+len(all.take()), 1)
	})
}

// A SUBSCRIBE that is refused leaves nothing behind, also where it finds a topic
// whose creation was missed.
func TestRefusedSubscribeAfterAMissedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxAttempts = 3
		r.subscribe(o)
		r.bus.patterns.end()
		r.publish("p.a", 1, 1)
		r.restart()
		o.Topic, o.MaxAttempts = "*.a", 4
		_, err := r.bus.Subscribe(bg, o, &inbox{t: t})
		wantCode(t, err, eventhub.CodeGroupMismatch)
		list, err := r.bus.Patterns(bg, "g")
		t.Logf("joinAll makes the group with the older pattern's settings, the pattern with the new ones, and then finds that they differ")
		if err != nil || len(list) != 1 {
			t.Errorf("patterns behind a refused SUBSCRIBE: %+v, %v", list, err)
		}
	})
}

// A suspect that waits for a member goes to another one of its group which becomes
// free before, whatever topic that was busy with.
func TestSuspectGoesToWhoeverIsFreeFirst(t *testing.T) {
	inBubble(t, func(r *rig) {
		one, two := r.subscribe(opts("*", "g")), r.subscribe(opts("*", "g"))
		if err := two.sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		r.publish("x", 1, 1)
		busy := one.take()
		if err := errors.Join(one.sub.Pause(bg), two.sub.Resume(bg)); err != nil {
			t.Fatal(err)
		}
		r.publish("y", 1, 2)
		other := two.take()
		r.publish("a", 1, 1)
		for range 2 {
			two.lapse(leasesOf(two.take())...)
			time.Sleep(time.Millisecond)
		}
		if err := one.sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// one holds one, two holds two: the suspect is kept for one.
		equal(t, "before", []int{len(busy), len(other), len(one.take()), len(two.take())}, []int{1, 2, 0, 0})
		two.ack(leasesOf(other)...)
		t.Logf("a group that has chosen a member for its suspects is not told when another one becomes free in other topics")
		equal(t, "the suspect", places(append(two.take(), one.take()...)), []string{"a/1"})
	})
}

// A paused group that waited for room does not keep it from those that wait behind.
func TestPausedGroupLetsOthersHaveTheRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		r.publish("p.x", 1, 1)
		first := in.take()
		r.publish("p.y", 1, 1)
		synctest.Wait()
		r.publish("p.z", 1, 1)
		synctest.Wait()
		if err := errors.Join(r.bus.PauseGroup(bg, "p.x", "g"), r.bus.PauseGroup(bg, "p.y", "g")); err != nil {
			t.Fatal(err)
		}
		in.ack(leasesOf(first)...)
		t.Logf("member.free wakes the first of the roomQueue; planDeliveries returns for a paused group before it passes the room on")
		equal(t, "next", places(in.take()), []string{"p.z/1"})
	})
}

// The room that a seek sets free in one topic is for all, also where the group there
// is paused.
func TestSeekSetsRoomFree(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		r.publish("p.x", 1, 1)
		in.take()
		r.publish("p.y", 1, 1)
		synctest.Wait()
		if err := errors.Join(r.bus.PauseGroup(bg, "p.x", "g"), r.bus.SetCursor(bg, "p.x", "g", 0)); err != nil {
			t.Fatal(err)
		}
		equal(t, "next", places(in.take()), []string{"p.y/1"})
	})
}

// A topic that is created has the settings of the first of the group's patterns. Members
// that came by another one, and asked for other settings there, are members in it all
// the same, and keep nobody else out.
func TestTopicUnderPatternsWithOtherSettings(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.**", "g")
		o.MaxAttempts = 1
		narrow := r.subscribe(o)
		o = opts("**", "g")
		o.MaxAttempts = 3
		wide := r.subscribe(o)
		r.publish("p.a", 1, 2)
		t.Logf("enterTopics has subscriptions join by group.load, which compares their options; the first mismatch ends the loop")
		a, b := narrow.take(), wide.take()
		if len(a) == 0 || len(b) == 0 || len(a)+len(b) != 2 {
			t.Errorf("deliveries: %v and %v", places(a), places(b))
		}
	})
}

// A suspect that waits for a busy member goes to one that goes on before that has
// settled what it holds.
func TestSuspectGoesToWhoeverGoesOnFirst(t *testing.T) {
	inBubble(t, func(r *rig) {
		one := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 2)
		in := one.take()[:1]
		two := r.subscribe(opts("t", "g"))
		if err := two.sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			one.lapse(leasesOf(in)...)
			time.Sleep(time.Millisecond)
			in = one.take()
		}
		equal(t, "while one is busy and the other pauses", len(in), 0)
		if err := two.sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		t.Logf("awaitIdle does not note a group whose member is idle and takes nothing; Ready and Resume wake the roomQueue alone")
		equal(t, "the suspect", places(two.take()), []string{"t/1"})
	})
}

// An event that was offered to somebody who did not take it is still that of the
// member who had it last, also where that names it by its id.
func TestRefusedOfferKeepsTheLastLeaseByID(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		receipts := r.publish("p.a", 1, 1)
		in.lapse(leasesOf(in.take())...)
		if err := in.sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		if _, err := r.bus.Subscribe(bg, opts("p.a", "g"), &inbox{t: t}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		t.Logf("group.lease takes the id from the member that had the event last, and flush does not give it back")
		equal(t, "a late ack", in.ack(eventhub.Ref{ID: receipts[0].ID}), []eventhub.Outcome{eventhub.Applied})
	})
}

// A suspect that waits until the member holds nothing goes out when a seek in another
// topic has taken what it held.
func TestSeekSetsAClaimedMemberFree(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("*", "g"))
		r.publish("a", 1, 1)
		r.publish("b", 1, 1)
		suspect, other := eventhub.Ref{}, 0
		for range 2 {
			for _, g := range in.take() {
				if g.Topic == "a" {
					suspect = byLease(g)
				} else {
					other++
				}
			}
			in.lapse(suspect)
			time.Sleep(time.Millisecond)
		}
		equal(t, "while b is held", []int{other, len(in.take())}, []int{1, 0})
		if err := r.bus.SetCursor(bg, "b", "g", 0); err != nil {
			t.Fatal(err)
		}
		t.Logf("member.forget sets room free and wakes nobody, not even the group that has reserved the subscription")
		equal(t, "behind the seek", places(in.take()), []string{"a/1"})
	})
}
