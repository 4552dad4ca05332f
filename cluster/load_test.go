package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	sdk "eventhub/client"
)

// The topics and groups of a load.
const (
	events  = "cluster.events"  // what publishers publish
	made    = "cluster.made"    // what a group makes of each, in one step with its ack
	later   = "cluster.later"   // delayed events
	bulk    = "cluster.bulk"    // large events, which nobody reads
	letters = "cluster.letters" // a group gives each event up once, and takes it when it is redriven

	groupAcks    = "acks"
	groupMakes   = "makes"
	groupLetters = "letters"
)

// safe is how long before a fault an answered ack stays.
const safe = time.Second

// load publishes, consumes and redrives while hubs and servers come and go, and notes what it was
// answered. A value is published once, but for those whose outcome is not known.
type load struct {
	t      *testing.T
	urls   []string
	opts   []sdk.Option
	ctx    context.Context
	stop   context.CancelFunc
	ended  sync.WaitGroup
	paused bool // publishers and redrives do nothing

	mu       sync.Mutex
	changed  *sync.Cond
	oked     map[string]map[string]eventhub.Receipt // by topic and payload
	unsure   map[string]map[string]bool             // by topic and payload: no answer is known
	given    map[string]bool                        // payloads with an id of their own, which are published until there is an OK
	acked    map[string]time.Time                   // payloads of events that groupAcks has acked, and when that was answered
	attempts int                                    // deliveries to groupAcks that were not the first attempt
	again    int                                    // deliveries to groupAcks of what it had acked
	count    int                                    // OKs
	lastOK   time.Time
	longest  time.Duration // between two OKs since calm
	faults   []span
}

// span is a fault, from a time before it in which acks may not be safe yet to when publishes were
// answered again.
type span struct{ from, to time.Time }

func startLoad(t *testing.T, urls []string, opts ...sdk.Option) *load {
	l := &load{
		t: t, urls: urls, opts: opts, oked: make(map[string]map[string]eventhub.Receipt), unsure: make(map[string]map[string]bool),
		given: make(map[string]bool), acked: make(map[string]time.Time), lastOK: time.Now(),
	}
	l.changed = sync.NewCond(&l.mu)
	for _, topic := range []string{events, later, letters} {
		l.oked[topic], l.unsure[topic] = make(map[string]eventhub.Receipt), make(map[string]bool)
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	for p := range 2 {
		l.publisher(fmt.Sprintf("n%d", p), func(c *sdk.Client, payload string, n int) {
			l.publish(c, eventhub.Event{Topic: events, Key: fmt.Sprint("key-", n%7), Payload: []byte(payload)})
		})
	}
	l.publisher("id", func(c *sdk.Client, payload string, n int) {
		l.publishGiven(c, eventhub.Event{Topic: events, ID: payload[1 : len(payload)-1], Key: fmt.Sprint("key-", n%7), Payload: []byte(payload)})
	})
	l.publisher("later", func(c *sdk.Client, payload string, n int) {
		l.publish(c, eventhub.Event{Topic: later, Payload: []byte(payload), Delay: time.Duration(50+n%10*100) * time.Millisecond})
		l.sleep(20 * time.Millisecond)
	})
	l.publisher("letter", func(c *sdk.Client, payload string, n int) {
		l.publish(c, eventhub.Event{Topic: letters, Payload: []byte(payload)})
		l.sleep(50 * time.Millisecond)
		if n%10 == 9 {
			_, _ = c.Admin().Redrive(l.ctx, admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: letters}, Apply: true}) // finish does it again
		}
	})
	l.consumers()
	return l
}

func (l *load) dial() *sdk.Client {
	for {
		c, err := sdk.Dial(l.ctx, l.urls[0], append([]sdk.Option{sdk.WithURLs(l.urls[1:]...), sdk.WithLogger(slog.New(slog.DiscardHandler))}, l.opts...)...)
		if err == nil || l.ctx.Err() != nil {
			return c
		}
		l.sleep(50 * time.Millisecond)
	}
}

func (l *load) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.ctx.Done():
	}
}

// publisher publishes one payload after the other.
func (l *load) publisher(name string, publish func(c *sdk.Client, payload string, n int)) {
	l.ended.Go(func() {
		c := l.dial()
		if c == nil {
			return
		}
		defer c.Close()
		for n := 0; l.proceed(); n++ {
			publish(c, fmt.Sprintf(`"%s-%d"`, name, n), n)
		}
	})
}

// proceed waits while the load is paused, and reports false where it is over.
func (l *load) proceed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.paused && l.ctx.Err() == nil {
		l.changed.Wait()
	}
	return l.ctx.Err() == nil
}

