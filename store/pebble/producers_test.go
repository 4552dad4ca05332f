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

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

var producerImages = testsize.Int("producer.images", 40, 6, "how many crash images TestProducersInCrashImages looks at")

// numberedRun is a store that producers use, one goroutine each, until it stops.
type numberedRun struct {
	t     *testing.T
	store *Store

	mu     sync.Mutex
	moved  *sync.Cond
	budget int
	over   bool
	acked  []uint64        // by producer: the highest number that a synced commit had
	epochs []uint64        // by producer
	units  [][]*store.Unit // by producer, then number - 1
}

const numberedProducers = 4

// TestProducersInCrashImages: in whatever a crash leaves, the numbers up to the last one of a
// producer have their events, and give the results that the first units had; those after it
// have none.
func TestProducersInCrashImages(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	mem := vfs.NewCrashableMem()
	run := &numberedRun{
		t: t, store: mustOpen(t, onMem(t, mem)), acked: make([]uint64, numberedProducers), epochs: make([]uint64, numberedProducers),
		units: make([][]*store.Unit, numberedProducers),
	}
	run.moved = sync.NewCond(&run.mu)
	var wg sync.WaitGroup
	for p := range numberedProducers {
		wg.Go(func() { run.produce(p, rand.New(rand.NewPCG(seed, uint64(100+p)))) })
	}
	type image struct {
		fs    *vfs.MemFS
		acked []uint64
	}
	var images []image
	for range *producerImages {
		run.mu.Lock()
		run.budget += 20
		run.moved.Broadcast()
		for at := rng.IntN(20); run.budget > at; {
			run.moved.Wait()
		}
		acked := append([]uint64(nil), run.acked...)
		run.mu.Unlock()
		images = append(images, image{mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng}), acked})
	}
	run.mu.Lock()
	run.over = true
	run.moved.Broadcast()
	run.mu.Unlock()
	wg.Wait()
	mustClose(t, run.store)
	for _, i := range images {
		run.check(i.fs, i.acked)
	}
}

func producerName(p int) string { return fmt.Sprint("producer ", p) }

// produce opens a producer, and again from time to time, and uses its numbers.
func (run *numberedRun) produce(p int, rng *rand.Rand) {
	var epoch uint64
	for number := uint64(1); ; number++ {
		run.mu.Lock()
		for run.budget == 0 && !run.over {
			run.moved.Wait()
		}
		if run.over {
			run.mu.Unlock()
			return
		}
		run.budget--
		run.moved.Broadcast()
		run.mu.Unlock()
		if epoch == 0 || rng.IntN(20) == 0 {
			open := &store.Unit{Producer: &store.ProducerChange{Name: producerName(p)}}
			if err := run.store.Commit(context.Background(), []*store.Unit{open}, true); err != nil || open.Err != nil {
				run.t.Error(err, open.Err)
				return
			}
			epoch = open.Producer.NewEpoch
			run.mu.Lock()
			run.epochs[p] = epoch
			run.mu.Unlock()
		}
		var units []*store.Unit
		for n := range 1 + rng.Uint64N(4) {
			units = append(units, numberedUnit(p, epoch, number+n, rng))
		}
		run.mu.Lock()
		run.units[p] = append(run.units[p], units...)
		run.mu.Unlock()
		sync := rng.IntN(3) > 0
		if err := run.store.Commit(context.Background(), units, sync); err != nil {
			run.t.Error(err)
			return
		}
		number += uint64(len(units)) - 1
		if sync {
			run.mu.Lock()
			run.acked[p] = number
			run.mu.Unlock()
		}
	}
}

// numberedUnit appends to the producer's own topic and to one of all.
func numberedUnit(p int, epoch, number uint64, rng *rand.Rand) *store.Unit {
	u := &store.Unit{Sequence: &store.Sequence{Producer: producerName(p), Epoch: epoch, Number: number}}
	if rng.IntN(10) == 0 {
		u.Sequence.Refusal = []byte("no")
		return u
	}
	for n := range 1 + rng.IntN(2) {
		id := fmt.Sprintf("p%d-%d-%d", p, number, n)
		u.Appends = append(u.Appends, store.Append{Topic: fmt.Sprint("own.", p), ID: id, Record: newRecord("own", id, 100)})
	}
	id := fmt.Sprintf("all-%d-%d", p, number)
	u.Appends = append(u.Appends, store.Append{Topic: "all", ID: id, Record: newRecord("all", id, 100)})
	return u
}

