package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

func (r *rig) deleteTopic(topic string) {
	r.t.Helper()
	if err := r.bus.DeleteTopic(context.Background(), topic); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

func TestDeleteTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 1, 3)
		r.publish("u", 1, 1)
		in, idle := r.subscribe(opts("t", "g")), r.subscribe(opts("t", "idle"))
		if err := idle.Sub.Unsubscribe(ctx); err != nil {
			t.Fatal(err)
		}
		leases := in.Take()
		if _, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", ID: "later", Payload: []byte("1"), Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		r.deleteTopic("t")
		equal(t, "ends reported", []int{len(in.Ends), len(idle.Ends)}, []int{1, 0})
		wantCode(t, in.Ends[0], eventhub.CodeNotSubscribed)
		_, err := r.bus.Topic(ctx, "t")
		wantCode(t, err, eventhub.CodeUnknownID)
		_, err = r.bus.Cursor(ctx, "t", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
		_, err = r.bus.Settle(ctx, "t", "g", eventhub.Settlement{Refs: leasesOf(leases)})
		wantCode(t, err, eventhub.CodeNotSubscribed)
		wantCode(t, r.bus.Cancel(ctx, "t", "later"), eventhub.CodeUnknownID)
		wantCode(t, r.bus.DeleteTopic(ctx, "t"), eventhub.CodeUnknownID)
		wantCode(t, r.bus.DeleteTopic(ctx, "a b"), eventhub.CodeBadTopic)
		groups, err := r.bus.Groups(ctx, admin.GroupQuery{})
		if err != nil || len(groups) != 0 {
			t.Errorf("groups %v, %v", groups, err)
		}
		if m, err := r.bus.Measure(ctx); err != nil || len(m.Groups) != 0 {
			t.Errorf("%d groups are measured, %v", len(m.Groups), err)
		}
		if _, err := r.bus.Topic(ctx, "u"); err != nil {
			t.Errorf("the other topic: %v", err)
		}
		// The name begins again, after the old offsets.
		receipts := r.publish("t", 4, 1)
		equal(t, "offset", receipts[0].Offset, 4)
		again := r.subscribe(opts("t", "g")).Take()
		equal(t, "a new group", []any{again[0].Offset, again[0].Attempt, again[0].Payload}, []any{4, 1, "4"})
	})
}

// A subscription by pattern goes on without the topic, and has it again when it is
// created again, from its first event.
func TestDeleteTopicUnderAPattern(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("p.*", "g")
		o.MaxInFlight = 2
		in := r.subscribe(o)
		r.publish("p.a", 1, 3)
		held := in.Take()
		r.publish("p.b", 1, 1)
		equal(t, "before", places(held), []string{"p.a/1", "p.a/2"})
		r.deleteTopic("p.a")
		equal(t, "ends reported", len(in.Ends), 0)
		// The leases of the topic are void, and their room is free.
		equal(t, "the other topic", places(in.Take()), []string{"p.b/1"})
		equal(t, "in flight", r.held("g"), 1)
		equal(t, "an old lease", in.Ack(byLease(held[0])), []eventhub.Outcome{eventhub.Stale})
		r.publish("p.a", 4, 1)
		equal(t, "created again", places(in.Take()), []string{"p.a/4"})
		if n := in.Sub.(*subscription).ids.len(); n != 2 {
			t.Errorf("%d ids are known", n)
		}
	})
}

// Room that comes free is not lost to a topic that is gone.
func TestDeletedTopicDoesNotWaitForRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		in, first := r.fullMember("p.x", "p.gone", "p.z")
		r.deleteTopic("p.gone")
		in.Ack(leasesOf(first)...)
		equal(t, "next", places(in.Take()), []string{"p.z/1"})
	})
}

