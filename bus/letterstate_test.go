package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/store/storefault"
)

// letterTopics returns what is counted of dead letters, as "dlq open redriven done requeued",
// and of each group.
func (r *rig) letterTopics() string {
	r.t.Helper()
	list, err := r.bus.DeadLetterTopics(context.Background(), "", admin.MaxPage)
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for _, t := range list {
		fmt.Fprintf(&b, "%s %d: %d %d %d %d", t.DLQ, t.Count, t.Open, t.Redriven, t.Done, t.Requeued)
		for _, g := range t.Groups {
			fmt.Fprintf(&b, ", %s %d %d %d %d", g.Group, g.Open, g.Redriven, g.Done, g.Requeued)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestStatesOfDeadLetters: each dead letter is in one state, by what was done about it, and
// the counts, those of the metrics too, are the same whether they have followed all along or
// begin with a start.
func TestStatesOfDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		check := func(what, states, counts string) {
			t.Helper()
			for range 2 {
				var got []string
				if _, err := r.bus.store.Topic(context.Background(), "t"); err == nil || states != "" {
					for _, d := range r.deadLetters(admin.DeadLetterQuery{Topic: "t", All: true}) {
						got = append(got, d.State)
					}
				}
				equal(t, what, strings.Join(got, " "), states)
				equal(t, what+", counted", r.letterTopics(), counts)
				r.restart()
			}
		}
		r.publish("t", 1, 4)
		check("before", "", "")
		r.deadLetterAll("t", "g")
		check("given up", "open open open open", "t.dlq 4: 4 0 0 0, g 4 0 0 0\n")
		q := redriveAll("t")
		q.Offsets = []uint64{1, 2}
		r.redrive(q)
		if _, err := r.bus.Requeue(context.Background(), "t", 3, []byte(`"anew"`), "me"); err != nil {
			t.Fatal(err)
		}
		check("redriven and requeued", "redriven redriven requeued open", "t.dlq 4: 1 2 0 1, g 1 2 0 1\n")
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g", MaxInFlight: 2})
		got := in.Take()
		equal(t, "redelivered", words(len(got), got[0].Redriven, got[1].Redriven), "2 1 1")
		in.Ack(byLease(got[0]))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(got[1]))
		if err := in.Sub.Unsubscribe(context.Background()); err != nil {
			t.Fatal(err)
		}
		check("acked and failed again", "done done requeued open open", "t.dlq 5: 2 0 2 1, g 2 0 2 1\n")
		q.All, q.Offsets = true, []uint64{1, 1, 3}
		r.redrive(q)
		check("once more", "redriven done redriven open open", "t.dlq 5: 2 2 1 0, g 2 2 1 0\n")
		if err := r.bus.SetCursor(context.Background(), "t", "g", 2); err != nil {
			t.Fatal(err)
		}
		check("sought back to before one", "redriven done done open open", "t.dlq 5: 2 1 2 0, g 2 1 2 0\n")
		r.letterTopics() // so that there is something to correct
		r.deleteTopic(admin.RedriveTopic)
		check("without marks", "open open open open open", "t.dlq 5: 5 0 0 0, g 5 0 0 0\n")
		if err := r.bus.DeleteGroup(context.Background(), "t", "g"); err != nil {
			t.Fatal(err)
		}
		check("without the group", "open open open open open", "t.dlq 5: 5 0 0 0, g 5 0 0 0\n")
		e, err := r.bus.Measure(context.Background())
		if err != nil || len(e.Groups) != 1 || e.Groups[0].Group != "g" || e.Groups[0].Topic != "t" || e.Groups[0].OpenLetters != 5 || e.Groups[0].Redriven != 0 {
			t.Errorf("measured %+v, %v", e.Groups, err)
		}
		r.letterTopics()
		r.deleteTopic("t.dlq")
		check("without dead letters", "", "")
		r.deadLetterAll("t", "h")
		check("new ones", "open open open open open", "t.dlq 5: 5 0 0 0, h 5 0 0 0\n")
	})
}

// TestCountsAfterDeletion: an event whose dead letter, or its mark, was deleted stays on the list
// of its group, and is not counted for another one.
func TestCountsAfterDeletion(t *testing.T) {
	for deleted, want := range map[string]string{
		"t.dlq":            "t.dlq 1: 0 0 1 0, g 0 0 1 0\n",
		admin.RedriveTopic: "t.dlq 3: 2 0 1 0, g 2 0 1 0\n",
	} {
		inBubble(t, func(r *rig) {
			r.publish("t", 1, 2)
			r.deadLetterAll("t", "g")
			r.redrive(redriveAll("t"))
			r.letterTopics() // so that there is something to correct
			r.deleteTopic(deleted)
			o := eventhub.GroupOptions{Topic: "t", Group: "g", MaxInFlight: 2}
			in := r.subscribe(o)
			first := in.Take()[0]
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(first))
			synctest.Wait()
			letters := r.deadLetters(admin.DeadLetterQuery{Topic: "t"})
			q := redriveAll("t")
			q.Offsets = []uint64{letters[len(letters)-1].Offset}
			r.redrive(q)
			synctest.Wait()
			in.Ack(byLease(in.Take()[0]))
			synctest.Wait()
			for range 2 {
				equal(t, "without "+deleted, r.letterTopics(), want)
				r.restart()
			}
		})
	}
}

