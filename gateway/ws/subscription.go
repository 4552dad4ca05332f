package ws

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

// subKey names a subscription of a connection as its SUBSCRIBE did; a live tail
// has no group.
type subKey struct{ topic, group string }

// String describes the subscription in a message.
func (k subKey) String() string {
	if k.group == "" {
		return fmt.Sprintf("live tail of topic %q", k.topic)
	}
	return fmt.Sprintf("subscription of topic %q as group %q", k.topic, k.group)
}

func notSubscribed(key subKey) *eventhub.Error {
	return eventhub.Errorf(eventhub.CodeNotSubscribed, "this connection has no %s", key)
}

// subState is where a subscription is in its life. It only moves forward.
type subState uint8

const (
	subscribing subState = iota // its SUBSCRIBE is not answered
	subscribed
	unsubscribed // or ended by itself
)

// subscription is the receiver of one SUBSCRIBE. Deliveries that come before
// its OK is in the buffer are refused and asked for again right after it.
//
// It leaves the session's map when the client unsubscribes, when it ends by
// itself, and when the session ends; whoever takes it out of there ends it. One
// that ends by itself says so in an ERR without corr, which has its topic and
// group; the client may subscribe again.
type subscription struct {
	s      *session
	key    subKey
	frame  *wire.EventFrame
	many   bool                  // it wants EVENTS
	auto   bool                  // it acks by being sent to
	covers []eventhub.Pattern    // of a subscription that may have several topics
	handle eventhub.Subscription // set before state is subscribed
	// acks is the handle as the session's access allows it: what acks may publish is a matter
	// of the present rights. The reader's own.
	acks eventhub.Subscription

	// Guarded by s.mu.
	state   subState
	starved bool            // was refused room and must be notified when there is some
	unsent  int             // deliveries to a group's member that it took and that are not reported as sent
	ended   *eventhub.Error // why, when it did so while subscribing
	said    wire.Subscribed // for its OK
	// resuming: its RESUME is not answered; refused: a delivery came meanwhile.
	resuming, refused bool
}

// Deliver implements eventhub.Receiver.
func (u *subscription) Deliver(batch []eventhub.Delivery) (taken int) {
	s := u.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.resuming {
		u.refused = true
		return 0
	}
	if u.state != subscribed {
		u.starved = true // counts while subscribing only
		return 0
	}
	for taken < len(batch) {
		n := u.append(batch[taken:])
		if n == 0 {
			break
		}
		taken += n
	}
	s.out.delivered += int64(taken)
	if taken > 0 && u.key.group != "" {
		u.unsent += taken
		s.out.buf.note(u, taken)
	}
	s.kick()
	return taken
}

// append puts one frame with deliveries from the front of the batch into the
// buffer, where there is room, and returns their number. s.mu is held.
func (u *subscription) append(batch []eventhub.Delivery) (n int) {
	s := u.s
	queued := s.out.queued()
	room := s.gw.cfg.deliveryBytes() - queued - gws.MaxHeaderSize
	n = 1
	var size int
	if u.many {
		n, size = u.frame.Fit(batch, min(room, wire.MaxEventsBytes))
	} else {
		size = u.frame.Size(&batch[0])
	}
	if queued > 0 && size > room {
		if !u.starved {
			u.starved = true
			s.out.starved = append(s.out.starved, u)
		}
		return 0
	}
	c := s.reply()
	if c == nil {
		return 0
	}
	c.reserve(gws.MaxHeaderSize + size)
	c.header(gws.OpText, size)
	if u.many {
		c.b = u.frame.AppendAll(c.b, batch[:n])
	} else {
		c.b = u.frame.Append(c.b, &batch[0])
	}
	return n
}

// Know implements eventhub.Knower.
func (u *subscription) Know(known string) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.said.Known = known
}

// Gap implements eventhub.Gapped.
func (u *subscription) Gap(g eventhub.Gap) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.said.Gaps = append(u.said.Gaps, g)
}

// hadEnded notes that its group had ended in a topic.
func (u *subscription) hadEnded(e eventhub.EndedGroup) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.said.Ended = append(u.said.Ended, e)
}

