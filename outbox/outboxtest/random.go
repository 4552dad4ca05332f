package outboxtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/outbox"
)

// history is one random history of a table and of the model beside it.
type history struct {
	p     *Place
	model *Memory
	now   time.Time
	n     int   // events that were made
	last  int64 // the time of the last of them
	open  []pair
	has   map[string][]string // rows that a worker was given, whether or not it still has them
}

// pair is a transaction of both.
type pair struct {
	table func(bool) error
	model func(bool)
}

// randomAgainstModel compares a table with the one in memory, over random histories with
// transactions that end late, workers that settle late or never, and a clock that jumps.
func randomAgainstModel(t *testing.T, p *Place) {
	n := testsize.Of(150, 10)
	if p.Slow {
		n = testsize.Of(30, 10)
	}
	testsize.Histories(t, n, func(rt *rapid.T) {
		if err := errors.Join(p.Drop(), p.Store.Migrate(t.Context())); err != nil {
			rt.Fatal(err)
		}
		h := &history{p: p, now: start, has: make(map[string][]string)}
		h.model = NewMemory(func() time.Time { return h.now })
		p.SetNow(start)
		defer func() {
			for _, tx := range h.open {
				_ = tx.table(false)
			}
		}()
		order := rapid.SampledFrom([]outbox.Order{outbox.ByKey, outbox.ByTopic}).Draw(rt, "order")
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			h.step(rt, order)
			h.compare(rt)
		}
	})
}

func (h *history) step(rt *rapid.T, order outbox.Order) {
	switch kind := rapid.IntRange(0, 11).Draw(rt, "kind"); {
	case kind < 3:
		h.add(rt)
	case kind < 4 && len(h.open) > 0:
		i := rapid.IntRange(0, len(h.open)-1).Draw(rt, "transaction")
		h.end(rt, i, rapid.Bool().Draw(rt, "commit"))
	case kind < 9:
		h.turn(rt, order)
	case kind < 10:
		h.now = h.now.Add(time.Duration(rapid.IntRange(-2000, 12_000).Draw(rt, "ms")) * time.Millisecond)
		h.p.SetNow(h.now)
	case kind < 11:
		h.keep(rt)
	}
}

// add begins a transaction with some events, which mostly ends at once.
func (h *history) add(rt *rapid.T) {
	var events []eventhub.Event
	for range rapid.IntRange(1, 3).Draw(rt, "events") {
		h.n++
		e := event(rapid.SampledFrom([]string{"t", "u"}).Draw(rt, "topic"), rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "key"), h.n)
		e.ID, e.TS = fmt.Sprintf("e%03d", h.n), h.now.UnixMilli()
		if h.p.ByTime { // the model has them as they were inserted
			e.TS = max(e.TS, h.last)
		}
		h.last = e.TS
		events = append(events, e)
	}
	late := h.p.Concurrent && rapid.IntRange(0, 3).Draw(rt, "late") == 0
	_, model, err := h.model.Begin(events...)
	if err != nil {
		rt.Fatal(err)
	}
	if h.p.Begin == nil {
		model(true)
		if _, err := h.p.Add(events...); err != nil {
			rt.Fatal(err)
		}
		return
	}
	_, table, err := h.p.Begin(events...)
	if err != nil {
		rt.Fatal(err)
	}
	h.open = append(h.open, pair{table, model})
	if !late {
		h.end(rt, len(h.open)-1, rapid.IntRange(0, 5).Draw(rt, "fate") > 0)
	}
}

func (h *history) end(rt *rapid.T, i int, commit bool) {
	if err := h.open[i].table(commit); err != nil {
		rt.Fatal(err)
	}
	h.open[i].model(commit)
	h.open = append(h.open[:i], h.open[i+1:]...)
}

func (h *history) turn(rt *rapid.T, order outbox.Order) {
	worker := rapid.SampledFrom([]string{"w1", "w2", "w3"}).Draw(rt, "worker")
	var settled []outbox.Outcome
	for range rapid.IntRange(0, len(h.has[worker])).Draw(rt, "settled") {
		o := outbox.Outcome{
			ID:     h.has[worker][0],
			Status: rapid.SampledFrom([]outbox.Status{outbox.Sent, outbox.Sent, outbox.Parked, outbox.Pending}).Draw(rt, "outcome"),
		}
		switch o.Status {
		case outbox.Sent:
			o.Offset = uint64(rapid.IntRange(1, 1000).Draw(rt, "offset"))
		case outbox.Pending:
			if o.Unused = rapid.Bool().Draw(rt, "unused"); !o.Unused && rapid.Bool().Draw(rt, "later") {
				o.RetryAt = h.now.Add(time.Duration(rapid.IntRange(-1000, 5000).Draw(rt, "retry")) * time.Millisecond)
			}
			o.Error = "away"
		default:
			o.Error = "no"
		}
		h.has[worker] = h.has[worker][1:]
		settled = append(settled, o)
	}
	c := outbox.Claim{Max: rapid.IntRange(0, 5).Draw(rt, "max"), Lease: 10 * time.Second, Worker: worker, Order: order}
	want, err := h.model.Turn(rt.Context(), settled, c)
	if err != nil {
		rt.Fatal(err)
	}
	got, err := h.p.Store.Turn(rt.Context(), settled, c)
	if err != nil {
		rt.Fatal(err)
	}
	same(rt, fmt.Sprintf("a claim of %+v", c), want, got)
	h.has[worker] = append(h.has[worker], ids(got)...)
}

// keep is what an operator does.
func (h *history) keep(rt *rapid.T) {
	type keeper func(s outbox.Store) (int, error)
	status := rapid.SampledFrom([]outbox.Status{outbox.Sent, outbox.Parked}).Draw(rt, "status")
	before := h.now.Add(time.Duration(rapid.IntRange(-20, 5).Draw(rt, "before")) * time.Second)
	do := rapid.SampledFrom([]keeper{
		func(s outbox.Store) (int, error) { return s.Retry(rt.Context()) },
		func(s outbox.Store) (int, error) { return s.Forget(rt.Context(), before, 1000) },
		func(s outbox.Store) (int, error) { return s.Purge(rt.Context(), status, before) },
	}).Draw(rt, "keeper")
	want, err := do(h.model)
	if err != nil {
		rt.Fatal(err)
	}
	if got, err := do(h.p.Store); err != nil || got != want {
		rt.Fatalf("an operator's change: %d, %v; want %d", got, err, want)
	}
}

func (h *history) compare(rt *rapid.T) {
	want, _ := h.model.List(rt.Context(), nil, "", 1000)
	got, err := h.p.Store.List(rt.Context(), nil, "", 1000)
	if err != nil {
		rt.Fatal(err)
	}
	same(rt, "the table", want, got)
	wantCounts, _ := h.model.Counts(rt.Context())
	gotCounts, err := h.p.Store.Counts(rt.Context())
	if err != nil {
		rt.Fatal(err)
	}
	// The oldest row is told by the place and not by the clock, which may go back.
	wantCounts.Oldest, gotCounts.Oldest = time.Time{}, time.Time{}
	if gotCounts != wantCounts {
		rt.Fatalf("counts %+v, want %+v", gotCounts, wantCounts)
	}
}

func same(rt *rapid.T, what string, want, got []outbox.Row) {
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(0), cmpopts.EquateErrors()); diff != "" {
		rt.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}
