package proctable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/internal/demo/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// group is a hub with one tail of one topic that hands over what the test
// appends, and what it says of the state.
type group struct {
	eventhub.Subscriber

	mu        sync.Mutex
	log       []eventhub.Record
	delivered int
	member    eventhub.Receiver
	options   eventhub.TailOptions
	refusals  int
	joined    chan struct{} // closed by Subscribe, where set
}

func (g *group) Tail(_ context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.member, g.options = r, opts
	if g.joined != nil {
		close(g.joined)
	}
	return membership{g: g}, nil
}

// append adds events of now by key and payload and delivers what is open.
func (g *group) append(pairs ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := 0; i < len(pairs); i += 2 {
		key, err := json.Marshal(pairs[i])
		if err != nil {
			panic(err)
		}
		record := fmt.Sprintf(`{"ts":%13d,"id":"s-%d","topic":"process.state","key":%s,"payload":%s}`, time.Now().UnixMilli(), len(g.log)+1, key, pairs[i+1])
		g.log = append(g.log, eventhub.Record(record))
	}
	g.deliver()
}

// deliver hands over what was not taken yet. g.mu is held.
func (g *group) deliver() {
	var batch []eventhub.Delivery
	for i := g.delivered; i < len(g.log); i++ {
		// The record is valid until Deliver returns.
		batch = append(batch, eventhub.Delivery{Topic: "process.state", Offset: uint64(i + 1), Record: slices.Clone(g.log[i])})
	}
	if len(batch) == 0 {
		return
	}
	taken := g.member.Deliver(batch)
	for i := range batch {
		clear(batch[i].Record)
	}
	g.delivered += taken
	if taken < len(batch) {
		g.refusals++
	}
}

func (g *group) left() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.member == nil
}

type membership struct {
	eventhub.Subscription
	g *group
}

func (m membership) Sent(int) {}

func (m membership) Ready() {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	m.g.deliver()
}

func (m membership) Unsubscribe(context.Context) error {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	m.g.member = nil
	return nil
}

// console records what is written and can fail.
type console struct {
	mu     sync.Mutex
	writes []string
	fail   error
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return 0, c.fail
	}
	c.writes = append(c.writes, string(p))
	return len(p), nil
}

// take returns and forgets what was written.
func (c *console) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes := c.writes
	c.writes = nil
	return writes
}

func (c *console) failWith(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = err
}

func payload(pid int, status process.Status) string {
	return fmt.Sprintf(`{"processId":"h:p:%d","name":"p","host":"h","pid":%d,"cpu_pct":1.25,"mem_mb":33.44,"last_seen_ts":%d,"status":%q}`,
		pid, pid, time.Now().UnixMilli(), status)
}

// showing runs a table on a terminal of 80×10 and waits until it is drawn.
func showing(t *testing.T, g *group, out *console) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	size := func() (int, int) { return 80, 10 }
	go func() { ended <- run(ctx, g, newScreen(out, size, []string{"hub"}, false)) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

func TestLiveTableIsDrawnInPlaceAndLeavesTheTerminalSane(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, out := &group{}, &console{}
		stop := showing(t, g, out)
		first := out.take()
		if len(first) != 2 || first[0] != enterScreen || !strings.HasPrefix(first[1], home+"eventhub  0 events") {
			t.Errorf("at first %q", first)
		}
		g.append("h:p:1", payload(1, process.Alive), "h:p:2", payload(2, process.Stale), "h:p:1", payload(1, process.Alive))
		time.Sleep(redrawEvery)
		synctest.Wait()
		second := strings.Join(out.take(), "")
		for _, want := range []string{"3 events", "1 alive  1 stale  hub", "HOST", "h     p           1     1.2       33.4  alive          0s" + endOfLine + "\r\n"} {
			if !strings.Contains(second, want) {
				t.Errorf("no %q in %q", want, second)
			}
		}
		if !strings.HasPrefix(second, home) || !strings.HasSuffix(second, endOfLine+endOfScreen) {
			t.Errorf("not drawn in place: %q", second)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if last := out.take(); len(last) != 1 || last[0] != leaveScreen {
			t.Errorf("at last %q, want %q", last, leaveScreen)
		}
		if !g.left() {
			t.Error("the table still has its tail")
		}
		if o := g.options; o.Topic != "process.state" || o.Start != eventhub.Snapshot {
			t.Errorf("subscribed with %+v", o)
		}
	})
}

func TestLiveTableIsDrawnOnlyWhenItChanged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, out := &group{}, &console{}
		stop := showing(t, g, out)
		defer stop()
		out.take()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if writes := out.take(); len(writes) != 0 {
			t.Errorf("%d writes while nothing happened: %q", len(writes), writes)
		}
		// 100 states in one second, one by one.
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			g.append("h:p:1", payload(1, process.Alive))
			synctest.Wait()
		}
		if n := len(out.take()); n == 0 || n > 4 {
			t.Errorf("%d writes in a second of changes, want 1 to 4", n)
		}
	})
}

