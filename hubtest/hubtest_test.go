package hubtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hubtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestShipping(t *testing.T) { testShipping(t) }

// trial stands for the test of somebody else: it notes what makes that test fail,
// and runs its cleanups when it is over.
type trial struct {
	testing.TB
	mu       sync.Mutex
	cleanups []func()
	said     []string
}

func (tr *trial) Helper() {}

func (tr *trial) Cleanup(f func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.cleanups = append(tr.cleanups, f)
}

func (tr *trial) Errorf(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.said = append(tr.said, fmt.Sprintf(format, args...))
}

func (tr *trial) Fatalf(format string, args ...any) {
	tr.Errorf(format, args...)
	runtime.Goexit()
}

// run runs a test to its end and returns why it failed.
func run(t *testing.T, test func(tb testing.TB)) string {
	t.Helper()
	tr := &trial{TB: t}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer func() {
			for i := len(tr.cleanups) - 1; i >= 0; i-- {
				tr.cleanups[i]()
			}
		}()
		test(tr)
	}()
	<-over
	return strings.Join(tr.said, "\n")
}

func publish(t testing.TB, p eventhub.Publisher, topic string, payloads ...string) {
	t.Helper()
	events := make([]eventhub.Event, len(payloads))
	for i, payload := range payloads {
		events[i] = eventhub.Event{Topic: topic, Payload: []byte(payload)}
	}
	if _, err := p.Publish(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
}

func earliest(topic, group string) eventhub.GroupOptions {
	return eventhub.GroupOptions{Topic: topic, Group: group, Start: eventhub.Earliest}
}

// consume runs a consumer until the test is over, or the returned stop is called.
func consume(t *testing.T, c *client.Client, opts eventhub.GroupOptions, handle eventhub.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Consume(ctx, opts, handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// awaitGroup waits until a group is as wanted. No hub notifies when that is so, so it
// is asked.
func awaitGroup(tb testing.TB, h *hubtest.Hub, topic, group string, wanted func(admin.GroupInfo) bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), hubtest.DefaultPatience)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		g, err := h.Admin().Group(ctx, topic, group)
		if err == nil && wanted(g) {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			tb.Fatalf("group %s::%s is %+v, %v", topic, group, g, err)
		}
	}
}

func TestAllDoorsAreOpen(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t)
	defer http.DefaultClient.CloseIdleConnections()
	resp, err := http.Post(h.HTTPURL+"/publish/door", "application/json", strings.NewReader(`1`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("POST /publish: %s", resp.Status)
	}
	if resp, err = http.Get(h.OpsURL + "/readyz"); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("GET /readyz: %s", resp.Status)
	}
	publish(t, h.Client(), "door", `2`)
	topic, err := h.Admin().Topic(t.Context(), "door")
	if err != nil || topic.Head != 2 {
		t.Errorf("%+v, %v; want two events", topic, err)
	}
}

// TestHubsAreStrangers: any number at once, none sees what others hold.
func TestHubsAreStrangers(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			one, two := hubtest.Start(t, hubtest.WithTempStore()), hubtest.Start(t)
			publish(t, one.Client(), "t", `"one"`)
			publish(t, two.Client(), "t", `"two"`)
			if e := one.Events("t", 1)[0]; string(e.Payload) != `"one"` || e.Offset != 1 {
				t.Errorf("the first hub has %s at %d", e.Payload, e.Offset)
			}
			if e := two.Events("t", 1)[0]; string(e.Payload) != `"two"` || e.Offset != 1 {
				t.Errorf("the second hub has %s at %d", e.Payload, e.Offset)
			}
		})
	}
}

func TestTokenIsAskedFor(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t, hubtest.WithToken("s3cret"))
	publish(t, h.Client(), "t", `1`)
	c, err := client.Dial(t.Context(), h.URL)
	if err == nil {
		c.Close()
	}
	if eventhub.ErrorCode(err) != eventhub.CodeNoToken {
		t.Errorf("without a token: %v", err)
	}
	said := run(t, func(tb testing.TB) {
		hubtest.Start(tb, hubtest.WithToken("s3cret")).Client(client.WithToken("other"))
	})
	if !strings.Contains(said, string(eventhub.CodeBadToken)) {
		t.Errorf("a client with another token: %q", said)
	}
}

