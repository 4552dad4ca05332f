// Package guard stands before the engine, for every transport: it lets a principal do what its
// policy allows, and shows it what that lets it see. It owns what each operation asks for
// (docs/security.md has the table, and a test of package hub holds both against each other),
// and knows neither tokens nor connections. Package hub asks for a guard at each AUTH and for
// each request, and gives the gateways and the views nothing else of the engine.
//
// # What is refused, what is left out
//
// An operation that names a topic or a group is refused with CodeForbidden, whether there is
// such a topic or not; the error names the action and what was named. One that asks for many
// (patterns, lists, an id in any topic) has those that are allowed, and no more: what is left
// out is not counted, named or hinted at. A pattern of which nothing can be allowed is refused
// all the same, which says something of the policy alone. A change of everything that a
// pattern matches, such as its settings, needs the right to all of that.
//
// Patterns of groups and tails leave topics out for good, those that are created later too:
// the engine has the rules (eventhub.TopicRules) and keeps them with durable patterns.
//
// # Invariants
//
//   - A principal of full rights gets the engine itself: a guard costs it nothing.
//   - A guard keeps no right longer than the policy that it was made for. When a connection
//     has another principal, Adopt says of each of its subscriptions whether it goes on.
//   - Nothing of the engine is called before what was asked for is allowed.
//   - Decisions are remembered, each once for an action and a topic, as long as there are few.
//   - What is refused is reported once to whoever asked for the guard; what is left out is not.
//
// A guard is safe for concurrent use.
package guard

import (
	"context"
	"strings"
	"sync"

	"eventhub"
	"eventhub/admin"
	"eventhub/auth/policy"
)

// Engine is what guards stand before, and what they are.
type Engine interface {
	eventhub.Publisher
	eventhub.Producers
	eventhub.Recaller
	eventhub.Subscriber
	eventhub.Puller
	admin.Inspector
	admin.Operator
	admin.Scheduler
	admin.History
	admin.Importer
	admin.Backuper
	admin.Redriver
	admin.Remover
	admin.Settings
	// FindAmong is Find among the topics that show alone, and reports whether another one has
	// the id too.
	FindAmong(ctx context.Context, id string, limit int, shows func(topic string) bool) (found []admin.Found, hidden bool, err error)
	// KeyHistoryAmong is KeyHistory that shows the causes in some topics alone, and of others
	// says that they are hidden.
	KeyHistoryAmong(ctx context.Context, q admin.KeyHistoryQuery, shows func(topic string) bool) (admin.KeyHistoryPage, error)
	// TopicOf returns the topic of the event that a lease names, "" where it names none.
	TopicOf(l eventhub.Lease) string
}

// Denied is notified of an operation that is refused with CodeForbidden: the action, the topic
// or pattern ("" for the hub as a whole) and the group that were named. Callers may hold locks;
// it does not block.
type Denied func(a policy.Action, name, group string)

// For returns the engine as the principal of a policy may use it. denied may be nil.
func For(e Engine, p *policy.Policy, denied Denied) Engine {
	if p.Full() {
		return e
	}
	return &guard{engine: e, publisher: e, policy: p, denied: denied}
}

// guard is an Engine for whoever has not all rights.
type guard struct {
	engine    Engine
	publisher eventhub.Publisher // the engine, or what stands before it (Within)
	policy    *policy.Policy
	denied    Denied // nil: nobody wants to know

	mu      sync.Mutex
	decided map[question]decision
	last    question // the latest one, and its decision: most are asked again at once
	lastIs  decision
}

// question is what decisions are remembered by; group is that of subscribe.
type question struct{ topic, group string }

// decision has, for each action, a bit in each of two halves: that it is decided, and how.
type decision uint8

// maxDecided bounds the decisions that a guard remembers: of more topics than that few are
// asked for twice in a row. There may be a guard for each of ten thousand connections.
const maxDecided = 128

var actionBits = map[policy.Action]decision{policy.Publish: 1, policy.Subscribe: 2, policy.Read: 4, policy.Admin: 8}

// may refuses an action on one topic. The topic may be of memory that is used again.
func (g *guard) may(a policy.Action, topic, group string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mayLocked(a, topic, group)
}

// mayLocked is may with g.mu held.
func (g *guard) mayLocked(a policy.Action, topic, group string) error {
	bit := actionBits[a]
	d := g.lastIs
	if g.last.topic != topic || g.last.group != group {
		d = g.decided[question{topic, group}]
	}
	if d&bit == 0 {
		if err := eventhub.ValidateStoredTopic(topic); err != nil {
			return err
		}
		if len(g.decided) >= maxDecided || g.decided == nil {
			g.decided = make(map[question]decision)
		}
		d |= bit
		if g.policy.Allows(a, topic, group) {
			d |= bit << 4
		}
		g.last, g.lastIs = question{strings.Clone(topic), strings.Clone(group)}, d
		g.decided[g.last] = d
	}
	if d&(bit<<4) == 0 {
		return forbidden(a, topic, group)
	}
	return nil
}

