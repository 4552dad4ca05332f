package hub_test

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"eventhub/hub"
)

// TestHalfRequestsHaveABudget: many large bodies that do not come to their end are
// refused beyond the budget, and those that were begun are taken.
func TestHalfRequestsHaveABudget(t *testing.T) {
	h := start(t, hub.Config{Store: hub.MemoryStore, MaxMessageMemory: hub.LeastMessageMemory})
	const size, requests = 1_000_000, 40
	const fit = hub.LeastMessageMemory << 20 / size
	status := make(chan int, requests)
	finish := make(chan struct{})
	for range requests {
		c := say(t, h.HTTPAddr(), "POST /publish/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", size)
		go func() {
			_, _ = c.conn.Write([]byte(strings.Repeat(" ", size-1))) // refused ones are closed in the middle
			resp, err := http.ReadResponse(c.r, &http.Request{Method: http.MethodGet})
			var late net.Error
			switch {
			case err == nil:
				status <- resp.StatusCode
			case errors.As(err, &late) && late.Timeout():
				status <- -1
			default:
				status <- 0 // the refusal was lost with the connection
			}
		}()
		go func() {
			<-finish
			_, _ = c.conn.Write([]byte("1"))
		}()
	}
	refused := 0
	for range requests - fit {
		if got := <-status; got != http.StatusServiceUnavailable && got != 0 {
			t.Fatalf("half a body was answered with %d", got)
		}
		refused++
	}
	close(finish)
	taken := 0
	for range requests - refused {
		if got := <-status; got == http.StatusOK {
			taken++
		}
	}
	if taken == 0 || taken > fit {
		t.Errorf("%d of %d bodies were taken; want some, and %d at most", taken, requests, fit)
	}
}
