package mongooutbox

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"eventhub"
	"eventhub/outbox"
)

var start = time.UnixMilli(1_700_000_000_000)

// stopClock stops the clock of a store.
func stopClock(s *Store, now time.Time) { s.Now = func() time.Time { return now } }

func tryLock(t *testing.T, s *Store, who string) int64 {
	t.Helper()
	n, err := s.tryLock(t.Context(), who)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func add(t *testing.T, db *mongo.Database, keys ...string) (ids []string) {
	t.Helper()
	for i, key := range keys {
		added, err := Add(t.Context(), db.Collection(DefaultCollection), eventhub.Event{Topic: "t", Key: key, Payload: fmt.Append(nil, i)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, added...)
	}
	return ids
}

func turn(t *testing.T, s *Store, worker string, most int, settled ...outbox.Outcome) (ids []string) {
	t.Helper()
	rows, err := s.Turn(t.Context(), settled, outbox.Claim{Max: most, Lease: 30 * time.Second, Worker: worker, Order: outbox.ByKey})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		ids = append(ids, r.Event.ID)
	}
	return ids
}

func TestLockOfTheDead(t *testing.T) {
	db, s := open(t)
	all := add(t, db, "a")
	stopClock(s, start)
	dead := tryLock(t, s, "dead")
	stopClock(s, start.Add(LockLease-time.Millisecond))
	if dead != 1 || tryLock(t, s, "w") != 0 {
		t.Fatalf("lock %d is not held", dead)
	}
	stopClock(s, start.Add(LockLease))
	if got := turn(t, s, "w", 10); len(got) != 1 || got[0] != all[0] {
		t.Errorf("claimed %q, want %q", got, all)
	}
	if has, err := s.hasLock(t.Context(), dead); has || err != nil {
		t.Errorf("the dead one has the lock: %v, %v", has, err)
	}
	s.unlock(t.Context(), dead) // a dead one that was not: it changes nobody's lock
	held := tryLock(t, s, "w")
	s.unlock(t.Context(), dead)
	if held == 0 || tryLock(t, s, "v") != 0 {
		t.Errorf("lock %d was given back by another one", held)
	}
	stopClock(s, start.Add(-time.Hour)) // the holder's time is one that it cannot have written now
	if n := tryLock(t, s, "v"); n != held+1 {
		t.Errorf("after a jump of the clock: lock %d, want %d", n, held+1)
	}
}

func TestOneHasTheLock(t *testing.T) {
	_, s := open(t)
	const rounds, workers = 2*removeLocks + 1, 4
	for round := range int64(rounds) {
		var all sync.WaitGroup
		got := make([]int64, workers)
		for w := range workers {
			all.Go(func() { got[w], _ = s.tryLock(t.Context(), fmt.Sprint(w)) })
		}
		all.Wait()
		has := int64(0)
		for _, n := range got {
			if n != 0 && has != 0 {
				t.Fatalf("round %d: locks %v", round, got)
			}
			has = max(has, n)
		}
		if has != round+1 {
			t.Fatalf("round %d: locks %v", round, got)
		}
		s.unlock(t.Context(), has)
	}
	n, err := s.locks.CountDocuments(t.Context(), bson.D{})
	if err != nil || n > removeLocks {
		t.Errorf("%d locks are kept, %v", n, err)
	}
}

// A claim that was stopped for longer than its lock lasts, at each of its steps, claims
// nothing out of order, and nothing that it has left behind is passed over by others.
func TestClaimThatWasStopped(t *testing.T) {
	for _, step := range []string{"locked", "looked", "found", "free", "claimed"} {
		t.Run(step, func(t *testing.T) {
			db, stopped := open(t)
			all := add(t, db, "a", "a", "a", "b")
			other := New(db, "")
			stopClock(stopped, start)
			stopClock(other, start.Add(LockLease))
			var got []string
			stopped.between = func(at string) {
				if at == step {
					got = turn(t, other, "other", 1)
				}
			}
			if late := turn(t, stopped, "stopped", 2); len(late) != 0 {
				t.Errorf("the claim that was stopped returns %q", late)
			}
			// What the stopped one had marked comes when its lease has run out.
			settled := []outbox.Outcome{}
			for _, id := range got {
				settled = append(settled, outbox.Outcome{ID: id, Status: outbox.Sent})
			}
			stopClock(other, start.Add(LockLease+30*time.Second))
			got = append(got, turn(t, other, "other", 10, settled...)...)
			want := all
			if step == "claimed" { // the other one found the key held, and went on with the next key
				want = []string{all[3], all[0], all[1], all[2]}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("claims %q, want %q", got, want)
			}
		})
	}
}

// The same from the other side: while a claim is under way, one that had been stopped marks
// the first row of a key, and the claim leaves the rest of the key alone.
func TestRowsThatAStoppedClaimMarks(t *testing.T) {
	for _, step := range []string{"locked", "looked", "found", "free", "claimed"} {
		t.Run(step, func(t *testing.T) {
			db, s := open(t)
			all := add(t, db, "a", "a", "b", "")
			stopClock(s, start)
			s.between = func(at string) {
				if at != step {
					return
				}
				_, err := s.rows.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: all[0]}, {Key: "status", Value: outbox.Pending}},
					bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: "claimed"}, {Key: "claimed_by", Value: "stopped"}, {Key: "lease_until", Value: start.UnixMilli()}}}})
				if err != nil {
					t.Error(err)
				}
			}
			want := all[2:]
			if step == "claimed" {
				want = all
			}
			if got := turn(t, s, "w", 10); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("claims %q, want %q", got, want)
			}
		})
	}
}

// What another one marks between the last look and the update is missed by the update, and
// so are the rows after it. A row that was sent holds nobody up.
func TestUpdateThatMissesRows(t *testing.T) {
	db, s := open(t)
	all := add(t, db, "a", "a", "b", "b", "")
	lease := start.Add(30 * time.Second)
	c := outbox.Claim{Max: 10, Lease: 30 * time.Second, Worker: "w", Order: outbox.ByKey}
	found, err := s.candidates(t.Context(), c, nil, start.UnixMilli())
	if err != nil || len(found) != len(all) {
		t.Fatalf("%d candidates, %v", len(found), err)
	}
	for i, status := range []outbox.Status{outbox.Pending, outbox.Claimed, outbox.Sent, outbox.Claimed, outbox.Claimed} {
		if _, err := s.rows.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: all[i]}}, bson.D{{Key: "$set", Value: bson.D{
			{Key: "status", Value: status}, {Key: "claimed_by", Value: "w"}, {Key: "lease_until", Value: lease.UnixMilli()},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
	mine, err := s.mine(t.Context(), found, c, lease)
	if err != nil || len(mine) != 2 || mine[0].Event.ID != all[3] || mine[1].Event.ID != all[4] {
		t.Errorf("%d rows, %v", len(mine), err)
	}
}
