package pebble

import (
	"bytes"
	"context"
	"fmt"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

func (c *commit) changeSetting(ch *store.SettingChange) {
	c.settingsChanged = true
	size := 1 + len(ch.Name)
	if ch.Delete {
		op := c.batch.DeleteDeferred(size)
		appendSettingKey(op.Key[:0], ch.Name)
		return
	}
	op := c.batch.SetDeferred(size, len(ch.Value))
	appendSettingKey(op.Key[:0], ch.Name)
	copy(op.Value, ch.Value)
}

// ListSettings implements store.Topics.
func (s *Store) ListSettings(ctx context.Context) (settings []store.SettingInfo, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if settings, err = s.allSettings(); err != nil {
		return nil, fmt.Errorf("store/pebble: list the settings of topics: %w", err)
	}
	return settings, nil
}

func (s *Store) allSettings() (settings []store.SettingInfo, err error) {
	var iter *pdb.Iterator
	err = s.synced(&s.settings, func() (err error) {
		iter, err = s.db.NewIter(&pdb.IterOptions{LowerBound: []byte{tagSetting}, UpperBound: []byte{tagSetting + 1}})
		return err
	})
	if err != nil {
		return nil, err
	}
	defer closeInto(iter, &err)
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return nil, err
		}
		info := store.SettingInfo{Name: string(iter.Key()[1:])}
		if len(value) > 0 {
			info.Value = bytes.Clone(value)
		}
		settings = append(settings, info)
	}
	return settings, iter.Error()
}
