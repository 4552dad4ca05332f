package past

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/filter"
	"eventhub/store"
	"eventhub/store/memory"
)

// shown writes a change as "+key/to", "-key/from" or "key/from/to".
func shown(c *admin.StateChange) string {
	switch c.Kind() {
	case admin.StateAdded:
		return fmt.Sprintf("+%s/%d", c.Key, c.To.Offset)
	case admin.StateRemoved:
		return fmt.Sprintf("-%s/%d", c.Key, c.From.Offset)
	}
	return fmt.Sprintf("%s/%d/%d", c.Key, c.From.Offset, c.To.Offset)
}

// diff returns the changes of all pages of a query, and the offsets that they are between.
func (r *rig) diff(q admin.StateDiffQuery) (seen []string, from, to uint64, err error) {
	for {
		page, err := r.history.StateDiff(bg, q)
		if err != nil {
			return seen, 0, 0, err
		}
		if len(page.Changes) > q.Limit || q.Page != "" && (page.From != from || page.To != to) {
			return seen, 0, 0, fmt.Errorf("StateDiff(%+v) has %d changes from %d to %d", q, len(page.Changes), page.From, page.To)
		}
		from, to = page.From, page.To
		for _, c := range page.Changes {
			for _, e := range []eventhub.Item{c.From, c.To} {
				if e.Record != nil && string(e.Record.Key()) != c.Key {
					return seen, 0, 0, fmt.Errorf("the change of key %q has event %d of key %q", c.Key, e.Offset, e.Record.Key())
				}
			}
			seen = append(seen, shown(&c))
		}
		if page.Next == "" {
			return seen, from, to, nil
		}
		q.Page, q.From, q.To = page.Next, admin.Moment{}, admin.Moment{}
	}
}

func (r *rig) wantDiff(q admin.StateDiffQuery, want string) {
	r.t.Helper()
	q.Topic = "t"
	for _, q.Limit = range []int{1, 2, 1000} {
		got, _, _, err := r.diff(q)
		if err != nil || strings.Join(got, " ") != want {
			r.t.Errorf("StateDiff(%+v) = %q, %v; want %q", q, got, err, want)
		}
	}
}

func (r *rig) wantNoDiff(q admin.StateDiffQuery, code eventhub.Code, says string) {
	r.t.Helper()
	if q.Topic == "" {
		q.Topic = "t"
	}
	if q.Limit == 0 {
		q.Limit = 10
	}
	_, err := r.history.StateDiff(bg, q)
	if e := eventhub.AsError(err); err == nil || e.Code != code || !strings.Contains(e.Message, says) {
		r.t.Errorf("StateDiff(%+v): %v; want %s with %q", q, err, code, says)
	}
}

func offset(n uint64) admin.Moment { return admin.Moment{Offset: n} }

func moment(ms int64) admin.Moment { return admin.Moment{TS: ms} }

func TestStateDiff(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := time.Now().UnixMilli()
		r.publishEvents(keyed("b", "1"), keyed("a", "1"), keyed("c", "1"), keyed("a", "null"), keyed("b", "2"), eventhub.Event{Topic: "t"}, keyed("a", "3"))
		r.wantDiff(admin.StateDiffQuery{From: offset(1)}, "+a/7 b/1/5 +c/3")
		r.wantDiff(admin.StateDiffQuery{From: offset(3), To: offset(4)}, "-a/2")
		r.wantDiff(admin.StateDiffQuery{From: offset(2), To: offset(7)}, "a/2/7 b/1/5 +c/3")
		r.wantDiff(admin.StateDiffQuery{From: offset(2), To: offset(7), Prefix: "b"}, "b/1/5")
		r.wantDiff(admin.StateDiffQuery{From: offset(4), To: offset(4)}, "")
		r.wantDiff(admin.StateDiffQuery{From: moment(first - 1), To: offset(2)}, "+a/2 +b/1")
		r.wantDiff(admin.StateDiffQuery{To: offset(2)}, "+a/2 +b/1")
		r.wantDiff(admin.StateDiffQuery{}, "+a/7 +b/5 +c/3")
		r.wantDiff(admin.StateDiffQuery{From: moment(first - 2), To: moment(first - 1)}, "")
		r.wantDiff(admin.StateDiffQuery{From: moment(first + 2999), To: moment(first + 3000)}, "-a/2")
		r.wantDiff(admin.StateDiffQuery{From: moment(first + 1e6)}, "")
		_, from, to, err := r.diff(admin.StateDiffQuery{Topic: "t", From: moment(first + 1000), Limit: 1})
		if from != 2 || to != 7 || err != nil {
			t.Errorf("the offsets are %d and %d, %v", from, to, err)
		}
	})
}

func TestStateDiffThatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := time.Now().UnixMilli()
		r.publishEvents(keyed("a", "1"), keyed("b", "1"), keyed("a", "2"), keyed("b", "2"), keyed("c", "1"))
		page, err := r.history.StateDiff(bg, admin.StateDiffQuery{Topic: "t", From: offset(2), Limit: 1})
		if err != nil || page.Next == "" {
			t.Fatalf("the first page is %+v, %v", page, err)
		}
		r.remove("t", 3)
		gone := eventhub.CodeGone
		r.wantNoDiff(admin.StateDiffQuery{Page: page.Next}, gone, "at offset 2 is gone: it is known from offset 3 on")
		r.wantNoDiff(admin.StateDiffQuery{From: offset(2)}, gone, "from offset 3 on")
		r.wantNoDiff(admin.StateDiffQuery{From: moment(first - 1)}, gone, "from offset 3 on")
		r.wantNoDiff(admin.StateDiffQuery{}, gone, "before its first event is gone: it is known from offset 3 on")
		r.wantDiff(admin.StateDiffQuery{From: offset(3)}, "+b/4 +c/5")
		r.compact("t", 4, 4)
		r.wantNoDiff(admin.StateDiffQuery{From: offset(3), To: offset(5)}, gone, "from offset 4 on")
		r.wantDiff(admin.StateDiffQuery{From: offset(4)}, "+c/5")
	})
}

func TestStateDiffRefusals(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.wantNoDiff(admin.StateDiffQuery{From: offset(1)}, eventhub.CodeUnknownID, `"t"`)
		r.publishEvents(keyed("a", "1"), keyed("b", "1"), keyed("c", "1"), eventhub.Event{Topic: "u", Key: "a"})
		page, err := r.history.StateDiff(bg, admin.StateDiffQuery{Topic: "t", From: offset(1), Limit: 1})
		if err != nil || page.Next == "" {
			t.Fatalf("the first page is %+v, %v", page, err)
		}
		state, err := r.history.State(bg, admin.StateQuery{Topic: "t", Limit: 1})
		if err != nil || state.Next == "" {
			t.Fatalf("the page of the state is %+v, %v", state, err)
		}
		for _, tt := range []struct {
			q    admin.StateDiffQuery
			says string
		}{
			{admin.StateDiffQuery{From: offset(4)}, "from is the offset 4, and topic \"t\" has them up to 3"},
			{admin.StateDiffQuery{From: offset(1), To: offset(4)}, "to is the offset 4, and topic \"t\" has them up to 3"},
			{admin.StateDiffQuery{From: offset(2), To: offset(1)}, "from is the offset 2, which is after to, 1"},
			{admin.StateDiffQuery{From: offset(2), To: moment(1)}, "from is the offset 2, which is after to, 0"},
			{admin.StateDiffQuery{From: moment(3), To: moment(2)}, "from is the time 3, which is after to, 2"},
			{admin.StateDiffQuery{From: offset(1 << 60)}, "1152921504606846976"},
			{admin.StateDiffQuery{From: moment(-5)}, "from is the time -5"},
			{admin.StateDiffQuery{From: offset(1), To: admin.Moment{Offset: 1, TS: 7}}, "to is the offset 1 and the time 7"},
			{admin.StateDiffQuery{From: offset(1), Prefix: strings.Repeat("k", eventhub.MaxKeyBytes+1)}, "1025 bytes"},
			{admin.StateDiffQuery{From: offset(1), Limit: 1001}, "limit is 1001"},
			{admin.StateDiffQuery{Topic: "u", Page: page.Next}, `page is of topic "t", and not of "u"`},
			{admin.StateDiffQuery{Page: page.Next, From: offset(1)}, "its own offsets, 1 and 3"},
			{admin.StateDiffQuery{Page: page.Next, To: offset(3)}, "its own offsets"},
			{admin.StateDiffQuery{Page: page.Next, Prefix: "b"}, "begin with"},
			{admin.StateDiffQuery{Page: "nonsense"}, "nonsense"},
			{admin.StateDiffQuery{Page: state.Next}, "the next of a page"},
		} {
			r.wantNoDiff(tt.q, eventhub.CodeBadRequest, tt.says)
		}
		r.wantNoState(admin.StateQuery{Page: page.Next}, eventhub.CodeBadRequest, "the next of a page")
		r.deleteTopic("t")
		r.wantNoDiff(admin.StateDiffQuery{Page: page.Next}, eventhub.CodeUnknownID, `"t"`)
		r.publishEvents(keyed("a", "1"), keyed("b", "1"))
		r.wantNoDiff(admin.StateDiffQuery{Page: page.Next}, eventhub.CodeUnknownID, "an earlier topic")
	})
}

// removedKeys is a store that passes many keys without a value, one in each call, before it comes
// to those that have one.
type removedKeys struct{ store.Store }

func (s removedKeys) State(ctx context.Context, q store.StateQuery, batch *store.Batch) (store.StatePage, error) {
	var n int
	if _, _ = fmt.Sscanf(q.After, "a%03d", &n); n == 3*diffCalls {
		return s.Store.State(ctx, q, batch)
	}
	return store.StatePage{At: cmp.Or(q.At, 2), After: fmt.Sprintf("a%03d", n+1)}, nil
}

