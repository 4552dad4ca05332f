package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/groupstate"
	"eventhub/store"
	"eventhub/store/storefault"
)

// deadLetterAll has every event up to the head of a topic dead-lettered in a group that is
// made for it, and leaves the group without members.
func (r *rig) deadLetterAll(topic, group string) {
	r.t.Helper()
	o := opts(topic, group)
	o.MaxAttempts = 1
	in := r.subscribe(o)
	for r.nackAll(in, "broken") > 0 {
	}
	if err := in.Sub.Unsubscribe(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

func (r *rig) nackAll(in *inbox, reason string) (n int) {
	r.t.Helper()
	for _, d := range in.Take() {
		if _, err := in.Sub.Settle(context.Background(), eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Reason: reason, Refs: []eventhub.Ref{{Lease: d.Lease}}}); err != nil {
			r.t.Fatal(err)
		}
		n++
	}
	synctest.Wait()
	return n
}

func words(of ...any) string { return strings.TrimSpace(fmt.Sprintln(of...)) }

func leases(all []got) (refs []eventhub.Ref) {
	for _, g := range all {
		refs = append(refs, byLease(g))
	}
	return refs
}

func (r *rig) redrive(q admin.RedriveQuery) admin.RedriveResult {
	r.t.Helper()
	result, err := r.bus.Redrive(context.Background(), q)
	if err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	return result
}

func (r *rig) deadLetters(q admin.DeadLetterQuery) (list []admin.DeadLetter) {
	r.t.Helper()
	err := r.bus.DeadLetters(context.Background(), q, func(d *admin.DeadLetter) error {
		kept := *d
		kept.Record = nil
		list = append(list, kept)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

func redriveAll(topic string) admin.RedriveQuery {
	return admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: topic}, Apply: true, By: "me"}
}

func TestRedrive(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		other := r.subscribe(opts("t", "other"))
		other.Ack(leases(other.Take())...)
		r.deadLetterAll("t", "g")

		letters := r.deadLetters(admin.DeadLetterQuery{Topic: "t"})
		equal(t, "dead letters", len(letters), 3)
		equal(t, "what the second says", words(letters[1].Topic, letters[1].Group, letters[1].Event, letters[1].Attempts, letters[1].Reason, letters[1].Marks),
			"t g 2 1 broken []")

		dry := r.redrive(admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", Group: "g"}})
		equal(t, "would be redriven", words(dry.Matched, dry.Redriven, dry.Groups, len(dry.Samples), dry.Applied), "3 3 map[g:3] 3 false")
		equal(t, "after a dry run", len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"})), 3)

		result := r.redrive(redriveAll("t.dlq"))
		equal(t, "redriven", words(result.Matched, result.Redriven, result.Applied), "3 3 true")
		equal(t, "open dead letters", len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"})), 0)
		all := r.deadLetters(admin.DeadLetterQuery{Topic: "t", All: true})
		equal(t, "marks", words(len(all), len(all[0].Marks), all[0].Marks[0].By, all[0].Marks[0].Redriven, all[0].Marks[0].TS == time.Now().UnixMilli()), "3 1 me 1 true")
		info, err := r.bus.Group(context.Background(), "t", "g")
		equal(t, "the group", words(info.Lag, info.Redriven, info.Waiting, info.BlockedBy.Kind, err), "0 3 3 no_members <nil>")

		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		got := in.Take()
		equal(t, "redelivered", words(len(got), got[0].Offset, got[0].Attempt, got[0].Redriven, got[2].Offset), "3 1 1 1 3")
		in.Ack(leases(got)...)
		equal(t, "to others", len(other.Take()), 0)
		info, err = r.bus.Group(context.Background(), "t", "g")
		equal(t, "the group at the end", words(info.Lag, info.Redriven, info.Waiting, info.InFlight, info.BlockedBy == nil, err), "0 0 0 0 true <nil>")

		again := r.redrive(redriveAll("t"))
		equal(t, "the same again", words(again.Matched, again.Redriven), "0 0")
	})
}

// An event that fails again becomes another dead letter, also the third time.
func TestRedriveThatFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1)
		r.deadLetterAll("t", "g")
		for i := 1; i <= 3; i++ {
			r.redrive(redriveAll("t"))
			in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
			equal(t, "nacked", r.nackAll(in, "again"), 1)
			letters := r.deadLetters(admin.DeadLetterQuery{Topic: "t"})
			equal(t, "dead letters", len(letters), 1)
			equal(t, "redriven before", letters[0].Redriven, i)
			if err := in.Sub.Unsubscribe(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		q := redriveAll("t")
		q.All = true
		result := r.redrive(q)
		equal(t, "of four letters of one event", words(result.Matched, result.Redriven, result.Skipped), "4 1 map[waiting:3]")
	})
}

func TestRedriveOutlivesTheProcess(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.deadLetterAll("t", "g")
		r.redrive(redriveAll("t"))
		r.restart()
		info, err := r.bus.Group(context.Background(), "t", "g")
		equal(t, "a group that is not loaded", words(info.Redriven, info.BlockedBy.Kind, err), "3 no_members <nil>")
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		got := in.Take()
		equal(t, "after a restart", len(got), 3)
		in.Ack(byLease(got[0]))
		in.Nack(byLease(got[1]))
		time.Sleep(time.Second)
		r.restart()
		in = r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		got = in.Take()
		equal(t, "after another", words(len(got), len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"}))), "1 1")
	})
}

// The places of an event in groups show the list, also where the group is not loaded.
func TestEventGroupsOfRedriven(t *testing.T) {
	inBubble(t, func(r *rig) {
		receipts := r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		got := in.Take()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(got[1])) // 1 stays open below it
		in.Ack(byLease(got[2]))
		r.redrive(redriveAll("t"))
		r.restart()
		for i, want := range []string{"ahead 0", "waiting 1", "done 0"} {
			groups, err := r.bus.EventGroups(context.Background(), "t", receipts[i].ID)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, fmt.Sprint("event ", i+1), words(groups[0].State, groups[0].Redriven), want)
		}
	})
}

