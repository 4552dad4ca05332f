package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"eventhub"
	"eventhub/bus"
	"eventhub/gateway/rest"
	"eventhub/store/pebble"
)

// BenchmarkTrace asks for a trace of 5 hops up and 200 effects, over the embedded
// store, with 3 groups in the topic of the effects and 20,000 other events.
func BenchmarkTrace(b *testing.B) {
	s, err := pebble.Open(pebble.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	engine, err := bus.New(bus.Options{Store: s})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := engine.Close(); err != nil {
			b.Error(err)
		}
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	for g := range 3 {
		sub, err := engine.Subscribe(b.Context(), eventhub.GroupOptions{Topic: "effects", Group: fmt.Sprint("g", g)}, deaf{})
		if err != nil {
			b.Fatal(err)
		}
		if err := sub.Unsubscribe(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	payload := []byte(`{"text":"` + strings.Repeat("x", 200) + `"}`)
	var events []eventhub.Event
	for i := range 20_000 {
		events = append(events, eventhub.Event{Topic: "effects", Payload: payload, CausedBy: []string{fmt.Sprint("other", i/10)}})
	}
	cause := ""
	for hop := range 6 {
		e := eventhub.Event{Topic: fmt.Sprint("hop", hop), ID: fmt.Sprint("hop-", hop), Payload: payload}
		if cause != "" {
			e.CausedBy = []string{cause}
		}
		cause = e.ID
		events = append(events, e)
	}
	for range 200 {
		events = append(events, eventhub.Event{Topic: "effects", Payload: payload, CausedBy: []string{cause}})
	}
	if _, err := engine.Publish(b.Context(), events...); err != nil {
		b.Fatal(err)
	}
	api, err := rest.New(rest.Config{Authenticate: func(context.Context, string, bool) (rest.Access, error) {
		return rest.Access{Inspector: engine, History: engine}, nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	api.Register(mux)
	for b.Loop() {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", "/v1/events/"+cause+"/trace", nil))
		if w.Code != 200 || strings.Count(w.Body.String(), `"distance"`) != 206 || strings.Contains(w.Body.String(), `"truncated":true`) {
			b.Fatalf("%d, %d nodes", w.Code, strings.Count(w.Body.String(), `"distance"`))
		}
	}
}

// deaf takes nothing.
type deaf struct{}

func (deaf) Deliver([]eventhub.Delivery) int { return 0 }
func (deaf) Ended(error)                     {}
