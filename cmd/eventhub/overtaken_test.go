package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/internal/testsize"
)

// overtakenKills is how often TestOvertakenAndKilled kills the hub.
var overtakenKills = testsize.Int("overtaken.kills", 4, 2, "how often TestOvertakenAndKilled kills the hub")

const (
	overtakenTopic = "overtaken"
	// roundOKs ends a round in which the moment to kill does not come.
	roundOKs = 1500
)

// moments at which the hub may be killed, when they have come a number of times, up to that one.
var moments = []struct {
	what string
	most int
}{{"ok", 1000}, {"trim", 4}, {"erase", 4}, {"settings", 3}, {"tail is told", 2}, {"stream is told", 2}, {"member is told", 6},
	{"puller is told", 6}, {"tail comes back", 3}, {"stream comes back", 3}, {"pull", 40}, {"repeat", 20}}

// TestOvertakenAndKilled: a group over WebSocket, a tail, an event stream and a group that pulls
// are overtaken by trims, erasures and retention while events are published, and the hub is
// killed at a random moment, again and again, and started over the same directory. What each
// reader is given and told, over all of these lives, leaves out no event that was published;
// what it is told is gone is, and what it was told before a kill it is told again, with the
// same range.
func TestOvertakenAndKilled(t *testing.T) {
	seed := drawSeed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	l := newRemovedLog(t)
	p := &overtakenPublisher{log: l, rng: rand.New(rand.NewPCG(seed, 1))}
	r := &overtakenRemover{log: l, rng: rand.New(rand.NewPCG(seed, 2))}
	readers := newOvertakenReaders(l, seed)
	dir := t.TempDir()
	for n := range *overtakenKills {
		moment := moments[rng.IntN(len(moments))]
		hub := startPatientHub(t, "--store", dir)
		l.begin(hub, moment.what, 1+rng.IntN(moment.most))
		if n == 0 {
			p.publish(t, hub, 1)
		}
		var all sync.WaitGroup
		all.Go(func() { p.run(t, hub) })
		all.Go(func() { r.run(t) })
		for _, reader := range readers {
			all.Go(func() { reader.follow(t, hub) })
		}
		select {
		case <-l.killNow:
		case <-hub.ended:
			t.Errorf("the hub ended by itself:\n%s", hub.logged())
		}
		<-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond) // into what has just begun
		hub.kill()
		l.end()
		all.Wait()
		if t.Failed() {
			t.Fatalf("after kill %d, at %q:\n%s", n+1, moment.what, hub.logged())
		}
	}
	l.finish(t, startPatientHub(t, "--store", dir), p, readers)
	t.Logf("%d events, %d trims, %d erasures, %d changes of settings, horizon %d; kills at %v", l.head, r.trims, r.erasures, r.changes, l.horizon, l.met)
}

// finish has everybody read to the end, and compares.
func (l *removedLog) finish(t *testing.T, hub *hubProcess, p *overtakenPublisher, readers []overtakenReader) {
	l.begin(hub, "", 0)
	p.repeat(t, hub)
	if err := l.adm.UnsetTopic(context.Background(), overtakenTopic, nil); err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Error(err)
	}
	p.publish(t, hub, 100) // one range is told with each
	l.mu.Lock()
	l.last = l.head
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, reader := range readers {
		all.Go(func() { reader.follow(t, hub) })
	}
	all.Wait()
	l.check(t)
	for _, reader := range readers {
		reader.check(t)
	}
	if code := hub.stop(); code != exitDone {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, hub.logged())
	}
}

// removedLog is what is known of the topic: what was published, offset by offset, and what was
// removed of it, by whom ever.
type removedLog struct {
	t   *testing.T
	adm *client.Admin // of the hub of this round

	mu      sync.Mutex
	changed *sync.Cond
	ids     map[uint64]string // by offset, of what got its OK or was delivered
	offsets map[string]uint64 // by id, of what got its OK
	head    uint64
	horizon uint64         // as far as it is known
	erased  map[uint64]int // the round in which it was answered, 0 where it was only asked for
	round   int            // from 1
	began   uint64         // the horizon that was known when the round began
	over    bool           // the hub of this round is killed
	last    uint64         // the last offset of all, 0 before it is known
	large   int            // how many large events are to be published next
	ctx     context.Context
	cancel  context.CancelFunc

	moment  string
	nth     int
	killNow chan struct{}
	met     map[string]int
}

