package storetest

import (
	"fmt"
	"testing"
	"unicode/utf8"

	"eventhub/store"
)

var latestTests = []test{
	{name: "of keys that look alike", run: testLatestKeys},
	{name: "at a bound", run: testLatestAt},
	{name: "empty", run: testLatestEmpty},
	{name: "after reopening", run: testLatestReopened},
}

// awkwardKeys are prefixes of each other, and hold what an index may use to end
// or to escape a key.
var awkwardKeys = []string{
	"\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x00\xff\x00", "\x01", "\x00a", "a\x00", "a\x00\x00", "a\x00\x01", "a\x00b",
	"a", "ab", "abc", "host:name:pid", "ключ", "\xff", "\xff\xff", "a\xff", "\u007f",
}

// someKeys returns the awkward keys. An index that is built takes the keys from the records, which
// have valid UTF-8 and nothing else.
func (s *env) someKeys() (keys []string) {
	for _, key := range awkwardKeys {
		if s.eager || utf8.ValidString(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

func testLatestKeys(t *testing.T, s *env) {
	want := make(map[string]row)
	for round := range 2 {
		for i, key := range s.someKeys() {
			a := keyed("t", fmt.Sprintf("%d-%d", round, i), key)
			want[key] = rowOf(s.add(t, a)[0])
		}
		for _, key := range s.someKeys() {
			same(t, fmt.Sprintf("latest of %q", key), want[key], s.latest(t, "t", key, 0))
		}
	}
}

func testLatestAt(t *testing.T, s *env) {
	all := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "other"), keyed("t", "3", "k"), given("t", "4"), keyed("t", "5", "k"))
	first, third, last := rowOf(all[0]), rowOf(all[2]), rowOf(all[4])
	for _, tt := range []struct {
		at   uint64
		want row
	}{
		{0, last},
		{all[0].Offset, first},
		{all[1].Offset, first},
		{all[2].Offset, third},
		{all[3].Offset, third},
		{all[4].Offset, last},
		{all[4].Offset + 1, last},
		{1 << 60, last},
		{1<<64 - 1, last},
	} {
		same(t, fmt.Sprintf("latest at %d", tt.at), tt.want, s.latest(t, "t", "k", tt.at))
	}
	same(t, "latest before the first of its key", row{}, s.latest(t, "t", "other", all[0].Offset))
}

func testLatestEmpty(t *testing.T, s *env) {
	same(t, "latest in a topic that does not exist", row{}, s.latest(t, "t", "k", 0))
	s.commit(t, &store.Unit{Groups: []store.GroupChange{create("t", "g", store.GroupState{})}})
	same(t, "latest in an empty topic", row{}, s.latest(t, "t", "k", 0))
	s.add(t, given("t", "1"), keyed("t", "2", "kk"), keyed("t", "3", "j"), keyed("u", "4", "k"))
	same(t, "latest of a key that was never used", row{}, s.latest(t, "t", "k", 0))
	same(t, "latest of no key", row{}, s.latest(t, "t", "", 0))
}

func testLatestReopened(t *testing.T, s *env) {
	if !s.Capabilities().Persistent {
		s.add(t, keyed("t", "1", "k"))
		s.reopen(t)
		same(t, "latest", row{}, s.latest(t, "t", "k", 0))
		return
	}
	all := s.add(t, keyed("t", "1", "k"), keyed("t", "2", "k"))
	s.reopen(t)
	same(t, "latest", rowOf(all[1]), s.latest(t, "t", "k", 0))
	more := s.add(t, keyed("t", "3", "k"))
	same(t, "latest", rowOf(more[0]), s.latest(t, "t", "k", 0))
	same(t, "latest at the older one", rowOf(all[0]), s.latest(t, "t", "k", all[0].Offset))
}
