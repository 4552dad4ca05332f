package tail

import (
	"cmp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
)

// told returns the gaps that deliveries had, and what their offsets were.
func told(ds []got) (gaps []eventhub.Gap, offsets []uint64) {
	for _, d := range ds {
		if d.Gap != nil {
			gaps = append(gaps, *d.Gap)
		}
		offsets = append(offsets, d.Offset)
	}
	return gaps, offsets
}

func (r *rig) wantTold(what string, in *inbox, offsets []uint64, gaps ...eventhub.Gap) {
	r.t.Helper()
	g, o := told(in.Take())
	equal(r.t, what+": offsets", o, offsets)
	equal(r.t, what+": gaps", g, gaps)
}

// TestTailIsOvertaken: a tail that lags when events are removed is told which, once, with the
// next event that it gets; one that has had them is not.
func TestTailIsOvertaken(t *testing.T) {
	inBubble(t, func(r *rig) {
		keeps := r.tail(tailOpts("t"))
		lags := r.tail(tailOpts("t"))
		lags.Room = 2
		r.publish("t", 1, 9)
		synctest.Wait()
		r.remove("t", 6)
		r.wantTold("with room for two", lags, []uint64{1, 2})
		r.remove("t", 8)
		lags.Room = -1
		lags.Sub.Ready()
		r.wantTold("after it", lags, []uint64{8, 9}, eventhub.Gap{Topic: "t", After: 2, First: 8})
		r.publish("t", 10, 2)
		r.wantTold("then", lags, []uint64{10, 11})
		r.wantTold("the one that kept up", keeps, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	})
}

// TestTailIsOvertakenToTheHead: the notice waits for the next event, over refusals and over
// events that the tail does not want, and what is removed meanwhile is a part of it.
func TestTailIsOvertakenToTheHead(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := tailOpts("t")
		o.Filter = &eventhub.Filter{Key: "k"}
		in := r.tail(o)
		if err := in.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		r.publishKeys("t", "k", "k", "l")
		synctest.Wait()
		r.remove("t", 4)
		if err := in.Sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		r.wantTold("all is gone", in, nil)
		r.publishKeys("t", "l", "l") // 4, 5
		r.wantTold("what it does not want", in, nil)
		in.Room = 0
		r.publishKeys("t", "k", "l", "k") // 6, 7, 8
		r.wantTold("without room", in, nil)
		r.remove("t", 8)
		in.Room = -1
		in.Sub.Ready()
		r.wantTold("with room", in, []uint64{8}, eventhub.Gap{Topic: "t", After: 0, First: 8})
	})
}

// TestTailIsNotToldOfHoles: nobody knows whether there was an event at an offset that has
// none. Erased events are such offsets.
func TestTailIsNotToldOfHoles(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(tailOpts("t"))
		in.Room = 0
		r.publish("t", 1, 6)
		synctest.Wait()
		r.remove("t", 0, 1, 3, 6)
		in.Room = -1
		in.Sub.Ready()
		r.wantTold("offsets that are left", in, []uint64{2, 4, 5})
		r.publish("t", 7, 1)
		r.wantTold("then", in, []uint64{7})
	})
}

