package process

import (
	"context"
	"log/slog"

	"eventhub"
)

// known is what the states say of each process, by key.
type known map[string]said

// said is what the state of a process says.
type said struct {
	heartbeat uint64 // the offset of the last heartbeat that it is of
	isStale   bool
}

// readKnown reads the states that there are. A projector that may not read them, or finds more than
// the hub gives at once, goes on without: redeliveries that are as old as its start may be
// projected once more.
func readKnown(ctx context.Context, sub eventhub.Subscriber, log *slog.Logger) known {
	k := make(known)
	for d, err := range eventhub.Events(ctx, sub, eventhub.TailOptions{Topic: StateTopic, Start: eventhub.Snapshot}) {
		if err != nil {
			if ctx.Err() == nil {
				log.Warn("the states of before are not known", "topic", StateTopic, "error", err)
			}
			return make(known)
		}
		switch s := d.State; {
		case s == nil || s.Complete:
			return k
		case s.IsMark():
		default:
			if s.Snapshot != "" {
				clear(k)
			}
			var state State
			if d.Decode(&state) == nil { // whoever may publish may publish anything
				k[string(d.Record.Key())] = said{state.Heartbeat, state.Status == Stale}
			}
		}
	}
	return k
}
