package groupstate

import "testing"

// TestSeekPlanOverGaps: offsets that hold no event, between acked ones that are
// forgotten, count for nothing.
func TestSeekPlanOverGaps(t *testing.T) {
	g := Group{progress: newProgress()}
	g.window.reset(0)
	g.window.add(1)
	const n = 2000
	for i := range uint64(n) {
		g.window.add(2 + 3*i)
	}
	for i := range uint64(n) {
		g.window.settle(g.window.find(2 + 3*i))
	}
	head := g.window.next - 1
	for to := range head + 1 {
		p, _ := g.PlanSeek(to, head)
		if again := n - (to+1)/3; p.Again != again || p.Skipped != min(to, 1) {
			t.Fatalf("plan to %d of %d: %d again, %d skipped; want %d and %d", to, head, p.Again, p.Skipped, again, min(to, 1))
		}
	}
	if p, _ := g.PlanSeek(head, 5); p.Skipped > 1 {
		t.Errorf("plan with an old head: %d skipped of 1", p.Skipped)
	}
}