func TestLongStaleProcessesLeaveTheLiveTable(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, out := &group{}, &console{}
		stop := showing(t, g, out)
		defer stop()
		g.append("h:p:1", payload(1, process.Stale))
		time.Sleep(time.Minute)
		synctest.Wait()
		if writes := out.take(); !strings.Contains(writes[len(writes)-1], "1 stale") {
			t.Errorf("after 60 s: %q", writes[len(writes)-1])
		}
		time.Sleep(redrawEvery)
		synctest.Wait()
		if writes := strings.Join(out.take(), ""); !strings.Contains(writes, "0 stale") {
			t.Errorf("after more than 60 s: %q", writes)
		}
	})
}

func TestLiveTableFollowsTheSizeOfTheTerminal(t *testing.T) {
	out := &console{}
	width, height := 80, 10
	s := newScreen(out, func() (int, int) { return width, height }, nil, false)
	for i := range 20 {
		s.table.apply(&update{kind: changed, key: fmt.Sprint(i), state: proc(fmt.Sprint("p", i), i, 1, 1, 0, process.Alive)})
	}
	for _, height = range []int{10, 3, 12} {
		if err := s.tick(now); err != nil {
			t.Fatal(err)
		}
		if rows := strings.Count(strings.Join(out.take(), ""), "\r\n") + 1; rows != height {
			t.Errorf("%d rows on a terminal of %d", rows, height)
		}
	}
	width = 200
	if err := s.tick(now); err != nil {
		t.Fatal(err)
	}
	if len(out.take()) == 0 {
		t.Error("not drawn again when the terminal became wider")
	}
}

func TestTableForgetsWhatIsLongStale(t *testing.T) {
	table := newTable(now)
	table.apply(&update{kind: changed, key: "young", state: proc("a", 1, 0, 0, 60, process.Stale)})
	table.apply(&update{kind: changed, key: "old", state: proc("b", 2, 0, 0, 61, process.Stale)})
	table.apply(&update{kind: changed, key: "alive", state: proc("c", 3, 0, 0, 3600, process.Alive)})
	table.apply(&update{kind: changed, key: "gone", state: proc("d", 4, 0, 0, 0, process.Alive)})
	table.apply(&update{kind: removed, key: "gone"})
	table.apply(&update{kind: unreadable})
	table.forget(now)
	var keys []string
	for key := range table.states {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if got := strings.Join(keys, " "); got != "alive young" {
		t.Errorf("kept %q, want %q", got, "alive young")
	}
	if table.seen != 6 {
		t.Errorf("%d events seen, want 6", table.seen)
	}
}

// TestTableBeginsWithTheState: what was there before is there at once, and counts as no event; what
// a later state does not have, or is below a horizon, goes.
func TestTableBeginsWithTheState(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		table := newTable(now)
		say := func(offset uint64, key string, part *eventhub.StatePart) {
			d := eventhub.Delivery{Topic: "process.state", Offset: offset, State: part}
			if !part.IsMark() {
				d.Record = fmt.Appendf(nil, `{"ts":1723140000000,"id":"s-%d","topic":"process.state","partition":0,"key":%q,"payload":%s}`, offset, key, payload(1, process.Alive))
			}
			u := read(&d)
			table.apply(&u)
		}
		keys := func() string { return strings.Join(slices.Sorted(maps.Keys(table.states)), " ") }
		for _, step := range []struct {
			offset uint64
			key    string
			part   *eventhub.StatePart
			want   string
			seen   int
		}{
			{3, "a", &eventhub.StatePart{Snapshot: "s-1"}, "a", 0},
			{5, "b", &eventhub.StatePart{}, "a b", 0},
			{0, "", &eventhub.StatePart{Complete: true, Offset: 5, Count: 2}, "a b", 0},
			{6, "c", nil, "a b c", 1},
			{0, "", &eventhub.StatePart{Horizon: 5}, "b c", 1},
			{5, "b", &eventhub.StatePart{Snapshot: "s-2"}, "b c", 1},
			{0, "", &eventhub.StatePart{Complete: true, Offset: 6, Count: 1}, "b", 1},
			{7, "d", nil, "b d", 2},
			{0, "", &eventhub.StatePart{Complete: true, Offset: 7}, "", 2},
		} {
			say(step.offset, step.key, step.part)
			if keys() != step.want || table.seen != step.seen || len(table.places) != len(table.states) {
				t.Errorf("after %d %s %+v: %q, %d seen; want %q, %d", step.offset, step.key, step.part, keys(), table.seen, step.want, step.seen)
			}
		}
	})
}

