package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/wire"
)

// reader is what one consumer has had.
type reader struct {
	times  map[string]int // by id
	order  []string       // ids, each once
	once   bool           // each event at most once
	newest bool           // it is to have the newest event of each key, and may have others
	topics []string       // the only ones that it has, or none
}

// awaits reports whether the reader is to have the event.
func (r *reader) awaits(id string) bool { return r.times[id] == 0 && r.wants(id) }

func (r *reader) wants(id string) bool {
	for _, topic := range r.topics {
		if strings.HasPrefix(id, topic+"-") {
			return true
		}
	}
	return len(r.topics) == 0
}

// consumers starts one of each kind. The topics are h.a, h.b, h.c and those of results.
func (h *history) consumers(clients *sync.WaitGroup) {
	group := earliest("h.*", "pattern")
	group.MaxAttempts, group.MaxInFlight = 1000, 8
	keys := group
	keys.Group, keys.Ordering = "keys", eventhub.OrderingKey
	h.consume(clients, "group by key", wire.SubscribeOptions{GroupOptions: keys}, false)
	name, list := group, group
	name.Topic, name.Group = "h.a", "name"
	list.Topic, list.Topics, list.Group = "h.b", []string{"h.c"}, "list"
	h.consume(clients, "group by name", wire.SubscribeOptions{GroupOptions: name}, false, "h.a")
	h.consume(clients, "group of a list", wire.SubscribeOptions{GroupOptions: list}, false, "h.b", "h.c")
	group.AckTimeout, group.Backoff = eventhub.MinAckTimeout, eventhub.Backoff{Min: 1e6, Max: 1e6}
	h.consume(clients, "group by pattern", wire.SubscribeOptions{GroupOptions: group}, false)
	h.consume(clients, "tail by pattern", wire.OfTail(tailFrom("h.*")), true)
	one := tailFrom("h.a")
	one.Topics = []string{"h.b", "h.c"}
	h.consume(clients, "tail of a list", wire.OfTail(one), true)
	h.consume(clients, "tail of a topic", wire.OfTail(tailFrom("h.a")), true, "h.a")
	c, step := dial(h.t, h.proxy.addr()), group
	step.Group = "steps"
	clients.Go(func() {
		if err := c.Transform(h.ctx, atOnce(2, step), func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			return []eventhub.Event{event("results", `"`+d.ID()+`"`)}, nil
		}); err != nil {
			h.t.Errorf("transform: %v", err)
		}
		c.Close()
	})
	h.stream(clients, "stream", "h.*/stream?from=earliest")
	h.stream(clients, "stream of a topic", "h.a/stream?from=earliest", "h.a")
	h.stream(clients, "conflated stream", "h.*/stream?from=earliest&conflate_ms=10")
	h.seen["conflated stream"].newest = true
	one.Conflate = 10 * time.Millisecond
	h.consume(clients, "conflated tail", wire.OfTail(one), true)
	h.seen["conflated tail"].newest = true
	h.pull(clients)
}

// consume starts a consumer. One whose only topic is deleted comes again.
func (h *history) consume(clients *sync.WaitGroup, name string, opts wire.SubscribeOptions, once bool, topics ...string) {
	c, note := dial(h.t, h.proxy.addr()), h.reader(name, once, topics...)
	if opts.Concurrency = 2; once { // its order is looked at
		opts.Concurrency = 1
	}
	handle := func(_ context.Context, d eventhub.Delivery) error {
		attempt := d.Attempt
		if opts.AckTimeout == eventhub.MinAckTimeout {
			attempt = 1 // it may run out where the machine is busy
			if h.stays() {
				time.Sleep(opts.AckTimeout * 3 / 2) // it is extended, or runs out where the connection is lost
			}
		}
		note(d.ID(), attempt)
		return nil
	}
	clients.Go(func() {
		defer c.Close()
		for h.ctx.Err() == nil {
			err := receive(h.ctx, c, opts, handle)
			if err != nil && h.ctx.Err() == nil && (eventhub.ErrorCode(err) != eventhub.CodeNotSubscribed || opts.Group == "" || len(topics) != 1) {
				h.t.Errorf("%s: %v", name, err)
				return
			}
		}
	})
}

// stays reports whether a handler is to stay longer than its lease: one a history does.
func (h *history) stays() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handled++
	return h.handled == h.staying
}

// reader makes a reader, and what notes its events.
func (h *history) reader(name string, once bool, topics ...string) (note func(id string, attempt int)) {
	r := &reader{times: make(map[string]int), once: once, topics: topics}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[name] = r
	return func(id string, attempt int) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if r.times[id]++; r.times[id] == 1 {
			r.order = append(r.order, id)
		} else if once {
			h.t.Errorf("%s: %s came %d times", name, id, r.times[id])
		}
		if !r.wants(id) {
			h.t.Errorf("%s: %s came, which is of another topic", name, id)
		}
		if attempt > 1+h.losses {
			h.t.Errorf("%s: %s came in attempt %d after %d losses", name, id, attempt, h.losses)
		}
		h.changed.Broadcast()
	}
}

