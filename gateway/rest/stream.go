package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"eventhub"
	"eventhub/internal/transfer"
)

const (
	// maxStreamBytes bounds what waits to be written on a stream; one event may be
	// larger. As much again may be on its way out.
	maxStreamBytes = 256 << 10
	// heartbeatEvery is the silence after which a stream gives a sign of life, so
	// that proxies keep it and a dead peer is noticed.
	heartbeatEvery = 15 * time.Second

	heartbeat = ":\n\n"
)

// stream sends the events of one or more topics as they come: Server-Sent Events.
// It is a live tail with a memory at the client's: the id of each event says where
// the stream is in all of its topics (see places).
func (a *API) stream(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	opts, patterns, err := streamOptions(r)
	if err == nil {
		err = access.rights().Tail(patterns)
	}
	if err == nil && opts.Start.Kind == eventhub.StartSnapshot { // the state is of what was there before
		err = access.rights().Replay(opts.Topic)
	}
	if err != nil {
		return reply{}, err
	}
	s := &stream{wake: make(chan struct{}, 1), add: deliveredAs(r), hasState: opts.Start.Kind == eventhub.StartSnapshot}
	var at *places
	if s.hasState {
		at, err = lastOfState(r, &opts)
	} else {
		at, err = streamPlaces(r, access, &opts, patterns)
	}
	if err != nil {
		return reply{}, err
	}
	s.at, s.snapshot = *at, opts.Snapshot
	if r.Method == http.MethodHead {
		streamHeader(w)
		return reply{status: http.StatusOK}, nil
	}
	leave, err := a.enterStream(r.RemoteAddr, access.Name)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	opts.Peer, opts.Known = peer(r), at.known
	handle, err := access.Subscriber.Tail(r.Context(), opts, s)
	if err != nil {
		return reply{}, err
	}
	defer handle.Drop(0)
	streamHeader(w)
	out := a.patient(w)
	defer out.last()
	s.pump(r.Context(), a.stopping, out, handle.Ready)
	return reply{status: http.StatusOK, sent: true}, nil
}

// streamPlaces says in the options where a stream begins, or goes on.
func streamPlaces(r *http.Request, access Access, opts *eventhub.TailOptions, patterns []eventhub.Pattern) (*places, error) {
	at, err := lastEventID(r, patterns)
	if err != nil {
		return nil, err
	}
	if at == nil {
		if at, err = beginning(r.Context(), access.beginnings(), opts, patterns); err != nil {
			return nil, err
		}
	} else {
		opts.Start = eventhub.Start{Kind: eventhub.StartTime, TS: at.since}
	}
	switch opts.Start.Kind {
	case eventhub.StartOffset: // it may lie ahead, where no place is
	case eventhub.StartEarliest: // it knows how far its topics are compacted, and a place does not
	default:
		opts.Places = at.list()
	}
	if at.one && len(opts.Places) > 0 {
		opts.Start = eventhub.Start{} // the place says it
	}
	return at, nil
}

// enterStream counts a stream until leave is called, or refuses it.
func (a *API) enterStream(remote, principal string) (leave func(), err error) {
	counted, err := a.cfg.Admit(remote, principal)
	if err != nil {
		return nil, err
	}
	select {
	case a.streams <- struct{}{}:
	default:
		counted()
		return nil, &eventhub.Error{
			Code: eventhub.CodeOverloaded, Message: fmt.Sprintf("the hub has %d event streams; it takes no more", cap(a.streams)),
			RetryAfter: time.Second,
		}
	}
	return func() {
		<-a.streams
		counted()
	}, nil
}

// beginnings returns what finds where streams begin.
func (a *Access) beginnings() Beginnings {
	if a.Beginnings != nil {
		return a.Beginnings
	}
	return a.Inspector
}

var errStopping = eventhub.Errorf(eventhub.CodeShuttingDown, "the hub is stopping; ask again")

func streamHeader(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // or nginx waits for more
	h.Set("Connection", "close")     // its end is that of the connection
}

// peer names the client of a request to those who look at subscriptions.
func peer(r *http.Request) eventhub.Peer {
	return eventhub.Peer{Transport: "http", Name: r.RemoteAddr}
}

