package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
)

// childEnv marks the process that a test started for what can not be undone in
// its own: a store that is left in the middle of a write leaves goroutines
// running, and the default Fatal ends the process.
const childEnv = "EVENTHUB_PEBBLE_TEST_CHILD"

func isChild() bool { return os.Getenv(childEnv) != "" }

// inChild runs the calling test alone in a process of its own and returns its
// output and exit code.
func inChild(t *testing.T) (output string, code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("start the child: %v", err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// faultStride spreads the faults of TestWriteErrorSweep.
var faultStride = testsize.Int("fault.stride", 8, 20, "TestWriteErrorSweep fails one write in so many")

// kthWrite fails the k-th operation that writes, once.
type kthWrite struct {
	k     int64
	n     atomic.Int64
	fired atomic.Pointer[errorfs.Op]
}

func (f *kthWrite) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || f.n.Add(1) != f.k {
		return nil
	}
	f.fired.Store(&op)
	return errorfs.ErrInjected
}

func (f *kthWrite) String() string { return "fail the k-th write" }

// TestWriteErrorSweep fails each write operation of a run in turn: those to the
// log, its rotation, flushes, the manifest, the directory. Where that broke the
// store, the run ends right there, as the process would; otherwise it goes on.
// Whatever it was, all that was acknowledged is in what is synced at the end.
func TestWriteErrorSweep(t *testing.T) {
	sweepWriteErrors(t, false)
}

// TestWriteErrorSweepOfWhoStays is the same for a process that does not end at once:
// nothing panics or hangs, not even Close, and nothing more is acknowledged.
func TestWriteErrorSweepOfWhoStays(t *testing.T) { sweepWriteErrors(t, true) }

// sweepWriteErrors runs in a process of its own: Pebble, too, leaves goroutines running
// where it can not open.
func sweepWriteErrors(t *testing.T, stays bool) {
	if !isChild() {
		if output, code := inChild(t); code != 0 {
			t.Errorf("the child ended with %d:\n%s", code, output)
		}
		return
	}
	first := 1 + rand.Int64N(int64(*faultStride))
	t.Logf("write %d and every %d-th after it", first, *faultStride)
	k, tried, ended := first, 0, 0
	for ; ; k += int64(*faultStride) {
		run := &faultedRun{t: t, stays: stays, mem: vfs.NewCrashableMem(), fault: kthWrite{k: k}, end: make(chan *vfs.MemFS)}
		go run.main()
		image := <-run.end
		run.mu.Lock()
		acked := slices.Clone(run.acked)
		if run.dead {
			ended++
		}
		tried++
		run.mu.Unlock()
		checkAcked(t, image, acked, run.fault.fired.Load())
		if run.fault.fired.Load() == nil {
			break
		}
	}
	tried-- // the last one met no fault
	t.Logf("fewer than %d write operations; %d failed, %d of these failures broke the store", k, tried, ended)
	if ended == 0 || ended == tried {
		t.Error("the sweep met no error of each sort; it shows nothing")
	}
}

// sweepDelayed is how many delayed events a faultedRun keeps.
const sweepDelayed = 3

// faultedRun is one process that meets a fault.
type faultedRun struct {
	t     *testing.T
	stays bool // when the store is broken
	mem   *vfs.MemFS
	fault kthWrite
	end   chan *vfs.MemFS // the disk when the process has ended

	mu    sync.Mutex
	dead  bool
	acked []*store.Unit
}

// die ends the process: nothing is acknowledged any more, nothing written.
func (run *faultedRun) die(error) {
	run.mu.Lock()
	run.dead = true
	run.mu.Unlock()
	if run.stays {
		return
	}
	run.end <- run.mem.CrashClone(vfs.CrashCloneCfg{})
	select {}
}

func (run *faultedRun) main() {
	o := onMem(run.t, faultfs.Wrap(run.mem, &run.fault))
	o.Fatal = run.die
	o.tune = func(p *pdb.Options) {
		small(p)
		p.MemTableSize = 64 << 10
	}
	s, err := Open(o)
	if err == nil {
		run.commit(s)
		err = s.Close()
		if broken := s.faults.err() != nil; broken != errors.Is(err, store.ErrBroken) {
			run.t.Errorf("Close of a store that is broken, %v: %v", broken, err)
		}
	}
	if err != nil && run.fault.fired.Load() == nil {
		run.t.Errorf("write %d was not reached, and yet: %v", run.fault.k, err)
	}
	run.end <- run.mem.CrashClone(vfs.CrashCloneCfg{})
}

func (run *faultedRun) commit(s *Store) {
	for i := range 24 {
		id := fmt.Sprint("id-", i)
		u := &store.Unit{Appends: []store.Append{{Topic: fmt.Sprint("t", i%3), ID: id, Record: newRecord("t", id, 12<<10),
			CausedBy: []string{"cause"}, Correlation: id}, made("t1")},
			Groups: []store.GroupChange{{Topic: "t0", Group: "g", Create: i == 0, State: store.GroupState{Epoch: uint64(i + 1)},
				Parts: []store.GroupPart{{Kind: 2, Offset: uint64(i), Value: []byte(id)}, {Kind: 3, Value: []byte(id)}}}},
			Delays:   []store.Delay{{Topic: "later", ID: id, At: int64(i), Record: newRecord("later", id, 0)}},
			Patterns: []store.PatternChange{{Group: "g", Pattern: "**", Value: []byte(id)}}}
		if i >= sweepDelayed {
			u.Cancels = []store.Cancel{{Topic: "later", ID: fmt.Sprint("id-", i-sweepDelayed)}}
		}
		broken := s.faults.err() != nil
		err := s.Commit(context.Background(), []*store.Unit{u}, true)
		if err != nil && !errors.Is(err, store.ErrBroken) {
			run.t.Errorf("Commit %d: %v; want store.ErrBroken", i, err)
		}
		if err == nil && broken {
			run.t.Errorf("Commit %d was acknowledged by a broken store", i)
		}
		run.mu.Lock()
		if err == nil && !run.dead {
			run.acked = append(run.acked, u)
		}
		run.mu.Unlock()
	}
}

func checkAcked(t *testing.T, image vfs.FS, acked []*store.Unit, fired *errorfs.Op) {
	t.Helper()
	s, err := Open(onMem(t, image))
	if err != nil {
		t.Errorf("after a fault at %+v the image does not open: %v", fired, err)
		return
	}
	defer mustClose(t, s)
	checkAckedGroup(t, s, uint64(len(acked)), fired)
	effects, err := s.Effects(context.Background(), "cause", store.Place{}, 100)
	if err != nil {
		t.Errorf("Effects: %v", err)
	}
	for _, u := range acked {
		a := u.Appends[0]
		var b store.Batch
		if err := s.Read(context.Background(), a.Topic, a.Offset, 1, 0, &b); err != nil {
			t.Errorf("Read: %v", err)
		}
		if len(b.Items) != 1 || b.Items[0].Offset != a.Offset || string(b.Items[0].Record) != string(a.Record) {
			t.Errorf("after a fault at %+v the acknowledged event %s is not at offset %d of %s", fired, a.ID, a.Offset, a.Topic)
		}
		new := u.Appends[1]
		if offset, err := s.Find(context.Background(), new.Topic, new.ID); offset != new.Offset {
			t.Errorf("after a fault at %+v the acknowledged event %s is at %d, %v; want %d", fired, new.ID, offset, err, new.Offset)
		}
		place := store.Place{Topic: a.Topic, Offset: a.Offset}
		of, err := s.Correlated(context.Background(), a.ID, store.Place{}, 2)
		if err != nil || !slices.Equal(of, []store.Place{place}) || !slices.Contains(effects, place) {
			t.Errorf("after a fault at %+v the links of the acknowledged event at %v are %v, %v, and of the cause %v", fired, place, of, err, effects)
		}
	}
}

// checkAckedGroup: the group's header is at least that of the last unit that was
// acknowledged, and its parts are of the same unit as the header.
func checkAckedGroup(t *testing.T, s *Store, acked uint64, fired *errorfs.Op) {
	t.Helper()
	state, err := s.Group(context.Background(), "t0", "g")
	if err != nil && !errors.Is(err, store.ErrNotFound) || state.Epoch < acked {
		t.Errorf("after a fault at %+v the group is at epoch %d, %v; %d units were acknowledged", fired, state.Epoch, err, acked)
	}
	parts, err := s.GroupParts(context.Background(), "t0", "g")
	if err != nil {
		t.Errorf("GroupParts: %v", err)
	}
	var want []store.GroupPart
	for i := range state.Epoch {
		want = append(want, store.GroupPart{Kind: 2, Offset: i, Value: fmt.Append(nil, "id-", i)})
	}
	if state.Epoch > 0 {
		want = append(want, store.GroupPart{Kind: 3, Value: fmt.Append(nil, "id-", state.Epoch-1)})
	}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("after a fault at %+v the group is at epoch %d; its parts (-want +got):\n%s", fired, state.Epoch, diff)
	}
	checkSweptDelays(t, s, int64(state.Epoch), fired)
}

