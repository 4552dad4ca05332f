package main

import (
	"bytes"
	"strings"
	"testing"

	"eventhub/hub"
)

// TestJournalErrors: each has its exit code, and says what is wrong. What needs servers is tested in cluster.
func TestJournalErrors(t *testing.T) {
	const away = "nats://127.0.0.1:1/S"
	alone := t.TempDir()
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"journal", "verify"}, exitUsage, "no journal is named"},
		{[]string{"journal", "verify", "--journal", "none"}, exitUsage, "no journal is named"},
		{[]string{"journal", "verify", "--journal", "http://x"}, exitUsage, `its scheme is "http"`},
		{[]string{"journal", "verify", "--journal", away}, exitUnreachable, "the journal is not reached"},
		{[]string{"journal", "trim", "--journal", away}, exitUnreachable, "the journal is not reached"},
		{[]string{"journal", "project", "--journal", away}, exitUnreachable, "the journal is not reached"},
		{[]string{"journal", "project", "--rebuild", "--journal", "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=100"}, exitUnreachable, "the journal is not reached"},
		{[]string{"cluster", "release", "--journal", away}, exitUsage, "MEMBER"},
		{[]string{"cluster", "release", "x", "--journal", away}, exitUnreachable, "the journal is not reached"},
		{[]string{"journal", "reseed", "--journal", away}, exitUsage, "DIR"},
		{[]string{"journal", "reseed", "--journal", away, alone}, exitFailed, "is empty"},
	} {
		code, stdout, stderr := runBinary(t, nil, tt.args...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%v: %d %s%s; want %d and %q", tt.args, code, stdout, stderr, tt.code, tt.says)
		}
	}
}

// TestJournalPrinted: what people see of a journal that was read, and of a trim.
func TestJournalPrinted(t *testing.T) {
	var b bytes.Buffer
	v := verifiedJournal{First: 7, Last: 20, Places: 14, Commits: 9, Leads: 1, Bytes: 2048, Epoch: 3, Hub: "hub1", FirstTS: 1, LastTS: 2}
	if err := v.print(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Places:   7 to 20, trimmed before", "Bytes:    2.0 KiB", "by hub1 in epoch 3"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("verify prints %s; want %q", &b, want)
		}
	}
	for want, p := range map[string]trimPlan{
		"Not needed:           7 to 12\nThe rest is held by:  hub2, hub3\nRemoved:              no": {First: 7, Last: 20, UpTo: 12, HeldBy: []string{"hub2", "hub3"}},
		"Not needed:           7 to 19\n":                                 {First: 7, Last: 20, UpTo: 20}, // the last one stays
		"Not needed:           nothing\nThe rest is held by:  one member": {First: 7, Last: 20, Why: "one member"},
	} {
		b.Reset()
		if err := p.print(&b, false); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("trim prints %s, %v; want %q", &b, err, want)
		}
	}
	for want, p := range map[string]projected{
		"Documents:  up to place 7 of 9, as of never\nRebuild:    under way, 3 of 5 events\n": {Place: 7, Last: 9, Rebuilding: true, Wrote: 3, Whole: 5},
		"Documents:  up to place 7 of 9, as of never\nRebuild:    done, 5 events\n":           {Place: 7, Last: 9, Wrote: 5, Whole: 5},
		"Documents:  up to place 7 of 9, as of never\n":                                       {Place: 7, Last: 9},
	} {
		b.Reset()
		if err := p.print(&b, false); err != nil || b.String() != want {
			t.Errorf("project prints %q, %v; want %q", &b, err, want)
		}
	}
	if got := hub.JournalShown("nats://u:secret@h:1/S"); strings.Contains(got, "secret") {
		t.Errorf("a journal is shown as %s", got)
	}
}
