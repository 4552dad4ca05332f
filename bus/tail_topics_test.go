package bus

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"eventhub"
)

func tailOpts(topic string) eventhub.TailOptions {
	return eventhub.TailOptions{Topic: topic}
}

// TestTailPatterns: a pattern's tail begins in each topic where Start says, and has
// topics that are created later from their first event on, whoever made them.
func TestTailPatterns(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("p.old", 1, 2)
		r.subscribe(opts("p.made", "g")) // a topic without events
		late, early := r.tail(tailOpts("p.*")), r.tail(eventhub.TailOptions{
			Topic: "q", Topics: []string{"p.*", "**.dlq", "q"}, Start: eventhub.Earliest})
		r.subscribe(opts("p.made.later", "g"))
		later := r.subscribe(opts("p.later", "g"))
		r.publish("p.old", 3, 1)
		r.publish("p.made", 1, 1)
		r.publish("p.later", 1, 2)
		r.publish("q", 1, 1)
		r.publish("other", 1, 1)
		later.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(later.Take()[0]))
		equal(t, "from latest", sorted(late.Take()), []string{"p.later@1", "p.later@2", "p.made@1", "p.old@3"})
		equal(t, "from earliest", sorted(early.Take()),
			[]string{"p.later.dlq@1", "p.later@1", "p.later@2", "p.made@1", "p.old@1", "p.old@2", "p.old@3", "q@1"})
		for _, start := range []eventhub.Start{{Kind: eventhub.StartAfterID, AfterID: "x"}, {Kind: eventhub.StartOffset, Offset: 1}} {
			for _, o := range []eventhub.TailOptions{{Topic: "p.*", Start: start}, {Topic: "p.old", Topics: []string{"q"}, Start: start}} {
				_, err := r.bus.Tail(context.Background(), o, late)
				wantCode(t, err, eventhub.CodeBadRequest)
			}
		}
		tails, _, _ := r.bus.tails.Holds()
		equal(t, "tails", tails, 2)
	})
}

func sorted(all []got) (names []string) {
	for _, d := range all {
		names = append(names, fmt.Sprintf("%s@%d", d.Topic, d.Offset))
	}
	slices.Sort(names)
	return names
}