// checkSweptDelays: the delayed events and the pattern are of the same unit as the group.
func checkSweptDelays(t *testing.T, s *Store, epoch int64, fired *errorfs.Op) {
	t.Helper()
	var want, got []string
	for i := max(0, epoch-sweepDelayed); i < epoch; i++ {
		want = append(want, fmt.Sprint("id-", i))
	}
	list, err := s.Delayed(context.Background(), -1, 0, 1<<62, 100, 1<<30)
	for _, p := range list {
		got = append(got, p.ID)
	}
	if err != nil || !slices.Equal(want, got) {
		t.Errorf("after a fault at %+v the group is at epoch %d; the delayed events are %q, %v; want %q", fired, epoch, got, err, want)
	}
	patterns, err := s.ListPatterns(context.Background())
	if err != nil || (len(patterns) > 0) != (epoch > 0) || epoch > 0 && string(patterns[0].Value) != fmt.Sprint("id-", epoch-1) {
		t.Errorf("after a fault at %+v the group is at epoch %d; the patterns are %v, %v", fired, epoch, patterns, err)
	}
	checkDelayedIndex(t, s)
}

// TestDefaultFatal: without Options.Fatal the process ends at the first write
// error, and its log says why.
func TestDefaultFatal(t *testing.T) {
	if !isChild() {
		output, code := inChild(t)
		if code != 1 || !strings.Contains(output, "store broken by a write error") || !strings.Contains(output, "injected error") {
			t.Errorf("the child ended with %d; want 1 and the cause in its log:\n%s", code, output)
		}
		return
	}
	fault := &failing{match: isWALSync}
	s := mustOpen(t, Options{Dir: "data", FS: faultfs.Wrap(vfs.NewMem(), fault)})
	fault.on.Store(true)
	_ = s.Commit(context.Background(), []*store.Unit{{Appends: []store.Append{given("t", "1")}}}, true)
	t.Fatal("Commit returned")
}

