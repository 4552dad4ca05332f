package ws

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/testsize"
)

// The lease rule of docs/semantics.md, held against every order of late, duplicate
// and stale verdicts: the latest lease of an event counts, also when it has run
// out, as long as nobody holds the event under another; anything older is answered
// stale, or unknown_id, and has no effect.
//
// A trial is a sequence of steps over one or two events of a group of two members,
// A and B. The model below says after every step what was to be answered, which
// deliveries may and must have come, and where the cursor is.

const (
	ruleTimeout   = 1000 // ms; of a lease
	ruleExtension = 1500 // ms; what a MODACK asks for
	ruleBackoff   = 100  // ms; less up to half
	ruleAttempts  = 2
)

var longest = flag.Int("steps", 3, "steps of the longest sequences of TestLeaseRule; over two events one less")

// TestLeaseRule goes through all sequences up to a length, each verdict alone and
// then all that follow each other over one connection at once.
func TestLeaseRule(t *testing.T) {
	for _, tt := range []struct{ events, length int }{{1, *longest - testsize.Of(0, 1)}, {2, *longest - 1}} {
		for _, burst := range []bool{false, true} {
			t.Run(fmt.Sprintf("events=%d/length=%d/burst=%v", tt.events, tt.length, burst), func(t *testing.T) {
				withEngine(t, func(t *testing.T, e *engine) { allTrials(t, e, tt.events, tt.length, burst, false) })
			})
		}
	}
	t.Run("EVENTS", func(t *testing.T) {
		withEngine(t, func(t *testing.T, e *engine) { allTrials(t, e, 4, *longest-1, true, true) })
	})
}

// allTrials runs all sequences of steps about the first two events. With many,
// deliveries come in EVENTS.
func allTrials(t *testing.T, e *engine, events, length int, burst, many bool) {
	steps := ruleSteps(min(events, 2)) // the others are there to come with them
	sequence := make([]int, length)
	var ears [2]*ear
	seen := make(map[string]int)
	trials, dead := 0, 0
	for goOn := true; goOn; {
		for i := range ears {
			if ears[i] == nil {
				ears[i] = listen(e.login())
			}
		}
		r := trial{t: t, e: e, ears: ears, group: fmt.Sprintf("g%d", trials), burst: burst, many: many, seen: seen}
		void := r.run(steps, sequence, events)
		if ears = r.ears; len(r.wrong) > 0 {
			t.Errorf("trial %d: %s", trials, strings.Join(r.wrong, "\n"))
			for _, s := range sequence {
				t.Log(steps[s])
			}
			break
		}
		trials++
		dead += r.dead
		goOn = next(sequence, min(void, length-1), len(steps))
	}
	for _, ear := range ears {
		if ear != nil {
			ear.close()
		}
	}
	letters, err := e.bus.Topic(t.Context(), "t.dlq")
	if err != nil || letters.Head != uint64(dead) {
		t.Errorf("there are %d dead letters, %v; want %d", letters.Head, err, dead)
	}
	expected := []string{"OK", "stale", "unknown_id", runOut, comeDue, loseA, loseB}
	if many {
		expected = append(expected, "EVENTS of 1", "EVENTS of 2")
	}
	for _, what := range expected {
		if seen[what] == 0 {
			t.Errorf("in no trial there was %q", what)
		}
	}
	t.Logf("%d trials; steps and answers %v; %d dead letters", trials, seen, dead)
}

// next makes the sequence the next one that differs at or before a place.
func next(sequence []int, place, steps int) bool {
	clear(sequence[place+1:])
	for ; place >= 0; place-- {
		if sequence[place]++; sequence[place] < steps {
			return true
		}
		sequence[place] = 0
	}
	return false
}

// step is one thing that happens.
type step struct {
	op    string // ACK, NACK or MODACK; or one of those below
	event int
	name  string // by what a verdict names the delivery
}

const (
	runOut  = "run out" // the lease that ends first does
	comeDue = "due"     // the backoff that ends first does
	loseA   = "lose A"  // its connection is lost
	loseB   = "lose B"

	byLatest = "the latest lease"
	byOldest = "the oldest lease"
	byIDOfA  = "the id, from A"
	byIDOfB  = "the id, from B"
)

