package memory

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"eventhub"
	"eventhub/store"
	"eventhub/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Backend {
		return storetest.Backend{Open: func(o storetest.Options) (store.Store, error) {
			return Open(Options{Now: o.Now, MaxTopics: o.MaxTopics}), nil
		}}
	})
}

func record(id string) eventhub.Record {
	return eventhub.Record(`{"ts":            0,"id":"` + id + `","topic":"t","payload":1}`)
}

// TestMisuse: a caller that breaks a duty hears of it, by the offending value,
// and the store stays as it was.
func TestMisuse(t *testing.T) {
	change := func(topic, group, settings string) *store.Unit {
		return &store.Unit{Groups: []store.GroupChange{{Topic: topic, Group: group, Create: true,
			State: store.GroupState{Settings: []byte(settings)}}}}
	}
	of := func(ch store.GroupChange) *store.Unit {
		ch.Topic, ch.Group = "t", "g"
		return &store.Unit{Groups: []store.GroupChange{ch}}
	}
	parts := func(size int, offsets ...uint64) (parts []store.GroupPart) {
		for _, offset := range offsets {
			parts = append(parts, store.GroupPart{Kind: 7, Offset: offset, Value: make([]byte, size)})
		}
		return parts
	}
	for _, tt := range []struct {
		name string
		unit *store.Unit
		want string
	}{
		{"empty topic", &store.Unit{Appends: []store.Append{{ID: "a", Record: record("a")}}}, "topic is empty"},
		{"empty id", &store.Unit{Appends: []store.Append{{Topic: "t", Record: record("")}}}, "id is empty"},
		{"no record", &store.Unit{Appends: []store.Append{{Topic: "t", ID: "a"}}}, `in the record it is ""`},
		{"record that starts otherwise", &store.Unit{Appends: []store.Append{
			{Topic: "t", ID: "a", Record: eventhub.Record(`{"id":"a","ts":1723140000000}`)}}}, `in the record it is ""`},
		{"another id", &store.Unit{Appends: []store.Append{{Topic: "t", ID: "b", Record: record("a")}}}, `the id is "b"`},
		{"broken JSON", &store.Unit{Appends: []store.Append{{Topic: "t", ID: "a", Record: record("a")[:40]}}}, "not JSON"},
		{"bytes after the record", &store.Unit{Appends: []store.Append{{Topic: "t", ID: "a", Record: append(record("a"), '}')}}}, "not JSON"},
		{"no room for a new id", &store.Unit{Appends: []store.Append{{Topic: "t", NewID: true, Record: record("short")}}}, "no room"},
		{"group without topic", change("", "g", ""), "a name is empty"},
		{"group without name", change("t", "", ""), "a name is empty"},
		{"note without name", &store.Unit{Notes: []store.NoteChange{{Value: []byte("1")}}}, "the name has 0 bytes"},
		{"settings that are not JSON", change("t", "g", "{"), `settings "{"`},
		{"creation and deletion", of(store.GroupChange{Create: true, Delete: true}), "Delete, and Create true"},
		{"deletion and reset", of(store.GroupChange{Delete: true, Reset: true}), "Delete, and Create false, Reset true"},
		{"deletion with parts", of(store.GroupChange{Delete: true, Parts: parts(1, 1)}), "1 parts"},
		{"part that is there twice", of(store.GroupChange{Create: true, Parts: parts(1, 8, 9, 8)}), "part 8 of kind 7 is in it twice"},
		{"part that is too long", of(store.GroupChange{Create: true, Parts: parts(store.MaxPartBytes+1, 8)}), "part 8 of kind 7 has 65537 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := context.Background()
			s := Open(Options{})
			commit := func(u *store.Unit) (said string) {
				defer func() {
					if r := recover(); r != nil {
						said = r.(string)
					}
				}()
				if err := s.Commit(ctx, []*store.Unit{u}, true); err != nil {
					t.Error(err)
				}
				return "nothing"
			}
			good := &store.Unit{Appends: []store.Append{{Topic: "t", ID: "used", Record: record("used")}}}
			if said := commit(good); said != "nothing" {
				t.Fatal(said)
			}
			if said := commit(tt.unit); !strings.HasPrefix(said, "store/memory: misuse: ") || !strings.Contains(said, tt.want) {
				t.Errorf("the panic says %q; want %q in it", said, tt.want)
			}
			if topics, err := s.ListTopics(ctx, "", 9); err != nil || len(topics) != 1 || topics[0].Head != 1 {
				t.Errorf("afterwards the topics are %v, %v", topics, err)
			}
		})
	}
}

