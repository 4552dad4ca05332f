package bus

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/deadletter"
	"eventhub/internal/bubble"
	"eventhub/internal/faultfs"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
	"eventhub/store/storetest"
)

// kept is the world of removals in which settings, which change at any time, remove events too,
// and those of a person: trims and erasures by id, offset and key. Its events may have ids that
// are given and given again, and come late; tails read it, and pulls. The model knows what the
// settings so far allowed to be removed, and when; everything else is there.
type kept struct {
	*removals
	spy  *spied
	mem  *vfs.MemFS // nil: in memory
	rng  *rand.Rand // of what the disk does
	next int        // for ids

	settings map[string]admin.TopicSettings // as they were answered
	doubt    *settingDoubt
	horizon  uint64      // the highest that settings and trims have allowed
	trimmed  uint64      // that trims have asked for
	mayMark  store.Marks // likewise
	wasGone  []bool      // of each event: as it was looked at last
	lastSeen []time.Time // likewise: when it was there
	given    map[string]uint64
	repeated map[string]bool // ids that were published again, by hand
	forgets  bool            // ids may have been forgotten with their events
	delayed  map[string]*keptDelayed
	gone     map[uint64]bool // what an answered erasure named
	letterAt int             // dead letters that were noted
	tails    []*keptTail

	mu    sync.Mutex // of the image, which is taken where the store writes
	left  int        // writes until then
	loss  vfs.CrashCloneCfg
	image *vfs.MemFS
}

// settingDoubt is a change whose answer was lost.
type settingDoubt struct {
	name string
	to   *admin.TopicSettings // nil: removed
}

// keptDelayed is an event that is not in the log yet.
type keptDelayed struct {
	due   time.Time
	key   string
	doubt bool // whether it is scheduled, or cancelled
}

// keptMet counts what the histories met.
var keptMet struct{ crashes, images, retained, compacted, trimmed, erased, duplicates, delayed, cancelled, tailGaps, pulled, refused, changes, quiet, states, stateless int }

// TestRandomKept is TestRandomRemovals with settings of topics that change while the engine
// retains and compacts by itself, removals by hand, tails, pulls, pauses, delayed events and ids
// that come again.
func TestRandomKept(t *testing.T) {
	keptMet = struct{ crashes, images, retained, compacted, trimmed, erased, duplicates, delayed, cancelled, tailGaps, pulled, refused, changes, quiet, states, stateless int }{}
	tryKept(t, testsize.Of(300, 25), func(k *kept) { k.spy.Store = memory.Open(memory.Options{}) })
	t.Logf("%+v", keptMet)
	if m := keptMet; !testsize.Small() && min(m.crashes, m.retained, m.compacted, m.trimmed, m.erased, m.duplicates, m.delayed, m.cancelled, m.tailGaps, m.pulled, m.refused, m.changes, m.quiet, m.states, m.stateless) == 0 {
		t.Error("the histories did not meet all of it")
	}
}

// TestRandomKeptOnDisk is TestRandomKept on the embedded store. A crash goes on with an image of
// its disk in front of any write, whatever is under way then.
func TestRandomKeptOnDisk(t *testing.T) {
	before := keptMet.images
	tryKept(t, testsize.Of(40, 4), func(k *kept) {
		k.mem = vfs.NewCrashableMem()
		k.openDisk()
	})
	t.Logf("%d images in the middle of writes; %+v", keptMet.images-before, keptMet)
}

func tryKept(t *testing.T, n int, open func(*kept)) {
	testsize.Histories(t, n, func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			k := &kept{removals: &removals{t: t, erased: make(map[uint64]bool)}, spy: &spied{log: make(map[string][]spiedEvent)},
				rng:      rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "disk"), 1)),
				settings: make(map[string]admin.TopicSettings), horizon: 1, given: make(map[string]uint64), repeated: make(map[string]bool), delayed: make(map[string]*keptDelayed), gone: make(map[uint64]bool)}
			k.store = &interposed{Store: k.spy}
			k.removals.absorb, k.asked = k.absorb, k.byHand
			open(k)
			k.begin()
			k.set("out", &admin.TopicSettings{}) // of the events that follow
			t.Cleanup(func() {
				k.store.off()
				k.store.fail(nil)
				_ = k.bus.Close()
				_ = k.store.Close()
			})
			for range rapid.IntRange(5, 60).Draw(t, "steps") {
				k.step()
				k.look2()
			}
			k.end()
		})
	})
}