// A suspect's claim ends with its topic.
func TestDeletedTopicGivesItsClaimUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("p.*", "g"))
		r.publish("p.b", 1, 1)
		other := in.Take()
		r.publish("p.a", 1, 1)
		for range 2 {
			in.lapse(leasesOf(in.Take())...)
			time.Sleep(time.Millisecond)
		}
		r.publish("p.c", 1, 1)
		equal(t, "while it is reserved", len(in.Take()), 0)
		r.deleteTopic("p.a")
		equal(t, "afterwards", places(in.Take()), []string{"p.c/1"})
		in.Ack(leasesOf(other)...)
	})
}

func TestTailsOutliveATopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		named, wide := r.tail(tailFrom("p.a")), r.tail(tailFrom("p.*"))
		r.publish("p.a", 1, 2)
		equal(t, "before", [][]string{places(named.Take()), places(wide.Take())}, [][]string{{"p.a/1", "p.a/2"}, {"p.a/1", "p.a/2"}})
		r.deleteTopic("p.a")
		r.publish("p.a", 3, 1)
		equal(t, "afterwards", [][]string{places(named.Take()), places(wide.Take())}, [][]string{{"p.a/3"}, {"p.a/3"}})
		late := r.tail(tailFrom("p.a"))
		equal(t, "from the earliest", places(late.Take()), []string{"p.a/3"})
		equal(t, "ends reported", len(named.Ends)+len(wide.Ends), 0)
	})
}

// Who waits for a group of the topic is notified; ack-and-publishes from it are lost, whole.
func TestDeleteTopicWhileOthersAreAtIt(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		in := r.subscribe(opts("t", "g"))
		leases := in.Take()
		waited := make(chan error, 1)
		pubs := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "t", Payload: []byte("2")}}, WaitFor: []string{"g"}, WaitUpTo: time.Minute}}
		r.bus.Enqueue(context.Background(), pubs, func(p []eventhub.Publication) { waited <- p[0].Err })
		synctest.Wait()
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.bus.Publish(context.Background(), eventhub.Event{Topic: "other", Payload: []byte("1")})
		synctest.Wait() // the committer is held up
		deleted := make(chan error, 1)
		go func() { deleted <- r.bus.DeleteTopic(context.Background(), "t") }()
		synctest.Wait()
		handed := make(chan error, 1)
		hs := []eventhub.AckPublish{{Refs: leasesOf(leases), Events: []eventhub.Event{{Topic: "out", Payload: []byte("1")}}}}
		in.Sub.AckAndPublish(context.Background(), hs, func(hs []eventhub.AckPublish) { handed <- hs[0].Err })
		r.store.set(nil, nil)
		close(hold)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		wantCode(t, <-handed, eventhub.CodeLeaseLost)
		wantCode(t, <-waited, eventhub.CodeWaitTimeout)
		_, err := r.bus.Topic(context.Background(), "out")
		wantCode(t, err, eventhub.CodeUnknownID)
	})
}

// What is published before the deletion goes with the topic, what comes later is of
// a new one.
func TestDeleteTopicInOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		hold := make(chan struct{})
		r.store.set(hold, nil)
		go r.publish("t", 1, 1)
		synctest.Wait()
		go r.publish("t", 2, 1)
		synctest.Wait()
		deleted := make(chan error, 1)
		go func() { deleted <- r.bus.DeleteTopic(context.Background(), "t") }()
		synctest.Wait()
		go r.publish("t", 3, 1)
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		events := r.events("t")
		equal(t, "payloads", []any{len(events), string(events[0].Payload), events[0].Offset}, []any{1, "3", 3})
	})
}

func TestDeleteTopicFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.stop()
		s := r.faulty()
		s.Inject(storefault.Fault{Op: storefault.DeleteTopic, Err: errors.New("no disk")})
		var fatal error
		r.start(Options{Fatal: func(err error) { fatal = err }})
		wantCode(t, r.bus.DeleteTopic(context.Background(), "t"), eventhub.CodeInternal)
		if fatal == nil {
			t.Error("nobody is notified that the store is broken")
		}
		_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")})
		wantCode(t, err, eventhub.CodeInternal)
		_ = r.bus.Close()
		s.Clear()
		r.start(Options{})
	})
}

