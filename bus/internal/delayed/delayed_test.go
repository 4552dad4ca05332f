package delayed

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/commit"
	"eventhub/store"
	"eventhub/store/storefault"
)

// TestOrder: events enter the log when they are due, not before, in the order of their
// times and then of their commits, with their links.
func TestOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Minute, "c", "d")
		r.schedule(time.Second, "a", "b")
		r.schedule(time.Hour, "e")
		r.waiting("a", "b", "c", "d", "e")
		began := time.Now()
		for _, step := range []struct {
			at   time.Duration
			want string
		}{{time.Second, "a b"}, {time.Minute, "a b c d"}, {time.Hour, "a b c d e"}} {
			before := len(r.events())
			r.after(time.Until(began.Add(step.at)) - time.Nanosecond)
			equal(t, "events before they are due", len(r.events()), before)
			r.after(time.Nanosecond)
			r.logged("at "+step.at.String(), strings.Fields(step.want)...)
		}
		for _, item := range r.events()[4:] {
			equal(t, "commit time", item.Record.CommitTime(), time.Now().UnixMilli())
		}
		equal(t, "events that got their links", r.linked, 5)
		r.waiting()
	})
}

// TestCancelAndDelayAnew: an event that was cancelled while the mover had it in its hand,
// and was delayed again under its id, comes once, as the new one, at the new time.
func TestCancelAndDelayAnew(t *testing.T) {
	for name, between := range map[string]func(*rig) error{
		"cancel": func(r *rig) error { return r.mover.Cancel(bg, "t", "x") },
		"delete the topic": func(r *rig) error {
			return r.committer.Between(bg, "", func() error { return r.store.DeleteTopic(bg, "t") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.schedule(time.Minute, "x")
				r.store.set(func() {
					r.store.afterDue = func() {
						if err := between(r); err != nil {
							t.Error(err)
						}
						anew := store.Delay{Topic: "t", ID: "x", Record: encoded("t", "x", "anew"), At: r.now().Add(time.Hour).UnixMilli()}
						if err := r.committer.Do(bg, commit.NewWrite(store.Unit{Delays: []store.Delay{anew}}, nil)); err != nil {
							t.Error(err)
						}
					}
				})
				r.after(time.Minute)
				r.logged("when the old one would have been due")
				r.waiting("x")
				r.after(time.Hour)
				r.logged("in the end", "x")
				if record := r.events()[0].Record; !bytes.Contains(record, []byte(`"anew"`)) {
					t.Errorf("the log has %s", record)
				}
			})
		})
	}
}

// TestCancel says whether there was anything to cancel.
func TestCancel(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Minute, "a", "b")
		equal(t, "Cancel", r.mover.Cancel(bg, "t", "a"), nil)
		for _, place := range [][2]string{{"t", "a"}, {"t", "none"}, {"u", "b"}} {
			err := r.mover.Cancel(bg, place[0], place[1])
			want := fmt.Sprintf("%q is not scheduled in topic %q", place[1], place[0])
			if eventhub.ErrorCode(err) != eventhub.CodeUnknownID || !strings.Contains(err.Error(), want) {
				t.Errorf("Cancel says %v; want CodeUnknownID, %s", err, want)
			}
		}
		r.after(time.Minute)
		r.logged("in the end", "b")
	})
}

// TestCancelRacesMove: of a cancel and a move at the same instant one wins, and the caller
// knows which.
func TestCancelRacesMove(t *testing.T) {
	won := [2]int{}
	for round := 0; round < 200 && (won[0] == 0 || won[1] == 0); round++ {
		inBubble(t, func(r *rig) {
			ids := strings.Fields("a b c d e f g h i j k l m n o p q r s t")
			r.schedule(time.Second, ids...)
			var wg sync.WaitGroup
			errs := make([]error, len(ids))
			for i, id := range ids {
				wg.Go(func() {
					time.Sleep(time.Second)
					errs[i] = r.mover.Cancel(bg, "t", id)
				})
			}
			wg.Wait()
			there := make(map[string]bool)
			for _, item := range r.events() {
				there[string(item.Record.ID())] = true
			}
			for i, err := range errs {
				switch {
				case (err == nil) == there[ids[i]]:
					t.Errorf("%s: Cancel says %v, and in the log: %v", ids[i], err, there[ids[i]])
				case err == nil:
					won[0]++
				case eventhub.ErrorCode(err) == eventhub.CodeUnknownID:
					won[1]++
				default:
					t.Error(err)
				}
			}
			r.waiting()
		})
	}
	if won[0] == 0 || won[1] == 0 {
		t.Errorf("cancels won %d times, moves %d times; want both", won[0], won[1])
	}
}

