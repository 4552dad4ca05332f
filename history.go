package eventhub

import (
	"context"
	"strings"
)

// CorrelationHeader is the header whose value ties events together that belong to
// one undertaking, whatever caused what; see History.Correlated.
const CorrelationHeader = "x-correlation-id"

// correlationHeaders are the names under which publishers write what CorrelationHeader
// says, the one that counts first in front.
var correlationHeaders = [...]string{CorrelationHeader, "correlation-id", "correlationid", "ce-correlationid"}

// IsCorrelationHeader reports whether a header of that name says what CorrelationHeader
// does: x-correlation-id, correlation-id, correlationId or ce-correlationid, in any case.
func IsCorrelationHeader(name string) bool { return correlationRank(name) < len(correlationHeaders) }

// correlationRank is the place of a header's name among correlationHeaders, their number
// for any other.
func correlationRank(name string) int {
	for i, known := range correlationHeaders {
		if len(name) == len(known) && strings.EqualFold(name, known) {
			return i
		}
	}
	return len(correlationHeaders)
}

// Correlation returns the value by which History.Correlated finds an event with these
// headers, "" for none: where it has more than MaxCorrelationBytes too. Of several headers
// that say it, x-correlation-id counts before the others, and of names that differ in
// case alone the first in byte order.
func Correlation(headers map[string]string) (value string) {
	best, first := len(correlationHeaders), ""
	for name, v := range headers {
		rank := correlationRank(name)
		if rank < best || rank == best && rank < len(correlationHeaders) && name < first {
			best, first, value = rank, name, v
		}
	}
	if len(value) > MaxCorrelationBytes {
		return ""
	}
	return value
}

// MaxCorrelationBytes is the length of the values that History.Correlated finds; a
// longer one ties nothing together.
const MaxCorrelationBytes = 256

// ReplayQuery says what of the past is read.
type ReplayQuery struct {
	// Topic may be a pattern: its topics are read one after the other, in byte
	// order.
	Topic string
	// Start is where to begin: the zero value, unlike that of a subscription, means
	// the first event there is. A start behind an event or at an offset goes with one
	// topic only; StartLatest has nothing to replay and is CodeBadRequest, save as the
	// zero value.
	Start Start
	// Life, where not 0, is the life that is meant of the one topic, as History.Life told
	// it: CodeUnknownID where the topic has another one, or is not there. So a replay that
	// goes on where an earlier one has ended reads the same topic, or nothing.
	Life uint64
	// ToTS, where not 0, ends each topic before the first event committed at or after
	// it, in epoch milliseconds.
	ToTS int64
	// Limit, where not 0, ends the replay after so many events.
	Limit int
	// Filter lets only some events through; the others do not count for Limit.
	Filter *Filter
}

// Place says where an event is.
type Place struct {
	Topic  string `json:"topic"`
	Offset uint64 `json:"offset"`
	// TS, of SubscribeOptions.Places, is when the event was committed, epoch ms; 0
	// where that is not known.
	TS int64 `json:"-"`
}

// Found is an event with its topic.
type Found struct {
	Topic string
	Item
}

// History reads what was published, however long ago. Its methods are safe for
// concurrent use.
type History interface {
	// Replay calls visit for each event that q asks for, up to the heads that there
	// were when it began. A record is valid until visit returns. It reads no faster
	// than visit takes, holds nothing of the store meanwhile, and ends with the error
	// that visit returns. CodeUnknownID: a start behind an event that does not exist, or a
	// topic that was deleted before all of it was seen that there was to see, and perhaps
	// created again. Without an error all of it was seen.
	Replay(ctx context.Context, q ReplayQuery, visit func(topic string, item Item) error) error

	// Life returns the number of a topic's life, from 1 to MaxOffset, or 0 where there is
	// no such topic. One that is deleted and created again has another.
	Life(ctx context.Context, topic string) (uint64, error)

	// Find returns the events with that id: one for each topic that has it, in byte
	// order of topics; at most limit, from 1 to MaxPage.
	Find(ctx context.Context, id string, limit int) ([]Found, error)

	// Effects returns the events that name the id in CausedBy, in the order of
	// topics and offsets, those behind the place: at most limit, from 1 to MaxPage,
	// and fewer where their records come to 16 MiB. When there are no more it returns
	// none. Events that were stored before the hub kept such links are not found.
	Effects(ctx context.Context, id string, after Place, limit int) ([]Found, error)

	// Correlated returns the events with that value in the header
	// CorrelationHeader, like Effects.
	Correlated(ctx context.Context, correlation string, after Place, limit int) ([]Found, error)
}

// Importer takes back what was exported. Its methods are safe for concurrent use.
type Importer interface {
	// Import appends events as they were: id, ts and all the rest are kept, and so
	// are the commit time where it is not before that of the topic's newest event,
	// and Offset where it is above that one's. So what comes in order into a hub that
	// has none of it is the same there, byte for byte. Events that are there already
	// are not added again (Receipt.Duplicate). All are added in one atomic step, or
	// none. Topics of the hub's own are allowed; Delay and DeliverAt are not.
	Import(ctx context.Context, events ...Event) ([]Receipt, error)
}

// Keeper copies what the hub keeps. Its methods are safe for concurrent use.
type Keeper interface {
	// Backup writes a copy of the store, as it is at a moment during the call, into
	// dir, which must not exist. It holds all that was acknowledged before the call,
	// and can be opened as a store. Publishing goes on meanwhile. CodeUnsupportedOp
	// where the store can not.
	Backup(ctx context.Context, dir string) error
}
