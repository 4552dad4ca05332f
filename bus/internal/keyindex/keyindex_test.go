package keyindex

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/storefault"
)

// TestAsked: a topic has no index until somebody asks for it, and keeps it from then on.
func TestAsked(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 500)
		r.publish("b", 1)
		r.want("a", store.NotIndexed)
		if err := r.runtime.Ask(bg, "a"); err != nil {
			t.Fatal(err)
		}
		r.want("a", store.Indexed)
		r.want("b", store.NotIndexed)
		if r.ready["a"] != 1 || r.ready["b"] != 0 {
			t.Errorf("ready: %v", r.ready)
		}
		calls := r.store.Calls(storefault.IndexKeys)
		if calls < 3 {
			t.Errorf("500 events were indexed in %d steps", calls)
		}
		if err := errors.Join(r.runtime.Ask(bg, "a"), r.runtime.Ask(bg, "none")); err != nil {
			t.Error(err)
		}
		if got := r.store.Calls(storefault.IndexKeys); got != calls {
			t.Errorf("%d steps for what is there", got-calls)
		}
	})
}

// TestNothingRuns: where no topic has such a setting and nobody asks nothing is called, whatever is
// published and however long it takes, and once an index is ready neither.
func TestNothingRuns(t *testing.T) {
	inBubble(t, func(r *rig) {
		synctest.Wait()
		calls := func() int { return r.store.Calls(storefault.Any) - r.store.Calls(storefault.Commit) }
		before := calls()
		r.publish("a", 100)
		time.Sleep(time.Hour)
		if got := calls(); got != before {
			t.Errorf("%d calls of the store", got-before)
		}
		if err := r.runtime.Ask(bg, "a"); err != nil {
			t.Fatal(err)
		}
		before = calls()
		r.publish("a", 100)
		time.Sleep(time.Hour)
		if got := calls(); got != before {
			t.Errorf("%d calls of the store once the index is ready", got-before)
		}
	})
}

// slow has each step take a second.
func (r *rig) slow() {
	r.store.Before(storefault.IndexKeys, func(*storefault.Call) error {
		time.Sleep(time.Second)
		return nil
	})
}

// TestAskIsToldHowFarItIs: who waits too long is told how far the index is and when to come again, and
// the index goes on without anybody.
func TestAskIsToldHowFarItIs(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 64*40)
		r.slow()
		began := time.Now()
		e := wantCode(t, r.runtime.Ask(bg, "a"), eventhub.CodeOverloaded)
		if waited := time.Since(began); waited != admin.IndexWait {
			t.Errorf("it waited %s", waited)
		}
		if !strings.Contains(e.Message, " % of 2560 offsets") || e.RetryAfter < 20*time.Second || e.RetryAfter > 30*time.Second {
			t.Errorf("%q, again after %s", e.Message, e.RetryAfter)
		}
		if p := r.runtime.Progress("a"); p.Total != 2560 || p.Done == 0 || p.Done == p.Total {
			t.Errorf("progress %+v", p)
		}
		if building, left := r.runtime.Stats(); building != 1 || left == 0 || left > 2560 {
			t.Errorf("%d are being built, %d offsets left", building, left)
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		wantCode(t, r.runtime.Ask(ctx, "a"), eventhub.CodeShuttingDown)
		time.Sleep(e.RetryAfter)
		began = time.Now()
		if err := r.runtime.Ask(bg, "a"); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("after the time that it was told: %v after %s", err, time.Since(began))
		}
		if building, left := r.runtime.Stats(); building != 0 || left != 0 {
			t.Errorf("%d are being built, %d offsets left", building, left)
		}
	})
}

// TestSmallTopicDoesNotWait for a large one.
func TestSmallTopicDoesNotWait(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("large", 64*40)
		r.publish("small", 10)
		r.slow()
		r.set("large", admin.StateOn)
		time.Sleep(1500 * time.Millisecond)
		began := time.Now()
		if err := r.runtime.Ask(bg, "small"); err != nil || time.Since(began) > 4*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestSettings: on has the index from the beginning, and of what is there; off has none and drops the one
// that there is; both of topics that come later too, and for patterns.
func TestSettings(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 100)
		r.set("a", admin.StateOn)
		r.want("a", store.Indexed)
		r.set("a", "")
		r.want("a", store.Indexed)
		r.set("a", admin.StateOff)
		r.want("a", store.NotIndexed)
		e := wantCode(t, r.runtime.Ask(bg, "a"), eventhub.CodeUnsupportedOp)
		if !strings.Contains(e.Message, "state off") || !strings.Contains(e.Message, `"a"`) {
			t.Errorf("%q names neither the setting nor the topic", e.Message)
		}
		r.want("a", store.NotIndexed)
		r.set("a", "")
		r.want("a", store.NotIndexed)

		r.publish("p.old", 10)
		r.set("p.*", admin.StateOn)
		r.publish("p.new", 1)
		r.publish("q.new", 1)
		r.want("p.old", store.Indexed)
		r.want("p.new", store.Indexed)
		r.want("q.new", store.NotIndexed)
		r.set("p.*", admin.StateOff)
		r.want("p.old", store.NotIndexed)
		r.want("p.new", store.NotIndexed)
		r.deleteTopic("p.new")
		r.set("p.*", admin.StateOn)
		r.publish("p.new", 1)
		r.want("p.new", store.Indexed)
	})
}