// TestDeadLettersOutliveTheirTopic: dead letters are a topic of their own, which stays, so
// the name of the one that is deleted still means them.
func TestDeadLettersOutliveTheirTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 3)
		r.deadLetterAll("t", "g")
		r.publish("u", 1, 1)
		r.deleteTopic("t")
		r.deleteTopic("u")
		equal(t, "dead letters", len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"})), 3)
		dry := redriveAll("t")
		dry.Apply = false
		for _, q := range []admin.RedriveQuery{dry, redriveAll("t"), redriveAll("t.dlq")} {
			result := r.redrive(q)
			equal(t, "redriven, skipped", words(result.Redriven, result.Skipped), "0 map[no_group:3]")
		}
		if _, err := r.bus.Requeue(context.Background(), "t", 2, []byte(`"anew"`), "me"); err != nil {
			t.Errorf("Requeue: %v", err)
		}
		equal(t, "events of the topic", string(r.events("t")[0].Payload), `"anew"`)
		equal(t, "open dead letters", len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"})), 2)
		for _, topic := range []string{"u", "u.dlq", "never"} {
			wantCode(t, r.bus.DeadLetters(context.Background(), admin.DeadLetterQuery{Topic: topic}, nil), eventhub.CodeUnknownID)
		}
	})
}

