package pebble

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// formerStores are stores that the last programs of their formats have written, closed and
// killed: in testdata, each with the receipts of its events. They have a topic with given
// and made ids, keys, causes and a correlation, one that was deleted, a delayed event, a group with a
// part, and a pattern.
var formerStores = []string{"format-1-closed", "format-1-killed", "format-2-closed", "format-2-killed", "format-3-closed", "format-3-killed",
	"format-4-closed", "format-4-killed", "format-5-closed", "format-5-killed"}

// upgradeStride spreads the images and faults of the tests of upgrades.
var upgradeStride = testsize.Int("upgrade.stride", 10, 60, "the tests of upgrades look at one write in so many, from a random one on")

// someFormerStores are all in a full run, and in a small one either store of each format,
// as the two differ in what their logs have, and not in what an upgrade does.
func someFormerStores() []string {
	if !testsize.Small() {
		return formerStores
	}
	var some []string
	for i := 0; i < len(formerStores); i += 2 {
		some = append(some, formerStores[i+rand.IntN(2)])
	}
	return some
}

// receipt is what a publisher knows of an event.
type receipt struct {
	Topic  string `json:"topic"`
	Offset uint64 `json:"offset"`
	ID     string `json:"id"`
	Record string `json:"record"`
}

// formerStore unpacks a store onto a disk, all of it synced.
func formerStore(t *testing.T, name string) (*vfs.MemFS, []receipt) {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("testdata", name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	mem := vfs.NewCrashableMem()
	if err := makeDir(mem, "data"); err != nil {
		t.Fatal(err)
	}
	var receipts []receipt
	for files := tar.NewReader(plain); ; {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(files)
		}
		if err != nil {
			t.Fatal(err)
		}
		if file, ok := strings.CutPrefix(head.Name, "data/"); ok && file != "" {
			if err := replaceFile(mem, "data", file, content); err != nil {
				t.Fatal(err)
			}
		}
		if head.Name == "receipts.ndjson" {
			for line := range bytes.Lines(content) {
				var r receipt
				if err := json.Unmarshal(line, &r); err != nil {
					t.Fatal(err)
				}
				receipts = append(receipts, r)
			}
		}
	}
	if len(receipts) == 0 {
		t.Fatalf("%s has no receipts", name)
	}
	return mem, receipts
}

// checkUpgraded: the store has each event that got its receipt once, as it was, and at most
// one that was under way; what was deleted does not come back; all else is there.
func checkUpgraded(t *testing.T, what string, s *Store, receipts []receipt) {
	t.Helper()
	ctx := context.Background()
	want := make(map[string]receipt)
	for _, r := range receipts {
		if r.Topic != "gone" {
			want[r.Topic+"/"+r.ID] = r
		}
	}
	more := 0
	for _, topic := range []string{"orders", "orders.new"} {
		seen := make(map[string]bool)
		for _, item := range readAll(t, s, topic) {
			id := string(item.Record.ID())
			r, ok := want[topic+"/"+id]
			switch {
			case seen[id]:
				t.Errorf("%s: %s of %s is there twice", what, id, topic)
			case !ok:
				more++
			case r.Offset != item.Offset || r.Record != string(item.Record):
				t.Errorf("%s: offset %d of %s reads %s; the receipt is %+v", what, item.Offset, topic, item.Record, r)
			}
			seen[id] = true
			delete(want, topic+"/"+id)
		}
	}
	if len(want) > 0 || more > 1 {
		t.Errorf("%s: %d events are lost, and %d are too many: %v", what, len(want), more, want)
	}
	for _, r := range receipts {
		offset, err := s.Find(ctx, r.Topic, r.ID)
		if isGone := r.Topic == "gone"; isGone != errors.Is(err, store.ErrNotFound) || !isGone && offset != r.Offset {
			t.Errorf("%s: Find(%s, %s) = %d, %v; want %d", what, r.Topic, r.ID, offset, err, r.Offset)
		}
	}
	topics, err := s.ListTopics(ctx, "", 9)
	if err != nil || len(topics) != 2 {
		t.Errorf("%s: the topics are %v, %v", what, topics, err)
	}
	delay, err := s.FindDelayed(ctx, "orders", "planned")
	if err != nil || delay.At != 1_800_000_000_000 {
		t.Errorf("%s: the plan is %+v, %v", what, delay, err)
	}
	group, err := s.Group(ctx, "orders", "g")
	if err != nil || group.Epoch != 7 || group.Cursor != 3 {
		t.Errorf("%s: the group is %+v, %v", what, group, err)
	}
	parts, err := s.GroupParts(ctx, "orders", "g")
	if err != nil || len(parts) != 1 || string(parts[0].Value) != "part" {
		t.Errorf("%s: the group's parts are %v, %v", what, parts, err)
	}
	patterns, err := s.ListPatterns(ctx)
	if err != nil || len(patterns) != 1 || patterns[0].Pattern != "orders.**" {
		t.Errorf("%s: the patterns are %v, %v", what, patterns, err)
	}
	effects, err := s.Effects(ctx, "cause", store.Place{}, 100)
	if err != nil || len(effects) != 12 {
		t.Errorf("%s: %d effects, %v; want 12", what, len(effects), err)
	}
	checkIndexes(t, s)
}

