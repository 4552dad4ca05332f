package bus

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/groupstate"
)

// Events can be removed before a group is done with them. It is notified of exactly those.

// told returns what deliveries say: the offset, the attempt, and the gap where there is one.
func told(all []got) (list []string) {
	for _, g := range all {
		text := fmt.Sprintf("%d/%d", g.Offset, g.Attempt)
		if g.Gap != nil {
			text += fmt.Sprintf(" gap %s %d-%d", g.Gap.Topic, g.Gap.After, g.Gap.First)
			if g.Gap.Compacted > 0 {
				text += fmt.Sprintf(" compacted %d, %d", g.Gap.Compacted, g.Gap.Tombstones)
			}
		}
		list = append(list, text)
	}
	return list
}

// crash ends the engine without a write, and starts another one.
func (r *rig) crash() {
	r.t.Helper()
	r.store.set(nil, errors.New("the process has ended"))
	_ = r.bus.Close()
	r.store.set(nil, nil)
	r.start(Options{})
}

// TestGapOfAnOvertakenGroup: what was removed before a group has read it is told with the first
// delivery after that and its repeats, also after a crash, until it is acked.
func TestGapOfAnOvertakenGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		o := opts("t", "g")
		o.MaxInFlight, o.AckTimeout = 2, time.Hour
		in := r.subscribe(o)
		first := in.Take()
		equal(t, "at first", told(first), []string{"1/1", "2/1"})
		r.publish("t", 5, 7)
		r.trim("t", 8)
		in.Ack(byLease(first[0]), byLease(first[1]))
		got := in.Take()
		equal(t, "after the trim", told(got), []string{"8/1 gap t 2-8", "9/1"})
		in.Nack(byLease(got[0]))
		equal(t, "there is room", told(in.Take()), []string{"10/1"})
		time.Sleep(time.Minute)
		in.Ack(byLease(got[1]))
		equal(t, "again", told(in.Take()), []string{"8/2 gap t 2-8"})
		time.Sleep(time.Second)
		r.crash()
		in = r.subscribe(o)
		got = in.Take()
		equal(t, "after a crash", told(got), []string{"8/3 gap t 2-8", "10/2"})
		in.Ack(byLease(got[0]))
		equal(t, "the next", told(in.Take()), []string{"11/1"})
		time.Sleep(time.Second)
		r.crash()
		equal(t, "acked", told(r.subscribe(o).Take()), []string{"10/3", "11/2"})
		parts, err := r.store.GroupParts(bg, "t", "g")
		for _, p := range parts {
			if p.Kind == groupstate.PartGaps {
				t.Errorf("the gap is still stored: %v", p)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// TestGapIsDurableBeforeItIsTold: a delivery waits for the commit of its gap, and nothing turns
// in the meantime.
func TestGapIsDurableBeforeItIsTold(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		o := opts("t", "g")
		o.Start = eventhub.Start{}
		in := r.subscribe(o)
		if err := in.Sub.Pause(bg); err != nil {
			t.Fatal(err)
		}
		r.publish("t", 5, 4)
		r.trim("t", 7)
		time.Sleep(time.Second)
		hold := make(chan struct{})
		r.store.set(hold, nil)
		if err := in.Sub.Resume(bg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		reads := r.store.count1("Read")
		time.Sleep(time.Hour)
		equal(t, "before the commit", told(in.Take()), nil)
		equal(t, "reads while it waits", r.store.count1("Read")-reads, 0)
		r.store.set(nil, nil)
		close(hold)
		equal(t, "after it", told(in.Take()), []string{"7/1 gap t 4-7", "8/1"})
		equal(t, "lag", r.group("t", "g").Lag, uint64(2))
	})
}

// TestGapAboveAStuckEvent: an event that is not done does not keep a group from what comes after
// a wide gap.
func TestGapAboveAStuckEvent(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{AckWindow: 4})
		r.sparse("t", 1, 2)
		in := r.subscribe(opts("t", "g"))
		got := in.Take()
		in.Ack(byLease(got[1]))
		r.sparse("t", 1_000_002)
		r.sparse("t", farOffset)
		equal(t, "after a hole", told(in.Take()), []string{"1000002/1", fmt.Sprint(farOffset, "/1")})
	})
}

