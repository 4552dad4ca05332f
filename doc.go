// Package eventhub is what every program needs: what an event is, how to publish
// and to subscribe, and how things fail. It depends on the standard library
// alone, so a program can import it to handle events without importing a
// store, a broker or a protocol. Administration is in package admin.
//
// The engine in process (package bus) and a client of a remote hub satisfy the
// same [Publisher] and [Subscriber]; gateways call these interfaces and do not
// know which of the two answers.
//
// # Words
//
// A topic is an append-only sequence of events. An event's offset is its
// position there: strictly increasing, assigned at commit, never reused; gaps
// are allowed. A group is a durable consumer group; a member is one
// subscription in it. The cursor of a group is its ack floor: everything at or
// below it is done. A delivery is one attempt to hand an event to a member; its
// lease is the deadline by which the member must answer.
package eventhub