// checkUse: an upgraded store goes on as one of the present format: it takes no id for new
// that it has, gives no offset twice and sweeps what was deleted.
func checkUse(t *testing.T, what string, s *Store, receipts []receipt) {
	t.Helper()
	last := uint64(0)
	for _, item := range readAll(t, s, "orders") {
		last = max(last, item.Offset)
	}
	for _, r := range receipts {
		if r.Topic == "gone" {
			continue
		}
		if a := mustCommit(t, s, true, given(r.Topic, r.ID))[0]; !a.Duplicate || a.Offset != r.Offset {
			t.Errorf("%s: %s again is at %d, duplicate %v; want %d", what, r.ID, a.Offset, a.Duplicate, r.Offset)
		}
	}
	if a := mustCommit(t, s, true, made("orders"))[0]; a.Offset <= last {
		t.Errorf("%s: a new event is at %d; the last one was at %d", what, a.Offset, last)
	}
	again := mustCommit(t, s, true, given("gone", "gone-0"))[0]
	if again.Duplicate || again.Offset <= 12 {
		t.Errorf("%s: an event of the topic that was deleted is at %d, duplicate %v; 12 was given before", what, again.Offset, again.Duplicate)
	}
	sweepAll(t, s)
	checkIndexes(t, s)
	if got := len(readAll(t, s, "gone")); got != 1 {
		t.Errorf("%s: the topic that was deleted, and is there again, has %d events", what, got)
	}
}

// upgradedImage opens what a crash has left in the middle of an upgrade, and once more.
func upgradedImage(t *testing.T, what string, image *vfs.MemFS, receipts []receipt) {
	t.Helper()
	s, err := Open(onMem(t, image))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if got := string(readFile(t, image, "data/"+formatFile)); got != formatLine {
		t.Errorf("%s: the format reads %q", what, got)
	}
	checkUpgraded(t, what, s, receipts)
	mustClose(t, s)
	s = mustOpen(t, onMem(t, image))
	checkUpgraded(t, what, s, receipts)
	checkUse(t, what, s, receipts)
	mustClose(t, s)
}

// TestCrashAtEveryWriteOfUpgrade takes an image in front of each write and fsync of the
// opening of a store of a former format, and of its first commits, close and next opening.
func TestCrashAtEveryWriteOfUpgrade(t *testing.T) {
	for _, name := range someFormerStores() {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 3))
			mem, receipts := formerStore(t, name)
			var mu sync.Mutex // Pebble writes from several goroutines
			images, stride := 0, *upgradeStride
			phase := rng.IntN(stride)
			look := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if images++; images%stride != phase {
					return nil
				}
				percent := []int{0, 50, 100}[rng.IntN(3)]
				what := fmt.Sprintf("image %d of %d %%, in front of %v %s", images, percent, op.Kind, op.Path)
				upgradedImage(t, what, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), receipts)
				return nil
			})
			for range 2 {
				s := mustOpen(t, onMem(t, faultfs.Wrap(mem, look)))
				for range 2 {
					a := mustCommit(t, s, true, made("orders"))[0]
					mu.Lock()
					receipts = append(receipts, receipt{a.Topic, a.Offset, a.ID, string(a.Record)})
					mu.Unlock()
				}
				mustClose(t, s)
			}
			t.Logf("%d writes, one image in front of each %d", images, stride)
			if images < 100 {
				t.Error("too few to show anything")
			}
		})
	}
}

// TestWriteErrorSweepOfUpgrade fails each write and fsync of the opening of a store of a
// former format in turn: the error is reported, nothing panics, and what is left opens, whole.
func TestWriteErrorSweepOfUpgrade(t *testing.T) {
	for _, name := range someFormerStores() {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 4))
			stride := min(*upgradeStride, 10) // an opening has few
			k, failed := int64(1+rng.IntN(stride)), 0
			for more := true; more; k += int64(stride) {
				// In a bubble, as a table that can not be written is tried again after a pause.
				bubble.Test(t, func(t *testing.T) {
					mem, receipts := formerStore(t, name)
					fault := kthWrite{k: k}
					o := onMem(t, faultfs.Wrap(mem, &fault))
					o.Fatal = func(error) {}
					s, err := Open(o)
					if err == nil {
						err = s.Close()
					}
					if err != nil {
						failed++
						wantError(t, err, errorfs.ErrInjected)
					}
					what := "without a fault"
					if hit := fault.fired.Load(); hit != nil {
						what = fmt.Sprintf("write %d, %v %s, failed", k, hit.Kind, hit.Path)
					} else {
						more = false
					}
					percent := []int{0, 50, 100}[rng.IntN(3)]
					upgradedImage(t, what, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), receipts)
				})
			}
			t.Logf("fewer than %d writes, one in %d failed, %d failures were reported", k-int64(stride), stride, failed)
			if failed < max(1, 10/stride) {
				t.Error("too few to show anything")
			}
		})
	}
}
