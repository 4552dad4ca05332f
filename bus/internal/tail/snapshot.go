package tail

import (
	"strconv"
	"strings"

	"eventhub"
)

// snapshotToken says which state a tail was given, and how far, to go on from it. Its text is
// what eventhub.StatePart.Snapshot has. It names the run of the hub, because what was erased
// between two runs is not known.
type snapshotToken struct {
	complete bool
	run      uint64 // Tails.run
	life     uint64 // of the topic; 0: there was none
	revision uint64 // Tails.revisions
	at       uint64 // the offset of the state
}

const (
	tokenPart     = "s" // some of the state, or none
	tokenComplete = "c"
)

func (k snapshotToken) String() string {
	text := tokenPart
	if k.complete {
		text = tokenComplete
	}
	for _, n := range []uint64{k.run, k.life, k.revision, k.at} {
		text += "-" + strconv.FormatUint(n, knownBase)
	}
	return text
}

func parseSnapshot(text string) (k snapshotToken, err error) {
	kind, rest, _ := strings.Cut(text, "-")
	k.complete = kind == tokenComplete
	for _, into := range []*uint64{&k.run, &k.life, &k.revision, &k.at} {
		var number string
		number, rest, _ = strings.Cut(rest, "-")
		if *into, err = strconv.ParseUint(number, knownBase, 64); err != nil {
			break
		}
	}
	if err != nil || k.String() != text {
		return snapshotToken{}, eventhub.Errorf(eventhub.CodeBadRequest, "snapshot is %.48q; what the hub has sent is expected", text)
	}
	return k, nil
}