func newRemovedLog(t *testing.T) *removedLog {
	l := &removedLog{t: t, ids: make(map[uint64]string), offsets: make(map[string]uint64), erased: make(map[uint64]int), horizon: 1, met: make(map[string]int)}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// begin is the begin of a round. What was removed for sure still is.
func (l *removedLog) begin(hub *hubProcess, moment string, nth int) {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.t.Cleanup(l.cancel)
	l.adm = hub.admin(l.t)
	l.mu.Lock()
	known := l.horizon
	l.round++
	l.large = 0
	l.over, l.moment, l.nth, l.killNow, l.began = false, moment, nth, make(chan struct{}), known
	first := l.round == 1
	l.mu.Unlock()
	if first {
		return
	}
	info, err := l.adm.Topic(l.ctx, overtakenTopic)
	if err != nil || info.Horizon < known {
		l.t.Errorf("round %d begins with the horizon %d, %v; it was %d", l.round, info.Horizon, err, known)
	}
}

func (l *removedLog) end() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.changed.Broadcast()
}

// at is called where the hub may be killed, and reports whether it is now.
func (l *removedLog) at(moment string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.atLocked(moment)
}

func (l *removedLog) atLocked(moment string) bool {
	if l.moment != moment || l.nth == 0 {
		return false
	}
	if l.nth--; l.nth > 0 {
		return false
	}
	l.met[moment]++
	close(l.killNow)
	return true
}

// published notes an OK.
func (l *removedLog) published(id string, offset uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.offsets[id]; before != 0 && before != offset {
		l.t.Errorf("%s is at offset %d; it was at %d", id, offset, before)
	}
	l.isAt(id, offset)
	l.offsets[id] = offset
	l.head = max(l.head, offset)
	l.changed.Broadcast()
	l.atLocked("ok")
}

// isAt notes what is at an offset. l.mu is held.
func (l *removedLog) isAt(id string, offset uint64) {
	if before := l.ids[offset]; before != "" && before != id {
		l.t.Errorf("offset %d is %s; it was %s", offset, id, before)
	}
	l.ids[offset] = id
}

// given notes a delivery. What was removed for sure before the round is not delivered.
func (l *removedLog) given(name, id string, offset uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isAt(id, offset)
	if answered := l.erased[offset]; offset < l.began || answered > 0 && answered < l.round {
		l.t.Errorf("the %s got offset %d in round %d; the horizon was %d before, and it was erased in round %d", name, offset, l.round, l.began, answered)
	}
}

// lag waits until n more events are published, or the round is over. It returns false then, and
// at once where all are published.
func (l *removedLog) lag(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for target := l.head + uint64(n); l.head < target && !l.over && l.last == 0; {
		l.changed.Wait()
	}
	return !l.over
}

// stall waits until more was published than the sockets of a reader have room for, and some
// more. It returns as lag does.
func (l *removedLog) stall(n int) bool {
	const fill = 60
	l.mu.Lock()
	l.large = fill
	l.mu.Unlock()
	return l.lag(fill + n)
}

func (l *removedLog) takeLarge() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.large--
	return l.large >= 0
}

// isLast reports whether an offset is the last of all.
func (l *removedLog) isLast(offset uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return offset == l.last
}

func (l *removedLog) isEnding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last > 0
}

// look asks for the horizon. It returns 0 where the hub is gone.
func (l *removedLog) look() uint64 {
	info, err := l.adm.Topic(l.ctx, overtakenTopic)
	if err != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.horizon = max(l.horizon, info.Horizon)
	return info.Horizon
}

// wereErased returns the first offset above after and below first that nobody has asked to be
// erased, 0 where all were.
func (l *removedLog) wereErased(after, first uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for offset := after + 1; offset < first; offset++ {
		if _, ok := l.erased[offset]; !ok {
			return offset
		}
	}
	return 0
}

// holdGone fails where a reader is told that an offset is gone that is there.
func (l *removedLog) holdGone(name string, g eventhub.Gap) {
	if g.First <= g.After+1 || g.Compacted != 0 || g.Tombstones != 0 {
		l.t.Errorf("the %s is told of %+v, which says nothing", name, g)
	}
	horizon := l.look()
	if horizon == 0 {
		return // the hub is gone
	}
	if there := l.wereErased(max(g.After, horizon-1), g.First); there > 0 {
		l.t.Errorf("the %s is told of %+v; offset %d is there, the horizon is %d", name, g, there, horizon)
	}
}

