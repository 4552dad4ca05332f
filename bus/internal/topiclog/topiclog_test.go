package topiclog

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"eventhub"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// reader is a Watcher that notes the head of its log each time that it is woken.
type reader struct {
	log   *Log
	heads []uint64
}

func (r *reader) Wake() { r.heads = append(r.heads, r.log.Head()) }

// read has a reader watch a topic whose head is known to be head.
func read(ls *Logs, topic string, head uint64) *reader {
	r := &reader{log: ls.Use(topic)}
	r.log.Learn(head)
	r.log.Watch(r)
	return r
}

// job is one that has appended events of one topic, with records of ten bytes.
func job(topic string, offsets ...uint64) *commit.Request {
	r := &commit.Request{Units: make([]store.Unit, 1)}
	for _, offset := range offsets {
		at := len(r.Records)
		r.Records = fmt.Appendf(r.Records, "%010d", offset)
		r.Units[0].Appends = append(r.Units[0].Appends, store.Append{
			Topic: topic, Offset: offset, Record: eventhub.Record(r.Records[at:len(r.Records):len(r.Records)]),
		})
	}
	r.Bytes = len(r.Records)
	r.Records = slices.Clip(r.Records)
	return r
}

func committed(ls *Logs, jobs ...*commit.Request) { ls.Committed(jobs) }

func (l *Log) offsets(from uint64, limit int) (offsets []uint64, ok bool) {
	items, ok := l.Read(nil, from, limit)
	for _, item := range items {
		offsets = append(offsets, item.Offset)
	}
	return offsets, ok
}

// wantRead fails unless the log has just these events from an offset on, or does not know.
func wantRead(t *testing.T, l *Log, from uint64, limit int, want []uint64, ok bool) {
	t.Helper()
	if got, known := l.offsets(from, limit); !slices.Equal(got, want) || known != ok {
		t.Errorf("Read from %d, %d events: %v, %v; want %v, %v", from, limit, got, known, want, ok)
	}
}

// TestReadSaysWhatItDoesNotKnow: what is at or below the gap, or above the head, may be
// in the store. A reader that saw an event there before the log was notified of it must not
// take it for gone.
func TestReadSaysWhatItDoesNotKnow(t *testing.T) {
	ls := New(1000)
	l := read(ls, "t", 7).log
	committed(ls, job("t", 8, 9, 12))
	wantRead(t, l, 7, 10, nil, false)
	wantRead(t, l, 8, 10, []uint64{8, 9, 12}, true)
	wantRead(t, l, 9, 1, []uint64{9}, true)
	wantRead(t, l, 10, 10, []uint64{12}, true)
	wantRead(t, l, 13, 10, nil, false)
	l.forget(8)
	wantRead(t, l, 8, 10, nil, false)
	wantRead(t, l, 9, 10, []uint64{9, 12}, true)
}

// TestLearningOnce: who comes while the committer is about to report a commit does not
// cost the others their cache, and learns what the log knows and not what the store does.
func TestLearningOnce(t *testing.T) {
	ls := New(1000)
	l := read(ls, "t", 7).log
	committed(ls, job("t", 8))
	if head := l.Learn(9); head != 8 {
		t.Errorf("the head is %d after another was learned; want 8", head)
	}
	wantRead(t, l, 8, 10, []uint64{8}, true)
}

// TestWokenAfterTheHead: each watcher is woken once for a run of events of its topic, when
// the head has moved, and nobody else is.
func TestWokenAfterTheHead(t *testing.T) {
	ls := New(1000)
	one, two, other := read(ls, "t", 0), read(ls, "t", 0), read(ls, "u", 0)
	first, second := job("t", 1, 2), job("t", 3)
	refused := job("t", 4)
	refused.Units[0].Err = store.ErrTopicLimit
	committed(ls, first, refused, second)
	for name, r := range map[string]*reader{"first": one, "second": two} {
		if !slices.Equal(r.heads, []uint64{2, 3}) {
			t.Errorf("the %s watcher was woken at the heads %v; want 2 and 3", name, r.heads)
		}
	}
	if len(other.heads) != 0 {
		t.Errorf("the watcher of another topic was woken %d times", len(other.heads))
	}
	one.log.Unwatch(one)
	committed(ls, job("t", 4))
	if len(one.heads) != 2 || len(two.heads) != 3 {
		t.Errorf("the one that left was woken %d times, the other %d; want 2 and 3", len(one.heads), len(two.heads))
	}
}

// TestUnwatchedKeepsNothing: what comes while nobody watches is not kept, and a reader that
// comes then begins above it. What a duplicate carries is not kept either.
func TestUnwatchedKeepsNothing(t *testing.T) {
	ls := New(1000)
	r := read(ls, "t", 0)
	r.log.Unwatch(r)
	unread := job("t", 1, 2)
	committed(ls, unread, job("nobody", 1))
	if topics, bytes := ls.Holds(); topics != 1 || bytes != 0 || unread.Kept {
		t.Errorf("%d topics hold %d bytes, kept: %v; want one without any", topics, bytes, unread.Kept)
	}
	wantRead(t, r.log, 1, 10, nil, false)
	if r.log.Watch(r); r.log.Head() != 2 {
		t.Errorf("the head is %d; want 2", r.log.Head())
	}
	again := job("t", 1, 2)
	again.Units[0].Appends[0].Duplicate, again.Units[0].Appends[1].Duplicate = true, true
	committed(ls, again)
	if _, bytes := ls.Holds(); bytes != 0 {
		t.Errorf("duplicates keep %d bytes", bytes)
	}
	ls.Leave(r.log)
	if topics, _ := ls.Holds(); topics != 0 {
		t.Errorf("%d logs outlive their last user", topics)
	}
}

