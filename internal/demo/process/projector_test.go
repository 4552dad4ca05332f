package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a projector until the returned stop is called, which checks that
// it ended well. The test's bubble must be left only after that.
func start(t *testing.T, h *hub) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	p := Projector{Logger: slog.New(slog.DiscardHandler)}
	go func() { ended <- p.Run(ctx, h, h) }()
	synctest.Wait()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if h.listening() != nil {
			t.Error("the projector is still in the group")
		}
	}
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestHeartbeatBecomesAliveState(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		at := time.Now()
		h.append(at, `{"pid":7,"name":"stt","host":"box","cpu_pct":12.5,"mem_mb":200.25,"sid":"run-1","more":true}`)
		synctest.Wait()
		states := h.all()
		if len(states) != 1 {
			t.Fatalf("%d states, want 1", len(states))
		}
		e := states[0]
		want := fmt.Sprintf(`{"processId":"box:stt:7","name":"stt","host":"box","pid":7,"sid":"run-1","cpu_pct":12.5,"mem_mb":200.25,"last_seen_ts":%d,"status":"alive","heartbeat_offset":1}`, at.UnixMilli())
		equal(t, "payload", string(e.Payload), want)
		equal(t, "topic, key, sid", []string{e.Topic, e.Key, e.SID}, []string{"process.state", "box:stt:7", "run-1"})
		equal(t, "caused_by", e.CausedBy, []string{"hb-1"})
		o := h.options
		equal(t, "group", []any{o.Topic, o.Group, o.Start.Kind}, []any{"heartbeat.received", "process-projector", eventhub.StartEarliest})
	})
}

// TestAckWaitsForTheReceipt: the heartbeat before is acked once the newer one's
// state has its receipt, and not sooner.
func TestAckWaitsForTheReceipt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		receipt := make(chan error)
		h.publishing = func([]State) error { return <-receipt }
		defer start(t, h)()
		h.beat(1)
		receipt <- nil
		h.beat(1)
		synctest.Wait() // in Publish
		equal(t, "open before the receipt", h.open(), []uint64{1, 2})
		receipt <- nil
		synctest.Wait()
		equal(t, "open after the receipt", h.open(), []uint64{2})
	})
}

func TestSilentProcessBecomesStaleAndComesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		h.beat(1)
		time.Sleep(StaleAfter)
		synctest.Wait()
		equal(t, "states after 15 s", h.newStates(t), []string{"1 alive"})
		equal(t, "open after 15 s", h.open(), []uint64{1})
		time.Sleep(ScanEvery)
		synctest.Wait()
		states := h.all()
		stale := states[len(states)-1]
		s := state(t, stale)
		equal(t, "caused_by of stale", stale.CausedBy, nil)
		equal(t, "stale state", s, State{
			ProcessID: "h:p:1", Name: "p", Host: "h", PID: 1, CPU: 1.5, Mem: 20,
			LastSeenTS: time.Now().Add(-StaleAfter - ScanEvery).UnixMilli(), Status: Stale, Heartbeat: 1,
		})
		equal(t, "states after 20 s", h.newStates(t), []string{"1 stale"})
		equal(t, "open after 20 s", h.open(), []uint64{})
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "states while it stays silent", h.newStates(t), []string{})
		h.beat(1)
		synctest.Wait()
		equal(t, "states when it is back", h.newStates(t), []string{"1 alive"})
	})
}

func TestStaleWaitsForTheReceipt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		receipt := make(chan error)
		h.publishing = func(states []State) error {
			if states[0].Status == Stale {
				return <-receipt
			}
			return nil
		}
		defer start(t, h)()
		h.beat(1)
		time.Sleep(StaleAfter + ScanEvery)
		synctest.Wait()
		equal(t, "open before the receipt", h.open(), []uint64{1})
		receipt <- nil
		synctest.Wait()
		equal(t, "open after the receipt", h.open(), []uint64{})
	})
}

