package pebble

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/journal"
	"eventhub/store/storetest"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestRefusedEntries: what is not the next entry changes nothing, and breaks nothing.
func TestRefusedEntries(t *testing.T) {
	j := new(testJournal)
	s := lead(t, onMem(t, vfs.NewMem()), j)
	mustCommit(t, s, true, given("t", "a"))
	mustCommit(t, s, true, given("t", "b"))
	mustClose(t, s)
	entries := j.after(journal.Position{})
	r := mustOpenReplica(t, onMem(t, vfs.NewMem()))
	for _, tt := range []struct {
		what string
		data []byte
		at   journal.Position
		want error
	}{
		{"the second entry first", entries[1].data, entries[1].at, ErrFounder},
		{"the first entry", entries[0].data, entries[0].at, nil},
		{"the first entry again", entries[0].data, entries[0].at, ErrApplied},
		{"an entry of an earlier epoch", entries[1].data, journal.Position{Seq: 100}, journal.ErrDiverged},
		{"an entry that ends too early", entries[1].data[:len(entries[1].data)-3], entries[1].at, pdb.ErrInvalidBatch},
		{"an entry of some bytes", []byte("some"), entries[1].at, pdb.ErrInvalidBatch},
		{"the second entry", entries[1].data, entries[1].at, nil},
		{"an entry without a batch", nil, journal.Position{Seq: 50, Epoch: 3, Chain: 4}, nil},
		{"the third entry, after that", entries[2].data, entries[2].at, ErrApplied},
	} {
		before, at := contents(t, r.s), r.Position()
		err := r.Apply(tt.data, tt.at)
		if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v; want %v", tt.what, err, tt.want)
		}
		if err != nil {
			isSame(t, before, contents(t, r.s))
			tt.at = at
		}
		if got := r.Position(); got != tt.at {
			t.Errorf("%s: the position is %+v; want %+v", tt.what, got, tt.at)
		}
	}
	mustCloseReplica(t, r)
	if err := r.Apply(entries[2].data, journal.Position{Seq: 60, Epoch: 3}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("an entry after the close: %v", err)
	}
}

// TestReplicaLeadsOnce: what has become a store is no replica any more.
func TestReplicaLeadsOnce(t *testing.T) {
	j := new(testJournal)
	r := mustOpenReplica(t, onMem(t, vfs.NewMem()))
	w := j.writer()
	s, err := r.Lead(w)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, true, given("t", "a"))
	if _, err := r.Lead(w); !errors.Is(err, ErrLeads) {
		t.Errorf("Lead again: %v", err)
	}
	if err := r.Apply(nil, journal.Position{Seq: 1000, Epoch: 2}); !errors.Is(err, ErrLeads) {
		t.Errorf("Apply: %v", err)
	}
	if _, err := r.Sync(); !errors.Is(err, ErrLeads) {
		t.Errorf("Sync: %v", err)
	}
	if at, err := s.SyncPosition(context.Background()); err != nil || at != j.last || at != s.Position() {
		t.Errorf("the store is synced at %+v, %v; the journal ends at %+v", at, err, j.last)
	}
	mustCloseReplica(t, r)
	mustCommit(t, s, true, given("t", "b"))
	mustClose(t, s)
}

