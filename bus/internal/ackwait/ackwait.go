// Package ackwait lets publications wait until groups have acked their events. It owns the
// waits that are under way, and for each group which offsets somebody waits for.
//
// Nothing of that is durable: the groups are loaded before the publication is submitted, and
// after its commit each of them learns which offsets somebody waits for (Group). A group
// notifies when one of them is done; where its cursor moves over offsets that it has no entry
// for, it looks through those that are awaited. While nobody waits, all this is one look at
// the length of a map.
//
// # Invariants
//
//   - A publication has one outcome, the first; done is called once, when all publications
//     of the call have theirs.
//   - A publication has no error only where each of its groups has acked all its events.
//   - A group notifies nobody twice of an event, and forgets a wait that is over.
//
// # Goroutines and locks
//
// A waiting publication has one timer and no goroutine, except where its events were done
// before: one then reads what became of them. The timer's goroutine calls done, also when the
// last group has acked: that is found out under the lock of a group, where a callback must
// not run.
//
// The exported methods of a Group are called under the lock of the group, which NewGroup
// got. The lock of a waiter is taken under it, and no other one under that.
//
// Its caller is the bus, which finds and makes the groups (Finder). It imports the state of
// groups, the reader of dead letters, and the jobs of publications.
package ackwait

import (
	"context"
	"sync"
	"time"

	"eventhub"
	"eventhub/bus/internal/deadletter"
	"eventhub/bus/internal/publish"
)

// Finder finds the groups that are waited for.
type Finder interface {
	// Find returns a group that is there; nil where it is to be made with its topic.
	Find(ctx context.Context, topic, name string) (*Group, error)
	// Make returns a group, and makes it where it is not there.
	Make(ctx context.Context, topic, name string) (*Group, error)
}

// Waits are the waits of a hub.
type Waits struct {
	finder  Finder
	letters *deadletter.Letters
	open    sync.WaitGroup // publications that wait, and goroutines that ask
}

// New returns the waits of a hub. finder finds its groups; letters knows what they gave up.
func New(finder Finder, letters *deadletter.Letters) *Waits {
	return &Waits{finder: finder, letters: letters}
}

// Drain returns when nobody waits any more. Before, all groups have ended.
func (w *Waits) Drain() { w.open.Wait() }

// Call returns what lets the publications of one call wait, nil where none wants to. The
// waits end with ctx.
func (w *Waits) Call(ctx context.Context, pubs []eventhub.Publication) publish.Waits {
	for i := range pubs {
		if len(pubs[i].WaitFor) > 0 {
			return &call{waits: w, ctx: ctx, groups: make(map[groupKey]*Group)}
		}
	}
	return nil
}

// groupKey names a group in a topic.
type groupKey struct{ topic, group string }

// Check implements publish.Waits: it refuses a publication that asks for a wait that cannot
// be, and finds the groups that it names, as far as they are there.
func (c *call) Check(p *eventhub.Publication, now time.Time) error {
	if err := validate(p, now); err != nil {
		return err
	}
	return c.each(p, c.waits.finder.Find)
}

// Prepare implements publish.Waits: it makes the groups that a publication waits for in
// topics that are to be created. It comes last of what may refuse the publication, so that
// one that is refused leaves nothing; what refuses it in its commit may leave the topic, with
// groups that their patterns would bring.
func (c *call) Prepare(p *eventhub.Publication) error { return c.each(p, c.waits.finder.Make) }

// each calls find for each group that a publication names in each of its topics, and that was
// not found yet.
func (c *call) each(p *eventhub.Publication, find func(ctx context.Context, topic, name string) (*Group, error)) error {
	for _, name := range p.WaitFor {
		for i := range p.Events {
			key := groupKey{topic: p.Events[i].Topic, group: name}
			if c.groups[key] != nil {
				continue
			}
			if err := eventhub.ValidateTopic(key.topic); err != nil {
				return err
			}
			g, err := find(c.ctx, key.topic, name)
			if err != nil {
				return err
			}
			if g != nil {
				c.groups[key] = g
			}
		}
	}
	return nil
}

func validate(p *eventhub.Publication, now time.Time) error {
	if err := p.ValidateWait(); err != nil {
		return err
	}
	for i := range p.Events {
		if p.Events[i].Due(now) > now.UnixMilli() {
			return eventhub.Errorf(eventhub.CodeBadRequest, "wait_for is given, and event %d is scheduled; that cannot be waited for", i)
		}
	}
	return nil
}
