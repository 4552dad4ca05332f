package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/journal"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	takeovers    = testsize.Int("takeovers", 80, 30, "how many times another member leads in TestTakeovers")
	memberImages = testsize.Int("member.images", 240, 30, "how many power losses TestTakeovers has members go through")
)

// takeoverRun is a wholeRun on members of which one leads, until it is killed.
type takeoverRun struct {
	*wholeRun
	journal *testJournal
	members []*member
	leads   int
	// made are the offsets of the events whose ids the store has made, by these.
	made map[string]uint64
	// Of the producer: the numbers that were used.
	number, epoch uint64
	images        int
	done          *takeoverDone
}

// member is a directory, and the replica that is open there; nil in that which leads.
type member struct {
	mem     *vfs.MemFS
	replica *Replica
	synced  journal.Position
}

// takeoverDone counts what the runs met.
type takeoverDone struct{ kills, lost, kept, zombies, images, behind int }

// TestTakeovers: a leader is killed at any time, with an entry whose answer is missing too, and another
// member leads. All that was answered is there, and what was not is there whole or not at all, as the
// journal says; no offset is given twice, no id either, and the number of a producer counts once. What a
// power loss leaves of a member is what the journal says up to some entry, not before what was synced,
// and following completes it. In the end all members have the same keys and values.
func TestTakeovers(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const perRun = 10
	var met wholeMet
	var done takeoverDone
	for n := range uint64(*takeovers) / perRun {
		run := newTakeoverRun(t, rand.New(rand.NewPCG(seed, n)), &met, &done)
		for range perRun {
			for range 4 + run.rng.IntN(20) {
				run.step()
			}
			run.check()
			run.takeOver()
			if t.Failed() {
				t.Fatalf("run %d", n)
			}
		}
		run.finish()
		if t.Failed() {
			t.Fatalf("run %d", n)
		}
	}
	t.Logf("%+v, %+v", done, met)
	if *takeovers >= 30 && min(done.lost, done.kept, done.behind) == 0 || *takeovers >= 200 && done.zombies == 0 { // of 30 kills none may have a zombie
		t.Error("the runs did not meet all of it")
	}
}

func newTakeoverRun(t *testing.T, rng *rand.Rand, met *wholeMet, done *takeoverDone) *takeoverRun {
	run := &takeoverRun{
		wholeRun: &wholeRun{T: t, rng: rng, state: newWholeState(), met: met},
		journal:  new(testJournal), made: make(map[string]uint64), done: done,
		images: (*memberImages + *takeovers - 1) / *takeovers,
	}
	for range 3 {
		m := &member{mem: vfs.NewCrashableMem()}
		m.replica = mustOpenReplica(t, run.options(m))
		run.members = append(run.members, m)
	}
	run.lead(0)
	open := &store.Unit{Producer: &store.ProducerChange{Name: "p"}}
	if err := run.store.Commit(context.Background(), []*store.Unit{open}, true); err != nil || open.Err != nil {
		t.Fatal(err, open.Err)
	}
	run.epoch = open.Producer.NewEpoch
	return run
}

func (run *takeoverRun) options(m *member) Options {
	o := onMem(run.T, m.mem)
	o.Now = run.clock.now
	o.Fatal = func(error) {}
	return o
}

// lead has a member lead, with sizes that have little work do much.
func (run *takeoverRun) lead(n int) {
	m := run.members[n]
	follow(run.T, m.replica, run.journal, everything)
	s, err := m.replica.Lead(run.journal.writer())
	if err != nil {
		run.Fatal(err)
	}
	m.replica, run.leads, run.store = nil, n, s
	s.sweepRange, s.segmentBytes = 2<<10, 1<<10
	s.compacting, s.indexSizes = someCompactSizes(run.rng), someIndexSizes(run.rng)
	if run.state.last == 0 {
		a := mustCommit(run, s, true, given("t", run.newID()))[0]
		run.give(a)
		run.state.last, run.state.events[a.Offset] = a.Offset, wholeEvent{id: a.ID}
	}
	run.acknowledge(run.state)
}

func (run *takeoverRun) step() {
	switch run.rng.IntN(6) {
	case 0:
		run.commitOthers()
	case 1:
		run.moveMember()
	case 2:
		run.overlapAppends()
	default:
		run.wholeRun.step()
	}
	run.acknowledge(run.state) // with sync or without
}

// others are units of a topic whose ids the store makes, and of a producer.
func (run *takeoverRun) others() []*store.Unit {
	number := run.number + 1
	id := fmt.Sprint("n-", number)
	return []*store.Unit{
		{Appends: []store.Append{made("made"), made("made")}},
		{Appends: []store.Append{{Topic: "numbered", ID: id, Record: newRecord("numbered", id, 0)}},
			Sequence: &store.Sequence{Producer: "p", Epoch: run.epoch, Number: number}},
	}
}

