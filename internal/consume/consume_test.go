package consume

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
)

func same(n int) int { return n }

// TestQueueBound: it takes no more than it has room for, and asks for more once half of it
// is free, if it refused something.
func TestQueueBound(t *testing.T) {
	q := NewQueue[int](4)
	asked := 0
	next := func() int {
		n, ok := q.Next(func() { asked++ })
		if !ok {
			t.Fatal("the queue has ended")
		}
		return n
	}
	if n := q.Put([]int{1, 2, 3, 4, 5}, same); n != 4 {
		t.Fatalf("it took %d; want 4", n)
	}
	if n := q.Put([]int{5}, same); n != 0 {
		t.Fatalf("a full queue took %d", n)
	}
	for want, n := range []int{1, 2, 3, 4} {
		if got := next(); got != n {
			t.Errorf("item %d is %d; want %d", want, got, n)
		}
		if want := min(n/2, 1); asked != want {
			t.Errorf("after %d items it asked %d times for more; want %d", n, asked, want)
		}
	}
	if n := q.Put([]int{5}, func(n int) int { return 10 * n }); n != 1 || next() != 50 {
		t.Error("keep was not asked what to keep")
	}
	if asked != 1 {
		t.Errorf("it asked %d times for more; want 1", asked)
	}
}

// TestQueueEnd: whoever waits is released, what was not taken is gone, and the first cause
// stays.
func TestQueueEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := NewQueue[int](2)
		released := make(chan bool)
		for range 3 {
			go func() { _, ok := q.Next(func() {}); released <- ok }()
		}
		synctest.Wait()
		first := errors.New("first")
		q.End(first)
		q.End(errors.New("second"))
		for range 3 {
			if <-released {
				t.Error("there was an item")
			}
		}
		if q.Put([]int{1}, same) != 0 || q.Cause() != first {
			t.Errorf("it took an item after the end, or its cause is %v", q.Cause())
		}
	})
	q := NewQueue[int](1)
	q.Put([]int{1, 2}, same)
	q.Clear()
	q.Put([]int{3}, same)
	if n, ok := q.Next(func() { t.Error("it asked for what is void") }); n != 3 || !ok {
		t.Errorf("after Clear came %d, %v", n, ok)
	}
	q.Put([]int{4}, same)
	q.End(nil)
	if n, ok := q.Next(func() {}); ok {
		t.Errorf("after the end came %d", n)
	}
}

// TestSteps: what is added during a call goes together into the next; what is to be done
// again comes first, after a pause that doubles, or after the time that was named.
func TestSteps(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		type call struct {
			steps string
			after time.Duration
		}
		var calls []call
		var s *Steps[byte]
		last := time.Now()
		s = NewSteps(func(steps []byte) (again []byte, wait time.Duration) {
			calls = append(calls, call{string(steps), time.Since(last)})
			last = time.Now()
			switch len(calls) {
			case 1: // a
				s.Add('b')
				s.Add('c')
				return steps, 0
			case 2: // abc
				return slices.Clone(steps[:2]), 0
			case 3: // ab
				return steps[:1], 7 * time.Second
			case 5: // d
				return steps, 0
			}
			return nil, 0
		})
		s.Add('a')
		time.Sleep(time.Minute)
		s.Add('d')
		time.Sleep(time.Minute)
		s.Finish()
		want := []call{{"a", 0}, {"abc", minPause}, {"ab", 2 * minPause}, {"a", 7 * time.Second},
			{"d", time.Minute - 7*time.Second - 3*minPause}, {"d", minPause}}
		if !slices.Equal(calls, want) {
			t.Errorf("calls %v; want %v", calls, want)
		}
	})
}

// TestStepsFinish: every step is done once, none again, and no pause is waited for.
func TestStepsFinish(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		done := 0
		s := NewSteps(func(steps []int) ([]int, time.Duration) {
			done += len(steps)
			return steps, time.Hour
		})
		s.Add(1)
		synctest.Wait()
		s.Add(2)
		began := time.Now()
		s.Finish()
		if done != 2 || time.Since(began) != 0 {
			t.Errorf("%d steps were done in %s; want 2 at once", done, time.Since(began))
		}
	})
}
