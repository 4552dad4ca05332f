package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"eventhub"
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
	if err != nil {
		return reply{}, err
	}
	at, err := lastEventID(r, patterns)
	if err != nil {
		return reply{}, err
	}
	s := &stream{wake: make(chan struct{}, 1), add: deliveredAs(r)}
	if at == nil {
		if at, err = beginning(r.Context(), access.Inspector, &opts, patterns); err != nil {
			return reply{}, err
		}
	} else {
		opts.Start = eventhub.Start{Kind: eventhub.StartTime, TS: at.since}
	}
	if opts.Start.Kind != eventhub.StartOffset { // which may lie ahead, where no place is
		opts.Places = at.list()
	}
	if at.one && len(opts.Places) > 0 {
		opts.Start = eventhub.Start{} // the place says it
	}
	s.at = *at
	if r.Method == http.MethodHead {
		streamHeader(w)
		return reply{status: http.StatusOK}, nil
	}
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

	mu      sync.Mutex
	out     []byte
	at      places // after what is in out
	begun   bool
	starved bool // was refused room and must be notified when there is some
	over    bool // the tail has ended
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
	s.out = append(s.out, "retry: 1000\nid: "...)
	s.out = s.at.append(s.out)
	s.out = append(s.out, "\n\n"...)
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
		s.at.advance(d.Topic, d.Offset, d.Record.CommitTime())
		s.out = append(s.out, "id: "...)
		s.out = s.at.append(s.out)
		s.out = append(s.out, "\ndata: "...)
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
	data, err := json.Marshal(struct {
		Topic string `json:"topic"`
		After uint64 `json:"after"`
		First uint64 `json:"first"`
	}(g))
	if err != nil {
		panic(err) // strings and numbers
	}
	s.out = append(s.out, "event: gap\ndata: "...)
	s.out = append(s.out, data...)
	s.out = append(s.out, "\n\n"...)
}

// Ended implements eventhub.Receiver.
func (s *stream) Ended(error) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
