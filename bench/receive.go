package bench

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

// The ways to ack, as options name them.
const (
	AckID    = "id"    // one ACK an event, by its id
	AckLease = "lease" // one ACK an event, by its lease
	AckIDs   = "ids"   // one ACK for all events of one read
)

// recorders is how many histograms receivers share: one each would be too much
// memory for thousands of them, and one for all a queue.
const recorders = 8

// The correlations of a subscription.
const (
	corrJoin = corrBase + iota
	corrLeave
)

// audience is the receiving side of a workload: members of groups, or tails.
type audience struct {
	r       *run
	members []*receiver
	recs    []*recorder
	stamped bool // events say when they were due

	deliveries  atomic.Int64 // first attempts
	redelivered atomic.Int64
	mark        atomic.Int64   // what wait waits for
	hit         chan struct{}  // holds one: the mark is reached, perhaps
	warm        int64          // deliveries of the warm-up
	warmed      chan milestone // holds one: the warm-up is over
	working     sync.WaitGroup
}

// milestone is how many deliveries there were, and when.
type milestone struct {
	deliveries int64
	at         time.Time
}

// receiver is one subscription on a connection of its own.
type receiver struct {
	a            *audience
	c            *conn
	topic, group string
	ack          ackText
	rec          *recorder

	acks []byte // frames to be sent
	text []byte
	ids  int // in text, of AckIDs
}

func newAudience(r *run, stamped bool, warm int64) *audience {
	a := &audience{r: r, stamped: stamped, hit: make(chan struct{}, 1), warm: warm, warmed: make(chan milestone, 1)}
	for range recorders {
		a.recs = append(a.recs, newRecorder())
	}
	return a
}

// join subscribes on as many connections as there are options and starts to
// receive. It returns when all subscriptions are; deliveries may be there by then,
// also those of the warm-up.
func (r *run) join(options []wire.SubscribeOptions, batch bool, ack string, stamped bool, warm int64) (*audience, error) {
	a := newAudience(r, stamped, warm)
	r.enter("connect", int64(len(options)))
	conns, err := r.connect(len(options))
	if err != nil {
		return nil, err
	}
	r.enter("subscribe", 0)
	joined := make(chan struct{}, len(options))
	for i, c := range conns {
		o := &options[i]
		m := &receiver{a: a, c: c, topic: o.Topic, group: o.Group, ack: newAckText(ack, o.Topic, o.Group), rec: a.recs[i%recorders]}
		a.members = append(a.members, m)
		if err := c.send(wire.AppendSubscribe(nil, corrJoin, o, batch)); err != nil {
			return nil, r.ended(err)
		}
		a.working.Add(1)
		r.work.Go(func() {
			defer a.working.Done()
			if err := m.work(joined); err != nil {
				r.fail(r.ended(err))
			}
		})
	}
	for range a.members {
		select {
		case <-joined:
		case <-r.ctx.Done():
			return nil, context.Cause(r.ctx)
		}
	}
	return a, nil
}

// wait waits until so many deliveries are there.
func (a *audience) wait(mark int64) error {
	a.mark.Store(mark)
	for a.deliveries.Load() < mark {
		select {
		case <-a.hit:
		case <-a.r.ctx.Done():
			return context.Cause(a.r.ctx)
		}
	}
	return nil
}

// awaitWarm waits for the end of the warm-up. Whoever made the delivery that ended it
// has noted when that was: all others may be there before the one who waits is awake.
func (a *audience) awaitWarm() (milestone, error) {
	select {
	case m := <-a.warmed:
		return m, nil
	case <-a.r.ctx.Done():
		return milestone{}, context.Cause(a.r.ctx)
	}
}

// count adds deliveries and wakes who waits for them.
func (a *audience) count(fresh, old int64) {
	a.redelivered.Add(old)
	if fresh == 0 {
		return
	}
	a.r.moved.Add(fresh)
	n := a.deliveries.Add(fresh)
	if n >= a.warm && n-fresh < a.warm {
		a.warmed <- milestone{n, time.Now()}
	}
	if n >= a.mark.Load() {
		select {
		case a.hit <- struct{}{}:
		default:
		}
	}
}

// leave unsubscribes everybody. When it returns, every ack that was sent is
// applied, for frames of a connection are handled in order.
func (a *audience) leave() error {
	for _, m := range a.members {
		if err := m.c.send(wire.AppendUnsubscribe(nil, corrLeave, m.topic, m.group)); err != nil {
			return a.r.ended(err)
		}
	}
	a.working.Wait()
	return context.Cause(a.r.ctx)
}

