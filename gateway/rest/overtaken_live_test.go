package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
)

// account is what one reader was given and told of one topic, whose events are at the offsets
// from 1 to the last one.
type account struct {
	name string
	last uint64

	mu   sync.Mutex
	had  map[uint64]bool
	gone map[uint64]bool
	gaps int
}

func newAccount(name string, last uint64) *account {
	return &account{name: name, last: last, had: make(map[uint64]bool), gone: make(map[uint64]bool)}
}

// event notes an event, and reports whether it is the last one.
func (a *account) event(offset uint64) (last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.had[offset] = true
	return offset == a.last
}

func (a *account) gap(after, first uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps++
	for offset := after + 1; offset < first; offset++ {
		a.gone[offset] = true
	}
}

// check holds the account against what is left: every event was given or told, unless it was
// erased, and what was told is gone is.
func (a *account) check(t *testing.T, horizon uint64, erased map[uint64]bool) {
	t.Helper()
	for offset := uint64(1); offset <= a.last; offset++ {
		if !a.had[offset] && !a.gone[offset] && !erased[offset] {
			t.Errorf("%s was neither given nor told of offset %d; the horizon is %d", a.name, offset, horizon)
			return
		}
		if a.gone[offset] && offset >= horizon && !erased[offset] {
			t.Errorf("%s was told that offset %d is gone; the horizon is %d", a.name, offset, horizon)
			return
		}
	}
	t.Logf("%s: %d events, %d gaps", a.name, len(a.had), a.gaps)
}

// gapOf is a gap as it goes over the wire.
type gapOf struct{ After, First uint64 }