func (k *kept) openDisk() {
	s, err := pebble.Open(pebble.Options{Dir: "data", FS: faultfs.Wrap(k.mem, errorfs.InjectorFunc(k.onWrite)), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		k.t.Fatal(err)
	}
	k.spy.Store = s
}

// onWrite takes the image. What is under way then, and what comes after it, is not answered.
func (k *kept) onWrite(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left--; k.left == 0 {
		k.image = k.mem.CrashClone(k.loss)
		k.spy.die()
		k.fail()
	}
	return nil
}

func (k *kept) draw(n int, label string) int { return rapid.IntRange(0, n-1).Draw(k.t, label) }

// step does one thing.
func (k *kept) step() {
	if k.draw(2, "whose") == 0 {
		run := k.run
		if k.removals.step(); k.run != run {
			k.recover()
		}
		return
	}
	switch step := rapid.SampledFrom([]string{"set", "set", "set", "unset", "trim", "erase", "given", "given", "again", "delay", "cancel", "tail", "room", "cut",
		"pull", "pause", "resume", "refuse", "ask", "ask", "pass", "pass", "pass", "crash", "crash"}).Draw(k.t, "kept step"); step {
	case "set":
		name := k.drawName()
		s := k.drawSettings(name)
		k.set(name, &s)
	case "unset":
		k.set(k.drawName(), nil)
	case "trim":
		k.trim()
	case "erase":
		k.erase()
	case "given":
		k.publishGiven()
	case "again":
		k.publishAgain()
	case "delay":
		k.delay()
	case "cancel":
		k.cancel()
	case "tail":
		if len(k.tails) < 3 {
			k.openTail()
		}
	case "room", "cut":
		if len(k.tails) > 0 {
			m := k.tails[k.draw(len(k.tails), "tail")]
			if step == "cut" {
				m.connect()
				break
			}
			m.in.Mu.Lock()
			m.in.Room = k.draw(6, "room") - 1
			m.in.Mu.Unlock()
			m.in.Sub.Ready()
		}
	case "pull":
		k.pull()
	case "ask":
		k.ask()
	case "pause":
		k.must(k.bus.PauseGroup(bg, "t", k.group().o.Group))
	case "resume":
		k.must(k.bus.ResumeGroup(bg, "t", k.group().o.Group))
	case "refuse":
		k.refuse()
	case "pass":
		time.Sleep(rapid.SampledFrom([]time.Duration{2 * time.Second, 12 * time.Second, 40 * time.Second, 3 * time.Minute}).Draw(k.t, "time"))
	case "crash":
		k.crash()
	}
}

func (k *kept) group() *removalGroup { return k.groups[k.draw(len(k.groups), "group")] }

func (k *kept) must(err error) {
	if err != nil && k.store.failure() == nil {
		k.t.Fatal(err)
	}
}

// effective returns the settings of the topic.
func (k *kept) effective() admin.TopicSettings { return effectiveOf(k.settings) }

func effectiveOf(settings map[string]admin.TopicSettings) admin.TopicSettings {
	for _, name := range []string{"t", "*", "**"} {
		if s, ok := settings[name]; ok {
			return s
		}
	}
	return admin.TopicSettings{}
}

func (k *kept) drawName() string {
	return rapid.SampledFrom([]string{"t", "t", "*", "**", "t.dlq", "*.dlq"}).Draw(k.t, "name")
}

func (k *kept) drawSettings(name string) (s admin.TopicSettings) {
	period := func(label string) admin.Period {
		return admin.Period(time.Duration(1+k.draw(60, label)) * time.Second)
	}
	policy := k.draw(5, "policy")
	isLetters := strings.HasSuffix(name, ".dlq")
	if isLetters {
		policy = min(policy, 2)
	}
	switch policy {
	case 0:
		s.Retention.Age = period("age")
	case 1:
		s.Retention.Count = uint64(1 + k.draw(12, "count"))
	case 2:
		s.Retention.Bytes = admin.Size(1024 + k.draw(2000, "bytes"))
	case 3:
		s.Compaction = &admin.Compaction{MinAge: period("min age"), Hold: period("hold"), Grace: period("grace")}
		if k.draw(3, "too") == 0 {
			s.Retention.Age = admin.Period(time.Minute)
		}
	}
	s.KeyRequired = k.draw(6, "keyed") == 0 && !isLetters
	if s.Compaction == nil {
		s.State = rapid.SampledFrom([]admin.StateMode{"", "", admin.StateAuto, admin.StateOn, admin.StateOff}).Draw(k.t, "state")
	}
	return s
}

// set changes or removes settings.
func (k *kept) set(name string, s *admin.TopicSettings) {
	k.allow()
	var err error
	if s != nil {
		_, err = k.bus.SetTopic(bg, name, *s, nil)
	} else if _, there := k.settings[name]; there {
		err = k.bus.UnsetTopic(bg, name, nil)
	} else if err := k.bus.UnsetTopic(bg, name, nil); k.store.failure() == nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		k.t.Fatalf("removed settings of %q that there are none: %v", name, err)
	}
	k.must(err)
	keptMet.changes++
	if err != nil {
		k.doubt = &settingDoubt{name, s}
	}
	settings := maps.Clone(k.settings)
	if delete(settings, name); s != nil {
		settings[name] = *s
	}
	k.forgets = k.forgets || effectiveOf(settings).Retention.Bytes != 0
	if err == nil {
		k.settings = settings
	}
	k.allowBy(effectiveOf(settings))
	s2 := k.effective()
	k.keyed = s2.KeyRequired || s2.Compaction != nil
}

