package bench

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"eventhub"
	"eventhub/hubtest"
	"eventhub/wire"
)

// TestSubscribe: every way to ack does all of the backlog, whatever the frames.
func TestSubscribe(t *testing.T) {
	h := hubtest.Start(t)
	for _, ack := range []string{AckID, AckLease, AckIDs} {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/batch=%t", ack, batch), func(t *testing.T) {
				res, err := Subscribe(limited(t), &Target{URL: h.URL}, SubscribeOptions{Members: 2, InFlight: 50, Payload: 64, Ack: ack, Batch: batch, Count: 3_000})
				if err != nil {
					t.Fatal(err)
				}
				if res.Published != 3_008 || res.Count > 3_008-300 || res.Count < 1 || res.Redelivered != 0 || res.Errors != 0 {
					t.Errorf("%+v; want 3008 events, and the first tenth of them is not measured", res)
				}
				info, err := h.Admin().Group(t.Context(), res.Hub.Topic, flowGroup)
				if err != nil || info.Cursor != 3_008 {
					t.Errorf("the group is at %d, %v", info.Cursor, err)
				}
			})
		}
	}
}

// TestSubscribeBySDK: every event is handled and acked, and the first tenth is not measured.
func TestSubscribeBySDK(t *testing.T) {
	h := hubtest.Start(t)
	res, err := Subscribe(limited(t), &Target{URL: h.URL}, SubscribeOptions{Members: 2, InFlight: 50, Payload: 64, Ack: AckID, SDK: true, Count: 3_000})
	if err != nil {
		t.Fatal(err)
	}
	if res.Published != 3_008 || res.Count != 3_008-300 || res.Errors != 0 {
		t.Errorf("%+v; want 3008 events, and the first tenth of them is not measured", res)
	}
	info, err := h.Admin().Group(t.Context(), res.Hub.Topic, flowGroup)
	if err != nil || info.Cursor != 3_008 {
		t.Errorf("the group is at %d, %v", info.Cursor, err)
	}
}

