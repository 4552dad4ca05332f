package rest

import (
	"io"
	"net/http"
	"time"

	"eventhub"
	"eventhub/internal/budget"
)

// defaultMemory is the budget of an API that is given none, in bytes.
const defaultMemory = 128 << 20

// maxCopies is how many copies of the store there may be at once, and each is sent
// as a backup no faster than its client takes it.
const maxCopies = 4

// maxImports is how many imports may be under way at once. Each holds a chunk, a line
// and the window of its compression: 14 MiB at most.
const maxImports = 4

// maxStreams is how many event streams there may be at once, as many as WebSocket connections.
const maxStreams = 10_000

// holding is what one request has taken from a budget.
type holding struct {
	from  *budget.Budget
	bytes int
}

// take takes n bytes more, or refuses.
func (h *holding) take(n int) error {
	if !h.from.Take(n) {
		return &eventhub.Error{
			Code: eventhub.CodeOverloaded, Message: "the hub has no memory left for requests and answers that clients have begun; ask again",
			RetryAfter: time.Second,
		}
	}
	h.bytes += n
	return nil
}

// upTo takes what is missing to n bytes, or refuses.
func (h *holding) upTo(n int) error {
	if n <= h.bytes {
		return nil
	}
	return h.take(n - h.bytes)
}

// force takes n bytes more for what can not be refused.
func (h *holding) force(n int) {
	h.from.Force(n)
	h.bytes += n
}

// giveBack returns all of it.
func (h *holding) giveBack() {
	if h.bytes > 0 {
		h.from.Give(h.bytes)
		h.bytes = 0
	}
}

// heldBody is the body of a request, whose bytes count as held from when they are
// read to when the request is answered.
type heldBody struct {
	io.ReadCloser
	holding *holding
	w       http.ResponseWriter
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if held := b.holding.take(n); held != nil {
		b.w.Header().Set("Connection", "close") // or the answer would wait for the rest
		return 0, held
	}
	return n, err
}