// TestBoundOverTopics: all logs together hold no more than the bound; what came first goes
// first, whatever topic it is of.
func TestBoundOverTopics(t *testing.T) {
	ls := New(45)
	a, b := read(ls, "a", 0).log, read(ls, "b", 0).log
	for offset := range uint64(6) {
		committed(ls, job("a", offset+1), job("b", offset+1))
		_, bytes := ls.Holds()
		if want := min(int(offset+1)*20, 40); bytes != want || ls.CachedBytes() != want {
			t.Errorf("%d bytes are held and %d counted after %d events each; want %d", bytes, ls.CachedBytes(), offset+1, want)
		}
	}
	for _, l := range []*Log{a, b} {
		wantRead(t, l, 4, 10, nil, false)
		wantRead(t, l, 5, 10, []uint64{5, 6}, true)
	}
	committed(ls, job("b", 7))
	wantRead(t, a, 5, 10, nil, false)
	wantRead(t, b, 5, 10, []uint64{5, 6, 7}, true)
}

// TestForgottenTopic: the events of a topic that was deleted are not read any more, and
// those of its next life are.
func TestForgottenTopic(t *testing.T) {
	ls := New(1000)
	l := read(ls, "t", 0).log
	committed(ls, job("t", 1, 2))
	ls.Forget("t")
	ls.Forget("nobody")
	wantRead(t, l, 1, 10, nil, false)
	committed(ls, job("t", 3))
	wantRead(t, l, 3, 10, []uint64{3}, true)
}

// TestBufferOfWhichLittleIsRead: a job's buffer is kept where most of it is read, and what
// is read of another one is copied.
func TestBufferOfWhichLittleIsRead(t *testing.T) {
	for _, tt := range []struct {
		name string
		job  func() *commit.Request
		kept bool
	}{
		{"all of it is read", func() *commit.Request { return job("t", 1, 2, 3) }, true},
		{"most of it is of a topic that nobody reads", func() *commit.Request {
			j := job("t", 1, 2, 3)
			j.Units[0].Appends[1].Topic, j.Units[0].Appends[2].Topic = "unread", "unread"
			return j
		}, false},
		{"most of it are duplicates", func() *commit.Request {
			j := job("t", 1, 2, 3)
			j.Units[0].Appends[1].Duplicate, j.Units[0].Appends[2].Duplicate = true, true
			return j
		}, false},
		{"most of it is room", func() *commit.Request {
			j := job("t", 1)
			j.Records = slices.Grow(j.Records, 100)
			return j
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ls := New(1000)
			l := read(ls, "t", 0).log
			j := tt.job()
			committed(ls, j)
			items, ok := l.Read(nil, 1, 1)
			if !ok || len(items) != 1 || string(items[0].Record) != "0000000001" {
				t.Fatalf("Read = %v, %v; want the first event", items, ok)
			}
			shared := unsafe.SliceData(items[0].Record) == unsafe.SliceData(j.Units[0].Appends[0].Record)
			if shared != tt.kept || j.Kept != tt.kept {
				t.Errorf("the record shares the buffer: %v; the job's buffer is kept: %v; want %v", shared, j.Kept, tt.kept)
			}
		})
	}
}

// TestRemovedIsReleased: what a commit removes is not read from the cache, below a horizon
// and at single offsets; what follows in the same commit is.
func TestRemovedIsReleased(t *testing.T) {
	ls := New(1000)
	l := read(ls, "t", 7).log
	committed(ls, job("t", 8, 9, 12, 13))
	refused := &commit.Request{Units: []store.Unit{{Err: store.ErrGone, Topics: []store.TopicChange{{Topic: "t", Horizon: 14}}}}}
	erase := &commit.Request{Units: []store.Unit{{Topics: []store.TopicChange{{Topic: "t", Horizon: 9, Erase: []uint64{8, 10, 12}}}}}}
	committed(ls, refused, erase, job("t", 14))
	wantRead(t, l, 8, 10, nil, false)
	wantRead(t, l, 9, 10, []uint64{9, 13, 14}, true)
	all := &commit.Request{Units: []store.Unit{{Topics: []store.TopicChange{{Topic: "t", Horizon: 99}}}}}
	committed(ls, all, job("t", 15))
	wantRead(t, l, 14, 10, nil, false)
	wantRead(t, l, 15, 10, []uint64{15}, true)
	if _, bytes := ls.Holds(); bytes != 10 {
		t.Errorf("%d bytes are held; want those of one event", bytes)
	}
}
