package wire

import (
	"eventhub"
	"eventhub/internal/naming"
)

// The names that the objects in a frame may have.
var (
	publishOptions   = []string{"id", "ts", "key", "sid", "headers", "tags", "caused_by", "delay_ms", "deliver_at", "wait_for", "wait_ms"}
	subscribeOptions = []string{"from", "ts", "after_id", "offset", "batch_size", "max_in_flight", "ack_timeout_ms", "max_attempts",
		"backoff", "manual_ack", "ordering", "topics", "filter", "batch", "conflate", "places", "known"}

	eventMembers    = []string{"topic", "payload", "opts"}
	filterMembers   = []string{"key", "cel", "headers", "tags"}
	backoffMembers  = []string{"min_ms", "max_ms"}
	conflateMembers = []string{"every_ms"}
	placeMembers    = []string{"topic", "offset", "ts"}
)

// unknownOption is the error for a name that is none of the known ones.
func unknownOption(where string, name []byte, known []string) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s has the unknown name %.48q%s", where, name, naming.DidYouMean(string(name), known))
}

// rename gives an option its name if it has an alias of that, and reports whether it had.
// The alias beside the name, among the options of the same object, is an error.
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
