package eventhub

import "time"

// StartKind says where a subscription begins.
type StartKind uint8

// The ways to start. The zero value is StartLatest, as in the protocol.
const (
	StartLatest   StartKind = iota // after the last event there is
	StartEarliest                  // at the first event there is
	StartTime                      // at the first event committed at or after Start.TS
	StartAfterID                   // after the event Start.AfterID
	StartOffset                    // at Start.Offset
	StartSnapshot                  // of a live tail: with the state by key, and after it
)

// Start is where a tail begins, or a group that is being created: afterwards the
// group's cursor counts. [Earliest], [Latest], [At], [AfterID], [FromOffset] and, for a
// tail, [Snapshot] make one; the zero value is Latest.
type Start struct {
	Kind    StartKind
	TS      int64 // epoch milliseconds, commit time
	AfterID string
	Offset  uint64
}

// The starts that need nothing else.
var (
	Latest   = Start{}                    // after the last event there is
	Earliest = Start{Kind: StartEarliest} // at the first event there is
)

// Snapshot starts a live tail of one topic with its state by key, see StatePart.
var Snapshot = Start{Kind: StartSnapshot}

// At starts with the first event that was committed at t or later, to the
// millisecond: in each topic, if there are several.
func At(t time.Time) Start { return Start{Kind: StartTime, TS: t.UnixMilli()} }

// AfterID starts after the event with that id, in one topic; CodeUnknownID where the
// topic does not have it.
func AfterID(id string) Start { return Start{Kind: StartAfterID, AfterID: id} }

// FromOffset starts at an offset, from 1, in one topic. It may lie ahead.
func FromOffset(offset uint64) Start { return Start{Kind: StartOffset, Offset: offset} }

// Validate checks ranges; the error has CodeBadRequest.
func (s *Start) Validate() error {
	switch s.Kind {
	case StartLatest, StartEarliest:
		return nil
	case StartTime:
		if s.TS < 0 {
			return Errorf(CodeBadRequest, "ts is %d; epoch milliseconds are not negative", s.TS)
		}
	case StartAfterID:
		if err := checkID("after_id", s.AfterID); err != nil {
			return Errorf(CodeBadRequest, "%s", AsError(err).Message)
		}
	case StartOffset:
		if s.Offset > MaxOffset {
			return Errorf(CodeBadRequest, "offset is %d; at most %d is allowed", s.Offset, uint64(MaxOffset))
		}
	case StartSnapshot:
		return Errorf(CodeBadRequest, "from is snapshot; only a live tail begins with the state")
	default:
		return Errorf(CodeBadRequest, "start kind %d is unknown", s.Kind)
	}
	return nil
}