// TestRedriveMoreOftenThanMarksAreShown: a dead letter shows its first marks only, and the
// hub goes by all: each redrive is counted, and whether the event was given up is that of
// the last.
func TestRedriveMoreOftenThanMarksAreShown(t *testing.T) {
	inBubble(t, func(r *rig) {
		const times = 2*admin.MaxRedriveMarks + 3
		event := eventhub.Event{Topic: "t", ID: "e", Payload: []byte("1")}
		if _, err := r.bus.Publish(context.Background(), event); err != nil {
			t.Fatal(err)
		}
		in := r.subscribe(opts("t", "g"))
		r.nackAll(in, "broken")
		q := redriveAll("t")
		q.Offsets, q.All = []uint64{1}, true
		for n := 1; n <= times; n++ {
			equal(t, fmt.Sprint("redrive ", n), r.redrive(q).Redriven, 1)
			got := in.Take()
			equal(t, "reported as redriven", words(len(got), got[0].Redriven), words(1, n))
			if n < times {
				in.Ack(byLease(got[0]))
				if n%7 == 0 { // marks of another kind between them
					if _, err := r.bus.RequeueIf(context.Background(), "t", 1, fmt.Append(nil, n), admin.MaxRedriveMarks, "me"); err != nil {
						t.Fatal(err)
					}
					in.Ack(leases(in.Take())...)
				}
			} else {
				in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(got[0]))
			}
		}
		letters := r.deadLetters(admin.DeadLetterQuery{Topic: "t", All: true})
		equal(t, "letters, marks of the first, redrives of the second", words(len(letters), len(letters[0].Marks), letters[1].Redriven),
			words(2, admin.MaxRedriveMarks, times))
		w := r.enqueue(context.Background(), eventhub.Publication{Events: []eventhub.Event{event}, WaitFor: []string{"g"}})
		if !w.over() || !strings.Contains(fmt.Sprint(w.pubs[0].Err), "has dead-lettered") {
			t.Errorf("a publish that waits for what was given up in the end: %v, over: %t", w.pubs[0].Err, w.over())
		}
	})
}

// A seek to before a redriven event has the group read it again, once; one to after
// it leaves it on the list.
func TestRedriveAndSeek(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		r.deadLetterAll("t", "g")
		r.redrive(redriveAll("t"))
		if _, err := r.bus.SeekGroup(context.Background(), "t", "g", eventhub.Start{Kind: eventhub.StartOffset, Offset: 3}, true); err != nil {
			t.Fatal(err)
		}
		q := redriveAll("t")
		q.All = true
		result := r.redrive(q)
		equal(t, "after a seek", words(result.Redriven, result.Skipped), "0 map[open:2 waiting:2]")
		r.restart()
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		got := map[uint64]int{}
		for _, d := range in.Take() {
			got[d.Offset] = d.Redriven
		}
		equal(t, "deliveries", words(got), "map[1:1 2:1 3:0 4:0]")
	})
}

// Of a key, one event is under way, redriven or not.
func TestRedriveInLines(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publishKeys("t", "k", "k", "l")
		o := opts("t", "g")
		o.Ordering, o.MaxAttempts = eventhub.OrderingKey, 1
		in := r.subscribe(o)
		for r.nackAll(in, "broken") > 0 {
		}
		result := r.redrive(redriveAll("t"))
		equal(t, "redriven", result.Redriven, 3)
		r.publishKeys("t", "k")
		synctest.Wait()
		first := in.Take()
		equal(t, "under way", len(first), 2) // one of k, one of l
		for len(first) > 0 {
			keys := map[string]int{}
			for _, d := range first {
				keys[string(d.Record.Key())]++
			}
			if keys["k"] > 1 {
				t.Errorf("%d events of one key at once", keys["k"])
			}
			in.Ack(leases(first)...)
			first = in.Take()
		}
		info, err := r.bus.Group(context.Background(), "t", "g")
		equal(t, "left", words(info.Lag, info.Redriven, info.Held, err), "0 0 0 <nil>")
	})
}

// TestRedriveRate: what is given back keeps to the rate.
func TestRedriveRate(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 1000)
		r.deadLetterAll("t", "g")
		began := time.Now()
		q := redriveAll("t")
		q.Rate = 100
		var reported []int
		q.Progress = func(p admin.RedriveResult) { reported = append(reported, p.Redriven) }
		result := r.redrive(q)
		equal(t, "redriven", result.Redriven, 1000)
		if took := time.Since(began); took < 9500*time.Millisecond || took > 10*time.Second {
			t.Errorf("1000 events at 100/s took %s", took)
		}
		equal(t, "progress was reported", len(reported), 9)
	})
}

