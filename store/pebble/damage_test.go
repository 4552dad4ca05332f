package pebble

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// helper is a *testing.T, or a *rapid.T.
type helper interface {
	Helper()
	Fatal(...any)
}

func readFile(t helper, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func writeFile(t *testing.T, fsys vfs.FS, name string, content []byte) {
	t.Helper()
	f, err := fsys.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
}

// fillForDamage commits n events of about a kilobyte and returns their records.
func fillForDamage(t *testing.T, s *Store, n int) (records []string) {
	for i := range n {
		a := store.Append{Topic: "t", ID: fmt.Sprint(i), Record: newRecord("t", fmt.Sprint(i), 1000)}
		records = append(records, string(mustCommit(t, s, true, a)[0].Record))
	}
	return records
}

// TestDamagedLog: a flipped bit in a log that a crash left is refused, not taken
// for the log's end; this holds from the first log of a new store on. In the last
// block of 32 KiB the two can not be distinguished.
func TestDamagedLog(t *testing.T) {
	mem := vfs.NewCrashableMem()
	o := onMem(t, mem)
	o.tune = nil // one log for all
	s := mustOpen(t, o)
	records := fillForDamage(t, s, 200)
	image := func() (*vfs.MemFS, string) {
		image := mem.CrashClone(vfs.CrashCloneCfg{})
		names, err := image.List("data")
		if err != nil {
			t.Fatal(err)
		}
		log := ""
		for _, name := range names {
			if strings.HasSuffix(name, ".log") {
				log = max(log, name)
			}
		}
		return image, "data/" + log
	}
	for _, at := range []int{100, 5_000, 40_000, 100_000, 150_000} {
		damaged, log := image()
		content := readFile(t, damaged, log)
		content[at] ^= 1
		writeFile(t, damaged, log, content)
		if again, err := Open(onMem(t, damaged)); err == nil {
			t.Errorf("a log with a flipped bit at %d of %d opens, with %d of %d events",
				at, len(content), len(readAll(t, again, "t")), len(records))
			mustClose(t, again)
		} else {
			wantError(t, err, nil, "data")
		}
	}
	undamaged, _ := image()
	again := mustOpen(t, onMem(t, undamaged))
	if got := len(readAll(t, again, "t")); got != len(records) {
		t.Errorf("the undamaged log has %d events; want %d", got, len(records))
	}
	mustClose(t, again)
	mustClose(t, s)
}

// TestDamagedLogOfLargeCommits: Pebble's own mark of how far a log is synced leaves out the
// blocks that a commit fills, so of large commits it vouches for little.
func TestDamagedLogOfLargeCommits(t *testing.T) {
	const events = 100 // of about 100 KB
	commits := testsize.Of(60, 30)
	c := crashedAfter(t, 64<<20, func(s *Store) (records []string) {
		for i := range commits {
			var appends []store.Append
			for j := range events {
				id := fmt.Sprint(i, "-", j)
				appends = append(appends, store.Append{Topic: "t", ID: id, Record: newRecord("t", id, 1000)})
			}
			for _, a := range mustCommit(t, s, true, appends...) {
				records = append(records, string(a.Record))
			}
		}
		return records
	})
	log, files := "", c.contents(t)
	for name := range files {
		if isLog(name) {
			log = max(log, name)
		}
	}
	size := len(files[log])
	if size < 1<<20 {
		t.Fatalf("the last log has %d bytes; this shows nothing", size)
	}
	for k := range 5 {
		d := damage{flipped, log, (2*k + 1) * size / 10, k}
		if outcome := c.suffer(t, d, ""); outcome != "refused" {
			t.Errorf("%v of %d: the store is %s; want it to be refused", d, size, outcome)
		}
	}
}

// damageAll makes TestDamagedFiles try every position of small files and some hundred of
// large ones.
var damageAll = flag.Bool("damage.all", false, "damage every file at every place")

// damageSample is how many places of a store are damaged without -damage.all, and more
// until each outcome was met.
var damageSample = testsize.Of(60, 6)

const (
	damagePlaces = 500     // of a large file
	damageSmall  = 2 << 10 // bytes of a file that is damaged everywhere
)

// damage is something that happens to one file of a store that nobody has open.
type damage struct {
	kind damageKind
	name string
	at   int // byte
	bit  int
}

type damageKind string

const (
	missing damageKind = "missing"
	emptied damageKind = "emptied"
	cut     damageKind = "cut"
	flipped damageKind = "flipped"
	zeroed  damageKind = "zeroed" // from a byte on, to the end of its block on disk
	grown   damageKind = "grown"  // by bytes that are nothing
	added   damageKind = "added"  // a copy of the file under another name
)

func (d damage) String() string {
	return fmt.Sprintf("%s %s, byte %d, bit %d", d.name, d.kind, d.at, d.bit)
}

// inflict does it to the directory "data" of fsys.
func (d damage) inflict(t *testing.T, fsys vfs.FS, from string) {
	path := "data/" + d.name
	var content []byte
	if d.kind != added {
		content = readFile(t, fsys, path)
	}
	switch d.kind {
	case missing:
		if err := fsys.Remove(path); err != nil {
			t.Fatal(err)
		}
		return
	case emptied:
		content = nil
	case cut:
		content = content[:d.at]
	case flipped:
		content[d.at] ^= 1 << d.bit
	case zeroed:
		clear(content[d.at:min(len(content), (d.at/4096+1)*4096)])
	case grown:
		content = append(content, bytes.Repeat([]byte("x"), 100)...)
	case added:
		content = readFile(t, fsys, "data/"+from)
	}
	writeFile(t, fsys, path, content)
}

// damagesOf lists what can happen to a file of so many bytes.
func damagesOf(name string, size int, rng *rand.Rand) []damage {
	list := []damage{{kind: missing, name: name}, {kind: grown, name: name}}
	if size == 0 {
		return list
	}
	list = append(list, damage{kind: emptied, name: name})
	places := make([]int, 0, size)
	if size <= damageSmall {
		for at := range size {
			places = append(places, at)
		}
	} else {
		for range damagePlaces {
			places = append(places, rng.IntN(size))
		}
	}
	for _, at := range places {
		list = append(list, damage{flipped, name, at, rng.IntN(8)})
		switch rng.IntN(10) {
		case 0:
			list = append(list, damage{kind: cut, name: name, at: at})
		case 1:
			list = append(list, damage{kind: zeroed, name: name, at: at})
		}
	}
	return list
}

// strays are files that do not belong into a store, each with the file that it is a copy
// of: what an editor, a hand or an older backup leaves.
func strays(names []string) map[string]string {
	list := make(map[string]string)
	for _, name := range names {
		if ext := filepath.Ext(name); ext == ".sst" || ext == ".log" {
			list["999999"+ext] = name
			list["000001"+ext] = name
		}
		if strings.HasPrefix(name, "MANIFEST-") {
			list["MANIFEST-999999"] = name
			list["marker.manifest.999999."+name] = formatFile
			list["marker.manifest.999998.MANIFEST-000001"] = formatFile
		}
		if strings.HasPrefix(name, "OPTIONS-") {
			list["OPTIONS-999999"] = formatFile
		}
		list[name+"~"] = name
	}
	return list
}

// damagedStore is a store as it is on the disk, and what it has to have.
type damagedStore struct {
	disk    *vfs.MemFS
	records []string
}

// closedStore has tables of several levels, and was closed.
func closedStore(t *testing.T) damagedStore {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, onMem(t, mem))
	records := fillForDamage(t, s, 600)
	mustClose(t, s)
	return damagedStore{mem, records}
}

