package storetest

import (
	"context"
	"strings"
	"testing"

	"eventhub/store"
)

var noteTests = []test{
	{name: "write, overwrite, remove", run: testNoteLife},
	{name: "order", run: testNoteOrder},
	{name: "changes of one commit", run: testNoteChanges},
	{name: "values are copied", run: testNoteCopied},
	{name: "reopening", run: testNoteReopened},
	{name: "they are no topic's", run: testNoteOfNoTopic},
}

func (s *env) notes(t failer) []store.NoteInfo {
	t.Helper()
	list, err := s.ListNotes(context.Background())
	if err != nil {
		t.Fatalf("ListNotes: %v", err)
	}
	return list
}

func note(name, value string) store.NoteChange {
	return store.NoteChange{Name: name, Value: []byte(value)}
}

func noNote(name string) store.NoteChange { return store.NoteChange{Name: name, Delete: true} }

func notesOf(changes ...store.NoteChange) (list []store.NoteInfo) {
	for _, ch := range changes {
		list = append(list, store.NoteInfo{Name: ch.Name, Value: ch.Value})
	}
	return list
}

func (s *env) putNotes(t failer, changes ...store.NoteChange) {
	t.Helper()
	s.commit(t, &store.Unit{Notes: changes})
}

func testNoteLife(t *testing.T, s *env) {
	same(t, "notes of none", 0, len(s.notes(t)))
	a, b := note("a\x00b", `{"x":1}`), note("\x00", ``)
	s.putNotes(t, a, b)
	same(t, "notes", notesOf(b, a), s.notes(t))
	a.Value = []byte(`[2]`)
	s.putNotes(t, a)
	same(t, "notes after some were overwritten", notesOf(b, a), s.notes(t))
	s.putNotes(t, noNote("\x00"), noNote("none"))
	same(t, "notes after some were removed", notesOf(a), s.notes(t))
	s.putNotes(t, noNote("a\x00b"))
	same(t, "notes after the last were removed", 0, len(s.notes(t)))
}

func testNoteOrder(t *testing.T, s *env) {
	var want []store.NoteChange
	for _, name := range []string{"\x00", "\x00\x01", "a", "a\x00", "a\x00b", "b", "b.c", strings.Repeat("b", store.MaxNoteName), "\xff", "\xff\xff"} {
		want = append(want, note(name, name))
	}
	for i := range want {
		s.putNotes(t, want[i*7%len(want)]) // 7 and their number, 10, have no common factor
	}
	same(t, "notes", notesOf(want...), s.notes(t))
}

func testNoteChanges(t *testing.T, s *env) {
	one, two := note("a", `1`), note("a", `2`)
	for _, tt := range []struct {
		name    string
		changes []store.NoteChange
		want    []store.NoteChange
	}{
		{"write, write", []store.NoteChange{one, two}, []store.NoteChange{two}},
		{"write, remove", []store.NoteChange{one, noNote("a")}, nil},
		{"write, remove, write", []store.NoteChange{one, noNote("a"), two}, []store.NoteChange{two}},
		{"remove, write", []store.NoteChange{noNote("a"), one}, []store.NoteChange{one}},
	} {
		s.putNotes(t, tt.changes...)
		same(t, "in one unit: "+tt.name, notesOf(tt.want...), s.notes(t))
		s.putNotes(t, note("a", `0`))
		var units []*store.Unit
		for _, ch := range tt.changes {
			units = append(units, &store.Unit{Notes: []store.NoteChange{ch}})
		}
		s.commit(t, units...)
		same(t, tt.name, notesOf(tt.want...), s.notes(t))
	}
}

func testNoteCopied(t *testing.T, s *env) {
	ch := note("a", `"first"`)
	s.putNotes(t, ch)
	clear(ch.Value)
	want := notesOf(note("a", `"first"`))
	same(t, "notes after the caller changed its own", want, s.notes(t))
	clear(s.notes(t)[0].Value)
	same(t, "notes after a reader changed its own", want, s.notes(t))
}

func testNoteReopened(t *testing.T, s *env) {
	a, b := note("a", `1`), note("b", `2`)
	s.putNotes(t, a, note("c", `3`))
	u := &store.Unit{Notes: []store.NoteChange{noNote("c"), b}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	want := notesOf(a, b)
	same(t, "notes after an unsynced commit", want, s.notes(t))
	s.reopen(t)
	if !s.Capabilities().Persistent {
		want = nil
	}
	same(t, "notes after reopening", want, s.notes(t))
}

// testNoteOfNoTopic: notes create no topic, and stay when the topic of that name is
// deleted.
func testNoteOfNoTopic(t *testing.T, s *env) {
	a := note("a", `1`)
	s.putNotes(t, a)
	same(t, "topics", 0, len(s.listTopics(t, "", noLimit)))
	s.add(t, given("a", "1"))
	if err := s.DeleteTopic(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	s.sweepAll(t)
	same(t, "notes after the deletion", notesOf(a), s.notes(t))
}