// TestCancelAfterMove: a move that waits for the committer wins over a cancel that came
// later, and the other way round.
func TestCancelAfterMove(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Second, "first")
		r.schedule(2*time.Second, "second")
		errs := make(chan error, 2)
		r.heldUp(func() {
			r.after(time.Second) // the move of the first is after the commit that waits
			go func() { errs <- r.mover.Cancel(bg, "t", "first") }()
			go func() { errs <- r.mover.Cancel(bg, "t", "second") }()
			synctest.Wait()
		})
		codes := map[eventhub.Code]int{eventhub.ErrorCode(<-errs): 1}
		codes[eventhub.ErrorCode(<-errs)]++
		equal(t, "answers", codes, map[eventhub.Code]int{"": 1, eventhub.CodeUnknownID: 1})
		r.after(time.Hour)
		r.logged("in the end", "first")
	})
}

// TestCancelBeforeMove: a move that finds its event cancelled is no fault, and not tried
// again.
func TestCancelBeforeMove(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		var said bytes.Buffer
		r.log = slog.New(slog.NewTextHandler(&said, nil))
		r.start()
		r.schedule(time.Second, "x")
		cancelled := make(chan error, 1)
		r.heldUp(func() {
			go func() { cancelled <- r.mover.Cancel(bg, "t", "x") }()
			r.after(time.Second) // the move is after it
		})
		equal(t, "Cancel", <-cancelled, nil)
		synctest.Wait()
		calls := r.faults.Calls(storefault.Any)
		r.after(time.Hour)
		equal(t, "calls after that", r.faults.Calls(storefault.Any)-calls, 0)
		r.logged("in the end")
		equal(t, "what was said", said.String(), "")
	})
}

// TestRestart: what came due while nothing ran comes first at the start, the rest when it
// is due.
func TestRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		for i, d := range []time.Duration{time.Hour, time.Minute, 3 * time.Hour, time.Second} {
			r.schedule(d, fmt.Sprint(i))
		}
		r.stop()
		r.after(90 * time.Minute)
		r.start()
		r.logged("after the start", "3", "1", "0")
		r.after(90*time.Minute - time.Nanosecond)
		r.logged("before the last is due", "3", "1", "0")
		r.after(time.Nanosecond)
		r.logged("in the end", "3", "1", "0", "2")
	})
}

// TestEarlier: an event that is due before all others moves the timer, also one that is
// committed while a later one is being moved.
func TestEarlier(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Hour, "late")
		r.after(time.Minute)
		r.schedule(time.Second, "early")
		r.after(time.Second)
		r.logged("after a second", "early")

		r.schedule(10*time.Second, "b")
		r.heldUp(func() {
			go r.schedule(9*time.Second, "a") // committed after it, when b has been read
			r.after(10 * time.Second)
		})
		r.logged("after the commit that was held up", "early", "b", "a")
		r.after(2 * time.Hour)
		r.logged("in the end", "early", "b", "a", "late")

		u := store.Unit{}
		for i, id := range []string{"third", "first", "second"} { // of a unit too
			at := r.now().Add([]time.Duration{3, 1, 2}[i] * time.Second).UnixMilli()
			u.Delays = append(u.Delays, store.Delay{Topic: "t", ID: id, Record: encoded("t", id, id), At: at})
		}
		if err := r.committer.Do(bg, commit.NewWrite(u, nil)); err != nil {
			t.Fatal(err)
		}
		r.after(time.Second)
		r.logged("after one more second", "early", "b", "a", "late", "first")
	})
}

// TestCommittedWhileLooking: an event that is committed when the mover has just looked
// what comes next is not missed.
func TestCommittedWhileLooking(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Minute, "first")
		r.schedule(time.Hour, "last")
		synctest.Wait()
		r.store.set(func() { r.store.afterAll = func() { r.schedule(time.Second, "between") } })
		r.after(time.Minute)
		r.logged("after a minute", "first")
		r.after(time.Second)
		r.logged("a second later", "first", "between")
	})
}

// TestManyDue: more than a page is due at once; all of it comes, in order, once, and
// nothing is early by the clock that was set.
func TestManyDue(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 2*moveEvents + 500
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprint("id-", i)
		}
		r.schedule(time.Second, ids...)
		r.after(time.Second)
		r.logged("when all are due", ids...)
	})
}