func TestRequeue(t *testing.T) {
	inBubble(t, func(r *rig) {
		receipts := r.publishEvents(eventhub.Event{Topic: "t", Key: "k", Headers: map[string]string{"x-a": "b"}, Payload: []byte(`{"bad":1}`)})
		r.deadLetterAll("t", "g")
		letter := r.deadLetters(admin.DeadLetterQuery{Topic: "t"})[0]
		receipt, err := r.bus.Requeue(context.Background(), "t", letter.Offset, []byte(`{"good":1}`), "me")
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.bus.Requeue(context.Background(), "t", letter.Offset, []byte(`{ "good": 1 }`), "me")
		equal(t, "the same again", words(again.Offset == receipt.Offset, again.Duplicate, err), "true true <nil>")
		item, err := r.bus.Event(context.Background(), "t", receipt.ID)
		if err != nil {
			t.Fatal(err)
		}
		e, err := item.Record.Event(item.Offset)
		equal(t, "the new event", words(e.Key, e.Headers, string(e.Payload), e.CausedBy[0] == receipts[0].ID, err), `k map[x-a:b] {"good":1} true <nil>`)
		equal(t, "open dead letters", len(r.deadLetters(admin.DeadLetterQuery{Topic: "t"})), 0)
		marks := r.deadLetters(admin.DeadLetterQuery{Topic: "t", All: true})[0].Marks
		equal(t, "marks", words(len(marks), marks[0].By, marks[0].RequeuedAs == receipt.ID), "1 me true")
		_, err = r.bus.Requeue(context.Background(), "t", letter.Offset, []byte(`{"good"`), "me")
		wantCode(t, err, eventhub.CodeBadJSON)
	})
}

// TestRequeueOfSeveralAtOnce: of those who requeue one dead letter with other payloads one publishes; the others are
// refused, as are those who come later and have not seen its mark.
func TestRequeueOfSeveralAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		const letters, people = 20, 3
		r.publish("t", 1, letters)
		r.deadLetterAll("t", "g")
		for _, letter := range r.deadLetters(admin.DeadLetterQuery{Topic: "t"}) {
			receipts, errs := make([]eventhub.Receipt, people), make([]error, people)
			var all sync.WaitGroup
			for i := range people {
				all.Go(func() {
					receipts[i], errs[i] = r.bus.Requeue(ctx, "t", letter.Offset, fmt.Append(nil, i), fmt.Sprint("person ", i))
				})
			}
			all.Wait()
			done := slices.IndexFunc(errs, func(err error) bool { return err == nil })
			if done < 0 {
				t.Fatal(errs)
			}
			for i, err := range errs {
				if i != done && (eventhub.ErrorCode(err) != eventhub.CodeConflict || !strings.Contains(err.Error(), fmt.Sprint("person ", done, " has requeued"))) {
					t.Errorf("person %d, after %d, gets %v", i, done, err)
				}
			}
			again, err := r.bus.Requeue(ctx, "t", letter.Offset, fmt.Append(nil, done), "me")
			equal(t, "the same again", words(again.ID == receipts[done].ID, again.Duplicate, err), "true true <nil>")
		}
		info, err := r.bus.Topic(ctx, "t")
		equal(t, "head", words(info.Head, err), words(2*letters, "<nil>"))
		marked := r.deadLetters(admin.DeadLetterQuery{Topic: "t", All: true})
		equal(t, "marks", words(len(marked), len(marked[0].Marks)), words(letters, 1))
		next, err := r.bus.RequeueIf(ctx, "t", marked[0].Offset, []byte("7"), 1, "me")
		equal(t, "once more, knowing that", words(next.Offset, next.Duplicate, err), words(2*letters+1, false, "<nil>"))
		_, err = r.bus.RequeueIf(ctx, "t", marked[0].Offset, []byte("8"), 1, "me")
		wantCode(t, err, eventhub.CodeConflict)
		q := redriveAll("t")
		q.All, q.Offsets = true, []uint64{marked[1].Offset}
		equal(t, "redriven", r.redrive(q).Redriven, 1)
		_, err = r.bus.RequeueIf(ctx, "t", marked[1].Offset, []byte("8"), 1, "me")
		wantCode(t, err, eventhub.CodeConflict)
	})
}

