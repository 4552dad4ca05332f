package rest

import "eventhub"

// Rights answers whether a request would be refused by what it calls, with CodeForbidden.
type Rights interface {
	Backup() error
	// Import refuses whoever may import into no topic at all.
	Import() error
	// Replay and Tail are about a topic, or patterns, and refuse where nothing of one is allowed.
	Replay(topic string) error
	Tail(patterns []eventhub.Pattern) error
}

// rights returns what is asked before something is given away.
func (a *Access) rights() Rights {
	if a.Rights != nil {
		return a.Rights
	}
	return anything{}
}

// anything is the Rights of an Access that has none.
type anything struct{}

func (anything) Backup() error { return nil }
func (anything) Import() error { return nil }

func (anything) Replay(string) error { return nil }

func (anything) Tail([]eventhub.Pattern) error { return nil }