// group returns what is reported of a group.
func (r *rig) group(topic, name string) admin.GroupInfo {
	r.t.Helper()
	info, err := r.bus.Group(context.Background(), topic, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// TestGapOfWhatWasDelivered: an event that is to be delivered again, or dead-lettered, and was
// removed meanwhile is a gap; neighbours are one.
func TestGapOfWhatWasDelivered(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 8)
		o := opts("t", "g")
		o.MaxInFlight, o.AckTimeout = 6, time.Hour
		in := r.subscribe(o)
		got := in.Take()
		r.trim("t", 3)
		r.erase("t", 3, 5)
		in.Nack(byLease(got[0]), byLease(got[1]), byLease(got[2]))
		in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(got[4]))
		equal(t, "before they are due", told(in.Take()), []string{"7/1", "8/1"})
		time.Sleep(time.Minute)
		in.Ack(byLease(got[3]), byLease(got[5]))
		r.publish("t", 9, 3)
		equal(t, "then", told(in.Take()), []string{"9/1 gap t 0-4", "10/1 gap t 4-6", "11/1"})
		equal(t, "dead letters", len(r.events("t.dlq")), 0)
	})
}

// TestGapOfWhatWasGivenBack: an event that a group was given is a gap when it is erased, also where no
// attempt of it counts: its member left, or the hub stopped, and a start came after that, or two.
func TestGapOfWhatWasGivenBack(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		for starts := range 3 {
			inBubble(t, func(r *rig) {
				r.publish("t", 1, 3)
				o := opts("t", "g")
				o.MaxInFlight = 2
				in := r.subscribe(o)
				equal(t, "given", told(in.Take()), []string{"1/1", "2/1"})
				if leaves {
					if err := in.Sub.Unsubscribe(bg); err != nil {
						t.Fatal(err)
					}
				} else if starts == 0 {
					in.Sub.Drop(0)
				}
				for range starts {
					r.pass(time.Second)
					r.restart()
				}
				r.erase("t", 2)
				attempt := 1
				if !leaves && starts == 0 {
					attempt = 2
				}
				in = r.subscribe(o)
				equal(t, fmt.Sprintf("left %t, %d starts", leaves, starts), told(in.Take()), []string{fmt.Sprint("1/", attempt), "3/1 gap t 1-3"})
			})
		}
	}
}

// TestGapOfAStart: a start or a seek that names a place below the horizon says what is missing,
// and one that asks for what is there does not.
func TestGapOfAStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		var times []int64
		for i := range 6 {
			r.publish("t", i+1, 1)
			times = append(times, time.Now().UnixMilli())
			time.Sleep(time.Hour)
		}
		kept := r.events("t")[4].ID
		r.trim("t", 4)
		for i, c := range []struct {
			start eventhub.Start
			want  []string
		}{
			{eventhub.Earliest, []string{"4/1", "5/1", "6/1"}},
			{eventhub.Start{Kind: eventhub.StartOffset, Offset: 2}, []string{"4/1 gap t 1-4", "5/1", "6/1"}},
			{eventhub.Start{Kind: eventhub.StartOffset, Offset: 4}, []string{"4/1", "5/1", "6/1"}},
			{eventhub.Start{Kind: eventhub.StartTime, TS: times[1]}, []string{"4/1 gap t 0-4", "5/1", "6/1"}},
			{eventhub.Start{Kind: eventhub.StartTime, TS: times[3] + 1}, []string{"5/1", "6/1"}},
			{eventhub.Start{Kind: eventhub.StartAfterID, AfterID: kept}, []string{"6/1"}},
			{eventhub.Start{}, nil},
		} {
			o := opts("t", fmt.Sprint("g", i))
			o.Start = c.start
			in := r.subscribe(o)
			equal(t, fmt.Sprintf("start %+v", c.start), told(in.Take()), c.want)
			plan, err := r.bus.SeekGroup(bg, "t", "g0", c.start, true)
			if err != nil {
				t.Fatal(err)
			}
			isGap := len(c.want) == 3 && c.want[0] != "4/1"
			if (plan.Gap != nil) != isGap || isGap && plan.Gap.First != 4 {
				t.Errorf("seek to %+v: gap %+v; want one: %t", c.start, plan.Gap, isGap)
			}
		}
		_, err := r.bus.SeekGroup(bg, "t", "g0", eventhub.Start{Kind: eventhub.StartAfterID, AfterID: "gone"}, true)
		wantCode(t, err, eventhub.CodeUnknownID)
		r.trim("t", 7)
		r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "late", Start: eventhub.Start{Kind: eventhub.StartTime, TS: times[0]}})
		r.restart()
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "late"})
		r.publish("t", 7, 1)
		equal(t, "in an empty topic", told(in.Take()), []string{"7/1 gap t 0-7"})
	})
}