// forget removes the latencies of the warm-up.
func (a *audience) forget() {
	for _, rec := range a.recs {
		rec.reset()
	}
}

// work receives until the OK of the UNSUBSCRIBE.
func (m *receiver) work(joined chan<- struct{}) error {
	for over := false; !over; {
		var now, fresh, old int64
		err := m.c.read(func(message []byte) error {
			if now == 0 { // after the read
				now = m.a.r.now()
				m.rec.Lock()
			}
			switch n, ok := slotOf(message); {
			case ok && n == corrJoin-corrBase:
				joined <- struct{}{}
				return nil
			case ok && n == corrLeave-corrBase:
				over = true
				return nil
			}
			first, again, err := m.take(message, now)
			fresh, old = fresh+first, old+again
			return err
		})
		if now != 0 {
			m.rec.Unlock()
		}
		if err == nil && !over { // what the hub has taken back needs no ack
			err = m.flush()
		}
		m.a.count(fresh, old)
		if err != nil {
			return err
		}
	}
	return nil
}

// take handles one frame with deliveries.
func (m *receiver) take(message []byte, now int64) (fresh, old int64, err error) {
	if !bytes.HasPrefix(message, eventBegin) {
		refusal, err := m.c.complaint(message)
		switch {
		case err != nil:
			return 0, 0, err
		case refusal == nil:
			return 0, 0, eventhub.Errorf(eventhub.CodeInternal, "the hub sent %.80q to a subscriber", message)
		case !m.c.frame.HasCorr: // the subscription has ended by itself, or an ACK was refused
			return 0, 0, m.a.r.refuse(refusal)
		}
		return 0, 0, refusal // of the SUBSCRIBE
	}
	for rest := message; ; {
		event, after, ok := cutDelivery(rest)
		if !ok {
			return fresh, old, nil
		}
		rest = after
		if again(event) {
			old++
		} else {
			fresh++
		}
		if m.a.stamped {
			due, err := dueOf(event)
			if err != nil {
				return fresh, old, err
			}
			m.rec.add(now - due)
		}
		m.note(event)
	}
}

// note makes the ack of a delivery.
func (m *receiver) note(event []byte) {
	switch m.ack.how {
	case AckID:
		m.text = append(append(append(m.text[:0], m.ack.before...), following(event, idMark)...), m.ack.after...)
		m.acks = appendFrame(m.acks, ws.OpText, m.text)
	case AckLease:
		m.text = append(append(append(m.text[:0], m.ack.before...), following(event, leaseMark)...), m.ack.after...)
		m.acks = appendFrame(m.acks, ws.OpText, m.text)
	case AckIDs:
		if m.ids == 0 {
			m.text = append(m.text[:0], m.ack.before...)
		} else {
			m.text = append(m.text, `","`...)
		}
		m.text = append(m.text, following(event, idMark)...)
		if m.ids++; m.ids == wire.MaxRefs {
			m.endIDs()
		}
	}
}

func (m *receiver) endIDs() {
	m.text = append(m.text, m.ack.after...)
	m.acks = appendFrame(m.acks, ws.OpText, m.text)
	m.ids = 0
}

// flush sends the acks of one read.
func (m *receiver) flush() error {
	if m.ids > 0 {
		m.endIDs()
	}
	if len(m.acks) == 0 {
		return nil
	}
	err := m.c.write(m.acks)
	m.acks = m.acks[:0]
	return err
}

// ackText is the ACK of a subscription, cut where the id or the lease is.
type ackText struct {
	how           string
	before, after []byte
}

func newAckText(how, topic, group string) ackText {
	a, b := eventhub.Ref{ID: "A"}, eventhub.Ref{ID: "B"}
	lease := eventhub.Lease{Runtime: 1, Offset: 1, Serial: 1}
	refs, hole := []eventhub.Ref{a}, `"A"`
	switch how {
	case "":
		return ackText{}
	case AckLease:
		refs, hole = []eventhub.Ref{{Lease: lease}}, `"`+string(lease.Append(nil))+`"`
	case AckIDs:
		refs, hole = []eventhub.Ref{a, b}, `"A","B"`
	}
	text := wire.AppendSettles(nil, 0, topic, group, &eventhub.Settlement{}, refs)
	at := bytes.LastIndex(text, []byte(hole))
	return ackText{how, text[:at+1], text[at+len(hole)-1:]}
}

// checkAck refuses a way to ack that there is not.
func checkAck(how string) error {
	switch how {
	case AckID, AckLease, AckIDs:
		return nil
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "ack is %q; %s, %s and %s are allowed", how, AckID, AckLease, AckIDs)
}