// allow notes what the settings allow to be removed now. What was there when it was looked at
// last counts as there.
func (k *kept) allow() {
	k.absorb()
	k.allowBy(k.effective())
}

func (k *kept) allowBy(s admin.TopicSettings) {
	entries, now := k.spy.entries("t"), time.Now()
	before := func(age admin.Period) (last uint64) {
		for _, e := range entries {
			if !e.at.Add(time.Duration(age)).After(now) {
				last = e.offset
			}
		}
		return last
	}
	if s.Retention.Age != 0 {
		k.horizon = max(k.horizon, before(s.Retention.Age)+1)
	}
	var count, bytes uint64
	for i := len(entries) - 1; i >= 0; i-- {
		if i < len(k.wasGone) && k.wasGone[i] && !k.events[i].back {
			continue
		}
		count++
		bytes += entries[i].size
		if s.Retention.Count != 0 && count > s.Retention.Count || s.Retention.Bytes != 0 && bytes > uint64(s.Retention.Bytes) {
			k.horizon = max(k.horizon, entries[i].offset+1)
			break
		}
	}
	if c := s.Compaction; c != nil {
		k.mayMark = k.mayMark.Max(store.Marks{Compacted: before(c.MinAge), Tombstones: before(c.Grace)})
	}
}

// byHand notes what somebody asks to be removed, whatever the settings say.
func (k *kept) byHand(ch store.TopicChange) {
	k.trimmed = max(k.trimmed, ch.Horizon)
	k.horizon = max(k.horizon, ch.Horizon)
	k.mayMark = k.mayMark.Max(store.Marks{Compacted: ch.Compacted, Tombstones: min(ch.Tombstones, max(ch.Compacted, k.mayMark.Compacted))})
}

// look2 compares the topic with what it may be.
func (k *kept) look2() {
	synctest.Wait()
	k.allow()
	k.check()
	info, err := k.spy.Topic(bg, "t")
	if err != nil {
		k.t.Fatal(err)
	}
	k.checkRemoved(info)
	k.checkErased()
	for _, m := range k.tails {
		m.check()
	}
	e, err := k.bus.EffectiveSettings(bg, "t")
	if want := k.effective(); err != nil || fmt.Sprint(e.Settings.Retention, e.Settings.KeyRequired, e.Settings.Compaction != nil) != fmt.Sprint(want.Retention, want.KeyRequired, want.Compaction != nil) {
		k.t.Fatalf("the settings of the topic are %+v, %v; want %+v", e, err, want)
	}
}

