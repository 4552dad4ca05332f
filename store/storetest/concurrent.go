package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/store"
)

var concurrencyTests = []test{
	{name: "writers and tail readers", run: testTail},
	{name: "one id from many writers", run: testRacingIDs},
	{name: "group changes from many writers", run: testRacingGroups},
}

// Sizes of testTail.
const (
	tailWriters = 8
	tailReaders = 4
	tailCommits = 40
)

var tailTopics = []string{"a", "b"}

// tail is one run of writers and readers over tailTopics.
type tail struct {
	*env
	mu      sync.Mutex
	changed *sync.Cond
	writing int // writers that are not done
	commits int
}

// testTail: who follows a topic by Read sees every event, in order, once; and a
// head is never in the middle of a unit.
func testTail(t *testing.T, s *env) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	run := &tail{env: s, writing: tailWriters}
	run.changed = sync.NewCond(&run.mu)
	var wg sync.WaitGroup
	for w := range tailWriters {
		wg.Go(func() { run.write(t, w, rand.New(rand.NewPCG(seed, uint64(w)))) })
	}
	seen := make([][]row, tailReaders)
	for r := range tailReaders {
		wg.Go(func() { seen[r] = run.follow(t, r, rand.New(rand.NewPCG(seed, uint64(100+r)))) })
	}
	wg.Wait()
	for r, rows := range seen {
		topic := tailTopics[r%len(tailTopics)]
		same(t, fmt.Sprintf("what reader %d saw of %s", r, topic), s.readAll(t, topic), rows)
	}
}

// write commits units; the id of an event ends in "last" where it is the last of
// its unit in its topic.
func (run *tail) write(t *testing.T, w int, rng *rand.Rand) {
	defer run.wrote(true)
	for i := range tailCommits {
		u := unit()
		for _, topic := range tailTopics {
			n := rng.IntN(4)
			for j := range n {
				end := ""
				if j == n-1 {
					end = "-last"
				}
				u.Appends = append(u.Appends, given(topic, fmt.Sprintf("%d-%d-%d%s", w, i, j, end)))
			}
		}
		if err := run.Commit(context.Background(), []*store.Unit{u}, rng.IntN(2) == 0); err != nil {
			t.Errorf("Commit: %v", err)
			return
		}
		for _, a := range u.Appends {
			if head := run.head(t, a.Topic); head < a.Offset {
				t.Errorf("head of %s is %d after offset %d was given out", a.Topic, head, a.Offset)
			}
		}
		run.wrote(false)
	}
}

func (run *tail) wrote(done bool) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.commits++
	if done {
		run.writing--
	}
	run.changed.Broadcast()
}

// next waits for a commit after the given number of them.
func (run *tail) next(commits int) (now int, writing bool) {
	run.mu.Lock()
	defer run.mu.Unlock()
	for run.commits == commits {
		run.changed.Wait()
	}
	return run.commits, run.writing > 0
}

func (run *tail) follow(t *testing.T, r int, rng *rand.Rand) (seen []row) {
	topic := tailTopics[r%len(tailTopics)]
	var last, head uint64
	for commits, writing := 0, true; writing; {
		commits, writing = run.next(commits)
		for {
			now := run.head(t, topic)
			if now < head {
				t.Errorf("the head of %s went from %d to %d", topic, head, now)
				return nil
			}
			head = now
			rows := run.readFrom(t, topic, last+1, 1+rng.IntN(20), noLimit)
			if len(rows) == 0 {
				break
			}
			seen = append(seen, rows...)
			last = rows[len(rows)-1].Offset
		}
		run.checkBoundary(t, topic, head)
	}
	return seen
}

func (run *tail) checkBoundary(t *testing.T, topic string, head uint64) {
	if head == 0 || !run.Capabilities().AtomicUnits {
		return
	}
	rows := run.readFrom(t, topic, head, 1, noLimit)
	if len(rows) != 1 {
		t.Errorf("no event at the head %d of %s", head, topic)
		return
	}
	if id := string(eventhub.Record(rows[0].Record).ID()); !strings.HasSuffix(id, "-last") {
		t.Errorf("the head of %s is at id %s, in the middle of a unit", topic, id)
	}
}

// testRacingIDs: of many appends of one id, one is the first.
func testRacingIDs(t *testing.T, s *env) {
	const writers, ids = 6, 30
	got := make([][]store.Append, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range ids {
				u := unit(given("t", fmt.Sprint(i)))
				if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
					t.Errorf("Commit: %v", err)
					return
				}
				got[w] = append(got[w], u.Appends[0])
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i := range ids {
		firsts := 0
		for w := range writers {
			if !got[w][i].Duplicate {
				firsts++
			}
			same(t, "offset", got[0][i].Offset, got[w][i].Offset)
			same(t, "commit time", got[0][i].CommitTime, got[w][i].CommitTime)
		}
		same(t, fmt.Sprintf("number of appends of id %d that were the first", i), 1, firsts)
	}
	same(t, "number of events", ids, len(s.readAll(t, "t")))
}

// testRacingGroups: of writers that all move the epoch from n to n+1, as hubs in
// a takeover do, each step is won as often as the rules say: creation once, and
// no stored epoch ever falls.
func testRacingGroups(t *testing.T, s *env) {
	const writers, steps = 6, 30
	var wg sync.WaitGroup
	var mu sync.Mutex
	created := 0
	for range writers {
		wg.Go(func() {
			var last uint64
			for i := range steps {
				first := &store.Unit{Groups: []store.GroupChange{create("t", fmt.Sprint("g", i), store.GroupState{})}}
				u := &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{})}}
				if now := s.group(t, "t", "g"); now != nil {
					if now.Epoch < last {
						t.Errorf("the epoch fell from %d to %d", last, now.Epoch)
					}
					last = now.Epoch
					u.Groups[0] = update("t", "g", store.GroupState{Epoch: last + 1})
				}
				if err := s.Commit(context.Background(), []*store.Unit{first, u}, false); err != nil {
					t.Errorf("Commit: %v", err)
					return
				}
				mu.Lock()
				if first.Err == nil {
					created++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	same(t, "number of creations", steps, created)
	same(t, "number of groups", steps+1, len(s.listGroups(t, "t")))
}
