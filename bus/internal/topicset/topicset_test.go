package topicset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// rig is a Set over a store in memory, with its committer.
type rig struct {
	t         *testing.T
	store     *storefault.Store
	committer *commit.Committer
	set       *Set
	log       bytes.Buffer
	file      []admin.SettingsEntry

	mu      sync.Mutex
	changed []string
}

func newRig(t *testing.T, file ...admin.SettingsEntry) *rig {
	r := &rig{t: t, store: storefault.Wrap(memory.Open(memory.Options{})), file: file}
	r.committer = commit.New(commit.Options{
		Store: r.store, Logger: slog.New(slog.DiscardHandler), QueueBytes: 1 << 20, EarlyBytes: 1 << 16,
		Committed: func([]*commit.Request) {}, Observe: func(time.Duration, []*store.Unit) {},
	})
	t.Cleanup(func() { _ = r.committer.Stop() })
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	return r
}

// open reads what the store has, as a start does.
func (r *rig) open() (err error) {
	r.set, err = New(Options{Store: r.store, Logger: slog.New(slog.NewTextHandler(&r.log, nil)), File: r.file, Changed: func(name string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed = append(r.changed, name)
	}})
	return err
}

func (r *rig) write(name string, s admin.TopicSettings, match *uint64) (admin.SettingsEntry, error) {
	job, err := r.set.Write(name, s, match)
	if err == nil {
		err = r.committer.Do(context.Background(), job)
	}
	if err != nil {
		return admin.SettingsEntry{}, err
	}
	return job.Entry(), nil
}