// TestRestartRemembersWhoWasAlive: a process that died while no projector ran
// becomes stale, and one that lives on is not reported twice.
func TestRestartRemembersWhoWasAlive(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		stop := start(t, h)
		h.beat(1)
		h.beat(2)
		h.beat(1)
		synctest.Wait()
		equal(t, "states", h.newStates(t), []string{"1 alive", "2 alive", "1 alive"})
		stop()
		time.Sleep(time.Hour)
		stop = start(t, h)
		defer func() { stop() }()
		equal(t, "states reported again", h.newStates(t), []string{})
		equal(t, "duplicates", h.duplicates, 0)
		h.beat(2)
		time.Sleep(2 * ScanEvery)
		synctest.Wait()
		equal(t, "states after a restart", h.newStates(t), []string{"2 alive", "1 stale"})
		equal(t, "open", h.open(), []uint64{4})
	})
}

func TestWhatIsNoHeartbeatIsNacked(t *testing.T) {
	for _, tt := range []struct{ payload, reason string }{
		{`null`, "pid is missing"},
		{`"alive"`, "not a heartbeat"},
		{`[1]`, "not a heartbeat"},
		{`{}`, "pid is missing"},
		{`{"pid":"1","name":"p","host":"h","cpu_pct":1,"mem_mb":2}`, "pid"},
		{`{"pid":1.5,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`, "pid"},
		{`{"pid":-1,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`, "pid is -1"},
		{`{"pid":1,"host":"h","cpu_pct":1,"mem_mb":2}`, "name is missing or empty"},
		{`{"pid":1,"name":"p","host":"","cpu_pct":1,"mem_mb":2}`, "host is missing or empty"},
		{`{"pid":1,"name":"p","host":"h","mem_mb":2}`, "cpu_pct is missing"},
		{`{"pid":1,"name":"p","host":"h","cpu_pct":1}`, "mem_mb is missing"},
		{`{"pid":1,"name":"p","host":"h","cpu_pct":1e999,"mem_mb":2}`, "1e999"},
		{`{"pid":1,"name":"p","host":"h","cpu_pct":1,"mem_mb":2` + strings.Repeat("9", 3000) + `}`, "not a heartbeat"},
		{`{"pid":1,"name":"` + strings.Repeat("x", eventhub.MaxKeyBytes) + `","host":"h","cpu_pct":1,"mem_mb":2}`, "key"},
		{`{"pid":1,"name":"p","host":"h","cpu_pct":1,"mem_mb":2,"sid":"` + strings.Repeat("s", eventhub.MaxSIDBytes+1) + `"}`, "sid"},
	} {
		bubble.Test(t, func(t *testing.T) {
			h := newHub()
			good := `{"pid":2,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`
			h.append(time.Now(), good, tt.payload, good)
			defer start(t, h)()
			equal(t, "states in the meantime", h.newStates(t), []string{"2 alive", "2 alive"})
			equal(t, "open", h.open(), []uint64{3})
			if reason := h.nacks[2]; !strings.Contains(reason, tt.reason) {
				t.Errorf("payload %.80s: nacked with %.200q, want %q in it", tt.payload, reason, tt.reason)
			}
		})
	}
}

// TestFailedPublishIsToldAgain: nothing is acked, the projector leaves the
// group and a second later gets everything again.
func TestFailedPublishIsToldAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		h := newHub()
		left := 3
		h.publishing = func([]State) error {
			if left--; left >= 0 {
				return errors.New("disk full")
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		p := Projector{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		go func() { ended <- p.Run(ctx, h, h) }()
		defer func() {
			cancel()
			equal(t, "Run", <-ended, nil)
		}()
		h.append(time.Now(), `{"pid":1,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`, `{}`, `{"pid":3,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`)
		synctest.Wait()
		equal(t, "open after a failure", h.open(), []uint64{1, 2, 3})
		if h.listening() != nil {
			t.Error("the projector is in the group while it waits")
		}
		h.beat(1)
		time.Sleep(3 * retryAfter)
		synctest.Wait()
		equal(t, "joined", h.joined, 4)
		equal(t, "states", h.newStates(t), []string{"1 alive", "3 alive", "1 alive"})
		equal(t, "open", h.open(), []uint64{3, 4})
		equal(t, "failures logged", strings.Count(log.String(), "disk full"), 3)
	})
}

func TestStopWhileWaitingToTryAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		h.publishing = func([]State) error { return errors.New("disk full") }
		stop := start(t, h)
		h.beat(1)
		synctest.Wait()
		before := time.Now()
		stop()
		equal(t, "time to stop", time.Since(before), 0)
	})
}

// TestStopWhileTheHubIsGone: verdicts that do not arrive hold up a stop for a while
// and not for ever.
func TestStopWhileTheHubIsGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		h.unreachable = true
		stop := start(t, h)
		h.append(time.Now(), `{}`)
		synctest.Wait() // in Settle
		before := time.Now()
		stop()
		equal(t, "time to stop", time.Since(before), settleWait)
	})
}

// TestStopAwaitsTheStepUnderWay: heartbeats of a step that is being taken would not
// go back to the group; one that has no answer is not waited for without end.
func TestStopAwaitsTheStepUnderWay(t *testing.T) {
	for name, after := range map[string]time.Duration{"in time": settleWait / 2, "too late": 2 * settleWait} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := newHub()
				stop := start(t, h)
				h.beat(1)
				synctest.Wait()
				h.publishing = func([]State) error { time.Sleep(after); return nil }
				h.beat(1)
				synctest.Wait() // in AckAndPublish
				before := time.Now()
				stop()
				equal(t, "time to stop", time.Since(before), min(after, settleWait))
				time.Sleep(after) // until the hub has taken it
				synctest.Wait()
			})
		})
	}
}

func TestRedeliveries(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		receipt := make(chan error, 3)
		receipt <- nil
		h.publishing = func([]State) error { return <-receipt }
		defer start(t, h)()
		h.beat(1)
		synctest.Wait()
		// Its lease runs out while it is held: the new lease is what counts.
		h.redeliver(1)
		synctest.Wait()
		h.beat(1)
		synctest.Wait()
		// And once more, while the newer state has no receipt yet.
		h.redeliver(1)
		receipt <- nil
		synctest.Wait()
		equal(t, "states", h.newStates(t), []string{"1 alive", "1 alive"})
		equal(t, "batches", h.publishes(), []int{1, 1})
		equal(t, "open", h.open(), []uint64{2})
	})
}

// TestLateHeartbeatsMoveNothingBack: a heartbeat that comes again after a restart, when the log has
// forgotten the ids of its states, changes nothing where there is a newer state, or where it is of
// the same one; also of a process that is stale.
func TestLateHeartbeatsMoveNothingBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		stop := start(t, h)
		h.beat(1)
		h.beat(2)
		h.beat(1)
		time.Sleep(StaleAfter + ScanEvery)
		h.beat(2)
		synctest.Wait()
		equal(t, "states", h.newStates(t), []string{"1 alive", "2 alive", "1 alive", "2 stale", "1 stale", "2 alive"})
		stop()
		h.mu.Lock()
		for i := range h.states {
			h.states[i].ID = fmt.Sprint("forgotten-", i)
		}
		clear(h.settled) // acks that were lost
		h.mu.Unlock()
		stop = start(t, h)
		defer func() { stop() }()
		equal(t, "states after a restart", h.newStates(t), []string{})
		equal(t, "open", h.open(), []uint64{4})
		h.beat(1)
		synctest.Wait()
		equal(t, "states of a new heartbeat", h.newStates(t), []string{"1 alive"})
	})
}