// TestTailBeginsBelowTheHorizon: a start that names a place is told what is gone after it, one
// at what there is is not. A receiver that is notified of gaps hears of it before Open
// returns, any other with its first event; nobody twice.
func TestTailBeginsBelowTheHorizon(t *testing.T) {
	inBubble(t, func(r *rig) {
		began := time.Now().UnixMilli()
		r.publish("t", 1, 4)
		time.Sleep(time.Second)
		r.publish("t", 5, 3)
		later := time.Now().UnixMilli()
		synctest.Wait()
		r.remove("t", 5)
		for _, tt := range []struct {
			name   string
			start  eventhub.Start
			places []eventhub.Place
			known  string
			want   []uint64
			gaps   []eventhub.Gap
		}{
			{name: "earliest", start: eventhub.Earliest, want: []uint64{5, 6, 7}},
			{name: "latest"},
			{name: "offset", start: eventhub.FromOffset(3), want: []uint64{5, 6, 7}, gaps: []eventhub.Gap{{Topic: "t", After: 2, First: 5}}},
			{name: "the first that is left", start: eventhub.FromOffset(5), want: []uint64{5, 6, 7}},
			{name: "time", start: eventhub.Start{Kind: eventhub.StartTime, TS: began}, want: []uint64{5, 6, 7}, gaps: []eventhub.Gap{{Topic: "t", After: 0, First: 5}}},
			{name: "a time after all", start: eventhub.Start{Kind: eventhub.StartTime, TS: later + 1}},
			{name: "place", places: []eventhub.Place{{Topic: "t", Offset: 2, TS: began}}, want: []uint64{5, 6, 7}, gaps: []eventhub.Gap{{Topic: "t", After: 2, First: 5}}},
			{name: "the last place that is gone", places: []eventhub.Place{{Topic: "t", Offset: 4, TS: began}}, want: []uint64{5, 6, 7}},
			{name: "a place without a time", places: []eventhub.Place{{Topic: "t", Offset: 1}}, want: []uint64{5, 6, 7}, gaps: []eventhub.Gap{{Topic: "t", After: 1, First: 5}}},
			{name: "a place before all", places: []eventhub.Place{{Topic: "t"}}, want: []uint64{5, 6, 7}, gaps: []eventhub.Gap{{Topic: "t", After: 0, First: 5}}},
			{name: "it goes on from earliest, and had nothing", start: eventhub.Earliest, known: "0-0", want: []uint64{5, 6, 7}, gaps: []eventhub.Gap{{Topic: "t", After: 0, First: 5}}},
		} {
			o := tailOpts("t")
			o.Start, o.Places, o.Known = tt.start, tt.places, tt.known
			in := r.tail(o)
			r.wantTold(tt.name, in, tt.want, tt.gaps...)
			in.Sub.Drop(0)

			g := &gapped{inbox: &inbox{T: t, Room: -1}}
			sub, err := r.tails.Open(bg, o, g)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, tt.name+": gaps before Open returns", g.gaps, tt.gaps)
			r.wantTold(tt.name+", notified", g.inbox, tt.want)
			sub.Drop(0)
		}
		o := tailOpts("t")
		o.Start = eventhub.AfterID("nobody")
		_, err := r.tails.Open(bg, o, nil)
		wantCode(t, err, eventhub.CodeUnknownID)
		equal(t, "message", eventhub.AsError(err).Message, `after_id "nobody" is not in topic "t"; it may have been removed: the topic begins at offset 5`)
	})
}

// TestTailGoesOnAfterAnErasedEvent: a place counts by its offset, also where its event was
// erased: in the middle, at the beginning, at the end of the log, and where nothing is left.
func TestTailGoesOnAfterAnErasedEvent(t *testing.T) {
	inBubble(t, func(r *rig) {
		var ts []int64
		for n := range 5 {
			ts = append(ts, time.Now().UnixMilli())
			r.publish("t", n+1, 1)
			time.Sleep(time.Second)
		}
		goOn := func(what string, offset uint64, want []uint64, gaps ...eventhub.Gap) {
			t.Helper()
			o := tailOpts("t")
			o.Places = []eventhub.Place{{Topic: "t", Offset: offset, TS: ts[offset-1]}}
			g := &gapped{inbox: &inbox{T: t, Room: -1}}
			sub, err := r.tails.Open(bg, o, g)
			if err != nil {
				t.Fatal(err)
			}
			r.wantTold(what, g.inbox, want)
			equal(t, what+": gaps", g.gaps, gaps)
			sub.Drop(0)
		}
		r.remove("t", 0, 3)
		goOn("in the middle", 3, []uint64{4, 5})
		r.remove("t", 0, 1)
		goOn("at the beginning", 1, []uint64{2, 4, 5})
		r.remove("t", 0, 5)
		goOn("at the end", 5, nil)
		r.remove("t", 0, 2, 4)
		goOn("nothing is left", 3, nil)
		goOn("nothing is left, at the end", 5, nil)
		r.remove("t", 6)
		goOn("the horizon is after all", 2, nil, eventhub.Gap{Topic: "t", After: 2, First: 6})
	})
}

