package pebble

import (
	"errors"

	"golang.org/x/sys/unix"
)

// addBlocks gives an open file blocks that are zero, from one offset on, and the size that it has with them.
func addBlocks(fd uintptr, from, length int64) error {
	for {
		err := unix.Fallocate(int(fd), 0, from, length)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// cutBlocks gives back the blocks of an open file after a size, which it has then.
func cutBlocks(fd uintptr, size int64) { _ = unix.Ftruncate(int(fd), size) }
