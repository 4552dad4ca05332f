package journaltest

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"eventhub/store/journal"
)

// testRaces: writers that all append where they think that the end is. Whatever was answered nil is
// at its place, no append is there twice, and all handles read the same.
func testRaces(t *testing.T, e *env) {
	for race := range max(e.Races, 1) {
		seed := rand.Uint64()
		t.Logf("race %d has seed %d", race, seed)
		raceOnce(t, &env{Engine: e.Engine, opener: e.New(t)}, seed)
	}
}

func raceOnce(t *testing.T, e *env, seed uint64) {
	const appends = 30
	random := rand.New(rand.NewPCG(seed, 1))
	writers := 2 + random.IntN(2)
	var handles []journal.Journal
	answered := make([]map[uint64]string, writers)
	maybe := make([]map[string]bool, writers) // without a definite answer
	var all sync.WaitGroup
	for w := range writers {
		j, random := e.open(t), rand.New(rand.NewPCG(seed, uint64(2+w)))
		handles = append(handles, j)
		answered[w], maybe[w] = make(map[uint64]string), make(map[string]bool)
		all.Go(func() {
			end := uint64(0)
			for n := range appends {
				entry := numbered(w, n)
				err := j.Append(limited(t), end, entry)
				switch {
				case err == nil:
					end++
					answered[w][end] = string(entry)
				case !errors.Is(err, journal.ErrConflict):
					maybe[w][string(entry)] = true
				}
				if err != nil || random.IntN(8) == 0 {
					if end, err = j.Last(limited(t)); err != nil {
						t.Errorf("Last: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	checkRace(t, handles, answered, maybe)
}

func checkRace(t *testing.T, handles []journal.Journal, answered []map[uint64]string, maybe []map[string]bool) {
	t.Helper()
	last, err := handles[0].Last(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	seen, n := make(map[string]bool), 0
	f := follow(t, handles[len(handles)-1], 0)
	for at := uint64(1); at <= last; at++ {
		entry := string(f.next().entry)
		for _, j := range handles {
			has(t, j, at, entry)
		}
		if seen[entry] {
			t.Errorf("the entry at %d is there twice", at)
		}
		seen[entry] = true
		owner := slices.IndexFunc(answered, func(m map[uint64]string) bool { return m[at] != "" })
		switch {
		case owner >= 0 && answered[owner][at] != entry:
			t.Errorf("at %d is another entry than the one that writer %d has an answer for", at, owner)
		case owner < 0 && !slices.ContainsFunc(maybe, func(m map[string]bool) bool { return m[entry] }):
			t.Errorf("the entry at %d was refused", at)
		}
		n++
	}
	places := 0
	for _, m := range answered {
		places += len(m)
	}
	if places > n {
		t.Errorf("%d appends were answered, and the journal has %d entries", places, n)
	}
}
