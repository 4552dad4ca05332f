package past

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// historyText writes a page as changes, with what was before and the causes.
func historyText(page *admin.KeyHistoryPage) string {
	var b strings.Builder
	for _, c := range page.Changes {
		fmt.Fprintf(&b, "%s/%d", c.Kind(), c.Event.Offset)
		if c.Before.Record != nil {
			fmt.Fprintf(&b, "<%d", c.Before.Offset)
		}
		for _, cause := range c.Causes {
			switch {
			case cause.Hidden:
				fmt.Fprintf(&b, " by %s!", cause.ID)
			case cause.Missing:
				fmt.Fprintf(&b, " by %s?", cause.ID)
			default:
				fmt.Fprintf(&b, " by %s@%s/%d", cause.ID, cause.Topic, cause.Offset)
			}
		}
		b.WriteString("; ")
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// wantHistory compares all pages of a key, by pages of several sizes.
func (r *rig) wantHistory(key, want string, shows func(string) bool) (last admin.KeyHistoryPage) {
	r.t.Helper()
	for _, limit := range []int{1, 2, 1000} {
		all := admin.KeyHistoryPage{}
		for q := (admin.KeyHistoryQuery{Topic: "t", Key: key, Limit: limit}); ; q.Before = last.Next {
			var err error
			if last, err = r.history.KeyHistoryAmong(bg, q, shows); err != nil {
				r.t.Fatal(err)
			}
			if all.Changes = append(all.Changes, last.Changes...); last.Next == 0 {
				break
			}
			if len(last.Changes) == 0 || len(last.Changes) > limit {
				r.t.Fatalf("a page of %d has %d changes, and more follow", limit, len(last.Changes))
			}
		}
		if got := historyText(&all); got != want {
			r.t.Errorf("the history of %q by %d is %q; want %q", key, limit, got, want)
		}
	}
	return last
}

func everything(string) bool { return true }

func TestKeyHistory(t *testing.T) {
	inBubble(t, func(r *rig) {
		caused := func(payload string, by ...string) eventhub.Event {
			e := keyed("k", payload)
			e.CausedBy = by
			return e
		}
		r.publishEvents(
			eventhub.Event{Topic: "open", ID: "a"}, eventhub.Event{Topic: "secret", ID: "s"},
			eventhub.Event{Topic: "secret", ID: "both"}, eventhub.Event{Topic: "tail", ID: "both"},
			caused("1"), keyed("l", "1"), caused("2", "a", "s", "none"), caused("null", "both", "a"), caused("null"), caused("3"))
		want := "added/6<5; removed/5<4; removed/4<3 by both@%s by a@open/1; changed/3<1 by a@open/1 by s%s by none?; added/1"
		page := r.wantHistory("k", fmt.Sprintf(want, "secret/2", "@secret/1"), everything)
		equal(t, "marks", []uint64{page.Horizon, page.Compacted, page.Tombstones}, []uint64{1, 0, 0})
		r.wantHistory("k", fmt.Sprintf(want, "tail/1", "!"), func(topic string) bool { return topic != "secret" })
		r.wantHistory("nobody", "", everything)
		if _, err := r.history.KeyHistory(bg, admin.KeyHistoryQuery{Topic: "t", Key: "k", Before: 1, Limit: 1}); err != nil {
			t.Error(err)
		}

		r.remove("t", 3, 5)
		r.wantHistory("k", "added/6<4; removed/4<3 by both@secret/2 by a@open/1; set/3 by a@open/1 by s@secret/1 by none?", everything)
		r.compact("t", 4, 4)
		page = r.wantHistory("k", "set/6", everything)
		equal(t, "marks", []uint64{page.Horizon, page.Compacted, page.Tombstones}, []uint64{3, 4, 4})
		r.remove("t", 7)
		r.wantHistory("k", "", everything)
	})
}

func TestKeyHistoryRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishEvents(keyed("k", "1"))
		for what, q := range map[string]admin.KeyHistoryQuery{
			"no key":        {Topic: "t", Limit: 1},
			"long key":      {Topic: "t", Key: strings.Repeat("k", eventhub.MaxKeyBytes+1), Limit: 1},
			"no limit":      {Topic: "t", Key: "k"},
			"large limit":   {Topic: "t", Key: "k", Limit: admin.MaxPage + 1},
			"far beyond":    {Topic: "t", Key: "k", Before: eventhub.MaxOffset + 1, Limit: 1},
			"no such topic": {Topic: "none", Key: "k", Limit: 1},
			"no name":       {Topic: "a..b", Key: "k", Limit: 1},
		} {
			want := map[string]eventhub.Code{"no such topic": eventhub.CodeUnknownID, "no name": eventhub.CodeBadTopic}[what]
			if want == "" {
				want = eventhub.CodeBadRequest
			}
			if _, err := r.history.KeyHistory(bg, q); eventhub.ErrorCode(err) != want {
				t.Errorf("%s: %v; want %s", what, err, want)
			}
		}
	})
}

// TestKeyHistoryOfDeleted: a topic that is deleted while its history is read is not mixed with its
// next life.
func TestKeyHistoryOfDeleted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishEvents(keyed("k", "1"))
		r.history.store = &deleting{Store: r.store, r: r}
		_, err := r.history.KeyHistory(bg, admin.KeyHistoryQuery{Topic: "t", Key: "k", Limit: 1})
		wantCode(t, err, eventhub.CodeUnknownID)
	})
}

// deleting deletes the topic, and makes it again, before a key of it is read first.
type deleting struct {
	store.Store
	r    *rig
	done bool
}

func (d *deleting) KeyEvents(ctx context.Context, topic, key string, before uint64, limit, maxBytes int, batch *store.Batch) (uint64, error) {
	if !d.done {
		d.r.deleteTopic(topic)
		d.r.commit(keyed("k", `"of another life"`))
		d.done = true
	}
	return d.Store.KeyEvents(ctx, topic, key, before, limit, maxBytes, batch)
}

// TestKeyHistoryIsTheState: what the history of a key says last, before any offset, is what the
// state at that offset has.
func TestKeyHistoryIsTheState(t *testing.T) {
	inBubble(t, func(r *rig) {
		seed := rand.Uint64()
		rng := rand.New(rand.NewPCG(seed, 0))
		keys := []string{"a", "b", "ab"}
		const n = 200
		for range n {
			r.commit(keyed(keys[rng.IntN(len(keys))], []string{"1", "2", "null"}[rng.IntN(3)]))
		}
		r.remove("t", 1, 7, 90, 91)
		for at := uint64(1); at <= n; at++ {
			state, err := r.states(admin.StateQuery{Topic: "t", At: at, Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, key := range slices.Sorted(slices.Values(keys)) {
				page, err := r.history.KeyHistory(bg, admin.KeyHistoryQuery{Topic: "t", Key: key, Before: at + 1, Limit: 1})
				if err != nil {
					t.Fatal(err)
				}
				if len(page.Changes) > 0 && page.Changes[0].Kind() != admin.StateRemoved {
					want = append(want, fmt.Sprint(key, "/", page.Changes[0].Event.Offset))
				}
			}
			if !slices.Equal(state, want) {
				t.Fatalf("seed %d: the state at %d is %v; the histories say %v", seed, at, state, want)
			}
		}
	})
}
