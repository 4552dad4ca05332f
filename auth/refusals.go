package auth

import (
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/internal/measure"
)

const (
	// LogEvery is how often at most a refusal is logged for one address and reason.
	LogEvery = time.Minute
	// maxAddresses bounds the addresses that are kept apart at a time; all others count as
	// otherAddress.
	maxAddresses = 1000
	otherAddress = "others"
)

// Refusals counts who was not let in, and logs it: a warning with the address and the reason,
// at most one in LogEvery for each address and reason. The next one says how many there were
// in between. No token is ever part of it. It is safe for concurrent use.
type Refusals struct {
	log *slog.Logger

	mu     sync.Mutex
	counts map[measure.AuthRefused]uint64 // by transport and reason
	recent map[refusal]*repeated          // logged in the last LogEvery
	closed bool
}

// refusal is what is logged as one.
type refusal struct {
	transport, host string
	reason          eventhub.Code
}

// repeated is what came of a refusal since it was logged.
type repeated struct {
	more  uint64
	timer *time.Timer
}

// reasons are those for which most peers are refused.
var reasons = []eventhub.Code{eventhub.CodeUnauthorized, eventhub.CodeNoToken, eventhub.CodeBadToken, eventhub.CodeJWTInvalid}

// NewRefusals returns Refusals that have counted nothing of these transports: there is a count of each reason
// from the start, because what watches counts sees those that are added to one, and not those with which one
// begins. Its owner ends it with Close.
func NewRefusals(log *slog.Logger, transports ...string) *Refusals {
	r := &Refusals{log: log, counts: make(map[measure.AuthRefused]uint64), recent: make(map[refusal]*repeated)}
	for _, transport := range transports {
		for _, reason := range reasons {
			r.counts[measure.AuthRefused{Transport: transport, Reason: string(reason)}] = 0
		}
	}
	return r
}

// Add counts that a peer at a remote address (host and port) was refused with err.
func (r *Refusals) Add(transport, remote string, err error) {
	reason := eventhub.ErrorCode(err)
	host, _, bad := net.SplitHostPort(remote)
	if bad != nil {
		host = remote
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[measure.AuthRefused{Transport: transport, Reason: string(reason)}]++
	key := refusal{transport, host, reason}
	if r.recent[key] == nil && len(r.recent) >= maxAddresses {
		key.host, remote = otherAddress, otherAddress
	}
	if again := r.recent[key]; again != nil {
		again.more++
		return
	}
	if r.closed {
		return
	}
	r.recent[key] = &repeated{timer: time.AfterFunc(LogEvery, func() { r.passed(key) })}
	r.log.Warn("a peer was refused", "transport", transport, "remote", remote, "reason", reason)
}

// passed logs what came in the LogEvery since the last line, or forgets the refusal.
func (r *Refusals) passed(key refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := r.recent[key]
	if r.closed || again.more == 0 {
		delete(r.recent, key)
		return
	}
	r.log.Warn("a peer was refused again", "transport", key.transport, "remote", key.host, "reason", key.reason, "times", again.more, "in", LogEvery)
	again.more = 0
	again.timer.Reset(LogEvery)
}

// Close ends the logging.
func (r *Refusals) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, again := range r.recent {
		again.timer.Stop()
	}
	clear(r.recent)
}

// Measure returns how many were refused, by transport and reason.
func (r *Refusals) Measure() []measure.AuthRefused {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]measure.AuthRefused, 0, len(r.counts))
	for kind, n := range r.counts {
		kind.Count = n
		list = append(list, kind)
	}
	slices.SortFunc(list, func(a, b measure.AuthRefused) int {
		return strings.Compare(a.Transport+" "+a.Reason, b.Transport+" "+b.Reason)
	})
	return list
}
