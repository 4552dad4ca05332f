package guard

import (
	"eventhub"
	"eventhub/auth/policy"
)

// Rights answers whether an operation would be refused. It is for a transport that has something
// to give away before it calls the engine, such as a place that others then wait for. The engine
// that For has returned asks again.
type Rights struct{ guard *guard } // nil: all

// RightsOf returns the rights by which e, what For has returned, refuses.
func RightsOf(e Engine) Rights {
	g, _ := e.(*guard)
	return Rights{g}
}

// Backup refuses whoever may not have a backup.
func (r Rights) Backup() error {
	if r.guard == nil {
		return nil
	}
	return r.guard.hub(policy.Admin)
}

// Import refuses whoever may import into no topic at all.
func (r Rights) Import() error {
	if r.guard == nil || r.guard.policy.Somewhere(policy.Admin) {
		return nil
	}
	err := eventhub.Errorf(eventhub.CodeForbidden, "the token does not allow %s on any topic", policy.Admin)
	return r.guard.refuse(err, policy.Admin, "", "")
}

// Replay refuses whoever may read nothing of a topic or a pattern.
func (r Rights) Replay(topic string) error {
	if r.guard == nil {
		return nil
	}
	return r.guard.some(policy.Read, topic, "")
}

// Tail refuses whoever may follow nothing of one of the patterns.
func (r Rights) Tail(patterns []eventhub.Pattern) error {
	if r.guard == nil {
		return nil
	}
	_, err := r.guard.joins(patterns, "")
	return err
}

// Permitted says what is allowed on a topic, or on all of them.
type Permitted struct{ Publish, Subscribe, Read, Admin bool }

// May says what is allowed on a topic, subscribe without a group; "" asks for all topics. It
// reports nothing to the audit, for it refuses nothing: it is for who shows people what they can
// do. e is what For has returned.
func May(e Engine, topic string) Permitted {
	g, ok := e.(*guard)
	if !ok {
		return Permitted{true, true, true, true}
	}
	may := func(a policy.Action) bool {
		if topic == "" {
			return g.policy.Everywhere(a)
		}
		return g.may(a, topic, "") == nil
	}
	return Permitted{may(policy.Publish), may(policy.Subscribe), may(policy.Read), may(policy.Admin)}
}
