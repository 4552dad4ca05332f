package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
)

// TestEndedOverTheGateways: groups over WebSocket and over HTTP end because nobody uses them.
// Who makes one again is told, once, where it had been.
func TestEndedOverTheGateways(t *testing.T) {
	h := startHub(t, hub.MemoryStore)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	expire := func(after time.Duration) {
		if _, err := h.Bus().SetTopic(ctx, "t", admin.TopicSettings{GroupIdleExpiry: admin.Period(after)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.Dial(ctx, "ws://"+h.WSAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	uses := map[string]func(group string) ([]eventhub.EndedGroup, error){
		"socket": func(group string) ([]eventhub.EndedGroup, error) { return useAsMember(ctx, c, group) },
		"pull": func(group string) ([]eventhub.EndedGroup, error) {
			return useByPull(ctx, "http://"+h.HTTPAddr()+"/v1/topics/t/groups/"+group)
		},
	}
	publish := func(ids ...string) {
		for _, id := range ids {
			if _, err := h.Bus().Publish(ctx, eventhub.Event{Topic: "t", ID: id, Payload: json.RawMessage("1")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	told := func(group, when string, want []eventhub.EndedGroup) {
		t.Helper()
		got, err := uses[group](group)
		for i := range got {
			if age := time.Since(time.UnixMilli(got[i].TS)); age < 0 || age > patience {
				t.Errorf("%s, %s: it ended %v ago", group, when, age)
			}
			got[i].TS = 0
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s, %s, is told %+v, %v; want %+v", group, when, got, err, want)
		}
	}
	publish("1", "2", "3")
	for group := range uses {
		told(group, "when it is new", nil)
	}
	expire(time.Second)
	for group := range uses {
		waitEnded(ctx, t, h, group)
	}
	expire(time.Hour)
	publish("4", "5")
	for group := range uses {
		told(group, "when it had ended", []eventhub.EndedGroup{{Topic: "t", Cursor: 3}})
	}
	publish("6")
	for group := range uses {
		told(group, "again", nil)
	}
}

// waitEnded waits until nobody has used a group for its second.
func waitEnded(ctx context.Context, t *testing.T, h *hub.Hub, group string) {
	t.Helper()
	waitUntil(ctx, t, "group "+group+" has ended", func() (bool, error) {
		_, err := h.Bus().Group(ctx, "t", group)
		if eventhub.ErrorCode(err) == eventhub.CodeNotSubscribed {
			return true, nil
		}
		return false, err
	})
}

// useAsMember is a member of the group until it has acked the newest event.
func useAsMember(ctx context.Context, c *client.Client, group string) (told []eventhub.EndedGroup, _ error) {
	opts := eventhub.GroupOptions{Topic: "t", Group: group, Start: eventhub.Earliest, OnEnded: func(e eventhub.EndedGroup) { told = append(told, e) }}
	adm := c.Admin()
	info, err := adm.Topic(ctx, "t")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err = c.Consume(ctx, opts, func(_ context.Context, d eventhub.Delivery) error {
		if d.Offset == info.Head {
			cancel(errAll) // it is acked all the same
		}
		return nil
	})
	if errors.Is(context.Cause(ctx), errAll) {
		err = nil
	}
	return told, err
}

// useByPull pulls all that there is, and acks it.
func useByPull(ctx context.Context, base string) (told []eventhub.EndedGroup, _ error) {
	var got struct {
		Deliveries []struct{ Ctx struct{ Lease string } }
		Ended      []eventhub.EndedGroup
	}
	if err := post(ctx, base+"/pull?max=100", `{"from":"earliest"}`, &got); err != nil {
		return nil, err
	}
	var leases []string
	for _, d := range got.Deliveries {
		leases = append(leases, d.Ctx.Lease)
	}
	body, err := json.Marshal(map[string]any{"leases": leases})
	if err != nil {
		return nil, err
	}
	return got.Ended, post(ctx, base+"/ack", string(body), &struct{}{})
}
