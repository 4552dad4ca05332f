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
		if gone, err := hungUp(f, -1); gone || err != nil {
			return err
		}
	}
}

// hungUp reports whether nobody reads f any more. It waits so many milliseconds for that,
// and without bound if they are negative.
func hungUp(f *os.File, ms int) (bool, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(f.Fd())}}
		_, err := unix.Poll(fds, ms)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0, err
	}
}
