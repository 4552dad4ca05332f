package eventhub

import "strings"

// CorrelationHeader is the header whose value ties events together that belong to
// one undertaking, whatever caused what; see admin.History.
const CorrelationHeader = "x-correlation-id"

// correlationHeaders are the names under which publishers write what CorrelationHeader
// says, the one that counts most first.
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

// Correlation returns the value by which admin.History finds an event with these
// headers, or "" if there is none or it has more than MaxCorrelationBytes. Of several headers
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

// MaxCorrelationBytes is the length of the values that admin.History finds; a
// longer one ties nothing together.
const MaxCorrelationBytes = 256
