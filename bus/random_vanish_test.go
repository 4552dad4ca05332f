package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/bustest"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
)

// vanishing is a world of clients that go away in the middle of what they asked for: at
// any call of the store. Whether the hub has done it or not is nobody's concern; half
// of it is. What is durable is reported and can be deleted, what is reported is durable, and
// nothing is held for a member that is not there.
type vanishing struct {
	t     *rapid.T
	store *interposed
	bus   *Bus
	ins   []*inbox // of those who stayed
}

var vanished = make(map[string]int)

func TestRandomVanishing(t *testing.T) {
	testsize.Histories(t, testsize.Of(350, 40), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			w := &vanishing{t: t, store: &interposed{Store: memory.Open(memory.Options{})}}
			w.start()
			t.Cleanup(func() {
				w.store.off()
				_ = w.bus.Close()
			})
			for range rapid.IntRange(3, 20).Draw(t, "steps") {
				w.step()
				w.check()
			}
			w.finish()
			for point, n := range w.store.met {
				vanished[point] += n
			}
		})
	})
	t.Logf("clients have gone away at: %v", vanished)
}

func (w *vanishing) start() {
	var err error
	if w.bus, err = New(Options{Store: w.store}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *vanishing) step() {
	step := rapid.SampledFrom(strings.Fields("publish subscribe subscribe subscribe subscribe pull pull tail seek redrive settle delete unpattern drop pause leave restart")).Draw(w.t, "step")
	request := w.draw(step)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rapid.IntRange(0, 3).Draw(w.t, "goes away") > 0 {
		point := rapid.SampledFrom([]string{atCommit, atCommit, afterCommit, afterCommit, atGroup, atParts, atTopics, atTopic, atHead, atRead, beforeDeletion}).Draw(w.t, "point")
		w.store.when(point, rapid.IntRange(0, 2).Draw(w.t, "free"), cancel)
	}
	request(ctx)
	synctest.Wait()
	w.store.off()
	synctest.Wait()
}

func (w *vanishing) draw(step string) func(context.Context) {
	topic := rapid.SampledFrom([]string{"p.a", "p.b", "q"}).Draw(w.t, "topic")
	group := rapid.SampledFrom([]string{"g", "h"}).Draw(w.t, "group")
	pattern := rapid.SampledFrom([]string{"p.*", "**", "p.a", "q"}).Draw(w.t, "pattern")
	o := opts(pattern, group)
	o.MaxAttempts, o.AckTimeout = 1000, time.Hour
	if rapid.Bool().Draw(w.t, "several") {
		o.Topics = []string{rapid.SampledFrom([]string{"p.b", "*.a", "q"}).Draw(w.t, "also")}
	}
	switch step {
	case "publish":
		return func(ctx context.Context) { w.publish(ctx, topic) }
	case "subscribe":
		return func(ctx context.Context) {
			w.subscribe(ctx, func(in *inbox) (eventhub.Subscription, error) { return w.bus.Subscribe(ctx, o, in) })
		}
	case "tail":
		tail := eventhub.TailOptions{Topic: pattern, Topics: o.Topics, Start: o.Start}
		return func(ctx context.Context) {
			w.subscribe(ctx, func(in *inbox) (eventhub.Subscription, error) { return w.bus.Tail(ctx, tail, in) })
		}
	case "pull":
		return func(ctx context.Context) { w.pull(ctx, o) }
	case "seek":
		return func(ctx context.Context) {
			_, err := w.bus.SeekGroup(ctx, topic, group, eventhub.Earliest, true)
			w.expect(ctx, err, eventhub.CodeNotSubscribed)
		}
	case "redrive":
		return func(ctx context.Context) {
			q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: eventhub.DeadLetterTopic(topic)}, Apply: true, Rate: admin.MaxRedriveRate}
			_, err := w.bus.Redrive(ctx, q)
			w.expect(ctx, err, eventhub.CodeUnknownID)
		}
	case "delete":
		return func(ctx context.Context) {
			w.expect(ctx, w.bus.DeleteGroup(ctx, topic, group), eventhub.CodeNotSubscribed, eventhub.CodeBadRequest)
		}
	case "unpattern":
		return func(ctx context.Context) {
			w.expect(ctx, w.bus.DeleteGroup(ctx, "**", group), eventhub.CodeNotSubscribed)
		}
	case "drop":
		return func(ctx context.Context) { w.expect(ctx, w.bus.DeleteTopic(ctx, topic), eventhub.CodeUnknownID) }
	case "pause":
		return func(ctx context.Context) {
			w.expect(ctx, w.bus.PauseGroup(ctx, topic, group), eventhub.CodeNotSubscribed)
			_ = w.bus.ResumeGroup(context.Background(), topic, group)
		}
	case "leave":
		return func(ctx context.Context) {
			if n := len(w.ins); n > 0 {
				_ = w.ins[n-1].Sub.Unsubscribe(ctx)
				w.ins = w.ins[:n-1]
			}
		}
	case "restart":
		return func(context.Context) { w.restart() }
	}
	return func(context.Context) { w.giveUp() }
}

