package memory

import (
	"slices"

	"eventhub"
	"eventhub/store"
)

// checkExpected refuses appends of which something that is expected does not hold.
func (s *Store) checkExpected(appends []store.Append) error {
	if !slices.ContainsFunc(appends, func(a store.Append) bool { return !a.Expect.IsZero() }) {
		return nil
	}
	type name struct{ topic, id string }
	seen := make(map[name]bool)
	now := s.now().UnixMilli()
	for i := range appends {
		a := &appends[i]
		t := s.topics[a.Topic]
		if !a.NewID {
			isRepeated := seen[name{a.Topic, a.ID}]
			if seen[name{a.Topic, a.ID}] = true; t != nil && !isRepeated {
				_, isThere := t.ids[a.ID]
				_, wasThere := t.removed(a.ID, now)
				isRepeated = isThere || wasThere
			}
			if isRepeated {
				continue
			}
		}
		if a.Expect.IsZero() {
			continue
		}
		var present uint64
		switch {
		case t == nil:
		case a.Expect.Kind == eventhub.ExpectTopicOffset:
			present = t.head
		case t.index != store.Indexed:
			return &store.NotIndexedError{Topic: a.Topic}
		default:
			present = t.newest(a.Key, t.head)
		}
		if present != a.Expect.Offset {
			return &store.ConflictError{Append: i, Expect: a.Expect, Present: present}
		}
	}
	return nil
}

// checkExpect panics where an append expects something that cannot be asked of it.
func checkExpect(a *store.Append) {
	if x := a.Expect; x.Kind > eventhub.ExpectTopicOffset || x.Kind == eventhub.ExpectKeyOffset && a.Key == "" {
		misuse("append in topic %q: it expects %+v and has the key %q", a.Topic, x, a.Key)
	}
}
