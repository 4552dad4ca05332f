package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/strictjson"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/memory"
	"eventhub/store/pebble"
	"eventhub/store/storefault"
)

// export returns all that a bus has, one line an event.
func export(t *testing.T, b *Bus, topics ...string) []string {
	t.Helper()
	var lines []string
	for _, topic := range topics {
		err := b.Replay(context.Background(), admin.ReplayQuery{Topic: topic}, func(_ string, item eventhub.Item) error {
			lines = append(lines, string(item.Record.AppendJSON(nil, item.Offset)))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return lines
}

func parse(t *testing.T, lines []string) []eventhub.Event {
	t.Helper()
	events := make([]eventhub.Event, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &events[i]); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return events
}

// imports imports the lines and returns how many were there.
func imports(t *testing.T, b *Bus, lines []string) (duplicates int) {
	t.Helper()
	receipts, err := b.Import(context.Background(), parse(t, lines)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range parse(t, lines) {
		if r := receipts[i]; r.ID != e.ID || r.Offset != e.Offset {
			t.Errorf("the receipt of %s at %d is %+v", e.ID, e.Offset, r)
		}
		if receipts[i].Duplicate {
			duplicates++
		}
	}
	return duplicates
}

// sameLines compares exports.
func sameLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			at := 0
			for at < min(len(got[i]), len(want[i])) && got[i][at] == want[i][at] {
				at++
			}
			t.Errorf("%s: line %d of %d bytes, want %d, differs from byte %d: %.80q; want %.80q", what, i+1,
				len(got[i]), len(want[i]), at, got[i][at:], want[i][at:])
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d lines; want %d", what, len(got), len(want))
	}
}

// other starts a second bus, over an empty store.
func (r *rig) other() *rig {
	o := &rig{t: r.t, store: &meter{Store: memory.Open(memory.Options{})}}
	o.start(Options{})
	return o
}

func (r *rig) end() {
	r.stop()
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

// TestImportIsTheSame: an export that is imported elsewhere and exported again is
// the same, byte for byte, of whatever kind the events are; and again changes
// nothing.
func TestImportIsTheSame(t *testing.T) {
	inBubble(t, func(r *rig) {
		// Times have their full width since 2001; the event in a dead letter is compact.
		time.Sleep(2 * 365 * 24 * time.Hour)
		deep := strings.Repeat("[", strictjson.MaxDepth) + strings.Repeat("]", strictjson.MaxDepth)
		large := `"` + strings.Repeat("x", eventhub.MaxPayloadBytes-2) + `"`
		r.publishEvents(
			eventhub.Event{Topic: "t", Payload: []byte(` { "a" : 1.50, "b":"\u00e9\n" } `)},
			eventhub.Event{Topic: "t", ID: "own", TS: 12345, Key: "k\"\x00<é", SID: "s", Tags: []string{"#a", "b"}},
			eventhub.Event{Topic: "t", ID: "cause", CausedBy: []string{"own"}, Headers: map[string]string{"x-b": "1", "X-A": "\"", "x-correlation-id": "c"}},
			eventhub.Event{Topic: "t", TS: time.Now().Add(4 * time.Minute).UnixMilli()},
			eventhub.Event{Topic: "t", ID: "deep", Payload: []byte(deep)},
			eventhub.Event{Topic: "t", ID: "large", Payload: []byte(large)},
			eventhub.Event{Topic: "t.u", Payload: []byte(`null`)},
		)
		in := r.subscribe(opts("t", "g"))
		for _, e := range in.Take() {
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: "no"}, byLease(e))
		}
		synctest.Wait()
		topics := []string{"t", "t.u", "t.dlq"}
		lines := export(t, r.bus, topics...)
		equal(t, "events", len(lines), 13)

		time.Sleep(time.Hour)
		o := r.other()
		equal(t, "duplicates", imports(t, o.bus, lines), 0)
		sameLines(t, "export of the import", export(t, o.bus, topics...), lines)
		time.Sleep(time.Hour)
		equal(t, "duplicates", imports(t, o.bus, lines), len(lines))
		sameLines(t, "export of the second import", export(t, o.bus, topics...), lines)
		none := eventhub.Place{}
		equal(t, "effects", found(t)(o.bus.Effects(context.Background(), "own", none, 10)),
			found(t)(r.bus.Effects(context.Background(), "own", none, 10)))
		equal(t, "correlated", found(t)(o.bus.Correlated(context.Background(), "c", none, 10)), "t/cause")
		// What comes then goes on after it.
		next := o.publish("t", 1, 1)
		equal(t, "next offset", next[0].Offset, 7)
		o.end()
	})
}

// TestImportAmongOthers: where offsets and times can not be kept, all else is.
func TestImportAmongOthers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishEvents(eventhub.Event{Topic: "t", ID: "plain", Key: "k"}, eventhub.Event{Topic: "t", ID: "own", TS: 7})
		plain := time.Now().Add(-2 * time.Second).UnixMilli()
		lines := export(t, r.bus, "t")
		time.Sleep(time.Minute)
		o := r.other()
		o.publish("t", 1, 3)
		now := time.Now().UnixMilli()
		receipts, err := o.bus.Import(context.Background(), parse(t, lines)...)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "offsets", []uint64{receipts[0].Offset, receipts[1].Offset}, []uint64{4, 5})
		sameLines(t, "what became of them", export(t, o.bus, "t")[3:], []string{
			fmt.Sprintf(`{"offset":4,"committed_ts":%13d,"id":"plain","ts":%d,"topic":"t","partition":%d,"key":"k","payload":1}`, now, plain, *o.events("t")[3].Partition),
			fmt.Sprintf(`{"offset":5,"committed_ts":%13d,"id":"own","ts":7,"topic":"t","payload":1}`, now),
		})
		o.end()
	})
}