// TestEntriesWithoutABatch: a store that leads has what the journal has when nothing but entries without a batch has come
// since, says so once that is durable, and goes on there when it is opened again. While an entry waits for the
// journal it says nothing that it does not have, and does not wait.
func TestEntriesWithoutABatch(t *testing.T) {
	j := new(testJournal)
	o := onMem(t, vfs.NewMem())
	r := mustOpenReplica(t, o)
	w := j.writer()
	s, err := r.Lead(w)
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, true, given("t", "a"))
	w.beat()
	w.beat()
	if at, err := s.SyncPosition(context.Background()); err != nil || at != j.last || at != s.Position() {
		t.Errorf("with two beats the store is synced at %+v, %v; the journal ends at %+v", at, err, j.last)
	}
	before := s.Position()
	wait, err := s.Start(context.Background(), []*store.Unit{{Appends: []store.Append{given("t", "b")}}})
	if err != nil {
		t.Fatal(err)
	}
	w.beat()
	if at, err := s.SyncPosition(context.Background()); err != nil || at != before {
		t.Errorf("while an entry is under way the store is synced at %+v, %v; want %+v", at, err, before)
	}
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	if at, err := s.SyncPosition(context.Background()); err != nil || at != j.last {
		t.Errorf("after it the store is synced at %+v, %v; the journal ends at %+v", at, err, j.last)
	}
	mustClose(t, s)
	r = mustOpenReplica(t, o)
	if r.Position() != j.last {
		t.Errorf("opened again it is at %+v; want %+v", r.Position(), j.last)
	}
	mustCloseReplica(t, r)
}

// TestFailuresOfSucceeded: what a store can not do that another hub has succeeded is answered with not_active, and
// any other failure with internal.
func TestFailuresOfSucceeded(t *testing.T) {
	j := new(testJournal)
	o := onMem(t, vfs.NewMem())
	o.Fatal = func(error) {}
	s := lead(t, o, j)
	mustCommit(t, s, true, given("t", "a"))
	j.writer() // another hub leads
	u := &store.Unit{Appends: []store.Append{given("t", "b")}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, true); !errors.Is(err, store.ErrSucceeded) || !errors.Is(err, journal.ErrFenced) {
		t.Errorf("a commit: %v", err)
	}
	_, err := s.SyncPosition(context.Background()) // after that one
	if code := eventhub.ErrorCode(store.Failed(err, "do it")); code != eventhub.CodeNotActive {
		t.Errorf("%v is answered with %s", err, code)
	}
	if code := eventhub.ErrorCode(store.Failed(errors.New("an error of the disk"), "find it")); code != eventhub.CodeInternal {
		t.Errorf("another error is answered with %s", code)
	}
	_ = s.Close() // with the same error
}

// TestLeadWithoutAnAnswer: a replica whose first entry gets no answer leads nothing, and its directory
// goes on.
func TestLeadWithoutAnAnswer(t *testing.T) {
	for _, has := range []bool{false, true} {
		j := new(testJournal)
		o := onMem(t, vfs.NewMem())
		o.Fatal = func(error) {}
		r := mustOpenReplica(t, o)
		j.lose(has)
		if _, err := r.Lead(j.writer()); !errors.Is(err, errLost) {
			t.Errorf("Lead: %v", err)
		}
		j.lost = false
		s := lead(t, o, j)
		mustCommit(t, s, true, given("t", "a"))
		mustClose(t, s)
		follower := lead(t, onMem(t, vfs.NewMem()), j)
		if n := len(readAll(t, follower, "t")); n != 1 {
			t.Errorf("a follower has %d events; want 1", n)
		}
		mustClose(t, follower)
	}
}

// TestMadeOfACheckpoint: a copy of a leader, or of a follower, goes on where it was made.
func TestMadeOfACheckpoint(t *testing.T) {
	j := new(testJournal)
	fsys := vfs.NewMem()
	s := lead(t, onMem(t, fsys), j)
	mustCommit(t, s, true, given("t", "a"))
	o := onMem(t, fsys)
	o.Dir = copyDir
	if err := s.Checkpoint(context.Background(), copyDir); err != nil {
		t.Fatal(err)
	}
	at := s.Position()
	mustCommit(t, s, true, given("t", "b"))
	r := mustOpenReplica(t, o)
	if r.Position() != at {
		t.Errorf("the copy is at %+v; want %+v", r.Position(), at)
	}
	follow(t, r, j, everything)
	isSame(t, contents(t, s), contents(t, r.s))
	again := o
	again.Dir = copyDir + "2"
	if err := r.Checkpoint(context.Background(), again.Dir); err != nil {
		t.Fatal(err)
	}
	second := mustOpenReplica(t, again)
	if second.Position() != s.Position() {
		t.Errorf("the copy of the copy is at %+v; want %+v", second.Position(), s.Position())
	}
	isSame(t, contents(t, s), contents(t, second.s))
	mustCloseReplica(t, r)
	mustCloseReplica(t, second)
	mustClose(t, s)
}

