package oracle

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	hubclient "eventhub/client"
	"eventhub/hub"
)

const token = "s3cret"

// The places of examples that no document can know stand for these.
const (
	anyLease      = "1k3f9zq0x8w2a-1-1"
	anyLetter     = "dl-1"
	anyConnection = "mgx3k2ab-1"
)

// world is a hub in which what the examples speak of is there: three orders, an effect
// of the first, scheduled mails, the groups billing and audit (by a pattern), and the
// group shipping, which has given all of them up; and settings of orders.
type world struct {
	*hub.Hub
	lease, letter, connection string // the real ones
}

// begin starts a hub that asks for the token. It has all its doors on one address, and
// a level that can be changed, which is why it is none of package hubtest.
func begin(tb testing.TB, store string) *world {
	tb.Helper()
	const free = "127.0.0.1:0"
	h, err := hub.Start(hub.Config{
		Store: store, WSAddr: free, HTTPAddr: free, OpsAddr: free, AuthToken: token,
		Version: "oracle", LogLevel: new(slog.LevelVar), CompactEvery: time.Millisecond,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	w := &world{Hub: h}
	w.publish(tb) // before an AUTH has the audit create its topic: orders is the first one
	w.connect(tb)
	w.giveUp(tb)
	for _, name := range []string{"orders", "settings.*"} { // of the first, version 1
		if _, err := h.Bus().SetTopic(context.Background(), name, admin.TopicSettings{Retention: admin.Retention{Bytes: 1 << 40, Count: 1 << 40}}, nil); err != nil {
			tb.Fatal(err)
		}
	}
	for _, g := range [][2]string{{"orders", "billing"}, {"orders.**", "audit"}} {
		first := w.pull(tb, g[0], g[1], 1)
		w.settle(tb, g[0], g[1], eventhub.Settlement{Verdict: eventhub.Nack, Reason: "not yet", Delay: time.Millisecond}, first)
	}
	if l := w.pull(tb, "orders", "billing", 2); l[0].Offset == 1 {
		w.lease = l[0].Lease.String()
	} else {
		w.lease = l[1].Lease.String()
	}
	return w
}

// order is what every filter among the examples lets through.
func order(id string) eventhub.Event {
	return eventhub.Event{
		Topic: "orders", ID: id, Key: "customer-7", SID: "shop-1", Headers: map[string]string{"x-correlation-id": "cart-9"},
		Tags: []string{"#duck"}, CausedBy: []string{"cart-9"}, Payload: json.RawMessage(`{"total":5}`),
	}
}

// connect makes two connections; the first is looked at, and closed.
func (w *world) connect(tb testing.TB) {
	tb.Helper()
	for range 2 {
		w.dial(tb)
	}
}

func (w *world) dial(tb testing.TB) {
	tb.Helper()
	c, err := hubclient.Dial(tb.Context(), "ws://"+w.WSAddr(), hubclient.WithToken(token), hubclient.WithName("oracle"), hubclient.WithoutReconnect())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	open, err := c.Admin().Connections(tb.Context(), "", 1)
	if err != nil || len(open) == 0 {
		tb.Fatalf("the connections are %v, %v", open, err)
	}
	w.connection = open[0].ID
}

func (w *world) publish(tb testing.TB) {
	tb.Helper()
	hour := func(id string) eventhub.Event {
		return eventhub.Event{Topic: "mail.send", ID: id, Key: "customer-7", Payload: json.RawMessage("1"), Delay: time.Hour}
	}
	_, err := w.Bus().Publish(tb.Context(),
		order("order-17"), order("order-18"), order("order-19"), hour("mail-3"), hour("mail-6"),
		eventhub.Event{Topic: "audit", ID: "order-17", Payload: json.RawMessage("null"), TS: 1723140000000},
		eventhub.Event{Topic: "orders.billed", ID: "bill-0", CausedBy: []string{"order-17"}, Payload: json.RawMessage("1")})
	if err != nil {
		tb.Fatal(err)
	}
	// An example expects something of a key of it.
	if _, err := w.Bus().State(tb.Context(), admin.StateQuery{Topic: "orders.billed", Limit: 1}); err != nil {
		tb.Fatal(err)
	}
}

// giveUp makes dead letters of all orders, and of an event of another topic.
func (w *world) giveUp(tb testing.TB) {
	tb.Helper()
	letters := make(chan eventhub.Delivery, 4)
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	tail := eventhub.TailOptions{Topic: "*.dlq", Start: eventhub.Earliest}
	over := make(chan error, 1)
	go func() {
		over <- eventhub.Follow(ctx, w.Bus(), tail, func(_ context.Context, d eventhub.Delivery) error {
			letters <- d
			return nil
		})
	}()
	for topic, n := range map[string]int{"orders": 3, "audit": 1} {
		w.settle(tb, topic, "shipping", eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: "no such street"},
			w.pull(tb, topic, "shipping", n))
	}
	for range 4 {
		if d := <-letters; d.Topic == "orders.dlq" && d.Offset == 1 {
			w.letter = d.ID()
		}
	}
	cancel()
	if err := <-over; err != nil {
		tb.Fatal(err)
	}
}

// pull takes so many deliveries of a group from the first event on.
func (w *world) pull(tb testing.TB, topic, group string, n int) (all []eventhub.Delivery) {
	tb.Helper()
	opts := eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.Earliest}
	for len(all) < n {
		opts.MaxInFlight = n - len(all)
		deliveries, err := w.Bus().Pull(tb.Context(), opts.WithDefaults(), time.Minute)
		if err != nil || len(deliveries) == 0 {
			tb.Fatalf("pull %s: %d deliveries, %v", group, len(all)+len(deliveries), err)
		}
		all = append(all, deliveries...)
	}
	return all
}