// TestHeldHeartbeatIsAckedByItsLastLease: see TestRedeliveries, without the
// second redelivery that would ack it anyway.
func TestHeldHeartbeatIsAckedByItsLastLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		h.beat(1)
		synctest.Wait()
		h.redeliver(1)
		synctest.Wait()
		h.beat(1)
		synctest.Wait()
		equal(t, "open", h.open(), []uint64{2})
	})
}

// TestReadingThePastIsNotSilence: heartbeats of an hour ago that come in slowly
// make nobody stale until all are read.
func TestReadingThePastIsNotSilence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		then := time.Now().Add(-time.Hour)
		for i := range 30 {
			h.append(then.Add(time.Duration(i)*time.Second), `{"pid":1,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		for _, seen := range h.newStates(t) {
			equal(t, "state while reading the past", seen, "1 alive")
		}
		time.Sleep(2 * ScanEvery)
		synctest.Wait()
		equal(t, "states when all is read", h.newStates(t), []string{"1 stale"})
	})
}

// TestWrongClockIsNotSilence: a process is heard when its heartbeat is committed, whatever
// time it gives, in both directions.
func TestWrongClockIsNotSilence(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		ahead := `{"pid":2,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`
		h.appendAs(time.Now(), 4*time.Minute, ahead)
		for range 21 {
			h.appendAs(time.Now(), -time.Hour, `{"pid":1,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		seen := h.newStates(t)
		equal(t, "the slow clock is reported stale", slices.Contains(seen, "1 stale"), false)
		equal(t, "the fast clock that fell silent is reported stale", slices.Contains(seen, "2 stale"), true)
	})
}

// TestSilenceShowsWhileOthersSpeak: the past's clock is that of the stream, so
// one silent process does not hide behind those that go on.
func TestSilenceShowsWhileOthersSpeak(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		h.beat(1)
		for range 21 {
			h.beat(2)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		equal(t, "reported stale", slices.Contains(h.newStates(t), "1 stale"), true)
	})
}

// TestBacklogComesInBoundedBatches: what does not fit is left with the group
// and fetched later; all is reported, in order.
func TestBacklogComesInBoundedBatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		var payloads, want []string
		for pid := range 1000 {
			payloads = append(payloads, fmt.Sprintf(`{"pid":%d,"name":"p","host":"h","cpu_pct":1,"mem_mb":2}`, pid+1))
			want = append(want, fmt.Sprintf("%d alive", pid+1))
		}
		h.append(time.Now(), payloads...)
		defer start(t, h)()
		equal(t, "states", h.newStates(t), want)
		if h.refusals == 0 {
			t.Error("nothing was refused: the test shows nothing")
		}
		time.Sleep(StaleAfter + ScanEvery)
		synctest.Wait()
		equal(t, "batches of alive, then of stale states", h.publishes(), []int{256, 256, 256, 232, 256, 256, 256, 232})
		equal(t, "open", h.open(), []uint64{})
	})
}

// TestStateAndAckAreOneStep: where a heartbeat is not the projector's any more,
// the state that would ack it is not published either; then all is reported again.
func TestStateAndAckAreOneStep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		defer start(t, h)()
		h.beat(1)
		synctest.Wait()
		equal(t, "states", h.newStates(t), []string{"1 alive"})
		h.lease(1) // as for another member
		h.beat(1)
		synctest.Wait()
		equal(t, "states after a lost lease", h.newStates(t), []string{})
		equal(t, "open after a lost lease", h.open(), []uint64{1, 2})
		time.Sleep(retryAfter)
		synctest.Wait()
		equal(t, "states", h.newStates(t), []string{"1 alive"})
		equal(t, "open", h.open(), []uint64{2})
		equal(t, "joined", h.joined, 2)
	})
}