// checkRemoved: nothing is gone but what was erased, what is below a horizon that was allowed, and
// what marks that were allowed leave over.
func (k *kept) checkRemoved(info store.TopicInfo) {
	allowed := info
	allowed.Compacted, allowed.Tombstones = min(info.Compacted, k.mayMark.Compacted), min(info.Tombstones, k.mayMark.Tombstones)
	for i := range k.events {
		e, offset := &k.events[i], uint64(i+1)
		if len(k.wasGone) == i {
			k.wasGone, k.lastSeen = append(k.wasGone, false), append(k.lastSeen, time.Time{})
		}
		if !e.gone {
			k.lastSeen[i] = time.Now()
			// Marks between the same events are the same.
			if offset > allowed.Compacted && offset <= info.Compacted || offset > allowed.Tombstones && offset <= info.Tombstones {
				k.t.Fatalf("the marks are %d and %d; allowed are %+v, and offset %d is there", info.Compacted, info.Tombstones, k.mayMark, offset)
			}
		}
		if !e.gone || k.wasGone[i] || e.back { // what a power loss has brought back is gone when it is compacted again
			continue
		}
		k.wasGone[i] = true
		isReplaced, isBuried := k.isLeftOver(offset, allowed)
		switch {
		case offset < k.trimmed:
			keptMet.trimmed++
		case offset < info.Horizon && offset < k.horizon:
			keptMet.retained++
		case k.erased[offset]:
			keptMet.erased++
		case isReplaced || isBuried:
			keptMet.compacted++
		default:
			k.t.Fatalf("offset %d, %+v, is gone; the horizon is %d, and %d was allowed, the marks are %d and %d, of %+v", offset, k.spy.entries("t")[i], info.Horizon, k.horizon, info.Compacted, info.Tombstones, k.mayMark)
		}
		if isReplaced || isBuried { // perhaps before it was below the horizon
			e.compacted, e.asEnd = true, !isReplaced
		}
	}
}

// isLeftOver reports whether a newer event of the key is at or below the mark, and whether the
// event ends its key and is at or below the other mark.
func (k *kept) isLeftOver(offset uint64, info store.TopicInfo) (isReplaced, isBuried bool) {
	entries := k.spy.entries("t")
	e := entries[offset-1]
	if e.key == "" || offset > info.Compacted {
		return false, false
	}
	isReplaced = slices.ContainsFunc(entries[offset:], func(n spiedEvent) bool { return n.key == e.key && n.offset <= info.Compacted })
	return isReplaced, e.isEnd && offset <= info.Tombstones
}

// absorb notes what was appended: delayed events among it.
func (k *kept) absorb() {
	for _, e := range k.spy.entries("t") {
		if e.offset <= uint64(len(k.events)) {
			continue
		}
		if e.offset != uint64(len(k.events))+1 {
			k.t.Fatalf("offset %d comes after %d", e.offset, len(k.events))
		}
		k.events = append(k.events, removable{passes: e.passes, key: e.key})
		d, ok := k.delayed[e.id]
		switch {
		case ok && e.at.Before(d.due):
			k.t.Fatalf("%s, which was due at %s, was committed at %s", e.id, d.due, e.at)
		case ok:
			keptMet.delayed++
			delete(k.delayed, e.id)
			k.given[e.id] = e.offset
		case e.id[0] == 'd' && !k.repeated[e.id]:
			k.t.Fatalf("%s is in the log; it was cancelled, or is there already", e.id)
		}
	}
	for letters := k.spy.entries("t.dlq"); k.letterAt < len(letters); k.letterAt++ {
		k.letters = append(k.letters, letters[k.letterAt].item)
	}
}

func (k *kept) newID(kind string) string {
	k.next++
	return storetest.GivenID(kind, k.next)
}

// publishGiven publishes events with ids. In the middle of a crash it may fail.
func (k *kept) publishGiven() {
	var events []eventhub.Event
	for range 1 + k.draw(3, "events") {
		e := k.event(k.draw(2, "passes") == 0)
		e.ID = k.newID("e")
		events = append(events, e)
	}
	receipts, err := k.bus.Publish(bg, events...)
	k.must(err)
	if err != nil {
		return
	}
	for i, r := range receipts {
		if r.Duplicate {
			k.t.Fatalf("%s is a duplicate: %+v", events[i].ID, r)
		}
		k.given[events[i].ID] = r.Offset
	}
}

// publishAgain publishes an id that was published before.
func (k *kept) publishAgain() {
	ids := slices.Sorted(maps.Keys(k.given))
	if len(ids) == 0 {
		return
	}
	e := k.event(false)
	e.ID = ids[k.draw(len(ids), "id")]
	offset := k.given[e.ID]
	k.repeated[e.ID] = true
	receipts, err := k.bus.Publish(bg, e)
	k.must(err)
	if err != nil {
		return
	}
	i := int(offset - 1)
	if r := receipts[0]; r.Duplicate {
		keptMet.duplicates++
		if r.Offset != offset {
			k.t.Fatalf("%s is a duplicate of offset %d; it was at %d", e.ID, r.Offset, offset)
		}
		return
	}
	if isKnown := i < len(k.lastSeen) && time.Since(k.lastSeen[i]) < store.IDsKept; isKnown && !k.forgets {
		k.t.Fatalf("%s, which was at %d until %s, is published again at %d", e.ID, offset, k.lastSeen[i], receipts[0].Offset)
	}
	k.given[e.ID] = receipts[0].Offset
}

