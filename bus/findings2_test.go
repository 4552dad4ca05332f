package bus

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

// A SUBSCRIBE by name that meets the birth of its group by a pattern joins that.
func TestSubscribeByNameMeetsABirth(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		in := r.subscribe(o)
		hold := make(chan struct{})
		r.bus.patterns.end() // the birth is noticed when the commits are held
		r.publish("p.a", 1, 1)
		synctest.Wait()
		r.store.set(hold, nil)
		r.bus.patterns.attend(r.bus)
		r.bus.patterns.bear([]string{"p.a"})
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
			t.Logf("group.load does not expect that a birth makes the group between its look and its commit (store.ErrExists)")
			t.Errorf("Subscribe by name: %v (%s)", err, eventhub.ErrorCode(err))
		}
		equal(t, "deliveries", len(in.take())+len(named.take()), 1)
	})
}

// Where the birth was missed, because the process ended behind the commit that bore
// the topic, a SUBSCRIBE by name does not lose what the pattern promises.
func TestSubscribeByNameBehindAMissedBirth(t *testing.T) {
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
// whose birth was missed.
func TestRefusedSubscribeBehindAMissedBirth(t *testing.T) {
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
			two.settle(eventhub.Settlement{Verdict: eventhub.Nack, Delay: time.Millisecond}, leasesOf(two.take())...)
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
