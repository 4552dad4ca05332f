package bench

import (
	"io"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eventhub"
	"eventhub/hubtest"
)

func publishOptions() PublishOptions {
	return PublishOptions{Topic: "t", Connections: 3, InFlight: 7, Payload: 100, Batch: 1, Count: 1_000}
}

// TestPublish: what is counted is what the hub has, the warm-up is not measured,
// and the events look as was asked for.
func TestPublish(t *testing.T) {
	h := hubtest.Start(t)
	o := publishOptions()
	o.IDs, o.Keys, o.Warmup = true, 5, 20*time.Millisecond
	res, err := Publish(limited(t), &Target{URL: h.URL}, o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Count != 1_000 || res.Errors != 0 || res.Published <= 1_000 || res.Unit != "events" {
		t.Errorf("%+v; want 1000 events after a warm-up, and no error", res)
	}
	if res.Publish == nil || res.Publish.Count != 1_000 || res.Publish.At(50) <= 0 || res.Publish.At(50) > res.Publish.Max {
		t.Errorf("latencies %+v; want those of 1000 events", res.Publish)
	}
	if res.Hub.Version != "hubtest" || res.Hub.Durability != "none" || res.PerSecond <= 0 {
		t.Errorf("%+v", res)
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen, keys := map[string]bool{}, map[string]bool{}
	for _, e := range h.Events("t", int(res.Published)) {
		if !uuid.MatchString(e.ID) || seen[e.ID[24:]] {
			t.Fatalf("id %q is none of its own", e.ID)
		}
		seen[e.ID[24:]], keys[e.Key] = true, true
		if len(e.Payload) != 100 || e.Payload[0] != '"' {
			t.Fatalf("payload %s", e.Payload)
		}
	}
	if len(keys) != 5 || !keys["key-00000004"] {
		t.Errorf("keys %v; want five", keys)
	}
}

// TestPublishInBatches: one frame is one atomic batch, and events are counted, not
// frames.
func TestPublishInBatches(t *testing.T) {
	h := hubtest.Start(t)
	o := publishOptions()
	o.Batch, o.InFlight, o.Count = 8, 16, 997
	res, err := Publish(limited(t), &Target{URL: h.URL}, o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Count != 1_000 || res.Publish == nil || res.Publish.Count != 125 {
		t.Errorf("%+v, %+v; want 1000 events, which are 997 rounded up to whole frames, in 125", res, res.Publish)
	}
}

// TestPublishBySDK: the events are the SDK's publications, numbered unless they have ids; what is counted is
// what the hub has, and the clients are closed.
func TestPublishBySDK(t *testing.T) {
	for _, ids := range []bool{false, true} {
		h := hubtest.Start(t)
		o := publishOptions()
		o.SDK, o.IDs, o.Keys, o.Warmup, o.Batch, o.InFlight, o.Count = true, ids, 5, 20*time.Millisecond, 4, 12, 998
		res, err := Publish(limited(t), &Target{URL: h.URL}, o)
		if err != nil {
			t.Fatal(err)
		}
		if res.Count != 1_000 || res.Errors != 0 || res.Published <= 1_000 || res.Hub.Version != "hubtest" || res.Publish == nil || res.Publish.Count != 250 {
			t.Errorf("%+v, %+v; want 1000 events after a warm-up in 250 publications, and no error", res, res.Publish)
		}
		seen, keys := map[string]bool{}, map[string]bool{}
		for _, e := range h.Events("t", int(res.Published)) {
			if seen[e.ID] || len(e.Payload) != 100 {
				t.Fatalf("%+v", e)
			}
			seen[e.ID], keys[e.Key] = true, true
		}
		if len(keys) != 5 || !keys["key-4"] {
			t.Errorf("keys %v; want five", keys)
		}
	}
}

// TestRefusalsOfTheSDK: what is refused is counted, and too much of it ends the run.
func TestRefusalsOfTheSDK(t *testing.T) {
	h := hubtest.Start(t)
	o := publishOptions()
	o.SDK, o.Topic, o.Count = true, "system.nobody", 50
	res, err := Publish(limited(t), &Target{URL: h.URL}, o)
	if eventhub.ErrorCode(err) != eventhub.CodeForbidden {
		t.Errorf("%+v, %v; want forbidden", res, err)
	}
	o.Topic, o.Rate = "t", 100
	if _, err := Publish(limited(t), &Target{URL: h.URL}, o); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("with a rate: %v", err)
	}
}

// TestPublishAtARate: an open load takes the time that its rate says, and sends no
// more and no less.
func TestPublishAtARate(t *testing.T) {
	h := hubtest.Start(t)
	o := publishOptions()
	o.Count, o.Duration, o.Rate = 0, 200*time.Millisecond, 1_000
	res, err := Publish(limited(t), &Target{URL: h.URL}, o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Count != 200 || res.Seconds < 0.199 {
		t.Errorf("%d events in %.3f s; want 200, the last one due after 0.199 s", res.Count, res.Seconds)
	}
}

// TestStallsAreCharged: a hub that answers nothing for a while is charged for all
// that was due meanwhile, also for what could not be sent.
func TestStallsAreCharged(t *testing.T) {
	const stall = 100 * time.Millisecond
	var first atomic.Bool
	h := newFakeHub(t, func(h *fakeHub, c net.Conn, corr string) {
		if first.CompareAndSwap(false, true) {
			<-time.After(stall)
		}
		h.accept(c, corr)
	})
	o := publishOptions()
	o.Connections, o.InFlight, o.Rate, o.Count = 1, 1, 1_000, 50
	res, err := Publish(limited(t), &Target{URL: h.url}, o)
	if err != nil {
		t.Fatal(err)
	}
	// Event k was due after k ms and answered after 100 ms at the earliest.
	if got := res.Publish.At(50); got < 74 {
		t.Errorf("the median is %.1f ms; 25 of 50 events waited longer than 74 ms", got)
	}
}

// TestRefusalsAreCounted: an ERR is neither an event nor the end.
func TestRefusalsAreCounted(t *testing.T) {
	var n atomic.Int64
	h := newFakeHub(t, func(h *fakeHub, c net.Conn, corr string) {
		if n.Add(1)%10 == 0 {
			h.say(c, `{"op":"ERR","code":"rate_limited","msg":"slow down","corr":"`+corr+`","retry_after_ms":5}`)
			return
		}
		h.accept(c, corr)
	})
	res, err := Publish(limited(t), &Target{URL: h.url}, publishOptions())
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors != 100 || res.Count != 900 || res.Publish.Count != 900 || res.FirstError != "100 rate_limited; first rate_limited: slow down" {
		t.Errorf("%+v; want 900 events and 100 errors", res)
	}
}

// TestNothingElseIsMeasured: a hub whose head does not move with what it
// acknowledged fails the run.
func TestNothingElseIsMeasured(t *testing.T) {
	h := newFakeHub(t, func(h *fakeHub, c net.Conn, corr string) {
		h.say(c, `{"op":"OK","corr":"`+corr+`","id":"x","offset":7}`)
	})
	_, err := Publish(limited(t), &Target{URL: h.url}, publishOptions())
	if err == nil || !strings.Contains(err.Error(), "the head of t is 0 at the hub, and 1000 were counted here") {
		t.Errorf("Publish = %v; want that the counts differ", err)
	}
}

// TestRunsEnd: whatever a hub does, a run ends and says why.
func TestRunsEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		each func(h *fakeHub, c net.Conn, corr string)
		want string
	}{
		"silence":         {func(*fakeHub, net.Conn, string) {}, `nothing has moved for 60ms in phase "measure", at 0`},
		"a lost line":     {func(_ *fakeHub, c net.Conn, _ string) { c.Close() }, "EOF"},
		"a close":         {func(_ *fakeHub, c net.Conn, _ string) { c.Write([]byte("\x88\x02\x03\xf5")) }, "closed the connection: 1013"},
		"binary":          {func(_ *fakeHub, c net.Conn, _ string) { c.Write([]byte("\x82\x01x")) }, "frames are text"},
		"a wrong answer":  {func(h *fakeHub, c net.Conn, _ string) { h.say(c, `{"op":"OK","corr":"100999","id":"x","offset":1}`) }, "what was not asked"},
		"a second answer": {func(h *fakeHub, c net.Conn, corr string) { h.accept(c, corr); h.accept(c, corr) }, "what was not asked"},
		"an event":        {func(h *fakeHub, c net.Conn, _ string) { h.say(c, `{"op":"OK"}`) }, "to a publisher"},
		"shutting down": {func(h *fakeHub, c net.Conn, corr string) {
			h.say(c, `{"op":"ERR","code":"shutting_down","msg":"bye","corr":"`+corr+`"}`)
		}, "shutting_down: bye"},
		"only refusals": {func(h *fakeHub, c net.Conn, corr string) {
			h.say(c, `{"op":"ERR","code":"overloaded","msg":"no","corr":"`+corr+`"}`)
		}, "1000 requests were refused"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t, tt.each)
			o := publishOptions()
			o.Connections, o.InFlight, o.Count = 1, 1, 5_000
			target := &Target{URL: h.url, Patience: 60 * time.Millisecond}
			if name != "silence" {
				target.Patience = watchdog
			}
			_, err := Publish(limited(t), target, o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Publish = %v; want %q in it", err, tt.want)
			}
		})
	}
}