// crashedStore has tables, logs that were used again and events that are in the log
// alone; it was killed some seconds after the last of them.
func crashedStore(t *testing.T) damagedStore {
	return crashedAfter(t, 256<<10, func(s *Store) []string { return fillForDamage(t, s, 600) })
}

// crashedAfter is a store with memtables of that size that was killed some seconds after
// fill.
func crashedAfter(t *testing.T, memTable uint64, fill func(*Store) []string) (c damagedStore) {
	bubble.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		o := onMem(t, mem)
		o.tune = func(p *pdb.Options) {
			small(p)
			p.MemTableSize = memTable
		}
		s := mustOpen(t, o)
		c.records = fill(s)
		time.Sleep(10 * time.Second)
		c.disk = mem.CrashClone(vfs.CrashCloneCfg{})
		mustClose(t, s)
	})
	return c
}

// contents are those of all files, by name.
func (c damagedStore) contents(t *testing.T) map[string][]byte {
	names, err := c.disk.List("data")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]byte, len(names))
	for _, name := range names {
		all[name] = readFile(t, c.disk, "data/"+name)
	}
	return all
}

// TestDamagedFiles: whatever happens to one file of a store that was closed, or killed, the
// store is refused, or what is wrong is reported, or all is there. No event is lost in silence,
// and a store that is refused is left as it is.
func TestDamagedFiles(t *testing.T) {
	for name, build := range map[string]func(*testing.T) damagedStore{"closed": closedStore, "crashed": crashedStore} {
		t.Run(name, func(t *testing.T) { testDamagedFiles(t, build(t)) })
	}
}