func (l *load) publish(c *sdk.Client, e eventhub.Event) bool {
	receipts, err := c.Publish(l.ctx, e)
	payload := string(e.Payload)
	if refused := eventhub.AsError(err); err != nil && refused.Code == eventhub.CodeOverloaded {
		l.sleep(refused.RetryAfter)
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.unsure[e.Topic][payload] = true
		return false
	}
	now := time.Now()
	l.longest, l.lastOK = max(l.longest, now.Sub(l.lastOK)), now
	l.oked[e.Topic][payload] = receipts[0]
	delete(l.unsure[e.Topic], payload)
	l.count++
	return true
}

// publishGiven publishes an event that has an id until there is an OK.
func (l *load) publishGiven(c *sdk.Client, e eventhub.Event) {
	l.mu.Lock()
	l.given[string(e.Payload)] = true
	l.mu.Unlock()
	for !l.publish(c, e) && l.ctx.Err() == nil {
		l.sleep(20 * time.Millisecond)
	}
}

// consumers starts the members of the groups.
func (l *load) consumers() {
	member := func(consume func(c *sdk.Client) error) {
		l.ended.Go(func() {
			c := l.dial()
			if c == nil {
				return
			}
			defer c.Close()
			for l.ctx.Err() == nil {
				if err := consume(c); err != nil && l.ctx.Err() == nil && !errors.Is(err, sdk.ErrUnreachable) {
					l.t.Errorf("a member ended: %v", err)
				}
			}
		})
	}
	member(l.acks)
	member(func(c *sdk.Client) error {
		return c.Transform(l.ctx, eventhub.GroupOptions{Topic: events, Group: groupMakes, Start: eventhub.Earliest}, func(_ context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			e, err := d.Event()
			return []eventhub.Event{{Topic: made, Payload: e.Payload}}, err
		})
	})
	member(func(c *sdk.Client) error {
		return c.Consume(l.ctx, eventhub.GroupOptions{Topic: letters, Group: groupLetters, Start: eventhub.Earliest}, func(_ context.Context, d eventhub.Delivery) error {
			if d.Redriven == 0 {
				return eventhub.Terminal(errors.New("not the first time"))
			}
			return nil
		})
	})
}

// acks acks each event by itself, and notes when that was answered.
func (l *load) acks(c *sdk.Client) error {
	for d, err := range c.Deliveries(l.ctx, eventhub.GroupOptions{Topic: events, Group: groupAcks, Start: eventhub.Earliest}) {
		if err != nil {
			return err
		}
		e, err := d.Event()
		if err != nil {
			return err
		}
		payload := string(e.Payload)
		l.mu.Lock()
		if at, was := l.acked[payload]; was {
			l.again++
			if i := len(l.faults) - 1; i >= 0 && !slices.ContainsFunc(l.faults, func(f span) bool { return !at.Before(f.from) && (f.to.IsZero() || !at.After(f.to)) }) {
				l.t.Errorf("%s comes again; its ack was answered %s before the last fault", payload, l.faults[i].from.Add(safe).Sub(at))
			}
		}
		if d.Attempt > 1 {
			l.attempts++
		}
		l.mu.Unlock()
		if d.Ack(l.ctx) == nil {
			l.mu.Lock()
			l.acked[payload] = time.Now()
			l.mu.Unlock()
		}
	}
	return nil
}

// fill publishes large events, some at a time, until the hub refuses them because the journal is nearly full.
func (l *load) fill() {
	l.t.Helper()
	c := l.dial()
	if c == nil {
		return
	}
	defer c.Close()
	large := []byte(`"` + strings.Repeat("x", 64<<10) + `"`)
	pubs := make([]eventhub.Publication, 8)
	answered := make(chan struct{})
	for range 2_000 {
		for i := range pubs {
			pubs[i] = eventhub.Publication{Events: []eventhub.Event{{Topic: bulk, Payload: large}}}
		}
		c.Enqueue(l.ctx, pubs, func([]eventhub.Publication) { answered <- struct{}{} })
		<-answered
		full := false
		for _, p := range pubs {
			switch {
			case eventhub.ErrorCode(p.Err) == eventhub.CodeOverloaded && strings.Contains(p.Err.Error(), "journal is nearly full"):
				full = true
			case eventhub.ErrorCode(p.Err) == eventhub.CodeOverloaded: // the journal is slow: it is tried again
			case p.Err != nil:
				l.t.Fatalf("a large event: %v", p.Err)
			}
		}
		if full {
			return
		}
	}
	l.t.Fatal("the journal takes everything")
}

func (l *load) ackedCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// fault notes that a fault begins.
func (l *load) fault() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults, l.longest = append(l.faults, span{from: time.Now().Add(-safe)}), 0
}

// over notes that the fault is over.
func (l *load) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[len(l.faults)-1].to = time.Now()
}

// stall returns the longest time between two OKs since the fault.
func (l *load) stall() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest
}

