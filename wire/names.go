package wire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"eventhub"
	"eventhub/internal/naming"
)

// ops are the names of the frames of clients.
var ops = []string{string(OpAuth), string(OpPublish), string(OpCancel), string(OpSubscribe), string(OpUnsubscribe), string(OpPause), string(OpResume),
	string(OpAck), string(OpNack), string(OpModack)}

// PlaceNames are the values of from that name a place, or a time, and StartNames all of them.
var (
	PlaceNames = []string{"latest", "earliest", "ts", "after_id", "offset"}
	StartNames = append(slices.Clone(PlaceNames), "snapshot")
)

// The names that the objects in a frame may have.
var (
	publishOptions   = []string{"id", "ts", "key", "sid", "headers", "tags", "caused_by", "delay_ms", "deliver_at", "expect", "wait_for", "wait_ms"}
	subscribeOptions = []string{"from", "ts", "after_id", "offset", "batch_size", "max_in_flight", "ack_timeout_ms", "max_attempts",
		"backoff", "manual_ack", "ordering", "topics", "filter", "batch", "conflate", "places", "known", "snapshot", "create"}

	eventMembers    = []string{"topic", "payload", "opts"}
	filterMembers   = []string{"key", "cel", "headers", "tags"}
	backoffMembers  = []string{"min_ms", "max_ms"}
	conflateMembers = []string{"every_ms"}
	expectMembers   = []string{"key_offset", "topic_offset"}
	placeMembers    = []string{"topic", "offset", "ts"}
)

// unknownOption is the error for a name that is none of the known ones.
func unknownOption(where string, name []byte, known []string) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s has the unknown name %.48q%s", where, name, naming.DidYouMean(string(name), known))
}

// allSpellings are the names of all options, and their aliases.
var allSpellings = func() (all []string) {
	all = slices.Concat(publishOptions, subscribeOptions)
	for _, a := range naming.Aliases {
		if slices.Contains(all, a.Name) {
			all = append(all, a.Alias)
		}
	}
	return all
}()

// spellings is a set of some of allSpellings, by their places. A frame's errors do not
// depend on the order of its members, so that order is not kept.
type spellings uint64

func (s *spellings) add(name []byte) {
	if i := slices.Index(allSpellings, string(name)); i >= 0 {
		*s |= 1 << i
	}
}

// misplaced returns the options that the frame itself has: one that is not obeyed would
// change what the client gets. The members id and delay_ms of some frames are options of
// others.
func (d *Decoder) misplaced(op Op) spellings {
	if !absent(d.m.delayMs) && op != OpNack {
		d.stray.add([]byte("delay_ms"))
	}
	if !absent(d.m.id) && op != OpAck && op != OpNack && op != OpModack && op != OpCancel {
		d.stray.add([]byte("id"))
	}
	return d.stray
}

// refuseOpts refuses options of an op that has none: what is meant would not be obeyed.
func (d *Decoder) refuseOpts(op Op) error {
	switch op {
	case OpAuth, OpCancel, OpUnsubscribe, OpPause, OpResume, OpAck, OpNack, OpModack:
	default:
		return nil
	}
	switch {
	case absent(d.m.opts):
		return nil
	case d.m.opts[0] != '{':
		return wrongType("opts", d.m.opts, "an object")
	case len(d.opts) == 0:
		return nil
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "opts has %.48q, and %s has no options: its members are beside op", d.opts[0].name, op)
}

// belongInOpts is the error for options outside the opts of a frame: those that are the
// op's own, or the first one of another op.
func (s spellings) belongInOpts(op Op) error {
	var own []string
	other := ""
	for i, spelling := range allSpellings {
		if s&(1<<i) == 0 {
			continue
		}
		name := naming.Canonical(spelling)
		ofPublish, ofSubscribe := slices.Contains(publishOptions, name), slices.Contains(subscribeOptions, name)
		switch {
		case op == OpPublish && ofPublish, op == OpSubscribe && ofSubscribe:
			own = append(own, strconv.Quote(spelling))
		case other == "" && ofPublish:
			other = fmt.Sprintf("%q belongs in the opts of %s", spelling, OpPublish)
		case other == "":
			other = fmt.Sprintf("%q belongs in the opts of %s", spelling, OpSubscribe)
		}
	}
	switch n := len(own); n {
	case 0:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s", other)
	case 1:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s belongs in opts", own[0])
	default:
		return eventhub.Errorf(eventhub.CodeBadRequest, "%s and %s belong in opts", strings.Join(own[:n-1], ", "), own[n-1])
	}
}

// rename gives an option its name if it has an alias of that, and reports whether it had.
// The alias together with the name, among the options of the same object, is an error.
func rename(all []option, o *option) (alias bool, _ error) {
	for i := range naming.Aliases {
		a := &naming.Aliases[i]
		if string(o.name) != a.Alias {
			continue
		}
		for j := range all {
			if string(all[j].name) == a.Name {
				return false, eventhub.Errorf(eventhub.CodeBadRequest, "%s", a.Both())
			}
		}
		o.name = []byte(a.Name)
		return true, nil
	}
	return false, nil
}

func renameAll(all []option) error {
	for i := range all {
		if _, err := rename(all, &all[i]); err != nil {
			return err
		}
	}
	return nil
}
