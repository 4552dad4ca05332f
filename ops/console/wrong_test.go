package console

import (
	"context"
	"slices"
	"testing"
	"time"

	"eventhub/admin"
	"eventhub/internal/measure"
)

// TestJudge: each way in which a group stands still has its name, and a group that only works has
// none.
func TestJudge(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	at := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	leased := func(since time.Duration) admin.InFlight {
		return admin.InFlight{Offset: 4, State: "leased", Attempt: 1, SinceTS: at(-since)}
	}
	failed := func(state string, times int) admin.InFlight {
		e := admin.InFlight{Offset: 5, State: state, Attempt: times, DueTS: at(time.Second), SinceTS: at(0)}
		for i := range times {
			e.History = append(e.History, admin.Attempt{Attempt: i + 1, Why: "nacked"})
		}
		return e
	}
	later := admin.InFlight{Offset: 6, State: "waiting", Attempt: 1, DueTS: at(time.Minute), History: []admin.Attempt{{Attempt: 1}}}
	soon := later
	soon.DueTS = at(time.Second)
	for name, tt := range map[string]struct {
		blocked  *admin.Blocked
		flying   []admin.InFlight
		moves    bool
		waiting  int
		kind     string
		severity string
		offset   uint64
	}{
		"paused":              {blocked: &admin.Blocked{Kind: "paused"}, kind: "paused", severity: warning},
		"paused with poison":  {blocked: &admin.Blocked{Kind: "paused"}, flying: []admin.InFlight{failed("waiting", 3)}, kind: "paused", severity: warning},
		"outdated filter":     {blocked: &admin.Blocked{Kind: "filter"}, kind: "filter", severity: critical},
		"no members":          {blocked: &admin.Blocked{Kind: "no_members"}, flying: []admin.InFlight{leased(time.Hour)}, kind: "no_members", severity: critical},
		"members paused":      {blocked: &admin.Blocked{Kind: "members_paused"}, kind: "members_paused", severity: critical},
		"window":              {blocked: &admin.Blocked{Kind: "window", Offset: 4}, moves: true, kind: "window", severity: critical},
		"full members":        {blocked: &admin.Blocked{Kind: "members_full"}, flying: []admin.InFlight{leased(time.Second), leased(stuckAfter)}, kind: "members_full", severity: critical, offset: 4},
		"full for a moment":   {blocked: &admin.Blocked{Kind: "members_full"}, flying: []admin.InFlight{leased(stuckAfter - 1e6)}},
		"full and moving":     {blocked: &admin.Blocked{Kind: "members_full"}, flying: []admin.InFlight{leased(stuckAfter)}, moves: true},
		"key with a member":   {blocked: &admin.Blocked{Kind: "key", State: "leased", SinceTS: at(-stuckAfter)}, kind: "key", severity: critical},
		"key for a moment":    {blocked: &admin.Blocked{Kind: "key", State: "leased", SinceTS: at(-time.Second)}, flying: []admin.InFlight{leased(time.Second)}},
		"key that waits":      {blocked: &admin.Blocked{Kind: "key", State: "waiting"}, kind: "key", severity: critical},
		"poison":              {flying: []admin.InFlight{leased(time.Second), failed("waiting", 2), failed("leased", 3)}, kind: "poison", severity: critical, offset: 5},
		"poison among others": {flying: []admin.InFlight{failed("waiting", 2)}, moves: true, kind: "poison", severity: warning, offset: 5},
		"one failure":         {flying: []admin.InFlight{failed("leased", 1)}},
		"retry":               {flying: []admin.InFlight{later}, waiting: 1, kind: "retry", severity: warning, offset: 6},
		"short retry":         {flying: []admin.InFlight{soon}, waiting: 1},
		"retry of one":        {flying: []admin.InFlight{leased(0), later}, waiting: 1},
		"slow":                {flying: []admin.InFlight{leased(slowAfter)}, moves: true, kind: "slow", severity: warning, offset: 4},
		"at work":             {flying: []admin.InFlight{leased(time.Second)}},
	} {
		g := admin.GroupInfo{Topic: "t", Group: "g", Lag: 3, Waiting: tt.waiting, BlockedBy: tt.blocked, MaxAttempts: 5}
		w := judge(&g, tt.flying, tt.moves, now)
		if tt.kind == "" {
			if w != nil {
				t.Errorf("%s: %+v; want nothing", name, w)
			}
			continue
		}
		if w == nil || w.Kind != tt.kind || w.Severity != tt.severity || tt.offset == 0 && w.Event != nil || tt.offset != 0 && (w.Event == nil || w.Event.Offset != tt.offset) {
			t.Errorf("%s: %+v; want %s, %s, event %d", name, w, tt.kind, tt.severity, tt.offset)
		}
	}
	if w := judge(&admin.GroupInfo{BlockedBy: &admin.Blocked{Kind: "paused"}}, nil, false, now); w != nil {
		t.Errorf("a group without lag: %+v", w)
	}
}

