package tail

import (
	"context"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/store"
)

// TestKnownTopics: what a tail knows means the same lives in a store that has lost some,
// and in a copy, and says nothing to another one.
func TestKnownTopics(t *testing.T) {
	lives := store.Lives{Newest: 9, Eras: []store.Era{{ID: 70, First: 1}, {ID: 71, First: 4}, {ID: 72, First: 4}, {ID: 73, First: 8}}}
	newest := known{9, 73}
	for _, tt := range []struct{ is, want known }{
		{known{9, 73}, newest},
		{known{8, 73}, known{8, 73}},
		{known{5, 72}, known{5, 73}},
		{known{8, 72}, known{7, 73}}, // 8 was lost, and given again
		{known{4, 71}, known{3, 73}},
		{known{0, 70}, known{0, 73}},
		{known{2, 70}, known{2, 73}},
		{known{12, 70}, known{3, 73}},
		{known{12, 73}, newest}, // those behind 9 are not in this copy, or not yet again
		{known{2, 99}, newest},
	} {
		equal(t, tt.is.String(), tt.is.in(lives, newest).String(), tt.want.String())
		again, err := parseKnown(tt.is.String())
		equal(t, "again", again.String(), tt.is.String())
		equal(t, "error", err, nil)
	}
	for _, text := range []string{"1", "-", "1-", "-1", "1-2-3", "01-2", "+1-2", "A-1", "1-2 ", "zzzzzzzzzzzzzz-1"} {
		_, err := parseKnown(text)
		wantCode(t, err, eventhub.CodeBadRequest)
	}
}

// knower is an inbox that is told what to come back with.
type knower struct {
	*inbox
	known []string
}

func (k *knower) Know(known string) { k.known = append(k.known, known) }

// TestTailHasNewTopicsWhole: a tail that goes on has the topics that it does not know from
// their first event, those that it knows by its start, and by its place those of which it
// has one.
func TestTailHasNewTopicsWhole(t *testing.T) {
	inBubble(t, func(r *rig) {
		subscribe := func(o eventhub.TailOptions) (known string, got map[string][]uint64) {
			t.Helper()
			in := &knower{inbox: &inbox{room: -1}}
			sub, err := r.tails.Open(context.Background(), o, in)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got = make(map[string][]uint64)
			for _, d := range in.take() {
				got[d.Topic] = append(got[d.Topic], d.Offset)
			}
			sub.Drop(0)
			equal(t, "times told", len(in.known), 1)
			return in.known[0], got
		}
		o := tailOpts("s.*")
		o.Topics = []string{"one", "two"}
		r.publish("s.a", 1, 2)
		r.publish("one", 1, 2)
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
		_, err := r.tails.Open(context.Background(), o, &knower{inbox: &inbox{room: -1}})
		wantCode(t, err, eventhub.CodeBadRequest)
	})
}