// TestRestart: clients and a consumer of before go on, events of before are there,
// and the addresses stay.
func TestRestart(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t, hubtest.WithTempStore())
	c, addresses := h.Client(), []string{h.URL, h.HTTPURL, h.OpsURL}
	seen := make(chan string, 64)
	consume(t, h.Client(), earliest("t", "g"), func(_ context.Context, d eventhub.Delivery) error {
		e, err := d.Event()
		seen <- string(e.Payload)
		return err
	})
	want := ""
	for i := range 3 {
		want = fmt.Sprint(i)
		publish(t, c, "t", want)
		h.WaitFor("t", "g")
		h.Restart()
		if now := []string{h.URL, h.HTTPURL, h.OpsURL}; fmt.Sprint(now) != fmt.Sprint(addresses) {
			t.Fatalf("the hub moved from %v to %v", addresses, now)
		}
	}
	publish(t, c, "t", `"last"`)
	h.WaitFor("t", "g")
	if events := h.Events("t", 4); string(events[3].Payload) != `"last"` || string(events[0].Payload) != `0` {
		t.Errorf("after three restarts the topic has %v", events)
	}
	for got := ""; got != `"last"`; got = <-seen { // some may come again
	}
}

func TestStoreStaysWhenTheTestIsOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2 {
		if said := run(t, func(tb testing.TB) {
			h := hubtest.Start(tb, hubtest.WithStore(dir))
			publish(tb, h.Client(), "t", `1`)
			h.Events("t", i+1)
		}); said != "" {
			t.Errorf("test %d on the store: %s", i+1, said)
		}
	}
}

// TestWaitForWaits: for the group to be there, and then for its handlers.
func TestWaitForWaits(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t)
	c := h.Client()
	publish(t, c, "t", `1`, `2`, `3`)
	handling, release := make(chan struct{}, 3), make(chan struct{})
	defer close(release)
	var handled int
	waited := make(chan int, 1)
	go func() {
		h.WaitFor("t", "g")
		waited <- handled // the last ack happened before
	}()
	stop := consume(t, h.Client(), earliest("t", "g"), func(context.Context, eventhub.Delivery) error {
		handling <- struct{}{}
		<-release
		handled++
		return nil
	})
	for range 3 {
		<-handling
		select {
		case n := <-waited:
			t.Fatalf("WaitFor returned with %d events handled", n)
		case release <- struct{}{}:
		}
	}
	<-waited
	stop()
	if handled != 3 {
		t.Errorf("%d events were handled", handled)
	}
}

// TestDeadLettersAreDone: WaitFor does not wait for what was given up.
func TestDeadLettersAreDone(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t)
	opts := earliest("t", "g")
	opts.MaxAttempts = 1
	consume(t, h.Client(), opts, func(context.Context, eventhub.Delivery) error { return errors.New("never") })
	publish(t, h.Client(), "t", `1`)
	h.WaitFor("t", "g")
	h.Events("t.dlq", 1)
}

// TestEventsLeavesNoTrace: and waits for events that come later, in a topic that
// does.
func TestEventsLeavesNoTrace(t *testing.T) {
	t.Parallel()
	h := hubtest.Start(t)
	c := h.Client()
	got := make(chan []eventhub.Event)
	go func() { got <- h.Events("t", 2) }()
	publish(t, c, "t", `1`)
	publish(t, c, "t", `2`, `3`)
	if events := <-got; len(events) != 2 || events[0].Offset != 1 || string(events[1].Payload) != `2` {
		t.Errorf("got %v", events)
	}
	groups, err := h.Admin().Groups(t.Context(), admin.GroupQuery{})
	if err != nil || len(groups) != 0 {
		t.Errorf("groups %v, %v; want none", groups, err)
	}
	if events := h.Events("t", 0); len(events) != 0 {
		t.Errorf("no events asked for, got %v", events)
	}
}