// TestWrongHub: what concerns the hub as a whole has its name too.
func TestWrongHub(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	well := func() *sample {
		return &sample{
			at: now, checks: []Check{{Name: "store"}}, sources: []measure.Source{{Setting: "jwt_key_file"}, {Setting: "tls_cert_file", Expires: now.Add(certificate)}},
			engine:  measure.Engine{FullIn: -1, FreeBytes: 10, NeededBytes: 5, CommitWaiting: stalled - 1, AgesHeld: clockAhead - 1},
			cluster: &measure.Cluster{ID: "a", Leads: true, Silent: silent - 1, Full: silent - 1, Behind: stuckAfter - 1, Members: make([]measure.Member, 2)},
		}
	}
	if list := wrongHub(well()); len(list) != 0 {
		t.Errorf("a hub that is well: %+v", list)
	}
	alone := well()
	alone.cluster = nil
	if list := wrongHub(alone); len(list) != 0 {
		t.Errorf("a hub alone: %+v", list)
	}
	for kind, tt := range map[string]struct {
		severity string
		change   func(*sample)
	}{
		"not_ready":      {critical, func(s *sample) { s.checks[0].Error = "no" }},
		"setting_stale":  {warning, func(s *sample) { s.sources[0].Stale = true }},
		"certificate":    {warning, func(s *sample) { s.sources[1].Expires = now.Add(certificate - 1) }},
		"commit_stalled": {critical, func(s *sample) { s.engine.CommitWaiting = stalled }},
		"disk_full":      {critical, func(s *sample) { s.engine.FreeBytes = 4 }},
		"disk_soon":      {critical, func(s *sample) { s.engine.FullIn = veryFull - 1 }},
		"clock_ahead":    {warning, func(s *sample) { s.engine.AgesHeld = clockAhead }},
		"journal_silent": {critical, func(s *sample) { s.cluster.Silent = silent }},
		"journal_full":   {critical, func(s *sample) { s.cluster.Full = silent }},
		"standby_behind": {warning, func(s *sample) { s.cluster.Behind = stuckAfter }},
		"no_standby":     {warning, func(s *sample) { s.cluster.Members = s.cluster.Members[:1] }},
	} {
		s := well()
		tt.change(s)
		if list := wrongHub(s); len(list) != 1 || list[0].Kind != kind || list[0].Severity != tt.severity {
			t.Errorf("%s: %+v", kind, list)
		}
	}
	soon := well()
	soon.engine.FullIn = soonFull - 1
	if list := wrongHub(soon); len(list) != 1 || list[0].Kind != "disk_soon" || list[0].Severity != warning {
		t.Errorf("a disk that is full within a day: %+v", list)
	}
	standby := well()
	standby.cluster.Leads, standby.checks[0].Error = false, "a standby"
	if list := wrongHub(standby); len(list) != 0 {
		t.Errorf("a standby is not ready, and nothing is wrong with that: %+v", list)
	}
}

// TestWorstFirst: what stands still comes before what does not, the hub before its groups, the larger
// lag before the smaller, and dead letters last.
func TestWorstFirst(t *testing.T) {
	in := &rooms{groups: map[name]admin.GroupInfo{}}
	s := &sample{at: time.Now(), checks: []Check{{Name: "store", Error: "no"}}, sources: []measure.Source{{Setting: "key", Stale: true}}, engine: measure.Engine{FullIn: -1}}
	add := func(name_ string, lag, letters uint64, kind string) {
		g := group("t", name_, lag)
		g.OpenLetters = letters
		s.engine.Groups = append(s.engine.Groups, g)
		info := admin.GroupInfo{Topic: "t", Group: name_, Lag: lag}
		if kind != "" {
			info.BlockedBy = &admin.Blocked{Kind: kind}
		}
		in.groups[name{"t", name_}] = info
	}
	add("small", 5, 0, "no_members")
	add("paused", 99, 2, "paused")
	add("large", 50, 7, "no_members")
	add("well", 0, 0, "")
	list, all := whatIsWrong(context.Background(), s, &Access{Inspector: in})
	var got []string
	for _, w := range list {
		got = append(got, w.Kind+" "+w.Group)
	}
	want := []string{"not_ready ", "no_members large", "no_members small", "setting_stale ", "paused paused", "dead_letters large", "dead_letters paused"}
	if !slices.Equal(got, want) || all != len(want) {
		t.Errorf("%d: %q; want %q", all, got, want)
	}
}