// refuse does what is refused, and changes nothing.
func (k *kept) refuse() {
	head := len(k.spy.entries("t"))
	wants := map[string]eventhub.Code{}
	do := func(what string, err error, code eventhub.Code) {
		if eventhub.ErrorCode(err) != code && k.store.failure() == nil {
			wants[what+": "+fmt.Sprint(err)] = code
		}
	}
	if k.keyed {
		_, err := k.bus.Publish(bg, eventhub.Event{Topic: "t", Key: "a", Payload: []byte(`1`)}, eventhub.Event{Topic: "t", Payload: []byte(`1`)})
		do("without a key", err, eventhub.CodeBadEvent)
		keptMet.refused++
	}
	_, err := k.bus.Trim(bg, "t", admin.TrimQuery{Before: uint64(head) + 2}, true)
	do("beyond the head", err, eventhub.CodeBadRequest)
	_, err = k.bus.SetTopic(bg, "t", admin.TopicSettings{Compaction: &admin.Compaction{}, Retention: admin.Retention{Bytes: 1 << 20}}, nil)
	do("bytes with compaction", err, eventhub.CodeBadRequest)
	_, err = k.bus.SetTopic(bg, "system.audit", admin.TopicSettings{}, nil)
	do("system", err, eventhub.CodeBadTopic)
	version := uint64(1 << 40)
	_, err = k.bus.SetTopic(bg, "t", admin.TopicSettings{Retention: admin.Retention{Count: 1}}, &version)
	do("another version", err, eventhub.CodeConflict)
	if len(wants) > 0 || len(k.spy.entries("t")) != head {
		k.t.Fatalf("want %v, and %d events; there are %d", wants, head, len(k.spy.entries("t")))
	}
}

// trim removes what is below a place.
func (k *kept) trim() {
	if len(k.events) == 0 {
		return
	}
	q := admin.TrimQuery{Before: uint64(rapid.IntRange(1, len(k.events)+1).Draw(k.t, "before"))}
	switch k.draw(4, "by") {
	case 0:
		q = admin.TrimQuery{Keep: uint64(1 + k.draw(8, "keep"))}
	case 1:
		q = admin.TrimQuery{BeforeTS: time.Now().Add(-time.Duration(k.draw(60, "ago")) * time.Second).UnixMilli()}
	}
	apply := k.draw(4, "apply") > 0
	plan, err := k.bus.Trim(bg, "t", q, false)
	if err == nil && apply {
		k.byHand(store.TopicChange{Horizon: plan.Horizon})
		plan, err = k.bus.Trim(bg, "t", q, true)
	}
	k.must(err)
	if err != nil {
		return
	}
	info, err := k.spy.Topic(bg, "t") // whose retention may have removed more meanwhile; look2 bounds that
	if err != nil || plan.Applied != apply || apply && info.Horizon < plan.Horizon || plan.Horizon < plan.From {
		k.t.Fatalf("trimmed by %+v: %+v; the topic is %+v, %v", q, plan, info, err)
	}
}

