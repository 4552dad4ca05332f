package bus

import (
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/store"
	"eventhub/store/storefault"
)

// doors are the ways in which a topic is made.
var doors = map[string]func(r *rig, topic string){
	"publish": func(r *rig, topic string) { r.publish(topic, 0, 1) },
	"batch": func(r *rig, topic string) {
		_, err := r.bus.Publish(bg, eventhub.Event{Topic: "other", Payload: []byte("0")}, eventhub.Event{Topic: topic, Payload: []byte("0")})
		if err != nil {
			r.t.Error(err)
		}
	},
	"import": func(r *rig, topic string) {
		if _, err := r.bus.Import(bg, eventhub.Event{Topic: topic, ID: "imported", TS: 1, Offset: 77, Payload: []byte("0")}); err != nil {
			r.t.Error(err)
		}
	},
	"delay": func(r *rig, topic string) {
		_, err := r.bus.Publish(bg, eventhub.Event{Topic: topic, ID: "later", Payload: []byte("0"), Delay: time.Hour})
		if err != nil {
			r.t.Error(err)
		}
	},
	"subscribe": func(r *rig, topic string) { r.subscribe(opts(topic, "by-name")).Sub.Drop(0) },
	"pull": func(r *rig, topic string) {
		if _, err := r.bus.Pull(bg, opts(topic, "puller"), 0); err != nil {
			r.t.Error(err)
		}
	},
}

// TestEveryDoorCreatesATopic: whatever makes a topic, its groups and tails by patterns and
// lists have it from then on, in its first life as in later ones, and each once.
func TestEveryDoorCreatesATopic(t *testing.T) {
	listed := func(group string) eventhub.GroupOptions {
		o := opts("x", group)
		o.Topics = []string{"y", "p.a"}
		return o
	}
	for name, door := range doors {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				// The first life is over when they come.
				r.publish("p.a", 1, 3)
				r.deleteTopic("p.a")
				members := map[string]*inbox{"pattern": r.subscribe(opts("p.*", "g"))}
				members["tail by pattern"] = r.tail(tailFrom("p.*"))
				byList := tailFrom("x")
				byList.Topics = []string{"y", "p.a"}
				members["tail by list"] = r.tail(byList)
				for life := 2; life <= 4; life++ {
					door(r, "p.a")
					synctest.Wait()
					if c, err := r.bus.Cursor(bg, "p.a", "g"); err != nil {
						t.Errorf("life %d: the group of the pattern is not there: %+v, %v", life, c, err)
					}
					for _, in := range members {
						in.Take()
					}
					r.publish("p.a", life, 1)
					for who, in := range members {
						if got := in.Take(); len(got) != 1 || got[0].Topic != "p.a" || len(in.Ends) > 0 {
							t.Errorf("life %d: the %s got %v and ended %v", life, who, places(got), in.Ends)
						}
					}
					if life == 2 { // it makes the topic itself
						members["list"] = r.subscribe(listed("h"))
						members["list"].Take()
					}
					r.deleteTopic("p.a")
				}
			})
		})
	}
}

// life returns the number of the life that a topic has, 0 where it is not there.
func (r *rig) life(topic string) uint64 {
	r.t.Helper()
	info, err := r.store.Topic(bg, topic)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.t.Error(err)
	}
	return info.Life
}

func (r *rig) isThere(topic string) bool { return r.life(topic) != 0 }

// whileBusy holds the committer up with a publish to a topic of its own, runs what is to be
// queued meanwhile, one after the other, and lets it all go.
func (r *rig) whileBusy(queued ...func()) {
	hold := make(chan struct{})
	r.store.set(hold, nil)
	go r.publish("held", 1, 1)
	synctest.Wait()
	for _, f := range queued {
		go f()
		synctest.Wait()
	}
	r.store.set(nil, nil)
	close(hold)
	synctest.Wait()
}

// TestDeletedTopicStaysDeleted: the group of a pattern that a topic was about to get
// does not bring the topic back.
func TestDeletedTopicStaysDeleted(t *testing.T) {
	for name, o := range map[string]eventhub.GroupOptions{
		"pattern": opts("p.*", "g"), "list": {Topic: "x", Topics: []string{"p.a"}, Group: "g"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				in := r.subscribe(o)
				if name == "list" {
					r.deleteTopic("p.a")
				}
				r.whileBusy(func() { r.publish("p.a", 1, 1) }, func() {
					if err := r.bus.DeleteTopic(bg, "p.a"); err != nil {
						t.Error(err)
					}
				})
				if r.isThere("p.a") {
					t.Error("the topic is back")
				}
				r.publish("p.a", 2, 1)
				got := in.Take()
				equal(t, "of the next life", places(got[max(len(got)-1, 0):]), []string{"p.a/2"})
			})
		})
	}
}

// TestRefusedSubscribeLeavesNoTopic: a SUBSCRIBE that meets the deletion of its topic and
// is notified of that has not made the topic again.
func TestRefusedSubscribeLeavesNoTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		var refused error
		r.whileBusy(func() {
			if err := r.bus.DeleteTopic(bg, "t"); err != nil {
				t.Error(err)
			}
		}, func() { _, refused = r.bus.Subscribe(bg, opts("t", "g"), &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}) })
		wantCode(t, refused, eventhub.CodeNotSubscribed)
		if r.isThere("t") {
			t.Error("the topic is back")
		}
		r.publish("t", 4, 1)
		equal(t, "a later one", places(r.subscribe(opts("t", "g")).Take()), []string{"t/4"})
	})
}

// TestSubscribeByPatternWhileATopicIsDeleted: the deletion of one topic refuses no
// subscription to others, whether the group has a runtime in it, is in it, or is about
// to be made in it.
func TestSubscribeByPatternWhileATopicIsDeleted(t *testing.T) {
	list := opts("p.kept", "g")
	list.Topics = []string{"p.gone"}
	for name, o := range map[string]eventhub.GroupOptions{"pattern": opts("p.*", "g"), "list": list} {
		for _, before := range []string{"loaded", "stored", "new"} {
			t.Run(name+" "+before, func(t *testing.T) {
				inBubble(t, func(r *rig) {
					r.publish("p.gone", 1, 1)
					r.publish("p.kept", 1, 1)
					if before != "new" {
						r.subscribe(o).Sub.Drop(math.MaxInt)
					}
					synctest.Wait()
					r.stop()
					s := r.faulty()
					r.start(Options{})
					if before == "loaded" {
						r.subscribe(o).Sub.Drop(math.MaxInt)
					}
					in, answered := &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}, make(chan error, 1)
					s.Before(storefault.DeleteTopic, func(*storefault.Call) error {
						go func() {
							sub, err := r.bus.Subscribe(bg, o, in)
							in.Sub = sub
							answered <- err
						}()
						synctest.Wait()
						return nil
					})
					synctest.Wait()
					r.deleteTopic("p.gone")
					if err := <-answered; err != nil {
						t.Fatalf("Subscribe: %v", err)
					}
					if r.isThere("p.gone") {
						t.Error("the topic is back")
					}
					r.publish("p.gone", 2, 1)
					got := slices.DeleteFunc(places(in.Take()), func(p string) bool { return p == "p.gone/1" })
					slices.Sort(got)
					equal(t, "delivered", slices.Compact(got), []string{"p.gone/2", "p.kept/1"})
				})
			})
		}
	}
}
