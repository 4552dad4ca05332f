package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

const (
	oracleTopics = 4  // of each worker
	oracleDepth  = 24 // requests under way on a connection
)

// oracleCounts are those of a whole run.
type oracleCounts struct {
	oks, refused, unknown atomic.Int64
}

// oracleWorker sends all that a client can send to topics of its own, and knows what has
// to come of it.
type oracleWorker struct {
	n      int
	rng    *rand.Rand
	counts *oracleCounts
	topics []*oracleTopic
	serial int
	dues   map[int64]bool

	batches  []*oracleBatch // not held against each other so far
	deleting *oracleTopic   // the answer was lost
	before   *oracleItem    // an item of deleting that was in the log

	// Of one connection.
	conn    *conn
	hub     *hubProcess
	pending map[string]*oracleOp
}

// oracleOp is one request under way.
type oracleOp struct {
	op    string
	items []*oracleItem // what it publishes
	of    *oracleItem   // what it repeats, or cancels
}

type oracleAnswer struct {
	Op, Corr, Code, Msg, ID string
	Offset                  uint64
	Offsets                 []uint64
	Duplicate               bool
}

func newOracleWorker(n int, seed uint64, counts *oracleCounts) *oracleWorker {
	w := &oracleWorker{n: n, rng: rand.New(rand.NewPCG(seed, uint64(n))), counts: counts, dues: make(map[int64]bool)}
	for i := range oracleTopics {
		w.topics = append(w.topics, newOracleTopic(fmt.Sprintf("oracle.%d.%d", n, i)))
	}
	return w
}

// run works with one hub until the connection is lost or enough is answered; then what
// was not answered has an unknown fate.
func (w *oracleWorker) run(t *testing.T, hub *hubProcess, enough func() bool) {
	w.hub, w.pending = hub, make(map[string]*oracleOp)
	c, err := open(t, hub)
	if err != nil {
		return
	}
	defer c.Close()
	w.conn = c
	for !enough() && !t.Failed() {
		if w.rng.IntN(600) == 0 {
			if !w.drain() || !w.deleteTopic() {
				break
			}
		}
		for len(w.pending) < oracleDepth {
			if w.send(w.draw()) != nil {
				break // read what the hub had still answered
			}
		}
		if !w.hear() {
			break
		}
	}
	w.drain()
	w.counts.unknown.Add(int64(len(w.pending)))
	for _, op := range w.pending {
		if op.op == "CANCEL" && op.of.fate == stored && op.of.offset == 0 {
			op.of.fate = perhaps
		}
	}
}

// drain waits for every answer; false where the connection was lost.
func (w *oracleWorker) drain() bool {
	for len(w.pending) > 0 {
		if !w.hear() {
			return false
		}
	}
	return true
}

// draw decides what to do next.
func (w *oracleWorker) draw() (*oracleOp, map[string]any) {
	o := w.topics[w.rng.IntN(len(w.topics))]
	switch k := w.rng.IntN(100); {
	case k < 50:
		return w.publish(o, w.item(o, k%2 == 0))
	case k < 60:
		return w.batch(o)
	case k < 72 && len(o.ids) > 0:
		of := o.ids[w.rng.IntN(len(o.ids))]
		it := &oracleItem{mark: w.mark(), id: of.id, topic: o, fate: never} // whatever is answered
		return &oracleOp{op: "PUBLISH", of: of}, w.frame(it)
	case k < 80 && len(o.plans) > 0:
		i := w.rng.IntN(len(o.plans))
		if w.rng.IntN(3) > 0 { // the one that moves into the log just now
			i = nearest(o.plans, time.Now().UnixMilli())
		}
		of := o.plans[i]
		o.plans[i] = o.plans[len(o.plans)-1]
		o.plans = o.plans[:len(o.plans)-1]
		return &oracleOp{op: "CANCEL", of: of}, map[string]any{"op": "CANCEL", "topic": o.name, "id": of.id}
	case k < 95:
		return w.publish(o, w.plan(o, ""))
	}
	return w.publish(o, w.item(o, true))
}

// nearest returns the plan that is due next to now.
func nearest(plans []*oracleItem, now int64) int {
	best, at := 0, int64(math.MaxInt64)
	for i, it := range plans {
		if away := max(it.due-now, now-it.due); away < at {
			best, at = i, away
		}
	}
	return best
}

func (w *oracleWorker) mark() string {
	w.serial++
	return fmt.Sprintf("w%d-%d", w.n, w.serial)
}

func (w *oracleWorker) item(o *oracleTopic, withID bool) *oracleItem {
	it := &oracleItem{mark: w.mark(), topic: o, size: w.rng.IntN(200)}
	if withID {
		it.id = "id-" + it.mark
	}
	if w.rng.IntN(300) == 0 {
		it.size = w.rng.IntN(len(filler) - 1000)
	}
	return it
}

