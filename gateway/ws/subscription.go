package ws

import (
	"context"
	"strings"

	gws "github.com/gobwas/ws"

	"eventhub"
	"eventhub/wire"
)

// subKey names a subscription of a connection as its SUBSCRIBE did; a live tail
// has no group.
type subKey struct{ topic, group string }

func (k subKey) String() string {
	if k.group == "" {
		return k.topic
	}
	return k.topic + "::" + k.group
}

func notSubscribed(key subKey) *eventhub.Error {
	return eventhub.Errorf(eventhub.CodeNotSubscribed, "%s", key)
}

// subState is where a subscription is in its life. It only moves forward.
type subState uint8

const (
	subscribing subState = iota // its SUBSCRIBE is not answered
	subscribed
	unsubscribed // or ended by itself
)

// subscription is the receiver of one SUBSCRIBE. Deliveries that come before
// its OK is in the buffer are refused and asked for again right behind it.
//
// It leaves the session's map when the client unsubscribes, when it ends by
// itself, and when the session ends; whoever takes it out of there ends it. One
// that ends by itself says so in an ERR without corr, whose message begins with
// its name and a colon; the client may subscribe again.
type subscription struct {
	s      *session
	key    subKey
	frame  *wire.EventFrame
	handle eventhub.Subscription // set before state is subscribed

	// Guarded by s.mu.
	state   subState
	starved bool            // was refused room and must be told when there is some
	ended   *eventhub.Error // why, when it did so while subscribing
}

// Deliver implements eventhub.Receiver.
func (u *subscription) Deliver(batch []eventhub.Delivery) (taken int) {
	s := u.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.state != subscribed {
		u.starved = true // counts while subscribing only
		return 0
	}
	for i := range batch {
		size := u.frame.Size(&batch[i])
		queued := s.out.queued()
		if queued > 0 && queued+size+gws.MaxHeaderSize > s.gw.cfg.OutboundBytes {
			if !u.starved {
				u.starved = true
				s.out.starved = append(s.out.starved, u)
			}
			break
		}
		c := s.reply()
		if c == nil {
			break
		}
		c.reserve(gws.MaxHeaderSize + size)
		c.header(gws.OpText, size)
		c.b = u.frame.Append(c.b, &batch[i])
		taken++
	}
	s.out.delivered += int64(taken)
	s.kick()
	return taken
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
		e.Message = u.key.String() + ": " + e.Message
		s.appendError(corr{}, &e)
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

// peer tells those who look at a group who its member is.
func (s *session) peer() eventhub.Peer {
	return eventhub.Peer{Transport: "ws", Name: strings.TrimSpace(s.access.Name + " " + s.remote)}
}

func (s *session) subscribe(r *wire.Request) *eventhub.Error {
	key := subKey{r.Topic, r.Group}
	s.mu.Lock()
	_, exists := s.subs[key]
	n := len(s.subs)
	s.mu.Unlock()
	if exists {
		return eventhub.Errorf(eventhub.CodeAlreadySubscribed, "%s", key)
	}
	if n >= s.gw.cfg.MaxSubscriptions {
		return eventhub.Errorf(eventhub.CodeBadRequest, "the connection has %d subscriptions; more are not allowed", n)
	}
	u := &subscription{s: s, key: key, frame: wire.NewEventFrame(r.Topic, r.Group)}
	opts := r.Subscribe
	opts.Peer = s.peer()
	handle, err := s.access.Subscriber.Subscribe(s.ctx, opts, u)
	if err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	if u.state == unsubscribed {
		defer s.mu.Unlock()
		return u.ended
	}
	u.handle, u.state = handle, subscribed
	s.subs[key] = u
	s.appendOK(corrOf(r))
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
	delete(s.subs, key)
	u.state = unsubscribed // from here on it takes no delivery
	s.mu.Unlock()
	if err := u.handle.Unsubscribe(s.ctx); err != nil {
		u.handle.Drop(0)
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendOK(corrOf(r))
	return nil
}

// steer stops the deliveries to one member, or lets them go on.
func (s *session) steer(r *wire.Request) *eventhub.Error {
	key := subKey{r.Topic, r.Group}
	u := s.find(key)
	if u == nil {
		return notSubscribed(key)
	}
	do := u.handle.Pause
	if r.Op == wire.OpResume {
		do = u.handle.Resume
	}
	if err := do(s.ctx); err != nil {
		return toError(err, eventhub.CodeInternal)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendOK(corrOf(r))
	return nil
}

// leaveAll leaves every group. A connection that is lost, or ended by what its
// peer did, has had its deliveries, save those that are still in the buffer: should
// they leave it yet, in front of a close frame, no answer can come to them. One that
// the hub takes down gives all attempts back.
func (s *session) leaveAll() {
	s.mu.Lock()
	stopped := s.out.stopped
	subs := make([]*subscription, 0, len(s.subs))
	for _, u := range s.subs {
		u.state = unsubscribed
		subs = append(subs, u)
	}
	clear(s.subs)
	var unsent []int
	if !stopped {
		unsent = s.out.unsent(subs)
	}
	s.mu.Unlock()
	if !stopped {
		for i, u := range subs {
			u.handle.Drop(unsent[i])
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
