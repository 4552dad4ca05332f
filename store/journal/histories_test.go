package journal_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

var (
	historySeed = flag.Uint64("history-seed", 0, "the seed of one history of TestHistories")
	histories   = testsize.Int("histories", 300, 30, "how many histories TestHistories has")
)

// TestHistories: hubs that follow, take over, commit and crash, over an engine that loses, delays
// and doubles what is sent, is full, cut off and trimmed.
//
// Whoever follows from the start sees each commit that was answered nil once, at its position, in the
// order of its leader, and none that was fenced. Each hub's copy is a prefix of that.
func TestHistories(t *testing.T) {
	first, n := rand.Uint64(), uint64(*histories)
	if *historySeed != 0 {
		first, n = *historySeed, 1
	}
	var total tally
	for i := range n {
		seed := first + i
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { total.add(history(t, seed)) })
		})
		if !ok {
			t.Fatalf("run again with -history-seed=%d", seed)
		}
	}
	t.Logf("in %d histories: %+v", n, total)
	if n > 20 && (total.answered == 0 || total.fenced == 0 || total.unknown == 0 || total.leads < int(n) || total.late == 0 || total.crashes == 0) {
		t.Errorf("something did not happen in %d histories: %+v", n, total)
	}
}

// tally counts what happened.
type tally struct{ leads, answered, fenced, unknown, crashes, late, restored int }

func (a *tally) add(b tally) {
	a.leads += b.leads
	a.answered += b.answered
	a.fenced += b.fenced
	a.unknown += b.unknown
	a.crashes += b.crashes
	a.late += b.late
	a.restored += b.restored
}

// commit is an entry of data at its place.
type commit struct {
	data string
	at   journal.Position
}

// world is one history.
type world struct {
	t      *testing.T
	engine *memory.Journal
	ctx    context.Context // done when the hubs are to stop

	mu       sync.Mutex
	tally    tally
	seen     []commit // by the observer, who misses nothing
	at       journal.Position
	answered map[string]journal.Position
	order    map[uint64][]string // of answered, by epoch
	fenced   map[string]bool
}

// lease is how long a hub waits for an entry until it takes over.
const lease = 5 * time.Second

func history(t *testing.T, seed uint64) tally {
	random := rand.New(rand.NewPCG(seed, 0))
	ctx, stop := context.WithCancel(background)
	w := &world{
		t: t, ctx: ctx, engine: memory.New(memory.Options{EntryBytes: 70 + random.IntN(100)}),
		answered: make(map[string]journal.Position), order: make(map[uint64][]string), fenced: make(map[string]bool),
	}
	observing, observed := context.WithCancel(background)
	var observer, hubs sync.WaitGroup
	observer.Go(func() { w.observe(observing) })
	var machines []*hub
	var all []*memory.Handle
	for i := range 2 + random.IntN(2) {
		h := &hub{w: w, id: string('a' + rune(i)), random: rand.New(rand.NewPCG(seed, uint64(i)+1)), j: w.engine.Open()}
		machines, all = append(machines, h), append(all, h.j)
		faulty(h.j, rand.New(rand.NewPCG(seed, uint64(i)+100)), random.IntN(40))
		hubs.Go(h.run)
	}
	for range 30 + random.IntN(60) {
		time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
		w.disturb(random, all)
	}
	for _, j := range all {
		j.Faults(nil)
		j.Cut(false)
	}
	w.engine.SetMost(0)
	for w.engine.Deliver(random) {
	}
	time.Sleep(time.Minute)
	stop()
	hubs.Wait()
	for w.engine.Deliver(random) {
	}
	synctest.Wait() // the observer is at the end
	observed()
	observer.Wait()
	w.check()
	for _, h := range machines {
		if h.matches(); len(h.copy) > len(w.seen) {
			t.Errorf("the copy of %s is longer than the journal", h.id)
		}
	}
	return w.tally
}

// faulty has so many of a hundred appends go wrong.
func faulty(j *memory.Handle, random *rand.Rand, percent int) {
	j.Faults(func() memory.Fault {
		if random.IntN(100) >= percent {
			return memory.None
		}
		return memory.Fault(1 + random.IntN(int(memory.Refuse))) // the last of them
	})
}

// disturb does one thing to the engine.
func (w *world) disturb(random *rand.Rand, all []*memory.Handle) {
	switch random.IntN(8) {
	case 0, 1:
		all[random.IntN(len(all))].Cut(true)
	case 2, 3, 4:
		all[random.IntN(len(all))].Cut(false)
	case 5:
		w.mu.Lock()
		upTo := w.at.Seq
		w.mu.Unlock()
		if upTo > 0 {
			_ = w.engine.Open().Trim(background, random.Uint64N(upTo+1))
		}
	case 6:
		w.engine.SetMost([]uint64{0, 0, 1}[random.IntN(3)])
	}
	for range random.IntN(4) {
		if w.engine.Deliver(random) {
			w.mu.Lock()
			w.tally.late++
			w.mu.Unlock()
		}
	}
}

