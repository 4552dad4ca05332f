package sched

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/internal/bubble"
)

// job is a task that counts its turns and notes in a log when they were.
type job struct {
	State
	name  string
	log   *record
	work  func() // in each turn, where not nil
	under atomic.Int32
	turns int
}

// record is what jobs did, in order.
type record struct {
	mu    sync.Mutex
	names []string
	at    []time.Time
}

func (r *record) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := r.names
	r.names, r.at = nil, nil
	return names
}

func (j *job) Turn() {
	if j.under.Add(1) != 1 {
		panic("two turns of " + j.name + " at a time")
	}
	j.turns++
	if j.log != nil {
		j.log.mu.Lock()
		j.log.names = append(j.log.names, j.name)
		j.log.at = append(j.log.at, time.Now())
		j.log.mu.Unlock()
	}
	if j.work != nil {
		j.work()
	}
	j.under.Add(-1)
}

// run gives a test a scheduler in a bubble.
func run(t *testing.T, workers int, test func(*Scheduler, *Clock)) {
	t.Helper()
	bubble.Test(t, func(*testing.T) {
		c := NewClock(time.Now)
		s := New(c, workers)
		defer s.Stop()
		test(s, c)
	})
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q; want %q", what, got, want)
	}
}

// TestSlowTasksGetHalf: tasks that are slow take turns with the others, and all turns
// where there are no others.
func TestSlowTasksGetHalf(t *testing.T) {
	run(t, 1, func(s *Scheduler, _ *Clock) {
		var log record
		release := make(chan struct{})
		s.Schedule(&job{work: func() { <-release }}) // until all others wait
		synctest.Wait()
		for i, slow := range []bool{true, true, true, true, false, false} {
			j := &job{name: string(rune('0' + i)), log: &log}
			j.Slow, j.Strained = slow && i%2 == 0, slow && i%2 == 1
			s.Schedule(j)
			s.Schedule(j) // once is enough
		}
		close(release)
		synctest.Wait()
		same(t, "order", log.take(), []string{"0", "4", "1", "5", "2", "3"})
	})
}

// TestNoWakeUpIsLost: a task that is scheduled while its turn runs, however often, gets
// one more, and never two at a time.
func TestNoWakeUpIsLost(t *testing.T) {
	run(t, 4, func(s *Scheduler, _ *Clock) {
		entered, release := make(chan struct{}), make(chan struct{})
		j := &job{work: func() { entered <- struct{}{}; <-release }}
		s.Schedule(j)
		<-entered
		for range 3 {
			s.Schedule(j)
		}
		synctest.Wait()
		release <- struct{}{}
		<-entered // the one more
		release <- struct{}{}
		synctest.Wait()
		if j.turns != 2 {
			t.Errorf("%d turns; want 2", j.turns)
		}
		s.Schedule(j)
		<-entered
		release <- struct{}{}
	})
}