// TestSeekForgetsGaps: a seek begins again, with the gap that it names itself alone.
func TestSeekForgetsGaps(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 2)
		in := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "g"})
		_ = in.Sub.Pause(bg)
		r.publish("t", 3, 4)
		r.trim("t", 5)
		_ = in.Sub.Resume(bg)
		equal(t, "overtaken", told(in.Take()), []string{"5/1 gap t 2-5", "6/1"})
		seek := func(start eventhub.Start) {
			if _, err := r.bus.SeekGroup(bg, "t", "g", start, true); err != nil {
				t.Fatal(err)
			}
		}
		seek(eventhub.Earliest)
		equal(t, "from the earliest", told(in.Take()), []string{"5/1", "6/1"})
		seek(eventhub.Start{Kind: eventhub.StartOffset, Offset: 1})
		equal(t, "from the first", told(in.Take()), []string{"5/1 gap t 0-5", "6/1"})
	})
}

// TestLagOfWhatIsThere: what was removed, and what never was, is no lag.
func TestLagOfWhatIsThere(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.sparse("t", 1, 2, 3, 1000, 2000, farOffset)
		o := opts("t", "g")
		o.MaxInFlight = 1
		in := r.subscribe(o)
		equal(t, "with holes", r.group("t", "g").Lag, uint64(6))
		r.trim("t", 3)
		equal(t, "with one that is leased", r.group("t", "g").Lag, uint64(4))
		if err := in.Sub.Unsubscribe(bg); err != nil {
			t.Fatal(err)
		}
		r.restart()
		equal(t, "when nobody reads", r.group("t", "g").Lag, uint64(4))
		e, err := r.bus.Measure(bg)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "measured by offsets", e.Groups[0].Lag, uint64(farOffset-2))
		r.trim("t", farOffset+1)
		equal(t, "when all is gone", r.group("t", "g").Lag, uint64(0))
		info, err := r.bus.Topic(bg, "t")
		if err != nil || info.Head != farOffset || info.HeadTS == 0 || info.HeadID != "" || info.FirstOffset != 0 {
			t.Errorf("the topic is %+v, %v", info, err)
		}
		g := r.group("t", "g")
		if g.HeadTS != info.HeadTS || g.HeadID != "" || g.LastID != "" || g.BlockedBy != nil {
			t.Errorf("the group is %+v", g)
		}
		late := r.subscribe(eventhub.GroupOptions{Topic: "t", Group: "late"})
		receipts := r.publish("t", 1, 1)
		equal(t, "the next offset", receipts[0].Offset, uint64(farOffset+1))
		equal(t, "from the latest", told(late.Take()), []string{fmt.Sprint(farOffset+1, "/1")})
	})
}