// TestCountsOfImportedDeadLetters: dead letters and their marks may come in any order, and
// be counted in between.
func TestCountsOfImportedDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.deadLetterAll("t", "g")
		q := redriveAll("t")
		q.Offsets = []uint64{1}
		r.redrive(q)
		if _, err := r.bus.Requeue(context.Background(), "t", 2, []byte(`"anew"`), "me"); err != nil {
			t.Fatal(err)
		}
		letters, marks := export(t, r.bus, "t.dlq"), export(t, r.bus, admin.RedriveTopic)
		equal(t, "exported", words(len(letters), len(marks)), "3 2")
		for _, parts := range [][][]string{{letters, marks}, {marks, letters}, {letters[:1], marks, letters[1:]}, {marks[:1], letters, marks[1:]}} {
			o := r.other()
			for _, part := range parts {
				imports(t, o.bus, part)
				o.letterTopics()
			}
			equal(t, "counted", o.letterTopics(), "t.dlq 3: 1 0 1 1, g 1 0 1 1\n")
			o.restart()
			equal(t, "after a start", o.letterTopics(), "t.dlq 3: 1 0 1 1, g 1 0 1 1\n")
			o.end()
		}
	})
}

// briefly is a context that ends after so many looks at it.
type briefly struct {
	context.Context
	looks int
}

func (c *briefly) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestCountsReadOnce: what was counted is not read again, however often somebody asks, and a
// call whose context ends leaves what it has counted to the next one.
func TestCountsReadOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 3000
		r.publish("t", 1, events)
		r.deadLetterAll("t", "g")
		r.restart()
		all := fmt.Sprintf("t.dlq %d: %d 0 0 0, g %d 0 0 0\n", events, events, events)
		calls := 0
		for looks := 1; ; looks++ {
			_, err := r.bus.DeadLetterTopics(&briefly{context.Background(), looks}, "", 1)
			if calls++; err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) || looks > 1000 {
				t.Fatal(err)
			}
		}
		if calls < 3 {
			t.Errorf("only %d calls were needed", calls)
		}
		before := r.store.count1("Read")
		equal(t, "counted", r.letterTopics(), all)
		if n := r.store.count1("Read") - before; n > 3 { // the ends of the topic
			t.Errorf("%d reads to count nothing new", n)
		}
	})
}

// TestCountsOfDeadLettersMeanwhile: a dead letter that comes, and is redriven, after its log
// was read and before that of the marks is counts once, with the next call.
func TestCountsOfDeadLettersMeanwhile(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		s := r.faulty()
		r.start(Options{})
		r.publish("t", 1, 2)
		r.deadLetterAll("t", "g")
		r.redrive(redriveAll("t"))
		r.publish("t", 3, 1)
		s.Before(storefault.Head, func(c *storefault.Call) error {
			if c.Topic != admin.RedriveTopic { // the log of marks is read after the others
				return nil
			}
			s.Before(storefault.Head, nil)
			in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, leases(in.Take())...)
			if err := in.Sub.Unsubscribe(context.Background()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			q := redriveAll("t")
			q.Offsets = []uint64{3}
			r.redrive(q)
			return nil
		})
		r.letterTopics()
		equal(t, "afterwards", r.letterTopics(), "t.dlq 5: 2 1 2 0, g 2 1 2 0\n")
		r.restart()
		equal(t, "after a start", r.letterTopics(), "t.dlq 5: 2 1 2 0, g 2 1 2 0\n")
	})
}

// TestCountsAfterRemoval: dead letters that were removed do not count, in whatever state they
// were, and those that are left do.
func TestCountsAfterRemoval(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 0, 6)
		r.deadLetterAll("t", "g")
		q := redriveAll("t")
		q.Offsets = []uint64{1, 2, 3}
		r.redrive(q)
		count := func() []uint64 {
			t.Helper()
			m, err := r.bus.Measure(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range m.Groups {
				if g.Group == "g" {
					return []uint64{g.OpenLetters, g.Redriven}
				}
			}
			return nil
		}
		equal(t, "before", count(), []uint64{3, 3})
		r.trim("t.dlq", 3)
		equal(t, "after a trim", count(), []uint64{3, 1})
		r.erase("t.dlq", 4, 5)
		equal(t, "after an erasure", count(), []uint64{1, 1})
		r.trim("t.dlq", 7)
		equal(t, "all gone", count(), []uint64{0, 0})
	})
}

// TestGlance: who waits for no count of dead letters is told what is counted so far and that it is not all; the
// count goes on. Who gives up altogether gets an error.
func TestGlance(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.deadLetterAll("t", "g")
		open := func(most time.Duration) (n uint64, counting bool) {
			t.Helper()
			e, err := r.bus.Glance(bg, most)
			if err != nil {
				t.Fatal(err)
			}
			for i := range e.Groups {
				n += e.Groups[i].OpenLetters
			}
			return n, e.CountsLetters
		}
		if n, counting := open(0); n != 0 || !counting {
			t.Errorf("%d dead letters at once, counting %v", n, counting)
		}
		if n, counting := open(time.Second); n != 3 || counting {
			t.Errorf("%d dead letters, counting %v", n, counting)
		}
		_, release, err := r.bus.letterCounts.UpToDate(bg)
		if err != nil {
			t.Fatal(err)
		}
		if n, counting := open(time.Second); n != 0 || !counting { // while somebody else counts
			t.Errorf("%d dead letters, counting %v", n, counting)
		}
		release()
		ctx, cancel := context.WithCancel(bg)
		cancel()
		r.publish("t", 4, 1)
		r.deadLetterAll("t", "g")
		if _, err := r.bus.Glance(ctx, time.Second); !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
	})
}