// TestConflatingTailIsOvertaken: the notice comes with the first event after the gap.
func TestConflatingTailIsOvertaken(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := tailOpts("t")
		o.Conflate = time.Minute
		in := r.tail(o)
		r.publishKeys("t", "k")
		r.wantTold("the first", in, []uint64{1})
		r.publishKeys("t", "l") // 2, pending
		synctest.Wait()
		in.Sub.(*Tail).mu.Lock()
		in.Sub.(*Tail).merged.bytes += maxPending // no room for more
		in.Sub.(*Tail).mu.Unlock()
		r.publishKeys("t", "k", "k", "m", "n") // 3 to 6
		synctest.Wait()
		r.remove("t", 5)
		in.Sub.(*Tail).mu.Lock()
		in.Sub.(*Tail).merged.bytes -= maxPending
		in.Sub.(*Tail).mu.Unlock()
		time.Sleep(2 * time.Minute)
		r.wantTold("after the gap", in, []uint64{2, 5, 6}, eventhub.Gap{Topic: "t", After: 2, First: 5})
	})
}

// TestRandomOvertaken drives tails that are slow, refuse, pause, filter, are cut off and go on
// at their places, while events are published, trimmed and erased, also right before any
// read of theirs. What a tail was given and what it was told is gone are, together with what
// was erased, all that it was to get; what it was told is gone was, it had not had, and it is
// told once in a connection; each event comes once in a connection, in order.
func TestRandomOvertaken(t *testing.T) {
	testsize.Histories(t, testsize.Of(3000, 200), func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{})}}
			r.start(rapid.SampledFrom([]int{1, 500, 1 << 20}).Draw(rt, "cache"))
			w := &trimmed{T: rt, rig: r, logs: make(map[string]*trimmedLog)}
			r.store.beforeRead = w.duringRead
			rt.Cleanup(func() {
				r.stop()
				_ = r.store.Close()
			})
			for range w.next(60) {
				w.step()
			}
			w.end()
		})
	})
}

// trimmed is a world of logs and the tails that read them.
type trimmed struct {
	*rapid.T
	rig   *rig
	logs  map[string]*trimmedLog
	tails []*overtakenTail

	mu     sync.Mutex
	strike []func() // what is done before the reads to come
}

// trimmedLog is a model of a topic: its events are at the offsets from 1 to the length of keys.
type trimmedLog struct {
	keys []string

	// Guarded by trimmed.mu.
	erased  map[uint64]bool
	horizon uint64
}

// overtakenTail is a tail over several connections.
type overtakenTail struct {
	opts    eventhub.TailOptions
	pattern eventhub.Pattern
	key     string
	tells   bool              // its receiver is notified of gaps
	from    map[string]uint64 // the first offset that it is to have of a topic; others: 1
	places  map[string]eventhub.Place
	done    map[string]map[uint64]bool // what it was given, or told
	in      *overtakenInbox
}

// overtakenInbox is one connection of it.
type overtakenInbox struct {
	*inbox
	known string
	gaps  []eventhub.Gap
	last  map[string]uint64 // in each topic: what it was given or told reaches to there
}

func (in *overtakenInbox) Know(known string) { in.known = known }

// tellingInbox is one that is notified.
type tellingInbox struct{ *overtakenInbox }

func (in tellingInbox) Gap(g eventhub.Gap) { in.gaps = append(in.gaps, g) }

func (w *trimmed) next(n int) int { return rapid.IntRange(0, n-1).Draw(w.T, "n") }

func (w *trimmed) log(topic string) *trimmedLog {
	if w.logs[topic] == nil {
		w.logs[topic] = &trimmedLog{erased: make(map[uint64]bool), horizon: 1}
	}
	return w.logs[topic]
}