// TestLagOfWhatIsDoneAndGone: of offsets that are done above the cursor only those with an event
// count as done events, also before the group reads on after a restart.
func TestLagOfWhatIsDoneAndGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.sparse("t", 1, 2, 3, 4, 5, 100, 102)
		o := opts("t", "g")
		o.MaxInFlight = 6
		got := r.subscribe(o)
		first := got.Take()
		got.Ack(byLease(first[1]), byLease(first[3]), byLease(first[5])) // 2, 4, 100
		got.Take()
		r.eraseBy("t", admin.EraseQuery{Offset: 2})
		r.eraseBy("t", admin.EraseQuery{Offset: 4})
		equal(t, "while it runs", r.group("t", "g").Lag, uint64(4))
		r.restart()
		equal(t, "when nobody reads", r.group("t", "g").Lag, uint64(4)) // 1, 3, 5, 102
		for _, apply := range []bool{false, true} {                     // the group is loaded, and has read nothing
			p, err := r.bus.SeekGroup(bg, "t", "g", eventhub.Start{Kind: eventhub.StartOffset, Offset: 103}, apply)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "skipped", p.Skipped, uint64(4))
		}
		equal(t, "after the seek", r.group("t", "g").Lag, uint64(0))
	})
}

// TestCountsOfRemovedLetters: dead letters that were removed do not count, and those whose marks
// were removed are open again, in the counts as in the list.
func TestCountsOfRemovedLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 4)
		in := r.subscribe(opts("t", "g"))
		for _, d := range in.Take() {
			in.Settle(eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true}, byLease(d))
		}
		check := func(what string, want ...uint64) {
			t.Helper()
			synctest.Wait()
			topics, err := r.bus.DeadLetterTopics(bg, "", 10)
			if err != nil {
				t.Fatal(err)
			}
			c := topics[0].DeadLetterCounts
			equal(t, what, []uint64{c.Open, c.Redriven, c.Done, c.Requeued}, want)
			states := make(map[string]uint64)
			err = r.bus.DeadLetters(bg, admin.DeadLetterQuery{Topic: "t", All: true}, func(d *admin.DeadLetter) error {
				states[d.State]++
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, what+", listed", []uint64{states[admin.LetterOpen], states[admin.LetterRedriven], states[admin.LetterDone], states[admin.LetterRequeued]}, want)
		}
		redrive := func(offsets ...uint64) {
			t.Helper()
			q := admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t", Offsets: offsets}, Apply: true}
			if _, err := r.bus.Redrive(bg, q); err != nil {
				t.Fatal(err)
			}
		}
		check("at first", 4, 0, 0, 0)
		redrive(1, 2)
		check("redriven", 2, 2, 0, 0)
		got := in.Take()
		in.Ack(byLease(got[0]))
		check("one is done", 2, 1, 1, 0)
		r.trim("t.dlq", 2)
		check("without the first", 2, 1, 0, 0)
		r.trim("t.dlq", 3)
		check("without the second, which waits", 2, 0, 0, 0)
		redrive(3)
		check("another", 1, 1, 0, 0)
		r.trim(admin.RedriveTopic, 4)
		check("without the marks", 2, 0, 0, 0)
		in.Ack(byLease(in.Take()[0]))
		redrive(3)
		check("redriven again", 1, 1, 0, 0)
		r.trim("t", 5)
		plan, err := r.bus.Redrive(bg, admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "t"}, Apply: true})
		if err != nil || plan.Redriven != 0 || plan.Skipped["gone"] != 1 {
			t.Errorf("the redrive of what is gone: %+v, %v", plan, err)
		}
	})
}

// TestGapLeavesOutWhatIsDone: what a group acked is in no gap, also where it was erased, and reading
// has passed that after a start, and another start comes.
func TestGapLeavesOutWhatIsDone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1, 6)
		o := opts("t", "g")
		o.MaxInFlight = 3
		in := r.subscribe(o)
		got := in.Take()
		in.Ack(byLease(got[1]))
		r.erase("t", 2)
		in.Nack(byLease(got[0]), byLease(got[2]))
		for range 2 {
			r.restart()
			in = r.subscribe(o)
			got = in.Take()
			equal(t, "again", told(got)[:2], []string{"1/2", "3/2"})
			if err := in.Sub.Unsubscribe(bg); err != nil {
				t.Fatal(err)
			}
		}
		r.restart()
		r.trim("t", 5)
		equal(t, "told", told(r.subscribe(o).Take()), []string{"5/1 gap t 0-2", "6/1 gap t 2-5"})
	})
}
