package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"eventhub"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

var (
	fixedSeed  = flag.Uint64("seed", 0, "seed of tests that print one; 0: any")
	loadImages = testsize.Int("load.images", 100, 30, "images that TestPowerLossUnderLoad takes")
)

const (
	loadImagesEach = 10 // images of one store
	loadPublishers = 4
	loadAttempts   = 3
	loadOps        = 60 // operations of the file system from one image to the next, at most
)

// loadGroups are the groups of the load, and how they are ordered.
var loadGroups = map[string]string{"g": eventhub.OrderingNone, "k": eventhub.OrderingKey}

var errNotYet = errors.New("not yet")

// TestPowerLossUnderLoad takes the power away in the middle of publishers and
// members that ack and nack, at a random operation of the file system, and looks
// at what the disk has then: every event that got its receipt, no publication in
// part, no event done that nobody acked and that has no dead letter, each dead
// letter once. An engine over the image delivers exactly what is not done.
func TestPowerLossUnderLoad(t *testing.T) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	var sum tally
	for n := 0; n < *loadImages && !t.Failed(); n += loadImagesEach {
		l := startLoad(t, rand.New(rand.NewPCG(seed, uint64(n+1))))
		for i := range min(loadImagesEach, *loadImages-n) {
			percent := []int{0, 20, 50, 80, 100}[(n+i)%5]
			l.check(l.crash(rng, percent), &sum)
		}
		l.end()
	}
	t.Logf("%d images: %d events had their receipt, %d were there without it, %d publications had left no trace, %d acks and %d dead letters were stored, %d deliveries followed",
		*loadImages, sum.receipts, sum.unanswered, sum.gone, sum.acked, sum.letters, sum.again)
	if !t.Failed() && min(sum.receipts, sum.unanswered, sum.gone, sum.acked, sum.letters, sum.again) == 0 {
		t.Error("the images do not show everything that they are taken for")
	}
}

func drawSeed(t *testing.T) uint64 {
	seed := cmp.Or(*fixedSeed, rand.Uint64())
	t.Logf("seed %d", seed)
	return seed
}

// tally counts what the images showed.
type tally struct{ receipts, unanswered, gone, acked, letters, again int }

// load is an engine on the embedded store, in use.
type load struct {
	t     *testing.T
	mem   *vfs.MemFS
	store store.Store
	bus   *Bus
	stop  context.CancelFunc
	users sync.WaitGroup

	mu      sync.Mutex
	moved   sync.Cond
	running bool // publishers may
	ended   bool
	ops     int // operations until the image is taken; 0: none is wanted
	percent int
	rng     *rand.Rand
	images  chan loadImage
	known   knowledge
}

// knowledge is what is known of a load from outside the engine.
type knowledge struct {
	attempts map[string]int             // events of each publication that was handed over
	receipts map[string]uint64          // offset by id
	acks     map[string]map[uint64]bool // by group: handed over
	floors   map[string]uint64          // cursors that were stored
}

// loadImage is what the disk had, what was promised before it was taken, and what
// was begun until then.
type loadImage struct {
	mem      *vfs.MemFS
	percent  int
	promised knowledge
	begun    knowledge
}

func (k *knowledge) clone() knowledge {
	c := knowledge{attempts: maps.Clone(k.attempts), receipts: maps.Clone(k.receipts), floors: maps.Clone(k.floors), acks: make(map[string]map[uint64]bool)}
	for group, acks := range k.acks {
		c.acks[group] = maps.Clone(acks)
	}
	return c
}

func openLoad(t *testing.T, fsys vfs.FS) store.Store {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: "data", FS: fsys, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }})
	if err != nil {
		t.Fatalf("open the store: %v", err)
	}
	return maybeUnsynced(s)
}