func (w *trimmed) step() {
	switch op := w.next(20); {
	case op < 7:
		w.publish()
	case op < 9 && len(w.tails) < 4:
		w.open()
	case op < 12 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		m.in.Mu.Lock()
		m.in.Room = w.next(8) - 1
		m.in.Mu.Unlock()
		m.in.Sub.Ready()
	case op < 14:
		w.remove()
	case op < 16: // right before a read
		topic, horizon, erase := w.removal()
		l := w.log(topic)
		w.mu.Lock()
		w.strike = append(w.strike, func() { w.doRemove(l, topic, horizon, erase) })
		w.mu.Unlock()
	case op < 17 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		if err := m.in.Sub.(*Tail).setPaused(w.next(2) == 0); err != nil {
			w.Fatal(err)
		}
	case op < 19 && len(w.tails) > 0:
		m := w.tails[w.next(len(w.tails))]
		w.check(m)
		m.in.Sub.Drop(0)
		w.check(m)
		w.connect(m)
	default:
		time.Sleep(time.Duration(w.next(3)) * time.Second)
	}
	if w.next(3) > 0 {
		synctest.Wait()
	}
}

func (w *trimmed) publish() {
	var events []eventhub.Event
	for range 1 + w.next(6) {
		e := eventhub.Event{Topic: rapid.SampledFrom([]string{"a", "a.b", "c"}).Draw(w.T, "topic"), Payload: []byte(`1`),
			Key: rapid.SampledFrom([]string{"", "k"}).Draw(w.T, "key")}
		events = append(events, e)
	}
	if _, err := w.rig.commit(bg, events...); err != nil {
		w.Fatal(err)
	}
	for _, e := range events {
		l := w.log(e.Topic)
		l.keys = append(l.keys, e.Key)
	}
}

// removal draws what is removed of a topic that has events.
func (w *trimmed) removal() (topic string, horizon uint64, erase []uint64) {
	topic = rapid.SampledFrom([]string{"a", "a.b", "c"}).Draw(w.T, "topic")
	n := len(w.log(topic).keys)
	if n == 0 {
		return topic, 0, nil
	}
	if w.next(3) > 0 {
		return topic, uint64(1 + w.next(n+1)), nil
	}
	return topic, 0, []uint64{uint64(1 + w.next(n)), uint64(1 + w.next(n))}
}

func (w *trimmed) remove() {
	topic, horizon, erase := w.removal()
	w.doRemove(w.log(topic), topic, horizon, erase)
}

func (w *trimmed) doRemove(l *trimmedLog, topic string, horizon uint64, erase []uint64) {
	if horizon == 0 && len(erase) == 0 {
		return
	}
	w.mu.Lock()
	l.horizon = max(l.horizon, horizon)
	for _, offset := range erase {
		l.erased[offset] = true
	}
	w.mu.Unlock()
	w.rig.remove(topic, horizon, erase...)
}

// duringRead removes what is to be removed before a read.
func (w *trimmed) duringRead(string) {
	now := func() {}
	w.mu.Lock()
	if len(w.strike) > 0 {
		now, w.strike = w.strike[0], w.strike[1:]
	}
	w.mu.Unlock()
	now()
}

func (w *trimmed) open() {
	m := &overtakenTail{tells: w.next(2) == 0, from: make(map[string]uint64),
		places: make(map[string]eventhub.Place), done: make(map[string]map[uint64]bool)}
	m.opts = eventhub.TailOptions{BatchSize: 1 + w.next(6), Topic: rapid.SampledFrom([]string{"a", "c", "a.**", "**"}).Draw(w.T, "topic")}
	m.pattern, _ = eventhub.ParsePattern(m.opts.Topic)
	switch w.next(3) {
	case 0:
		m.key, m.opts.Filter = "k", &eventhub.Filter{Key: "k"}
	case 1:
		m.key, m.opts.Filter = "k", &eventhub.Filter{CEL: `event.key == "k"`}
	}
	synctest.Wait()
	switch w.next(3) {
	case 0:
		m.opts.Start = eventhub.Earliest
		w.mu.Lock()
		for topic, l := range w.logs {
			m.from[topic] = l.horizon
		}
		w.mu.Unlock()
	case 1:
		if !eventhub.IsPattern(m.opts.Topic) {
			offset := uint64(1 + w.next(10))
			m.opts.Start, m.from[m.opts.Topic] = eventhub.FromOffset(offset), offset
			break
		}
		fallthrough
	default:
		for topic, l := range w.logs {
			m.from[topic] = uint64(len(l.keys) + 1)
		}
	}
	w.connect(m)
	w.tails = append(w.tails, m)
}