func (run *numberedRun) check(fs *vfs.MemFS, acked []uint64) {
	t := run.t
	t.Helper()
	s := mustOpen(t, onMem(t, fs))
	defer mustClose(t, s)
	list, err := s.ListProducers(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	last := make(map[string]store.ProducerInfo)
	for _, info := range list {
		last[info.Name] = info
	}
	all := uint64(0)
	for p := range numberedProducers {
		info := last[producerName(p)]
		if info.Last < acked[p] || info.Epoch > run.epochs[p] || info.Last > uint64(len(run.units[p])) {
			t.Fatalf("producer %d: %+v; number %d was durable, and %d is the highest", p, info, acked[p], len(run.units[p]))
		}
		own := uint64(0)
		for i, first := range run.units[p][:info.Last] {
			run.checkAgain(s, first, info, uint64(i+1))
			if n := len(first.Appends); n > 0 {
				own, all = own+uint64(n)-1, all+1
			}
		}
		if head := events(t, s, fmt.Sprint("own.", p)); head != own {
			t.Fatalf("producer %d: %d events; %d are those of numbers up to %d", p, head, own, info.Last)
		}
	}
	if n := events(t, s, "all"); n != all {
		t.Fatalf("%d events of all; want %d", n, all)
	}
}

func events(t *testing.T, s *Store, topic string) uint64 {
	t.Helper()
	var b store.Batch
	if err := s.Read(context.Background(), topic, 1, 1<<30, 1<<30, &b); err != nil {
		t.Fatal(err)
	}
	return uint64(len(b.Items))
}

// checkAgain commits a unit again, and compares what it gets with what the first had.
func (run *numberedRun) checkAgain(s *Store, first *store.Unit, info store.ProducerInfo, number uint64) {
	t := run.t
	t.Helper()
	if number%7 != 0 && number+20 < info.Last {
		return // a part of them is enough
	}
	again := &store.Unit{Sequence: &store.Sequence{Producer: info.Name, Epoch: info.Epoch, Number: number}}
	for _, a := range first.Appends {
		again.Appends = append(again.Appends, store.Append{Topic: a.Topic, ID: a.ID, Record: newRecord(a.Topic, a.ID, 100)})
	}
	if err := s.Commit(context.Background(), []*store.Unit{again}, true); err != nil || again.Err != first.Err || !again.Sequence.Repeated {
		t.Fatalf("number %d of %+v: %v, %v, %+v", number, info, err, again.Err, again.Sequence)
	}
	if string(again.Sequence.Refusal) != string(first.Sequence.Refusal) {
		t.Fatalf("number %d of %+v: refusal %q, was %q", number, info, again.Sequence.Refusal, first.Sequence.Refusal)
	}
	for i := range again.Appends {
		a, was := &again.Appends[i], &first.Appends[i]
		// A commit that had not returned when the image was made gave the same offsets.
		if a.Offset != was.Offset || a.CommitTime != was.CommitTime {
			t.Fatalf("number %d of %+v: event %d at %d (%d); the first was at %d (%d)", number, info, i, a.Offset, a.CommitTime, was.Offset, was.CommitTime)
		}
		if at, err := s.Find(context.Background(), a.Topic, a.ID); err != nil || at != a.Offset {
			t.Fatalf("number %d of %+v: event %d is at %d, %v; the result says %d", number, info, i, at, err, a.Offset)
		}
	}
}

// TestDamagedResults: results that are damaged are an error, and no producer's numbers begin again.
func TestDamagedResults(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	open := &store.Unit{Producer: &store.ProducerChange{Name: "p"}}
	if err := s.Commit(context.Background(), []*store.Unit{open}, true); err != nil {
		t.Fatal(err)
	}
	one := numberedUnit(0, open.Producer.NewEpoch, 1, rand.New(rand.NewPCG(3, 3)))
	one.Sequence.Producer = "p"
	if err := s.Commit(context.Background(), []*store.Unit{one}, true); err != nil || one.Err != nil {
		t.Fatal(err, one.Err)
	}
	key := appendResultsKey(nil, open.Producer.NewEpoch, 1)
	row, err := s.get(key)
	if err != nil || len(row) == 0 {
		t.Fatal(row, err)
	}
	for _, bad := range [][]byte{{}, row[:len(row)-1], append([]byte{0xff}, row...), append(append([]byte{}, row...), 'r')} {
		if err := s.db.Set(key, bad, pdb.Sync); err != nil {
			t.Fatal(err)
		}
		damaged, err := Open(onMem(t, mem.CrashClone(vfs.CrashCloneCfg{})))
		if !errors.Is(err, errBadResults) {
			t.Errorf("row %x: %v, %v", bad, damaged, err)
		}
	}
}

// TestRowsOfProducers: a producer that is removed leaves nothing, and one that goes on has no more
// rows than its numbers that are kept need.
func TestRowsOfProducers(t *testing.T) {
	s := mustOpen(t, onMem(t, vfs.NewMem()))
	defer mustClose(t, s)
	commit := func(units ...*store.Unit) {
		t.Helper()
		if err := s.Commit(context.Background(), units, true); err != nil {
			t.Fatal(err)
		}
	}
	open := &store.Unit{Producer: &store.ProducerChange{Name: "p"}}
	commit(open)
	rows := func(tag byte) (n int) {
		scan(t, s, tag, func(_, _ []byte) { n++ })
		return n
	}
	const each = 8
	for number := uint64(1); number <= 3*store.SequencesKept; number += each {
		var units []*store.Unit
		for n := range uint64(each) {
			units = append(units, &store.Unit{Sequence: &store.Sequence{Producer: "p", Epoch: open.Producer.NewEpoch, Number: number + n, Refusal: []byte("no")}})
		}
		commit(units...)
	}
	if n := rows(tagResults); n < store.SequencesKept/each || n > (store.SequencesKept+forgetEvery)/each+1 {
		t.Errorf("%d rows of %d numbers each", n, each)
	}
	commit(&store.Unit{Producer: &store.ProducerChange{Name: "p", Delete: true}})
	if n, m := rows(tagResults), rows(tagProducer); n+m != 0 {
		t.Errorf("%d and %d rows are left", n, m)
	}
}
