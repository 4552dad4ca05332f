package causality

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"eventhub"
	"eventhub/admin"
)

const (
	// previewBytes is how much of a payload a trace shows.
	previewBytes = 160
	// edgesPerNode bounds the edges of a trace. They are more than its nodes only
	// where events have many causes, or one id is in many topics.
	edgesPerNode = 16
)

// walker collects a trace. It goes up from id to causes and down from id to
// effects, a step at a time on both sides, so that the limit leaves out what is far
// away, and looks up each id once on each side: cycles end there.
//
// Invariant: a node is there once for each event, and each id that was looked for
// upwards and found nowhere is one node. What is concealed from the caller is one node for
// each id that an event names, and one for all effects of an id; the walk ends there.
type walker struct {
	past   Links
	groups Groups
	limit  int
	left   int // bytes that the nodes may still have

	trace   admin.Trace
	byID    map[string][]int // places of nodes
	byPlace map[eventhub.Place]bool
	letters map[letter]bool
}

// letter is what a dead letter is about.
type letter struct {
	Topic  string `json:"topic"`
	Offset uint64 `json:"offset"`
	Group  string `json:"group"`
}

// Walk returns what led to the event with that id and what came of it: at most limit
// events, each at most depth steps away, of at most admin.MaxTraceBytes. CodeUnknownID where no topic has the event and
// no event names it as its cause; the errors of past and groups as they are.
func Walk(ctx context.Context, past Links, groups Groups, id string, depth, limit int) (*admin.Trace, error) {
	w := &walker{
		past: past, groups: groups, limit: limit, left: admin.MaxTraceBytes,
		trace: admin.Trace{ID: id, Nodes: []admin.TraceNode{}, Edges: []admin.TraceEdge{}},
		byID:  make(map[string][]int), byPlace: make(map[eventhub.Place]bool), letters: make(map[letter]bool),
	}
	causes, err := w.begin(ctx, id)
	if err != nil {
		return nil, err
	}
	effects := []string{id}
	above, below := map[string]bool{id: true}, make(map[string]bool)
	for distance := 1; distance <= depth && !w.trace.Truncated && len(causes)+len(effects) > 0; distance++ {
		if causes, err = w.up(ctx, fresh(above, causes), -distance); err != nil {
			return nil, err
		}
		if effects, err = w.down(ctx, fresh(below, effects), distance); err != nil {
			return nil, err
		}
	}
	if err := w.lookBeyond(ctx, fresh(above, causes), fresh(below, effects)); err != nil {
		return nil, err
	}
	w.connect()
	w.markCycles()
	return &w.trace, w.addGroups(ctx)
}

// fresh returns the ids that were not seen, and notes that they are.
func fresh(seen map[string]bool, ids []string) []string {
	return slices.DeleteFunc(ids, func(id string) bool {
		before := seen[id]
		seen[id] = true
		return before
	})
}

