package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/outbox"
	"eventhub/outbox/outboxtest"
)

// faulty is a database as one drainer sees it: its turns fail before or after they are done,
// it stops for a while, or for ever, as if the drainer were killed.
type faulty struct {
	*outboxtest.Memory
	r    *rand.Rand
	mu   *sync.Mutex // guards r
	calm func() bool
	dead chan struct{}
}

func (f *faulty) Turn(ctx context.Context, settled []outbox.Outcome, c outbox.Claim) ([]outbox.Row, error) {
	chance := f.chance()
	select {
	case <-f.dead:
		<-ctx.Done()
		return nil, ctx.Err()
	default:
	}
	switch {
	case chance < 5:
		return nil, errors.New("the database is away")
	case chance < 10:
		_, _ = f.Memory.Turn(ctx, settled, c)
		return nil, errors.New("the answer of the database is lost")
	case chance < 13:
		pause(ctx, 40*time.Second) // longer than the lease
	}
	return f.Memory.Turn(ctx, settled, c)
}

func (f *faulty) chance() int {
	if f.calm() {
		return 100
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r.IntN(100)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestRandomDrainers lets several drainers work at one table, while transactions end late,
// the database and the hub fail before and after they have done what was asked, and drainers
// die. At the end the log has each row that was committed once, those of a key in the order
// of the table, and no other.
func TestRandomDrainers(t *testing.T) {
	testsize.Histories(t, testsize.Of(600, 60), func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		order := rapid.SampledFrom([]outbox.Order{outbox.ByKey, outbox.ByTopic}).Draw(rt, "order")
		n := rapid.IntRange(1, 4).Draw(rt, "drainers")
		batch := rapid.SampledFrom([]int{1, 3, 20, 100}).Draw(rt, "batch")
		var failed error
		bubble.Test(t, func(t *testing.T) { failed = drainTogether(t, seed, order, n, batch) })
		if failed != nil {
			rt.Fatalf("%v", failed)
		}
	})
}

type together struct {
	r     *rand.Rand
	mu    sync.Mutex // guards r and calm
	calm  bool
	m     *outboxtest.Memory
	h     *hub
	all   sync.WaitGroup
	stops []func()
}

func (g *together) intn(n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.r.IntN(n)
}

func (g *together) isCalm() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calm
}

// answer is that of a hub that fails, and refuses every tenth row for good.
func (g *together) answer(ctx context.Context, events []eventhub.Event) error {
	for i, e := range events {
		if isBad(e) {
			return eventhub.AtIndex(eventhub.Errorf(eventhub.CodeBadEvent, "no"), "events", i)
		}
	}
	if g.isCalm() {
		return nil
	}
	switch g.intn(12) {
	case 0:
		return errors.New("away")
	case 1:
		return errLost
	case 2:
		return eventhub.Errorf(eventhub.CodeRateLimited, "too fast")
	case 3:
		pause(ctx, time.Duration(g.intn(40))*time.Second)
		if ctx.Err() != nil {
			return errLost
		}
	}
	return nil
}

func isBad(e eventhub.Event) bool { return e.Headers["x-bad"] != "" }

func (g *together) start(t *testing.T, o outbox.Options, i int) {
	f := &faulty{Memory: g.m, r: g.r, mu: &g.mu, calm: g.isCalm, dead: make(chan struct{})}
	o.Worker = fmt.Sprint("w", i)
	d, err := outbox.NewDrainer(f, g.h, o)
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	g.all.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	kill := sync.OnceFunc(func() { close(f.dead); cancel() })
	g.stops = append(g.stops, kill, cancel)
}

func drainTogether(t *testing.T, seed uint64, order outbox.Order, drainers, batch int) error {
	g := &together{r: rand.New(rand.NewPCG(seed, 1)), m: outboxtest.NewMemory(time.Now), h: &hub{}}
	g.h.answer = g.answer
	o := outbox.Options{Batch: batch, Order: order, Lease: 30 * time.Second}
	for i := range drainers {
		g.start(t, o, i)
	}
	var wanted []eventhub.Event // that are committed, in the order of commits
	type open struct {
		events []eventhub.Event
		end    func(bool)
	}
	var transactions []open
	end := func(i int) {
		tx, commit := transactions[i], g.intn(5) > 0
		tx.end(commit)
		if commit {
			wanted = append(wanted, tx.events...)
		}
		transactions = append(transactions[:i], transactions[i+1:]...)
	}
	locked := func(e eventhub.Event) bool { // by a transaction that is open: a service waits for it
		for _, tx := range transactions {
			for _, o := range tx.events {
				if o.Topic == e.Topic && (order == outbox.ByTopic || o.Key == e.Key) {
					return true
				}
			}
		}
		return false
	}
	for i := range 60 {
		e := eventhub.Event{ID: fmt.Sprintf("e%03d", i), Topic: fmt.Sprint("t", g.intn(2)), Key: fmt.Sprint("k", g.intn(3)), Payload: []byte(`1`)}
		if g.intn(10) == 0 {
			e.Headers = map[string]string{"x-bad": "1"}
		}
		if !locked(e) {
			_, finish, err := g.m.Begin(e)
			if err != nil {
				return err
			}
			transactions = append(transactions, open{[]eventhub.Event{e}, finish})
		}
		if len(transactions) > 0 && g.intn(4) > 0 {
			end(g.intn(len(transactions)))
		}
		if g.intn(6) == 0 {
			time.Sleep(time.Duration(g.intn(20_000)) * time.Millisecond)
		}
		if g.intn(15) == 0 {
			g.stops[g.intn(len(g.stops))]()
			g.start(t, o, drainers+i)
		}
	}
	for len(transactions) > 0 {
		end(0)
	}
	g.mu.Lock()
	g.calm = true
	g.mu.Unlock()
	g.start(t, o, 1000)
	time.Sleep(10 * time.Minute)
	for _, stop := range g.stops {
		stop()
	}
	g.all.Wait()
	return compare(g, wanted, order)
}

// compare compares the log and the table with what was committed, lane by lane.
func compare(g *together, wanted []eventhub.Event, order outbox.Order) error {
	lane := func(e eventhub.Event) string {
		if order == outbox.ByTopic {
			return e.Topic
		}
		return e.Topic + "/" + e.Key
	}
	want, got := make(map[string][]string), make(map[string][]string)
	bad := 0
	for _, e := range wanted {
		if isBad(e) {
			bad++
			continue
		}
		want[lane(e)] = append(want[lane(e)], e.ID)
	}
	for _, e := range g.h.log {
		got[lane(e)] = append(got[lane(e)], e.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("the log (-want +got):\n%s", diff)
	}
	if n, _ := g.m.Counts(context.Background()); n != (outbox.Counts{Parked: bad}) {
		return fmt.Errorf("the table has %+v at the end; want %d parked", n, bad)
	}
	return nil
}
