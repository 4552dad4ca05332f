package input

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"eventhub"
	"eventhub/internal/when"
)

// StartForms says what Start takes.
const StartForms = "latest, earliest, offset:N, after:ID, " + when.Forms

// earliestNumber is the least epoch ms that is taken for a time: in 1973. Who writes a smaller number means an offset,
// or seconds.
const earliestNumber = 100_000_000_000

// Start reads a place in a topic, see StartForms. now is what durations count
// back from.
func Start(s string, now time.Time) (eventhub.Start, error) {
	switch s {
	case "latest":
		return eventhub.Start{Kind: eventhub.StartLatest}, nil
	case "earliest":
		return eventhub.Earliest, nil
	}
	if id, ok := strings.CutPrefix(s, "after:"); ok {
		if err := eventhub.ValidateID(id); err != nil {
			return eventhub.Start{}, fmt.Errorf("%q: %s", s, eventhub.AsError(err).Message)
		}
		return eventhub.Start{Kind: eventhub.StartAfterID, AfterID: id}, nil
	}
	if number, ok := strings.CutPrefix(s, "offset:"); ok {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > eventhub.MaxOffset {
			return eventhub.Start{}, fmt.Errorf("%q: an offset is a number from 0 to %d", s, uint64(eventhub.MaxOffset))
		}
		return eventhub.Start{Kind: eventhub.StartOffset, Offset: n}, nil
	}
	ms, err := when.Parse(s, now)
	if err != nil {
		return eventhub.Start{}, fmt.Errorf("%w, nor one of latest, earliest, offset:N and after:ID", err)
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n > 0 && n < earliestNumber {
		return eventhub.Start{}, fmt.Errorf("%q is in %d, in epoch ms; an offset is offset:%s, and epoch seconds need three more digits", s, time.UnixMilli(n).UTC().Year(), s)
	}
	return eventhub.Start{Kind: eventhub.StartTime, TS: ms}, nil
}