// expect takes any error of who has gone away, else those that the step may have.
func (w *vanishing) expect(ctx context.Context, err error, codes ...eventhub.Code) {
	if code := eventhub.ErrorCode(err); ctx.Err() == nil && err != nil && !slices.Contains(codes, code) {
		w.t.Fatal(err)
	}
}

func (w *vanishing) publish(ctx context.Context, topic string) {
	_, err := w.bus.Publish(ctx, eventhub.Event{Topic: topic, Payload: []byte(`1`)})
	w.expect(ctx, err)
}

func (w *vanishing) subscribe(ctx context.Context, begin func(*inbox) (eventhub.Subscription, error)) {
	in := &inbox{Inbox: bustest.Inbox{Room: -1}}
	sub, err := begin(in)
	w.expect(ctx, err)
	if in.Sub = sub; err == nil {
		w.ins = append(w.ins, in)
	}
}

// pull lets its leases run, or says that it is done.
func (w *vanishing) pull(ctx context.Context, o eventhub.GroupOptions) {
	if o.Topics = nil; o.Group == "" {
		return
	}
	ds, err := w.bus.Pull(ctx, o, 0)
	w.expect(ctx, err)
	var refs []eventhub.Ref
	for _, d := range ds {
		refs = append(refs, eventhub.Ref{Lease: d.Lease})
	}
	if len(refs) > 0 {
		_, err = w.bus.Settle(context.Background(), o.Topic, o.Group, eventhub.Settlement{Refs: refs})
		w.expect(ctx, err)
	}
}

// giveUp makes dead letters of what members hold.
func (w *vanishing) giveUp() {
	for _, in := range w.ins {
		if refs := leasesOf(in.Take()); len(refs) > 0 && !refs[0].Lease.IsZero() {
			_, _ = in.Sub.Settle(context.Background(), eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Refs: refs})
		}
	}
}

func (w *vanishing) restart() {
	before := w.reported()
	if err := w.bus.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.ins = nil
	w.start()
	synctest.Wait()
	if after := w.reported(); before != after {
		w.t.Fatalf("before the restart\n%s\nafter it\n%s", before, after)
	}
}

// reported is what the hub says of its patterns and groups.
func (w *vanishing) reported() string {
	ctx := context.Background()
	patterns, err := w.bus.Patterns(ctx, "")
	if err != nil {
		w.t.Fatal(err)
	}
	groups, err := w.bus.Groups(ctx, admin.GroupQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	var list []string
	for _, p := range patterns {
		list = append(list, fmt.Sprintf("%s has %q", p.Group, p.Pattern))
	}
	for _, g := range groups {
		list = append(list, g.Topic+"::"+g.Group)
	}
	return strings.Join(list, ", ")
}

// check compares it with what is durable, and members with those who stayed.
func (w *vanishing) check() {
	synctest.Wait()
	w.ins = slices.DeleteFunc(w.ins, func(in *inbox) bool {
		in.Mu.Lock()
		defer in.Mu.Unlock()
		return len(in.Ends) > 0
	})
	ctx := context.Background()
	var list []string
	patterns, err := w.store.ListPatterns(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range patterns {
		list = append(list, fmt.Sprintf("%s has %q", p.Group, p.Pattern))
	}
	topics, err := w.store.Store.ListTopics(ctx, "", 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, topic := range topics {
		groups, err := w.store.ListGroups(ctx, topic.Name)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, g := range groups {
			list = append(list, topic.Name+"::"+g.Group)
		}
	}
	if stored, reported := strings.Join(list, ", "), w.reported(); stored != reported {
		w.t.Fatalf("stored are\n%s\nreported are\n%s", stored, reported)
	}
	stayed := make(map[eventhub.Receiver]bool)
	for _, in := range w.ins {
		stayed[in] = true
	}
	for _, g := range w.bus.loaded() {
		g.mu.Lock()
		for _, m := range g.members {
			if !stayed[m.sub.receiver] {
				w.t.Errorf("%s::%s has a member that nobody has", g.log.Topic(), g.name)
			}
		}
		g.mu.Unlock()
	}
	for _, s := range w.bus.patterns.all() {
		if !stayed[s.receiver] {
			w.t.Errorf("the table of patterns has a subscription that nobody has")
		}
	}
	if n, _, _ := w.bus.tails.Holds(); n > len(w.ins) {
		w.t.Errorf("%d tails are there; %d subscriptions have stayed", n, len(w.ins))
	}
}

// finish deletes all that is reported; then nothing is left.
func (w *vanishing) finish() {
	ctx := context.Background()
	w.restart()
	patterns, err := w.bus.Patterns(ctx, "")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range patterns {
		if err := w.bus.DeleteGroup(ctx, p.Pattern, p.Group); err != nil {
			w.t.Fatal(err)
		}
	}
	groups, err := w.bus.Groups(ctx, admin.GroupQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, g := range groups {
		if err := w.bus.DeleteGroup(ctx, g.Topic, g.Group); err != nil {
			w.t.Fatal(err)
		}
	}
	if left := w.reported(); left != "" {
		w.t.Fatalf("left are %s", left)
	}
	w.check()
	if n := len(w.bus.patterns.groups); n != 0 {
		w.t.Fatalf("%d groups are in the table of patterns; none has one", n)
	}
}
