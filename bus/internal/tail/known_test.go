package tail

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/store"
)

// TestKnownTopics: what a tail knows means the same lives in a store that has lost some,
// and in a copy, and says nothing to another one.
func TestKnownTopics(t *testing.T) {
	lives := store.Lives{Newest: 9, Eras: []store.Era{{ID: 70, First: 1}, {ID: 71, First: 4}, {ID: 72, First: 4}, {ID: 73, First: 8}}}
	newest := known{9, 73, 500}
	for _, tt := range []struct{ is, want known }{
		{known{9, 73, 0}, newest}, // as hubs said it that had no time
		{known{9, 73, 400}, known{9, 73, 400}},
		{known{8, 73, 400}, known{8, 73, 400}},
		{known{5, 72, 400}, known{5, 73, 400}},
		{known{8, 72, 400}, known{7, 73, 400}}, // 8 was lost, and given again
		{known{4, 71, 400}, known{3, 73, 400}},
		{known{0, 70, 400}, known{0, 73, 400}},
		{known{2, 70, 400}, known{2, 73, 400}},
		{known{12, 70, 400}, known{3, 73, 400}},
		{known{12, 73, 400}, known{9, 73, 400}}, // those after 9 are not in this copy, or not yet again
		{known{2, 99, 400}, known{9, 73, 400}},
		{known{2, 99, 0}, newest},
	} {
		equal(t, tt.is.String(), tt.is.in(lives, newest).String(), tt.want.String())
		again, err := parseKnown(tt.is.String())
		equal(t, "again", again.String(), tt.is.String())
		equal(t, "error", err, nil)
	}
	for _, text := range []string{"1", "-", "1-", "-1", "1-2-", "1-2-0", "1-2--3", "1-2-03", "1-2-3-4", "01-2", "+1-2", "A-1", "1-2 ", "zzzzzzzzzzzzzz-1"} {
		_, err := parseKnown(text)
		wantCode(t, err, eventhub.CodeBadRequest)
	}
}

// knower is an inbox that learns what to come back with.
type knower struct {
	*inbox
	known []string
}

func (k *knower) Know(known string) { k.known = append(k.known, known) }

// TestTailHasNewTopicsWhole: a tail that goes on has the topics that it does not know from
// their first event, those that it knows by its start, and those for which it has a place
// by that.
func TestTailHasNewTopicsWhole(t *testing.T) {
	inBubble(t, func(r *rig) {
		subscribe := func(o eventhub.TailOptions) (known string, got map[string][]uint64) {
			t.Helper()
			in := &knower{inbox: &inbox{Room: -1}}
			sub, err := r.tails.Open(context.Background(), o, in)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got = make(map[string][]uint64)
			for _, d := range in.Take() {
				got[d.Topic] = append(got[d.Topic], d.Offset)
			}
			sub.Drop(0)
			equal(t, "times notified", len(in.known), 1)
			return in.known[0], got
		}
		o := tailOpts("s.*")
		o.Topics = []string{"one", "two"}
		r.publish("s.a", 1, 2)
		r.publish("one", 1, 2)
		time.Sleep(2 * knownMargin)
		known, got := subscribe(o)
		equal(t, "from the latest on", got, map[string][]uint64{})
		r.publish("s.b", 1, 2)
		r.publish("two", 1, 2)
		equal(t, "error", r.deleteTopic("one"), nil)
		r.publish("one", 3, 2)
		r.publish("s.c", 1, 2)
		o.Known = known
		o.Places = []eventhub.Place{{Topic: "s.c", Offset: 1}}
		want := map[string][]uint64{"s.b": {1, 2}, "two": {1, 2}, "one": {3, 4}, "s.c": {2}}
		same, got := subscribe(o)
		equal(t, "what is known", same, known)
		equal(t, "of the new topics", got, want)
		o.Start = eventhub.Start{Kind: eventhub.StartTime, TS: 9_999_999_999_999}
		_, got = subscribe(o)
		equal(t, "and from a time on", got, want)
		o.Known = ""
		later, got := subscribe(o)
		equal(t, "of what is not said to be new", got, map[string][]uint64{"s.c": {2}})
		if later == known {
			t.Errorf("what is known is %s, as before", later)
		}

		o = tailOpts("two")
		o.Known, o.Start = known, eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}
		_, got = subscribe(o)
		equal(t, "from an offset on", got, map[string][]uint64{"two": {2}})
		o.Known = "nonsense"
		_, err := r.tails.Open(context.Background(), o, &knower{inbox: &inbox{Room: -1}})
		wantCode(t, err, eventhub.CodeBadRequest)
	})
}

