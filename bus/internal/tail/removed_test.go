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
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
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

// TestTailGoesOnBelowTheMarks: who was at a place that compaction has passed is told of the marks,
// whatever is left of the log: in the middle, nothing below the place, nothing up to the marks,
// nothing at all. Else a program that keeps the state by key would go on with keys that have ended.
func TestTailGoesOnBelowTheMarks(t *testing.T) {
	inBubble(t, func(r *rig) {
		ts := time.Now().UnixMilli()
		r.publish("t", 1, 6)
		synctest.Wait()
		r.change(store.TopicChange{Topic: "t", Compacted: 5, Tombstones: 4})
		for _, step := range []struct {
			what  string
			erase []uint64
			want  []uint64
		}{
			{"in the middle", []uint64{2}, []uint64{3, 4, 5, 6}},
			{"nothing below the place", []uint64{1, 3}, []uint64{4, 5, 6}},
			{"nothing up to the marks", []uint64{4, 5}, []uint64{6}},
			{"nothing", []uint64{6}, nil},
		} {
			r.remove("t", 0, step.erase...)
			o := tailOpts("t")
			o.Places = []eventhub.Place{{Topic: "t", Offset: 2, TS: ts}}
			g := &gapped{inbox: &inbox{T: t, Room: -1}}
			sub, err := r.tails.Open(bg, o, g)
			if err != nil {
				t.Fatal(err)
			}
			r.wantTold(step.what, g.inbox, step.want)
			equal(t, step.what+": gaps", g.gaps, []eventhub.Gap{{Topic: "t", After: 2, First: 3, Compacted: 5, Tombstones: 4}})
			sub.Drop(0)
		}
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
		r.wantTold("after the gap", in, []uint64{5, 6}, eventhub.Gap{Topic: "t", After: 1, First: 5})
	})
}

// TestConflatingTailForgetsWhatIsGone: what is removed while it is pending is not handed over. The tail
// is told of what was trimmed, and gets what an erased event had replaced.
func TestConflatingTailForgetsWhatIsGone(t *testing.T) {
	for _, room := range []int{-1, 0} {
		inBubble(t, func(r *rig) {
			o := tailOpts("t")
			o.Conflate = time.Minute
			in := r.tail(o)
			r.publishKeys("t", "k")
			r.wantTold("the first", in, []uint64{1})
			takes := func(n int) {
				in.Mu.Lock()
				defer in.Mu.Unlock()
				in.Room = n
			}
			takes(room)
			hand := func() {
				time.Sleep(time.Minute)
				if takes(-1); room == 0 {
					in.Sub.Ready()
					time.Sleep(time.Minute) // a hand-over had begun, and is over
				}
			}
			r.publishKeys("t", "k", "l", "k", "m") // 2 to 5; 2 is replaced
			if time.Sleep(30 * time.Second); room == 0 {
				time.Sleep(time.Minute) // the hand-over has begun
			}
			r.remove("t", 0, 4)
			hand()
			r.wantTold("one is erased", in, []uint64{2, 3, 5})
			takes(room)
			r.publishKeys("t", "k", "l", "m") // 6 to 8
			if time.Sleep(10 * time.Second); room == 0 {
				time.Sleep(time.Minute)
			}
			r.remove("t", 8)
			hand()
			r.wantTold("two are trimmed", in, []uint64{8}, eventhub.Gap{Topic: "t", After: 5, First: 8})
			takes(room)
			r.publishKeys("t", "k", "l") // 9, 10
			time.Sleep(10 * time.Second)
			if err := r.deleteTopic("t"); err != nil {
				t.Fatal(err)
			}
			r.publishKeys("t", "m") // 11, of another life
			hand()
			r.wantTold("the topic is deleted", in, []uint64{11})
		})
	}
}

// beforeJudging has something happen before a tail's filter is asked, which every tail has then.
func (r *rig) beforeJudging(do func()) {
	filter := r.tails.opts.Filter
	r.tails.opts.Filter = func(f *eventhub.Filter) (Wants, bool, error) {
		wants, evaluates, err := filter(f)
		return func(rec eventhub.Record, offset uint64) bool {
			do()
			return wants == nil || wants(rec, offset)
		}, evaluates, err
	}
}

