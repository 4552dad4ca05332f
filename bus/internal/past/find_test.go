package past

import (
	"context"
	"errors"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/filter"
	"eventhub/store/storefault"
)

func TestLinksRefuse(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, none := context.Background(), eventhub.Place{}
		long := strings.Repeat("x", eventhub.MaxCorrelationBytes+1)
		r.publishEvents(eventhub.Event{Topic: "a", ID: "long", Headers: map[string]string{eventhub.CorrelationHeader: long}},
			eventhub.Event{Topic: "a", ID: "fits", Headers: map[string]string{eventhub.CorrelationHeader: long[1:]}})
		list, err := r.history.Correlated(ctx, long[1:], none, 1)
		if err != nil || len(list) != 1 || string(list[0].Record.ID()) != "fits" {
			t.Errorf("the longest correlation id that is kept: %v, %v; want one event", list, err)
		}
		for _, tt := range []struct {
			err  error
			code eventhub.Code
		}{
			{second(r.history.Find(ctx, "no id", 1)), eventhub.CodeBadEvent},
			{second(r.history.Find(ctx, "x", 0)), eventhub.CodeBadRequest},
			{second(r.history.Find(ctx, "x", admin.MaxPage+1)), eventhub.CodeBadRequest},
			{second(r.history.Effects(ctx, "", none, 1)), eventhub.CodeBadEvent},
			{second(r.history.Effects(ctx, "x", none, -1)), eventhub.CodeBadRequest},
			{second(r.history.Correlated(ctx, "", none, 1)), eventhub.CodeBadRequest},
			{second(r.history.Correlated(ctx, long, none, 1)), eventhub.CodeBadRequest},
			{second(r.history.Correlated(ctx, "x", none, 0)), eventhub.CodeBadRequest},
		} {
			wantCode(t, tt.err, tt.code)
		}
	})
}

// TestLinksOfWhatIsDeleted: what is deleted while a page is made of it does not end the
// pages: there may be more after it.
func TestLinksOfWhatIsDeleted(t *testing.T) {
	for name, find := range map[string]func(*History) ([]admin.Found, error){
		"effects":    func(h *History) ([]admin.Found, error) { return h.Effects(bg, "x", eventhub.Place{}, 2) },
		"correlated": func(h *History) ([]admin.Found, error) { return h.Correlated(bg, "c", eventhub.Place{}, 2) },
	} {
		inBubble(t, func(r *rig) {
			headers := map[string]string{eventhub.CorrelationHeader: "c"}
			for _, topic := range []string{"a", "b", "b", "c", "d"} {
				r.publishEvents(eventhub.Event{Topic: topic, CausedBy: []string{"x"}, Headers: headers})
			}
			s := storefault.Wrap(r.store)
			leave := func(*storefault.Call) {
				s.After(storefault.Effects, nil)
				s.After(storefault.Correlated, nil)
				for _, topic := range []string{"a", "b", "c"} {
					r.deleteTopic(topic)
				}
			}
			s.After(storefault.Effects, leave)
			s.After(storefault.Correlated, leave)
			h := New(s, filter.Compile, indexNow(s))
			if list, err := find(h); err != nil || len(list) != 1 || list[0].Topic != "d" {
				t.Errorf("%s: %v, %v; want the event of topic d", name, list, err)
			}
		})
	}
}

func TestHistoryOfAStoreThatFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("t", 1)
		broken, cause := storefault.Wrap(r.store), errors.New("no luck")
		for _, op := range []storefault.Op{storefault.Read, storefault.Places, storefault.Effects, storefault.Correlated} {
			broken.Inject(storefault.Fault{Op: op, Err: cause})
		}
		h := New(broken, filter.Compile, indexNow(broken))
		ctx, none := context.Background(), eventhub.Place{}
		err := h.Replay(ctx, admin.ReplayQuery{Topic: "t"}, func(string, eventhub.Item) error { return nil })
		for _, err := range []error{err, second(h.Find(ctx, "x", 1)), second(h.Effects(ctx, "x", none, 1)), second(h.Correlated(ctx, "x", none, 1))} {
			if wantCode(t, err, eventhub.CodeInternal); !errors.Is(err, cause) {
				t.Errorf("%v lacks its cause", err)
			}
		}
	})
}