func (r *rig) mustWrite(name string, s admin.TopicSettings) admin.SettingsEntry {
	r.t.Helper()
	e, err := r.write(name, s, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

func (r *rig) remove(name string, match *uint64) error {
	job, err := r.set.Remove(name, match)
	if err == nil {
		err = r.committer.Do(context.Background(), job)
	}
	return err
}

func keep(n uint64) admin.TopicSettings {
	return admin.TopicSettings{Retention: admin.Retention{Count: n}}
}

func of(n uint64) *uint64 { return &n }

// counts checks which entry, by its count, counts for topics; 0 is none.
func (r *rig) counts(want map[string]uint64) {
	r.t.Helper()
	for range 2 { // the second time from what is remembered
		for topic, n := range want {
			var got uint64
			if e := r.set.Lookup(topic); e != nil {
				got = e.Settings.Retention.Count
			}
			if got != n || r.set.Effective(topic).Settings.Retention.Count != n {
				r.t.Errorf("for %s counts the entry of %d; want %d", topic, got, n)
			}
		}
	}
}

func TestMostExactCounts(t *testing.T) {
	r := newRig(t, admin.SettingsEntry{Name: "orders.**", Settings: keep(1)}, admin.SettingsEntry{Name: "a", Settings: keep(2)})
	r.counts(map[string]uint64{"orders.a.b": 1, "a": 2, "b": 0})
	r.mustWrite("**", keep(3))
	r.mustWrite("orders.eu.*", keep(4))
	r.mustWrite("orders.eu.x", keep(5))
	r.counts(map[string]uint64{"orders.a.b": 1, "a": 2, "b": 3, "orders.eu.y": 4, "orders.eu.x": 5, "b.dlq": 0, "system.redrive": 0})
	r.mustWrite("orders.eu.*", keep(6))
	r.counts(map[string]uint64{"orders.eu.y": 6})
	if err := r.remove("orders.eu.x", nil); err != nil {
		t.Fatal(err)
	}
	if err := r.remove("**", nil); err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{"orders.a.b": 1, "a": 2, "b": 0, "orders.eu.y": 6, "orders.eu.x": 6}
	r.counts(want)
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	r.counts(want)
	if got := fmt.Sprint(r.changed); got != "[** orders.eu.* orders.eu.x orders.eu.* orders.eu.x **]" {
		t.Errorf("changed: %s", got)
	}
}

func TestEffective(t *testing.T) {
	r := newRig(t, admin.SettingsEntry{Name: "a", Settings: keep(1)})
	p := r.mustWrite("b.**", keep(2))
	own := r.mustWrite("b.c", keep(3))
	for topic, want := range map[string]admin.EffectiveSettings{
		"a":   {Settings: keep(1), SettingsSource: admin.SettingsSource{Source: "file", Entry: "a"}},
		"b.x": {Settings: keep(2), SettingsSource: admin.SettingsSource{Source: "stored", Entry: "b.**", Version: p.Version}},
		"b.c": {Settings: keep(3), SettingsSource: admin.SettingsSource{Source: "stored", Entry: "b.c", Version: own.Version}, OwnVersion: own.Version},
		"z":   {SettingsSource: admin.SettingsSource{Source: "default"}},
	} {
		want.Topic = topic
		if got := r.set.Effective(topic); got != want {
			t.Errorf("%+v; want %+v", got, want)
		}
	}
	if got := r.set.Entries("", 100); len(got) != 3 || got[0].Name != "a" || got[0].Source != "file" || got[1] != p || got[2] != own {
		t.Errorf("the entries are %+v", got)
	}
	if got := r.set.Entries("a", 1); len(got) != 1 || got[0] != p {
		t.Errorf("the first entry after a is %+v", got)
	}
	if got := r.set.Entries("b.a", 9); len(got) != 1 || got[0] != own {
		t.Errorf("the entries after b.a are %+v", got)
	}
	if got := r.set.Entries("z", 9); len(got) != 0 {
		t.Errorf("the entries after z are %+v", got)
	}
}

// TestVersions: a version is given once, whatever was removed since, and after a restart.
func TestVersions(t *testing.T) {
	r := newRig(t)
	a := r.mustWrite("a", keep(1))
	if _, err := r.write("a", keep(2), of(a.Version+1)); !errors.Is(err, admin.ErrOtherVersion) || eventhub.ErrorCode(err) != eventhub.CodeConflict {
		t.Errorf("with another version: %v", err)
	}
	if _, err := r.write("a", keep(2), of(0)); !errors.Is(err, admin.ErrOtherVersion) {
		t.Errorf("with the version of none: %v", err)
	}
	again, err := r.write("a", keep(2), of(a.Version))
	if err != nil || again.Version <= a.Version {
		t.Errorf("with its version: %+v, %v; it was %+v", again, err, a)
	}
	if err := r.remove("a", of(a.Version)); !errors.Is(err, admin.ErrOtherVersion) {
		t.Errorf("removed with the older version: %v", err)
	}
	if err := r.remove("a", of(again.Version)); err != nil {
		t.Fatal(err)
	}
	if err := r.remove("a", nil); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("removed again: %v", err)
	}
	if err := r.remove("a", of(again.Version)); !errors.Is(err, admin.ErrOtherVersion) {
		t.Errorf("removed again with its version: %v", err)
	}
	if r.set.Lookup("a") != nil || len(r.set.Entries("", 100)) != 0 {
		t.Errorf("left: %+v", r.set.Entries("", 100))
	}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	if b, err := r.write("a", keep(3), of(0)); err != nil || b.Version <= again.Version {
		t.Errorf("after all were removed: %+v, %v; version %d was given before", b, err, again.Version)
	}
}

// TestOneOfTwoWins: of changes that name the same version, all of one commit, one is made.
func TestOneOfTwoWins(t *testing.T) {
	r := newRig(t)
	version := r.mustWrite("a", keep(1)).Version
	reached, release := make(chan struct{}), make(chan struct{})
	var commits []int
	r.store.Before(storefault.Commit, func(c *storefault.Call) error {
		if commits = append(commits, len(c.Units)); len(commits) == 1 {
			close(reached)
			<-release
		}
		return nil
	})
	results := make(chan error, 10)
	go func() {
		_, err := r.write("b", keep(1), nil)
		results <- err
	}()
	<-reached
	for i := range 9 {
		go func() {
			_, err := r.write("a", keep(uint64(10+i)), &version)
			results <- err
		}()
	}
	for waiting := 0; waiting < 9; waiting, _, _ = r.committer.Pending() {
		runtime.Gosched()
	}
	close(release)
	won := 0
	for range cap(results) {
		if err := <-results; err == nil {
			won++
		} else if !errors.Is(err, admin.ErrOtherVersion) {
			t.Errorf("a change that lost: %v", err)
		}
	}
	if won != 2 || len(commits) != 2 || commits[1] != 1 {
		t.Errorf("%d changes were made in commits of %d units; want that of b, and one of a", won, commits)
	}
}

func TestRefusedChanges(t *testing.T) {
	r := newRig(t, admin.SettingsEntry{Name: "orders.**", Settings: keep(1)}, admin.SettingsEntry{Name: "a", Settings: keep(2)})
	r.mustWrite("payments.*", keep(3))
	for _, tt := range []struct {
		name     string
		settings admin.TopicSettings
		code     eventhub.Code
		says     []string
	}{
		{"a", keep(9), eventhub.CodeConflict, []string{`"a"`, "file"}},
		{"orders.**", keep(9), eventhub.CodeConflict, []string{`"orders.**"`, "file"}},
		{"**.created", keep(9), eventhub.CodeConflict, []string{`"**.created"`, `"orders.**"`, "tie"}},
		{"*.created", keep(9), eventhub.CodeConflict, []string{`"*.created"`, "tie"}},
		{"system.redrive", keep(9), eventhub.CodeBadTopic, []string{`"system.redrive"`}},
		{"a b", keep(9), eventhub.CodeBadTopic, []string{`"a b"`}},
		{"b", admin.TopicSettings{GroupIdleExpiry: 1}, eventhub.CodeBadRequest, []string{"group_idle_expiry"}},
	} {
		before := r.store.Calls(storefault.Commit)
		_, err := r.write(tt.name, tt.settings, nil)
		if eventhub.ErrorCode(err) != tt.code {
			t.Errorf("%s: %v; want %s", tt.name, err, tt.code)
			continue
		}
		for _, word := range tt.says {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v does not say %s", tt.name, err, word)
			}
		}
		if after := r.store.Calls(storefault.Commit); after != before {
			t.Errorf("%s: refused, and committed", tt.name)
		}
	}
	if err := r.remove("a", nil); eventhub.ErrorCode(err) != eventhub.CodeConflict {
		t.Errorf("an entry of the file was removed: %v", err)
	}
	if n := len(r.set.Entries("", 100)); n != 3 {
		t.Errorf("there are %d entries; want 3", n)
	}
}