func TestRateIsThatOfTheLastSeconds(t *testing.T) {
	table := newTable(now)
	at := now
	for range 60 { // 40 events at the start of each second, for 15 s
		if at.Sub(now)%time.Second == 0 {
			table.seen += 40
		}
		at = at.Add(redrawEvery)
		table.rate(at)
	}
	if got := table.rate(at); got < 39 || got > 41 {
		t.Errorf("rate %v, want about 40", got)
	}
	for range 24 {
		at = at.Add(redrawEvery)
		table.rate(at)
	}
	if got := table.rate(at); got != 0 {
		t.Errorf("rate %v after 6 s without events, want 0", got)
	}
	if n := len(table.samples); n > 30 {
		t.Errorf("%d samples are kept", n)
	}
}

func TestEndedSubscriptionRestoresTheTerminal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, out := &group{}, &console{}
		ended := make(chan error, 1)
		go func() {
			ended <- run(t.Context(), g, newScreen(out, func() (int, int) { return 80, 10 }, nil, false))
		}()
		synctest.Wait()
		cause := errors.New("the hub stops")
		g.member.Ended(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Errorf("Run: %v, want %v", err, cause)
		}
		if writes := out.take(); writes[len(writes)-1] != leaveScreen {
			t.Errorf("the terminal was left with %q", writes[len(writes)-1])
		}
	})
}

func TestFailingOutputEndsRun(t *testing.T) {
	broken := errors.New("broken pipe")
	for name, display := range map[string]func(*console) display{
		"lines":  func(c *console) display { return &lines{out: c} },
		"screen": func(c *console) display { return newScreen(c, func() (int, int) { return 80, 10 }, nil, false) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				g, out := &group{}, &console{}
				ended := make(chan error, 1)
				go func() { ended <- run(t.Context(), g, display(out)) }()
				synctest.Wait()
				out.failWith(broken)
				g.append("h:p:1", payload(1, process.Alive))
				if err := <-ended; !errors.Is(err, broken) {
					t.Errorf("Run: %v, want %v", err, broken)
				}
				if !g.left() {
					t.Error("the table still has its tail")
				}
			})
		})
	}
}

func TestRefusedSubscriptionLeavesTheTerminalAlone(t *testing.T) {
	out := &console{}
	denied := eventhub.Errorf(eventhub.CodeForbidden, "no")
	err := run(t.Context(), refuser{err: denied}, newScreen(out, func() (int, int) { return 80, 10 }, nil, false))
	if !errors.Is(err, denied) {
		t.Errorf("Run: %v, want %v", err, denied)
	}
	if writes := out.take(); len(writes) != 0 {
		t.Errorf("written %q", writes)
	}
}

type refuser struct {
	eventhub.Subscriber
	err error
}

func (r refuser) Tail(context.Context, eventhub.TailOptions, eventhub.Receiver) (eventhub.Subscription, error) {
	return nil, r.err
}

// TestLines goes through Run: a buffer is no terminal.
func TestLines(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g, out := &group{}, &console{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, g, out, Options{}) }()
		synctest.Wait()
		at := time.Now().Format(time.TimeOnly)
		g.append(
			"h:p:1", payload(1, process.Alive), "h:p:1", payload(1, process.Stale), "h:p:1", "null",
			"evil\x1b[2J\n", payload(2, process.Alive), "k", `{"status":"confused"}`, "k", `[]`, "", payload(3, process.Alive),
		)
		synctest.Wait()
		want := strings.ReplaceAll(`@ alive h:p:1 cpu=1.2% mem=33.4MB
@ stale h:p:1 cpu=1.2% mem=33.4MB
@ removed h:p:1
@ alive evil?[2J? cpu=1.2% mem=33.4MB
`, "@", at)
		if got := out.take(); len(got) != 1 || got[0] != want {
			t.Errorf("got %q\nwant one write of %q", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestSlowOutputHoldsUpNobody: while a write hangs, Deliver takes what it has
// room for and refuses the rest, which is shown afterwards.
func TestSlowOutputHoldsUpNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := &group{}
		out := &slow{began: make(chan struct{}), finish: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, g, out, Options{}) }()
		synctest.Wait()
		g.append("first", payload(1, process.Alive))
		<-out.began
		const many = 3 * inboxRoom
		var pairs []string
		for i := range many {
			pairs = append(pairs, fmt.Sprint(i), payload(i, process.Alive))
		}
		g.append(pairs...)
		close(out.finish)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := bytes.Count(out.got.Bytes(), []byte("\n")); got != many+1 {
			t.Errorf("%d lines, want %d", got, many+1)
		}
		if g.refusals == 0 {
			t.Error("nothing was refused: the test shows nothing")
		}
	})
}

// slow hangs in its first write until finish is closed.
type slow struct {
	began, finish chan struct{}
	once          sync.Once
	got           bytes.Buffer
}

func (s *slow) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.began) })
	<-s.finish
	return s.got.Write(p)
}

func TestFilesAreNoTerminals(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if terminal(file) != nil || terminal(&bytes.Buffer{}) != nil {
		t.Error("a file or a buffer counts as a terminal")
	}
}
