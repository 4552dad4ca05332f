// Package outboxtest is the suite that every outbox passes, whatever database it is in, and
// an outbox in memory that says what is expected.
package outboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"eventhub"
	"eventhub/internal/testsize"
	"eventhub/outbox"
)

// Raw is a row as a program in another language inserts it. Empty fields are left out.
type Raw struct{ ID, Topic, Key, Payload, Headers, Status string }

// Place is an empty outbox in a real database.
type Place struct {
	Store outbox.Store
	// Add adds events in a transaction of their own.
	Add func(events ...eventhub.Event) ([]string, error)
	// Begin adds events in a transaction, which end commits or rolls back; nil where the
	// database has no transactions.
	Begin func(events ...eventhub.Event) (ids []string, end func(commit bool) error, err error)
	// Concurrent says that several transactions may be open at a time.
	Concurrent bool
	// Insert inserts a row without the package.
	Insert func(Raw) error
	// SetNow stops the clock that leases are measured with at t.
	SetNow func(t time.Time)
	// SetVersion writes another version of the table; Unfinish removes the version, as of a table
	// whose making was cut short; Drop removes the table.
	SetVersion func(version int) error
	Unfinish   func() error
	Drop       func() error
	// NoBadPayload says that the database takes no payload that is not JSON.
	NoBadPayload bool
	// ByTime says that rows stand in the order of their times, and then of their ids, and
	// not in that in which they were inserted.
	ByTime bool
	// Slow says that the server is one that takes milliseconds for everything: there are
	// fewer random histories.
	Slow bool
}

var start = time.UnixMilli(1_700_000_000_000)

// Run runs the suite; open returns a new place with a table for each test.
func Run(t *testing.T, open func(t *testing.T) *Place) {
	for name, test := range map[string]func(*testing.T, *Place){
		"EventComesBack":     eventComesBack,
		"RowsOfOthers":       rowsOfOthers,
		"ClaimWithoutLease":  claimWithoutLease,
		"BadEvents":          badEvents,
		"Transactions":       transactions,
		"ClaimsInOrder":      claimsInOrder,
		"KeysAreHeld":        keysAreHeld,
		"TopicsAreHeld":      topicsAreHeld,
		"LateCommit":         lateCommit,
		"Leases":             leases,
		"Outcomes":           outcomes,
		"OutcomesOfLosers":   outcomesOfLosers,
		"OutcomesOfOneRow":   outcomesOfOneRow,
		"WaitsForRetry":      waitsForRetry,
		"Forget":             forget,
		"Keeping":            keeping,
		"Versions":           versions,
		"ManyWorkers":        manyWorkers,
		"RandomAgainstModel": randomAgainstModel,
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t)
			p.SetNow(start)
			test(t, p)
		})
	}
}

func event(topic, key string, n int) eventhub.Event {
	return eventhub.Event{Topic: topic, Key: key, Payload: fmt.Appendf(nil, `{"n":%d}`, n)}
}

