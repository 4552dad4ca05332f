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

// memoryShares are how many bytes of memory what fills with use may take: the store, the events at the head, what waits
// for its commit, messages that are not complete, and events of groups that are not done. 0: its own default.
type memoryShares struct{ store, tail, queue, messages, groups int }

// Of a limit the store may have a quarter, the events at the head and what waits a sixteenth each, messages and answers
// that are under way an eighth each, and what groups have that is not done an eighth, about. What stays in memory whatever
// clients do (the first three, which a flush doubles for a moment) is so less than the hub has in use when it refuses the first
// connection; else it would refuse for good. From 1 GiB on all but the part of groups are what they are without a limit.
const (
	storeShare, mostStore     = 4, 256 << 20
	waitingShare, mostWaiting = 16, 64 << 20
	leastWaiting              = 2 << 20
	messageShare              = 8
	groupShare                = 8
)

// memoryShares returns what each may take of the limit of memory.
func (c *Config) memoryShares() memoryShares {
	s := memoryShares{messages: c.MaxMessageMemory << 20}
	if limit := c.MemoryLimit << 20; limit > 0 {
		s.store = min(mostStore, limit/storeShare)
		s.tail = min(mostWaiting, max(leastWaiting, limit/waitingShare))
		s.queue = s.tail
		s.groups = limit / groupShare
		s.messages = min(s.messages, max(LeastMessageMemory<<20, limit/messageShare))
	}
	return s
}

// LeastMemory is below how many MiB of memory a hub may have so little that it refuses all: an empty one has 27 of them in use.
const LeastMemory = 64

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