// plan is an event that comes soon, or not within the run, under a new id or one that was
// cancelled.
func (w *oracleWorker) plan(o *oracleTopic, id string) *oracleItem {
	it := w.item(o, true)
	if id != "" {
		it.id = id
	}
	lead := time.Duration(5+w.rng.IntN(500)) * time.Millisecond
	if w.rng.IntN(3) == 0 {
		lead = longDue
	}
	for it.due = time.Now().Add(lead).UnixMilli(); w.dues[it.due]; it.due++ {
	}
	w.dues[it.due] = true
	return it
}

func (w *oracleWorker) publish(o *oracleTopic, it *oracleItem) (*oracleOp, map[string]any) {
	o.items[it.mark], o.fresh = it, append(o.fresh, it)
	return &oracleOp{op: "PUBLISH", items: []*oracleItem{it}}, w.frame(it)
}

// batch publishes to two topics in one step, with the same id in both.
func (w *oracleWorker) batch(o *oracleTopic) (*oracleOp, map[string]any) {
	b := &oracleBatch{}
	var events []map[string]any
	for i := range 2 + w.rng.IntN(6) {
		at := o
		if i%2 == 1 {
			at = w.topics[(w.n+i)%len(w.topics)]
		}
		it := w.item(at, true)
		it.batch, it.size = b, it.size%1000
		if i == 1 && at != o {
			it.id = b.items[0].id
		}
		b.items = append(b.items, it)
		at.items[it.mark], at.fresh = it, append(at.fresh, it)
		events = append(events, w.frame(it))
	}
	w.batches = append(w.batches, b)
	return &oracleOp{op: "BATCH", items: b.items}, map[string]any{"op": "PUBLISH", "events": events}
}

// frame is a PUBLISH, or one event of a batch.
func (w *oracleWorker) frame(it *oracleItem) map[string]any {
	opts := map[string]any{"key": fmt.Sprint("key-", w.rng.IntN(5))}
	if it.id != "" {
		opts["id"] = it.id
	}
	if it.due != 0 {
		opts["deliver_at"] = it.due
	}
	f := map[string]any{"topic": it.topic.name, "payload": it.payload(), "opts": opts}
	if it.batch == nil {
		f["op"] = "PUBLISH"
	}
	return f
}

func (w *oracleWorker) send(op *oracleOp, frame map[string]any) error {
	w.serial++
	corr := fmt.Sprint(w.serial)
	frame["corr"] = corr
	w.pending[corr] = op
	return w.conn.trySay(frame)
}

// hear takes one answer; false where the connection was lost.
func (w *oracleWorker) hear() bool {
	if err := w.conn.SetReadDeadline(time.Now().Add(watchdog)); err != nil {
		return false
	}
	text, err := wsutil.ReadServerText(w.conn.Conn)
	if err != nil {
		return false
	}
	var a oracleAnswer
	if err := json.Unmarshal(text, &a); err != nil {
		w.conn.t.Errorf("worker %d got %s: %v", w.n, text, err)
		return false
	}
	op := w.pending[a.Corr]
	if op == nil {
		if a.Code != string(eventhub.CodeShuttingDown) {
			w.conn.t.Errorf("worker %d got %s, which answers nothing", w.n, text)
		}
		return false
	}
	delete(w.pending, a.Corr)
	if err := w.judge(op, &a); err != nil {
		w.conn.t.Errorf("worker %d: %v; answered was %s", w.n, err, text)
		return false
	}
	return true
}

