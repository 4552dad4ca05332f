package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/transfer"
)

// passage is what a reader that has had the event at offset 1 is given and told when it comes
// back after compaction has passed it.
type passage struct {
	Gaps    []eventhub.Gap
	Offsets []uint64
}

// TestCompactedOverTheGateways: readers of all kinds have the first event of a topic when
// compaction passes them up to its head, with the ends of keys. Each is told so, once, and given
// what is left: the groups that are at work, and those that come back to their place. A replay and
// an export of what is left say it too. Who begins at earliest then is told nothing.
func TestCompactedOverTheGateways(t *testing.T) {
	h := startHubAs(t, hub.Config{Store: hub.MemoryStore, CompactEvery: time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const last = 7
	var events []eventhub.Event
	for _, e := range [last][2]string{{"d", "1"}, {"b", "1"}, {"a", "2"}, {"c", "1"}, {"b", "null"}, {"a", "3"}, {"c", "2"}} {
		events = append(events, eventhub.Event{Topic: "t", Key: e[0], Payload: json.RawMessage(e[1])})
	}
	if _, err := h.Bus().Publish(ctx, events...); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(ctx, "ws://"+h.WSAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	compacted := make(chan struct{})
	base := "http://" + h.HTTPAddr() + "/v1/topics/t"
	var begun, over sync.WaitGroup
	for name, read := range map[string]func(passed func()) (passage, error){
		"group":  func(passed func()) (passage, error) { return asGroup(ctx, c, last, passed) },
		"tail":   func(passed func()) (passage, error) { return asTail(ctx, c, last, passed) },
		"pull":   func(passed func()) (passage, error) { return asPuller(ctx, base+"/groups/pull", last, passed) },
		"stream": func(passed func()) (passage, error) { return asStream(ctx, base+"/stream", last, passed) },
	} {
		begun.Add(1)
		over.Go(func() {
			begins := sync.OnceFunc(begun.Done)
			defer begins()
			got, err := read(func() { begins(); <-compacted })
			want := passage{[]eventhub.Gap{{Topic: "t", After: 1, First: 2, Compacted: last, Tombstones: last}}, []uint64{6, 7}}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
			}
		})
	}
	begun.Wait()
	least := admin.MinCompactionAge
	_, err = h.Bus().SetTopic(ctx, "t", admin.TopicSettings{Compaction: &admin.Compaction{MinAge: least, Hold: least, Grace: least}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	waitCompacted(ctx, t, h, last)
	close(compacted)
	over.Wait()
	for name, read := range map[string]func() (passage, error){
		"tail":             func() (passage, error) { return tailFromEarliest(ctx, c, last) },
		"stream":           func() (passage, error) { return streamFromEarliest(ctx, base+"/stream", last) },
		"stream of a list": func() (passage, error) { return streamFromEarliest(ctx, base+"/stream?topics=other", last) },
		"stream of a pattern": func() (passage, error) {
			return streamFromEarliest(ctx, "http://"+h.HTTPAddr()+"/v1/topics/*/stream", last)
		},
	} {
		want := passage{Offsets: []uint64{1, 6, 7}}
		if got, err := read(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s from earliest: %+v, %v; want %+v", name, got, err, want)
		}
	}
	adm, err := client.NewAdmin("http://" + h.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	for first, want := range map[uint64]passage{
		1: {[]eventhub.Gap{{Topic: "t", After: 0, First: 1, Compacted: last, Tombstones: last}}, []uint64{1, 6, 7}},
		7: {[]eventhub.Gap{{Topic: "t", After: 6, First: 7, Compacted: last, Tombstones: last}}, []uint64{7}},
		8: {},
	} {
		for name, read := range map[string]func() (passage, error){
			"SDK":         func() (passage, error) { return asReplay(ctx, adm, first) },
			"page":        func() (passage, error) { return asPage(ctx, "http://"+h.HTTPAddr(), first) },
			"CloudEvents": func() (passage, error) { return asBatch(ctx, "http://"+h.HTTPAddr()+"/replay", first) },
			"export":      func() (passage, error) { return asBatch(ctx, "http://"+h.HTTPAddr()+"/export", first) },
		} {
			if got, err := read(); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s from %d: %+v, %v; want %+v", name, first, got, err, want)
			}
		}
	}
}

// asReplay reads what is left by the SDK, whose replay is an export.
func asReplay(ctx context.Context, a *client.Admin, first uint64) (got passage, _ error) {
	q := admin.ReplayQuery{Topic: "t", Start: eventhub.FromOffset(first), OnGap: func(g eventhub.Gap) { got.Gaps = append(got.Gaps, g) }}
	err := a.Replay(ctx, q, func(_ string, item eventhub.Item) error {
		got.Offsets = append(got.Offsets, item.Offset)
		return nil
	})
	return got, err
}

// asPage reads it as a page of JSON.
func asPage(ctx context.Context, base string, first uint64) (got passage, _ error) {
	var page struct {
		Gap    *eventhub.Gap
		Events []struct{ Offset uint64 }
	}
	_, err := getInto(ctx, fmt.Sprintf("%s/replay?topic=t&offset=%d", base, first), "application/json", &page)
	if page.Gap != nil {
		page.Gap.Topic = "t"
		got.Gaps = []eventhub.Gap{*page.Gap}
	}
	for _, e := range page.Events {
		got.Offsets = append(got.Offsets, e.Offset)
	}
	return got, err
}

// asBatch reads it as a batch of CloudEvents, after which there is a trailer, or before which
// there is a header.
func asBatch(ctx context.Context, url string, first uint64) (got passage, _ error) {
	var events []struct {
		Offset string `json:"eventhuboffset"`
	}
	said, err := getInto(ctx, fmt.Sprintf("%s?topic=t&offset=%d", url, first), "application/cloudevents-batch+json", &events)
	for _, e := range events {
		n, _ := strconv.ParseUint(e.Offset, 10, 64)
		got.Offsets = append(got.Offsets, n)
	}
	if said != "" && err == nil {
		err = json.Unmarshal([]byte(said), &got.Gaps)
	}
	return got, err
}

// getInto returns what an answer says of compaction.
func getInto(ctx context.Context, url, kind string, into any) (said string, _ error) {
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Accept", kind)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return "", fmt.Errorf("answered %d %s: %w", answer.StatusCode, body, err)
	}
	return answer.Header.Get(transfer.CompactedTrailer) + answer.Trailer.Get(transfer.CompactedTrailer), nil
}

// waitCompacted waits until the topic is compacted up to an offset: three events are left.
func waitCompacted(ctx context.Context, t *testing.T, h *hub.Hub, upTo uint64) {
	t.Helper()
	waitUntil(ctx, t, "the topic is compacted", func() (bool, error) {
		plan, err := h.Bus().SeekGroup(ctx, "t", "pull", eventhub.FromOffset(2), false)
		left := 0
		if err == nil {
			err = h.Bus().Replay(ctx, admin.ReplayQuery{Topic: "t"}, func(string, eventhub.Item) error { left++; return nil })
		}
		return plan.Gap != nil && plan.Gap.Tombstones == upTo && left == 3, err
	})
}

// waitUntil asks until something is so that takes the hub a second, and of which it notifies
// nobody.
func waitUntil(ctx context.Context, t *testing.T, what string, isSo func() (bool, error)) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		so, err := isSo()
		if err != nil {
			t.Fatal(err)
		}
		if so {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("it is not so that %s: %v", what, ctx.Err())
		}
	}
}

var errAll = errors.New("that was all")

// asGroup has the first event under way while compaction passes.
func asGroup(ctx context.Context, c *client.Client, last uint64, passed func()) (got passage, _ error) {
	opts := eventhub.GroupOptions{Topic: "t", Group: "g", Start: eventhub.Earliest, MaxInFlight: 1, OnGap: func(g eventhub.Gap) { got.Gaps = append(got.Gaps, g) }}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := c.Consume(ctx, opts, func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset == 1 {
			passed()
			return nil
		}
		if got.Offsets = append(got.Offsets, d.Offset); d.Offset == last {
			cancel(errAll)
		}
		return nil
	})
	if context.Cause(ctx) == errAll {
		err = nil
	}
	return got, err
}