// TestOffWhileSomebodyWaits: who waits is told that there will be none.
func TestOffWhileSomebodyWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 64*40)
		r.slow()
		answered := make(chan error, 1)
		go func() { answered <- r.runtime.Ask(bg, "a") }()
		time.Sleep(3 * time.Second)
		r.set("a", admin.StateOff)
		wantCode(t, <-answered, eventhub.CodeUnsupportedOp)
		r.want("a", store.NotIndexed)
	})
}

// TestDeletedWhileSomebodyWaits: a topic that is gone has nothing to index.
func TestDeletedWhileSomebodyWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 64*40)
		r.slow()
		answered := make(chan error, 1)
		go func() { answered <- r.runtime.Ask(bg, "a") }()
		time.Sleep(3 * time.Second)
		r.deleteTopic("a")
		if err := <-answered; err != nil {
			t.Error(err)
		}
		r.publish("a", 1)
		r.want("a", store.NotIndexed)
	})
}

// TestGoesOnAfterAStart: what was begun is built to its end, although nobody asks again.
func TestGoesOnAfterAStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 64*40)
		r.slow()
		answered := make(chan error, 1)
		go func() { answered <- r.runtime.Ask(bg, "a") }()
		time.Sleep(3500 * time.Millisecond)
		r.stop()
		wantCode(t, <-answered, eventhub.CodeShuttingDown)
		if got, err := r.store.Topic(bg, "a"); got.Index != store.Indexing || err != nil {
			t.Errorf("the index is %s, %v", got.Index, err)
		}
		r.store.Before(storefault.IndexKeys, nil)
		r.start()
		r.want("a", store.Indexed)
	})
}

// TestStepFails: who waits is told, and it is tried again.
func TestStepFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.mayFail = true
		r.publish("a", 500)
		cause := errors.New("no luck")
		r.store.Inject(storefault.Fault{Op: storefault.IndexKeys, Skip: 1, Times: 1, Err: cause})
		err := r.runtime.Ask(bg, "a")
		if wantCode(t, err, eventhub.CodeInternal); !errors.Is(err, cause) {
			t.Errorf("%v lacks its cause", err)
		}
		r.want("a", store.Indexing)
		time.Sleep(retryAfter)
		r.want("a", store.Indexed)
	})
}

// TestNoRoom: on a full disk no index is begun, and none goes on.
func TestNoRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.mayFail = true
		r.publish("a", 64*40)
		r.full.Store(true)
		wantCode(t, r.runtime.Ask(bg, "a"), eventhub.CodeOverloaded)
		r.want("a", store.NotIndexed)
		r.full.Store(false)
		r.slow()
		answered := make(chan error, 1)
		go func() { answered <- r.runtime.Ask(bg, "a") }()
		time.Sleep(3 * time.Second)
		r.full.Store(true)
		wantCode(t, <-answered, eventhub.CodeOverloaded)
		r.want("a", store.Indexing)
		time.Sleep(retryAfter)
		r.want("a", store.Indexing)
		r.full.Store(false)
		time.Sleep(3 * retryAfter)
		r.want("a", store.Indexed)
	})
}

// pausing is a store whose steps have a hundred parts of 10 ms each, in which others commit; those of small one of them.
type pausing struct {
	store.Store
	rig  *rig
	done map[string]store.IndexProgress // after the last step
}

func (s *pausing) IndexKeys(ctx context.Context, topic string, pause store.Pause) (store.IndexProgress, bool, error) {
	p := s.done[topic]
	if p.Total == 0 {
		info, err := s.Topic(ctx, topic)
		if p.Total = info.Head; err != nil {
			return p, false, err
		}
	}
	for i := range 100 {
		time.Sleep(10 * time.Millisecond)
		s.rig.commits.Add(1)
		if pause(ctx, store.IndexProgress{Done: p.Done + uint64(i*64/100), Total: p.Total}) || topic == "small" {
			break
		}
	}
	p, done, err := s.Store.IndexKeys(ctx, topic, nil)
	s.done[topic] = p
	return p, done, err
}

