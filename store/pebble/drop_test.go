package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/store"
)

// What a dropped topic leaves is swept to the last key, also where the process ends
// before: then by whoever opens the store next.
func TestSweepLeavesNothing(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	fillTopic(t, s, "t", 1500)
	if err := s.DropTopic(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(context.Background()); err != nil {
		t.Fatal(err)
	}
	image := mem.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, onMem(t, image))
	defer mustClose(t, s)
	for more := true; more; {
		var err error
		if more, err = s.Sweep(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range []byte{tagTopic, tagEvent, tagID, tagKey, tagGroup, tagPart, tagPlan, tagPlanID, tagEffect, tagCorrelated, tagGarbage} {
		scan(t, s, tag, func(key, _ []byte) { t.Errorf("the key %q is left", key) })
	}
}

// linkedEvent is an event with a key, a cause and a correlation.
func linkedEvent(t *testing.T, topic string, i int) store.Append {
	t.Helper()
	e := eventhub.Event{Topic: topic, ID: fmt.Sprint("e", i), Key: "k", CausedBy: []string{"cause"},
		Headers: map[string]string{eventhub.CorrelationHeader: "corr"}, Payload: []byte("1")}
	rec, err := record.Append(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	return store.Append{Topic: topic, ID: e.ID, Key: e.Key, CausedBy: e.CausedBy, Correlation: "corr", Record: rec}
}

func fillTopic(t *testing.T, s *Store, topic string, n int) {
	t.Helper()
	for i := range n {
		a := linkedEvent(t, topic, i)
		u := &store.Unit{Appends: []store.Append{a}}
		if i == 0 {
			u.Groups = []store.GroupChange{{Topic: topic, Group: "g", Create: true, State: store.GroupState{Epoch: 1},
				Parts: []store.GroupPart{{Kind: 'p', Value: []byte("x")}}}}
			u.Plans = []store.Plan{{Topic: topic, ID: "plan", At: 1, Record: a.Record}}
		}
		if err := s.Commit(context.Background(), []*store.Unit{u}, i == n-1); err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
	}
}

// A power loss around a drop leaves the whole topic or nothing of it, and never
// gives an offset again.
func TestDropIsWhole(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	const n = 20
	there, gone := 0, 0
	for i := range 40 {
		mem := vfs.NewCrashableMem()
		s := mustOpen(t, onMem(t, mem))
		fillTopic(t, s, "t", n)
		dropped := i%4 == 3
		done := make(chan error, 1)
		if dropped {
			done <- s.DropTopic(context.Background(), "t")
		} else {
			go func() { done <- s.DropTopic(context.Background(), "t") }()
		}
		for range rng.IntN(2000) * (i % 3) {
			_ = rng.Uint64() // a moment
		}
		image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[i%3], RNG: rng})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		s = mustOpen(t, onMem(t, image))
		var batch store.Batch
		if err := s.Read(context.Background(), "t", 1, 2*n, 1<<20, &batch); err != nil {
			t.Fatal(err)
		}
		_, planErr := s.FindPlan(context.Background(), "t", "plan")
		_, groupErr := s.Group(context.Background(), "t", "g")
		isGone := len(batch.Items) == 0
		switch {
		case isGone && errors.Is(planErr, store.ErrNotFound) && errors.Is(groupErr, store.ErrNotFound):
			gone++
		case len(batch.Items) == n && planErr == nil && groupErr == nil && !dropped:
			there++
		default:
			t.Fatalf("image %d, dropped %v: %d events, plan %v, group %v", i, dropped, len(batch.Items), planErr, groupErr)
		}
		a := linkedEvent(t, "t", n)
		u := &store.Unit{Appends: []store.Append{a}}
		if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Appends[0].Offset <= n {
			t.Fatalf("the next offset is %d, %v", u.Appends[0].Offset, err)
		}
		mustClose(t, s)
	}
	t.Logf("%d images have the topic, %d do not", there, gone)
}
