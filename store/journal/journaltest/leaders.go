package journaltest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"eventhub/store/journal"
)

// Leaders says how RunLeaders goes.
type Leaders struct {
	Turns   int // how many hubs lead, one after the other
	Commits int // how many each makes before the next takes over
	// Disturb does something to the engine while turns are under way, and returns when the
	// engine is to work again. nil for nothing.
	Disturb func(t *testing.T, turn int)
}

// RunLeaders has hubs take the journal from each other, the former still writing. Each commit that was
// answered is in the journal at its position, those of a leader in their order; none is there twice, and
// none that was fenced is there.
func RunLeaders(t *testing.T, e Engine, o Leaders) {
	env := &env{Engine: e, opener: e.New(t)}
	s := &succession{
		t: t, o: o, end: env.open(t).Last,
		answered: make(map[string]journal.Position), fenced: make(map[string]bool),
	}
	observer := s.observe(journal.New(env.open(t)))
	for turn := range o.Turns {
		// Every hub has a handle of its own, as it would have on a machine of its own.
		s.turn(turn, journal.New(env.open(t)))
	}
	s.leader.Release()
	end := s.leader.Position()
	if err := s.leader.Close(); err != nil {
		t.Error(err)
	}
	s.former.Wait()
	s.compare(observer(end))
}

// succession is one run.
type succession struct {
	t      *testing.T
	o      Leaders
	end    func(context.Context) (uint64, error)
	at     journal.Position // of the copy that the hubs share
	leader *journal.Leader
	former sync.WaitGroup
	nudge  chan struct{} // has the former leader commit once more; closed when it is fenced

	mu       sync.Mutex
	answered map[string]journal.Position // by data
	order    []string                    // of answered
	fenced   map[string]bool
}

// commit is what an observer sees.
type commit struct {
	data string
	at   journal.Position
}

// observe follows from the start; what it returns waits for a position, and says what came.
func (s *succession) observe(log *journal.Log) func(end journal.Position) []commit {
	var seen []commit
	reached := make(chan journal.Position)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		result <- log.Follow(ctx, journal.Position{}, func(e journal.Entry) error {
			if e.Kind == journal.KindData {
				seen = append(seen, commit{data: string(e.Data), at: e.Position})
			}
			select {
			case reached <- e.Position:
			case <-ctx.Done():
			}
			return nil
		})
		close(reached)
	}()
	return func(end journal.Position) []commit {
		for at := range reached {
			if at.Seq >= end.Seq {
				break
			}
		}
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			s.t.Errorf("the observer's Follow: %v", err)
		}
		return seen
	}
}

// turn has a hub take over, and commit.
func (s *succession) turn(turn int, log *journal.Log) {
	s.t.Helper()
	leader := s.takeOver(log, fmt.Sprintf("hub-%d", turn))
	if s.leader != nil {
		close(s.nudge)
		s.former.Wait()
		if err := s.leader.Close(); err != nil {
			s.t.Error(err)
		}
	}
	s.leader, s.nudge = leader, make(chan struct{}, 1)
	enough, made := make(chan struct{}), make(chan int, 1)
	go func() { made <- s.commits(leader, turn, enough) }()
	if s.o.Disturb != nil {
		s.o.Disturb(s.t, turn)
	}
	close(enough)
	n := <-made
	if turn < s.o.Turns-1 {
		s.former.Go(func() { s.goOn(leader, turn, n, s.nudge) })
	}
}

// commits makes the commits of a turn and waits for their answers, goes on one at a time until
// it is enough, and makes one more, so that one comes after what disturbs. It returns how many.
func (s *succession) commits(leader *journal.Leader, turn int, enough <-chan struct{}) (n int) {
	var waits []func()
	for ; n < s.o.Commits; n++ {
		size := 20
		if n%10 == 9 {
			size = 1 << 20
		}
		waits = append(waits, s.commit(leader, turn, n, size))
	}
	for _, wait := range waits {
		wait()
	}
	for done := false; !done; n++ {
		select {
		case <-enough:
			done = true
		default:
		}
		s.commit(leader, turn, n, 20)()
	}
	return n
}