func (l *load) oks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// progress waits until so many more publishes were answered.
func (l *load) progress(more int) {
	l.t.Helper()
	want := l.oks() + more
	for end := time.Now().Add(within); ; time.Sleep(5 * time.Millisecond) {
		have := l.oks()
		switch {
		case have >= want:
			return
		case time.Now().After(end):
			l.t.Fatalf("%d publishes were answered; want %d", have, want)
		}
	}
}

// finish has the publishers wait, and returns when the groups have everything.
func (l *load) finish(hub *hub) {
	l.t.Helper()
	l.mu.Lock()
	l.paused = true
	l.mu.Unlock()
	a, err := sdk.NewAdmin(fmt.Sprintf("http://127.0.0.1:%d", hub.http), l.opts...)
	if err != nil {
		l.t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for {
		open := l.open(ctx, a)
		if open == "" {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			l.t.Fatalf("it does not come to an end: %s", open)
		}
	}
}

// open returns what is still to be done, or nothing.
func (l *load) open(ctx context.Context, a *sdk.Admin) string {
	if scheduled, err := a.Scheduled(ctx, admin.ScheduleQuery{Topic: later, Limit: 10}); err != nil || len(scheduled) > 0 {
		return fmt.Sprintf("delayed events, at least %d: %v", len(scheduled), err)
	}
	for topic, group := range map[string]string{events: groupAcks, letters: groupLetters} {
		if g, err := a.Group(ctx, topic, group); err != nil || g.Lag > 0 || g.InFlight > 0 {
			return fmt.Sprintf("group %s: %+v, %v", group, g, err)
		}
	}
	if g, err := a.Group(ctx, events, groupMakes); err != nil || g.Lag > 0 || g.InFlight > 0 {
		return fmt.Sprintf("group %s: %+v, %v", groupMakes, g, err)
	}
	if done, err := a.Redrive(ctx, admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: letters}, Apply: true}); err != nil || done.Redriven > 0 {
		return fmt.Sprintf("dead letters to be redriven: %+v, %v", done, err)
	}
	if g, err := a.Group(ctx, letters, groupLetters); err != nil || g.Redriven > 0 {
		return fmt.Sprintf("dead letters under way: %+v, %v", g, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for payload := range l.given {
		if _, ok := l.oked[events][payload]; !ok {
			return payload + " has no OK yet"
		}
	}
	return ""
}

// end ends the load.
func (l *load) end() {
	l.stop()
	l.mu.Lock()
	l.changed.Broadcast()
	l.mu.Unlock()
	l.ended.Wait()
}

// check holds the log against what was answered. The load is over.
func (l *load) check(hub *hub) {
	l.t.Helper()
	at := make(map[string]map[string]uint64)
	for _, topic := range []string{events, made, later, letters} {
		at[topic] = l.log(hub, topic)
	}
	unsure := 0
	for topic, oked := range l.oked {
		for payload, r := range oked {
			if offset := at[topic][payload]; offset == 0 || r.Offset != 0 && offset != r.Offset {
				l.t.Errorf("topic %s: %s has an OK at offset %d, and is at %d (0: nowhere)", topic, payload, r.Offset, offset)
			}
		}
		for payload := range at[topic] {
			if _, ok := oked[payload]; !ok && !l.unsure[topic][payload] {
				l.t.Errorf("topic %s: %s is there, and nobody has published it", topic, payload)
			}
		}
		unsure += len(l.unsure[topic])
	}
	for payload := range at[events] {
		if at[made][payload] == 0 {
			l.t.Errorf("nothing was made of %s", payload)
		}
		if _, ok := l.acked[payload]; !ok {
			l.t.Errorf("%s was never acked", payload)
		}
	}
	if len(at[made]) != len(at[events]) {
		l.t.Errorf("%d events were made of %d", len(at[made]), len(at[events]))
	}
	l.t.Logf("%d events, %d OKs, %d with an unknown outcome, %d delayed, %d letters; %d came again after an ack, %d not as the first attempt",
		len(at[events]), l.count, unsure, len(at[later]), len(at[letters]), l.again, l.attempts)
}

// log returns where each payload of a topic is, and reports those that are there twice.
func (l *load) log(hub *hub, topic string) map[string]uint64 {
	l.t.Helper()
	a, err := sdk.NewAdmin(fmt.Sprintf("http://127.0.0.1:%d", hub.http), l.opts...)
	if err != nil {
		l.t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	at := make(map[string]uint64)
	if err := a.Replay(ctx, admin.ReplayQuery{Topic: topic}, func(_ string, item eventhub.Item) error {
		e, err := item.Record.Event(item.Offset)
		if err != nil {
			return err
		}
		payload := string(e.Payload)
		if first, twice := at[payload]; twice {
			l.t.Errorf("topic %s: %s is at offset %d, and again at %d", topic, payload, first, item.Offset)
		}
		at[payload] = item.Offset
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	return at
}
