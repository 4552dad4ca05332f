package bus

import (
	"encoding/json"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/space"
	"eventhub/store"
	"eventhub/store/storefault"
)

// TestNote: what the hub notes is in system.audit in one unit, in order, and reaches those who
// follow it; on a disk that is full it is refused, and nothing of it is there.
func TestNote(t *testing.T) {
	inBubble(t, func(r *rig) {
		in := r.tail(eventhub.TailOptions{Topic: "system.**"})
		note := func(actions ...string) error {
			var marks []admin.AuditMark
			for _, a := range actions {
				marks = append(marks, admin.AuditMark{Action: a, Outcome: "ok", Count: 1})
			}
			return r.bus.Note(bg, marks)
		}
		noted := func() (actions []string) {
			for _, e := range r.events(admin.AuditTopic) {
				var m admin.AuditMark
				if err := json.Unmarshal(e.Payload, &m); err != nil {
					t.Fatal(err)
				}
				actions = append(actions, m.Action)
			}
			return actions
		}
		s := r.faulty()
		commits := s.Calls(storefault.Commit)
		equal(t, "err", note("a", "b", "c"), nil)
		equal(t, "commits", s.Calls(storefault.Commit)-commits, 1)
		equal(t, "noted", noted(), []string{"a", "b", "c"})
		equal(t, "followed", len(in.Take()), 3)
		s.SetSpace(func() (store.Space, error) { return store.Space{Free: 1, Total: 1 << 40}, nil })
		time.Sleep(space.LookEvery)
		wantCode(t, note("d"), eventhub.CodeOverloaded)
		equal(t, "noted on a full disk", noted(), []string{"a", "b", "c"})
	})
}
