package client

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"eventhub"
)

// came makes deliveries of "topic offset age" each; the age is in seconds before
// now.
func came(now time.Time, texts ...string) []eventhub.Delivery {
	var batch []eventhub.Delivery
	for _, text := range texts {
		var d eventhub.Delivery
		var age int64
		if _, err := fmt.Sscan(text, &d.Topic, &d.Offset, &age); err != nil {
			panic(err)
		}
		d.Record = fmt.Appendf(nil, `{"ts":%13d,"id":"x","topic":%q,"payload":1}`, now.UnixMilli()-1000*age, d.Topic)
		batch = append(batch, d)
	}
	return batch
}

// TestTrailGoesOn: where a tail over several topics goes on, for each way to begin
// and to be behind.
func TestTrailGoesOn(t *testing.T) {
	now := time.UnixMilli(1723140000000)
	ago := func(seconds int64) eventhub.Start {
		return eventhub.Start{Kind: eventhub.StartTime, TS: now.UnixMilli() - 1000*seconds}
	}
	earliest := eventhub.Start{Kind: eventhub.StartEarliest}
	type moment struct {
		before int64 // seconds before now
		events []string
	}
	for name, tt := range map[string]struct {
		start   eventhub.Start
		moments []moment
		want    eventhub.Start
	}{
		"nothing came":                     {want: eventhub.Start{}},
		"nothing came, of the past":        {start: earliest, want: earliest},
		"live":                             {moments: []moment{{600, []string{"a 1 600"}}, {10, []string{"a 2 10", "b 1 11"}}}, want: ago(40)},
		"live, and young":                  {moments: []moment{{20, []string{"a 1 20"}}, {10, []string{"b 1 10"}}}, want: ago(20)},
		"a topic is behind":                {moments: []moment{{600, []string{"a 1 600"}}, {10, []string{"a 2 10", "b 1 300"}}}, want: ago(600)},
		"it was, long ago":                 {moments: []moment{{600, []string{"a 1 600"}}, {100, []string{"a 2 100", "b 1 300"}}, {10, []string{"b 2 10"}}}, want: ago(40)},
		"reads the past":                   {start: earliest, moments: []moment{{900, nil}, {5, []string{"a 1 9000", "a 2 8999"}}}, want: earliest},
		"has read the past":                {start: earliest, moments: []moment{{900, []string{"a 1 9000"}}, {5, []string{"a 2 5"}}}, want: ago(35)},
		"began just now":                   {start: earliest, moments: []moment{{29, nil}, {5, []string{"a 1 5"}}}, want: earliest},
		"never before where it was to":     {start: ago(33), moments: []moment{{32, []string{"a 1 33"}}, {1, []string{"a 2 1"}}}, want: ago(31)},
		"never before where it was to (2)": {start: ago(31), moments: []moment{{31, nil}, {4, []string{"a 2 4"}}}, want: ago(31)},
	} {
		var tr *trail
		for i, m := range append([]moment{}, tt.moments...) {
			at := now.Add(-time.Duration(m.before) * time.Second)
			if i == 0 {
				tr = newTrail(tt.start, true, at)
			}
			tr.fresh(came(now, m.events...), at)
		}
		if tr == nil {
			tr = newTrail(tt.start, true, now)
		}
		if got := tr.resume(now); got != tt.want {
			t.Errorf("%s: goes on at %+v; want %+v", name, got, tt.want)
		}
	}
}

// TestTrailTakesOut what came before, topic by topic; of a conflated tail nothing.
func TestTrailTakesOut(t *testing.T) {
	now := time.UnixMilli(1723140000000)
	for _, ordered := range []bool{true, false} {
		tr := newTrail(eventhub.Start{}, ordered, now)
		tr.fresh(came(now, "a 1 9", "b 7 8", "a 2 7"), now)
		var got []string
		for _, d := range tr.fresh(came(now, "a 1 9", "b 7 8", "a 2 7", "c 1 7", "a 3 1", "b 6 1", "b 9 0"), now) {
			got = append(got, fmt.Sprint(d.Topic, d.Offset))
		}
		want := []string{"c1", "a3", "b9"}
		if !ordered {
			want = []string{"a1", "b7", "a2", "c1", "a3", "b6", "b9"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("ordered %v: %v came; want %v", ordered, got, want)
		}
	}
}

// TestTrailIsBounded: it forgets first what a tail does not come back to.
func TestTrailIsBounded(t *testing.T) {
	now := time.UnixMilli(1723140000000)
	tr := newTrail(eventhub.Start{}, true, now)
	tr.fresh(came(now, "new 5 0", "old 1 100"), now)
	for i := range maxTrail - 2 {
		tr.places[fmt.Sprint("t", i)] = place{1, now.UnixMilli()}
	}
	tr.fresh(came(now, "next 1 0"), now)
	if _, ok := tr.places["old"]; ok || len(tr.places) != maxTrail {
		t.Errorf("the old place is kept: %v; there are %d places; want %d", ok, len(tr.places), maxTrail)
	}
	tr.fresh(came(now, "another 1 0"), now)
	if len(tr.places) > maxTrail {
		t.Errorf("there are %d places; want at most %d", len(tr.places), maxTrail)
	}
	if _, ok := tr.places["another"]; !ok {
		t.Error("a new place is not kept")
	}
}