func TestSubscribeNeedsANewTopic(t *testing.T) {
	h := hubtest.Start(t)
	if _, err := h.Client().Publish(t.Context(), eventhub.Event{Topic: "t", Payload: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	_, err := Catchup(limited(t), &Target{URL: h.URL}, CatchupOptions{Topic: "t", Tails: 1, Payload: 64, Count: 100})
	if eventhub.ErrorCode(err) != eventhub.CodeBadRequest || !strings.Contains(err.Error(), `"t"`) {
		t.Errorf("Catchup = %v; want bad_request for a topic with events", err)
	}
}

// TestTheWarmUpEndsWithItsLastDelivery, however late whoever waits for that comes.
func TestTheWarmUpEndsWithItsLastDelivery(t *testing.T) {
	r := begin(limited(t), &Target{})
	defer r.close()
	a := newAudience(r, false, 10)
	a.count(9, 0)
	a.count(3, 0)
	end := time.Now()
	a.count(100, 0)
	warm, err := a.awaitWarm()
	if err != nil || warm.deliveries != 12 || warm.at.After(end) {
		t.Errorf("%+v, %v; want 12 deliveries, before %v", warm, err, end)
	}
}

func TestCatchup(t *testing.T) {
	h := hubtest.Start(t)
	for _, batch := range []bool{false, true} {
		res, err := Catchup(limited(t), &Target{URL: h.URL}, CatchupOptions{Tails: 3, Payload: 64, Batch: batch, Count: 2_000})
		if err != nil {
			t.Fatal(err)
		}
		if res.Published != 2_048 || res.Count > 3*2_048*9/10 || res.Count < 1 {
			t.Errorf("batch %t: %+v; want 2048 events for each of three tails, without the first tenth", batch, res)
		}
	}
}

// TestLatency: every event that was due is published, delivered, acked and timed.
func TestLatency(t *testing.T) {
	h := hubtest.Start(t)
	o := LatencyOptions{Publishers: 3, Members: 2, Rate: 1_000, Payload: 100, Ack: AckID, Duration: 200 * time.Millisecond, Warmup: 50 * time.Millisecond}
	res, err := MeasureLatency(limited(t), &Target{URL: h.URL}, o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Count != 200 || res.Published != 250 || res.Publish.Count != 200 || res.Delivery.Count != 200 {
		t.Errorf("%+v, %+v, %+v; want 200 events after 50 of a warm-up", res, res.Publish, res.Delivery)
	}
	for _, e := range h.Events(res.Hub.Topic, 250) {
		if len(e.Payload) != 100 || !strings.HasPrefix(string(e.Payload), `{"t":10000`) {
			t.Fatalf("payload %s", e.Payload)
		}
	}
	h.WaitFor(res.Hub.Topic, flowGroup)
}

// TestFanout: everybody gets everything.
func TestFanout(t *testing.T) {
	h := hubtest.Start(t)
	for _, o := range []FanoutOptions{
		{Tails: 10, InFlight: 5},
		{Tails: 10, InFlight: 5, Batch: true},
		{Groups: 5, Rate: 500, InFlight: 5},
	} {
		o.Payload, o.Ack, o.Duration, o.Warmup = 64, AckIDs, 100*time.Millisecond, 20*time.Millisecond
		res, err := Fanout(limited(t), &Target{URL: h.URL}, o)
		if err != nil {
			t.Fatal(err)
		}
		copies := int64(o.Tails + o.Groups)
		if res.Count == 0 || res.Count%copies != 0 || res.Delivery.Count != res.Count || res.Publish.Count != res.Count/copies {
			t.Errorf("%+v, %d latencies of deliveries, %d of events; want %d of the first for each event", res, res.Delivery.Count, res.Publish.Count, copies)
		}
	}
}

// TestIdle: the connections are there while the memory is looked at.
func TestIdle(t *testing.T) {
	h := hubtest.Start(t)
	for _, subscribe := range []bool{false, true} {
		res, err := Idle(limited(t), &Target{URL: h.URL, Ops: h.OpsURL + "/"}, IdleOptions{Connections: 50, Subscribe: subscribe, Settle: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if res.Count != 50 || res.Memory.Before < 1<<20 || res.Memory.After < 1<<20 ||
			res.Memory.PerConnection != float64(res.Memory.After-res.Memory.Before)/50 {
			t.Errorf("%+v %+v", res, res.Memory)
		}
	}
	if _, err := Idle(limited(t), &Target{URL: h.URL}, IdleOptions{Connections: 1}); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("Idle = %v; want bad_request without ops-url", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, err := range map[string]error{
		"ack is \"maybe\"":                  (&SubscribeOptions{Members: 1, InFlight: 1, Payload: 9, Count: 99, Ack: "maybe"}).Validate(),
		"members is 0":                      (&SubscribeOptions{InFlight: 1, Payload: 9, Count: 99, Ack: AckID}).Validate(),
		"tails is 0; 1":                     (&CatchupOptions{Payload: 9, Count: 99}).Validate(),
		"payload is 20; 32":                 (&LatencyOptions{Publishers: 1, Members: 1, Rate: 9, Payload: 20, Ack: AckID, Duration: time.Second}).Validate(),
		"rate is 0; the workload":           (&LatencyOptions{Publishers: 1, Members: 1, Payload: 99, Ack: AckID, Duration: time.Second}).Validate(),
		"tails is 1 and groups is 1":        (&FanoutOptions{Tails: 1, Groups: 1, InFlight: 1, Payload: 99, Ack: AckID, Duration: time.Second}).Validate(),
		"duration in ms is 0":               (&FanoutOptions{Tails: 1, InFlight: 1, Payload: 99, Ack: AckID}).Validate(),
		"connections is 0; 1 to 100000 are": (&IdleOptions{}).Validate(),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("%v; want bad_request and %q", err, want)
		}
	}
}

// TestSubscriptionsThatEnd: what the hub says of a subscription ends the run.
func TestSubscriptionsThatEnd(t *testing.T) {
	for want, answer := range map[string]string{
		"group_mismatch: ordering": `{"op":"ERR","code":"group_mismatch","msg":"ordering","corr":"CORR"}`,
		"to a subscriber":          `{"op":"OK"}`,
		"does not say when":        `{"op":"EVENT","topic":"t","event":{"offset":1,"ts":1,"id":"a","topic":"t","payload":1}}`,
	} {
		h := newFakeHub(t, func(h *fakeHub, c net.Conn, corr string) { h.say(c, strings.ReplaceAll(answer, "CORR", corr)) })
		_, err := MeasureLatency(limited(t), &Target{URL: h.url}, LatencyOptions{Publishers: 1, Members: 1, Rate: 9, Payload: 99, Ack: AckID, Duration: time.Second})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q in it", err, want)
		}
	}
}

// TestFramesAreWhatTheProtocolSays: made and patched frames decode to what they
// are meant to be, and deliveries are cut as the hub's encoder writes them.
func TestFramesAreWhatTheProtocolSays(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, batch := range []int{1, 3} {
		tmpl, err := newTemplate(&shape{topic: "t", bytes: 80, batch: batch, keys: 7, ids: true, stamp: true}, 42, random)
		if err != nil {
			t.Fatal(err)
		}
		serial := uint64(0xabc)
		tmpl.fresh(0x0123456789ab, &serial, 7, random)
		tmpl.stamp(123)
		text := unmask(t, tmpl.b)
		for _, want := range []string{`"corr":"100042"`, `"id":"01234567-89ab-7`, `abd"`, `"key":"key-0000000`, `{"t":1000000000000000123,"x":"`} {
			if !strings.Contains(text, want) {
				t.Errorf("batch %d: %s is not in %s", batch, want, text)
			}
		}
		if n := strings.Count(text, `"t":1000000000000000123`); n != batch {
			t.Errorf("batch %d: %d stamps", batch, n)
		}
		var req wire.Request
		if err := new(wire.Decoder).Decode([]byte(text), &req); err != nil {
			t.Errorf("batch %d: %v: %s", batch, err, text)
		}
	}
}

func unmask(t *testing.T, b []byte) string {
	t.Helper()
	rest := bytes.NewReader(b)
	h, err := ws.ReadHeader(rest)
	if err != nil || int64(rest.Len()) != h.Length || !h.Masked || !h.Fin {
		t.Fatalf("header %+v, %d bytes after it, %v", h, rest.Len(), err)
	}
	text := b[len(b)-rest.Len():]
	ws.Cipher(text, h.Mask, 0)
	return string(text)
}

func TestDeliveriesAreCut(t *testing.T) {
	lease := eventhub.Lease{Runtime: 1, Offset: 2, Serial: 3}
	var batch []eventhub.Delivery
	for i := range 3 {
		rec := fmt.Appendf(nil, `{"ts":1723140000000,"id":"id-%d","topic":"t","payload":{"t":%d,"x":"y"}}`, i, stampBase+i)
		batch = append(batch, eventhub.Delivery{Topic: "t", Offset: uint64(5 + i), Record: rec, Attempt: 1 + i, MaxAttempts: 5, Lease: lease})
	}
	for _, group := range []string{"g", ""} {
		frames := wire.NewEventFrame("t", group)
		text := frames.AppendAll(nil, batch)
		var got []string
		for rest := text; ; {
			event, after, ok := cutDelivery(rest)
			if !ok {
				break
			}
			rest = after
			due, err := dueOf(event)
			got = append(got, fmt.Sprint(string(following(event, idMark)), due, err, again(event), string(following(event, leaseMark)) == string(lease.Append(nil))))
		}
		want := []string{"id-00 <nil> false true", "id-11 <nil> true true", "id-22 <nil> true true"}
		if group == "" {
			want = []string{"id-00 <nil> false false", "id-11 <nil> false false", "id-22 <nil> false false"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("group %q: %q; want %q of %s", group, got, want, text)
		}
	}
}

func TestAckTexts(t *testing.T) {
	lease := string(eventhub.Lease{Runtime: 9, Offset: 8, Serial: 7}.Append(nil))
	event := []byte(`1,"ts":1,"id":"e1","topic":"t","payload":1},"ctx":{"attempt":1,"lease":"` + lease + `"}}`)
	for how, want := range map[string]string{
		AckID:    `{"op":"ACK","topic":"t","group":"g","id":"e1"}`,
		AckLease: `{"op":"ACK","topic":"t","group":"g","lease":"` + lease + `"}`,
		AckIDs:   `{"op":"ACK","topic":"t","group":"g","ids":["e1","e1"]}`,
	} {
		m := &receiver{ack: newAckText(how, "t", "g")}
		m.note(event)
		if how == AckIDs {
			m.note(event)
			m.endIDs()
		}
		if got := unmask(t, m.acks); got != want {
			t.Errorf("%s: %s; want %s", how, got, want)
		}
	}
}
