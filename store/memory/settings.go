package memory

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"eventhub/store"
)

func (s *Store) changeSetting(ch *store.SettingChange) {
	if ch.Delete {
		delete(s.settings, ch.Name)
		return
	}
	s.settings[strings.Clone(ch.Name)] = slices.Clone(ch.Value)
}

// ListSettings implements store.Topics.
func (s *Store) ListSettings(ctx context.Context) ([]store.SettingInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	var list []store.SettingInfo
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		list = append(list, store.SettingInfo{Name: name, Value: slices.Clone(s.settings[name])})
	}
	return list, nil
}

func checkSetting(ch *store.SettingChange) {
	if ch.Name == "" {
		misuse("settings %q: the name is empty", ch.Value)
	}
	if len(ch.Value) > 0 && !json.Valid(ch.Value) {
		misuse("settings of %q: the value %q is not JSON", ch.Name, ch.Value)
	}
}
