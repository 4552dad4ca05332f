package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

// fate is what the oracle knows of something that was sent.
type fate int

const (
	perhaps fate = iota // the answer was lost
	stored              // it got its OK, or was seen
	never               // it was refused or cancelled
)

// oracleItem is one event that a worker sent. Its mark is in the payload and no other
// item has it, so it is known again whatever its id.
type oracleItem struct {
	mark, id string
	size     int // of what fills the payload
	due      int64
	topic    *oracleTopic
	fate     fate
	offset   uint64 // 0: not known
	batch    *oracleBatch
}

// oracleBatch is what has to be there whole or not at all.
type oracleBatch struct{ items []*oracleItem }

func (it *oracleItem) payload() map[string]any {
	return map[string]any{"mark": it.mark, "fill": fill(it.size)}
}

var filler = slices.Repeat([]byte("0123456789abcdef"), 1<<16)

func fill(n int) string { return string(filler[:n]) }

// oracleTopic is what one worker knows of one of its topics. Nobody else publishes there.
type oracleTopic struct {
	name string

	items map[string]*oracleItem // of this life, by mark
	fresh []*oracleItem          // of these, not looked for since they were sent
	ids   []*oracleItem          // stored under an id of their own
	plans []*oracleItem          // scheduled, with an OK

	seen  uint64            // the log was read up to here
	given map[uint64]string // mark by offset, over all lives
	last  uint64            // the highest of them

	mu      sync.Mutex
	deleted uint64 // offsets up to here are of lives that are over
}

func newOracleTopic(name string) *oracleTopic {
	return &oracleTopic{name: name, items: make(map[string]*oracleItem), given: make(map[uint64]string)}
}

// deletedUpTo is for the member, which runs at the same time as the worker.
func (o *oracleTopic) deletedUpTo() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.deleted
}

// end notes that the topic was deleted, with all that was in it: none of it is known any
// more.
func (o *oracleTopic) end() {
	o.items, o.fresh, o.ids, o.plans, o.seen = make(map[string]*oracleItem), nil, nil, nil, o.last
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted = o.last
}

// give notes that an item has an offset, or says why it cannot have it.
func (o *oracleTopic) give(it *oracleItem, offset uint64) error {
	if it.offset != 0 && it.offset != offset {
		return fmt.Errorf("%s has offset %d of %s, and %d", it.mark, it.offset, o.name, offset)
	}
	if other, taken := o.given[offset]; taken && other != it.mark {
		return fmt.Errorf("offset %d of %s was given to %s and to %s", offset, o.name, other, it.mark)
	}
	if it.fate == never {
		return fmt.Errorf("%s is in %s at offset %d; it was refused or cancelled", it.mark, o.name, offset)
	}
	it.fate, it.offset, o.given[offset] = stored, offset, it.mark
	o.last = max(o.last, offset)
	return nil
}

// read compares the log after an offset with what is known, and decides what was
// perhaps there. In between nothing is sent. It returns the marks of what it has read.
func (o *oracleTopic) read(t *testing.T, adm *client.Admin, after uint64) map[string]bool {
	t.Helper()
	sighted := make(map[string]bool)
	var wrong []error
	before := after
	query := admin.ReplayQuery{Topic: o.name}
	if after > 0 {
		query.Start = eventhub.Start{Kind: eventhub.StartOffset, Offset: after + 1}
	}
	err := adm.Replay(context.Background(), query, func(_ string, item eventhub.Item) error {
		event, err := item.Event()
		var payload struct{ Mark, Fill string }
		if err == nil {
			err = json.Unmarshal(event.Payload, &payload)
		}
		if err != nil {
			return err
		}
		it := o.items[payload.Mark]
		switch {
		case item.Offset <= before:
			wrong = append(wrong, fmt.Errorf("%s: offset %d comes after %d", o.name, item.Offset, before))
		case it == nil:
			wrong = append(wrong, fmt.Errorf("%s has %q at offset %d, which nobody sent to it since it was deleted", o.name, payload.Mark, item.Offset))
		case it.id != "" && event.ID != it.id || len(payload.Fill) != it.size:
			wrong = append(wrong, fmt.Errorf("%s has at offset %d of %s the id %s and %d bytes; sent were %s and %d", payload.Mark, item.Offset, o.name, event.ID, len(payload.Fill), it.id, it.size))
		default:
			wrong = append(wrong, o.give(it, item.Offset))
		}
		before = item.Offset
		sighted[payload.Mark] = true
		return nil
	})
	if eventhub.ErrorCode(err) == eventhub.CodeUnknownID || eventhub.ErrorCode(err) == eventhub.CodeBadTopic {
		err = nil // there is no such topic, or nothing was ever in it
	}
	if err := errors.Join(append(wrong, err)...); err != nil {
		t.Errorf("read %s: %v", o.name, err)
	}
	o.seen = max(o.seen, before)
	return sighted
}

// settle decides what was sent since the last look and is not in the log.
func (o *oracleTopic) settle(t *testing.T, waiting, sighted map[string]bool) {
	t.Helper()
	for _, it := range o.fresh {
		switch {
		case sighted[it.mark]:
		case it.due != 0 && waiting[planKey(it.id, it.due)]:
			if it.fate == perhaps {
				it.fate = stored
				o.plans = append(o.plans, it)
			}
		case it.fate == stored:
			t.Errorf("%s of %s got its OK (offset %d, due %d) and is gone", it.mark, o.name, it.offset, it.due)
		default:
			it.fate = never
		}
	}
	o.fresh = slices.DeleteFunc(o.fresh, func(it *oracleItem) bool {
		return it.due == 0 || it.fate == never || it.offset != 0 // a plan is looked for until it is in the log
	})
}

// wholeness holds batches against each other once their topics were read.
func wholeness(t *testing.T, batches []*oracleBatch) {
	t.Helper()
	for _, b := range batches {
		n := 0
		for _, it := range b.items {
			if it.fate == stored {
				n++
			}
		}
		if n != 0 && n != len(b.items) {
			t.Errorf("of the batch of %s %d of %d events are stored", b.items[0].mark, n, len(b.items))
		}
	}
}

// scheduled lists what is scheduled in the topic; all of it was sent since the topic was
// deleted, and nothing of it refused or cancelled.
func (o *oracleTopic) scheduled(t *testing.T, adm *client.Admin) map[string]bool {
	t.Helper()
	known := make(map[string]*oracleItem)
	for _, it := range o.items {
		if it.due != 0 {
			known[planKey(it.id, it.due)] = it
		}
	}
	waiting := make(map[string]bool)
	query := admin.ScheduleQuery{Topic: o.name, Limit: admin.MaxPage}
	for {
		page, err := adm.Scheduled(context.Background(), query)
		if err != nil {
			t.Fatalf("list what is scheduled in %s: %v", o.name, err)
		}
		for _, s := range page {
			key := planKey(s.ID, s.DeliverAt)
			if it := known[key]; it == nil || it.fate == never {
				t.Errorf("%s of %s is scheduled; it was refused, cancelled, deleted, or never sent", key, o.name)
			}
			waiting[key] = true
			query.AfterAt, query.AfterSeq = s.DeliverAt, s.Seq
		}
		if len(page) < query.Limit {
			return waiting
		}
	}
}

// planKey distinguishes two plans of one id: no two are due at the same time.
func planKey(id string, due int64) string { return fmt.Sprint(id, "@", due) }

// longDue is when plans are due that are not to come within a run.
const longDue = 10 * time.Hour