// TestManyTasks: each of many tasks that others schedule gets a turn after each time.
func TestManyTasks(t *testing.T) {
	run(t, 4, func(s *Scheduler, _ *Clock) {
		jobs := make([]job, 100)
		seen := make([]atomic.Int64, len(jobs))
		asked := make([]atomic.Int64, len(jobs))
		for i := range jobs {
			jobs[i].work = func() { seen[i].Store(asked[i].Load()) }
		}
		var wg sync.WaitGroup
		for from := range 4 {
			wg.Go(func() {
				for n := range 10_000 {
					i := (n*7 + from) % len(jobs)
					asked[i].Add(1)
					s.Schedule(&jobs[i])
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		for i := range jobs {
			if seen[i].Load() != asked[i].Load() {
				t.Errorf("task %d was asked for %d times; its last turn saw %d", i, asked[i].Load(), seen[i].Load())
			}
		}
	})
}

// TestEvaluatingTasksHoldUpNobody: as many as there are workers may take as long as they
// like.
func TestEvaluatingTasksHoldUpNobody(t *testing.T) {
	run(t, 2, func(s *Scheduler, _ *Clock) {
		release := make(chan struct{})
		defer close(release)
		for range 3 {
			j := &job{work: func() { <-release }}
			j.Evaluates = true
			s.Schedule(j)
		}
		other := &job{}
		s.Schedule(other)
		synctest.Wait()
		if other.turns != 1 {
			t.Error("a task waits for others that evaluate expressions")
		}
	})
}

// TestAppointments: a task is scheduled at the earliest of the times that it was given,
// once, neither early nor late, whatever the order; one that is forgotten is not.
func TestAppointments(t *testing.T) {
	run(t, 1, func(s *Scheduler, c *Clock) {
		var log record
		names := []string{"a", "b", "c", "d", "e", "f", "g"}
		after := []time.Duration{40, 10, 70, 30, 60, 20, 50}
		jobs := make([]*job, len(names))
		began := time.Now()
		for i, name := range names {
			jobs[i] = &job{name: name, log: &log}
			s.ScheduleAt(jobs[i], c.After(after[i]*100*time.Millisecond))
			s.ScheduleAt(jobs[i], c.After(time.Hour)) // it has an earlier one
		}
		s.ScheduleAt(jobs[2], c.After(500*time.Millisecond)) // earlier than all others
		s.Forget(jobs[5])
		s.Forget(jobs[5]) // has none any more
		if n := s.Appointments(); n != len(names)-1 {
			t.Errorf("%d appointments; want %d", n, len(names)-1)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		var ms []int64
		for _, at := range log.at {
			ms = append(ms, at.Sub(began).Milliseconds())
		}
		if want := []int64{500, 1000, 3000, 4000, 5000, 6000}; !slices.Equal(ms, want) {
			t.Errorf("times: %v; want %v", ms, want)
		}
		same(t, "order", log.take(), []string{"c", "b", "d", "a", "g", "e"})
		if n := s.Appointments(); n != 0 {
			t.Errorf("%d appointments are left", n)
		}
		s.ScheduleAt(jobs[0], c.Now()-1) // that time has passed
		synctest.Wait()
		same(t, "at once", log.take(), []string{"a"})
	})
}

// TestStop: the turn under way ends first, and none begins, not of those that wait nor of
// those that have an appointment.
func TestStop(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := NewClock(time.Now)
		s := New(c, 1)
		release := make(chan struct{})
		first, waits, later := &job{work: func() { <-release }}, &job{}, &job{}
		s.Schedule(first)
		synctest.Wait()
		s.Schedule(first)
		s.Schedule(waits)
		s.ScheduleAt(later, c.After(time.Minute))
		var stopped atomic.Bool
		go func() {
			s.Stop()
			stopped.Store(true)
		}()
		synctest.Wait()
		if stopped.Load() {
			t.Error("Stop has returned while a turn runs")
		}
		close(release)
		synctest.Wait()
		s.Schedule(later)
		s.ScheduleAt(waits, c.After(time.Second))
		time.Sleep(time.Hour)
		if !stopped.Load() || first.turns != 1 || waits.turns+later.turns != 0 {
			t.Errorf("stopped: %v; turns: %d, %d, %d; want 1, 0, 0", stopped.Load(), first.turns, waits.turns, later.turns)
		}
	})
}

// TestClock: whoever sets the wall clock moves Wall and Drift, and nothing else.
func TestClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var set atomic.Int64
		c := NewClock(func() time.Time { return time.Now().Add(time.Duration(set.Load())) })
		began := time.Now().UnixMilli()
		for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
			set.Store(int64(by))
			time.Sleep(time.Second)
			now := time.Now().UnixMilli()
			if c.Now() != now || c.After(time.Second) != now+1000 || c.until(now+1500) != 1500*time.Millisecond {
				t.Errorf("set by %v: now %d, want %d", by, c.Now()-began, now-began)
			}
			if got := c.Wall().UnixMilli(); got != now+by.Milliseconds() || c.Drift() != by.Milliseconds() {
				t.Errorf("set by %v: the wall clock has %d, want %d; drift %d", by, got-began, now-began+by.Milliseconds(), c.Drift())
			}
		}
	})
}