// TestFileOverStored: an entry of the file counts instead of a stored one of its name, which
// is there again without the file; two that tie are no start.
func TestFileOverStored(t *testing.T) {
	r := newRig(t)
	r.mustWrite("a.**", keep(1))
	r.file = []admin.SettingsEntry{{Name: "a.**", Settings: keep(2)}}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	r.counts(map[string]uint64{"a.b": 2})
	if got := r.log.String(); !strings.Contains(got, "topic=a.**") {
		t.Errorf("the log says %q", got)
	}
	r.file = []admin.SettingsEntry{{Name: "**.b", Settings: keep(3)}}
	if err := r.open(); eventhub.ErrorCode(err) != eventhub.CodeConflict || !strings.Contains(err.Error(), `"a.**" and "**.b" tie`) {
		t.Errorf("with a file that ties: %v", err)
	}
	r.file = nil
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	r.counts(map[string]uint64{"a.b": 1})
}

func TestKeyRequired(t *testing.T) {
	r := newRig(t)
	r.mustWrite("a", keep(1))
	if r.set.KeyRequired("a") {
		t.Error("a key is required without a setting")
	}
	r.mustWrite("k.*", admin.TopicSettings{KeyRequired: true})
	r.mustWrite("k.free", admin.TopicSettings{})
	for topic, want := range map[string]bool{"a": false, "k": false, "k.a": true, "k.free": false} {
		if got := r.set.KeyRequired(topic); got != want {
			t.Errorf("a key is required in %s: %t", topic, got)
		}
	}
	r.mustWrite("k.*", admin.TopicSettings{})
	if r.set.KeyRequired("k.a") {
		t.Error("a key is required after the setting was taken back")
	}
}