// TestFailuresAreTold: what goes wrong fails the test, with the reason.
func TestFailuresAreTold(t *testing.T) {
	t.Parallel()
	const brief = 50 * time.Millisecond
	for name, tt := range map[string]struct {
		test func(tb testing.TB)
		want []string
	}{
		"no group": {func(tb testing.TB) {
			hubtest.Start(tb, hubtest.WithPatience(brief)).WaitFor("t", "g")
		}, []string{"50ms", "t", "g", "nobody has subscribed"}},
		"a busy group": {func(tb testing.TB) {
			h := hubtest.Start(tb)
			c := h.Client(client.WithToken("none is asked for"))
			publish(tb, c, "t", `1`, `2`)
			opts := earliest("t", "g")
			opts.Backoff.Min = time.Hour
			ctx, cancel := context.WithCancel(context.Background())
			ended, second := make(chan struct{}), make(chan struct{})
			tb.Cleanup(func() { cancel(); <-ended })
			go func() {
				defer close(ended)
				_ = c.Consume(ctx, opts, func(_ context.Context, d eventhub.Delivery) error {
					if d.Offset == 1 {
						return errors.New("not now")
					}
					close(second)
					<-ctx.Done()
					return nil
				})
			}()
			<-second
			awaitGroup(tb, h, "t", "g", func(g admin.GroupInfo) bool { return g.Waiting == 1 }) // the first was refused
			h.SetPatience(brief)
			h.WaitFor("t", "g")
		}, []string{"2 events are not done", "1 in flight", "the head 2", "1 members"}},
		"no events": {func(tb testing.TB) {
			h := hubtest.Start(tb)
			publish(tb, h.Client(), "t", `1`)
			h.Events("t", 1) // it is there
			h.SetPatience(time.Second)
			h.Events("t", 2)
		}, []string{"2 events", "there are 1"}},
		"a topic that is none": {func(tb testing.TB) {
			hubtest.Start(tb).Events("no topic", 1)
		}, []string{"bad_topic"}},
		"restart in memory": {func(tb testing.TB) {
			hubtest.Start(tb).Restart()
		}, []string{"WithTempStore"}},
		"a store in use": {func(tb testing.TB) {
			dir := t.TempDir()
			hubtest.Start(tb, hubtest.WithStore(dir))
			hubtest.Start(tb, hubtest.WithStore(dir))
		}, []string{"start", "locked"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := run(t, tt.test)
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("the test failed with %q; want %q in it", said, want)
				}
			}
		})
	}
}

// TestUnorderlyStopFailsTheTest: an answer that nobody reads is cut off where the hub has
// no time to stop.
func TestUnorderlyStopFailsTheTest(t *testing.T) {
	t.Parallel()
	var reader net.Conn
	said := run(t, func(tb testing.TB) {
		h := hubtest.Start(tb, hubtest.WithPatience(time.Nanosecond), hubtest.WithLogger(slog.New(slog.DiscardHandler)))
		large := `"` + strings.Repeat("x", 1<<20-2) + `"` // more of them than the system takes for a reader
		for range 32 {
			resp, err := http.Post(h.HTTPURL+"/publish/t", "application/json", strings.NewReader(large))
			if err != nil {
				tb.Fatalf("%v", err)
			}
			resp.Body.Close()
		}
		var err error
		if reader, err = net.Dial("tcp", strings.TrimPrefix(h.HTTPURL, "http://")); err != nil {
			tb.Fatalf("%v", err)
		}
		if _, err := io.WriteString(reader, "GET /export?topic=t HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			tb.Fatalf("%v", err)
		}
		if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil {
			tb.Fatalf("%v", err)
		}
	})
	if !strings.Contains(said, "did not stop in order") {
		t.Errorf("the test said %q", said)
	}
	reader.Close()
	http.DefaultClient.CloseIdleConnections()
}

// TestClientIsClosedBeforeTheHub: closing the hub first would make it log the loss
// of a connection, or hang.
func TestClientIsClosedBeforeTheHub(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	var c *client.Client
	if said := run(t, func(tb testing.TB) {
		h := hubtest.Start(tb, hubtest.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))))
		c = h.Client()
	}); said != "" {
		t.Error(said)
	}
	if log.Len() > 0 {
		t.Errorf("logged %q", log.String())
	}
	if _, err := c.Publish(t.Context(), eventhub.Event{Topic: "t", Payload: []byte(`1`)}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("publish with a client of a test that is over: %v", err)
	}
}

// TestHelpersInCleanup: the context of a test has ended when its cleanups run, and they
// are where a test looks at what is left.
func TestHelpersInCleanup(t *testing.T) {
	t.Run("test", func(t *testing.T) {
		h := hubtest.Start(t, hubtest.WithTempStore())
		t.Cleanup(func() {
			c := h.Client()
			if _, err := c.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")}); err != nil {
				t.Error(err)
			}
			consume(t, c, earliest("t", "g"), func(context.Context, eventhub.Delivery) error { return nil })
			h.WaitFor("t", "g")
			h.Events("t", 1)
		})
	})
}
