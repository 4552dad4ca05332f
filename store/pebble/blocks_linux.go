package pebble

import "golang.org/x/sys/unix"

// cutBlocks gives back the blocks of an open file after its end, which is at size.
func cutBlocks(fd uintptr, size int64) { _ = unix.Ftruncate(int(fd), size) }