// TestKindsOfDirectories: a store that shares a journal is opened as a replica alone, and another one
// never is; nothing is changed by trying.
func TestKindsOfDirectories(t *testing.T) {
	shared, alone := onMem(t, vfs.NewMem()), onMem(t, vfs.NewMem())
	mustCloseReplica(t, mustOpenReplica(t, shared))
	mustClose(t, mustOpen(t, alone))
	if _, err := Open(shared); !errors.Is(err, ErrReplicated) {
		t.Errorf("Open of a replica: %v", err)
	}
	if _, err := OpenReplica(alone); !errors.Is(err, ErrAlone) {
		t.Errorf("OpenReplica of a store: %v", err)
	}
	if err := Detach(alone); !errors.Is(err, ErrAlone) {
		t.Errorf("Detach of a store: %v", err)
	}
	if err := Replicate(shared); !errors.Is(err, ErrReplicated) {
		t.Errorf("Replicate of a replica: %v", err)
	}
	mustCloseReplica(t, mustOpenReplica(t, shared))
	mustClose(t, mustOpen(t, alone))
}

// TestReplicateAndDetach: a store of one hub founds a journal with what it has, which only its copies can
// follow; and a replica goes back to be a store of one hub.
func TestReplicateAndDetach(t *testing.T) {
	fsys := vfs.NewMem()
	o := onMem(t, fsys)
	s := mustOpen(t, o)
	first := mustCommit(t, s, true, given("t", "a"), made("t"))
	mustClose(t, s)
	if err := Replicate(o); err != nil {
		t.Fatal(err)
	}
	// Another one that was there before, and one that was not.
	other, empty := onMem(t, vfs.NewMem()), onMem(t, vfs.NewMem())
	mustClose(t, mustOpen(t, other))
	if err := Replicate(other); err != nil {
		t.Fatal(err)
	}
	j := new(testJournal)
	founder := mustOpenReplica(t, o)
	if at := founder.Position(); at != (journal.Position{}) {
		t.Errorf("the founder is at %+v", at)
	}
	copied := o
	copied.Dir = copyDir
	if err := founder.Checkpoint(context.Background(), copyDir); err != nil {
		t.Fatal(err)
	}
	s, err := founder.Lead(j.writer())
	if err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, true, given("t", "b"))
	entries := j.after(journal.Position{})
	for name, o := range map[string]Options{"another store": other, "an empty replica": empty} {
		r := mustOpenReplica(t, o)
		if err := r.Apply(entries[0].data, entries[0].at); !errors.Is(err, ErrFounder) {
			t.Errorf("the first entry in %s: %v", name, err)
		}
		mustCloseReplica(t, r)
	}
	r := mustOpenReplica(t, copied)
	follow(t, r, j, everything)
	isSame(t, contents(t, s), contents(t, r.s))
	mustCloseReplica(t, r)
	mustClose(t, s)

	if err := Detach(copied); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, copied)
	again := mustCommit(t, s, true, given("t", "a"), given("t", first[1].ID), given("t", "b"), given("t", "c"))
	for i, a := range again {
		if a.Offset != uint64(i+1) || a.Duplicate != (i < 3) {
			t.Errorf("%q is at %d, duplicate %v", a.ID, a.Offset, a.Duplicate)
		}
	}
	mustClose(t, s)
	// It can found another journal, and does not follow the one before.
	if err := Replicate(copied); err != nil {
		t.Fatal(err)
	}
	r = mustOpenReplica(t, copied)
	if err := r.Apply(entries[0].data, entries[0].at); !errors.Is(err, ErrFounder) {
		t.Errorf("the first entry of the journal that was left: %v", err)
	}
	mustCloseReplica(t, r)
}