// begin adds the events that are asked for, and returns their causes. An event that
// is gone but has effects is a missing one; one that nobody knows is an error.
func (w *walker) begin(ctx context.Context, id string) (causes []string, err error) {
	events, err := w.find(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, f := range events {
		e, err := w.add(f, 0)
		if err != nil {
			return nil, err
		}
		causes = append(causes, e.CausedBy...)
	}
	if len(events) > 0 {
		_, err := w.concealed(ctx, id, 0)
		return causes, err
	}
	effects, err := w.past.Effects(ctx, id, eventhub.Place{}, 1)
	if err != nil {
		return nil, err
	}
	if len(effects) == 0 {
		return nil, eventhub.Errorf(eventhub.CodeUnknownID, "no topic has the event %q, and no event names it as its cause", id)
	}
	return nil, w.addUnseen(ctx, id, 0)
}

// find returns the events with an id. One that is in more topics than a page has leaves some out.
func (w *walker) find(ctx context.Context, id string) ([]admin.Found, error) {
	events, err := w.past.Find(ctx, id, min(w.limit+1, admin.MaxPage))
	w.trace.Truncated = w.trace.Truncated || len(events) == admin.MaxPage
	return events, err
}

// up adds the events of ids and returns their causes.
func (w *walker) up(ctx context.Context, ids []string, distance int) (causes []string, err error) {
	for _, id := range ids {
		if w.trace.Truncated {
			return nil, nil
		}
		events, err := w.find(ctx, id)
		if err != nil {
			return nil, err
		}
		if len(events) == 0 {
			err = w.addUnseen(ctx, id, distance)
		} else {
			_, err = w.concealed(ctx, id, distance)
		}
		if err != nil {
			return nil, err
		}
		for _, f := range events {
			e, err := w.add(f, distance)
			if err != nil {
				return nil, err
			}
			causes = append(causes, e.CausedBy...)
		}
	}
	return causes, nil
}

// down adds the effects of ids and returns their ids.
func (w *walker) down(ctx context.Context, ids []string, distance int) (effects []string, err error) {
	for _, id := range ids {
		for after := (eventhub.Place{}); !w.trace.Truncated; {
			events, err := w.past.Effects(ctx, id, after, atOnce)
			if err != nil {
				return nil, err
			}
			for _, f := range events {
				e, err := w.add(f, distance)
				if err != nil {
					return nil, err
				}
				effects = append(effects, e.ID)
				after = eventhub.Place{Topic: f.Topic, Offset: f.Offset}
			}
			if len(events) == 0 {
				break
			}
		}
		if err := w.concealedEffects(ctx, id, distance); err != nil {
			return nil, err
		}
	}
	return effects, nil
}

// lookBeyond finds out whether there are events after the last step.
func (w *walker) lookBeyond(ctx context.Context, causes, effects []string) error {
	for _, id := range causes {
		w.trace.Truncated = w.trace.Truncated || len(w.byID[id]) == 0
	}
	for _, id := range effects {
		if w.trace.Truncated {
			return nil
		}
		events, err := w.past.Effects(ctx, id, eventhub.Place{}, atOnce)
		if err != nil {
			return err
		}
		w.trace.Truncated = slices.ContainsFunc(events, func(f admin.Found) bool {
			return !w.byPlace[eventhub.Place{Topic: f.Topic, Offset: f.Offset}]
		})
	}
	return nil
}

// add adds the node of an event that has none, where there is room, and returns the
// event.
func (w *walker) add(f admin.Found, distance int) (*eventhub.Event, error) {
	e, err := f.Event()
	if err != nil {
		return nil, err
	}
	at := eventhub.Place{Topic: f.Topic, Offset: f.Offset}
	if w.byPlace[at] {
		return &e, nil
	}
	added := w.node(admin.TraceNode{
		ID: e.ID, Distance: distance, Topic: f.Topic, Offset: f.Offset, TS: e.TS, Key: e.Key,
		CausedBy: e.CausedBy, Preview: preview(e.Payload),
	})
	if !added {
		return &e, nil
	}
	w.byPlace[at] = true
	if eventhub.IsDeadLetterTopic(f.Topic) {
		var about letter
		// What is no dead letter there is about nothing.
		if json.Unmarshal(e.Payload, &about) == nil && eventhub.DeadLetterTopic(about.Topic) == f.Topic {
			w.letters[about] = true
		}
	}
	return &e, nil
}

// addUnseen adds the node of an id of which the caller sees no event.
func (w *walker) addUnseen(ctx context.Context, id string, distance int) error {
	is, err := w.concealed(ctx, id, distance)
	if err == nil && !is && len(w.byID[id]) == 0 {
		w.node(admin.TraceNode{ID: id, Distance: distance, Missing: true})
	}
	return err
}

// concealed adds a node for what is concealed of an id that the caller knows, if something is.
func (w *walker) concealed(ctx context.Context, id string, distance int) (is bool, err error) {
	from, ok := w.past.(admin.Concealer)
	if !ok || slices.ContainsFunc(w.byID[id], func(n int) bool { return w.trace.Nodes[n].Hidden }) {
		return ok, nil
	}
	if is, err = from.ConcealsEvent(ctx, id); is {
		w.node(admin.TraceNode{ID: id, Distance: distance, Hidden: true})
	}
	return is, err
}

// concealedEffects adds a node for those effects of an event in the trace that are concealed.
func (w *walker) concealedEffects(ctx context.Context, id string, distance int) error {
	from, ok := w.past.(admin.Concealer)
	if !ok || !slices.ContainsFunc(w.byID[id], func(n int) bool { return !w.trace.Nodes[n].Hidden }) {
		return nil
	}
	is, err := from.ConcealsEffects(ctx, id)
	if is {
		w.node(admin.TraceNode{Distance: distance, Hidden: true, CausedBy: []string{id}})
	}
	return err
}

func (w *walker) node(n admin.TraceNode) (added bool) {
	w.left -= sizeOf(&n)
	if len(w.trace.Nodes) == w.limit || w.left < 0 {
		w.trace.Truncated = true
		return false
	}
	w.byID[n.ID] = append(w.byID[n.ID], len(w.trace.Nodes))
	w.trace.Nodes = append(w.trace.Nodes, n)
	return true
}

// sizeOf is about how many bytes a node has in an answer, besides its groups and edges.
func sizeOf(n *admin.TraceNode) int {
	size := 100 + len(n.ID) + len(n.Topic) + len(n.Key) + len(n.Preview)
	for _, id := range n.CausedBy {
		size += len(id) + 3
	}
	return size
}

// sizeOfGroups is the same of what became of an event in its groups.
func sizeOfGroups(groups []admin.EventGroup) (size int) {
	for i := range groups {
		g := &groups[i]
		size += 120 + len(g.Group)
		for a := range g.History {
			size += 150 + len(g.History[a].Reason)
		}
	}
	return size
}

// preview cuts a payload at a character.
func preview(payload []byte) string {
	if len(payload) <= previewBytes {
		return string(payload)
	}
	cut := previewBytes
	for !utf8.RuneStart(payload[cut]) {
		cut--
	}
	return string(payload[:cut])
}

// connect draws the edges.
func (w *walker) connect() {
	most := w.limit * edgesPerNode
	for effect := range w.trace.Nodes {
		var causes []int
		for _, id := range w.trace.Nodes[effect].CausedBy {
			causes = append(causes, w.byID[id]...)
		}
		slices.Sort(causes)
		for _, cause := range slices.Compact(causes) { // one may be named twice
			if len(w.trace.Edges) == most {
				w.trace.Truncated = true
				return
			}
			w.trace.Edges = append(w.trace.Edges, admin.TraceEdge{Cause: cause, Effect: effect})
		}
	}
}

// markCycles marks the edges that lead back, seen from nodes without a cause here,
// and from the event asked for where there is none.
func (w *walker) markCycles() {
	slices.SortFunc(w.trace.Edges, func(a, b admin.TraceEdge) int {
		return cmp.Or(cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Effect, b.Effect))
	})
	edges := w.trace.Edges
	first := make([]int, len(w.trace.Nodes)+1) // of each node its first edge
	caused := make([]bool, len(w.trace.Nodes))
	for i := len(edges) - 1; i >= 0; i-- {
		caused[edges[i].Effect] = true
	}
	for n := range first {
		first[n], _ = slices.BinarySearchFunc(edges, n, func(e admin.TraceEdge, n int) int { return cmp.Compare(e.Cause, n) })
	}
	const (
		under = 1 // on the way from where it began to here
		done  = 2
	)
	state := make([]byte, len(w.trace.Nodes))
	var visit func(n int)
	visit = func(n int) {
		state[n] = under
		for i := first[n]; i < first[n+1]; i++ {
			switch effect := edges[i].Effect; state[effect] {
			case under:
				edges[i].Cycle = true
			case 0:
				visit(effect)
			}
		}
		state[n] = done
	}
	for _, roots := range []bool{true, false} {
		for n := range state {
			if state[n] == 0 && (!roots || !caused[n]) {
				visit(n)
			}
		}
	}
}

// addGroups adds what became of each event in the groups, of the nearest events where that is too much.
func (w *walker) addGroups(ctx context.Context) error {
	for i := range w.trace.Nodes {
		n := &w.trace.Nodes[i]
		if n.Missing || n.Hidden {
			continue
		}
		groups, err := w.groups.EventGroups(ctx, n.Topic, n.ID)
		if eventhub.ErrorCode(err) == eventhub.CodeUnknownID {
			continue // gone meanwhile
		}
		if err != nil {
			return err
		}
		for g := range groups {
			if groups[g].State == "done" && w.letters[letter{n.Topic, n.Offset, groups[g].Group}] {
				groups[g].State = "dead_lettered"
			}
		}
		if w.left -= sizeOfGroups(groups); w.left < 0 {
			w.trace.Truncated = true
			return nil
		}
		n.Groups = groups
	}
	return nil
}
