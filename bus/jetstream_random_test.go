package bus

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
)

// journalServer is given by the tests in cluster, which have NATS servers.
var journalServer = flag.String("bus.journal", "", "the URL of a NATS server, for TestRandomHistoriesOnJetStream")

// TestRandomHistoriesOnJetStream is TestRandomHistoriesOfLeaders over a journal in a stream of a NATS server, another
// stream for each history.
func TestRandomHistoriesOnJetStream(t *testing.T) {
	if *journalServer == "" {
		t.Skip("TestHistoriesOfBus in cluster runs it, with -bus.journal")
	}
	conn, err := nats.Connect(*journalServer)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	server, err := natsjs.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	// A server removes its directory of streams together with the last one, also while it makes another one.
	if _, err := server.CreateStream(t.Context(), natsjs.StreamConfig{Name: "STAYS", Subjects: []string{"stays"}}); err != nil {
		t.Fatal(err)
	}
	out := newOutside()
	defer out.close()
	histories, before, seed := 0, takeovers, ""
	tryHistories(t, 10, func(t *rapid.T) *world {
		histories, seed = histories+1, flag.Lookup("rapid.seed").Value.String()
		s := &streamJournal{t: t, out: out, options: jetstream.Options{URL: *journalServer, Stream: fmt.Sprintf("HISTORY-%d", rand.Uint64()), Replicas: 1}}
		t.Cleanup(func() {
			out.run(func(ctx context.Context) {
				for _, name := range []string{s.options.Stream, s.options.Stream + "-members"} {
					_ = server.DeleteStream(ctx, name) // the server ends with the tests
				}
			})
		})
		return newWorldOver(t, s.open)
	})
	t.Logf("%d histories with -rapid.seed=%s; %d times another hub has led", histories, seed, takeovers-before)
	if takeovers-before < histories/10 {
		t.Error("the histories have no takeovers")
	}
}

// outside runs what waits for the network outside of a bubble: the bubble comes to no rest while it
// waits, and its time does not go on. All channels are made outside, for others are the bubble's.
type outside struct {
	free, calls chan *call
}

type call struct {
	do   func()
	done chan struct{}
}

// mostCalls is how many goroutines of a bubble may be outside at once.
const mostCalls = 8

func newOutside() *outside {
	o := &outside{free: make(chan *call, mostCalls), calls: make(chan *call, mostCalls)}
	for range mostCalls {
		o.free <- &call{done: make(chan struct{})}
		go func() {
			for c := range o.calls {
				c.do()
				c.done <- struct{}{}
			}
		}()
	}
	return o
}

func (o *outside) close() { close(o.calls) }

// run has do done outside, with time of its own.
func (o *outside) run(do func(ctx context.Context)) {
	c := <-o.free
	c.do = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		do(ctx)
	}
	o.calls <- c
	<-c.done
	c.do = nil
	o.free <- c
}

// streamJournal is the journal of a history in a stream.
type streamJournal struct {
	t       *rapid.T
	out     *outside
	options jetstream.Options
}

func (s *streamJournal) open() journal.Journal {
	var j *jetstream.Journal
	var err error
	s.out.run(func(ctx context.Context) { j, err = jetstream.Open(ctx, s.options) })
	if err != nil {
		s.t.Fatal(err)
	}
	return outsideJournal{s.out, j}
}

// outsideJournal is a journal whose calls wait outside. Their contexts are the bubble's, so they do not
// count there.
type outsideJournal struct {
	out *outside
	j   journal.Journal
}

func (h outsideJournal) Last(context.Context) (last uint64, err error) {
	h.out.run(func(ctx context.Context) { last, err = h.j.Last(ctx) })
	return last, err
}

func (h outsideJournal) Append(_ context.Context, after uint64, entry []byte) (err error) {
	h.out.run(func(ctx context.Context) { err = h.j.Append(ctx, after, entry) })
	return err
}

func (h outsideJournal) Read(_ context.Context, at uint64) (entry []byte, err error) {
	h.out.run(func(ctx context.Context) { entry, err = h.j.Read(ctx, at) })
	return entry, err
}

// Follow visits what there is now: the visitor is to have enough of it.
func (h outsideJournal) Follow(_ context.Context, after uint64, visit func(at uint64, entry []byte) error) error {
	var entries [][]byte
	var err error
	whole := errors.New("that is all")
	h.out.run(func(ctx context.Context) {
		var last uint64
		if last, err = h.j.Last(ctx); err != nil || last <= after {
			return
		}
		err = h.j.Follow(ctx, after, func(at uint64, entry []byte) error {
			if entries = append(entries, entry); at >= last {
				return whole
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, whole) {
		return err
	}
	for i, entry := range entries {
		if err := visit(after+1+uint64(i), entry); err != nil {
			return err
		}
	}
	return errors.New("the journal has no more")
}

func (h outsideJournal) Trim(_ context.Context, upTo uint64) (err error) {
	h.out.run(func(ctx context.Context) { err = h.j.Trim(ctx, upTo) })
	return err
}

func (h outsideJournal) Announce(_ context.Context, m journal.Member) (all []journal.Member, err error) {
	h.out.run(func(ctx context.Context) { all, err = h.j.Announce(ctx, m) })
	return all, err
}

func (h outsideJournal) Now(context.Context) (now time.Time, err error) {
	h.out.run(func(ctx context.Context) { now, err = h.j.Now(ctx) })
	return now, err
}

func (h outsideJournal) Limits(context.Context) (l journal.Limits, err error) {
	h.out.run(func(ctx context.Context) { l, err = h.j.Limits(ctx) })
	l.EntryBytes = min(l.EntryBytes, historyEntry) // so that commits are divided
	return l, err
}

func (h outsideJournal) Close() (err error) {
	h.out.run(func(context.Context) { err = h.j.Close() })
	return err
}