// TestOvertakenOverTheGateways: an event stream and a tail of the SDK, whose connections are
// cut all the time, a group that pulls and pages of a replay are overtaken by trims and
// erasures at random moments. Each was given or told of every event.
func TestOvertakenOverTheGateways(t *testing.T) {
	last := uint64(testsize.Of(6000, 1000))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := startHub(t, hub.MemoryStore)
	if _, err := h.Bus().Publish(t.Context(), eventhub.Event{Topic: "t", Payload: json.RawMessage("1")}); err != nil {
		t.Fatal(err)
	}
	proxy := cut(t, h.HTTPAddr(), *streamCut)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	direct, cutUp := "http://"+h.HTTPAddr(), proxy.listener.Addr().String()
	accounts := make([]*account, 0, 4)
	var readers sync.WaitGroup
	for name, read := range map[string]func(*account) error{
		"stream": func(a *account) error { return readAsStream(ctx, "http://"+cutUp, a) },
		"tail":   func(a *account) error { return readAsTail(ctx, "ws://"+cutUp, a) },
		"pull":   func(a *account) error { return readByPulls(ctx, direct, a) },
		"replay": func(a *account) error { return readByPages(ctx, direct, a) },
	} {
		a := newAccount(name, last)
		accounts = append(accounts, a)
		readers.Go(func() {
			if err := read(a); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	horizon, erased := publishAndRemove(ctx, t, h, proxy, last, rand.New(rand.NewPCG(seed, 1)))
	readers.Wait()
	gaps := 0
	for _, a := range accounts {
		a.check(t, horizon, erased)
		gaps += a.gaps
	}
	if gaps == 0 {
		t.Error("nobody was overtaken; that proves nothing")
	}
}

// publishAndRemove publishes events up to the last offset, a part after each cut, and removes
// some after each. The last one stays.
func publishAndRemove(ctx context.Context, t *testing.T, h *hub.Hub, proxy *scissors, last uint64, rng *rand.Rand) (horizon uint64, erased map[uint64]bool) {
	horizon, erased = 1, make(map[uint64]bool)
	for head := uint64(1); head < last; {
		select {
		case <-proxy.cuts:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		events := make([]eventhub.Event, min(last-head, 1+rng.Uint64N(100)))
		for i := range events {
			events[i] = eventhub.Event{Topic: "t", Payload: json.RawMessage("1")}
		}
		if _, err := h.Bus().Publish(ctx, events...); err != nil {
			t.Fatal(err)
		}
		head += uint64(len(events))
		if offset := horizon + rng.Uint64N(head-horizon+1); offset < last && rng.IntN(3) == 0 {
			_, err := h.Bus().Erase(ctx, "t", admin.EraseQuery{Offset: offset, Apply: true})
			if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID && eventhub.ErrorCode(err) != eventhub.CodeGone {
				t.Fatal(err)
			}
			erased[offset] = true
		}
		if at := horizon + rng.Uint64N(min(head+1, last)-horizon+1); rng.IntN(3) > 0 && at > horizon {
			if _, err := h.Bus().Trim(ctx, "t", admin.TrimQuery{Before: at}, true); err != nil {
				t.Fatal(err)
			}
			horizon = at
		}
	}
	return horizon, erased
}

func readAsStream(ctx context.Context, base string, a *account) error {
	var wrong error
	_, err := follow(ctx, base+"/v1/topics/t/stream?from=offset&offset=1", func(e sse) bool {
		var event struct{ Offset uint64 }
		var gap gapOf
		if e.kind == "gap" {
			wrong = json.Unmarshal([]byte(e.data), &gap)
			a.gap(gap.After, gap.First)
			return wrong == nil && gap.First > 0
		}
		if wrong = json.Unmarshal([]byte(e.data), &event); wrong == nil && a.had[event.Offset] {
			wrong = fmt.Errorf("offset %d came twice", event.Offset)
		}
		return !a.event(event.Offset) && wrong == nil
	})
	if err == nil {
		err = wrong
	}
	return err
}

func readAsTail(ctx context.Context, url string, a *account) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := client.Dial(ctx, url)
	for err != nil && ctx.Err() == nil { // cut
		c, err = client.Dial(ctx, url)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	opts := eventhub.TailOptions{Topic: "t", Start: eventhub.FromOffset(1), OnGap: func(g eventhub.Gap) { a.gap(g.After, g.First) }}
	for d, err := range c.Events(ctx, opts) {
		if err != nil {
			return err
		}
		if a.had[d.Offset] {
			return fmt.Errorf("offset %d came twice", d.Offset)
		}
		if a.event(d.Offset) {
			break
		}
	}
	return nil
}

func readByPulls(ctx context.Context, base string, a *account) error {
	base += "/v1/topics/t/groups/g"
	for over := false; !over; {
		var got struct {
			Deliveries []struct {
				Event struct{ Offset uint64 }
				Ctx   struct {
					Lease string
					Gap   *gapOf
				}
			}
		}
		if err := post(ctx, fmt.Sprintf("%s/pull?max=%d&wait_ms=200", base, 1+rand.IntN(20)), `{"from":"offset","offset":1}`, &got); err != nil {
			return err
		}
		var leases []string
		for _, d := range got.Deliveries {
			if d.Ctx.Gap != nil {
				a.gap(d.Ctx.Gap.After, d.Ctx.Gap.First)
			}
			over = a.event(d.Event.Offset) || over
			leases = append(leases, d.Ctx.Lease)
		}
		if len(leases) == 0 {
			continue
		}
		body, err := json.Marshal(map[string]any{"leases": leases})
		if err != nil {
			return err
		}
		if err := post(ctx, base+"/ack", string(body), &struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

var beginsAt = regexp.MustCompile(`it begins at offset ([0-9]+)`)

// readByPages asks for one page after the other. One that is gone says where the topic begins.
func readByPages(ctx context.Context, base string, a *account) error {
	for next, over := uint64(1), false; !over; {
		r, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/replay?topic=t&offset=%d&limit=%d", base, next, 1+rand.IntN(20)), nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			return err
		}
		if answer.StatusCode == http.StatusGone {
			at := beginsAt.FindStringSubmatch(string(body))
			if at == nil || !strings.Contains(string(body), `"code":"gone"`) {
				return fmt.Errorf("answered %s", body)
			}
			first, err := strconv.ParseUint(at[1], 10, 64)
			if err != nil || first <= next {
				return fmt.Errorf("asked for offset %d, and answered %s: %w", next, body, err)
			}
			a.gap(next-1, first)
			next = first
			continue
		}
		var page struct{ Events []struct{ Offset uint64 } }
		if err := json.Unmarshal(body, &page); err != nil || answer.StatusCode != http.StatusOK {
			return fmt.Errorf("answered %d %s: %w", answer.StatusCode, body, err)
		}
		for _, e := range page.Events {
			if e.Offset < next {
				return fmt.Errorf("asked for offset %d, and got %d", next, e.Offset)
			}
			over = a.event(e.Offset)
			next = e.Offset + 1
		}
	}
	return nil
}
