//go:build unix

package output

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// waitHangup returns when nobody reads f any more, by poll(2) for nothing but
// that. For what can not lose its reader it does not return.
func waitHangup(f *os.File) error {
	for {
		fds := []unix.PollFd{{Fd: int32(f.Fd())}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
			return nil
		}
	}
}