// asTail is away while compaction passes, and comes back to its place.
func asTail(ctx context.Context, c *client.Client, last uint64, passed func()) (got passage, _ error) {
	opts := eventhub.TailOptions{Topic: "t", Start: eventhub.Earliest, OnGap: func(g eventhub.Gap) { got.Gaps = append(got.Gaps, g) }}
	for d, err := range c.Events(ctx, opts) {
		if err != nil {
			return got, err
		}
		opts.Start = eventhub.FromOffset(d.Offset + 1)
		break
	}
	passed()
	for d, err := range c.Events(ctx, opts) {
		if err != nil {
			return got, err
		}
		if got.Offsets = append(got.Offsets, d.Offset); d.Offset == last {
			break
		}
	}
	return got, nil
}

// tailFromEarliest reads what is left as a tail.
func tailFromEarliest(ctx context.Context, c *client.Client, last uint64) (got passage, _ error) {
	opts := eventhub.TailOptions{Topic: "t", Start: eventhub.Earliest, OnGap: func(g eventhub.Gap) { got.Gaps = append(got.Gaps, g) }}
	for d, err := range c.Events(ctx, opts) {
		if err != nil {
			return got, err
		}
		if got.Offsets = append(got.Offsets, d.Offset); d.Offset == last {
			break
		}
	}
	return got, nil
}