var replicaImages = testsize.Int("replica.images", 60, 10, "how many images TestPowerLossOfAReplica takes")

// TestPowerLossOfAReplica: whatever a crash leaves of a replica in front of a write to its log is what the
// journal says up to the position that it has, not before what was synced, and following completes it.
func TestPowerLossOfAReplica(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const perRun = 30 // an image holds all files in memory
	images, behind := 0, 0
	for run := uint64(0); images < *replicaImages; run++ {
		n, cut := losePowers(t, rand.New(rand.NewPCG(seed, run)), min(perRun, *replicaImages-images))
		images, behind = images+n, behind+cut
		if n == 0 || t.Failed() {
			t.Fatalf("run %d: %d images", run, n)
		}
	}
	t.Logf("%d images, %d of them with less than was applied", images, behind)
	if behind == 0 {
		t.Error("no image lacks anything")
	}
}

// replicaImage is what a crash leaves.
type replicaImage struct {
	mem    *vfs.MemFS
	synced journal.Position // before it
}

// losePowers takes at most so many images of a replica that follows, and returns how many, and how many of them
// are behind.
func losePowers(t *testing.T, rng *rand.Rand, most int) (n, behind int) {
	j := new(testJournal)
	s := lead(t, onMem(t, vfs.NewMem()), j)
	for n := range 250 * most { // a write has some hundred entries
		mustCommit(t, s, true, given("t", storetest.GivenID("e", n)))
	}
	mustClose(t, s)
	var images []*replicaImage
	var mu sync.Mutex // Pebble writes from a goroutine of its own
	var synced journal.Position
	mem := vfs.NewCrashableMem()
	r := mustOpenReplica(t, onMem(t, faultfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") && len(images) < most {
			loss := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 0))}
			images = append(images, &replicaImage{mem: mem.CrashClone(loss), synced: synced})
		}
		return nil
	}))))
	applyRandomly(t, r, j, rng.Uint64(), func(at journal.Position) {
		mu.Lock()
		defer mu.Unlock()
		synced = at
	})
	mustCloseReplica(t, r)
	for i, image := range images {
		r := mustOpenReplica(t, onMem(t, image.mem))
		at := r.Position()
		if at.Seq < image.synced.Seq {
			t.Errorf("image %d is at %+v, and was synced at %+v", i, at, image.synced)
		}
		if at != j.last {
			behind++
		}
		isSame(t, memberAt(t, j, at), contents(t, r.s))
		if i == len(images)-1 {
			follow(t, r, j, everything)
			isSame(t, memberAt(t, j, j.last), contents(t, r.s))
		}
		mustCloseReplica(t, r)
		images[i] = nil
	}
	return len(images), behind
}

// applyRandomly has a replica follow to the end, with a Sync now and then.
func applyRandomly(t *testing.T, r *Replica, j *testJournal, seed uint64, synced func(journal.Position)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, e := range j.after(journal.Position{}) {
		if err := r.Apply(e.data, e.at); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(2000) == 0 {
			at, err := r.Sync()
			if err != nil {
				t.Fatal(err)
			}
			synced(at)
		}
	}
}

