package sdk

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/hubtest"
)

func TestWorkers(t *testing.T) {
	h := hubtest.Start(t)
	c := h.Client()
	var mu sync.Mutex
	posted := make(map[string][]string)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var o Order
		if json.NewDecoder(r.Body).Decode(&o) != nil || o.Amount < 0 {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		posted[o.Customer] = append(posted[o.Customer], o.Item)
	}))
	defer hook.Close()
	publish(t, c, Order{"ann", "lamp", 1}, Order{"ann", "desk", 2}, Order{"bob", "rug", -1}, Order{"ann", "vase", 3}, Order{"bob", "car", 4})
	stop := run(t, func(ctx context.Context) error { return Workers(ctx, c, hook.URL) })
	h.WaitFor("orders.placed", "webhook")
	stop()
	if !slices.Equal(posted["ann"], []string{"lamp", "desk", "vase"}) || !slices.Equal(posted["bob"], []string{"car"}) {
		t.Errorf("posted %v", posted)
	}
	var refused []string
	h.Events(eventhub.DeadLetterTopic("orders.placed"), 1) // it comes after the verdict
	if err := c.Admin().DeadLetters(t.Context(), admin.DeadLetterQuery{Topic: "orders.placed", Group: "webhook"}, func(l *admin.DeadLetter) error {
		refused = append(refused, l.Key+": "+l.Reason)
		if l.Attempts != 1 {
			t.Errorf("given up after %d attempts", l.Attempts)
		}
		return nil
	}); err != nil || len(refused) != 1 || !strings.HasPrefix(refused[0], "bob: ") || !strings.Contains(refused[0], "422") {
		t.Errorf("refused %q: %v", refused, err)
	}
}