func (run *takeoverRun) commitOthers() {
	units := run.others()
	if err := run.store.Commit(context.Background(), units, true); err != nil || units[1].Err != nil || units[1].Sequence.Repeated {
		run.Fatal(err, units[1].Err, units[1].Sequence.Repeated)
	}
	run.number++
	for _, a := range units[0].Appends {
		if at, is := run.made[a.ID]; is {
			run.Fatalf("the id %s was made for offset %d and for %d", a.ID, at, a.Offset)
		}
		run.made[a.ID] = a.Offset
	}
}

// overlapAppends has several Starts under way that wait for nothing but the journal, and others do their
// work meanwhile.
func (run *takeoverRun) overlapAppends() {
	var units []*store.Unit
	var waits []func() error
	var others sync.WaitGroup
	for n := range 3 {
		next, u := run.state.clone(), &store.Unit{}
		next.drawAppends(u, run.rng, run.clock.ms, run.newID)
		run.state = next
		wait, err := run.store.Start(context.Background(), []*store.Unit{u})
		if err != nil {
			run.Fatal(err)
		}
		units, waits = append(units, u), append(waits, wait)
		if n == 1 {
			others.Go(run.work)
		}
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			run.Fatal(err)
		}
	}
	others.Wait()
	run.checkUnits(units, run.state)
}

// moveMember has a member that follows go on, sync, or lose its power.
func (run *takeoverRun) moveMember() {
	n := run.rng.IntN(len(run.members))
	m := run.members[n]
	if n == run.leads {
		if _, err := run.store.SyncPosition(context.Background()); err != nil {
			run.Fatal(err)
		}
		return
	}
	switch run.rng.IntN(4) {
	case 0:
		follow(run.T, m.replica, run.journal, everything)
	case 1:
		run.sync(m)
	default:
		follow(run.T, m.replica, run.journal, 1+run.rng.IntN(20))
	}
}

func (run *takeoverRun) sync(m *member) {
	var err error
	if m.synced, err = m.replica.Sync(); err != nil {
		run.Fatal(err)
	}
	if m.synced != m.replica.Position() {
		run.Fatalf("%+v is synced, and the replica is at %+v", m.synced, m.replica.Position())
	}
}

// losePower takes an image of a member in place of its directory, and looks at what it has.
func (run *takeoverRun) losePower(m *member) {
	before := m.replica.Position()
	image := m.mem.CrashClone(run.someLoss())
	mustCloseReplica(run, m.replica)
	m.mem = image
	m.replica = mustOpenReplica(run, run.options(m))
	at := m.replica.Position()
	if at.Seq < m.synced.Seq || at.Seq > before.Seq {
		run.Fatalf("after a power loss a replica is at %+v; it was at %+v, and synced at %+v", at, before, m.synced)
	}
	isSame(run, memberAt(run, run.journal, at), contents(run, m.replica.s))
	if at != before {
		run.done.behind++
	}
	run.done.images++
	m.synced = at // what was read of the log is in tables now
}

func (run *takeoverRun) someLoss() vfs.CrashCloneCfg {
	return vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[run.rng.IntN(3)], RNG: rand.New(rand.NewPCG(run.rng.Uint64(), 0))}
}

// takeOver kills the leader, and has another member lead.
func (run *takeoverRun) takeOver() {
	for range run.images {
		m := run.members[(run.leads+1+run.rng.IntN(len(run.members)-1))%len(run.members)]
		follow(run.T, m.replica, run.journal, run.rng.IntN(30))
		if run.rng.IntN(3) == 0 {
			run.sync(m)
			follow(run.T, m.replica, run.journal, run.rng.IntN(30))
		}
		run.losePower(m)
	}
	old, m := run.store, run.members[run.leads]
	isLost := run.rng.IntN(4) > 0
	var retry *store.Unit
	has := false
	if isLost {
		has = run.rng.IntN(2) == 0
		retry = run.loseAnswer(has)
	}
	isZombie := !isLost && run.rng.IntN(2) == 0
	m.mem, m.synced = m.mem.CrashClone(run.someLoss()), journal.Position{}
	if !isZombie {
		run.stop(old, isLost)
	}
	m.replica = mustOpenReplica(run, run.options(m))
	isSame(run, memberAt(run, run.journal, m.replica.Position()), contents(run, m.replica.s))
	run.lead(run.rng.IntN(len(run.members)))
	run.done.kills++
	if isZombie {
		run.done.zombies++
		u := &store.Unit{Appends: []store.Append{given("t", "zombie")}}
		if err := old.Commit(context.Background(), []*store.Unit{u}, true); !errors.Is(err, journal.ErrFenced) {
			run.Fatalf("a commit of the leader before: %v", err)
		}
		run.stop(old, true)
	}
	if what := run.state.differs(run.store, run.rng); what != "" {
		run.Fatalf("after a takeover, with a lost answer %v of an entry that is there %v: %s", isLost, has, what)
	}
	run.checkOthers(retry, has)
}