// stream follows a stream of events as a browser does.
func (h *history) stream(clients *sync.WaitGroup, name, path string, topics ...string) {
	note, last := h.reader(name, true, topics...), ""
	transport := &http.Transport{DisableKeepAlives: true}
	clients.Go(func() {
		defer transport.CloseIdleConnections()
		for h.ctx.Err() == nil {
			r, err := http.NewRequestWithContext(h.ctx, "GET", "http://"+h.proxy.addr()+"/v1/topics/"+path, nil)
			if err != nil {
				h.t.Error(err)
				return
			}
			if last != "" {
				r.Header.Set("Last-Event-ID", last)
			}
			answer, err := transport.RoundTrip(r)
			if err != nil {
				continue
			}
			if answer.StatusCode >= 400 && answer.StatusCode < 500 {
				h.t.Errorf("%s: %s after %q", name, answer.Status, last)
			}
			last = follow(answer.Body, last, note)
			answer.Body.Close()
		}
	})
}

// follow notes the events of a stream that came in whole, and returns the last id.
func follow(body io.Reader, last string, note func(string, int)) string {
	var e struct{ ID string }
	for in, id := bufio.NewReaderSize(body, 64<<10), last; ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return last
		}
		if value, ok := strings.CutPrefix(line, "id: "); ok {
			id = strings.TrimSpace(value)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			_ = json.Unmarshal([]byte(data), &e) // of a gap there is no id
		}
		if line == "\n" {
			if last = id; e.ID != "" {
				note(e.ID, 1)
			}
			e.ID = ""
		}
	}
}

// ask sends a request with a body through the proxy. Without an answer that came in
// whole the status is 0.
func (h *history) ask(transport *http.Transport, path, body string) (status int, answer []byte) {
	r, err := http.NewRequestWithContext(h.ctx, "POST", "http://"+h.proxy.addr()+path, strings.NewReader(body))
	if err != nil {
		h.t.Error(err)
		return 0, nil
	}
	got, err := transport.RoundTrip(r)
	if err != nil {
		return 0, nil
	}
	defer got.Body.Close()
	if answer, err = io.ReadAll(got.Body); err != nil {
		return 0, nil
	}
	return got.StatusCode, answer
}

// pull takes events over HTTP and acks them.
func (h *history) pull(clients *sync.WaitGroup) {
	const group = "/v1/topics/h.*/groups/pull/"
	note := h.reader("pull", false)
	transport := &http.Transport{}
	clients.Go(func() {
		defer transport.CloseIdleConnections()
		for h.ctx.Err() == nil {
			var got struct {
				Deliveries []struct {
					Event struct{ ID string }
					Ctx   struct{ Lease string }
				}
			}
			status, b := h.ask(transport, group+"pull?max=7&wait_ms=1000", `{"from":"earliest","max_attempts":1000,"ack_timeout_ms":1000,"backoff":{"min_ms":1,"max_ms":1}}`)
			if status != 200 || json.Unmarshal(b, &got) != nil || len(got.Deliveries) == 0 {
				continue
			}
			var leases []string
			for _, d := range got.Deliveries {
				note(d.Event.ID, 1) // its leases run out where the ack is lost
				leases = append(leases, d.Ctx.Lease)
			}
			body, err := json.Marshal(map[string]any{"leases": leases})
			if err != nil {
				h.t.Error(err)
				return
			}
			h.ask(transport, group+"ack", string(body))
		}
	})
}

// post publishes an event over HTTP, under its id again and again until that is answered.
func (h *history) post() {
	e := h.make()
	path := "/publish/" + e.Topic + "?" + url.Values{"id": {e.ID}, "key": {e.Key}}.Encode()
	h.under.Go(func() {
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		for h.ctx.Err() == nil {
			switch status, answer := h.ask(transport, path, string(e.Payload)); status {
			case 0, http.StatusServiceUnavailable:
			case http.StatusOK:
				h.acknowledged(e.ID)
				return
			default:
				h.t.Errorf("POST %s: %d %s", path, status, answer)
				return
			}
		}
	})
}

// noting is a Receiver that has room for all.
type noting func(id string, attempt int)

func (n noting) Deliver(batch []eventhub.Delivery) int {
	for i := range batch {
		n(batch[i].ID(), batch[i].Attempt)
	}
	return len(batch)
}

func (noting) Ended(error) {}

// comeAgain makes a tail that has all of the past, like the one before it.
func (h *history) comeAgain() {
	var err error
	if h.coming, err = h.comer.Tail(h.ctx, tailFrom("h.*"), noting(h.reader("tail that comes again", true))); err != nil {
		h.t.Fatal(err)
	}
}

// make makes an event.
func (h *history) make() eventhub.Event {
	h.next++
	topic := "h." + string("abc"[h.r.IntN(3)])
	e := event(topic, `"`+strings.Repeat("x", h.r.IntN(3000))+`"`)
	e.ID, e.Key = fmt.Sprintf("%s-%06d", topic, h.next), fmt.Sprint("k", h.r.IntN(4))
	return e
}