// TestDamagedRow: an entry that cannot be read is no start, and named.
func TestDamagedRow(t *testing.T) {
	for _, value := range []string{`{"version":1,"settings":{"unknown":1}}`, `{"version":1}`, `[]`} {
		r := newRig(t)
		u := &store.Unit{Settings: []store.SettingChange{{Name: "a", Value: []byte(value)}}}
		if err := r.store.Commit(context.Background(), []*store.Unit{u}, true); err != nil {
			t.Fatal(err)
		}
		if err := r.open(); eventhub.ErrorCode(err) != eventhub.CodeInternal || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestRememberedIsBounded: topics that clients name do not fill the memory.
func TestRememberedIsBounded(t *testing.T) {
	r := newRig(t)
	r.mustWrite("t.*", keep(1))
	m := r.set.table.Load().matches
	m.count.Store(mostMatches - 1)
	r.counts(map[string]uint64{"t.1": 1, "t.2": 1, "t.3": 1})
	if n := m.count.Load(); n > 3 {
		t.Errorf("%d topics are remembered after the bound was reached", n)
	}
}

func BenchmarkKeyRequired(b *testing.B) {
	t := &table{entries: make(map[string]*admin.SettingsEntry), matches: new(matches), keyed: 1}
	p, _ := eventhub.ParsePattern("other.**")
	t.patterns = []eventhub.Pattern{p}
	var topics []string
	for i := range 10_000 {
		name := fmt.Sprint("topic.", i)
		topics = append(topics, name)
		t.entries[name] = &admin.SettingsEntry{Name: name, Settings: keep(1)}
	}
	for _, tt := range []struct {
		name  string
		table *table
	}{{"no settings", nil}, {"of 10,000 topics", t}} {
		s := new(Set)
		s.table.Store(tt.table)
		b.Run(tt.name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				s.KeyRequired(topics[i%len(topics)])
			}
		})
	}
	s := new(Set)
	s.table.Store(t)
	b.Run("by a pattern", func(b *testing.B) {
		for b.Loop() {
			s.KeyRequired("other.topic")
		}
	})
}

// TestState: a topic is indexed when its settings say so, always where it is compacted, whatever other entries
// come and go.
func TestState(t *testing.T) {
	r := newRig(t, admin.SettingsEntry{Name: "file.**", Settings: admin.TopicSettings{State: admin.StateOn}})
	want := func(topic string, want admin.StateMode) {
		t.Helper()
		if got := r.set.State(topic); got != want {
			t.Errorf("the state of %s is %s; want %s", topic, got, want)
		}
	}
	want("file.a", admin.StateOn)
	r.mustWrite("file.b", admin.TopicSettings{KeyRequired: true})
	want("file.b", admin.StateAuto)
	r.mustWrite("off", admin.TopicSettings{State: admin.StateOff})
	r.mustWrite("auto", admin.TopicSettings{State: admin.StateAuto})
	r.mustWrite("kept", admin.TopicSettings{Compaction: &admin.Compaction{}})
	for topic, mode := range map[string]admin.StateMode{"off": admin.StateOff, "auto": admin.StateAuto, "kept": admin.StateOn, "other": admin.StateAuto, "file.a": admin.StateOn} {
		want(topic, mode)
	}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	want("off", admin.StateOff)
	want("kept", admin.StateOn)

	r = newRig(t)
	for i, change := range []func(){
		func() { r.mustWrite("a", admin.TopicSettings{State: admin.StateOff}) },
		func() { r.mustWrite("b", admin.TopicSettings{KeyRequired: true}) },
		func() { r.mustWrite("a", admin.TopicSettings{State: admin.StateAuto}) },
		func() { r.mustWrite("a", admin.TopicSettings{State: admin.StateOn}) },
		func() { _ = r.remove("a", nil) },
	} {
		change()
		if got, want := r.set.AnyState(), i != 2 && i != 4; got != want {
			t.Errorf("after change %d: some topic has it always or never: %v", i, got)
		}
	}
}
