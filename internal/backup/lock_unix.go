//go:build unix

package backup

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// notInUse reports, as an error, that another process holds the lock of a store.
func notInUse(lock string) error {
	f, err := os.Open(lock)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() // it is only asked
	held := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &held); err != nil {
		return fmt.Errorf("%s: %w", lock, err)
	}
	if held.Type != unix.F_UNLCK {
		return fmt.Errorf("a hub runs on this store (process %d); 'eventhub backup' copies the store of a running hub, and the copy can be verified", held.Pid)
	}
	return nil
}
