package compaction

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/store"
	"eventhub/store/memory"
)

// slowStore is a store of which every step of a compaction takes 10 ms, and removes events until there have been so many
// steps; meanwhile others commit, and add so many events.
type slowStore struct {
	store.Store
	steps, removes, adds uint64

	done, commits, head atomic.Uint64
	looked              atomic.Uint64
}

func (s *slowStore) Compact(context.Context, string) (u store.Usage, done bool, err error) {
	time.Sleep(10 * time.Millisecond)
	s.commits.Add(1)
	s.head.Add(s.adds)
	return store.Usage{Events: s.removes}, s.done.Add(1) >= s.steps, nil
}

func (s *slowStore) Topic(context.Context, string) (store.TopicInfo, error) {
	s.looked.Add(1)
	return store.TopicInfo{Head: 1000 + s.head.Load(), Index: store.Indexed}, nil
}

// TestPace: the steps of a pass rest for 24 times as long as they take, and for 4 times after a minute in which more came than half of
// what the pass has removed, or in which another topic, or a change of settings, has waited; and at once where the disk is nearly full.
func TestPace(t *testing.T) {
	const steps = 2000
	polite := (steps - 1) * 250 * time.Millisecond
	for what, test := range map[string]struct {
		removes, adds   uint64
		waits, set, low bool
		least, most     time.Duration
	}{
		"nothing comes":          {removes: 100, least: polite},
		"less comes":             {removes: 100, adds: 49, least: polite},
		"more comes":             {removes: 100, adds: 60, least: time.Minute, most: 3 * time.Minute},
		"nothing can be removed": {adds: 1, least: time.Minute, most: 3 * time.Minute},
		"another topic waits":    {removes: 100, waits: true, least: time.Minute, most: 3 * time.Minute},
		"another topic is set":   {removes: 100, set: true, least: time.Minute, most: 3 * time.Minute},
		"the disk is full":       {removes: 100, low: true, least: time.Minute, most: 2 * time.Minute},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				s := &slowStore{Store: memory.Open(memory.Options{}), steps: steps, removes: test.removes, adds: test.adds}
				defer s.Close()
				policies := &policies{of: map[string]*admin.Compaction{"t": {}, "u": {}}}
				r := New(Options{Store: s, Policies: policies, Ages: steady{}, Wall: time.Now, Commits: s.commits.Load, Room: func() error {
					if test.low {
						return errors.New("the disk is nearly full")
					}
					return nil
				}})
				began := time.Now()
				if test.waits {
					r.rounds.Touch("u")
				}
				if test.set {
					r.rounds.Touch("v") // it is not compacted yet
					policies.put("v", &admin.Compaction{})
					r.Changed("v")
				}
				if err := r.steps(context.Background(), "t"); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				if took < test.least || test.most > 0 && took > test.most {
					t.Errorf("a pass of %d steps took %s; want at least %s and at most %s", steps, took, test.least, test.most)
				}
				if n := s.looked.Load(); n > uint64(took/lookEvery)+1 {
					t.Errorf("it asked %d times for the head in %s", n, took)
				}
			})
		})
	}
}

// steady is a clock that nobody sets.
type steady struct{}

func (steady) Now(time.Duration) time.Time { return time.Now() }

func (steady) Until(committed int64, age time.Duration) time.Duration {
	return time.Until(time.UnixMilli(committed).Add(age))
}