// connect opens the tail, or has it go on.
func (w *trimmed) connect(m *overtakenTail) {
	o := m.opts
	before := m.in
	m.in = &overtakenInbox{inbox: &inbox{T: w.rig.t, Room: w.next(8) - 1}, last: make(map[string]uint64)}
	if before != nil {
		o.Known = before.known
		for _, p := range m.places {
			o.Places = append(o.Places, p)
		}
	}
	var receiver eventhub.Receiver = m.in
	if m.tells {
		receiver = tellingInbox{m.in}
	}
	sub, err := w.rig.tails.Open(bg, o, receiver)
	if err != nil {
		w.Fatal(err)
	}
	m.in.Sub = sub
	for _, g := range m.in.gaps {
		w.told(m, g)
	}
	m.in.gaps = nil
}

// told notes a gap, and that it is one.
func (w *trimmed) told(m *overtakenTail, g eventhub.Gap) {
	l := w.log(g.Topic)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.pattern.Match(g.Topic) || g.First <= g.After+1 || g.After < m.in.last[g.Topic] {
		w.Fatalf("a tail of %s is told of the gap %+v; the horizon is %d, and it was at %d", m.opts.Topic, g, l.horizon, m.in.last[g.Topic])
	}
	m.in.last[g.Topic] = g.First - 1
	for offset := g.After + 1; offset < g.First; offset++ {
		if offset >= l.horizon && !l.erased[offset] {
			w.Fatalf("a tail of %s is told of the gap %+v; offset %d is there, and the horizon is %d", m.opts.Topic, g, offset, l.horizon)
		}
		w.note(m, g.Topic, offset)
	}
}

func (w *trimmed) note(m *overtakenTail, topic string, offset uint64) {
	if m.done[topic] == nil {
		m.done[topic] = make(map[uint64]bool)
	}
	m.done[topic][offset] = true
}

// check takes what a tail was given.
func (w *trimmed) check(m *overtakenTail) {
	synctest.Wait()
	for _, d := range m.in.Take() {
		if d.Gap != nil {
			w.told(m, *d.Gap)
		}
		if last := m.in.last[d.Topic]; d.Offset <= last {
			w.Fatalf("a tail of %s got offset %d of %s after %d", m.opts.Topic, d.Offset, d.Topic, last)
		}
		m.in.last[d.Topic] = d.Offset
		w.note(m, d.Topic, d.Offset)
		m.places[d.Topic] = eventhub.Place{Topic: d.Topic, Offset: d.Offset, TS: d.Record.CommitTime()}
	}
}

// end lets everybody read to the end: to one more event of each topic, which has the notice.
func (w *trimmed) end() {
	w.mu.Lock()
	w.strike = nil
	w.mu.Unlock()
	for range 2 {
		for _, m := range w.tails {
			m.in.Mu.Lock()
			m.in.Room = -1
			m.in.Mu.Unlock()
			m.in.Sub.Ready()
			if err := m.in.Sub.Resume(bg); err != nil {
				w.Fatal(err)
			}
		}
		for topic, l := range w.logs {
			if _, err := w.rig.commit(bg, eventhub.Event{Topic: topic, Key: "k", Payload: []byte(`1`)}); err != nil {
				w.Fatal(err)
			}
			l.keys = append(l.keys, "k")
		}
		synctest.Wait()
	}
	for _, m := range w.tails {
		w.check(m)
		for topic, l := range w.logs {
			if !m.pattern.Match(topic) {
				continue
			}
			for i, key := range l.keys {
				offset := uint64(i + 1)
				if offset >= m.from[topic] && (m.key == "" || m.key == key) && !l.erased[offset] && !m.done[topic][offset] {
					w.Fatalf("a tail of %s, from %+v and filter %v, was neither given nor told of offset %d of %s; the horizon is %d, and it had %v",
						m.opts.Topic, m.opts.Start, m.key, offset, topic, l.horizon, sorted(m.done[topic]))
				}
			}
		}
		m.in.Sub.Drop(0)
	}
}

func sorted[K cmp.Ordered](set map[K]bool) (keys []K) {
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