func (s step) String() string {
	if s.name == "" {
		return s.op
	}
	return fmt.Sprintf("%s %d by %s", s.op, s.event+1, s.name)
}

// ruleSteps lists all steps that there are with n events.
func ruleSteps(n int) []step {
	steps := []step{{op: runOut}, {op: comeDue}, {op: loseA}, {op: loseB}}
	for event := range n {
		for _, op := range []string{"ACK", "NACK", "MODACK"} {
			for _, name := range []string{byLatest, byOldest, byIDOfA, byIDOfB} {
				steps = append(steps, step{op, event, name})
			}
		}
	}
	return steps
}

type ruleState int

const (
	ruleWaiting ruleState = iota
	ruleLeased
	ruleDone
)

type ruleEvent struct {
	state    ruleState
	attempts int
	leases   []string // all that were ever given
	holder   int      // whose the last one is
	deadline int64    // of a leased one
	earliest int64    // a waiting one comes between these
	latest   int64
}

// trial is a run of one sequence, and the model of what it does.
type trial struct {
	t       *testing.T
	e       *engine
	ears    [2]*ear // A's and B's; nil of one that is lost
	group   string
	base    uint64 // the cursor at the beginning
	events  []ruleEvent
	dead    int // dead letters
	expired bool

	many    bool     // deliveries come in EVENTS
	burst   bool     // consecutive verdicts over one connection go out at once
	pending []string // verdicts that are to go out over …
	via     int
	answers [2]map[string]string // by corr: what is to be answered
	corr    int
	seen    map[string]int // steps and answers, by what they were
	wrong   []string
}