// erase removes single events, or all of a key, and what is scheduled of it, while some of that
// gets a dead letter or enters the log.
func (k *kept) erase() {
	q := admin.EraseQuery{Apply: true, By: "me"}
	fits := func(e spiedEvent) bool { return e.offset == q.Offset }
	switch k.draw(3, "by") {
	case 0:
		q.Key = rapid.SampledFrom([]string{"a", "b"}).Draw(k.t, "key")
		fits = func(e spiedEvent) bool { return e.key == q.Key }
	case 1:
		ids := append(slices.Sorted(maps.Keys(k.given)), slices.Sorted(maps.Keys(k.delayed))...)
		if len(ids) == 0 {
			return
		}
		q.ID = ids[k.draw(len(ids), "id")]
		fits = func(e spiedEvent) bool { return e.id == q.ID }
	default:
		q.Offset = uint64(1 + k.draw(len(k.events)+1, "offset"))
	}
	n, back := 0, 0
	there := func() {
		back = 0
		for i, e := range k.spy.entries("t") {
			switch {
			case !fits(e) || k.erased[e.offset]:
			case i >= len(k.events) || !k.events[i].gone:
				k.erased[e.offset] = true
				n++
			case k.mem != nil && k.events[i].compacted: // a crash may bring it back until it is compacted again
				back++
			}
		}
	}
	there()
	scheduled := func(id string, d *keptDelayed) bool { return d.key == q.Key && q.Key != "" || id == q.ID }
	for id, d := range k.delayed {
		if scheduled(id, d) {
			n++
			k.uncertain(id)
		}
	}
	var result admin.EraseResult
	var err error
	k.besides(func() { result, err = k.bus.Erase(bg, "t", q) })
	k.absorb()
	there()
	switch code := eventhub.ErrorCode(err); {
	case err == nil && result.Events+result.Scheduled <= n+back && !result.More:
		maps.DeleteFunc(k.delayed, scheduled)
		k.noteErased(fits, q)
	case code == eventhub.CodeUnknownID || code == eventhub.CodeGone:
	case k.store.failure() == nil:
		k.t.Fatalf("erased %+v of %d, and %d that may be back: %+v, %v", q, n, back, result, err)
	}
}

// besides erases while something else happens: in the middle of the erasure, or the erasure in the
// middle of that.
func (k *kept) besides(erase func()) {
	var do func()
	note, point := func() {}, atFind
	switch k.draw(5, "meanwhile") {
	case 0, 1:
		do, note = k.group().settlement(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true})
		point = rapid.SampledFrom([]string{atFind, atRead, atTopic, atCommit}).Draw(k.t, "point")
	case 2:
		wait := time.Duration(k.draw(40, "seconds")) * time.Second
		for _, id := range slices.Sorted(maps.Keys(k.delayed)) {
			if d := time.Until(k.delayed[id].due); d >= 0 && k.draw(2, "until") == 0 {
				wait = d + time.Millisecond
			}
		}
		do = func() { time.Sleep(wait) }
	default:
		erase()
		return
	}
	free := k.draw(3, "free")
	switch point {
	case atFind:
		k.store.whenWaiting(point, free, func() {
			do()
			time.Sleep(time.Millisecond) // so that the dead letter is there
		})
		erase()
	case atRead:
		k.store.whenWaiting(point, free, erase)
		do()
		if synctest.Wait(); !k.store.isOver() {
			k.store.off()
			erase()
		}
		note()
		return
	default:
		k.store.when(point, free, do)
		erase()
	}
	met := k.store.isOver()
	k.store.off()
	if synctest.Wait(); met {
		note()
	}
}

// noteErased: what an answered erasure names is gone.
func (k *kept) noteErased(fits func(spiedEvent) bool, q admin.EraseQuery) {
	k.look()
	for i, e := range k.spy.entries("t") {
		if !fits(e) {
			continue
		}
		if k.gone[e.offset] = true; !k.events[i].gone {
			k.t.Fatalf("offset %d, %+v, is there after an erasure of %+v", e.offset, e, q)
		}
	}
}

// checkErased: neither the topic nor a dead letter holds what an answered erasure named.
func (k *kept) checkErased() {
	var batch store.Batch
	if err := k.spy.Read(bg, "t", 1, 1<<20, 1<<30, &batch); err != nil {
		k.t.Fatal(err)
	}
	for _, item := range batch.Items {
		if k.gone[item.Offset] {
			k.t.Fatalf("offset %d is there, which was erased", item.Offset)
		}
	}
	batch.Reset()
	if err := k.spy.Read(bg, deadletter.Topic("t"), 1, 1<<20, 1<<30, &batch); err != nil {
		k.t.Fatal(err)
	}
	for _, item := range batch.Items {
		if o, is, err := deadletter.OriginalOf("t", item); err != nil || is && k.gone[o.Offset] {
			k.t.Fatalf("dead letter %d holds offset %d, which was erased; %v", item.Offset, o.Offset, err)
		}
	}
}

// uncertain notes that a delayed event may or may not be there, until its answer says so.
func (k *kept) uncertain(id string) { k.delayed[id].doubt = true }