// streamFromEarliest reads what is left as a stream.
func streamFromEarliest(ctx context.Context, url string, last uint64) (got passage, err error) {
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return got, err
	}
	q := r.URL.Query()
	q.Set("from", "earliest")
	r.URL.RawQuery = q.Encode()
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	readStream(answer.Body, "", func(e sse) bool { return got.add(e, &err) && !got.hasHad(last) })
	return got, err
}

// add notes what a stream says, and reports whether it could.
func (got *passage) add(e sse, failed *error) bool {
	if e.kind == "gap" {
		var g eventhub.Gap
		*failed = json.Unmarshal([]byte(e.data), &g)
		got.Gaps = append(got.Gaps, g)
		return *failed == nil
	}
	var event struct{ Offset uint64 }
	*failed = json.Unmarshal([]byte(e.data), &event)
	got.Offsets = append(got.Offsets, event.Offset)
	return *failed == nil
}

func (got *passage) hasHad(last uint64) bool {
	return len(got.Offsets) > 0 && got.Offsets[len(got.Offsets)-1] == last
}

// asStream is away as asTail is.
func asStream(ctx context.Context, url string, last uint64, passed func()) (got passage, _ error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	id := ""
	_, err := follow(ctx, url+"?from=earliest", func(e sse) bool { id = e.id; return false })
	if err != nil {
		return got, err
	}
	passed()
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return got, err
	}
	r.Header.Set("Last-Event-ID", id)
	answer, err := client.Do(r)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	readStream(answer.Body, id, func(e sse) bool { return got.add(e, &err) && !got.hasHad(last) })
	return got, err
}

// asPuller has a lease of the first event while compaction passes.
func asPuller(ctx context.Context, base string, last uint64, passed func()) (got passage, _ error) {
	for len(got.Offsets) == 0 || got.Offsets[len(got.Offsets)-1] < last {
		var page struct {
			Deliveries []struct {
				Event struct{ Offset uint64 }
				Ctx   struct {
					Lease string
					Gap   *eventhub.Gap
				}
			}
		}
		if err := post(ctx, base+"/pull?max=1&wait_ms=20000", `{"from":"earliest"}`, &page); err != nil {
			return got, err
		}
		if len(page.Deliveries) != 1 {
			return got, fmt.Errorf("%d deliveries", len(page.Deliveries))
		}
		d := page.Deliveries[0]
		if d.Ctx.Gap != nil {
			d.Ctx.Gap.Topic = "t"
			got.Gaps = append(got.Gaps, *d.Ctx.Gap)
		}
		if d.Event.Offset == 1 {
			passed()
		} else {
			got.Offsets = append(got.Offsets, d.Event.Offset)
		}
		if err := post(ctx, base+"/ack", fmt.Sprintf(`{"leases":[%q]}`, d.Ctx.Lease), &struct{}{}); err != nil {
			return got, err
		}
	}
	return got, nil
}
