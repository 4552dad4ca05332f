package store

import (
	"context"
	"errors"

	"eventhub"
)

// ErrSucceeded: the store does nothing any more, because that of another hub has taken over what they share.
var ErrSucceeded = errors.New("another hub has taken over")

// Failed is what callers of the hub are answered where a store could not do what the format
// names, as in "read topic %q". They get CodeInternal; the cause is for the log, and in the
// error's chain. A context that has ended is no failure of the store, and returned as it is. With ErrSucceeded they
// get CodeNotActive: the other hub can do it.
func Failed(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, ErrSucceeded) {
		return eventhub.Wrap(eventhub.CodeNotActive, err, "this hub leads no more, and another one may; it could not "+format, args...)
	}
	return eventhub.Wrap(eventhub.CodeInternal, err, "The store failed to "+format+".", args...)
}
