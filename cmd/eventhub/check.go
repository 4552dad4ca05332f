package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
	"eventhub/internal/eventid"
)

// A check has one topic and one group for ever, so that checks do not pile up.
const (
	checkTopic  = "eventhub-check"
	checkGroup  = "eventhub-check"
	checkEvents = 10

	maxBurst = 1_000_000
	// maxAcked is how many deliveries one frame acks.
	maxAcked = 1000
	// burstBatch is how many events of a burst are one publication.
	burstBatch = 100
)

// checking is one run of `eventhub check`: steps that each need the one before.
//
// Checks may run at the same time. They are then members of one group, and each
// acks whatever it gets: an event of this check that went to another one shows in
// the group's cursor, which passes it.
type checking struct {
	reach
	within time.Duration
	burst  int // events
	format *output.Choice

	out   *output.Results
	rows  *output.Rows[step]
	steps []step

	client *client.Client
	admin  *client.Admin
	inbox  *checkInbox
	sub    eventhub.Subscription
	last   uint64 // the highest offset that was published

	progress *progressLine // nil: nobody looks
}

// step is one line of the report.
type step struct {
	Step   string  `json:"step"`
	OK     bool    `json:"ok"`
	MS     float64 `json:"ms"`
	Detail string  `json:"detail,omitempty"`
	Error  string  `json:"error,omitempty"`
}

func checkCommand() *cobra.Command {
	k := &checking{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Publish to a running hub, and see the events delivered and acked",
		Long: fmt.Sprintf(`Publishes %d events, or those of --burst, to the topic %s of a running hub as a member of the group
%s there, sees them delivered and acked, and the group's lag go to 0. Prints
each step with the time it took. Where one fails, its name is in the message, and the
exit code is not 0. The topic and the group stay; the hub's own state is not touched. On a
terminal standard error shows how far it is.`, checkEvents, checkTopic, checkGroup),
		Args: words(),
		RunE: func(cmd *cobra.Command, _ []string) error { return k.run(cmd) },
	}
	k.format = formatFlag(cmd, listFormats)
	cmd.Flags().DurationVar(&k.within, "within", 30*time.Second, "how long all steps together may take")
	cmd.Flags().IntVar(&k.burst, "burst", checkEvents, "publish so many events as fast as the hub takes them, and see the lag back at 0")
	k.register(cmd)
	k.registerName(cmd)
	return cmd
}

// checkReport is what -o json prints.
type checkReport struct {
	OK    bool   `json:"ok"`
	Steps []step `json:"steps"`
}

func (k *checking) run(cmd *cobra.Command) error {
	if k.within <= 0 {
		return usageError{fmt.Errorf("--within is %s; it must be positive", k.within)}
	}
	if k.burst < 1 || k.burst > maxBurst {
		return usageError{fmt.Errorf("--burst is %d; 1 to %d are allowed", k.burst, maxBurst)}
	}
	if err := k.resolve(cmd); err != nil {
		return err
	}
	if output.IsTerminal(cmd.ErrOrStderr()) {
		k.progress = &progressLine{w: cmd.ErrOrStderr()}
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), k.within, fmt.Errorf("not done within %s", k.within))
	defer cancel()
	cmd.SetContext(ctx)
	k.out = results(cmd)
	k.rows = &output.Rows[step]{Format: k.format.Format, Color: k.out.Color, Columns: []output.Column[step]{
		{Name: "STEP", Width: 9, Cell: func(s step) string { return s.Step }},
		{Name: "TIME", Width: 10, Right: true, Cell: func(s step) string { return fmt.Sprintf("%.1f ms", s.MS) }},
		{Name: "RESULT", Cell: func(s step) string { return s.Detail + s.Error }},
	}}
	defer k.leave(cmd.Context())
	var err error
	for _, s := range []struct {
		name string
		do   func(context.Context) (detail string, err error)
	}{
		{"connect", func(context.Context) (string, error) { return k.connect(cmd) }},
		{"subscribe", k.subscribe},
		{"publish", k.publish},
		{"deliver", k.deliver},
		{"ack", k.ack},
		{"lag", k.lag},
	} {
		if err = k.step(ctx, s.name, s.do); err != nil {
			break
		}
	}
	if k.format.Format == output.JSON {
		report := checkReport{OK: err == nil, Steps: k.steps}
		if printed := output.Document(k.out, output.JSON, report, nil); err == nil {
			err = printed
		}
	}
	return err
}

