package bus

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/store"
	"eventhub/store/pebble"
)

// endImages takes an image in front of each write and fsync while it is on.
type endImages struct {
	mem *vfs.MemFS
	rng *rand.Rand

	mu     sync.Mutex
	on     bool
	images []*vfs.MemFS
}

// mostEndImages bounds the images.
const mostEndImages = 40

// MaybeError and String make it an errorfs.Injector.
func (e *endImages) MaybeError(op errorfs.Op) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.on || len(e.images) == mostEndImages || op.Kind != errorfs.OpFileWrite && op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
		return nil
	}
	percent := []int{0, 50, 100}[len(e.images)%3]
	e.images = append(e.images, e.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: e.rng}))
	return nil
}

func (e *endImages) String() string { return "take images" }

func (e *endImages) set(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.on = on
}

func openOn(t *testing.T, fsys vfs.FS) store.Store {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: "data", FS: fsys, Logger: slog.New(slog.DiscardHandler), Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEndsInImages: whenever the power fails while groups end, alone or with a pattern, each is
// there as it was, or it has ended whole: with its parts, its pattern, the note of it and the event
// that says so.
func TestEndsInImages(t *testing.T) {
	seed := drawSeed(t)
	bubble.Test(t, func(t *testing.T) {
		e := &endImages{mem: vfs.NewCrashableMem(), rng: rand.New(rand.NewPCG(seed, 0))}
		r := &rig{t: t, store: &meter{Store: openOn(t, faultfs.Wrap(e.mem, e))}}
		r.start(Options{})
		r.expire("p.*", time.Minute)
		r.expire("h", time.Minute)
		for _, topic := range []string{"p.a", "p.b", "h"} {
			r.publish(topic, 1, 3)
		}
		for _, of := range []string{"p.*", "h"} { // each keeps a part: the second event is acked, the first waits
			in := r.subscribe(opts(of, "g"))
			for _, d := range in.Take() {
				if d.Offset == 2 {
					in.Ack(byLease(d))
				} else {
					in.Nack(byLease(d))
				}
			}
			r.leave(in)
		}
		r.pass(50 * time.Second)
		equal(t, "before", words(r.has("p.a", "g"), r.has("p.b", "g"), r.has("h", "g"), len(r.parts("h", "g")) > 0), "true true true true")
		e.set(true)
		r.pass(40 * time.Second)
		e.set(false)
		equal(t, "after", words(r.has("p.a", "g"), r.has("p.b", "g"), r.has("h", "g")), "false false false")
		r.stop()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
		var seen [2]map[bool]int
		for i := range seen {
			seen[i] = make(map[bool]int)
		}
		for i, image := range e.images {
			s := openOn(t, image)
			seen[0][wholeEnd(t, s, []string{"h"}, "")]++
			seen[1][wholeEnd(t, s, []string{"p.a", "p.b"}, "p.*")]++
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Fatalf("in image %d", i)
			}
		}
		t.Logf("%d images; ended in them: %v", len(e.images), seen)
		for _, n := range seen {
			if min(n[true], n[false]) == 0 {
				t.Errorf("the images do not show a group before and after its end: %v", seen)
			}
		}
	})
}

// wholeEnd reports whether the group has ended in these topics, and fails where it has so in part.
func wholeEnd(t *testing.T, s store.Store, topics []string, pattern string) (ended bool) {
	t.Helper()
	_, err := s.Group(bg, topics[0], "g")
	ended = errors.Is(err, store.ErrNotFound)
	notes, err := s.ListNotes(bg)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		_, err := s.Group(bg, topic, "g")
		parts, partsErr := s.GroupParts(bg, topic, "g")
		noted := false
		for _, n := range notes {
			noted = noted || strings.HasPrefix(n.Name, "ended/"+topic+"\x00")
		}
		if errors.Is(err, store.ErrNotFound) != ended || partsErr != nil || (len(parts) == 0) != ended || noted != ended {
			t.Errorf("topic %q: ended %v, group %v, %d parts (%v), noted %v", topic, ended, err, len(parts), partsErr, noted)
		}
	}
	patterns, err := s.ListPatterns(bg)
	if err != nil || pattern != "" && (len(patterns) == 0) != ended {
		t.Errorf("ended %v, and the patterns are %v, %v", ended, patterns, err)
	}
	if marked := endMarked(t, s, pattern); marked != ended {
		t.Errorf("ended %v, and an event says so: %v", ended, marked)
	}
	return ended
}

// endMarked reports whether system.audit says that a group has ended with a pattern, "" for
// none.
func endMarked(t *testing.T, s store.Store, pattern string) (marked bool) {
	t.Helper()
	var batch store.Batch
	if err := s.Read(bg, admin.AuditTopic, 1, 100, 1<<20, &batch); err != nil {
		t.Fatal(err)
	}
	for _, item := range batch.Items {
		event, err := item.Record.Event(item.Offset)
		var m admin.GroupEndMark
		if err = errors.Join(err, json.Unmarshal(event.Payload, &m)); err != nil {
			t.Fatal(err)
		}
		marked = marked || m.Pattern == pattern
	}
	return marked
}
