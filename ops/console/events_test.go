package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
	"eventhub/internal/record"
)

// past is a History of one topic, and counts what was read of it.
type past struct {
	admin.History
	offsets []uint64
	visited int
	each    time.Duration // how long an event takes
	err     error
}

func (p *past) Replay(_ context.Context, q admin.ReplayQuery, visit func(string, eventhub.Item) error) error {
	for _, offset := range p.offsets {
		if q.Start.Kind == eventhub.StartOffset && offset < q.Start.Offset {
			continue
		}
		rec, err := record.Append(nil, &eventhub.Event{Topic: q.Topic, ID: fmt.Sprint("e", offset), Key: "k", Payload: fmt.Appendf(nil, "9007199254740993.%d0", offset)})
		if err != nil {
			return err
		}
		p.visited++
		time.Sleep(p.each)
		if err := visit(q.Topic, eventhub.Item{Offset: offset, Record: rec}); err != nil {
			return err
		}
	}
	return p.err
}

// pages opens a console over a topic that has events at these offsets.
func pages(t *testing.T, p *past) http.Handler {
	t.Helper()
	info := admin.TopicInfo{Topic: "orders", FirstOffset: 1}
	if n := len(p.offsets); n > 0 {
		info.FirstOffset, info.Head = p.offsets[0], p.offsets[n-1]
	}
	cfg := config()
	cfg.Admit = func(*http.Request) (Access, error) {
		return Access{Inspector: &rooms{topics: map[string]admin.TopicInfo{"orders": info}}, History: p}, nil
	}
	_, mux := open(t, cfg)
	return mux
}

func readPage(t *testing.T, h http.Handler, query string) (page eventsPage) {
	t.Helper()
	r := do(h, "GET", "/console/events?topic=orders"+query)
	text := body(t, r)
	if err := json.Unmarshal([]byte(text), &page); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", query, r.StatusCode, text)
	}
	return page
}

// TestEventsAreReadBackOverGaps: from the newest event to the first each is on one page, however many offsets
// between them are gone, and what is read is little more than what is shown.
func TestEventsAreReadBackOverGaps(t *testing.T) {
	p := &past{}
	for i := range uint64(70) {
		p.offsets = append(p.offsets, 3+i)
	}
	for i := range uint64(70) {
		p.offsets = append(p.offsets, 1_000_000+i*i*i)
	}
	p.offsets = append(p.offsets, 6_000_000)
	h := pages(t, p)
	var seen []uint64
	page := readPage(t, h, "")
	if e := page.Events[len(page.Events)-1]; len(page.Events) != pageEvents || e.ID != "e6000000" || e.Preview != "9007199254740993.60000000" || page.After != 0 {
		t.Errorf("the newest page is %+v", page)
	}
	for n := 0; ; n++ {
		for i := len(page.Events) - 1; i >= 0; i-- {
			seen = append(seen, page.Events[i].Offset)
		}
		if page.Before == 0 || n > 10 {
			break
		}
		page = readPage(t, h, fmt.Sprint("&before=", page.Before))
	}
	for i, offset := range seen {
		if want := p.offsets[len(p.offsets)-1-i]; offset != want {
			t.Fatalf("the event %d from the end is at %d, not at %d", i, offset, want)
		}
	}
	if len(seen) != len(p.offsets) || p.visited > 8*len(p.offsets) {
		t.Errorf("%d of %d events were seen, and %d read", len(seen), len(p.offsets), p.visited)
	}
	page = readPage(t, h, "&offset=4")
	if len(page.Events) != pageEvents || page.Events[0].Offset != 4 || page.Before != 4 || page.After != page.Events[pageEvents-1].Offset+1 {
		t.Errorf("from an offset on it is %+v", page)
	}
	if page = readPage(t, h, "&offset=7000000"); len(page.Events) != 0 || page.Before != 6_000_001 || page.After != 0 {
		t.Errorf("after the newest event it is %+v", page)
	}
	if page = readPage(t, h, "&from=earliest"); page.Before != 0 || page.Events[0].Offset != 3 {
		t.Errorf("from the first it is %+v", page)
	}
}

// TestEventsThatAFilterLeavesOut: a page looks at so many events, and says where it goes on.
func TestEventsThatAFilterLeavesOut(t *testing.T) {
	p := &past{}
	for i := range uint64(3 * lookThrough) {
		p.offsets = append(p.offsets, i+1)
	}
	h := pages(t, p)
	const rare = "&filter=event.id==%22e17%22"
	page := readPage(t, h, rare)
	if len(page.Events) != 0 || !page.Partial || page.Before == 0 || page.Looked > 2*lookThrough {
		t.Fatalf("%+v", page)
	}
	for n := 0; len(page.Events) == 0; n++ {
		if page.Before == 0 || n > 4 {
			t.Fatalf("not found: %+v", page)
		}
		page = readPage(t, h, rare+fmt.Sprint("&before=", page.Before))
	}
	if page.Events[0].Offset != 17 {
		t.Errorf("%+v", page)
	}
	if page = readPage(t, h, rare+"&offset=18"); len(page.Events) != 0 || !page.Partial || page.After != 18+lookThrough {
		t.Errorf("forwards it is %+v", page)
	}
	if page = readPage(t, h, "&key=other"); len(page.Events) != 0 || page.Looked < lookThrough {
		t.Errorf("by key it is %+v", page)
	}
}

// TestEventsThatTakeLong: where each event takes long to look at, a page is there after its time, and is gone on from.
func TestEventsThatTakeLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := &past{each: 3 * time.Millisecond}
		for i := range uint64(2 * lookThrough) {
			p.offsets = append(p.offsets, i+1)
		}
		h := pages(t, p)
		for _, query := range []string{"", "&from=earliest"} {
			began := time.Now()
			page := readPage(t, h, "&key=other"+query)
			if took := time.Since(began); took > patience+time.Second || !page.Partial || page.Looked < lookThrough/20 {
				t.Errorf("%q took %s: %+v", query, took, page)
			}
		}
	})
}

// TestEventsRefused: what is wrong with a request is said.
func TestEventsRefused(t *testing.T) {
	h := pages(t, &past{})
	if page := readPage(t, h, ""); len(page.Events) != 0 || page.Before != 0 || page.After != 0 {
		t.Errorf("a topic without events has %+v", page)
	}
	for query, want := range map[string]string{
		"topic=a..b": "empty", "topic=nope": "no topic", "topic=orders&filter=1%2B": "bad_request", "topic=orders&offset=x": `"x"`,
		"topic=orders&before=-1": `"-1"`, "topic=orders&from_ts=NaN": `"NaN"`, "topic=orders&after_id=a/b": `"/"`,
	} {
		if r := do(h, "GET", "/console/events?"+query); r.StatusCode < 400 || !strings.Contains(body(t, r), want) {
			t.Errorf("%s: %d, without %q", query, r.StatusCode, want)
		}
	}
}
