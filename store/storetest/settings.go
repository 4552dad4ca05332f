package storetest

import (
	"context"
	"testing"

	"eventhub/store"
)

var settingTests = []test{
	{name: "write, overwrite, remove", run: testSettingLife},
	{name: "order", run: testSettingOrder},
	{name: "changes of one commit", run: testSettingChanges},
	{name: "values are copied", run: testSettingCopied},
	{name: "reopening", run: testSettingReopened},
	{name: "they are no topic's", run: testSettingOfNoTopic},
}

func (s *env) settings(t failer) []store.SettingInfo {
	t.Helper()
	list, err := s.ListSettings(context.Background())
	if err != nil {
		t.Fatalf("ListSettings: %v", err)
	}
	return list
}

func setting(name, value string) store.SettingChange {
	return store.SettingChange{Name: name, Value: []byte(value)}
}

func noSetting(name string) store.SettingChange { return store.SettingChange{Name: name, Delete: true} }

func settingsOf(changes ...store.SettingChange) (list []store.SettingInfo) {
	for _, ch := range changes {
		list = append(list, store.SettingInfo{Name: ch.Name, Value: ch.Value})
	}
	return list
}

func (s *env) set(t failer, changes ...store.SettingChange) {
	t.Helper()
	s.commit(t, &store.Unit{Settings: changes})
}

func testSettingLife(t *testing.T, s *env) {
	same(t, "settings of none", 0, len(s.settings(t)))
	a, b := setting("a.**", `{"x":1}`), setting("*", ``)
	s.set(t, a, b)
	same(t, "settings", settingsOf(b, a), s.settings(t))
	a.Value = []byte(`[2]`)
	s.set(t, a)
	same(t, "settings after some were overwritten", settingsOf(b, a), s.settings(t))
	s.set(t, noSetting("*"), noSetting("none"))
	same(t, "settings after some were removed", settingsOf(a), s.settings(t))
	s.set(t, noSetting("a.**"))
	same(t, "settings after the last were removed", 0, len(s.settings(t)))
}

func testSettingOrder(t *testing.T, s *env) {
	var want []store.SettingChange
	for _, name := range []string{"*", "**", "*.b", "A", "a", "a-", "a.**", "a.b", "aa", "b"} {
		want = append(want, setting(name, `"`+name+`"`))
	}
	for i := range want {
		s.set(t, want[i*7%len(want)]) // 7 and their number, 10, have no common factor
	}
	same(t, "settings", settingsOf(want...), s.settings(t))
}

func testSettingChanges(t *testing.T, s *env) {
	one, two := setting("a", `1`), setting("a", `2`)
	for _, tt := range []struct {
		name    string
		changes []store.SettingChange
		want    []store.SettingChange
	}{
		{"write, write", []store.SettingChange{one, two}, []store.SettingChange{two}},
		{"write, remove", []store.SettingChange{one, noSetting("a")}, nil},
		{"write, remove, write", []store.SettingChange{one, noSetting("a"), two}, []store.SettingChange{two}},
		{"remove, write", []store.SettingChange{noSetting("a"), one}, []store.SettingChange{one}},
	} {
		s.set(t, tt.changes...)
		same(t, "in one unit: "+tt.name, settingsOf(tt.want...), s.settings(t))
		s.set(t, setting("a", `0`))
		var units []*store.Unit
		for _, ch := range tt.changes {
			units = append(units, &store.Unit{Settings: []store.SettingChange{ch}})
		}
		s.commit(t, units...)
		same(t, tt.name, settingsOf(tt.want...), s.settings(t))
	}
}

func testSettingCopied(t *testing.T, s *env) {
	ch := setting("a", `"first"`)
	s.set(t, ch)
	clear(ch.Value)
	want := settingsOf(setting("a", `"first"`))
	same(t, "settings after the caller changed its own", want, s.settings(t))
	clear(s.settings(t)[0].Value)
	same(t, "settings after a reader changed its own", want, s.settings(t))
}

func testSettingReopened(t *testing.T, s *env) {
	a, b := setting("a", `1`), setting("b", `2`)
	s.set(t, a, setting("c", `3`))
	u := &store.Unit{Settings: []store.SettingChange{noSetting("c"), b}}
	if err := s.Commit(context.Background(), []*store.Unit{u}, false); err != nil {
		t.Fatal(err)
	}
	want := settingsOf(a, b)
	same(t, "settings after an unsynced commit", want, s.settings(t))
	s.reopen(t)
	if !s.Capabilities().Persistent {
		want = nil
	}
	same(t, "settings after reopening", want, s.settings(t))
}

// testSettingOfNoTopic: settings create no topic, and stay when the topic of that name is
// deleted.
func testSettingOfNoTopic(t *testing.T, s *env) {
	a := setting("a", `1`)
	s.set(t, a)
	same(t, "topics", 0, len(s.listTopics(t, "", noLimit)))
	s.add(t, given("a", "1"))
	if err := s.DeleteTopic(context.Background(), "a"); err != nil {
		t.Fatal(err)
	}
	s.sweepAll(t)
	same(t, "settings after the deletion", settingsOf(a), s.settings(t))
}