// TestStateDiffPassesRemovedKeys: each page comes further, also one that has seen no event.
func TestStateDiffPassesRemovedKeys(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishEvents(keyed("b", "1"), keyed("c", "1"))
		r.history.store = removedKeys{r.store}
		pages, last := 0, ""
		for q := (admin.StateDiffQuery{Topic: "t", From: offset(1), Limit: 10}); pages == 0 || q.Page != ""; pages++ {
			page, err := r.history.StateDiff(bg, q)
			if err != nil || page.Next != "" && page.Next == q.Page {
				t.Fatalf("page %d, with next %q, %v", pages, page.Next, err)
			}
			for _, c := range page.Changes {
				last += shown(&c)
			}
			q.Page, q.From = page.Next, admin.Moment{}
		}
		if pages != 7 || last != "+c/2" {
			t.Errorf("%d pages have %q; want 7 with +c/2", pages, last)
		}
	})
}

// folded is the state by key that a fold of a log gives.
type folded map[string]uint64

// TestStateDiffIsThatOfTwoFolds: on random histories with ends of keys, trims, erasures and
// compaction, the difference between two states is that of two folds of what is kept.
func TestStateDiffIsThatOfTwoFolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := memory.Open(memory.Options{})
		defer s.Close()
		d := diffModel{rt: rt, rig: &rig{t: t, store: s, history: New(s, filter.Compile, indexNow(s))}}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			d.step()
		}
		if len(d.log) > 0 {
			for range 8 {
				d.check()
			}
		}
	})
}

type diffModel struct {
	*rig
	rt                 *rapid.T
	log                []eventhub.Event // what is kept
	head, horizon, low uint64           // low is the mark of compaction
}

func (d *diffModel) step() {
	rt := d.rt
	some := func(name string) uint64 { return rapid.Uint64Range(1, max(d.head, 1)).Draw(rt, name) }
	switch rapid.SampledFrom([]string{"publish", "publish", "publish", "publish", "erase", "trim", "compact"}).Draw(rt, "step") {
	case "publish":
		for range rapid.IntRange(1, 6).Draw(rt, "events") {
			e := keyed(rapid.SampledFrom([]string{"", "a", "a\x00", "a~", "b", "ba", "é"}).Draw(rt, "key"), rapid.SampledFrom([]string{"1", "2", "null"}).Draw(rt, "payload"))
			d.commit(e)
			d.head++
			e.Offset = d.head
			d.log = append(d.log, e)
		}
	case "erase":
		if d.head > 0 {
			at := some("erased")
			d.remove("t", 0, at)
			d.log = slices.DeleteFunc(d.log, func(e eventhub.Event) bool { return e.Offset == at })
		}
	case "trim":
		if d.head > 0 {
			d.horizon = max(d.horizon, some("horizon"))
			d.remove("t", d.horizon)
			d.log = slices.DeleteFunc(d.log, func(e eventhub.Event) bool { return e.Offset < d.horizon })
		}
	case "compact":
		if d.head > 0 {
			d.low = max(d.low, some("mark"))
			d.compact("t", d.low, d.low)
			newest := d.fold(d.low)
			d.log = slices.DeleteFunc(d.log, func(e eventhub.Event) bool {
				return e.Key != "" && e.Offset <= d.low && newest[e.Key] != e.Offset
			})
		}
	}
}

func (d *diffModel) fold(at uint64) folded {
	state := make(folded)
	for _, e := range d.log {
		if e.Key == "" || e.Offset > at {
			continue
		}
		if state[e.Key] = e.Offset; string(e.Payload) == "null" {
			delete(state, e.Key)
		}
	}
	return state
}

// check compares the difference between two offsets that are known with that of the folds.
func (d *diffModel) check() {
	least := max(d.horizon, d.low, 1)
	from := rapid.Uint64Range(least, d.head).Draw(d.rt, "from")
	to := rapid.Uint64Range(from, d.head).Draw(d.rt, "to")
	prefix := rapid.SampledFrom([]string{"", "", "a", "b", "none"}).Draw(d.rt, "prefix")
	before, after := d.fold(from), d.fold(to)
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	var want []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] != after[key] && strings.HasPrefix(key, prefix) {
			c := admin.StateChange{Key: key}
			for into, at := range map[*eventhub.Item]uint64{&c.From: before[key], &c.To: after[key]} {
				if at != 0 {
					*into = eventhub.Item{Offset: at, Record: eventhub.Record{}}
				}
			}
			want = append(want, shown(&c))
		}
	}
	q := admin.StateDiffQuery{Topic: "t", From: offset(from), Prefix: prefix, Limit: rapid.IntRange(1, 3).Draw(d.rt, "limit")}
	if q.To = offset(to); to == d.head && rapid.Bool().Draw(d.rt, "now") {
		q.To = admin.Moment{}
	}
	got, _, _, err := d.diff(q)
	if err != nil || !slices.Equal(got, want) {
		d.rt.Fatalf("StateDiff(%+v) = %q, %v; want %q", q, got, err, want)
	}
}
