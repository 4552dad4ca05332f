package bus

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"eventhub"
)

// TestNoCreate: a subscription that is to create nothing creates nothing, and says what does
// not exist, with a name that may be meant.
func TestNoCreate(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish("orders", 1, 1)
		r.subscribe(eventhub.GroupOptions{Topic: "orders", Group: "billing"})
		r.subscribe(eventhub.GroupOptions{Topic: "orders.*", Group: "audit"})
		subscribe := func(group, topic string, more ...string) error {
			in := new(inbox)
			sub, err := r.bus.Subscribe(context.Background(), eventhub.GroupOptions{Topic: topic, Topics: more, Group: group, NoCreate: true}, in)
			if err == nil {
				err = sub.Unsubscribe(context.Background())
			}
			return err
		}
		tail := func(topic string, more ...string) error {
			in := new(inbox)
			sub, err := r.bus.Tail(context.Background(), eventhub.TailOptions{Topic: topic, Topics: more, NoCreate: true}, in)
			if err == nil {
				err = sub.Unsubscribe(context.Background())
			}
			return err
		}
		for _, c := range []struct {
			name string
			err  error
			code eventhub.Code
			text string
		}{
			{"topic", subscribe("billing", "ordrs"), eventhub.CodeUnknownID, `topic "ordrs" does not exist; did you mean orders?`},
			{"far topic", subscribe("billing", "mails"), eventhub.CodeUnknownID, `topic "mails" does not exist`},
			{"group", subscribe("biling", "orders"), eventhub.CodeNotSubscribed, `there is no group "biling" in topic "orders"; did you mean billing?`},
			{"both", subscribe("billing", "orders"), "", ""},
			{"one of two topics", subscribe("billing", "orders", "ordrs"), eventhub.CodeUnknownID, `topic "ordrs" does not exist; did you mean orders?`},
			{"group in one of two", subscribe("audit", "orders.*", "orders"), eventhub.CodeNotSubscribed, `there is no group "audit" in topic "orders"`},
			{"pattern", subscribe("audit", "orders.*"), "", ""},
			{"other pattern", subscribe("audit", "orders.**"), eventhub.CodeNotSubscribed, `group "audit" has no pattern "orders.**"`},
			{"pattern of no group", subscribe("nobody", "orders.*"), eventhub.CodeNotSubscribed, `group "nobody" has no pattern "orders.*"`},
			{"tail", tail("orders"), "", ""},
			{"tail of no topic", tail("orders", "oders"), eventhub.CodeUnknownID, `topic "oders" does not exist; did you mean orders?`},
			{"tail of a pattern", tail("*"), "", ""},
			{"tail of a pattern of none", tail("mail.*"), eventhub.CodeUnknownID, `no topic matches "mail.*"`},
		} {
			if c.code == "" {
				if c.err != nil {
					t.Errorf("%s: %v", c.name, c.err)
				}
				continue
			}
			if eventhub.ErrorCode(c.err) != c.code || !strings.HasSuffix(c.err.Error(), c.text) {
				t.Errorf("%s: %v; want %s: %s", c.name, c.err, c.code, c.text)
			}
		}
		topics, err := r.bus.Topics(context.Background(), "", 100)
		if err != nil || len(topics) != 1 || topics[0].Groups != 1 {
			t.Errorf("the topics are %+v, %v", topics, err)
		}
		patterns, err := r.bus.Patterns(context.Background(), "")
		if err != nil || len(patterns) != 1 {
			t.Errorf("the patterns are %+v, %v", patterns, err)
		}
		// What a pattern brings is brought all the same.
		r.publish("orders.eu", 1, 1)
		synctest.Wait()
		if err := subscribe("audit", "orders.eu"); err != nil {
			t.Error(err)
		}
	})
}
