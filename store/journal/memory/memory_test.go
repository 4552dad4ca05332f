package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"eventhub/store/journal"
	"eventhub/store/journal/journaltest"
	"eventhub/store/journal/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	journaltest.Run(t, journaltest.Engine{
		New: func(*testing.T) func(*testing.T) journal.Journal {
			j := memory.New(memory.Options{})
			return func(*testing.T) journal.Journal { return j.Open() }
		},
		Races: 25,
	})
}
