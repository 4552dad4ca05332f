package pebble

import (
	"errors"
	"fmt"
	"io/fs"
)

// Holding is what a directory has.
type Holding int

const (
	HoldsNothing Holding = iota // it is empty, or is not there
	HoldsStore                  // the store of one hub
	HoldsReplica                // a replica
)

// Look returns what o.Dir has, and changes nothing in it. A directory that holds something else is
// ErrFormat, and one that somebody has open ErrLocked.
func Look(o Options) (Holding, error) {
	if err := o.validate(); err != nil {
		return HoldsNothing, fmt.Errorf("store/pebble: options: %w", err)
	}
	o = o.withDefaults()
	if _, err := o.FS.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		return HoldsNothing, nil
	}
	format, err := inspectDir(o.FS, o.Dir)
	if err != nil || format.version == noFormat {
		return HoldsNothing, err
	}
	lock, err := takeLock(o.FS, o.Dir)
	if err != nil {
		return HoldsNothing, err
	}
	if err := lock.Close(); err != nil {
		return HoldsNothing, fmt.Errorf("store/pebble: give the lock of %s back: %w", o.Dir, err)
	}
	if format.replicated {
		return HoldsReplica, nil
	}
	return HoldsStore, nil
}