func TestBadRedrives(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		ctx := context.Background()
		for name, tt := range map[string]struct {
			query admin.RedriveQuery
			code  eventhub.Code
		}{
			"no topic":       {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "none"}}, eventhub.CodeUnknownID},
			"a pattern":      {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t.*"}}, eventhub.CodeBadTopic},
			"a bad group":    {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", Group: "a b"}}, eventhub.CodeBadRequest},
			"an unknown id":  {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", IDs: []string{"x"}}}, eventhub.CodeUnknownID},
			"a bad offset":   {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", Offsets: []uint64{7}}}, eventhub.CodeUnknownID},
			"a bad filter":   {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", Filter: &eventhub.Filter{CEL: "1 +"}}}, eventhub.CodeBadRequest},
			"a bad rate":     {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Rate: -1}, eventhub.CodeBadRequest},
			"too high a one": {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Rate: 100_001}, eventhub.CodeBadRequest},
			"a bad limit":    {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", Limit: -1}}, eventhub.CodeBadRequest},
			"a bad time":     {admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", ToTS: -1}}, eventhub.CodeBadRequest},
		} {
			tt.query.Apply = true
			_, err := r.bus.Redrive(ctx, tt.query)
			if got := eventhub.ErrorCode(err); got != tt.code {
				t.Errorf("%s: %v; want %s", name, err, tt.code)
			}
		}
		_, err := r.bus.Requeue(ctx, "t", 1, []byte("1"), "")
		wantCode(t, err, eventhub.CodeUnknownID)
	})
}

// TestRefusedRedriveKeepsTheSeek: a redrive that the store refuses takes nothing from a
// seek that is written at the same time: in no image has the group its new epoch and knows
// of acks before.
func TestRefusedRedriveKeepsTheSeek(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 1, 3)
		in := r.subscribe(opts("t", "g"))
		got := in.Take()
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(got[0]))
		in.Ack(byLease(got[2]))
		time.Sleep(time.Second)
		r.noMoreTopics()
		before := r.stored("t", "g").Epoch
		r.stop()
		inner := r.store.Store
		r.faulty().After(storefault.Commit, func(*storefault.Call) {
			state, err := inner.Group(ctx, "t", "g")
			if err != nil {
				t.Error(err)
			}
			parts, err := inner.GroupParts(ctx, "t", "g")
			parts = slices.DeleteFunc(parts, func(p store.GroupPart) bool { return p.Kind == groupstate.PartBase })
			if state.Epoch != before && (err != nil || len(parts) > 0) {
				t.Errorf("epoch %d with the parts %v of %d, %v", state.Epoch, parts, before, err)
			}
		})
		r.start(Options{})
		if _, err := r.bus.Cursor(ctx, "t", "g"); err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		r.store.set(hold, nil)
		done := make(chan error, 3)
		go func() {
			_, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", Payload: []byte("4")})
			done <- err
		}()
		synctest.Wait()
		go func() {
			if _, err := r.bus.Redrive(ctx, redriveAll("t")); eventhub.ErrorCode(err) != eventhub.CodeOverloaded {
				t.Errorf("redrive: %v", err)
			}
			done <- nil
		}()
		synctest.Wait()
		go func() { done <- r.bus.SetCursor(ctx, "t", "g", 1) }()
		synctest.Wait()
		r.store.set(nil, nil)
		close(hold)
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
	})
}