func (r *trial) fail(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// ask says something that is answered by an OK and nothing else.
func (r *trial) ask(ear *ear, format string, args ...any) {
	ear.send(fmt.Sprintf(format, args...))
	if m := ear.heard(); len(m) != 1 || m[0].content["op"] != "OK" {
		r.fail("%s is answered %v", fmt.Sprintf(format, args...), m)
	}
}

func (r *trial) id(event int) string { return fmt.Sprintf("%s-%d", r.group, event) }

// run returns the place of the first step that means nothing, or the length.
func (r *trial) run(steps []step, sequence []int, events int) (void int) {
	r.begin(events)
	for void < len(sequence) && r.do(steps[sequence[void]], void) {
		r.seen[steps[sequence[void]].op]++
		void++
	}
	r.finish()
	return void
}

// begin makes the group, its two members and its events.
func (r *trial) begin(n int) {
	for _, ear := range r.ears {
		r.ask(ear, `{"op":"SUBSCRIBE","topic":"t","group":%q,"corr":"s","opts":{"ack_timeout_ms":%d,"max_attempts":%d,"backoff":{"min_ms":%d,"max_ms":%d},"batch":%v}}`,
			r.group, ruleTimeout, ruleAttempts, ruleBackoff, ruleBackoff, r.many)
	}
	r.answers = [2]map[string]string{{}, {}}
	r.base = r.e.cursor("t", r.group)
	now := time.Now().UnixMilli()
	events := make([]eventhub.Event, n)
	for i := range events {
		events[i] = eventhub.Event{Topic: "t", ID: r.id(i), Payload: []byte("1")}
		r.events = append(r.events, ruleEvent{earliest: now, latest: now})
	}
	if _, err := r.e.bus.Publish(r.t.Context(), events...); err != nil {
		r.t.Fatal(err)
	}
	r.check()
}

// do takes one step. It reports false for one that means nothing here: another
// sequence is the same without it.
func (r *trial) do(s step, turn int) bool {
	switch s.op {
	case runOut:
		at := r.first(ruleLeased)
		if r.expired || at == 0 {
			return false
		}
		r.expired = true
		r.say()
		time.Sleep(time.Until(time.UnixMilli(at)))
	case comeDue:
		at := r.first(ruleWaiting)
		if at == 0 {
			return false
		}
		r.say()
		time.Sleep(time.Until(time.UnixMilli(at)))
	case loseA, loseB:
		if r.ears[0] == nil || r.ears[1] == nil {
			return false
		}
		r.say()
		r.check() // what it still gets
		r.lose(strings.Index("AB", s.op[len(s.op)-1:]))
	default:
		return r.verdict(s, turn)
	}
	r.check()
	return true
}

// first returns when the first lease or the first backoff has ended for sure.
func (r *trial) first(state ruleState) (at int64) {
	for i := range r.events {
		ends := r.events[i].deadline
		if state == ruleWaiting {
			ends = r.events[i].latest
		}
		if r.events[i].state == state && (at == 0 || ends < at) {
			at = ends
		}
	}
	return at
}

func (r *trial) lose(who int) {
	r.ears[who].close()
	<-r.e.log.closed
	r.ears[who] = nil
	now := time.Now().UnixMilli()
	for i := range r.events {
		if e := &r.events[i]; e.state == ruleLeased && e.holder == who {
			r.failed(e, now, now)
		}
	}
}

// failed ends an attempt.
func (r *trial) failed(e *ruleEvent, earliest, latest int64) {
	if e.state, e.earliest, e.latest = ruleWaiting, earliest, latest; e.attempts >= ruleAttempts {
		e.state = ruleDone
		r.dead++
	}
}

// verdict says what the step says, over the connection that turn or the name
// chooses, and what is to be answered.
func (r *trial) verdict(s step, turn int) bool {
	e := &r.events[s.event]
	via, named := turn%2, fmt.Sprintf(`"id":%q`, r.id(s.event))
	counts := false
	switch s.name {
	case byLatest, byOldest:
		if s.name == byOldest && len(e.leases) < 2 {
			return false
		}
		counts = s.name == byLatest
		lease := e.leases[0]
		if counts {
			lease = e.leases[len(e.leases)-1]
		}
		named = fmt.Sprintf(`"lease":%q`, lease)
		if r.ears[via] == nil {
			via = 1 - via
		}
	case byIDOfA:
		via, counts = 0, e.holder == 0
	case byIDOfB:
		via, counts = 1, e.holder == 1
	}
	if r.ears[via] == nil {
		return false
	}
	if via != r.via || !r.burst {
		r.say()
	}
	r.corr++
	r.via = via
	r.answers[via][fmt.Sprint(r.corr)] = r.apply(e, s.op, counts)
	r.pending = append(r.pending, fmt.Sprintf(`{"op":%q,"topic":"t","group":%q,%s,"extend_ms":%d,"corr":"%d"}`, s.op, r.group, named, ruleExtension, r.corr))
	if !r.burst {
		r.say()
		r.check()
	}
	return true
}

// apply is the rule.
func (r *trial) apply(e *ruleEvent, op string, counts bool) (answer string) {
	now := time.Now().UnixMilli()
	switch {
	case op == "MODACK" && (!counts || e.state != ruleLeased):
		return "unknown_id"
	case op == "MODACK":
		e.deadline = now + ruleExtension
	case !counts || e.state == ruleDone:
		return "stale"
	case op == "ACK":
		e.state = ruleDone
	case op == "NACK":
		r.failed(e, now+ruleBackoff/2, now+ruleBackoff)
	}
	return "OK"
}

// say sends what is pending, in one write.
func (r *trial) say() {
	if len(r.pending) > 0 {
		r.ears[r.via].send(r.pending...)
		r.pending = nil
		synctest.Wait()
	}
}

// check compares the model with what the hub has said by now and with the cursor.
func (r *trial) check() {
	var came []heardMessage
	for who, ear := range r.ears {
		if ear == nil {
			continue
		}
		for _, m := range ear.heard() {
			if m.by = who; m.content["op"] == "EVENT" {
				came = append(came, m)
				continue
			}
			if entries, ok := m.content["events"].([]any); ok {
				r.seen[fmt.Sprintf("EVENTS of %d", len(entries))]++
				for _, entry := range entries {
					came = append(came, heardMessage{m.at, who, entry.(map[string]any)})
				}
				continue
			}
			corr := m.content["corr"].(string)
			if got, want := answerText(m.content), r.answers[who][corr]; got != want {
				r.fail("verdict %s is answered %s; want %s", corr, got, want)
			}
			r.seen[r.answers[who][corr]]++
			delete(r.answers[who], corr)
		}
	}
	slices.SortStableFunc(came, func(a, b heardMessage) int { return int(a.at - b.at) })
	for _, m := range came {
		r.pass(m.at)
		r.delivered(m)
	}
	now := time.Now().UnixMilli()
	r.pass(now)
	floor := r.base
	for i := range r.events {
		e := &r.events[i]
		if e.state == ruleWaiting && e.latest <= now {
			r.fail("event %d does not come, though it is due", i+1)
		}
		if e.state == ruleDone && floor == r.base+uint64(i) {
			floor++
		}
	}
	if at := r.e.cursor("t", r.group); at != floor {
		r.fail("the cursor is %d events after the beginning; want %d", at-r.base, floor-r.base)
	}
	for who := range r.answers {
		if len(r.answers[who]) > 0 && r.ears[who] != nil {
			r.fail("verdicts %v are not answered", r.answers[who])
		}
	}
}

func answerText(m map[string]any) string {
	switch {
	case m["op"] == "ERR":
		return fmt.Sprint(m["code"])
	case m["stale"] == true:
		return "stale"
	}
	return "OK"
}

// pass lets the leases run out whose time has come.
func (r *trial) pass(now int64) {
	for i := range r.events {
		if e := &r.events[i]; e.state == ruleLeased && e.deadline <= now {
			r.failed(e, e.deadline+ruleBackoff/2, e.deadline+ruleBackoff)
		}
	}
}

// delivered judges an EVENT.
func (r *trial) delivered(m heardMessage) {
	ctx := m.content["ctx"].(map[string]any)
	id := m.content["event"].(map[string]any)["id"].(string)
	var i int
	if _, err := fmt.Sscanf(id, r.group+"-%d", &i); err != nil || i >= len(r.events) {
		r.fail("event %s comes, which is none of this trial's: %v", id, err)
		return
	}
	e := &r.events[i]
	lease := ctx["lease"].(string)
	switch {
	case e.state != ruleWaiting || m.at < e.earliest:
		r.fail("event %s comes in state %d, %d ms early", id, e.state, e.earliest-m.at)
	case int(ctx["attempt"].(float64)) != e.attempts+1:
		r.fail("event %s comes as attempt %v; want %d", id, ctx["attempt"], e.attempts+1)
	case slices.Contains(e.leases, lease):
		r.fail("event %s comes under lease %s again", id, lease)
	}
	e.state, e.holder, e.deadline = ruleLeased, m.by, m.at+ruleTimeout
	e.attempts++
	e.leases = append(e.leases, lease)
}

// finish acks whatever is left and leaves the group.
func (r *trial) finish() {
	r.say()
	r.check()
	for range 2 * ruleAttempts {
		for i := range r.events {
			if r.events[i].state == ruleLeased {
				r.verdict(step{"ACK", i, byLatest}, 1)
			}
		}
		r.say()
		time.Sleep(ruleBackoff * time.Millisecond)
		r.check()
	}
	time.Sleep(time.Hour) // for what should not come any more
	r.check()
	if at := r.e.cursor("t", r.group); at != r.base+uint64(len(r.events)) {
		r.fail("in the end the cursor is %d events after the beginning", at-r.base)
	}
	for _, ear := range r.ears {
		if ear != nil {
			r.ask(ear, `{"op":"UNSUBSCRIBE","topic":"t","group":%q,"corr":"u"}`, r.group)
		}
	}
}

// ear is a client that hears all the time.
type ear struct {
	*client
	mu       sync.Mutex
	messages []heardMessage
	over     sync.WaitGroup
}

type heardMessage struct {
	at      int64 // epoch ms
	by      int
	content map[string]any
}

func listen(c *client) *ear {
	e := &ear{client: c}
	e.over.Go(func() {
		for {
			_, payload, err := c.tryRead()
			if err != nil {
				return
			}
			m := heardMessage{at: time.Now().UnixMilli()}
			if err := json.Unmarshal(payload, &m.content); err != nil {
				c.t.Errorf("%q: %v", payload, err)
				return
			}
			e.mu.Lock()
			e.messages = append(e.messages, m)
			e.mu.Unlock()
		}
	})
	return e
}

// heard returns what came since it was asked last.
func (e *ear) heard() []heardMessage {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	heard := e.messages
	e.messages = nil
	return heard
}

func (e *ear) close() {
	e.conn.Close()
	e.over.Wait()
}
