package admin

// Bounds of a trace. DefaultTraceNodes counts where nobody says how many nodes are wanted. MaxTraceBytes
// bounds what a trace has of its events, in bytes: what would be beyond it is left out as what is
// beyond the other bounds.
const (
	MaxTraceDepth     = 16
	MaxTraceNodes     = 10_000
	DefaultTraceNodes = 1000
	MaxTraceBytes     = 8 << 20
)

// Trace says what led to an event, and what came of it: the events that caused
// it, the events that caused those, and so on; and the same downwards.
type Trace struct {
	ID string `json:"id"`
	// Nodes begins with the events that have the ID, in byte order of topics. The
	// others follow by distance, the nearest first.
	Nodes []TraceNode `json:"nodes"`
	// Edges are all causes of nodes that are nodes themselves.
	Edges []TraceEdge `json:"edges"`
	// Truncated: there is more, beyond the bounds that were asked for.
	Truncated bool `json:"truncated"`
}

// TraceNode is one event of a trace, or an id that an event names as a cause and
// no topic has.
type TraceNode struct {
	// ID is empty where the node is Hidden and is no cause of another one.
	ID string `json:"id,omitempty"`
	// Distance is how many steps are between the event and the one asked for:
	// negative for its causes, positive for its effects.
	Distance int `json:"distance"`
	// Missing: no topic has the event, because it was trimmed, or never was here. It
	// has no field of the following ones.
	Missing bool `json:"missing,omitempty"`
	// Hidden: a topic that the caller may not read has the event, or, without an ID, one or
	// more effects of the event in CausedBy. It has no field of the others.
	Hidden bool `json:"hidden,omitempty"`

	Topic    string   `json:"topic,omitempty"`
	Offset   uint64   `json:"offset,omitempty"`
	TS       int64    `json:"ts,omitempty"` // epoch milliseconds
	Key      string   `json:"key,omitempty"`
	CausedBy []string `json:"caused_by,omitempty"`
	// Preview is the beginning of the payload.
	Preview string `json:"preview,omitempty"`
	// Groups says what became of the event in each group of its topic. State is
	// "dead_lettered", instead of "done", if the dead letter is in the trace.
	Groups []EventGroup `json:"groups,omitempty"`
}

// TraceEdge says that one node caused another. Both are places in Trace.Nodes,
// from 0.
type TraceEdge struct {
	Cause  int `json:"cause"`
	Effect int `json:"effect"`
	// Cycle: the effect is a cause of the cause. Without these edges the trace has
	// no cycles.
	Cycle bool `json:"cycle,omitempty"`
}