func startLoad(t *testing.T, rng *rand.Rand) *load {
	l := &load{t: t, mem: vfs.NewCrashableMem(), images: make(chan loadImage), known: knowledge{
		attempts: make(map[string]int), receipts: make(map[string]uint64),
		acks: make(map[string]map[uint64]bool), floors: make(map[string]uint64)}}
	l.moved.L = &l.mu
	l.store = openLoad(t, faultfs.Wrap(l.mem, l))
	var err error
	if l.bus, err = New(Options{Store: l.store, TailCacheBytes: 20_000}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	for group, ordering := range loadGroups {
		l.known.acks[group] = make(map[uint64]bool)
		for range 2 {
			l.users.Go(func() { l.consume(ctx, group, ordering) })
		}
	}
	for p := range loadPublishers {
		r := rand.New(rand.NewPCG(rng.Uint64(), uint64(p)))
		l.users.Go(func() { l.publish(p, r) })
	}
	return l
}

func (l *load) end() {
	l.mu.Lock()
	l.ended = true
	l.moved.Broadcast()
	l.mu.Unlock()
	l.stop()
	l.users.Wait()
	if err := errors.Join(l.bus.Close(), l.store.Close()); err != nil {
		l.t.Errorf("Close: %v", err)
	}
}

// MaybeError and String make it an errorfs.Injector. It takes the image in front
// of the operation that was chosen.
func (l *load) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ops == 0 {
		return nil
	}
	if l.ops--; l.ops > 0 {
		return nil
	}
	image := loadImage{percent: l.percent, promised: l.known.clone()}
	image.mem = l.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: l.percent, RNG: l.rng})
	image.begun = l.known.clone()
	l.running = false
	go func() { l.images <- image }()
	return nil
}

func (l *load) String() string { return "take an image" }

// crash lets the publishers run until an image was taken.
func (l *load) crash(rng *rand.Rand, percent int) loadImage {
	l.noteFloors()
	l.mu.Lock()
	l.running, l.percent, l.ops, l.rng = true, percent, 1+rng.IntN(loadOps), rng
	l.moved.Broadcast()
	l.mu.Unlock()
	return <-l.images
}

// noteFloors notes how far the groups are stored.
func (l *load) noteFloors() {
	for group := range loadGroups {
		state, err := l.store.Group(context.Background(), "t", group)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			l.t.Fatal(err)
		}
		l.mu.Lock()
		l.known.floors[group] = state.Cursor
		l.mu.Unlock()
	}
}

// A publication is named by publisher, number and size; an event's id adds its
// place. One event in 20 is poison: its name says so.
func (l *load) publish(publisher int, rng *rand.Rand) {
	for n := 0; ; n++ {
		size := 1 + rng.IntN(4)
		name := fmt.Sprintf("%d.%d.%d", publisher, n, size)
		var events []eventhub.Event
		for i := range size {
			e := eventhub.Event{Topic: "t", ID: fmt.Sprintf("%s.%d", name, i), Payload: []byte(`"some payload"`)}
			if rng.IntN(20) == 0 {
				e.ID += ".poison"
			}
			if key := rng.IntN(6); key > 0 {
				e.Key = fmt.Sprint(key)
			}
			events = append(events, e)
		}
		l.mu.Lock()
		for !l.running && !l.ended {
			l.moved.Wait()
		}
		if l.ended {
			l.mu.Unlock()
			return
		}
		l.known.attempts[name] = size
		l.mu.Unlock()
		receipts, err := l.bus.Publish(context.Background(), events...)
		if err != nil {
			l.t.Errorf("Publish: %v", err)
			return
		}
		l.mu.Lock()
		for _, r := range receipts {
			l.known.receipts[r.ID] = r.Offset
		}
		l.mu.Unlock()
	}
}

// isPoison and failsOnce say what the members make of an event.
func isPoison(id string) bool      { return len(id) > 7 && id[len(id)-7:] == ".poison" }
func failsOnce(offset uint64) bool { return offset%7 == 0 }
func nameOf(id string) (name string) {
	var publisher, n, size int
	if _, err := fmt.Sscanf(id, "%d.%d.%d", &publisher, &n, &size); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%d.%d.%d", publisher, n, size)
}