// TestRedriveIntoAnotherLife: a group does not get what another one of its name gave up,
// before and after restarts; one that was moved gets what it gave up itself.
func TestRedriveIntoAnotherLife(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		expect := func(what string, redriven int, skipped map[string]int) {
			t.Helper()
			for _, apply := range []bool{false, true} {
				q := redriveAll("t")
				q.Apply = apply
				result := r.redrive(q)
				equal(t, what+": redriven", result.Redriven, redriven)
				equal(t, what+": skipped", result.Skipped, skipped)
			}
		}
		r.publish("t", 1, 1)
		r.deadLetterAll("t", "g")
		if err := r.bus.DeleteGroup(ctx, "t", "g"); err != nil {
			t.Fatal(err)
		}
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		expect("another life", 0, map[string]int{"no_group": 1})
		equal(t, "delivered", in.TakeOffsets(), nil)
		r.restart()
		expect("another life, after a restart", 0, map[string]int{"no_group": 1})

		in = r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		r.publish("t", 2, 1)
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(in.Take()[0]))
		if _, err := r.bus.SeekGroup(ctx, "t", "g", eventhub.Latest, true); err != nil {
			t.Fatal(err)
		}
		r.restart()
		expect("its own, before it was moved", 1, map[string]int{"no_group": 1})
		expect("once more", 0, map[string]int{"no_group": 1})
		in = r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		equal(t, "delivered", in.TakeOffsets(), []uint64{2})
	})
}

// TestRedriveIntoAnotherFilter: what a group's filter does not pass it is not given either,
// whatever a dead letter says.
func TestRedriveIntoAnotherFilter(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		receipts, err := r.bus.Publish(ctx, eventhub.Event{Topic: "t", Key: "a", Payload: []byte(`1`)})
		if err != nil {
			t.Fatal(err)
		}
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g", Filter: &eventhub.Filter{Key: "b"}})
		epoch, _ := r.bus.running("t", "g").position()
		letter := fmt.Sprintf(`{"topic":"t","group":"g","offset":1,"epoch":%d,"attempts":1,"reason":"","event":{"id":%q}}`, epoch, receipts[0].ID)
		if _, err := r.bus.Import(ctx, eventhub.Event{Topic: "t.dlq", ID: "dl-1", TS: 1, Payload: []byte(letter)}); err != nil {
			t.Fatal(err)
		}
		result := r.redrive(redriveAll("t"))
		equal(t, "skipped", result.Skipped, map[string]int{"no_group": 1})
		equal(t, "delivered", in.TakeOffsets(), nil)
	})
}

// TestForeignDeadLetters: what others have put into a dead-letter topic and is no dead letter
// of its topic is not shown.
func TestForeignDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("t", 1, 1)
		for id, payload := range map[string]string{
			"of another topic": `{"topic":"u","group":"g","offset":1,"epoch":1,"attempts":1,"reason":"","event":{"id":"e1"}}`,
			"without a group":  `{"topic":"t","offset":1,"epoch":1,"attempts":1,"reason":"","event":{"id":"e1"}}`,
			"of no event":      `{"topic":"t","group":"g","epoch":1,"attempts":1,"reason":"","event":{"id":"e1"}}`,
			"no object":        `1`,
			"a dead letter":    `{"topic":"t","group":"g","offset":1,"epoch":1,"attempts":1,"reason":"","event":{"id":"e1"}}`,
		} {
			id = strings.ReplaceAll(id, " ", "-")
			if _, err := r.bus.Import(ctx, eventhub.Event{Topic: "t.dlq", ID: id, TS: 1, Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		var shown []string
		err := r.bus.DeadLetters(ctx, admin.DeadLetterQuery{Topic: "t", All: true}, func(d *admin.DeadLetter) error {
			shown = append(shown, d.ID)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "shown", shown, []string{"a-dead-letter"})
	})
}