func testDamagedFiles(t *testing.T, c damagedStore) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	files := c.contents(t)
	names := slices.Sorted(maps.Keys(files))
	var list []damage
	for _, name := range names {
		list = append(list, damagesOf(name, len(files[name]), rng)...)
	}
	from := strays(names)
	for name := range from {
		list = append(list, damage{kind: added, name: name})
	}
	sample := len(list)
	if !*damageAll {
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		// What happens to whole files comes first; a full run tries all of it.
		slices.SortStableFunc(list, func(a, b damage) int { return cmp.Compare(sampleRank(a), sampleRank(b)) })
		whole := slices.IndexFunc(list, func(d damage) bool { return sampleRank(d) > 0 })
		tried := min(whole, testsize.Of(whole, 12))
		list = slices.Delete(list, tried, whole)
		sample = tried + damageSample
	}
	outcomes := make(map[string]map[damageKind]int)
	tried := 0
	for _, d := range list {
		if tried >= sample && len(outcomes) == 3 {
			break
		}
		tried++
		outcome := c.suffer(t, d, from[d.name])
		if outcomes[outcome] == nil {
			outcomes[outcome] = make(map[damageKind]int)
		}
		outcomes[outcome][d.kind]++
	}
	t.Logf("%d damages: %v", tried, outcomes)
	for _, want := range []string{"refused", "reported", "whole"} {
		if outcomes[want] == nil {
			t.Errorf("no damage was %s; this shows nothing", want)
		}
	}
}

func sampleRank(d damage) int {
	switch d.kind {
	case missing, emptied, added, grown:
		return 0
	}
	return 1
}

// suffer opens the store with the damage and returns what came of it.
func (c damagedStore) suffer(t *testing.T, d damage, from string) (outcome string) {
	disk := c.disk.CrashClone(vfs.CrashCloneCfg{})
	d.inflict(t, disk, from)
	var warnings bytes.Buffer
	o := onMem(t, disk)
	o.Fatal = func(error) {}
	o.Logger = slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := Open(o)
	if err != nil {
		c.heal(t, d, disk, err)
		return "refused"
	}
	got, err := readRecords(s)
	_ = s.Close()
	switch {
	case err != nil || warnings.Len() > 0:
		return "reported"
	case !slices.Equal(got, c.records):
		t.Errorf("%v: the store opens without a word and has %d of %d events", d, len(got), len(c.records))
		return "silent"
	}
	return "whole"
}

// heal undoes the damage to a store that was refused: all is there, so the Open that failed
// has taken nothing away.
func (c damagedStore) heal(t *testing.T, d damage, disk *vfs.MemFS, refusal error) {
	if d.kind == added {
		if err := disk.Remove("data/" + d.name); err != nil {
			t.Fatal(err)
		}
	} else {
		writeFile(t, disk, "data/"+d.name, readFile(t, c.disk, "data/"+d.name))
	}
	s, err := Open(onMem(t, disk))
	if err != nil {
		t.Errorf("%v: refused (%v), and also with the file as it was: %v", d, refusal, err)
		return
	}
	if got, err := readRecords(s); err != nil || !slices.Equal(got, c.records) {
		t.Errorf("%v: refused (%v); with the file as it was there are %d of %d events, %v", d, refusal, len(got), len(c.records), err)
	}
	mustClose(t, s)
}

func readRecords(s *Store) (records []string, err error) {
	var b store.Batch
	err = s.Read(context.Background(), "t", 1, 1<<30, 1<<40, &b)
	for _, item := range b.Items {
		records = append(records, string(item.Record))
	}
	return records, err
}