// inPauses is inBubble with such a store.
func inPauses(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, ready: make(map[string]int)}
		r.policies.of = make(map[string]admin.StateMode)
		s := &pausing{Store: memory.Open(memory.Options{}), rig: r, done: make(map[string]store.IndexProgress)}
		r.store, r.over = storefault.Wrap(s.Store), s
		r.start()
		test(r)
		r.stop()
	})
}

// TestHurriedStep: a step that makes no pauses, because a sweep waits for its end, is followed by a rest that makes up for them, and which ends as
// soon as somebody asks.
func TestHurriedStep(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("a", 64*100)
		r.store.Before(storefault.IndexKeys, func(*storefault.Call) error {
			time.Sleep(400 * time.Millisecond)
			r.commits.Add(1)
			return nil
		})
		r.set("a", admin.StateOn)
		time.Sleep(10 * (10 * time.Second))
		synctest.Wait()
		if p := r.runtime.Progress("a"); p.Done < 64*9 || p.Done > 64*11 {
			t.Errorf("progress %+v; want that of ten steps", p)
		}
		r.publish("b", 10)
		began := time.Now()
		if err := r.runtime.Ask(bg, "b"); err != nil || time.Since(began) > 3*time.Second {
			t.Errorf("%v after %s in a rest", err, time.Since(began))
		}
	})
}

// TestAskWithinAPause: who asks in the middle of a step that has rested for long waits for what the step has still to do, and for no rest that goes by
// how long it has rested before.
func TestAskWithinAPause(t *testing.T) {
	inPauses(t, func(r *rig) {
		r.publish("a", 64*3)
		r.set("a", admin.StateOn)
		time.Sleep(15 * time.Second)
		began := time.Now()
		if err := r.runtime.Ask(bg, "a"); err != nil || time.Since(began) > 6*time.Second {
			t.Errorf("%v after %s; two steps and a half take 2.5 s", err, time.Since(began))
		}
	})
}

// TestTimeToAskAgain: who asks an index that was built beside others so far is told how long it takes now that somebody waits.
func TestTimeToAskAgain(t *testing.T) {
	inPauses(t, func(r *rig) {
		r.publish("a", 64*10)
		r.set("a", admin.StateOn)
		time.Sleep(2 * 26 * time.Second)
		if e := wantCode(t, r.runtime.Ask(bg, "a"), eventhub.CodeOverloaded); e.RetryAfter > 10*time.Second {
			t.Errorf("%v, to be asked again after %s; three steps take 6 s", e, e.RetryAfter)
		}
	})
}

// TestProgressInAStep: how far an index is, is known within its first step.
func TestProgressInAStep(t *testing.T) {
	inPauses(t, func(r *rig) {
		r.publish("a", 64*3)
		r.set("a", admin.StateOn)
		time.Sleep(13 * time.Second)
		synctest.Wait()
		if p := r.runtime.Progress("a"); p.Done < 25 || p.Done > 40 || p.Total != 64*3 {
			t.Errorf("progress %+v in the middle of the first step of three", p)
		}
		if building, left := r.runtime.Stats(); building != 1 || left < 64*2 {
			t.Errorf("%d are being built, %d offsets left", building, left)
		}
	})
}

// TestLongStepGivesWay: a step that rests beside others ends after a while where another topic is to be indexed, its own settings drop the index, or the
// disk is nearly full.
func TestLongStepGivesWay(t *testing.T) {
	for what, test := range map[string]struct {
		when func(*rig)
		is   func(*rig) bool
	}{
		"another topic":      {func(r *rig) { r.set("small", admin.StateOn) }, func(r *rig) bool { return r.index("small") == store.Indexed }},
		"a pattern":          {func(r *rig) { r.set("sm*", admin.StateOn) }, func(r *rig) bool { return r.index("small") == store.Indexed }},
		"it is to have none": {func(r *rig) { r.set("large", admin.StateOff) }, func(r *rig) bool { return r.index("large") == store.NotIndexed }},
		"a nearly full disk": {func(r *rig) { r.full.Store(true) }, func(r *rig) bool { return r.runtime.Progress("large").Done == 64 }},
	} {
		t.Run(what, func(t *testing.T) {
			inPauses(t, func(r *rig) {
				r.publish("large", 64*40)
				r.publish("small", 10)
				r.set("large", admin.StateOn)
				time.Sleep(2 * time.Second)
				test.when(r)
				time.Sleep(2 * longestStep) // a turn of the large one may come first
				synctest.Wait()
				if !test.is(r) {
					t.Errorf("%s waits for the end of a step", what)
				}
			})
		})
	}
}

