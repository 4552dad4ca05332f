package tail

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/store"
)

// known are the topics that a tail knows: those of the lives up to one, which are named
// for all stores by an era of their numbers (store.Era). All later ones it has from their
// first event on, whatever the commit times there, as it would if it had been here when
// they were created. If it began at the latest events, it has those that it knows from a
// time on. Its text is what eventhub.Knower gets.
type known struct {
	life, era uint64
	at        int64 // shortly before the tail began, epoch ms; 0: not said
}

const (
	// knownBase is that of the numbers in the text.
	knownBase = 36
	// knownMargin is longer than a commit takes: a tail that begins meanwhile has its
	// events, which have an earlier time.
	knownMargin = time.Second
)

func (k known) String() string {
	text := strconv.FormatUint(k.life, knownBase) + "-" + strconv.FormatUint(k.era, knownBase)
	if k.at > 0 {
		text += "-" + strconv.FormatInt(k.at, knownBase)
	}
	return text
}

func parseKnown(text string) (k known, err error) {
	life, rest, _ := strings.Cut(text, "-")
	era, at, timed := strings.Cut(rest, "-")
	if k.life, err = strconv.ParseUint(life, knownBase, 64); err == nil {
		k.era, err = strconv.ParseUint(era, knownBase, 64)
	}
	if err == nil && timed {
		k.at, err = strconv.ParseInt(at, knownBase, 64)
	}
	if err != nil || k.String() != text {
		return known{}, eventhub.Errorf(eventhub.CodeBadRequest, "known is %.48q; what the hub has sent is expected", text)
	}
	return k, nil
}

// knows returns what a tail knows that says this of itself, or nothing: what there is now.
func (ts *Tails) knows(ctx context.Context, text string) (known, error) {
	lives, err := ts.store.Lives(ctx)
	if err != nil {
		return known{}, store.Failed(err, "look up the newest topic")
	}
	newest := known{lives.Newest, lives.Eras[len(lives.Eras)-1].ID, max(0, ts.clock.Wall().Add(-knownMargin).UnixMilli())}
	if text == "" {
		ts.given.raise(newest.at)
		return newest, nil
	}
	k, err := parseKnown(text)
	if err != nil {
		return known{}, err
	}
	if k.at > ts.begun && k.at > ts.given.latest() && slices.ContainsFunc(lives.Eras, func(e store.Era) bool { return e.ID == k.era }) {
		k.at = ts.begun
	}
	return k.in(lives, newest), nil
}

// given is the latest time that a run of the hub has given to a tail that began. A later one is of a run before, by a clock that
// was ahead: of the hub that led until then, or before somebody set it. All that the tail has missed since is of
// this run, or was committed by that clock. So it goes on where this run began: rather events
// again, where the clock went back over them, than without those that were committed meanwhile.
type given struct{ at atomic.Int64 }

func (g *given) latest() int64 { return g.at.Load() }

func (g *given) raise(to int64) {
	for at := g.at.Load(); at < to && !g.at.CompareAndSwap(at, to); at = g.at.Load() {
	}
}

// in returns what the tail knows of this store. Where both went apart since, by a crash or
// because one is a copy, that is what there was before; of a store that has not the era it
// knows nothing, and goes by the time in all that there is.
func (k known) in(lives store.Lives, newest known) known {
	if k.at > 0 {
		newest.at = k.at
	}
	found := false
	for _, e := range lives.Eras {
		if found {
			k.life = min(k.life, e.First-1)
		}
		found = found || e.ID == k.era
	}
	if !found {
		return newest
	}
	return known{min(k.life, newest.life), newest.era, newest.at}
}

// resumed returns where a tail continues that has begun at start, in topics that it knows. A tail gets all that is
// committed after it began, whatever time it names: one that is later than its beginning is of a clock that was
// ahead, or has not come yet.
func (k known) resumed(start eventhub.Start) eventhub.Start {
	switch {
	case start.Kind == eventhub.StartTime && k.at > 0:
		start.TS = min(start.TS, k.at)
	case start.Kind == eventhub.StartLatest && k.at > 0:
		return eventhub.Start{Kind: eventhub.StartTime, TS: k.at}
	case start.Kind == eventhub.StartEarliest:
		return fromItsFirst
	}
	return start
}

// fromItsFirst is where a tail begins that was to have all events of a topic: at the first
// one, and it is told what was removed before, which eventhub.Earliest does not ask for.
var fromItsFirst = eventhub.Start{Kind: eventhub.StartTime}

// start returns where a tail begins in a topic for which it has no place. A life of 0 is
// one that was not there a moment ago.
func (k known) start(life uint64, start eventhub.Start) eventhub.Start {
	isPlace := start.Kind == eventhub.StartAfterID || start.Kind == eventhub.StartOffset
	if isPlace || life != 0 && life <= k.life {
		return start
	}
	return fromItsFirst
}

func (t *Tail) tellKnown(k known) {
	if r, ok := t.receiver.(eventhub.Knower); ok {
		r.Know(k.String())
	}
}