func (w *world) settle(tb testing.TB, topic, group string, s eventhub.Settlement, of []eventhub.Delivery) {
	tb.Helper()
	for _, d := range of {
		s.Refs = append(s.Refs, eventhub.Ref{Lease: d.Lease})
	}
	if _, err := w.Bus().Settle(tb.Context(), topic, group, s); err != nil {
		tb.Fatal(err)
	}
}

// overtake removes all events of a topic but the newest one, before a new group of it has any.
func (w *world) overtake(tb testing.TB, topic, group string) {
	tb.Helper()
	info, err := w.Bus().Topic(tb.Context(), topic)
	if err == nil {
		w.renew(tb, topic, group)
		_, err = w.Bus().Trim(tb.Context(), topic, admin.TrimQuery{Before: info.Head}, true)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// renew deletes a group of a topic, and makes it again at the first event. It has no member.
func (w *world) renew(tb testing.TB, topic, group string) {
	tb.Helper()
	if err := w.Bus().DeleteGroup(tb.Context(), topic, group); err != nil {
		tb.Fatal(err)
	}
	opts := eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.FromOffset(1)}
	sub, err := w.Bus().Subscribe(tb.Context(), opts.WithDefaults(), declining{})
	if err == nil {
		err = sub.Unsubscribe(tb.Context())
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// compact has the topic compacted beyond a new group of it, up to its head.
func (w *world) compact(tb testing.TB, topic, group string) {
	tb.Helper()
	w.renew(tb, topic, group)
	least := admin.MinCompactionAge
	_, err := w.Bus().SetTopic(tb.Context(), topic, admin.TopicSettings{Compaction: &admin.Compaction{MinAge: least, Hold: least, Grace: least}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	w.until(tb, "compaction has passed the group", func() (bool, error) {
		plan, err := w.Bus().SeekGroup(tb.Context(), topic, group, eventhub.FromOffset(1), false)
		return plan.Gap != nil && plan.Gap.Tombstones > 0, err
	})
}

// endIdle has a group ended that nobody uses.
func (w *world) endIdle(tb testing.TB, topic, group string) {
	tb.Helper()
	if _, err := w.Bus().SetTopic(tb.Context(), topic, admin.TopicSettings{GroupIdleExpiry: admin.Period(time.Second)}, nil); err != nil {
		tb.Fatal(err)
	}
	w.until(tb, "the group has ended", func() (bool, error) {
		_, err := w.Bus().Group(tb.Context(), topic, group)
		if eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
			return true, nil
		}
		return false, err
	})
}

// until asks until something is so that takes the hub some seconds, and of which it notifies nobody.
func (w *world) until(tb testing.TB, what string, isSo func() (bool, error)) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		so, err := isSo()
		if err != nil {
			tb.Fatal(err)
		}
		if so {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			tb.Fatalf("it is not so that %s: %v", what, ctx.Err())
		}
	}
}

// declining takes nothing.
type declining struct{}

func (declining) Deliver([]eventhub.Delivery) int { return 0 }
func (declining) Ended(error)                     {}

// giveUpAgain makes another dead letter of an order that was redriven.
func (w *world) giveUpAgain(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	w.settle(tb, "orders", "shipping", eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: "still none"},
		w.pull(tb, "orders", "shipping", 1))
	tail := eventhub.TailOptions{Topic: "orders.dlq", Start: eventhub.FromOffset(4)}
	err := eventhub.Follow(ctx, w.Bus(), tail, func(context.Context, eventhub.Delivery) error {
		cancel()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}