// TestTailAtTheLatestContinues: a tail that began at the latest events, and had none of a
// topic, has those that were published while it was away. Nothing that a topic had before
// comes, also if the first event that the tail had has an old time.
func TestTailAtTheLatestContinues(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"s.a", "s.b", "s.c"} {
			r.publish(topic, 1, 2)
		}
		time.Sleep(time.Hour)
		in := &knower{inbox: &inbox{Room: -1}}
		again := func(o eventhub.TailOptions) map[string][]uint64 {
			t.Helper()
			sub, err := r.tails.Open(context.Background(), o, in)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			sub.Drop(0)
			got := make(map[string][]uint64)
			for _, d := range in.Take() {
				got[d.Topic] = append(got[d.Topic], d.Offset)
			}
			return got
		}
		o := tailOpts("s.*")
		equal(t, "at first", again(o), map[string][]uint64{})
		time.Sleep(time.Hour)
		r.publish("s.b", 3, 1)
		o.Known = in.known[0]
		want := map[string][]uint64{"s.b": {3}}
		equal(t, "the time after", again(o), want)
		time.Sleep(time.Hour)
		o.Known = in.known[1] // that nothing was given back of: it is the same as the first
		equal(t, "and again", again(o), want)
		o.Places = []eventhub.Place{{Topic: "s.b", Offset: 3}}
		equal(t, "with a place", again(o), map[string][]uint64{})
		// In another hub the time is all that counts.
		k, err := parseKnown(in.known[0])
		equal(t, "error", err, nil)
		o.Known, o.Places = known{k.life, k.era + 1, k.at}.String(), nil
		equal(t, "in another hub", again(o), want)
		o.Known = known{k.life, k.era, 0}.String()
		equal(t, "without a time", again(o), map[string][]uint64{})
	})
}

// reopened opens a tail that knows something, and ends it: what is known then, and the offsets that came.
func (r *rig) reopened(o eventhub.TailOptions) (next string, got []uint64) {
	r.t.Helper()
	in := &knower{inbox: &inbox{Room: -1}}
	sub, err := r.tails.Open(context.Background(), o, in)
	if err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	sub.Drop(0)
	for _, d := range in.Take() {
		got = append(got, d.Offset)
	}
	return in.known[0], got
}

// TestTailOfAClockAhead: a tail that began at a hub whose clock was ahead, and goes on at one whose clock is
// right, as after a takeover, has what was published in between, and nothing from before.
func TestTailOfAClockAhead(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := tailOpts("s.*")
		again := func(known string) (next string, got []uint64) {
			t.Helper()
			o.Known = known
			return r.reopened(o)
		}
		r.publish("s.a", 1, 2)
		time.Sleep(time.Hour)
		first, got := again("")
		equal(t, "at first", got, nil)
		r.restart()
		time.Sleep(time.Second)
		r.publish("s.a", 3, 2)
		k, err := parseKnown(first)
		equal(t, "error", err, nil)
		for _, ahead := range []time.Duration{3 * time.Second, time.Hour} {
			next, got := again(known{k.life, k.era, k.at + ahead.Milliseconds()}.String())
			equal(t, "after a clock ahead", got, []uint64{3, 4})
			_, got = again(next)
			equal(t, "and again", got, []uint64{3, 4})
		}
		// Who began here has nothing from before that.
		time.Sleep(time.Hour)
		own, _ := again("")
		_, got = again(own)
		equal(t, "of this run", got, nil)
		// In another hub the time is all that counts.
		_, got = again(known{k.life, k.era + 1, k.at + 3*time.Hour.Milliseconds()}.String())
		equal(t, "of another hub", got, nil)
	})
}

// TestTailByTimeOfAClockAhead: so it is with a tail that names a time, which is how an event stream of several topics
// goes on in those for which there was no room in its id.
func TestTailByTimeOfAClockAhead(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := tailOpts("s.*")
		again := func(known string) (next string, got []uint64) {
			t.Helper()
			o.Known = known
			return r.reopened(o)
		}
		r.publish("s.a", 1, 2)
		time.Sleep(time.Hour)
		o.Start = eventhub.Start{Kind: eventhub.StartTime, TS: time.Now().Add(-10 * time.Second).UnixMilli()}
		first, got := again("")
		equal(t, "at first", got, nil)
		r.publish("s.a", 3, 1)
		_, got = again(first)
		equal(t, "by the time", got, []uint64{3})
		time.Sleep(time.Minute)
		r.restart()
		time.Sleep(time.Second)
		r.publish("s.a", 4, 2)
		k, err := parseKnown(first)
		equal(t, "error", err, nil)
		o.Start.TS += time.Hour.Milliseconds()
		next, got := again(known{k.life, k.era, k.at + time.Hour.Milliseconds()}.String())
		equal(t, "after a clock ahead", got, []uint64{4, 5})
		_, got = again(next)
		equal(t, "and again", got, []uint64{4, 5})
	})
}
