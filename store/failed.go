package store

import (
	"context"
	"errors"

	"eventhub"
)

// Failed is what callers of the hub are answered where a store could not do what the format
// names, as in "read topic %q". They get CodeInternal; the cause is for the log, and in the
// error's chain. A context that has ended is no failure of the store, and returned as it is.
func Failed(err error, format string, args ...any) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return eventhub.Wrap(eventhub.CodeInternal, err, "The store failed to "+format+".", args...)
}