// delay schedules an event.
func (k *kept) delay() {
	e := k.event(k.draw(2, "passes") == 0)
	e.ID, e.Delay = k.newID("d"), time.Duration(1+k.draw(90, "seconds"))*time.Second
	k.delayed[e.ID] = &keptDelayed{due: time.Now().Add(e.Delay).Truncate(time.Millisecond), key: e.Key, doubt: true}
	receipts, err := k.bus.Publish(bg, e)
	k.must(err)
	if err == nil {
		k.delayed[e.ID].doubt = false
		if receipts[0].Duplicate {
			k.t.Fatalf("%s: %+v", e.ID, receipts[0])
		}
	}
}

func (k *kept) cancel() {
	ids := slices.Sorted(maps.Keys(k.delayed))
	if len(ids) == 0 {
		return
	}
	id := ids[k.draw(len(ids), "id")]
	k.uncertain(id)
	err := k.bus.Cancel(bg, "t", id)
	k.must(err)
	if err == nil {
		keptMet.cancelled++
		delete(k.delayed, id)
	}
}

// pull takes some for a group, whose members settle it.
func (k *kept) pull() {
	g := k.group()
	if g.o.AutoAck || len(g.in) == 0 {
		return
	}
	o := g.o
	o.MaxInFlight = 1 + k.draw(3, "most")
	ds, err := k.bus.Pull(bg, o, 0)
	k.must(err)
	in := g.in[0]
	in.Mu.Lock()
	defer in.Mu.Unlock()
	for _, d := range ds {
		keptMet.pulled++
		in.All = append(in.All, got{Delivery: d, At: time.Now()})
	}
}

// crash ends the process at some point of what it does; on disk, in front of some write.
func (k *kept) crash() {
	k.check()
	keptMet.crashes++
	if k.mem == nil {
		point := rapid.SampledFrom([]string{atCommit, afterCommit}).Draw(k.t, "point")
		k.store.when(point, k.draw(4, "free"), func() { k.fail() })
	} else {
		k.mu.Lock()
		k.left, k.image = 1+k.draw(25, "writes"), nil
		k.loss = vfs.CrashCloneCfg{UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(k.t, "percent"), RNG: k.rng}
		k.mu.Unlock()
	}
	for range k.draw(8, "before") {
		if k.store.failure() != nil {
			break
		}
		k.stepOfCrash()
		synctest.Wait()
		k.collect() // also of what nobody knows durably
	}
	k.lose()
	for _, m := range k.tails {
		m.check()
	}
	if k.mem != nil {
		k.reopenDisk()
	}
	k.forgetCarriers()
	k.absorb()
	k.again()
	k.recover()
}

// stepOfCrash is a step of which nobody may get the answer.
func (k *kept) stepOfCrash() {
	switch k.draw(10, "what") {
	case 9:
		k.ask()
	case 0, 1:
		k.group().settle(eventhub.Settlement{})
	case 2:
		k.trim()
	case 3:
		k.erase()
	case 4:
		name := k.drawName()
		s := k.drawSettings(name)
		k.set(name, &s)
	case 5, 6:
		k.publishGiven()
	case 7:
		if k.draw(2, "cancels") == 0 {
			k.cancel()
		} else {
			k.delay()
		}
	default:
		time.Sleep(rapid.SampledFrom([]time.Duration{time.Millisecond, 50 * time.Millisecond, 11 * time.Second}).Draw(k.t, "time"))
	}
}

// reopenDisk goes on with the image.
func (k *kept) reopenDisk() {
	k.mu.Lock()
	image := k.image
	k.left = 0
	k.mu.Unlock()
	if image != nil {
		keptMet.images++
	} else {
		image = k.mem.CrashClone(k.loss)
	}
	_ = k.spy.Store.Close()
	k.mem = image
	k.openDisk()
	k.spy.revive(k.t)
}

