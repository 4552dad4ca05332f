package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"eventhub/store/journal"
	"eventhub/store/journal/journaltest"
	"eventhub/store/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var engine = journaltest.Engine{
	New: func(*testing.T) func(*testing.T) journal.Journal {
		j := memory.New(memory.Options{})
		return func(*testing.T) journal.Journal { return j.Open() }
	},
	Races: 25,
}

func TestConformance(t *testing.T) { journaltest.Run(t, engine) }

func TestLeaders(t *testing.T) {
	journaltest.RunLeaders(t, engine, journaltest.Leaders{Turns: 10, Commits: 20})
}