// TestClockJumps: the wall clock decides, whoever sets it. A jump ahead is seen within
// LookEvery, and at once by Start; one backwards makes nothing early.
func TestClockJumps(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Hour, "ahead")
		r.schedule(3*time.Hour, "further")
		r.skew.Store(int64(time.Hour))
		r.after(LookEvery)
		r.logged("after a jump ahead", "ahead")
		r.skew.Store(int64(3 * time.Hour))
		r.mover.Start()
		r.logged("after a further one", "ahead", "further")

		r.skew.Store(0)
		due := r.schedule(time.Minute, "back")
		r.skew.Store(-int64(time.Hour))
		r.after(time.Hour + time.Minute - time.Millisecond)
		r.logged("after a jump back", "ahead", "further")
		r.after(LookEvery)
		r.logged("when it is due", "ahead", "further", "back")
		if at := r.events()[2].Record.CommitTime(); at < due {
			t.Errorf("its commit time is %d; it was due at %d", at, due)
		}
	})
}

// TestOverdueWhenTheClockIsSetBack: what is overdue by the clock that was set back too, and
// could not be read before, waits no longer for that.
func TestOverdueWhenTheClockIsSetBack(t *testing.T) {
	for _, failing := range []time.Duration{2 * time.Second, time.Minute} { // tried again; passed over
		inBubble(t, func(r *rig) {
			r.stop()
			r.skew.Store(int64(5 * time.Hour))
			r.start()
			r.schedule(time.Minute, "x")
			r.faults.Inject(storefault.Fault{Op: storefault.Delayed, Err: errDisk})
			r.skew.Store(int64(10 * time.Hour))
			r.after(LookEvery + failing)
			r.faults.Clear()
			r.skew.Store(int64(6 * time.Hour))
			r.after(LookEvery)
			r.logged("after "+failing.String(), "x")
		})
	}
}

// TestIdle: with nothing delayed the mover asks for nothing, and with something that is
// far away only its own clock.
func TestIdle(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.after(time.Hour)
		equal(t, "reads at the start", r.faults.Calls(storefault.Delayed), 2)
		r.schedule(24*time.Hour, "x")
		before := r.faults.Calls(storefault.Any)
		r.after(23 * time.Hour)
		equal(t, "calls while nothing is due", r.faults.Calls(storefault.Any)-before, 0)
		r.after(time.Hour)
		r.logged("in the end", "x")
	})
}

// TestReadFails: what could not be read is read again a second later, in its order.
func TestReadFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Minute, "a")
		r.schedule(time.Minute+2*time.Second, "b")
		synctest.Wait()
		r.faults.Inject(storefault.Fault{Op: storefault.Delayed, Times: 4, Err: errDisk})
		r.after(time.Minute + 4*retryAfter - time.Nanosecond)
		r.logged("while reads fail")
		r.after(time.Nanosecond)
		r.logged("in the end", "a", "b")
	})
}

// TestDamageIsPassedOver: a part of the store that cannot be read holds up what comes due
// later for a while only, and is tried again.
func TestDamageIsPassedOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		hole := r.schedule(time.Minute, "lost")
		r.schedule(time.Minute+time.Second, "held")
		r.schedule(time.Hour, "later")
		r.schedule(2*time.Hour, "last")
		r.store.set(func() {
			r.store.fails = func(at, until int64) error {
				if at <= hole && until >= hole {
					return errDisk
				}
				return nil
			}
		})
		r.after(time.Hour)
		r.logged("with the hole", "later")
		r.store.set(func() { r.store.fails = nil })
		r.after(mostFailures * retryAfter)
		r.logged("after the repair", "later", "lost", "held")
		r.after(time.Hour)
		r.logged("in the end", "later", "lost", "held", "last")
	})
}

// TestUnitRefused: a move that is refused holds up no other, and is tried again.
func TestUnitRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.store.set(func() {
			refusals := 0
			r.store.refuse = func(u *store.Unit) error {
				if len(u.Cancels) == 0 || u.Cancels[0].ID != "bad" || refusals == 3 {
					return nil
				}
				refusals++
				return store.ErrTopicLimit
			}
		})
		r.schedule(time.Minute, "a", "bad", "b")
		r.schedule(time.Minute+500*time.Millisecond, "c")
		r.after(time.Minute)
		r.logged("when it is due", "a", "b")
		r.after(3*retryAfter - time.Nanosecond)
		r.logged("while it is refused", "a", "b", "c")
		r.after(time.Nanosecond)
		r.logged("in the end", "a", "b", "c", "bad")
		r.waiting()
	})
}

