package heartbeat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a Source of processes that the test sets.
type fixed struct {
	readings []Reading
	names    map[int32]string // a process without one has vanished
	err      error
}

func (f *fixed) Read(context.Context) ([]Reading, error) { return f.readings, f.err }

func (f *fixed) Name(_ context.Context, pid int32) (string, error) {
	name, ok := f.names[pid]
	if !ok {
		return "", fmt.Errorf("process %d is gone", pid)
	}
	return name, nil
}

// publisher hands every Publish to the test and answers what that says.
type publisher struct {
	eventhub.Publisher
	published chan []eventhub.Event
	answer    chan error
}

func newPublisher() *publisher {
	return &publisher{published: make(chan []eventhub.Event), answer: make(chan error)}
}

func (p *publisher) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	for i := range events {
		if err := events[i].Validate(time.Now()); err != nil {
			return nil, err
		}
	}
	select {
	case p.published <- events:
		return make([]eventhub.Receipt, len(events)), <-p.answer
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// next returns the events of the next Publish, which gets err as its answer.
func (p *publisher) next(err error) []eventhub.Event {
	events := <-p.published
	p.answer <- err
	return events
}

// running runs the agent until the test ends; it must end well.
func running(t *testing.T, a *Agent, pub eventhub.Publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, pub) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func payload(t *testing.T, e eventhub.Event) Payload {
	t.Helper()
	var p Payload
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		t.Fatalf("payload %s: %v", e.Payload, err)
	}
	return p
}

func TestTickPublishesTheBusiestAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := &fixed{names: map[int32]string{}}
		for pid := int32(1); pid <= 30; pid++ {
			// CPU in pairs of equals; memory decides, then the pid.
			source.readings = append(source.readings, Reading{PID: pid, CPU: float64(pid / 2), RSS: uint64(pid%4) << 20})
			source.names[pid] = "p"
		}
		pub := newPublisher()
		running(t, &Agent{Host: "h", Source: source}, pub)
		events := pub.next(nil)
		if len(events) != Top {
			t.Fatalf("%d events in one publish, want %d", len(events), Top)
		}
		var pids []int32
		for i := range events {
			pids = append(pids, payload(t, events[i]).PID)
		}
		// 28 and 29 are equal in CPU, 29 has more memory; and so on.
		want := []int32{30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11}
		if fmt.Sprint(pids) != fmt.Sprint(want) {
			t.Errorf("pids %v\nwant %v", pids, want)
		}
	})
}

func TestEqualProcessesKeepTheirOrder(t *testing.T) {
	readings := []Reading{{PID: 9}, {PID: 3, RSS: 5}, {PID: 4}, {PID: 8, CPU: 1}, {PID: 1}}
	got := fmt.Sprint(busiest(readings, 4))
	if want := "[{8 1 0} {3 0 5} {1 0 0} {4 0 0}]"; got != want {
		t.Errorf("busiest: %s, want %s", got, want)
	}
}

func TestEventSaysAllOfAProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := &fixed{
			readings: []Reading{{PID: 42, CPU: 12.3456, RSS: 3<<20 + 1<<19}},
			names:    map[int32]string{42: "stt"},
		}
		pub := newPublisher()
		running(t, &Agent{Host: "box", Source: source}, pub)
		first, second := pub.next(nil)[0], pub.next(nil)[0]
		sid := first.SID
		if sid == "" || second.SID != sid {
			t.Errorf("sids %q and %q, want the same in one run", sid, second.SID)
		}
		if first.Topic != "heartbeat.received" || first.Key != "box:stt:42" {
			t.Errorf("topic %q key %q", first.Topic, first.Key)
		}
		want := fmt.Sprintf(`{"pid":42,"name":"stt","host":"box","cpu_pct":12.35,"mem_mb":3.5,"sid":%q}`, sid)
		if string(first.Payload) != want {
			t.Errorf("payload %s\nwant    %s", first.Payload, want)
		}
	})
}

func TestRunsHaveDifferentSIDs(t *testing.T) {
	a := &Agent{Host: "box", Source: &fixed{}}
	one, err := a.start()
	if err != nil {
		t.Fatal(err)
	}
	two, err := a.start()
	if err != nil {
		t.Fatal(err)
	}
	if one.sid == two.sid {
		t.Errorf("two runs share the sid %q", one.sid)
	}
}

func TestTicksKeepTheInterval(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := &fixed{readings: []Reading{{PID: 1}}, names: map[int32]string{1: "init"}}
		pub := newPublisher()
		start := time.Now()
		running(t, &Agent{Host: "h", Source: source, Interval: 3 * time.Second}, pub)
		for i := range 4 {
			pub.next(nil)
			if got, want := time.Since(start), time.Duration(i)*3*time.Second; got != want {
				t.Errorf("publish %d came after %v, want %v", i, got, want)
			}
		}
	})
}

