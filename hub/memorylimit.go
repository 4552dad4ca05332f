package hub

import (
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// noLimit is more than any machine has: cgroups of the first version say so where they have none.
const noLimit = 1 << 60

// LimitMemory has the garbage collector keep the process below a limit, and returns it in bytes, 0
// where there is none: mib MiB, which Config has checked, or where that is 0 what GOMEMLIMIT says, or nine tenths of what the
// cgroup of the process allows. files is the root of the file system. It is called once, before
// Start.
func LimitMemory(mib int, files fs.FS) int64 {
	limit := int64(mib) << 20
	if limit == 0 {
		limit = debug.SetMemoryLimit(-1) // what it is
	}
	if limit == math.MaxInt64 {
		limit = cgroupLimit(files) / 10 * 9
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	return limit
}

// cgroupLimit returns the least memory that the cgroup of the process, and those above it, allow; 0:
// there is no limit.
func cgroupLimit(files fs.FS) int64 {
	own, err := fs.ReadFile(files, "proc/self/cgroup")
	if err != nil {
		return 0 // no Linux
	}
	var least int64 = noLimit
	for line := range strings.Lines(string(own)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, _ := strings.Cut(rest, ":")
		switch {
		case controllers == "":
			least = min(least, limitAbove(files, "sys/fs/cgroup", at, "memory.max"))
		case strings.Contains(","+controllers+",", ",memory,"):
			least = min(least, limitAbove(files, "sys/fs/cgroup/memory", at, "memory.limit_in_bytes"))
		}
	}
	if least == noLimit {
		return 0
	}
	return least
}

// limitAbove returns the least limit in the files of a name from a cgroup up to the root. In a
// container the path may be that of the machine, whose files are not there: the root has the limit.
func limitAbove(files fs.FS, root, at, name string) int64 {
	var least int64 = noLimit
	for dir := path.Join(root, path.Clean("/"+at)); ; dir = path.Dir(dir) {
		if text, err := fs.ReadFile(files, path.Join(dir, name)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				least = min(least, n)
			} // max is no number
		}
		if len(dir) <= len(root) {
			return least
		}
	}
}