// A group that is loaded while its topic is being deleted ends with it, and does not
// prevent the one that is made again.
func TestDeleteTopicWhileAMemberJoins(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.subscribe(opts("t", "g")).Sub.Drop(0)
		synctest.Wait()
		r.stop()
		late := &inbox{Inbox: bustest.Inbox{T: t, Room: -1}}
		r.faulty().Before(storefault.DeleteTopic, func(*storefault.Call) error {
			if _, err := r.bus.Subscribe(context.Background(), opts("t", "g"), late); err != nil {
				t.Error(err)
			}
			return nil
		})
		r.start(Options{})
		synctest.Wait()
		r.deleteTopic("t")
		equal(t, "ends reported", len(late.Ends), 1)
		r.publish("t", 4, 1)
		in := r.subscribe(opts("t", "g"))
		equal(t, "delivered", places(in.Take()), []string{"t/4"})
	})
}

// A group may be ended while it is being loaded, its list of redriven events too. The
// race detector looks on.
func TestDeleteTopicWhileAGroupIsLoaded(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.deadLetterAll("t", "g")
		equal(t, "redriven", r.redrive(redriveAll("t")).Redriven, 3)
		r.stop()
		deleted := make(chan error, 1)
		r.faulty().After(storefault.GroupParts, func(*storefault.Call) {
			go func() { deleted <- r.bus.DeleteTopic(context.Background(), "t") }()
			for range 1000 { // and nothing that would put one after the other
				runtime.Gosched()
			}
		})
		r.start(Options{})
		synctest.Wait()
		_, err := r.bus.Subscribe(context.Background(), opts("t", "g"), &inbox{Inbox: bustest.Inbox{T: t, Room: -1}})
		if err != nil {
			wantCode(t, err, eventhub.CodeNotSubscribed)
		}
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		_, err = r.bus.Cursor(context.Background(), "t", "g")
		wantCode(t, err, eventhub.CodeNotSubscribed)
	})
}

// Publishers, members by name and by pattern, tails and deletions at once: whoever
// publishes gets rising offsets, and in the end everything is delivered.
func TestDeleteTopicUnderLoad(t *testing.T) {
	r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{})}}
	r.start(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	last := make([]uint64, 3)
	for i := range last {
		topic := fmt.Sprintf("p.%d", i)
		wg.Go(func() {
			for range 300 {
				receipts, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: topic, Payload: []byte("1")})
				if err != nil || receipts[0].Offset <= last[i] {
					t.Errorf("offset %v after %d, %v", receipts, last[i], err)
					return
				}
				last[i] = receipts[0].Offset
			}
		})
		wg.Go(func() {
			for range 30 {
				if err := r.bus.DeleteTopic(context.Background(), topic); err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
					t.Error(err)
				}
			}
		})
	}
	var consumers sync.WaitGroup
	handle := func(context.Context, eventhub.Delivery) error { return nil }
	for _, topic := range []string{"p.*", "p.*", "p.1"} {
		consumers.Go(func() {
			for ctx.Err() == nil {
				err := eventhub.Consume(ctx, r.bus, atOnce(2, opts(topic, "g")), handle)
				if code := eventhub.ErrorCode(err); code != "" && code != eventhub.CodeNotSubscribed {
					t.Errorf("%s: %v", topic, err)
				}
			}
		})
	}
	for _, topic := range []string{"p.*", "p.2"} {
		consumers.Go(func() {
			for ctx.Err() == nil {
				err := eventhub.Follow(ctx, r.bus, tailFrom(topic), handle)
				if code := eventhub.ErrorCode(err); code != "" && code != eventhub.CodeNotSubscribed {
					t.Errorf("tail of %s: %v", topic, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range last {
		topic := fmt.Sprintf("p.%d", i)
		receipts, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: topic, Payload: []byte("1")})
		if err != nil {
			t.Fatal(err)
		}
		for {
			c, err := r.bus.Cursor(context.Background(), topic, "g")
			if err == nil && c.Offset == receipts[0].Offset {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	consumers.Wait()
	r.stop()
}
