package main

import (
	"strings"
	"testing"

	"eventhub/admin"
)

// TestStatusWarns: what of a store and of a group needs attention, and what does not.
func TestStatusWarns(t *testing.T) {
	group := func(kind string, paused bool) admin.GroupInfo {
		g := admin.GroupInfo{Topic: "t", Group: "g", Lag: 3, Paused: paused}
		if kind != "" {
			g.BlockedBy = &admin.Blocked{Kind: kind, Offset: 7, Key: "k", State: "waiting"}
		}
		return g
	}
	for name, tt := range map[string]struct {
		operations operations
		group      admin.GroupInfo
		todo       uint64
		want, do   string // "": nothing
	}{
		"nothing":                 {operations{Ready: true, FreeBytes: 100, NeededBytes: 50}, group("", false), 3, "", ""},
		"not ready":               {operations{FreeBytes: 100, NeededBytes: 50}, group("", false), 3, "not ready", "eventhub health"},
		"in memory":               {operations{Ready: true}, group("", false), 3, "", ""},
		"a disk that fills up":    {operations{Ready: true, FreeBytes: 99 << 10, NeededBytes: 50 << 10}, group("", false), 3, "the disk has only 99.0 KiB free: below 50.0 KiB", "df -h"},
		"a full disk":             {operations{Ready: true, FreeBytes: 49, NeededBytes: 50}, group("", false), 3, "the disk has 49 B free: publishes are refused", "df -h"},
		"one that is full soon":   {operations{Ready: true, FreeBytes: 500, NeededBytes: 50, FullInS: 7200}, group("", false), 3, "the disk is full in 2 h", "eventhub topic ls"},
		"one that fills slowly":   {operations{Ready: true, FreeBytes: 500, NeededBytes: 50, FullInS: 9 * 86400}, group("", false), 3, "", ""},
		"without maintenance":     {operations{Ready: true, NoMaintenance: true}, group("", false), 3, "maintenance is off", "eventhub serve --maintenance=on"},
		"a clock that is ahead":   {operations{Ready: true, ClockHeldS: 7200}, group("", false), 3, "the clock is 2 h ahead", "date"},
		"paused":                  {operations{Ready: true}, group("paused", true), 3, "is paused and has 3 events to do", "eventhub group resume t g"},
		"paused, with no events":  {operations{Ready: true}, group("", true), 0, "is paused", "eventhub group resume t g"},
		"with an outdated filter": {operations{Ready: true}, group("filter", false), 3, "has 3 events to do, and a filter that the hub does not accept any more", "eventhub group info t g"},
		"without members":         {operations{Ready: true}, group("no_members", false), 3, "has 3 events to do and no member", "eventhub group info t g"},
		"done, without members":   {operations{Ready: true}, group("no_members", false), 0, "", ""},
		"members that pause":      {operations{Ready: true}, group("members_paused", false), 3, "all its members have paused", "eventhub group info t g"},
		"members that are full":   {operations{Ready: true}, group("members_full", false), 3, "", ""},
		"one key":                 {operations{Ready: true}, group("key", false), 3, "is stuck: waits for offset 7 of key k", "eventhub group info t g"},
		"one event":               {operations{Ready: true}, group("window", false), 3, "is stuck: ", "eventhub group info t g"},
	} {
		s := &state{Operations: &tt.operations}
		s.judgeStore()
		s.judgeGroup(&tt.group, tt.todo)
		if tt.want == "" {
			if len(s.Warnings) > 0 {
				t.Errorf("%s: %+v; want nothing", name, s.Warnings)
			}
			continue
		}
		if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0].What, tt.want) || s.Warnings[0].Command != tt.do {
			t.Errorf("%s: %+v; want %q and %q", name, s.Warnings, tt.want, tt.do)
		}
	}
}