// consume is a member. It acks all except what is poison and what fails once.
func (l *load) consume(ctx context.Context, group, ordering string) {
	err := eventhub.Consume(ctx, l.bus, atOnce(2, loadOptions(group, ordering)), func(_ context.Context, d eventhub.Delivery) error {
		if isPoison(d.ID()) || d.Attempt == 1 && failsOnce(d.Offset) {
			return errNotYet
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.known.acks[group][d.Offset] = true // the verdict follows
		return nil
	})
	if err != nil {
		l.t.Errorf("Consume: %v", err)
	}
}

func loadOptions(group, ordering string) eventhub.GroupOptions {
	return eventhub.GroupOptions{
		Topic: "t", Group: group, Start: eventhub.Earliest, BatchSize: 8, MaxInFlight: 16,
		Ordering: ordering, MaxAttempts: loadAttempts, Backoff: eventhub.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond},
	}
}

// check opens an image and holds it against what is known.
func (l *load) check(image loadImage, sum *tally) {
	s := openLoad(l.t, image.mem)
	defer func() {
		if err := s.Close(); err != nil {
			l.t.Errorf("close the image: %v", err)
		}
	}()
	var batch store.Batch
	if err := s.Read(context.Background(), "t", 1, 10_000_000, 1<<30, &batch); err != nil {
		l.t.Fatal(err)
	}
	l.checkEvents(batch.Items, &image, sum)
	letters := l.checkLetters(s, batch.Items, sum)
	left := make(map[string]map[uint64]bool)
	for group := range loadGroups {
		left[group] = l.checkGroup(s, group, uint64(len(batch.Items)), letters[group], &image, sum)
	}
	if !l.t.Failed() {
		l.goOn(s, uint64(len(batch.Items)), left, sum)
	}
	if l.t.Failed() {
		l.t.Fatalf("the image had %d %% of what was not synced", image.percent)
	}
}

// checkEvents: what had its receipt is there, and publications are whole.
func (l *load) checkEvents(items []store.Item, image *loadImage, sum *tally) {
	there := make(map[string]uint64)
	whole := make(map[string]int)
	for i, item := range items {
		id := string(item.Record.ID())
		if item.Offset != uint64(i+1) || there[id] != 0 {
			l.t.Errorf("%s is at %d, event %d of the log, and at %d", id, item.Offset, i+1, there[id])
		}
		there[id] = item.Offset
		whole[nameOf(id)]++
	}
	for id, offset := range image.promised.receipts {
		if there[id] != offset {
			l.t.Errorf("%s had its receipt at %d; the power loss left it at %d", id, offset, there[id])
		}
	}
	for name, n := range image.begun.attempts {
		if whole[name] != 0 && whole[name] != n {
			l.t.Errorf("publication %s is there with %d events of %d", name, whole[name], n)
		}
		if whole[name] == 0 {
			sum.gone++
		}
		delete(whole, name)
	}
	if len(whole) != 0 {
		l.t.Errorf("publications that nobody made: %v", whole)
	}
	sum.receipts += len(image.promised.receipts)
	sum.unanswered += len(items) - len(image.promised.receipts)
}

// checkLetters returns the offsets that have a dead letter, by group: each once,
// and of poison alone.
func (l *load) checkLetters(s store.Store, items []store.Item, sum *tally) map[string]map[uint64]bool {
	letters := map[string]map[uint64]bool{"g": {}, "k": {}}
	var batch store.Batch
	if err := s.Read(context.Background(), "t.dlq", 1, 10_000_000, 1<<30, &batch); err != nil {
		l.t.Fatal(err)
	}
	for _, item := range batch.Items {
		e, err := item.Record.Event(item.Offset)
		if err != nil {
			l.t.Fatal(err)
		}
		var p struct {
			Group    string
			Offset   uint64
			Attempts int
			Event    struct{ ID string }
		}
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			l.t.Fatal(err)
		}
		if p.Offset < 1 || p.Offset > uint64(len(items)) || string(items[p.Offset-1].Record.ID()) != p.Event.ID ||
			!isPoison(p.Event.ID) || p.Attempts != loadAttempts || letters[p.Group][p.Offset] {
			l.t.Errorf("an unexpected dead letter: %s", e.Payload)
		}
		letters[p.Group][p.Offset] = true
		sum.letters++
	}
	return letters
}

