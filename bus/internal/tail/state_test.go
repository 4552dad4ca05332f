package tail

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/store/memory"
)

// stateInbox notes what a tail with the state is given, in words.
type stateInbox struct {
	*inbox
	words []string
}

func (in *stateInbox) Deliver(batch []eventhub.Delivery) int {
	in.Mu.Lock()
	defer in.Mu.Unlock()
	for i := range batch {
		if in.Room == 0 {
			return i
		}
		in.Room--
		d := &batch[i]
		switch s := d.State; {
		case s == nil:
			in.words = append(in.words, fmt.Sprint("event ", d.Offset))
		case s.Complete:
			in.words = append(in.words, fmt.Sprintf("%d at %d", s.Count, s.Offset))
		case s.Horizon != 0:
			in.words = append(in.words, fmt.Sprint("horizon ", s.Horizon))
		case s.Snapshot != "":
			in.words = append(in.words, fmt.Sprint("first ", d.Offset))
		default:
			in.words = append(in.words, fmt.Sprint("state ", d.Offset))
		}
	}
	return len(batch)
}

func (in *stateInbox) take() []string {
	synctest.Wait()
	in.Mu.Lock()
	defer in.Mu.Unlock()
	words := in.words
	in.words = nil
	return words
}

func (r *rig) state(o eventhub.TailOptions) *stateInbox {
	r.t.Helper()
	o.Start = eventhub.Snapshot
	in := &stateInbox{inbox: &inbox{T: r.t, Room: -1}}
	var err error
	if in.Sub, err = r.tails.Open(bg, o, in); err != nil {
		r.t.Fatal(err)
	}
	return in
}

func (r *rig) end(topic, key string) {
	r.t.Helper()
	if _, err := r.commit(bg, eventhub.Event{Topic: topic, Key: key, Payload: []byte(`null`)}); err != nil {
		r.t.Fatal(err)
	}
}

// TestStateOfAFilter: keys whose newest event does not pass are not in the state; what ends a key
// passes, unless the key does not.
func TestStateOfAFilter(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a.1", "b.1", "a.2", "a.1") // 1 to 4
		byKey := tailOpts("t")
		byKey.Filter = &eventhub.Filter{Key: "a.*"}
		byBoth := tailOpts("t")
		byBoth.Filter = &eventhub.Filter{Key: "a.*", CEL: `event.payload != null && event.payload == 1`}
		for _, o := range []eventhub.TailOptions{byKey, byBoth} {
			in := r.state(o)
			equal(t, "state", in.take(), []string{"first 3", "state 4", "2 at 4"})
			in.Sub.Drop(0)
		}
		in := r.state(byBoth)
		in.take()
		r.publishKeys("t", "b.1", "a.3") // 5, 6
		r.end("t", "a.2")
		r.end("t", "b.1")
		equal(t, "events", in.take(), []string{"event 6", "event 7"})
	})
}

// TestStateIsTooLarge: a state has a bound, which the end of the tail says.
func TestStateIsTooLarge(t *testing.T) {
	inBubble(t, func(r *rig) {
		most := r.tails.opts.StateKeys
		var keys []string
		for i := range most {
			keys = append(keys, fmt.Sprint("k", i))
		}
		r.publishKeys("t", keys...)
		in := r.state(tailOpts("t"))
		if words := in.take(); len(words) != most+1 {
			t.Errorf("%d words of %d keys", len(words), most)
		}
		in.Sub.Drop(0)
		r.publishKeys("t", "one more")
		in = r.state(tailOpts("t"))
		equal(t, "given", in.take(), nil)
		if len(in.Ends) != 1 {
			t.Fatalf("it ended %d times", len(in.Ends))
		}
		wantCode(t, in.Ends[0], eventhub.CodeTooLarge)
		equal(t, "message", eventhub.AsError(in.Ends[0]).Message, fmt.Sprintf(`the state of topic "t" has more than %d keys; so many a tail may begin with`, most))
		equal(t, "bytes of the budget", r.tails.states.Used(), 0)
	})
}

// TestStatesShareTheirMemory: who comes when it is used up waits, and takes its turn when a tail
// has its state, is paused, or ends. A tail of a few keys does not wait.
func TestStatesShareTheirMemory(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.tails.opts.StateKeys = 4 * leastOffsets
		for i := range leastOffsets + 1 {
			r.publishKeys("t", fmt.Sprintf("k%05d", i))
		}
		r.publishKeys("few", "a", "b", "c")
		// Each has room for twice leastOffsets, and had once that before.
		fits := r.tails.opts.StateBytes/(2*leastOffsets*offsetBytes) - 1
		var all []*stateInbox
		open := func(topic string) *stateInbox {
			in := &stateInbox{inbox: &inbox{T: t}}
			o := tailOpts(topic)
			o.Start = eventhub.Snapshot
			var err error
			if in.Sub, err = r.tails.Open(bg, o, in); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return in
		}
		for range fits + 3 {
			all = append(all, open("t"))
		}
		sends := func() (n int) {
			synctest.Wait()
			for _, in := range all {
				t := in.Sub.(*Tail)
				t.mu.Lock()
				if t.snap.phase == sending {
					n++
				}
				t.mu.Unlock()
			}
			return n
		}
		equal(t, "tails that have room", sends(), fits)
		few := open("few")
		few.setRoom(-1)
		few.Sub.Ready()
		synctest.Wait()
		equal(t, "what a tail of a few keys has", few.take(), []string{"first 1", "state 2", "state 3", "3 at 3"})
		all[0].Sub.Drop(0)
		synctest.Wait()
		if used, most := r.tails.states.Used(), r.tails.opts.StateBytes+2*leastOffsets*offsetBytes; used > most {
			t.Errorf("%d bytes are held; want at most %d: what there is, and the first few of two that wait", used, most)
		}
		if err := all[1].Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		equal(t, "tails that have room", sends(), fits+1) // one that is gone counts as well
		all[2].setRoom(-1)
		all[2].Sub.Ready()
		equal(t, "what one has", len(all[2].take()), leastOffsets+2)
		equal(t, "tails that have room", sends(), fits+1)
		if err := all[1].Sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		for _, in := range all[1:] {
			in.setRoom(-1)
			in.Sub.Ready()
		}
		synctest.Wait()
		equal(t, "what the paused one has", len(all[1].take()), leastOffsets+2)
		equal(t, "what the last one has", len(all[len(all)-1].take()), leastOffsets+2)
		equal(t, "bytes that are held in the end", r.tails.states.Used(), 0)
	})
}

