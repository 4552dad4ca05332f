package hub_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"eventhub/hub"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// lookAfter opens the journal as the commands do.
func lookAfter(t *testing.T, j *memory.Journal) *hub.Journal {
	t.Helper()
	tool, err := hub.LookAfter(t.Context(), hub.Config{OpenJournal: func(context.Context) (journal.Journal, error) { return j.Open(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tool.Close() })
	return tool
}

func wantError(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v; want %q", what, err, want)
	}
}

// TestLookAfterJournal: what of a journal may go, who holds the rest, and that a member that is gone is
// released, and one that is there is not.
func TestLookAfterJournal(t *testing.T) {
	j := memory.New(memory.Options{})
	tool := lookAfter(t, j)
	a := start(t, memberConfig(j.Open(), "a", t.TempDir()))
	awaitReady(t, a)
	for _, id := range []string{"one", "two", "three"} {
		mustPublish(t, a, id)
	}
	p, err := tool.PlanTrim(t.Context())
	if err != nil || p.UpTo != 0 || !strings.Contains(p.Why, "1 members were seen") {
		t.Errorf("with one member: %+v, %v", p, err)
	}
	handle := j.Open()
	for _, m := range []journal.Member{{ID: "a", Synced: 4}, {ID: "gone", Synced: 2, Active: true}} {
		if _, err := handle.Announce(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if p, err = tool.PlanTrim(t.Context()); err != nil || p.UpTo != 2 || p.First != 1 || p.Last < 4 || strings.Join(p.Holds, " ") != "gone" {
		t.Errorf("with two members: %+v, %v", p, err)
	}
	if err := tool.Trim(t.Context(), p.UpTo); err != nil {
		t.Fatal(err)
	}
	if p, err = tool.PlanTrim(t.Context()); err != nil || p.First != 3 {
		t.Errorf("after the trim: %+v, %v", p, err)
	}
	tally, err := tool.Verify(t.Context(), nil)
	if err != nil || tally.First != 3 || tally.Hub != "a" {
		t.Errorf("Verify = %+v, %v", tally, err)
	}
	_, err = tool.Release(t.Context(), "gone")
	wantError(t, "a member that has just said something", err, "stop its hub first")
	_, err = tool.Release(t.Context(), "nobody")
	wantError(t, "a member that is not known", err, `known are: "a", "gone"`)
}

// TestRelease: a member that was released is not waited for, and is a member again when it says something.
func TestRelease(t *testing.T) {
	j := memory.New(memory.Options{})
	tool, handle := lookAfter(t, j), j.Open()
	say := func(id string, synced uint64, ago time.Duration) {
		j.Say(journal.Member{ID: id, Synced: synced, Seen: time.Now().Add(-ago)})
	}
	say("a", 10, 0)
	say("b", 8, 0)
	say("gone", 2, time.Hour)
	m, err := tool.Release(t.Context(), "gone")
	if err != nil || m.Synced != 2 || !m.Released || time.Since(m.Seen) < time.Minute {
		t.Errorf("Release = %+v, %v", m, err)
	}
	if _, err := tool.Release(t.Context(), "gone"); err != nil {
		t.Errorf("again: %v", err)
	}
	if p, err := tool.PlanTrim(t.Context()); err != nil || p.UpTo != 8 || strings.Join(p.Holds, " ") != "b" {
		t.Errorf("without it: %+v, %v", p, err)
	}
	if _, err := handle.Announce(t.Context(), journal.Member{ID: "gone", Synced: 3}); err != nil {
		t.Fatal(err)
	}
	if p, err := tool.PlanTrim(t.Context()); err != nil || p.UpTo != 3 {
		t.Errorf("with it again: %+v, %v", p, err)
	}
}

// TestToolsByTheEnginesClock: who was seen when is told by the clock of the journal's servers, whatever that of the
// machine says on which somebody looks after it.
func TestToolsByTheEnginesClock(t *testing.T) {
	for _, ahead := range []time.Duration{-25 * time.Hour, -time.Hour, -40 * time.Second, 0, 40 * time.Second, time.Hour, 25 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			j := memory.New(memory.Options{})
			j.SetAhead(ahead)
			tool := lookAfter(t, j)
			for id, ago := range map[string]time.Duration{"a": 0, "b": 20 * time.Second, "late": 35 * time.Second, "gone": 25 * time.Hour} {
				synced := map[string]uint64{"a": 10, "b": 8, "late": 9, "gone": 2}[id]
				j.Say(journal.Member{ID: id, Synced: synced, Seen: time.Now().Add(ahead - ago)})
			}
			if p, err := tool.PlanTrim(t.Context()); err != nil || p.UpTo != 8 || strings.Join(p.Holds, " ") != "b" {
				t.Errorf("PlanTrim = %+v, %v; want up to 8, for b has the least of who was seen within a day", p, err)
			}
			members, err := tool.Members(t.Context())
			if err != nil || len(members) != 4 {
				t.Fatalf("Members = %+v, %v", members, err)
			}
			if ago := members[1].Ago.Round(10 * time.Second); members[1].ID != "b" || ago != 20*time.Second {
				t.Errorf("%s was seen %s ago; want b, 20 s", members[1].ID, ago)
			}
			_, err = tool.Release(t.Context(), "b")
			wantError(t, "Release of who was seen 20 s ago", err, `"b" has said something 2`)
			if m, err := tool.Release(t.Context(), "late"); err != nil || m.Ago.Round(5*time.Second) != 35*time.Second {
				t.Errorf("Release of who was seen 35 s ago = %+v, %v", m, err)
			}
		})
	}
}

// TestReseed: after the loss of a journal a member's copy begins a new one, which has all that the copy had; what
// would lose something is refused.
func TestReseed(t *testing.T) {
	old := memory.New(memory.Options{})
	dir := t.TempDir()
	over := func(j *memory.Journal, dir string) hub.Config {
		cfg := memberConfig(nil, "a", dir)
		cfg.OpenJournal = func(context.Context) (journal.Journal, error) { return j.Open(), nil }
		return cfg
	}
	a, err := hub.Start(over(old, dir))
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, a)
	mustPublish(t, a, "one")
	mustPublish(t, a, "two")
	_, err = hub.PlanReseed(t.Context(), over(memory.New(memory.Options{}), dir), nil)
	wantError(t, "a directory whose hub runs", err, "another eventhub holds")
	if err := a.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err = hub.PlanReseed(t.Context(), over(old, dir), nil)
	wantError(t, "a journal that is whole", err, "the journal is not lost")
	other := memory.New(memory.Options{})
	lead, err := journal.New(other.Open()).Lead(t.Context(), journal.Position{}, "x", 1)
	if err != nil {
		t.Fatal(err)
	}
	_ = lead.Close()
	_, err = hub.PlanReseed(t.Context(), over(other, dir), nil)
	wantError(t, "a journal of others", err, "not those of")
	_, err = hub.PlanReseed(t.Context(), over(other, t.TempDir()), nil)
	wantError(t, "an empty directory", err, "is empty")

	fresh := memory.New(memory.Options{})
	if _, err := fresh.Open().Announce(t.Context(), journal.Member{ID: "b", Synced: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	p, err := hub.PlanReseed(t.Context(), over(fresh, dir), nil)
	if err != nil || p.Place == 0 || p.Epoch != 1 || len(p.Ahead) != 1 || p.Ahead[0].ID != "b" {
		t.Fatalf("PlanReseed = %+v, %v", p, err)
	}
	// The new stream may have another name, so that the lost one alone knows what members have.
	before := over(fresh, "")
	if p, err := hub.PlanReseed(t.Context(), over(memory.New(memory.Options{}), dir), nil); err != nil || p.Heard != 0 || p.Ahead != nil {
		t.Errorf("where nobody has said anything: %+v, %v", p, err)
	}
	if p, err := hub.PlanReseed(t.Context(), over(memory.New(memory.Options{}), dir), &before); err != nil || p.Heard != 1 || len(p.Ahead) != 1 {
		t.Errorf("with the journal that was lost: %+v, %v", p, err)
	}
	if err := p.Carry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if members, err := lookAfter(t, fresh).Members(t.Context()); err != nil || len(members) != 1 || !members[0].Released || members[0].Synced != 0 {
		t.Errorf("what was said of the journal that was lost: %+v, %v", members, err)
	}
	_, err = hub.PlanReseed(t.Context(), over(fresh, dir), nil)
	wantError(t, "again", err, "begins a journal by itself")
	a = start(t, over(fresh, dir))
	awaitReady(t, a)
	mustPublish(t, a, "three")
	mustPublish(t, a, "two")
	mustHave(t, a, "one", "two", "three")
}
