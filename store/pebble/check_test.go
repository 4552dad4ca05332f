package pebble

import (
	"bytes"
	"testing"

	"eventhub"
	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// checkIndexes reads the whole database and holds the id index, the key index,
// the links and the log against each other: each event has its entries, each entry
// its event, and commit times do not fall. Of a topic without the key index no event has one. No
// index is half built.
func checkIndexes(t testing.TB, s *Store) {
	t.Helper()
	var want, got [][]byte // index keys that have to be there, and are
	ids := make(map[string]uint64)
	var previous []byte
	var lastTime int64
	scan(t, s, tagEvent, func(key, value []byte) {
		if previous == nil || !bytes.Equal(previous[:1+topicIDBytes], key[:1+topicIDBytes]) {
			lastTime = 0
		}
		previous = key
		topic, offset := topicOf(key), eventOffset(key)
		e, err := eventhub.Record(value).Event(offset)
		if err != nil {
			t.Errorf("record at offset %d: %v", offset, err)
			return
		}
		if now := eventhub.Record(value).CommitTime(); now < lastTime {
			t.Errorf("commit times of topic %d fall from %d to %d at offset %d", topic, lastTime, now, offset)
		} else {
			lastTime = now
		}
		if own, _ := s.ids.place(e.ID); own != (place{topic, offset}) {
			id := appendIDKey(nil, e.ID, topic)
			if is, err := s.has(appendTextKey(nil, e.ID, topic)); err != nil || is && s.textIDs {
				id = appendTextKey(nil, e.ID, topic) // of a store of a former format, and in one form alone
			}
			ids[string(id)] = offset
			want = append(want, id)
		}
		if e.Key != "" && s.topics.numbered(topic).keys.status() != store.NotIndexed {
			want = append(want, appendKeyKey(nil, topic, e.Key, offset))
		}
		for _, id := range e.CausedBy {
			want = append(want, appendLinkKey(nil, tagEffect, id, topic, offset))
		}
		if c := e.Headers[eventhub.CorrelationHeader]; c != "" {
			want = append(want, appendLinkKey(nil, tagCorrelated, c, topic, offset))
		}
	})
	scan(t, s, tagID, func(key, value []byte) {
		got = append(got, key)
		if offset, err := decodeOffset(value); err != nil || offset != ids[string(key)] {
			t.Errorf("the id index has %q at %d, %v; the log has it at %d", key, offset, err, ids[string(key)])
		}
	})
	for _, tag := range []byte{tagKey, tagEffect, tagCorrelated} {
		scan(t, s, tag, func(key, value []byte) { got = append(got, key) })
	}
	if missing, extra := difference(want, got), difference(got, want); len(missing)+len(extra) > 0 {
		t.Errorf("the indexes lack %q and have %q too much", missing, extra)
	}
	checkDelayedIndex(t, s)
}

// checkDelayedIndex: each delayed event has its entry in the id index, each entry its delayed event,
// and no Seq is above the floor.
func checkDelayedIndex(t testing.TB, s *Store) {
	t.Helper()
	var want, got [][]byte
	scan(t, s, tagDelayed, func(key, value []byte) {
		p, err := decodeDelayed(key, value)
		if err != nil {
			t.Errorf("delayed event %x: %v", key, err)
			return
		}
		entry := appendDelayIDKey(nil, s.topics.get(p.Topic).id, p.ID)
		want = append(want, appendDelayPlace(entry, p.At, p.Seq))
		if p.Seq > s.delayFloor {
			t.Errorf("delayed event of %q has number %d; the floor is %d", p.ID, p.Seq, s.delayFloor)
		}
	})
	scan(t, s, tagDelayedID, func(key, value []byte) { got = append(got, append(key, value...)) })
	if missing, extra := difference(want, got), difference(got, want); len(missing)+len(extra) > 0 {
		t.Errorf("the id index of delayed events lacks %q and has %q too much", missing, extra)
	}
}

func topicOf(key []byte) uint32 {
	return uint32(key[1])<<24 | uint32(key[2])<<16 | uint32(key[3])<<8 | uint32(key[4])
}

// scan calls visit with copies of all keys that start with tag.
func scan(t testing.TB, s *Store, tag byte, visit func(key, value []byte)) {
	t.Helper()
	iter, err := s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tag}, UpperBound: []byte{tag + 1}})
	if err != nil {
		t.Fatal(err)
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		visit(bytes.Clone(iter.Key()), bytes.Clone(iter.Value()))
	}
	if err := iter.Close(); err != nil {
		t.Fatal(err)
	}
}

// difference returns what of a is not in b.
func difference(a, b [][]byte) (diff []string) {
	in := make(map[string]bool)
	for _, key := range b {
		in[string(key)] = true
	}
	for _, key := range a {
		if !in[string(key)] {
			diff = append(diff, string(key))
		}
	}
	return diff
}