// TestImportIntoGaps: offsets that leave gaps of any size, under a group and a tail
// that are there.
func TestImportIntoGaps(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("t", "g"))
		tail := r.tail(eventhub.TailOptions{Topic: "**"})
		offsets := []uint64{3, 5_000_000, 5_000_001, store.MaxKeepOffset}
		for _, offset := range offsets {
			e := eventhub.Event{Topic: "t", ID: fmt.Sprint("at-", offset), Offset: offset, Payload: []byte(`1`)}
			if _, err := r.bus.Import(context.Background(), e); err != nil {
				t.Fatal(err)
			}
		}
		equal(t, "of the tail", tail.TakeOffsets(), offsets)
		// A gap takes the group's window, so that not all may come before an ack.
		var delivered []uint64
		for got := in.Take(); len(got) > 0; got = in.Take() {
			for _, e := range got {
				delivered = append(delivered, e.Offset)
				in.Ack(byLease(e))
			}
		}
		equal(t, "of the group", delivered, offsets)
		equal(t, "cursor", r.cursor("t", "g").Offset, uint64(store.MaxKeepOffset))
		r.restart()
		late := r.subscribe(opts("t", "late"))
		equal(t, "of a late group", late.TakeOffsets(), offsets)
		equal(t, "next", r.publish("t", 1, 1)[0].Offset, uint64(store.MaxKeepOffset+1))
		equal(t, "replay", r.replay(admin.ReplayQuery{Topic: "t", Start: eventhub.Start{Kind: eventhub.StartOffset, Offset: 4}, Limit: 2}),
			[]string{"t/5000000", "t/5000001"})
	})
}

// TestImportRefuses: the error names the first bad event, and nothing is imported.
func TestImportRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		now := time.Now()
		fine := eventhub.Event{Topic: "t", ID: "fine", Payload: []byte(`1`)}
		for _, tt := range []struct {
			change func(*eventhub.Event)
			code   eventhub.Code
			says   string
		}{
			{func(e *eventhub.Event) { e.Topic = "" }, eventhub.CodeBadTopic, "empty"},
			{func(e *eventhub.Event) { e.Topic = "*" }, eventhub.CodeBadTopic, `"*"`},
			{func(e *eventhub.Event) { e.ID = "" }, eventhub.CodeBadEvent, "id is empty"},
			{func(e *eventhub.Event) { e.ID = "no id" }, eventhub.CodeBadEvent, `"no id"`},
			{func(e *eventhub.Event) { e.Offset = store.MaxKeepOffset + 1 }, eventhub.CodeBadEvent, "4503599627370496"},
			{func(e *eventhub.Event) { e.CommittedTS = -1 }, eventhub.CodeBadEvent, "-1"},
			{func(e *eventhub.Event) { e.CommittedTS = 1e13 }, eventhub.CodeBadEvent, "10000000000000"},
			{func(e *eventhub.Event) { e.TS = -5 }, eventhub.CodeBadEvent, "-5"},
			{func(e *eventhub.Event) { e.TS = now.Add(time.Hour).UnixMilli() }, eventhub.CodeBadEvent, "ahead"},
			{func(e *eventhub.Event) { e.Delay = time.Second }, eventhub.CodeBadEvent, "1000"},
			{func(e *eventhub.Event) { e.DeliverAt = time.UnixMilli(17) }, eventhub.CodeBadEvent, "17"},
			{func(e *eventhub.Event) { e.Key = "\xff" }, eventhub.CodeBadEvent, "key"},
			{func(e *eventhub.Event) { e.Payload = nil }, eventhub.CodeBadRequest, "payload"},
			{func(e *eventhub.Event) { e.Payload = []byte(`{"a":1,"a":2}`) }, eventhub.CodeBadJSON, "payload"},
			{func(e *eventhub.Event) { e.Payload = make([]byte, eventhub.MaxPayloadBytes+1) }, eventhub.CodeTooLarge, "1048577"},
			{func(e *eventhub.Event) { e.Topic, e.Payload = "t.dlq", nil }, eventhub.CodeBadRequest, "payload"},
			{func(e *eventhub.Event) { e.Topic, e.Payload = "t.dlq", []byte(`{"a":1,"a":2}`) }, eventhub.CodeBadJSON, "payload"},
			{func(e *eventhub.Event) { e.Topic, e.Payload = "t.dlq", make([]byte, 2*eventhub.MaxPayloadBytes+1) }, eventhub.CodeTooLarge, "2097153"},
		} {
			bad := fine
			bad.ID = "bad"
			tt.change(&bad)
			receipts, err := r.bus.Import(context.Background(), fine, bad)
			wantCode(t, err, tt.code)
			if err == nil || !strings.Contains(err.Error(), tt.says) || receipts != nil || indexOf(err) != 1 {
				t.Errorf("%+v, %v at %d; want %q in it, at 1", receipts, err, indexOf(err), tt.says)
			}
		}
		receipts, err := r.bus.Import(context.Background())
		if receipts != nil || err != nil {
			t.Errorf("an import of nothing: %v, %v", receipts, err)
		}
		equal(t, "events", len(r.events("t"))+len(r.events("t.dlq")), 0)
	})
}

