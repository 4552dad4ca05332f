package pebble

import (
	"bytes"
	"context"
	"fmt"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Settings and notes
//
// Both are rows of a name and a value, each sort under a tag of its own. Neither belongs to a topic,
// so their names are in the keys, and the sweep leaves them.

func (c *commit) changeSetting(ch *store.SettingChange) {
	c.settingsChanged = true
	c.changeNamed(tagSetting, ch.Name, ch.Value, ch.Delete)
}

func (c *commit) changeNote(ch *store.NoteChange) {
	c.notesChanged = true
	c.changeNamed(tagNote, ch.Name, ch.Value, ch.Delete)
}

func (c *commit) changeNamed(tag byte, name string, value []byte, isDelete bool) {
	size := 1 + len(name)
	if isDelete {
		op := c.batch.DeleteDeferred(size)
		appendNamedKey(op.Key[:0], tag, name)
		return
	}
	op := c.batch.SetDeferred(size, len(value))
	appendNamedKey(op.Key[:0], tag, name)
	copy(op.Value, value)
}

// ListSettings implements store.Topics.
func (s *Store) ListSettings(ctx context.Context) (settings []store.SettingInfo, err error) {
	err = s.listNamed(ctx, &s.settings, tagSetting, func(name string, value []byte) {
		settings = append(settings, store.SettingInfo{Name: name, Value: value})
	})
	if err != nil {
		return nil, fmt.Errorf("store/pebble: list the settings of topics: %w", err)
	}
	return settings, nil
}

// ListNotes implements store.Notes.
func (s *Store) ListNotes(ctx context.Context) (notes []store.NoteInfo, err error) {
	err = s.listNamed(ctx, &s.notes, tagNote, func(name string, value []byte) {
		notes = append(notes, store.NoteInfo{Name: name, Value: value})
	})
	if err != nil {
		return nil, fmt.Errorf("store/pebble: list the notes: %w", err)
	}
	return notes, nil
}

// listNamed calls visit for each row of a sort that is durable, in the order of names, with a
// value of its own, nil where it is empty.
func (s *Store) listNamed(ctx context.Context, g *gate, tag byte, visit func(name string, value []byte)) (err error) {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	var iter *pdb.Iterator
	err = s.synced(g, func() (err error) {
		iter, err = s.tagged(tag)
		return err
	})
	if err != nil {
		return err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		if len(value) == 0 {
			value = nil
		}
		visit(string(iter.Key()[1:]), bytes.Clone(value))
	}
	return iter.Error()
}