// checkGroup returns what is not done in a group. All else was acked or has its
// dead letter.
func (l *load) checkGroup(s store.Store, group string, head uint64, letters map[uint64]bool, image *loadImage, sum *tally) map[uint64]bool {
	left := make(map[uint64]bool)
	ctx := context.Background()
	state, err := s.Group(ctx, "t", group)
	if errors.Is(err, store.ErrNotFound) && image.promised.floors[group] == 0 && len(letters) == 0 {
		for offset := range head {
			left[offset+1] = true
		}
		return left // its creation was under way
	}
	if err != nil || state.Cursor < image.promised.floors[group] || state.Cursor > head {
		l.t.Fatalf("group %s: %+v, %v; it was stored at %d, the log ends at %d", group, state, err, image.promised.floors[group], head)
	}
	p, err := progressOf(ctx, s, "t", group, state.Cursor)
	if err != nil {
		l.t.Fatal(err)
	}
	for offset := uint64(1); offset <= head; offset++ {
		isDone := offset <= state.Cursor || p.IsAcked(offset)
		switch {
		case isDone && !image.begun.acks[group][offset] && !letters[offset]:
			l.t.Errorf("group %s: %d is done, and nobody acked it (the cursor is %d)", group, offset, state.Cursor)
		case !isDone && letters[offset]:
			l.t.Errorf("group %s: %d has its dead letter and is not done", group, offset)
		case isDone:
			sum.acked++
		default:
			left[offset] = true
		}
	}
	return left
}

// goOn runs an engine over the image. Its members get what is not done, in the
// order of their keys where the group has one, and nothing else.
func (l *load) goOn(s store.Store, head uint64, left map[string]map[uint64]bool, sum *tally) {
	b, err := New(Options{Store: s})
	if err != nil {
		l.t.Fatal(err)
	}
	receipts, err := b.Publish(context.Background(), eventhub.Event{Topic: "t", ID: "9.9.9.last", Payload: []byte("1")})
	if err != nil || receipts[0].Offset != head+1 {
		defer b.Close()
		// What is missing never comes: do not wait for it.
		l.t.Fatalf("after the power loss the first publish gives %+v, %v; want offset %d", receipts, err, head+1)
	}
	for group, ordering := range loadGroups {
		sum.again += len(left[group])
		left[group][head+1] = true
		l.drain(b, group, ordering, left[group])
	}
	if err := b.Close(); err != nil {
		l.t.Errorf("Close: %v", err)
	}
	for group := range loadGroups {
		if state, err := s.Group(context.Background(), "t", group); err != nil || state.Cursor != head+1 {
			l.t.Errorf("group %s ends at %+v, %v; want %d", group, state, err, head+1)
		}
	}
}

func (l *load) drain(b *Bus, group, ordering string, left map[uint64]bool) {
	ctx, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	last := make(map[string]uint64) // by key
	var mu sync.Mutex
	err := eventhub.Consume(ctx, b, atOnce(2, loadOptions(group, ordering)), func(_ context.Context, d eventhub.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		key := string(d.Record.Key())
		if !left[d.Offset] || ordering == eventhub.OrderingKey && key != "" && d.Offset < last[key] {
			l.t.Errorf("group %s gets %d after %d of key %q; left are %d", group, d.Offset, last[key], key, len(left))
		}
		last[key] = d.Offset
		if delete(left, d.Offset); len(left) == 0 {
			done()
		}
		return nil
	})
	if err != nil || len(left) != 0 {
		l.t.Errorf("group %s goes on: %v; %d events never came", group, err, len(left))
	}
}
