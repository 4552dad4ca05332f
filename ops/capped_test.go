package ops

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"eventhub/internal/measure"
)

// others returns the row of the others among what fold has returned.
func others(t *testing.T, rows []groupRow) groupRow {
	t.Helper()
	for _, row := range rows {
		if row.Topic == otherLabel && row.Group.Group == otherLabel {
			return row
		}
	}
	t.Fatal("there is no row of the others")
	return groupRow{}
}

// rowsOf makes rows of what the engine says.
func rowsOf(groups []measure.Group) []groupRow {
	rows := make([]groupRow, len(groups))
	for i := range groups {
		rows[i] = rowOf(&groups[i])
	}
	return rows
}

func group(name string, acked uint64, lag uint64) measure.Group {
	g := measure.Group{Topic: "t", Group: name, Acked: acked, Lag: lag, InFlight: map[string]int{"ws": 1}, Handler: measure.NewHistogram(measure.Milliseconds)}
	for range acked {
		g.Handler.Observe(1)
	}
	return g
}

// TestOthersNeverGoBack: what a deleted group has counted stays in the sum; what
// it had before does not.
func TestOthersNeverGoBack(t *testing.T) {
	c := newCapped(1, groupKind)
	for i, step := range []struct {
		rows                []measure.Group
		acked, lag, handled uint64
	}{
		{[]measure.Group{group("kept", 100, 9), group("a", 10, 1), group("b", 20, 2)}, 30, 3, 30},
		{[]measure.Group{group("kept", 100, 9), group("a", 11, 1)}, 31, 1, 31},                   // b was deleted
		{[]measure.Group{group("kept", 100, 9), group("a", 12, 1), group("b", 3, 4)}, 35, 5, 35}, // and made again
		{[]measure.Group{group("kept", 100, 9), group("a", 2, 7), group("b", 3, 4)}, 37, 11, 37}, // a was deleted and made again in between
		{[]measure.Group{group("kept", 100, 9)}, 37, 0, 37},                                      // nobody is left
		{nil, 37, 0, 37}, // not even who has a label
		{[]measure.Group{group("c", 1, 1)}, 38, 1, 38},                                             // whose label is not given away
		{[]measure.Group{group("c", 1, 1), group("kept", 1, 1)}, 38, 1, 38},                        //
		{[]measure.Group{group("c", 1, 1), {Topic: "t", Group: "idle", InFlight: nil}}, 38, 1, 38}, // one that has never run has no histograms
	} {
		row := others(t, append(c.fold(rowsOf(step.rows)), groupRow{}))
		if row.Acked != step.acked || row.Lag != step.lag || row.Handler.Count() != step.handled {
			t.Errorf("step %d: acked %d, lag %d, handled %d; want %d, %d, %d", i, row.Acked, row.Lag, row.Handler.Count(), step.acked, step.lag, step.handled)
		}
	}
}

// TestOneAmongTheOthersHidesNone: a paused group, or one without members, does not speak
// for the rest of the row.
func TestOneAmongTheOthersHidesNone(t *testing.T) {
	standing, paused, alone := group("standing", 0, 3), group("paused", 0, 5), group("alone", 0, 7)
	standing.Members, paused.Members, paused.Paused = 1, 1, true
	c := newCapped(1, groupKind)
	row := others(t, c.fold(rowsOf([]measure.Group{group("kept", 0, 0), standing, paused, alone})))
	if row.deliverable != 3 || row.unattended != 7 || row.paused != 1 || row.Lag != 15 {
		t.Errorf("deliverable %d, unattended %d, paused %d, lag %d; want 3, 7, 1, 15", row.deliverable, row.unattended, row.paused, row.Lag)
	}
}

// TestATopicMayBeNamedLikeTheOthers: it counts among them, and no name has two
// rows.
func TestATopicMayBeNamedLikeTheOthers(t *testing.T) {
	c := newCapped(2, topicKind)
	rows := c.fold([]measure.Topic{{Topic: otherLabel, Events: 1}, {Topic: "a", Events: 2}, {Topic: "b", Events: 4}, {Topic: "c", Events: 8}})
	got := make(map[string]uint64)
	for _, row := range rows {
		if _, twice := got[row.Topic]; twice {
			t.Errorf("topic %s has two rows", row.Topic)
		}
		got[row.Topic] = row.Events
	}
	if len(got) != 3 || got["a"] != 2 || got["b"] != 4 || got[otherLabel] != 9 {
		t.Errorf("rows are %v", got)
	}
}

// TestBelowTheCapNothingIsFolded: no row that nobody needs.
func TestBelowTheCapNothingIsFolded(t *testing.T) {
	c := newCapped(3, topicKind)
	for range 2 {
		if rows := c.fold([]measure.Topic{{Topic: "a"}, {Topic: "b"}, {Topic: "c"}}); len(rows) != 3 {
			t.Errorf("rows are %v", rows)
		}
	}
}

// TestRandomHistories: whatever groups are made and deleted, the sum of all rows
// that were ever counted is exact as long as nothing happens unseen.
func TestRandomHistories(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := newCapped(3, groupKind)
	alive := make(map[string]*measure.Group)
	var acked [10]uint64 // by group, over all its lives
	for step := range 2000 {
		i := random.IntN(len(acked))
		name := fmt.Sprint(i)
		g := alive[name]
		switch {
		case g == nil:
			alive[name] = &measure.Group{Topic: "t", Group: name}
		case random.IntN(5) == 0:
			delete(alive, name)
		default:
			n := random.Uint64N(5)
			g.Acked += n
			acked[i] += n
		}
		rows := make([]measure.Group, 0, len(alive))
		for _, g := range alive {
			rows = append(rows, *g)
		}
		got, want := uint64(0), uint64(0)
		for _, row := range c.fold(rowsOf(rows)) {
			if row.Topic == otherLabel {
				got = row.Acked
			}
		}
		for i, n := range acked {
			if !c.kept[groupName{"t", fmt.Sprint(i)}] {
				want += n
			}
		}
		if got != want {
			t.Fatalf("step %d: the others have acked %d; want %d", step, got, want)
		}
	}
}