// TestDelayMisuse is TestMisuse for delayed events and patterns.
func TestDelayMisuse(t *testing.T) {
	delayed := func(topic, id string, at int64, fresh bool) *store.Unit {
		return &store.Unit{Delays: []store.Delay{{Topic: topic, ID: id, FreshID: fresh, At: at, Record: record(id)}}}
	}
	otherID := delayed("t", "a", 0, false)
	otherID.Delays[0].ID = "b"
	for _, tt := range []struct {
		name string
		unit *store.Unit
		want string
	}{
		{"empty topic", delayed("", "a", 0, false), "topic is empty"},
		{"empty id", delayed("t", "", 0, false), "id is empty"},
		{"another id", otherID, `the id is "b"`},
		{"due before all time", delayed("t", "a", -1, false), "it is due at -1"},
		{"due too late", delayed("t", "a", 10_000_000_000_000, false), "it is due at 10000000000000"},
		{"delayed id called fresh", delayed("t", "delayed", 0, true), `fresh id "delayed"`},
		{"used id called fresh", delayed("t", "used", 0, true), `fresh id "used"`},
		{"cancel without id", &store.Unit{Cancels: []store.Cancel{{Topic: "t"}}}, "a name is empty"},
		{"cancel without topic", &store.Unit{Cancels: []store.Cancel{{ID: "a"}}}, "a name is empty"},
		{"pattern without group", &store.Unit{Patterns: []store.PatternChange{{Pattern: "*"}}}, "a name is empty"},
		{"pattern that is empty", &store.Unit{Patterns: []store.PatternChange{{Group: "g"}}}, "a name is empty"},
		{"value that is not JSON", &store.Unit{Patterns: []store.PatternChange{{Group: "g", Pattern: "*", Value: []byte("{")}}}, `the value "{"`},
		{"settings without name", &store.Unit{Settings: []store.SettingChange{{Value: []byte("1")}}}, "the name is empty"},
		{"settings that are not JSON", &store.Unit{Settings: []store.SettingChange{{Name: "a.**", Value: []byte("{")}}}, `the value "{"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Open(Options{})
			good := delayed("t", "delayed", 0, false)
			good.Appends = []store.Append{{Topic: "t", ID: "used", Record: record("used")}}
			if err := s.Commit(context.Background(), []*store.Unit{good}, true); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if said, _ := recover().(string); !strings.HasPrefix(said, "store/memory: misuse: ") || !strings.Contains(said, tt.want) {
					t.Errorf("the panic says %q; want %q in it", said, tt.want)
				}
			}()
			err := s.Commit(context.Background(), []*store.Unit{tt.unit}, true)
			t.Errorf("Commit returned %v", err)
		})
	}
}

// TestNamesOfDeletedTopicsAreBounded: what is kept of names that are gone does not grow
// with every one of them, and no offset is given twice under any.
func TestNamesOfDeletedTopicsAreBounded(t *testing.T) {
	const names, most = 12_000, 10_000
	s := Open(Options{})
	var last [names]uint64
	for i := range 2 * names {
		n := i % names
		topic := fmt.Sprint("t", n)
		for j := range 1 + n%3 {
			u := &store.Unit{Appends: []store.Append{{Topic: topic, ID: fmt.Sprint(j), Record: record(fmt.Sprint(j))}}}
			if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil || u.Err != nil {
				t.Fatal(err, u.Err)
			}
			offset := u.Appends[0].Offset
			if offset <= last[n] {
				t.Fatalf("topic %s has offset %d; %d was given before", topic, offset, last[n])
			}
			last[n] = offset
		}
		if err := s.DeleteTopic(context.Background(), topic); err != nil {
			t.Fatal(err)
		}
		if len(s.deletedNames) > most {
			t.Fatalf("%d names are gone, and %d are kept; want at most %d", i+1, len(s.deletedNames), most)
		}
	}
	if len(s.deletedNames) == 0 {
		t.Error("no name is kept")
	}
}