// TestLongNamesMakeSmallerSteps: what goes into one frame to a remote hub is
// bounded in bytes too.
func TestLongNamesMakeSmallerSteps(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const processes = 256
		h := newHub()
		name := strings.Repeat("n", 1000)
		var payloads []string
		for pid := range processes {
			payloads = append(payloads, fmt.Sprintf(`{"pid":%d,"name":%q,"host":"h","cpu_pct":1,"mem_mb":2}`, pid+1, name))
		}
		h.append(time.Now(), payloads...)
		defer start(t, h)()
		time.Sleep(StaleAfter + ScanEvery)
		synctest.Wait()
		equal(t, "batches of alive, then of stale states", h.publishes(), []int{123, 123, 10, 123, 123, 10})
		equal(t, "states", len(h.all()), 2*processes)
		equal(t, "open", h.open(), []uint64{})
	})
}

func TestEndedSubscriptionEndsRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := newHub()
		cause := eventhub.Errorf(eventhub.CodeShuttingDown, "The hub stops.")
		ended := make(chan error, 1)
		go func() { ended <- new(Projector).Run(t.Context(), h, h) }()
		synctest.Wait()
		h.listening().Ended(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Errorf("Run: %v, want %v", err, cause)
		}
	})
}

// refuser refuses every member.
type refuser struct {
	eventhub.Subscriber
	err error
}

func (r refuser) Subscribe(context.Context, eventhub.GroupOptions, eventhub.Receiver) (eventhub.Subscription, error) {
	return nil, r.err
}

func (r refuser) Tail(context.Context, eventhub.TailOptions, eventhub.Receiver) (eventhub.Subscription, error) {
	return nil, r.err
}

func TestRefusedSubscriptionEndsRun(t *testing.T) {
	denied := eventhub.Errorf(eventhub.CodeForbidden, "no")
	err := new(Projector).Run(t.Context(), newHub(), refuser{err: denied})
	if !errors.Is(err, denied) {
		t.Errorf("Run: %v, want %v", err, denied)
	}
}

// TestNothingIsLostOrReordered: heartbeats, redeliveries, failing publishes and
// restarts in random order. For every process the states come in the order of
// its heartbeats and end with the last one, stale; nothing stays open.
func TestNothingIsLostOrReordered(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	bubble.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		h := newHub()
		// Its own source: the projector draws from it, while the test draws.
		trouble := rand.New(rand.NewPCG(seed, 1))
		failures, late := 0, 0
		var healthy atomic.Bool
		h.publishing = func([]State) error {
			if !healthy.Load() && trouble.IntN(4) == 0 {
				failures++
				return errors.New("disk full")
			}
			return nil
		}
		stop := start(t, h)
		lastBeat := map[int]int64{}
		for range 400 {
			switch rng.IntN(12) {
			case 0:
				stop()
				stop = start(t, h)
			case 1, 2:
				if open := h.open(); h.listening() != nil && len(open) > 0 {
					h.redeliver(open[rng.IntN(len(open))], open[rng.IntN(len(open))], h.unsettle(rng))
					late++
				}
			case 3:
				time.Sleep(time.Duration(rng.IntN(8000)) * time.Millisecond)
			default:
				time.Sleep(time.Millisecond)
				pid := 1 + rng.IntN(5)
				lastBeat[pid] = time.Now().UnixMilli()
				h.beat(pid)
			}
			synctest.Wait()
		}
		healthy.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		equal(t, "open", h.open(), []uint64{})
		last := map[int]State{}
		for _, e := range h.all() {
			s := state(t, e)
			if s.LastSeenTS < last[s.PID].LastSeenTS {
				t.Errorf("process %d: state of %d after that of %d", s.PID, s.LastSeenTS, last[s.PID].LastSeenTS)
			}
			last[s.PID] = s
		}
		for pid, ts := range lastBeat {
			equal(t, fmt.Sprintf("last state of process %d", pid), []any{last[pid].LastSeenTS, last[pid].Status}, []any{ts, Stale})
		}
		if h.duplicates > 0 {
			t.Errorf("%d states were said twice", h.duplicates)
		}
		if failures == 0 || late == 0 {
			t.Errorf("%d failures, %d redeliveries: the test shows nothing", failures, late)
		}
	})
}