// Ended implements eventhub.Receiver.
func (u *subscription) Ended(err error) {
	s := u.s
	e := *toError(err, eventhub.CodeInternal)
	s.logCause(string(wire.OpSubscribe), &e)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch u.state {
	case subscribing:
		u.ended = &e // the answer to SUBSCRIBE
	case subscribed:
		delete(s.subs, u.key)
		s.appendEnded(u, e)
		s.kick()
	}
	u.state = unsubscribed
}

// find returns the subscription with that name, or nil.
func (s *session) find(key subKey) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subs[key]
}

// target returns the subscription whose deliveries a frame is about: the one that
// was made with its topic, or else the one that has this topic among others. It
// returns nil where there is none or several, and the leases decide.
func (s *session) target(r *wire.Request) (*subscription, *eventhub.Error) {
	key := subKey{r.Topic, r.Group}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.subs[key]; u != nil {
		return u, nil
	}
	var found *subscription
	several := false
	for _, u := range s.subs {
		if u.key.group == r.Group && u.has(r.Topic) {
			several = found != nil
			found = u
			if several {
				break
			}
		}
	}
	switch {
	case found != nil && !several:
		return found, nil
	case leased(r.Settlement.Refs):
		return nil, nil
	case several:
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "topic %q is in several subscriptions of this connection as group %q; a lease or the topic of one of them is expected", key.topic, key.group)
	}
	return nil, notSubscribed(key)
}

// has reports whether topic, which may be a pattern, is one of those that a
// subscription to several has.
func (u *subscription) has(topic string) bool {
	return !eventhub.IsPattern(topic) &&
		slices.ContainsFunc(u.covers, func(p eventhub.Pattern) bool { return p.Match(topic) })
}

// peer names the member to those who look at a group.
func (s *session) peer() eventhub.Peer {
	return eventhub.Peer{Transport: "ws", Name: strings.TrimSpace(s.access.Name + " " + s.remote), Client: s.name}
}

func (s *session) subscribe(r *wire.Request) *eventhub.Error {
	key := subKey{r.Topic, r.Group}
	s.mu.Lock()
	_, exists := s.subs[key]
	n := len(s.subs)
	s.mu.Unlock()
	if exists {
		return eventhub.Errorf(eventhub.CodeAlreadySubscribed, "this connection has a %s already", key)
	}
	if n >= s.gw.cfg.MaxSubscriptions {
		return eventhub.Errorf(eventhub.CodeBadRequest, "the connection has %d subscriptions; more are not allowed", n)
	}
	u := &subscription{s: s, key: key, frame: wire.NewEventFrame(r.Topic, r.Group), many: r.Batch, auto: r.Subscribe.AutoAck}
	opts := r.Subscribe
	opts.Buffered = true
	if len(opts.Topics) > 0 || eventhub.IsPattern(opts.Topic) {
		var err error
		if u.covers, err = opts.Patterns(); err != nil {
			return eventhub.AsError(err)
		}
	}
	opts.Peer, opts.OnEnded = s.peer(), u.hadEnded
	var handle eventhub.Subscription
	var err error
	if opts.IsTail() {
		handle, err = s.access.Subscriber.Tail(s.ctx, opts.Tail(), u)
	} else {
		handle, err = s.access.Subscriber.Subscribe(s.ctx, opts.GroupOptions, u)
	}
	if err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	if u.state == unsubscribed {
		defer s.mu.Unlock()
		return u.ended
	}
	u.handle, u.acks, u.state = handle, handle, subscribed
	s.subs[key] = u
	s.appendSubscribed(corrOf(r), &u.said)
	u.said = wire.Subscribed{}
	refused := u.starved
	u.starved = false
	s.mu.Unlock()
	if refused {
		handle.Ready()
	}
	return nil
}

func (s *session) unsubscribe(r *wire.Request) *eventhub.Error {
	key := subKey{r.Topic, r.Group}
	s.mu.Lock()
	u := s.subs[key]
	if u == nil {
		s.mu.Unlock()
		return notSubscribed(key)
	}
	if err := s.takeOut(u); err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendOK(corrOf(r))
	return nil
}

