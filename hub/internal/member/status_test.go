package member

import (
	"testing"
	"testing/synctest"

	"eventhub/store/journal/memory"
)

// TestCaughtUp: a member that has not asked the journal, or does not have what it said, has not
// caught up, however short its life.
func TestCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := memory.New(memory.Options{})
		a := start(t, j, "a")
		settle(lease)
		a.publish("one")
		b := start(t, j, "b")
		b.handle.Cut(true)
		synctest.Wait()
		if s := b.member.Status(); s.CaughtUp || s.Behind > 0 {
			t.Errorf("a standby that could not ask says %+v", s)
		}
		b.handle.Cut(false)
		settle(lease)
		if s := b.member.Status(); !s.CaughtUp {
			t.Errorf("a standby that follows says %+v", s)
		}
		if s := a.member.Status(); !s.CaughtUp {
			t.Errorf("who leads says %+v", s)
		}
		a.kill()
		b.kill()
	})
}