// TestReplicaIsUsedAtOnce: a replica is synced and copied while it follows, entries that are larger than
// a memtable among them.
func TestReplicaIsUsedAtOnce(t *testing.T) {
	j := new(testJournal)
	fsys := vfs.NewMem()
	s := lead(t, onMem(t, fsys), j)
	for n := range 200 {
		if n%50 == 0 {
			large(t, s, storetest.GivenID("e", n), 1<<20)
			continue
		}
		mustCommit(t, s, true, given("t", storetest.GivenID("e", n)))
	}
	mustClose(t, s)
	o := onMem(t, vfs.NewMem())
	r := mustOpenReplica(t, o)
	entries := j.after(journal.Position{})
	for _, e := range entries[:20] {
		if err := r.Apply(e.data, e.at); err != nil {
			t.Fatal(err)
		}
	}
	var others sync.WaitGroup
	others.Go(func() {
		for range 20 {
			before := r.Position()
			at, err := r.Sync()
			if after := r.Position(); err != nil || at.Seq < before.Seq || at.Seq > after.Seq {
				t.Errorf("%+v is synced, %v; the replica was at %+v, and is at %+v", at, err, before, after)
			}
		}
	})
	copied := o
	copied.Dir = copyDir
	others.Go(func() {
		if err := r.Checkpoint(context.Background(), copyDir); err != nil {
			t.Error(err)
		}
	})
	follow(t, r, j, everything)
	others.Wait()
	want := contents(t, r.s)
	again := mustOpenReplica(t, copied)
	if at := again.Position(); at.Seq < entries[19].at.Seq {
		t.Errorf("the copy is at %+v; there was %+v before", at, entries[19].at)
	}
	follow(t, again, j, everything)
	isSame(t, want, contents(t, again.s))
	mustCloseReplica(t, again)
	mustCloseReplica(t, r)
}

// TestPowerLossWhileConverting: a directory is a store of one hub or a replica, and says which, in front of
// each write of Replicate and Detach. One that becomes a replica has an id to found with, and one that
// ceases to be one has its position.
func TestPowerLossWhileConverting(t *testing.T) {
	j := new(testJournal)
	shared, alone := vfs.NewCrashableMem(), vfs.NewCrashableMem()
	s := lead(t, onMem(t, shared), j)
	mustCommit(t, s, true, given("t", "a"))
	mustClose(t, s)
	s = mustOpen(t, onMem(t, alone))
	mustCommit(t, s, true, given("t", "a"))
	mustClose(t, s)
	for _, tt := range []struct {
		name    string
		convert func(Options) error
		from    *vfs.MemFS
		is      func(*Replica) bool
	}{
		{"Replicate", Replicate, alone, func(r *Replica) bool { return r.own != nil && !r.isFounded && r.Position() == journal.Position{} }},
		{"Detach", Detach, shared, func(r *Replica) bool { return r.own == nil && r.isFounded && r.Position() == j.last }},
	} {
		replicas, stores := 0, 0
		for n, isOver := 1, false; !isOver; n++ {
			mem := tt.from.CrashClone(vfs.CrashCloneCfg{})
			var image *vfs.MemFS
			var mu sync.Mutex // Pebble writes from several goroutines
			countdown := n
			o := onMem(t, faultfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
					if countdown--; countdown == 0 {
						image = mem.CrashClone(vfs.CrashCloneCfg{})
					}
				}
				return nil
			})))
			o.tune = func(p *pdb.Options) { small(p); p.DisableAutomaticCompactions = true }
			if err := tt.convert(o); err != nil {
				t.Fatal(err)
			}
			if isOver = image == nil; isOver {
				image = mem
			}
			s, err := Open(onMem(t, image))
			switch {
			case err == nil:
				stores++
				if n := len(readAll(t, s, "t")); n != 1 {
					t.Errorf("%s: after write %d there are %d events", tt.name, n, n)
				}
				mustClose(t, s)
			case errors.Is(err, ErrReplicated):
				replicas++
				r := mustOpenReplica(t, onMem(t, image))
				if !tt.is(r) {
					t.Errorf("%s: after write %d the replica is at %+v, founded %v, has %x", tt.name, n, r.Position(), r.isFounded, r.own)
				}
				mustCloseReplica(t, r)
			default:
				t.Error(err)
			}
		}
		if stores < 2 || replicas < 2 {
			t.Errorf("%s: there were %d stores and %d replicas", tt.name, stores, replicas)
		}
	}
}