// TestConflatingTailMergesNothingGone: an event that was read before it was removed is not merged after
// that, in a turn of a shard or of the tail.
func TestConflatingTailMergesNothingGone(t *testing.T) {
	for _, o := range []eventhub.TailOptions{
		{Topic: "t", Filter: &eventhub.Filter{Key: "k"}}, {Topic: "t", Filter: &eventhub.Filter{CEL: `event.key == "k"`}}, {Topic: "t", Start: eventhub.FromOffset(1)},
	} {
		for _, deletes := range []bool{false, true} {
			inBubble(t, func(r *rig) {
				var meanwhile func()
				r.beforeJudging(func() {
					if do := meanwhile; do != nil {
						meanwhile = nil
						do()
					}
				})
				remove := func() {
					if deletes {
						if err := r.deleteTopic("t"); err != nil {
							t.Error(err)
						}
						return
					}
					r.remove("t", 0, 2)
				}
				o.Conflate = time.Minute
				if o.Start.Kind == eventhub.StartOffset {
					r.publishKeys("t", "k", "k")
					synctest.Wait()
					meanwhile = remove
				}
				in := r.tail(o)
				if o.Start.Kind != eventhub.StartOffset {
					r.publishKeys("t", "k")
					synctest.Wait()
					time.Sleep(2 * time.Minute)
					in.Take()
					meanwhile = remove
					r.publishKeys("t", "k") // 2
				}
				time.Sleep(2 * time.Minute)
				for _, d := range in.Take() {
					if d.Offset == 2 || deletes {
						t.Errorf("a tail from %+v with %+v got offset %d, which is gone", o.Start, o.Filter, d.Offset)
					}
				}
			})
		}
	}
}