// step does one step and prints its line.
func (k *checking) step(ctx context.Context, name string, do func(context.Context) (string, error)) error {
	began := time.Now()
	detail, err := do(ctx)
	if k.progress != nil {
		k.progress.clear()
	}
	s := step{Step: name, OK: err == nil, MS: float64(time.Since(began).Microseconds()) / 1000, Detail: detail}
	if err != nil {
		s.Error = "failed"
		if k.format.Format != output.Table {
			s.Error = oneLine(err.Error())
		}
		err = fmt.Errorf("step %s: %w", name, err)
	}
	k.steps = append(k.steps, s)
	if k.format.Format == output.JSON {
		return err
	}
	line, printed := k.rows.Append(nil, s)
	if printed == nil {
		_, printed = k.out.Write(line)
	}
	return errors.Join(err, printed)
}

func (k *checking) connect(cmd *cobra.Command) (string, error) {
	var err error
	if k.client, err = k.dial(cmd); err != nil {
		return "", err
	}
	if k.admin, err = k.reach.admin(cmd); err != nil {
		return "", err
	}
	// The other door of the hub, which the steps below look through.
	_, err = ask(cmd.Context(), &k.reach, func(ctx context.Context) ([]admin.TopicInfo, error) { return k.admin.Topics(ctx, "", 1) })
	if err != nil {
		return "", fmt.Errorf("the HTTP API: %w", err)
	}
	info := k.client.Info()
	return fmt.Sprintf("%s, %s %s, durability %s", k.url, info.Hub, info.Version, info.Durability), nil
}