// TestImportWhenTheDiskIsFull refuses as a publish does; so does one that comes when
// the hub stops, or into a hub that has as many topics as it may.
func TestImportIsRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		fine := eventhub.Event{Topic: "t", ID: "fine", Payload: []byte(`1`)}
		full := memory.Open(memory.Options{MaxTopics: 1})
		faulty := storefault.Wrap(full)
		faulty.SetSpace(func() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil })
		b, err := New(Options{Store: faulty})
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, second(b.Import(context.Background(), fine)), eventhub.CodeOverloaded)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if b, err = New(Options{Store: full}); err != nil {
			t.Fatal(err)
		}
		also := fine
		also.Topic = "u"
		wantCode(t, second(b.Import(context.Background(), fine, also)), eventhub.CodeOverloaded)
		equal(t, "events", len(export(t, b, "t", "u")), 0)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		wantCode(t, second(b.Import(context.Background(), fine)), eventhub.CodeShuttingDown)

		hold := make(chan struct{})
		r.store.set(hold, nil)
		ctx, cancel := context.WithCancel(context.Background())
		answered := make(chan error, 1)
		go func() { answered <- second(r.bus.Import(ctx, fine)) }()
		synctest.Wait()
		cancel()
		wantCode(t, <-answered, eventhub.CodeShuttingDown)
		close(hold)
		synctest.Wait()
		equal(t, "events", len(r.events("t")), 1)
	})
}

// TestImportTenThousand: the embedded store has the same after one import and after
// two, and after it was opened again.
func TestImportTenThousand(t *testing.T) {
	const page = 1000
	events := testsize.Of(10_000, 2_000)
	open := func(fsys vfs.FS) (*Bus, func()) {
		s, err := pebble.Open(pebble.Options{Dir: "data", FS: fsys, Logger: slog.New(slog.DiscardHandler),
			Fatal: func(cause error) { t.Errorf("Fatal(%v)", cause) }})
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(Options{Store: s})
		if err != nil {
			t.Fatal(err)
		}
		return b, func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	from, closeFrom := open(vfs.NewMem())
	for n := range events / page {
		batch := make([]eventhub.Event, page)
		for i := range batch {
			batch[i] = eventhub.Event{Topic: fmt.Sprint("t.", i%3), Payload: fmt.Append(nil, n*page+i)}
			if i%5 == 0 {
				batch[i].TS = int64(1 + i)
			}
		}
		if _, err := from.Publish(context.Background(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	lines := export(t, from, "**")
	closeFrom()
	disk := vfs.NewMem()
	for round, want := range []int{0, events} {
		to, closeTo := open(disk)
		duplicates := 0
		for part := range slices.Chunk(lines, page) {
			duplicates += imports(t, to, part)
		}
		equal(t, fmt.Sprint("duplicates of import ", round+1), duplicates, want)
		sameLines(t, fmt.Sprint("export of import ", round+1), export(t, to, "**"), lines)
		closeTo()
	}
}
