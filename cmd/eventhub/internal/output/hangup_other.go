//go:build !unix

package output

import (
	"errors"
	"os"
)

// waitHangup is not to be had here; the next write reports it.
func waitHangup(*os.File) error { return errors.ErrUnsupported }

// hungUp is not to be had here either.
func hungUp(*os.File, int) (bool, error) { return false, errors.ErrUnsupported }
