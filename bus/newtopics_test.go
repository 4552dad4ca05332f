package bus

import (
	"slices"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/bus/internal/bustest"
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
		named := &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}
		go func() {
			_, err := r.bus.Subscribe(bg, eventhub.GroupOptions{Topic: "p.a", Group: "g"}, named)
			answer <- err
		}()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		if err := <-answer; err != nil {
			t.Errorf("Subscribe by name: %v (%s)", err, eventhub.ErrorCode(err))
		}
		equal(t, "deliveries", len(in.Take())+len(named.Take()), 1)
	})
}

// Where the creation was missed, because the process ended after the commit that created
// the topic, a SUBSCRIBE by name does not lose what the pattern promises.
func TestSubscribeByNameAfterAMissedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.Start = eventhub.Start{}
		r.subscribe(o)
		r.bus.patterns.end()
		r.publish("p.a", 1, 1)
		r.restart()
		named := r.subscribe(eventhub.GroupOptions{Topic: "p.a", Group: "g"}) // latest
		all := r.subscribe(eventhub.GroupOptions{Topic: "p.*", Group: "g"})
		equal(t, "deliveries", len(named.Take())+len(all.Take()), 1)
	})
}

// Nothing of a SUBSCRIBE that is refused stays, also where it finds a topic
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
		_, err := r.bus.Subscribe(bg, o, &inbox{Inbox: bustest.Inbox{T: t}})
		wantCode(t, err, eventhub.CodeGroupMismatch)
		list, err := r.bus.Patterns(bg, "g")
		if err != nil || len(list) != 1 {
			t.Errorf("patterns after a refused SUBSCRIBE: %+v, %v", list, err)
		}
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
		r.publish("p.a", 1, 1)
		synctest.Wait() // both are members: what is there before goes to whoever becomes one first
		r.publish("p.a", 2, 1)
		a, b := narrow.Take(), wide.Take()
		if len(a) == 0 || len(b) == 0 || len(a)+len(b) != 2 {
			t.Errorf("deliveries: %v and %v", places(a), places(b))
		}
	})
}

// A creation reaches all members, also after one that asked for other settings than the
// topic has by another pattern of the group.
func TestTopicReachesAllMembers(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("a.*", "g")
		o.MaxAttempts = 5
		one := r.subscribe(o)
		o.Topic, o.MaxAttempts = "*.x", 7
		two := r.subscribe(o)
		_, err := r.bus.Publish(bg, inTopic("a.x", 1)[0], inTopic("a.y", 1)[0], inTopic("b.x", 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		a, b := places(one.Take()), places(two.Take())
		if !slices.Contains(a, "a.y/1") || !slices.Contains(b, "b.x/1") || len(a)+len(b) != 3 {
			t.Errorf("deliveries: %v and %v", a, b)
		}
	})
}

// A creation that was missed, because the process ended after the commit that created the
// topic, is made up for by the next start, whether somebody subscribes or not.
func TestMissedTopicIsMadeUpForAtStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxAttempts = 3
		in := r.subscribe(o)
		if err := in.Sub.Unsubscribe(bg); err != nil {
			t.Fatal(err)
		}
		r.bus.patterns.end()
		r.publish("p.a", 1, 2)
		r.publish("q", 1, 1)
		r.restart()
		synctest.Wait()
		info, err := r.bus.Group(bg, "p.a", "g")
		if err != nil || info.Lag != 2 || info.MaxAttempts != 3 {
			t.Errorf("the group in the topic that was created: %+v, %v", info, err)
		}
		_, err = r.bus.Group(bg, "q", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
	})
}