// recover finds out what became of what was not answered, and that all else is as it was.
func (k *kept) recover() {
	for i := range k.events {
		k.events[i].back = k.mem != nil && k.events[i].compacted
	}
	synctest.Wait()
	k.absorb()
	if d := k.doubt; d != nil {
		e, err := k.bus.SettingsEntries(bg, "", 100)
		if err != nil {
			k.t.Fatal(err)
		}
		i := slices.IndexFunc(e, func(e admin.SettingsEntry) bool { return e.Name == d.name })
		same := func(s *admin.TopicSettings) bool {
			return s == nil && i < 0 || s != nil && i >= 0 && e[i].Settings.Retention == s.Retention && e[i].Settings.KeyRequired == s.KeyRequired && e[i].Settings.State == s.State && reflect.DeepEqual(e[i].Settings.Compaction, s.Compaction)
		}
		before, had := k.settings[d.name]
		switch {
		case same(d.to):
			if delete(k.settings, d.name); d.to != nil {
				k.settings[d.name] = *d.to
			}
		case had && same(&before), !had && same(nil):
		default:
			k.t.Fatalf("the settings of %q are %+v; %+v were asked for, and there were %+v, %t", d.name, e, d.to, before, had)
		}
		k.doubt = nil
		s := k.effective()
		k.keyed = s.KeyRequired || s.Compaction != nil
	}
	list, err := k.bus.Scheduled(bg, admin.ScheduleQuery{Topic: "t"})
	if err != nil {
		k.t.Fatal(err)
	}
	scheduled := make(map[string]bool)
	for _, s := range list {
		scheduled[s.ID] = true
		if k.delayed[s.ID] == nil {
			k.t.Fatalf("%s is scheduled; it was cancelled, or is in the log", s.ID)
		}
	}
	for id, d := range k.delayed {
		switch {
		case scheduled[id]:
			d.doubt = false
		case d.doubt:
			delete(k.delayed, id)
		default:
			k.t.Fatalf("%s is not scheduled any more, and not in the log", id)
		}
	}
	for id, offset := range k.given { // of what is lost nobody had the receipt
		if offset > uint64(len(k.events)) {
			k.t.Fatalf("%s, which was published at %d, is lost", id, offset)
		}
	}
	for _, m := range k.tails {
		m.connect()
	}
}

// end lets the settings do their work, lifts them, and lets everybody read to the end.
func (k *kept) end() {
	for _, g := range k.groups {
		k.must(k.bus.ResumeGroup(bg, "t", g.o.Group))
	}
	time.Sleep(15 * time.Minute)
	k.look2()
	k.ask()
	k.checkQuiet()
	for _, name := range slices.Sorted(maps.Keys(k.settings)) {
		k.set(name, nil)
	}
	time.Sleep(2 * time.Minute)
	k.look2()
	if len(k.delayed) > 0 {
		k.t.Fatalf("%d delayed events are not in the log", len(k.delayed))
	}
	k.drain()
	for _, m := range k.tails {
		m.in.Mu.Lock()
		m.in.Room = -1
		m.in.Mu.Unlock()
		m.in.Sub.Ready()
	}
	for range 2 {
		k.publishAll()
	}
	k.check()
	k.ask()
	for _, m := range k.tails {
		m.check()
		m.end()
	}
}

// publishAll publishes an event that every tail wants.
func (k *kept) publishAll() {
	if _, err := k.bus.Publish(bg, eventhub.Event{Topic: "t", Key: "a", Payload: []byte(`1`)}); err != nil {
		k.t.Fatal(err)
	}
	synctest.Wait()
	k.absorb()
}

// checkQuiet: after a quiet time nothing is there that the settings do not keep.
func (k *kept) checkQuiet() {
	s, entries := k.effective(), k.spy.entries("t")
	var count, bytes uint64
	for i, e := range entries {
		if k.events[i].gone {
			continue
		}
		count++
		bytes += e.size
		if age := time.Since(e.at); s.Retention.Age != 0 && age > time.Duration(s.Retention.Age)+2*time.Minute {
			k.t.Fatalf("offset %d is there after %s; the settings are %+v", e.offset, age, s)
		}
		if s.Compaction == nil || e.key == "" {
			continue
		}
		isOver := slices.ContainsFunc(entries[i+1:], func(n spiedEvent) bool { return n.key == e.key && !k.erased[n.offset] })
		if isErased := slices.ContainsFunc(entries[i+1:], func(n spiedEvent) bool { return n.key == e.key && k.erased[n.offset] }); isOver || e.isEnd && !isErased {
			k.t.Fatalf("offset %d, %+v, is there after a quiet time; the settings are %+v", e.offset, e, s.Compaction)
		}
	}
	if s.Retention.Count != 0 && count > s.Retention.Count || s.Retention.Bytes != 0 && bytes > uint64(s.Retention.Bytes) {
		k.t.Fatalf("there are %d events of %d bytes after a quiet time; the settings are %+v", count, bytes, s)
	}
	if s.Retention != (admin.Retention{}) || s.Compaction != nil {
		keptMet.quiet++
	}
}