// TestPingsAreAnswered: a hub closes who does not.
func TestPingsAreAnswered(t *testing.T) {
	pong := make(chan string, 1)
	h := newFakeHub(t, func(h *fakeHub, c net.Conn, corr string) {
		c.Write([]byte("\x89\x02hi"))
		b := make([]byte, 8) // header, mask, two bytes
		if _, err := io.ReadFull(c, b); err != nil {
			t.Error(err)
		}
		for i := range 2 {
			b[6+i] ^= b[2+i]
		}
		pong <- string(b[:2]) + string(b[6:])
		h.accept(c, corr)
	})
	o := publishOptions()
	o.Connections, o.InFlight, o.Count = 1, 1, 1
	if _, err := Publish(limited(t), &Target{URL: h.url}, o); err != nil {
		t.Fatal(err)
	}
	if got := <-pong; got != "\x8a\x82hi" {
		t.Errorf("the ping was answered by %q", got)
	}
}

// TestProgressIsTold: while a run goes on, with what it has done so far.
func TestProgressIsTold(t *testing.T) {
	ctx := limited(t)
	reported := make(chan Progress, 100)
	var held atomic.Bool
	h := newFakeHub(t, func(h *fakeHub, c net.Conn, corr string) {
		if h.head.Load() == 5 && held.CompareAndSwap(false, true) {
			for seen := false; !seen; {
				select {
				case p := <-reported:
					seen = p.Phase == "measure" && p.Done == 5 && p.Total == 10 && p.PerSecond > 0
				case <-ctx.Done():
					t.Error("nobody was notified of half of it")
					return
				}
			}
		}
		h.accept(c, corr)
	})
	o := publishOptions()
	o.Connections, o.InFlight, o.Count = 1, 1, 10
	target := &Target{URL: h.url, Progress: func(p Progress) {
		select {
		case reported <- p:
		default:
		}
	}, Patience: 40 * time.Second}
	if _, err := Publish(ctx, target, o); err != nil {
		t.Fatal(err)
	}
}

