package memory

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"eventhub/store"
)

// changeNamed changes a row of a name and a value: a setting or a note.
func changeNamed[V ~[]byte](rows map[string]V, name string, value V, isDelete bool) {
	if isDelete {
		delete(rows, name)
		return
	}
	rows[strings.Clone(name)] = slices.Clone(value)
}

// listNamed returns the rows in the order of names, with values of their own, nil where they are empty.
func listNamed[V ~[]byte, R any](ctx context.Context, s *Store, rows *map[string]V, row func(name string, value V) R) ([]R, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []R
	for _, name := range slices.Sorted(maps.Keys(*rows)) {
		value := slices.Clone((*rows)[name])
		if len(value) == 0 {
			value = nil
		}
		list = append(list, row(name, value))
	}
	return list, nil
}

func (s *Store) changeSetting(ch *store.SettingChange) {
	changeNamed(s.settings, ch.Name, ch.Value, ch.Delete)
}

func (s *Store) changeNote(ch *store.NoteChange) {
	changeNamed(s.notes, ch.Name, ch.Value, ch.Delete)
}

// ListSettings implements store.Topics.
func (s *Store) ListSettings(ctx context.Context) ([]store.SettingInfo, error) {
	return listNamed(ctx, s, &s.settings, func(name string, value json.RawMessage) store.SettingInfo {
		return store.SettingInfo{Name: name, Value: value}
	})
}

// ListNotes implements store.Notes.
func (s *Store) ListNotes(ctx context.Context) ([]store.NoteInfo, error) {
	return listNamed(ctx, s, &s.notes, func(name string, value []byte) store.NoteInfo {
		return store.NoteInfo{Name: name, Value: value}
	})
}

func checkSetting(ch *store.SettingChange) {
	if ch.Name == "" {
		misuse("settings %q: the name is empty", ch.Value)
	}
	if len(ch.Value) > 0 && !json.Valid(ch.Value) {
		misuse("settings of %q: the value %q is not JSON", ch.Name, ch.Value)
	}
}

func checkNote(ch *store.NoteChange) {
	if n := len(ch.Name); n == 0 || n > store.MaxNoteName {
		misuse("note %.48q: the name has %d bytes; 1 to %d are allowed", ch.Name, n, store.MaxNoteName)
	}
}
