package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"eventhub"
	"eventhub/bus/internal/bustest"
	"eventhub/bus/internal/commit"
	"eventhub/store"
)

// early publishes without waiting and notes the answer.
func (r *rig) early(log *ledgerOfAnswers, name, payload string) {
	pubs := []eventhub.Publication{{Events: []eventhub.Event{{Topic: "t", ID: name, Payload: []byte(payload)}}}}
	r.bus.Enqueue(context.Background(), pubs, func(pubs []eventhub.Publication) {
		log.mu.Lock()
		defer log.mu.Unlock()
		said := string(eventhub.ErrorCode(pubs[0].Err))
		if pubs[0].Err == nil {
			said = fmt.Sprint(pubs[0].Receipts[0].Offset)
		}
		log.said = append(log.said, name+" "+said)
	})
	synctest.Wait()
}

type ledgerOfAnswers struct {
	mu   sync.Mutex
	said []string
}

func (l *ledgerOfAnswers) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.said, ", ")
}

// syncHeld has the rig's next commits wait for their fsync until release is called.
func (r *rig) syncHeld() (release func()) {
	hold := make(chan struct{})
	r.store.setAfter(hold)
	return func() {
		r.store.setAfter(nil)
		close(hold)
		synctest.Wait()
	}
}

// While a commit is synced the next one is built where enough waits for it. None is
// reported, and nobody gets its events, before it and those before it are over.
func TestPipelinedCommits(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 1)
		equal(t, "before", in.TakeOffsets(), []uint64{1})
		var log ledgerOfAnswers
		release, began := r.syncHeld(), r.store.count1("Commit")
		much := `"` + strings.Repeat("x", commit.EarlyBytes) + `"`
		r.early(&log, "a", much)
		equal(t, "commits begun", r.store.count1("Commit")-began, 1)
		r.early(&log, "b", "2")
		equal(t, "with little after the one that is synced", r.store.count1("Commit")-began, 1)
		r.early(&log, "c", much)
		equal(t, "with enough", r.store.count1("Commit")-began, 2)
		r.early(&log, "d", "4")
		equal(t, "answers", log.all(), "")
		equal(t, "deliveries", len(in.Take()), 0)
		release()
		equal(t, "answers in the end", log.all(), "a 2, b 3, c 4, d 5")
		equal(t, "deliveries in the end", in.TakeOffsets(), []uint64{2, 3, 4, 5})
	})
}

// What depends on how other commits end waits for them: here the ack of an ack-and-publish,
// the pause of a group, and its making.
func TestPipelineIsDrained(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{EarlyBytes: 1})
		in := r.subscribe(opts("t", "g"))
		r.publish("t", 1, 1)
		got := in.Take()
		for name, do := range map[string]func() error{
			"ack-and-publish": func() error {
				_, err := in.ackAndPublish([]eventhub.Ref{byLease(got[0])}, eventhub.Event{Topic: "u", Payload: []byte("1")})
				return err
			},
			"pause": func() error { return r.bus.PauseGroup(context.Background(), "t", "g") },
			"group": func() error {
				_, err := r.bus.Subscribe(context.Background(), opts("t", "new"), &inbox{Inbox: bustest.Inbox{T: t, Room: -1}})
				return err
			},
			"deletion": func() error { return r.bus.DeleteTopic(context.Background(), "gone") },
		} {
			if name == "deletion" {
				r.publish("gone", 1, 1)
			}
			var log ledgerOfAnswers
			release := r.syncHeld()
			r.early(&log, "of-"+name, "1")
			commits := r.store.count1("Commit")
			done := make(chan error, 1)
			go func() { done <- do() }()
			synctest.Wait()
			equal(t, name+": commits begun while another is synced", r.store.count1("Commit")-commits, 0)
			select {
			case err := <-done:
				t.Errorf("%s: done, %v, while a commit before it is not", name, err)
			default:
			}
			release()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Where an fsync fails, what was built after it fails too, although the store says
// nothing of it, and Fatal is called once.
func TestPipelineBreaks(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.stop()
		fatal := 0
		r.start(Options{EarlyBytes: 1, Fatal: func(error) { fatal++ }})
		var log ledgerOfAnswers
		release := r.syncHeld()
		r.early(&log, "a", "1")
		r.early(&log, "b", "2")
		r.early(&log, "c", "3")
		r.store.mu.Lock()
		r.store.failSync = errors.New("no luck")
		r.store.mu.Unlock()
		release()
		equal(t, "answers", log.all(), "a internal, b internal, c internal")
		equal(t, "calls of Fatal", fatal, 1)
		_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "t", Payload: []byte("1")})
		wantCode(t, err, eventhub.CodeInternal)
		if err := r.bus.Close(); err == nil {
			t.Error("Close does not report the failure")
		}
		r.start(Options{})
	})
}

// The end of the bus waits for what is under way.
func TestPipelineEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		var log ledgerOfAnswers
		release := r.syncHeld()
		r.early(&log, "a", "1")
		r.early(&log, "b", "2")
		closed := make(chan error, 1)
		go func() { closed <- r.bus.Close() }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while a commit is synced")
		default:
		}
		release()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		equal(t, "answers", log.all(), "a 2, b 3")
		r.start(Options{})
	})
}

var _ store.Pipeline = (*meter)(nil)
