package outbox

import (
	"eventhub"
)

// ErrNoTable is returned by Check and Run where the database has no outbox.
var ErrNoTable error = eventhub.Errorf(eventhub.CodeBadRequest, "the database has no outbox; make one with: eventhub outbox migrate")

// CheckVersion returns an error where a table is of another version than this program
// knows. It is for implementations of [Table].
func CheckVersion(table, known int) error {
	switch {
	case table > known:
		return eventhub.Errorf(eventhub.CodeConflict, "the outbox is of version %d; this program knows up to %d: use a newer one", table, known)
	case table < known:
		return eventhub.Errorf(eventhub.CodeConflict, "the outbox is of version %d; this program needs %d: run eventhub outbox migrate", table, known)
	}
	return nil
}

// UnknownRow is the error of a row that is not there. It is for implementations of [Keeper].
func UnknownRow(id string) error {
	return eventhub.Errorf(eventhub.CodeUnknownID, "the outbox has no row %q", id)
}

// CheckPurge returns an error for a status whose rows Purge must not remove. It is for
// implementations of [Keeper].
func CheckPurge(status Status) error {
	if status == Sent || status == Parked {
		return nil
	}
	return eventhub.Errorf(eventhub.CodeBadRequest, "rows that are %q are not removed; %s and %s are", status, Sent, Parked)
}