// kthRead fails the k-th read of a table from when it is on, once.
type kthRead struct {
	on    atomic.Bool
	k     int64
	n     atomic.Int64
	fired atomic.Bool
}

func (f *kthRead) MaybeError(op errorfs.Op) error {
	if !f.on.Load() || !isTable(op.Path) || op.Kind.ReadOrWrite() != errorfs.OpIsRead || f.n.Add(1) != f.k {
		return nil
	}
	f.fired.Store(true)
	return errorfs.ErrInjected
}

func (f *kthRead) String() string { return "fail the k-th read" }

// TestReadErrorSweep fails each read of tables while a commit looks up ids: the commit
// fails, or finds what is there; it never takes it for new.
func TestReadErrorSweep(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, onMem(t, mem))
	const n = 300
	commit := func(s *Store) (*store.Unit, error) {
		u := &store.Unit{}
		for i := 0; i < n; i += 20 {
			id := fmt.Sprintf("id-%03d", i)
			u.Appends = append(u.Appends, given("t", id))
			u.Delays = append(u.Delays, store.Delay{Topic: "t", ID: "delayed-" + id, At: 9, Record: newRecord("t", "delayed-"+id, 0)})
		}
		return u, s.Commit(context.Background(), []*store.Unit{u}, true)
	}
	for i := range n {
		a := given("t", fmt.Sprintf("id-%03d", i))
		a.Record = newRecord("t", a.ID, 8<<10)
		mustCommit(t, s, false, a)
	}
	if _, err := commit(s); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	k, failed := int64(1), 0
	for ; ; k++ {
		fault := &kthRead{k: k}
		o := onMem(t, faultfs.Wrap(mem, fault))
		o.Fatal = func(error) {}
		s := mustOpen(t, o)
		fault.on.Store(true)
		u, err := commit(s)
		fault.on.Store(false)
		if err != nil {
			failed++
		}
		if err != nil && !(errors.Is(err, store.ErrBroken) && errors.Is(err, errorfs.ErrInjected)) {
			t.Errorf("read %d: %v", k, err)
		}
		for i := range u.Appends {
			if err == nil && !(u.Appends[i].Duplicate && u.Delays[i].Duplicate) {
				t.Errorf("read %d: %s is no duplicate, or its delayed event", k, u.Appends[i].ID)
			}
		}
		_ = s.Close()
		if !fault.fired.Load() {
			break
		}
	}
	if t.Logf("%d reads, %d failed the commit", k-1, failed); failed < 5 {
		t.Error("too few to show anything")
	}
}