func (w *oracleWorker) judge(op *oracleOp, a *oracleAnswer) error {
	if a.Op == "OK" {
		w.counts.oks.Add(1)
	} else {
		w.counts.refused.Add(1)
	}
	switch {
	case op.op == "CANCEL":
		return w.judgeCancel(op.of, a)
	case a.Op != "OK" && (a.Code == string(eventhub.CodeOverloaded) || a.Code == string(eventhub.CodeShuttingDown)):
		for _, it := range op.items {
			it.fate = never
		}
		return nil
	case a.Op != "OK":
		return fmt.Errorf("a publish was refused")
	case op.of != nil:
		if !a.Duplicate || a.Offset != op.of.offset {
			return fmt.Errorf("the id of %s, at offset %d, was published again", op.of.mark, op.of.offset)
		}
		return nil
	case op.op == "BATCH":
		if len(a.Offsets) != len(op.items) {
			return fmt.Errorf("a batch of %d got %d offsets", len(op.items), len(a.Offsets))
		}
		for i, it := range op.items {
			if err := w.answered(it, a.Offsets[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return w.answered(op.items[0], a.Offset)
}

// answered notes the OK of one event.
func (w *oracleWorker) answered(it *oracleItem, offset uint64) error {
	o := it.topic
	if it.due != 0 && offset == 0 {
		it.fate = stored
		o.plans = append(o.plans, it)
		return nil
	}
	if offset <= o.last && o.given[offset] != it.mark {
		return fmt.Errorf("%s has offset %d of %s; %d was given before", it.mark, offset, o.name, o.last)
	}
	if err := o.give(it, offset); err != nil {
		return err
	}
	if it.id != "" && it.due == 0 {
		o.ids = append(o.ids, it)
	}
	return nil
}

// judgeCancel: what was cancelled never comes, and its id is free for another time; what
// could not be cancelled has come.
func (w *oracleWorker) judgeCancel(of *oracleItem, a *oracleAnswer) error {
	switch {
	case a.Op == "OK":
		of.fate = never
		if of.offset != 0 {
			return fmt.Errorf("%s was cancelled, and is in the log", of.mark)
		}
		if w.rng.IntN(2) == 0 && w.send(w.publish(of.topic, w.plan(of.topic, of.id))) != nil {
			return nil // the connection is lost; the next read will say so
		}
		return nil
	case a.Code == string(eventhub.CodeUnknownID) && of.due <= time.Now().UnixMilli():
		return nil // it stays stored, and is looked for
	case a.Code == string(eventhub.CodeOverloaded) || a.Code == string(eventhub.CodeShuttingDown):
		of.topic.plans = append(of.topic.plans, of)
		return nil
	}
	return fmt.Errorf("%s, due in %d ms, could not be cancelled", of.mark, of.due-time.Now().UnixMilli())
}

// deleteTopic deletes a topic in which something is known to be; false where the answer
// was lost.
func (w *oracleWorker) deleteTopic() bool {
	o := w.topics[w.rng.IntN(len(w.topics))]
	var known *oracleItem
	for _, it := range o.items {
		if it.fate == stored && it.offset != 0 {
			known = it
			break
		}
	}
	if known == nil {
		return true
	}
	request, err := http.NewRequest(http.MethodDelete, "http://"+w.hub.http+"/v1/topics/"+o.name, nil)
	if err != nil {
		w.conn.t.Error(err)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	answer, err := http.DefaultClient.Do(request.WithContext(ctx))
	if err != nil {
		w.deleting, w.before = o, known
		return false
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		if answer.StatusCode != http.StatusServiceUnavailable {
			w.conn.t.Errorf("DELETE of %s was answered by %s", o.name, answer.Status)
		}
		w.deleting, w.before = o, known
		return false
	}
	w.counts.oks.Add(1)
	o.end()
	return true
}

// reconcile looks at what has become of all that was sent to hubs before this one.
func (w *oracleWorker) reconcile(t *testing.T, hub *hubProcess, whole bool) {
	t.Helper()
	adm := hub.admin(t)
	if o := w.deleting; o != nil {
		item, err := adm.Event(context.Background(), o.name, w.before.id)
		if w.before.id == "" {
			item, err = firstFrom(adm, o.name, w.before.offset)
		}
		if err != nil || item.Offset != w.before.offset {
			// What moved into the log before the end of the topic was not seen, but took
			// offsets: the next life says where it begins.
			o.end()
		}
		w.deleting = nil
	}
	for _, o := range w.topics {
		after := o.seen
		if whole {
			after = o.deletedUpTo()
		}
		waiting := o.scheduled(t, adm)
		sighted := o.read(t, adm, after)
		o.settle(t, waiting, sighted)
		if whole {
			o.complete(t, waiting, sighted)
		}
	}
	wholeness(t, w.batches)
	w.batches = nil
}

// complete holds all of this life against the log that was just read whole.
func (o *oracleTopic) complete(t *testing.T, waiting, sighted map[string]bool) {
	t.Helper()
	for _, it := range o.items {
		if it.fate == stored && !sighted[it.mark] && !waiting[planKey(it.id, it.due)] {
			t.Errorf("%s of %s got its OK (offset %d, due %d), and is neither in the log nor scheduled", it.mark, o.name, it.offset, it.due)
		}
	}
}

func firstFrom(adm *client.Admin, topic string, offset uint64) (first eventhub.Item, err error) {
	query := admin.ReplayQuery{Topic: topic, Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: offset}, Limit: 1}
	err = adm.Replay(context.Background(), query, func(_ string, item eventhub.Item) error {
		first.Offset = item.Offset
		return nil
	})
	return first, err
}

// open connects; an error means that the hub is gone.
func open(t *testing.T, hub *hubProcess) (*conn, error) {
	return connectAs(t, hub, map[string]any{"op": "AUTH", "corr": "auth"})
}