// observe follows all there is.
func (w *world) observe(ctx context.Context) {
	err := journal.New(w.engine.Open()).Follow(ctx, journal.Position{}, func(e journal.Entry) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.at = e.Position
		if e.Kind == journal.KindData {
			w.seen = append(w.seen, commit{data: string(e.Data), at: e.Position})
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		w.t.Errorf("the observer: %v", err)
	}
}

func (w *world) check() {
	for i, c := range w.seen {
		if slices.ContainsFunc(w.seen[:i], func(b commit) bool { return b.data == c.data }) {
			w.t.Errorf("%q is there twice", c.data)
		}
		if w.fenced[c.data] {
			w.t.Errorf("%q was fenced, and is there", c.data)
		}
	}
	for data, at := range w.answered {
		if !slices.Contains(w.seen, commit{data: data, at: at}) {
			w.t.Errorf("%q was answered with %+v, and is not there", data, at)
		}
	}
	for epoch, order := range w.order {
		if !slices.IsSortedFunc(order, func(a, b string) int { return int(w.answered[a].Seq) - int(w.answered[b].Seq) }) {
			w.t.Errorf("the commits of epoch %d are in another order", epoch)
		}
	}
}

// hub is one machine, whose copy loses its end when it crashes.
type hub struct {
	w      *world
	id     string
	random *rand.Rand
	j      *memory.Handle
	copy   []commit         // of data
	at     journal.Position // of the copy
	made   int
}

func (h *hub) run() {
	for h.w.ctx.Err() == nil {
		if !h.follow() {
			continue
		}
		ctx, cancel := context.WithTimeout(h.w.ctx, time.Duration(h.random.IntN(20))*time.Second)
		d, err := journal.New(h.j).Lead(ctx, h.at, h.id, 1)
		cancel()
		switch {
		case err == nil:
			h.lead(d)
		case errors.Is(err, journal.ErrDiverged):
			h.w.t.Errorf("%s leads: %v", h.id, err)
		}
		h.matches()
	}
}

// follow follows until nothing comes for a lease, and reports whether the hub may take over.
func (h *hub) follow() bool {
	ctx, cancel := context.WithCancel(h.w.ctx)
	defer cancel()
	wait := lease + time.Duration(h.random.IntN(5000))*time.Millisecond
	quiet := time.AfterFunc(wait, cancel)
	defer quiet.Stop()
	released := errors.New("released")
	err := journal.New(h.j).Follow(ctx, h.at, func(e journal.Entry) error {
		quiet.Reset(wait)
		h.apply(e.Position, string(e.Data), e.Kind == journal.KindData)
		if e.Kind == journal.KindRelease {
			return released
		}
		return nil
	})
	switch {
	case errors.Is(err, journal.ErrTrimmed):
		h.restore()
		return false
	case errors.Is(err, journal.ErrDiverged):
		h.w.t.Errorf("%s follows: %v", h.id, err)
	case err != nil && !errors.Is(err, released) && !errors.Is(err, context.Canceled):
		time.Sleep(time.Second) // the engine did not answer
	}
	return true
}

func (h *hub) apply(at journal.Position, data string, isData bool) {
	if h.at = at; isData {
		h.copy = append(h.copy, commit{data: data, at: at})
	}
}

// restore takes the copy of a member that has more.
func (h *hub) restore() {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.copy, h.at = slices.Clone(h.w.seen), h.w.at
	h.w.tally.restored++
}

// crash loses the end of the copy, which was not synced.
func (h *hub) crash() {
	h.copy = h.copy[:len(h.copy)-min(len(h.copy), h.random.IntN(4))]
	h.at = journal.Position{}
	if n := len(h.copy); n > 0 {
		h.at = h.copy[n-1].at
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.tally.crashes++
}

// lead commits until the hub crashes, stops or is fenced.
func (h *hub) lead(d *journal.Leader) {
	h.w.mu.Lock()
	h.w.tally.leads++
	h.w.mu.Unlock()
	var notes []func() bool
	settle := func(most int) (ok bool) {
		for ok = true; ok && len(notes) > most; notes = notes[1:] {
			ok = notes[0]()
		}
		return ok
	}
	life := h.random.IntN(60)
	for range life {
		if h.random.IntN(5) == 0 {
			time.Sleep(time.Duration(h.random.IntN(2000)) * time.Millisecond)
		}
		if h.random.IntN(6) == 0 {
			d.Beat()
		}
		notes = append(notes, h.commit(d))
		if !settle(h.random.IntN(5)) {
			break
		}
		if h.w.ctx.Err() != nil {
			break
		}
	}
	if h.random.IntN(3) == 0 && settle(0) {
		_, _ = d.Release()()
	}
	_ = d.Close()
	for _, note := range notes {
		note()
	}
	h.crash()
}

// commit appends, and returns what notes the answer.
func (h *hub) commit(d *journal.Leader) (note func() bool) {
	h.made++
	data := fmt.Sprintf("%s%d%s", h.id, h.made, strings.Repeat("-", h.random.IntN(1+h.random.IntN(300))))
	wait := d.Append([]byte(data), int64(h.made))
	return func() bool {
		at, err := wait()
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		switch {
		case err == nil:
			h.w.tally.answered++
			h.w.answered[data] = at
			h.w.order[at.Epoch] = append(h.w.order[at.Epoch], data)
			h.apply(at, data, true)
		case errors.Is(err, journal.ErrFenced):
			h.w.tally.fenced++
			h.w.fenced[data] = true
		case errors.Is(err, journal.ErrUnknown):
			h.w.tally.unknown++
		case !errors.Is(err, journal.ErrClosed):
			h.w.t.Errorf("%s commits %q: %v", h.id, data, err)
		}
		return err == nil
	}
}

// matches holds the copy against what the observer has by now.
func (h *hub) matches() {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if n := min(len(h.copy), len(h.w.seen)); !slices.Equal(h.copy[:n], h.w.seen[:n]) {
		h.w.t.Errorf("the copy of %s is no prefix of the journal", h.id)
	}
}
