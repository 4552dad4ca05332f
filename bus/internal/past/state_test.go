package past

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
)

// states returns "key/offset" of all pages of a query.
func (r *rig) states(q admin.StateQuery) (seen []string, err error) {
	for {
		page, err := r.history.State(bg, q)
		if err != nil {
			return seen, err
		}
		for _, e := range page.Events {
			seen = append(seen, fmt.Sprint(string(e.Record.Key()), "/", e.Offset))
		}
		if page.Next == "" {
			return seen, nil
		}
		q.Page, q.At, q.AtTS = page.Next, 0, 0
	}
}

func keyed(key, payload string) eventhub.Event {
	return eventhub.Event{Topic: "t", Key: key, Payload: []byte(payload)}
}

func (r *rig) wantState(q admin.StateQuery, want string) {
	r.t.Helper()
	q.Topic = "t"
	for _, q.Limit = range []int{1, 2, 1000} {
		got, err := r.states(q)
		if err != nil || strings.Join(got, " ") != want {
			r.t.Errorf("State(%+v) = %q, %v; want %q", q, got, err, want)
		}
	}
}

func (r *rig) wantNoState(q admin.StateQuery, code eventhub.Code, says string) {
	r.t.Helper()
	if q.Topic == "" {
		q.Topic = "t"
	}
	if q.Limit == 0 {
		q.Limit = 10
	}
	_, err := r.history.State(bg, q)
	if e := eventhub.AsError(err); err == nil || e.Code != code || !strings.Contains(e.Message, says) {
		r.t.Errorf("State(%+v): %v; want %s with %q", q, err, code, says)
	}
}

func TestState(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := time.Now().UnixMilli()
		r.publishEvents(keyed("b", "1"), keyed("a", "1"), keyed("c", "1"), keyed("a", "null"), keyed("b", "2"), eventhub.Event{Topic: "t"})
		r.wantState(admin.StateQuery{}, "b/5 c/3")
		r.wantState(admin.StateQuery{At: 3}, "a/2 b/1 c/3")
		r.wantState(admin.StateQuery{At: 1}, "b/1")
		r.wantState(admin.StateQuery{Prefix: "b"}, "b/5")
		r.wantState(admin.StateQuery{Keys: []string{"c", "a", "b", "c"}, At: 2}, "a/2 b/1")
		r.wantState(admin.StateQuery{AtTS: first - 1}, "")
		r.wantState(admin.StateQuery{AtTS: first}, "b/1")
		r.wantState(admin.StateQuery{AtTS: first + 2999}, "a/2 b/1 c/3")
		r.wantState(admin.StateQuery{AtTS: first + 3000}, "b/1 c/3")
		r.wantState(admin.StateQuery{AtTS: first + 1e6}, "b/5 c/3")
		page, err := r.history.State(bg, admin.StateQuery{Topic: "t", AtTS: first + 1000, Limit: 5})
		equal(t, "the offset of a time", page.At, uint64(2))
		if err != nil || page.Life == 0 {
			t.Errorf("the page is %+v, %v", page, err)
		}
	})
}

func TestStateThatIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		first := time.Now().UnixMilli()
		r.publishEvents(keyed("a", "1"), keyed("b", "1"), keyed("a", "2"), keyed("b", "null"), keyed("a", "3"), keyed("c", "1"))
		r.remove("t", 3)
		r.wantState(admin.StateQuery{At: 3}, "a/3")
		r.wantNoState(admin.StateQuery{At: 2}, eventhub.CodeGone, "from offset 3 on")
		r.wantState(admin.StateQuery{AtTS: first + 2000}, "a/3")
		r.wantNoState(admin.StateQuery{AtTS: first + 1999}, eventhub.CodeGone, "from offset 3 on")
		r.compact("t", 4, 4) // b and its end are gone
		r.wantState(admin.StateQuery{At: 4}, "a/3")
		r.wantNoState(admin.StateQuery{At: 3}, eventhub.CodeGone, "from offset 4 on")
		// Nobody knows that the event at 4 was there already.
		r.wantNoState(admin.StateQuery{AtTS: first + 3500}, eventhub.CodeGone, "from offset 4 on")
		r.wantState(admin.StateQuery{AtTS: first + 4000}, "a/5")
		page, err := r.history.State(bg, admin.StateQuery{Topic: "t", At: 6, Limit: 1})
		if err != nil || page.Next == "" {
			t.Fatalf("the first page is %+v, %v", page, err)
		}
		r.publishEvents(keyed("a", "4"))
		r.compact("t", 7, 7)
		r.wantNoState(admin.StateQuery{Page: page.Next}, eventhub.CodeGone, "at offset 6 is gone: it is known from offset 7 on")
		r.remove("t", 8)
		r.wantState(admin.StateQuery{}, "")
		r.wantState(admin.StateQuery{At: 7}, "")
		r.wantNoState(admin.StateQuery{At: 6}, eventhub.CodeGone, "from offset 8 on")
	})
}

func TestStateRefusals(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.wantNoState(admin.StateQuery{}, eventhub.CodeUnknownID, `"t"`)
		r.publishEvents(keyed("a", "1"), keyed("b", "1"), eventhub.Event{Topic: "u", Key: "a"})
		page, err := r.history.State(bg, admin.StateQuery{Topic: "t", Prefix: "", Limit: 1})
		if err != nil || page.Next == "" {
			t.Fatalf("the first page is %+v, %v", page, err)
		}
		long := strings.Repeat("k", eventhub.MaxKeyBytes+1)
		token := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
		for _, tt := range []struct {
			q    admin.StateQuery
			says string
		}{
			{admin.StateQuery{At: 3}, "at is the offset 3, and topic \"t\" has them up to 2"},
			{admin.StateQuery{At: 1 << 60}, "1152921504606846976"},
			{admin.StateQuery{AtTS: -5}, "-5"},
			{admin.StateQuery{At: 1, AtTS: 7}, "one of both"},
			{admin.StateQuery{Prefix: long}, "1025 bytes"},
			{admin.StateQuery{Keys: []string{"a", long}}, "1025 bytes"},
			{admin.StateQuery{Keys: []string{"a", ""}}, "empty"},
			{admin.StateQuery{Keys: []string{}}, "0 keys"},
			{admin.StateQuery{Keys: make([]string, 1001)}, "1001 keys"},
			{admin.StateQuery{Keys: []string{"a"}, Prefix: "a"}, "one of both"},
			{admin.StateQuery{Limit: 1001}, "limit is 1001"},
			{admin.StateQuery{Limit: -1}, "limit is -1"},
			{admin.StateQuery{Topic: "u", Page: page.Next}, `page is of topic "t", and not of "u"`},
			{admin.StateQuery{Page: page.Next, At: 1}, "its own offset"},
			{admin.StateQuery{Page: page.Next, AtTS: 1}, "its own offset"},
			{admin.StateQuery{Page: page.Next, Prefix: "b"}, "begin with"},
			{admin.StateQuery{Page: "nonsense"}, "nonsense"},
			{admin.StateQuery{Page: token(`{"t":"t","l":1,"o":2,"k":""}`)}, "the next of a page"},
			{admin.StateQuery{Page: token(`{"t":"t","l":1,"k":"a"}`)}, "the next of a page"},
			{admin.StateQuery{Page: token(`{"t":"t","l":1,"o":1,"k":"a","x":1}`)}, "the next of a page"},
		} {
			code := eventhub.CodeBadRequest
			r.wantNoState(tt.q, code, tt.says)
		}
		r.deleteTopic("t")
		r.wantNoState(admin.StateQuery{Page: page.Next}, eventhub.CodeUnknownID, `"t"`)
		r.publishEvents(keyed("a", "1"), keyed("b", "1"))
		r.wantNoState(admin.StateQuery{Page: page.Next}, eventhub.CodeUnknownID, "an earlier topic")
	})
}