// takeOut ends a subscription: it gets nothing more, and its leases go back. s.mu is held, and
// is not when it returns.
func (s *session) takeOut(u *subscription) error {
	delete(s.subs, u.key)
	u.state = unsubscribed // from here on it takes no delivery
	for u.auto && u.unsent > 0 && !s.out.closing {
		s.changed.Wait() // what comes in front of the answer is done with that
	}
	s.mu.Unlock()
	err := u.handle.Unsubscribe(s.ctx)
	if err != nil {
		u.handle.Drop(0)
	}
	return err
}

// adopt has the subscriptions go on under another access, and ends those that may not.
func (s *session) adopt(access Access) {
	if access.Adopt == nil {
		return
	}
	s.mu.Lock()
	subs := slices.SortedFunc(maps.Values(s.subs), func(a, b *subscription) int {
		return cmp.Or(strings.Compare(a.key.topic, b.key.topic), strings.Compare(a.key.group, b.key.group))
	})
	s.mu.Unlock()
	for _, u := range subs {
		patterns := u.covers
		if patterns == nil {
			p, err := eventhub.ParsePattern(u.key.topic)
			if err != nil {
				continue // it could not have been subscribed
			}
			patterns = []eventhub.Pattern{p}
		}
		acks, err := access.Adopt(u.acks, patterns, u.key.group)
		if err == nil {
			u.acks = acks
			continue
		}
		s.endForbidden(u, err)
	}
}

// endForbidden ends a subscription to which there is no right any more, and says so, unless it
// has ended by itself meanwhile.
func (s *session) endForbidden(u *subscription, why error) {
	s.mu.Lock()
	if s.subs[u.key] != u {
		s.mu.Unlock()
		return
	}
	if err := s.takeOut(u); err != nil {
		s.logCause(string(wire.OpAuth), toError(err, eventhub.CodeInternal))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendEnded(u, *toError(why, eventhub.CodeInternal))
}

// appendEnded says that a subscription has ended. s.mu is held.
func (s *session) appendEnded(u *subscription, e eventhub.Error) {
	e.Message = "the " + u.key.String() + " has ended: " + e.Message
	e.Topic, e.Group = u.key.topic, u.key.group
	s.appendError(corr{}, &e)
}

// pauseOrResume stops the deliveries to one member, or lets them go on.
func (s *session) pauseOrResume(r *wire.Request) *eventhub.Error {
	key := subKey{r.Topic, r.Group}
	u := s.find(key)
	if u == nil {
		return notSubscribed(key)
	}
	if r.Op == wire.OpResume {
		return s.resume(u, corrOf(r))
	}
	if err := u.handle.Pause(s.ctx); err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendOK(corrOf(r))
	return nil
}

// resume lets deliveries continue after its OK: those that come before are refused and
// asked for again.
func (s *session) resume(u *subscription, to corr) *eventhub.Error {
	s.mu.Lock()
	u.resuming = true
	s.mu.Unlock()
	err := u.handle.Resume(s.ctx)
	s.mu.Lock()
	refused := u.refused
	u.resuming, u.refused = false, false
	if err == nil {
		s.appendOK(to)
	}
	s.mu.Unlock()
	if refused {
		u.handle.Ready()
	}
	if err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	return nil
}

// leaveAll leaves every group. A connection that is lost, or ended by what its
// peer did, has had its deliveries, except those that were not sent when it was sealed:
// should they leave it yet, in front of a close frame, no answer can come to them. One
// that the hub takes down gives all attempts back.
func (s *session) leaveAll() {
	s.mu.Lock()
	for s.out.asked {
		s.changed.Wait()
	}
	stopped := s.out.stopped
	subs := make([]*subscription, 0, len(s.subs))
	for _, u := range s.subs {
		u.state = unsubscribed
		subs = append(subs, u)
	}
	clear(s.subs)
	s.mu.Unlock()
	if !stopped {
		for _, u := range subs {
			u.handle.Drop(u.unsent) // which nobody changes any more
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.gw.cfg.CloseWait)
	defer cancel()
	for _, u := range subs {
		if u.handle.Unsubscribe(ctx) != nil {
			u.handle.Drop(0)
		}
	}
}