func (k *checking) subscribe(ctx context.Context) (string, error) {
	k.inbox = &checkInbox{news: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
	sub, err := k.client.Subscribe(ctx, eventhub.GroupOptions{Topic: checkTopic, Group: checkGroup,
		MaxInFlight: min(max(eventhub.DefaultMaxInFlight, k.burst), maxAcked)}, k.inbox)
	if err != nil {
		return "", err
	}
	k.sub = sub
	acking, over := context.WithCancel(context.WithoutCancel(ctx))
	k.inbox.over = over
	k.inbox.acking.Go(func() { k.inbox.ackAll(acking, sub) })
	return fmt.Sprintf("group %s of %s", checkGroup, checkTopic), nil
}

func (k *checking) publish(ctx context.Context) (string, error) {
	run := eventid.New()
	events := make([]eventhub.Event, k.burst)
	ids := make(map[string]bool, k.burst)
	for i := range events {
		payload, err := json.Marshal(map[string]any{"check": run, "event": i + 1})
		if err != nil {
			return "", err
		}
		events[i] = eventhub.Event{Topic: checkTopic, ID: fmt.Sprintf("%s-%d", run, i+1), Payload: payload}
		ids[events[i].ID] = true
	}
	var pubs []eventhub.Publication
	for batch := range slices.Chunk(events, burstBatch) {
		pubs = append(pubs, eventhub.Publication{Events: batch})
	}
	k.inbox.expect(ids)
	done := make(chan struct{})
	k.client.Enqueue(ctx, pubs, func([]eventhub.Publication) { close(done) })
	select {
	case <-done:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	first := uint64(math.MaxUint64)
	for i := range pubs {
		if err := pubs[i].Err; err != nil {
			return "", err
		}
		for _, r := range pubs[i].Receipts {
			first, k.last = min(first, r.Offset), max(k.last, r.Offset)
		}
	}
	return fmt.Sprintf("%s, offsets %d to %d", output.Things(k.burst, "event"), first, k.last), nil
}

func (k *checking) deliver(ctx context.Context) (string, error) {
	err := k.until(ctx, func(g *admin.GroupInfo) bool { return k.inbox.missing() == 0 || g.Cursor >= k.last })
	missing := k.inbox.missing()
	switch {
	case err != nil:
		return "", fmt.Errorf("%d of %d events came: %w", k.burst-missing, k.burst, err)
	case missing > 0:
		return fmt.Sprintf("%s, and %d to another check", output.Things(k.burst-missing, "event"), missing), nil
	}
	return output.Things(k.burst, "event"), nil
}

func (k *checking) ack(ctx context.Context) (string, error) {
	var cursor uint64
	err := k.until(ctx, func(g *admin.GroupInfo) bool { cursor = g.Cursor; return g.Cursor >= k.last })
	if err != nil {
		return "", fmt.Errorf("the cursor is at %d, and not at %d: %w", cursor, k.last, err)
	}
	return fmt.Sprintf("%s, cursor %d", output.Things(k.burst, "event"), cursor), nil
}

func (k *checking) lag(ctx context.Context) (string, error) {
	var lag uint64
	err := k.until(ctx, func(g *admin.GroupInfo) bool { lag = g.Lag; return g.Lag == 0 })
	if err != nil {
		return "", fmt.Errorf("the lag is %d, and not 0: %w", lag, err)
	}
	return "0 events", nil
}

// until looks at the group until it is as wanted: at once when the inbox has
// news, and else again and again, less and less often.
func (k *checking) until(ctx context.Context, done func(*admin.GroupInfo) bool) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		g, err := ask(ctx, &k.reach, func(ctx context.Context) (admin.GroupInfo, error) { return k.admin.Group(ctx, checkTopic, checkGroup) })
		if err == nil {
			err = k.inbox.failure()
		}
		if ctx.Err() != nil { // a request that was cut short says less
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if done(&g) {
			return nil
		}
		k.show(&g)
		select {
		case <-k.inbox.news:
		case <-time.After(wait): // nobody is notified of acks
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// show says how far the group is.
func (k *checking) show(g *admin.GroupInfo) {
	if k.progress != nil {
		k.progress.say(fmt.Sprintf("%s of %s delivered, lag %s", output.Count(k.burst-k.inbox.missing()), output.Count(k.burst), output.Count(g.Lag)))
	}
}

// leave gives the leases back, if any, and closes what was opened.
func (k *checking) leave(ctx context.Context) {
	if k.sub != nil {
		late, done := lingering(ctx)
		defer done()
		_ = k.sub.Unsubscribe(late) // closing does the same
		k.inbox.over()
		k.inbox.acking.Wait()
	}
	if k.client != nil {
		k.client.Close()
	}
	if k.admin != nil {
		k.admin.Close()
	}
}

// checkInbox acks everything that comes and ticks off what is expected.
type checkInbox struct {
	news    chan struct{} // something expected came, or it is over; holds one
	arrived chan struct{} // there is something to ack; holds one
	acking  sync.WaitGroup
	over    context.CancelFunc // ends acking

	mu       sync.Mutex
	expected map[string]bool
	refs     []eventhub.Ref
	err      error
}

// expect says which ids are waited for. It comes before they are published.
func (b *checkInbox) expect(ids map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = ids
}

func (b *checkInbox) missing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.expected)
}

func (b *checkInbox) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Deliver implements eventhub.Receiver.
func (b *checkInbox) Deliver(batch []eventhub.Delivery) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range batch {
		delete(b.expected, batch[i].ID())
		b.refs = append(b.refs, eventhub.Ref{Lease: batch[i].Lease})
	}
	ring(b.arrived)
	ring(b.news)
	return len(batch)
}

// Ended implements eventhub.Receiver.
func (b *checkInbox) Ended(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	ring(b.news)
}

// ackAll acks what arrives until ctx ends.
func (b *checkInbox) ackAll(ctx context.Context, sub eventhub.Subscription) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.arrived:
		}
		b.mu.Lock()
		refs := b.refs
		b.refs = nil
		b.mu.Unlock()
		// An error shows in the cursor, which does not come where it should.
		_, _ = sub.Settle(ctx, eventhub.Settlement{Verdict: eventhub.Ack, Refs: refs})
	}
}

// ring reports news without waiting for anybody to hear them.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
