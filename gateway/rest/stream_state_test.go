package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/hub"
)

// sseState is a map that obeys what a stream with the state says, and sees whether that can be.
type sseState struct {
	values    map[string]uint64 // of each key the offset
	fresh     map[string]bool
	last      uint64
	complete  bool
	states    int
	resumed   int
	count     int
	isNew     bool // of this connection
	isTrimmed bool // something was, since the state began
	progress  chan struct{}
	stated    chan struct{} // has a token for each state that came
}

func (m *sseState) take(e sse) error {
	var said struct {
		Topic   string
		Offset  uint64
		Count   int
		Horizon uint64
		Key     string
		Payload json.RawMessage
	}
	if err := json.Unmarshal([]byte(e.data), &said); err != nil || said.Topic != "s" {
		return fmt.Errorf("%q of kind %q: %w", e.data, e.kind, err)
	}
	select {
	case m.progress <- struct{}{}:
	default:
	}
	isNew := m.isNew
	m.isNew = false
	switch e.kind {
	case "snapshot":
		m.fresh, m.last, m.complete, m.count, m.isTrimmed = make(map[string]bool), 0, false, 0, false
	case "horizon":
		m.isTrimmed, m.isNew = true, isNew // which a stream that goes on hears first
		maps.DeleteFunc(m.values, func(_ string, offset uint64) bool { return offset < said.Horizon })
	case "gap":
	case "state":
		m.states++
		m.stated <- struct{}{}
		if !isNew && !m.isTrimmed && m.count != said.Count { // else some of it may be removed meanwhile
			return fmt.Errorf("a state of %d events came with %d", m.count, said.Count)
		}
		maps.DeleteFunc(m.values, func(key string, _ uint64) bool { return !m.fresh[key] })
		m.complete, m.last = true, said.Offset
	default:
		if said.Offset <= m.last {
			return fmt.Errorf("offset %d came after %d", said.Offset, m.last)
		}
		if isNew {
			m.resumed++
		}
		m.last = said.Offset
		m.count++
		switch {
		case !m.complete && (said.Key == "" || m.fresh == nil):
			return fmt.Errorf("%s came as a part of the state", e.data)
		case said.Key == "":
		case string(said.Payload) == "null":
			delete(m.values, said.Key)
		default:
			m.values[said.Key] = said.Offset
		}
		if !m.complete {
			m.fresh[said.Key] = true
		}
	}
	return nil
}

// TestStateStreamThroughCuts: a client that goes on from the last id it saw keeps the state of the
// topic, whenever it is cut off, while keys come, change and end, and are trimmed and erased.
func TestStateStreamThroughCuts(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	publish := func(events ...eventhub.Event) uint64 {
		rs, err := h.Bus().Publish(ctx, events...)
		if err != nil {
			t.Fatal(err)
		}
		return rs[len(rs)-1].Offset
	}
	draw := func(n int) eventhub.Event {
		e := eventhub.Event{Topic: "s", Key: fmt.Sprint("k", rand.IntN(3000)), Payload: fmt.Appendf(nil, "%q", strings.Repeat("x", rand.IntN(200)))}
		if n%7 == 0 {
			e.Payload = []byte("null")
		}
		if n%50 == 0 {
			e.Key = ""
		}
		return e
	}
	var head uint64
	for range 10 {
		var events []eventhub.Event
		for n := range 1000 {
			events = append(events, draw(n))
		}
		head = publish(events...)
	}
	proxy := cut(t, h.HTTPAddr(), patience) // each connection after some bytes, and never by time
	m := &sseState{values: map[string]uint64{}, progress: make(chan struct{}, 1), stated: make(chan struct{}, 1000)}
	followed := followState(ctx, "http://"+proxy.listener.Addr().String()+"/v1/topics/s/stream?from=snapshot", m)
	for turn := range 60 {
		select {
		case <-m.progress:
		case err := <-followed:
			t.Fatal(err)
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		for n := range 20 {
			head = publish(draw(n))
		}
		switch turn % 20 {
		case 7:
			if _, err := h.Bus().Trim(ctx, "s", admin.TrimQuery{Before: head - 5000}, true); err != nil {
				t.Fatal(err)
			}
		case 13:
			if _, err := h.Bus().Erase(ctx, "s", admin.EraseQuery{Offset: head, Apply: true, By: "test"}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-m.stated:
			case err := <-followed:
				t.Fatal(err)
			}
		}
	}
	publish(eventhub.Event{Topic: "s", Key: "end", Payload: []byte("1")})
	if err := <-followed; err != nil {
		t.Fatalf("after %d states: %v", m.states, err)
	}
	want := map[string]uint64{}
	for q := (admin.StateQuery{Topic: "s", Limit: admin.MaxPage}); ; {
		page, err := h.Bus().State(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Events {
			want[string(item.Record.Key())] = item.Offset
		}
		if q.Page = page.Next; q.Page == "" {
			break
		}
	}
	if !maps.Equal(m.values, want) {
		t.Errorf("the map has %d keys, the state %d", len(m.values), len(want))
	}
	if t.Logf("%d states; the stream went on %d times", m.states, m.resumed); m.states < 2 || m.resumed < 5 {
		t.Error("that proves little")
	}
}

// followState follows until the key "end" comes.
func followState(ctx context.Context, url string, m *sseState) <-chan error {
	followed := make(chan error, 1)
	go func() {
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		client := http.Client{Transport: transport}
		var wrong error
		for last, more := "", true; more && wrong == nil; {
			r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
			if err != nil {
				panic(err)
			}
			if last != "" {
				r.Header.Set("Last-Event-ID", last)
			}
			answer, err := client.Do(r)
			if ctx.Err() != nil {
				wrong = ctx.Err()
				break
			}
			if err != nil {
				continue // cut before the answer
			}
			if answer.StatusCode != 200 {
				b, _ := io.ReadAll(answer.Body)
				wrong = fmt.Errorf("answered %d %s to Last-Event-ID %q", answer.StatusCode, b, last)
			}
			m.isNew = true
			last = readStream(answer.Body, last, func(e sse) bool {
				if wrong == nil {
					wrong = m.take(e)
				}
				more = !strings.Contains(e.data, `"key":"end"`)
				return more && wrong == nil
			})
			answer.Body.Close()
		}
		followed <- wrong
	}()
	return followed
}

// TestBadStateStream: what does not go with the state is refused.
func TestBadStateStream(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	for _, tt := range []struct{ query, last, want string }{
		{"from=snapshot&offset=7", "", "offset is given but from is"},
		{"from=snapshot&topics=u", "", "the state is that of one topic"},
		{"from=snapshot&conflate_ms=100", "", "conflate is set"},
		{"from=snapshot", "t:17:lzll2dc0", "is none of a stream that began with the state"},
		{"from=snapshot", "s-1-1-1-1,u:17:lzll2dc0", "is of another topic"},
		{"from=snapshot", "nonsense,t:17:lzll2dc0", "what the hub has sent is expected"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+h.HTTPAddr()+"/v1/topics/t/stream?"+tt.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.last != "" {
			r.Header.Set("Last-Event-ID", tt.last)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), tt.want) {
			t.Errorf("%s, %s: %d %s", tt.query, tt.last, answer.StatusCode, body)
		}
	}
}