// add adds one event for each key, and returns the ids.
func add(t *testing.T, p *Place, topic string, keys ...string) []string {
	t.Helper()
	var all []string
	for i, key := range keys {
		ids, err := p.Add(event(topic, key, i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ids...)
	}
	return all
}

func turn(t *testing.T, p *Place, worker string, most int, settled ...outbox.Outcome) []outbox.Row {
	t.Helper()
	return turnBy(t, p, outbox.ByKey, worker, most, settled...)
}

func turnBy(t *testing.T, p *Place, order outbox.Order, worker string, most int, settled ...outbox.Outcome) []outbox.Row {
	t.Helper()
	rows, err := p.Store.Turn(t.Context(), settled, outbox.Claim{Max: most, Lease: 10 * time.Second, Worker: worker, Order: order})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func ids(rows []outbox.Row) (all []string) {
	for _, r := range rows {
		all = append(all, r.Event.ID)
	}
	return all
}

func wantIDs(t *testing.T, what string, rows []outbox.Row, want ...string) {
	t.Helper()
	if got := ids(rows); !slices.Equal(got, want) {
		t.Fatalf("%s: rows %q, want %q", what, got, want)
	}
}

func show(t *testing.T, p *Place, id string) outbox.Row {
	t.Helper()
	r, err := p.Store.Show(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func eventComesBack(t *testing.T, p *Place) {
	want := eventhub.Event{
		ID: "a.b:c-1", Topic: "order.placed", Key: "k'\"; DROP TABLE eventhub_outbox; --", SID: "s\u00e9", TS: start.UnixMilli() - 5,
		Headers: map[string]string{"x-a": "<b> & \u2028", "x-c": ""}, Tags: []string{"#duck", "\"q\""}, CausedBy: []string{"c1", "c2"},
		Payload: json.RawMessage(`{"n":1.50,"big":12345678901234567890,"e":1E5,"s":"\u00e4\ud83d\ude00 '","a":[null,true,{}]}`),
	}
	got, err := p.Add(want)
	if err != nil || len(got) != 1 || got[0] != want.ID {
		t.Fatalf("Add: %q, %v", got, err)
	}
	rows := turn(t, p, "w", 10)
	if len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	if diff := cmp.Diff(want, rows[0].Event, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the event (-want +got):\n%s", diff)
	}
	r := rows[0]
	if r.Status != outbox.Claimed || r.ClaimedBy != "w" || r.Attempts != 1 || !r.LeaseUntil.Equal(start.Add(10*time.Second)) || r.Broken != nil {
		t.Errorf("the row is %+v", r)
	}
	made, err := p.Add(event("t", "", 1), event("t", "", 2))
	if err != nil || len(made) != 2 || made[0] >= made[1] || eventhub.ValidateID(made[0]) != nil {
		t.Errorf("ids that are made: %q, %v", made, err)
	}
	if _, err := p.Add(want); err == nil {
		t.Error("an id was added twice")
	}
}

func rowsOfOthers(t *testing.T, p *Place) {
	insert := func(r Raw) {
		t.Helper()
		if err := p.Insert(r); err != nil {
			t.Fatal(err)
		}
	}
	insert(Raw{Topic: "t", Payload: `{"a": 1}`}) // an id and a time are made
	insert(Raw{ID: "h", Topic: "t", Payload: `1`, Headers: `{"x-a":1}`})
	insert(Raw{ID: "l", Topic: "t", Payload: `1`, Headers: `["x-a"]`})
	insert(Raw{ID: "bad topic is for the hub", Topic: "no topic!", Payload: `null`, Key: "k"})
	if !p.NoBadPayload {
		insert(Raw{ID: "p", Topic: "t", Payload: `{"a":`})
		insert(Raw{ID: "e", Topic: "t"})
	}
	rows := turn(t, p, "w", 10)
	if got, want := len(rows), 4; p.NoBadPayload && got != want || !p.NoBadPayload && got != want+2 {
		t.Fatalf("%d rows: %q", got, ids(rows))
	}
	for i, r := range rows {
		if broken := i != 0 && i != 3; (r.Broken != nil) != broken {
			t.Errorf("row %q: broken is %v", r.Event.ID, r.Broken)
		} else if broken && eventhub.ErrorCode(r.Broken) != eventhub.CodeBadEvent {
			t.Errorf("row %q: %v", r.Event.ID, r.Broken)
		}
	}
	if err := eventhub.ValidateID(rows[0].Event.ID); err != nil {
		t.Errorf("the id that was made: %v", err)
	}
	if age := time.Since(rows[0].Event.Time()); age < -time.Minute || age > time.Hour {
		t.Errorf("the time that was made is %s old", age)
	}
}

// A row that somebody has inserted as claimed, without a lease, is not claimed for ever.
func claimWithoutLease(t *testing.T, p *Place) {
	if err := p.Insert(Raw{ID: "odd", Topic: "t", Key: "k", Payload: `1`, Status: string(outbox.Claimed)}); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, "the row", turn(t, p, "w", 10), "odd")
}

func badEvents(t *testing.T, p *Place) {
	for name, bad := range map[string]eventhub.Event{
		"topic":   {Topic: "no topic!", Payload: json.RawMessage(`1`)},
		"payload": {Topic: "t", Payload: json.RawMessage(`{"a":`)},
		"missing": {Topic: "t"},
		"id":      {Topic: "t", ID: "a b", Payload: json.RawMessage(`1`)},
		"key":     {Topic: "t", Key: strings.Repeat("k", eventhub.MaxKeyBytes+1), Payload: json.RawMessage(`1`)},
		"delay":   {Topic: "t", Delay: time.Second, Payload: json.RawMessage(`1`)},
		"expect":  {Topic: "t", Key: "k", Expect: eventhub.IfKeyOffset(0), Payload: json.RawMessage(`1`)},
	} {
		_, err := p.Add(event("t", "", 1), bad)
		if at := eventhub.AsError(err).Index; eventhub.ErrorCode(err) == eventhub.CodeInternal || at == nil || *at != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := counts(t, p); n != (outbox.Counts{}) {
		t.Errorf("after refusals there are %+v", n)
	}
}

func counts(t *testing.T, p *Place) outbox.Counts {
	t.Helper()
	n, err := p.Store.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func begin(t *testing.T, p *Place, events ...eventhub.Event) ([]string, func(bool)) {
	t.Helper()
	added, end, err := p.Begin(events...)
	if err != nil {
		t.Fatal(err)
	}
	return added, func(commit bool) {
		t.Helper()
		if err := end(commit); err != nil {
			t.Fatal(err)
		}
	}
}

func transactions(t *testing.T, p *Place) {
	if p.Begin == nil {
		t.Log("this database has no transactions: only single rows are atomic")
		return
	}
	_, end := begin(t, p, event("t", "", 1), event("t", "", 2))
	end(false)
	wantIDs(t, "after a rollback", turn(t, p, "w", 10))
	added, end := begin(t, p, event("t", "", 1), event("t", "", 2))
	end(true)
	wantIDs(t, "after a commit", turn(t, p, "w", 10), added...)
}

func claimsInOrder(t *testing.T, p *Place) {
	all := add(t, p, "t", "a", "", "b", "a", "", "c")
	wantIDs(t, "first", turn(t, p, "w1", 2), all[:2]...)
	// The second row of key a has to wait for the first.
	wantIDs(t, "second", turn(t, p, "w2", 10), all[2], all[4], all[5])
	wantIDs(t, "nothing is left", turn(t, p, "w3", 10))
}

func keysAreHeld(t *testing.T, p *Place) {
	one, other := add(t, p, "t", "a", "a", "a"), add(t, p, "u", "a")
	wantIDs(t, "two of a key at once", turn(t, p, "w1", 2), one[:2]...)
	wantIDs(t, "the key of another topic", turn(t, p, "w2", 10), other...)
	sent := outbox.Outcome{ID: one[0], Status: outbox.Sent, Offset: 7}
	wantIDs(t, "one of two is settled", turn(t, p, "w1", 10, sent))
	wantIDs(t, "both are settled", turn(t, p, "w1", 10, outbox.Outcome{ID: one[1], Status: outbox.Parked, Error: "no"}), one[2])
}

func topicsAreHeld(t *testing.T, p *Place) {
	one, other := add(t, p, "t", "a", "", "b"), add(t, p, "u", "")
	wantIDs(t, "first", turnBy(t, p, outbox.ByTopic, "w1", 1), one[0])
	wantIDs(t, "the rest of the topic waits", turnBy(t, p, outbox.ByTopic, "w2", 10), other...)
	retry := outbox.Outcome{ID: one[0], Status: outbox.Pending, Error: "later", RetryAt: start.Add(time.Second)}
	wantIDs(t, "also for a retry", turnBy(t, p, outbox.ByTopic, "w1", 10, retry))
	p.SetNow(start.Add(time.Second))
	wantIDs(t, "all together", turnBy(t, p, outbox.ByTopic, "w2", 10), one...)
}

// A worker whose lease has run out, and which has claimed its rows again, may settle both claims at once: the outcomes of a row count in
// their order.
func outcomesOfOneRow(t *testing.T, p *Place) {
	all := add(t, p, "t", "", "", "")
	turn(t, p, "w", 10)
	p.SetNow(start.Add(11 * time.Second))
	wantIDs(t, "again", turn(t, p, "w", 10), all...)
	sent := func(id string, offset uint64) outbox.Outcome {
		return outbox.Outcome{ID: id, Status: outbox.Sent, Offset: offset}
	}
	turn(t, p, "w", 0,
		sent(all[0], 3), outbox.Outcome{ID: all[1], Status: outbox.Parked, Error: "no"}, outbox.Outcome{ID: all[2], Status: outbox.Pending, Error: "away"},
		sent(all[0], 4), sent(all[1], 5), outbox.Outcome{ID: all[2], Status: outbox.Parked, Error: "no"})
	for i, want := range []outbox.Row{{Status: outbox.Sent, Offset: 3}, {Status: outbox.Parked, LastError: "no"}, {Status: outbox.Pending, LastError: "away"}} {
		if r := show(t, p, all[i]); r.Status != want.Status || r.Offset != want.Offset || r.LastError != want.LastError {
			t.Errorf("row %d is %s at %d, %q; want %s at %d, %q", i, r.Status, r.Offset, r.LastError, want.Status, want.Offset, want.LastError)
		}
	}
}

// A row that was inserted first and committed last comes when it is there, and nothing is
// passed over: it is not found by its place.
func lateCommit(t *testing.T, p *Place) {
	if p.Begin == nil || !p.Concurrent {
		t.Log("this database has one transaction at a time: there is no late commit")
		return
	}
	late, end := begin(t, p, event("t", "a", 1))
	second := add(t, p, "t", "a", "b")
	wantIDs(t, "what is committed", turn(t, p, "w", 10), second...)
	end(true)
	wantIDs(t, "its key is held", turn(t, p, "w", 10))
	wantIDs(t, "then the late one", turn(t, p, "w", 10, outbox.Outcome{ID: second[0], Status: outbox.Sent}), late...)
}

func leases(t *testing.T, p *Place) {
	all := add(t, p, "t", "a", "a")
	wantIDs(t, "first", turn(t, p, "w1", 1), all[0])
	p.SetNow(start.Add(10*time.Second - time.Millisecond))
	wantIDs(t, "before the lease ends", turn(t, p, "w2", 10))
	p.SetNow(start.Add(10 * time.Second))
	rows := turn(t, p, "w2", 10)
	wantIDs(t, "after it", rows, all...)
	if rows[0].Attempts != 2 || rows[0].ClaimedBy != "w2" || rows[1].Attempts != 1 {
		t.Errorf("rows %+v", rows)
	}
	p.SetNow(start) // a clock that goes back
	wantIDs(t, "clock back", turn(t, p, "w3", 10))
	p.SetNow(start.Add(time.Hour)) // and far ahead
	wantIDs(t, "clock ahead", turn(t, p, "w3", 10), all...)
}

func outcomes(t *testing.T, p *Place) {
	all := add(t, p, "t", "a", "b", "c", "d")
	turn(t, p, "w", 10)
	p.SetNow(start.Add(time.Second))
	wantIDs(t, "settled", turn(t, p, "w", 10,
		outbox.Outcome{ID: all[0], Status: outbox.Sent, Offset: 1<<53 - 1},
		outbox.Outcome{ID: all[1], Status: outbox.Parked, Error: "bad_event: it's \"bad\""},
		outbox.Outcome{ID: all[2], Status: outbox.Pending, Error: "away", RetryAt: start.Add(5 * time.Second)},
		outbox.Outcome{ID: all[3], Status: outbox.Pending, Unused: true},
		outbox.Outcome{ID: "nobody", Status: outbox.Sent},
	), all[3])
	for i, want := range []outbox.Row{
		{Status: outbox.Sent, SentAt: start.Add(time.Second), Offset: 1<<53 - 1, Attempts: 1},
		{Status: outbox.Parked, LastError: "bad_event: it's \"bad\"", Attempts: 1},
		{Status: outbox.Pending, LastError: "away", RetryAt: start.Add(5 * time.Second), Attempts: 1},
		{Status: outbox.Claimed, ClaimedBy: "w", LeaseUntil: start.Add(11 * time.Second), Attempts: 1},
	} {
		got := show(t, p, all[i])
		got.Event = eventhub.Event{}
		if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(0)); diff != "" {
			t.Errorf("row %d (-want +got):\n%s", i, diff)
		}
	}
	n := counts(t, p)
	if n.Oldest.IsZero() || n.Pending != 1 || n.Claimed != 1 || n.Parked != 1 {
		t.Errorf("counts %+v", n)
	}
}

func outcomesOfLosers(t *testing.T, p *Place) {
	all := add(t, p, "t", "a", "b", "c")
	turn(t, p, "loser", 10)
	p.SetNow(start.Add(time.Minute))
	wantIDs(t, "claimed again", turn(t, p, "winner", 10), all...)
	turn(t, p, "loser", 0,
		outbox.Outcome{ID: all[0], Status: outbox.Sent, Offset: 3}, // the hub has it
		outbox.Outcome{ID: all[1], Status: outbox.Parked, Error: "late"},
		outbox.Outcome{ID: all[2], Status: outbox.Pending, Error: "late"})
	turn(t, p, "winner", 0, outbox.Outcome{ID: all[0], Status: outbox.Parked, Error: "later"})
	if r := show(t, p, all[0]); r.Status != outbox.Sent || r.Offset != 3 || r.ClaimedBy != "" {
		t.Errorf("what was sent is %+v", r)
	}
	for _, id := range all[1:] {
		if r := show(t, p, id); r.Status != outbox.Claimed || r.ClaimedBy != "winner" || r.LastError != "" {
			t.Errorf("the winner's row is %+v", r)
		}
	}
	turn(t, p, "winner", 0, outbox.Outcome{ID: all[1], Status: outbox.Pending})
	turn(t, p, "loser", 0, outbox.Outcome{ID: all[1], Status: outbox.Sent, Offset: 4})
	if r := show(t, p, all[1]); r.Status != outbox.Sent || r.Offset != 4 {
		t.Errorf("what was sent and given back is %+v", r)
	}
}

func waitsForRetry(t *testing.T, p *Place) {
	all := add(t, p, "t", "a", "a", "b", "")
	wantIDs(t, "first", turn(t, p, "w", 1), all[0])
	retry := outbox.Outcome{ID: all[0], Status: outbox.Pending, Error: "limit", RetryAt: start.Add(time.Second)}
	wantIDs(t, "others pass", turn(t, p, "w", 10, retry), all[2], all[3])
	wantIDs(t, "nothing is due", turn(t, p, "w", 10))
	p.SetNow(start.Add(time.Second))
	wantIDs(t, "in order again", turn(t, p, "w", 10), all[:2]...)
}

func forget(t *testing.T, p *Place) {
	all := add(t, p, "t", "", "", "", "")
	turn(t, p, "w", 10)
	sent := func(id string) outbox.Outcome { return outbox.Outcome{ID: id, Status: outbox.Sent, Offset: 1} }
	turn(t, p, "w", 0, sent(all[0]), sent(all[1]))
	p.SetNow(start.Add(time.Second))
	turn(t, p, "w", 0, sent(all[2]), outbox.Outcome{ID: all[3], Status: outbox.Parked, Error: "no"})
	for i, want := range []int{1, 1, 0} {
		n, err := p.Store.Forget(t.Context(), start.Add(time.Millisecond), 1)
		if err != nil || n != want {
			t.Errorf("forget %d: %d, %v; want %d", i, n, err, want)
		}
	}
	rows, err := p.Store.List(t.Context(), nil, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	wantIDs(t, "what is left", rows, all[2:]...)
}

func keeping(t *testing.T, p *Place) {
	ctx := t.Context()
	all := add(t, p, "t", "a", "b", "c", "d", "e")
	turn(t, p, "w", 3)
	turn(t, p, "w", 0, outbox.Outcome{ID: all[0], Status: outbox.Sent, Offset: 1},
		outbox.Outcome{ID: all[1], Status: outbox.Parked, Error: "no"}, outbox.Outcome{ID: all[2], Status: outbox.Parked, Error: "no"})
	list := func(after string, limit int, statuses ...outbox.Status) []outbox.Row {
		t.Helper()
		rows, err := p.Store.List(ctx, statuses, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	wantIDs(t, "all", list("", 10), all...)
	wantIDs(t, "a page", list("", 2), all[:2]...)
	wantIDs(t, "the next", list(all[1], 2), all[2:4]...)
	wantIDs(t, "parked and sent", list("", 10, outbox.Parked, outbox.Sent), all[:3]...)
	if _, err := p.Store.List(ctx, nil, "nobody", 10); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("after nobody: %v", err)
	}
	if _, err := p.Store.Show(ctx, "nobody"); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("show nobody: %v", err)
	}
	if n, err := p.Store.Retry(ctx, all[1], all[4], "nobody"); n != 1 || err != nil {
		t.Errorf("retry: %d, %v", n, err)
	}
	if r := show(t, p, all[1]); r.Status != outbox.Pending || r.Attempts != 0 || r.LastError != "no" {
		t.Errorf("retried: %+v", r)
	}
	if n, err := p.Store.Retry(ctx); n != 1 || err != nil {
		t.Errorf("retry all: %d, %v", n, err)
	}
	for _, status := range []outbox.Status{outbox.Pending, outbox.Claimed, "", "x"} {
		if _, err := p.Store.Purge(ctx, status, time.Now().Add(time.Hour)); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("purge of %q: %v", status, err)
		}
	}
	if n, err := p.Store.Purge(ctx, outbox.Sent, start.Add(-time.Hour)); n != 0 || err != nil {
		t.Errorf("purge of nothing: %d, %v", n, err)
	}
	if n, err := p.Store.Purge(ctx, outbox.Sent, time.Now().Add(time.Hour)); n != 1 || err != nil {
		t.Errorf("purge: %d, %v", n, err)
	}
	wantIDs(t, "after it", list("", 10), all[1:]...)
}

func versions(t *testing.T, p *Place) {
	ctx := t.Context()
	if err := p.Store.Check(ctx); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is there already
		if err := p.Store.Migrate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.SetVersion(1000); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(context.Context) error{p.Store.Check, p.Store.Migrate} {
		if err := f(ctx); eventhub.ErrorCode(err) != eventhub.CodeConflict || !strings.Contains(err.Error(), "1000") {
			t.Errorf("a newer table: %v", err)
		}
	}
	for name, remove := range map[string]func() error{"no table": p.Drop, "a table that is not finished": p.Unfinish} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if err := p.Store.Check(ctx); err != outbox.ErrNoTable {
			t.Errorf("%s: %v", name, err)
		}
		if err := p.Store.Migrate(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	add(t, p, "t", "a")
	if rows := turn(t, p, "w", 1); len(rows) != 1 {
		t.Errorf("%d rows in a new table", len(rows))
	}
}

// Each row is claimed once, and those of a key in their order, by workers that claim at the
// same time.
func manyWorkers(t *testing.T, p *Place) {
	const keys, workers = 7, 4
	rows := testsize.Of(200, 100)
	want := make(map[string][]string)
	for i := range rows {
		key := fmt.Sprint("k", i%keys)
		want[key] = append(want[key], add(t, p, "t", key)...)
	}
	var mu sync.Mutex
	got := make(map[string][]string)
	n := 0
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			var settled []outbox.Outcome
			for {
				claimed, err := p.Store.Turn(t.Context(), settled, outbox.Claim{Max: 5, Lease: time.Hour, Worker: fmt.Sprint(w), Order: outbox.ByKey})
				if err != nil {
					t.Error(err)
					return
				}
				settled = nil
				mu.Lock()
				n += len(claimed)
				done := n >= rows
				for _, r := range claimed {
					got[r.Event.Key] = append(got[r.Event.Key], r.Event.ID)
					settled = append(settled, outbox.Outcome{ID: r.Event.ID, Status: outbox.Sent, Offset: 1})
				}
				mu.Unlock()
				if done && len(claimed) == 0 {
					return
				}
			}
		})
	}
	all.Wait()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims by key (-want +got):\n%s", diff)
	}
	if c := counts(t, p); c != (outbox.Counts{}) {
		t.Errorf("left: %+v", c)
	}
}