func TestFailingPublishIsLoggedAndTheNextTickGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source := &fixed{readings: []Reading{{PID: 1}}, names: map[int32]string{1: "init"}}
		pub := newPublisher()
		running(t, &Agent{Host: "h", Source: source, Logger: slog.New(slog.NewTextHandler(&log, nil))}, pub)
		pub.next(errors.New("disk full"))
		pub.next(nil)
		if !strings.Contains(log.String(), "disk full") {
			t.Errorf("log %q does not have the cause", log.String())
		}
	})
}

// TestTickPerishes: a publish that hangs is given up, and the next tick says how
// it is then.
func TestTickPerishes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ticks := int32(0)
		source := sourceFunc(func() ([]Reading, error) {
			ticks++
			return []Reading{{PID: ticks}}, nil
		})
		pub := newPublisher()
		running(t, &Agent{Host: "h", Source: source, Logger: slog.New(slog.NewTextHandler(&log, nil))}, pub)
		time.Sleep(perishes) // nobody takes it
		synctest.Wait()
		if key := pub.next(nil)[0].Key; key != "h:p:2" {
			t.Errorf("%s was published after the hub was away, want the second tick's", key)
		}
		if n := strings.Count(log.String(), context.DeadlineExceeded.Error()); n != 1 {
			t.Errorf("%d lost ticks are reported, want 1: %s", n, log.String())
		}
	})
}

func TestDeniedAgentEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		source := &fixed{readings: []Reading{{PID: 1}}, names: map[int32]string{1: "init"}}
		pub := newPublisher()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			a := Agent{Host: "h", Source: source, Logger: slog.New(slog.DiscardHandler)}
			ended <- a.Run(ctx, pub)
		}()
		denied := eventhub.Errorf(eventhub.CodeForbidden, "no")
		pub.next(denied)
		if err := <-ended; !errors.Is(err, denied) {
			t.Errorf("Run: %v, want %v", err, denied)
		}
	})
}

func TestUnreadableMachineIsLoggedAndTheNextTickGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		calls := 0
		source := sourceFunc(func() ([]Reading, error) {
			if calls++; calls == 1 {
				return nil, errors.New("no /proc")
			}
			return []Reading{{PID: 1}}, nil
		})
		pub := newPublisher()
		running(t, &Agent{Host: "h", Source: source, Logger: slog.New(slog.NewTextHandler(&log, nil))}, pub)
		pub.next(nil)
		if !strings.Contains(log.String(), "no /proc") {
			t.Errorf("log %q does not have the cause", log.String())
		}
	})
}

// sourceFunc is a Source whose processes are all called p.
type sourceFunc func() ([]Reading, error)

func (f sourceFunc) Read(context.Context) ([]Reading, error)     { return f() }
func (f sourceFunc) Name(context.Context, int32) (string, error) { return "p", nil }

func TestVanishedProcessIsSkippedQuietly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source := &fixed{
			readings: []Reading{{PID: 1, CPU: 9}, {PID: 2, CPU: 8}, {PID: 3, CPU: 7}},
			names:    map[int32]string{1: "a", 3: "c"},
		}
		pub := newPublisher()
		running(t, &Agent{Host: "h", Source: source, Logger: slog.New(slog.NewTextHandler(&log, nil))}, pub)
		var keys []string
		for _, e := range pub.next(nil) {
			keys = append(keys, e.Key)
		}
		if got := strings.Join(keys, " "); got != "h:a:1 h:c:3" {
			t.Errorf("keys %q", got)
		}
		if log.Len() != 0 {
			t.Errorf("logged %q", log.String())
		}
	})
}

func TestAnyNameMakesAValidKey(t *testing.T) {
	for _, name := range []string{
		"", "plain", "with:colon and space", "tab\tnewline\n", "bad\xffbytes\xc3",
		strings.Repeat("a", 5000), strings.Repeat("é", 300), strings.Repeat("\xff", 4000),
	} {
		r := &run{host: keyPart(name), sid: "s"}
		e, err := r.event(Reading{PID: 1<<31 - 1}, name)
		if err != nil {
			t.Errorf("event of %.20q: %v", name, err)
			continue
		}
		if err := e.Validate(time.Now()); err != nil {
			t.Errorf("name %.20q: %v", name, err)
		}
		if p := payload(t, e); p.Key() != e.Key || p.Name == "" || p.Host == "" {
			t.Errorf("name %.20q: the payload's key %.40q is not the event's %.40q", name, p.Key(), e.Key)
		}
	}
}