// TestPauses: beside commits an index that settings want rests after each part of a step for 24 times as long as the part took, until somebody
// asks for it, and again when nobody has for two minutes.
func TestPauses(t *testing.T) {
	inPauses(t, func(r *rig) {
		r.publish("a", 64*200) // 200 steps, of a second each
		steps := func() (n int) {
			synctest.Wait()
			return int(r.runtime.Progress("a").Done) / 64
		}
		r.set("a", admin.StateOn)
		time.Sleep(4 * 26 * time.Second)
		if n := steps(); n < 3 || n > 4 {
			t.Errorf("%d steps in %s; want 4", n, 4*26*time.Second)
		}
		if e := wantCode(t, r.runtime.Ask(bg, "a"), eventhub.CodeOverloaded); e.RetryAfter < time.Second {
			t.Errorf("to be asked again after %s", e.RetryAfter)
		}
		before := steps()
		time.Sleep(time.Minute)
		if n := steps() - before; n < 28 || n > 31 {
			t.Errorf("%d steps in a minute in which somebody wants the index; want 30", n)
		}
		time.Sleep(hurry)
		before = steps()
		time.Sleep(time.Minute)
		if n := steps() - before; n < 2 || n > 3 {
			t.Errorf("%d steps in a minute long after somebody has asked; want 2", n)
		}
	})
}

// compacting refuses to drop an index until Compact is done.
type compacting struct {
	store.Store
	left int // steps
}

func (s *compacting) Commit(ctx context.Context, units []*store.Unit, sync bool) error {
	if len(units) == 1 && len(units[0].Topics) == 1 && units[0].Topics[0].Index == store.DropIndex && s.left > 0 {
		units[0].Err = fmt.Errorf("a pass: %w", store.ErrCompacting)
		return nil
	}
	return s.Store.Commit(ctx, units, sync)
}

func (s *compacting) Compact(ctx context.Context, topic string) (store.Usage, bool, error) {
	s.left--
	return store.Usage{}, s.left == 0, nil
}

// TestDropEndsAPass: an index that a pass of the compaction reads is dropped once the pass is over.
func TestDropEndsAPass(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t, ready: make(map[string]int)}
		r.policies.of = make(map[string]admin.StateMode)
		s := &compacting{Store: memory.Open(memory.Options{}), left: 3}
		r.store = storefault.Wrap(s.Store)
		r.over = s
		r.start()
		r.publish("a", 10)
		r.set("a", admin.StateOn)
		r.want("a", store.Indexed)
		r.set("a", admin.StateOff)
		r.want("a", store.NotIndexed)
		if s.left != 0 {
			t.Errorf("%d steps of the pass are left", s.left)
		}
		r.stop()
	})
}

// TestRandomSettings: whatever is published, deleted, asked for, set and stopped in whatever order, in
// the end each topic has the index if and only if its settings or somebody who asked want it.
func TestRandomSettings(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	names := []string{"a", "p.a", "p.b", "q.a"}
	modes := []admin.StateMode{"", admin.StateAuto, admin.StateOn, admin.StateOff}
	for n := range uint64(testsize.Of(1000, 100)) {
		rng := rand.New(rand.NewPCG(seed, n))
		inBubble(t, func(r *rig) {
			wanted := make(map[string]bool) // of the topics that are there
			settle := func() {              // what settings say counts for what is there
				synctest.Wait()
				for name := range wanted {
					switch r.policies.State(name) {
					case admin.StateOn:
						wanted[name] = true
					case admin.StateOff:
						wanted[name] = false
					}
				}
			}
			for range 25 {
				name := names[rng.IntN(len(names))]
				_, isThere := wanted[name]
				switch rng.IntN(7) {
				case 0, 1:
					r.publish(name, 1+rng.IntN(150))
					if !isThere {
						wanted[name] = false
					}
				case 2:
					if isThere {
						r.deleteTopic(name)
						delete(wanted, name)
					}
				case 3:
					err := r.runtime.Ask(bg, name)
					if isOff := r.policies.State(name) == admin.StateOff; isOff {
						wantCode(t, err, eventhub.CodeUnsupportedOp)
					} else if err != nil {
						t.Fatal(err)
					} else if isThere {
						wanted[name] = true
					}
				case 4:
					r.set([]string{name, "p.*"}[rng.IntN(2)], modes[rng.IntN(len(modes))])
				case 5:
					r.stop()
					r.start()
				default:
					time.Sleep(time.Second)
				}
				settle()
			}
			for name, want := range wanted {
				if got := r.index(name); (got == store.Indexed) != want || got == store.Indexing {
					t.Errorf("history %d: the index of %s is %s; wanted: %v, %s", n, name, got, want, r.policies.State(name))
				}
			}
		})
		if t.Failed() {
			break
		}
	}
}