func (run *takeoverRun) stop(s *Store, isBroken bool) {
	if err := s.Close(); errors.Is(err, store.ErrBroken) != isBroken {
		run.Fatalf("close: %v", err)
	}
}

// loseAnswer has the leader do something without an answer. It returns the unit of the producer, if there was one.
func (run *takeoverRun) loseAnswer(has bool) (numbered *store.Unit) {
	run.journal.lose(has)
	defer func() { run.journal.lost = false }()
	if has {
		run.done.kept++
	} else {
		run.done.lost++
	}
	ctx := context.Background()
	var err error
	switch run.rng.IntN(4) {
	case 0:
		units := run.others()
		numbered = units[1]
		err = run.store.Commit(ctx, units, true)
	case 1: // what is no commit, if there is any
		for try := 0; err == nil && try < 10; try++ {
			run.clock.ms += pieceWait.Milliseconds()
			_, _, err = run.store.IndexKeys(ctx, "t", nil)
			if err == nil {
				_, err = run.store.Sweep(ctx)
			}
			if err == nil {
				if _, _, err = run.store.Compact(ctx, "t"); errors.Is(err, store.ErrNotIndexed) {
					err = nil
				}
			}
		}
		if err != nil {
			break
		}
		fallthrough
	default:
		before := run.state
		units := run.build(1 + run.rng.IntN(3))
		// The others may change nothing.
		units = append(units, &store.Unit{Appends: []store.Append{given("other", run.newID())}})
		err = run.store.Commit(ctx, units, true)
		if has {
			run.mu.Lock()
			run.given = max(run.given, run.state.last)
			run.mu.Unlock()
		} else {
			run.state = before
		}
	}
	if !errors.Is(err, errLost) || !errors.Is(err, store.ErrBroken) {
		run.Fatalf("without an answer: %v", err)
	}
	run.mu.Lock()
	run.may = []*wholeState{run.state}
	run.mu.Unlock()
	return numbered
}

// checkOthers looks at the topics of commitOthers. retry is a unit that had no answer.
func (run *takeoverRun) checkOthers(retry *store.Unit, has bool) {
	ctx := context.Background()
	if retry != nil {
		again := run.others()[1:]
		err := run.store.Commit(ctx, again, true)
		if err != nil || again[0].Err != nil || again[0].Sequence.Repeated != has {
			run.Fatalf("number %d again: %v, %v; it was used before: %v, want %v", run.number+1, err, again[0].Err, again[0].Sequence.Repeated, has)
		}
		run.number++
	}
	if run.number == 0 {
		return
	}
	items := readAll(run, run.store, "numbered")
	for i, item := range items {
		if want := fmt.Sprint("n-", i+1); string(item.Record.ID()) != want {
			run.Fatalf("the event at %d of the producer is %s; want %s", item.Offset, item.Record.ID(), want)
		}
	}
	if uint64(len(items)) != run.number {
		run.Fatalf("the producer has %d events; want %d", len(items), run.number)
	}
	there := make(map[string]uint64)
	for _, item := range readAll(run, run.store, "made") {
		id := string(item.Record.ID())
		if there[id] != 0 {
			run.Fatalf("the id %s is at %d and at %d", id, there[id], item.Offset)
		}
		there[id] = item.Offset
		if at, err := run.store.Find(ctx, "made", id); at != item.Offset || err != nil {
			run.Fatalf("%s is found at %d, %v; it is at %d", id, at, err, item.Offset)
		}
	}
	for id, at := range run.made {
		if there[id] != at {
			run.Fatalf("%s, which was made for offset %d, is at %d", id, at, there[id])
		}
	}
	run.made = there
}

// finish does all the work that is left, and compares the members.
func (run *takeoverRun) finish() {
	run.wholeRun.finish()
	var want [][2]string
	for n, m := range run.members {
		if n == run.leads {
			m.replica = mustOpenReplica(run, run.options(m))
		}
		follow(run.T, m.replica, run.journal, everything)
		got := contents(run, m.replica.s)
		if n == 0 {
			want = got
		}
		isSame(run, want, got)
		mustCloseReplica(run, m.replica)
	}
}