// TestRandomOvertaken drives tails that are slow, refuse, pause, filter, are cut off and go on
// at their places, while events are published, trimmed, erased and compacted, also right before
// any read of theirs. What a tail was given and what it was told is gone are, together with what
// was erased and what it was told may be missing, all that it was to get; what it was told is gone was, it had not had, and it is
// told once in a connection; each event comes once in a connection, in order, and none later than its
// removal. A tail that conflates was given the newest event of each key that is left.
func TestRandomOvertaken(t *testing.T) {
	testsize.Histories(t, testsize.Of(1000, 70), func(rt *rapid.T) {
		bubble.Check(rt, func(rt *rapid.T) {
			r := &rig{t: t, store: &meter{Store: memory.Open(memory.Options{})}}
			r.start(rapid.SampledFrom([]int{1, 500, 1 << 20}).Draw(rt, "cache"))
			w := &trimmed{T: rt, rig: r, logs: make(map[string]*trimmedLog)}
			r.store.beforeRead = w.duringRead
			if w.next(2) == 0 {
				r.beforeJudging(func() {
					w.checkParts()
					w.duringRead("")
				})
			}
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
	if t.Logf("%d notices of compactions; %d events were taken by one before a tail had them", met.passed, met.missed); min(met.passed, met.missed) == 0 {
		t.Error("the histories did not meet all of it")
	}
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
	marks   store.Marks
	ends    map[uint64]bool      // these end their key, and all that have a key have the same
	gone    map[uint64]time.Time // when it was answered that they were removed
}

// overtakenTail is a tail over several connections.
type overtakenTail struct {
	opts    eventhub.TailOptions
	pattern eventhub.Pattern
	key     string
	tells   bool              // its receiver is notified of gaps
	refuses bool              // its receiver has refused something, so what it conflates may come in parts
	from    map[string]uint64 // the first offset that it is to have of a topic; others: 1
	places  map[string]eventhub.Place
	done    map[string]map[uint64]bool // what it was given, or told
	misses  map[string]map[uint64]bool // what it knows that it may miss: values
	ends    map[string]map[uint64]bool // ends of keys
	in      *overtakenInbox
}

// overtakenInbox is one connection of it.
type overtakenInbox struct {
	*inbox
	known string
	gaps  []eventhub.Gap
	last  map[string]uint64      // in each topic: what it was given or told reaches to there
	marks map[string]store.Marks // that it was told
}

func (in *overtakenInbox) Know(known string) { in.known = known }

// tellingInbox is one that is notified.
type tellingInbox struct{ *overtakenInbox }

func (in tellingInbox) Gap(g eventhub.Gap) { in.gaps = append(in.gaps, g) }

func (w *trimmed) next(n int) int { return rapid.IntRange(0, n-1).Draw(w.T, "n") }

func (w *trimmed) log(topic string) *trimmedLog {
	if w.logs[topic] == nil {
		w.logs[topic] = &trimmedLog{erased: make(map[uint64]bool), ends: make(map[uint64]bool), gone: make(map[uint64]time.Time), horizon: 1}
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
		m.refuses = true
		m.in.Sub.Ready()
	case op < 14:
		w.remove()
	case op < 16: // right before a read
		ch := w.removal()
		l := w.log(ch.Topic)
		w.mu.Lock()
		w.strike = append(w.strike, func() { w.doRemove(l, ch) })
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
		if e.Key != "" && w.next(3) == 0 {
			e.Payload = []byte(`null`)
		}
		events = append(events, e)
	}
	if _, err := w.rig.commit(bg, events...); err != nil {
		w.Fatal(err)
	}
	for _, e := range events {
		l := w.log(e.Topic)
		w.mu.Lock()
		l.keys = append(l.keys, e.Key)
		l.ends[uint64(len(l.keys))] = string(e.Payload) == `null`
		w.mu.Unlock()
	}
}

// removal draws what is removed of a topic that has events.
func (w *trimmed) removal() store.TopicChange {
	topic := rapid.SampledFrom([]string{"a", "a.b", "c"}).Draw(w.T, "topic")
	n := len(w.log(topic).keys)
	if n == 0 {
		return store.TopicChange{Topic: topic}
	}
	switch w.next(4) {
	case 0:
		return store.TopicChange{Topic: topic, Erase: []uint64{uint64(1 + w.next(n)), uint64(1 + w.next(n))}}
	case 1:
		return store.TopicChange{Topic: topic, Horizon: uint64(1 + w.next(n+1))}
	}
	up := 1 + w.next(n)
	return store.TopicChange{Topic: topic, Compacted: uint64(up), Tombstones: uint64(w.next(up + 1))}
}

func (w *trimmed) remove() {
	ch := w.removal()
	w.doRemove(w.log(ch.Topic), ch)
}

func (w *trimmed) doRemove(l *trimmedLog, ch store.TopicChange) {
	if ch.Horizon == 0 && ch.Compacted == 0 && len(ch.Erase) == 0 {
		return
	}
	w.mu.Lock()
	l.horizon = max(l.horizon, ch.Horizon)
	l.marks.Compacted = max(l.marks.Compacted, ch.Compacted)
	l.marks.Tombstones = max(l.marks.Tombstones, min(ch.Tombstones, l.marks.Compacted))
	for _, offset := range ch.Erase {
		l.erased[offset] = true
	}
	n := uint64(len(l.keys))
	w.mu.Unlock()
	w.rig.change(ch)
	w.mu.Lock()
	defer w.mu.Unlock()
	for offset := uint64(1); offset <= n; offset++ {
		if isGone := offset < ch.Horizon || slices.Contains(ch.Erase, offset); isGone && l.gone[offset].IsZero() {
			l.gone[offset] = time.Now()
		}
	}
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
		places: make(map[string]eventhub.Place), done: make(map[string]map[uint64]bool),
		misses: make(map[string]map[uint64]bool), ends: make(map[string]map[uint64]bool)}
	m.opts = eventhub.TailOptions{BatchSize: 1 + w.next(6), Topic: rapid.SampledFrom([]string{"a", "c", "a.**", "**"}).Draw(w.T, "topic")}
	m.pattern, _ = eventhub.ParsePattern(m.opts.Topic)
	switch w.next(3) {
	case 0:
		m.key, m.opts.Filter = "k", &eventhub.Filter{Key: "k"}
	case 1:
		m.key, m.opts.Filter = "k", &eventhub.Filter{CEL: `event.key == "k"`}
	}
	if w.next(3) == 0 {
		m.opts.Conflate = time.Duration(1+w.next(4)) * time.Second
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
	room := -1
	if m.refuses = m.refuses || w.next(2) == 0; m.refuses {
		room = w.next(8) - 1
	}
	m.in = &overtakenInbox{inbox: &inbox{T: w.rig.t, Room: room}, last: make(map[string]uint64), marks: make(map[string]store.Marks)}
	if before != nil {
		o.Known = before.known
		for _, p := range m.places {
			o.Places = append(o.Places, p)
		}
	}
	if m.opts.Start == eventhub.Earliest { // of what it has no place in it begins with what there is
		w.mu.Lock()
		for topic, l := range w.logs {
			if _, placed := m.places[topic]; !placed {
				m.mayMiss(topic, 1, l.marks)
			}
		}
		w.mu.Unlock()
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

// checkParts: a part is behind and in its tail's list once, or neither.
func (w *trimmed) checkParts() {
	ts := w.rig.tails
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	for t := range ts.tails {
		if behind, lag := t.behind(); behind != lag {
			w.Errorf("a tail has %d parts that are behind, and %d in its list", behind, lag)
		}
	}
}

// behind returns how many parts say that they are behind, and how many are in the list of these.
func (t *Tail) behind() (parts, lag int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		if p.behind {
			parts++
		}
	}
	return parts, len(t.lag)
}

// told notes a gap, and that it is one.
func (w *trimmed) told(m *overtakenTail, g eventhub.Gap) {
	l := w.log(g.Topic)
	w.mu.Lock()
	defer w.mu.Unlock()
	isNone := g.First <= g.After+1 && g.Compacted == 0
	if !m.pattern.Match(g.Topic) || isNone || g.After < m.in.last[g.Topic] {
		w.Fatalf("a tail of %s is told of the gap %+v; the horizon is %d, and it was at %d", m.opts.Topic, g, l.horizon, m.in.last[g.Topic])
	}
	if g.Compacted > 0 {
		met.passed++
		marks := store.Marks{Compacted: g.Compacted, Tombstones: g.Tombstones}
		if marks.Above(g.First-1, m.in.marks[g.Topic]) != marks || marks.Max(l.marks) != l.marks {
			w.Fatalf("a tail of %s is told of the gap %+v; the marks are %+v, and it was told %+v", m.opts.Topic, g, l.marks, m.in.marks[g.Topic])
		}
		m.in.marks[g.Topic] = m.in.marks[g.Topic].Max(marks)
		m.mayMiss(g.Topic, g.First, marks)
	}
	m.in.last[g.Topic] = g.First - 1
	for offset := g.After + 1; offset < g.First; offset++ {
		if offset >= l.horizon && !l.erased[offset] { // what compaction took is not in the range: the marks say it
			w.Fatalf("a tail of %s is told of the gap %+v; offset %d was not removed, and the horizon is %d", m.opts.Topic, g, offset, l.horizon)
		}
		w.note(m, g.Topic, offset)
	}
}

// mayMiss notes what the tail knows that it may miss.
func (m *overtakenTail) mayMiss(topic string, first uint64, marks store.Marks) {
	if m.misses[topic] == nil {
		m.misses[topic], m.ends[topic] = make(map[uint64]bool), make(map[uint64]bool)
	}
	for offset := first; offset <= marks.Compacted; offset++ {
		m.misses[topic][offset] = true
		m.ends[topic][offset] = m.ends[topic][offset] || offset <= marks.Tombstones
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
	w.checkParts()
	for _, d := range m.in.Take() {
		if d.Gap != nil {
			w.told(m, *d.Gap)
		}
		if last := m.in.last[d.Topic]; d.Offset <= last {
			w.Fatalf("a tail of %s got offset %d of %s after %d", m.opts.Topic, d.Offset, d.Topic, last)
		}
		m.in.last[d.Topic] = d.Offset
		w.mu.Lock()
		gone := w.log(d.Topic).gone[d.Offset]
		w.mu.Unlock()
		if !gone.IsZero() && d.At.After(gone) {
			w.Fatalf("a tail of %s, which conflates for %s, got offset %d of %s %s after its removal", m.opts.Topic, m.opts.Conflate, d.Offset, d.Topic, d.At.Sub(gone))
		}
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
		time.Sleep(time.Minute) // for those that conflate
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
				mayMiss := key != "" && (m.misses[topic][offset] && !(l.ends[offset] && l.asEnd(offset)) || m.ends[topic][offset])
				if m.opts.Conflate != 0 && (m.refuses || l.isReplaced(offset)) {
					mayMiss = true
				}
				if offset >= m.from[topic] && (m.key == "" || m.key == key) && !l.erased[offset] && !m.done[topic][offset] {
					if mayMiss {
						met.missed++
						continue
					}
					w.Fatalf("a tail of %s, from %+v and filter %v, was neither given nor told of offset %d of %s; the horizon is %d, and it had %v",
						m.opts.Topic, m.opts.Start, m.key, offset, topic, l.horizon, sorted(m.done[topic]))
				}
			}
		}
		m.in.Sub.Drop(0)
	}
}

// asEnd reports whether an event that compaction took was the newest of the key up to the mark.
func (l *trimmedLog) asEnd(offset uint64) bool {
	for newer := offset + 1; newer <= l.marks.Compacted; newer++ {
		if l.keys[newer-1] != "" {
			return false
		}
	}
	return true
}

// isReplaced reports whether a newer event of the key is there.
func (l *trimmedLog) isReplaced(offset uint64) bool {
	for newer := offset + 1; newer <= uint64(len(l.keys)); newer++ {
		if l.keys[newer-1] == l.keys[offset-1] && !l.erased[newer] {
			return true
		}
	}
	return false
}

// met counts what the histories met.
var met struct{ passed, missed int }

func sorted[K cmp.Ordered](set map[K]bool) (keys []K) {
	for k := range set {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