func TestPublishOptionsAreChecked(t *testing.T) {
	err := (&PublishOptions{Batch: 2, InFlight: 1, Payload: 1, Rate: 0.5, Warmup: -1, Keys: -1}).Validate()
	for _, want := range []string{"connections is 0; 1 to 10000", "in-flight is 1; 2 to 20000", "payload is 1; 2 to 1048576",
		"keys is -1", "rate is 0.5", "count is 0 and duration is 0s", "warmup is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("code %q", eventhub.ErrorCode(err))
	}
	good := publishOptions()
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

// TestWindows: each answer is in one window, the last of which ends with the run, and the sum
// has all of them.
func TestWindows(t *testing.T) {
	h := hubtest.Start(t)
	o := publishOptions()
	o.Count, o.Duration, o.Rate, o.Warmup, o.Window = 0, 350*time.Millisecond, 1_000, 20*time.Millisecond, 100*time.Millisecond
	res, err := Publish(limited(t), &Target{URL: h.URL}, o)
	if err != nil {
		t.Fatal(err)
	}
	var count int64
	end, largest := 0.0, 0.0
	for _, w := range res.Windows {
		if w.End <= end {
			t.Errorf("a window ends after %g s, the one before it after %g s", w.End, end)
		}
		if end = w.End; w.Latency != nil {
			count += w.Latency.Count
			largest = max(largest, w.Latency.Max)
		}
	}
	if len(res.Windows) < 3 || end < res.Seconds || count != 350 || res.Publish.Count != 350 || res.Publish.Max != largest {
		t.Errorf("%d windows have %d answers up to %g ms, the last one ends after %g s; want at least 3, 350, %g ms, %g s or more; in all %+v",
			len(res.Windows), count, largest, end, res.Publish.Max, res.Seconds, res.Publish)
	}
	o.Window = time.Millisecond
	if err := o.Validate(); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("windows of a millisecond: %v", err)
	}
}
