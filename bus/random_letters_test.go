package bus

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store/memory"
)

// letterRig is a bus whose dead letters are counted in two ways.
type letterRig struct {
	t     *rapid.T
	store *memory.Store
	bus   *Bus
	held  []heldLease
	seen  admin.DeadLetterCounts // of all comparisons
}

type heldLease struct {
	topic, group string
	ref          eventhub.Ref
}

var (
	letterTopicNames = []string{"o", "o-x"}
	letterGroupNames = []string{"g", "h"}
)

// TestRandomLetterCounts: whatever happens to events, groups and topics, those of the hub's own
// too, what is counted of dead letters is what one finds who looks at each of them.
func TestRandomLetterCounts(t *testing.T) {
	var seen admin.DeadLetterCounts
	testsize.Histories(t, testsize.Of(200, 20), func(t *rapid.T) {
		bubble.Check(t, func(t *rapid.T) {
			l := &letterRig{t: t, store: memory.Open(memory.Options{})}
			l.start()
			defer l.stop()
			for range rapid.IntRange(20, 150).Draw(t, "steps") {
				l.step()
				l.compare()
			}
			seen.Add(&l.seen)
		})
	})
	t.Logf("compared: %+v", seen)
	if min(seen.Open, seen.Redriven, seen.Done, seen.Requeued) == 0 {
		t.Errorf("not every state was met: %+v", seen)
	}
}

func (l *letterRig) start() {
	var err error
	if l.bus, err = New(Options{Store: l.store}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *letterRig) stop() {
	if err := l.bus.Close(); err != nil {
		l.t.Error(err)
	}
}

// step does something; whether it succeeds is no matter here.
func (l *letterRig) step() {
	ctx := context.Background()
	draw := func(most int, what string) int { return rapid.IntRange(0, most).Draw(l.t, what) }
	topic := rapid.SampledFrom(letterTopicNames).Draw(l.t, "topic")
	group := rapid.SampledFrom(letterGroupNames).Draw(l.t, "group")
	dlq := eventhub.DeadLetterTopic(topic)
	what := draw(24, "what")
	switch {
	case what < 4:
		e := eventhub.Event{Topic: topic, Payload: []byte("1")}
		_, _ = l.bus.Publish(ctx, e, e)
	case what < 9:
		o := eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.Earliest, MaxInFlight: 1 + draw(2, "most"), MaxAttempts: 2}
		got, _ := l.bus.Pull(ctx, o, eventhub.MinPullWait)
		for i := range got {
			l.held = append(l.held, heldLease{topic, group, eventhub.Ref{Lease: got[i].Lease}})
		}
	case what < 15 && len(l.held) > 0:
		h := l.held[len(l.held)-1]
		l.held = l.held[:len(l.held)-1]
		s := eventhub.Settlement{Verdict: eventhub.Ack, Refs: []eventhub.Ref{h.ref}}
		if draw(2, "nack") > 0 {
			s.Verdict, s.Terminal = eventhub.Nack, draw(3, "terminal") > 0
		}
		_, _ = l.bus.Settle(ctx, h.topic, h.group, s)
	case what < 18:
		_, _ = l.bus.Redrive(ctx, admin.RedriveQuery{Apply: true, DeadLetterQuery: admin.DeadLetterQuery{
			Topic: topic, All: draw(1, "all") > 0, Limit: draw(2, "limit")}})
	case what < 20:
		offset := uint64(1 + draw(3, "letter"))
		_, _ = l.bus.RequeueIf(ctx, topic, offset, []byte(`"anew"`), admin.MaxRedriveMarks, "me")
	case what < 21:
		start := rapid.SampledFrom([]eventhub.Start{eventhub.Earliest, eventhub.Latest}).Draw(l.t, "seek to")
		_, _ = l.bus.SeekGroup(ctx, topic, group, start, true)
	case what < 22:
		_ = l.bus.DeleteTopic(ctx, rapid.SampledFrom([]string{topic, dlq, dlq, admin.RedriveTopic}).Draw(l.t, "deleted"))
	case what < 23:
		_ = l.bus.DeleteGroup(ctx, topic, group)
	case what < 24:
		l.stop()
		l.start()
	default:
		time.Sleep(time.Duration(draw(5, "seconds")) * time.Second)
	}
	synctest.Wait()
}

// compare holds what is counted against a look at each dead letter.
func (l *letterRig) compare() {
	ctx := context.Background()
	list, err := l.bus.DeadLetterTopics(ctx, "", admin.MaxPage)
	if err != nil {
		l.t.Fatal(err)
	}
	type where struct{ topic, group string }
	counted, want := make(map[where]admin.DeadLetterCounts), make(map[where]admin.DeadLetterCounts)
	for _, t := range list {
		for _, g := range t.Groups {
			counted[where{t.Topic, g.Group}] = g.DeadLetterCounts
			l.seen.Add(&g.DeadLetterCounts)
		}
	}
	for _, topic := range letterTopicNames {
		err := l.bus.DeadLetters(ctx, admin.DeadLetterQuery{Topic: topic, All: true}, func(d *admin.DeadLetter) error {
			c := want[where{topic, d.Group}]
			*map[string]*uint64{admin.LetterOpen: &c.Open, admin.LetterRedriven: &c.Redriven,
				admin.LetterDone: &c.Done, admin.LetterRequeued: &c.Requeued}[d.State]++
			want[where{topic, d.Group}] = c
			return nil
		})
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			l.t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(counted, want) {
		l.t.Fatalf("counted %+v\nlooked at %+v", counted, want)
	}
}