// isThere reports whether an event was not removed, as far as anybody knows.
func (l *removedLog) isThere(offset uint64) bool {
	horizon := l.look()
	return horizon > 0 && offset >= horizon && l.wereErased(offset-1, offset+1) > 0
}

// check holds the log against what is known.
func (l *removedLog) check(t *testing.T) {
	t.Helper()
	horizon := l.look()
	there := make(map[uint64]bool)
	err := l.adm.Replay(context.Background(), admin.ReplayQuery{Topic: overtakenTopic}, func(_ string, item eventhub.Item) error {
		if there[item.Offset] = true; l.ids[item.Offset] != string(item.Record.ID()) {
			t.Errorf("offset %d is %s, and was %s", item.Offset, item.Record.ID(), l.ids[item.Offset])
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for offset, id := range l.ids {
		answered, asked := l.erased[offset]
		switch {
		case there[offset] && (offset < horizon || answered > 0):
			t.Errorf("%s at offset %d was removed, and is there; the horizon is %d", id, offset, horizon)
		case !there[offset] && offset >= horizon && !asked:
			t.Errorf("%s at offset %d is not there; the horizon is %d", id, offset, horizon)
		}
	}
	for id, offset := range l.offsets {
		if l.ids[offset] != id {
			t.Errorf("offset %d is %s; %s got its OK for it", offset, l.ids[offset], id)
		}
	}
}

// overtakenPublisher keeps some publishes in flight. What got no answer it sends again after the
// kill, under its id, and now and then something that is long removed.
type overtakenPublisher struct {
	log     *removedLog
	rng     *rand.Rand
	serial  int
	pending map[string]bool // not answered
	oks     int             // in this round
}

func (p *overtakenPublisher) send(c *conn, id string) error {
	pad := make([]byte, p.rng.IntN(3000))
	if p.log.takeLarge() {
		pad = make([]byte, 100_000)
	}
	for i := range pad {
		pad[i] = 'x'
	}
	return c.trySay(map[string]any{"op": "PUBLISH", "topic": overtakenTopic, "corr": id, "payload": string(pad), "opts": map[string]any{"id": id}})
}

// hear takes an answer.
func (p *overtakenPublisher) hear(c *conn) error {
	f, err := c.next()
	if err != nil {
		return err
	}
	if f.Op != "OK" || f.ID != f.Corr {
		c.t.Errorf("publish was answered by %+v", f)
	}
	p.log.mu.Lock()
	known := p.log.offsets[f.ID]
	p.log.mu.Unlock()
	if known != 0 && !f.Duplicate {
		c.t.Errorf("%s was published again at %d; it was at %d", f.ID, f.Offset, known)
	}
	p.log.published(f.ID, f.Offset)
	delete(p.pending, f.ID)
	p.oks++
	return nil
}

// repeat sends again what was not answered.
func (p *overtakenPublisher) repeat(t *testing.T, hub *hubProcess) {
	c, err := connectAs(t, hub, map[string]any{"op": "AUTH", "corr": "auth"})
	if err != nil {
		return
	}
	defer c.Close()
	for id := range p.pending {
		if p.send(c, id) != nil || p.hear(c) != nil {
			return
		}
	}
}

// publish publishes n events.
func (p *overtakenPublisher) publish(t *testing.T, hub *hubProcess, n int) {
	c := dial(t, hub.ws, "")
	defer c.Close()
	for range n {
		if err := p.send(c, p.next()); err != nil {
			t.Fatal(err)
		}
		if err := p.hear(c); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *overtakenPublisher) next() string {
	id := fmt.Sprintf("e%06d", p.serial)
	p.serial++
	if p.pending == nil {
		p.pending = make(map[string]bool)
	}
	p.pending[id] = true
	return id
}

// draw returns the id to send next.
func (p *overtakenPublisher) draw() string {
	if p.rng.IntN(30) > 0 || p.serial < 100 {
		return p.next()
	}
	p.log.at("repeat")
	return fmt.Sprintf("e%06d", p.serial-1-p.rng.IntN(min(p.serial, 2000))) // ids are remembered for ten minutes
}

func (p *overtakenPublisher) run(t *testing.T, hub *hubProcess) {
	p.oks = 0
	p.repeat(t, hub)
	c, err := connectAs(t, hub, map[string]any{"op": "AUTH", "corr": "auth"})
	if err != nil {
		return
	}
	defer c.Close()
	for range killInFlight {
		if p.send(c, p.draw()) != nil {
			return
		}
	}
	for ended := false; p.hear(c) == nil; {
		if p.oks >= roundOKs && !ended {
			p.log.mu.Lock()
			if ended = true; p.log.nth > 0 {
				p.log.nth = 0
				p.log.met["many OKs"]++
				close(p.log.killNow)
			}
			p.log.mu.Unlock()
		}
		if p.send(c, p.draw()) != nil {
			continue // read what the hub had still answered
		}
	}
}

// overtakenRemover trims, erases and changes settings as the head goes up.
type overtakenRemover struct {
	log                      *removedLog
	rng                      *rand.Rand
	trims, erasures, changes int
	asked, answered          admin.TopicSettings // of the settings, last
}

func (r *overtakenRemover) run(t *testing.T) {
	l := r.log
	r.settled(t)
	for l.lag(1 + r.rng.IntN(150)) {
		var err error
		switch k := r.rng.IntN(8); {
		case k < 3:
			err = r.trim()
		case k < 6:
			err = r.erase()
		default:
			err = r.set()
		}
		if err != nil && !errors.Is(err, client.ErrUnreachable) && l.ctx.Err() == nil {
			t.Errorf("removing: %v", err)
		}
		l.look()
	}
}

// settled checks that settings which were answered outlived the kill.
func (r *overtakenRemover) settled(t *testing.T) {
	e, err := r.log.adm.EffectiveSettings(r.log.ctx, overtakenTopic)
	if err == nil && e.Settings != r.answered && e.Settings != r.asked {
		t.Errorf("the settings are %+v; %+v were asked for last, and %+v answered", e.Settings, r.asked, r.answered)
	}
	if err == nil {
		r.asked, r.answered = e.Settings, e.Settings
	}
}

func (r *overtakenRemover) trim() error {
	l := r.log
	l.mu.Lock()
	horizon, head := l.horizon, l.head
	l.mu.Unlock()
	q := admin.TrimQuery{Before: horizon + r.rng.Uint64N(head+2-min(horizon, head+1))}
	if r.rng.IntN(3) == 0 {
		q = admin.TrimQuery{Keep: 1 + r.rng.Uint64N(400)}
	}
	l.at("trim")
	plan, err := l.adm.Trim(l.ctx, overtakenTopic, q, true)
	if err != nil {
		return err
	}
	r.trims++
	l.mu.Lock()
	defer l.mu.Unlock()
	l.horizon = max(l.horizon, plan.Horizon)
	return nil
}

func (r *overtakenRemover) erase() error {
	l := r.log
	l.mu.Lock()
	offset := l.head - r.rng.Uint64N(min(l.head, 300))
	if _, asked := l.erased[offset]; !asked {
		l.erased[offset] = 0
	}
	l.mu.Unlock()
	l.at("erase")
	_, err := l.adm.Erase(l.ctx, overtakenTopic, admin.EraseQuery{Offset: offset, Apply: true})
	if code := eventhub.ErrorCode(err); code == eventhub.CodeUnknownID || code == eventhub.CodeGone {
		return nil
	} else if err != nil {
		return err
	}
	r.erasures++
	l.mu.Lock()
	defer l.mu.Unlock()
	l.erased[offset] = l.round
	return nil
}

func (r *overtakenRemover) set() error {
	l := r.log
	r.asked = admin.TopicSettings{Retention: []admin.Retention{{}, {Age: admin.Period(time.Second)}, {Age: admin.Period(2 * time.Second)},
		{Count: 1 + r.rng.Uint64N(300)}, {Count: 500, Age: admin.Period(time.Second)}}[r.rng.IntN(5)]}
	l.at("settings")
	if _, err := l.adm.SetTopic(l.ctx, overtakenTopic, r.asked, nil); err != nil {
		return err
	}
	r.changes++
	r.answered = r.asked
	return nil
}

// span is a range of removed offsets, as it was told.
type span struct{ after, first uint64 }

func spanOf(g *eventhub.Gap) span { return span{g.After, g.First} }

// overtakenGroup is what a group was given and told, over all rounds.
type overtakenGroup struct {
	name  string
	log   *removedLog
	given map[uint64]bool
	acked map[uint64]int // the round in which the ack was sent, 0 where it came again
	// ackedAt is how many deliveries had come when an ack was sent, of taken so far: the hub may have
	// sent overtakenUnseen more before it saw the ack.
	ackedAt map[uint64]int
	taken   int
	gone    map[uint64]bool          // told
	told    map[span]overtakenNotice // last
	with    map[uint64]span          // by the event that was delivered with it last
	gaps    int
	again   int
}

// overtakenUnseen is how many deliveries are under way at most while an ack is: those in flight
// of the member, and those of one pull.
const overtakenUnseen = 30

// overtakenNotice is the round in which a range was told last, and the event that it came with.
type overtakenNotice struct {
	round   int
	carrier uint64
}

func newOvertakenGroup(l *removedLog, name string) *overtakenGroup {
	return &overtakenGroup{name: name, log: l, given: make(map[uint64]bool), acked: make(map[uint64]int), ackedAt: make(map[uint64]int), gone: make(map[uint64]bool),
		told: make(map[span]overtakenNotice), with: make(map[uint64]span)}
}

// take notes a delivery, and holds its gap against what was told: in the life of a hub an event
// comes with the same gap until it is acked. In the next life another may have it. It reports
// false where the hub is being killed before anything is acked.
func (g *overtakenGroup) take(id string, offset uint64, gap *eventhub.Gap) (more bool) {
	l, round := g.log, g.log.round
	l.given(g.name, id, offset)
	g.given[offset] = true
	g.taken++
	before, had := g.with[offset]
	if had && g.told[before] == (overtakenNotice{round, offset}) && g.acked[offset] == 0 && (gap == nil || spanOf(gap) != before) {
		l.t.Errorf("the %s got offset %d again, with %+v; it had %+v before", g.name, offset, gap, before)
	}
	g.acked[offset] = 0
	if gap == nil {
		return true
	}
	s := spanOf(gap)
	if last := g.told[s]; last.round != 0 {
		g.again++
		if last.round == round && last.carrier != offset && l.isThere(last.carrier) {
			l.t.Errorf("the %s is told of %+v with offset %d; in this round it was told with %d", g.name, gap, offset, last.carrier)
		}
	} else {
		g.tell(*gap)
	}
	g.told[s], g.with[offset] = overtakenNotice{round, offset}, s
	return !l.at(g.name + " is told")
}

// tell checks a range that was not told before. It may begin with what others that are acked
// came with, but has nothing of what is still to be told again.
func (g *overtakenGroup) tell(gap eventhub.Gap) {
	l := g.log
	g.gaps++
	l.holdGone(g.name, gap)
	missing := false
	for offset := gap.After + 1; offset < gap.First; offset++ {
		missing = missing || g.acked[offset] != l.round || g.taken-g.ackedAt[offset] <= overtakenUnseen
		g.gone[offset] = true
	}
	if !missing {
		l.t.Errorf("the %s is told of %+v; all of that was acked in this round", g.name, gap)
	}
	for s, last := range g.told {
		if s.after+1 < gap.First && gap.After+1 < s.first && g.acked[last.carrier] == 0 {
			l.t.Errorf("the %s is told of %+v; it was told of %+v with offset %d, which is not acked", g.name, gap, s, last.carrier)
		}
	}
}

func (g *overtakenGroup) ack(offset uint64) {
	g.acked[offset], g.ackedAt[offset] = g.log.round, g.taken
}

// check: each event was acked, or the group was told that it is gone. What was told was told
// until it was acked.
func (g *overtakenGroup) check(t *testing.T) {
	t.Helper()
	l := g.log
	for offset := uint64(1); offset <= l.last; offset++ {
		_, erased := l.erased[offset]
		if g.acked[offset] == 0 && !g.gone[offset] && !erased {
			t.Errorf("the %s has not acked offset %d, %s, and was not told that it is gone; the horizon is %d", g.name, offset, l.ids[offset], l.horizon)
			return
		}
	}
	for s, last := range g.told {
		if g.acked[last.carrier] != last.round {
			t.Errorf("the %s was told of %+v with offset %d in round %d, which was acked in round %d, and not again", g.name, s, last.carrier, last.round, g.acked[last.carrier])
		}
	}
	t.Logf("%s: %d events given, %d acked, %d ranges told, %d again", g.name, len(g.given), len(g.acked), g.gaps, g.again)
	if g.gaps == 0 && *overtakenKills >= 20 {
		t.Errorf("the %s was never overtaken", g.name)
	}
}