// stream is the receiver of one stream. The events that it takes wait in out; the
// goroutine of the request takes all of it, and has the tail go on when there is
// room again.
type stream struct {
	wake chan struct{} // holds one token while pump has something to look at
	add  appendDelivered

	hasState bool // it began with the state, see stream_state.go

	mu       sync.Mutex
	snapshot string // of a stream with the state: what came last of StatePart.Snapshot
	out      []byte
	at       places // after what is in out
	begun    bool
	starved  bool // was refused room and must be notified when there is some
	over     bool // the tail has ended
}

// Know implements eventhub.Knower. Nothing is begun yet.
func (s *stream) Know(known string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at.known = known
}

// begin writes what precedes the first event, once: how soon to come back, and the
// place, so that who is cut off before the first event comes back to it. s.mu is held.
func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	s.out = append(s.out, "retry: 1000\n"...)
	s.appendID()
	s.out = append(s.out, '\n')
}

// appendID appends the line that says how far the stream is. s.mu is held.
func (s *stream) appendID() {
	if s.hasState && s.snapshot == "" {
		return // who is cut off now begins again
	}
	s.out = append(s.out, "id: "...)
	if s.hasState {
		s.out = append(append(s.out, s.snapshot...), placesEnd...)
	}
	s.out = append(s.at.append(s.out), '\n')
}

// Deliver implements eventhub.Receiver.
func (s *stream) Deliver(batch []eventhub.Delivery) (taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	for taken < len(batch) {
		d := &batch[taken]
		if len(s.out) > 0 && len(s.out)+len(d.Record)+s.at.bytes > maxStreamBytes {
			s.starved = true
			break
		}
		if d.Gap != nil {
			s.tell(*d.Gap)
		}
		if d.State != nil && s.tellState(d) {
			taken++
			continue
		}
		s.at.advance(d.Topic, d.Offset, d.Record.CommitTime())
		s.appendID()
		s.out = append(s.out, "data: "...)
		s.out = s.add(s.out, d)
		s.out = append(s.out, "\n\n"...)
		taken++
	}
	s.kick()
	return taken
}

// Gap implements eventhub.Gapped.
func (s *stream) Gap(g eventhub.Gap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	s.tell(g)
}

// tell writes a gap. The place stays: who is cut off before the next event is told again.
// s.mu is held.
func (s *stream) tell(g eventhub.Gap) {
	s.say("gap", transfer.Gap(g))
}

// say writes something that is no event, of numbers and strings. s.mu is held.
func (s *stream) say(kind string, of any) {
	data, err := json.Marshal(of)
	if err != nil {
		panic(err)
	}
	s.out = append(append(append(s.out, "event: "...), kind...), "\ndata: "...)
	s.out = append(append(s.out, data...), "\n\n"...)
}

// Ended implements eventhub.Receiver.
func (s *stream) Ended(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := eventhub.AsError(err); s.hasState && e.Code == eventhub.CodeTooLarge { // it would come back in vain
		s.begin()
		s.say("ended", struct {
			Code   eventhub.Code `json:"code"`
			Detail string        `json:"detail"`
		}{e.Code, e.Message})
	}
	s.over = true
	s.kick()
}

func (s *stream) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns what is to be written, and leaves an empty buffer in its place.
func (s *stream) take(empty []byte) (out []byte, starved, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	out, s.out = s.out, empty[:0]
	starved, s.starved = s.starved, false
	return out, starved, s.over
}

// rest gives a sign of life where nothing else is to be written, and lets go of the
// buffers of a stream that has nothing to say.
func (s *stream) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.out) == 0 {
		s.out = []byte(heartbeat)
	}
}

// pump writes until the client is gone, takes nothing for too long, or the hub
// stops. What is in the buffer then is not written: the client comes back for it.
func (s *stream) pump(ctx, stopping context.Context, to *patientWriter, ready func()) {
	silence := time.NewTimer(heartbeatEvery)
	defer silence.Stop()
	var spare []byte
	for {
		out, starved, over := s.take(spare)
		if starved {
			ready()
		}
		if len(out) > 0 {
			if to.write(out) != nil || to.flush() != nil {
				return
			}
			silence.Reset(heartbeatEvery)
		}
		if spare = out; cap(spare) > maxStreamBytes {
			spare = nil // it had a large event
		}
		if over {
			return
		}
		select {
		case <-s.wake:
		case <-silence.C:
			s.rest()
			spare = nil
		case <-ctx.Done():
			return
		case <-stopping.Done():
			return
		}
	}
}