// commit appends data that nobody else has, and returns what notes the answer.
func (s *succession) commit(leader *journal.Leader, turn, n, size int) (note func()) {
	data := fmt.Appendf(nil, "%d/%d ", turn, n)
	tail := make([]byte, size)
	_, _ = rand.Read(tail)
	data = append(data, tail...)
	wait := leader.Append(data, int64(n))
	return func() {
		at, err := wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err == nil:
			s.answered[string(data)] = at
			s.order = append(s.order, string(data))
		case errors.Is(err, journal.ErrFenced):
			s.fenced[string(data)] = true
		case !errors.Is(err, journal.ErrUnknown) && !errors.Is(err, journal.ErrClosed):
			s.t.Errorf("commit %d of hub %d: %v", n, turn, err)
		}
	}
}

// goOn commits as a hub that has not noticed the next one, as often as that one tries: a hub that
// never pauses is not taken over from. The last time it is fenced.
func (s *succession) goOn(leader *journal.Leader, turn, n int, nudge <-chan struct{}) {
	for range nudge {
		s.commit(leader, turn, n, 20)()
		n++
	}
	s.commit(leader, turn, n, 20)()
	if !errors.Is(leader.Err(), journal.ErrFenced) {
		s.t.Errorf("hub %d was replaced, and ended with %v", turn, leader.Err())
	}
}

// takeOver follows what there is and leads, until that succeeds.
func (s *succession) takeOver(log *journal.Log, hub string) *journal.Leader {
	s.t.Helper()
	ctx := limited(s.t)
	for try := 0; ; try++ {
		if try%2 == 0 {
			select {
			case s.nudge <- struct{}{}:
			default:
			}
		}
		leader, err := log.Lead(ctx, s.at, hub, 1)
		switch {
		case err == nil:
			return leader
		case ctx.Err() != nil:
			s.t.Fatalf("%s does not lead: %v", hub, err)
		case errors.Is(err, journal.ErrDiverged):
			s.t.Fatalf("%s: %v", hub, err)
		case !errors.Is(err, journal.ErrBehind):
			continue // fenced, or the engine did not answer
		}
		if err := s.catchUp(ctx, log); err != nil && ctx.Err() == nil {
			s.t.Logf("%s follows: %v", hub, err)
		}
	}
}

// catchUp follows to what is the end now; there is something to follow.
func (s *succession) catchUp(ctx context.Context, log *journal.Log) error {
	last, err := s.end(ctx)
	if err != nil {
		return err
	}
	enough := errors.New("enough")
	err = log.Follow(ctx, s.at, func(e journal.Entry) error {
		if s.at = e.Position; s.at.Seq >= last {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// compare holds what came against what was answered.
func (s *succession) compare(seen []commit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.t
	left := maps.Clone(s.answered)
	was := make(map[string]bool)
	for _, c := range seen {
		name := fmt.Sprintf("the commit %.6q at %d", c.data, c.at.Seq)
		if was[c.data] {
			t.Errorf("%s came twice", name)
		}
		was[c.data] = true
		if s.fenced[c.data] {
			t.Errorf("%s was fenced", name)
		}
		if at, ok := left[c.data]; ok && at != c.at {
			t.Errorf("%s is at %+v; the answer was %+v", name, c.at, at)
		}
		delete(left, c.data)
	}
	for data, at := range left {
		t.Errorf("the commit %.6q was answered with %+v, and did not come", data, at)
	}
	last := journal.Position{}
	for _, data := range s.order {
		if at := s.answered[data]; at.Seq > last.Seq {
			last = at
		} else {
			t.Errorf("the commit %.6q was answered with %d after %d", data, at.Seq, last.Seq)
		}
	}
	t.Logf("%d commits were answered, %d fenced, %d came", len(s.answered), len(s.fenced), len(seen))
}
