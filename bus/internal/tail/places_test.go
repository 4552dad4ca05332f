package tail

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
)

// TestTailGoesOn: after its places, and at its start in all other topics, those
// that are created later too.
func TestTailGoesOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, topic := range []string{"s.a", "s.b", "s.c", "other"} {
			r.publish(topic, 1, 5)
		}
		o := tailOpts("s.*")
		o.Places = []eventhub.Place{{Topic: "s.a", Offset: 3}, {Topic: "s.b", Offset: 0}, {Topic: "s.none", Offset: 7}, {Topic: "other", Offset: 2}}
		in := r.tail(o)
		r.publish("s.c", 6, 1)
		r.publish("s.d", 1, 2)
		got := make(map[string][]uint64)
		for _, d := range in.Take() {
			got[d.Topic] = append(got[d.Topic], d.Offset)
		}
		equal(t, "deliveries", got, map[string][]uint64{"s.a": {4, 5}, "s.b": {1, 2, 3, 4, 5}, "s.c": {6}, "s.d": {1, 2}})

		one := tailOpts("other")
		one.Places = []eventhub.Place{{Topic: "other", Offset: 4}}
		equal(t, "of one topic", r.tail(one).TakeOffsets(), []uint64{5})
	})
}

// gapped is an inbox that is notified of gaps.
type gapped struct {
	*inbox
	gaps []eventhub.Gap
}

func (g *gapped) Gap(gap eventhub.Gap) { g.gaps = append(g.gaps, gap) }

// TestTailGoesOnInAnotherLog: where the log does not have what a tail has seen, it goes
// on with what was committed later, and says so.
func TestTailGoesOnInAnotherLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("s.a", 1, 5)
		seen := time.Now().UnixMilli()
		time.Sleep(time.Second)
		r.publish("s.a", 6, 4)
		place := func(topic string, offset uint64, ts int64) eventhub.Place {
			return eventhub.Place{Topic: topic, Offset: offset, TS: ts}
		}
		for _, tt := range []struct {
			name  string
			place eventhub.Place
			want  []uint64
			gaps  []eventhub.Gap
		}{
			{"the same log", place("s.a", 4, seen), []uint64{5, 6, 7, 8, 9}, nil},
			{"its end was lost", place("s.a", 12, seen), []uint64{6, 7, 8, 9}, []eventhub.Gap{{Topic: "s.a", After: 12}}},
			{"another event is there", place("s.a", 7, seen), []uint64{6, 7, 8, 9}, []eventhub.Gap{{Topic: "s.a", After: 7}}},
			{"an earlier event is there", place("s.a", 7, seen+2000), []uint64{8, 9}, []eventhub.Gap{{Topic: "s.a", After: 7}}},
			{"all of it was seen", place("s.a", 12, seen+2000), nil, []eventhub.Gap{{Topic: "s.a", After: 12}}},
			{"the time is not known", place("s.a", 7, 0), []uint64{8, 9}, nil},
			{"the time is not known, and its end was lost", place("s.a", 12, 0), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, []eventhub.Gap{{Topic: "s.a", After: 12}}},
			{"the topic is gone", place("s.b", 12, seen), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, []eventhub.Gap{{Topic: "s.b", After: 12}}},
			{"of another pattern", place("t.b", 12, seen), []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}, nil},
		} {
			o := tailOpts("s.*")
			o.Start = eventhub.Earliest
			o.Places = []eventhub.Place{tt.place}
			in := &gapped{inbox: &inbox{Room: -1}}
			sub, err := r.tails.Open(context.Background(), o, in)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			equal(t, tt.name, in.TakeOffsets(), tt.want)
			equal(t, tt.name+": gaps", in.gaps, tt.gaps)
			sub.Drop(0)
		}
	})
}

// TestTailGoesOnBesideAHole: a log that has a hole where the tail was, and events before
// it, is not the one that the tail was in: a hub that crashed goes on above the offsets
// that it may have given.
func TestTailGoesOnBesideAHole(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		seen := time.Now().UnixMilli()
		time.Sleep(time.Second)
		r.publish("t", 4, 3)
		r.sparse("t", 1000)
		for _, tt := range []struct {
			place eventhub.Place
			want  []uint64
			gaps  []eventhub.Gap
		}{
			{eventhub.Place{Topic: "t", Offset: 20, TS: seen}, []uint64{4, 5, 6, 1000}, []eventhub.Gap{{Topic: "t", After: 20}}},
			{eventhub.Place{Topic: "t", Offset: 20}, []uint64{1000}, nil}, // nobody knows
		} {
			o := tailOpts("t")
			o.Places = []eventhub.Place{tt.place}
			in := &gapped{inbox: &inbox{Room: -1}}
			sub, err := r.tails.Open(context.Background(), o, in)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			equal(t, "offsets", in.TakeOffsets(), tt.want)
			equal(t, "gaps", in.gaps, tt.gaps)
			sub.Drop(0)
		}
	})
}

// TestTailGoesOnAboveItsOffset: what is above the offset that a tail was at is new to it,
// whatever its commit time, also where the log lost the event of that place: it may have
// been committed in the same millisecond, or by a clock that was set back.
func TestTailGoesOnAboveItsOffset(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		seen := time.Now().UnixMilli()
		for _, offset := range []uint64{1000, 1001} {
			r.sparse("t", offset)
		}
		if now := time.Now().UnixMilli(); now != seen {
			t.Fatalf("the clock went from %d to %d", seen, now)
		}
		for _, ts := range []int64{seen, seen + 1, seen + 3_600_000} {
			o := tailOpts("t")
			o.Places = []eventhub.Place{{Topic: "t", Offset: 20, TS: ts}}
			in := &gapped{inbox: &inbox{Room: -1}}
			sub, err := r.tails.Open(context.Background(), o, in)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			equal(t, "offsets", in.TakeOffsets(), []uint64{1000, 1001})
			sub.Drop(0)
		}
	})
}

func TestPlacesAreChecked(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, places := range [][]eventhub.Place{
			make([]eventhub.Place, eventhub.MaxPlaces+1), {{Topic: "t", TS: -1}}, {{Topic: "a b", Offset: 1}}, {{Topic: "t.*", Offset: 1}}, {{Topic: "t", Offset: eventhub.MaxOffset + 1}},
		} {
			o := tailOpts("t")
			o.Places = places
			_, err := r.tails.Open(context.Background(), o, nil)
			wantCode(t, err, eventhub.CodeBadRequest)
		}
	})
}