func forbidden(a policy.Action, topic, group string) error {
	if group != "" {
		return eventhub.Errorf(eventhub.CodeForbidden, "the token does not allow %s on %q as group %q", a, topic, group)
	}
	return eventhub.Errorf(eventhub.CodeForbidden, "the token does not allow %s on %q", a, topic)
}

// mayAll refuses an action on all that a name means, a topic's or a pattern.
func (g *guard) mayAll(a policy.Action, name, group string) error {
	if !eventhub.IsPattern(name) {
		return g.may(a, name, group)
	}
	p, err := eventhub.ParsePattern(name)
	if err == nil && !g.policy.Covers(a, p, group) {
		err = forbidden(a, name, group)
	}
	return err
}

// mayView refuses to describe a topic, which read and admin each allow.
func (g *guard) mayView(topic string) error {
	err := g.may(policy.Read, topic, "")
	if err == nil || g.may(policy.Admin, topic, "") == nil {
		return nil
	}
	return err
}

// refuse returns why an operation is refused, nil where it is not, and reports it.
func (g *guard) refuse(err error, a policy.Action, name, group string) error {
	if err != nil && g.denied != nil && eventhub.ErrorCode(err) == eventhub.CodeForbidden {
		g.denied(a, name, group)
	}
	return err
}

// What refuses operations. The functions above decide what is left out, and report nothing.

// check refuses an action on one topic.
func (g *guard) check(a policy.Action, topic, group string) error {
	return g.refuse(g.may(a, topic, group), a, topic, group)
}

// all refuses an action on all that a name means, a topic's or a pattern.
func (g *guard) all(a policy.Action, name, group string) error {
	return g.refuse(g.mayAll(a, name, group), a, name, group)
}

// some refuses an action on a name where nothing that it means can be allowed.
func (g *guard) some(a policy.Action, name, group string) error {
	if !eventhub.IsPattern(name) {
		return g.check(a, name, group)
	}
	p, err := eventhub.ParsePattern(name)
	if err == nil && !g.policy.Touches(a, p, group) {
		err = forbidden(a, name, group)
	}
	return g.refuse(err, a, name, group)
}

// hub refuses an action on the hub as a whole.
func (g *guard) hub(a policy.Action) error {
	if g.policy.Everywhere(a) {
		return nil
	}
	err := eventhub.Errorf(eventhub.CodeForbidden, "the token does not allow %s on all topics, as this needs", a)
	return g.refuse(err, a, "", "")
}

// views refuses to describe a topic, which read and admin each allow.
func (g *guard) views(topic string) error {
	return g.refuse(g.mayView(topic), policy.Read, topic, "")
}

// shows reports whether a topic is part of lists.
func (g *guard) shows(topic string) bool { return g.mayView(topic) == nil }

// showsEntry reports whether an entry for a topic, or for all topics of a pattern, is part of
// lists.
func (g *guard) showsEntry(name string) bool {
	return g.mayAll(policy.Read, name, "") == nil || g.mayAll(policy.Admin, name, "") == nil
}

// page returns entries of a list, at most limit, without those that do not show. next reads
// at most n entries after the last one, or from the beginning where that is nil.
func page[T any](limit int, shows func(*T) bool, next func(last *T, n int) ([]T, error)) ([]T, error) {
	shown := []T{}
	var last *T
	for n := limit; ; n = admin.MaxPage {
		entries, err := next(last, n)
		if err != nil {
			return nil, err
		}
		for i := range entries {
			if !shows(&entries[i]) {
				continue
			}
			if shown = append(shown, entries[i]); len(shown) == limit {
				return shown, nil
			}
		}
		if len(entries) < n {
			return shown, nil
		}
		last = &entries[len(entries)-1]
	}
}

// HandOver hands items over whose outcome each has for itself, and answers for those that are
// refused. The engine gets the items themselves where none is.
func HandOver[T any](items []T, check func(*T) error, refuse func(*T, error), over func([]T, func([]T)), done func([]T)) {
	var places []int // of rest, in items
	var rest []T
	denied := false
	for i := range items {
		err := check(&items[i])
		if err != nil && !denied {
			denied = true
			rest = append(make([]T, 0, len(items)), items[:i]...)
			for place := range i {
				places = append(places, place)
			}
		}
		switch {
		case err != nil:
			refuse(&items[i], err)
		case denied:
			rest, places = append(rest, items[i]), append(places, i)
		}
	}
	switch {
	case !denied:
		over(items, done)
	case len(rest) == 0:
		done(items)
	default:
		over(rest, func(rest []T) {
			for i, place := range places {
				items[place] = rest[i]
			}
			done(items)
		})
	}
}
