package console

import (
	"context"
	"net/url"
	"sync"
	"unicode/utf8"

	"eventhub"
)

const (
	// tailRows is how many events a message of a live tail has at most, and tailBytes how many bytes they have
	// about: of those that came in a second the newest stay.
	tailRows, tailBytes = 100, 40 << 10
	// keptRecord is how large a record may be that waits as it is; of a larger one the row is made at once.
	keptRecord = 16 << 10
	// previewBytes is how much of a payload a row has.
	previewBytes = 160
)

// tailView is what a page shows of one topic, with what came since its last message.
type tailView struct {
	topicRow
	Tail tailRowsOf `json:"tail"`
}

type tailRowsOf struct {
	Events []tailRow `json:"events"` // the oldest first
	// Left is how many events came besides those, before them.
	Left uint64 `json:"left,omitempty"`
	// After is where the tail goes on, in another stream too: after that offset.
	After uint64 `json:"after"`
}

// tailRow is one event of a live tail, as a line.
type tailRow struct {
	Topic   string `json:"topic"`
	Offset  uint64 `json:"offset"`
	TS      int64  `json:"ts"` // of the commit
	ID      string `json:"id"`
	Key     string `json:"key,omitempty"`
	Preview string `json:"preview"`
}

func rowOfRecord(topic string, offset uint64, r eventhub.Record) tailRow {
	row := tailRow{Topic: topic, Offset: offset, TS: r.CommitTime(), ID: string(r.ID()), Key: clip(string(r.Key()))}
	if e, err := r.Event(offset); err == nil {
		row.Preview = beginning(e.Payload)
	}
	return row
}

// beginning cuts a payload at a character.
func beginning(payload []byte) string {
	if len(payload) <= previewBytes {
		return string(payload)
	}
	cut := previewBytes
	for !utf8.RuneStart(payload[cut]) {
		cut--
	}
	return string(payload[:cut]) + "…"
}

// tail is a live tail for one page. It takes all that comes and keeps the newest events, so that a topic that is
// faster than anybody reads costs the page no more than a slow one.
type tail struct {
	topic  string
	filter *eventhub.Filter
	handle eventhub.Subscription // nil while there is none; of the stream's goroutine alone
	begun  bool                  // after says where it goes on, or begins
	after  uint64                // where it goes on; set by the stream's goroutine while handle is nil, guarded by mu otherwise

	mu    sync.Mutex
	slots [tailRows]tailSlot // a ring: the newest is at (came-1) % tailRows
	came  uint64             // since the last message
	ended error
}

// tailSlot is one event: a record, or its row.
type tailSlot struct {
	offset uint64
	record eventhub.Record
	row    tailRow
}

// Deliver implements eventhub.Receiver.
func (t *tail) Deliver(batch []eventhub.Delivery) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		if len(batch)-i <= tailRows {
			slot := &t.slots[t.came%tailRows]
			slot.offset, slot.record = d.Offset, slot.record[:0]
			if len(d.Record) <= keptRecord {
				slot.record = append(slot.record, d.Record...)
			} else {
				slot.row = rowOfRecord(t.topic, d.Offset, d.Record)
			}
		}
		t.came++
		t.after = d.Offset
	}
	return len(batch)
}

// Ended implements eventhub.Receiver.
func (t *tail) Ended(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = err
}

// rows returns what came since the last call, and begins anew.
func (t *tail) rows() (r tailRowsOf, ended error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r = tailRowsOf{Events: []tailRow{}, After: t.after}
	size := 0
	for n := range min(t.came, tailRows) { // from the newest
		slot := &t.slots[(t.came-1-n)%tailRows]
		row := slot.row
		if len(slot.record) > 0 {
			row = rowOfRecord(t.topic, slot.offset, slot.record)
		}
		if size += len(encode(row)) + 1; size > tailBytes && n > 0 {
			break
		}
		r.Events = append(r.Events, row)
	}
	for i, j := 0, len(r.Events)-1; i < j; i, j = i+1, j-1 {
		r.Events[i], r.Events[j] = r.Events[j], r.Events[i]
	}
	r.Left = t.came - uint64(len(r.Events))
	t.came, ended = 0, t.ended
	return r, ended
}

// newTail reads which tail a page wants: view=tail&topic, with key and filter; after is the offset after which
// it goes on, from the end of the topic on without one.
func newTail(q url.Values) (*tail, error) {
	t := &tail{topic: q.Get("topic")}
	if f := (eventhub.Filter{Key: q.Get("key"), CEL: q.Get("filter")}); !f.IsZero() {
		t.filter = &f
	}
	after, err := number(q, "after", 0, eventhub.MaxOffset)
	t.after, t.begun = uint64(after), q.Get("after") != "" // 0: the topic had no event when it stopped
	if err == nil {
		err = eventhub.ValidateStoredTopic(t.topic)
	}
	return t, err
}

// show is the view.
func (t *tail) show(ctx context.Context, s *sample, access *Access) (any, error) {
	info, err := access.Inspector.Topic(ctx, t.topic)
	if err != nil {
		return nil, err
	}
	if t.handle == nil {
		if !t.begun || t.after > info.Head {
			t.after = info.Head
		}
		t.begun = true
		if err := t.begin(ctx, access); err != nil {
			return nil, err
		}
	}
	v := tailView{topicRow: s.topicRow(&info)}
	if v.Tail, err = t.rows(); err != nil {
		t.end() // the next message begins it again
		t.ended = nil
		return nil, err
	}
	return v, nil
}

func (t *tail) begin(ctx context.Context, access *Access) error {
	opts := eventhub.TailOptions{
		Topic: t.topic, Start: eventhub.FromOffset(t.after + 1), NoCreate: true, Filter: t.filter,
		Peer: eventhub.Peer{Transport: "console", Name: access.Name},
	}.WithDefaults()
	if err := opts.Validate(); err != nil {
		return err
	}
	handle, err := access.Tailer.Tail(ctx, opts, t)
	if err == nil {
		t.handle = handle
	}
	return err
}

// end gives the tail up, if there is one.
func (t *tail) end() {
	if t.handle != nil {
		t.handle.Drop(0)
		t.handle = nil
	}
}