// TestStoreBroken: a store that has failed a commit is left alone, and what was delayed is
// there when it is opened again.
func TestStoreBroken(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Minute, "a")
		r.schedule(time.Hour, "b")
		r.faults.Inject(storefault.Fault{Op: storefault.Commit, Times: 1, Err: errDisk})
		r.after(time.Minute)
		calls := r.faults.Calls(storefault.Any)
		r.after(2 * time.Hour)
		equal(t, "calls after it broke", r.faults.Calls(storefault.Any)-calls, 0)
		r.mover.Stop()
		if err := r.committer.Stop(); !errors.Is(err, store.ErrBroken) {
			t.Errorf("Stop: %v; want store.ErrBroken", err)
		}
		r.store.Store = r.backend
		r.start()
		r.logged("after a start", "a", "b")
	})
}

// TestNoRoom: while nothing may be published nothing is moved, and nothing is lost.
func TestNoRoom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Minute, "a")
		r.full.Store(true)
		r.after(time.Hour)
		r.logged("without room")
		r.full.Store(false)
		r.after(retryAfter)
		r.logged("with room", "a")
	})
}

// TestStopWhileMoving: Stop returns when the move under way has, and what was not moved is
// there for the next start.
func TestStopWhileMoving(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.schedule(time.Second, "a")
		r.schedule(time.Second+time.Millisecond, "b")
		stopped := make(chan struct{})
		r.heldUp(func() {
			r.after(time.Second)
			go func() {
				r.mover.Stop()
				close(stopped)
			}()
			r.after(time.Minute)
			select {
			case <-stopped:
				t.Error("Stop returned while a commit was under way")
			default:
			}
		})
		<-stopped
		r.stop()
		r.logged("after Stop", "a")
		r.start()
		r.logged("after a start", "a", "b")
	})
}

// TestStopWhileReading: Stop waits for a read too, since the store may be closed then.
func TestStopWhileReading(t *testing.T) {
	inBubble(t, func(r *rig) {
		held := make(chan struct{})
		r.store.set(func() { r.store.afterAll = func() { <-held } })
		r.schedule(time.Second, "a")
		r.after(time.Second)
		stopped := make(chan struct{})
		go func() {
			r.mover.Stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Stop returned while the mover read")
		default:
		}
		close(held)
		<-stopped
	})
}

// TestList: pages have each delayed event once, in order, of one topic or of all.
func TestList(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 2*admin.MaxPage + 10
		now := r.now().UnixMilli()
		u := store.Unit{}
		for i := range n {
			topic, id := []string{"t", "u"}[i%2], fmt.Sprint("id-", i)
			u.Delays = append(u.Delays, store.Delay{Topic: topic, ID: id, Key: "k", Record: encoded(topic, id, id), At: now + int64(1+i/4)*1000})
		}
		if err := r.committer.Do(bg, commit.NewWrite(u, nil)); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			topic string
			limit int
			want  int
		}{{"", admin.MaxPage, n}, {"", 7, n}, {"u", admin.MaxPage, n / 2}, {"u", 3, n / 2}, {"none", 5, 0}} {
			seen := 0
			for q := (admin.ScheduleQuery{Topic: tt.topic, Limit: tt.limit}); ; {
				list, err := r.mover.List(bg, q)
				if err != nil {
					t.Fatal(err)
				}
				if len(list) == 0 {
					break
				}
				for _, s := range list {
					i := seen
					if tt.topic == "u" {
						i = 2*seen + 1
					}
					want := admin.Scheduled{Topic: u.Delays[i].Topic, ID: u.Delays[i].ID, Key: "k", DeliverAt: u.Delays[i].At, Seq: s.Seq}
					if s != want {
						t.Fatalf("entry %d of %+v is %+v; want %+v", seen, q, s, want)
					}
					q.AfterAt, q.AfterSeq = s.DeliverAt, s.Seq
					seen++
				}
			}
			equal(t, fmt.Sprintf("entries of %q in pages of %d", tt.topic, tt.limit), seen, tt.want)
		}
		r.faults.Inject(storefault.Fault{Op: storefault.Delayed, Times: 1, Err: errDisk})
		if _, err := r.mover.List(bg, admin.ScheduleQuery{Limit: 1}); !errors.Is(err, errDisk) {
			t.Errorf("List over a store that fails: %v", err)
		}
	})
}