func (in *stateInbox) setRoom(n int) {
	in.Mu.Lock()
	defer in.Mu.Unlock()
	in.Room = n
}

// TestPausedStateGoesOn: a state that was paused in the middle goes on where it was.
func TestPausedStateGoesOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a", "b", "c", "d")
		in := r.state(tailOpts("t"))
		in.take()
		in.Sub.Drop(0)
		in = &stateInbox{inbox: &inbox{T: t, Room: 2}}
		o := tailOpts("t")
		o.Start = eventhub.Snapshot
		var err error
		if in.Sub, err = r.tails.Open(bg, o, in); err != nil {
			t.Fatal(err)
		}
		equal(t, "at first", in.take(), []string{"first 1", "state 2"})
		if err := in.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		equal(t, "bytes of one that is paused", r.tails.states.Used(), 0)
		r.publishKeys("t", "c")
		in.setRoom(-1)
		in.Sub.Ready()
		equal(t, "paused", in.take(), nil)
		if err := in.Sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		equal(t, "then", in.take(), []string{"state 3", "state 4", "4 at 4", "event 5"})
	})
}

// TestRemovalBeforeLaterEvents: a reader is told of a horizon, and gets the state anew after an erasure, before it gets what
// was published after that, also where a turn of the tail is under way.
func TestRemovalBeforeLaterEvents(t *testing.T) {
	for name, test := range map[string]struct {
		horizon uint64
		erase   []uint64
		want    []string
	}{
		"a horizon":  {3, nil, []string{"horizon 3", "event 4", "event 5", "event 6"}},
		"an erasure": {0, []uint64{2}, []string{"first 1", "state 3", "2 at 3", "event 4", "event 5", "event 6"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{MaxTopics: 100})}}
				r.start(1)
				r.publishKeys("t", "a", "b", "c")
				in := r.state(tailOpts("t"))
				equal(t, "at first", in.take(), []string{"first 1", "state 2", "state 3", "3 at 3"})
				in.setRoom(0)
				r.publishKeys("t", "d", "e")
				synctest.Wait()
				strike := sync.OnceFunc(func() {
					r.remove("t", test.horizon, test.erase...)
					r.publishKeys("t", "f")
				})
				r.store.beforeRead = func(string) { strike() }
				in.setRoom(-1)
				in.Sub.Ready()
				equal(t, "then", in.take(), test.want)
				r.close()
			})
		})
	}
}

// TestStateOfATailThatLeaves: a tail may leave, or be paused, between a turn's look at it and the sending
// of its state.
func TestStateOfATailThatLeaves(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a", "b", "c", "d")
		for _, leave := range []func(*Tail){
			func(tail *Tail) { tail.Drop(0) },
			func(tail *Tail) {
				if err := tail.Pause(bg); err != nil {
					t.Error(err)
				}
			},
		} {
			in := &stateInbox{inbox: &inbox{T: t, Room: 2}}
			o := tailOpts("t")
			o.Start = eventhub.Snapshot
			sub, err := r.tails.Open(bg, o, in)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "before", in.take(), []string{"first 1", "state 2"})
			tail := sub.(*Tail)
			leave(tail)
			in.setRoom(-1)
			if tail.sendState(new(feed), time.Now()) {
				t.Error("there is more to do for a tail that has left")
			}
			equal(t, "after", in.take(), nil)
			tail.Drop(0)
		}
	})
}

// TestStrangeSnapshots: what no hub has sent is refused; of another run the state comes anew.
func TestStrangeSnapshots(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "a", "b")
		for _, text := range []string{"x", "s-1", "s-1-2-3-4-5", "s-1-2-3-", "c-1-2-3-A", "x-1-2-3-4", "s--1-2-3"} {
			o := tailOpts("t")
			o.Start, o.Snapshot = eventhub.Snapshot, text
			_, err := r.tails.Open(bg, o, &stateInbox{inbox: &inbox{T: t}})
			wantCode(t, err, eventhub.CodeBadRequest)
		}
		o := tailOpts("t")
		o.Snapshot, o.Places = "c-1-1-0-1", []eventhub.Place{{Topic: "t", Offset: 1}}
		in := r.state(o)
		equal(t, "of another run", in.take(), []string{"first 1", "1 at 1", "event 2"})
		o.Places[0].Offset = 7
		equal(t, "at a place ahead", r.state(o).take(), []string{"first 1", "state 2", "2 at 2"})
	})
}
